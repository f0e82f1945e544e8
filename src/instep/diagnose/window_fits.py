"""Fits of candidate causes to windows of recorded runs, and their errors on windows that a fit does not see.

Runs are cut into pieces. A simulator is placed at the start of each window and given the recorded commands; fits use
the windows of every other piece, and the rest says how much of the gap a fit explains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import exp, inf, log, sqrt
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.records import array_dataclass, options_dataclass
from instep.core.replay import Aligned, aligned
from instep.core.statistics import Estimate, student_quantile
from instep.core.world import Array, Settings, Simulator
from instep.gap.channels import Channels, channels
from instep.gap.horizon import HorizonOptions, WindowOptions, predict_windows, windows_of
from instep.scene import address

from .candidates import Candidate

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


@array_dataclass
class CauseFit:
    """Coordinates of some candidates, and the errors they leave."""

    x: Mapping[int, Array]
    """Candidate -> its coordinates."""
    residuals: Array
    """Errors of the fitted windows [windows, times, channels], as parts of the overall error."""
    held_out: Array
    """Squared error of each piece that was kept for evaluation [pieces]; empty where it was not taken yet."""

    @property
    def errors(self) -> tuple[Array, Array]:
        """Those of the fitted windows, and of the others."""
        return self.residuals, self.held_out

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
        self.runs: list[Aligned] = [aligned(episode, sim) for episode in episodes]
        seen = np.all([run.seen[0] for run in self.runs], axis=0)
        self.compared: Channels = channels(sim.spec.q, seen, options.wrapping)
        scales = self.compared.scales([run.q for run in self.runs])
        self.weight = np.array([1 / scales[unit] for unit in self.compared.units]) / sqrt(len(self.compared.units))
        shortest = min(len(run.q) for run in self.runs) - 1
        k = max(1, min(round(options.horizon / sim.spec.dt), shortest))
        self.steps = sorted({max(1, round(k * share)) for share in (1 / 3, 2 / 3, 1.0)})
        windows, _ = windows_of(episodes, self.runs, HorizonOptions(every=options.every), sim.spec.dt)
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
        mean = np.square(self._errors({}, windows)).mean(axis=(1, 2))
        self.largest = MAX_ERROR * sqrt(float(np.quantile(mean, LARGE_WINDOWS))) + 1e-12

    def residuals(self, settings: Settings) -> Array:
        """Errors of the windows that fits use, on the way to the horizon [windows, times, channels]."""
        return self._errors(settings, self.fitted)

    def held_out(self, settings: Settings) -> Array:
        """The squared error of each piece that fits do not see [pieces]."""
        squares = (self._errors(settings, self.kept) ** 2).sum(axis=(1, 2))
        return np.bincount(self.piece, squares, int(self.piece.max()) + 1)

    def _errors(self, settings: Settings, windows: Array) -> Array:
        sim = self.sim.tuned(settings) if settings else self.sim
        ahead, _ = predict_windows(sim, self.runs, windows, self.steps, None)
        truth = [np.stack([self.runs[int(i)].q[int(row) + k] for i, row in windows]) for k in self.steps]
        errors = [self.compared.difference(ahead[k], q) for k, q in zip(self.steps, truth, strict=True)]
        scaled = np.nan_to_num(np.stack(errors, axis=1) * self.weight, nan=1e6, posinf=1e6, neginf=-1e6)
        return scaled / np.sqrt(1 + (scaled / self.largest) ** 2)


class WindowFits:
    """Least-squares fits of sets of candidates to the same windows."""

    def __init__(self, errors: WindowErrors, candidates: Sequence[Candidate]):
        self.errors, self.candidates = errors, tuple(candidates)
        names = errors.compared.names
        self.channels = [[names.index(c) if c in names else -1 for c in one.coordinates] for one in candidates]
        """Channel of each coordinate of each candidate; -1 where it was not recorded."""
        self.nominal = CauseFit({}, errors.residuals({}), errors.held_out({}))

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
        change = self._at({i: candidate.points()[0]}) - self.nominal.residuals
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
        moved = [self._at({**fit.x, i: point}) for point in points]
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
        now = CauseFit(dict(x), self._at(x), np.zeros(0))
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
        columns: list[Array] = []
        for i, x in fit.x.items():
            candidate = self.candidates[i]
            probe = np.where(x + candidate.probe > candidate.high, -candidate.probe, candidate.probe)
            if candidate.probe == 0:
                columns += [np.zeros_like(fit.residuals)] * len(x)
            elif candidate.shared:
                for move in np.diag(probe):
                    columns.append((self._at({**fit.x, i: x + move}) - fit.residuals) / move.sum())
            else:
                change = self._at({**fit.x, i: x + probe}) - fit.residuals
                for c, p in zip(self.channels[i], probe, strict=True):
                    column = np.zeros_like(change)
                    if c >= 0:
                        column[..., c] = change[..., c] / p
                    columns.append(column)
        return np.stack(columns) if columns else np.zeros((0, *fit.residuals.shape))

    def _stepped(self, now: CauseFit) -> CauseFit | None:
        """The first step that lowers the error, from the boldest to the most careful."""
        base = self.jacobian(now)
        for damping in _DAMPINGS:
            x = self._moved(now.x, _least_squares(base, now.residuals, damping))
            new = CauseFit(x, self._at(x), np.zeros(0))
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

    def _at(self, x: Mapping[int, Array]) -> Array:
        return self.errors.residuals(self.settings(x))


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
