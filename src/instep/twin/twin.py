"""The twin: a world made of two worlds.

    predicted = sim.step(state, action)               the policy acts on the simulated robot
    measured  = real.step(..., follow(predicted))     the real robot follows its joints
    corrected = correct(predicted, measured, real.observe(measured))

The real world sets the pace by blocking in `step`. Wrap it in `Guarded` to hold its limits.

What a correction is: a prediction and what was seen go in, a better state comes out.

Joint blending: the simulated robot is led back to the measured one, each compared with itself at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.rollout import checked_action
from instep.core.world import Array, Channel, Observation, Simulator, Spec, State, World, vector
from instep.physics.open_world import rest_action


@dataclass(frozen=True, slots=True, eq=False)
class Corrected:
    """A corrected state, and what the correction remembers and reports."""

    q: Array
    """Positions, corrected."""
    v: Array
    """Velocities, corrected."""
    memory: Mapping[str, Any]
    """What it needs next time: a tree of arrays."""
    log: Mapping[str, float]
    """Numbers of this frame, under names that `Correction.logged` lists."""
    wrench: Array | None = field(default=None)
    """Force and torque on each body of the model [bodies, 6], felt for the next step; none where None."""


class Correction(Protocol):
    """Something that pulls a simulated world towards what cameras show."""

    @property
    def logged(self) -> tuple[str, ...]:
        """The names of its numbers per frame."""
        ...

    def begin(self, state: State, seen: Observation) -> Corrected:
        """Find the bodies in the first pictures."""
        ...

    def __call__(self, memory: Mapping[str, Any], predicted: State, seen: Observation, t: float) -> Corrected:
        """Correct a prediction for time t [s] on the clock of the stamps in `seen`."""
        ...


@dataclass(frozen=True, slots=True)
class Uncorrected:
    """No correction: physics only, the baseline of every comparison."""

    logged: tuple[str, ...] = ()

    def begin(self, state: State, seen: Observation) -> Corrected:
        """Leave the state as it is."""
        return Corrected(state.q, state.v, {}, {})

    def __call__(self, memory: Mapping[str, Any], predicted: State, seen: Observation, t: float) -> Corrected:
        """Leave the prediction as it is."""
        return Corrected(predicted.q, predicted.v, {}, {})


MOVING = 0.03
"""Speed of joints from which a lag can be told from an offset [rad/s or m/s]."""
LEARNED = 0.06
"""Share of what is left of the lag that is learned per step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blend:
    """How the twin's joints follow those that were measured.

    The real robot follows the simulated one by `lag`, so a reading of time t is compared with the simulated joints of
    t - lag; the difference is a true difference, not the delay, and a share of it is added to the simulated joints.
    """

    gain: float = 0.5
    """Share of the difference that is added per step. A robot whose servos are softer or stiffer than believed stands
    elsewhere as long as it moves; what it pushes then stands elsewhere too."""
    lag: float = 0.0
    """How long the real robot takes to be where the simulated one was [s]."""
    most: float = 0.01
    """Largest step [rad or m]."""
    jump: float = 0.3
    """A difference beyond this is no reading of this robot [rad or m]; it is left out and counted."""
    stale: float = 0.05
    """Age from which a reading says nothing about now [s]."""
    lead: float = 0.12
    """The robot is told where the simulated joints will be, ahead by as much as it is found to lag; this is the most
    [s]. With 0 it is told where they are, and stays behind."""


@dataclass(frozen=True, slots=True, eq=False)
class Blended:
    """New joint positions, and what was found."""

    q: Array
    error: Array
    """Measured less simulated joints at the same time [joints]; NaN where there was no sound reading."""
    used: bool


def led(blend: Blend, lead: float, error: Array, speed: Array) -> float:
    """How far ahead the robot is to be told [s], from the last difference [joints] and the simulated speed [joints].

    A robot that is late by r shows a difference -r v, so -e . v / v . v is what is left of the lag; a share of it is
    added while joints move, so that the lead settles in about half a second.
    """
    moving = float(speed @ speed)
    if not np.isfinite(error).all() or moving < MOVING**2:
        return lead
    left = -float(error @ speed) / moving
    return float(np.clip(lead + LEARNED * np.clip(left, -blend.lead, blend.lead), 0.0, blend.lead))


def blended(blend: Blend, q: Array, times: Array, past: Array, reading: Array, stamp: float) -> Blended:
    """Lead joints q [joints] towards a reading of time `stamp` [s]; `past` [n, joints] are those of `times` [n]."""
    at = stamp - blend.lag
    if not np.isfinite(reading).all() or not np.isfinite(stamp) or at < times[0] or times[-1] - stamp > blend.stale:
        return Blended(q, np.full(q.shape, np.nan), False)
    then = np.array([np.interp(at, times, past[:, j]) for j in range(past.shape[1])])
    error = reading - then
    if np.abs(error).max(initial=0.0) > blend.jump:
        return Blended(q, error, False)
    return Blended(q + np.clip(blend.gain * error, -blend.most, blend.most), error, True)


KEY = "twin"
STAGES = ("predict", "follow", "observe", "blend", "correct")
"""What a step consists of; `follow` is the real world's own time, in which the twin waits."""
PAST = 64
"""Actions that are kept for simulators with latency, and joint positions for readings that come late."""
CATCH_UP = 30
"""Most simulated steps in one step of the twin, after a pause of the real world."""


class Twin:
    """A simulated world kept in step with a real one; a World like both.

    `observe` shows what the simulated world shows, and under `twin.*` how far to trust it: per frame the numbers of the
    correction, joint differences, what the real world measured and was sent, stage times and overruns. `images=True`
    adds the real pictures.
    """

    def __init__(
        self,
        sim: Simulator,
        real: World,
        correct: Correction,
        *,
        blend: Blend | None = None,
        park: Mapping[str, float] | None = None,
        images: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self.sim, self.real, self.correct = sim, real, correct
        self.blend = blend or Blend()
        self.park: Mapping[str, float] = park or {}
        """Where joints stand that the real world does not show."""
        self.images = images
        self._clock = clock
        joints = [n for n in sim.spec.q.labels if n in real.spec.q.labels and "." not in n]
        self._joints = tuple(joints)
        self._sim_q = np.array([sim.spec.q.labels.index(n) for n in joints], int)
        self._real_q = np.array([real.spec.q.labels.index(n) for n in joints], int)
        self._follow = _sources(sim.spec, real.spec)

    @property
    def scene(self) -> Any:
        """The scene of the simulated world, where it has one."""
        return getattr(self.sim, "scene", None)

    @property
    def spec(self) -> Spec:
        """What the numbers mean: the simulated world's, and what the twin says about itself."""
        inner, named = self.sim.spec, dict[str, Channel]()
        if self.correct.logged:
            named["twin.correction"] = vector(self.correct.logged)
        if self._joints:
            named["twin.joint_error"] = vector(self._joints)
        named["twin.measured"] = self.real.spec.q
        named["twin.sent"] = self.real.spec.action
        named["twin.stages"] = vector(STAGES, "s")
        named["twin.counts"] = vector(COUNTS)
        if self.images:
            named |= {k: c for k, c in self.real.spec.observation.items() if k.startswith("observation.images.")}
        return replace(inner, observation={**inner.observation, **named})

    def reset(self, seed: int = 0) -> State:
        """Begin where the real world is: its joints, and the bodies its cameras show."""
        real = self.real.reset(seed)
        seen = self.real.observe(real)
        start = self.sim.reset(seed)
        q = start.q.copy()
        for name, value in self.park.items():
            q[self.sim.spec.q.labels.index(name)] = value
        q[self._sim_q] = real.q[self._real_q]
        found = self.correct.begin(replace(start, t=real.t, q=q, v=np.zeros_like(start.v)), seen)
        past = np.tile(self._rest(q), (PAST, 1))
        sim = self.sim.place(found.q, np.zeros_like(start.v), real.t, past)
        memory: dict[str, Any] = {
            "sim": sim,
            "real": real,
            "correction": dict(found.memory),
            "past": past,
            "t": np.full(PAST, real.t),
            "joints": np.tile(sim.q[self._sim_q], (PAST, 1)),
            "log": self._log(found, np.full(len(self._joints), np.nan), np.zeros(len(STAGES)), np.zeros(len(COUNTS))),
            "lead": np.zeros(()),
            "sent": self._command(sim, past[-1], 0.0),
        }
        return State(real.t, sim.q, sim.v, {KEY: memory})

    def step(self, state: State, action: Array) -> State:
        """Predict, let the real world follow, measure, correct."""
        action = checked_action(action, self.sim.spec, state.batch)
        memory, watch = state.hidden[KEY], _Watch(self._clock)
        past = np.concatenate([memory["past"][1:], [action]])
        sim = self.sim.step(memory["sim"], action)
        watch("predict")
        sent = self._command(sim, action, float(memory["lead"]))
        real = self.real.step(memory["real"], sent)
        watch("follow")
        seen = self.real.observe(real)
        watch("observe")
        sim, extra = self._in_time(sim, real.t, action)
        watch("predict")
        times, joints = np.append(memory["t"][1:], real.t), np.concatenate([memory["joints"][1:], [sim.q[self._sim_q]]])
        sim_led, error, used = self._blend(sim, real, seen, times, joints)
        speed = (joints[-1] - joints[-2]) / self.sim.spec.dt
        lead = np.asarray(led(self.blend, float(memory["lead"]), error, speed))
        watch("blend")
        found = self.correct(memory["correction"], sim_led, seen, real.t)
        sim = self._inject(sim, found, past)
        watch("correct")
        counts = _counted(memory["log"]["counts"], watch, self.sim.spec.dt, extra, used)
        joints[-1] = sim.q[self._sim_q]
        memory = {
            "sim": sim, "real": real, "correction": dict(found.memory), "past": past, "t": times, "joints": joints,
            "log": self._log(found, error, watch.spent, counts), "lead": lead, "sent": sent,
        }  # fmt: skip
        return State(real.t, sim.q, sim.v, {KEY: memory})

    def observe(self, state: State) -> Observation:
        """What the simulated world shows, and how the twin is doing."""
        memory = state.hidden[KEY]
        seen = dict(self.sim.observe(memory["sim"]))
        log = memory["log"]
        if self.correct.logged:
            seen["twin.correction"] = log["correction"]
        if self._joints:
            seen["twin.joint_error"] = log["joint_error"]
        seen["twin.measured"], seen["twin.sent"] = memory["real"].q, memory["sent"]
        seen["twin.stages"], seen["twin.counts"] = log["stages"], log["counts"]
        if self.images:
            shown = self.real.observe(memory["real"])
            seen |= {k: value for k, value in shown.items() if k.startswith("observation.images.")}
        return seen

    def sent(self, state: State) -> Array:
        """The set point that the real robot was last given."""
        return state.hidden[KEY]["sent"]

    def _in_time(self, sim: State, t: float, action: Array) -> tuple[State, int]:
        """Let the simulated world catch up where the real one took longer than a period."""
        behind = round((t - sim.t) / self.sim.spec.dt)
        steps = min(max(behind, 0), CATCH_UP)
        for _ in range(steps):
            sim = self.sim.step(sim, action)
        return sim, steps

    def _blend(
        self, sim: State, real: State, seen: Observation, times: Array, joints: Array
    ) -> tuple[State, Array, bool]:
        if not len(self._joints):
            return sim, np.zeros(0), True
        stamp = float(np.max(seen["observation.state.stamp"])) if "observation.state.stamp" in seen else real.t
        found = blended(self.blend, sim.q[self._sim_q], times, joints, real.q[self._real_q], stamp)
        q = sim.q.copy()
        q[self._sim_q] = found.q
        return replace(sim, q=q), found.error, found.used

    def _inject(self, sim: State, found: Corrected, past: Array) -> State:
        """The corrected state: placed where it differs from the prediction, nudged where a wrench is asked for."""
        if not (np.array_equal(found.q, sim.q) and np.array_equal(found.v, sim.v)):
            if not (np.isfinite(found.q).all() and np.isfinite(found.v).all()):
                raise BadInput("The correction is not finite; the twin keeps its last state.")
            sim = self.sim.place(found.q, found.v, sim.t, past)
        return sim if found.wrench is None else self.sim.nudge(sim, found.wrench)

    def _command(self, sim: State, action: Array, lead: float) -> Array:
        """What the real robot is told: where the simulated joints will be after its lag; else the policy's own action.

        `lead` is learned from how late the robot was so far, and nought at first.
        """
        return np.array([sim.q[i] + lead * sim.v[j] if j >= 0 else action[i] for i, j in self._follow], float)

    def _rest(self, q: Array) -> Array:
        """Actions that hold joints where they are: position targets for those that are named like joints."""
        rest = rest_action(self.sim)
        for i, name in enumerate(self.sim.spec.action.labels):
            if name in self.sim.spec.q.labels and self.sim.spec.action.units[i] in ("rad", "m"):
                rest[i] = q[self.sim.spec.q.labels.index(name)]
        return rest

    def _log(self, found: Corrected, joint_error: Array, stages: Array, counts: Array) -> dict[str, Array]:
        correction = np.array([found.log.get(name, np.nan) for name in self.correct.logged])
        return {"correction": correction, "joint_error": joint_error, "stages": stages, "counts": counts}


COUNTS = ("overruns", *(f"overrun.{stage}" for stage in STAGES if stage != "follow"), "missed", "dropouts")
"""Running totals: steps whose own work took longer than a period, by the stage that took most; periods that the real
world's clock was ahead, and for which the simulated world caught up; steps without a sound joint reading."""


class _Watch:
    """Times of the stages of one step."""

    def __init__(self, clock: Callable[[], float]):
        self._clock, self._last = clock, clock()
        self.spent = np.zeros(len(STAGES))

    def __call__(self, stage: str) -> None:
        now = self._clock()
        self.spent[STAGES.index(stage)] += now - self._last
        self._last = now

    @property
    def work(self) -> float:
        return float(self.spent.sum() - self.spent[STAGES.index("follow")])


def _counted(before: Array, watch: _Watch, dt: float, extra: int, read: bool) -> Array:
    counts = before.copy()
    if watch.work > dt:
        own = watch.spent.copy()
        own[STAGES.index("follow")] = -1.0
        counts[0] += 1
        counts[COUNTS.index(f"overrun.{STAGES[int(np.argmax(own))]}")] += 1
    counts[COUNTS.index("missed")] += extra
    counts[COUNTS.index("dropouts")] += int(not read)
    return counts


def _sources(sim: Spec, real: Spec) -> list[tuple[int, int]]:
    """For each action of the real robot: where the simulated joint of that name stands in q and in v; where there is
    no such joint, the policy's action of that name, and -1."""
    found: list[tuple[int, int]] = []
    for name, unit in zip(real.action.labels, real.action.units, strict=True):
        if name in sim.q.labels and unit in ("rad", "m"):
            found.append((sim.q.labels.index(name), sim.v.labels.index(name)))
        elif name in sim.action.labels:
            found.append((sim.action.labels.index(name), -1))
        else:
            raise BadInput(
                f"The real robot takes {name!r} [{unit}], but the simulated one has neither a joint nor an action of "
                f"that name (joints: {', '.join(sim.q.labels)}); use the scene of this robot."
            )
    return found


def correction_log(twin: Twin, columns: Mapping[str, Array]) -> dict[str, Array]:
    """The numbers of the correction of a run of this twin, by name [rows]."""
    return {name: columns["twin.correction"][:, i] for i, name in enumerate(twin.correct.logged)}


def log_of(episode: Episode) -> dict[str, Array]:
    """The numbers of the correction of a run, by name [rows], and `joints.error`, the largest of the joints."""
    known = episode.spec.observation
    if "twin.correction" not in known or "twin.correction" not in episode:
        raise BadInput("This episode was not run through a corrected twin: it has no column 'twin.correction'.")
    rows = episode["twin.correction"]
    log = {name: rows[:, i] for i, name in enumerate(known["twin.correction"].labels)}
    if "twin.joint_error" in episode:
        log["joints.error"] = np.abs(episode["twin.joint_error"]).max(axis=1)
    return log


def channel(spec: Spec, name: str) -> Channel:
    """A channel of observations by name."""
    return spec.observation[name]
