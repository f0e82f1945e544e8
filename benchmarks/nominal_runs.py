"""Nominal runs of twins of simulated robots, in closed loop and faster than real time; and the shipped calibration.

Every simulated robot has friction, servos, delay, light, noise, lenses and a camera rate of its own.

    python -m benchmarks.nominal_runs FOLDER     # keep the features of each run there, then calibrate on all of them
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.core.rollout import rollout
from instep.core.world import Array, Channel, Observation, Policy, Spec, State, W, World, Wrapper, array_dataclass
from instep.evaluate.perturbed_robot import distorted
from instep.physics.engines import open_world
from instep.physics.mujoco_cameras import ImageEffects, render_cameras
from instep.policy.task_experts import expert_of
from instep.robot import Late, Noisy
from instep.scene.folder import Scene
from instep.scene.tasks import task_of
from instep.twin import Trust, TwinOptions, correction_log, open_twin
from instep.twin.camera_rig import IMAGES
from instep.twin.tracking import flat_images
from instep.twin.trust import FEATURES, SHIPPED, calibrate_features, feature_rows
from instep.twin.trust_stages import StageOptions
from sync import Restless

RUNS: tuple[tuple[str, int, float], ...] = tuple(
    (("pusht_arm", 200 + k, 8.0) if k % 4 == 3 else ("pusht", 100 + k, 12.0)) for k in range(9)
)
"""Nominal runs of the shipped calibration: scene, seed, and how long each is [s]."""


def simulated_robot(scene: Scene, seed: int) -> World:
    """A simulated robot with cameras and hidden differences of its own."""
    rng = np.random.default_rng((seed, 23))
    world = perturbed(scene, rng)
    tint = tuple(float(c) for c in 1 + 0.08 * rng.uniform(-1, 1, 3))
    effects = ImageEffects(float(rng.uniform(0.75, 1.1)), (tint[0], tint[1], tint[2]), float(rng.uniform(2, 4)))
    rendered = render_cameras(world, scene, None, effects, int(rng.choice([2, 6], p=[0.3, 0.7])))
    lens = float(rng.uniform(-0.06, 0.0))
    return replace(rendered, cameras=tuple(distorted(camera, lens) for camera in rendered.cameras))


@array_dataclass
class FlatCameras(Wrapper[W]):
    """Cameras without a renderer: the silhouette of the body in its colour on a ramp of greys, with noise.

    A tenth of the cost of rendered images. From `dies_at` on [s] no further image comes, as from a dead process.
    """

    scene: Scene
    every: int = 6
    dies_at: float = np.inf

    @property
    def spec(self) -> Spec:
        axes = ("height", "width", "channels")
        shown = {
            IMAGES + c.name: Channel(axes, "", (c.height, c.width, 3), "uint8") for c in self.scene.cameras.values()
        }
        return self.world.spec.with_observations(shown)

    def begin(self, state: State, seed: int, past: Array | None) -> State:
        return state.with_hidden(self.key, {"age": 0, "images": self._images(state)})

    def step(self, state: State, action: Array) -> State:
        memory = state.hidden[self.key]

        def after(then: State) -> dict[str, Any]:
            due = memory["age"] + 1 >= self.every and then.t < self.dies_at
            return {"age": 0, "images": self._images(then)} if due else {**memory, "age": memory["age"] + 1}

        return self.step_inside(state, action, after)

    def observe(self, state: State) -> Observation:
        return {**self.world.observe(state), **state.hidden[self.key]["images"]}

    def _images(self, state: State) -> dict[str, Array]:
        images = flat_images(self.scene, state, float(state.t))
        rng = np.random.default_rng(round(state.t / self.scene.dt))
        for name, image in images.items():
            if not name.endswith(".stamp"):
                rows = rng.integers(-4, 5, (image.shape[0], 1, 3), np.int16)
                images[name] = np.clip(image + rows, 0, 255).astype(np.uint8)
        return images


def perturbed(scene: Scene, rng: np.random.Generator) -> World:
    """The robot of a scene with friction, servos, delay and noise of its own."""
    settings = {"geom.*.friction": 0.4 * 2 ** rng.uniform(-1, 1)}
    if scene.name == "pusht":
        settings["actuator.*.kp"] = 500 * 1.35 ** rng.uniform(-1, 1)
    world: World = Noisy(open_world(scene).tuned(settings), 2e-4)
    late = int(rng.integers(0, 3))
    return Late(world, observation=late) if late else world


def busy_expert(scene: Scene, seed: int) -> Policy:
    """The expert of the task; where its actions are positions in the plane, one that is never done."""
    expert = expert_of(task_of(scene), scene)
    return Restless(expert, scene, seed) if scene.spec.action.labels == scene.spec.q.labels[:2] else expert


def nominal_run(scene: Scene, seed: int, seconds: float) -> Episode:
    """One run of the expert through a twin of a simulated robot; what is calibrated on does not act."""
    none = Trust(*(np.ones(len(FEATURES)) for _ in range(3)), np.array([np.inf]))
    twin = open_twin(scene, simulated_robot(scene, seed), TwinOptions(trust=none, stages=StageOptions(acts=False)))
    return rollout(twin, busy_expert(scene, seed), steps=round(seconds / scene.dt), seed=seed)


def supervised_run(scene: Scene, seed: int, seconds: float, dies_at: float = np.inf) -> Episode:
    """One run of the expert through a twin with the shipped trust, by cameras without a renderer."""
    twin = open_twin(scene, FlatCameras(perturbed(scene, np.random.default_rng((seed, 23))), scene, 6, dies_at))
    return rollout(twin, busy_expert(scene, seed), steps=round(seconds / scene.dt), seed=seed)


def main(folder: Path) -> None:
    """Make the runs whose features are not kept yet, and write the shipped calibration."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, seed, seconds in RUNS:
        path = folder / f"{name}_{seed}.npy"
        if not path.is_file():
            np.save(path, feature_rows(correction_log(nominal_run(Scene.load(name), seed, seconds))))
            print(path, flush=True)
    kept = [np.load(folder / f"{name}_{seed}.npy") for name, seed, _ in RUNS]
    save_trust(calibrate_features(kept), SHIPPED)


def save_trust(trust: Trust, path: Path) -> None:
    """Write a calibration as `shipped_trust` reads it."""
    columns = [[float(f"{x:.4g}") for x in values] for values in (trust.centre, trust.spread, trust.largest)]
    rows = zip(FEATURES, zip(*columns, strict=True), strict=True)
    table = {kind: dict(zip(("centre", "spread", "largest"), values, strict=True)) for kind, values in rows}
    content = {"features": table, "scores": [float(f"{x:.4g}") for x in trust.scores], "skip": trust.skip}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
