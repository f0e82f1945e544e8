"""Recordings and replays as tracks of the viewer: poses of bodies, contacts and channels over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Literal

import mujoco
import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.records import array_dataclass, options_dataclass
from instep.core.world import Array, Channel
from instep.scene.folder import Scene
from instep.scene.model import body_poses

from .messages import encode, packed_rotations
from .view_server import LiveRow

MAX_ROWS = 20_000
"""Most rows of a track; longer recordings are thinned."""
MAX_CHANNELS = 400
"""Most channels of a track; those of the joints come first."""
MAX_CONTACTS = 64
"""Most contacts of one row."""


@array_dataclass
class ChannelTable:
    """Numbers over time by name."""

    channels: Sequence[Mapping[str, str]]
    """Name, unit and group of each column."""
    values: Array
    """[rows, channels]."""


@options_dataclass
class TrackOptions:
    """How a track is shown."""

    id: str = "recording"
    label: str = "recording"
    role: Literal["main", "ghost"] = "main"
    """A ghost is shown in one colour, half transparent."""
    contacts: bool = True
    """Whether contacts are computed from positions, velocities and actions."""
    max_rows: int = MAX_ROWS
    errors: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    """Channels that colour bodies: `body`, `channel` and `scale`."""


def positions_in(scene: Scene, episode: Episode) -> Array:
    """Positions [rows, nq] of a scene along an episode; coordinates that it does not hold stay at their start."""
    places = {label: i for i, label in enumerate(episode.spec.q.labels)}
    labels = scene.spec.q.labels
    shared = [(i, places[label]) for i, label in enumerate(labels) if label in places]
    if not shared:
        raise BadInput(
            f"The recording has the positions {', '.join(episode.spec.q.labels[:8])}, none of which scene "
            f"{scene.name!r} has; give the --scene of this robot."
        )
    start, _ = scene.start(0)
    q = np.repeat(start[None], len(episode), axis=0)
    q[:, [i for i, _ in shared]] = episode.q[:, [k for _, k in shared]]
    return q


def track_message(scene: Scene, episode: Episode, options: TrackOptions, more: ChannelTable | None = None) -> bytes:
    """The track of an episode in a scene; `more` are channels beside its own."""
    rows = shown_rows(len(episode), options.max_rows)
    q = positions_in(scene, episode)[rows]
    finite = np.isfinite(q).all(axis=1)
    if not finite.all():  # a replay that diverged stays where it last was
        q = q[np.maximum.accumulate(np.where(finite, np.arange(len(q)), 0))]
    table = channel_table(episode)
    names, values = list(table.channels), table.values[rows]
    if more is not None:
        names, values = [*names, *more.channels], np.concatenate([values, more.values[rows]], axis=1)
    buffers = {
        "times": (episode.t[rows] - episode.t[0]).astype("<f4"),
        **pose_buffers(scene.model, q),
        "values": np.nan_to_num(values).astype("<f4"),
    }
    if options.contacts:
        buffers |= contact_buffers(scene, q, episode, rows)
    header = {
        "id": options.id, "label": options.label, "role": options.role, "channels": names,
        "errors": [dict(error) for error in options.errors],
    }  # fmt: skip
    return encode("track", header, buffers)


def shown_rows(count: int, most: int = MAX_ROWS) -> Array:
    """The rows of a recording that are sent."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


def pose_buffers(model: mujoco.MjModel, q: Array) -> dict[str, Array]:
    """Poses of all bodies along positions [rows, nq], with the world's own."""
    poses = np.zeros((len(q), model.nbody, 7))
    poses[:, 0, 3] = 1
    poses[:, 1:] = body_poses(model, q)
    return {"positions": poses[..., :3].astype("<f4"), "rotations": packed_rotations(poses[..., 3:])}


def channel_table(episode: Episode) -> ChannelTable:
    """The channels of an episode that are vectors of numbers: positions first, then what was commanded and seen."""
    spec = episode.spec
    listed: list[tuple[str, Channel, str]] = [("q", spec.q, ""), ("action", spec.action, "action"), ("v", spec.v, "v")]
    listed += [(name, channel, name) for name, channel in spec.observation.items()]
    names, columns = list[dict[str, str]](), list[Array]()
    for column, channel, group in listed:
        if column not in episode or column.endswith(".stamp") or not channel.labels:
            continue  # images have no labels, and are decoded only when they are shown
        values = np.asarray(episode[column])
        if values.ndim != 2 or values.dtype.kind not in "fiub" or values.shape[1] != len(channel.labels):
            continue
        names += channel_names(channel, group)
        columns += list(values.T.astype(float))
    if not columns:
        return ChannelTable((), np.zeros((len(episode), 0)))
    return ChannelTable(names[:MAX_CHANNELS], np.stack(columns[:MAX_CHANNELS], axis=1))


def channel_names(channel: Channel, group: str) -> list[dict[str, str]]:
    """Name, unit and group of each number of a channel; positions have no group of their own."""
    return [
        {"name": f"{group}.{label}" if group else label, "unit": unit,
         "group": group or ("bodies" if "." in label else "joints")}
        for label, unit in zip(channel.labels, channel.units, strict=True)
    ]  # fmt: skip


def live_row(scene: Scene, t: float, q: Array, values: Array) -> LiveRow:
    """A moment of something that is live, from positions [nq] and one number per channel."""
    poses = np.zeros((scene.model.nbody, 7))
    poses[0, 3] = 1
    poses[1:] = body_poses(scene.model, q)
    return LiveRow(t, poses, values)


def contact_buffers(scene: Scene, q: Array, episode: Episode, rows: Array) -> dict[str, Array]:
    """Contact points and forces [N] of each row, by forward dynamics at the recorded state and action."""
    model = scene.model
    data = mujoco.MjData(model)
    v = np.asarray(episode["v"])[rows] if "v" in episode and episode["v"].shape[1] == model.nv else None
    same = "action" in episode and episode.spec.action.labels == scene.spec.action.labels
    action = np.asarray(episode.action)[rows] if same else None
    starts, found = [0], list[Array]()
    for row, positions in enumerate(q):
        data.qpos[:] = positions
        if v is not None:
            data.qvel[:] = np.nan_to_num(v[row])
        if action is not None:
            data.ctrl[:] = np.nan_to_num(action[row])
        mujoco.mj_forward(model, data)
        found += contact_rows(model, data)
        starts.append(len(found))
    contacts = np.stack(found) if found else np.zeros((0, 6))
    return {"contact_starts": np.array(starts, "<u4"), "contacts": contacts.astype("<f4")}


def contact_rows(model: mujoco.MjModel, data: mujoco.MjData) -> list[Array]:
    """Place and force in the world's axes [6] of each contact that presses."""
    found: list[Array] = []
    wrench = np.zeros(6)
    for c in range(min(data.ncon, MAX_CONTACTS)):
        mujoco.mj_contactForce(model, data, c, wrench)
        contact = data.contact[c]
        force = contact.frame.reshape(3, 3).T @ wrench[:3]
        if np.linalg.norm(force) > 1e-6 and np.isfinite(force).all():
            found.append(np.concatenate([contact.pos, force]))
    return found
