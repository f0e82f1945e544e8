"""Evaluate policies in virtual worlds: success rates, comparisons, agreement with reality, gates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from instep.core.imports import lazy_names

if TYPE_CHECKING:
    from .action_check import check_policy
    from .agreement import rank_agreements, read_rates, transfer_score
    from .episode_batch import EpisodeResult, run_batch
    from .evaluation import EvalOptions, evaluate_policies
    from .failure_mining import corrective_demos, demonstrate
    from .perturbed_robot import Perturbation, simulate_robot
    from .policy_gate import gate_policy, read_gate_rules

__all__ = [
    "EpisodeResult", "EvalOptions", "Perturbation", "check_policy", "corrective_demos", "demonstrate",
    "evaluate_policies", "gate_policy", "rank_agreements", "read_gate_rules", "read_rates", "run_batch",
    "simulate_robot", "transfer_score",
]  # fmt: skip

__getattr__ = lazy_names(
    __name__,
    {
        "action_check": "check_policy",
        "agreement": "rank_agreements read_rates transfer_score",
        "episode_batch": "EpisodeResult run_batch",
        "evaluation": "EvalOptions evaluate_policies",
        "failure_mining": "corrective_demos demonstrate",
        "perturbed_robot": "Perturbation simulate_robot",
        "policy_gate": "gate_policy read_gate_rules",
    },
)
