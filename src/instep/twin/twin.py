"""The twin: a world made of two worlds.

    predicted = sim.step(state, action)               the policy acts on the simulated robot
    measured  = real.step(..., follow(predicted))     the real robot follows its joints
    corrected = correct(predicted, measured, real.observe(measured))

The real world sets the pace by blocking in `step`. Wrap it in `Guarded` to hold its limits.

How the joints of a twin follow those that are measured, and the robot those of the twin.

Where a twin gets new parameters from while it runs.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Any, Protocol

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput, Diverged
from instep.core.rollout import checked_action
from instep.core.world import (
    Array,
    Channel,
    Observation,
    Simulator,
    Spec,
    State,
    World,
    array_dataclass,
    frozen_dataclass,
    options_dataclass,
    vector,
)
from instep.physics.engines import rest_action

from .camera_frames import FALL, RISE, Deadline
from .trust_stages import CHANNEL, LABELS, Evidence, TrustMonitor, TrustStage

KEY = "twin"
STAGES = ("predict", "follow", "observe", "blend", "correct")
"""Stages of a step; `follow` is the real world's own time, in which the twin waits."""
COUNTS = ("overruns", *(f"overrun.{stage}" for stage in STAGES if stage != "follow"), "missed", "dropouts")
"""Running totals: steps whose own work took longer than a period, by the longest stage; periods by which the real
world's clock was ahead, for which the simulated world caught up; steps without a valid joint reading."""
HISTORY = 64
"""Actions that are kept for simulators with latency, and joint positions for late readings."""
MAX_REST_SHARE = 0.5
"""Share of the time budget that is kept for what follows the correction, at most."""
MAX_CATCH_UP_STEPS = 30
"""Most simulated steps in one step of the twin, after a pause of the real world."""


@array_dataclass
class CorrectedState:
    """A corrected state, and what the correction remembers and reports."""

    q: Array
    """Positions, corrected."""
    v: Array
    """Velocities, corrected."""
    memory: Mapping[str, Any]
    """State of the correction for its next call: a tree of arrays."""
    log: Mapping[str, float]
    """Numbers of this frame, under names that `Correction.logged` lists."""
    wrench: Array | None = field(default=None)
    """Force and torque on each body of the model [bodies, 6], applied during the next step; None for none."""


class Correction(Protocol):
    """Corrects the state of a simulated world by camera images."""

    @property
    def logged(self) -> tuple[str, ...]:
        """The names of its numbers per frame."""
        ...

    def begin(self, state: State, observation: Observation) -> CorrectedState:
        """Find the bodies in the first images."""
        ...

    def __call__(
        self, memory: Mapping[str, Any], predicted: State, observation: Observation, t: float,
        deadline: Deadline | None = None,
    ) -> CorrectedState:  # fmt: skip
        """Correct a prediction for time t [s] on the clock of the image stamps.

        With a deadline, as well as there is time for; the log says what was left out.
        """
        ...

    def coast(self, memory: Mapping[str, Any], found: CorrectedState, predicted: State) -> Mapping[str, Any]:
        """What is remembered where `found`, of `memory` and `predicted`, is not applied."""
        ...


@frozen_dataclass
class NoCorrection:
    """No correction: physics only, the baseline of every comparison."""

    finder: Correction | None = None
    """Finds the bodies in the first images, where given; else they start where the scene has them."""

    @property
    def logged(self) -> tuple[str, ...]:
        """Nothing is logged."""
        return ()

    def begin(self, state: State, observation: Observation) -> CorrectedState:
        """Leave the state as it is, or as the finder sees it."""
        if self.finder is None:
            return CorrectedState(state.q, state.v, {}, {})
        return replace(self.finder.begin(state, observation), memory={}, log={})

    def __call__(
        self, memory: Mapping[str, Any], predicted: State, observation: Observation, t: float,
        deadline: Deadline | None = None,
    ) -> CorrectedState:  # fmt: skip
        """Leave the prediction as it is."""
        return CorrectedState(predicted.q, predicted.v, {}, {})

    def coast(self, memory: Mapping[str, Any], found: CorrectedState, predicted: State) -> Mapping[str, Any]:
        """Nothing is remembered."""
        return {}


class Twin:
    """A simulated world kept in step with a real one; a World like both.

    `observe` shows what the simulated world shows, and under `twin.*` how the twin is doing: the numbers of the
    correction, joint errors, measured joints and commands, stage times, overruns. `images=True` adds the real images.
    """

    def __init__(
        self,
        sim: Simulator,
        real: World,
        correct: Correction,
        *,
        blend: JointBlend | None = None,
        images: bool = False,
        budget: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self.sim, self.real, self.correct = sim, real, correct
        self.blend = blend or JointBlend()
        self.images, self.budget = images, budget
        """Time from one measurement to the next command [s], which the correction keeps to; none where None."""
        self._clock = clock
        self.trust: TrustMonitor | None = None
        """What slows and stops this twin where it cannot be trusted; see `supervised`."""
        self.updates: ParameterUpdates | None = None
        """Where new parameters of the simulated world come from; see `reidentified`."""
        joints = [n for n in sim.spec.q.labels if n in real.spec.q.labels and "." not in n]
        self._joints = tuple(joints)
        self._sim_q = np.array([sim.spec.q.labels.index(n) for n in joints], int)
        self._real_q = np.array([real.spec.q.labels.index(n) for n in joints], int)
        self._follow = _command_sources(sim.spec, real.spec)

    def supervised(self, trust: TrustMonitor) -> Twin:
        """The twin, slowed and stopped by a monitor of trust, whose numbers are observed as `twin.trust`."""
        made = copy.copy(self)
        made.trust = trust
        return made

    def reidentified(self, updates: ParameterUpdates) -> Twin:
        """The twin whose simulated world takes new parameters while it runs, observed as `twin.parameters`."""
        made = copy.copy(self)
        made.updates = updates
        return made

    def resume(self, state: State) -> State:
        """The state after the operator has resumed a twin that was handed over."""
        if self.trust is None:
            raise BadInput("This twin is not supervised, so it was never handed over; nothing is to be resumed.")
        memory = state.hidden[KEY]
        return replace(state, hidden={KEY: {**memory, "trust": self.trust.resume(memory["trust"], state.t)}})

    @property
    def joints(self) -> tuple[str, ...]:
        """The joints that both worlds have."""
        return self._joints

    @property
    def scene(self) -> Any:
        """The scene of the simulated world, where it has one."""
        return getattr(self.sim, "scene", None)

    @property
    def spec(self) -> Spec:
        """The simulated world's spec, and the channels `twin.*`."""
        inner, named = self.sim.spec, dict[str, Channel]()
        if self.correct.logged:
            named["twin.correction"] = vector(self.correct.logged)
        if self._joints:
            named["twin.joint_error"] = vector(self._joints)
        named["twin.measured"] = self.real.spec.q
        named["twin.sent"] = self.real.spec.action
        named["twin.stages"] = vector(STAGES, "s")
        named["twin.counts"] = vector(COUNTS)
        if self.trust is not None:
            named[CHANNEL] = vector(LABELS)
        if self.updates is not None:
            named[PARAMETERS] = self.updates.channel
        if self.images:
            named |= {k: c for k, c in self.real.spec.observation.items() if k.startswith("observation.images.")}
        return replace(inner, observation={**inner.observation, **named})

    def reset(self, seed: int = 0) -> State:
        """Begin where the real world is: its joints, and the bodies its cameras show."""
        real = self.real.reset(seed)
        observation = self.real.observe(real)
        start = self.sim.reset(seed)
        q = start.q.copy()
        for name, value in self.blend.park.items():
            q[self.sim.spec.q.labels.index(name)] = value
        q[self._sim_q] = real.q[self._real_q]
        found = self.correct.begin(replace(start, t=real.t, q=q, v=np.zeros_like(start.v)), observation)
        past = np.tile(self._rest(q), (HISTORY, 1))
        sim = self.sim.place(found.q, np.zeros_like(start.v), real.t, past)
        memory: dict[str, Any] = {
            "sim": sim,
            "real": real,
            "correction": dict(found.memory),
            "past": past,
            "t": np.full(HISTORY, real.t),
            "joints": np.tile(sim.q[self._sim_q], (HISTORY, 1)),
            "log": self._log(found, np.full(len(self._joints), np.nan), np.zeros(len(STAGES)), np.zeros(len(COUNTS))),
            "lead": np.zeros(()),
            "sent": self._command(sim, past[-1], 0.0),
            "rest": np.zeros(()),
            "corrected": np.asarray(np.nan),
        }
        if self.trust is not None:
            memory["trust"] = self.trust.begin(real.t)
        return State(real.t, sim.q, sim.v, {KEY: memory})

    def step(self, state: State, action: Array) -> State:
        """Predict, let the real world follow, measure, correct."""
        action = checked_action(action, self.sim.spec, state.batch)
        memory, timer = state.hidden[KEY], _StageTimer(self._clock)
        # Go on with new parameters where there are any: states do not depend on them.
        new = None if self.updates is None else self.updates.retuned(self.sim)
        self.sim = self.sim if new is None else new
        action, watched = self._allowed(memory, action)
        past = np.concatenate([memory["past"][1:], [action]])
        sim, diverged = self._predict(memory["sim"], action, past)
        timer("predict")
        holding = self.trust is not None and self.trust.stage(watched) >= TrustStage.HOLD
        still = self.trust is not None and self.trust.at_rest(watched)
        sent = memory["sent"] if still else self._command(sim, action, 0.0 if holding else float(memory["lead"]))
        rest = self._time_after(memory)
        real = self.real.step(memory["real"], sent)
        timer("follow")
        deadline = self._deadline(rest)
        observation = self.real.observe(real)
        # Give the command of time t and the reading after it to what identifies parameters.
        t = memory["real"].t
        if self.updates is not None:
            stamps = observation.get("observation.state.stamp")
            stamp = real.t if stamps is None else float(np.max(stamps))
            self.updates.sample(t, real.q, np.asarray(observation.get("action.sent", sent)), stamp)
        timer("observe")
        sim, extra = self._catch_up(sim, real.t, action)
        timer("predict")
        times, joints = np.append(memory["t"][1:], real.t), np.concatenate([memory["joints"][1:], [sim.q[self._sim_q]]])
        blended, error, used = self._blend(sim, real, observation, times, joints)
        # A twin that holds comes to rest by itself: nothing that is measured moves its set points.
        blended = sim if holding else blended
        velocity = (joints[-1] - joints[-2]) / self.sim.spec.dt
        lead = np.asarray(adapt_lead(self.blend, float(memory["lead"]), error, velocity))
        timer("blend")
        found = self._corrected(memory["correction"], blended, observation, real.t, watched, deadline)
        corrected = np.asarray(np.nan if deadline is None else self._clock())
        sim = self._inject(sim, found, past)
        if self.trust is not None:
            moved = found.q - blended.q
            watched = self.trust.judge(watched, Evidence(real.t, found.log, error, moved, diverged))
        timer("correct")
        counts = _updated_counts(memory["log"]["counts"], timer, self.sim.spec.dt, extra, used)
        joints[-1] = sim.q[self._sim_q]
        memory = {
            "sim": sim, "real": real, "correction": dict(found.memory), "past": past, "t": times, "joints": joints,
            "log": self._log(found, error, timer.spent, counts), "lead": lead, "sent": sent,
            "trust": watched, "rest": rest, "corrected": corrected,
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
        if self.trust is not None:
            seen[CHANNEL] = self.trust.observed(memory["trust"])
        if self.updates is not None:
            seen[PARAMETERS] = self.updates.observed()
        if self.images:
            shown = self.real.observe(memory["real"])
            seen |= {k: value for k, value in shown.items() if k.startswith("observation.images.")}
        return seen

    def sent(self, state: State) -> Array:
        """The set point that the real robot was last given."""
        return state.hidden[KEY]["sent"]

    def _allowed(self, memory: Mapping[str, Any], action: Array) -> tuple[Array, dict[str, Any]]:
        """The action that trust allows, and the memory of its monitor."""
        if self.trust is None:
            return action, {}
        return self.trust.act(memory["trust"], memory["sim"], action)

    def _predict(self, sim: State, action: Array, past: Array) -> tuple[State, bool]:
        """The next state; where the simulation diverges, a supervised twin stays at its last good one, at rest."""
        try:
            return self.sim.step(sim, action), False
        except Diverged:
            if self.trust is None:
                raise
            return self.sim.place(sim.q, np.zeros_like(sim.v), sim.t + self.sim.spec.dt, past), True

    def _corrected(
        self,
        memory: Mapping[str, Any],
        predicted: State,
        observation: Observation,
        t: float,
        watched: Mapping[str, Any],
        deadline: Deadline | None,
    ) -> CorrectedState:
        """The corrected state; while trust has the twin coast, the prediction, with the log of the correction."""
        found = self.correct(memory, predicted, observation, t, deadline)
        if self.trust is None or self.trust.stage(watched) < TrustStage.COAST:
            return found
        kept = self.correct.coast(memory, found, predicted)
        return replace(found, q=predicted.q, v=predicted.v, memory=kept, wrench=None)

    def _time_after(self, memory: Mapping[str, Any]) -> Array:
        """Expected time from the end of a correction to the next command [s]: policy, recorder, prediction."""
        if self.budget is None or not np.isfinite(memory["corrected"]):
            return memory["rest"]
        took, expected = self._clock() - float(memory["corrected"]), float(memory["rest"])
        return np.asarray(expected + (RISE if took > expected else FALL) * (took - expected))

    def _deadline(self, rest: Array) -> Deadline | None:
        """When the correction should be done, so that the next command is in time."""
        if self.budget is None:
            return None
        # A policy that takes all of the period does not leave the bodies uncorrected.
        return Deadline(self._clock() + self.budget - min(float(rest), MAX_REST_SHARE * self.budget), self._clock)

    def _catch_up(self, sim: State, t: float, action: Array) -> tuple[State, int]:
        """Step the simulated world on where the real one took longer than a period."""
        behind = round((t - sim.t) / self.sim.spec.dt)
        steps = min(max(behind, 0), MAX_CATCH_UP_STEPS)
        for _ in range(steps):
            sim = self.sim.step(sim, action)
        return sim, steps

    def _blend(
        self, sim: State, real: State, observation: Observation, times: Array, joints: Array
    ) -> tuple[State, Array, bool]:
        if not len(self._joints):
            return sim, np.zeros(0), True
        stamps = observation.get("observation.state.stamp")
        stamp = real.t if stamps is None else float(np.max(stamps))
        found = blend_joints(self.blend, sim.q[self._sim_q], times, joints, real.q[self._real_q], stamp)
        q = sim.q.copy()
        q[self._sim_q] = found.q
        return replace(sim, q=q), found.error, found.used

    def _inject(self, sim: State, found: CorrectedState, past: Array) -> State:
        """The corrected state: placed where it differs from the prediction, nudged where there is a wrench."""
        if not (np.array_equal(found.q, sim.q) and np.array_equal(found.v, sim.v)):
            if not (np.isfinite(found.q).all() and np.isfinite(found.v).all()):
                raise BadInput("The correction is not finite; the twin keeps its last state.")
            sim = self.sim.place(found.q, found.v, sim.t, past)
        return sim if found.wrench is None else self.sim.nudge(sim, found.wrench)

    def _command(self, sim: State, action: Array, lead: float) -> Array:
        """The command of the real robot: the simulated joints, extrapolated by `lead` [s]; else the policy's action."""
        return np.array([sim.q[i] + lead * sim.v[j] if j >= 0 else action[i] for i, j in self._follow], float)

    def _rest(self, q: Array) -> Array:
        """Actions that hold the joints: position targets for those that are named like joints."""
        rest = rest_action(self.sim)
        for i, name in enumerate(self.sim.spec.action.labels):
            if name in self.sim.spec.q.labels and self.sim.spec.action.units[i] in ("rad", "m"):
                rest[i] = q[self.sim.spec.q.labels.index(name)]
        return rest

    def _log(self, found: CorrectedState, joint_error: Array, stages: Array, counts: Array) -> dict[str, Array]:
        correction = np.array([found.log.get(name, np.nan) for name in self.correct.logged])
        return {"correction": correction, "joint_error": joint_error, "stages": stages, "counts": counts}


class _StageTimer:
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


def _updated_counts(before: Array, timer: _StageTimer, dt: float, extra: int, read: bool) -> Array:
    counts = before.copy()
    if timer.work > dt:
        own = timer.spent.copy()
        own[STAGES.index("follow")] = -1.0
        counts[0] += 1
        counts[COUNTS.index(f"overrun.{STAGES[int(np.argmax(own))]}")] += 1
    counts[COUNTS.index("missed")] += extra
    counts[COUNTS.index("dropouts")] += int(not read)
    return counts


def _command_sources(sim: Spec, real: Spec) -> list[tuple[int, int]]:
    """For each action of the real robot: the index of the simulated joint of that name in q and in v; where there is
    no such joint, the index of the policy's action of that name, and -1."""
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


def correction_log(episode: Episode) -> dict[str, Array]:
    """The numbers of the correction of a run, by name [rows], and `joints.error`, the largest of the joints."""
    known = episode.spec.observation
    if "twin.correction" not in known or "twin.correction" not in episode:
        raise BadInput("This episode was not run through a corrected twin: it has no column 'twin.correction'.")
    rows = episode["twin.correction"]
    log = {name: rows[:, i] for i, name in enumerate(known["twin.correction"].labels)}
    if "twin.joint_error" in episode:
        log["joints.error"] = np.abs(episode["twin.joint_error"]).max(axis=1)
    return log


MIN_JOINT_SPEED = 0.03
"""Norm of the joint velocities from which a lag is distinguishable from an offset [rad/s or m/s]."""
LEAD_GAIN = 0.06
"""Share of the remaining lag by which the lead is adapted per step."""


@options_dataclass
class JointBlend:
    """How the twin's joints follow the measured ones.

    The real robot follows the simulated one by `lag`, so a reading of time t is compared with the simulated joints of
    t - lag: the difference is a true difference, not the delay. A share of it is added to the simulated joints.
    """

    gain: float = 0.5
    """Share of the difference that is added per step. A robot whose servos are softer or stiffer than modelled stands
    elsewhere while it moves, and so does what it pushes."""
    lag: float = 0.0
    """Delay of the real robot behind the simulated one [s]."""
    max_step: float = 0.01
    """Largest correction of a joint per step [rad or m]."""
    max_error: float = 0.3
    """A difference beyond this is an invalid reading [rad or m]; it is ignored and counted."""
    max_age: float = 0.05
    """Age from which a reading is ignored [s]."""
    max_lead: float = 0.12
    """The robot is commanded to where the simulated joints will be, ahead by its estimated lag, at most by this [s].
    With 0 it is commanded to where they are, and lags behind."""
    park: Mapping[str, float] = field(default_factory=dict[str, float])
    """Positions of joints that the real world does not measure [rad or m]."""


@array_dataclass
class BlendedJoints:
    """New joint positions, and the measured error."""

    q: Array
    error: Array
    """Measured less simulated joints at the same time [joints]; NaN where there was no valid reading."""
    used: bool


def adapt_lead(blend: JointBlend, lead: float, error: Array, velocity: Array) -> float:
    """The next lead of the commands [s], from the last joint error [joints] and the simulated velocity [joints].

    A robot that is late by r shows an error -r v, so -e . v / v . v is the remaining lag; a share of it is added while
    joints move, so that the lead settles in about half a second.
    """
    squared = float(velocity @ velocity)
    if not np.isfinite(error).all() or squared < MIN_JOINT_SPEED**2:
        return lead
    remaining = -float(error @ velocity) / squared
    limit = blend.max_lead
    return float(np.clip(lead + LEAD_GAIN * np.clip(remaining, -limit, limit), 0.0, limit))


def blend_joints(blend: JointBlend, q: Array, times: Array, past: Array, reading: Array, stamp: float) -> BlendedJoints:
    """Move joints q [joints] towards a reading of time `stamp` [s]; `past` [n, joints] are those of `times` [n]."""
    at = stamp - blend.lag
    if not np.isfinite(reading).all() or not np.isfinite(stamp) or at < times[0] or times[-1] - stamp > blend.max_age:
        return BlendedJoints(q, np.full(q.shape, np.nan), False)
    then = np.array([np.interp(at, times, past[:, j]) for j in range(past.shape[1])])
    error = reading - then
    if np.abs(error).max(initial=0.0) > blend.max_error:
        return BlendedJoints(q, error, False)
    return BlendedJoints(q + np.clip(blend.gain * error, -blend.max_step, blend.max_step), error, True)


PARAMETERS = "twin.parameters"
"""Observation of the parameters of a twin that is re-identified: estimates, then the values in use."""


class ParameterUpdates(Protocol):
    """Takes the samples of the real robot and gives parameters of the simulated one; every call returns at once."""

    @property
    def channel(self) -> Channel:
        """What `observed` holds."""
        ...

    def observed(self) -> Array:
        """The estimates, then the values in use."""
        ...

    def sample(self, t: float, q: Array, action: Array, stamp: float | None) -> None:
        """Take the command given to the robot at time t [s], and its newest reading, taken at `stamp` if known."""
        ...

    def retuned(self, sim: Simulator) -> Simulator | None:
        """The simulated world with new parameters; None where there are none since the last call."""
        ...
