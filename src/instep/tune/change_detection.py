"""Detection of sudden changes: CUSUM of standardised scores, confirmed by the likelihood of a jump.

Two-sided cumulative sums of each parameter's scores say that something may have changed, and since which window. Then
the windows since are filtered again from the estimate before them, once for each explanation (one parameter jumped, or
all of a kind), and the most likely explanation counts if it is far more likely than no change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf

import numpy as np

from instep.core.param import Param
from instep.core.records import array_dataclass, options_dataclass
from instep.core.world import Array

from .parameter_filter import DriftModel, Estimated, NoiseModel, WindowEvidence, updated

MAX_SCORE = 6.0
"""Largest score that counts: one window is an outlier, not a change."""
KEPT_WINDOWS = 15
"""Windows since which a change may be dated back."""
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
        self._windows: deque[FilteredWindow] = deque(maxlen=KEPT_WINDOWS)
        self._hypotheses = hypotheses(params)

    @property
    def suspected(self) -> bool:
        """Whether cumulative sums are half-way to an alarm."""
        return bool(self._sums.max(initial=0.0) > self.options.threshold / 2)

    @property
    def windows(self) -> Sequence[FilteredWindow]:
        """The last windows, oldest first."""
        return tuple(self._windows)

    def restart(self, keep: int = 0) -> None:
        """Set the sums to zero and keep only the last few windows."""
        self._sums[:], self._since[:] = 0.0, 0
        kept = list(self._windows)[-keep:] if keep else []
        self._windows = deque(kept, maxlen=KEPT_WINDOWS)

    def add(self, window: FilteredWindow, scores: Array) -> bool:
        """Take a window; whether the sums say that something may have changed. Scores after those of the parameters,
        which are of nuisances, do not count."""
        self._windows.append(window)
        cut = np.clip(np.nan_to_num(scores[: self._sums.shape[1]]), -MAX_SCORE, MAX_SCORE)
        self._sums = np.maximum(0.0, self._sums + np.stack([cut, -cut]) - self.options.allowance)
        self._since = np.where(self._sums > 0, self._since + 1, 0)
        return bool((self._sums > self.options.threshold).any())

    def confirmed(self, noise: NoiseModel, drift: DriftModel, jumped: Array, doubt: float = 1.0) -> Change | None:
        """The most likely change since the sums rose; None where no change is nearly as likely.

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


def hypotheses(params: Sequence[Param]) -> list[tuple[int, ...]]:
    """What may jump together: each parameter alone, and all of one kind and field (a supply feeds all motors)."""
    kinds: dict[tuple[str, str], list[int]] = {}
    for i, param in enumerate(params):
        kinds.setdefault((param.parts.kind, param.parts.field), []).append(i)
    groups = [tuple(group) for group in kinds.values() if len(group) > 1]
    return [*((i,) for i in range(len(params))), *groups]


def _filtered(
    windows: Sequence[FilteredWindow], noise: NoiseModel, drift: DriftModel, jump: Array
) -> tuple[Estimated, float]:
    """The estimate after some windows if parameters jumped before the first, and the log likelihood of their errors."""
    now, total = windows[0].before.jumped(jump), 0.0
    for window in windows:
        now, found = updated(drift.after(now, window.seconds), window.evidence, noise)
        total += found.likelihood
    return now, total if np.isfinite(total) else -inf
