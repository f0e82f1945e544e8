"""ROS bags (1 and 2) without ROS: logs in, episodes out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.reading import check_inside, check_regular, parsing, read_text
from instep.core.world import Array
from instep.data.files import MAX_RECORDING, library
from instep.data.formats import Format, write_files
from instep.data.frames import encode_png
from instep.data.lerobot.features import CAMERA_PREFIX, is_image
from instep.data.mapping import RawRun

from .mcap_files import TRANSFORMS, FramePose, fresh_images, start_time, transforms_of
from .ros_messages import MessageLog

MAX_DESCRIPTION = 16 << 20
"""Longest description of a bag [bytes]."""
MAX_BRACKETS = 10_000
"""Most brackets of one kind in the description of a bag, which bounds its depth."""
BAG_FILE = "metadata.yaml"
"""The file by which a folder is a ROS 2 bag."""
JOINTS, COMMAND = "/joint_states", "/joint_command"
_KINDS = {
    "joints": "sensor_msgs/msg/JointState",
    "transforms": "tf2_msgs/msg/TFMessage",
    "image": "sensor_msgs/msg/CompressedImage",
    "numbers": "std_msgs/msg/Float64MultiArray",
}
_PARTS = {"rad": "position", "m": "position", "rad/s": "velocity", "m/s": "velocity", "Nm": "effort", "N": "effort"}
"""What of a JointState commands in a unit are."""


def read_rosbag(path: Path, options: Mapping[str, Any]) -> Iterator[RawRun]:
    """One run of a bag: its joint states, commands, images, camera descriptions and transforms.

    Types that the bag does not define and the newest ROS 2 does not know are passed over and named.
    """
    log = MessageLog()
    high, types = library("rosbags.highlevel"), library("rosbags.typesys")
    _check_files(path)
    with parsing(path, "a ROS bag"):
        store = types.get_typestore(types.Stores.LATEST)
        with high.AnyReader([path], default_typestore=store) as reader:
            for connection, received, data in reader.messages():
                try:
                    message = reader.deserialize(data, connection.msgtype)
                except Exception:  # noqa: BLE001  # an unknown or damaged type is counted and named, not fatal
                    log.skip(connection.msgtype)
                    continue
                log.add(connection.topic, connection.msgtype, received * 1e-9, message)
    yield log.raw(path.name, str(options.get("joints", "")), str(options.get("command", "")))


def _check_files(path: Path) -> None:
    """Refuse a bag whose files are not plain ones inside its folder, or whose description is long or has aliases."""
    for file in path.iterdir() if path.is_dir() else (path,):
        check_inside(path if path.is_dir() else path.parent, file)
        check_regular(file, MAX_RECORDING)
    description = path / BAG_FILE
    if description.is_file():
        text = read_text(description, MAX_DESCRIPTION)
        if re.search(r"(^|[\s\[{,:-])[&*][\w]", text) or max(text.count("["), text.count("{")) > MAX_BRACKETS:
            raise BadInput(f"{str(description)!r} has aliases or is nested too deep for the description of a bag.")


def write_rosbag(folder: Path, episode: Episode) -> tuple[str, ...]:
    """Write one episode as a ROS 2 bag (sqlite3); which columns it cannot hold.

    Joints of `q` and `v` are on /joint_states with `observation.effort`, commands on /joint_command, poses of free
    bodies and `observation.pose.FRAME.CHILD` on /tf, images on /NAME/compressed, other numbers on topics of their name.
    """
    types = library("rosbags.typesys")
    writing = library("rosbags.rosbag2")
    with writing.Writer(folder, version=9) as writer:
        bag = _Bag(writer, types.get_typestore(types.Stores.ROS2_HUMBLE))
        return bag.write(episode)


class _Bag:
    """A bag being written."""

    def __init__(self, writer: Any, store: Any):
        self._writer, self._store, self._topics = writer, store, dict[str, tuple[Any, str]]()

    def write(self, episode: Episode) -> tuple[str, ...]:
        start, used = start_time(episode), {"timestamp", "q", "v", "action", "observation.effort"}
        poses = transforms_of(episode)
        used |= {pose.column for pose in poses}
        numbers = [
            n for n, c in episode.columns.items() if n not in used and c.dtype.kind in "fiub" and not is_image(c)
        ]
        images = [name for name, column in episode.columns.items() if is_image(column)]
        for row, t in enumerate(episode.t):
            at = start + float(t)
            self._joints(episode, row, at)
            self._command(episode, row, at)
            self._transforms(poses, row, at)
            for name in numbers:
                self._numbers(f"/{name.replace('.', '/')}", np.ravel(episode[name][row]), at)
        for name in images:
            self._images(episode, name, start)
        return tuple(sorted(set(episode.columns) - used - set(numbers) - set(images)))

    def _joints(self, episode: Episode, row: int, at: float) -> None:
        labels = episode.spec.q.labels
        scalar = [k for k, label in enumerate(labels) if "." not in label]
        if not scalar or "q" not in episode:
            return
        names = [labels[k] for k in scalar]
        speeds = [k for k, label in enumerate(episode.spec.v.labels) if label in names] if "v" in episode else []
        effort = episode["observation.effort"][row] if "observation.effort" in episode else np.zeros(0)
        velocity = episode["v"][row][speeds] if len(speeds) == len(names) else np.zeros(0)
        effort = effort if np.size(effort) == len(names) else np.zeros(0)
        self._state(JOINTS, (names, {"position": episode.q[row][scalar], "velocity": velocity, "effort": effort}), at)

    def _command(self, episode: Episode, row: int, at: float) -> None:
        channel = episode.spec.action
        if "action" not in episode or not channel.labels:
            return
        parts = {_PARTS.get(unit, "position") for unit in channel.units}
        part = parts.pop() if len(parts) == 1 else "position"
        self._state(COMMAND, (list(channel.labels), {part: episode.action[row]}), at)

    def _state(self, topic: str, joints: tuple[list[str], dict[str, Array]], at: float) -> None:
        names, given = joints
        values = [np.asarray(given.get(part, np.zeros(0)), float) for part in ("position", "velocity", "effort")]
        self._send(topic, "joints", self._type("joints")(self._header(at), names, *values), at)

    def _transforms(self, poses: list[FramePose], row: int, at: float) -> None:
        if not poses:
            return
        kinds = [self._store.types[f"geometry_msgs/msg/{n}"] for n in ("Vector3", "Quaternion", "Transform")]
        stamped = self._store.types["geometry_msgs/msg/TransformStamped"]
        out: list[Any] = []
        for pose in poses:
            x, y, z, qw, qx, qy, qz = (float(number) for number in pose.values[row])
            transform = kinds[2](kinds[0](x, y, z), kinds[1](qx, qy, qz, qw))
            out.append(stamped(self._header(at, pose.frame), pose.child, transform))
        self._send(TRANSFORMS, "transforms", self._type("transforms")(out), at)

    def _numbers(self, topic: str, values: Array, at: float) -> None:
        layout = self._store.types["std_msgs/msg/MultiArrayLayout"](dim=[], data_offset=0)
        self._send(topic, "numbers", self._type("numbers")(layout, np.asarray(values, float)), at)

    def _images(self, episode: Episode, name: str, start: float) -> None:
        topic = f"/{name.removeprefix(CAMERA_PREFIX).replace('.', '/')}/compressed"
        for row, stamp in fresh_images(episode, name):
            data = np.frombuffer(encode_png(np.asarray(episode[name][row])), np.uint8)
            message = self._type("image")(self._header(start + stamp, name), "png", data)
            self._send(topic, "image", message, start + float(episode.t[row]))

    def _type(self, kind: str) -> Any:
        return self._store.types[_KINDS[kind]]

    def _header(self, at: float, frame: str = "") -> Any:
        whole, part = divmod(round(at * 1e9), 1_000_000_000)
        stamp = self._store.types["builtin_interfaces/msg/Time"](sec=whole, nanosec=part)
        return self._store.types["std_msgs/msg/Header"](stamp=stamp, frame_id=frame)

    def _send(self, topic: str, kind: str, message: Any, at: float) -> None:
        if topic not in self._topics:
            made = self._writer.add_connection(topic, _KINDS[kind], typestore=self._store)
            self._topics[topic] = (made, _KINDS[kind])
        connection, name = self._topics[topic]
        self._writer.write(connection, round(at * 1e9), self._store.serialize_cdr(message, name))


ROSBAG = Format(
    "a ROS bag", read_rosbag, lambda episodes, folder: write_files(episodes, folder, "", write_rosbag),
    (".bag", ".db3"), (BAG_FILE,), mapping="bag",
)  # fmt: skip
