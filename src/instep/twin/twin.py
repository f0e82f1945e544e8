"""The twin: a world made of two worlds.

    predicted = sim.step(state, action)               the policy acts on the simulated robot
    measured  = real.step(..., follow(predicted))     the real robot follows its joints
    corrected = correct(predicted, measured, real.observe(measured))

The real world sets the pace by blocking in `step`. Wrap it in `Guarded` to hold its limits.
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
from instep.core.rollout import checked_action, rest_action
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

from .camera_frames import FALL, RISE, Deadline
from .camera_rig import IMAGES
from .trust_stages import CHANNEL, LABELS, Evidence, TrustMonitor, TrustStage, TrustState

KEY = "twin"
PARAMETERS = "twin.parameters"
"""Observation of a twin that is re-identified: estimates, then the values in use."""
STAGES = ("predict", "follow", "observe", "blend", "correct")
"""Stages of a step; `follow` is the time of the real world, in which the twin waits."""
COUNTS = ("overruns", *(f"overrun.{stage}" for stage in STAGES if stage != "follow"), "missed", "dropouts")
"""Running totals: steps whose own work took longer than a period, by their longest stage; periods by which the real
clock was ahead; steps without a valid joint reading."""
HISTORY = 64
"""Past actions, for simulators with latency, and past joint positions, for late readings."""
MAX_REST_SHARE = 0.5
"""Largest share of the time budget reserved for the time after the correction."""
MAX_CATCH_UP_STEPS = 30
"""Most simulated steps in one step of the twin, after a pause of the real world."""
MIN_JOINT_SPEED = 0.03
"""Norm of the joint velocities from which a lag differs from an offset [rad/s or m/s]."""
LEAD_GAIN = 0.06
"""Share of the remaining lag by which the lead is adapted per step."""


@array_dataclass
class CorrectedState:
    """A corrected state, the state of the correction, and its log."""

    q: Array
    """Positions, corrected."""
    v: Array
    """Velocities, corrected."""
    memory: Any
    """State of the correction for its next call."""
    log: Mapping[str, float]
    """Numbers of this frame, named by `Correction.logged`."""
    wrench: Array | None = None
    """Force and torque on each body of the model during the next step [bodies, 6]."""


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
        self, memory: Any, predicted: State, observation: Observation, t: float, deadline: Deadline | None = None
    ) -> CorrectedState:
        """Correct a prediction for time t [s] on the clock of the image stamps.

        With a deadline, as well as there is time for; the log says what was left out.
        """
        ...

    def coast(self, memory: Any, found: CorrectedState, predicted: State) -> Any:
        """The state of the correction if `found`, from `memory` and `predicted`, is not applied."""
        ...


@frozen_dataclass
class NoCorrection:
    """No correction: physics only, the baseline of every comparison."""

    finder: Correction | None = None
    """Finds the bodies in the first images; without it they start where the scene has them."""
    logged: tuple[str, ...] = ()

    def begin(self, state: State, observation: Observation) -> CorrectedState:
        """Leave the state as it is, or as the finder sees it."""
        found = None if self.finder is None else self.finder.begin(state, observation)
        return CorrectedState(state.q, state.v, None, {}) if found is None else replace(found, memory=None, log={})

    def __call__(
        self, memory: Any, predicted: State, observation: Observation, t: float, deadline: Deadline | None = None
    ) -> CorrectedState:
        """Leave the prediction as it is."""
        return CorrectedState(predicted.q, predicted.v, None, {})

    def coast(self, memory: Any, found: CorrectedState, predicted: State) -> None:
        """There is no state."""


class ParameterUpdates(Protocol):
    """Takes samples of the real robot and gives parameters of the simulated one; no call blocks."""

    @property
    def channel(self) -> Channel:
        """The channel of `observed`."""
        ...

    def observed(self) -> Array:
        """The estimates, then the values in use."""
        ...

    def sample(self, t: float, q: Array, action: Array, stamp: float | None) -> None:
        """Take the command given to the robot at time t [s], and its newest reading, taken at `stamp` if known."""
        ...

    def retuned(self, sim: Simulator) -> Simulator | None:
        """The simulated world with new parameters; None if there are none since the last call."""
        ...


@options_dataclass
class JointBlend:
    """Options of how the twin's joints follow the measured ones.

    The real robot follows the simulated one by `lag`, so a reading of time t is compared with the simulated joints of
    t - lag. A share of the difference is added to the simulated joints.
    """

    gain: float = 0.5
    """Share of the difference that is added per step. Servos that are softer or stiffer than modelled stand elsewhere
    while they move, and so do the bodies they push."""
    lag: float = 0.0
    """Delay of the real robot behind the simulated one [s]."""
    max_step: float = 0.01
    """Largest correction of a joint per step [rad or m]."""
    max_error: float = 0.3
    """Largest difference of a valid reading [rad or m]."""
    max_age: float = 0.05
    """Largest age of a valid reading [s]."""
    max_lead: float = 0.12
    """Largest lead of the commands [s]: the robot is sent to the simulated joints ahead by its estimated lag."""
    park: Mapping[str, float] = field(default_factory=dict[str, float])
    """Positions of joints that the real world does not measure [rad or m]."""


@array_dataclass
class TwinState:
    """State of a twin from step to step."""

    sim: State
    real: State
    correction: Any
    """State of the correction."""
    past: Array
    """Past actions [HISTORY, nu]."""
    t: Array
    """Times of the past joint positions [HISTORY]."""
    joints: Array
    """Past joint positions [HISTORY, joints]."""
    log: Array
    """Numbers of the correction."""
    joint_error: Array
    """Measured minus simulated joints [joints]; NaN without a valid reading."""
    stages: Array
    """Time of each stage [STAGES] [s]."""
    counts: Array
    """Running totals [COUNTS]."""
    lead: float
    """Lead of the commands [s]."""
    sent: Array
    """The last command of the real robot."""
    rest: float
    """Expected time from the end of a correction to the next command [s]."""
    corrected: float
    """Clock at the end of the last correction [s]; NaN without a budget."""
    trust: TrustState
    """Of the monitor; not updated without one."""


class Twin:
    """A simulated world kept in step with a real one; a World like both.

    `observe` adds to the observation of the simulated world, under `twin.*`, the numbers of the correction, joint
    errors, measured joints and commands, stage times and counts.
    """

    def __init__(
        self,
        sim: Simulator,
        real: World,
        correct: Correction,
        *,
        blend: JointBlend | None = None,
        budget: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self.sim, self.real, self.correct = sim, real, correct
        self.blend = blend or JointBlend()
        self.images = False
        """Whether `observe` adds the real images."""
        self.budget = budget
        """Time from one measurement to the next command [s], which limits the correction; None for no limit."""
        self._clock = clock
        self.trust: TrustMonitor | None = None
        """Slows and stops this twin; see `supervised`."""
        self.updates: ParameterUpdates | None = None
        """Gives new parameters of the simulated world; see `reidentified`."""
        joints = [n for n in sim.spec.q.labels if n in real.spec.q.labels and "." not in n]
        self.joints = tuple(joints)
        """The joints of both worlds."""
        self._sim_q = np.array([sim.spec.q.labels.index(n) for n in joints], int)
        self._real_q = np.array([real.spec.q.labels.index(n) for n in joints], int)
        self._follow = _command_sources(sim.spec, real.spec)

    def with_images(self) -> Twin:
        """The twin whose observations hold the real images."""
        made = copy.copy(self)
        made.images = True
        return made

    def supervised(self, trust: TrustMonitor) -> Twin:
        """The twin, slowed and stopped by a trust monitor, which is observed as `twin.trust`."""
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
            raise BadInput("This twin is not supervised, so it was never handed over and cannot be resumed.")
        memory: TwinState = state.hidden[KEY]
        return State(state.t, state.q, state.v, {KEY: replace(memory, trust=self.trust.resume(memory.trust, state.t))})

    @property
    def scene(self) -> Any:
        """The scene of the simulated world, if it has one."""
        return getattr(self.sim, "scene", None)

    @property
    def spec(self) -> Spec:
        """The simulated world's spec, and the channels `twin.*`."""
        inner, named = self.sim.spec, {name: channel for name, (channel, _) in self._observed().items()}
        if self.images:
            named |= {k: c for k, c in self.real.spec.observation.items() if k.startswith(IMAGES)}
        return replace(inner, observation={**inner.observation, **named})

    def _observed(self) -> dict[str, tuple[Channel, Callable[[TwinState], Array]]]:
        """The channels `twin.*`, and how each is read from the state."""
        found: dict[str, tuple[Channel, Callable[[TwinState], Array]]] = {}
        if self.correct.logged:
            found["twin.correction"] = vector(self.correct.logged), lambda memory: memory.log
        if self.joints:
            found["twin.joint_error"] = vector(self.joints), lambda memory: memory.joint_error
        found["twin.measured"] = self.real.spec.q, lambda memory: memory.real.q
        found["twin.sent"] = self.real.spec.action, lambda memory: memory.sent
        found["twin.stages"] = vector(STAGES, "s"), lambda memory: memory.stages
        found["twin.counts"] = vector(COUNTS), lambda memory: memory.counts
        if self.trust is not None:
            found[CHANNEL] = vector(LABELS), lambda memory: memory.trust.observed()
        if (updates := self.updates) is not None:
            found[PARAMETERS] = updates.channel, lambda memory: updates.observed()
        return found

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
        # Actions that hold the joints: position targets for those that are named like joints.
        rest, labels = rest_action(self.sim), self.sim.spec.q.labels
        for i, (name, unit) in enumerate(zip(self.sim.spec.action.labels, self.sim.spec.action.units, strict=True)):
            if name in labels and unit in ("rad", "m"):
                rest[i] = q[labels.index(name)]
        past = np.tile(rest, (HISTORY, 1))
        sim = self.sim.place(found.q, np.zeros_like(start.v), real.t, past)
        memory = TwinState(
            sim=sim, real=real, correction=found.memory, past=past, t=np.full(HISTORY, real.t),
            joints=np.tile(sim.q[self._sim_q], (HISTORY, 1)), log=self._logged(found),
            joint_error=np.full(len(self.joints), np.nan), stages=np.zeros(len(STAGES)), counts=np.zeros(len(COUNTS)),
            lead=0.0, sent=self._command(sim, rest, 0.0), rest=0.0, corrected=np.nan,
            trust=TrustState(real.t, real.t, real.t) if self.trust is None else self.trust.begin(real.t),
        )  # fmt: skip
        return State(real.t, sim.q, sim.v, {KEY: memory})

    def step(self, state: State, action: Array) -> State:
        """Predict, let the real world follow, measure, correct."""
        action = checked_action(action, self.sim.spec, state.batch)
        memory: TwinState = state.hidden[KEY]
        timer, watched, stage = _StageTimer(self._clock), memory.trust, TrustStage.NORMAL
        if self.updates is not None:
            new = self.updates.retuned(self.sim)
            self.sim = self.sim if new is None else new  # states do not depend on parameters
        if self.trust is not None:
            action, watched = self.trust.act(watched, memory.sim, action)
            stage = self.trust.stage(watched)
        past = np.concatenate([memory.past[1:], [action]])
        sim, diverged = self._predict(memory.sim, action, past)
        timer("predict")
        holding, still = stage >= TrustStage.HOLD, self.trust is not None and self.trust.at_rest(watched)
        sent = memory.sent if still else self._command(sim, action, 0.0 if holding else memory.lead)
        rest = self._time_after(memory)
        real = self.real.step(memory.real, sent)
        timer("follow")
        deadline = None
        if self.budget is not None:
            # A policy that takes all of the period does not leave the bodies uncorrected.
            until = self._clock() + self.budget - min(rest, MAX_REST_SHARE * self.budget)
            deadline = Deadline(until, self._clock)
        observation = self.real.observe(real)
        stamps = observation.get("observation.state.stamp")
        stamp = real.t if stamps is None else float(np.max(stamps))
        if self.updates is not None:
            self.updates.sample(memory.real.t, real.q, np.asarray(observation.get("action.sent", sent)), stamp)
        timer("observe")
        # The real world may have taken longer than a period.
        extra = min(max(round((real.t - sim.t) / self.sim.spec.dt), 0), MAX_CATCH_UP_STEPS)
        for _ in range(extra):
            sim = self.sim.step(sim, action)
        timer("predict")
        times, joints = np.append(memory.t[1:], real.t), np.concatenate([memory.joints[1:], [sim.q[self._sim_q]]])
        blended, error, read = self._blended(sim, real, stamp, times, joints)
        # A twin that holds comes to rest by itself: no measurement moves its set points.
        blended = sim if holding else blended
        lead = adapt_lead(self.blend, memory.lead, error, (joints[-1] - joints[-2]) / self.sim.spec.dt)
        timer("blend")
        found = self.correct(memory.correction, blended, observation, real.t, deadline)
        if stage >= TrustStage.COAST:
            kept = self.correct.coast(memory.correction, found, blended)
            found = replace(found, q=blended.q, v=blended.v, memory=kept, wrench=None)
        corrected = np.nan if deadline is None else self._clock()
        sim = self._injected(sim, found, past)
        if self.trust is not None:
            watched = self.trust.judge(watched, Evidence(real.t, found.log, error, found.q - blended.q, diverged))
        timer("correct")
        joints[-1] = sim.q[self._sim_q]
        memory = TwinState(
            sim=sim, real=real, correction=found.memory, past=past, t=times, joints=joints, log=self._logged(found),
            joint_error=error, stages=timer.spent, counts=timer.counted(memory.counts, self.sim.spec.dt, extra, read),
            lead=lead, sent=sent, rest=rest, corrected=corrected, trust=watched,
        )  # fmt: skip
        return State(real.t, sim.q, sim.v, {KEY: memory})

    def observe(self, state: State) -> Observation:
        """The observation of the simulated world, and the numbers of the twin."""
        memory: TwinState = state.hidden[KEY]
        seen = dict(self.sim.observe(memory.sim)) | {n: read(memory) for n, (_, read) in self._observed().items()}
        if self.images:
            seen |= {k: v for k, v in self.real.observe(memory.real).items() if k.startswith(IMAGES)}
        return seen

    def sent(self, state: State) -> Array:
        """The last set point of the real robot."""
        memory: TwinState = state.hidden[KEY]
        return memory.sent

    def _predict(self, sim: State, action: Array, past: Array) -> tuple[State, bool]:
        """The next state; if the simulation diverges, a supervised twin stays at its last good one, at rest."""
        try:
            return self.sim.step(sim, action), False
        except Diverged:
            if self.trust is None:
                raise
            return self.sim.place(sim.q, np.zeros_like(sim.v), sim.t + self.sim.spec.dt, past), True

    def _time_after(self, memory: TwinState) -> float:
        """Expected time from the end of a correction to the next command [s]: policy, recorder, prediction."""
        if self.budget is None or not np.isfinite(memory.corrected):
            return memory.rest
        took, expected = self._clock() - memory.corrected, memory.rest
        return expected + (RISE if took > expected else FALL) * (took - expected)

    def _blended(self, sim: State, real: State, stamp: float, times: Array, joints: Array) -> tuple[State, Array, bool]:
        """The state with joints moved towards the reading, their error, and whether the reading was valid."""
        if not self.joints:
            return sim, np.zeros(0), True
        moved, error, read = blend_joints(self.blend, sim.q[self._sim_q], times, joints, real.q[self._real_q], stamp)
        q = sim.q.copy()
        q[self._sim_q] = moved
        return replace(sim, q=q), error, read

    def _injected(self, sim: State, found: CorrectedState, past: Array) -> State:
        """The corrected state: placed if it differs from the prediction, nudged if there is a wrench."""
        if not (np.array_equal(found.q, sim.q) and np.array_equal(found.v, sim.v)):
            if not (np.isfinite(found.q).all() and np.isfinite(found.v).all()):
                raise BadInput("The correction is not finite; the twin keeps its last state.")
            sim = self.sim.place(found.q, found.v, sim.t, past)
        return sim if found.wrench is None else self.sim.nudge(sim, found.wrench)

    def _command(self, sim: State, action: Array, lead: float) -> Array:
        """The command of the real robot: simulated joints extrapolated by `lead` [s], else the policy's action."""
        return np.array([sim.q[i] + lead * sim.v[j] if j >= 0 else action[i] for i, j in self._follow], float)

    def _logged(self, found: CorrectedState) -> Array:
        return np.array([found.log.get(name, np.nan) for name in self.correct.logged])


class _StageTimer:
    """Times of the stages of one step."""

    def __init__(self, clock: Callable[[], float]):
        self._clock, self._last = clock, clock()
        self.spent = np.zeros(len(STAGES))

    def __call__(self, stage: str) -> None:
        now = self._clock()
        self.spent[STAGES.index(stage)] += now - self._last
        self._last = now

    def counted(self, before: Array, dt: float, extra: int, read: bool) -> Array:
        """The running totals after this step."""
        counts, own = before.copy(), self.spent.copy()
        own[STAGES.index("follow")] = 0.0
        if own.sum() > dt:
            counts[0] += 1
            counts[COUNTS.index(f"overrun.{STAGES[int(np.argmax(own))]}")] += 1
        counts[COUNTS.index("missed")] += extra
        counts[COUNTS.index("dropouts")] += int(not read)
        return counts


def adapt_lead(blend: JointBlend, lead: float, error: Array, velocity: Array) -> float:
    """The next lead of the commands [s], from the last joint error and the simulated velocity [joints].

    A robot that is late by r has an error of -r v, so -e . v / v . v is the remaining lag. A share of it is added while
    joints move, and the lead settles in about half a second.
    """
    squared = float(velocity @ velocity)
    if not np.isfinite(error).all() or squared < MIN_JOINT_SPEED**2:
        return lead
    remaining, limit = -float(error @ velocity) / squared, blend.max_lead
    return float(np.clip(lead + LEAD_GAIN * np.clip(remaining, -limit, limit), 0.0, limit))


def blend_joints(
    blend: JointBlend, q: Array, times: Array, past: Array, reading: Array, stamp: float
) -> tuple[Array, Array, bool]:
    """Joints q [joints] moved towards a reading of time `stamp` [s], their error, and whether the reading is valid.

    `past` [n, joints] are the joints at `times` [n]. The error is NaN if there is no reading of a known time.
    """
    at = stamp - blend.lag
    if not np.isfinite(reading).all() or not np.isfinite(stamp) or at < times[0] or times[-1] - stamp > blend.max_age:
        return q, np.full(q.shape, np.nan), False
    error = reading - np.array([np.interp(at, times, past[:, j]) for j in range(past.shape[1])])
    if np.abs(error).max(initial=0.0) > blend.max_error:
        return q, error, False
    return q + np.clip(blend.gain * error, -blend.max_step, blend.max_step), error, True


def _command_sources(sim: Spec, real: Spec) -> list[tuple[int, int]]:
    """For each action of the real robot: indices of the simulated joint of that name in q and v, else of the policy's
    action of that name and -1."""
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
