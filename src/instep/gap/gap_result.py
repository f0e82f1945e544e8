"""The result of a gap measurement: curves over the horizon, scores, events, causes, and the runs behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from math import inf, isinf, nan
from typing import Literal

from instep.core.episode import Episode
from instep.core.statistics import Estimate
from instep.core.world import Array, array_dataclass, frozen_dataclass

GrowthShape = Literal["exponential", "power", "logistic"]


@frozen_dataclass
class Curve:
    """An error over the horizon, E(k): the error of a prediction k seconds after it was last right."""

    name: str
    unit: str
    horizons: tuple[float, ...]
    """How far ahead [s]; infinity is the whole run, open loop."""
    estimates: tuple[Estimate, ...]
    dt: float
    """Control period [s]: the horizon of one step."""

    def at(self, horizon: float) -> Estimate:
        """The error at the horizon nearest to this one [s]; infinity gives the whole run."""
        if isinf(horizon):
            return self.estimates[self.horizons.index(inf)]
        distances = [abs(h - horizon) for h in self.horizons]
        return self.estimates[distances.index(min(distances))]

    def names(self) -> tuple[str, ...]:
        """The horizons in words: '1 step', '0.5 s', 'full'."""
        return tuple(horizon_name(h, self.dt) for h in self.horizons)


@array_dataclass
class RunPair:
    """Two runs with the same rows and labels: one of each world."""

    real: Episode
    sim: Episode
    name: str = ""
    error: float = nan
    """The overall error over the whole run; NaN if it was not measured or the replay diverged."""


@frozen_dataclass
class Event:
    """Something that happened at a moment: a contact, a grasp, a phase, a step of the task."""

    name: str
    t: float
    """When it began [s]."""
    end: float = inf
    """When it ended [s]; infinity while it lasts."""
    row: int = 0


@frozen_dataclass
class EventMatch:
    """An event of one world and the same event of the other, or None if it is missing."""

    name: str
    real: Event | None
    sim: Event | None
    run: str = ""

    @property
    def dt(self) -> float | None:
        """How much later the simulator was [s], None if one of the two is missing."""
        return None if self.real is None or self.sim is None else self.sim.t - self.real.t


@array_dataclass
class EventAgreement:
    """How the events of two worlds agree, over runs."""

    delay: Estimate
    """How much later events come in the second world [s], mean over runs of each run's median."""
    middle: tuple[float, float, float]
    """Quartiles of the delays of all matched events [s]."""
    missing: Estimate
    """Share of the first world's events that the second lacks."""
    extra: Estimate
    """Share of the second world's events that the first lacks."""
    order: Estimate
    """Edit distance of the order of events, per run."""
    by_name: dict[str, tuple[int, int, int, float]]
    """Matched, missing, extra and median delay [s] by name of event."""
    runs: tuple[tuple[EventMatch, ...], ...] = ()
    """The matches of each run."""


@array_dataclass
class JointErrorProfile:
    """The joint errors of two runs over time."""

    name: str
    t: Array
    """[rows, s]"""
    rmse: Mapping[str, Array]
    """RMSE_norm of each arm [rows]."""
    overall: Array
    """[rows]"""
    position: Mapping[str, Array]
    """Distance of the tips [rows, m]."""
    orientation: Mapping[str, Array]
    """Angle between the tips [rows, rad]."""
    shares: Mapping[str, float]
    """The share of each joint in the squared error of its arm, over the run."""


@array_dataclass
class CommandFollowing:
    """The distance of positions from their commands."""

    rmse: Mapping[str, Estimate]
    """Root mean square distance from the command, by joint and by unit ('all rad')."""
    shifted: Mapping[str, Estimate]
    """The same with the commands delayed by the best lag."""
    lag: Mapping[str, Estimate]
    """The lag at which each joint is nearest its command [s]; a lag is not a delay, and nothing is shifted by it."""
    lags: Array
    """The lags tried [s]."""
    by_lag: Mapping[str, Array]
    """Root mean square distance at each of them."""

    @property
    def scores(self) -> dict[str, Estimate]:
        """The distances and the lags by name."""
        errors = {f"command following: {name}": estimate for name, estimate in self.rmse.items()}
        return errors | {f"lag: {name}": estimate for name, estimate in self.lag.items()}


@array_dataclass
class ErrorGrowth:
    """The growth of the error of runs with time."""

    shape: GrowthShape
    rate: Estimate
    """lambda [1/s] of the exponential and the logistic, beta of the power."""
    doubling: Estimate
    """How long the error takes to double [s]; NaN for a power, infinite if it does not grow."""
    weights: Mapping[GrowthShape, float]
    """Akaike weights: how much each shape is supported, summing to 1."""
    rates: tuple[float, ...]
    """The rate of each run."""
    errors: tuple[tuple[Array, Array], ...]
    """Time [s] and error of each run [rows]."""


@array_dataclass
class CameraScores:
    """The similarity of the images of one camera."""

    camera: str
    scores: dict[str, Estimate]
    example: tuple[Array, Array]
    """A pair of frames from the middle."""


@frozen_dataclass
class ClockOffset:
    """How far a clock is ahead of another."""

    seconds: Estimate
    """The median over windows [s]: add it to the stamps of the second stream."""
    spread: float
    """Standard deviation over windows [s], from the median absolute deviation."""
    windows: tuple[float, ...]
    correlation: float


@array_dataclass
class AlignedStreams:
    """Two streams of one motion, before and after their clocks are brought together."""

    first: str
    second: str
    offset: ClockOffset
    """Add it to the stamps of the second stream."""
    before: float
    """Root mean square difference of the two speeds as stamped."""
    after: float
    """The same with the offset taken off."""
    unit: str
    speeds: tuple[tuple[Array, Array], tuple[Array, Array]]
    """Stamps [s] and speeds of both streams, as stamped."""


@array_dataclass
class Gap:
    """How far a simulator is from reality, with intervals."""

    curves: Mapping[str, Curve]
    """By channel, by unit ('all rad') and 'overall'."""
    scores: Mapping[str, Estimate] = field(default_factory=dict[str, Estimate])
    """Single numbers by name: 'overall@0.5 s', 'elbow@full', and those of further measurements."""
    events: tuple[EventMatch, ...] = ()
    causes: Mapping[str, Estimate] = field(default_factory=dict[str, Estimate])
    """Share of the gap by cause, if a diagnosis was made."""
    floor: Mapping[str, Curve] = field(default_factory=dict[str, Curve])
    """Noise floor: real against real, from repeats of the same command."""
    pairs: tuple[RunPair, ...] = ()
    """Each measured run beside its open-loop replay."""
    notes: tuple[str, ...] = ()
    """Decisions and caveats, one sentence each."""
    kind: Literal["replay", "paired", "commands", "clocks"] = "replay"
    """What was compared: replays, paired runs, positions and commands, or the clocks of streams."""
    wrapping: tuple[str, ...] = ()
    """Angles whose differences wrap."""
    following: CommandFollowing | None = None
    joint_errors: tuple[JointErrorProfile, ...] = ()
    growth: ErrorGrowth | None = None
    event_agreement: EventAgreement | None = None
    cameras: tuple[CameraScores, ...] = ()
    streams: Mapping[str, AlignedStreams] = field(default_factory=dict[str, AlignedStreams])

    def with_scores(self, scores: Mapping[str, Estimate], notes: Sequence[str] = ()) -> Gap:
        """The same gap with more scores and notes."""
        return replace(self, scores={**self.scores, **scores}, notes=(*self.notes, *notes))

    @property
    def headline(self) -> Curve:
        """The curve that summarises the gap: that of the only unit if there is one, overall otherwise."""
        units = [name for name in self.curves if name.startswith("all ")]
        single = [name for name in self.curves if not name.startswith("all ") and name != "overall"]
        if len({self.curves[name].unit for name in single}) == 1:
            return self.curves[units[0] if units else single[0]]
        return self.curves["overall" if "overall" in self.curves else (units or single)[0]]


def run_name(episode: Episode, place: int | None = None) -> str:
    """The name of a run; its place in the dataset if it has none, or an empty string."""
    return episode.meta.get("name", episode.meta.get("episode", "" if place is None else str(place)))


def horizon_name(horizon: float, dt: float) -> str:
    """A horizon in words."""
    if isinf(horizon):
        return "full"
    return "1 step" if horizon <= 1.5 * dt else f"{horizon:.3g} s"
