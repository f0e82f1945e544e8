"""Policies: action chunks, learned flow policies, remote policies (openpi, GR00T), LeRobot, scripted experts."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .adapters import FunctionPolicy as FunctionPolicy
    from .adapters import LerobotPolicy as LerobotPolicy
    from .adapters import as_policy as as_policy
    from .adapters import lerobot_policy as lerobot_policy
    from .chunking import AsyncChunked as AsyncChunked
    from .chunking import Chunked as Chunked
    from .chunking import ChunkPolicy as ChunkPolicy
    from .chunking import Ensembled as Ensembled
    from .chunking import Latency as Latency
    from .experts.task_experts import expert_of as expert_of
    from .flow_policy import FlowPolicy as FlowPolicy
    from .flow_policy import PolicyDescription as PolicyDescription
    from .flow_policy import load_policy as load_policy
    from .flow_policy import read_policy as read_policy
    from .flow_policy import save_policy as save_policy
    from .groot import GrootClient as GrootClient
    from .groot import groot_policy as groot_policy
    from .observation_encoding import BodyFrame as BodyFrame
    from .observation_encoding import PolicyInputs as PolicyInputs
    from .openpi import OpenpiClient as OpenpiClient
    from .openpi import PolicyServer as PolicyServer
    from .openpi import openpi_policy as openpi_policy
    from .policy_map import PolicyMap as PolicyMap
    from .policy_map import RemotePolicy as RemotePolicy
    from .policy_map import default_map as default_map
    from .policy_map import read_map as read_map
    from .training import TrainOptions as TrainOptions
    from .training import TrainProgress as TrainProgress
    from .training import train as train

# Modules are imported when a name of theirs is first used: torch, websockets and ZMQ are loaded by what needs them.
_NAMES = {
    "adapters": ("FunctionPolicy", "LerobotPolicy", "as_policy", "lerobot_policy"),
    "chunking": ("AsyncChunked", "ChunkPolicy", "Chunked", "Ensembled", "Latency"),
    "experts.task_experts": ("expert_of",),
    "flow_policy": ("FlowPolicy", "PolicyDescription", "load_policy", "read_policy", "save_policy"),
    "groot": ("GrootClient", "groot_policy"),
    "observation_encoding": ("BodyFrame", "PolicyInputs"),
    "openpi": ("OpenpiClient", "PolicyServer", "openpi_policy"),
    "policy_map": ("PolicyMap", "RemotePolicy", "default_map", "read_map"),
    "training": ("TrainOptions", "TrainProgress", "train"),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = sorted(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
