"""A simulated robot: another engine, hidden parameters, imperfect sensors and cameras behind a real robot's link.

`robot_process` starts one as a child process; `connect` connects to one, or to a real robot, as a world.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from instep.core.errors import LinkLost
from instep.core.reading import TEXT, read_entries
from instep.core.world import Simulator, Spec, World, array_dataclass, frozen_dataclass, options_dataclass
from instep.physics.engines import Engine, open_world
from instep.physics.mujoco_cameras import ImageEffects, render_cameras
from instep.robot import Driver, Late, Noisy, Quantized, Reading, WrappedDriver, connect_robot
from instep.scene import address
from instep.scene.folder import Scene

from .simulated_cameras import distorted

if TYPE_CHECKING:
    from instep.robot.link import RobotWorld

HIDDEN: dict[str, float] = {
    "joint.*.damping": 1.6,
    "joint.*.frictionloss": 1.6,
    "joint.*.armature": 1.3,
    "actuator.*.kp": 1.35,
    "actuator.*.kv": 1.35,
    "body.*.mass": 1.25,
    "geom.*.friction": 1.4,
}
"""Patterns of parameters a simulated robot hides, and the largest factor by which each is off."""


@options_dataclass
class Perturbation:
    """How a simulated robot differs from the scene it is made of."""

    engine: Engine = "rapier"
    hidden: int = 0
    """Seed of the hidden parameters; 0 leaves the scene as it is."""
    noise: float = 2e-4
    """Standard deviation of position sensors [rad or m]."""
    resolution: float = 1e-4
    """Step of position sensors [rad or m]."""
    late: int = 1
    """Control steps by which sensors are late."""
    cameras: tuple[str, ...] = ()
    """Cameras of the scene that are rendered."""
    image_every: int = 6
    """Control steps from one image to the next."""


@array_dataclass
class SimulatedRobot:
    """The perturbed world, and the truth about it."""

    world: World
    truth: dict[str, float] = field(default_factory=dict[str, float])
    """The hidden settings, by address."""


def simulate_robot(scene: Scene, perturbation: Perturbation) -> SimulatedRobot:
    """Make a simulated robot of a scene."""
    truth = hidden_settings(scene, perturbation.hidden)
    sim: Simulator = open_world(scene, perturbation.engine)
    world: World = sim.tuned(truth) if truth else sim
    if scene.robot:
        world = Noisy(Quantized(world, perturbation.resolution), perturbation.noise)
    if perturbation.late:
        world = Late(world, observation=perturbation.late)
    if perturbation.cameras:
        effects, distortion = hidden_appearance(perturbation.hidden)
        rendered = render_cameras(world, scene, perturbation.cameras, effects, perturbation.image_every)
        world = replace(rendered, cameras=tuple(distorted(camera, distortion) for camera in rendered.cameras))
    return SimulatedRobot(world, truth)


def hidden_appearance(hidden: int) -> tuple[ImageEffects, float]:
    """The light in which a simulated robot is seen, and the distortion of its lenses, which the scene does not know."""
    rng = np.random.default_rng((hidden, 3))
    tint = 1 + 0.1 * rng.uniform(-1, 1, 3)
    effects = ImageEffects(float(rng.uniform(0.8, 1.0)), (float(tint[0]), float(tint[1]), float(tint[2])), 3.0)
    return effects, float(rng.uniform(-0.06, -0.02))


def hidden_settings(scene: Scene, seed: int) -> dict[str, float]:
    """What is off in a simulated robot: each kind of parameter by a factor of its own, and a delay of commands."""
    if seed == 0:
        return {}
    rng = np.random.default_rng((seed, 1))
    settings: dict[str, float] = {}
    for pattern, most in HIDDEN.items():
        factor = most ** rng.uniform(-1, 1)
        known = [a for a in address.addresses(scene.model) if fnmatchcase(a, pattern)]
        values = address.read(scene.model, known) if known else {}
        settings |= {name: value * factor for name, value in values.items() if value > 0}
    if scene.model.nu:
        # Between one and four control steps of a 60 Hz robot.
        settings[address.DELAY] = float(rng.uniform(0.015, 0.06))
    return settings


class SensorDriver(WrappedDriver):
    """A driver whose q and v are the sensor readings, with their noise and delay, not the true state."""

    def __init__(self, inner: Driver):
        super().__init__(inner)
        spec = inner.spec
        self._q = _sources(spec, spec.q.labels, ("observation.state", "observation.environment_state"))
        self._v = _sources(spec, spec.v.labels, ("observation.velocity",))

    def read(self) -> Reading:
        """The newest reading of the sensors."""
        reading = self._inner.read()
        q, v = reading.q.copy(), reading.v.copy()
        for into, values in ((q, self._q), (v, self._v)):
            for i, (channel, j) in values.items():
                into[i] = reading.seen[channel][j]
        return Reading(reading.t, q, v, reading.seen, reading.stamps, reading.fault)


def _sources(spec: Spec, labels: tuple[str, ...], channels: tuple[str, ...]) -> dict[int, tuple[str, int]]:
    """For each coordinate a sensor shows: where it is shown."""
    found: dict[int, tuple[str, int]] = {}
    for channel in channels:
        for j, label in enumerate(spec.observation[channel].labels if channel in spec.observation else ()):
            if label in labels:
                found[labels.index(label)] = (channel, j)
    return found


@frozen_dataclass
class Child:
    """A simulated robot in its own process."""

    address: str
    token: str
    pid: int


@contextmanager
def robot_process(scene: str, options: Sequence[str] = (), *, timeout: float = 60.0) -> Generator[Child]:
    """A running simulated robot, stopped on leaving; `options` are those of `instep robot`."""
    with TemporaryDirectory(prefix="instep-") as folder:
        ready, complaints = Path(folder) / "ready.json", Path(folder) / "stderr"
        command = [sys.executable, "-m", "instep.app.cli", "robot", scene, "--ready", str(ready), *options]
        with complaints.open("wb") as errors:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)  # noqa: S603
        try:
            deadline = time.monotonic() + timeout
            while not ready.is_file():
                if child.poll() is not None or time.monotonic() > deadline:
                    said = complaints.read_text(errors="replace").strip().splitlines()
                    raise LinkLost(f"The simulated robot did not start: {said[-1] if said else 'it said nothing'}")
                time.sleep(0.02)
            known = read_entries(ready, {"address": TEXT, "token": TEXT})
            yield Child(known["address"], known["token"], child.pid)
        finally:
            child.terminate()
            try:
                child.wait(5)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


SIMULATED = "simulated:"
"""Prefix of an address that asks for a simulated robot of a scene."""
START_TIMEOUT_S = 20.0
"""How long a simulated robot may take to answer: the first camera images of a cold machine take a while."""


def connect(address: str, token: str = "", *, timeout: float = 2.0) -> AbstractContextManager[RobotWorld]:
    """A robot as a `World`, to be used with `with`.

    `address` is that of a robot's link (`ws://HOST:PORT`, see docs/formats/link.md), with its `token`; the name of a
    driver and its address (`NAME:ADDRESS`); or
    `simulated:SCENE`, which starts a simulated robot of a scene in another process and another engine, with hidden
    parameters, noise and delay, and stops it on leaving. `timeout` [s] bounds how long a reply of the link may take.
    """
    if address.startswith(SIMULATED):
        return _simulated(address.removeprefix(SIMULATED), max(timeout, START_TIMEOUT_S))
    return connect_robot(address, token, timeout=timeout)


@contextmanager
def _simulated(scene: str, timeout: float) -> Generator[RobotWorld]:
    from instep.robot.link import RobotWorld

    with (
        robot_process(scene, ["--hidden", "1", "--pace", "step"]) as child,
        RobotWorld(child.address, child.token, timeout=timeout) as robot,
    ):
        yield robot
