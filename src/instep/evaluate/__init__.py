"""Evaluate policies in virtual worlds: success rates, comparisons, agreement with reality, gates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from instep.core.imports import lazy_names

if TYPE_CHECKING:
    from .action_check import ActionCheck, CheckOptions, PredictedActions, check_policy, compare_actions
    from .agreement import (
        RankAgreement,
        SuccessRates,
        TransferScore,
        rank_agreements,
        read_rates,
        real_success_rates,
        score_coverage,
        transfer_score,
        transfer_scores,
    )
    from .engine_parity import ParityCheck, ParityLimits, ParityWorld, check_parity
    from .episode_batch import BatchResult, EpisodeResult, Returns, episode_returns, run_batch, start_states
    from .evaluation import (
        EvalOptions,
        Evaluation,
        PolicyComparison,
        PolicySpec,
        WorldSpec,
        compare_policies,
        evaluate_policies,
    )
    from .failure_mining import CorrectiveDemos, corrective_demos, demonstrate, find_failure_states
    from .perturbed_robot import Perturbation, SimulatedRobot, simulate_robot
    from .policy_gate import GateCheck, GateRule, GateRules, Verdict, gate_policy, read_gate_rules, write_junit

__all__ = [
    "ActionCheck", "BatchResult", "CheckOptions", "CorrectiveDemos", "EpisodeResult", "EvalOptions", "Evaluation",
    "GateCheck", "GateRule", "GateRules", "ParityCheck", "ParityLimits", "ParityWorld", "Perturbation",
    "PolicyComparison", "PolicySpec", "PredictedActions", "RankAgreement", "Returns", "SimulatedRobot", "SuccessRates",
    "TransferScore", "Verdict", "WorldSpec", "check_parity", "check_policy", "compare_actions", "compare_policies",
    "corrective_demos", "demonstrate", "episode_returns", "evaluate_policies", "find_failure_states", "gate_policy",
    "rank_agreements", "read_gate_rules", "read_rates", "real_success_rates", "run_batch", "score_coverage",
    "simulate_robot", "start_states", "transfer_score", "transfer_scores", "write_junit",
]  # fmt: skip

__getattr__ = lazy_names(
    __name__,
    {
        "action_check": "ActionCheck CheckOptions PredictedActions check_policy compare_actions",
        "agreement": (
            "RankAgreement SuccessRates TransferScore rank_agreements read_rates real_success_rates "
            "score_coverage transfer_score transfer_scores"
        ),
        "engine_parity": "ParityCheck ParityLimits ParityWorld check_parity",
        "episode_batch": "BatchResult EpisodeResult Returns episode_returns run_batch start_states",
        "evaluation": "EvalOptions Evaluation PolicyComparison PolicySpec WorldSpec compare_policies evaluate_policies",
        "failure_mining": "CorrectiveDemos corrective_demos demonstrate find_failure_states",
        "perturbed_robot": "Perturbation SimulatedRobot simulate_robot",
        "policy_gate": "GateCheck GateRule GateRules Verdict gate_policy read_gate_rules write_junit",
    },
)
