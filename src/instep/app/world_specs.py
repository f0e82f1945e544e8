"""Worlds, their cameras and policies by the words of the command line: sim:SCENE, robot:ADDRESS, hold, constant:0.1."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal

from instep.core.episode import Episode
from instep.core.errors import BadInput, UnknownName
from instep.core.reading import content_hash
from instep.core.world import W, World, Wrapper, array_dataclass, frozen_dataclass
from instep.evaluate.perturbed_robot import Perturbation, simulate_robot
from instep.physics.engines import ENGINES, open_world, scene_and_engine
from instep.physics.mujoco_cameras import render_cameras
from instep.policy.policy_specs import recorded_episode
from instep.scene.camera_files import CALIBRATION_SUFFIX, calibrated_scene
from instep.scene.folder import Scene

from .arguments import Expert

KINDS = {
    "sim": "sim:SCENE, a scene in MuJoCo (sim:SCENE@rapier in another engine)",
    "robot": "robot:ADDRESS, a robot behind a link (ws://127.0.0.1:PORT) or by the name of its driver (NAME:ADDRESS)",
    "recording": "recording:DATA, the first episode of a dataset (recording:DATA#3 its fourth)",
    "twin": "twin:SCENE, a scene kept in step with a real robot (--real robot:ADDRESS or recording:DATA)",
}


def world_from_spec(words: str, *, token: str = "") -> AbstractContextManager[Any]:
    """The world that `sim:SCENE`, `robot:ADDRESS` or `recording:DATA` stands for, to be used with `with`."""
    kind, _, rest = words.partition(":")
    if kind not in KINDS or not rest:
        raise BadInput(f"{words!r} is not a world; expected one of: {'; '.join(KINDS.values())}.")
    if kind == "robot":
        from instep.robot import connect_robot

        return connect_robot(rest, token)
    if kind == "recording":
        from instep.robot import Recording

        return nullcontext(Recording(recorded_episode(rest)))
    if kind == "twin":
        raise BadInput(f"{words!r} needs to know its real robot; give --real robot:ADDRESS or --real recording:DATA.")
    return nullcontext(open_world(*scene_and_engine(rest)))


@array_dataclass
class WithScene(Wrapper[W]):
    """A world that has no scene of its own, such as a robot, with the scene that describes it."""

    scene: Scene


def in_scene(world: World, scene: Scene | None) -> World:
    """The world with the scene that describes it, which must take the same commands; as it is where none is given."""
    if scene is None:
        return world
    taken, known = world.spec.action.labels, scene.spec.action.labels
    if taken != known:
        raise BadInput(
            f"The world takes the commands {', '.join(taken)}, but scene {scene.name!r} takes {', '.join(known)}; "
            "give the --scene of this robot."
        )
    return WithScene(world, scene)


def recorded(words: str) -> Episode | None:
    """The episode that `recording:DATA` stands for; None for other worlds."""
    kind, _, rest = words.partition(":")
    return recorded_episode(rest) if kind == "recording" and rest else None


def with_cameras(world: World, cameras: Sequence[str], every: int = 1) -> World:
    """The world with rendered cameras of its scene or of a calibration (see `calibrated_scene`)."""
    if not cameras:
        return world
    seen, chosen = calibrated_scene(_rendered_scene(world), cameras)
    return render_cameras(world, seen, chosen, every=every)


def _rendered_scene(world: World) -> Scene:
    scene = getattr(world, "scene", None)
    if scene is None:
        raise BadInput("Only a simulated world is rendered; a robot and a recording bring their own images.")
    return scene


def world_from_eval_spec(words: str, scene: str, cameras: Sequence[str] = (), every: int = 1) -> World:
    """A scene in an engine (mujoco, rapier), or perturbed as a simulated robot (perturbed:SEED), seen by some
    cameras.

    ENGINE@SCENE is another scene than the one that is asked about, such as another model of the same robot.
    """
    words, _, other = words.partition("@")
    scene = other or scene
    kind, _, rest = words.partition(":")
    if kind == "perturbed":
        if rest and not rest.isdigit():
            raise BadInput(f"perturbed: takes the seed of its hidden parameters, a whole number, not {rest!r}.")
        seen, names = calibrated_scene(Scene.load(scene), cameras)
        perturbation = Perturbation(hidden=int(rest or 1), cameras=tuple(names), image_every=every)
        return simulate_robot(seen, perturbation).world
    if words not in ENGINES:
        raise UnknownName("world", words, [*ENGINES, "perturbed:SEED"])
    return with_cameras(open_world(scene, words), cameras, every)


@frozen_dataclass
class CameraOptions:
    """The cameras of a world: rendered from Gaussians by a file, else cameras of the scene."""

    virtual: Expert[Path | None] = None
    """a file of virtual cameras (TOML), which are rendered from Gaussians when a policy reads them; --cameras then
    chooses among them."""
    cameras: tuple[str, ...] = ()
    """cameras that the policy sees: names, 'all', or a calibration FILE.json whose cameras take the place of the
    scene's; rendered for every world, so use small batches."""
    image_every: Expert[int] = 1
    """control steps from one image of a scene's camera to the next."""
    device: Expert[Literal["cpu", "cuda"]] = "cpu"
    """where the images of --virtual are rendered: cpu, or cuda for those of all worlds in one call (instep[gpu])."""

    @property
    def given(self) -> bool:
        """Whether there are any."""
        return bool(self.cameras) or self.virtual is not None

    def open(self, words: str, scene: str) -> World:
        """The world that words stand for, as `world_from_eval_spec`, with the cameras."""
        if self.virtual is None:
            return world_from_eval_spec(words, scene, self.cameras, self.image_every)
        loaded = Scene.load(words.partition("@")[2] or scene)
        return self._rendered(self.virtual, world_from_eval_spec(words, scene), loaded)

    def on(self, world: World) -> World:
        """A simulated world with the cameras; any world as it is where there are none."""
        if self.virtual is None:
            return with_cameras(world, self.cameras, self.image_every)
        return self._rendered(self.virtual, world, _rendered_scene(world))

    def _rendered(self, virtual: Path, world: World, scene: Scene) -> World:
        from instep.splat.rendered_world import load_rendered_cameras

        if self.image_every != 1:
            raise BadInput("--image-every is for cameras of the scene; those of --virtual are rendered when read.")
        return load_rendered_cameras(virtual, scene, self.cameras, device=self.device).on(world)

    def hash(self) -> str:
        """A text that differs where images would."""
        if self.virtual is None:
            files = [Path(word) for word in self.cameras if word.endswith(CALIBRATION_SUFFIX)]
            marks = [content_hash(file) for file in files if file.exists()]
            return "/".join(["", *marks, ",".join(self.cameras), str(self.image_every)]) if self.cameras else ""
        from instep.core.reading import read_toml

        table = read_toml(self.virtual)
        named = [table[key] for key in ("gaussians", "calibration") if key in table]
        files = [self.virtual, *(self.virtual.parent / str(name) for name in named)]
        marks = "".join(f"/{content_hash(file)}" for file in files if file.exists()) + f"/{','.join(self.cameras)}"
        return marks if self.device == "cpu" else f"{marks}/{self.device}"
