"""LeRobot features of an episode, a `Spec` as JSON, and the statistics that LeRobot normalises by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from typing import Any, Literal, TypeAlias, cast

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.world import Array, Channel, Spec, options_dataclass, vector
from instep.data.video import VideoOptions

AUTOMATIC = {"timestamp": "float32", **dict.fromkeys(("frame_index", "episode_index", "index", "task_index"), "int64")}
MEASURED = "timestamp.measured"
"""The feature that keeps an episode's own times [s], since `timestamp` must be the row number over the rate."""
CAMERA_PREFIX = "observation.images."
"""What the names of columns of images begin with."""
NOMINAL = "nominal"
"""`meta["clock"]` of an episode whose times are row numbers over the rate, not measured."""


def spec_to_json(spec: Spec) -> dict[str, Any]:
    """A spec as JSON values."""
    found = asdict(spec)
    return found if spec.inputs.labels else {name: value for name, value in found.items() if name != "inputs"}


def spec_from_json(value: Any) -> Spec:
    """The spec of JSON values; BadInput where they do not describe one."""
    try:
        channels = {name: _channel_from_json(value[name]) for name in ("q", "v", "action")}
        observation = {str(name): _channel_from_json(channel) for name, channel in value["observation"].items()}
        inputs = _channel_from_json(value["inputs"]) if "inputs" in value else Channel()
        return Spec(float(value["dt"]), **channels, observation=observation, inputs=inputs)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"The stored description of the columns is damaged ({type(error).__name__}: {error}).") from None


@options_dataclass
class WriteOptions:
    """How episodes become a LeRobot dataset."""

    fps: int | None = None
    """Rows per second; the nearest whole number to the episodes' own where None."""
    robot_type: str | None = None
    images: Literal["video", "png"] = "video"
    """Video is small, PNG inside the table is without loss."""
    float32: bool = False
    """Whether observations and actions are stored in single precision, as training code expects."""
    video: VideoOptions = field(default_factory=VideoOptions)
    data_mb: int = 100
    """Size at which a table file is followed by the next [MB]."""
    video_mb: int = 200
    """Size at which a video file is followed by the next [MB]."""


def stored_columns(episode: Episode, options: WriteOptions) -> dict[str, Any]:
    """The columns of an episode that become features, under their LeRobot names."""
    out: dict[str, Any] = {}
    for name, column in episode.columns.items():
        if "/" in name:
            raise BadInput(f"The column {name!r} cannot be stored: LeRobot names may not contain a slash.")
        if name in ("frame_index", "episode_index", "index", "task_index") or _is_copy(name, episode):
            continue
        if name == "timestamp":
            if episode.meta.get("clock") != NOMINAL:
                out[MEASURED] = np.asarray(column, float)
            continue
        if 0 in column.shape[1:]:
            continue
        lower = options.float32 and column.dtype == np.float64 and (name == "action" or name.startswith("observation."))
        out[name] = column.astype(np.float32) if lower and not name.endswith(".stamp") else column
    return out


def declare(columns: Mapping[str, Any], episode: Episode, options: WriteOptions) -> dict[str, dict[str, Any]]:
    """The `features` of `info.json` for the columns of an episode and the cameras whose video it misses."""
    out = {name: _feature(name, column, episode.spec, options) for name, column in columns.items()}
    for name in filter(None, episode.meta.get("missing", "").split(", ")):
        channel = episode.spec.observation.get(name)
        if channel is not None and len(channel.shape) == 3:
            out[name] = _feature(name, np.empty((0, *channel.shape), np.uint8), episode.spec, options)
    return out | {name: {"dtype": dtype, "shape": [1], "names": None} for name, dtype in AUTOMATIC.items()}


def is_image(column: Any) -> bool:
    """Whether a column holds colour images."""
    return column.ndim == 4 and column.shape[-1] == 3 and column.dtype == np.uint8


def channel_of(name: str, spec: Spec) -> Channel | None:
    """What a spec says of a column."""
    own = {"q": spec.q, "v": spec.v, "action": spec.action, "inputs": spec.inputs}
    return own.get(name) or spec.observation.get(name)


def foreign_spec(features: Mapping[str, Any], fps: float) -> Spec:
    """The spec of a dataset that other software wrote: positions are `observation.state`, by its names.

    LeRobot's tools that copy a dataset keep its features, not the file of ours beside them. So `q`, `v` and `inputs`
    that are there are taken by their own names.
    """
    channels = {name: _feature_channel(name, entry) for name, entry in features.items() if name not in AUTOMATIC}

    def own(*names: str) -> Channel:
        found = next((channels[name] for name in names if name in channels), Channel())
        return vector([label.removesuffix(".pos") for label in found.labels])

    q = own("q", "observation.state")
    observation = {name: channel for name, channel in channels.items() if name.startswith("observation.")}
    return Spec(1.0 / fps, q, own("v", "q", "observation.state"), own("action"), observation, own("inputs"))


def flat_names(names: Any) -> list[str]:
    """Labels of a feature, whatever nest of lists and mappings they come in."""
    if isinstance(names, str):
        return [names]
    if isinstance(names, Mapping):
        names = list(cast(Mapping[str, Any], names).values())
    return [label for value in cast(list[Any], names or []) for label in flat_names(value)]


def check_features(features: Any, path: str) -> dict[str, dict[str, Any]]:
    """The `features` of an `info.json`, or one sentence about what is wrong with them."""
    if not isinstance(features, dict) or not features:
        raise BadInput(f"{path!r} declares no features, so its columns cannot be read.")
    known = cast(dict[str, Any], features)
    for name, entry in known.items():
        if not isinstance(entry, dict) or not isinstance(cast(dict[str, Any], entry).get("dtype"), str):
            raise BadInput(f"{path!r} gives the feature {name!r} no dtype.")
        shape = cast(dict[str, Any], entry).get("shape")
        sizes = cast(list[Any], shape) if isinstance(shape, list) else [None]
        if not all(isinstance(n, int) and 0 < n < 1 << 24 for n in sizes):
            raise BadInput(f"{path!r} gives the feature {name!r} no usable shape.")
    return known


def _is_copy(name: str, episode: Episode) -> bool:
    """Whether a column was only read out of another one, and still says the same."""
    origin = episode.meta.get(f"{name}.from")
    return bool(origin) and origin in episode.columns and np.array_equal(episode[name], episode[origin])


def _feature(name: str, column: Any, spec: Spec, options: WriteOptions) -> dict[str, Any]:
    if is_image(column):
        kind = "video" if options.images == "video" else "image"
        return {"dtype": kind, "shape": list(column.shape[1:]), "names": ["height", "width", "channels"]}
    if column.dtype.kind in "US":
        return {"dtype": "string", "shape": [1], "names": None}
    if column.dtype.kind not in "fiub":
        raise BadInput(f"The column {name!r} holds {column.dtype}, but only numbers, text and images can be stored.")
    names: list[str] | None = None
    if column.ndim == 2:
        channel = channel_of(name, spec)
        labelled = channel is not None and len(channel.labels) == column.shape[1]
        names = list(channel.labels) if channel and labelled else [f"{name}_{k}" for k in range(column.shape[1])]
    return {"dtype": str(column.dtype), "shape": list(column.shape[1:]) or [1], "names": names}


def _feature_channel(name: str, entry: Mapping[str, Any]) -> Channel:
    shape = tuple(int(n) for n in entry["shape"])
    if entry["dtype"] in ("video", "image"):
        return Channel((), "", shape, "uint8")
    labels = flat_names(entry.get("names"))
    if len(shape) == 1 and len(labels) != shape[0]:
        labels = [f"{name}_{k}" for k in range(shape[0])]
    return Channel(tuple(labels), "", shape, str(entry["dtype"]))


def _channel_from_json(value: Any) -> Channel:
    labels, shape = tuple(map(str, value["labels"])), tuple(map(int, value["shape"]))
    return Channel(labels, str(value["unit"]), shape, str(value["dtype"]))


QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
IMAGE_SAMPLES = 32
"""Images of an episode that its statistics are computed from."""

Stats: TypeAlias = dict[str, dict[str, Array]]
"""Feature -> name of the statistic -> value; `count` is the number of rows behind them."""


def vector_stats(values: Array) -> dict[str, Array]:
    """Statistics of each number of a column [rows, ...]; quantiles are exact.

    Numbers that are not finite are left out, so that one dead sensor reading does not spoil a normalisation.
    """
    flat = np.array(values, float).reshape(len(values), -1)
    flat[~np.isfinite(flat)] = np.nan
    flat[:, np.isnan(flat).all(axis=0)] = 0.0  # JSON holds no other number for a column without any
    levels = np.nanquantile(flat, list(QUANTILES.values()), axis=0)
    parts = {"min": np.nanmin, "max": np.nanmax, "mean": np.nanmean, "std": np.nanstd}
    out: dict[str, Array] = {name: statistic(flat, axis=0) for name, statistic in parts.items()}
    return {**out, "count": np.array([len(values)]), **dict(zip(QUANTILES, levels, strict=True))}


def image_stats(images: Any) -> dict[str, Array]:
    """Statistics of each colour channel, scaled to [0, 1], shape (3, 1, 1), from images spread over the episode."""
    picked = np.unique(np.linspace(0, len(images) - 1, IMAGE_SAMPLES).round().astype(int))
    # Every fourth pixel each way says as much about the range of colours as all of them.
    pixels = np.concatenate([np.asarray(images[int(k)])[::4, ::4].reshape(-1, 3) for k in picked]) / 255.0
    stats = vector_stats(pixels)
    out = {name: value.reshape(3, 1, 1) for name, value in stats.items() if name != "count"}
    return out | {"count": np.array([len(picked)])}


def episode_stats(columns: Mapping[str, Any]) -> Stats:
    """Statistics of every column of one episode that is a number or an image."""
    out: Stats = {}
    for name, column in columns.items():
        if len(column) == 0 or column.dtype.kind not in "fiub" or 0 in column.shape:
            continue
        is_image = column.ndim == 4 and column.dtype == np.uint8
        out[name] = image_stats(column) if is_image else vector_stats(np.asarray(column))
    return out


def merged_stats(parts: Sequence[Stats]) -> Stats:
    """Statistics of several episodes as one.

    Means and deviations combine exactly; quantiles are the mean of the parts weighted by their rows, as LeRobot's are.
    """
    names = list(dict.fromkeys(name for part in parts for name in part))
    return {name: _combined([part[name] for part in parts if name in part]) for name in names}


def stats_to_json(stats: Stats) -> dict[str, dict[str, Any]]:
    """Statistics as nested lists."""
    return {name: {key: np.asarray(value).tolist() for key, value in entry.items()} for name, entry in stats.items()}


def stats_from_json(value: Mapping[str, Mapping[str, Any]]) -> Stats:
    """Statistics of nested lists."""
    return {name: {key: np.asarray(v) for key, v in entry.items()} for name, entry in value.items()}


def _combined(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    counts = np.array([float(np.ravel(part["count"])[0]) for part in parts])
    weight = counts / counts.sum()

    def weighted(values: Sequence[Array]) -> Array:
        return np.tensordot(weight, np.stack([np.asarray(v, float) for v in values]), axes=1)

    mean = weighted([part["mean"] for part in parts])
    spread = [np.asarray(part["std"]) ** 2 + (np.asarray(part["mean"]) - mean) ** 2 for part in parts]
    out: dict[str, Array] = {
        "min": np.min([part["min"] for part in parts], axis=0),
        "max": np.max([part["max"] for part in parts], axis=0), "mean": mean, "std": np.sqrt(weighted(spread)),
        "count": np.array([int(counts.sum())]),
    }  # fmt: skip
    for name in QUANTILES:
        if all(name in part for part in parts):
            out[name] = weighted([part[name] for part in parts])
    return out
