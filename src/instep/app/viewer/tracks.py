"""What a scene looks like, for the viewer: bodies, shapes, meshes, cameras, and what to frame.

Recordings and replays as tracks of the viewer: poses of bodies, contacts and channels over time.

Marks on the timeline: what happened in a recording, and where a replay is worst.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Literal

import mujoco
import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.poses import pose as pose_of_matrix
from instep.core.world import Array, Channel, array_dataclass, options_dataclass
from instep.scene.folder import Scene
from instep.scene.model import body_poses

from .messages import encode, packed_rotations, rounded
from .view_server import LiveRow

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
_TYPES = {
    mujoco.mjtGeom.mjGEOM_PLANE: "plane",
    mujoco.mjtGeom.mjGEOM_SPHERE: "sphere",
    mujoco.mjtGeom.mjGEOM_CAPSULE: "capsule",
    mujoco.mjtGeom.mjGEOM_ELLIPSOID: "ellipsoid",
    mujoco.mjtGeom.mjGEOM_CYLINDER: "cylinder",
    mujoco.mjtGeom.mjGEOM_BOX: "box",
    mujoco.mjtGeom.mjGEOM_MESH: "mesh",
}


def scene_message(scene: Scene, *, max_triangles: int | None = None) -> bytes:
    """The message that shows a scene at its initial state; with `max_triangles`, of coarser meshes."""
    model, (q, _) = scene.model, scene.start(0)
    data = mujoco.MjData(model)
    data.qpos[:] = q
    mujoco.mj_kinematics(model, data)
    centre, radius = framed_sphere(model, data)
    geoms, ground = _geoms(model, data, radius)
    if ground is None:
        lowest = [float(_box(model, data, g)[0][2]) for g in range(model.ngeom)]
        ground = round(min(lowest, default=0.0), 6)
    used = sorted({geom["mesh"] for geom in geoms if "mesh" in geom})
    meshes, buffers = _meshes(model, used, max_triangles)
    for geom in geoms:
        if "mesh" in geom:
            geom["mesh"] = used.index(geom["mesh"])
    buffers["poses"] = np.concatenate([data.xpos, data.xquat], axis=1).astype("<f4")
    header = {
        "name": scene.name, "about": scene.about, "bodies": _bodies(model), "geoms": geoms, "meshes": meshes,
        "cameras": _cameras(scene), "sites": _sites(scene), "ground": ground, "centre": rounded(centre),
        "radius": round(radius, 6),
    }  # fmt: skip
    return encode("scene", header, buffers)


def framed_sphere(model: mujoco.MjModel, data: mujoco.MjData) -> tuple[Array, float]:
    """Centre and radius of a sphere around all shapes; of planes, around as much as is near the other shapes."""
    planes = [g for g in range(model.ngeom) if model.geom_type[g] == mujoco.mjtGeom.mjGEOM_PLANE]
    boxes = [_box(model, data, g) for g in range(model.ngeom) if g not in planes]
    if not boxes:
        return np.zeros(3), 1.0
    low, high = np.min([low for low, _ in boxes], axis=0), np.max([high for _, high in boxes], axis=0)
    centre, reach = (low + high) / 2, PLANE_SHARE * float(np.linalg.norm(high - low)) / 2
    for g in planes:
        half = model.geom_size[g][:2]
        if not half.all():
            continue
        extent = np.abs(data.geom_xmat[g].reshape(3, 3)) @ np.array([*half, 0.0])
        begin, end = data.geom_xpos[g] - extent, data.geom_xpos[g] + extent
        low = np.minimum(low, np.clip(begin, centre - reach, centre + reach))
        high = np.maximum(high, np.clip(end, centre - reach, centre + reach))
    return (low + high) / 2, max(1e-3, float(np.linalg.norm(high - low)) / 2)


def _box(model: mujoco.MjModel, data: mujoco.MjData, geom: int) -> tuple[Array, Array]:
    """The corners of a box around a shape, along the world's axes."""
    rotation, box = data.geom_xmat[geom].reshape(3, 3), model.geom_aabb[geom].copy()
    if model.geom_type[geom] == mujoco.mjtGeom.mjGEOM_PLANE:
        box[:] = 0, 0, 0, *model.geom_size[geom][:2], 0
    middle, half = data.geom_xpos[geom] + rotation @ box[:3], np.abs(rotation) @ box[3:]
    return middle - half, middle + half


def _bodies(model: mujoco.MjModel) -> list[dict[str, Any]]:
    owners = [int(b) for b in model.jnt_bodyid]
    return [
        {"name": model.body(b).name, "parent": int(model.body_parentid[b]), "mass": round(float(model.body_mass[b]), 6),
         "joints": [model.joint(j).name for j, owner in enumerate(owners) if owner == b]}
        for b in range(model.nbody)
    ]  # fmt: skip


def _geoms(model: mujoco.MjModel, data: mujoco.MjData, radius: float) -> tuple[list[dict[str, Any]], float | None]:
    """The shapes that can be shown, and the height of the ground where a wide plane is one."""
    collides = (model.geom_contype != 0) | (model.geom_conaffinity != 0)
    shown = (~collides) & (model.geom_group < HIDDEN_GROUP)
    # Shapes that do not collide, of another group than those that do: the latter are for collisions alone.
    covered = {(int(b), int(other)) for b, group in zip(model.geom_bodyid[shown], model.geom_group[shown], strict=True)
               for other in range(HIDDEN_GROUP) if other != group}  # fmt: skip
    hidden_only = not (model.geom_group < HIDDEN_GROUP).any()
    found: list[dict[str, Any]] = []
    ground: float | None = None
    for g in range(model.ngeom):
        kind, body, size = int(model.geom_type[g]), int(model.geom_bodyid[g]), model.geom_size[g]
        if kind == mujoco.mjtGeom.mjGEOM_PLANE and (not size[:2].all() or min(size[:2]) > WIDE_PLANE * radius):
            height = float(data.geom_xpos[g][2])
            ground = height if ground is None else max(ground, height)
            continue
        if kind not in _TYPES:
            continue
        group = int(model.geom_group[g])
        # A shape with a colour of its own is meant to be seen, beside others of its body.
        coloured = model.geom_matid[g] >= 0 or not np.allclose(model.geom_rgba[g], DEFAULT_GREY)
        bare = (body, group) in covered and not coloured
        visible = shown[g] or hidden_only or (group < HIDDEN_GROUP and not bare)
        layer = "both" if visible and collides[g] else "visual" if visible else "collision"
        geom: dict[str, Any] = {
            "body": body, "name": model.geom(g).name, "type": _TYPES[mujoco.mjtGeom(kind)], "size": rounded(size),
            "pose": rounded([*model.geom_pos[g], *model.geom_quat[g]]), "rgba": rounded(_colour(model, g), 4),
            "layer": layer,
        }  # fmt: skip
        if geom["type"] == "mesh":
            geom["mesh"] = int(model.geom_dataid[g])
        found.append(geom)
    return found, ground


def _colour(model: mujoco.MjModel, geom: int) -> tuple[float, ...]:
    rgba = tuple(float(x) for x in model.geom_rgba[geom])
    material = int(model.geom_matid[geom])
    if material >= 0 and np.allclose(rgba, DEFAULT_GREY):
        own = model.mat_rgba[material].astype(float)
        texture = next((int(t) for t in np.atleast_1d(model.mat_texid[material]) if t >= 0), -1)
        if texture >= 0:
            own[:3] *= _mean_colour(model, texture)
        return tuple(own)
    return NEUTRAL if np.allclose(rgba, DEFAULT_GREY) else rgba


def _mean_colour(model: mujoco.MjModel, texture: int) -> Array:
    channels = int(model.tex_nchannel[texture])
    begin = int(model.tex_adr[texture])
    count = int(model.tex_width[texture]) * int(model.tex_height[texture]) * channels
    mean = model.tex_data[begin : begin + count].reshape(-1, channels).mean(axis=0) / 255
    return mean[:3] if channels >= 3 else np.repeat(mean[:1], 3)


def _meshes(
    model: mujoco.MjModel, used: list[int], max_triangles: int | None
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
            vertices, faces = coarser(vertices, faces, max(12, count * max_triangles // total))
        low, size = vertices.min(axis=0), np.ptp(vertices, axis=0)
        shares = (vertices - low) / np.where(size > 0, size, 1)
        buffers[f"v{i}"] = np.asarray(np.round(shares * 65535), "<u2")
        buffers[f"f{i}"] = np.asarray(faces, "<u2" if len(vertices) < 2**16 else "<u4")
        listed.append({"low": rounded(low, 9), "size": rounded(size, 9)})
    return listed, buffers


def coarser(vertices: Array, faces: Array, triangles: int) -> tuple[Array, Array]:
    """A mesh of about so many triangles: corners that share a cell of a grid become one.

    The grid is made coarser until few enough triangles have three corners in different cells.
    """
    low, size = vertices.min(axis=0), float(np.ptp(vertices, axis=0).max())
    cells = 256
    kept, mended = vertices, faces
    while len(mended) > triangles and cells >= 4:
        keys = np.floor((vertices - low) / max(size, 1e-12) * cells).astype(int)
        _, index, counts = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
        index = index.reshape(-1)
        kept = np.stack([np.bincount(index, vertices[:, k]) for k in range(3)], axis=1) / counts[:, None]
        corners = index[faces]
        distinct = (
            (corners[:, 0] != corners[:, 1]) & (corners[:, 1] != corners[:, 2]) & (corners[:, 0] != corners[:, 2])
        )
        mended = corners[distinct]
        cells = int(cells / 1.3)
    return kept, mended


def _cameras(scene: Scene) -> list[dict[str, Any]]:
    names = [scene.model.body(b).name for b in range(scene.model.nbody)]
    return [
        {"name": camera.name, "body": names.index(camera.body), "width": camera.width, "height": camera.height,
         "pose": rounded(pose_of_matrix(camera.body_from_camera)), "focal": rounded(camera.focal, 4),
         "centre": rounded(camera.centre, 4)}
        for camera in scene.cameras.values() if camera.body in names
    ]  # fmt: skip


def _sites(scene: Scene) -> list[dict[str, Any]]:
    """The end effectors."""
    model, found = scene.model, list[dict[str, Any]]()
    for name in scene.tips:
        site = model.site(name)
        pose = rounded([*model.site_pos[site.id], *model.site_quat[site.id]])
        found.append({"name": name, "body": int(model.site_bodyid[site.id]), "pose": pose})
    return found


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
    if not errors.values.size:
        return []
    values = np.nan_to_num(errors.values)
    worst = sorted(range(values.shape[1]), key=lambda i: -values[:, i].max())[:3]
    marks: list[dict[str, Any]] = []
    for i in worst:
        row, unit = int(values[:, i].argmax()), errors.channels[i]["unit"]
        name = errors.channels[i]["name"].removeprefix("error.")
        marks.append(_mark(float(t[row]) - float(t[0]), f"largest error of {name}, {values[row, i]:.3g} {unit}", "bad"))
    return marks


def _mark(t: float, label: str, level: str) -> dict[str, Any]:
    return {"t": round(t, 4), "label": label, "level": level}
