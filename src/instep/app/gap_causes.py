"""The search for causes: failure modes, candidates, and who owns how much of a gap."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from instep.core.episode import Episode
from instep.core.errors import BadInput, InstepError
from instep.core.statistics import Estimate
from instep.core.world import Settings, Simulator
from instep.diagnose.attribution import Attribution, AttributionOptions, attribute, components_of
from instep.diagnose.candidates import (
    Candidate,
    CandidateOptions,
    CandidateResult,
    candidate_causes,
    identify_causes,
    physical_modes,
)
from instep.diagnose.contact_modes import contact_faults, rest_test
from instep.diagnose.failure_modes import FailureMode
from instep.diagnose.motion_modes import bodies, dynamics_gap, sensor_noise, static_scene, stochasticity
from instep.gap.gap_result import Gap
from instep.gap.noise_floor import repeated_runs
from instep.scene.folder import Scene

Say = Callable[[str], None]
"""Told what is being done."""
MOST_OWNERS = 6
"""So many causes share the gap at most; each more doubles the replays."""


@dataclass(frozen=True, slots=True, eq=False)
class Causes:
    """What may be behind a gap."""

    modes: Sequence[FailureMode]
    results: Sequence[CandidateResult]
    owned: Attribution | None
    notes: tuple[str, ...] = ()


def search(scene: Scene, sim: Simulator, episodes: Sequence[Episode], gap: Gap, *, say: Say) -> Causes:
    """Look for failure modes, question single causes, and share the gap among those that explain some of it."""
    modes = _seen_modes(sim, episodes, gap)
    wrapped, candidates = candidate_causes(scene, sim)
    candidates, notes = _askable(wrapped, candidates)
    wrapping = tuple(w for w in gap_wrapping(gap) if w in sim.spec.q.labels)
    options = CandidateOptions(wrapping=wrapping)
    try:
        causes, found = identify_causes(
            wrapped, episodes, candidates, options=options, watch=lambda name: say(f"asking {name}"), most=MOST_OWNERS
        )
    except BadInput as none:
        return Causes(modes, (), None, (str(none),))
    modes += physical_modes(found)
    owned = _shared(wrapped, episodes, components_by_name(causes), gap, say)
    if len(causes) > 1:
        notes.append("Causes were identified one after the other; fit them together with: instep tune")
    return Causes(modes, found, owned, tuple(notes))


def components_by_name(causes: Sequence[CandidateResult]) -> dict[str, Settings]:
    """The settings of each cause that was identified; causes of one name are one."""
    made: dict[str, dict[str, Any]] = {}
    for cause in causes:
        made.setdefault(cause.candidate.name, {}).update(cause.settings)
    return dict(made)


def attributed(sim: Simulator, episodes: Sequence[Episode], fitted: Scene, gap: Gap, *, say: Say) -> Causes:
    """Share the gap among the components that a fitted scene puts right."""
    components = components_of(fitted.settings)
    if not components:
        raise BadInput(f"The scene {fitted.name!r} has no [settings]: nothing was identified. Fit it with: instep tune")
    owned = _shared(sim, episodes, components, gap, say)
    return Causes(_seen_modes(sim, episodes, gap), (), owned)


def with_causes(gap: Gap, causes: Causes) -> Gap:
    """The gap with who owns it, and a score for each failure mode that was found."""
    owners: dict[str, Estimate] = dict(causes.owned.causes) if causes.owned is not None else {}
    if not owners:
        owners = {q.candidate.name: q.gain for q in reversed(causes.results)}
    scores = {f"mode: {m.name}": m.strength for m in causes.modes if m.found}
    return replace(gap, causes=owners).with_scores(scores, causes.notes)


def gap_wrapping(gap: Gap) -> tuple[str, ...]:
    """The angles whose differences were taken the short way round."""
    for note in gap.notes:
        if note.startswith("Differences of ") and note.endswith("the short way round."):
            return tuple(note.removeprefix("Differences of ").partition(" are taken")[0].split(", "))
    return ()


def _seen_modes(sim: Simulator, episodes: Sequence[Episode], gap: Gap) -> list[FailureMode]:
    sound = [p for p in gap.pairs if p.sim.q.size and not bool((p.sim.q != p.sim.q).any())]
    modes = [dynamics_gap(gap), stochasticity(repeated_runs(episodes))]
    if sound:
        modes.append(sensor_noise(sound))
    if bodies(episodes[0]) and sound:
        modes += [*contact_faults(sound), static_scene(sound), rest_test(sim, episodes)]
    return modes


def _askable(sim: Simulator, candidates: Sequence[Candidate]) -> tuple[list[Candidate], list[str]]:
    """The candidates whose parameters this engine has."""
    kept: list[Candidate] = []
    notes: list[str] = []
    for candidate in candidates:
        try:
            sim.tuned(candidate.at(candidate.values[0], sim.spec.q.labels))
        except InstepError as error:
            notes.append(f"{candidate.name} was not tried: {error}")
        else:
            kept.append(candidate)
    return kept, notes


def _shared(
    sim: Simulator, episodes: Sequence[Episode], components: Mapping[str, Settings], gap: Gap, say: Say
) -> Attribution | None:
    if not components:
        return None
    floor = gap.floor["overall"].at(0.5) if "overall" in gap.floor and gap.floor["overall"].horizons[0] < inf else None
    # A few windows of each run suffice: every subset is replayed.
    every = max(0.5, sum(len(e) for e in episodes) * episodes[0].spec.dt / 200)
    options = AttributionOptions(every=every, floor=floor, wrapping=gap_wrapping(gap))
    return attribute(sim, episodes, components, options=options, tick=lambda i, n: say(f"sharing the gap, {i} of {n}"))
