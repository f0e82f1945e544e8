"""Evaluate policies in virtual worlds: success rates, comparisons, agreement with reality, gates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from instep.core.lazy import lazy_names

if TYPE_CHECKING:
    from .action_check import ActionCheck, CheckOptions, PredictedActions, check_policy, compare_actions
    from .agreement import RankAgreement, SuccessRates, rank_agreements, read_rates, real_success_rates
    from .comparison import PolicyComparison, compare_policies
    from .engine_parity import ParityCheck, ParityLimits, ParityWorld, check_parity
    from .episode_batch import BatchResult, EpisodeResult, run_batch
    from .evaluation import EvalOptions, Evaluation, PolicySpec, WorldSpec, evaluate_policies
    from .failure_mining import CorrectiveDemos, corrective_demos, demonstrate, find_failure_states
    from .leg_walks import LegExperiment, LegOptions, WalkNoise, Walks, leg_experiment
    from .policy_gate import GateCheck, GateRule, GateRules, Verdict, gate_policy, read_gate_rules, write_junit
    from .returns import Returns, episode_returns, start_states
    from .transfer_prediction import TransferScore, score_coverage, transfer_score, transfer_scores

__all__ = [
    "ActionCheck", "BatchResult", "CheckOptions", "CorrectiveDemos", "EpisodeResult", "EvalOptions", "Evaluation",
    "GateCheck", "GateRule", "GateRules", "LegExperiment", "LegOptions", "ParityCheck", "ParityLimits", "ParityWorld",
    "PolicyComparison", "PolicySpec", "PredictedActions", "RankAgreement", "Returns", "SuccessRates", "TransferScore",
    "Verdict", "WalkNoise", "Walks", "WorldSpec", "check_parity", "check_policy", "compare_actions", "compare_policies",
    "corrective_demos", "demonstrate", "episode_returns", "evaluate_policies", "find_failure_states", "gate_policy",
    "leg_experiment", "rank_agreements", "read_gate_rules", "read_rates", "real_success_rates", "run_batch",
    "score_coverage", "start_states", "transfer_score", "transfer_scores", "write_junit",
]  # fmt: skip

__getattr__ = lazy_names(
    __name__,
    {
        "action_check": "ActionCheck CheckOptions PredictedActions check_policy compare_actions",
        "agreement": "RankAgreement SuccessRates rank_agreements read_rates real_success_rates",
        "comparison": "PolicyComparison compare_policies",
        "engine_parity": "ParityCheck ParityLimits ParityWorld check_parity",
        "episode_batch": "BatchResult EpisodeResult run_batch",
        "evaluation": "EvalOptions Evaluation PolicySpec WorldSpec evaluate_policies",
        "failure_mining": "CorrectiveDemos corrective_demos demonstrate find_failure_states",
        "leg_walks": "LegExperiment LegOptions Walks WalkNoise leg_experiment",
        "policy_gate": "GateCheck GateRule GateRules Verdict gate_policy read_gate_rules write_junit",
        "returns": "Returns episode_returns start_states",
        "transfer_prediction": "TransferScore score_coverage transfer_score transfer_scores",
    },
)
