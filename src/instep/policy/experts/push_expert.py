"""A scripted policy that pushes an object across a table towards a point.

A scripted expert that pushes a flat block onto its outline, turning it on the way.

The expert of PushT for an arm that holds the stick.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import mujoco
import numpy as np

from instep.core.world import Array, Observation
from instep.scene.folder import Scene
from instep.scene.model import site_poses
from instep.scene.tasks.push_task import PushOnto, heading, wrapped

from .push_planning import LENGTHS, Contacts, Detours, contacts, detours, grip_of
from .tip_control import Tip, rotation_between


@dataclass(frozen=True, slots=True)
class PushTo:
    """Walk around the object to the far side of it as seen from the goal, then push it there.

    Sees the pusher's x and y in `observation.state` and the pose of the object in `observation.environment_state`;
    acts by x and y of the pusher. It has no memory, so a batch of worlds is one call.
    """

    goal: tuple[float, float]
    """Where the object should go, x and y [m]."""
    reach: float = 0.17
    """How far from the object's middle the pusher walks around it [m]."""
    speed: float = 0.3
    """How fast the pusher is told to move [m/s]."""
    tolerance: float = 0.015
    """How near the goal is near enough [m]."""
    lead: float = 0.1
    """How far ahead in time the command runs [s]."""

    def reset(self, seed: int = 0) -> None:
        """Nothing to forget."""

    def act(self, observation: Observation) -> Array:
        """Where to send the pusher next [..., 2]."""
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
        """The next corner on the way round: first beside the object, then behind it, then in line."""
        hand = np.where(across < 0, -1.0, 1.0)
        beside = thing + side * hand * self.reach - ahead * self.reach
        out = thing + ahead * along + side * hand * self.reach
        clear = (np.abs(across) > 0.8 * self.reach) | (along < -0.8 * self.reach)
        in_line = along < -0.7 * self.reach
        return np.where(in_line, thing - ahead * self.reach, np.where(clear, beside, out))


TOUCH = 0.006
"""How near the stick must stand to its place to begin a push [m]."""
STEER = 0.05
"""How much further ahead the command runs per speed that is missing [s]."""


@dataclass(frozen=True, eq=False)
class PushPlan:
    """Where a stick should go next to bring a block onto its outline. It has no memory, so a batch is one call.

    Each way to touch the block is weighed by the time it takes: the walk around the block to it, the push, and what is
    left to do after the push. A walk that has begun grows cheaper with each step, so the plan keeps to it.
    """

    shape: Array
    """The block as rectangles: left, bottom, right, top [m]."""
    target: tuple[float, float, float]
    """Where it belongs: x [m], y [m], heading [rad]."""
    radius: float = 0.0125
    """Radius of the stick [m]."""
    walk: float = 0.35
    """Speed around the block [m/s]."""
    push: float = 0.12
    """Speed while pushing [m/s]."""
    lead: float = 0.1
    """How far ahead in time the command runs [s]."""
    lever: float = 0.07
    """How many metres away count as one radian turned."""
    fine: float = 0.003
    """What error is small enough to leave as it is [m]."""
    creep: float = 0.06
    """Slowest speed that is asked for while pushing [m/s]."""
    late: float = 0.04
    """How long a command takes to tell [s]."""

    @cached_property
    def ways(self) -> Contacts:
        """The ways to push."""
        return contacts(self.shape, self.radius, 1.25 * grip_of(self.shape))

    @cached_property
    def paths(self) -> Detours:
        """The paths to where the stick touches; three leans share a place."""
        return detours(self.ways.stick[::3], self.shape, self.radius + 0.012)

    def next(self, stick: Array, block: Array, velocity: Array) -> Array:
        """Where to send the stick [..., 2], given its place and velocity [..., 2] and the block's pose [..., 3]."""
        own, speed_now = _into(block, stick), _turned(-block[..., 2], velocity)
        goal = _into(block, np.array(self.target[:2])[(None,) * (block.ndim - 1)])
        turn = wrapped(self.target[2] - block[..., 2])
        best, length = self._weigh(own, goal, turn)
        error = np.sqrt((goal**2).sum(axis=-1) + (self.lever * turn) ** 2)
        walk, ahead = self.paths.look(best // 3, own)
        way, place = self.ways.way[best], self.ways.stick[best]
        touching = (np.linalg.norm(own - place, axis=-1) < TOUCH) | (walk < TOUCH)
        aim = np.where((walk < 0.03)[..., None], place, ahead) - own
        far = np.linalg.norm(aim, axis=-1)
        go = aim * np.minimum(1.0, self.walk * self.lead / np.maximum(far, 1e-9))[..., None]
        # A servo that leans against friction needs some error to move at all: ask for more while the stick is slow.
        # What is under way already is taken off.
        left = length - self.late * np.maximum((speed_now * way).sum(axis=-1), 0.0)
        wanted = np.clip(2.5 * left, self.creep, self.push)[..., None] * way
        onto = 0.5 * (place - own) + wanted * self.lead + STEER * (wanted - speed_now)
        step = np.where(touching[..., None], onto, go)
        return np.where((error < self.fine)[..., None], stick, stick + _turned(block[..., 2], step))

    def _weigh(self, own: Array, goal: Array, turn: Array) -> tuple[Array, Array]:
        """The best way to push, and how far [m]."""
        moved = self.ways.moved  # [ways, lengths, 3]
        dx, dy = goal[..., 0, None, None] - moved[..., 0], goal[..., 1, None, None] - moved[..., 1]
        after = self._left(dx, dy, wrapped(turn[..., None, None] - moved[..., 2]))
        total = after + LENGTHS / self.push
        pick = np.argmin(total, axis=-1)
        total = np.take_along_axis(total, pick[..., None], axis=-1)[..., 0]
        walk = np.repeat(self.paths.lengths(own), 3, axis=-1) / self.walk
        total = total + walk
        best = np.argmin(total, axis=-1)
        return best, LENGTHS[np.take_along_axis(pick, best[..., None], axis=-1)[..., 0]]

    def _left(self, dx: Array, dy: Array, turn: Array) -> Array:
        """About how long it takes to undo an error [s]: each push takes a share of it away."""
        error = np.sqrt(dx**2 + dy**2 + (self.lever * turn) ** 2)
        return 2.0 * np.log1p(np.maximum(error - self.fine, 0.0) / self.fine) + 3 * error / self.push


@dataclass(frozen=True, slots=True, eq=False)
class PushExpert:
    """The plan as a policy for a stick on two sliders, whose positions are the actions."""

    plan: PushPlan

    @classmethod
    def of(cls, task: PushOnto) -> PushExpert:
        """The expert of a task."""
        return cls(PushPlan(np.array(task.shape), task.target))

    def reset(self, seed: int = 0) -> None:
        """Nothing to forget."""

    def act(self, observation: Observation) -> Array:
        """Where to send the stick [..., 2]."""
        stick = np.asarray(observation["observation.state"], float)[..., :2]
        pose = np.asarray(observation["observation.environment_state"], float)
        block = np.concatenate([pose[..., :2], heading(pose[..., 3:7])[..., None]], axis=-1)
        velocity = np.asarray(observation["observation.velocity"], float)[..., :2]
        return self.plan.next(stick, block, velocity)


def _into(block: Array, point: Array) -> Array:
    """Points of the world in the frame of the block."""
    return _turned(-block[..., 2], point - block[..., :2])


def _turned(angle: Array, vector: Array) -> Array:
    """Vectors turned by angles [rad]."""
    c, s = np.cos(angle), np.sin(angle)
    return np.stack([c * vector[..., 0] - s * vector[..., 1], s * vector[..., 0] + c * vector[..., 1]], axis=-1)


def _out_of(block: Array, point: Array) -> Array:
    """Points of the block's frame in the world."""
    return block[..., :2] + _turned(block[..., 2], point)


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
