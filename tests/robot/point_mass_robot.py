"""A point mass on two slides as a world, and a process that serves it as a robot; used by the tests of the link."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

import numpy as np

from instep.core.errors import Diverged
from instep.core.rollout import checked_action
from instep.core.world import Array, Channel, Observation, Spec, State, vector
from instep.robot import Limits, SafetyOptions, ServerOptions, WorldDriver, serve

NAMES = ("x", "y")
LOOSE = Limits(NAMES, -np.inf, np.inf, 1e6, 1e9, np.inf)
"""Limits that bind nothing, for tests of everything else."""


@dataclass(frozen=True, slots=True, eq=False)
class PointMass:
    """A unit mass pulled to its target by a damped spring; a camera that shows every third state, where asked for."""

    dt: float = 0.01
    frames: tuple[int, ...] = ()
    """Shape of the camera's image; none where empty."""
    breaks_at: float = np.inf
    """Beyond this position the simulation diverges [m]."""

    @property
    def spec(self) -> Spec:
        seen = {"observation.state": vector(NAMES, "m")}
        if self.frames:
            seen["observation.images.top"] = Channel((), "", self.frames, "uint8")
        return Spec(self.dt, vector(NAMES, "m"), vector(NAMES, "m/s"), vector(NAMES, "m"), seen)

    def reset(self, seed: int = 0) -> State:
        return self._state(0, np.random.default_rng((seed, 1)).uniform(-0.1, 0.1, 2), np.zeros(2), None)

    def step(self, state: State, action: Array) -> State:
        action = checked_action(action, self.spec, state.batch)
        count = int(state.hidden["mass"]["count"]) + 1
        v = state.v + self.dt * (100.0 * (action - state.q) - 20.0 * state.v)
        after = self._state(count, state.q + self.dt * v, v, state)
        if np.any(np.abs(after.q) > self.breaks_at):
            raise Diverged("The point mass flew away.", (0,), after)
        return after

    def observe(self, state: State) -> Observation:
        seen: dict[str, Array] = {"observation.state": state.q}
        if self.frames:
            shown = int(state.hidden["mass"]["count"]) // 3 * 3
            seen["observation.images.top"] = np.full(self.frames, shown % 256, np.uint8)
            seen["observation.images.top.stamp"] = np.asarray(shown * self.dt)
        return seen

    def _state(self, count: int, q: Array, v: Array, before: State | None) -> State:
        return State(count * self.dt, q, v, {"mass": {"count": np.asarray(count)}})


def main() -> None:
    """Serve a point mass as the first argument says (JSON); the address and token go to the standard output."""
    wish = json.loads(sys.argv[1])
    world = PointMass(wish.get("dt", 0.01), tuple(wish.get("frames", ())))

    def ready(address: str, token: str) -> None:
        print(json.dumps([address, token]), flush=True)

    serve(
        WorldDriver(world),
        port=wish.get("port", 0),
        token=wish.get("token"),
        pace=wish.get("pace", "real"),
        ready=ready,
        options=ServerOptions(safety=SafetyOptions(limits=LOOSE)),
    )


if __name__ == "__main__":
    main()
