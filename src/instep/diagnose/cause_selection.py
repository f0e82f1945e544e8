"""Causes that explain a gap together: sets of candidates are fitted jointly, and the smallest sufficient set is chosen.

Causes that act alike (a soft servo and a heavy arm both sag) cannot be chosen one after the other: the first would take
the share of the second. So sets of one candidate, of two and of more are fitted jointly, the best few of each size
being extended by every other candidate. A larger set is taken only if it explains significantly more of windows that no
fit saw. Sets of the same size that explain as much are reported as alternatives.

Runs are cut into pieces. A simulator is placed at the start of each window and given the recorded commands. Fits use
the windows of every other piece; the others measure the share of the gap that a fit explains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import exp, inf, log, sqrt
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.rollout import CHUNK, rollout_windows
from instep.core.statistics import Estimate, student_quantile
from instep.core.world import Array, Settings, Simulator, State, array_dataclass, inner_with, options_dataclass
from instep.gap.horizon import WindowOptions, aligned_runs, window_starts
from instep.scene import address

from .candidates import Candidate
from .failure_modes import FailureMode

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
    """The causes of a gap, and all other candidates."""

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
    """The causes that explain a gap together, fitted jointly, and the share that each candidate explains alone."""
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
                fit = CauseFit(
                    {i: np.zeros(len(self.fits.candidates[i].coordinates))},
                    self.fits.nominal.residuals,
                    self.fits.nominal.held_out,
                )
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


LARGE_WINDOWS, MAX_ERROR = 0.8, 3.0
"""Errors count at most this many times those of the window that is larger than this share of all: a few windows in
which the simulator becomes unstable must not outweigh the rest."""
MAX_STEP = 1.0
"""Largest change of a coordinate in one step, where its bounds allow it."""
SETTLED = 0.01
"""Relative decrease of the squared error below which a fit has converged."""
NEGLIGIBLE = 1e-3
"""A candidate whose effect is below this share of the squared error is left out."""
_DAMPINGS = (1e-3, 0.1, 3.0)
"""Shares of the diagonal that are added to the normal equations, until a step lowers the error."""
Watch = Callable[[str], None]
"""Receives what is being fitted."""


@options_dataclass
class CandidateOptions(WindowOptions):
    """How candidates are fitted."""

    horizon: float = 0.25
    """Length of a window [s]."""
    every: float = 0.2
    """Distance between window starts [s]."""
    pieces: int = 16
    """Runs are cut into at least this many pieces; every other one is kept for evaluation."""
    most: int = 96
    """Windows replayed, spread over all runs; half of them are fitted."""
    max_causes: int = 4
    """Causes that are identified together at most; each further one doubles the replays of an attribution."""
    watch: Watch | None = None
    """Called with the names of the candidates that are fitted."""
    fitted_in: Simulator | None = None
    """A faster simulator in which fits are made, such as one without contacts where nothing touches; what a fit
    explains is always taken in the simulator itself."""


@array_dataclass
class CauseFit:
    """Coordinates of some candidates, and the errors they leave."""

    x: Mapping[int, Array]
    """Candidate -> its coordinates."""
    residuals: Array
    """Errors of the fitted windows [windows, times, channels], as parts of the overall error."""
    held_out: Array
    """Squared error of each piece that was kept for evaluation [pieces]; empty if it was not taken yet."""

    @property
    def cost(self) -> float:
        """The squared error of the fitted windows."""
        return float((self.residuals**2).sum())

    @property
    def score(self) -> float:
        """The squared error of the pieces that the fit does not see."""
        return float(self.held_out.sum())


class WindowErrors:
    """Errors of the windows of recorded runs under some settings."""

    def __init__(self, sim: Simulator, episodes: Sequence[Episode], options: CandidateOptions):
        if not episodes:
            raise BadInput("A search for causes needs at least one recorded run.")
        self.sim = sim
        self.fast = options.fitted_in or sim
        self.compared, self.runs = aligned_runs(sim, episodes, options.wrapping)
        self._measured = np.concatenate([run.q for run in self.runs])
        self._first = np.cumsum([0, *(len(run.q) for run in self.runs[:-1])])
        scales = self.compared.scales([run.q for run in self.runs])
        self.weight = np.array([1 / scales[unit] for unit in self.compared.units]) / sqrt(len(self.compared.units))
        shortest = min(len(run.q) for run in self.runs) - 1
        k = max(1, min(round(options.horizon / sim.spec.dt), shortest))
        self.steps = sorted({max(1, round(k * share)) for share in (1 / 3, 2 / 3, 1.0)})
        windows = window_starts(self.runs, options.every, sim.spec.dt)
        last = np.array([len(run.q) - 1 for run in self.runs])[windows[:, 0]]
        # Commands before the start of a run are unknown, so its first moments cannot identify a delay.
        known = windows[:, 1] * sim.spec.dt >= address.LONGEST_DELAY
        fitting = windows[:, 1] + k <= last
        windows = windows[fitting & known] if (fitting & known).sum() >= 6 else windows[fitting]
        if len(windows) > options.most:
            windows = windows[np.linspace(0, len(windows) - 1, options.most).round().astype(int)]
        piece = _pieces(windows, options.pieces)
        self.fitted, self.kept = windows[piece % 2 == 0], windows[piece % 2 == 1]
        self.piece = piece[piece % 2 == 1] // 2
        self.largest = inf
        mean = np.square(self._errors(sim, [{}], windows)[0]).mean(axis=(1, 2))
        self.largest = MAX_ERROR * sqrt(float(np.quantile(mean, LARGE_WINDOWS))) + 1e-12

    def residuals(self, several: Sequence[Settings]) -> list[Array]:
        """Errors of the windows that fits use under each of several settings, on the way to the horizon
        [windows, times, channels]."""
        return self._errors(self.fast, several, self.fitted)

    def held_out(self, settings: Settings) -> Array:
        """The squared error of each piece that fits do not see [pieces]."""
        squares = (self._errors(self.sim, [settings], self.kept)[0] ** 2).sum(axis=(1, 2))
        return np.bincount(self.piece, squares, int(self.piece.max()) + 1)

    def _errors(self, sim: Simulator, several: Sequence[Settings], windows: Array) -> list[Array]:
        truth = [self._measured[self._first[windows[:, 0]] + windows[:, 1] + k] for k in self.steps]
        found: dict[int, Array] = {}
        for group in _alike(several, most=max(1, CHUNK // len(windows)) if inner_with(sim, "per_world") else 1):
            settings = _stacked([several[i] for i in group], len(windows))
            ahead = self._ahead(sim.tuned(settings) if settings else sim, np.tile(windows, (len(group), 1)))
            for place, i in enumerate(group):
                mine = slice(place * len(windows), (place + 1) * len(windows))
                errors = [self.compared.difference(q[mine], true) for q, true in zip(ahead, truth, strict=True)]
                scaled = np.nan_to_num(np.stack(errors, axis=1) * self.weight, nan=1e6, posinf=1e6, neginf=-1e6)
                found[i] = scaled / np.sqrt(1 + (scaled / self.largest) ** 2)
        return [found[i] for i in range(len(several))]

    def _ahead(self, sim: Simulator, windows: Array) -> list[Array]:
        """Positions at each of the times after the windows' starts [windows, nq]; NaN if a window diverged."""
        out = {k: np.full((len(windows), self.runs[0].q.shape[-1]), np.nan) for k in self.steps}

        def visit(step: int, live: Array, state: State) -> None:
            if step in out:
                out[step][live] = state.q[: len(live)]

        survived = rollout_windows(sim, self.runs, windows, np.full(len(windows), self.steps[-1]), visit)
        for k, q in out.items():
            q[survived < k] = np.nan
        return list(out.values())


class WindowFits:
    """Least-squares fits of sets of candidates to the same windows."""

    def __init__(self, errors: WindowErrors, candidates: Sequence[Candidate]):
        self.errors, self.candidates = errors, tuple(candidates)
        names = errors.compared.names
        self.channels = [[names.index(c) if c in names else -1 for c in one.coordinates] for one in candidates]
        """Channel of each coordinate of each candidate; -1if it was not recorded."""
        self.nominal = CauseFit({}, errors.residuals([{}])[0], errors.held_out({}))

    def settings(self, x: Mapping[int, Array]) -> dict[str, Any]:
        """The settings of candidates at their coordinates."""
        found: dict[str, Any] = {}
        for i, values in x.items():
            found |= self.candidates[i].at(values)
        return found

    def negligible(self, i: int) -> bool:
        """Whether a candidate whose effect comes in steps has next to none: its first step counts for all."""
        candidate = self.candidates[i]
        if candidate.probe:
            return False
        change = self._at([{i: candidate.points()[0]}])[0] - self.nominal.residuals
        return float((change**2).sum()) < NEGLIGIBLE * self.nominal.cost

    def scored(self, fit: CauseFit) -> CauseFit:
        """The fit with its errors on the windows it does not see."""
        return CauseFit(fit.x, fit.residuals, self.errors.held_out(self.settings(fit.x)))

    def extended(self, fit: CauseFit, i: int, jacobian: Array | None = None) -> tuple[float, dict[int, Array]]:
        """The best start of a fit that has one more candidate: its squared error by a linear model, and coordinates.

        The candidate is set to each point of its grid while the others follow by their derivatives; each joint takes
        the point that suits its own errors.
        """
        candidate = self.candidates[i]
        points = candidate.points()
        base = self.jacobian(fit) if jacobian is None else jacobian
        moved = self._at([{**fit.x, i: point} for point in points])
        residuals = np.stack([fit.residuals, *moved])
        points = np.concatenate([np.zeros((1, points.shape[1])), points])
        costs = np.stack([_left_by_channel(r, base) for r in residuals])
        if candidate.shared:
            best = int(np.argmin(costs.sum(axis=1)))
            x, chosen = points[best], residuals[best]
        else:
            best = np.argmin(costs, axis=0)
            channel = self.channels[i]
            x = np.array([points[best[c], k] if c >= 0 else 0.0 for k, c in enumerate(channel)])
            chosen = np.stack([residuals[b, ..., c] for c, b in enumerate(best)], axis=-1)
        start = self._moved(fit.x, _least_squares(base, chosen))
        cost = float(np.square(chosen + _applied(base, _least_squares(base, chosen))).sum())
        return cost, {**start, i: x}

    def fitted(self, x: Mapping[int, Array], steps: int) -> CauseFit:
        """Gauss-Newton steps from some coordinates; steps are damped until they lower the error."""
        now = CauseFit(dict(x), self._at([x])[0], np.zeros(0))
        for _ in range(steps):
            better = self._stepped(now)
            if better is None:
                break
            settled = better.cost > (1 - SETTLED) * now.cost
            now = better
            if settled:
                break
        return now

    def jacobian(self, fit: CauseFit) -> Array:
        """Change of the residuals by each coordinate, one candidate after the other [coordinates, *residuals].

        The joints of a candidate are moved at once, and each is taken to act on its own channel.
        """
        moves = {i: self._probes(i, x) for i, x in fit.x.items()}
        probed = iter(self._at([{**fit.x, i: fit.x[i] + move} for i, some in moves.items() for move in some]))
        columns: list[Array] = []
        for i, x in fit.x.items():
            if not moves[i]:
                columns += [np.zeros_like(fit.residuals)] * len(x)
            elif self.candidates[i].shared:
                columns += [(next(probed) - fit.residuals) / move.sum() for move in moves[i]]
            else:
                change = next(probed) - fit.residuals
                for c, p in zip(self.channels[i], moves[i][0], strict=True):
                    column = np.zeros_like(change)
                    if c >= 0:
                        column[..., c] = change[..., c] / p
                    columns.append(column)
        return np.stack(columns) if columns else np.zeros((0, *fit.residuals.shape))

    def _probes(self, i: int, x: Array) -> list[Array]:
        """The moves of a candidate's coordinates by which its effect is measured: all joints at once, or one by one."""
        candidate = self.candidates[i]
        if candidate.probe == 0:
            return []
        probe = np.where(x + candidate.probe > candidate.high, -candidate.probe, candidate.probe)
        return list(np.diag(probe)) if candidate.shared else [probe]

    def _stepped(self, now: CauseFit) -> CauseFit | None:
        """The first step that lowers the error, from the boldest to the most careful."""
        base = self.jacobian(now)
        for damping in _DAMPINGS:
            x = self._moved(now.x, _least_squares(base, now.residuals, damping))
            new = CauseFit(x, self._at([x])[0], np.zeros(0))
            if new.cost < now.cost:
                return new
        return None

    def _moved(self, x: Mapping[int, Array], step: Array) -> dict[int, Array]:
        """Coordinates after a step, within their bounds."""
        found: dict[int, Array] = {}
        at = 0
        for i, values in x.items():
            candidate = self.candidates[i]
            largest = np.minimum(MAX_STEP, np.subtract(candidate.high, candidate.low) / 3)
            change = np.clip(step[at : at + len(values)], -largest, largest)
            found[i] = np.clip(values + change, candidate.low, candidate.high)
            at += len(values)
        return found

    def _at(self, several: Sequence[Mapping[int, Array]]) -> list[Array]:
        return self.errors.residuals([self.settings(x) for x in several])


def explained_share(after: Array, before: Array, comparisons: int = 1) -> Estimate:
    """The share of the squared error of pieces [pieces] that a change takes off; simultaneous over all comparisons.

    The interval leaves out one piece at a time. Where the error grows it works on the logarithm of the ratio, which has
    no upper end; where it falls to nearly nothing, one piece dominates that logarithm, and the ratio itself is used.
    """
    n = len(after)
    before, after = np.maximum(before, 1e-300), np.maximum(after, 1e-300)
    ratio = float(after.sum() / before.sum())
    without = (after.sum() - after) / (before.sum() - before)
    grows = ratio >= 1
    values = np.log(without) if grows else without
    error = sqrt((n - 1) / n * float(((values - values.mean()) ** 2).sum()))
    half = student_quantile(1 - 0.025 / comparisons, n - 1) * error
    if grows:
        return Estimate(
            1 - ratio, 1 - exp(min(log(ratio) + half, 50.0)), 1 - exp(max(log(ratio) - half, -50.0)), n, "1"
        )
    return Estimate(1 - ratio, 1 - ratio - half, min(1 - ratio + half, 1.0), n, "1")


def _least_squares(base: Array, residuals: Array, damping: float = 1e-3) -> Array:
    """The step of coordinates that takes off most of the residuals by a linear model."""
    if not len(base):
        return np.zeros(0)
    matrix = base.reshape(len(base), -1)
    normal = matrix @ matrix.T
    normal += damping * np.diag(np.diag(normal) + 1e-6 * np.trace(normal) / len(base) + 1e-300)
    return np.linalg.solve(normal, -matrix @ residuals.ravel())


def _applied(base: Array, step: Array) -> Array:
    return np.tensordot(step, base, axes=1) if len(base) else np.zeros(base.shape[1:])


def _left_by_channel(residuals: Array, base: Array) -> Array:
    """The squared error of each channel after the others followed, each channel for itself [channels]."""
    left: list[float] = []
    for c in range(residuals.shape[-1]):
        own, r = base[..., c], residuals[..., c]
        own = own[np.abs(own).reshape(len(own), -1).max(axis=1) > 0] if len(own) else own
        left.append(float(np.square(r + _applied(own, _least_squares(own, r))).sum()))
    return np.array(left)


def _alike(several: Sequence[Settings], most: int) -> list[list[int]]:
    """Places of settings of the same parameters, at most so many together: those can be simulated as one batch."""
    groups: dict[Any, list[int]] = {}
    for i, settings in enumerate(several):
        # Worlds of a batch share their physics step.
        groups.setdefault(i if address.TIMESTEP in settings else frozenset(settings), []).append(i)
    return [group[begin : begin + most] for group in groups.values() for begin in range(0, len(group), most)]


def _stacked(several: Sequence[Settings], worlds: int) -> dict[str, Any]:
    """Settings of a batch in which each of several settings holds for so many worlds; one of them is left as it is."""
    if len(several) == 1:
        return dict(several[0])
    return {name: np.repeat(np.asarray([s[name] for s in several], float), worlds, axis=0) for name in several[0]}


def _pieces(windows: Array, least: int) -> Array:
    """The piece each window belongs to: runs are cut into stretches until there are enough pieces."""
    runs = np.unique(windows[:, 0])
    cuts = -(-least // len(runs))
    piece = np.zeros(len(windows), int)
    count = 0
    for run in runs:
        mine = np.flatnonzero(windows[:, 0] == run)
        for part in np.array_split(mine, min(cuts, len(mine))):
            piece[part] = count
            count += 1
    if count < 6:
        raise BadInput("The runs are too short to search for causes; record at least two seconds of motion.")
    return piece
