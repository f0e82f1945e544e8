"""Readers of scenes, meshes, Gaussians, cameras and images, with a sound sample for each."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.core.world import Channel, Spec, frozen_dataclass, vector

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
URDF = """<robot name="arm">
  <link name="base">
    <inertial><mass value="1"/><inertia ixx="0.1" iyy="0.1" izz="0.1" ixy="0" ixz="0" iyz="0"/></inertial>
  </link>
  <link name="upper">
    <inertial><origin xyz="0 0 0.1"/><mass value="0.5"/>
      <inertia ixx="0.01" iyy="0.01" izz="0.01" ixy="0" ixz="0" iyz="0"/></inertial>
    <collision><geometry><mesh filename="package://arm/meshes/link.obj" scale="1 1 1"/></geometry></collision>
  </link>
  <link name="lower">
    <inertial><mass value="0.2"/><inertia ixx="0.02" iyy="0.01" izz="0.01" ixy="0" ixz="0" iyz="0"/></inertial>
    <collision><geometry><cylinder radius="0.02" length="0.2"/></geometry></collision>
  </link>
  <joint name="shoulder" type="revolute"><parent link="base"/><child link="upper"/><axis xyz="0 1 0"/>
    <limit lower="-1" upper="1" effort="5" velocity="2"/><dynamics damping="0.1" friction="0.01"/></joint>
  <joint name="elbow" type="continuous"><parent link="upper"/><child link="lower"/><origin xyz="0 0 0.3" rpy="0 0 0"/>
    <axis xyz="0 1 0"/></joint>
</robot>
"""
SCENE = """about = "An arm with two joints."
model = "robot.xml"
rate = 50.0

[robot]
joints = ["shoulder", "elbow"]
tip = "tip"

[robot.limits]
velocity = 2.0

[objects]
bodies = ["stone"]

[start]
keyframe = "home"
"shoulder" = [-0.1, 0.1]

[cameras.top]
width = 64
height = 48
distortion = [0.1, 0.0]

[params]
"joint.*.damping" = [0.01, 1.0]

[settings]
"joint.elbow.damping" = 0.2
"action.delay" = 0.02

[task]
text = "Wave."
"""
ACTUATORS = """
[actuators.friction]
"joint.shoulder.load" = 0.1

[actuators.cogging]
"joint.elbow.cogging_count" = 12.0
"joint.elbow.cogging_sin" = 0.01
"""
OBJ = "v 0 0 0\nv 0.1 0 0\nv 0 0.1 0\nv 0 0 0.3\nf 1 3 2\nf 1 2 4\nf 2 3 4\nf 1 4 3\n"


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


def write_robot(folder: Path) -> None:
    """An MJCF robot with meshes, a texture and an include."""
    (folder / "meshes").mkdir()
    (folder / "robot.xml").write_text(ROBOT)
    (folder / "lights.xml").write_text(LIGHTS)
    (folder / "meshes/link.obj").write_text(OBJ)
    (folder / "meshes/stone.stl").write_bytes(stl())
    (folder / "meshes/wood.png").write_bytes(png())


def write_urdf(folder: Path) -> None:
    """A URDF robot with a mesh."""
    (folder / "meshes").mkdir()
    (folder / "robot.urdf").write_text(URDF)
    (folder / "meshes/link.obj").write_text(OBJ)


def write_scene(folder: Path) -> None:
    """A scene folder with actuator models and sensor offsets."""
    write_robot(folder)
    (folder / "scene.toml").write_text(SCENE + ACTUATORS)
    (folder / "torque_sensors.toml").write_text("[settings]\nshoulder = 0.1\n")


def simulate(where: Path) -> None:
    """Open a scene and let it move for a fifth of a second."""
    from instep import open_world
    from instep.scene.folder import Scene

    scene = Scene.load(where)
    world = open_world(scene)
    state = world.reset(1)
    for _ in range(10):
        state = world.step(state, scene.rest_action())


def read_sensor_offsets(folder: Path) -> None:
    from instep.gap.torque_gap import sensor_offsets
    from instep.scene.folder import Scene

    sensor_offsets(Scene.load(folder))


def scene_targets() -> list[Target]:
    meshes = ("meshes/link.obj", "meshes/stone.stl", "meshes/wood.png")
    return [
        Target(
            "MJCF", write_robot, lambda f: simulate(f / "robot.xml"), ("robot.xml", "lights.xml"),
            ("scene", "params", "{folder}/robot.xml"),
        ),
        Target("meshes and textures", write_robot, lambda f: simulate(f / "robot.xml"), meshes,
               ("scene", "params", "{folder}/robot.xml")),
        Target("URDF", write_urdf, lambda f: simulate(f / "robot.urdf"), ("robot.urdf", "meshes/link.obj"),
               ("scene", "params", "{folder}/robot.urdf")),
        Target("scene.toml", write_scene, simulate, ("scene.toml",), ("scene", "params", "{folder}")),
        Target("torque_sensors.toml", write_scene, read_sensor_offsets, ("torque_sensors.toml",)),
    ]  # fmt: skip


# ---- Gaussians and captures


def gaussians(bodies: tuple[str, ...] = ("world",)) -> Any:
    from instep.splat.gaussians import concatenate, gaussians_from_colours

    rng = np.random.default_rng(0)
    parts = []
    for name in bodies:
        quats = np.tile([1.0, 0, 0, 0], (5, 1))
        made = gaussians_from_colours(
            rng.normal(size=(5, 3)), np.full((5, 3), 0.1), rng.random((5, 3)), quats=quats, opacities=np.full(5, 0.8)
        )
        parts.append(made.attached_to(name))
    return concatenate(parts)


def gaussian_sample(name: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        from instep.splat.io import save_gaussians

        save_gaussians(folder / name, gaussians())

    return write


def read_gaussians(name: str) -> Callable[[Path], object]:
    def read(folder: Path) -> object:
        from instep.splat.io import load_gaussians

        return load_gaussians(folder / name)

    return read


def write_gltf(folder: Path) -> None:
    """A .gltf document with its numbers in a file beside it."""
    from instep.splat.io import save_gaussians

    save_gaussians(folder / "body.glb", gaussians())
    data = (folder / "body.glb").read_bytes()
    length = int.from_bytes(data[12:16], "little")
    document = json.loads(data[20 : 20 + length])
    (folder / "body.bin").write_bytes(data[28 + length :])
    document["buffers"][0]["uri"] = "body.bin"
    (folder / "body.gltf").write_text(json.dumps(document))
    (folder / "body.glb").unlink()


def gaussian_targets() -> list[Target]:
    plain = {"PLY": "world.ply", "SPLAT": "world.splat", "GLB": "world.glb"}
    usd = {"USDA": "world.usda", "USDC": "world.usdc", "USDZ": "world.usdz"}
    made = [Target(n, gaussian_sample(file), read_gaussians(file), (file,)) for n, file in plain.items()]
    made += [Target(n, gaussian_sample(file), read_gaussians(file), (file,), needs="pxr") for n, file in usd.items()]
    made.append(Target("SPZ", gaussian_sample("world.spz"), read_gaussians("world.spz"), ("world.spz",), needs="gsply"))
    return [*made, Target("glTF", write_gltf, read_gaussians("body.gltf"), ("body.gltf", "body.bin"))]


def write_stills(folder: Path) -> None:
    """Posed images as nerfstudio describes them."""
    (folder / "images").mkdir()
    (folder / "images/0.png").write_bytes(png())
    frame = {"file_path": "images/0.png", "transform_matrix": np.eye(4).tolist()}
    (folder / "transforms.json").write_text(json.dumps({"fl_x": 5.0, "cx": 2.0, "cy": 2.0, "frames": [frame]}))
    np.save(folder / "points.npy", np.zeros((4, 3)))
    (folder / "ground_plane.json").write_text(json.dumps({"plane": [0, 0, 1, 0]}))


def write_video_capture(folder: Path) -> None:
    """Posed videos as Embodied Gaussians describes them."""
    write_video(folder)
    meta = {
        "K": [[9.0, 0, 12], [0, 9, 8], [0, 0, 1]],
        "resolution": [24, 16],
        "timestamps": [k / 50 for k in range(ROWS)],
    }
    (folder / "top.json").write_text(json.dumps(meta))
    entry = {"metadata_path": "top.json", "video_path": "run.mp4", "X_WC": np.eye(4).ravel().tolist()}
    (folder / "cameras.json").write_text(json.dumps({"top": entry}))


def write_video(folder: Path) -> None:
    from instep.data.video import VideoWriter

    with VideoWriter(folder / "run.mp4", 50) as video:
        for _ in range(ROWS):
            video.add(np.full((16, 24, 3), 90, np.uint8))


def read_video(folder: Path) -> object:
    from instep.data.frames import open_video

    return np.asarray(open_video(folder / "run.mp4"))


def read_capture(folder: Path) -> None:
    from instep.splat.capture import load_capture

    for shot in load_capture(folder).recordings:
        np.asarray(shot.images[0])


def read_image(folder: Path) -> object:
    from instep.core.reading import read_file
    from instep.data.frames import MAX_IMAGE, decode_image

    return decode_image(read_file(folder / "image.png", MAX_IMAGE))


def write_cameras(folder: Path) -> None:
    from instep.scene.camera import Camera
    from instep.scene.camera_files import Calibration

    camera = Camera("top", 64, 48, (50.0, 50.0), (32.0, 24.0), distortion=(0.1,) * 5)
    Calibration({"top": camera}, {"stone": np.ones(3)}, "by hand").save(folder / "cameras.json")


def read_cameras(folder: Path) -> object:
    from instep.scene.camera_files import load_calibration

    return load_calibration(folder / "cameras.json")


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


def read_virtual(folder: Path) -> object:
    from instep.scene.folder import Scene
    from instep.splat.rendered_world import load_rendered_cameras

    return load_rendered_cameras(folder / "cams.toml", Scene.load("pusht"))


def image_targets() -> list[Target]:
    return [
        Target("posed images", write_stills, read_capture,
               ("transforms.json", "points.npy", "ground_plane.json", "images/0.png")),
        Target("posed videos", write_video_capture, read_capture, ("cameras.json", "top.json", "run.mp4")),
        Target("video", write_video, read_video, ("run.mp4",)),
        Target("image", writer("image.png", png(24, 16)), read_image, ("image.png",)),
        Target("calibration", write_cameras, read_cameras, ("cameras.json",)),
        Target("virtual cameras", writer("cams.toml", VIRTUAL), read_virtual, ("cams.toml",)),
    ]  # fmt: skip


CAMERA = "observation.images.top"
JOINTS = ["shoulder", "elbow"]
ROWS = 12


@frozen_dataclass
class Target:
    """A reader, and a sample of what it reads."""

    name: str
    sample: Callable[[Path], None]
    """Writes sound files into an empty folder."""
    read: Callable[[Path], object]
    """Reads that folder; what it raises is what a user would meet."""
    files: tuple[str, ...]
    """Files of the sample that are spoilt, the main one first."""
    command: tuple[str, ...] = ()
    """Words of a command that reads the folder, {folder} in place of its path; none where no verb takes it alone."""
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


def episode(cameras: bool = True, seed: int = 0) -> Episode:
    """A short run of an arm with two joints."""
    rng = np.random.default_rng(seed)
    observation: dict[str, Channel] = {"observation.state": vector(JOINTS, "rad")}
    columns: dict[str, Any] = {
        "timestamp": np.arange(ROWS) / 50,
        "q": rng.normal(size=(ROWS, 2)),
        "v": rng.normal(size=(ROWS, 2)),
        "action": rng.normal(size=(ROWS, 2)),
        "observation.state": rng.normal(size=(ROWS, 2)).astype(np.float32),
    }
    if cameras:
        observation[CAMERA] = Channel((), "", (16, 24, 3), "uint8")
        columns[CAMERA] = np.full((ROWS, 16, 24, 3), 90, np.uint8)
        columns[f"{CAMERA}.stamp"] = columns["timestamp"]
    spec = Spec(0.02, vector(JOINTS, "rad"), vector(JOINTS, "rad/s"), vector(JOINTS, "rad"), observation)
    return Episode(spec, columns, {"task": "wave"})


def writer(name: str, content: str | bytes) -> Callable[[Path], None]:
    """Writes one file."""
    return lambda folder: (
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content) and None
    )
