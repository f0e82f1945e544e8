"""Tails and quantiles of the normal, Student, beta and binomial distributions, without SciPy."""

from __future__ import annotations

from functools import lru_cache
from math import erfc, exp, inf, lgamma, log, log1p, pi, sqrt


@lru_cache(maxsize=512)
def normal_quantile(share: float) -> float:
    """The value below which a share of the standard normal lies, by Halley's steps on the tail."""
    if share > 0.5:
        return -normal_quantile(1 - share)
    if share <= 0:
        return -inf
    z = -sqrt(max(0.0, -2 * log(2 * share)))  # right to a few tenths everywhere
    for _ in range(20):
        density = exp(-z * z / 2) / sqrt(2 * pi)
        step = (normal_tail(-z) - share) / density
        step /= 1 + z * step / 2
        z -= step
        if abs(step) < 1e-15 * (1 + abs(z)):
            break
    return z


def normal_tail(z: float) -> float:
    """P(Z > z) of a standard normal."""
    return erfc(z / sqrt(2)) / 2


@lru_cache(maxsize=512)
def student_quantile(share: float, degrees: int) -> float:
    """The value below which a share of Student's distribution lies."""
    if share < 0.5:
        return -student_quantile(1 - share, degrees)
    # P(|T| < t) = 1 - I_x(degrees/2, 1/2) with x = degrees / (degrees + t^2).
    x = beta_quantile(2 * (1 - share), degrees / 2, 0.5)
    return inf if x == 0 else (degrees * (1 - x) / x) ** 0.5


@lru_cache(maxsize=4096)
def beta_quantile(share: float, a: float, b: float) -> float:
    """The value below which a share of the beta distribution lies, by bisection to the last bit."""
    low, high = 0.0, 1.0
    for _ in range(200):
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        low, high = (middle, high) if beta_cdf(middle, a, b) < share else (low, middle)
    return 0.5 * (low + high)


def beta_cdf(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by Lentz's continued fraction."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x))
    if x > (a + 1) / (a + b + 2):
        return 1 - front * _fraction(1 - x, b, a) / b
    return front * _fraction(x, a, b) / a


def binomial_tail(k: int, n: int, p: float = 0.5) -> float:
    """P(X <= k) of a binomial with n trials."""
    if k < 0:
        return 0.0
    return 1.0 if k >= n else 1 - beta_cdf(p, k + 1, n - k)


def binomial_mass(k: int, n: int, p: float = 0.5) -> float:
    """P(X = k) of a binomial with n trials."""
    if not 0 <= k <= n:
        return 0.0
    if p in (0.0, 1.0):
        return float(k == n * p)
    return exp(lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1) + k * log(p) + (n - k) * log1p(-p))


def _fraction(x: float, a: float, b: float) -> float:
    tiny = 1e-300
    c, d = 1.0, 1 / max(1 - (a + b) * x / (a + 1), tiny)
    value = d
    for m in range(1, 500):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d, c = 1 / ((1 + even * d) or tiny), (1 + even / c) or tiny
        value *= d * c
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d, c = 1 / ((1 + odd * d) or tiny), (1 + odd / c) or tiny
        step = d * c
        value *= step
        if abs(step - 1) < 1e-16:
            break
    return value
