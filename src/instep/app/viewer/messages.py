"""Messages to the viewer: scenes, tracks of recordings, rows of what is live, images, and marks on the timeline.

A message is a JSON header with the layout of the typed arrays behind it. The reader is web/src/protocol.ts. A page of a
report holds the same messages as a server sends.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from fractions import Fraction
from typing import Any, Literal

import mujoco
import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.poses import pose as pose_of_matrix
from instep.core.world import Array, Channel, array_dataclass, options_dataclass
from instep.physics.mujoco_cameras import shrunk
from instep.scene.folder import Scene
from instep.scene.model import body_poses

TYPES = {"<f4": "f32", "<i2": "i16", "<u2": "u16", "<u4": "u32", "|u1": "u8"}
"""NumPy's types of arrays -> their names in a message."""
IMAGES = "observation.images."
ROTATION_UNIT = 32767
"""Quaternions are sent as 16-bit integers: a turn of 2e-5 rad is finer than any screen."""
MAX_WIDTH = 640
"""Widest image that is sent [pixels]."""
QUANTIZER = 4
"""Quantizer of images, 2 (best) to 31; 4 is as large as quality 82 of libjpeg."""
Kind = Literal[
    "scene", "track", "live", "events", "image", "gaussians", "params", "choice", "info", "status", "opened", "views",
    "mask",
]  # fmt: skip
Level = Literal["info", "warn", "bad"]
Outcome = Literal["", "success", "failure", "absent"]


def encode(kind: Kind, header: Mapping[str, Any], buffers: Mapping[str, Array] | None = None) -> bytes:
    """One message: the length of the header (u32), the header padded to four bytes, then its arrays."""
    layouts: dict[str, Any] = {}
    data = b""
    for name, array in (buffers or {}).items():
        layouts[name] = {"type": TYPES[array.dtype.str], "offset": len(data), "length": int(array.size)}
        data += array.tobytes() + b"\0" * (-array.nbytes % 4)
    text = json.dumps({"kind": kind, **header, "buffers": layouts}, separators=(",", ":"), allow_nan=False).encode()
    text += b" " * (-len(text) % 4)
    return struct.pack("<I", len(text)) + text + data


def container(messages: Iterable[bytes]) -> bytes:
    """Messages in one block, each with its length before it."""
    return b"".join(part for message in messages for part in (struct.pack("<I", len(message)), message))


def packed_rotations(quats: Array) -> Array:
    """Unit quaternions as 16-bit integers."""
    return np.round(np.asarray(quats) * ROTATION_UNIT).astype("<i2")


def rounded(values: Iterable[float], places: int = 6) -> list[float]:
    """Numbers as short as a screen needs them."""
    return [round(float(value), places) for value in values]


def status_message(text: str, level: Level = "info", **more: Any) -> bytes:
    """A sentence for the reader of the page."""
    return encode("status", {"text": text, "level": level, **more})


def image_message(camera: str, label: str, t: float, image: Array) -> bytes:
    """An image [height, width, 3] of a camera at a time, as JPEG; `label` is below it."""
    import av

    image = shrunk(image, MAX_WIDTH)
    context: Any = av.codec.CodecContext.create("mjpeg", "w")
    context.height, context.width, context.pix_fmt = image.shape[0], image.shape[1], "yuvj420p"
    context.time_base, context.qmin, context.qmax = Fraction(1, 30), QUANTIZER, QUANTIZER
    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
    full = frame.reformat(format="yuvj420p", dst_color_range="JPEG")
    data = b"".join(bytes(packet) for packet in [*context.encode(full), *context.encode(None)])
    header = {"camera": camera, "label": label, "t": round(t, 4), "format": "jpeg"}
    return encode("image", header, {"data": np.frombuffer(data, np.uint8)})


@array_dataclass
class LiveRow:
    """One moment of something that is live."""

    t: float
    poses: Array
    """[bodies, 7]."""
    values: Array
    """One number per channel."""
    outcome: Outcome = ""
    """How the episode of this world ended; an absent one is not shown."""


def row_message(track: str, row: LiveRow, before: LiveRow | None) -> bytes:
    """A live row: the bodies that moved since the one before, and all channels."""
    if before is None or row.t <= before.t or len(row.poses) != len(before.poses):
        moved = np.arange(len(row.poses))
    else:
        moved = np.flatnonzero(np.abs(row.poses - before.poses).max(axis=1) > 1e-6)
    buffers = {
        "bodies": moved.astype("<u2"),
        "positions": row.poses[moved, :3].astype("<f4"),
        "rotations": packed_rotations(row.poses[moved, 3:]),
        "values": np.nan_to_num(row.values).astype("<f4"),
    }
    ended = {"outcome": row.outcome} if row.outcome else {}
    return encode("live", {"id": track, "t": round(row.t, 6), **ended}, buffers)


DEFAULT_GREY = (0.5, 0.5, 0.5, 1.0)
"""Colour of MuJoCo shapes that have none."""
NEUTRAL = (0.74, 0.76, 0.79, 1.0)
"""What they are shown in."""
HIDDEN_GROUP = 3
"""Groups of shapes from here on are hidden by MuJoCo's own viewer: collision shapes, by custom."""
WIDE_PLANE = 4.0
"""A plane with a side of so many radii of the scene is its ground."""
PLANE_SHARE = 0.75
"""How far planes are framed, in radii of the other shapes."""
SHAPES = ("plane", "sphere", "capsule", "ellipsoid", "cylinder", "box", "mesh")


def scene_message(scene: Scene, *, max_triangles: int | None = None) -> bytes:
    """The message that shows a scene at its initial state; with `max_triangles`, of coarser meshes."""
    model, data = scene.model, mujoco.MjData(scene.model)
    data.qpos[:] = scene.start(0)[0]
    mujoco.mj_kinematics(model, data)
    low, high = _boxes(model, data)
    centre, radius = _framed_sphere(model, low, high)
    shapes, ground = _shapes(model, data, radius)
    if ground is None:
        ground = round(float(low[:, 2].min(initial=np.inf)), 6) if len(low) else 0.0
    used = sorted({shape["mesh"] for shape in shapes if "mesh" in shape})
    meshes, buffers = _meshes(model, used, max_triangles)
    for shape in shapes:
        if "mesh" in shape:
            shape["mesh"] = used.index(shape["mesh"])
    names, joints = [model.body(b).name for b in range(model.nbody)], range(model.njnt)
    bodies = [
        {"name": name, "parent": int(model.body_parentid[b]), "mass": round(float(model.body_mass[b]), 6),
         "joints": [model.joint(j).name for j in joints if model.jnt_bodyid[j] == b]}
        for b, name in enumerate(names)
    ]  # fmt: skip
    cameras = [
        {"name": c.name, "body": names.index(c.body), "width": c.width, "height": c.height,
         "pose": rounded(pose_of_matrix(c.body_from_camera)), "focal": rounded(c.focal, 4),
         "centre": rounded(c.centre, 4)}
        for c in scene.cameras.values() if c.body in names
    ]  # fmt: skip
    sites = [
        {"name": site.name, "body": int(model.site_bodyid[site.id]), "pose": rounded([*site.pos, *site.quat])}
        for site in map(model.site, scene.tips)
    ]
    header = {
        "name": scene.name, "about": scene.about, "bodies": bodies, "geoms": shapes, "meshes": meshes,
        "cameras": cameras, "sites": sites, "ground": ground, "centre": rounded(centre), "radius": round(radius, 6),
    }  # fmt: skip
    poses = np.concatenate([data.xpos, data.xquat], axis=1).astype("<f4")
    return encode("scene", header, {**buffers, "poses": poses})


def _boxes(model: mujoco.MjModel, data: mujoco.MjData) -> tuple[Array, Array]:
    """Low and high corners [shapes, 3] of the boxes around all shapes, along the world's axes."""
    boxes: Array = model.geom_aabb.copy()
    planes = model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE
    boxes[planes] = 0
    boxes[planes, 3:5] = model.geom_size[planes, :2]
    rotations = data.geom_xmat.reshape(-1, 3, 3)
    middle = data.geom_xpos + (rotations @ boxes[:, :3, None])[..., 0]
    half = (np.abs(rotations) @ boxes[:, 3:, None])[..., 0]
    return middle - half, middle + half


def _framed_sphere(model: mujoco.MjModel, lows: Array, highs: Array) -> tuple[Array, float]:
    """Centre and radius of a sphere around all shapes; of planes, around as much as is near the other shapes."""
    planes = model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE
    if planes.all():
        return np.zeros(3), 1.0
    low, high = lows[~planes].min(axis=0), highs[~planes].max(axis=0)
    centre, reach = (low + high) / 2, PLANE_SHARE * float(np.linalg.norm(high - low)) / 2
    bounded = planes & (model.geom_size[:, :2] != 0).all(axis=1)
    low = np.vstack([low, np.clip(lows[bounded], centre - reach, centre + reach)]).min(axis=0)
    high = np.vstack([high, np.clip(highs[bounded], centre - reach, centre + reach)]).max(axis=0)
    return (low + high) / 2, max(1e-3, float(np.linalg.norm(high - low)) / 2)


def _shapes(model: mujoco.MjModel, data: mujoco.MjData, radius: float) -> tuple[list[dict[str, Any]], float | None]:
    """The shapes that can be shown, and the height of the ground where a wide plane is one."""
    collides = (model.geom_contype != 0) | (model.geom_conaffinity != 0)
    grouped = model.geom_group < HIDDEN_GROUP
    visual = {
        (int(b), int(group)) for b, group in np.stack([model.geom_bodyid, model.geom_group], 1)[~collides & grouped]
    }
    found: list[dict[str, Any]] = []
    ground: float | None = None
    for g in range(model.ngeom):
        kind = mujoco.mjtGeom(int(model.geom_type[g])).name.removeprefix("mjGEOM_").lower()
        body, group, size = int(model.geom_bodyid[g]), int(model.geom_group[g]), model.geom_size[g]
        if kind == "plane" and (not size[:2].all() or min(size[:2]) > WIDE_PLANE * radius):
            height = float(data.geom_xpos[g][2])
            ground = height if ground is None else max(ground, height)
            continue
        if kind not in SHAPES:
            continue
        # A colliding shape is hidden where its body has visual shapes of another group, unless it has a colour.
        coloured = model.geom_matid[g] >= 0 or not np.allclose(model.geom_rgba[g], DEFAULT_GREY)
        covered = not coloured and any(b == body and other != group for b, other in visual)
        visible = not grouped.any() or (grouped[g] and (not collides[g] or not covered))
        shape: dict[str, Any] = {
            "body": body, "name": model.geom(g).name, "type": kind, "size": rounded(size),
            "pose": rounded([*model.geom_pos[g], *model.geom_quat[g]]), "rgba": rounded(_colour(model, g), 4),
            "layer": "collision" if not visible else "both" if collides[g] else "visual",
        }  # fmt: skip
        found.append(shape | ({"mesh": int(model.geom_dataid[g])} if kind == "mesh" else {}))
    return found, ground


def _colour(model: mujoco.MjModel, geom: int) -> Array:
    """The colour of a shape: its own, or that of its material with the mean of its texture."""
    rgba, material = model.geom_rgba[geom], int(model.geom_matid[geom])
    if not np.allclose(rgba, DEFAULT_GREY):
        return rgba
    if material < 0:
        return np.array(NEUTRAL)
    own = model.mat_rgba[material].astype(float)
    for texture in (int(t) for t in np.atleast_1d(model.mat_texid[material]) if t >= 0):
        channels, begin = int(model.tex_nchannel[texture]), int(model.tex_adr[texture])
        count = int(model.tex_width[texture]) * int(model.tex_height[texture]) * channels
        own[:3] *= model.tex_data[begin : begin + count].reshape(-1, channels)[:, :3].mean(axis=0) / 255
        break
    return own


def _meshes(
    model: mujoco.MjModel, used: Sequence[int], max_triangles: int | None
) -> tuple[list[dict[str, Any]], dict[str, Array]]:
    """Meshes with corners as 16-bit shares of their box."""
    listed: list[dict[str, Any]] = []
    buffers: dict[str, Array] = {}
    total = sum(int(model.mesh_facenum[m]) for m in used)
    for i, m in enumerate(used):
        first, count = int(model.mesh_vertadr[m]), int(model.mesh_vertnum[m])
        vertices = np.asarray(model.mesh_vert[first : first + count], float)
        first, count = int(model.mesh_faceadr[m]), int(model.mesh_facenum[m])
        faces: Array = np.asarray(model.mesh_face[first : first + count], int)
        if max_triangles is not None and total > max_triangles:
            vertices, faces = _coarser(vertices, faces, max(12, count * max_triangles // total))
        low, size = vertices.min(axis=0), np.ptp(vertices, axis=0)
        shares = (vertices - low) / np.where(size > 0, size, 1)
        buffers[f"v{i}"] = np.asarray(np.round(shares * 65535), "<u2")
        buffers[f"f{i}"] = np.asarray(faces, "<u2" if len(vertices) < 2**16 else "<u4")
        listed.append({"low": rounded(low, 9), "size": rounded(size, 9)})
    return listed, buffers


def _coarser(vertices: Array, faces: Array, triangles: int) -> tuple[Array, Array]:
    """A mesh of about so many triangles: corners that share a cell of a grid become one."""
    from instep.twin.body_outlines import clustered

    cells, found = 256, clustered(vertices[faces], 256)
    while len(found.triangles) > triangles and cells >= 4:
        cells = int(cells / 1.3)
        found = clustered(vertices[faces], cells)
    return found.vertices, found.triangles


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
    """A ghost is shown in one colour, half transparent, without contacts."""
    max_rows: int = MAX_ROWS
    errors: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    """Channels that colour bodies: `body`, `channel` and `scale`."""


@array_dataclass
class PositionMap:
    """Where positions by label go in a scene; coordinates that are not given stay at the start of the scene."""

    start: Array
    places: Sequence[int]
    """Coordinates of the scene that are given."""
    given: Sequence[int]
    """Where they are among the positions by label."""

    @classmethod
    def of(cls, scene: Scene, labels: Sequence[str], who: str) -> PositionMap:
        """The map from positions with these labels; `who` has them, in the sentence that refuses other robots."""
        known = {label: i for i, label in enumerate(labels)}
        shared = [(i, known[label]) for i, label in enumerate(scene.spec.q.labels) if label in known]
        if not shared:
            raise BadInput(
                f"{who} has the positions {', '.join(labels[:8])}, none of which scene {scene.name!r} has; give the "
                "--scene of this robot."
            )
        return cls(scene.start(0)[0], [i for i, _ in shared], [k for _, k in shared])

    def __call__(self, q: Array) -> Array:
        """Positions [..., nq] of the scene."""
        out = np.broadcast_to(self.start, (*np.shape(q)[:-1], len(self.start))).copy()
        out[..., self.places] = q[..., self.given]
        return out


def positions_in(scene: Scene, episode: Episode) -> Array:
    """Positions [rows, nq] of a scene along an episode."""
    return PositionMap.of(scene, episode.spec.q.labels, "The recording")(episode.q)


def all_poses(model: mujoco.MjModel, q: Array) -> Array:
    """Poses [..., bodies, 7] of all bodies and the world at positions [..., nq]."""
    poses = np.zeros((*q.shape[:-1], model.nbody, 7))
    poses[..., 0, 3] = 1
    poses[..., 1:, :] = body_poses(model, q)
    return poses


def track_message(scene: Scene, episode: Episode, options: TrackOptions, more: ChannelTable | None = None) -> bytes:
    """The track of an episode in a scene; `more` are channels beside its own."""
    count = len(episode)
    rows = np.unique(np.linspace(0, count - 1, min(count, options.max_rows)).round().astype(int))
    q = positions_in(scene, episode)[rows]
    finite = np.isfinite(q).all(axis=1)
    if not finite.all():  # a replay that diverged stays where it last was
        q = q[np.maximum.accumulate(np.where(finite, np.arange(len(q)), 0))]
    table = channel_table(episode)
    names, values = list(table.channels), table.values[rows]
    if more is not None:
        names, values = [*names, *more.channels], np.concatenate([values, more.values[rows]], axis=1)
    poses = all_poses(scene.model, q)
    buffers = {
        "times": (episode.t[rows] - episode.t[0]).astype("<f4"),
        "positions": poses[..., :3].astype("<f4"),
        "rotations": packed_rotations(poses[..., 3:]),
        "values": np.nan_to_num(values).astype("<f4"),
    }
    if options.role == "main":
        buffers |= _contact_buffers(scene, q, episode, rows)
    header = {
        "id": options.id, "label": options.label, "role": options.role, "channels": names,
        "errors": [dict(error) for error in options.errors],
    }  # fmt: skip
    return encode("track", header, buffers)


def live_track(track: str, label: str, channels: Sequence[Mapping[str, str]], **more: Any) -> bytes:
    """A track whose rows are published later."""
    header = {"id": track, "label": label, "role": "main", "live": True, "channels": list(channels), **more}
    return encode("track", header)


def channel_table(episode: Episode) -> ChannelTable:
    """The channels of an episode that are vectors of numbers: positions first, then what was commanded and seen."""
    spec = episode.spec
    listed: list[tuple[str, Channel, str]] = [("q", spec.q, ""), ("action", spec.action, "action"), ("v", spec.v, "v")]
    listed += [(name, channel, name) for name, channel in spec.observation.items()]
    names, columns = list[dict[str, str]](), [np.zeros((len(episode), 0))]
    for column, channel, group in listed:
        if column not in episode or column.endswith(".stamp") or not channel.labels:
            continue  # images have no labels, and are decoded only when they are shown
        values = np.asarray(episode[column])
        if values.ndim == 2 and values.dtype.kind in "fiub" and values.shape[1] == len(channel.labels):
            names += channel_names(channel, group)
            columns.append(values.astype(float))
    return ChannelTable(names[:MAX_CHANNELS], np.concatenate(columns, axis=1)[:, :MAX_CHANNELS])


def channel_names(channel: Channel, group: str) -> list[dict[str, str]]:
    """Name, unit and group of each number of a channel; positions have no group of their own."""
    return [
        {"name": f"{group}.{label}" if group else label, "unit": unit,
         "group": group or ("bodies" if "." in label else "joints")}
        for label, unit in zip(channel.labels, channel.units, strict=True)
    ]  # fmt: skip


def _contact_buffers(scene: Scene, q: Array, episode: Episode, rows: Array) -> dict[str, Array]:
    """Place and force [N] of the contacts of each row, by forward dynamics at the recorded state and action."""
    model, data, wrench = scene.model, mujoco.MjData(scene.model), np.zeros(6)
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
        for c in range(min(data.ncon, MAX_CONTACTS)):
            mujoco.mj_contactForce(model, data, c, wrench)
            force = data.contact[c].frame.reshape(3, 3).T @ wrench[:3]
            if np.linalg.norm(force) > 1e-6 and np.isfinite(force).all():
                found.append(np.concatenate([data.contact[c].pos, force]))
        starts.append(len(found))
    contacts = np.stack(found) if found else np.zeros((0, 6))
    return {"contact_starts": np.array(starts, "<u4"), "contacts": contacts.astype("<f4")}


MAX_MARKS = 60
"""Most marks of a timeline; beyond that the later ones are left out."""
PAUSE_PERIODS = 2.5
"""A gap of so many control periods between two rows is a pause."""


def event_message(marks: Sequence[dict[str, Any]]) -> bytes:
    """The marks of a timeline, in the order of time."""
    return encode("events", {"events": sorted(marks, key=lambda mark: mark["t"])[:MAX_MARKS]})


def recorded_marks(episode: Episode) -> list[dict[str, Any]]:
    """Grasps, motions and impacts of bodies, pauses of the recording, and changes of a twin's stage of trust."""
    from instep.gap.events import default_event_rules, find_events
    from instep.twin.trust_stages import TrustStage, trust_events

    begin, steps = float(episode.t[0]), np.diff(episode.t)
    events = find_events(episode, default_event_rules(episode, {}))
    pauses = np.flatnonzero(steps > PAUSE_PERIODS * float(np.median(steps))) if len(steps) else ()
    return [
        *(_mark(event.t - begin, event.name, "info") for event in events),
        *(_mark(e.t, e.words, "bad" if e.stage >= TrustStage.HOLD else "warn") for e in trust_events(episode)),
        *(_mark(float(episode.t[row]) - begin, f"pause of {steps[row]:.2f} s", "warn") for row in pauses),
    ]


def error_marks(t: Array, errors: ChannelTable) -> list[dict[str, Any]]:
    """Where each of the joints with the largest errors is farthest from its recording."""
    values = np.nan_to_num(errors.values)
    marks: list[dict[str, Any]] = []
    for i in sorted(range(values.shape[1]), key=lambda i: -values[:, i].max())[:3]:
        row, channel = int(values[:, i].argmax()), errors.channels[i]
        words = f"largest error of {channel['name'].removeprefix('error.')}, {values[row, i]:.3g} {channel['unit']}"
        marks.append(_mark(float(t[row] - t[0]), words, "bad"))
    return marks


def _mark(t: float, label: str, level: Level) -> dict[str, Any]:
    return {"t": round(t, 4), "label": label, "level": level}
