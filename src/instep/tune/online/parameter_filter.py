"""Recursive estimation of parameters from short windows, by a Kalman filter, and detection of sudden changes, by CUSUM.

A window leaves the error e = measured - predicted, of each channel in a few bins over time. With J the derivative of
the prediction by the parameters x, in unit coordinates,

    e = J (x_true - x) + n,    n ~ N(0, C).

Between windows x_true moves by N(0, Q dt) and by a rate of its own, which changes slowly: heat and wear drift one way
for some time. C is measured: it is the covariance of the errors that the filter leaves, of each channel over its bins.
It holds the noise of sensors and start states, and the errors of the model in past windows. Errors of the model are
alike in neighbouring windows, so C is widened by the long-run variance of the scores.

Beside the parameters, x may hold nuisances, which are uncertain too and look like the parameters. A delay that is a
millisecond off looks like dry friction. Without nuisances the parameters would be biased, and C wider.

Two-sided cumulative sums of each parameter's scores detect a change and date it. The windows since are then filtered
again from the estimate before them, once for each explanation: one parameter jumped, or all of a kind. The most likely
explanation counts if it is far more likely than no change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Literal, cast

import numpy as np

from instep.core.param import Param
from instep.core.world import Array, array_dataclass, frozen_dataclass, options_dataclass

MEMORY_WINDOWS = 60
"""Windows over which the covariance of the errors is averaged."""
MAX_LAG = 8
"""Windows over which scores may be correlated."""
SHRINKAGE = 0.05
"""Share of the covariance's diagonal that is added to it: few windows leave directions without any."""
ROBUST_DOF = 4.0
"""Degrees of freedom of the t distribution by which windows with large errors weigh less."""
RATE_S = 15.0
"""Time in which a rate of drift is forgotten [s]."""
WALK_SHARE = 0.5
"""Standard deviation of the drift without a rate, in a second, as a share of that of rates."""
MODEL_WINDOWS = 4.0
"""Windows after which more of them say nothing new, as far as their errors are the model's and not of readings: what a
model lacks biases the parameters in the same way in all windows."""
READING_FACTOR = 2.0
"""Variance of errors that readings leave, over that of their mean in a bin: the start state has as much again."""
MAX_WIDENING = 50.0
"""Largest factor by which correlated scores widen the covariance."""


@options_dataclass
class DriftOptions:
    """How fast parameters may move, and how well they are known at first."""

    spread: float = 0.1
    """Standard deviation of the first values, as a share of them."""
    drift: float = 0.02
    """Standard deviation of the rate at which each parameter drifts, as a share of its value per second."""
    jump: float = 0.7
    """Standard deviation of a sudden change, as a share of the value; for a mass at least a tenth of its range."""


@frozen_dataclass
class Nuisance:
    """A parameter that is not asked for, but uncertain; it drifts slowly and never jumps."""

    param: Param
    start: float
    spread: float
    """Standard deviation of its first value, in its own unit."""
    drift: float
    """Standard deviation of its drift in a second, in its own unit."""


@array_dataclass
class WindowEvidence:
    """The evidence of one window about the parameters, linearised at a point."""

    x: Array
    """The point, in unit coordinates [params]."""
    error: Array
    """Measured less predicted [channels, bins]."""
    jacobian: Array
    """Derivative of the prediction [params, channels, bins]."""

    def at(self, x: Array) -> Array:
        """The error that another point would leave, as far as the prediction is linear."""
        return self.error - np.einsum("pcb,p->cb", self.jacobian, x - self.x)


@array_dataclass
class Estimated:
    """Parameters and nuisances in unit coordinates, rates of the parameters, and the covariance of both."""

    x: Array
    """Parameters, then nuisances [x]."""
    rates: Array
    """How fast the parameters drift [params] [1/s]."""
    covariance: Array
    """Of x, then of the rates [x + params, x + params]."""

    def jumped(self, variance: Array) -> Estimated:
        """The estimate if something changed suddenly: `variance` adds to that of x [x]."""
        gained = np.concatenate([variance, np.zeros(len(self.rates))])
        return Estimated(self.x, self.rates, self.covariance + np.diag(gained))

    @property
    def variance(self) -> Array:
        """Of each element of x [x]."""
        return np.diag(self.covariance)[: len(self.x)]


@array_dataclass
class DriftModel:
    """How an estimate becomes uncertain as time goes by."""

    walk: Array
    """Variance that each element of x gains in a second [x]."""
    rate: Array
    """Variance of the rate of each parameter [params] [1/s^2]."""

    def after(self, now: Estimated, seconds: float) -> Estimated:
        """The estimate some time later."""
        n, params = len(now.x), len(self.rate)
        kept = float(np.exp(-seconds / RATE_S))
        step, rates = RATE_S * (1 - kept), n + np.arange(params)
        F = np.eye(n + params)
        F[np.arange(params), rates], F[rates, rates] = step, kept
        gained = np.concatenate([seconds * self.walk, (1 - kept**2) * self.rate])
        x = now.x.copy()
        x[:params] = np.clip(x[:params] + step * now.rates, 0.0, 1.0)
        return Estimated(x, kept * now.rates, F @ now.covariance @ F.T + np.diag(gained))


@array_dataclass
class Innovation:
    """The innovation of one window."""

    scores: Array
    """Standardised score of each element of x [x]: normal with variance 1 if nothing has changed."""
    likelihood: float
    """Logarithm of the probability density of the error, but for a constant."""


@array_dataclass
class NoiseModel:
    """Covariance of the errors of a window, by channel."""

    covariance: Array
    """[channels, bins, bins]."""
    widening: Array
    """Factor on it, by channel."""
    inverse: Array
    """The inverse of the widened covariance [channels, bins, bins]."""
    log_determinant: float
    """Logarithm of the determinant of the widened covariance."""

    @classmethod
    def of(cls, covariance: Array, widening: Array) -> NoiseModel:
        """The noise of a covariance [channels, bins, bins] that is widened by a factor [channels]."""
        diagonal: Array = np.asarray(np.einsum("cbb->cb", covariance))
        loaded = covariance + SHRINKAGE * diagonal[:, :, None] * np.eye(len(diagonal[0]))
        wide = np.asarray(loaded * widening[:, None, None])
        return cls(covariance, widening, np.asarray(np.linalg.inv(wide)), float(np.linalg.slogdet(wide)[1].sum()))

    def squared(self, error: Array) -> Array:
        """Squared Mahalanobis distance of errors [..., channels, bins]."""
        return np.einsum("...cb,cbd,...cd->...", error, self.inverse, error)


def measured_noise(errors: Array, doubt: Array, floor: Array) -> NoiseModel:
    """The noise of errors [windows, channels, bins], at least `floor` [channels] per bin.

    `doubt` [channels, bins, bins] is the covariance of the predictions themselves, since the estimate that the errors
    are about was fitted to them.
    """
    n, bins = len(errors), errors.shape[2]
    least = np.asarray((floor**2)[:, None, None]) * np.eye(int(bins))
    second = np.asarray(np.einsum("wcb,wcd->cbd", errors, errors)) / n + doubt + least
    # The inverse of a covariance that was measured from few windows is too large by this factor, on average.
    few = n / max(n - bins - 1, 1)
    return NoiseModel.of(few * second, np.ones(len(floor)))


def updated(prior: Estimated, evidence: WindowEvidence, noise: NoiseModel) -> tuple[Estimated, Innovation]:
    """The estimate after a window, given that before it, at the time of the window."""
    n, size = len(prior.x), len(prior.covariance)
    inverse, error = noise.inverse, evidence.at(prior.x)
    weighed = np.einsum("pcb,cbd->pcd", evidence.jacobian, inverse)
    information, pull = np.zeros((size, size)), np.zeros(size)
    information[:n, :n] = np.einsum("pcb,qcb->pq", weighed, evidence.jacobian)
    pull[:n] = np.einsum("pcb,cb->p", weighed, error)
    alone = float(np.einsum("cb,cbd,cd->", error, inverse, error))
    gain = _combined(prior.covariance, information)
    squared = max(alone - float(pull @ gain @ pull), 0.0)
    left = (pull - information @ (gain @ pull))[:n]
    variance = np.diag(information - information @ gain @ information)[:n]
    scores = left / np.sqrt(np.maximum(variance, 1e-12 * max(float(np.diag(information).max(initial=0.0)), 1e-300)))
    growth = float(np.linalg.slogdet(np.eye(size) + information @ prior.covariance)[1])
    count = error.size
    weight = min(1.0, (ROBUST_DOF + count) / (ROBUST_DOF + squared))
    # A t distribution: one window far off says little about which of two explanations holds.
    fit = (ROBUST_DOF + count) / 2 * float(np.log1p(squared / ROBUST_DOF))
    found = Innovation(scores, -fit - 0.5 * (growth + noise.log_determinant))
    gain = _combined(prior.covariance, weight * information)
    step = gain @ (weight * pull)
    return Estimated(np.clip(prior.x + step[:n], 0.0, 1.0), prior.rates + step[n:], gain), found


def _combined(prior: Array, information: Array) -> Array:
    """(P^-1 + L)^-1 = P (I + L P)^-1, which needs no inverse of P."""
    found: Array = np.linalg.solve(np.eye(len(prior)) + prior @ information, prior)
    return 0.5 * (found + found.T)


def prediction_covariance(evidence: WindowEvidence, now: Estimated) -> Array:
    """Covariance of the prediction of a window for want of better parameters, by channel [channels, bins, bins]."""
    n = len(now.x)
    return np.einsum("pcb,pq,qcd->cbd", evidence.jacobian, now.covariance[:n, :n], evidence.jacobian, optimize=True)


class ParameterFilter:
    """The filter over a run: the estimate, the noise as measured so far, and the scores of past windows."""

    def __init__(
        self,
        params: Sequence[Param],
        start: Array,
        options: DriftOptions | None = None,
        nuisances: Sequence[Nuisance] = (),
    ):
        """`start` are the first values, in unit coordinates [params]. Nuisances follow the parameters in all arrays."""
        self.params, self.options, self.nuisances = tuple(params), options or DriftOptions(), tuple(nuisances)
        starts = [float(np.clip(one.param.to_unit(one.start), 0.0, 1.0)) for one in self.nuisances]
        x = np.array([*start, *starts])
        scales = (self._scales("spread", x), self._scales("drift", x)[: len(self.params)])
        self.now = Estimated(x, np.zeros(len(self.params)), np.diag(np.concatenate(scales) ** 2))
        self._noise: NoiseModel | None = None
        self._scores: deque[Array] = deque(maxlen=150)  # windows over which the correlation of scores is measured
        self._shares = np.zeros((len(x), 1))
        self._prior = self.now.variance.copy()
        self._information: Array | None = None
        self._readings: Array | None = None

    @property
    def begun(self) -> bool:
        """Whether enough windows have been seen to measure the noise."""
        return self._noise is not None

    @property
    def noise(self) -> NoiseModel:
        """The noise as measured so far."""
        if self._noise is None:
            raise RuntimeError("The noise is not measured yet; call begin with the first windows.")
        return self._noise

    @property
    def drift(self) -> DriftModel:
        """How the estimate becomes uncertain."""
        scales, params = self._scales("drift", self.now.x), len(self.params)
        walk = np.concatenate([WALK_SHARE * scales[:params], scales[params:]])
        return DriftModel(walk**2, scales[:params] ** 2)

    def jumped(self) -> Array:
        """Variance of a sudden change [x]; none of nuisances."""
        return self._scales("jump", self.now.x) ** 2

    def _scales(self, of: Literal["spread", "drift", "jump"], x: Array) -> Array:
        """Spread, drift or jump of parameters and nuisances at a point, in unit coordinates [x].

        That of a linear parameter is at least that share of a seventh of its range, since its value may be 0.
        """
        share, out = float(getattr(self.options, of)), list[float]()
        for param, one in zip(self.params, x[: len(self.params)], strict=True):
            size = abs(float(param.from_unit(one))) / (param.high - param.low)
            out.append(share / float(np.log(param.high / param.low)) if param.log else share * max(size, 1 / 7))
        out += [0.0 if of == "jump" else getattr(n, of) / (n.param.high - n.param.low) for n in self.nuisances]
        return np.array(out)

    def first_estimate(
        self, windows: Sequence[WindowEvidence], seconds: float, floor: Array
    ) -> tuple[Estimated, NoiseModel]:
        """The parameters by the first windows, `seconds` apart, and the noise of all of them."""
        first = last = self.now
        drift = self.drift
        noise, doubt = None, np.zeros((*windows[0].error.shape, windows[0].error.shape[-1]))
        for _ in range(4):
            noise = measured_noise(np.stack([one.at(last.x) for one in windows]), doubt, floor)
            last = first
            for one in windows:
                last, _ = updated(drift.after(last, seconds), one, noise)
            doubt = np.mean([prediction_covariance(one, last) for one in windows], axis=0)
        return last, cast(NoiseModel, noise)

    def begin(self, first: tuple[Estimated, NoiseModel]) -> None:
        """Go on from the first windows."""
        self.now, self._noise = first

    def step(self, evidence: WindowEvidence, seconds: float) -> Innovation:
        """Take in a window that ended some time after the last one."""
        self.now, found = updated(self.drift.after(self.now, seconds), evidence, self.noise)
        return found

    def learn_readings(self, variance: Array) -> None:
        """Take in the variance of the mean of readings in a bin of a window [channels]."""
        before = variance if self._readings is None else self._readings
        self._readings = before + (variance - before) / MEMORY_WINDOWS

    @property
    def interval_variance(self) -> Array:
        """Variance of each element of x with what the model lacks [x], which does not fall with the number of windows.

        The share of the errors that readings do not explain counts with the information of a few windows alone.
        """
        found = self.now.variance
        if self._information is None or self._readings is None:
            return found
        usual = np.einsum("cbb->c", self.noise.covariance) / self.noise.covariance.shape[1]
        model = np.clip(1 - READING_FACTOR * self._readings / np.maximum(usual, 1e-300), 0.0, 1.0)
        share = self._shares @ model / np.maximum(self._shares.sum(axis=1), 1e-12)
        few = np.diag(np.linalg.inv(MODEL_WINDOWS * self._information + np.diag(1 / self._prior)))
        return found + share * np.maximum(few - found, 0.0)

    def learn_noise(self, evidence: WindowEvidence, found: Innovation) -> None:
        """Take the errors that are left into the measured noise; not for windows in which a change is suspected."""
        left = evidence.at(self.now.x)
        # One window far off may not widen the noise by more than the usual scatter of windows does.
        limit = 4.0 * left.size / max(float(self.noise.squared(left)), 1e-12)
        outer = min(1.0, limit) * np.einsum("cb,cd->cbd", left, left) + prediction_covariance(evidence, self.now)
        kept = 1 - 1 / MEMORY_WINDOWS
        covariance = kept * self.noise.covariance + (1 - kept) * outer
        self._scores.append(np.clip(found.scores, -3.0, 3.0))
        self._note_information(evidence)
        # Long-run variance of the scores of the parameters that each channel informs about. The scores are
        # standardised by the noise that is widened already.
        before = self._shares.T @ self.widening_of_scores() / np.maximum(self._shares.sum(axis=0), 1e-12)
        target = np.clip(before * self.noise.widening, 1.0, MAX_WIDENING)
        self._noise = NoiseModel.of(covariance, self.noise.widening + (target - self.noise.widening) / MEMORY_WINDOWS)

    def _note_information(self, evidence: WindowEvidence) -> None:
        """Average information of windows about x, and the share of each channel in it [x, channels]."""
        inverse = self.noise.inverse
        informed = np.einsum("pcb,cbd,qcd->pq", evidence.jacobian, inverse, evidence.jacobian, optimize=True)
        before = informed if self._information is None else self._information
        self._information = before + (informed - before) / MEMORY_WINDOWS
        own = np.einsum("pcb,cbd,pcd->pc", evidence.jacobian, inverse, evidence.jacobian)
        own = own / np.maximum(own.sum(axis=1, keepdims=True), 1e-300)
        self._shares = 0.9 * self._shares + 0.1 * own if self._shares.shape == own.shape else own

    def widening_of_scores(self) -> Array:
        """Long-run variance of the scores over 1, by parameter, by Bartlett's window."""
        rows = np.stack(self._scores)
        n = len(rows)
        total = (rows**2).mean(axis=0)
        for lag in range(1, min(MAX_LAG, n - 1) + 1):
            total = total + 2 * (1 - lag / (MAX_LAG + 1)) * (rows[lag:] * rows[:-lag]).sum(axis=0) / n
        # Few windows say little: shrunk to 1 as if twenty more had been white.
        return (n * np.maximum(total, 0.1) + 20.0) / (n + 20.0)


MAX_SCORE = 6.0
"""Largest score that counts: one window is an outlier, not a change."""
MAX_BEGINNINGS = 5
"""Windows that are tried as the first after a change, near where the sums began to rise."""


@options_dataclass
class ChangeOptions:
    """When a change is believed."""

    allowance: float = 1.0
    """Score per window that counts as noise."""
    threshold: float = 5.0
    """Cumulative score from which a change is looked for."""
    min_log_likelihood_ratio: float = 15.0
    """Least logarithm of the likelihood ratio of a change to none."""
    min_windows: int = 3
    """Least windows since a change."""


@array_dataclass
class FilteredWindow:
    """A window as the filter took it."""

    before: Estimated
    evidence: WindowEvidence
    seconds: float
    """Time since the window before [s]."""
    t: float
    """Its end [s]."""


@array_dataclass
class Change:
    """A jump of some parameters."""

    since: int
    """How many windows ago it began."""
    which: tuple[int, ...]
    """The parameters that jumped."""
    log_likelihood_ratio: float
    estimate: Estimated
    """The estimate now, had they jumped then."""


class ChangeDetector:
    """Cumulative sums over the scores of a run, and the windows that they are about."""

    def __init__(self, params: Sequence[Param], options: ChangeOptions | None = None):
        self.options = options or ChangeOptions()
        self._sums = np.zeros((2, len(params)))
        self._since = np.zeros((2, len(params)), int)
        self._windows: deque[FilteredWindow] = deque(maxlen=15)  # windows since which a change may be dated back
        # Each parameter may jump alone, or all of one kind and field: a supply feeds all motors.
        kinds: dict[tuple[str, str], list[int]] = {}
        for i, param in enumerate(params):
            kinds.setdefault((param.parts.kind, param.parts.field), []).append(i)
        groups = [tuple(group) for group in kinds.values() if len(group) > 1]
        self._hypotheses = [*((i,) for i in range(len(params))), *groups]

    @property
    def suspected(self) -> bool:
        """Whether cumulative sums are half-way to an alarm."""
        return bool(self._sums.max(initial=0.0) > self.options.threshold / 2)

    @property
    def windows(self) -> Sequence[FilteredWindow]:
        """The last windows, oldest first."""
        return tuple(self._windows)

    def restart(self) -> None:
        """Forget the sums and the windows."""
        self._sums[:], self._since[:] = 0.0, 0
        self._windows.clear()

    def add(self, window: FilteredWindow, scores: Array) -> bool:
        """Take a window; whether the sums say that something may have changed. Scores after those of the parameters,
        which are of nuisances, do not count."""
        self._windows.append(window)
        cut = np.clip(np.nan_to_num(scores[: self._sums.shape[1]]), -MAX_SCORE, MAX_SCORE)
        self._sums = np.maximum(0.0, self._sums + np.stack([cut, -cut]) - self.options.allowance)
        self._since = np.where(self._sums > 0, self._since + 1, 0)
        return bool((self._sums > self.options.threshold).any())

    def confirmed(self, noise: NoiseModel, drift: DriftModel, jumped: Array, doubt: float = 1.0) -> Change | None:
        """The most likely change since the sums rose; None if no change is nearly as likely.

        `jumped` is the variance of a jump [x]; `doubt` is a factor on the least likelihood ratio.
        """
        least, longest = self.options.min_windows, int(self._since[self._sums > self.options.threshold].max(initial=0))
        longest = min(max(longest, least) + 1, len(self._windows))
        best: Change | None = None
        for since in range(max(least, longest - MAX_BEGINNINGS + 1), longest + 1):
            part = list(self._windows)[-since:]
            _, none = _filtered(part, noise, drift, np.zeros(len(jumped)))
            for which in self._hypotheses:
                jump = np.zeros(len(jumped))
                jump[list(which)] = jumped[list(which)]
                estimate, some = _filtered(part, noise, drift, jump)
                if best is None or some - none > best.log_likelihood_ratio:
                    best = Change(since, which, some - none, estimate)
        needed = doubt * self.options.min_log_likelihood_ratio
        return best if best is not None and best.log_likelihood_ratio >= needed else None


def _filtered(
    windows: Sequence[FilteredWindow], noise: NoiseModel, drift: DriftModel, jump: Array
) -> tuple[Estimated, float]:
    """The estimate after some windows if parameters jumped before the first, and the log likelihood of their errors."""
    now, total = windows[0].before.jumped(jump), 0.0
    for window in windows:
        now, found = updated(drift.after(now, window.seconds), window.evidence, noise)
        total += found.likelihood
    return now, total if np.isfinite(total) else -np.inf
