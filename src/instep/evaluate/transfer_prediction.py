"""Transfer score: the success on the robot that a virtual success rate lets expect, before the policy meets the robot.

Past policies with both rates teach a line on the logits, logit real = a + b logit virtual. How far a new policy may lie
from it is calibrated by leaving each past policy out in turn (conformal prediction), so that the 90 % interval holds
for policies that are like the past ones, without any assumption about the errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path

import numpy as np

from instep.core.errors import BadInput
from instep.core.records import array_dataclass
from instep.core.statistics import Estimate, wilson
from instep.core.world import Array

from .agreement import SIM_TRIALS, SuccessRates, read_rates
from .evaluation import Evaluation

LEVEL = 0.9
"""Share of policies whose real success lies in the interval."""
MIN_KNOWN = 10
"""Past policies needed: with fewer no 90 % interval can be calibrated."""
SETTLED_HALF_WIDTH = 0.1
"""Half the width of an interval of the real success that counts as settled."""
EQUAL = 1e-9
"""Distances from the line that differ by rounding alone [logits]."""
RIDGE = 1.0
"""Weight of the belief that real and virtual rates agree (a = 0, b = 1), in policies."""


@array_dataclass
class TransferScore:
    """The expected success on the robot."""

    success: Estimate
    """With its 90 % interval; n is the number of past policies."""
    worth: float
    """Real trials that this prediction is worth."""
    needed: int
    """Real trials after which the success is known to within ten points either way, the prediction included."""

    @property
    def words(self) -> str:
        """The score in one sentence."""
        s = self.success
        settle = "no real trials are" if self.needed == 0 else f"{self.needed} real trials would be"
        return (
            f"expected success on the robot {100 * s.value:.0f} % (90 %: {100 * s.low:.0f} to {100 * s.high:.0f}), "
            f"worth {self.worth:.0f} real trials; {settle} needed to know it to within 10 points"
        )


def transfer_score(successes: int, trials: int, known: Sequence[SuccessRates]) -> TransferScore:
    """The expected success on the robot of a policy with some successes in virtual trials.

    `known` are past policies with their rates in the same simulator and on the same robot.
    """
    if len(known) < MIN_KNOWN:
        raise BadInput(f"A transfer score is calibrated on at least {MIN_KNOWN} past policies, not on {len(known)}.")
    if not 0 <= successes <= trials or trials < 1:
        raise BadInput(f"{successes} successes do not fit into {trials} virtual trials.")
    x, y = _logits(known)
    at = float(_logit(np.array([successes / trials]), np.array([trials]))[0])
    line, reach = _line(x, y), _reach(x, y)
    middle = line[0] + line[1] * at
    real = float(np.median([r.real_trials for r in known]))
    value, low, high = (_rate(m, real) for m in (middle, middle - reach, middle + reach))
    # The trials of a binomial rate with an interval as wide.
    half, z = (high - low) / 2, 1.645
    spread = max(value * (1 - value), 0.01)
    worth = spread * (z / max(half, 1e-3)) ** 2
    needed = max(0, ceil(spread * (z / SETTLED_HALF_WIDTH) ** 2 - worth)) if half > SETTLED_HALF_WIDTH else 0
    return TransferScore(Estimate(value, low, high, len(known)), worth, needed)


def transfer_scores(evaluation: Evaluation, table: Path) -> dict[tuple[str, str], TransferScore]:
    """The transfer score of each policy in each world, from a table of past policies; those at the same task alone
    where they are enough."""
    rates = read_rates(table)
    same = [r for r in rates if r.task == evaluation.task.name]
    known = same if len(same) >= MIN_KNOWN else rates
    found: dict[tuple[str, str], TransferScore] = {}
    for pair in evaluation.results:
        rate = evaluation.success(*pair)
        found[pair] = transfer_score(round(rate.value * rate.n), rate.n, known)
    return found


def score_coverage(known: Sequence[SuccessRates]) -> Estimate:
    """Share of policies whose real rate lies in the interval that all others give."""
    inside = 0
    for i, rates in enumerate(known):
        trials = rates.sim_trials or SIM_TRIALS
        found = transfer_score(round(rates.sim * trials), trials, [*known[:i], *known[i + 1 :]]).success
        inside += found.low <= rates.real <= found.high
    return wilson(inside, len(known))


def _logits(known: Sequence[SuccessRates]) -> tuple[Array, Array]:
    virtual = np.array([r.sim_trials or SIM_TRIALS for r in known])
    x = _logit(np.array([r.sim for r in known]), virtual)
    return x, _logit(np.array([r.real for r in known]), np.array([r.real_trials for r in known]))


def _logit(rate: Array, trials: Array) -> Array:
    """Logits of rates with half a success and half a failure added."""
    share = (rate * trials + 0.5) / (trials + 1)
    return np.log(share / (1 - share))


def _rate(logit: float, trials: float) -> float:
    """The rate whose logit, with half a success and half a failure added, is given; 0 and 1 can be reached."""
    share = 1 / (1 + np.exp(-logit))
    return float(np.clip((share * (trials + 1) - 0.5) / trials, 0.0, 1.0))


def _line(x: Array, y: Array) -> Array:
    """Intercept and slope by least squares with a prior at a = 0, b = 1 [2]."""
    design = np.stack([np.ones_like(x), x], axis=-1)
    gram: Array = design.T @ design + RIDGE * np.eye(2)
    moment: Array = design.T @ y + RIDGE * np.array([0.0, 1.0])
    return np.linalg.solve(gram, moment)


def _reach(x: Array, y: Array) -> float:
    """The distance from the line, in logits, that the chosen share of policies left out keep.

    Rates of few trials are often equal, 0 and 1 above all, and policies at the same distance are inside or outside
    together. Where those at the quantile would make the share miss `LEVEL` by more than it does without them, the
    distance ends before them; without equal rates the share is never below.
    """
    every = np.arange(len(x))
    away: list[float] = []
    for i in every:
        line = _line(x[every != i], y[every != i])
        away.append(abs(float(y[i] - line[0] - line[1] * x[i])))
    distances, whole = np.sort(away), len(x) + 1
    quantile = distances[min(len(x), ceil(LEVEL * whole)) - 1]
    within, before = int((distances <= quantile + EQUAL).sum()), int((distances < quantile - EQUAL).sum())
    over, under = within / whole - LEVEL, LEVEL - before / whole
    return float(distances[before - 1] if before and over >= 1 / whole and under < over else quantile)
