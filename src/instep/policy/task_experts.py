"""The scripted expert of each task: reaching, tracking, driving, pushing, handing over."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from instep.core.errors import UnknownName
from instep.core.imports import extension
from instep.core.world import Array, Observation, Policy, Stateless, array_dataclass, frozen_dataclass
from instep.scene.folder import Scene
from instep.scene.model import site_poses
from instep.scene.tasks.manipulation_tasks import heading, wrapped
from instep.scene.tasks.task import Task

from .push_expert import DAMPING, ArmPushExpert, EndEffector, PushExpert, rotation_between


@array_dataclass
class ReachExpert(Stateless):
    """Move the end effector of an arm straight to a target, or ahead of a moving one."""

    effector: EndEffector
    rest: Array
    """Positions q of the scene at rest; those of the joints are replaced."""
    lead: float = 0.04
    """Time by which a moving target is led [s]."""
    max_step: float = 0.05
    """Largest step of a joint [rad]."""

    @classmethod
    def of(cls, scene: Scene) -> ReachExpert:
        """The expert of a scene whose robot is an arm."""
        return cls(EndEffector.of(scene, scene.tips[0], scene.robot), scene.start(0)[0])

    def act(self, observation: Observation) -> Array:
        """Joint position targets [..., joints]."""
        joints = np.asarray(observation["observation.state"], float)
        goal = np.asarray(observation["observation.goal"], float)
        target = goal[..., :3] if goal.shape[-1] == 3 else goal[..., :3] + self.lead * goal[..., 3:]
        place, _, jacobian = self.effector.kinematics_at(joints, self.rest)
        move, across = target - place, jacobian[..., :3, :]
        square = across @ np.swapaxes(across, -1, -2) + DAMPING**2 * np.eye(3)
        step = (np.swapaxes(across, -1, -2) @ np.linalg.solve(square, move[..., None]))[..., 0]
        longest = np.abs(step).max(axis=-1, keepdims=True)
        step = step * np.minimum(1.0, self.max_step / np.maximum(longest, 1e-9))
        return np.clip(joints + step, self.effector.low, self.effector.high)


@frozen_dataclass
class DriveExpert(Stateless):
    """Drive a wheeled robot to the next gate: turn towards it, and slow down the more there is to turn."""

    track: float = 0.157
    """Distance between the wheels [m]."""
    radius: float = 0.03
    """Radius of the wheels [m]."""
    brake: float = 0.02
    """Largest decrease of the commanded speed below the current one [m/s]."""
    speed: float = 0.4
    """Largest speed [m/s]."""
    turn: float = 4.0
    """Yaw rate per heading error [1/s]."""

    def act(self, observation: Observation) -> Array:
        """Ground speeds of the left and the right wheel [..., 2]."""
        pose = np.asarray(observation["observation.environment_state"], float)
        gate = np.asarray(observation["observation.goal"], float)[..., :2]
        way = gate - pose[..., :2]
        off = wrapped(np.arctan2(way[..., 1], way[..., 0]) - heading(pose[..., 3:7]))
        ahead = self.speed * np.clip(np.cos(off), 0.0, 1.0) ** 3
        half = np.clip(self.turn * off, -4.0, 4.0) * self.track / 2
        target = np.stack([ahead - half, ahead + half], axis=-1)
        rolling = self.radius * np.asarray(observation["observation.velocity"], float)[..., :2]
        # Without a front wheel the robot tips over if the mean speed of its wheels falls too fast.
        mean, now = target.mean(axis=-1, keepdims=True), rolling.mean(axis=-1, keepdims=True)
        spin = np.clip(target - mean, rolling - now - 0.1, rolling - now + 0.1)
        return np.clip(np.clip(mean, now - self.brake, now + 2 * self.brake) + spin, -0.6, 0.6)


WALKER = {"walk": "instep.lab.leg_estimation:walking_expert"}
"""The expert of `lab`, which is above this package."""
EXPERTS: dict[str, Callable[[Any, Scene], Policy]] = {
    "pusht": lambda task, scene: PushExpert.of(task),
    "pusht_arm": ArmPushExpert.of,
    "handover": lambda task, scene: HandoverExpert(scene),
    "reach": lambda task, scene: ReachExpert.of(scene),
    "track": lambda task, scene: ReachExpert.of(scene),
    "course": lambda task, scene: DriveExpert(),
    "walk": lambda task, scene: extension("policies", "walk", WALKER)(scene),
}


def expert_of(task: Task, scene: Scene) -> Policy:
    """The scripted expert of a task in a scene."""
    if task.name not in EXPERTS:
        raise UnknownName("expert for the task", task.name, EXPERTS)
    return EXPERTS[task.name](task, scene)


OPEN = 0.044
"""Opening of an open gripper [m]."""
HANDOVER = np.array([0.58, 0.0, 1.12])
"""Where the cube is passed [m]."""
PLACE = np.array([0.6, -0.25])
"""Where it is placed [m]."""
DEGREE = np.pi / 180


@dataclass(slots=True)
class _Move:
    """A smooth motion of one arm between two joint positions."""

    start: Array
    end: Array
    begin: float
    seconds: float

    def at(self, t: float) -> Array:
        share = np.clip((t - self.begin) / self.seconds, 0, 1)
        return self.start + (self.end - self.start) * share**2 * (3 - 2 * share)


@dataclass(slots=True)
class _Run:
    """The state of one episode: its stages, the motion of each arm, the commanded opening of each gripper."""

    moves: list[_Move]
    grip: Array = field(default_factory=lambda: np.array([OPEN, OPEN]))
    stages: Generator[float, Array] | None = None
    until: float = 0.0


class HandoverExpert:
    """One arm picks up the cube, the other takes it and puts it down.

    Each stage is planned by inverse kinematics from the observation when it begins.
    """

    def __init__(self, scene: Scene):
        joints = [tuple(f"{side}_joint_{i}" for i in range(6)) for side in ("left", "right")]
        self._effectors = [EndEffector.of(scene, site, names) for site, names in zip(scene.tips, joints, strict=True)]
        self._scene, self._rest = scene, scene.start(0)[0]
        self._cube_at = scene.spec.q.labels.index("cube.x")
        self.reset()

    def reset(self, seed: int = 0) -> None:
        """Begin an episode."""
        self._runs: list[_Run] = []
        self._t = 0.0

    def act(self, observation: Observation) -> Array:
        """Targets of the joints, the grippers and the base [..., 16]."""
        state = np.asarray(observation["observation.state"], float)
        objects = np.asarray(observation["observation.environment_state"], float)
        flat, things = state.reshape(-1, state.shape[-1]), objects.reshape(-1, objects.shape[-1])
        if len(self._runs) != len(flat):
            starts = [[row[7 * arm : 7 * arm + 6] for arm in (0, 1)] for row in flat]
            self._runs, self._t = [_Run([_Move(q, q, 0.0, 1.0) for q in own]) for own in starts], 0.0
        out, reader = np.zeros_like(flat), self._scene.reader
        for run, row, thing, action in zip(self._runs, flat, things, out, strict=True):
            while self._t >= run.until - 1e-9:
                q = self._rest.copy()
                q[reader.robot_q], q[reader.objects_q] = row, thing
                try:
                    if run.stages is None:
                        run.stages = self._stages(run, q)
                        run.until = self._t + next(run.stages)
                    else:
                        run.until = self._t + run.stages.send(q)
                except StopIteration:
                    run.until = np.inf
            for arm, move in enumerate(run.moves):
                action[7 * arm : 7 * arm + 6], action[7 * arm + 6] = move.at(self._t), run.grip[arm]
        self._t += self._scene.dt
        return out.reshape(state.shape)

    def _stages(self, run: _Run, q: Array) -> Generator[float, Array]:
        """Begin one stage after the other: yields how long it lasts [s], and gets the positions q at its end."""
        table, height = self._rest[self._cube_at + 2], np.array([0, 0, 0.12])
        taking, putting = framed(85 * DEGREE, 30 * DEGREE, 90 * DEGREE), framed(0.0, 90 * DEGREE, 0.0)
        above = np.array([*PLACE, table + 0.15])
        frame = self._grasp(q)[1]
        q = yield self._go(run, 0, q, self._cube(q) - 0.1 * frame[:, 0], frame, 1.5)
        pitch, frame = self._grasp(q)
        q = yield self._go(run, 0, q, self._cube(q), frame, 1.0) + 0.3
        run.grip[0] = 0.0
        q = yield 0.6
        place, frame, _ = self._effectors[0].kinematics(q)
        q = yield self._go(run, 0, q, place + height, frame, 0.8)
        # The right arm comes down at 30 degrees, so the cube is tilted towards it as far as the left arm can.
        tilted = framed(-85 * DEGREE, max(pitch - 30 * DEGREE, 25 * DEGREE), 0.0)
        self._go(run, 1, q, HANDOVER - 0.14 * taking[:, 0], taking, 1.5)
        q = yield self._go(run, 0, q, HANDOVER, tilted, 1.5) + 0.2
        q = yield self._go(run, 1, q, self._cube(q) - 0.1 * taking[:, 0], taking, 0.5)
        q = yield self._go(run, 1, q, self._cube(q), taking, 0.9) + 0.3
        run.grip[1] = 0.0
        yield 0.6
        run.grip[0] = OPEN
        q = yield 0.5
        place, frame, _ = self._effectors[0].kinematics(q)
        q = yield self._go(run, 0, q, place - 0.13 * frame[:, 0], frame, 0.8)
        self._home(run, 0, 1.5)
        q = yield self._go(run, 1, q, above, putting, 1.5)
        hangs = self._effectors[1].kinematics(q)[0][2] - self._cube(q)[2]
        yield self._go(run, 1, q, np.array([*PLACE, table + 0.004 + hangs]), putting, 1.0) + 0.3
        run.grip[1] = OPEN
        q = yield 0.5
        yield self._go(run, 1, q, above, putting, 0.8)
        yield self._home(run, 1, 1.5)

    def _grasp(self, q: Array) -> tuple[float, Array]:
        """The pitch at which the left arm grasps the cube, and the frame of its gripper: the steepest that is
        feasible."""
        cube, pose = self._cube(q), q[self._cube_at : self._cube_at + 7]
        way = cube - site_poses(self._scene.model, q, ("left_base",))[0, :3]
        towards = np.arctan2(way[1], way[0])
        faces = heading(pose[3:]) + np.arange(4) * np.pi / 2
        faces = sorted(faces, key=lambda face: abs(wrapped(face - towards)))
        found: list[tuple[float, float, Array]] = []
        for pitch in (80, 65, 50, 40, 32):
            for face in faces[:2]:
                frame = framed(face, pitch * DEGREE, 0.0)
                error = sum(self._miss(q, place, frame) for place in (cube, cube - 0.1 * frame[:, 0]))
                if error < 4e-3:
                    return pitch * DEGREE, frame
                found.append((error, pitch * DEGREE, frame))
        return min(found, key=lambda one: one[0])[1:]

    def _miss(self, q: Array, place: Array, frame: Array) -> float:
        """The error of the left arm at a pose [m, and 0.1 m per rad]."""
        at, now, _ = self._effectors[0].kinematics(self._solved(0, q, place, frame))
        return float(np.linalg.norm(at - place) + 0.1 * np.linalg.norm(rotation_between(now, frame)))

    def _solved(self, arm: int, q: Array, place: Array, frame: Array) -> Array:
        effector, guess = self._effectors[arm], q.copy()
        guess[effector.joints] = self._rest[effector.joints]
        return effector.solve(guess, place, frame, steps=40)

    def _go(self, run: _Run, arm: int, q: Array, place: Array, frame: Array, seconds: float) -> float:
        end = self._solved(arm, q, place, frame)[self._effectors[arm].joints]
        run.moves[arm] = _Move(run.moves[arm].at(self._t), end, self._t, seconds)
        return seconds

    def _home(self, run: _Run, arm: int, seconds: float) -> float:
        end = self._rest[self._effectors[arm].joints]
        run.moves[arm] = _Move(run.moves[arm].at(self._t), end, self._t, seconds)
        return seconds

    def _cube(self, q: Array) -> Array:
        return q[self._cube_at : self._cube_at + 3]


def framed(turn: float, pitch: float, roll: float) -> Array:
    """The frame of a gripper that points along a heading, tilted down by a pitch; fingers close along its y axis."""
    c, s, cp, sp = np.cos(turn), np.sin(turn), np.cos(pitch), np.sin(pitch)
    x, flat = np.array([c * cp, s * cp, -sp]), np.array([-s, c, 0.0])
    up = np.cross(x, flat)
    return np.stack([x, np.cos(roll) * flat + np.sin(roll) * up, np.cos(roll) * up - np.sin(roll) * flat], axis=-1)
