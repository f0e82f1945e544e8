"""Keep a robot and its simulated twin in step: measure the gap, say what causes it, close it.

    scene = instep.load_scene("pusht")                    # a shipped scene, a folder, an MJCF or URDF file
    sim = instep.open_world(scene)                        # a Simulator, with everything that was tuned into the scene
    episodes = instep.load_episodes("recordings")         # LeRobot, CSV, MCAP, ROS bags, ...
    gap = instep.measure_gap(sim, episodes)               # how far the simulator is from the recordings
    result = instep.identify(sim, episodes)               # which parameters close the gap, and how well they are known

Names are loaded when they are first used; importing the package loads NumPy only.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

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
from .core.rollout import Constant as Constant
from .core.rollout import Script as Script
from .core.rollout import replay as replay
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
    from .app.side_process import connect as connect
    from .app.viewer.showing import show as show
    from .data.loading import load_episodes as load_episodes
    from .diagnose.diagnosis import diagnose_gap as diagnose_gap
    from .evaluate.evaluation import evaluate_policies as evaluate_policies
    from .gap.measure import measure_gap as measure_gap
    from .gap.torque_gap import measure_torque_gap as measure_torque_gap
    from .physics.engines import open_world as open_world
    from .physics.mujoco_world import MujocoWorld as MujocoWorld
    from .physics.rapier_world import RapierWorld as RapierWorld
    from .scene.folder import Scene as Scene
    from .scene.folder import load_scene as load_scene
    from .splat.rendering import render as render
    from .tune.identification import Identification as Identification
    from .tune.identification import identify as identify
    from .tune.posterior.beliefs import infer as infer
    from .tune.torque.torque_identification import identify_torque as identify_torque
    from .twin.tracking import open_twin as open_twin
    from .twin.twin import Twin as Twin

__version__ = "0.1.0"

# Names whose modules import more than NumPy, by module.
_LAZY = {
    "app.side_process": ("connect",),
    "app.viewer.showing": ("show",),
    "data.loading": ("load_episodes",),
    "diagnose.diagnosis": ("diagnose_gap",),
    "evaluate.evaluation": ("evaluate_policies",),
    "gap.measure": ("measure_gap",),
    "gap.torque_gap": ("measure_torque_gap",),
    "physics.engines": ("open_world",),
    "physics.mujoco_world": ("MujocoWorld",),
    "physics.rapier_world": ("RapierWorld",),
    "scene.folder": (
        "Scene",
        "load_scene",
    ),
    "splat.rendering": ("render",),
    "tune.identification": (
        "Identification",
        "identify",
    ),
    "tune.posterior.beliefs": ("infer",),
    "tune.torque.torque_identification": ("identify_torque",),
    "twin.tracking": ("open_twin",),
    "twin.twin": ("Twin",),
}
_MODULES = {name: module for module, names in _LAZY.items() for name in names}

__all__ = [
    "BadInput", "Belief", "Box", "Channel", "Constant", "Diverged", "Episode", "Estimate", "Identification",
    "InstepError", "LinkLost", "MissingExtra", "MujocoWorld", "Param", "Policy", "RapierWorld", "Scene", "Script",
    "Simulator", "Spec", "State", "Twin", "UnknownName", "Unsupported", "World", "connect", "diagnose_gap",
    "evaluate_policies", "identify", "identify_torque", "infer", "load_episodes", "load_scene",
    "measure_gap", "measure_torque_gap", "open_twin", "open_world", "render", "replay", "rollout", "rollouts", "show",
    "stack", "take",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return getattr(import_module(f"instep.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'instep' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
