"""Fixtures of the twin: a simulated robot with rendered images under other friction, light, noise and latency."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import mujoco
import numpy as np
import pytest

from instep.core.episode import Episode
from instep.core.poses import angle_between
from instep.core.rollout import Script, rollout
from instep.core.world import Array
from instep.physics.mujoco_cameras import ImageEffects, MujocoRenderer
from instep.physics.mujoco_world import MujocoWorld
from instep.robot import Recording
from instep.scene.camera import Camera
from instep.scene.folder import Scene
from instep.twin import CameraRig, FilterOptions, PoseFilter, Twin, correction_log
from instep.twin.body_outlines import Outline, outline_of
from instep.twin.camera_rig import IMAGES

STEPS = 60
TEE = """
<mujoco><worldbody><geom type="plane" size="1 1 0.1"/>
  <body name="tee"><freejoint/>
    <geom type="box" pos="0 0.04 0" size="0.1 0.025 0.02"/><geom type="box" pos="0 -0.06 0" size="0.025 0.075 0.02"/>
  </body>
  <body name="ghost"><freejoint/><geom type="sphere" size="0.1" rgba="1 1 1 0"/></body>
</worldbody></mujoco>
"""


@pytest.fixture(scope="session")
def tee() -> Outline:
    return outline_of(mujoco.MjModel.from_xml_string(TEE), "tee")


def looking_down(name: str = "top", at: tuple[float, float, float] = (0.05, 0.1, 0.6), lean: float = -0.2) -> Camera:
    """A camera above the origin that looks down, leaning."""
    c, s = np.cos(lean), np.sin(lean)
    placed = np.eye(4)
    placed[:3, :3] = np.array([[1, 0, 0], [0, c, -s], [0, s, c]]) @ np.diag([1.0, -1.0, -1.0])
    placed[:3, 3] = at
    return Camera(name, 240, 160, (200.0, 200.0), (120.0, 80.0), body_from_camera=placed)


@dataclass(frozen=True)
class RenderedRecording:
    """What a simulated robot did, and what its cameras saw."""

    scene: Scene
    episode: Episode
    """Rows with q, v, action and images that were taken one row before."""
    renderer: MujocoRenderer

    def with_images(self, change: Callable[[int, str, Array, float], tuple[Array, float]]) -> RenderedRecording:
        """The same with each image (row, camera, pixels, stamp) changed."""
        columns = {}
        for name in self.scene.cameras:
            pairs = [
                change(row, name, self.episode[IMAGES + name][row], float(self.episode[IMAGES + name + ".stamp"][row]))
                for row in range(len(self.episode))
            ]
            columns[IMAGES + name] = np.stack([p for p, _ in pairs])
            columns[IMAGES + name + ".stamp"] = np.array([s for _, s in pairs])
        return replace(self, episode=self.episode.with_columns(columns))


@dataclass(frozen=True)
class Run:
    """What the twin made of it."""

    twin: Twin
    episode: Episode
    error: Array
    """Distance of the twin's T from the simulated robot's, row by row [m]."""
    turn: Array
    """Angle between them [rad]."""
    log: dict[str, Array]


@pytest.fixture(scope="session")
def recording(opengl: str) -> RenderedRecording:
    scene = Scene.load("pusht")
    world = MujocoWorld(scene).tuned({"geom.*.friction": 0.8})
    q, v = scene.start(0)
    q[2:9] = scene.model.key("home").qpos[2:9]
    q[0], q[1] = 0.32, 0.26
    push = np.linspace([0.32, 0.26], [0.44, 0.36], STEPS)
    state, rows = world.place(q, v), []
    for row in range(STEPS):
        rows.append((state.q, state.v))
        state = world.step(state, push[row])
    q, v = np.stack([r[0] for r in rows]), np.stack([r[1] for r in rows])
    renderer = MujocoRenderer(scene)
    effects, dt = ImageEffects(0.9, (1.05, 0.95, 0.97), 3.0), scene.dt
    columns = {"timestamp": np.arange(STEPS) * dt, "q": q, "v": v, "action": push}
    for name, camera in scene.cameras.items():
        late = [renderer.render(q[max(row - 1, 0)], camera, effects, row) for row in range(STEPS)]
        columns[IMAGES + name] = np.stack(late)
        columns[IMAGES + name + ".stamp"] = np.maximum(np.arange(STEPS) - 1, 0) * dt
    return RenderedRecording(scene, Episode(world.spec, columns), renderer)


@pytest.fixture(scope="session")
def follow() -> Callable[..., Run]:
    def run(recording: RenderedRecording, options: FilterOptions | None = None, **settings: float) -> Run:
        scene = recording.scene
        sim = MujocoWorld(scene)
        sim = sim.tuned({k.replace("__", "."): value for k, value in settings.items()}) if settings else sim
        twin = Twin(sim, Recording(recording.episode), PoseFilter(scene, CameraRig.of(scene), options))
        episode = rollout(twin, Script(recording.episode.action), steps=len(recording.episode))
        true = recording.episode.q
        error = np.linalg.norm(episode.q[:, 2:5] - true[:, 2:5], axis=1)
        turn = angle_between(episode.q[:, 5:9], true[:, 5:9])
        return Run(twin, episode, error, turn, correction_log(episode))

    return run
