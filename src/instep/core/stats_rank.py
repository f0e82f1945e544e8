"""Agreement of two rankings: correlation, rank correlation, and rank violations with their noise floor."""

from __future__ import annotations

from math import atanh, nan, sqrt, tanh

import numpy as np

from .errors import BadInput
from .stats import Z95, Estimate
from .world import Array

INFORMATIVE = 6
"""Below so many policies a correlation says nothing."""


def pearson(x: Array, y: Array) -> Estimate:
    """Pearson's correlation with Fisher's interval tanh(atanh r +- 1.96 / sqrt(K - 3)); none below four pairs."""
    x, y = _pair(x, y)
    n = len(x)
    sx, sy = float(np.std(x)), float(np.std(y))
    if n < 2 or sx == 0 or sy == 0:
        return Estimate(nan, -1.0, 1.0, n)
    r = max(-1.0, min(1.0, float(((x - x.mean()) * (y - y.mean())).mean()) / (sx * sy)))
    if n < 4:
        return Estimate(r, -1.0, 1.0, n)
    centre = atanh(min(abs(r), 1 - 1e-15)) * (1 if r >= 0 else -1)
    half = Z95 / sqrt(n - 3)
    return Estimate(r, tanh(centre - half), tanh(centre + half), n)


def spearman(x: Array, y: Array) -> Estimate:
    """Spearman's rank correlation, ties by their mean rank, with Fisher's interval widened by Bonett and Wright."""
    x, y = _pair(x, y)
    found = pearson(ranks(x), ranks(y))
    n = found.n
    if n < 4 or not np.isfinite(found.value):
        return found
    centre = atanh(min(abs(found.value), 1 - 1e-15)) * (1 if found.value >= 0 else -1)
    half = Z95 * sqrt((1 + found.value**2 / 2) / (n - 3))
    return Estimate(found.value, tanh(centre - half), tanh(centre + half), n)


def mmrv(sim: Array, real: Array) -> float:
    """The mean maximum rank violation of a virtual evaluation. Mind the order: simulation first, reality second.

    (1 / N) sum_i max_j |R_i - R_j| [(S_i > S_j) xor (R_i > R_j)]: a wrong order weighs as much as the *real* rates
    differ, so that swapping the arguments gives another number.
    """
    s, r = _pair(sim, real)
    return float(_violations(s, r))


def mmrv_null(rates: Array, real_trials: Array, *, sim_trials: int = 200, draws: int = 2000, seed: int = 0) -> Estimate:
    """The violation that a perfect simulator would still show, by the noise of trials alone: its mean and 95th share.

    `rates` are taken as true; `low` is 0 and `high` the value that 95 % of perfect simulators stay below.
    """
    rates, trials = np.asarray(rates, float), np.asarray(real_trials, int)
    rng = np.random.default_rng((seed, 0x3317))
    p = np.clip(rates, 0, 1)
    real = rng.binomial(trials, p, (draws, len(p))) / trials
    sim = rng.binomial(sim_trials, p, (draws, len(p))) / sim_trials
    values = _violations(sim, real)
    return Estimate(float(values.mean()), 0.0, float(np.quantile(values, 0.95)), len(p))


def mmrv_interval(sim: tuple[Array, Array], real: tuple[Array, Array], *, draws: int = 1000, seed: int = 0) -> Estimate:
    """The rank violation of these very policies, from (rates, trials) of both sides, with its interval.

    Trials are noisy, and noise makes ranks look wrong: the value is biased upward. Rates are drawn from their Jeffreys
    posteriors; the interval reaches from their low end, less twice the bias that the draws show, to their high end. It
    covers 93 to 97 %, where the plain percentiles of a bootstrap cover 76 to 95 %.
    """
    rng = np.random.default_rng((seed, 0x81E2))
    drawn: list[Array] = []
    for rates, trials in (sim, real):
        p, n = np.asarray(rates, float), np.asarray(trials, float)
        drawn.append(rng.beta(p * n + 0.5, n - p * n + 0.5, (draws, len(p))))
    values = _violations(drawn[0], drawn[1])
    value = mmrv(sim[0], real[0])
    low, high = (float(x) for x in np.quantile(values, [0.025, 0.975]))
    bias = max(float(values.mean()) - value, 0.0)
    return Estimate(value, max(0.0, min(low - 2 * bias, value)), max(high, value), len(np.asarray(sim[0])))


def ranks(values: Array) -> Array:
    """Ranks from 1, ties sharing their mean."""
    values = np.asarray(values, float)
    below = (values[None, :] < values[:, None]).sum(axis=1)
    equal = (values[None, :] == values[:, None]).sum(axis=1)
    return below + 0.5 * (equal + 1)


def _violations(sim: Array, real: Array) -> Array:
    """Mean maximum rank violations [...] of rates [..., policies]."""
    wrong = (sim[..., :, None] > sim[..., None, :]) != (real[..., :, None] > real[..., None, :])
    return (np.abs(real[..., :, None] - real[..., None, :]) * wrong).max(axis=-1).mean(axis=-1)


def _pair(x: Array, y: Array) -> tuple[Array, Array]:
    x, y = np.asarray(x, float), np.asarray(y, float)
    if x.shape != y.shape or x.ndim != 1 or not len(x):
        raise BadInput(f"Two rankings need as many values each, not {x.shape} and {y.shape}.")
    return x, y
