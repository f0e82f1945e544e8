"""Scripted experts of pushing: an object to a point, a flat block onto its outline, by a stick on sliders or on an
arm."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import mujoco
import numpy as np

from instep.core.records import array_dataclass, frozen_dataclass
from instep.core.world import Array, Observation, Stateless
from instep.scene.folder import Scene
from instep.scene.model import site_poses
from instep.scene.tasks.push_task import PushOnto, heading, wrapped

from .end_effector import EndEffector, rotation_between
from .push_planning import LENGTHS, PushContacts, ShortestPaths, friction_radius, push_contacts, shortest_paths


@frozen_dataclass
class PushTo(Stateless):
    """Move around an object to the side away from the goal, then push it there.

    Observes the pusher's x and y in `observation.state` and the pose of the object in `observation.environment_state`;
    its actions are x and y of the pusher. It has no state, so a batch of worlds is one call.
    """

    goal: tuple[float, float]
    """Where the object should go, x and y [m]."""
    reach: float = 0.17
    """Distance from the object's centre at which the pusher moves around it [m]."""
    speed: float = 0.3
    """Commanded speed of the pusher [m/s]."""
    tolerance: float = 0.015
    """Distance from the goal that ends the push [m]."""
    lead: float = 0.1
    """Time by which the command runs ahead [s]."""

    def act(self, observation: Observation) -> Array:
        """The target of the pusher [..., 2]."""
        pusher = np.asarray(observation["observation.state"], float)[..., :2]
        thing = np.asarray(observation["observation.environment_state"], float)[..., :2]
        way = np.asarray(self.goal) - thing
        distance = np.linalg.norm(way, axis=-1, keepdims=True)
        ahead = way / np.maximum(distance, 1e-9)
        side = np.stack([-ahead[..., 1], ahead[..., 0]], axis=-1)
        offset = pusher - thing
        along = np.sum(offset * ahead, axis=-1, keepdims=True)
        across = np.sum(offset * side, axis=-1, keepdims=True)
        behind = (along < -0.3 * self.reach) & (np.abs(across) < 0.035)
        walk = self._around(thing, ahead, side, along, across)
        target = np.where(behind, thing + 0.05 * ahead, walk)
        target = np.where(distance < self.tolerance, thing - self.reach * ahead, target)
        step = target - pusher
        length = np.linalg.norm(step, axis=-1, keepdims=True)
        return pusher + step * np.minimum(1.0, self.speed * self.lead / np.maximum(length, 1e-9))

    def _around(self, thing: Array, ahead: Array, side: Array, along: Array, across: Array) -> Array:
        """The next waypoint around the object: first beside it, then behind it, then in line."""
        hand = np.where(across < 0, -1.0, 1.0)
        beside = thing + side * hand * self.reach - ahead * self.reach
        out = thing + ahead * along + side * hand * self.reach
        clear = (np.abs(across) > 0.8 * self.reach) | (along < -0.8 * self.reach)
        in_line = along < -0.7 * self.reach
        return np.where(in_line, thing - ahead * self.reach, np.where(clear, beside, out))


CONTACT_TOLERANCE_M = 0.006
"""Distance of the stick from its contact at which a push begins [m]."""
VELOCITY_GAIN_S = 0.05
"""Further lead of the command per missing speed [s]."""


@dataclass(frozen=True, eq=False)
class PushPlan:
    """The next target of a stick that pushes a block onto its outline. It has no state, so a batch is one call.

    Each contact is rated by the time it takes: the path around the block to it, the push, and what is left after the
    push. A path that was begun grows shorter with each step, so the plan keeps to it.
    """

    shape: Array
    """The block as rectangles: left, bottom, right, top [m]."""
    target: tuple[float, float, float]
    """Its goal: x [m], y [m], heading [rad]."""
    radius: float = 0.0125
    """Radius of the stick [m]."""
    walk: float = 0.35
    """Speed around the block [m/s]."""
    push: float = 0.12
    """Speed while pushing [m/s]."""
    lead: float = 0.1
    """Time by which the command runs ahead [s]."""
    lever: float = 0.07
    """Distance that counts as much as one radian [m]."""
    fine: float = 0.003
    """Error that is left as it is [m]."""
    creep: float = 0.06
    """Least commanded speed while pushing [m/s]."""
    late: float = 0.04
    """Latency of a command [s]."""

    @cached_property
    def contacts(self) -> PushContacts:
        """The contacts at which the block can be pushed."""
        return push_contacts(self.shape, self.radius, 1.25 * friction_radius(self.shape))

    @cached_property
    def paths(self) -> ShortestPaths:
        """The paths to the contacts; three directions of push share a contact."""
        return shortest_paths(self.contacts.stick[::3], self.shape, self.radius + 0.012)

    def next(self, stick: Array, block: Array, velocity: Array) -> Array:
        """The target of the stick [..., 2], given its position and velocity [..., 2] and the block's pose [..., 3]."""
        own, speed_now = _in_block(block, stick), _rotated(-block[..., 2], velocity)
        goal = _in_block(block, np.array(self.target[:2])[(None,) * (block.ndim - 1)])
        turn = wrapped(self.target[2] - block[..., 2])
        best, length = self._best_contact(own, goal, turn)
        error = np.sqrt((goal**2).sum(axis=-1) + (self.lever * turn) ** 2)
        walk, ahead = self.paths.path(best // 3, own)
        way, place = self.contacts.direction[best], self.contacts.stick[best]
        touching = (np.linalg.norm(own - place, axis=-1) < CONTACT_TOLERANCE_M) | (walk < CONTACT_TOLERANCE_M)
        aim = np.where((walk < 0.03)[..., None], place, ahead) - own
        far = np.linalg.norm(aim, axis=-1)
        go: Array = aim * np.minimum(1.0, self.walk * self.lead / np.maximum(far, 1e-9))[..., None]
        # A servo needs some error to overcome friction: the command leads further while the stick is slow. The distance
        # already under way is subtracted.
        left = length - self.late * np.maximum((speed_now * way).sum(axis=-1), 0.0)
        wanted = np.clip(2.5 * left, self.creep, self.push)[..., None] * way
        onto: Array = 0.5 * (place - own) + wanted * self.lead + VELOCITY_GAIN_S * (wanted - speed_now)
        step = np.where(touching[..., None], onto, go)
        return np.where((error < self.fine)[..., None], stick, stick + _rotated(block[..., 2], step))

    def _best_contact(self, own: Array, goal: Array, turn: Array) -> tuple[Array, Array]:
        """The best contact, and how far to push there [m]."""
        moved = self.contacts.moved  # [ways, lengths, 3]
        dx, dy = goal[..., 0, None, None] - moved[..., 0], goal[..., 1, None, None] - moved[..., 1]
        after = self._time_left(dx, dy, wrapped(turn[..., None, None] - moved[..., 2]))
        total = after + LENGTHS / self.push
        pick = np.argmin(total, axis=-1)
        total = np.take_along_axis(total, pick[..., None], axis=-1)[..., 0]
        walk = np.repeat(self.paths.lengths(own), 3, axis=-1) / self.walk
        total = total + walk
        best = np.argmin(total, axis=-1)
        return best, LENGTHS[np.take_along_axis(pick, best[..., None], axis=-1)[..., 0]]

    def _time_left(self, dx: Array, dy: Array, turn: Array) -> Array:
        """Estimated time to remove an error [s]: each push removes a share of it."""
        error = np.sqrt(dx**2 + dy**2 + (self.lever * turn) ** 2)
        return 2.0 * np.log1p(np.maximum(error - self.fine, 0.0) / self.fine) + 3 * error / self.push


@array_dataclass
class PushExpert(Stateless):
    """The push plan as a policy of a stick on two sliders, whose positions are the actions."""

    plan: PushPlan

    @classmethod
    def of(cls, task: PushOnto) -> PushExpert:
        """The expert of a task."""
        return cls(PushPlan(np.array(task.shape), task.target))

    def act(self, observation: Observation) -> Array:
        """Position targets of the stick [..., 2]."""
        stick = np.asarray(observation["observation.state"], float)[..., :2]
        pose = np.asarray(observation["observation.environment_state"], float)
        block = np.concatenate([pose[..., :2], heading(pose[..., 3:7])[..., None]], axis=-1)
        velocity = np.asarray(observation["observation.velocity"], float)[..., :2]
        return self.plan.next(stick, block, velocity)


def _in_block(block: Array, point: Array) -> Array:
    """Points of the world in the frame of the block."""
    return _rotated(-block[..., 2], point - block[..., :2])


def _rotated(angle: Array, vector: Array) -> Array:
    """Vectors rotated by angles [rad]."""
    c, s = np.cos(angle), np.sin(angle)
    return np.stack([c * vector[..., 0] - s * vector[..., 1], s * vector[..., 0] + c * vector[..., 1]], axis=-1)


@array_dataclass
class ArmPushExpert(Stateless):
    """The push plan executed by an arm that keeps the stick upright and at its height."""

    plan: PushPlan
    effector: EndEffector
    rest: Array
    """Positions q of the scene at rest; those of the joints are replaced."""
    up: Array
    """The normal of the table [3]."""
    height: float
    """Height of the stick's end over the table's origin, along the normal [m]."""
    frame: Array
    """Orientation of the stick [3, 3]."""

    @classmethod
    def of(cls, task: PushOnto, scene: Scene) -> ArmPushExpert:
        """The expert of a task in a scene whose robot is an arm with a stick."""
        rest = scene.start(0)[0]
        effector = EndEffector.of(scene, scene.tips[0], scene.robot)
        table = scene.model.geom("table")
        plane = np.zeros(9)
        mujoco.mju_quat2Mat(plane, table.quat)
        up = plane.reshape(3, 3)[:, 2]
        place = site_poses(scene.model, rest, scene.tips)[0, :3]
        _, frame, _ = effector.kinematics(rest)
        return cls(PushPlan(np.array(task.shape), task.target), effector, rest, up, float(up @ place), frame)

    def act(self, observation: Observation) -> Array:
        """Joint position targets [..., joints]."""
        joints = np.asarray(observation["observation.state"], float)
        speed = np.asarray(observation["observation.velocity"], float)
        pose = np.asarray(observation["observation.environment_state"], float)
        block = np.concatenate([pose[..., :2], heading(pose[..., 3:7])[..., None]], axis=-1)
        place, frame, jacobian = self.effector.kinematics_at(joints, self.rest)
        velocity = (jacobian[..., :2, :] @ speed[..., None])[..., 0]
        across = self.plan.next(place[..., :2], block, velocity) - place[..., :2]
        lift = self.height - place @ self.up
        move = np.concatenate([across, (lift - across @ self.up[:2])[..., None]], axis=-1)
        settle = 0.1 * (self.rest[self.effector.joints] - joints)
        step = self.effector.step(jacobian, move, rotation_between(frame, self.frame), settle=settle)
        return np.clip(joints + step, self.effector.low, self.effector.high)
