"""Policies: action chunks, learned flow policies, remote policies (openpi, GR00T), LeRobot, scripted experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from instep.core.imports import lazy_names

if TYPE_CHECKING:
    from .adaptive_control import Adaptive, AdaptiveOptions
    from .chunking import AsyncChunked, Chunked, ChunkPolicy, Ensembled, Latency
    from .flow_policy import (
        BodyFrame,
        FlowPolicy,
        PolicyDescription,
        PolicyInputs,
        load_policy,
        read_policy,
        save_policy,
    )
    from .groot import GrootClient, GrootServer, default_groot_map, groot_policy
    from .image_adaptation import (
        AdaptedPolicy,
        ImageAdapter,
        adaptation_sheet,
        align_features,
        feature_distance,
        fit_adapter,
    )
    from .model_files import onnx_policy, stable_baselines_policy, torchscript_policy
    from .openpi import OpenpiClient, PolicyServer, openpi_policy
    from .policy_adaptation import adapt_policy, fine_tune
    from .policy_map import MappedPolicy, PolicyMap, checked_map, default_map, read_map
    from .policy_specs import (
        FunctionPolicy,
        LerobotPolicy,
        as_policy,
        is_lerobot_checkpoint,
        lerobot_policy,
        policy_from_spec,
    )
    from .task_experts import expert_of
    from .training import TrainOptions, TrainProgress, train

__all__ = [
    "AdaptedPolicy", "Adaptive", "AdaptiveOptions", "AsyncChunked", "BodyFrame", "ChunkPolicy", "Chunked", "Ensembled",
    "FlowPolicy", "FunctionPolicy", "GrootClient", "GrootServer", "ImageAdapter", "Latency", "LerobotPolicy",
    "MappedPolicy", "OpenpiClient", "PolicyDescription", "PolicyInputs", "PolicyMap", "PolicyServer", "TrainOptions",
    "TrainProgress", "adapt_policy", "adaptation_sheet", "align_features", "as_policy", "checked_map",
    "default_groot_map", "default_map", "expert_of", "feature_distance", "fine_tune", "fit_adapter", "groot_policy",
    "is_lerobot_checkpoint", "lerobot_policy", "load_policy", "onnx_policy", "openpi_policy", "policy_from_spec",
    "read_map", "read_policy", "save_policy", "stable_baselines_policy", "torchscript_policy", "train",
]  # fmt: skip

__getattr__ = lazy_names(
    __name__,
    {
        "adaptive_control": "Adaptive AdaptiveOptions",
        "chunking": "AsyncChunked ChunkPolicy Chunked Ensembled Latency",
        "flow_policy": "BodyFrame FlowPolicy PolicyDescription PolicyInputs load_policy read_policy save_policy",
        "groot": "GrootClient GrootServer default_groot_map groot_policy",
        "image_adaptation": "AdaptedPolicy ImageAdapter adaptation_sheet align_features feature_distance fit_adapter",
        "model_files": "onnx_policy stable_baselines_policy torchscript_policy",
        "openpi": "OpenpiClient PolicyServer openpi_policy",
        "policy_adaptation": "adapt_policy fine_tune",
        "policy_map": "MappedPolicy PolicyMap checked_map default_map read_map",
        "policy_specs": "FunctionPolicy LerobotPolicy as_policy is_lerobot_checkpoint lerobot_policy policy_from_spec",
        "task_experts": "expert_of",
        "training": "TrainOptions TrainProgress train",
    },
)
