"""Adaptive control of a run: the world with its limits, helped to follow the scene that describes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from instep.core.errors import BadInput
from instep.core.world import World, inner_with
from instep.physics.engines import open_world
from instep.policy.reference_model import Method
from instep.scene.folder import Scene
from instep.scene.robot_structure import without_free_bodies

if TYPE_CHECKING:
    from instep.policy import Adaptive


def with_adaptation(world: World, method: Method, scene: Scene | None) -> Adaptive[World]:
    """The world whose position servos follow its scene in MuJoCo, without the bodies that move freely.

    A simulator gets the limits of the scene's robot; the server of a robot has them.
    """
    from instep.policy import Adaptive, AdaptiveOptions
    from instep.robot import Guarded, scene_limits
    from instep.robot.driver import SENT

    scene = scene or getattr(inner_with(world, "scene"), "scene", None)
    if scene is None:
        raise BadInput("--adapt needs the scene of the robot as its reference model; give --scene SCENE.")
    limited: World = world if SENT in world.spec.observation else Guarded(world, scene_limits(scene))
    reference = open_world(without_free_bodies(scene) or scene, threads=1)
    return Adaptive[World].around(limited, reference, AdaptiveOptions(method=method))
