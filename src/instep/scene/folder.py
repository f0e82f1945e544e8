"""A scene: a folder that says what is there, or a robot file taken as it is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import mujoco
import numpy as np

from instep.core import counter_rng
from instep.core.errors import BadInput, UnknownName
from instep.core.param import Param
from instep.core.world import Array, Settings, Simulator, Spec

from . import address
from .camera import Camera
from .model import Reader, compile_model, free_bodies, reader, scalar_joints
from .model_source import Source, read_source
from .settings_file import read_table

SCENE_FILE = "scene.toml"
LIBRARY = Path(__file__).parent / "library"
_TOP = frozenset(
    ["about", "model", "rate", "source", "robot", "objects", "start", "cameras", "params", "settings", "task"]
)


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """What is there: a model, who plays which part in it, where it may begin."""

    root: Path
    name: str
    model: mujoco.MjModel
    """The compiled model, with the scene's own settings written into it. Shared: never change it."""
    reader: Reader
    """The names of its numbers, and what is seen of them."""
    source: Source
    about: str = ""
    robot: tuple[str, ...] = ()
    """Joints of the robot, in the order of `observation.state`."""
    objects: tuple[str, ...] = ()
    """Bodies that move freely, in the order of `observation.environment_state`."""
    tips: tuple[str, ...] = ()
    """Sites that count as end effectors."""
    cameras: Mapping[str, Camera] = field(default_factory=dict[str, Camera])
    begin: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Where `reset` may begin: a keyframe, and ranges by coordinate label."""
    bounds: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Bounds of parameters that differ from the usual, by pattern."""
    settings: Settings = field(default_factory=dict[str, float])
    """Parameters that were turned since the model was written, as fitted."""
    task: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def spec(self) -> Spec:
        """What the numbers of the scene mean."""
        return self.reader.spec

    @property
    def dt(self) -> float:
        """Control period [s]."""
        return self.reader.spec.dt

    @classmethod
    def load(cls, where: str | Path) -> Scene:
        """A shipped scene by name, a scene folder, or an MJCF or URDF file taken as a scene."""
        path = Path(where)
        if path.suffix in (".xml", ".urdf", ".mjcf"):
            return scene_of_file(path)
        if (path / SCENE_FILE).is_file():
            return _from_folder(path)
        if (LIBRARY / path.name / SCENE_FILE).is_file() and len(path.parts) == 1:
            return _from_folder(LIBRARY / path.name)
        if path.exists() or len(path.parts) > 1:
            raise BadInput(
                f"{str(where)!r} is not a scene: a folder with scene.toml, an MJCF or URDF file, or the name of a "
                f"shipped scene was expected. Make one with: instep scene new ROBOT.xml DIR"
            )
        raise UnknownName("scene", str(where), shipped())

    def params(self, *patterns: str) -> list[Param]:
        """The parameters whose addresses match, with units and bounds."""
        return address.params(self.model, patterns or ("*",), self.bounds)

    def delayed_model(self) -> mujoco.MjModel:
        """The same model, whose actuators remember their commands, as native delays need."""
        model = compile_model(self.source, history=address.LONGEST_DELAY)
        return address.write(model, self.settings) if self.settings else model

    def start(self, seed: int = 0) -> tuple[Array, Array]:
        """Positions and velocities to begin with; the same for every engine."""
        q, v, _ = self._rest()
        ranges = {k: r for k, r in self.begin.items() if k != "keyframe"}
        shares = counter_rng.uniform(counter_rng.key(seed, "start"), max(1, len(ranges)))
        labels, free = self.spec.q.labels, free_bodies(self.model)
        for (label, (low, high)), share in zip(ranges.items(), shares, strict=False):
            value = low + (high - low) * share
            body, _, part = label.rpartition(".")
            if part == "yaw" and body in free:
                q[free[body] + 3 : free[body] + 7] = [math.cos(value / 2), 0.0, 0.0, math.sin(value / 2)]
            else:
                q[labels.index(label)] = value
        return q, v

    def rest_action(self) -> Array:
        """The action that keeps the scene where it starts: the keyframe's, or where each servo stands."""
        q, _, action = self._rest()
        if action is not None:
            return action
        model = self.model
        held = np.zeros(model.nu)
        for a in range(model.nu):
            on_joint = model.actuator_trntype[a] == int(mujoco.mjtTrn.mjTRN_JOINT)
            if on_joint and model.actuator_biasprm[a, 1] != 0:
                held[a] = q[model.jnt_qposadr[model.actuator_trnid[a, 0]]] * model.actuator_gear[a, 0]
        return held

    def _rest(self) -> tuple[Array, Array, Array | None]:
        key = self.begin.get("keyframe")
        if key is None:
            return self.model.qpos0.copy(), np.zeros(self.model.nv), None
        frame = self.model.key(key)
        return frame.qpos.copy(), frame.qvel.copy(), frame.ctrl.copy()


class SceneSimulator(Simulator, Protocol):
    """A Simulator that was made of a scene."""

    @property
    def scene(self) -> Scene:
        """The scene that is simulated."""
        ...

    @property
    def model(self) -> mujoco.MjModel:
        """The compiled MuJoCo model of the scene, with its settings written in; read it, do not change it."""
        ...

    @property
    def substeps(self) -> int:
        """Physics steps per control step."""
        ...


def shipped() -> list[str]:
    """The names of the scenes that come with the package."""
    return sorted(path.parent.name for path in LIBRARY.glob(f"*/{SCENE_FILE}"))


def scene_of_file(path: Path) -> Scene:
    """The scene of a robot file alone: an MJCF or URDF file, all its joints, free bodies and cameras."""
    source = read_source(path)
    model = compile_model(source)
    steps = max(1, round((1 / 60) / model.opt.timestep))
    robot = tuple(scalar_joints(model))
    objects = tuple(free_bodies(model))
    read = reader(model, steps * model.opt.timestep, robot, objects)
    begin = {"keyframe": model.key(0).name} if model.nkey and model.key(0).name else {}
    cameras = {name: camera_of(model, name, {}) for name in camera_names(model)}
    return Scene(path.parent, path.stem, model, read, source, "", robot, objects, (), cameras, begin, {}, {}, {})


def _from_folder(root: Path) -> Scene:
    table = _table(root / SCENE_FILE)
    source = read_source(root / str(table.get("model", "scene.xml")), root)
    settings: Settings = table.get("settings", {})
    model = compile_model(source, history=address.LONGEST_DELAY if address.needs_memory(settings) else 0.0)
    if settings:
        model = address.write(model, settings)
    robot = tuple(table.get("robot", {}).get("joints", ()))
    objects = tuple(table.get("objects", {}).get("bodies", ()))
    dt = _period(root, table, model)
    read = reader(model, dt, robot, objects, table.get("robot", {}).get("action_unit", ""))
    begin = table.get("start", {})
    _check_start(root, begin, model, read)
    cameras = {name: camera_of(model, name, given) for name, given in table.get("cameras", {}).items()}
    tips = table.get("robot", {})
    tips = tuple(tips.get("tips", [tips["tip"]] if "tip" in tips else []))
    sites = [model.site(s).name for s in range(model.nsite)]
    for tip in tips:
        if tip not in sites:
            raise UnknownName("site", tip, sites)
    return Scene(
        root, root.resolve().name, model, read, source, table.get("about", ""), robot, objects, tips, cameras, begin,
        table.get("params", {}), settings, table.get("task", {}),
    )  # fmt: skip


def _table(path: Path) -> dict[str, Any]:
    table = read_table(path)
    for key in table:
        if key not in _TOP:
            raise UnknownName(f"entry of {path.name}", key, _TOP)
    return table


def _period(root: Path, table: Mapping[str, Any], model: mujoco.MjModel) -> float:
    rate = table.get("rate", 1 / model.opt.timestep)
    if not isinstance(rate, int | float) or not 0 < rate < math.inf:
        raise BadInput(f"rate of {root.name}/scene.toml must be a control rate in Hz above 0, not {rate!r}.")
    steps = 1 / (rate * model.opt.timestep)
    if abs(steps - round(steps)) > 1e-6 * steps or round(steps) < 1:
        raise BadInput(
            f"A control period of {1e3 / rate:.6g} ms is {steps:.6g} physics steps of {1e3 * model.opt.timestep:.6g} ms"
            f" in {root.name}/scene.toml; a whole number was expected."
        )
    return 1 / rate


def _check_start(root: Path, begin: Mapping[str, Any], model: mujoco.MjModel, read: Reader) -> None:
    keys = [model.key(k).name for k in range(model.nkey)]
    free = free_bodies(model)
    known = [*read.spec.q.labels, *(f"{body}.yaw" for body in free)]
    for label, given in begin.items():
        if label == "keyframe":
            if given not in keys:
                raise UnknownName("keyframe", str(given), keys)
        elif label not in known:
            raise UnknownName("coordinate", label, known)
        elif not (isinstance(given, list) and len(given) == 2 and all(math.isfinite(x) for x in given)):
            raise BadInput(f"{label!r} under [start] of {root.name}/scene.toml must be [low, high], not {given!r}.")


def camera_names(model: mujoco.MjModel) -> list[str]:
    """The cameras of a model that have a name."""
    return [name for c in range(model.ncam) if (name := model.camera(c).name)]


def camera_of(model: mujoco.MjModel, name: str, given: Mapping[str, Any]) -> Camera:
    """A camera of the model; MuJoCo looks along -z with y up, a Camera along +z with y down."""
    if name not in camera_names(model):
        raise UnknownName("camera", name, camera_names(model))
    camera = model.camera(name)
    width, height = (int(x) for x in model.cam_resolution[camera.id])
    if width <= 1 or height <= 1:
        width, height = int(given.get("width", 320)), int(given.get("height", 240))
    sensor, intrinsic = model.cam_sensorsize[camera.id], model.cam_intrinsic[camera.id]
    if sensor[1] > 0:
        fx, fy = intrinsic[0] / sensor[0] * width, intrinsic[1] / sensor[1] * height
        cx, cy = width / 2 - intrinsic[2] / sensor[0] * width, height / 2 - intrinsic[3] / sensor[1] * height
    else:
        fx = fy = height / 2 / math.tan(math.radians(float(model.cam_fovy[camera.id])) / 2)
        cx, cy = width / 2, height / 2
    body_from_camera = np.eye(4)
    mujoco.mju_quat2Mat(turned := np.zeros(9), model.cam_quat[camera.id])
    body_from_camera[:3, :3] = turned.reshape(3, 3) @ np.diag([1.0, -1.0, -1.0])
    body_from_camera[:3, 3] = model.cam_pos[camera.id]
    body = model.body(model.cam_bodyid[camera.id]).name
    lens = tuple(float(k) for k in given.get("distortion", ()))
    return Camera(name, width, height, (float(fx), float(fy)), (float(cx), float(cy)), body, body_from_camera, lens)
