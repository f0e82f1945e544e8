"""Readers of anything from outside, with a sound sample for each."""

from __future__ import annotations

import gzip
import json
import shutil
import zlib
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import MissingExtra
from instep.core.reading import read_file
from instep.core.world import Channel, Spec, State, frozen_dataclass, vector

CAMERA, JOINTS, ROWS = "observation.images.top", ["shoulder", "elbow"], 12
ROBOT = """<mujoco model="arm">
  <compiler angle="radian" meshdir="meshes" texturedir="meshes"/>
  <option timestep="0.002"/>
  <size memory="1M"/>
  <asset>
    <mesh name="link" file="link.obj"/><mesh name="stone" file="stone.stl"/>
    <texture name="wood" type="2d" file="wood.png"/><material name="wood" texture="wood"/>
    <hfield name="hills" nrow="4" ncol="4" size="1 1 0.1 0.1"/>
  </asset>
  <include file="lights.xml"/>
  <worldbody>
    <body name="upper" pos="0 0 1">
      <joint name="shoulder" axis="0 1 0" damping="0.1" armature="0.01" range="-2 2" frictionloss="0.01"/>
      <geom name="upper" type="mesh" mesh="link" mass="1" material="wood" friction="1 0.01 0.001"/>
      <body name="lower" pos="0 0 -0.3">
        <joint name="elbow" axis="0 1 0" damping="0.1" stiffness="0.1"/>
        <inertial pos="0 0 -0.1" mass="0.5" diaginertia="0.01 0.01 0.001"/>
        <geom name="lower" type="capsule" fromto="0 0 0 0 0 -0.3" size="0.02" mass="0"/>
        <site name="tip" pos="0 0 -0.3"/>
      </body>
    </body>
    <body name="stone" pos="1 0 0"><freejoint name="stone"/><geom type="mesh" mesh="stone" density="500"/></body>
    <camera name="top" pos="0 -2 1" xyaxes="1 0 0 0 0 1" fovy="45"/>
  </worldbody>
  <actuator>
    <position name="shoulder" joint="shoulder" kp="20" kv="1" ctrlrange="-2 2"/>
    <motor name="elbow" joint="elbow" gear="2" forcerange="-5 5"/>
  </actuator>
  <keyframe><key name="home" qpos="0.1 0.2 1 0 0 1 0 0 0" ctrl="0.1 0"/></keyframe>
</mujoco>
"""
LIGHTS = '<mujoco><worldbody><light pos="0 0 3"/><geom type="plane" size="2 2 0.1"/></worldbody></mujoco>\n'
_LINK = '<inertial><mass value="{}"/><inertia ixx="{}" iyy="0.1" izz="0.1" ixy="0" ixz="0" iyz="0"/></inertial>'
URDF = f"""<robot name="arm">
  <link name="base">{_LINK.format(1, 0.1)}</link>
  <link name="upper">{_LINK.format(0.5, 0.15)}
    <collision><geometry><mesh filename="package://arm/meshes/link.obj" scale="1 1 1"/></geometry></collision></link>
  <link name="lower">{_LINK.format(0.2, 0.12)}
    <collision><geometry><cylinder radius="0.02" length="0.2"/></geometry></collision></link>
  <joint name="shoulder" type="revolute"><parent link="base"/><child link="upper"/><axis xyz="0 1 0"/>
    <limit lower="-1" upper="1" effort="5" velocity="2"/><dynamics damping="0.1" friction="0.01"/></joint>
  <joint name="elbow" type="continuous"><parent link="upper"/><child link="lower"/><origin xyz="0 0 0.3" rpy="0 0 0"/>
    <axis xyz="0 1 0"/></joint>
</robot>
"""
OBJ = "v 0 0 0\nv 0.1 0 0\nv 0 0.1 0\nv 0 0 0.3\nf 1 3 2\nf 1 2 4\nf 2 3 4\nf 1 4 3\n"
VIRTUAL = """[static]
at = [0.4, 0.3, 0.7]
towards = [0.4, 0.3, 0.0]
up = [0.0, 1.0, 0.0]
angle = 44
size = [16, 16]
[gripper]
body = "pusher"
at = [0.0, 0.0, 0.3]
towards = [0.0, 0.0, 0.0]
up = [0.0, 1.0, 0.0]
"""
DATA_MAP = """format = "{form}"
files = ["run.*"]
rate = 50.0
[q]
from = ["a", "b"]
labels = ["shoulder", "elbow"]
unit = "rad"
[action]
from = ["u"]
"""
POLICY_MAP = """prompt = "wave"
execute = 2
[[state]]
key = "state"
joints = ["shoulder", "elbow"]
scale = [1.0, 2.0]
[[action]]
key = "actions"
joints = ["shoulder", "elbow"]
kind = "absolute"
"""
GATE = """scene = "pusht"
worlds = ["mujoco"]
seeds = 4
first = 10000
[parity]
one_step = 0.5
[variations.nominal]
[variations.late]
latency = 2
randomize = ["geom.*.friction=0.3..0.5"]
[[rule]]
measure = "success"
at_least = 0.7
[[rule]]
measure = "gap"
at_most = 0.15
by = "value"
"""
EVENTS = """[[event]]
name = "lifted"
signal = "shoulder"
above = 0.5
leave = 0.4
dwell = 0.1
from_start = true
"""
RATES = "task,policy,real,sim,n_real_trials,n_sim_trials\n" + "".join(
    f"push,p{k},{0.1 * k + 0.1:.2f},{0.1 * k + 0.2:.2f},20,100\n" for k in range(5)
)


@frozen_dataclass
class Target:
    """A reader, and a sample of what it reads."""

    name: str
    sample: Callable[[Path], object]
    """Writes sound files into an empty folder."""
    read: Callable[[Path], object]
    """Reads that folder; what it raises is what a user would meet."""
    files: tuple[str, ...]
    """Files of the sample that are spoilt, the main one first."""
    command: str = ""
    """A command that reads the folder, {folder} in place of its path; empty where no verb takes it alone."""
    needs: str = ""
    """Library without which nothing is read."""

    @property
    def folder(self) -> str:
        """Name of the folder of its sample."""
        return self.name.replace(" ", "_")

    @property
    def installed(self) -> bool:
        """Whether its library is installed here."""
        return not self.needs or find_spec(self.needs) is not None


def targets() -> dict[str, Target]:
    """All readers by name."""
    found = [*scene_targets(), *image_targets(), *data_targets(), *policy_targets(), *rule_targets()]
    return {target.name: target for target in found}


def episode(cameras: bool = True, seed: int = 0) -> Episode:
    """A short run of an arm with two joints."""
    rng = np.random.default_rng(seed)
    columns: dict[str, Any] = {"timestamp": np.arange(ROWS) / 50}
    columns |= {name: rng.normal(size=(ROWS, 2)) for name in ("q", "v", "action")}
    columns["observation.state"] = rng.normal(size=(ROWS, 2)).astype(np.float32)
    observation: dict[str, Channel] = {"observation.state": vector(JOINTS, "rad")}
    if cameras:
        observation[CAMERA] = Channel((), "", (16, 24, 3), "uint8")
        columns |= {CAMERA: np.full((ROWS, 16, 24, 3), 90, np.uint8), f"{CAMERA}.stamp": columns["timestamp"]}
    spec = Spec(0.02, vector(JOINTS, "rad"), vector(JOINTS, "rad/s"), vector(JOINTS, "rad"), observation)
    return Episode(spec, columns, {"task": "wave"})


def put(**contents: str | bytes) -> Callable[[Path], None]:
    """Writes files; a double underscore in a name is a dot, a triple one a folder."""

    def write(folder: Path) -> None:
        for name, content in contents.items():
            path = folder / name.replace("___", "/").replace("__", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)

    return write


def reader(module: str, name: str, file: str = "") -> Callable[[Path], object]:
    """A function of instep that takes a path in the folder."""
    return lambda folder: getattr(import_module(f"instep.{module}"), name)(folder / file)


def stl(scale: float = 0.1) -> bytes:
    """A tetrahedron as binary STL."""
    points = scale * np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], "<f4")
    rows = np.zeros(4, np.dtype([("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("rest", "<u2")]))
    rows["corners"] = points[np.array([[0, 2, 1], [0, 1, 3], [1, 2, 3], [0, 3, 2]])]
    return b"\0" * 80 + np.uint32(4).tobytes() + rows.tobytes()


def png(width: int = 4, height: int = 4, pixels: bytes | None = None) -> bytes:
    """A PNG image; its header may claim another size than its pixels have."""
    rows = pixels if pixels is not None else b"".join(b"\0" + bytes([120, 90, 60]) * width for _ in range(height))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 2, 0, 0, 0])
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def simulate(where: Path) -> None:
    """Open a scene and let it move for a fifth of a second."""
    from instep import Scene, open_world

    scene = Scene.load(where)
    world = open_world(scene)
    state = world.reset(1)
    for _ in range(10):
        state = world.step(state, scene.rest_action())


def scene_targets() -> list[Target]:
    """Robots, their meshes, and scenes."""
    from instep import Scene
    from instep.gap.torque_gap import sensor_offsets
    from instep.scene.folder import LIBRARY

    meshes = {"meshes___link__obj": OBJ, "meshes___stone__stl": stl(), "meshes___wood__png": png()}
    robot = {"robot__xml": ROBOT, "lights__xml": LIGHTS, **meshes}
    arm = put(robot__urdf=URDF, meshes___link__obj=OBJ)

    def scene(folder: Path) -> None:
        shutil.copytree(LIBRARY / "furuta", folder, dirs_exist_ok=True)
        put(torque_sensors__toml="[settings]\narm = 0.1\n")(folder)

    mjcf, urdf = "scene params {folder}/robot.xml", "scene params {folder}/robot.urdf"
    assets = ("meshes/link.obj", "meshes/stone.stl", "meshes/wood.png")
    return [
        Target("MJCF", put(**robot), lambda f: simulate(f / "robot.xml"), ("robot.xml", "lights.xml"), mjcf),
        Target("meshes and textures", put(**robot), lambda f: simulate(f / "robot.xml"), assets, mjcf),
        Target("URDF", arm, lambda f: simulate(f / "robot.urdf"), ("robot.urdf", "meshes/link.obj"), urdf),
        Target("scene.toml", scene, simulate, ("scene.toml",), "scene params {folder}"),
        Target("torque_sensors.toml", scene, lambda f: sensor_offsets(Scene.load(f)), ("torque_sensors.toml",)),
    ]


def gaussians() -> Any:
    """Five Gaussians of the world."""
    from instep.splat.gaussians import gaussians_from_colours

    rng = np.random.default_rng(0)
    quats = np.tile([1.0, 0, 0, 0], (5, 1))
    made = gaussians_from_colours(
        rng.normal(size=(5, 3)), np.full((5, 3), 0.1), rng.random((5, 3)), quats=quats, opacities=np.full(5, 0.8)
    )
    return made.attached_to("world")


def _save_gaussians(name: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        from instep.splat.gaussian_files import save_gaussians

        save_gaussians(folder / name, gaussians())

    return write


def _write_stills(folder: Path) -> None:
    """Posed images as nerfstudio describes them."""
    frame = {"file_path": "images/0.png", "transform_matrix": np.eye(4).tolist()}
    described = json.dumps({"fl_x": 5.0, "cx": 2.0, "cy": 2.0, "frames": [frame]})
    plane = json.dumps({"plane": [0, 0, 1, 0]})
    put(images___0__png=png(), transforms__json=described, ground_plane__json=plane)(folder)
    np.save(folder / "points.npy", np.zeros((4, 3)))


def _write_video(folder: Path) -> None:
    from instep.data.video import VideoWriter

    with VideoWriter(folder / "run.mp4", 50) as video:
        for _ in range(ROWS):
            video.add(np.full((16, 24, 3), 90, np.uint8))


def _write_video_capture(folder: Path) -> None:
    """Posed videos as Embodied Gaussians describes them."""
    _write_video(folder)
    matrix, stamps = [[9.0, 0, 12], [0, 9, 8], [0, 0, 1]], [k / 50 for k in range(ROWS)]
    entry = {"metadata_path": "top.json", "video_path": "run.mp4", "X_WC": np.eye(4).ravel().tolist()}
    meta = json.dumps({"K": matrix, "resolution": [24, 16], "timestamps": stamps})
    put(top__json=meta, cameras__json=json.dumps({"top": entry}))(folder)


def _read_capture(folder: Path) -> None:
    from instep.splat.capture import load_capture

    for shot in load_capture(folder).recordings:
        np.asarray(shot.images[0])


def _read_image(folder: Path) -> object:
    from instep.data.frames import MAX_IMAGE, decode_image

    return decode_image(read_file(folder / "image.png", MAX_IMAGE))


def _write_cameras(folder: Path) -> None:
    from instep.scene.camera import Camera
    from instep.scene.camera_files import Calibration

    camera = Camera("top", 64, 48, (50.0, 50.0), (32.0, 24.0), distortion=(0.1,) * 5)
    Calibration({"top": camera}, {"stone": np.ones(3)}, "by hand").save(folder / "cameras.json")


def _read_virtual(folder: Path) -> object:
    from instep import Scene
    from instep.splat.rendered_world import load_rendered_cameras

    return load_rendered_cameras(folder / "cams.toml", Scene.load("pusht"))


def image_targets() -> list[Target]:
    """Gaussians, captures, images and cameras."""
    forms = {
        "PLY": ("world.ply", ""), "SPLAT": ("world.splat", ""), "GLB": ("world.glb", ""), "USDA": ("world.usda", "pxr"),
        "USDC": ("world.usdc", "pxr"), "USDZ": ("world.usdz", "pxr"), "SPZ": ("world.spz", "gsply"),
    }  # fmt: skip
    found = [
        Target(
            name, _save_gaussians(file), reader("splat.gaussian_files", "load_gaussians", file), (file,), needs=needs
        )
        for name, (file, needs) in forms.items()
    ]
    posed = ("transforms.json", "points.npy", "ground_plane.json", "images/0.png")
    calibration = "cameras.json"
    return [
        *found,
        Target("posed images", _write_stills, _read_capture, posed),
        Target("posed videos", _write_video_capture, _read_capture, ("cameras.json", "top.json", "run.mp4")),
        Target("video", _write_video, lambda f: np.asarray(reader("data.frames", "open_video", "run.mp4")(f)),
               ("run.mp4",)),
        Target("image", put(image__png=png(24, 16)), _read_image, ("image.png",)),
        Target("calibration", _write_cameras, reader("scene.camera_files", "load_calibration", calibration),
               (calibration,)),
        Target("virtual cameras", put(cams__toml=VIRTUAL), _read_virtual, ("cams.toml",)),
    ]  # fmt: skip


def _numbers() -> dict[str, np.ndarray]:
    run = episode(cameras=False)
    return {"a": run.q[:, 0], "b": run.q[:, 1], "u": run.action[:, 0]}


def csv_text() -> str:
    """The sound table."""
    rows = zip(*_numbers().values(), strict=True)
    return "\n".join(["a,b,u", *(",".join(f"{x:.6f}" for x in row) for row in rows)]) + "\n"


def _write_table(form: str) -> Callable[[Path], None]:
    """A recording and its mapping."""

    def write(folder: Path) -> None:
        put(map__toml=DATA_MAP.format(form=form.removesuffix(".gz")))(folder)
        if form == "npz":
            np.savez(folder / "run.npz", **_numbers())
            return
        rows = [dict(zip(_numbers(), map(float, row), strict=True)) for row in zip(*_numbers().values(), strict=True)]
        contents: Mapping[str, str | bytes] = {
            "csv": csv_text(), "csv.gz": gzip.compress(csv_text().encode(), mtime=0),
            "json": json.dumps({"robot": "arm", "entries": rows}),
            "lines": "".join(f"{name} {value:.6f}\n" for name, column in _numbers().items() for value in column),
        }  # fmt: skip
        (folder / f"run.{'txt' if form == 'lines' else form}").write_bytes(
            content.encode() if isinstance(content := contents[form], str) else content
        )

    return write


def load(source: Path, mapping: Path | None = None) -> None:
    """All of all episodes."""
    from instep.data import load_episodes

    for one in load_episodes(source, mapping):
        for column in one.columns.values():
            np.asarray(column)


def _write_zarr(folder: Path) -> None:
    import zarr

    group: Any = zarr.open_group(str(folder / "run.zarr"), mode="w", zarr_format=2)
    run = episode(cameras=False)
    group.create_array("data/state", data=run.q)
    group.create_array("data/action", data=run.action)
    group.create_array("data/img", data=np.full((ROWS, 8, 8, 3), 7.0, np.float32), chunks=(4, 8, 8, 3))
    group.create_array("meta/episode_ends", data=np.array([5, ROWS]))


def _write_foreign_mcap(folder: Path) -> None:
    """A log that other software wrote, with JSON messages."""
    import mcap.writer as writing

    with (folder / "run.mcap").open("wb") as file:
        log = writing.Writer(file)
        log.start()
        schema = log.register_schema("sensor_msgs/msg/JointState", "jsonschema", b'{"type": "object"}')
        channel = log.register_channel("/joint_states", "json", schema)
        for row, q in enumerate(episode(cameras=False).q):
            stamp = {"sec": 0, "nanosec": row * 20_000_000}
            message = {"header": {"stamp": stamp}, "name": JOINTS, "position": list(q), "velocity": [], "effort": []}
            log.add_message(channel, row * 20_000_000, json.dumps(message).encode(), row * 20_000_000)
        log.finish()


def _write_bag(folder: Path) -> None:
    from instep.data.formats.ros_logs import write_rosbag

    write_rosbag(folder / "bag", episode())
    database = next((folder / "bag").glob("*.db3"))
    text = (folder / "bag/metadata.yaml").read_text().replace(database.name, "run.db3")
    database.rename(folder / "bag/run.db3")
    (folder / "bag/metadata.yaml").write_text(text)


def _write_lerobot(version: str, own: bool = False) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        from instep.data import write_dataset

        write_dataset([episode(), episode(seed=1)], folder / "set", version=version)
        if not own:
            (folder / "set/meta/instep.json").unlink()

    return write


def _write_journal(folder: Path) -> None:
    from instep.data import Recorder

    run = episode()
    with Recorder(folder / "set", run.spec) as recorder:
        for k in range(ROWS):
            state = State(float(run.t[k]), run.q[k], run.v[k], {})
            recorder(state, {"observation.state": run["observation.state"][k], CAMERA: run[CAMERA][k]}, run.action[k])


def _guess_log(folder: Path) -> None:
    """What `instep start` does with a log of which it knows nothing."""
    from instep.data import find_logs
    from instep.data.guess.log_columns import column_groups

    column_groups(find_logs([folder / "run.csv"]).first_runs(), JOINTS)


def data_targets() -> list[Target]:
    """Recordings of all formats."""
    mapped = "data info {folder} --map {folder}/map.toml"
    tables = {
        "CSV": ("csv", "run.csv"), "gzipped CSV": ("csv.gz", "run.csv.gz"), "NPZ": ("npz", "run.npz"),
        "JSON log": ("json", "run.json"), "text log": ("lines", "run.txt"), "mapping": ("csv", "map.toml"),
    }  # fmt: skip
    found = [
        Target(name, _write_table(form), lambda f: load(f, f / "map.toml"), (file,), mapped)
        for name, (form, file) in tables.items()
    ]
    info, rows, table = "meta/info.json", "data/chunk-000/file-000.parquet", "meta/episodes/chunk-000/file-000.parquet"
    video, zarr = f"videos/{CAMERA}/chunk-000/file-000.mp4", "data/state"
    writers = "instep.data.formats"
    stores: tuple[tuple[str, Callable[[Path], object], str, tuple[str, ...], str], ...] = (
        ("LeRobot v3.0", _write_lerobot("v3.0"), "set", (info, rows, table, "meta/tasks.parquet", video), ""),
        ("LeRobot v2.1", _write_lerobot("v2.1"), "set",
         (info, "data/chunk-000/episode_000000.parquet", "meta/episodes.jsonl", "meta/tasks.jsonl"), ""),
        ("own dataset", _write_lerobot("v3.0", own=True), "set", ("meta/instep.json", info, rows), ""),
        ("journal", _write_journal, "set", ("journal/000000.rows", "journal/000000.images"), ""),
        ("zarr", _write_zarr, "run.zarr",
         (f"{zarr}/.zarray", f"{zarr}/0.0", "meta/episode_ends/.zarray", ".zgroup"), "zarr"),
        ("ROS bag", _write_bag, "bag", ("run.db3", "metadata.yaml"), "rosbags"),
        ("HDF5", lambda f: import_module(f"{writers}.table_formats").write_hdf5(f / "run.hdf5", episode()),
         "run.hdf5", (), "h5py"),
        ("MCAP", lambda f: import_module(f"{writers}.ros_logs").write_mcap(f / "run.mcap", episode()), "run.mcap", (),
         "mcap"),
        ("foreign MCAP", _write_foreign_mcap, "run.mcap", (), "mcap"),
    )  # fmt: skip
    for name, sample, source, files, needs in stores:
        spoilt = tuple(f"{source}/{file}" for file in files) or (source,)
        read = lambda f, source=source: load(f / source)  # noqa: E731
        found.append(Target(name, sample, read, spoilt, f"data info {{folder}}/{source}", needs))
    return [*found, Target("unknown log", _write_table("csv"), _guess_log, ("run.csv",))]


def _spec() -> Spec:
    joints = vector(JOINTS, "rad")
    return Spec(0.02, joints, vector(JOINTS, "rad/s"), joints, {"observation.state": joints})


def _write_flow_policy(folder: Path) -> None:
    from instep.policy.flow_policy import save_policy
    from instep.policy.policy_inputs import TIME_FREQUENCIES, PolicyDescription, PolicyInputs

    inputs = PolicyInputs({"observation.state": tuple(JOINTS)})
    description = PolicyDescription(inputs, tuple(JOINTS), (False, False), 4, 2, 3, 0.02)
    wide, size, rng = 6, 8, np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {
        "scale.feature_mean": (inputs.size,), "scale.feature_size": (inputs.size,), "scale.action_mean": (size,),
        "scale.action_size": (size,), "net.input.weight": (wide, inputs.size + size + 2 * TIME_FREQUENCIES),
        "net.input.bias": (wide,), "net.block0.norm.weight": (wide,), "net.block0.norm.bias": (wide,),
        "net.block0.up.weight": (wide, wide), "net.block0.up.bias": (wide,), "net.block0.down.weight": (wide, wide),
        "net.block0.down.bias": (wide,), "net.norm.weight": (wide,), "net.norm.bias": (wide,),
        "net.output.weight": (size, wide), "net.output.bias": (size,),
    }  # fmt: skip
    tensors = {name: rng.uniform(0.5, 1.5, shape).astype(np.float32) for name, shape in shapes.items()}
    save_policy(folder / "policy", description, tensors)


def _read_flow_policy(folder: Path) -> None:
    from instep.policy.flow_policy import load_policy

    policy = load_policy(folder / "policy", _spec())
    policy.reset()
    policy.act({"observation.state": np.zeros(2)})


def _read_policy_map(folder: Path) -> None:
    from instep.policy.policy_map import checked_map, read_map

    checked_map(read_map(folder / "map.toml"), _spec())


def _read_checkpoint(folder: Path) -> object:
    from instep.policy.model_files import lerobot_policy

    try:
        return lerobot_policy(str(folder / "checkpoint"), _spec())
    except MissingExtra:
        return None  # all that is ours has read it


def _write_message(folder: Path, module: str, message: Any) -> None:
    (folder / "message.bin").write_bytes(import_module(f"instep.{module}").pack(message))


def _unpacked(module: str) -> Callable[[Path], object]:
    return lambda folder: import_module(f"instep.{module}").unpack(read_file(folder / "message.bin"))


def policy_targets() -> list[Target]:
    """Policies and messages."""
    from instep.robot.wire import Command

    answer = {"actions": np.zeros((4, 2), np.float32), "state": np.ones(2)}
    state, action = {"type": "STATE", "shape": [2]}, {"type": "ACTION", "shape": [2]}
    config = {"type": "act", "input_features": {"observation.state": state}, "output_features": {"action": action}}
    checkpoint = put(
        checkpoint___config__json=json.dumps(config), checkpoint___model__safetensors=b"\x02\0\0\0\0\0\0\0{}"
    )
    weights = ("policy/policy.json", "policy/weights.safetensors")
    return [
        Target("policy folder", _write_flow_policy, _read_flow_policy, weights),
        Target("policy map", put(map__toml=POLICY_MAP), _read_policy_map, ("map.toml",)),
        Target("LeRobot checkpoint", checkpoint, _read_checkpoint, ("checkpoint/config.json",)),
        Target("message of a policy server", lambda f: _write_message(f, "policy.openpi", answer),
               _unpacked("policy.openpi"), ("message.bin",)),
        Target("message of a robot", lambda f: _write_message(f, "robot.wire", Command("c", 3, 5, np.zeros(2))),
               _unpacked("robot.wire"), ("message.bin",)),
    ]  # fmt: skip


def _read_events(folder: Path) -> object:
    from instep.gap.events import find_events, read_event_rules

    return find_events(episode(cameras=False), read_event_rules(folder / "events.toml"))


def _read_agreement(folder: Path) -> object:
    from instep.evaluate.agreement import rank_agreements, read_rates

    return rank_agreements(read_rates(folder / "rates.csv"))


def rule_targets() -> list[Target]:
    """Tables that users write: rules and rates."""
    gate = reader("evaluate.policy_gate", "read_gate_rules", "rules.toml")
    return [
        Target("gate rules", put(rules__toml=GATE), gate, ("rules.toml",), "gate expert {folder}/rules.toml"),
        Target("event rules", put(events__toml=EVENTS), _read_events, ("events.toml",)),
        Target("success rates", put(rates__csv=RATES), _read_agreement, ("rates.csv",)),
    ]
