"""Policies: action chunks, learned flow policies, remote policies (openpi, GR00T), LeRobot, scripted experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from instep.core.imports import lazy_names

if TYPE_CHECKING:
    from .adaptive_control import Adaptive, AdaptiveOptions
    from .chunking import AsyncChunked, Chunked, Ensembled, Latency
    from .flow_policy import load_policy
    from .groot import GrootServer, groot_policy
    from .image_adaptation import adaptation_sheet, align_features, feature_distance, fit_adapter
    from .openpi import PolicyServer, openpi_policy
    from .policy_specs import FunctionPolicy, as_policy, policy_from_spec
    from .task_experts import expert_of
    from .training import TrainOptions, adapt_policy, fine_tune, train

__all__ = [
    "Adaptive", "AdaptiveOptions", "AsyncChunked", "Chunked", "Ensembled", "FunctionPolicy",
    "GrootServer", "Latency", "PolicyServer", "TrainOptions", "adapt_policy", "adaptation_sheet", "align_features",
    "as_policy", "expert_of", "feature_distance", "fine_tune", "fit_adapter", "groot_policy", "load_policy",
    "openpi_policy", "policy_from_spec", "train",
]  # fmt: skip

__getattr__ = lazy_names(
    __name__,
    {
        "adaptive_control": "Adaptive AdaptiveOptions",
        "chunking": "AsyncChunked Chunked Ensembled Latency",
        "flow_policy": "load_policy",
        "groot": "GrootServer groot_policy",
        "image_adaptation": "adaptation_sheet align_features feature_distance fit_adapter",
        "openpi": "PolicyServer openpi_policy",
        "policy_specs": "FunctionPolicy as_policy policy_from_spec",
        "task_experts": "expert_of",
        "training": "TrainOptions adapt_policy fine_tune train",
    },
)
