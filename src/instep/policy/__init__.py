"""Policies: action chunks, learned flow policies, remote policies (openpi, GR00T), LeRobot, scripted experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from instep.core.imports import lazy_names

if TYPE_CHECKING:
    from .adapters import FunctionPolicy, LerobotPolicy, as_policy, is_lerobot_checkpoint, lerobot_policy
    from .adaptive_control import Adaptive, AdaptiveOptions
    from .base_estimation import BaseFilter, BaseFilterOptions, LeggedEstimate, wheel_velocity
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
    from .gait import Gait, GaitBody, GaitFile, ranges_gait, read_gait, shipped_gait, stairs_gait
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
    from .policy_adaptation import AdaptOptions, adapt_policy, fine_tune
    from .policy_map import MappedPolicy, PolicyMap, checked_map, default_map, read_map
    from .predictive import PredictiveGait, PredictiveOptions
    from .residual import (
        Residual,
        ResidualPolicy,
        Trainable,
        TrainableGait,
        TrainableResidual,
        load_residual,
        zero_residual,
    )
    from .task_experts import expert_of
    from .training import TrainOptions, TrainProgress, train
    from .weight_shift import WeightShift

__all__ = [
    "AdaptOptions", "AdaptedPolicy", "Adaptive", "AdaptiveOptions", "AsyncChunked", "BaseFilter", "BaseFilterOptions",
    "BodyFrame", "ChunkPolicy", "Chunked", "Ensembled", "FlowPolicy", "FunctionPolicy", "Gait", "GaitBody", "GaitFile",
    "GrootClient", "GrootServer", "ImageAdapter", "Latency", "LeggedEstimate", "LerobotPolicy", "MappedPolicy",
    "OpenpiClient", "PolicyDescription", "PolicyInputs", "PolicyMap", "PolicyServer", "PredictiveGait",
    "PredictiveOptions", "Residual", "ResidualPolicy", "TrainOptions", "TrainProgress", "Trainable", "TrainableGait",
    "TrainableResidual", "WeightShift", "adapt_policy", "adaptation_sheet", "align_features", "as_policy",
    "checked_map", "default_groot_map", "default_map", "expert_of", "feature_distance", "fine_tune", "fit_adapter",
    "groot_policy", "is_lerobot_checkpoint", "lerobot_policy", "load_policy", "load_residual", "onnx_policy",
    "openpi_policy", "ranges_gait", "read_gait", "read_map", "read_policy", "save_policy", "shipped_gait",
    "stable_baselines_policy", "stairs_gait", "torchscript_policy", "train", "wheel_velocity", "zero_residual",
]  # fmt: skip

__getattr__ = lazy_names(
    __name__,
    {
        "adapters": "FunctionPolicy LerobotPolicy as_policy is_lerobot_checkpoint lerobot_policy",
        "adaptive_control": "Adaptive AdaptiveOptions",
        "base_estimation": "BaseFilter BaseFilterOptions LeggedEstimate wheel_velocity",
        "chunking": "AsyncChunked ChunkPolicy Chunked Ensembled Latency",
        "flow_policy": "BodyFrame FlowPolicy PolicyDescription PolicyInputs load_policy read_policy save_policy",
        "gait": "Gait GaitBody GaitFile ranges_gait read_gait shipped_gait stairs_gait",
        "groot": "GrootClient GrootServer default_groot_map groot_policy",
        "image_adaptation": "AdaptedPolicy ImageAdapter adaptation_sheet align_features feature_distance fit_adapter",
        "model_files": "onnx_policy stable_baselines_policy torchscript_policy",
        "openpi": "OpenpiClient PolicyServer openpi_policy",
        "policy_adaptation": "AdaptOptions adapt_policy fine_tune",
        "policy_map": "MappedPolicy PolicyMap checked_map default_map read_map",
        "predictive": "PredictiveGait PredictiveOptions",
        "residual": "Residual ResidualPolicy Trainable TrainableGait TrainableResidual load_residual zero_residual",
        "task_experts": "expert_of",
        "training": "TrainOptions TrainProgress train",
        "weight_shift": "WeightShift",
    },
)
