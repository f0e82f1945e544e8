"""Statistics of each feature of a dataset, in the form LeRobot normalises by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from instep.core.world import Array

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
IMAGE_SAMPLES = 32
"""Images of an episode that its statistics are computed from."""

Stats: TypeAlias = dict[str, dict[str, Array]]
"""Feature -> name of the statistic -> value; `count` is the number of rows behind them."""


def vector_stats(values: Array) -> dict[str, Array]:
    """Statistics of each number of a column [rows, ...]; quantiles are exact.

    Numbers that are not finite are left out, so that one dead sensor reading does not spoil a normalisation.
    """
    flat = np.asarray(values, float).reshape(len(values), -1)
    if not np.isfinite(flat).all():
        return _finite_stats(flat)
    levels = np.quantile(flat, list(QUANTILES.values()), axis=0)
    out: dict[str, Array] = {
        "min": flat.min(axis=0),
        "max": flat.max(axis=0),
        "mean": flat.mean(axis=0),
        "std": flat.std(axis=0),
        "count": np.array([len(values)]),
    }
    return out | dict(zip(QUANTILES, levels, strict=True))


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


def to_json(stats: Stats) -> dict[str, dict[str, Any]]:
    """Statistics as nested lists."""
    return {name: {key: np.asarray(value).tolist() for key, value in entry.items()} for name, entry in stats.items()}


def from_json(value: Mapping[str, Mapping[str, Any]]) -> Stats:
    """Statistics of nested lists."""
    return {name: {key: np.asarray(v) for key, v in entry.items()} for name, entry in value.items()}


def _finite_stats(flat: Array) -> dict[str, Array]:
    """The statistics of each column's finite numbers; zero, which JSON can hold, where there is none."""
    parts = [column[np.isfinite(column)] for column in flat.T]
    found = [vector_stats((part if len(part) else np.zeros(1))[:, None]) for part in parts]
    out = {name: np.concatenate([np.ravel(one[name]) for one in found]) for name in found[0] if name != "count"}
    return out | {"count": np.array([len(flat)])}


def _combined(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    counts = np.array([float(np.ravel(part["count"])[0]) for part in parts])
    weight = counts / counts.sum()

    def weighted(values: Sequence[Array]) -> Array:
        return np.tensordot(weight, np.stack([np.asarray(v, float) for v in values]), axes=1)

    mean = weighted([part["mean"] for part in parts])
    spread = [np.asarray(part["std"]) ** 2 + (np.asarray(part["mean"]) - mean) ** 2 for part in parts]
    out: dict[str, Array] = {
        "min": np.min([part["min"] for part in parts], axis=0),
        "max": np.max([part["max"] for part in parts], axis=0),
        "mean": mean,
        "std": np.sqrt(weighted(spread)),
        "count": np.array([int(counts.sum())]),
    }
    for name in QUANTILES:
        if all(name in part for part in parts):
            out[name] = weighted([part[name] for part in parts])
    return out
