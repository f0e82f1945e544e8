"""Causes that explain a gap together: sets of candidates are fitted jointly, and the smallest sufficient set is chosen.

Causes that act alike (a soft servo and a heavy arm both sag) cannot be chosen one after the other: the first would take
what belongs to the second. So sets of one candidate, of two and of more are fitted jointly, the best few of each size
being extended by every other candidate. A larger set is taken only where it explains significantly more of the windows
that no fit saw. Sets of the same size that explain as much are reported as alternatives.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from instep.core.episode import Episode
from instep.core.records import array_dataclass
from instep.core.statistics import Estimate
from instep.core.world import Array, Settings, Simulator

from .candidates import Candidate
from .failure_modes import FailureMode
from .window_fits import CandidateOptions, CauseFit, Watch, WindowErrors, WindowFits, explained_share

MIN_SHARE = 0.1
"""A candidate must explain at least this share of the squared error that is left without it."""
MIN_GAP_SHARE = 1e-3
"""And at least this share of the squared error of the simulator as it is."""
BEAM = 3
"""Sets of each size that are extended, while none explains all but `MIN_GAP_SHARE`."""
EXTENSIONS = 4
"""Candidates by which a set is extended at most, after all were tried by a linear model."""
PROMISING = 4.0
"""Only those are fitted whose squared error by that model is at most so many times the smallest."""
SCREEN_STEPS, FIT_STEPS = 2, 8
"""Steps of a fit of one candidate, and of several."""
TIED = 0.1
"""Sets whose squared errors differ by less than this share, or not significantly, are alternatives."""
Set = frozenset[int]


@array_dataclass
class CandidateResult:
    """How much one candidate explains."""

    candidate: Candidate
    gain: Estimate
    """Share of the squared error it explains on held-out pieces, with intervals simultaneous over all candidates."""
    settings: Settings
    words: str
    """The fitted change."""

    @property
    def significant(self) -> bool:
        """Whether it explains enough, and its interval excludes zero."""
        return self.gain.low > 0 and self.gain.value >= MIN_SHARE


@array_dataclass
class CauseSelection:
    """The causes of a gap, and what else was tried."""

    causes: tuple[CandidateResult, ...]
    """Those that explain the gap together, at jointly fitted values; the gain is the loss without that one."""
    alone: tuple[CandidateResult, ...]
    """What each candidate explains by itself, the best first."""
    ties: tuple[tuple[str, str], ...]
    """A cause, and one that explains as much in its place."""


def identify_causes(
    sim: Simulator,
    episodes: Sequence[Episode],
    candidates: Sequence[Candidate],
    options: CandidateOptions | None = None,
) -> CauseSelection:
    """The causes that explain a gap together, fitted jointly, and what each candidate explains by itself."""
    options = options or CandidateOptions()
    fits = WindowFits(WindowErrors(sim, episodes, options), candidates)
    search = _Search(fits, options.watch or (lambda words: None))
    best = search.chosen(min(options.max_causes, len(candidates)))
    alone = [search.result(i, search.known[frozenset((i,))], fits.nominal) for i in range(len(candidates))]
    causes = [search.result(i, best, search.without(best, i)) for i in best.x]
    order = sorted(range(len(candidates)), key=lambda i: -alone[i].gain.value)
    ties = search.ties(best)
    return CauseSelection(
        tuple(sorted(causes, key=lambda r: -r.gain.value)), tuple(alone[i] for i in order), tuple(ties)
    )


def physical_modes(found: CauseSelection) -> list[FailureMode]:
    """One failure mode per candidate name; those of the causes count as found."""
    modes: dict[str, FailureMode] = {}
    together = {r.candidate.cause: r for r in found.causes}
    for r in sorted(found.alone, key=lambda r: (r.candidate.cause not in together, -r.gain.value)):
        name, joint = r.candidate.name, together.get(r.candidate.cause)
        if name in modes:
            continue
        sentence = f"{r.words or 'No value of it'} explains {_words(r.gain)} of the squared error on held-out pieces"
        if joint is not None and len(together) > 1:
            sentence += f"; beside the other causes, {joint.words} explains {_words(joint.gain)} of what they leave"
        modes[name] = FailureMode(name, joint is not None, r.gain, f"{sentence[0].upper()}{sentence[1:]}.")
    return list(modes.values())


def _words(gain: Estimate) -> str:
    return f"{100 * max(gain.value, 0):.0f} % [{100 * gain.low:.0f}, {100 * gain.high:.0f}]"


class _Search:
    """Sets of candidates that were fitted, and those that follow from them."""

    def __init__(self, fits: WindowFits, watch: Watch):
        self.fits, self.watch = fits, watch
        self.known: dict[Set, CauseFit] = {frozenset(): fits.nominal}
        self.active: list[int] = []

    def chosen(self, most: int) -> CauseFit:
        """The smallest set that no larger one beats significantly, without members that it can spare."""
        best = self.fits.nominal
        self.alone()
        last = self.best_of(1)
        for size in range(1, most + 1):
            if size > 1:
                last = self.grown(last)
            if last and self.better(last[0], best):
                best = last[0]
            elif size > 1:
                # Two causes can be invisible one at a time: a pair is tried before the search ends.
                break
            if not last or self.sufficient(best):
                break
        return self.pruned(best)

    def alone(self) -> None:
        """Fit each candidate by itself; one that has next to no effect on these windows is left out from then on."""
        for i in range(len(self.fits.candidates)):
            self.watch(self.named([i]))
            if self.fits.negligible(i):
                fit = CauseFit({i: np.zeros(len(self.fits.candidates[i].coordinates))}, *self.fits.nominal.errors)
            else:
                self.active.append(i)
                fit = self.fits.fitted(self.fits.extended(self.fits.nominal, i)[1], SCREEN_STEPS)
                fit = self.fits.scored(fit)
            self.known[frozenset((i,))] = fit

    def grown(self, fits: Sequence[CauseFit]) -> list[CauseFit]:
        """The best sets with one more candidate, fitted jointly."""
        size = len(fits[0].x) + 1
        for fit in fits:
            self._extend(fit)
            found = self.best_of(size)
            if found and self.sufficient(found[0]):
                break
        return self.best_of(size)

    def best_of(self, size: int) -> list[CauseFit]:
        """The best sets of a size."""
        return sorted((f for s, f in self.known.items() if len(s) == size), key=lambda fit: fit.score)[:BEAM]

    def sufficient(self, fit: CauseFit) -> bool:
        """Whether a set leaves too little for a further cause to matter."""
        return fit.score < MIN_GAP_SHARE * self.fits.nominal.score

    def _extend(self, fit: CauseFit) -> None:
        """Fit a set with each further candidate that promises much by a linear model."""
        jacobian = self.fits.jacobian(fit)
        starts: dict[int, tuple[float, dict[int, Array]]] = {}
        for i in self.active:
            if i not in fit.x:
                self.watch(self.named([*fit.x, i]))
                starts[i] = self.fits.extended(fit, i, jacobian)
        order = sorted(starts, key=lambda i: starts[i][0])[:EXTENSIONS]
        for i in order:
            key = frozenset((*fit.x, i))
            if starts[i][0] > PROMISING * starts[order[0]][0]:
                break
            fitted = self.fits.fitted(starts[i][1], FIT_STEPS)
            if key not in self.known or fitted.cost < self.known[key].cost:
                self.known[key] = self.fits.scored(fitted)

    def better(self, larger: CauseFit, smaller: CauseFit) -> bool:
        """Whether a set explains significantly more than one of its size or smaller, on windows that no fit saw."""
        gain = explained_share(larger.held_out, smaller.held_out, len(self.fits.candidates))
        enough = smaller.score - larger.score >= MIN_GAP_SHARE * self.fits.nominal.score
        return bool(enough and gain.low > 0 and gain.value >= MIN_SHARE)

    def pruned(self, best: CauseFit) -> CauseFit:
        """The set without members that it can spare."""
        while len(best.x) > 1:
            spared = [smaller for i in best.x if not self.better(best, smaller := self.without(best, i))]
            if not spared:
                return best
            best = min(spared, key=lambda fit: fit.score)
        return best

    def without(self, fit: CauseFit, i: int) -> CauseFit:
        """The same set without a candidate, the others fitted again."""
        key = frozenset(fit.x) - {i}
        if key not in self.known:
            self.watch(self.named(sorted(key)))
            rest = {j: x for j, x in fit.x.items() if j != i}
            self.known[key] = self.fits.scored(self.fits.fitted(rest, FIT_STEPS))
        return self.known[key]

    def ties(self, best: CauseFit) -> list[tuple[str, str]]:
        """Pairs of a cause and a candidate that explains as much in its place."""
        found: list[tuple[str, str]] = []
        for key, fit in self.known.items():
            mine = frozenset(best.x)
            if len(key) != len(mine) or len(key - mine) != 1:
                continue
            gain = explained_share(best.held_out, fit.held_out, len(self.fits.candidates))
            if gain.low <= 0 or gain.value < TIED:
                [(out, into)] = zip(mine - key, key - mine, strict=True)
                found.append((self.fits.candidates[out].cause, self.fits.candidates[into].cause))
        return sorted(found)

    def result(self, i: int, fit: CauseFit, without: CauseFit) -> CandidateResult:
        """What a candidate of a set explains."""
        candidate, x = self.fits.candidates[i], fit.x[i]
        gain = explained_share(fit.held_out, without.held_out, len(self.fits.candidates))
        settings = candidate.at(x)
        return CandidateResult(candidate, gain, settings, candidate.words(x) if settings else "")

    def named(self, members: Sequence[int]) -> str:
        return " + ".join(self.fits.candidates[i].cause for i in members)
