"""Beliefs about parameters: their forms and files, posteriors from recordings, ranges and imperfections to randomize.

Randomizing is `with_imperfections(sim, names).tuned(belief.sample(n, rng))`: one setting per world of a batch. The
posteriors share one likelihood. With r the scaled residuals of all windows at unit coordinates x,

    log p(recordings | x) = - r(x)^T (1 + G G^T)^-1 r(x) / (2 v T),

where G is the response of a window to its start state moved within its noise (start states are marginalised), v is the
variance of the residuals at the best fit and T their correlation time in rows: correlated rows count once, or
posteriors from real data would be far too narrow.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.param import Belief, Box, Param
from instep.core.reading import RANGE, parsing, read_json_table, with_entries
from instep.core.statistics import Estimate
from instep.core.world import Array, Simulator, array_dataclass, frozen_dataclass
from instep.data.files import read_npz
from instep.robot import Backlash, Drifting, Dropping, Noisy, Quantized, Sluggish
from instep.scene import address
from instep.scene.folder import Scene
from instep.tune.fit.least_squares import DIFFERENCE_STEP, Problem, evaluate
from instep.tune.fit.shooting import Fit
from instep.tune.fit.uncertainty import correlation_time

LAYERS: tuple[Any, ...] = (Backlash, Sluggish, Quantized, Drifting, Noisy, Dropping)
"""Imperfections of motors and sensors, in the order in which they wrap a world, motors first."""
UNITS = {
    "sensor.noise": "rad",
    "sensor.drift": "rad/s",
    "sensor.walk": "rad/s^0.5",
    "sensor.resolution": "rad",
    "sensor.loss": "1",
    "action.resolution": "rad",
    "action.lag": "s",
    "action.backlash": "rad",
    "action.loss": "1",
}
"""Parameters of those layers, and their units."""
APPEARANCE = (
    Param("appearance.brightness", 0.6, 1.4, True, "1"),
    Param("appearance.red", 0.85, 1.18, True, "1"),
    Param("appearance.green", 0.85, 1.18, True, "1"),
    Param("appearance.blue", 0.85, 1.18, True, "1"),
    Param("appearance.noise", 0.0, 8.0, False, "1/255"),
)
"""Parameters of camera images, with the ranges by which images of one place differ over a day."""
VIEWS = (
    Param("view.shift", 0.0, 0.02, False, "m"),
    Param("view.turn", 0.0, 0.05, False, "rad"),
    Param("view.zoom", 0.93, 1.07, True, "1"),
    Param("view.lens", -0.08, 0.08, False, "1"),
    Param("view.texture", 0.0, 0.25, False, "1"),
)
"""Amounts by which cameras and surfaces differ between a scene and a room; for training on rendered images."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class GaussianBelief:
    """A normal distribution over unit coordinates, cut off at the bounds."""

    params: tuple[Param, ...]
    mean: Array
    """In unit coordinates [parameters]."""
    covariance: Array
    """[parameters, parameters]."""

    def __repr__(self) -> str:
        return _named("GaussianBelief", self.params, self.mean, self.covariance)

    def draw(self, n: int, rng: np.random.Generator) -> Array:
        """n points in unit coordinates [n, parameters]; those outside the bounds are sampled again, then clipped."""
        # Directions without information get the width of the bounds.
        finite = np.where(np.isfinite(self.covariance), self.covariance, 1 / 12)
        values, vectors = np.linalg.eigh((finite + finite.T) / 2)
        root = vectors * np.sqrt(np.clip(values, 0.0, None))
        points = self.mean + rng.standard_normal((n, len(self.mean))) @ root.T
        for _ in range(20):
            out = ((points < 0) | (points > 1)).any(axis=1)
            if not out.any():
                break
            points[out] = self.mean + rng.standard_normal((int(out.sum()), len(self.mean))) @ root.T
        return np.clip(points, 0.0, 1.0)

    def sample(self, n: int, rng: np.random.Generator) -> dict[str, Array]:
        """n settings, address -> [n]."""
        return values_of(self.params, self.draw(n, rng))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SampleBelief:
    """Samples of any distribution, in unit coordinates."""

    params: tuple[Param, ...]
    points: Array
    """[draws, parameters]."""
    ranks: Array | None = None
    """Ranks of planted parameters within their posteriors [truths, params], where the method brings them."""

    def __repr__(self) -> str:
        return _named("SampleBelief", self.params, self.points)

    def draw(self, n: int, rng: np.random.Generator) -> Array:
        """n of the points, with a small jitter where more are needed than there are [n, parameters]."""
        if n <= len(self.points):
            return self.points[rng.permutation(len(self.points))[:n]]
        picked = self.points[rng.integers(0, len(self.points), n)]
        width = 0.2 * self.points.std(axis=0) * len(self.points) ** -0.2
        return np.clip(picked + width * rng.standard_normal(picked.shape), 0.0, 1.0)

    def sample(self, n: int, rng: np.random.Generator) -> dict[str, Array]:
        """n settings, address -> [n]."""
        return values_of(self.params, self.draw(n, rng))


@frozen_dataclass
class IndependentBeliefs:
    """Independent beliefs about different parameters."""

    parts: tuple[Belief, ...]

    def sample(self, n: int, rng: np.random.Generator) -> dict[str, Array]:
        """n settings, address -> [n]."""
        out: dict[str, Array] = {}
        for part in self.parts:
            sampled = part.sample(n, rng)
            twice = next((name for name in sampled if name in out), None)
            if twice is not None:
                raise BadInput(f"Two beliefs are about {twice!r}; give each parameter to one of them.")
            out |= sampled
        return out


Posterior = GaussianBelief | SampleBelief
PosteriorFunction = Callable[..., Posterior]
"""A method as a function of a fit and `seed`, such as those of `instep.lab.posteriors`."""


def values_of(params: Sequence[Param], points: Array) -> dict[str, Array]:
    """Unit coordinates [n, parameters] as values by address."""
    return {param.address: param.from_unit(points[:, i]) for i, param in enumerate(params)}


def estimates(belief: Posterior, level: float = 0.95, *, draws: int = 4000, seed: int = 0) -> dict[str, Estimate]:
    """Median and central interval of each parameter."""
    rng = np.random.default_rng((seed, 0xE57))
    points = belief.draw(draws, rng) if isinstance(belief, GaussianBelief) else belief.points
    out: dict[str, Estimate] = {}
    for i, param in enumerate(belief.params):
        low, mid, high = np.quantile(points[:, i], [0.5 - level / 2, 0.5, 0.5 + level / 2])
        ends = sorted(float(param.from_unit(e)) for e in (low, high))
        out[param.address] = Estimate(float(param.from_unit(mid)), ends[0], ends[1], len(points), param.unit)
    return out


def belief_addresses(belief: Belief) -> tuple[str, ...]:
    """The parameters of a belief, by address."""
    return tuple(belief.sample(1, np.random.default_rng(0)))


def save_belief(belief: Posterior | Box, path: Path) -> Path:
    """Write a belief as JSON (parameters, quantiles) and NPZ (numbers) side by side; `path` names the JSON."""
    kind, summary = "box", {}
    if not isinstance(belief, Box):
        summary = {name: estimate.as_dict() for name, estimate in estimates(belief).items()}
        if isinstance(belief, GaussianBelief):
            kind = "gaussian"
            np.savez(path.with_suffix(".npz"), mean=belief.mean, covariance=belief.covariance)
        else:
            kind = "samples"
            np.savez(path.with_suffix(".npz"), points=belief.points)
    params = [{"address": k.address, "low": k.low, "high": k.high, "log": k.log, "unit": k.unit} for k in belief.params]
    path.write_text(
        json.dumps({"kind": kind, "params": params, "estimates": summary}, indent=2) + "\n", encoding="utf-8"
    )
    return path


def load_belief(path: Path) -> Posterior | Box:
    """Read a belief by its JSON file, or by the folder of a run that wrote one."""
    if path.is_dir():
        path = path / "belief.json"
        if not path.is_file():
            raise BadInput(
                f"The folder {str(path.parent)!r} holds no {path.name}; run instep tune with --posterior first."
            )
    table = read_json_table(path)
    with parsing(path, "a belief that instep saved"):
        params = tuple(Param(k["address"], k["low"], k["high"], k["log"], k["unit"]) for k in table["params"])
        if table["kind"] == "box":
            return Box(params)
        arrays = {name: np.asarray(array, float) for name, array in read_npz(path.with_suffix(".npz")).items()}
        if table["kind"] == "gaussian":
            return GaussianBelief(params, arrays["mean"], arrays["covariance"])
        return SampleBelief(params, arrays["points"])


def _named(kind: str, params: Sequence[Param], *numbers: Array) -> str:
    """A name that differs where the numbers of two beliefs differ."""
    digest = hashlib.sha256(repr(params).encode())
    for array in numbers:
        digest.update(np.ascontiguousarray(array, float).tobytes())
    return f"{kind}({len(params)} parameters, {digest.hexdigest()[:16]})"


def with_imperfections(sim: Simulator, names: Sequence[str]) -> Simulator:
    """The simulator wrapped in the imperfect motors and sensors that some parameters belong to, without effect yet."""
    for layer in LAYERS:
        if any(name in layer.params for name in names):
            sim = layer(sim)
    return sim


def parse_belief(words: Sequence[str], scene: Scene) -> Belief | None:
    """The belief of `--randomize`: files that hold beliefs or ranges ({"geom.*.friction": [0.2, 0.6]}), ranges such as
    'geom.*.friction=0.2..0.6', 'appearance', 'views'."""
    parts: list[Belief] = []
    ranged: list[Param] = []
    for word in words:
        if Path(word).exists():
            ranges = _range_file(Path(word))
            ranged += [] if ranges is None else parse_ranges(ranges, scene)
            parts += [] if ranges is not None else [load_belief(Path(word))]
        elif word == "appearance":
            ranged += APPEARANCE
        elif word == "views":
            ranged += VIEWS
        else:
            ranged += _ranged(word, scene)
    if ranged:
        parts.append(Box(tuple(ranged)))
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else IndependentBeliefs(tuple(parts))


def parse_ranges(words: Sequence[str], scene: Scene) -> list[Param]:
    """Parameters with the ranges given as 'geom.*.friction=0.2..0.6'."""
    return [param for word in words for param in _ranged(word, scene)]


def _range_file(path: Path) -> list[str] | None:
    """The ranges of a JSON file of [low, high] by address, in words; None for a belief that instep saved."""
    if path.is_dir() or path.suffix != ".json":
        return None
    table = read_json_table(path)
    if "kind" in table:
        return None
    checked = with_entries(table, dict.fromkeys(table, RANGE), str(path))
    return [f"{name}={low!r}..{high!r}" for name, (low, high) in checked.items()]


def nominal_values(params: Sequence[Param], scene: Scene) -> dict[str, float]:
    """The values of parameters without randomization: the scene's, 1 for brightness and colours, else none (0)."""
    own = {**dict.fromkeys(UNITS, 0.0), **{p.address: 0.0 if p.low == 0 else 1.0 for p in APPEARANCE}}
    found: dict[str, float] = {}
    for param in params:
        # A pattern has one value for all its parts: the first one's.
        values = [own[param.address]] if param.address in own else address.read(scene.model, [param.address]).values()
        found[param.address] = next(iter(values))
    return found


def _ranged(word: str, scene: Scene) -> list[Param]:
    name, _, span = word.partition("=")
    low, _, high = span.partition("..")
    try:
        bounds = float(low), float(high)
    except ValueError:
        raise BadInput(
            f"Ranges read 'geom.*.friction=0.2..0.6', and beliefs are files that exist, not {word!r}."
        ) from None
    own = {**{param.address: param.unit for param in (*APPEARANCE, *VIEWS)}, **UNITS}
    if name in own:
        return [Param(name, *bounds, unit=own[name])]
    try:
        known = scene.params(name)
    except UnknownName:
        raise UnknownName("param", name, [*own, *(param.address for param in scene.params())]) from None
    # A pattern is one parameter with one value for all its parts, as `tuned` takes it.
    return [Param(name, *bounds, known[0].log and bounds[0] > 0, known[0].unit)]


def appearance() -> Box:
    """The usual ranges of the appearance of camera images."""
    return Box(APPEARANCE)


class Fitted(Protocol):
    """A result with a fit, such as an `Identification`."""

    @property
    def fit(self) -> Fit:
        """The final fit."""
        ...


def infer(
    found: Fit | Fitted, method: str | PosteriorFunction = "laplace", *, seed: int = 0, **budget: int
) -> Posterior:
    """The posterior around a fit by `laplace`, `eki` or a function; `budget` sets arguments of the method."""
    methods: dict[str, PosteriorFunction] = {"laplace": laplace, "eki": eki}
    if isinstance(method, str):
        if method not in methods:
            raise UnknownName("posterior method", method, methods)
        method = methods[method]
    return method(found if isinstance(found, Fit) else found.fit, seed=seed, **budget)


def laplace(found: Fit, *, seed: int = 0) -> GaussianBelief:
    """The normal distribution with the curvature of the likelihood at its maximum."""
    return GaussianBelief(found.params, found.x, found.covariance)


def eki(found: Fit, *, seed: int = 0, members: int = 0, steps: int = 4) -> SampleBelief:
    """Ensemble Kalman inversion with multiple data assimilation, from the Laplace posterior made five times as wide.

    Each step moves the members by x += C_xg (C_gg + a Gamma)^-1 (y + sqrt(a) eta - g(x)), a = steps, solved in the
    space of the members, so that the number of rows does not matter. Few members underestimate the spread, since the
    gain is estimated from the members that it moves: 20 per parameter reach 0.93 of the deviation, 40 reach 0.99.
    """
    rng = np.random.default_rng((seed, 0xE41))
    target = likelihood(found)
    points = widened_laplace(found, 25.0).draw(members or max(120, 30 * len(found.params)), rng)
    for _ in range(steps):
        points = assimilate(points, target.rows(points), float(steps), rng)
    return SampleBelief(found.params, points)


def assimilate(points: Array, rows: Array, share: float, rng: np.random.Generator) -> Array:
    """One Kalman step of an ensemble [members, parameters] whose residuals [members, rows] have unit noise.

    `share` is the number of steps the same data are split into; online, where each batch of rows is new, it is 1.
    """
    sound = np.isfinite(rows).all(axis=1)
    points, rows = points[sound], rows[sound]
    pull = -rows + np.sqrt(share) * rng.standard_normal(rows.shape)
    away, spread = points - points.mean(axis=0), rows - rows.mean(axis=0)
    inner = spread @ spread.T / (len(points) - 1) + share * np.eye(len(points))
    pulled: Array = spread @ pull.T
    weights = np.linalg.solve(np.asarray(inner), pulled) / (len(points) - 1)  # [members, members]
    return np.clip(points + weights.T @ away, 0.0, 1.0)


@array_dataclass
class Likelihood:
    """Likelihood of the recordings as a function of the parameters."""

    problem: Problem
    noise: float
    """Variance of the scaled residuals times their correlation time."""
    start_response: tuple[Array, Array]
    """Directions in which start states move their windows [windows, rows, free], and how far [windows, free]."""

    def rows(self, points: Array) -> Array:
        """Whitened residuals, start states marginalised, and those of the priors [points, rows]."""
        found = evaluate(self.problem, points)
        rows = np.stack([p.residual for p in found]) / self.problem.scale / np.sqrt(self.noise)
        rows = rows.reshape(*rows.shape[:2], -1)  # [points, windows, rows of a window]
        rows = self.marginalised(rows)
        known = np.isfinite(self.problem.prior_sigma)
        prior = (points - self.problem.prior_mean)[:, known] / self.problem.prior_sigma[known]
        return np.concatenate([rows.reshape(len(points), -1), prior], axis=1)

    def marginalised(self, rows: Array) -> Array:
        """(1 + G G^T)^-1/2 times rows [points, windows, rows of a window].

        Once, it whitens the noise of start states; twice, it leaves the residuals of the best start states.
        """
        basis, size = self.start_response
        if not size.size:
            return rows
        along = np.einsum("wrf,pwr->pwf", basis, rows, optimize=True)
        return rows + np.einsum("wrf,pwf->pwr", basis, along * (1 / np.sqrt(1 + size**2) - 1), optimize=True)

    def log(self, points: Array) -> Array:
        """Log of likelihood times prior of each point [points]; minus infinity where it diverged."""
        rows = self.rows(points)
        return np.where(np.isfinite(rows).all(axis=1), -0.5 * (rows**2).sum(axis=1), -np.inf)

    def jacobian(self, points: Array) -> tuple[Array, Array]:
        """Rows [points, rows] and their derivatives [points, parameters, rows], all in one batch."""
        n, params = points.shape
        signs = np.where(points > 0.5, -1.0, 1.0)
        moved = points[:, None] + DIFFERENCE_STEP * signs[:, :, None] * np.eye(params)
        rows = self.rows(np.concatenate([points, moved.reshape(-1, params)]))
        changed = rows[n:].reshape(n, params, -1) - rows[:n, None]
        return rows[:n], changed / (DIFFERENCE_STEP * signs[:, :, None])

    def gradients(self, points: Array) -> Array:
        """Gradient of the log posterior at each point [points, parameters]; zero where it diverged."""
        rows, jacobian = self.jacobian(points)
        out = -np.einsum("pkr,pr->pk", np.nan_to_num(jacobian), np.nan_to_num(rows))
        finite = np.asarray(np.isfinite(jacobian).reshape(len(points), -1).all(axis=1))
        return np.where(finite[:, None], out, 0.0)


def likelihood(found: Fit) -> Likelihood:
    """The likelihood of the recordings a fit was made from."""
    residual = found.point.residual / found.problem.scale
    rows = residual.size * found.problem.weighing / max(residual.shape[-1], 1)
    variance = float((residual**2).sum()) / rows * found.freedom_factor if residual.size else 1.0
    problem = replace(found.problem, robust=0.0, shooter=replace(found.problem.shooter, worlds=0))
    return Likelihood(problem, max(variance, 1e-12) * correlation_time(residual), _start_response(found, problem))


def _start_response(found: Fit, problem: Problem) -> tuple[Array, Array]:
    """The singular vectors and values of G, window by window."""
    windows, sigma = len(found.windows), problem.sigma_start
    free = np.flatnonzero(sigma > 0)
    if not len(free):
        return np.zeros((windows, 0, 0)), np.zeros((windows, 0))
    starts = np.repeat(found.point.starts[None], len(free) + 1, axis=0)
    for row, direction in enumerate(free, 1):
        starts[row, :, direction] += 0.1 * sigma[direction]
    points = evaluate(problem, np.repeat(found.x[None], len(starts), axis=0), starts)
    moved = np.stack([p.residual for p in points[1:]]) - points[0].residual
    moved = np.nan_to_num(moved / problem.scale / 0.1).reshape(len(free), windows, -1)
    basis, size, _ = np.linalg.svd(np.moveaxis(moved, 0, -1), full_matrices=False)
    return basis, size


def widened_laplace(found: Fit, factor: float) -> GaussianBelief:
    """The Laplace posterior with its variance times a factor, never wider than the bounds."""
    covariance = np.where(np.isfinite(found.covariance), found.covariance, 0.0)
    blind = ~np.isfinite(np.diag(found.covariance))
    covariance[blind, blind] = 1 / 12 / factor
    limit = np.sqrt(np.minimum(1.0, 1 / 12 / np.maximum(np.diag(covariance) * factor, 1e-300)))
    return GaussianBelief(found.params, found.x, factor * covariance * np.outer(limit, limit))


def whitener(found: Fit) -> Array:
    """The matrix from whitened coordinates to deviations of the Laplace posterior [parameters, parameters]."""
    covariance = widened_laplace(found, 1.0).covariance
    values, vectors = np.linalg.eigh(covariance)
    return vectors * np.sqrt(np.maximum(values, 1e-12))
