"""Image sets: several cameras listed in a JSON file with a stamped video each, and still images with a pose each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.errors import BadInput
from instep.core.reading import find_inside, inside, read_file, read_json_table, read_text
from instep.core.world import Array
from instep.data.frames import MAX_IMAGE, Frames, open_stills, open_video
from instep.data.mapping import RawRun
from instep.data.resample import latest


def read_cameras(path: Path, options: Mapping[str, Any]) -> Iterator[RawRun]:
    """One run: rows at the stamps of the first camera, for each other camera its last frame at that time."""
    streams: dict[str, tuple[Array, Frames]] = {}
    header: dict[str, str] = {}
    prefix = str(options.get("prefix", "cam_"))
    for name, entry in read_json_table(path).items():
        meta = read_json_table(inside(path.parent, str(entry["metadata_path"])))
        stamps = np.asarray(meta["timestamps"], float)
        frames = open_video(inside(path.parent, str(entry["video_path"])))
        if len(frames) != len(stamps):
            raise BadInput(f"Camera {name!r} has {len(frames)} frames, but {len(stamps)} stamps: they disagree.")
        streams[prefix + name] = (stamps, frames)
        header[f"camera.{prefix}{name}"] = json.dumps({"K": meta["K"], "world_from_camera": entry["X_WC"]})
    if not streams:
        raise BadInput(f"{str(path)!r} lists no cameras.")
    # Rows begin when every camera has a frame, so that none is seen before it was there.
    begin = max(stamps[0] for stamps, _ in streams.values())
    first = next(iter(streams.values()))[0]
    rows = first[first >= begin - 1e-9]
    columns: dict[str, Any] = {"time": rows}
    for name, (stamps, frames) in streams.items():
        which = latest(rows, stamps)
        columns[name], columns[f"{name}.stamp"] = frames[which], stamps[which]
    yield RawRun(path.name, columns, header)


def read_stills(path: Path, options: Mapping[str, Any]) -> Iterator[RawRun]:
    """One run: the images of a folder in the order of their numbers, with the flat YAML file of each beside them.

    `path` is the folder; `images` and `poses` are patterns below it, the latter with {stem}.
    """
    files = sorted(find_inside(path, str(options.get("images", "images/*.jpg"))), key=_number)
    if not files:
        raise BadInput(f"There are no images in {str(path)!r}.")
    pattern = str(options.get("poses", "poses/{stem}.yaml"))
    poses = [_read_flat_yaml(inside(path, pattern.replace("{stem}", file.stem))) for file in files]
    names = list(poses[0])
    for file, pose in zip(files, poses, strict=True):
        if set(pose) != set(names):
            raise BadInput(f"The pose of {file.name!r} has the entries {sorted(pose)}, but others {sorted(names)}.")
    columns: dict[str, Any] = {name: np.array([pose[name] for pose in poses]) for name in names}
    columns["number"] = np.array([_number(file) for file in files], float)
    columns["image"] = open_stills(lambda k: read_file(files[k], MAX_IMAGE), len(files))
    yield RawRun(path.name, columns)


def _read_flat_yaml(path: Path) -> dict[str, float]:
    """The numbers of a YAML file that is no more than `name: number` lines."""
    try:
        lines = [line.split("#", 1)[0] for line in read_text(path).splitlines()]
        pairs = [line.split(":", 1) for line in lines if line.strip()]
        return {name.strip(): float(value) for name, value in pairs}
    except ValueError as error:
        raise BadInput(f"{str(path)!r} should hold lines of 'name: number' ({error}).") from None


def _number(path: Path) -> int:
    digits = "".join(c for c in path.stem if c.isdigit())
    return int(digits) if digits else 0
