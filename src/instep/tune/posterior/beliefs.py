"""Beliefs about parameters: Gaussians, samples, mixtures and products of them, inside bounds, saved as plain files.

Domain randomization: sampled physics, sensors, motors and appearance; ranges by ADR, distributions by DROPO.

Randomizing is `with_imperfections(sim, names).tuned(belief.sample(n, rng))`: one setting per world of a batch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput, UnknownName
from instep.core.param import Belief, Box, Param
from instep.core.reading import RANGE, parsing, read_json_table, with_entries
from instep.core.statistics import Estimate, wilson
from instep.core.world import Array, Simulator, array_dataclass, frozen_dataclass, options_dataclass
from instep.data.files import read_npz
from instep.robot import Backlash, Drifting, Dropping, Noisy, Quantized, Sluggish
from instep.scene import address
from instep.scene.folder import Scene
from instep.tune.fit.shooting import Fit
from instep.tune.fit.windows import Shooter, cut_windows


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
        root = _root(self.covariance)
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


@frozen_dataclass
class MixtureBelief:
    """A mixture of two beliefs about the same parameters, such as a posterior with a share of the prior."""

    usual: Belief
    other: Belief
    share: float
    """Share of samples that come from the other."""

    def sample(self, n: int, rng: np.random.Generator) -> dict[str, Array]:
        """n settings, address -> [n]."""
        first, second = self.usual.sample(n, rng), self.other.sample(n, rng)
        if set(first) != set(second):
            name = next(iter(set(first) ^ set(second)))
            raise BadInput(
                f"Beliefs that are mixed must be about the same parameters; only one of them holds {name!r}."
            )
        other = rng.random(n) < self.share
        return {name: np.where(other, second[name], first[name]) for name in first}


Posterior = GaussianBelief | SampleBelief


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


def to_box(belief: Posterior, level: float = 0.95, *, draws: int = 4000, seed: int = 0) -> Box:
    """The box of the central intervals of the parameters, for trainers that take ranges only."""
    points = belief.draw(draws, np.random.default_rng((seed, 0xB0)))
    low, high = np.quantile(points, [0.5 - level / 2, 0.5 + level / 2], axis=0)
    params: list[Param] = []
    for i, param in enumerate(belief.params):
        ends = [float(param.from_unit(share)) for share in (low[i], max(high[i], low[i] + 1e-9))]
        params.append(replace(param, low=ends[0], high=ends[1]))
    return Box(tuple(params))


def widened(belief: Posterior, factor: float) -> Posterior:
    """The same belief with every deviation from the median times a factor, inside the bounds."""
    if factor <= 0:
        raise BadInput(f"A belief is widened by a factor above 0, not {factor:g}.")
    if isinstance(belief, GaussianBelief):
        return replace(belief, covariance=belief.covariance * factor**2)
    middle = np.median(belief.points, axis=0)
    return SampleBelief(belief.params, np.clip(middle + factor * (belief.points - middle), 0.0, 1.0))


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


def _root(covariance: Array) -> Array:
    """A square root of the covariance; directions without information get the width of the bounds."""
    finite = np.where(np.isfinite(covariance), covariance, 1 / 12)
    values, vectors = np.linalg.eigh((finite + finite.T) / 2)
    return vectors * np.sqrt(np.clip(values, 0.0, None))


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


Success = Callable[[Mapping[str, Array], Sequence[int]], Array]
"""Whether each episode succeeded [n], given its settings (address -> [n]) and its seed."""


@options_dataclass
class AdrOptions:
    """Options of automatic domain randomization."""

    episodes: int = 24
    """Episodes at each end of each range, per round."""
    widen: float = 0.8
    """Success at an end above which its range widens."""
    narrow: float = 0.5
    """Success at an end below which its range narrows."""
    step: float = 0.05
    """By which an end moves, as a share of the parameter's own bounds."""
    rounds: int = 20
    seed: int = 0


@array_dataclass
class AdrRound:
    """The ranges of one round, and the success rates at their ends."""

    low: Array
    """In unit coordinates [parameters]."""
    high: Array
    rates: Mapping[str, tuple[Estimate, Estimate]]
    """Success rates at the low and the high end, by address."""


@array_dataclass
class AdrResult:
    """The final ranges and how they were reached."""

    params: tuple[Param, ...]
    rounds: tuple[AdrRound, ...]
    low: Array
    high: Array
    stopped: bool = False

    @property
    def box(self) -> Box:
        """The ranges as a belief."""
        return _box(self.params, self.low, self.high)

    @property
    def entropy(self) -> float:
        """Mean logarithm of the widths as shares of the bounds: 0 where the ranges fill them."""
        return float(np.log(np.maximum(self.high - self.low, 1e-9)).mean())


def expand_ranges(
    success: Success,
    params: Sequence[Param],
    start: Mapping[str, float],
    options: AdrOptions | None = None,
    *,
    train: Callable[[Box], None] | None = None,
    watch: Callable[[int, AdrRound], None] | None = None,
) -> AdrResult:
    """Automatic domain randomization: widen and narrow ranges around a start by the success rates at their ends.

    Each round sets one parameter to one end of its range, samples the others from the box and measures success: an end
    with a high rate moves out by a step, one with a low rate moves in. `train` is called with the ranges before each
    round, so that the policy behind `success` can learn in them. Ctrl-C keeps the ranges reached so far.
    """
    options = options or AdrOptions()
    _check_adr(params, start, options)
    centre = np.array([float(param.to_unit(start[param.address])) for param in params])
    low, high = centre.copy(), centre.copy()
    rounds: list[AdrRound] = []
    stopped = False
    try:
        for number in range(options.rounds):
            if train is not None:
                train(_box(params, low, high))
            rates = _measured(success, params, (low, high), options, number)
            rounds.append(AdrRound(low.copy(), high.copy(), rates))
            if watch is not None:
                watch(number, rounds[-1])
            low, high = _moved(params, rates, (low, high), centre, options)
    except KeyboardInterrupt:
        stopped = True
    return AdrResult(tuple(params), tuple(rounds), low, high, stopped)


def _measured(
    success: Success, params: Sequence[Param], ends: tuple[Array, Array], options: AdrOptions, number: int
) -> dict[str, tuple[Estimate, Estimate]]:
    """Success rates with each parameter at each end, all in one batch of episodes."""
    low, high = ends
    n, sides = options.episodes, 2 * len(params)
    rng = np.random.default_rng((options.seed, number, 0xAD2))
    points = low + (high - low) * rng.random((sides, n, len(params)))
    for i in range(len(params)):
        points[2 * i, :, i], points[2 * i + 1, :, i] = low[i], high[i]
    flat = points.reshape(-1, len(params))
    settings = {param.address: param.from_unit(flat[:, i]) for i, param in enumerate(params)}
    # The same seeds at every end, so that ends differ by their parameter alone.
    seeds = [options.seed + number * n + k for _ in range(sides) for k in range(n)]
    won = np.asarray(success(settings, seeds), bool).reshape(sides, n).sum(axis=1)
    rates = [wilson(int(count), n) for count in won]
    return {param.address: (rates[2 * i], rates[2 * i + 1]) for i, param in enumerate(params)}


def _moved(
    params: Sequence[Param],
    rates: Mapping[str, tuple[Estimate, Estimate]],
    ends: tuple[Array, Array],
    centre: Array,
    options: AdrOptions,
) -> tuple[Array, Array]:
    low, high = ends[0].copy(), ends[1].copy()
    for i, param in enumerate(params):
        at_low, at_high = rates[param.address]
        low[i] = np.clip(low[i] - options.step * _direction(at_low, options), 0.0, centre[i])
        high[i] = np.clip(high[i] + options.step * _direction(at_high, options), centre[i], 1.0)
    return low, high


def _direction(rate: Estimate, options: AdrOptions) -> int:
    return 1 if rate.value >= options.widen else -1 if rate.value < options.narrow else 0


def _box(params: Sequence[Param], low: Array, high: Array) -> Box:
    ranges: list[Param] = []
    for i, param in enumerate(params):
        # A range that never opened is a point, and bounds must differ.
        below, above = float(param.from_unit(low[i])), float(param.from_unit(max(high[i], low[i] + 1e-9)))
        ranges.append(replace(param, low=below, high=above))
    return Box(tuple(ranges))


def _check_adr(params: Sequence[Param], start: Mapping[str, float], options: AdrOptions) -> None:
    if not 0 < options.narrow < options.widen <= 1:
        raise BadInput(
            f"A range narrows below a lower success rate than it widens above, not {options.narrow:g} and "
            f"{options.widen:g}."
        )
    for param in params:
        value = start.get(param.address)
        if value is None or not param.low <= value <= param.high:
            raise BadInput(
                f"The start of {param.address!r} must lie inside [{param.low:g}, {param.high:g}], not {value}."
            )


@options_dataclass
class DropoOptions:
    """Options of DROPO."""

    steps: int = 5
    """Rows that are predicted from each recorded state."""
    windows: int = 60
    """Recorded states that are used, evenly spaced."""
    draws: int = 24
    """Settings sampled from each candidate distribution."""
    generations: int = 30
    population: int = 10
    epsilon: float = 0.0
    """Variance added to predictions [squared units]; that of the noise of measured positions where 0."""
    widest: float = 0.25
    """Largest deviation of a parameter, as a share of its range."""
    seed: int = 0


def dropo(found: Fit, *, seed: int = 0) -> GaussianBelief:
    """The distribution to train on, rather than a posterior, from the windows of a fit."""
    options, windows = DropoOptions(seed=seed), found.windows
    index = np.unique(np.linspace(0, len(windows) - 1, options.windows).round().astype(int))
    rows = {name: getattr(windows, name)[:, : options.steps] for name in ("action", "target", "inside")}
    windows = replace(windows, **rows).subset(index)
    return _most_likely(replace(found.problem.shooter, windows=windows, worlds=0), options)


def dropo_from_episodes(
    sim: Simulator, episodes: Sequence[Episode], params: Sequence[Param], options: DropoOptions | None = None
) -> GaussianBelief:
    """The independent normal distribution of parameters under which recordings are most likely (DROPO).

    From each recorded state the simulator runs a few steps under settings sampled from a normal distribution with mean
    mu and deviations sigma in unit coordinates. The measured positions must be likely under the normal distribution of
    the predicted ones, sum over windows of log N(measured | mean, covariance + eps), so the spread of the parameters
    grows to what they must explain, and no further.
    """
    options = options or DropoOptions()
    windows = cut_windows(sim, episodes, span=options.steps, stride=options.steps, limit=options.windows)
    return _most_likely(Shooter(sim, windows, tuple(params)), options)


def _most_likely(shooter: Shooter, options: DropoOptions) -> GaussianBelief:
    from cmaes import CMA

    size = len(shooter.params)
    rng = np.random.default_rng((options.seed, 0xD207))
    # The same standard normal samples for every candidate, so that candidates differ by their numbers alone.
    noise = rng.standard_normal((options.draws, size))
    noise = (noise - noise.mean(axis=0)) / noise.std(axis=0)
    search = CMA(
        mean=np.full(2 * size, 0.5),
        sigma=0.25,
        bounds=np.tile([0.0, 1.0], (2 * size, 1)),
        seed=int(rng.integers(2**31)),
        population_size=options.population,
    )
    best, top = np.full(2 * size, 0.5), np.inf
    for _ in range(options.generations):
        points = np.array([search.ask() for _ in range(options.population)])
        costs = _negative_log_likelihood(shooter, points, noise, options)
        search.tell(list(zip(points, costs.tolist(), strict=True)))
        at = int(np.argmin(costs))
        best, top = (points[at], float(costs[at])) if costs[at] < top else (best, top)
    return GaussianBelief(tuple(shooter.params), best[:size], np.diag(_sigma(best[size:], options) ** 2))


def _negative_log_likelihood(shooter: Shooter, points: Array, noise: Array, options: DropoOptions) -> Array:
    """Negative log likelihood of each candidate (mu, sigma) [candidates]."""
    size, windows = noise.shape[1], shooter.windows
    sampled = points[:, None, :size] + noise * _sigma(points[:, None, size:], options)
    residual = shooter(np.clip(sampled, 0.0, 1.0).reshape(-1, size))[..., windows.tangent.measured]
    last = residual[:, :, -1].reshape(len(points), len(noise), len(windows), -1)
    last = np.nan_to_num(last, nan=1e3)
    floor = options.epsilon or np.maximum(2 * windows.noise_q[windows.tangent.measured] ** 2, 1e-10)
    mean, variance = last.mean(axis=1), last.var(axis=1) + floor
    return 0.5 * (mean**2 / variance + np.log(variance)).sum(axis=(1, 2))


def _sigma(shares: Array, options: DropoOptions) -> Array:
    """Deviations by coordinates in [0, 1], over three decades."""
    return options.widest * 10 ** (3 * (shares - 1))
