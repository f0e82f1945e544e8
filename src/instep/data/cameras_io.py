"""Several cameras listed in a JSON file: a video each, with the stamps of its frames."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array

from .atomic import read_object
from .frames import Frames, open_video
from .guard import under
from .raw import Raw
from .resample import latest


def read(path: Path, options: Mapping[str, Any]) -> Iterator[Raw]:
    """One run: rows at the stamps of the first camera, for each other camera its last frame at that time."""
    streams: dict[str, tuple[Array, Frames]] = {}
    header: dict[str, str] = {}
    prefix = str(options.get("prefix", "cam_"))
    for name, entry in read_object(path).items():
        meta = read_object(under(path.parent, str(entry["metadata_path"])))
        stamps = np.asarray(meta["timestamps"], float)
        frames = open_video(under(path.parent, str(entry["video_path"])))
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
    yield Raw(path.name, columns, header)
