"""Agreement of virtual evaluations with reality: ranks, bias, real success rates, and the transfer score.

The transfer score is the expected success of a policy on the robot, given its virtual success rate. Past policies with
both rates fit a line on the logits, logit real = a + b logit virtual. The distance of a new policy from the line is
calibrated by leaving each past policy out in turn (conformal prediction). The 90 % interval then holds for similar
policies, without assumptions about the errors.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path

import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.reading import parsing, read_text
from instep.core.statistics import (
    MIN_POLICIES,
    Estimate,
    PredictionPowered,
    mmrv,
    mmrv_interval,
    mmrv_null,
    pearson,
    prediction_powered,
    spearman,
    wilson,
)
from instep.core.world import Array, array_dataclass, frozen_dataclass

from .episode_batch import EpisodeResult

Episodes = Mapping[tuple[str, str], Sequence[EpisodeResult]]
"""(policy, world) -> episodes of an evaluation."""
COLUMNS = ("task", "policy", "real", "sim", "n_real_trials")
SIM_TRIALS = 200
"""Number of virtual trials where a table does not say it."""
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


@frozen_dataclass
class SuccessRates:
    """Success rates of one policy at one task."""

    task: str
    policy: str
    real: float
    sim: float
    real_trials: int
    sim_trials: int | None


@array_dataclass
class RankAgreement:
    """How a virtual evaluation of some policies at one task agrees with reality."""

    task: str
    policies: tuple[str, ...]
    correlation: Estimate
    rank_correlation: Estimate
    violation: Estimate
    """MMRV of these policies with the interval that their trials leave."""
    swapped: float
    """MMRV with its arguments the wrong way round, for tables that were made so."""
    null: Estimate
    """MMRV of a perfect simulator, by the noise of trials alone."""
    bias: Estimate
    """Mean difference of rates, simulation minus reality."""
    slope: float
    """Slope of the real rates on the virtual ones."""

    @property
    def informative(self) -> bool:
        """Whether anything may be concluded from so many policies."""
        return len(self.policies) >= MIN_POLICIES

    @property
    def words(self) -> str:
        """What may be concluded, in one sentence."""
        k, r = len(self.policies), self.correlation
        if not self.informative:
            return f"Not informative: {k} policies; a correlation needs at least {MIN_POLICIES}."
        if r.low <= 0:
            return f"Nothing follows: over {k} policies the correlation may be {r.low:.2f} to {r.high:.2f}."
        v = self.violation.value
        within = "no more than a perfect simulator would show" if v <= self.null.high else "not by noise"
        return f"Correlated {r.value:.2f} [{r.low:.2f}, {r.high:.2f}]; rank violations {v:.3f}, {within}."


def read_rates(path: Path) -> list[SuccessRates]:
    """Rows of a table with the columns task, policy, real, sim, n_real_trials and perhaps n_sim_trials."""
    return [_rates(row, number, path.name) for number, row in enumerate(_read_table(path, COLUMNS), 2)]


def rank_agreements(rates: Sequence[SuccessRates], *, seed: int = 0) -> list[RankAgreement]:
    """The agreement at each task."""
    tasks = dict.fromkeys(r.task for r in rates)
    return [rank_agreement([r for r in rates if r.task == task], seed=seed) for task in tasks]


def rank_agreement(rates: Sequence[SuccessRates], *, seed: int = 0) -> RankAgreement:
    """The agreement over the policies of one task."""
    if len(rates) < 2:
        raise BadInput(f"Task {rates[0].task!r} has one policy; agreement needs at least two.")
    real, sim = np.array([r.real for r in rates]), np.array([r.sim for r in rates])
    trials = np.array([r.real_trials for r in rates])
    virtual = np.array([r.sim_trials or SIM_TRIALS for r in rates])
    null = mmrv_null(real, trials, sim_trials=int(np.sort(virtual)[len(virtual) // 2]), seed=seed)
    spread = float(((sim - sim.mean()) ** 2).mean())
    slope = float(((sim - sim.mean()) * (real - real.mean())).mean()) / spread if spread > 0 else float("nan")
    violation = mmrv_interval((sim, virtual), (real, trials), seed=seed)
    return RankAgreement(
        rates[0].task, tuple(r.policy for r in rates), pearson(sim, real), spearman(sim, real), violation,
        mmrv(real, sim), null, _bias(real, sim, trials, virtual), slope,
    )  # fmt: skip


def real_success_rates(episodes: Episodes, trials: Path) -> dict[tuple[str, str], PredictionPowered]:
    """Real success rates from few real and many virtual trials, for each policy and world: prediction-powered means.

    `trials` is a CSV file with the columns policy, seed and success (0 or 1): real trials from the starts of virtual
    episodes, paired by seed. Policies without four such pairs and further virtual episodes are left out.
    """
    rows = _read_table(trials, ("policy", "seed", "success"))
    try:
        real = {(row["policy"], int(row["seed"])): float(row["success"]) for row in rows}
    except (ValueError, TypeError) as error:
        raise BadInput(f"{trials.name!r} is not a table of trials: seeds and success are numbers ({error}).") from None
    found: dict[tuple[str, str], PredictionPowered] = {}
    for (policy, world), ran in episodes.items():
        valid = [row for row in ran if row.valid]
        pairs = [(real[policy, row.seed], row.success) for row in valid if (policy, row.seed) in real]
        extra = [row.success for row in valid if (policy, row.seed) not in real]
        if len(pairs) >= 4 and extra:
            y, f = np.array(pairs, float).T
            found[policy, world] = prediction_powered(y, f, np.array(extra, float))
    if not found:
        raise BadInput(f"{trials.name!r} shares no four starts with this evaluation, which also needs further starts.")
    return found


def agreement_scores(found: Sequence[RankAgreement]) -> dict[str, Estimate]:
    """Scores by task."""
    scores: dict[str, Estimate] = {}
    for r in found:
        scores |= {f"{r.task}: pearson": r.correlation, f"{r.task}: spearman": r.rank_correlation}
        scores |= {f"{r.task}: MMRV": r.violation, f"{r.task}: MMRV of a perfect simulator": r.null}
        scores |= {f"{r.task}: bias": r.bias}
    return scores


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


def transfer_scores(
    episodes: Episodes, rates: Sequence[SuccessRates], task: str
) -> dict[tuple[str, str], TransferScore]:
    """The transfer score of each policy in each world from past policies, at the same task if there are enough."""
    same = [r for r in rates if r.task == task]
    known = same if len(same) >= MIN_KNOWN else rates
    scores: dict[tuple[str, str], TransferScore] = {}
    for pair, ran in episodes.items():
        valid = [row for row in ran if row.valid]
        scores[pair] = transfer_score(sum(row.success for row in valid), len(valid), known)
    return scores


def score_coverage(known: Sequence[SuccessRates]) -> Estimate:
    """Share of policies whose real rate lies in the interval that all others give."""
    inside = 0
    for i, rates in enumerate(known):
        trials = rates.sim_trials or SIM_TRIALS
        found = transfer_score(round(rates.sim * trials), trials, [*known[:i], *known[i + 1 :]]).success
        inside += found.low <= rates.real <= found.high
    return wilson(inside, len(known))


def _read_table(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    text = read_text(path)
    with parsing(path, "CSV"):
        rows = list(csv.DictReader(io.StringIO(text, newline="")))
    if not rows:
        raise BadInput(f"The table {str(path)!r} has no rows; {', '.join(columns)} were expected.")
    if any(None in row or None in row.values() for row in rows):  # as DictReader marks rows of other lengths
        raise BadInput(f"The table {str(path)!r} has rows of different lengths; each must have every column.")
    for column in columns:
        if column not in rows[0]:
            raise UnknownName(f"column in {path.name!r}", column, rows[0])
    return rows


def _bias(real: Array, sim: Array, trials: Array, virtual: Array) -> Estimate:
    """The mean difference over these very policies: its interval is that of their trials."""
    spread = real * (1 - real) / trials + sim * (1 - sim) / virtual
    half = 1.96 * float(np.sqrt(spread.sum())) / len(real)
    value = float((sim - real).mean())
    return Estimate(value, value - half, value + half, len(real))


def _rates(row: Mapping[str, str], number: int, name: str) -> SuccessRates:
    try:
        virtual = int(row["n_sim_trials"]) if row.get("n_sim_trials") else None
        made = SuccessRates(
            row["task"], row["policy"], float(row["real"]), float(row["sim"]), int(row["n_real_trials"]), virtual
        )
    except (ValueError, TypeError) as error:
        raise BadInput(f"Line {number} of {name!r} is not a row of rates ({error}).") from None
    if not (0 <= made.real <= 1 and 0 <= made.sim <= 1) or made.real_trials < 1:
        raise BadInput(f"Line {number} of {name!r} must hold rates from 0 to 1 and at least one trial.")
    return made


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
