"""The viewer inside reports: what moved, in the same file as its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from instep.core.episode import Episode
from instep.gap.gap_result import RunPair
from instep.report.page import ReportViewer
from instep.scene.folder import Scene

from .gap_content import error_table, error_words, replay_tracks
from .messages import container, encode
from .tracks import TrackOptions, error_marks, event_message, recorded_marks, scene_message, track_message
from .view_server import absence, bundle

MAX_TRIANGLES = 60_000
"""Most triangles of a scene in a report; more are thinned."""
MAX_ROWS = 1200
"""Most rows of a run in a report; longer ones are thinned."""
MEASURED = "twin.measured"
"""What the robot of a twin said of itself."""
HOW = "Drag to orbit, wheel to zoom, Space to pause, ? for all keys."


def report_viewer(scene: Scene | None, episode: Episode, title: str) -> ReportViewer | None:
    """The 3D view of an episode; None where the viewer was not built, or no scene shows these positions.

    Of a run through a twin the robot that follows is a ghost.
    """
    if scene is None or not _can_show(scene, episode):
        return None
    followed = measured_run(episode)
    label = "recording" if followed is None else "twin"
    tracks = [track_message(scene, episode, TrackOptions(label=label, max_rows=MAX_ROWS))]
    if followed is not None:
        ghost = TrackOptions(id="robot", label="robot", role="ghost", contacts=False, max_rows=MAX_ROWS)
        tracks.append(track_message(scene, followed, ghost))
    tracks.append(event_message(recorded_marks(episode)))
    shown = "In 3D" if followed is None else "The twin in 3D, the robot as a ghost"
    return _viewer(scene, tracks, (title, f"{episode.t[-1] - episode.t[0]:.1f} s"), shown)


def replay_viewer(
    scene: Scene, recorded: Episode, replays: Mapping[str, Episode], title: str, caption: str
) -> ReportViewer | None:
    """A recording as a ghost over its replays, earlier ones first; None where the viewer was not built."""
    if not _can_show(scene, recorded):
        return None
    marks = error_marks(recorded.t, error_table(list(replays.values())[-1], recorded))
    tracks = [*replay_tracks(scene, replays, recorded, MAX_ROWS), event_message(marks)]
    return _viewer(scene, tracks, (title, error_words(replays, recorded)), caption)


def pair_viewer(scene: Scene | None, pairs: Sequence[RunPair]) -> ReportViewer | None:
    """Of measured runs the one with the largest error, as a ghost over its replay."""
    known = [pair for pair in pairs if np.isfinite(pair.error)]
    if scene is None or not known:
        return None
    worst = max(known, key=lambda pair: pair.error)
    name = worst.name or "the run"
    caption = f"{name[0].upper()}{name[1:]}, the one with the largest error: the recording as a ghost over its replay"
    return replay_viewer(scene, worst.real, {"simulator": worst.sim}, name, caption)


def measured_run(episode: Episode) -> Episode | None:
    """The robot of a twin as it moved; what it does not measure is where the twin has it. None without a twin."""
    channel = episode.spec.observation.get(MEASURED)
    if channel is None or MEASURED not in episode:
        return None
    places = {label: i for i, label in enumerate(episode.spec.q.labels)}
    shared = [(places[label], i) for i, label in enumerate(channel.labels) if label in places]
    q, measured = episode.q.copy(), np.asarray(episode[MEASURED], float)
    for to, place in shared:
        q[:, to] = np.where(np.isfinite(measured[:, place]), measured[:, place], q[:, to])
    columns = {"timestamp": episode.t, "q": q, "v": episode.v, "action": episode.action}
    return Episode(replace(episode.spec, observation={}), columns, episode.meta) if shared else None


def _can_show(scene: Scene, episode: Episode) -> bool:
    shown = set(episode.spec.q.labels) & set(scene.spec.q.labels)
    return not absence() and bool(scene.model.ngeom) and bool(shown)


def _viewer(scene: Scene, tracks: Sequence[bytes], titles: tuple[str, str], caption: str) -> ReportViewer:
    title, subtitle = titles
    info = encode("info", {"title": title, "subtitle": subtitle, "images": list[str]()})
    data = container([scene_message(scene, max_triangles=MAX_TRIANGLES), info, *tracks])
    return ReportViewer(bundle(), data, f"{caption}. {HOW}")
