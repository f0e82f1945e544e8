"""Perturbed robots: a scene in another engine, with hidden parameters and imperfect sensors and cameras."""

from __future__ import annotations

from dataclasses import field, replace
from fnmatch import fnmatchcase

import numpy as np

from instep.core.world import Simulator, World, array_dataclass, options_dataclass
from instep.physics.engines import Engine, open_world
from instep.physics.mujoco_cameras import ImageEffects, render_cameras
from instep.robot import Late, Noisy, Quantized
from instep.scene import address
from instep.scene.camera import Camera
from instep.scene.folder import Scene

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


def distorted(camera: Camera, k1: float) -> Camera:
    """The camera with barrel distortion where the scene takes its lens for perfect: no two lenses are alike."""
    return replace(camera, distortion=camera.distortion or (k1,)) if k1 else camera
