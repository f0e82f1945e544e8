"""What a twin does when it cannot be trusted: it slows down, coasts, holds, and hands over to the operator.

    slow         position targets move at reduced speed (`Limits.reduced`)
    coast        images correct nothing: physics alone predicts
    hold         the simulated robot brakes inside its limits, and the real one follows it to rest
    handed over  hold until the operator resumes, by an explicit call

Every stage includes those before it. A stage rises at once and falls after `recover_after` without its cause, but for
the last one, which is latched. The memory of a monitor is a tree of arrays, so that a step of the twin depends on its
arguments alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.core.world import Array, Spec, State, array_dataclass, frozen_dataclass, options_dataclass
from instep.robot import Limits
from instep.robot.limits import LimitedCommand

from .trust import FEATURES, OWN_SECONDS, WINDOW_FRAMES, Trust, feature_rows

CHANNEL = "twin.trust"
LABELS = ("level", "stage", "cause", "feature")
"""What is observed of a monitor: the level of the frame over the nominal limit, the `TrustStage`, the `TrustCause` of
that stage, and the feature with the largest level, by its place in `FEATURES`."""
FLIPS = 4
"""Corrections by successive images, each against the one before, after which a correction is unstable."""
MIN_FLIP_M = 0.01
"""Corrections smaller than this are motions of a body that somebody pushes, not oscillation [m]."""
LEVER_M = 0.1
"""Distance from a body's centre at which its turning counts as motion [m]."""
MAX_LAG = {"m": 0.06, "rad": 0.2}
"""Distance of a robot's joint from the twin's that is more than any lag explains [m or rad]."""
MAX_DIVERGED = 3
"""Divergences within `DIVERGED_S` after which a twin is handed over."""
DIVERGED_S = 10.0
SETTLE_S, SLOW_SHARE = 0.25, 0.05
"""Time that simulated joints take to come to rest behind a command that is at rest [s], and the share of their velocity
limits below which they count as such; slower servos take longer, and are not stopped at speed."""


class TrustStage(IntEnum):
    """What a twin does for want of trust."""

    NORMAL = 0
    SLOW = 1
    COAST = 2
    HOLD = 3
    HANDED_OVER = 4


class TrustCause(IntEnum):
    """Why a twin is in its stage."""

    NONE = 0
    ANOMALY = 1
    BLIND = 2
    RELOCALIZED = 3
    UNSTABLE = 4
    LAG = 5
    READINGS = 6
    DIVERGED = 7


STAGE_WORDS: Mapping[TrustStage, str] = {
    TrustStage.NORMAL: "normal",
    TrustStage.SLOW: "slow",
    TrustStage.COAST: "coast on physics",
    TrustStage.HOLD: "hold",
    TrustStage.HANDED_OVER: "handed over to the operator",
}
CAUSE_WORDS: Mapping[TrustCause, str] = {
    TrustCause.NONE: "",
    TrustCause.ANOMALY: "the run is unlike any nominal one",
    TrustCause.BLIND: "no camera gives usable images",
    TrustCause.RELOCALIZED: "a body was found elsewhere than predicted",
    TrustCause.UNSTABLE: "corrections oscillate",
    TrustCause.LAG: "the robot does not follow the twin",
    TrustCause.READINGS: "no valid joint readings come",
    TrustCause.DIVERGED: "the simulation diverged and was restored to its last good state",
}


@options_dataclass
class StageOptions:
    """When each stage begins, and what it does; a twin begins at rest, so that nothing is lost by waiting."""

    slow_after: float = 0.1
    """Time above the nominal limit until slow [s]."""
    coast_after: float = 0.3
    """Time above `strong_level` until coast [s]; a body that somebody moved is found again before."""
    hold_after: float = 1.5
    """Time above it until hold [s]."""
    strong_level: float = 1.5
    """Level from which images are not believed, in levels of the largest nominal run."""
    blind_slow: float = 0.25
    """Time without an image that can be used until slow [s]."""
    blind_hold: float = 1.0
    """The same until hold [s]."""
    readings_slow: float = 0.1
    """Time without a valid joint reading until slow [s]."""
    readings_hold: float = 0.25
    """The same until hold [s]."""
    lag_slow: float = 1.0
    """Distance of the robot's joints from the twin's until slow, in `MAX_LAG` by the unit of the joint."""
    lag_hold: float = 2.0
    """The same until hold."""
    hand_over_after: float = 3.0
    """Time in hold until the operator is asked [s]."""
    recover_after: float = 0.5
    """Time without its cause after which a stage is left [s]."""
    acts: bool = True
    """Whether stages act. Where nothing is driven, as in a recording, they are only recorded."""


def never_resume() -> bool:
    """The answer of an operator who is not there."""
    return False


@array_dataclass
class Evidence:
    """What one step of a twin says of itself."""

    t: float
    log: Mapping[str, float]
    """Numbers of the correction."""
    joint_error: Array
    """Measured less simulated joints [joints]; NaN where there was no valid reading."""
    correction: Array
    """By how much the correction moved the positions [nq]."""
    diverged: bool = False


@frozen_dataclass
class TrustEvent:
    """A change of stage in a run."""

    t: float
    """Since the beginning of the run [s]."""
    stage: TrustStage
    cause: TrustCause
    feature: str
    """The feature that was furthest from nominal runs; empty where that is not the cause."""

    @property
    def words(self) -> str:
        """The event in a sentence."""
        why = CAUSE_WORDS[self.cause]
        more = f" ({FEATURES[self.feature][1]})" if self.feature else ""
        return f"{self.t:.2f} s: {STAGE_WORDS[self.stage]}{f': {why}{more}' if why else ''}."


@array_dataclass
class TrustMonitor:
    """Judges each step of a twin, and changes its actions by the stage it is in."""

    trust: Trust
    spec: Spec
    """Of the simulated world."""
    limits: Limits
    """Of its actions."""
    options: StageOptions
    max_lag: Array
    """`MAX_LAG` of each joint that is measured [joints]."""
    operator: Callable[[], bool] = never_resume
    """Whether the operator resumes; asked each step while the twin is handed over."""

    def begin(self, t: float) -> dict[str, Any]:
        """The memory at the beginning of a run."""
        n = len(FEATURES)
        return {
            "rows": np.array(0), "features": np.full(n, np.nan), "excess": np.zeros((WINDOW_FRAMES, n)),
            "own": np.full((round(OWN_SECONDS / self.spec.dt), n), np.nan), "centre": self.trust.centre.copy(),
            "level": np.array(0.0), "feature": np.array(0), "stage": np.array(0), "cause": np.array(0),
            "high_since": np.full(2, np.inf), "entered": np.array(t), "calm_since": np.array(np.inf),
            "usual": np.array(True), "held_since": np.array(np.inf), "at_rest": np.array(False),
            "image_at": np.array(t), "reading_at": np.array(t), "lag_rows": np.zeros(2, int),
            "relocalized_at": np.array(-np.inf), "unstable_at": np.array(-np.inf), "last_correction": np.zeros(0),
            "flips": np.array(0), "diverged": np.full(MAX_DIVERGED, -np.inf), "stepping": np.array(False),
            "command": self.limits.rest(np.zeros(len(self.limits.labels))).rows,
        }  # fmt: skip

    def stage(self, memory: Mapping[str, Any]) -> TrustStage:
        """The stage in which a twin is."""
        return TrustStage(int(memory["stage"])) if self.options.acts else TrustStage.NORMAL

    def at_rest(self, memory: Mapping[str, Any]) -> bool:
        """Whether a twin that holds has come to rest: from then on no set point moves until it goes on.

        Contact moves a simulated robot that holds a little, for as long as it lasts; a real one does not follow that.
        """
        return bool(memory["at_rest"]) and self.stage(memory) >= TrustStage.HOLD

    def _rests(self, memory: Mapping[str, Any], sim: State) -> bool:
        """Whether the command has had the time to come to rest, and the simulated joints have followed it."""
        held = sim.t - float(memory["held_since"]) > self.limits.stop_time + SETTLE_S
        return held and bool((np.abs(self._speeds(sim)) < SLOW_SHARE * np.asarray(self.limits.velocity)).all())

    def observed(self, memory: Mapping[str, Any]) -> Array:
        """The numbers of `LABELS`."""
        return np.array([float(memory[name]) for name in LABELS])

    def resume(self, memory: Mapping[str, Any], t: float) -> dict[str, Any]:
        """The memory after the operator has resumed: everything is judged anew, medians stay."""
        kept = ("rows", "own", "centre", "features", "command", "stepping")
        return {**self.begin(t), **{name: memory[name] for name in kept}}

    def act(self, memory: Mapping[str, Any], sim: State, action: Array) -> tuple[Array, dict[str, Any]]:
        """The action that may be taken in the stage, and the memory with the command it continues from.

        Slow and hold begin where the simulated joints are and as fast as they move. After recovery targets are
        approached inside the limits, until the action is reached; then it passes unchanged.
        """
        kept = dict(memory)
        if self.stage(memory) == TrustStage.HANDED_OVER and self.operator():
            kept = self.resume(memory, sim.t)
        stage = self.stage(kept)
        held = stage >= TrustStage.HOLD
        kept["at_rest"] = np.array(held and (bool(kept["at_rest"]) or self._rests(kept, sim)))
        if stage < TrustStage.SLOW and not memory["stepping"]:
            return action, kept
        limits, dt = self.limits, self.spec.dt
        last = LimitedCommand(memory["command"]) if memory["stepping"] else self._where(sim)
        if held:
            after = limits.brake(last, dt)
        else:
            after = (self._slow() if stage >= TrustStage.SLOW else limits).towards(last, action, dt)
        taken = limits.command(after, action)
        reached = stage == TrustStage.NORMAL and bool(np.all(np.abs(taken - action) < 1e-9))
        kept["command"], kept["stepping"] = after.rows, np.array(not reached)
        return taken, kept

    def judge(self, memory: Mapping[str, Any], evidence: Evidence) -> dict[str, Any]:
        """The memory after a step, with the level and the stage that follow from it."""
        kept = {name: np.array(value) for name, value in memory.items()}
        self._score(kept, evidence)
        self._note(kept, evidence)
        wanted, cause = self._wanted(kept, evidence.t)
        self._change(kept, wanted, cause, evidence.t)
        return kept

    def _where(self, sim: State) -> LimitedCommand:
        """A command at the simulated joints that moves as they do, inside the limits."""
        limits, spec = self.limits, self.spec
        q = np.clip(limits.start(sim.q, spec), limits.low, limits.high)
        top = np.asarray(limits.velocity)
        return limits.moving(q, np.clip(self._speeds(sim), -top, top), spec.dt)

    def _speeds(self, sim: State) -> Array:
        """The speeds of the simulated joints that position targets move, zero for other actions."""
        limits, labels = self.limits, self.spec.v.labels
        speeds = [
            float(sim.v[labels.index(name)]) if name in labels else 0.0 for name in limits.joints or limits.labels
        ]
        return np.where(limits.position_targets, speeds, 0.0)

    def _slow(self) -> Limits:
        return self.limits.reduced(self.spec)

    def _score(self, kept: dict[str, Any], evidence: Evidence) -> None:
        """The level of this frame: its features, averaged over the last ones, against nominal runs."""
        log = {name: np.array([value]) for name, value in evidence.log.items()}
        log["joints.error"] = np.array([_worst(evidence.joint_error)])
        found = feature_rows(log)[0]
        before: Array = kept["features"]
        features = np.where(np.isfinite(found), found, before)
        trust = replace(self.trust, centre=kept["centre"])
        row = int(kept["rows"])
        excess = trust.excess(features) if row >= trust.skip else np.zeros(len(features))
        kept["excess"] = np.concatenate([kept["excess"][1:], [excess]])
        levels = trust.levels(kept["excess"].mean(axis=0)) / trust.limit
        kept["level"], kept["feature"] = np.array(levels.max()), np.array(int(np.argmax(levels)))
        if row < len(kept["own"]):
            kept["own"][row] = features
            if row == len(kept["own"]) - 1 and kept["usual"]:
                # Safe only where nothing has been unusual since the beginning.
                kept["centre"] = trust.shifted(kept["own"][trust.skip :]).centre
        kept["features"], kept["rows"] = features, np.array(row + 1)

    def _note(self, kept: dict[str, Any], evidence: Evidence) -> None:
        """When levels rose, images and readings last came, the robot fell behind, a correction turned round."""
        t, log = evidence.t, evidence.log
        for i, level in enumerate((1.0, self.options.strong_level)):
            high = kept["level"] > level
            kept["high_since"][i] = min(kept["high_since"][i], t) if high else np.inf
        ages = [age for name, age in log.items() if name.endswith(".latency") and not _at_fault(log, name)]
        if ages or not any(name.endswith(".latency") for name in log):
            kept["image_at"] = np.array(max(float(kept["image_at"]), t - min(ages, default=0.0)))
        error = np.abs(evidence.joint_error)
        if np.isfinite(error).all():
            kept["reading_at"] = np.array(t)
            behind = float(np.max(error / self.max_lag, initial=0.0))
            over = np.array([behind > self.options.lag_slow, behind > self.options.lag_hold])
            kept["lag_rows"] = np.where(over, kept["lag_rows"] + 1, 0)
        if any(value > 0 for name, value in log.items() if name.endswith(".relocalized")):
            kept["relocalized_at"] = np.array(t)
        if evidence.diverged:
            kept["diverged"] = np.append(kept["diverged"][1:], t)
        self._note_flips(kept, evidence)

    def _note_flips(self, kept: dict[str, Any], evidence: Evidence) -> None:
        innovations = [value for name, value in evidence.log.items() if name.endswith(".nis")]
        if innovations and not np.isfinite(innovations).any():
            # Between two images nothing is corrected; that says nothing of the next.
            return
        now, last = evidence.correction * self._as_lengths(), kept["last_correction"]
        size = float(np.linalg.norm(now))
        if size < MIN_FLIP_M:
            # Pushes to and fro, seconds apart, are corrected to and fro as well.
            kept["flips"], kept["last_correction"] = np.array(0), np.zeros(0)
            return
        against = last.size == now.size and float(now @ last) < -0.5 * size * float(np.linalg.norm(last))
        kept["flips"] = kept["flips"] + 1 if against else np.array(0)
        kept["last_correction"] = now
        if kept["flips"] >= FLIPS:
            kept["unstable_at"] = np.array(evidence.t)

    def _as_lengths(self) -> Array:
        """What each coordinate of the positions is multiplied by to be a length; a quaternion holds half the angle."""
        turns = np.array([label.rpartition(".")[2] in ("qw", "qx", "qy", "qz") for label in self.spec.q.labels])
        return np.where(turns, 2 * LEVER_M, 1.0)

    def _wanted(self, kept: Mapping[str, Any], t: float) -> tuple[TrustStage, TrustCause]:
        """The highest stage that any cause asks for now."""
        o = self.options
        anomalous, strong = t - kept["high_since"]
        blind, unread = t - float(kept["image_at"]), t - float(kept["reading_at"])
        lagging, stuck = kept["lag_rows"] >= 3
        diverged: Array = t - kept["diverged"]
        asked: list[tuple[bool, TrustStage, TrustCause]] = [
            (bool((diverged < DIVERGED_S).all()), TrustStage.HANDED_OVER, TrustCause.DIVERGED),
            (bool((diverged < 2 * o.recover_after).any()), TrustStage.HOLD, TrustCause.DIVERGED),
            (unread > o.readings_hold, TrustStage.HOLD, TrustCause.READINGS),
            (bool(stuck), TrustStage.HOLD, TrustCause.LAG),
            (blind > o.blind_hold, TrustStage.HOLD, TrustCause.BLIND),
            (strong > o.hold_after, TrustStage.HOLD, TrustCause.ANOMALY),
            (t - float(kept["unstable_at"]) < 2 * o.recover_after, TrustStage.COAST, TrustCause.UNSTABLE),
            (strong > o.coast_after, TrustStage.COAST, TrustCause.ANOMALY),
            (unread > o.readings_slow, TrustStage.SLOW, TrustCause.READINGS),
            (bool(lagging), TrustStage.SLOW, TrustCause.LAG),
            (blind > o.blind_slow, TrustStage.SLOW, TrustCause.BLIND),
            (t - float(kept["relocalized_at"]) < o.recover_after, TrustStage.SLOW, TrustCause.RELOCALIZED),
            (anomalous > o.slow_after, TrustStage.SLOW, TrustCause.ANOMALY),
        ]
        return next(((stage, cause) for holds, stage, cause in asked if holds), (TrustStage.NORMAL, TrustCause.NONE))

    def _change(self, kept: dict[str, Any], wanted: TrustStage, cause: TrustCause, t: float) -> None:
        now = TrustStage(int(kept["stage"]))
        if now == TrustStage.HANDED_OVER:
            return
        if now == TrustStage.HOLD and t - float(kept["entered"]) > self.options.hand_over_after:
            wanted, cause = TrustStage.HANDED_OVER, TrustCause(int(kept["cause"]))
        kept["usual"] = kept["usual"] & (wanted == TrustStage.NORMAL)
        if wanted >= now:
            kept["calm_since"] = np.array(np.inf)
        else:
            kept["calm_since"] = np.minimum(kept["calm_since"], t)
        if wanted > now or t - float(kept["calm_since"]) > self.options.recover_after:
            if (wanted >= TrustStage.HOLD) != (now >= TrustStage.HOLD):
                kept["held_since"] = np.array(t if wanted >= TrustStage.HOLD else np.inf)
            kept["stage"], kept["cause"], kept["entered"] = np.array(int(wanted)), np.array(int(cause)), np.array(t)
            kept["calm_since"] = np.array(np.inf)


def trust_events(episode: Episode) -> list[TrustEvent]:
    """The changes of stage in a run; none where it was no twin's."""
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
    """How long a run was in each stage [s]."""
    stages = np.asarray(episode[CHANNEL], float)[:, LABELS.index("stage")]
    return {stage: float(np.sum(stages == stage)) * episode.spec.dt for stage in TrustStage}


def trust_monitor(
    trust: Trust, spec: Spec, limits: Limits, joints: Sequence[str], options: StageOptions | None = None
) -> TrustMonitor:
    """A monitor for a simulated world with these limits, whose `joints` are measured in the real one."""
    units = dict(zip(spec.q.labels, spec.q.units, strict=True))
    lags = np.array([MAX_LAG.get(units.get(name, ""), np.inf) for name in joints], float)
    return TrustMonitor(trust, spec, limits, options or StageOptions(), lags)


def set_point_bound(limits: Limits, spec: Spec, options: StageOptions | None = None) -> Array:
    """How far each set point may move after the last usable image, whatever a policy does, until it is at rest.

    That is at full speed until slow, then at reduced speed until hold, and the way to rest from each.
    """
    chosen, fast = options or StageOptions(), np.asarray(limits.velocity, float)
    reduced = np.asarray(limits.reduced(spec).velocity, float)
    ending = limits.stop_time + 2 * spec.dt
    return fast * (chosen.blind_slow + ending) + reduced * (chosen.blind_hold - chosen.blind_slow + ending)


def _worst(error: Array) -> float:
    return float(np.max(np.abs(error))) if error.size and np.isfinite(error).all() else np.nan


def _at_fault(log: Mapping[str, float], latency: str) -> bool:
    camera = latency.removesuffix(".latency")
    return not np.isfinite(log[latency]) or log.get(f"{camera}.fault", 0.0) > 0
