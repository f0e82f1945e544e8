"""Detection of failure modes injected into simulated runs: how often each is named, and false alarms on clean pairs.

Each mode is put into a world of its own kind at a random strength; the detectors see runs, not what was injected.
A physical cause counts as named only when it is the one that explains most.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from harness import Row, row
from instep import Episode, Scene, Script, open_world, rollout
from instep.core.statistics import wilson
from instep.diagnose.candidates import candidate_causes
from instep.diagnose.cause_selection import identify_causes, physical_modes
from instep.diagnose.failure_modes import (
    FailureMode,
    compounding,
    contact_faults,
    dynamics_gap,
    embodiment_mismatch,
    perceptual_sensitivity,
    rest_test,
    sensor_noise,
    static_scene,
    stochasticity,
)
from instep.gap.horizon import error_over_time, measure_horizon
from instep.gap.paired_runs import compare_runs, repeated_runs, with_noise_floor
from instep.gap.preparation import prepare
from instep.robot import Backlash, Dropping, Saturated
from instep.scene.folder import SceneSimulator
from small_models import diagnosed_arm, write_scene

CUBE = """
<mujoco>
  <option timestep="{step}" integrator="implicitfast" cone="elliptic"/>
  <worldbody>
    <geom name="table" type="box" pos="0 0 {below}" size="1 1 {thick}" friction="0.6" solref="{ref}" solimp="{imp}"/>
    <body name="cube" pos="0 0 0.06">
      <freejoint name="cube"/>
      <geom name="cube" type="box" size="{half} {half} {half}" mass="0.3" friction="0.6" solref="{ref}" solimp="{imp}"/>
    </body>
  </worldbody>
</mujoco>
"""
PLAIN = {"step": 0.002, "below": -0.05, "thick": 0.05, "ref": "0.01 1", "imp": "0.95 0.99 0.001", "half": 0.03}
ROWS = 200


Make = Callable[[int], Any]
"""Runs of a seed, as the detectors of a family take them."""


@dataclass(frozen=True)
class Family:
    """Failure modes that the same detectors see."""

    modes: dict[str, Make]
    clean: Make
    check: Callable[[Any], list[FailureMode]]


def run(out: Path, quick: bool = False) -> list[Row]:
    """Inject every mode, and nothing, and count."""
    times = 10 if quick else 20
    rows: list[Row] = []
    alarms, clean = 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for title, family in Stage(Path(folder)).families().items():
            for name, build in family.modes.items():
                hits = sum(name in {m.name for m in family.check(build(seed)) if m.found} for seed in range(times))
                rows.append(row(f"{name} named", wilson(hits, times), at_least=0.9))
            count = sum(any(m.found for m in family.check(family.clean(1000 + seed))) for seed in range(times))
            alarms, clean = alarms + count, clean + times
            rows.append(row(f"false alarms, {title}", wilson(count, times)))
    rows.append(row("false alarms on clean pairs", wilson(alarms, clean), at_most=0.05))
    return rows


class Stage:
    """Worlds in which things go wrong."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.arm = Scene.load(write_scene(folder / "arm", diagnosed_arm(), ("shoulder", "elbow")))
        self.cube = self._variant("cube", 0)

    def families(self) -> dict[str, Family]:
        """Each family with the runs of each mode, those without any, and the detectors that see them."""
        return {
            "arm": Family(self.physical(), lambda s: self.moved(self._world(), s), self.check_arm),
            "repeats": Family(
                {
                    "dynamics gap": lambda s: self.again(self._world(_damping(_between(s, 2, 6))), s),
                    "stochasticity": lambda s: self.again(Dropping(self._world(), action=_between(s, 0.2, 0.5)), s),
                },
                lambda s: self.again(self._world(), s),
                self.check_repeats,
            ),
            "objects": Family(self.objects(), lambda s: self.dropped(self.cube, s), self.check_objects),
            "policy": Family(
                {"perceptual sensitivity": lambda s: images(s, smoothed=True)},
                lambda s: images(s, smoothed=False),
                lambda actions: [perceptual_sensitivity(*actions)],
            ),
            "commands": Family(
                {"embodiment mismatch": lambda s: self.commanded(s, _between(s, 1.6, 2.5), _between(s, 0.0, 0.1))},
                lambda s: self.commanded(s, 1.0, 0.0),
                lambda case: [embodiment_mismatch(*case)],
            ),
            "loop": Family(
                {"closed-loop compounding": lambda s: self.looped(s, _between(s, 0.01, 0.03))},
                lambda s: self.looped(s, 0.0),
                lambda case: [compounding(*case)],
            ),
        }

    def physical(self) -> dict[str, Make]:
        """Causes that a parameter can put right, and noise."""

        def tuned(name: str, low: float, high: float) -> Callable[[int], dict[str, Any]]:
            kinds: dict[str, Callable[[float], dict[str, Any]]] = {
                "gains": lambda f: {"actuator.shoulder.kp": 30 * f, "actuator.elbow.kp": 15 * f},
                "payload": lambda f: {"body.upper.mass": 0.5 * f, "body.fore.mass": 0.3 * f},
                "latency": lambda f: {"action.delay": f},
                "time step": lambda f: {"option.timestep": 0.01 / int(f)},
            }
            return lambda seed: kinds[name](_between(seed, low, high))

        def friction(seed: int) -> dict[str, Any]:
            rng = np.random.default_rng((seed, 1))
            if rng.random() < 0.5:
                return _damping(rng.uniform(3, 8))
            return {"joint.shoulder.frictionloss": rng.uniform(0.6, 2), "joint.elbow.frictionloss": rng.uniform(0.3, 1)}

        def saturated(seed: int) -> Any:
            torque = tuple(_between(seed, 0.12, 0.4) * k * 0.3 for k in (30, 15))
            return Saturated(self._world(), torque=torque, stiffness=(30.0, 15.0), damping=(1.0, 0.4))

        settings = {
            "friction": friction, "latency": tuned("latency", 0.02, 0.1), "gains": tuned("gains", 0.4, 0.7),
            "payload": tuned("payload", 1.4, 2.4), "time step": tuned("time step", 4, 11),
        }  # fmt: skip
        modes: dict[str, Make] = {
            name: (lambda s, made=made: self.moved(self._world(made(s)), s)) for name, made in settings.items()
        }
        modes["actuator limits"] = lambda s: self.moved(saturated(s), s)
        modes["backlash"] = lambda s: self.moved(Backlash(self._world(), gap=_between(s, 0.04, 0.12)), s)
        modes["sensor noise"] = lambda s: self.moved(self._world(), s, noise=_between(s, 0.003, 0.02))
        return modes

    def objects(self) -> dict[str, Make]:
        """A cube that is dropped, pushed, thrown, in scenes with wrong contacts or shapes."""

        def soft(seed: int) -> Scene:
            return self._variant("soft", seed, ref=f"{_between(seed, 0.08, 0.16):.3f} 1", imp="0.2 0.6 0.02")

        def shaky(seed: int) -> Scene:
            return self._variant("shaky", seed, ref=f"-{_between(seed, 3000, 6000):.0f} -0.01", step=0.01)

        def thin(seed: int) -> Scene:
            return self._variant("thin", seed, step=0.02, below=-0.0005, thick=0.0005)

        def bloated(seed: int) -> Scene:
            return self._variant("bloated", seed, half=0.03 + _between(seed, 0.006, 0.012))

        return {
            "static scene": lambda s: self.dropped(self.cube, s, push=_between(s, 1.0, 2.0)),
            "penetration": lambda s: self.dropped(soft(s), s),
            "tunnelling": lambda s: self.dropped(thin(s), s, speed=_between(s, 12, 18)),
            "contact jitter": lambda s: self.dropped(shaky(s), s),
            "reconstruction artefacts": lambda s: self.dropped(bloated(s), s),
        }

    def check_arm(self, runs: list[Episode]) -> list[FailureMode]:
        """Search for causes, unless noise hides the motion."""
        sim = open_world(self.arm)
        ready = prepare(runs).episodes
        noise = sensor_noise(measure_horizon(sim, ready).pairs)
        if noise.found:
            return [noise]
        extended, candidates = candidate_causes(self.arm, sim)
        found = identify_causes(extended, ready, candidates)
        return [noise, *physical_modes(replace(found, causes=found.causes[:1]))]

    def check_repeats(self, runs: list[Episode]) -> list[FailureMode]:
        """Compare the error with the scatter of repeats."""
        ready = prepare(runs).episodes
        gap = with_noise_floor(measure_horizon(open_world(self.arm), ready), ready)
        chance = stochasticity(repeated_runs(ready))
        # Scatter that sensors do not explain raises the floor itself; it is the finding.
        return [chance] if chance.found else [chance, dynamics_gap(gap)]

    def check_objects(self, case: tuple[list[Episode], Scene]) -> list[FailureMode]:
        """Replay, and compare where bodies rest."""
        runs, scene = case
        sim = open_world(scene)
        gap = measure_horizon(sim, runs)
        faults = contact_faults(gap.pairs)
        rest = rest_test(sim, runs)
        # A body that falls through the table also leaves where it rested; the fault is named once.
        fallen = any(m.found for m in faults)
        return [*faults, static_scene(gap.pairs), rest if not fallen else replace(rest, found=False)]

    def moved(self, world: Any, seed: int, runs: int = 4, noise: float = 1e-4) -> list[Episode]:
        """Runs under smooth random commands, seen through slightly noisy encoders."""
        rng = np.random.default_rng((seed, 2))
        return [_seen(rollout(world, Script(_commands(rng)), steps=ROWS, seed=k), rng, noise) for k in range(runs)]

    def again(self, world: Any, seed: int) -> list[Episode]:
        """Repeats of one command."""
        rng = np.random.default_rng((seed, 3))
        commands = _commands(rng)
        return [_seen(rollout(world, Script(commands), steps=ROWS, seed=17 * seed + k), rng, 2e-4) for k in range(6)]

    def dropped(self, sim: Scene, seed: int, push: float = 0.0, speed: float = 0.0) -> tuple[list[Episode], Scene]:
        """Runs of the true cube, and the scene that replays them."""
        world = open_world(self.cube)
        rng = np.random.default_rng((seed, 4))
        runs: list[Episode] = []
        for _ in range(3):
            q, v = world.scene.start(0)
            q[:3] = [*rng.uniform(-0.1, 0.1, 2), 0.05 if not speed else 0.4]
            v[2] = -speed
            state, rows = world.place(q, v), []
            for k in range(120):
                if push and 50 <= k < 65:
                    wrench = np.zeros((world.model.nbody - 1, 6))
                    wrench[0, 0] = 3.0 * push
                    state = world.nudge(state, wrench)
                rows.append((state.q, state.v))
                state = world.step(state, np.zeros(0))
            q_rows, v_rows = (np.stack(part) for part in zip(*rows, strict=True))
            t = np.arange(120) * world.spec.dt
            columns = {"timestamp": t, "q": q_rows, "v": v_rows, "action": np.zeros((120, 0))}
            runs.append(Episode(world.spec, columns))
        return runs, sim

    def commanded(self, seed: int, scale: float, shake: float) -> Any:
        """Runs of a policy, and usual runs."""
        rng = np.random.default_rng((seed, 5))
        world = open_world(self.arm)

        def made(factor: float, noise: float) -> Episode:
            commands = np.clip(_commands(rng) * factor + rng.normal(0, noise, (ROWS, 2)), -1.2, 1.2)
            return rollout(world, Script(commands), steps=ROWS, seed=0)

        usual = [made(1.0, 0.0) for _ in range(24)]
        return [made(scale, shake) for _ in range(3)], usual

    def looped(self, seed: int, bias: float) -> Any:
        """A policy that leans away from where it sees itself, in a world whose camera is off by a little."""
        rng = np.random.default_rng((seed, 6))
        real, sim = self._world(), self._world({"joint.elbow.damping": 0.14})
        closed, opened = [], []
        for _ in range(8):
            start = rng.uniform(-0.05, 0.05, 2)
            runs = [_leaning(world, start, b, rng) for world, b in ((real, 0.0), (sim, bias))]
            replayed = rollout(_at(sim, start), Script(runs[0].action), steps=len(runs[0]))
            closed += error_over_time(compare_runs([runs[0]], [runs[1]]).pairs)
            opened += error_over_time(compare_runs([runs[0]], [replayed]).pairs)
        return closed, opened

    def _world(self, settings: dict[str, Any] | None = None) -> SceneSimulator:
        return open_world(self.arm).tuned(settings) if settings else open_world(self.arm)

    def _variant(self, name: str, seed: int, **changes: Any) -> Scene:
        model = CUBE.format(**{**PLAIN, **changes})
        return Scene.load(write_scene(self.folder / f"{name}{seed}", model, (), '[objects]\nbodies = ["cube"]\n'))


def images(seed: int, smoothed: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Actions of a policy that reads textures, on real images, rendered ones, and real ones with as much noise."""
    rng = np.random.default_rng((seed, 7))
    frames = rng.normal(size=(6, 20, 256)).cumsum(axis=-1) * 0.1 + rng.normal(0, 0.3, (6, 20, 256))
    kernel = np.ones(5) / 5
    if smoothed:
        rendered = np.apply_along_axis(lambda x: np.convolve(x, kernel, mode="same"), -1, frames)
    else:
        rendered = frames + rng.normal(0, 0.2, frames.shape)
    distance = np.linalg.norm(rendered - frames, axis=-1, keepdims=True)
    noise = rng.normal(size=frames.shape)
    control = frames + noise * distance / np.linalg.norm(noise, axis=-1, keepdims=True)

    def act(image: np.ndarray) -> np.ndarray:
        # One action follows the scene's layout, the other the energy of its texture.
        layout = image[..., ::8].mean(axis=-1)
        texture = np.sqrt((np.diff(image, axis=-1) ** 2).mean(axis=-1))
        return np.stack([0.1 * layout, 3.0 * texture], axis=-1)

    return act(frames), act(rendered), act(control)


def _leaning(world: SceneSimulator, start: np.ndarray, bias: float, rng: np.random.Generator) -> Episode:
    state = world.place(start, np.zeros(2))
    rows: list[tuple[Any, ...]] = []
    for _ in range(120):
        seen = state.q + bias + rng.normal(0, 1e-5, 2)
        action = np.clip(seen + 0.1 * seen, -1.5, 1.5)
        rows.append((state.q, state.v, action))
        state = world.step(state, action)
    q, v, action = (np.stack(part) for part in zip(*rows, strict=True))
    return Episode(world.spec, {"timestamp": np.arange(120) * world.spec.dt, "q": q, "v": v, "action": action})


class _at:  # noqa: N801 - reads as a word
    """A world that starts where it is set."""

    def __init__(self, world: SceneSimulator, start: np.ndarray):
        self._world, self._start = world, start

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)

    def reset(self, seed: int = 0) -> Any:
        return self._world.place(self._start, np.zeros(2))


def _commands(rng: np.random.Generator) -> np.ndarray:
    t = np.arange(ROWS) * 0.02
    waves = [(rng.uniform(0.1, 0.35, 2), rng.uniform(1.0, 9.0, 2), rng.uniform(0, 6.3, 2)) for _ in range(3)]
    return sum(a * np.sin(w * t[:, None] + p) for a, w, p in waves)


def _seen(episode: Episode, rng: np.random.Generator, noise: float) -> Episode:
    q = episode.q + rng.normal(0, noise, episode.q.shape)
    columns = {"timestamp": episode.t, "q": q, "action": episode.action}
    return Episode(episode.spec, columns, episode.meta)


def _between(seed: int, low: float, high: float) -> float:
    return float(np.random.default_rng((seed, 8)).uniform(low, high))


def _damping(factor: float) -> dict[str, Any]:
    return {"joint.shoulder.damping": 0.25 * factor, "joint.elbow.damping": 0.12 * factor}
