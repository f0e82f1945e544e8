"""Stages of a twin that loses trust.

A twin that loses trust slows down, coasts, holds, and hands over to the operator:

    slow         position targets move at reduced speed (`Limits.reduced`)
    coast        images correct nothing: physics alone predicts
    hold         the simulated robot brakes inside its limits, and the real one follows it to rest
    handed over  hold until the operator resumes, by an explicit call

Every stage includes those before it. A stage begins at once and ends `recover_after` its cause has gone; the last one
is latched. The state of the monitor is part of the twin's state, so a step depends on its arguments alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

import numpy as np

from instep.core.episode import Episode
from instep.core.world import Array, Spec, State, array_dataclass, frozen_dataclass, options_dataclass
from instep.robot import Limits
from instep.robot.limits import LimitedCommand

from .camera_frames import copied
from .trust import FEATURES, OWN_SECONDS, WINDOW_FRAMES, Trust, feature_rows

CHANNEL = "twin.trust"
LABELS = ("level", "stage", "cause", "feature")
"""Observed numbers: level of the frame over the nominal limit, `TrustStage`, its `TrustCause`, and the feature with the
largest level, by its index in `FEATURES`."""
FLIPS = 4
"""Successive corrections that each reverse the one before, from which a correction is unstable."""
MIN_FLIP_M = 0.01
"""Smallest correction that counts as oscillation; smaller ones follow a body that is pushed [m]."""
LEVER_M = 0.1
"""Distance from a body's centre at which its rotation counts as motion [m]."""
MAX_LAG = {"m": 0.06, "rad": 0.2}
"""Distance between a robot's joint and the twin's that no lag explains [m or rad]."""
MAX_DIVERGED, DIVERGED_S = 3, 10.0
"""Divergences within a time [s] after which a twin is handed over."""
SETTLE_S, SLOW_SHARE = 0.25, 0.05
"""Time that simulated joints take to come to rest behind a command [s], and the share of their velocity limits below
which they are at rest. Slower servos take longer and are not stopped at speed."""


class TrustStage(IntEnum):
    """The stage of a twin."""

    NORMAL = 0
    SLOW = 1
    COAST = 2
    HOLD = 3
    HANDED_OVER = 4


class TrustCause(IntEnum):
    """The cause of a stage."""

    NONE = 0
    ANOMALY = 1
    BLIND = 2
    RELOCALIZED = 3
    UNSTABLE = 4
    LAG = 5
    READINGS = 6
    DIVERGED = 7


_STAGES = ("normal", "slow", "coast on physics", "hold", "handed over to the operator")
_CAUSES = (
    "", "the run is unlike any nominal one", "no camera gives usable images",
    "a body was found elsewhere than predicted", "corrections oscillate", "the robot does not follow the twin",
    "no valid joint readings come", "the simulation diverged and was restored to its last good state",
)  # fmt: skip
STAGE_WORDS: Mapping[TrustStage, str] = dict(zip(TrustStage, _STAGES, strict=True))
CAUSE_WORDS: Mapping[TrustCause, str] = dict(zip(TrustCause, _CAUSES, strict=True))


@options_dataclass
class StageOptions:
    """When each stage begins."""

    slow_after: float = 0.1
    """Time above the nominal limit until slow [s]."""
    coast_after: float = 0.3
    """Time above `strong_level` until coast [s]; a body that somebody moved is found again before."""
    hold_after: float = 1.5
    """Time above it until hold [s]."""
    strong_level: float = 1.5
    """Level from which images are not used, relative to the largest nominal level."""
    blind_slow: float = 0.25
    """Time without a usable image until slow [s]."""
    blind_hold: float = 1.0
    """The same until hold [s]."""
    readings_slow: float = 0.1
    """Time without a valid joint reading until slow [s]."""
    readings_hold: float = 0.25
    """The same until hold [s]."""
    lag_slow: float = 1.0
    """Distance of the robot's joints from the twin's until slow, in `MAX_LAG`."""
    lag_hold: float = 2.0
    """The same until hold."""
    hand_over_after: float = 3.0
    """Time in hold until the operator is asked [s]."""
    recover_after: float = 0.5
    """Time without its cause after which a stage ends [s]."""
    acts: bool = True
    """Whether stages act; through a recording they are only recorded."""


def never_resume() -> bool:
    """The answer of an absent operator."""
    return False


@array_dataclass
class Evidence:
    """The numbers of one step of a twin that trust is judged by."""

    t: float
    log: Mapping[str, float]
    """Numbers of the correction."""
    joint_error: Array
    """Measured minus simulated joints [joints]; NaN without a valid reading."""
    correction: Array
    """Change of the positions by the correction [nq]."""
    diverged: bool = False


@frozen_dataclass
class TrustEvent:
    """A change of stage in a run."""

    t: float
    """Time since the beginning of the run [s]."""
    stage: TrustStage
    cause: TrustCause
    feature: str
    """The feature with the largest level if an anomaly is the cause, else empty."""

    @property
    def words(self) -> str:
        """The event in a sentence."""
        why = CAUSE_WORDS[self.cause]
        more = f" ({FEATURES[self.feature][1]})" if self.feature else ""
        return f"{self.t:.2f} s: {STAGE_WORDS[self.stage]}{f': {why}{more}' if why else ''}."


@dataclass(slots=True)
class TrustState:
    """State of a trust monitor."""

    entered: float
    """Time at which the stage began [s]."""
    image_at: float
    """Time of the last usable image [s]."""
    reading_at: float
    """Time of the last valid joint reading [s]."""
    stage: TrustStage = TrustStage.NORMAL
    cause: TrustCause = TrustCause.NONE
    level: float = 0.0
    feature: int = 0
    rows: int = 0
    """Steps so far."""
    features: Array = field(default_factory=lambda: np.full(len(FEATURES), np.nan))
    """Last known value of each feature."""
    excess: Array = field(default_factory=lambda: np.zeros((WINDOW_FRAMES, len(FEATURES))))
    """Excesses of the last frames."""
    own: Array = field(default_factory=lambda: np.zeros(0))
    """Features of the first seconds [rows, features]; NaN for those to come."""
    centre: Array = field(default_factory=lambda: np.zeros(0))
    """Nominal medians of this run [features]."""
    usual: bool = True
    """Whether no stage was reached so far."""
    high_since: Array = field(default_factory=lambda: np.full(2, np.inf))
    """Times since which the level is above the nominal and the strong limit [s]."""
    calm_since: float = np.inf
    """Time since which the cause of the stage is gone [s]."""
    held_since: float = np.inf
    at_rest: bool = False
    lag_rows: Array = field(default_factory=lambda: np.zeros(2, int))
    """Readings in a row beyond the lag of slow and of hold."""
    relocalized_at: float = -np.inf
    unstable_at: float = -np.inf
    last_correction: Array = field(default_factory=lambda: np.zeros(0))
    flips: int = 0
    diverged: Array = field(default_factory=lambda: np.full(MAX_DIVERGED, -np.inf))
    """Times of the last divergences [s]."""
    command: Array = field(default_factory=lambda: np.zeros(0))
    """The command that a limited motion continues from, as rows of `LimitedCommand`."""
    stepping: bool = False
    """Whether commands are limited."""

    def observed(self) -> Array:
        """The numbers of `LABELS`."""
        return np.array([float(getattr(self, name)) for name in LABELS])


@array_dataclass
class TrustMonitor:
    """Judges each step of a twin, and limits its actions by its stage."""

    trust: Trust
    spec: Spec
    """Of the simulated world."""
    limits: Limits
    """Of its actions."""
    options: StageOptions
    max_lag: Array
    """`MAX_LAG` of each measured joint [joints]."""
    operator: Callable[[], bool] = never_resume
    """Whether the operator resumes; asked each step while the twin is handed over."""

    def begin(self, t: float) -> TrustState:
        """The state at the beginning of a run."""
        own = np.full((round(OWN_SECONDS / self.spec.dt), len(FEATURES)), np.nan)
        rows = self.limits.rest(np.zeros(len(self.limits.labels))).rows
        return TrustState(t, t, t, own=own, centre=self.trust.centre.copy(), command=rows)

    def stage(self, state: TrustState) -> TrustStage:
        """The stage that acts."""
        return state.stage if self.options.acts else TrustStage.NORMAL

    def at_rest(self, state: TrustState) -> bool:
        """Whether a twin that holds has come to rest: its set points stand still from then on.

        Contact moves a simulated robot that holds a little; a real one does not follow that.
        """
        return state.at_rest and self.stage(state) >= TrustStage.HOLD

    def resume(self, state: TrustState, t: float) -> TrustState:
        """The state after the operator has resumed: everything is judged anew, medians stay."""
        return replace(
            self.begin(t), rows=state.rows, own=state.own, centre=state.centre, features=state.features,
            command=state.command, stepping=state.stepping,
        )  # fmt: skip

    def act(self, state: TrustState, sim: State, action: Array) -> tuple[Array, TrustState]:
        """The action that the stage allows, and the state with the command it continues from.

        Slow and hold begin at the position and speed of the simulated joints. After recovery targets approach the
        action inside the limits; once they reach it, actions pass unchanged.
        """
        kept = copied(state)
        if self.stage(state) == TrustStage.HANDED_OVER and self.operator():
            kept = self.resume(state, sim.t)
        stage, limits, dt = self.stage(kept), self.limits, self.spec.dt
        held = stage >= TrustStage.HOLD
        kept.at_rest = held and (kept.at_rest or self._rests(kept, sim))
        if stage < TrustStage.SLOW and not state.stepping:
            return action, kept
        if state.stepping:
            last = LimitedCommand(state.command)
        else:
            q, top = np.clip(limits.start(sim.q, self.spec), limits.low, limits.high), np.asarray(limits.velocity)
            last = limits.moving(q, np.clip(self._speeds(sim), -top, top), dt)
        if held:
            after = limits.brake(last, dt)
        else:
            after = (limits.reduced(self.spec) if stage >= TrustStage.SLOW else limits).towards(last, action, dt)
        taken = limits.command(after, action)
        kept.command = after.rows
        kept.stepping = not (stage == TrustStage.NORMAL and bool(np.all(np.abs(taken - action) < 1e-9)))
        return taken, kept

    def judge(self, state: TrustState, evidence: Evidence) -> TrustState:
        """The state after a step, with its level and stage."""
        kept = copied(state)
        self._score(kept, evidence)
        self._note(kept, evidence)
        self._note_flips(kept, evidence)
        self._change(kept, evidence.t)
        return kept

    def _rests(self, state: TrustState, sim: State) -> bool:
        """Whether the command has had the time to come to rest, and the simulated joints have followed it."""
        held = sim.t - state.held_since > self.limits.stop_time + SETTLE_S
        return held and bool((np.abs(self._speeds(sim)) < SLOW_SHARE * np.asarray(self.limits.velocity)).all())

    def _speeds(self, sim: State) -> Array:
        """The speeds of the simulated joints that position targets move, zero for other actions."""
        limits, labels = self.limits, self.spec.v.labels
        names = limits.joints or limits.labels
        speeds = [float(sim.v[labels.index(name)]) if name in labels else 0.0 for name in names]
        return np.where(limits.position_targets, speeds, 0.0)

    def _score(self, kept: TrustState, evidence: Evidence) -> None:
        """The level of this frame: its features, averaged over the last ones, against nominal runs."""
        log, error = {name: np.array([value]) for name, value in evidence.log.items()}, evidence.joint_error
        known = error.size > 0 and np.isfinite(error).all()
        log["joints.error"] = np.array([float(np.max(np.abs(error))) if known else np.nan])
        found = feature_rows(log)[0]
        kept.features = np.where(np.isfinite(found), found, kept.features)
        trust, row = replace(self.trust, centre=kept.centre), kept.rows
        excess = trust.excess(kept.features) if row >= trust.skip else np.zeros(len(found))
        kept.excess = np.concatenate([kept.excess[1:], [excess]])
        levels = trust.levels(kept.excess.mean(axis=0)) / trust.limit
        kept.level, kept.feature = float(levels.max()), int(np.argmax(levels))
        if row < len(kept.own):
            kept.own[row] = kept.features
            if row == len(kept.own) - 1 and kept.usual:
                # Only if nothing has been unusual since the beginning.
                kept.centre = trust.shifted(kept.own[trust.skip :]).centre
        kept.rows = row + 1

    def _note(self, kept: TrustState, evidence: Evidence) -> None:
        """Times of high levels, images, readings, lag, relocalization and divergence."""
        t, log = evidence.t, evidence.log
        for i, level in enumerate((1.0, self.options.strong_level)):
            kept.high_since[i] = min(kept.high_since[i], t) if kept.level > level else np.inf
        latencies = {name.removesuffix(".latency"): age for name, age in log.items() if name.endswith(".latency")}
        ages = [age for c, age in latencies.items() if np.isfinite(age) and log.get(f"{c}.fault", 0.0) <= 0]
        if ages or not latencies:
            kept.image_at = max(kept.image_at, t - min(ages, default=0.0))
        error = np.abs(evidence.joint_error)
        if np.isfinite(error).all():
            kept.reading_at = t
            behind = float(np.max(error / self.max_lag, initial=0.0))
            over = np.array([behind > self.options.lag_slow, behind > self.options.lag_hold])
            kept.lag_rows = np.where(over, kept.lag_rows + 1, 0)
        if any(value > 0 for name, value in log.items() if name.endswith(".relocalized")):
            kept.relocalized_at = t
        if evidence.diverged:
            kept.diverged = np.append(kept.diverged[1:], t)

    def _note_flips(self, kept: TrustState, evidence: Evidence) -> None:
        innovations = [value for name, value in evidence.log.items() if name.endswith(".nis")]
        if innovations and not np.isfinite(innovations).any():
            return  # no correction between two images
        # Half an angle in a quaternion, times twice the lever, is a length.
        turns = [label.rpartition(".")[2] in ("qw", "qx", "qy", "qz") for label in self.spec.q.labels]
        now, last = evidence.correction * np.where(turns, 2 * LEVER_M, 1.0), kept.last_correction
        size = float(np.linalg.norm(now))
        if size < MIN_FLIP_M:
            # Pushes to and fro, seconds apart, are corrected to and fro as well.
            kept.flips, kept.last_correction = 0, np.zeros(0)
            return
        against = last.size == now.size and float(now @ last) < -0.5 * size * float(np.linalg.norm(last))
        kept.flips, kept.last_correction = kept.flips + 1 if against else 0, now
        if kept.flips >= FLIPS:
            kept.unstable_at = evidence.t

    def _wanted(self, kept: TrustState, t: float) -> tuple[TrustStage, TrustCause]:
        """The highest stage that any cause asks for now."""
        o = self.options
        anomalous, strong = t - kept.high_since
        blind, unread, since = t - kept.image_at, t - kept.reading_at, t - kept.diverged
        lagging, stuck = kept.lag_rows >= 3
        asked: list[tuple[bool, TrustStage, TrustCause]] = [
            (bool((since < DIVERGED_S).all()), TrustStage.HANDED_OVER, TrustCause.DIVERGED),
            (bool((since < 2 * o.recover_after).any()), TrustStage.HOLD, TrustCause.DIVERGED),
            (unread > o.readings_hold, TrustStage.HOLD, TrustCause.READINGS),
            (bool(stuck), TrustStage.HOLD, TrustCause.LAG),
            (blind > o.blind_hold, TrustStage.HOLD, TrustCause.BLIND),
            (strong > o.hold_after, TrustStage.HOLD, TrustCause.ANOMALY),
            (t - kept.unstable_at < 2 * o.recover_after, TrustStage.COAST, TrustCause.UNSTABLE),
            (strong > o.coast_after, TrustStage.COAST, TrustCause.ANOMALY),
            (unread > o.readings_slow, TrustStage.SLOW, TrustCause.READINGS),
            (bool(lagging), TrustStage.SLOW, TrustCause.LAG),
            (blind > o.blind_slow, TrustStage.SLOW, TrustCause.BLIND),
            (t - kept.relocalized_at < o.recover_after, TrustStage.SLOW, TrustCause.RELOCALIZED),
            (anomalous > o.slow_after, TrustStage.SLOW, TrustCause.ANOMALY),
        ]
        return next(((stage, cause) for holds, stage, cause in asked if holds), (TrustStage.NORMAL, TrustCause.NONE))

    def _change(self, kept: TrustState, t: float) -> None:
        (wanted, cause), now = self._wanted(kept, t), kept.stage
        if now == TrustStage.HANDED_OVER:
            return
        if now == TrustStage.HOLD and t - kept.entered > self.options.hand_over_after:
            wanted, cause = TrustStage.HANDED_OVER, kept.cause
        kept.usual = kept.usual and wanted == TrustStage.NORMAL
        kept.calm_since = np.inf if wanted >= now else min(kept.calm_since, t)
        if wanted > now or t - kept.calm_since > self.options.recover_after:
            if (wanted >= TrustStage.HOLD) != (now >= TrustStage.HOLD):
                kept.held_since = t if wanted >= TrustStage.HOLD else np.inf
            kept.stage, kept.cause, kept.entered, kept.calm_since = wanted, cause, t, np.inf


def trust_events(episode: Episode) -> list[TrustEvent]:
    """The changes of stage in a run; none if it was not run through a twin."""
    if CHANNEL not in episode:
        return []
    rows: Array = np.asarray(episode[CHANNEL], float)
    stages, found = rows[:, LABELS.index("stage")].astype(int), list[TrustEvent]()
    for row in np.flatnonzero(np.diff(stages, prepend=0)):
        cause = TrustCause(int(rows[row, LABELS.index("cause")]))
        feature = list(FEATURES)[int(rows[row, LABELS.index("feature")])] if cause == TrustCause.ANOMALY else ""
        found.append(TrustEvent(float(episode.t[row] - episode.t[0]), TrustStage(stages[row]), cause, feature))
    return found


def stage_seconds(episode: Episode) -> dict[TrustStage, float]:
    """The time of a run in each stage [s]."""
    stages = np.asarray(episode[CHANNEL], float)[:, LABELS.index("stage")]
    return {stage: float(np.sum(stages == stage)) * episode.spec.dt for stage in TrustStage}


def trust_monitor(
    trust: Trust, spec: Spec, limits: Limits, joints: Sequence[str], options: StageOptions | None = None
) -> TrustMonitor:
    """A monitor for a simulated world with these limits; `joints` are measured in the real one."""
    units = dict(zip(spec.q.labels, spec.q.units, strict=True))
    lags = np.array([MAX_LAG.get(units.get(name, ""), np.inf) for name in joints], float)
    return TrustMonitor(trust, spec, limits, options or StageOptions(), lags)


def set_point_bound(limits: Limits, spec: Spec, options: StageOptions | None = None) -> Array:
    """The largest motion of each set point from the last usable image to rest, whatever a policy does.

    That is full speed until slow, reduced speed until hold, and the distance to rest from each.
    """
    chosen, fast = options or StageOptions(), np.asarray(limits.velocity, float)
    reduced = np.asarray(limits.reduced(spec).velocity, float)
    ending = limits.stop_time + 2 * spec.dt
    return fast * (chosen.blind_slow + ending) + reduced * (chosen.blind_hold - chosen.blind_slow + ending)
