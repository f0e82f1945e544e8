"""Episodes as Rerun recordings (.rrd): every number a curve under its label, every camera a stream of images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.core.lazy import optional_library
from instep.data.frames import encode_png
from instep.data.lerobot.features import CAMERA_PREFIX, channel_of, is_image

from .mcap_files import fresh_images, start_time

TIMELINE, WALL_CLOCK = "time", "wall_clock"
"""Timelines of a recording: seconds since the first row, and the time of day where it was recorded."""


def write_rerun(path: Path, episode: Episode, name: str) -> None:
    """Write one episode; `name` is what the viewer calls it.

    Columns become entities: `q/elbow`, `action/elbow`, `observation/state/elbow`, `cameras/top`. Images are at their
    own time of capture.
    """
    rerun: Any = optional_library("rerun", "rerun", "rerun-sdk")
    recording = rerun.RecordingStream("instep", recording_id=name)
    recording.save(str(path))
    for key, text in episode.meta.items():
        recording.log(f"notes/{key.replace(' ', '_')}", rerun.TextDocument(text), static=True)
    for column, values in episode.columns.items():
        if is_image(values):
            _write_images(rerun, recording, episode, column)
        elif column != "timestamp" and not column.endswith(".stamp") and values.dtype.kind in "fiub":
            _write_curves(rerun, recording, episode, column)
    recording.flush()
    recording.disconnect()


def _write_curves(rerun: Any, recording: Any, episode: Episode, column: str) -> None:
    values = np.asarray(episode[column], float).reshape(len(episode), -1)
    channel = channel_of(column, episode.spec)
    labels = channel.labels if channel is not None and len(channel.labels) == values.shape[1] else ()
    above = column.replace(".", "/")
    for k in range(values.shape[1]):
        label = labels[k] if labels else str(k)
        entity = above if values.shape[1] == 1 and not labels else f"{above}/{label}"
        rerun.send_columns(
            entity,
            indexes=_indexes(rerun, episode, np.asarray(episode.t, float)),
            columns=rerun.Scalars.columns(scalars=values[:, k]),
            recording=recording,
        )


def _write_images(rerun: Any, recording: Any, episode: Episode, column: str) -> None:
    entity = f"cameras/{column.removeprefix(CAMERA_PREFIX)}"
    for row, stamp in fresh_images(episode, column):
        recording.set_time(TIMELINE, duration=stamp)
        if "clock.wall" in episode:
            recording.set_time(WALL_CLOCK, timestamp=start_time(episode) + stamp)
        image = encode_png(np.asarray(episode[column][row]))
        recording.log(entity, rerun.EncodedImage(contents=image, media_type="image/png"))


def _indexes(rerun: Any, episode: Episode, times: Any) -> list[Any]:
    """The times of rows on each timeline."""
    out = [rerun.TimeColumn(TIMELINE, duration=times)]
    if "clock.wall" in episode:
        out.append(rerun.TimeColumn(WALL_CLOCK, timestamp=start_time(episode) + times))
    return out
