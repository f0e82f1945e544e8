"""Judge a virtual evaluation by success rates: does it rank policies as reality does, and may that be concluded?"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.statistics import MIN_POLICIES, Estimate, mmrv, mmrv_interval, mmrv_null, pearson, spearman, wilson
from instep.core.trials import newcombe
from instep.core.world import Array

COLUMNS = ("task", "policy", "real", "sim", "n_real_trials")
SIM_TRIALS = 200
"""Virtual trials assumed where a table does not say how many there were."""


@dataclass(frozen=True, slots=True)
class SuccessRates:
    """Success rates of one policy at one task."""

    task: str
    policy: str
    real: float
    sim: float
    real_trials: int
    sim_trials: int | None


@dataclass(frozen=True, slots=True, eq=False)
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
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"The table {str(path)!r} cannot be read ({error}).") from None
    if not rows:
        raise BadInput(f"The table {str(path)!r} has no rows; {', '.join(COLUMNS)} were expected.")
    for column in COLUMNS:
        if column not in rows[0]:
            raise UnknownName(f"column in {path.name!r}", column, rows[0])
    return [_rates(row, number, path.name) for number, row in enumerate(rows, 2)]


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
    return RankAgreement(
        rates[0].task,
        tuple(r.policy for r in rates),
        pearson(sim, real),
        spearman(sim, real),
        mmrv_interval((sim, virtual), (real, trials), seed=seed),
        mmrv(real, sim),
        null,
        _bias(real, sim, trials, virtual),
        slope,
    )


def differences(rates: Sequence[SuccessRates]) -> Mapping[tuple[str, str], Estimate]:
    """Simulation minus reality of each policy and task, with Newcombe's interval."""
    found: dict[tuple[str, str], Estimate] = {}
    for r in rates:
        n = r.sim_trials or SIM_TRIALS
        found[r.task, r.policy] = newcombe((round(r.sim * n), n), (round(r.real * r.real_trials), r.real_trials))
    return found


def real_rate(r: SuccessRates) -> Estimate:
    """The real rate with Wilson's interval."""
    return wilson(round(r.real * r.real_trials), r.real_trials)


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
