"""The expert of PushT for an arm that holds the stick."""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np

from instep.core.world import Array, Observation
from instep.scene.folder import Scene
from instep.scene.kinematics import site_poses
from instep.scene.tasks.push import PushOnto, heading

from .push_onto import PushPlan
from .tips import Tip, rotation_between


@dataclass(frozen=True, slots=True, eq=False)
class ArmPushExpert:
    """The plan of a stick in the plane, done by joint steps that keep the stick upright and at its height."""

    plan: PushPlan
    tip: Tip
    rest: Array
    """Positions q of the scene at rest; the joints are written over."""
    up: Array
    """The normal of the table [3]."""
    height: float
    """Height of the stick's end over the table's origin, along the normal [m]."""
    frame: Array
    """How the stick is held [3, 3]."""

    @classmethod
    def of(cls, task: PushOnto, scene: Scene) -> ArmPushExpert:
        """The expert of a task in a scene whose robot is an arm with a stick."""
        rest = scene.start(0)[0]
        tip = Tip.of(scene, scene.tips[0], scene.robot)
        table = scene.model.geom("table")
        plane = np.zeros(9)
        mujoco.mju_quat2Mat(plane, table.quat)
        up = plane.reshape(3, 3)[:, 2]
        place = site_poses(scene.model, rest, scene.tips)[0, :3]
        _, frame, _ = tip.look(rest)
        return cls(PushPlan(np.array(task.shape), task.target), tip, rest, up, float(up @ place), frame)

    def reset(self, seed: int = 0) -> None:
        """Nothing to forget."""

    def act(self, observation: Observation) -> Array:
        """Where to send the joints [..., joints]."""
        joints = np.asarray(observation["observation.state"], float)
        speed = np.asarray(observation["observation.velocity"], float)
        pose = np.asarray(observation["observation.environment_state"], float)
        block = np.concatenate([pose[..., :2], heading(pose[..., 3:7])[..., None]], axis=-1)
        q = np.broadcast_to(self.rest, (*joints.shape[:-1], self.rest.size)).copy()
        q[..., self.tip.joints] = joints
        place, frame, slope = self.tip.look(q)
        velocity = (slope[..., :2, :] @ speed[..., None])[..., 0]
        across = self.plan.next(place[..., :2], block, velocity) - place[..., :2]
        lift = self.height - place @ self.up
        move = np.concatenate([across, (lift - across @ self.up[:2])[..., None]], axis=-1)
        settle = 0.1 * (self.rest[self.tip.joints] - joints)
        step = self.tip.step(slope, move, rotation_between(frame, self.frame), settle=settle)
        return np.clip(joints + step, self.tip.low, self.tip.high)
