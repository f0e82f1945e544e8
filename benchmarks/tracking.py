"""Tracking of bodies of unknown colour: a real demonstration, a printed box in a hand, rendered scenes, cabinets.

The T of the demonstration is tracked by learned colours and compared with the twin that knows its colour, in the same
cameras. The box is tracked with one camera, and scored on corners that were labelled by hand.
Rendered scenes have true poses.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from harness import mean, row
from instep.core.episode import Episode
from instep.core.poses import angle_between
from instep.core.world import Array, Channel, vector
from instep.scene.camera import Camera
from instep.scene.folder import Scene
from instep.twin import TrackedRecording, TwinOptions, correction_log
from instep.twin.body_outlines import transform_at
from instep.twin.camera_rig import IMAGES
from instep.twin.tracking import block_median, track_recording
from instep.twin.twin import STAGES
from tracking_jointed import jointed_rows
from tracking_rendered import rendered_rows

ROOT = Path(__file__).resolve().parents[1]
RECORDINGS = (ROOT / "recordings", ROOT.parent / "shared" / "data")
LABELS = Path(__file__).with_name("tracking_labels.json")
PUSHT_GOALS = (0.93, 0.94, 0.90)
HALF = np.array([0.129, 0.0945, 0.0375])
"""Half of the box along its axes: right, back, up [m]."""
LOST_PX = 25.0
"""Mean error of labelled corners from which a tracker has lost the box."""
BOX_SCENE = """
<mujoco model="printed_box">
  <option timestep="0.011111111111" gravity="0 0 0"/>
  <worldbody>
    <body name="box" pos="0 0 0.7"><freejoint name="box"/>
      <geom type="box" size="0.129 0.0945 0.0375" mass="0.3" rgba="0.5 0.5 0.5 1"/></body>
    <camera name="webcam" xyaxes="1 0 0 0 -1 0" resolution="640 480" sensorsize="0.0064 0.0048"
            focalpixel="598 598" principalpixel="0 0"/>
  </worldbody>
</mujoco>
"""
BOX_TOML = """
model = "scene.xml"
rate = 30.0
[objects]
bodies = ["box"]
[cameras.webcam]
rate = 30.0
"""


def run(out: Path, quick: bool = False) -> list[dict[str, Any]]:
    """Each recording that is available, one row per number."""
    rows: list[dict[str, Any]] = []
    if (folder := _recording("pusht")) is not None:
        rows += _pusht(folder, 200 if quick else None)
    if (folder := _recording("cookie_box")) is not None:
        rows += _box(folder, 160 if quick else None)
    rows += rendered_rows(_recording("scanned_objects"), quick)
    return rows + jointed_rows(quick)


def _recording(name: str) -> Path | None:
    return next((folder / name for folder in RECORDINGS if (folder / name).is_dir()), None)


def _pusht(folder: Path, rows: int | None) -> list[dict[str, Any]]:
    """The T by learned colours: overlaps, the difference from the twin that knows its colour, time per frame."""
    from instep.data import load_episodes

    scene, episode = Scene.load("pusht"), load_episodes(folder)[0]
    episode = episode if rows is None else episode.rows(0, rows)
    tracked = track_recording(scene, episode, TwinOptions(residual="learned"))
    named = track_recording(scene, episode, TwinOptions(calibration=tracked.calibration))
    own, keys = tracked.overlaps(), tracked.cameras.key_rows
    out = [
        row(f"T, no colour named: overlap {n}", own.score(n, keys), at_least=g)
        for n, g in zip(own.cameras, PUSHT_GOALS, strict=True)
    ]
    apart = 1e3 * np.linalg.norm(tracked.poses[:, :3] - named.poses[:, :3], axis=1)
    turned = np.degrees(angle_between(tracked.poses[:, 3:], named.poses[:, 3:]))
    out.append(
        row("T, no colour named: median distance from the colour-named pose", block_median(apart, "mm"), at_most=1.5)
    )
    out.append(
        row("T, no colour named: median angle from the colour-named pose", block_median(turned, "deg"), at_most=0.4)
    )
    return [*out, *_times("T, no colour named, three cameras", tracked, 8.3)]


def _times(what: str, tracked: TrackedRecording, goal: float) -> list[dict[str, Any]]:
    stages = tracked.run["twin.stages"][30:]
    work = 1e3 * (stages.sum(axis=1) - stages[:, STAGES.index("follow")] - stages[:, STAGES.index("observe")])
    return [
        row(f"{what}: median work per frame", block_median(work, "ms")),
        row(f"{what}: 99 % of frames within", float(np.quantile(work, 0.99)), "ms", at_most=goal),
    ]


def _box(folder: Path, rows: int | None) -> list[dict[str, Any]]:
    """The printed box by texture and learned colours, and by OpenCV."""
    import av

    video: Any = av.open(str(folder / "box.mp4"))
    frames = np.stack([f.to_ndarray(format="rgb24") for f in video.decode(video=0)][:rows])
    labels = {
        int(k): corners for k, corners in json.loads(LABELS.read_text())["frames"].items() if int(k) < len(frames)
    }
    with tempfile.TemporaryDirectory() as place:
        tracked = _tracked_box(Path(place), frames, labels[0])
    [camera] = tracked.cameras.rig.cameras
    lost = correction_log(tracked.run)["box.frames_lost"]
    out = _corner_rows("printed box", labels, camera, lambda k: transform_at(tracked.run.t, tracked.poses, k / 30.0))
    out.append(row("printed box: frames without a correction", float(np.sum(lost > 0)), "frames", at_most=0))
    out += _times("printed box, one camera, texture", tracked, 16.0)
    return out


def _tracked_box(place: Path, frames: Array, corners: dict[str, list[float]]) -> TrackedRecording:
    (place / "scene.xml").write_text(BOX_SCENE)
    (place / "scene.toml").write_text(BOX_TOML)
    points = [[*corner(name), *pixel] for name, pixel in corners.items()]
    (place / "start.json").write_text(json.dumps({"box": {"camera": "webcam", "points": points}}, default=float))
    scene, n = Scene.load(place), len(frames)
    images = {IMAGES + "webcam": Channel((), "", (480, 640, 3), "uint8")}
    spec = replace(scene.spec, q=vector(()), v=vector(()), action=vector(()), observation=images)
    t, none = np.arange(n) / 30.0, np.zeros((n, 0))
    columns = {"timestamp": t, "q": none, "v": none, "action": none, IMAGES + "webcam": frames}
    episode = Episode(spec, {**columns, IMAGES + "webcam.stamp": t})
    return track_recording(scene, episode, TwinOptions(residual="learned", start=place / "start.json"))


def corner(name: str) -> Array:
    """A corner of the box by its name, in the box's frame [m]."""
    words = name.split()
    return HALF * [1 if "right" in words else -1, 1 if "back" in words else -1, 1 if "top" in words else -1]


def _corner_rows(
    what: str, labels: dict[int, Any], camera: Camera, pose: Callable[[int], Array], goal: float | None = 4.0
) -> list[dict[str, Any]]:
    """Errors of labelled corners, the frame that the tracker began with left out."""
    errors: list[float] = []
    lost = 0
    for k, corners in labels.items():
        if k == 0:
            continue
        in_camera = np.linalg.inv(camera.body_from_camera) @ pose(k)
        at = np.stack([corner(name) for name in corners]) @ in_camera[:3, :3].T + in_camera[:3, 3]
        off = np.linalg.norm(camera.project(at) - np.array(list(corners.values())), axis=1)
        errors += off.tolist()
        lost += float(off.mean()) > LOST_PX
    return [
        row(f"{what}: mean error of labelled corners", mean(errors, "px"), at_most=goal),
        row(f"{what}: labelled frames in which it is lost", lost, "frames", at_most=None if goal is None else 0),
    ]
