"""Diagnosis of a gap: failure modes, candidate causes, and the share of each cause."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.records import array_dataclass, options_dataclass
from instep.core.statistics import Estimate
from instep.core.world import Policy, Settings, Simulator
from instep.gap.arm_kinematics import joint_ranges
from instep.gap.gap_report import gap_page
from instep.gap.gap_result import Gap
from instep.gap.measure import measure_gap, opened, prepared_for
from instep.physics.contact_rules import touches_nothing
from instep.physics.mujoco_world import MujocoWorld
from instep.report.figures import bars_figure
from instep.report.page import Figure, HtmlReport, Reported, Section, Table
from instep.scene.folder import Scene

from .attribution import Attribution, AttributionOptions, attribute, components_of
from .candidates import candidate_causes, supported
from .cause_selection import CandidateResult, CauseSelection, identify_causes, physical_modes
from .data_checks import DataChecks, check_data
from .failure_modes import MODES, FailureMode, found_modes, observed_modes
from .policy_modes import closed_loop_modes
from .window_fits import CandidateOptions

Watch = Callable[[str], None]
"""Receives what is being done, in a few words."""


@options_dataclass
class DiagnoseOptions:
    """How a gap is diagnosed."""

    fitted: Scene | None = None
    """A fitted scene: the gap is shared among the components that it changes, instead of searching for causes."""
    policy: Policy | None = None
    """The policy that was recorded: it is run in closed loop from the recorded starts."""
    allow: tuple[str, ...] = ()
    """Data checks that may fail."""


@array_dataclass
class Diagnosis(Reported):
    """The probable causes of a gap."""

    gap: Gap
    """The gap, with the share of each cause and a score for each failure mode that was found."""
    modes: tuple[FailureMode, ...]
    """Every failure mode that was tested, found or ruled out."""
    candidates: tuple[CandidateResult, ...] = ()
    """How much each single parameter change explains, the best first."""
    attribution: Attribution | None = None
    """The share of each identified cause, where any was identified."""
    checks: DataChecks | None = None
    ties: tuple[str, ...] = ()
    """A sentence about each cause that the recordings cannot separate from another."""

    @property
    def causes(self) -> Mapping[str, Estimate]:
        """The share of each cause."""
        return self.gap.causes

    def __str__(self) -> str:
        shares = self.causes
        ranked = sorted(shares, key=lambda name: -shares[name].value)
        named = [f"{name} ({_percent(shares[name])} of the gap)" for name in ranked]
        physical = {c.candidate.name for c in self.candidates}
        modes = [m.name for m in found_modes(self.modes) if m.name not in physical]
        words = [*named, *(f"{name}: {MODES[name]}" for name in modes)]
        return f"Most likely {' and '.join(words[:3])}." if words else "No cause explains the gap significantly."

    def section(self) -> Section:
        """The diagnosis as a section of a report."""
        figures = self._figures()
        rows = [[m.name, "yes" if m.found else "no", m.evidence] for m in sorted(self.modes, key=lambda m: not m.found)]
        return Section(
            "Causes", " ".join([str(self), *self.ties]), [*figures, Table(("failure mode", "found", "evidence"), rows)]
        )

    def page(self) -> HtmlReport:
        """The report of the gap and its causes."""
        checks = [self.checks.section()] if self.checks is not None else []
        return gap_page(self.gap, title="Diagnosis", causes=[self.section()], checks=checks)

    def figures(self) -> Sequence[Figure]:
        """The share of each cause."""
        figures = self._figures()
        if not figures:
            raise BadInput("No cause was tried, so there is nothing to plot.")
        return figures

    def _figures(self) -> list[Figure]:
        if self.attribution is not None:
            bars = dict(self.attribution.shares)
            rest = self.attribution.rest / max(self.attribution.before, 1e-300)
            bars |= {"not explained": Estimate(rest, rest, rest, 0, "1")}
            title = "Share of the gap by cause (Shapley values, simultaneous 95 % intervals)"
            return [bars_figure(bars, title=title, x="share of the gap")]
        bars = {c.candidate.cause: c.gain for c in self.candidates}
        if not bars:
            return []
        shown = {n: Estimate(e.value, max(e.low, -0.5), min(e.high, 1.0), e.n, "1") for n, e in bars.items()}
        title = "Share of the squared error that one change explains on held-out pieces"
        return [bars_figure(shown, title=title, x="share explained")]


def diagnose_gap(
    sim: Scene | Simulator | str | Path,
    episodes: Sequence[Episode],
    *,
    gap: Gap | None = None,
    options: DiagnoseOptions | None = None,
    watch: Watch | None = None,
) -> Diagnosis:
    """Find the probable causes of the gap between a simulator and recorded runs.

    Recordings are checked and the gap is measured where it is not given. Then failure modes are tested, families of
    parameters are fitted jointly, and the gap is shared among those that explain a significant part of it.
    """
    options = options or DiagnoseOptions()
    world, scene = opened(sim)
    checks = None
    if gap is None:
        checks = check_data(episodes, limits=joint_ranges(scene) if scene is not None else None, allow=options.allow)
        checks.require()
        gap = measure_gap(world, episodes)
    runs = prepared_for(world, scene, episodes).episodes
    modes = observed_modes(world, runs, gap)
    if options.policy is not None:
        modes += closed_loop_modes(world, options.policy, runs, gap.pairs, wrapping=gap.wrapping)
    if options.fitted is not None:
        components = components_of(options.fitted.settings)
        if not components:
            name = options.fitted.name
            raise BadInput(f"The scene {name!r} has no [settings]: nothing was identified. Fit it with: instep tune")
        shares = _attributed(world, runs, components, gap, watch)
        return _diagnosis(gap, modes, (), shares, checks)
    if scene is None:
        note = "The simulator has no scene, so no parameter change was tried."
        return _diagnosis(gap.with_scores({}, [note]), modes, (), None, checks)
    return _searched(world, scene, runs, _diagnosis(gap, modes, (), None, checks), watch)


def _searched(
    sim: Simulator, scene: Scene, runs: Sequence[Episode], known: Diagnosis, watch: Watch | None
) -> Diagnosis:
    """The diagnosis with the results of all candidates."""
    gap = known.gap
    extended, candidates = candidate_causes(scene, sim)
    candidates, notes = supported(extended, candidates)
    wrapping = tuple(w for w in gap.wrapping if w in sim.spec.q.labels)
    faster = None
    if isinstance(sim, MujocoWorld) and touches_nothing(sim, runs):
        faster = candidate_causes(scene, sim.without_contacts())[0]
    options = CandidateOptions(wrapping=wrapping, watch=_prefixed(watch, "fitting"), fitted_in=faster)
    try:
        found = identify_causes(extended, runs, candidates, options)
    except BadInput as none:
        return replace(known, gap=gap.with_scores({}, [str(none)]))
    components = {cause.candidate.cause: cause.settings for cause in found.causes}
    shares = _attributed(extended, runs, components, gap, watch)
    modes = [*known.modes, *physical_modes(found)]
    ties = tuple(_ties(found))
    made = _diagnosis(gap.with_scores({}, [*notes, *ties]), modes, found.alone, shares, known.checks)
    return replace(made, ties=ties)


def _ties(found: CauseSelection) -> list[str]:
    """A sentence about each cause in whose place another one explains as much."""
    others: dict[str, list[str]] = {}
    for cause, other in found.ties:
        others.setdefault(cause, []).append(other)
    why = "cannot be separated by these recordings: each explains as much"
    return [f"{cause.capitalize()} and {' or '.join(names)} {why}." for cause, names in others.items()]


def _percent(share: Estimate) -> str:
    interval = f" [{100 * share.low:.0f}, {100 * share.high:.0f}]" if share.has_interval else ""
    return f"{100 * share.value:.0f} %{interval}"


def _diagnosis(
    gap: Gap,
    modes: Sequence[FailureMode],
    results: Sequence[CandidateResult],
    shares: Attribution | None,
    checks: DataChecks | None,
) -> Diagnosis:
    causes = dict(shares.shares) if shares is not None else {}
    scores = {f"mode: {m.name}": m.strength for m in modes if m.found}
    gap = replace(gap, causes=causes).with_scores(scores)
    return Diagnosis(gap, tuple(modes), tuple(results), shares, checks)


def _attributed(
    sim: Simulator, episodes: Sequence[Episode], components: Mapping[str, Settings], gap: Gap, watch: Watch | None
) -> Attribution | None:
    if not components:
        return None
    floor = gap.floor["overall"].at(0.5) if "overall" in gap.floor and gap.floor["overall"].horizons[0] < inf else None
    # A few windows of each run suffice: every subset is replayed.
    every = max(0.5, sum(len(e) for e in episodes) * episodes[0].spec.dt / 200)
    options = AttributionOptions(every=every, floor=floor, wrapping=gap.wrapping)
    show = _prefixed(watch, "attributing,")
    return attribute(sim, episodes, components, options=options, tick=lambda i, n: show(f"{i} of {n}"))


def _prefixed(watch: Watch | None, words: str) -> Watch:
    return lambda text: watch(f"{words} {text}") if watch is not None else None
