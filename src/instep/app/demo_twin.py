"""The demo's twin: a policy acts on the twin, the robot (simulated, in another process) follows its joints."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from instep.core.episode import Episode
from instep.core.poses import angle_between
from instep.core.rollout import rollout
from instep.core.statistics import Estimate
from instep.core.world import Array, Observation, State, array_dataclass
from instep.physics.mujoco_cameras import shrunk
from instep.policy.task_experts import expert_of
from instep.report.figures import lines_figure
from instep.report.page import ReportImage, Section, formatted
from instep.robot import RobotWorld
from instep.scene.folder import Scene
from instep.scene.tasks import task_of

SECONDS = 14.0
"""How long the policy may take at most [s]."""
FRAMES_PER_SECOND = 10
"""Images of a camera of the simulated robot per second, each of which is a frame of the video."""
AFTER = 10
"""Rows that are not scored, while the twin finds its T."""


@array_dataclass
class TwinMoment:
    """What the simulated robot's cameras saw, and where the twin was."""

    t: float
    q: Array
    image: Array
    """Of the first camera [height, width, 3]."""
    overlay: Array
    """Of all cameras side by side, with the silhouette of the twin's T."""


@array_dataclass
class TwinRun:
    """A run of a policy through the twin."""

    scene: Scene
    run: Episode
    """The twin's: `twin.measured` is what the simulated robot says of itself, its T as well."""
    moments: tuple[TwinMoment, ...]
    """A few of them, with what the cameras saw."""
    frames: tuple[Array, ...] = ()
    """What the cameras saw with the outline of the twin's T, small, `FRAMES_PER_SECOND` of them [height, width, 3]."""

    @property
    def joints(self) -> Array:
        """Distance of the simulated robot's pusher from the twin's [rows] [m]."""
        keep = [self.run.spec.q.labels.index(name) for name in self.scene.robot]
        measured = [self.run.spec.observation["twin.measured"].labels.index(name) for name in self.scene.robot]
        return np.linalg.norm(self.run.q[:, keep] - self.run["twin.measured"][:, measured], axis=1)

    @property
    def apart(self) -> Array:
        """Distance of the twin's T from the simulated robot's [rows] [m]."""
        return np.linalg.norm(self.twins[:, :2] - self.true[:, :2], axis=1)

    @property
    def angle(self) -> Array:
        """Angle between the two [rows] [rad]."""
        return angle_between(self.twins[:, 3:], self.true[:, 3:])

    @property
    def twins(self) -> Array:
        """Pose of the twin's T [rows, 7]."""
        return self._block(self.run.q, self.run.spec.q.labels)

    @property
    def true(self) -> Array:
        """Pose of the simulated robot's T [rows, 7]; the twin does not see it."""
        return self._block(self.run["twin.measured"], self.run.spec.observation["twin.measured"].labels)

    def to_goal(self, poses: Array) -> Array:
        """Distance of a T from its goal [rows] [m]."""
        return np.linalg.norm(poses[:, :2] - np.array(self.scene.model.body("goal").pos[:2]), axis=1)

    def _block(self, q: Array, labels: tuple[str, ...]) -> Array:
        at = labels.index(f"{self.scene.objects[0]}.x")
        return q[:, at : at + 7]


def run_through_twin(robot: RobotWorld, scene: Scene, seed: int, on_step: Callable[[], None]) -> TwinRun:
    """Run the expert through a twin of the simulated robot until the twin's T covers its outline, or time is up."""
    from instep.twin import open_twin

    task = task_of(scene)
    images = _CameraLog(scene, robot)
    twin, done = open_twin(scene, robot), np.zeros(0)

    def watch(state: State, observation: Observation, action: Array) -> None:
        on_step()
        images(state)

    run = rollout(
        twin,
        expert_of(task, scene),
        steps=round(SECONDS / scene.dt),
        seed=seed,
        watch=[watch],
        until=lambda state: bool(task.score(state, done, done) > 0.97),
    )
    return TwinRun(scene, run, images.picked(), tuple(images.frames))


def scores(twin: TwinRun) -> dict[str, Estimate]:
    """The twin's numbers for result.json."""
    from instep.twin import block_median

    end = twin.to_goal(twin.true)[-1:]
    turn = angle_between(twin.true[-1:, 3:], np.array(twin.scene.model.body("goal").quat)[None])
    return {
        "twin: the robot's T from its goal, at the end": _one(float(end[0]), "m"),
        "twin: the robot's T from its heading, at the end": _one(float(turn[0]), "rad"),
        "twin: distance of the two Ts": block_median(twin.apart[AFTER:], "m"),
        "twin: angle between the two Ts": block_median(twin.angle[AFTER:], "rad"),
        "twin: distance of the two pushers": block_median(twin.joints[AFTER:], "m"),
        "twin: time until the T was there": _one(float(twin.run.t[-1] - twin.run.t[0]), "s"),
    }


def section(twin: TwinRun) -> Section:
    """The twin's part of the report."""
    run, found = twin.run, scores(twin)
    goal = {
        "the robot's T": (run.t, 1e3 * twin.to_goal(twin.true)),
        "the twin's T": (run.t, 1e3 * twin.to_goal(twin.twins)),
    }
    errors = {
        "T: twin against robot": (run.t[AFTER:], 1e3 * twin.apart[AFTER:]),
        "pusher: robot against twin": (run.t[AFTER:], 1e3 * twin.joints[AFTER:]),
    }
    end = 1e3 * float(twin.to_goal(twin.true)[-1])
    lead = (
        "The policy observes and commands the twin only. The robot follows the twin's joints, and three cameras of the "
        "robot correct the pose of the twin's T. At the end the robot's T is "
        f"{end:.1f} mm from its goal; on the way the two Ts were "
        f"{formatted(found['twin: distance of the two Ts'])} apart, "
        f"the two pushers {formatted(found['twin: distance of the two pushers'])}."
    )
    shown = [
        ReportImage.of(shrunk(m.overlay), f"{m.t:.1f} s: the robot's cameras, with the outline of the twin's T")
        for m in twin.moments
    ]
    return Section(
        "5. Act through the twin",
        lead,
        [
            lines_figure(goal, title="Distance of the T to its goal", x="time [s]", y="distance [mm]"),
            lines_figure(errors, title="Distance between twin and robot", x="time [s]", y="distance [mm]"),
            *([image] for image in shown),
        ],
    )


class _CameraLog:
    """Keeps what the cameras saw a second apart, and small frames of all of it."""

    def __init__(self, scene: Scene, robot: RobotWorld):
        from instep.twin import outline_of

        self._scene, self._robot, self._every = scene, robot, max(1, round(1 / (FRAMES_PER_SECOND * scene.dt)))
        self.frames: list[Array] = []
        self._shape = outline_of(scene.model, scene.objects[0])
        self._at = scene.spec.q.labels.index(f"{scene.objects[0]}.x")
        self._states: list[State] = []
        self._kept: list[TwinMoment] = []

    def __call__(self, state: State) -> None:
        self._states.append(State(state.t, state.q, state.v))
        if (len(self._states) - 1) % self._every == 0:
            moment = self._moment(state)
            if len(self.frames) % FRAMES_PER_SECOND == 0:
                self._kept.append(moment)
            self.frames.append(shrunk(moment.overlay))

    def picked(self) -> tuple[TwinMoment, ...]:
        """The first, the middle and the last."""
        return tuple(self._kept[i] for i in sorted({0, len(self._kept) // 2, len(self._kept) - 1}))

    def _moment(self, state: State) -> TwinMoment:
        from instep.twin import draw_outline, transform_at
        from instep.twin.camera_rig import IMAGES

        seen = self._robot.observe(state.hidden["twin"].real)
        times = np.array([s.t for s in self._states[-30:]])
        poses = np.stack([s.q[self._at : self._at + 7] for s in self._states[-30:]])
        images: list[Array] = []
        for name, camera in self._scene.cameras.items():
            T = transform_at(times, poses, float(seen.get(f"{IMAGES}{name}.stamp", state.t)))
            images.append(draw_outline(seen[IMAGES + name], camera, self._shape, T))
        first = seen[IMAGES + next(iter(self._scene.cameras))]
        return TwinMoment(state.t, state.q, first, np.concatenate(images, axis=1))


def _one(value: float, unit: str) -> Estimate:
    return Estimate(value, value, value, 1, unit)
