"""The map between a policy's names and units and those of a world, and policies behind such a map.

A map is a TOML file, one per robot and policy:

prompt = "push the T onto its outline"
execute = 8                        # actions of a chunk that are executed

[[state]]                          # a vector the policy gets
key = "state"                      # '>' goes one level down: 'state>left_arm'
joints = ["pusher_x", "pusher_y"]  # labels of the world's observations, in the policy's order
scale = [1.0, 1.0]                 # policy = world * scale + offset; unit = "deg" for degrees

[[image]]
camera = "cam_high"
key = "images>cam_high"
layout = "CHW"
size = [224, 224]                  # padded, not stretched

[[action]]
key = "actions"
joints = ["pusher_x", "pusher_y"]
kind = "absolute"                  # or "delta", added to the position of the joint

`read_map` finds what is wrong in a file, `checked_map` what does not fit a world, before anything moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import pi
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.reading import (
    ANY_TEXT,
    NAMES,
    NUMBERS,
    TABLES,
    TEXT,
    Entry,
    at_least,
    checked_table,
    is_list,
    is_mapping,
    is_numbers,
    is_whole,
    one_of,
    read_toml,
    whole_from,
)
from instep.core.world import Array, Observation, Policy, Spec, array_dataclass, frozen_dataclass

from .chunking import Chunked, Ensembled

CAMERA = "observation.images."


@frozen_dataclass
class VectorEntry:
    """A vector of the policy: joints, units, and whether actions are absolute."""

    key: str
    joints: tuple[str, ...]
    scale: tuple[float, ...] = ()
    offset: tuple[float, ...] = ()
    unit: str = ""
    """'deg' where the policy has degrees and the world has radians."""
    kind: Literal["absolute", "delta"] = "absolute"
    dtype: str = "float32"

    def to_policy(self, values: Array) -> Array:
        """The world's values in the policy's units."""
        return (values * self._scale + self._offset).astype(self.dtype)

    def to_world(self, values: Array) -> Array:
        """The policy's values in the world's units."""
        return (np.asarray(values, float) - self._offset) / self._scale

    @property
    def _scale(self) -> Array:
        scale = np.array(self.scale or (1.0,) * len(self.joints))
        return scale * (180 / pi if self.unit == "deg" else 1.0)

    @property
    def _offset(self) -> Array:
        return np.array(self.offset or (0.0,) * len(self.joints))


@frozen_dataclass
class ImageEntry:
    """An image of the policy: camera, layout and size."""

    camera: str
    key: str
    layout: Literal["HWC", "CHW"] = "HWC"
    size: tuple[int, int] | None = None
    """Height and width it is scaled and padded to."""


@frozen_dataclass
class PolicyMap:
    """How observations become requests to a policy, and its answers become actions."""

    state: tuple[VectorEntry, ...]
    action: tuple[VectorEntry, ...]
    image: tuple[ImageEntry, ...] = ()
    prompt: str = ""
    prompt_key: str = "prompt"
    execute: int = 0
    """Actions of a chunk that are executed; all of them where 0."""
    ensemble: float | None = None
    """Decay of temporal ensembling; None for none."""

    def request(self, observation: Observation, spec: Spec, row: int | None) -> dict[str, Any]:
        """The request for one world of a batch, or for a single one."""
        out: dict[str, Any] = {}
        for vector in self.state:
            put_at(out, vector.key, vector.to_policy(_row(_gathered(vector.joints, observation, spec), row)))
        for image in self.image:
            if CAMERA + image.camera not in observation:
                raise UnknownName("camera", image.camera, cameras_of(observation))
            pixels = np.asarray(_row(observation[CAMERA + image.camera], row), np.uint8)
            pixels = pixels if image.size is None else padded(pixels, image.size)
            put_at(
                out, image.key, np.ascontiguousarray(np.moveaxis(pixels, -1, 0)) if image.layout == "CHW" else pixels
            )
        if self.prompt:
            put_at(out, self.prompt_key, self.prompt)
        return out

    def actions(self, reply: Mapping[str, Any], observation: Observation, spec: Spec, row: int | None) -> Array:
        """The actions [horizon, nu] of an answer."""
        place = {label: i for i, label in enumerate(spec.action.labels)}
        parts = [_chunk(get_at(reply, vector.key), vector.key) for vector in self.action]
        horizon = len(parts[0])
        out = np.full((horizon, len(place)), np.nan)
        for vector, part in zip(self.action, parts, strict=True):
            if part.shape != (horizon, len(vector.joints)):
                raise BadInput(
                    f"The policy's {vector.key!r} has shape {part.shape}, but {len(vector.joints)} joints are mapped."
                )
            values = vector.to_world(part)
            if vector.kind == "delta":
                values = values + _row(_gathered(vector.joints, observation, spec), row)
            for j, label in enumerate(vector.joints):
                if label not in place:
                    raise UnknownName("action", label, place)
                out[:, place[label]] = values[:, j]
        if not np.isfinite(out).all():
            bad = [label for label, i in place.items() if not np.isfinite(out[:, i]).all()]
            raise BadInput(f"The policy's actions for {', '.join(bad)} are missing or not finite numbers.")
        return out

    def reply(self, actions: Array, observation: Observation, spec: Spec) -> dict[str, Any]:
        """Actions [..., horizon, nu] in the policy's names and units: what `actions` reads, for a server to send."""
        out: dict[str, Any] = {}
        for vector in self.action:
            values = actions[..., [spec.action.labels.index(label) for label in vector.joints]]
            if vector.kind == "delta":
                values = values - _gathered(vector.joints, observation, spec)[..., None, :]
            put_at(out, vector.key, vector.to_policy(values))
        return out

    def observation(self, request: Mapping[str, Any], spec: Spec) -> dict[str, Array]:
        """The observation of a client's request: the map, read backwards."""
        out: dict[str, Array] = {}
        for vector in self.state:
            values = np.asarray(get_at(request, vector.key))
            if values.dtype.kind not in "fiu" or values.shape != (len(vector.joints),):
                raise BadInput(f"{vector.key!r} has shape {values.shape}; {len(vector.joints)} numbers were expected.")
            if not np.isfinite(values).all():
                raise BadInput(f"{vector.key!r} holds numbers that are not finite.")
            for label, value in zip(vector.joints, vector.to_world(values), strict=True):
                name, own = channel_of(label, spec)
                labels = spec.observation[name].labels
                out.setdefault(name, np.full(len(labels), np.nan))[labels.index(own)] = value
        for image in self.image:
            pixels = np.asarray(get_at(request, image.key))
            if pixels.dtype != np.uint8 or pixels.ndim != 3:
                raise BadInput(f"{image.key!r} is not an image of bytes with three axes.")
            out[CAMERA + image.camera] = np.moveaxis(pixels, 0, -1) if image.layout == "CHW" else pixels
        return out


def _chunk(found: object, key: str) -> Array:
    """The chunk [horizon, joints] in an answer."""
    part = np.asarray(found)
    if part.dtype.kind not in "fiu":
        raise BadInput(f"The policy's {key!r} is not an array of numbers.")
    part = part[None] if part.ndim == 1 else part
    if part.ndim != 2 or len(part) == 0:
        raise BadInput(f"The policy's {key!r} has shape {part.shape}; a chunk [horizon, joints] was expected.")
    return part


class PolicyClient(Protocol):
    """What answers requests with actions: a connection to a policy server, or a network in this process."""

    def reset(self) -> None:
        """Tell it that an episode begins, where it remembers anything."""
        ...

    def infer(self, requests: Sequence[dict[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """One answer per request; LinkLost where none comes in time."""
        ...


@array_dataclass
class MappedPolicy:
    """A chunk policy behind a map: on a server, or in a model file."""

    client: PolicyClient
    map: PolicyMap
    spec: Spec

    def reset(self, seed: int = 0) -> None:
        """Begin an episode."""
        self.client.reset()

    def infer(self, observation: Observation) -> Array:
        """The next actions [..., horizon, nu]."""
        batch = batch_of(observation)
        if len(batch) > 1:
            raise BadInput(f"This policy takes one world or one batch of them, not a batch of shape {batch}.")
        rows: list[int | None] = [None] if not batch else list(range(batch[0]))
        answers = self.client.infer([self.map.request(observation, self.spec, row) for row in rows])
        parts = [
            self.map.actions(answer, observation, self.spec, row) for answer, row in zip(answers, rows, strict=True)
        ]
        if len({part.shape for part in parts}) > 1:
            raise BadInput("The policy's answers to one batch have different lengths; one horizon was expected.")
        return parts[0] if not batch else np.stack(parts)

    def executed(self) -> Policy:
        """The policy that executes its chunks as the map says."""
        ensemble = self.map.ensemble
        return Chunked(self, self.map.execute) if ensemble is None else Ensembled(self, ensemble)


def default_map(spec: Spec, prompt: str = "") -> PolicyMap:
    """The map of a policy with the world's own names: `state`, `images>NAME`, `actions`."""
    state: list[VectorEntry] = []
    for name, channel in spec.observation.items():
        if channel.labels and not name.startswith(CAMERA) and len(channel.shape) == 1:
            key = "state" if name == "observation.state" else name
            state.append(VectorEntry(key, tuple(f"{name}/{label}" for label in channel.labels)))
    images = tuple(ImageEntry(camera, f"images>{camera}") for camera in cameras_of(spec.observation))
    return PolicyMap(tuple(state), (VectorEntry("actions", spec.action.labels),), images, prompt)


def cameras_of(channels: Iterable[str]) -> list[str]:
    """The cameras among the names of observations."""
    return [name.removeprefix(CAMERA) for name in channels if name.startswith(CAMERA)]


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
        if not is_mapping(node) or part not in node:
            known = sorted(str(k) for k in node) if is_mapping(node) else []
            raise UnknownName("entry of the policy's answer", key, known)
        node = node[part]
    return node


def _gathered(labels: Sequence[str], observation: Observation, spec: Spec) -> Array:
    """Values by their labels; 'observation.velocity/elbow' names the channel too, where several have the label."""
    columns: list[Array] = []
    for label in labels:
        name, own = channel_of(label, spec)
        if name not in observation:
            raise UnknownName("observation", name, observation)
        columns.append(np.asarray(observation[name])[..., spec.observation[name].labels.index(own)])
    return np.stack(columns, axis=-1) if columns else np.zeros(0)


def channel_of(label: str, spec: Spec) -> tuple[str, str]:
    """The channel that a label is in, and the label without it."""
    channel, _, own = label.rpartition("/")
    for name, known in spec.observation.items():
        if own in known.labels and name == (channel or name):
            return name, own
    raise UnknownName("observed value", label, [x for c in spec.observation.values() for x in c.labels])


def _row(values: Array, row: int | None) -> Array:
    return values if row is None else values[row]


def padded(image: Array, size: tuple[int, int]) -> Array:
    """An image scaled to fit into a size, the rest black, as openpi's clients do."""
    from PIL import Image

    height, width = size
    h, w = image.shape[:2]
    if (h, w) == (height, width):
        return image
    factor = max(w / width, h / height)
    inner = max(1, int(w / factor)), max(1, int(h / factor))
    out = Image.new("RGB", (width, height))
    out.paste(
        Image.fromarray(image).resize(inner, Image.Resampling.BILINEAR),
        ((width - inner[0]) // 2, (height - inner[1]) // 2),
    )
    return np.asarray(out)


def batch_of(observation: Observation) -> tuple[int, ...]:
    """The leading axes of an observation: () for one world, (n,) for n of them."""
    for name, value in observation.items():
        if not name.endswith(".stamp"):
            return np.shape(value)[: -3 if name.startswith(CAMERA) else -1]
    return ()


_KEY = {"key": TEXT}
_VECTOR: Mapping[str, Entry] = {
    **_KEY,
    "joints": NAMES,
    "scale": Entry(lambda value: is_numbers(value) and 0 not in value, "a list of numbers other than 0"),
    "offset": NUMBERS,
    "unit": one_of("", "deg"),
    "kind": one_of("absolute", "delta"),
    "dtype": one_of("float16", "float32", "float64"),
}
_IMAGE: Mapping[str, Entry] = {
    **_KEY,
    "camera": TEXT,
    "layout": one_of("HWC", "CHW"),
    "size": Entry(
        lambda value: is_list(value) and len(value) == 2 and all(is_whole(one) and 0 < one <= 8192 for one in value),
        "height and width in pixels, such as [224, 224]",
    ),
}
_MAP: Mapping[str, Entry] = {
    "state": TABLES, "action": TABLES, "image": TABLES, "prompt": ANY_TEXT, "prompt_key": TEXT,
    "execute": whole_from(0, 10_000), "ensemble": at_least(0.0),
}  # fmt: skip


def read_map(path: Path) -> PolicyMap:
    """The map in a TOML file."""
    table = checked_table(read_toml(path), _MAP, path.name)
    made: dict[str, Any] = {"state": (), "action": (), **table}
    for name, kind, schema in (
        ("state", VectorEntry, _VECTOR), ("action", VectorEntry, _VECTOR), ("image", ImageEntry, _IMAGE)
    ):  # fmt: skip
        made[name] = tuple(_entry(kind, entry, schema, f"[[{name}]] of {path.name}") for entry in table.get(name, ()))
    if not made["action"]:
        raise BadInput(f"{path.name} has no [[action]]; a map must list the policy's actions.")
    mapped = PolicyMap(**made)
    prompt = [mapped.prompt_key] if mapped.prompt else []
    _separate_keys([*(e.key for e in mapped.state), *(e.key for e in mapped.image), *prompt], path.name)
    _separate_keys([e.key for e in mapped.action], path.name)
    return mapped


def _entry(kind: type[Any], entry: Mapping[str, Any], schema: Mapping[str, Entry], where: str) -> Any:
    given = checked_table(entry, schema, where)
    missing = [name for name in list(schema)[:2] if name not in given]
    if missing:
        raise BadInput(f"{where} is not complete: it lacks {' and '.join(missing)}.")
    for name in ("scale", "offset"):
        if given.get(name) and len(given[name]) != len(given["joints"]):
            raise BadInput(f"{where} has {len(given[name])} numbers as {name} for {len(given['joints'])} joints.")
    return kind(**{name: tuple(value) if is_list(value) else value for name, value in given.items()})


def _separate_keys(keys: Sequence[str], where: str) -> None:
    """Refuse keys of which one lies inside another, and keys that are given twice."""
    for i, key in enumerate(keys):
        if key in keys[:i]:
            raise BadInput(f"{where} gives the key {key!r} twice; each value needs its own.")
        inside = next((other for other in keys if other.startswith(key + ">")), None)
        if inside is not None:
            raise BadInput(f"{where} has the keys {key!r} and {inside!r}; a key is a value or a group, not both.")


def checked_map(mapped: PolicyMap, spec: Spec) -> PolicyMap:
    """The map if it fits a world: every joint and camera exists, and every action is given once."""
    for entry in mapped.state:
        for label in entry.joints:
            channel_of(label, spec)
    for image in mapped.image:
        if image.camera not in cameras_of(spec.observation):
            raise UnknownName("camera", image.camera, cameras_of(spec.observation))
    given: list[str] = []
    for entry in mapped.action:
        for label in entry.joints:
            if label not in spec.action.labels:
                raise UnknownName("action", label, spec.action.labels)
            if entry.kind == "delta":
                channel_of(label, spec)
        given += entry.joints
    for label in spec.action.labels:
        if given.count(label) != 1:
            problem = f"has no action for {label}" if label not in given else f"gives {label} more than once"
            raise BadInput(f"The map {problem}; list every joint of the world once under [[action]].")
    return mapped
