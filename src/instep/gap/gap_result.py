"""The result of a gap measurement: curves over the horizon, scores, events, causes, and the runs behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from math import inf, isinf, nan
from typing import TYPE_CHECKING, Literal

from instep.core.episode import Episode
from instep.core.statistics import Estimate
from instep.core.world import array_dataclass, frozen_dataclass
from instep.report.page import Figure, HtmlReport, Reported

if TYPE_CHECKING:
    from .events import EventAgreement
    from .image_scores import CameraScores
    from .joint_error import CommandFollowing, JointErrorProfile
    from .measure import ErrorGrowth
    from .time_alignment import AlignedStreams


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
    """Two runs with the same rows and labels: what one world did and what the other did."""

    real: Episode
    sim: Episode
    name: str = ""
    error: float = nan
    """The overall error over the whole run; NaN where it was not measured or the replay diverged."""


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
    """An event of one world and the same event of the other, or None where it is missing."""

    name: str
    real: Event | None
    sim: Event | None
    run: str = ""

    @property
    def dt(self) -> float | None:
        """How much later the simulator was [s], None where one of the two is missing."""
        return None if self.real is None or self.sim is None else self.sim.t - self.real.t


@array_dataclass
class Gap(Reported):
    """How far a simulator is from reality, with intervals, and what was compared."""

    curves: Mapping[str, Curve]
    """By channel, by unit ('all rad') and 'overall'."""
    scores: Mapping[str, Estimate] = field(default_factory=dict[str, Estimate])
    """Single numbers by name: 'overall@0.5 s', 'elbow@full', and those of further measurements."""
    events: tuple[EventMatch, ...] = ()
    causes: Mapping[str, Estimate] = field(default_factory=dict[str, Estimate])
    """Share of the gap by cause, where a diagnosis was made."""
    floor: Mapping[str, Curve] = field(default_factory=dict[str, Curve])
    """Noise floor: real against real, from repeats of the same command."""
    floors: Mapping[str, Mapping[str, Curve]] = field(default_factory=dict[str, Mapping[str, Curve]])
    """The noise floor of each repeated command."""
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
    streams: Mapping[str, AlignedStreams] = field(default_factory=dict[str, "AlignedStreams"])

    def with_scores(self, scores: Mapping[str, Estimate], notes: Sequence[str] = ()) -> Gap:
        """The same gap with more scores and notes."""
        return replace(self, scores={**self.scores, **scores}, notes=(*self.notes, *notes))

    @property
    def headline(self) -> Curve:
        """The curve that stands for the whole: of the only unit where there is one, overall otherwise."""
        units = [name for name in self.curves if name.startswith("all ")]
        single = [name for name in self.curves if not name.startswith("all ") and name != "overall"]
        if len({self.curves[name].unit for name in single}) == 1:
            return self.curves[units[0] if units else single[0]]
        return self.curves["overall"]

    def __str__(self) -> str:
        from instep.report.gap_page import gap_headline

        return gap_headline(self).headline

    def page(self) -> HtmlReport:
        """The report."""
        from instep.report.gap_page import gap_page

        return gap_page(self)

    def figures(self) -> Sequence[Figure]:
        """The error over the horizon by unit."""
        from instep.report.gap_page import gap_figures

        return gap_figures(self)


def run_name(episode: Episode, place: int | None = None) -> str:
    """The name of a run; its place in the dataset where it has none, or an empty string."""
    return episode.meta.get("name", episode.meta.get("episode", "" if place is None else str(place)))


def horizon_name(horizon: float, dt: float) -> str:
    """A horizon in words."""
    if isinf(horizon):
        return "full"
    return "1 step" if horizon <= 1.5 * dt else f"{horizon:.3g} s"
