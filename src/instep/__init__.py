"""Keep a robot and its simulated twin in step: measure the gap, say what causes it, close it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .core.episode import Episode as Episode
from .core.errors import BadInput as BadInput
from .core.errors import Diverged as Diverged
from .core.errors import InstepError as InstepError
from .core.errors import LinkLost as LinkLost
from .core.errors import MissingExtra as MissingExtra
from .core.errors import UnknownName as UnknownName
from .core.errors import Unsupported as Unsupported
from .core.param import Belief as Belief
from .core.param import Box as Box
from .core.param import Param as Param
from .core.replay import replay as replay
from .core.rollout import Constant as Constant
from .core.rollout import Script as Script
from .core.rollout import rollout as rollout
from .core.rollout import rollouts as rollouts
from .core.statistics import Estimate as Estimate
from .core.world import Channel as Channel
from .core.world import Policy as Policy
from .core.world import Simulator as Simulator
from .core.world import Spec as Spec
from .core.world import State as State
from .core.world import World as World
from .core.world import stack as stack
from .core.world import take as take

if TYPE_CHECKING:
    from .physics.engines import open_world as open_world
    from .physics.mujoco_world import MujocoWorld as MujocoWorld
    from .physics.rapier_world import RapierWorld as RapierWorld
    from .scene.folder import Scene as Scene

__version__ = "0.1.0"

# Names whose modules import more than NumPy are loaded when first used.
_LATER = {
    "MujocoWorld": "instep.physics.mujoco_world",
    "RapierWorld": "instep.physics.rapier_world",
    "open_world": "instep.physics.engines",
    "Scene": "instep.scene.folder",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'instep' has no attribute {name!r}")
