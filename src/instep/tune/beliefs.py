"""Beliefs about parameters: Gaussians, samples, mixtures and products of them, inside bounds, saved as plain files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from instep.core.errors import BadInput
from instep.core.param import Belief, Box, Param
from instep.core.reading import parsing, read_json_table
from instep.core.records import frozen_dataclass
from instep.core.statistics import Estimate
from instep.core.world import Array
from instep.data.files import read_npz


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
