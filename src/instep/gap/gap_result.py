"""What a measurement returns: curves over the horizon, scores, events, causes, and the runs behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isinf, nan

from instep.core.episode import Episode
from instep.core.statistics import Estimate


@dataclass(frozen=True, slots=True)
class Curve:
    """An error over the horizon, E(k): how wrong a prediction is k seconds after it was last right."""

    name: str
    unit: str
    horizons: tuple[float, ...]
    """How far ahead [s]; infinity stands for the whole run, open loop."""
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


@dataclass(frozen=True, slots=True, eq=False)
class RunPair:
    """Two runs that answer each other row by row, in the same words: what one world did and what the other did."""

    real: Episode
    sim: Episode
    name: str = ""
    error: float = nan
    """The overall error over the whole run; NaN where it was not taken or the replay diverged."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened at a moment: a contact, a grasp, a phase, a step of the task."""

    name: str
    t: float
    """When it began [s]."""
    end: float = inf
    """When it ended [s]; infinity while it lasts."""
    row: int = 0


@dataclass(frozen=True, slots=True)
class EventMatch:
    """An event of one world and the same event of the other, or the lack of it."""

    name: str
    real: Event | None
    sim: Event | None
    run: str = ""

    @property
    def dt(self) -> float | None:
        """How much later the simulator was [s], None where one of the two is missing."""
        return None if self.real is None or self.sim is None else self.sim.t - self.real.t


@dataclass(frozen=True, slots=True, eq=False)
class Gap:
    """How far a simulator is from reality, how sure we are, and where it comes from."""

    curves: Mapping[str, Curve]
    """By channel, by unit ('all rad') and 'overall'."""
    scores: Mapping[str, Estimate] = field(default_factory=dict[str, Estimate])
    """Single numbers by name: 'overall@0.5 s', 'elbow@full', and whatever further measurements add."""
    events: tuple[EventMatch, ...] = ()
    causes: Mapping[str, Estimate] = field(default_factory=dict[str, Estimate])
    """How much of the gap each component owns."""
    floor: Mapping[str, Curve] = field(default_factory=dict[str, Curve])
    """Real against real, from repeats of the same command: nothing below it means anything."""
    pairs: tuple[RunPair, ...] = ()
    """Each measured run beside its open-loop replay."""
    notes: tuple[str, ...] = ()
    """The decisions and the doubts behind the numbers, one sentence each."""

    def with_scores(self, scores: Mapping[str, Estimate], notes: Sequence[str] = ()) -> Gap:
        """The same gap with more scores and notes."""
        return replace(self, scores={**self.scores, **scores}, notes=(*self.notes, *notes))


def run_name(episode: Episode, place: int | None = None) -> str:
    """The name of a run; its place in the dataset where it has none, or an empty string."""
    return episode.meta.get("name", episode.meta.get("episode", "" if place is None else str(place)))


def horizon_name(horizon: float, dt: float) -> str:
    """A horizon in words."""
    if isinf(horizon):
        return "full"
    return "1 step" if horizon <= 1.5 * dt else f"{horizon:.3g} s"
