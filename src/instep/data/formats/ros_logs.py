"""MCAP files and ROS bags (1 and 2), read and written without ROS, and Rerun recordings (.rrd), written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.imports import optional_library
from instep.core.reading import check_inside, check_regular, is_table, parse_json, parsing, read_text, shown
from instep.core.world import Array, array_dataclass
from instep.data.files import ALLOWED_KINDS, MAX_RECORDING, library
from instep.data.formats import Format, write_files
from instep.data.frames import encode_png, open_stills
from instep.data.lerobot import CAMERA_PREFIX, channel_of, is_image, spec_from_json, spec_to_json
from instep.data.mapping import RawRun
from instep.data.resample import quaternions

from .ros_messages import MessageLog

OWN = "instep"
"""Name of the MCAP metadata record in which an episode's spec and notes are kept."""
_STAMP = "builtin_interfaces/Time stamp\nstring frame_id\n"
_TIME = "================================================================================\nMSG: "
_HEADER = f"{_TIME}std_msgs/Header\n{_STAMP}{_TIME}builtin_interfaces/Time\nint32 sec\nuint32 nanosec\n"
JOINTS = f"std_msgs/Header header\nstring[] name\nfloat64[] position\nfloat64[] velocity\nfloat64[] effort\n{_HEADER}"
IMAGE = f"std_msgs/Header header\nstring format\nuint8[] data\n{_HEADER}"
TRANSFORMS = "/tf"
"""Topic of poses."""
POSE_PREFIX = "observation.pose."
"""What the names of columns of poses begin with: `observation.pose.<frame>.<child frame>`."""


@array_dataclass
class FramePose:
    """A pose of an episode that is sent as a transform."""

    frame: str
    child: str
    values: Array
    """xyz and wxyz [rows, 7]."""
    column: str
    """Column that it is part of."""


def transforms_of(episode: Episode) -> list[FramePose]:
    """Poses of free bodies in `q`, and those of columns of poses."""
    found: list[FramePose] = []
    if "q" in episode:
        for part in quaternions(episode.spec.q.labels):
            body = episode.spec.q.labels[int(part.start)].rpartition(".")[0]
            found.append(FramePose("world", body, episode.q[:, part.start - 3 : part.stop], "q"))
    for name, column in episode.columns.items():
        if name.startswith(POSE_PREFIX) and column.shape[1:] == (7,):
            frame, _, child = name.removeprefix(POSE_PREFIX).partition(".")
            found.append(FramePose(frame if child else "world", child or frame, np.asarray(column, float), name))
    return found


def read_mcap(path: Path, options: Mapping[str, Any]) -> Iterator[RawRun]:
    """One run: an episode we wrote comes back as it was, any other log by its joint states, images and poses."""
    check_regular(path, MAX_RECORDING)
    own = _own(path)
    log = MessageLog()
    for topic, kind, received, message in _messages(path, log):
        log.add(topic, kind, received, message)
    if own is not None:
        with parsing(path, "an episode that instep wrote"):
            written = _as_written(path.name, log, own)
        yield written
        return
    yield log.raw(path.name, str(options.get("joints", "")), str(options.get("command", "")))


def write_mcap(path: Path, episode: Episode) -> None:
    """Write one episode: each column a topic of JointState messages or PNG images, at its own stamps.

    Times are those of the wall clock where it was recorded, for stamps and log times alike.
    """
    writing, ros2 = library("mcap.writer"), library("mcap_ros2.writer")
    with path.open("wb") as file:
        writer: Any = ros2.Writer(file, compression=writing.CompressionType.ZSTD)
        joints = writer.register_msgdef("sensor_msgs/msg/JointState", JOINTS)
        image = writer.register_msgdef("sensor_msgs/msg/CompressedImage", IMAGE)
        kinds = {name: str(column.dtype) for name, column in episode.columns.items()}
        shapes = {name: list(column.shape[1:]) for name, column in episode.columns.items()}
        described = {"spec": json.dumps(spec_to_json(episode.spec)), "meta": json.dumps(dict(episode.meta))}
        writer.add_metadata(OWN, {**described, "dtypes": json.dumps(kinds), "shapes": json.dumps(shapes)})
        start = start_time(episode)
        for name, column in episode.columns.items():
            if column.dtype.kind not in "fiub":
                raise BadInput(f"The column {name!r} holds text, which MCAP messages of joint states cannot carry.")
        for row, t in enumerate(np.asarray(episode.t, float)):
            for name, column in episode.columns.items():
                stamps = episode.columns.get(f"{name}.stamp", episode.t)
                if is_image(column):
                    if row and f"{name}.stamp" in episode and stamps[row] == stamps[row - 1]:
                        continue  # the same image as before
                    schema, message = image, {"format": "png", "data": encode_png(np.asarray(column[row]))}
                else:
                    channel, numbers = channel_of(name, episode.spec), np.ravel(column[row]).astype(float).tolist()
                    labels = list(channel.labels) if channel else []
                    names = labels if len(labels) == len(numbers) else [f"{name}_{k}" for k in range(len(numbers))]
                    schema, message = joints, {"name": names, "position": numbers, "velocity": [], "effort": []}
                whole, part = divmod(round((start + float(stamps[row])) * 1e9), 1_000_000_000)
                header, at = {"stamp": {"sec": whole, "nanosec": part}, "frame_id": name}, round((start + t) * 1e9)
                writer.write_message(_topic(name), schema, {"header": header, **message}, at, at, row)
        writer.finish()


def start_time(episode: Episode) -> float:
    """What to add to the times of an episode for the time of day [s]: by the wall clock, where it was recorded.

    The clock is read once, at the first row: where it is set during the run, rows still follow each other as they did.
    """
    if "clock.wall" in episode and len(episode):
        return float(episode["clock.wall"][0]) - float(episode.t[0])
    return float(episode.meta.get("start", 0.0)) - min(0.0, float(np.min(episode.t, initial=0.0)))


def fresh_images(episode: Episode, column: str) -> Iterator[tuple[int, float]]:
    """Rows in which a camera has a new image, and when it was taken [s]."""
    name = f"{column}.stamp"
    stamps = np.asarray(episode.columns.get(name, episode.t), float)
    for row, stamp in enumerate(stamps):
        if row == 0 or name not in episode or stamp != stamps[row - 1]:
            yield row, float(stamp)


def _as_written(name: str, log: MessageLog, own: Mapping[str, str]) -> RawRun:
    """The columns of an episode that `write` stored, with their types."""
    kinds, shapes = (_own_table(own, key, name) for key in ("dtypes", "shapes"))
    columns: dict[str, Any] = {}
    for column, kind in kinds.items():
        if np.dtype(kind).kind not in ALLOWED_KINDS:
            raise BadInput(f"The column {column!r} of {name!r} is of the type {kind!r}; only numbers are read.")
        stream = log.joints.get(_topic(column))
        if stream is not None:
            rows = [value.get("position", np.zeros(0)) for value in stream.values]
            columns[column] = np.stack(rows).reshape(len(rows), *shapes[column]).astype(kind)
    rows = max((len(column) for column in columns.values()), default=0)
    for topic, stream in log.images.items():
        column = next(c for c in kinds if _topic(c) == topic)
        columns[column] = _spread(stream, columns.get(f"{column}.stamp"), rows)
    return RawRun(name, columns, {"own.spec": own["spec"], "own.meta": own["meta"]})


def _spread(stream: Any, stamps: Any, rows: int) -> Any:
    """Images that were stored once each, beside all the rows that show them."""
    values = list(stream.values)
    frames = open_stills(lambda k: values[k], len(values))
    if stamps is None or len(values) == rows:
        return frames
    fresh = np.concatenate([[0], np.cumsum(np.diff(stamps) != 0)])
    return frames[fresh]


def own_episode(raw: RawRun) -> Episode | None:
    """The episode a file of ours holds; None where the file is not ours."""
    if "own.spec" not in raw.header:
        return None
    meta = {str(k): str(v) for k, v in _own_table(raw.header, "own.meta", raw.name).items()}
    described = _own_table(raw.header, "own.spec", raw.name)
    with parsing(raw.name, "an episode that instep wrote"):
        return Episode(spec_from_json(described), raw.columns, meta)


def _own_table(notes: Mapping[str, str], key: str, name: str) -> dict[str, Any]:
    """A table that we noted in a file as JSON."""
    table = parse_json(notes.get(key, ""), f"{key} of {name}")
    if not is_table(table):
        raise BadInput(f"{key!r} of {name!r} is {shown(table)}; a table was expected, so the file is damaged.")
    return table


def _own(path: Path) -> dict[str, str] | None:
    reading = library("mcap.reader")
    with parsing(path, "MCAP"), path.open("rb") as file:
        for record in reading.make_reader(file).iter_metadata():
            if record.name == OWN:
                return dict(record.metadata)
    return None


def _messages(path: Path, log: MessageLog) -> Iterator[tuple[str, str, float, Any]]:
    reading, ros2 = library("mcap.reader"), library("mcap_ros2.decoder")
    factory: Any = ros2.DecoderFactory()
    with parsing(path, "MCAP"), path.open("rb") as file:
        for schema, channel, message in reading.make_reader(file).iter_messages():
            kind = schema.name if schema else "without a schema"
            if channel.message_encoding == "json":
                value: Any = _namespace(parse_json(message.data, f"a message of {path.name}"))
            elif schema and schema.encoding in ("ros2msg", "ros2idl"):
                decode = factory.decoder_for(channel.message_encoding, schema)
                value = decode(message.data) if decode else None
            else:
                value = None
            if value is None:
                log.skip(f"{kind} as {channel.message_encoding}")
                continue
            yield channel.topic, kind, message.log_time * 1e-9, value


def _namespace(value: Any) -> Any:
    if isinstance(value, dict):
        entries = cast(dict[str, Any], value)
        return SimpleNamespace(**{k: _namespace(v) for k, v in entries.items()})
    return [_namespace(v) for v in cast(list[Any], value)] if isinstance(value, list) else value


def _topic(name: str) -> str:
    return "/" + name.replace(".", "/")


TIMELINE, WALL_CLOCK = "time", "wall_clock"
"""Timelines of a recording: seconds since the first row, and the time of day where it was recorded."""


def _write_rerun(path: Path, episode: Episode) -> None:
    """Write one episode, under the name of its folder and file.

    Columns become entities: `q/elbow`, `action/elbow`, `observation/state/elbow`, `cameras/top`. Images are at their
    own time of capture.
    """
    rerun: Any = optional_library("rerun", "rerun", "rerun-sdk")
    recording = rerun.RecordingStream("instep", recording_id=f"{path.parent.name}/{path.stem}")
    recording.save(str(path))
    for key, text in episode.meta.items():
        recording.log(f"notes/{key.replace(' ', '_')}", rerun.TextDocument(text), static=True)
    for column, values in episode.columns.items():
        if is_image(values):
            entity = f"cameras/{column.removeprefix(CAMERA_PREFIX)}"
            for row, stamp in fresh_images(episode, column):
                recording.set_time(TIMELINE, duration=stamp)
                if "clock.wall" in episode:
                    recording.set_time(WALL_CLOCK, timestamp=start_time(episode) + stamp)
                image = encode_png(np.asarray(episode[column][row]))
                recording.log(entity, rerun.EncodedImage(contents=image, media_type="image/png"))
        elif column != "timestamp" and not column.endswith(".stamp") and values.dtype.kind in "fiub":
            _write_curves(rerun, recording, episode, column)
    recording.flush()
    recording.disconnect()


def _write_curves(rerun: Any, recording: Any, episode: Episode, column: str) -> None:
    values = np.asarray(episode[column], float).reshape(len(episode), -1)
    channel = channel_of(column, episode.spec)
    labels = channel.labels if channel is not None and len(channel.labels) == values.shape[1] else ()
    above = column.replace(".", "/")
    for k in range(values.shape[1]):
        label = labels[k] if labels else str(k)
        entity = above if values.shape[1] == 1 and not labels else f"{above}/{label}"
        times = np.asarray(episode.t, float)
        indexes = [rerun.TimeColumn(TIMELINE, duration=times)]
        if "clock.wall" in episode:
            indexes.append(rerun.TimeColumn(WALL_CLOCK, timestamp=start_time(episode) + times))
        rerun.send_columns(
            entity,
            indexes=indexes,
            columns=rerun.Scalars.columns(scalars=values[:, k]),
            recording=recording,
        )


MCAP = Format(
    "MCAP", read_mcap, lambda episodes, folder: write_files(episodes, folder, ".mcap", write_mcap), (".mcap",),
    mapping="mcap",
)  # fmt: skip
RERUN = Format("Rerun", write=lambda episodes, folder: write_files(episodes, folder, ".rrd", _write_rerun))


MAX_DESCRIPTION = 16 << 20
"""Longest description of a bag [bytes]."""
MAX_BRACKETS = 10_000
"""Most brackets of one kind in the description of a bag, which bounds its depth."""
BAG_FILE = "metadata.yaml"
"""The file by which a folder is a ROS 2 bag."""
JOINT_TOPIC, COMMAND_TOPIC = "/joint_states", "/joint_command"
_KINDS = {
    "joints": "sensor_msgs/msg/JointState", "transforms": "tf2_msgs/msg/TFMessage",
    "image": "sensor_msgs/msg/CompressedImage", "numbers": "std_msgs/msg/Float64MultiArray",
}  # fmt: skip
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
        layout = self._store.types["std_msgs/msg/MultiArrayLayout"](dim=[], data_offset=0)
        for row, t in enumerate(episode.t):
            at = start + float(t)
            self._joints(episode, row, at)
            self._command(episode, row, at)
            self._transforms(poses, row, at)
            for name in numbers:
                values = np.asarray(np.ravel(episode[name][row]), float)
                self._send(_topic(name), "numbers", self._type("numbers")(layout, values), at)
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
        given = {"position": episode.q[row][scalar], "velocity": episode.v[row][speeds] if speeds else ()}
        given["effort"] = episode["observation.effort"][row] if "observation.effort" in episode else ()
        self._state(JOINT_TOPIC, names, given, at)

    def _command(self, episode: Episode, row: int, at: float) -> None:
        channel = episode.spec.action
        if "action" in episode and channel.labels:
            parts = {_PARTS.get(unit, "position") for unit in channel.units}
            part = parts.pop() if len(parts) == 1 else "position"
            self._state(COMMAND_TOPIC, list(channel.labels), {part: episode.action[row]}, at)

    def _state(self, topic: str, names: list[str], given: Mapping[str, Any], at: float) -> None:
        """A joint state; what has another number of values than there are names is left out."""
        values = [np.asarray(given.get(part, ()), float) for part in ("position", "velocity", "effort")]
        values = [each if each.size == len(names) else np.zeros(0) for each in values]
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
