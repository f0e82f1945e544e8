"""ROS messages of any log, collected by topic into one run.

Rows are at the stamps of the joint states. The command of a row is the one in force in the middle of its period, images
are the latest ones at each row, poses are interpolated. The joints of a command array without names follow from the
motion that answers it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array, Channel, frozen_dataclass
from instep.data.files import MAX_DECODED, library
from instep.data.frames import open_stills
from instep.data.mapping import RawRun
from instep.data.resample import QUATERNION, latest, onto

COMMANDS = ("command", "cmd", "target", "goal", "action", "desired", "trajectory")
"""Words in the names of topics that carry commands."""
SAME_CLOCK_S = 0.5
"""Difference between the times of a log and in the headers of its messages from which on they are two clocks [s]."""
PARTS = ("position", "velocity", "effort")
"""What a joint state holds of each joint."""


@dataclass(slots=True)
class TopicMessages:
    """The messages of one topic."""

    stamps: list[float] = field(default_factory=list[float])
    """Time in the header of each message [s]; the time of the log where it has none."""
    values: list[Any] = field(default_factory=list[Any])
    names: tuple[str, ...] = ()

    def append(self, stamp: float, value: Any) -> None:
        """Take one more message."""
        self.stamps.append(stamp)
        self.values.append(value)


@dataclass(slots=True)
class MessageLog:
    """Messages collected by topic and kind."""

    joints: dict[str, TopicMessages] = field(default_factory=dict[str, TopicMessages])
    images: dict[str, TopicMessages] = field(default_factory=dict[str, TopicMessages])
    poses: dict[str, TopicMessages] = field(default_factory=dict[str, TopicMessages])
    vectors: dict[str, TopicMessages] = field(default_factory=dict[str, TopicMessages])
    header: dict[str, str] = field(default_factory=dict[str, str])
    skipped: dict[str, int] = field(default_factory=dict[str, int])
    """Types of messages that are not understood, with how many came."""
    size: int = 0
    stamped: dict[str, list[tuple[float, float]]] = field(default_factory=dict[str, list[tuple[float, float]]])
    """Times of the log and in the header of the messages of each topic that has headers [s]."""

    def add(self, topic: str, kind: str, received: float, message: Any) -> None:
        """Take one decoded message; `kind` is its type, `received` [s] its time in the log."""
        short = kind.replace("/msg/", "/").rsplit("/", 1)[-1]
        stamp = _stamp(message, received)
        if stamp != received:
            self.stamped.setdefault(topic, []).append((received, stamp))
        take = _TAKERS.get(short)
        if take is None:
            self.skip(kind)
            return
        try:
            take(self, topic, stamp, message)
        except (AttributeError, TypeError, ValueError, IndexError) as error:
            raise BadInput(f"A message on {topic!r} is not the {kind} it says it is ({error}).") from None

    def skip(self, kind: str) -> None:
        """Count a message that is passed over."""
        self.skipped[kind] = self.skipped.get(kind, 0) + 1

    def raw(self, name: str, joints: str = "", command: str = "") -> RawRun:
        """One run of all messages; `joints` and `command` name topics where the choice is not clear."""
        states = {topic: s for topic, s in self.joints.items() if joints == topic or not _is_command(topic)}
        if not states:
            seen = ", ".join(sorted({*self.joints, *self.images, *self.poses, *self.vectors})) or "none"
            passed = ", ".join(sorted(self.skipped)) or "none"
            raise BadInput(
                f"{name!r} holds no joint states (topics understood: {seen}; types passed over: {passed}); name their "
                "topic under options.joints in a mapping."
            )
        main = joints or max(states, key=lambda topic: len(states[topic].stamps))
        if main not in self.joints:
            raise BadInput(f"{name!r} has no joint states on {main!r}; they are on {', '.join(self.joints)}.")
        self._to_clock_of(main)
        commands = [topic for topic in (*self.joints, *self.vectors) if topic != main and _is_command(topic)]
        return self._rows(name, main, command or next(iter(commands), ""))

    def _to_clock_of(self, main: str) -> None:
        """Move messages without a header, which have the time of the log, to the clock of the joint states.

        The log goes by the wall clock, headers by whatever clock the robot has: that of a simulation starts at 0 and
        may run at another speed. Within `SAME_CLOCK_S` both are taken for one clock.
        """
        pairs = np.array(sorted(self.stamped.get(main, ()))).reshape(-1, 2)
        if not len(pairs) or abs(float(np.median(pairs[:, 0] - pairs[:, 1]))) < SAME_CLOCK_S:
            return
        log, clock = pairs[:, 0], pairs[:, 1]
        for topic, stream in {**self.joints, **self.vectors}.items():
            if topic not in self.stamped:
                received = np.asarray(stream.stamps)
                before, after = np.minimum(received - log[0], 0.0), np.maximum(received - log[-1], 0.0)
                stream.stamps = (np.interp(received, log, clock) + before + after).tolist()

    def _rows(self, name: str, main: str, command: str) -> RawRun:
        stream = self.joints[main]
        order = np.argsort(stream.stamps, kind="stable")
        t = np.asarray(stream.stamps)[order]
        fresh = np.concatenate([[True], np.diff(t) > 0])
        t, order = t[fresh], order[fresh]
        columns: dict[str, Any] = {"time": t}
        header = {**self.header, "joints": main, "command": command}
        for part, values in _parts(stream).items():
            columns[f"joints.{part}"] = values[order]
            header[f"labels:joints.{part}"] = json.dumps(stream.names)
        if command:
            self._add_command(columns, header, command, (t, stream.names))
        for topic, images in self.images.items():
            _add_images(columns, f"images/{_tail(topic)}", images, t)
        for topic, poses in self.poses.items():
            channel = Channel(tuple(f"{topic}.{end}" for end in ("x", "y", "z", *QUATERNION)))
            columns[f"poses/{topic}"] = onto(t, *_sorted(poses), "linear", channel)
            header[f"labels:poses/{topic}"] = json.dumps(channel.labels)
        for topic, vectors in self.vectors.items():
            if topic != command:
                columns[f"vectors/{_tail(topic)}"] = onto(t, *_sorted(vectors), "hold")
        if self.skipped:
            header["skipped"] = ", ".join(f"{kind} ({count})" for kind, count in sorted(self.skipped.items()))
        return RawRun(name, columns, header)

    def _add_command(
        self, columns: dict[str, Any], header: dict[str, str], command: str, rows: tuple[Array, Sequence[str]]
    ) -> None:
        t, names = rows
        stream = self.joints.get(command) or self.vectors[command]
        if command in self.vectors:
            stamps, values = _sorted(stream)
        else:
            parts = list(_parts(stream).values())
            if not parts:
                raise BadInput(
                    f"The commands on {command!r} hold neither positions, velocities nor efforts throughout."
                )
            order = np.argsort(stream.stamps, kind="stable")
            stamps, values = np.asarray(stream.stamps)[order], parts[0][order]
        # A controller reads the state, then commands; the command in force for most of a row is that of its middle.
        steps = np.diff(t)
        middles = t + 0.5 * np.append(steps, steps[-1:] if len(steps) else 0.0)
        columns["command"] = values[latest(middles, stamps)]
        if stream.names:
            header["labels:command"] = json.dumps(stream.names)
            return
        states = {part: columns[f"joints.{part}"] for part in PARTS if f"joints.{part}" in columns}
        found = infer_command_order(t, columns["command"], states, names)
        if found.joints:
            header["labels:command"] = json.dumps(found.joints)
            header["note:command"] = f"{command} names no joints; their order is {found.how}"
        elif values.shape[1] == len(names):
            header["unordered:command"] = found.how


def _stamp(message: Any, received: float) -> float:
    header = getattr(message, "header", None)
    stamp = getattr(header, "stamp", None)
    if stamp is None:
        return received
    seconds = float(getattr(stamp, "sec", getattr(stamp, "secs", 0)))
    seconds += 1e-9 * float(getattr(stamp, "nanosec", getattr(stamp, "nsecs", 0)))
    return seconds or received


def _take_joints(log: MessageLog, topic: str, stamp: float, message: Any) -> None:
    names = tuple(str(name) for name in message.name)
    stream = log.joints.setdefault(topic, TopicMessages(names=names))
    if set(names) != set(stream.names):
        log.skip(f"JointState of other joints on {topic}")
        return
    order = [names.index(name) for name in stream.names] if names else slice(None)
    parts: dict[str, Array] = {}
    for part in PARTS:
        values = np.asarray(getattr(message, part), float)
        if values.size:
            parts[part] = values[order]
    stream.append(stamp, parts)


def _take_trajectory(log: MessageLog, topic: str, stamp: float, message: Any) -> None:
    names = tuple(str(name) for name in message.joint_names)
    log.joints.setdefault(topic, TopicMessages(names=names)).append(
        stamp, {"position": np.asarray(message.points[0].positions, float)}
    )


def _take_image(log: MessageLog, topic: str, stamp: float, message: Any) -> None:
    data = bytes(message.data)
    log.size += len(data)
    if log.size > MAX_DECODED:
        raise BadInput(f"The images of this log take more than {MAX_DECODED >> 30} GiB; import it in parts.")
    if hasattr(message, "encoding"):
        colours = {"rgb8": slice(None), "bgr8": slice(None, None, -1)}
        if message.encoding not in colours:
            log.skip(f"Image of {message.encoding} on {topic}")
            return
        rows = np.frombuffer(data, np.uint8).reshape(message.height, message.step)[:, : message.width * 3]
        value: Any = rows.reshape(message.height, message.width, 3)[..., colours[message.encoding]]
    else:
        value = data
    log.images.setdefault(topic, TopicMessages()).append(stamp, value)


def _take_camera(log: MessageLog, topic: str, stamp: float, message: Any) -> None:
    matrix = getattr(message, "k", None)
    matrix = message.K if matrix is None else matrix
    distortion = getattr(message, "d", getattr(message, "D", ()))
    described = {"K": np.reshape(matrix, (3, 3)).tolist(), "distortion": np.asarray(distortion, float).tolist()}
    described |= {"width": int(message.width), "height": int(message.height)}
    log.header[f"camera.{_tail(topic)}"] = json.dumps(described)


def _take_transforms(log: MessageLog, topic: str, stamp: float, message: Any) -> None:
    for one in message.transforms:
        name = f"{one.header.frame_id}.{one.child_frame_id}".replace("/", "_")
        move, turn = one.transform.translation, one.transform.rotation
        _add_pose(log, name, _stamp(one, stamp), move, turn)


def _take_pose(log: MessageLog, topic: str, stamp: float, message: Any) -> None:
    pose = message.pose
    _add_pose(log, topic.strip("/").replace("/", "_"), stamp, pose.position, pose.orientation)


def _add_pose(log: MessageLog, name: str, stamp: float, move: Any, turn: Any) -> None:
    pose = np.array([move.x, move.y, move.z, turn.w, turn.x, turn.y, turn.z], float)
    log.poses.setdefault(name, TopicMessages()).append(stamp, pose)


def _take_numbers(log: MessageLog, topic: str, stamp: float, message: Any) -> None:
    log.vectors.setdefault(topic, TopicMessages()).append(stamp, np.asarray(message.data, float).ravel())


_TAKERS = {
    "JointState": _take_joints, "JointTrajectory": _take_trajectory, "CompressedImage": _take_image,
    "Image": _take_image, "CameraInfo": _take_camera, "TFMessage": _take_transforms, "PoseStamped": _take_pose,
    "Float64MultiArray": _take_numbers, "Float32MultiArray": _take_numbers,
}  # fmt: skip


def _parts(stream: TopicMessages) -> dict[str, Array]:
    """Positions, velocities and efforts of a topic, where every message had them."""
    common = [part for part in PARTS if stream.values and all(part in value for value in stream.values)]
    return {part: np.stack([value[part] for value in stream.values]) for part in common}


def _sorted(stream: TopicMessages) -> tuple[Array, Array]:
    order = np.argsort(stream.stamps, kind="stable")
    if len({np.size(value) for value in stream.values}) > 1:
        raise BadInput("A topic of plain numbers changes its length during the log, so it cannot become a column.")
    return np.asarray(stream.stamps)[order], np.stack(stream.values)[order]


def _add_images(columns: dict[str, Any], name: str, stream: TopicMessages, t: Array) -> None:
    order = np.argsort(stream.stamps, kind="stable")
    stamps = np.asarray(stream.stamps)[order]
    values = [stream.values[int(k)] for k in order]
    frames: Any = open_stills(lambda k: values[k], len(values)) if isinstance(values[0], bytes) else np.stack(values)
    which = latest(t, stamps)
    columns[name] = frames[which]
    columns[f"{name}.stamp"] = stamps[which]


def _tail(topic: str) -> str:
    """A topic without the words for its transport."""
    words = [word for word in topic.strip("/").split("/") if word not in ("compressed", "image_raw", "camera_info")]
    return "_".join(words) or "camera"


def _is_command(topic: str) -> bool:
    return any(word in topic.lower() for word in COMMANDS)


MAX_LAG_S, LAGS = 0.3, 16
"""Longest delay between a command and the motion that follows it [s], and the number of delays tried."""
CLEAR_RATIO = 0.5
"""A joint is the one commanded if its distance from the command is less than this share of any other joint's."""


@frozen_dataclass
class CommandOrder:
    """Which joint each number of a command array is for."""

    joints: tuple[str, ...]
    """One name per number; empty where the motion does not say."""
    how: str
    """How they were found, or why they were not: part of a sentence."""


def infer_command_order(t: Array, commands: Array, states: Mapping[str, Array], joints: Sequence[str]) -> CommandOrder:
    """Match each number of a command array [rows, numbers] with a joint, by the states [rows, joints] of the same rows.

    Commands of positions, velocities or efforts are matched by their distance from these some time later. A match
    counts where it is clear both for the command and for the joint. A last pair that is left over belongs together.
    """
    numbers = commands.shape[1]
    if numbers > len(joints):
        return CommandOrder((), f"there are {numbers} numbers for {len(joints)} joints")
    if "position" in states and len(t) > 1:
        states = {"position": states["position"], "velocity": np.gradient(states["position"], t, axis=0), **states}
    period = float(np.median(np.diff(t))) if len(t) > 1 else MAX_LAG_S
    most = min(round(MAX_LAG_S / period), len(t) // 4) if period > 0 else 0
    lags = sorted({round(lag) for lag in np.linspace(0, most, LAGS)})
    size = np.maximum(np.mean(commands**2, axis=0), 1e-12)[:, None]
    best = (np.inf, "", np.zeros((0, 0)))
    for kind, values in states.items():
        late = [(commands[: len(values) - lag, :, None], values[lag:, None, :]) for lag in lags]
        distances = np.min([np.mean((command - value) ** 2, axis=0) for command, value in late], axis=0)
        share = np.minimum(distances / size, 1.0)
        # What is left of the commands when each has a joint of its own, as a share of each.
        left = float(share[library("scipy.optimize").linear_sum_assignment(share)].sum())
        best = min(best, (left, kind, np.sqrt(distances)), key=lambda found: found[0])
    _, kind, distances = best
    rival = np.minimum(_best_other(distances, 0), _best_other(distances, 1))
    found = {int(k): int(j) for k, j in np.argwhere(distances < CLEAR_RATIO * rival)}
    rows = [k for k in range(numbers) if k not in found]
    columns = [j for j in range(len(joints)) if j not in found.values()]
    if len(rows) == len(columns) == 1:
        found[rows[0]] = columns[0]
    elif rows:
        unclear = ", ".join(str(k) for k in rows)
        return CommandOrder((), f"the motion does not tell which joints the numbers {unclear} are for")
    return CommandOrder(tuple(joints[found[k]] for k in range(numbers)), f"inferred by distance from {kind}")


def _best_other(cost: Array, axis: int) -> Array:
    """For every entry the smallest other one along an axis."""
    if cost.shape[axis] < 2:
        return np.full_like(cost, np.inf)
    least, second = np.split(np.partition(cost, 1, axis=axis).take([0, 1], axis=axis), 2, axis=axis)
    return np.where(cost == least, second, least)
