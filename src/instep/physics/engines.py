"""Open a scene as a Simulator: an engine, the scene's actuator models and its delta-action model.

This is the only place where a Simulator is made of a scene, so that measuring, tuning, running, evaluating and the twin
all see what was tuned into it: parameters, delay and actuator models (in `scene.toml`) and the delta-action model (in
`delta.npz`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from instep.core.errors import UnknownName, Unsupported
from instep.scene.folder import Scene, SceneSimulator

from .actuators import ActuatedWorld, actuator_models
from .delta_model import DELTA_FILE, DeltaCorrected, DeltaModel
from .mujoco_world import MujocoWorld

Engine = Literal["mujoco", "rapier", "warp"]
ENGINES: tuple[Engine, ...] = ("mujoco", "rapier", "warp")


def open_world(scene: Scene | str | Path, engine: Engine = "mujoco", *, threads: int | None = None) -> SceneSimulator:
    """A scene in an engine, with its actuator models and its delta-action model.

    `threads` step a batch (0: the fastest number, by measuring; None: the engine's default). Raises `Unsupported` for a
    part that the engine lacks.
    """
    scene = scene if isinstance(scene, Scene) else Scene.load(scene)
    world, path = without_delta(scene, engine, threads=threads), scene.root / DELTA_FILE
    return DeltaCorrected(world, DeltaModel.load(path)) if path.is_file() else world


def without_delta(
    scene: Scene | str | Path, engine: Engine = "mujoco", *, threads: int | None = None
) -> SceneSimulator:
    """The same without the delta-action model, as tuning needs it: a delta belongs to the parameters it was learnt
    with."""
    scene = scene if isinstance(scene, Scene) else Scene.load(scene)
    if engine == "mujoco":
        world = MujocoWorld(scene, threads=threads or 0)
        names = tuple(scene.actuators)
        return ActuatedWorld(world, scene.actuator_settings, names) if names else world
    if engine not in ENGINES:
        raise UnknownName("engine", engine, ENGINES)
    if any(model.has_effect for model in actuator_models(scene)):
        raise Unsupported(
            f"The engine {engine!r} has no actuator models, and scene {scene.name!r} names some under [actuators] of "
            "its scene.toml; run this scene in MuJoCo."
        )
    if engine == "rapier":
        from .rapier_world import RapierWorld

        return RapierWorld(scene, threads=1 if threads is None else threads)
    from .warp_world import WarpWorld

    return WarpWorld(scene)


def scene_and_engine(spec: str) -> tuple[str, Engine]:
    """The scene and the engine of `SCENE` (in MuJoCo) or `SCENE@ENGINE`."""
    scene, _, name = spec.partition("@")
    engines: dict[str, Engine] = {"": "mujoco", **{engine: engine for engine in ENGINES}}
    if name not in engines:
        raise UnknownName("engine", name, ENGINES)
    return scene, engines[name]
