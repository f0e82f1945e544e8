"""Scenes: a folder with a model, roles, cameras and settings, or a robot file taken as it is.

TOML files of a scene folder: read them, write a new `scene.toml`, replace `[settings]` while comments stay.

Bodies on a hinge or slide that no motor drives, such as drawers and lids: which joint moves them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import mujoco
import numpy as np

from instep.core import counter_rng
from instep.core.episode import Episode
from instep.core.errors import BadInput, UnknownName
from instep.core.param import Param
from instep.core.reading import (
    ANY_TEXT,
    MAYBE_NAMES,
    NAMES,
    NUMBER,
    NUMBERS,
    POSITIVE,
    RANGE,
    TABLE,
    TEXT,
    Entry,
    check_inside,
    checked_table,
    inside,
    is_range,
    parse_toml,
    parsing,
    read_text,
    shown,
    table_of,
    whole_from,
)
from instep.core.world import Array, Observation, Settings, Simulator, Spec, State, array_dataclass
from instep.scene import address

from .camera import Camera, camera_names, camera_of
from .model import ObservationReader, checked_source, compile_model, free_bodies, observation_reader, scalar_joints
from .model_limits import check_model
from .model_source import ModelSource, read_source

SCENE_FILE = "scene.toml"
ROBOT_FILES = (".xml", ".urdf", ".mjcf")
"""Endings of robot descriptions."""
LIBRARY = Path(__file__).parent / "library"
MAX_SIDE = 16_384
"""Most pixels along a side of a camera's image."""
MAX_START = 1e4
"""Largest coordinate of an initial state [m or rad]."""
_MOTION = Entry(
    lambda value: POSITIVE.usable(value) or table_of(POSITIVE).usable(value), "a number above 0, or one by action label"
)
_SCHEMA: Mapping[str, Entry] = {
    "about": ANY_TEXT, "model": TEXT, "rate": POSITIVE, "source": ANY_TEXT, "robot": TABLE, "objects": TABLE,
    "start": TABLE, "cameras": table_of(TABLE), "params": table_of(RANGE), "settings": table_of(NUMBER), "task": TABLE,
    "actuators": table_of(table_of(NUMBER)), "inputs": table_of(TEXT), "tune": TABLE,
}  # fmt: skip
"""Entries of scene.toml; those of its tables:"""
_PARTS: Mapping[str, Mapping[str, Entry]] = {
    "robot": {"joints": MAYBE_NAMES, "tip": TEXT, "tips": NAMES, "action_unit": ANY_TEXT, "limits": TABLE},
    "objects": {"bodies": MAYBE_NAMES, "jointed": MAYBE_NAMES},
}
_LIMITS = {"velocity": _MOTION, "acceleration": _MOTION, "jerk": _MOTION}
_CAMERA = {
    "rate": POSITIVE, "width": whole_from(1, MAX_SIDE), "height": whole_from(1, MAX_SIDE), "distortion": NUMBERS,
}  # fmt: skip


@array_dataclass
class Scene:
    """A model with its robot, objects, cameras, initial states and settings."""

    root: Path
    name: str
    model: mujoco.MjModel
    """The compiled model, with the scene's own settings written into it. Shared: never change it."""
    reader: ObservationReader
    """Labels of the model's coordinates, and the observations read from them."""
    source: ModelSource
    about: str = ""
    robot: tuple[str, ...] = ()
    """Joints of the robot, in the order of `observation.state`."""
    objects: tuple[str, ...] = ()
    """Bodies that move freely, in the order of `observation.environment_state`."""
    tips: tuple[str, ...] = ()
    """Sites that count as end effectors."""
    cameras: Mapping[str, Camera] = field(default_factory=dict[str, Camera])
    initial: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Initial states: a keyframe, and ranges by coordinate label."""
    bounds: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Bounds of parameters that differ from the defaults, by pattern."""
    settings: Settings = field(default_factory=dict[str, float])
    """Parameters that differ from the model file, such as identified ones."""
    task: Mapping[str, Any] = field(default_factory=dict[str, Any])
    motion_limits: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """`velocity`, `acceleration` and `jerk` of the robot's commands, each one number or by action label."""
    actuators: Mapping[str, Mapping[str, float]] = field(default_factory=dict[str, Mapping[str, float]])
    """Parameters of actuator models by address, under the name of the model."""
    inputs: Mapping[str, str] = field(default_factory=dict[str, str])
    """Metadata field of a recording that holds an action which is not among its columns, by action label."""
    jointed: tuple[str, ...] = ()
    """Bodies on a passive hinge or slide, such as drawers and lids, which a twin tracks in images."""
    _delayed: list[mujoco.MjModel] = field(default_factory=list[mujoco.MjModel], init=False, repr=False)
    """Cache of `delayed_model`: compiling costs many simulated windows."""

    @property
    def spec(self) -> Spec:
        """Description of the scene's numbers."""
        return self.reader.spec

    @property
    def dt(self) -> float:
        """Control period [s]."""
        return self.reader.spec.dt

    @property
    def actuator_settings(self) -> dict[str, float]:
        """The parameters of all actuator models by address."""
        return {name: float(value) for table in self.actuators.values() for name, value in table.items()}

    @classmethod
    def load(cls, where: str | Path) -> Scene:
        """A shipped scene by name, a scene folder, or an MJCF or URDF file taken as a scene."""
        path = Path(where)
        if path.suffix in ROBOT_FILES:
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
        """The same model with command buffers for native delays. Shared: never change it."""
        if not self._delayed:
            model = compile_model(self.source, history=address.LONGEST_DELAY)
            self._delayed.append(address.write(model, self.settings) if self.settings else model)
        return self._delayed[0]

    def start(self, seed: int = 0) -> tuple[Array, Array]:
        """Initial positions and velocities of a seed; the same for every engine."""
        q, v, _ = self._rest()
        ranges = {k: r for k, r in self.initial.items() if k != "keyframe"}
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
        """The action that holds the start: the keyframe's, or the initial position of each servo."""
        q, _, action = self._rest()
        if action is not None:
            return action
        model, data = self.model, mujoco.MjData(self.model)
        data.qpos[:] = q
        mujoco.mj_forward(model, data)
        servo = (model.actuator_biasprm[:, 1] != 0) & (model.actuator_gainprm[:, 0] != 0)
        # A servo is at rest where gain * command + bias * length = 0.
        gain = np.where(servo, model.actuator_gainprm[:, 0], 1.0)
        return np.where(servo, -model.actuator_biasprm[:, 1] / gain * data.actuator_length, 0.0)

    def _rest(self) -> tuple[Array, Array, Array | None]:
        key = self.initial.get("keyframe")
        if key is None:
            return self.model.qpos0.copy(), np.zeros(self.model.nv), None
        frame = self.model.key(key)
        return frame.qpos.copy(), frame.qvel.copy(), frame.ctrl.copy()


def load_scene(where: str | Path, *, rate: float | None = None) -> Scene:
    """A shipped scene by name, a scene folder, or an MJCF or URDF file taken as a scene.

    `rate` is the control rate [Hz] of a robot file, such as the rate of its log; a scene folder has its own.
    """
    if rate is None:
        return Scene.load(where)
    if Path(where).suffix not in ROBOT_FILES:
        raise BadInput(f"The rate of {str(where)!r} is given by its scene.toml; rate= is for an MJCF or URDF file.")
    return scene_of_file(Path(where), rate)


def scene_for(where: str | Path, episodes: Sequence[Episode], *, rate: float | None = None) -> Scene:
    """The scene for a replay: a robot file at the rate of the recordings or at `rate` [Hz], a folder at its own.

    The period is rounded to whole physics steps.
    """
    path = Path(where)
    if rate is not None or path.suffix not in ROBOT_FILES or not episodes:
        return load_scene(where, rate=rate)
    scene = scene_of_file(path)
    timestep = float(scene.model.opt.timestep)
    period = float(np.median([episode.spec.dt for episode in episodes]))
    return scene_of_file(path, 1 / (max(1, round(period / timestep)) * timestep))


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


class BodyDynamics(NamedTuple):
    """The dynamics of a model at a state, for one of its bodies."""

    inertia: Array
    """Mass matrix [nv, nv]."""
    jacobian: Array
    """Velocity and angular velocity of the body's frame by each velocity [6, nv]."""
    turn: Array
    """Rotation from the body's frame to the world [9]."""


class DynamicsSimulator(SceneSimulator, Protocol):
    """A simulator that also returns the dynamics of a body after a step, at about the cost of the step."""

    def step_dynamics(self, state: State, action: Array, body: int) -> tuple[State, BodyDynamics]:
        """One world after a control period, equal to `step` bit by bit, and the dynamics of a body."""
        ...


Sim = TypeVar("Sim", bound=SceneSimulator)


class AroundSimulator(Generic[Sim]):
    """The part of a simulator around another one that passes everything but `step` and `tuned` through."""

    world: Sim

    @property
    def scene(self) -> Scene:
        """The scene that is simulated."""
        return self.world.scene

    @property
    def spec(self) -> Spec:
        """Description of the numbers."""
        return self.world.spec

    @property
    def model(self) -> mujoco.MjModel:
        """The compiled model of the simulator inside; read it, do not change it."""
        return self.world.model

    @property
    def substeps(self) -> int:
        """Physics steps per control step."""
        return self.world.substeps

    def reset(self, seed: int = 0) -> State:
        """The initial state of the scene with this seed."""
        return self.world.reset(seed)

    def place(self, q: Array, v: Array, t: float = 0.0, past: Array | None = None) -> State:
        """The state with these positions and velocities."""
        return self.world.place(q, v, t, past)

    def observe(self, state: State) -> Observation:
        """The sensor readings."""
        return self.world.observe(state)

    def nudge(self, state: State, wrench: Array) -> State:
        """The state with a wrench on each body, felt for one step."""
        return self.world.nudge(state, wrench)


def shipped() -> list[str]:
    """The names of the shipped scenes."""
    return sorted(path.parent.name for path in LIBRARY.glob(f"*/{SCENE_FILE}"))


def scene_of_file(path: Path, rate: float | None = None) -> Scene:
    """The scene of a robot file alone: an MJCF or URDF file, all its joints, free bodies and cameras.

    `rate` is the control rate [Hz] (default: the whole number of physics steps nearest to 60 Hz).
    """
    source = _source(path)
    model = compile_model(source)
    if rate is None:
        steps = max(1, round((1 / 60) / model.opt.timestep))
    else:
        steps = round(_period(path, {"rate": rate}, model) / model.opt.timestep)
    robot = tuple(scalar_joints(model))
    objects = tuple(free_bodies(model))
    read = observation_reader(model, steps * model.opt.timestep, robot, objects)
    initial = {"keyframe": model.key(0).name} if model.nkey and model.key(0).name else {}
    cameras = {name: camera_of(model, name, {}) for name in camera_names(model)}
    return Scene(path.parent, path.stem, model, read, source, "", robot, objects, (), cameras, initial, {}, {}, {})


def _from_folder(root: Path) -> Scene:
    table = _table(root / SCENE_FILE)
    source = _source(inside(root, str(table.get("model", "scene.xml"))), root)
    settings: Settings = table.get("settings", {})
    for name, value in table.get("settings", {}).items():
        if name.endswith(".delay") and not 0 <= value <= address.LONGEST_DELAY:
            raise BadInput(f"{name!r} of {root.name!r} is {value:g}; 0 to {address.LONGEST_DELAY:g} s was expected.")
    model = compile_model(source, history=address.LONGEST_DELAY if address.needs_memory(settings) else 0.0)
    if settings:
        model = address.write(model, settings)
        check_model(model, SCENE_FILE)
    robot = tuple(table.get("robot", {}).get("joints", ()))
    objects = tuple(table.get("objects", {}).get("bodies", ()))
    dt = _period(root, table, model)
    jointed = tuple(table.get("objects", {}).get("jointed", ()))
    check_jointed(model, jointed, robot)
    read = observation_reader(model, dt, robot, objects, table.get("robot", {}).get("action_unit", ""))
    initial = table.get("start", {})
    _check_start(root, initial, model, read)
    cameras = {name: camera_of(model, name, given) for name, given in table.get("cameras", {}).items()}
    tips = table.get("robot", {})
    tips = tuple(tips.get("tips", [tips["tip"]] if "tip" in tips else []))
    sites = [model.site(s).name for s in range(model.nsite)]
    for tip in tips:
        if tip not in sites:
            raise UnknownName("site", tip, sites)
    return Scene(
        root, root.resolve().name, model, read, source, table.get("about", ""), robot, objects, tips, cameras, initial,
        table.get("params", {}), settings, table.get("task", {}), table.get("robot", {}).get("limits", {}),
        table.get("actuators", {}), table.get("inputs", {}), jointed,
    )  # fmt: skip


def _source(path: Path, root: Path | None = None) -> ModelSource:
    """The description of a model; foreign models are compiled in another process first."""
    shipped = Path(os.path.realpath(path)).is_relative_to(LIBRARY)
    return read_source(path, root) if shipped else checked_source(path, root)


def _table(path: Path) -> dict[str, Any]:
    table = checked_table(read_table(check_inside(path.parent, path)), _SCHEMA, path.name)
    for part, schema in _PARTS.items():
        checked_table(table.get(part, {}), schema, f"[{part}] of {path.name}")
    checked_table(table.get("robot", {}).get("limits", {}), _LIMITS, f"[robot.limits] of {path.name}")
    for name, camera in table.get("cameras", {}).items():
        checked_table(camera, _CAMERA, f"[cameras.{name}] of {path.name}")
    return table


def _period(root: Path, table: Mapping[str, Any], model: mujoco.MjModel) -> float:
    rate = table.get("rate", 1 / model.opt.timestep)
    if not isinstance(rate, int | float) or not 0 < rate < math.inf:
        raise BadInput(f"The rate of {root.name!r} must be a control rate in Hz above 0, not {rate!r}.")
    steps = 1 / (rate * model.opt.timestep)
    if abs(steps - round(steps)) > 1e-6 * steps or round(steps) < 1:
        raise BadInput(
            f"A control period of {1e3 / rate:.6g} ms is {steps:.6g} physics steps of {1e3 * model.opt.timestep:.6g} ms"
            f" in {root.name!r}; a whole number was expected."
        )
    return 1 / rate


def _check_start(root: Path, initial: Mapping[str, Any], model: mujoco.MjModel, read: ObservationReader) -> None:
    keys = [model.key(k).name for k in range(model.nkey)]
    free = free_bodies(model)
    known = [*read.spec.q.labels, *(f"{body}.yaw" for body in free)]
    for label, given in initial.items():
        if label == "keyframe":
            if given not in keys:
                raise UnknownName("keyframe", str(given), keys)
        elif label not in known:
            raise UnknownName("coordinate", label, known)
        elif not is_range(given) or max(map(abs, given)) > MAX_START:
            raise BadInput(
                f"{label!r} under [start] of {root.name}/scene.toml must be [low, high] within {MAX_START:g} m or rad, "
                f"not {shown(given)}."
            )


def read_table(path: Path) -> dict[str, Any]:
    """The content of a TOML file; `BadInput` where it is not valid."""
    return parse_toml(read_text(path), f"{path.name} in {path.parent.name}")


def write_scene_table(path: Path, scene: Scene, about: str = "", *, cameras: Sequence[str] = ()) -> None:
    """Write the `scene.toml` of a scene that was read from a robot file, for a model in `scene.xml` beside it.

    `cameras` are those of the model, where it has others than the robot file.
    """
    import tomlkit

    table = tomlkit.document()
    if about:
        table.add("about", about)
    table.add("model", "scene.xml")
    rate = tomlkit.item(1 / scene.dt)
    rate.comment(f"control rate [Hz]: {round(scene.dt / scene.model.opt.timestep)} physics steps")
    table.add("rate", rate)
    parts: dict[str, dict[str, object]] = {"robot": {"joints": list(scene.robot)}}
    if scene.objects:
        parts["objects"] = {"bodies": list(scene.objects)}
    if "keyframe" in scene.initial:
        parts["start"] = {"keyframe": scene.initial["keyframe"]}
    for name, entries in parts.items():
        table.add(name, tomlkit.item(entries))
    if named := list(cameras) or list(scene.cameras):
        table.add("cameras", tomlkit.item({name: {} for name in named}))
    path.write_text(tomlkit.dumps(table), encoding="utf-8")


def write_settings(path: Path, settings: Mapping[str, float], *where: str) -> None:
    """Replace a table of a TOML file (default `[settings]`); all else stays as it is, comments included.

    The file and the table are made where they are missing. `where` are the names of a nested table.
    """
    import tomlkit

    document: Any = commented_table(path) if path.is_file() else tomlkit.document()
    *outer, last = where or ("settings",)
    table = document
    for name in outer:
        if name not in table:
            table.add(name, tomlkit.table(is_super_table=True))
        table = table[name]
    before, new = table.get(last), tomlkit.table()
    body: list[tuple[Any, Any]] = list(before.value.body) if before is not None else []
    # What follows the last setting belongs to the next table.
    end = max((i + 1 for i, (key, _) in enumerate(body) if key is not None), default=0)
    for key, item in body[:end]:
        if key is None:
            new.add(item)
        elif key.key in settings:
            value = tomlkit.item(float(settings[key.key]))
            if item.trivia.comment:
                value.comment(item.trivia.comment.lstrip("# "))
            new.add(key.key, value)
    for name, value in settings.items():
        if name not in new:
            new.add(name, float(value))
    for _, item in body[end:]:
        new.add(item)
    if before is not None:
        table[last] = new
    else:
        table.add(last, new)
    path.write_text(tomlkit.dumps(document), encoding="utf-8")


def commented_table(path: Path) -> Any:
    """The content of a TOML file with its comments, as a document of tomlkit, which does not say what it holds."""
    import tomlkit

    text = read_text(path)
    with parsing(path, "TOML"):
        return tomlkit.parse(text)


_KINDS = (int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE))


def joint_of(model: mujoco.MjModel, body: str) -> int:
    """The joint of a body that hangs on the world by a single hinge or slide."""
    names = [model.body(b).name for b in range(1, model.nbody)]
    if body not in names:
        raise UnknownName("body", body, names)
    b = int(model.body(body).id)
    joints = np.flatnonzero(model.jnt_bodyid == b)
    if len(joints) != 1 or int(model.jnt_type[joints[0]]) not in _KINDS:
        raise BadInput(
            f"Body {body!r} under 'jointed' of [objects] has {len(joints)} joints; one hinge or slide was expected. "
            "Put bodies that move freely under 'bodies'."
        )
    parent = int(model.body_parentid[b])
    if model.body_weldid[parent] != 0:
        raise BadInput(
            f"Body {body!r} under 'jointed' of [objects] is carried by {model.body(parent).name!r}, which moves too; "
            "only bodies on a static parent can be tracked. Leave it out."
        )
    return int(joints[0])


def check_jointed(model: mujoco.MjModel, bodies: Sequence[str], robot: Sequence[str]) -> None:
    """Refuse bodies whose joint is the robot's or an actuator's, and slides without limits."""
    for body in bodies:
        j = joint_of(model, body)
        driven = (model.actuator_trntype == int(mujoco.mjtTrn.mjTRN_JOINT)) & (model.actuator_trnid[:, 0] == j)
        if model.joint(j).name in robot or driven.any():
            raise BadInput(
                f"Body {body!r} under 'jointed' of [objects] is on {model.joint(j).name!r}, a joint of the robot, "
                "which is measured; leave it out."
            )
        if not model.jnt_limited[j] and int(model.jnt_type[j]) == int(mujoco.mjtJoint.mjJNT_SLIDE):
            raise BadInput(
                f"The slide of body {body!r} under 'jointed' of [objects] has no range, in which it could be searched; "
                "give the joint a range in the model."
            )
