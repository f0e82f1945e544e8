"""What a foreign policy calls the numbers of our worlds: one file per robot and policy.

prompt = "push the T onto its outline"
execute = 8                        # actions of a chunk that are played

[[state]]                          # a vector the policy gets
key = "state"                      # '>' goes one level down: 'state>left_arm'
joints = ["pusher_x", "pusher_y"]  # labels of our observations, in the policy's order
scale = [1.0, 1.0]                 # policy = ours * scale + offset; unit = "deg" for degrees

[[image]]
camera = "cam_high"
key = "images>cam_high"
layout = "CHW"
size = [224, 224]                  # padded, not stretched

[[action]]
key = "actions"
joints = ["pusher_x", "pusher_y"]
kind = "absolute"                  # or "delta", added to where the joint stands
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import pi
from pathlib import Path
from typing import Any, Literal

import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.world import Array, Observation, Spec

CAMERA = "observation.images."


@dataclass(frozen=True, slots=True)
class Vector:
    """A vector of joints as the policy has it."""

    key: str
    joints: tuple[str, ...]
    scale: tuple[float, ...] = ()
    offset: tuple[float, ...] = ()
    unit: str = ""
    """'deg' where the policy counts in degrees what we count in radians."""
    kind: Literal["absolute", "delta"] = "absolute"
    dtype: str = "float32"

    def to_policy(self, ours: Array) -> Array:
        """Our numbers as the policy's."""
        return (ours * self._scale + self._offset).astype(self.dtype)

    def to_ours(self, theirs: Array) -> Array:
        """The policy's numbers as ours."""
        return (np.asarray(theirs, float) - self._offset) / self._scale

    @property
    def _scale(self) -> Array:
        scale = np.array(self.scale or (1.0,) * len(self.joints))
        return scale * (180 / pi if self.unit == "deg" else 1.0)

    @property
    def _offset(self) -> Array:
        return np.array(self.offset or (0.0,) * len(self.joints))


@dataclass(frozen=True, slots=True)
class Image:
    """A camera's picture as the policy has it."""

    camera: str
    key: str
    layout: Literal["HWC", "CHW"] = "HWC"
    size: tuple[int, int] | None = None
    """Height and width it is scaled and padded to."""


@dataclass(frozen=True, slots=True)
class PolicyMap:
    """How observations become what a policy gets, and what it says becomes actions."""

    state: tuple[Vector, ...]
    action: tuple[Vector, ...]
    image: tuple[Image, ...] = ()
    prompt: str = ""
    prompt_key: str = "prompt"
    execute: int = 0
    """Actions of a chunk that are played; all of them where 0."""
    ensemble: float | None = None
    """Decay of temporal ensembling, where it is wanted."""
    release: str = ""
    """Release of a GR00T server: n1.5, n1.6 or n1.7."""

    def request(self, seen: Observation, spec: Spec, row: int | None) -> dict[str, Any]:
        """What the policy gets, of one world of a batch or of a single one."""
        out: dict[str, Any] = {}
        for vector in self.state:
            put_at(out, vector.key, vector.to_policy(_row(_gathered(vector.joints, seen, spec), row)))
        for image in self.image:
            name = CAMERA + image.camera
            if name not in seen:
                raise UnknownName(
                    "camera", image.camera, [n.removeprefix(CAMERA) for n in seen if n.startswith(CAMERA)]
                )
            put_at(out, image.key, _pictured(_row(np.asarray(seen[name]), row), image))
        if self.prompt:
            put_at(out, self.prompt_key, self.prompt)
        return out

    def actions(self, reply: Mapping[str, Any], seen: Observation, spec: Spec, row: int | None) -> Array:
        """Our actions [horizon, nu] of what the policy said."""
        place = {label: i for i, label in enumerate(spec.action.labels)}
        parts = [self._part(vector, reply) for vector in self.action]
        horizon = parts[0].shape[-2]
        out = np.full((horizon, len(place)), np.nan)
        for vector, part in zip(self.action, parts, strict=True):
            if part.shape != (horizon, len(vector.joints)):
                raise BadInput(
                    f"The policy's {vector.key!r} has shape {part.shape}, but {len(vector.joints)} joints are mapped."
                )
            ours = vector.to_ours(part)
            if vector.kind == "delta":
                ours = ours + _row(_gathered(vector.joints, seen, spec), row)
            for j, label in enumerate(vector.joints):
                if label not in place:
                    raise UnknownName("action", label, place)
                out[:, place[label]] = ours[:, j]
        if not np.isfinite(out).all():
            bad = [label for label, i in place.items() if not np.isfinite(out[:, i]).all()]
            raise BadInput(f"The policy's actions for {', '.join(bad)} are missing or not finite numbers.")
        return out

    def _part(self, vector: Vector, reply: Mapping[str, Any]) -> Array:
        found = np.asarray(get_at(reply, vector.key))
        if found.dtype.kind not in "fiu":
            raise BadInput(f"The policy's {vector.key!r} is not an array of numbers.")
        found = found[None] if found.ndim == 1 else found
        if found.ndim != 2 or len(found) == 0:
            raise BadInput(
                f"The policy's {vector.key!r} has shape {found.shape}; a chunk [horizon, joints] was expected."
            )
        return found


def default_map(spec: Spec, prompt: str = "") -> PolicyMap:
    """The map for a policy that calls things as we do: `state`, `images>NAME`, `actions`."""
    state: list[Vector] = []
    for name, channel in spec.observation.items():
        if channel.labels and not name.startswith(CAMERA) and len(channel.shape) == 1:
            key = "state" if name == "observation.state" else name
            state.append(Vector(key, tuple(f"{name}/{label}" for label in channel.labels)))
    images = [
        Image(name.removeprefix(CAMERA), f"images>{name.removeprefix(CAMERA)}")
        for name in spec.observation
        if name.startswith(CAMERA)
    ]
    return PolicyMap(tuple(state), (Vector("actions", spec.action.labels),), tuple(images), prompt)


def read_map(path: Path) -> PolicyMap:
    """The map in a TOML file."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise BadInput(f"There is no file {str(path)!r}; a map says what a policy calls our numbers.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path.name} is not valid TOML: {error}.") from None
    _known(table, PolicyMap, path.name)
    made: dict[str, Any] = {k: v for k, v in table.items() if k not in ("state", "action", "image")}
    for name, kind in (("state", Vector), ("action", Vector), ("image", Image)):
        made[name] = tuple(_entry(kind, entry, f"[[{name}]] of {path.name}") for entry in table.get(name, ()))
    if not made["action"]:
        raise BadInput(f"{path.name} has no [[action]]; a map must say where the policy's actions go.")
    return PolicyMap(**made)


def put_at(tree: dict[str, Any], key: str, value: Any) -> None:
    """Write a value under 'a>b>c'."""
    *outer, last = key.split(">")
    for part in outer:
        tree = tree.setdefault(part, {})
    tree[last] = value


def get_at(tree: Mapping[str, Any], key: str) -> Any:
    """Read the value under 'a>b>c'."""
    node: Any = tree
    for part in key.split(">"):
        if not isinstance(node, Mapping) or part not in node:
            known = sorted(str(k) for k in node) if isinstance(node, Mapping) else []
            raise UnknownName("entry of the policy's answer", key, known)
        node = node[part]
    return node


def _entry(kind: type[Any], entry: Mapping[str, Any], where: str) -> Any:
    _known(entry, kind, where)
    fixed = {k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()}
    try:
        made = kind(**fixed)
    except TypeError as error:
        raise BadInput(f"{where} is not complete: {error}.") from None
    for name in ("scale", "offset"):
        given = fixed.get(name)
        if given and len(given) != len(fixed["joints"]):
            raise BadInput(f"{where} has {len(given)} numbers as {name} for {len(fixed['joints'])} joints.")
    return made


def _known(entry: Mapping[str, Any], kind: type[Any], where: str) -> None:
    known = [f.name for f in fields(kind)]
    for key in entry:
        if key not in known:
            raise UnknownName(f"entry under {where}", key, known)


def _gathered(labels: Sequence[str], seen: Observation, spec: Spec) -> Array:
    """Values by their labels; 'observation.velocity/elbow' names the channel too, where a label is in several."""
    columns: list[Array] = []
    for label in labels:
        channel, _, own = label.rpartition("/")
        names = [channel] if channel else [n for n, c in spec.observation.items() if label in c.labels]
        if not names or names[0] not in seen or own not in spec.observation[names[0]].labels:
            known = [x for n, c in spec.observation.items() if n in seen for x in c.labels]
            raise UnknownName("observed value", label, known)
        columns.append(np.asarray(seen[names[0]])[..., spec.observation[names[0]].labels.index(own)])
    return np.stack(columns, axis=-1) if columns else np.zeros(0)


def _row(values: Array, row: int | None) -> Array:
    return values if row is None else values[row]


def _pictured(picture: Array, image: Image) -> Array:
    picture = np.asarray(picture, np.uint8)
    if image.size is not None:
        picture = padded(picture, image.size)
    return np.ascontiguousarray(np.moveaxis(picture, -1, 0)) if image.layout == "CHW" else picture


def padded(picture: Array, size: tuple[int, int]) -> Array:
    """A picture scaled to fit into a size, the rest black, as openpi's clients do."""
    height, width = size
    h, w = picture.shape[:2]
    if (h, w) == (height, width):
        return picture
    factor = max(w / width, h / height)
    inner_h, inner_w = max(1, int(h / factor)), max(1, int(w / factor))
    out = np.zeros((height, width, picture.shape[2]), np.uint8)
    top, left = (height - inner_h) // 2, (width - inner_w) // 2
    out[top : top + inner_h, left : left + inner_w] = _resized(picture, inner_h, inner_w)
    return out


def _resized(picture: Array, height: int, width: int) -> Array:
    """Bilinear, with a filter as wide as the step where the picture shrinks, as PIL's."""
    rows, columns = _weights(picture.shape[0], height), _weights(picture.shape[1], width)
    soft = np.einsum("yh,hwc,xw->yxc", rows, picture.astype(float), columns, optimize=True)
    return np.clip(np.rint(soft), 0, 255).astype(np.uint8)


def _weights(old: int, new: int) -> Array:
    step = old / new
    reach = max(step, 1.0)
    centre = (np.arange(new) + 0.5) * step
    apart = np.abs(np.arange(old) + 0.5 - centre[:, None]) / reach
    weight = np.maximum(1 - apart, 0)
    return weight / weight.sum(axis=1, keepdims=True)
