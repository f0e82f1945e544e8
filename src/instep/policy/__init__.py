"""Policies: action chunks, learned flow policies, remote policies (openpi, GR00T), LeRobot, scripted experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from instep.core.lazy import lazy_names

if TYPE_CHECKING:
    from .adapters import FunctionPolicy, LerobotPolicy, as_policy, lerobot_policy
    from .chunking import AsyncChunked, Chunked, ChunkPolicy, Ensembled, Latency
    from .experts.task_experts import expert_of
    from .flow_policy import FlowPolicy, PolicyDescription, load_policy, read_policy, save_policy
    from .groot import GrootClient, groot_policy
    from .observation_encoding import BodyFrame, PolicyInputs
    from .openpi import OpenpiClient, PolicyServer, openpi_policy
    from .policy_map import PolicyMap, RemotePolicy, default_map, read_map
    from .training import TrainOptions, TrainProgress, train

__all__ = [
    "AsyncChunked", "BodyFrame", "ChunkPolicy", "Chunked", "Ensembled", "FlowPolicy", "FunctionPolicy", "GrootClient",
    "Latency", "LerobotPolicy", "OpenpiClient", "PolicyDescription", "PolicyInputs", "PolicyMap", "PolicyServer",
    "RemotePolicy", "TrainOptions", "TrainProgress", "as_policy", "default_map", "expert_of", "groot_policy",
    "lerobot_policy", "load_policy", "openpi_policy", "read_map", "read_policy", "save_policy", "train",
]  # fmt: skip

__getattr__ = lazy_names(
    __name__,
    {
        "adapters": "FunctionPolicy LerobotPolicy as_policy lerobot_policy",
        "chunking": "AsyncChunked ChunkPolicy Chunked Ensembled Latency",
        "experts.task_experts": "expert_of",
        "flow_policy": "FlowPolicy PolicyDescription load_policy read_policy save_policy",
        "groot": "GrootClient groot_policy",
        "observation_encoding": "BodyFrame PolicyInputs",
        "openpi": "OpenpiClient PolicyServer openpi_policy",
        "policy_map": "PolicyMap RemotePolicy default_map read_map",
        "training": "TrainOptions TrainProgress train",
    },
)
