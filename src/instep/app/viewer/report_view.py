"""The viewer inside reports: a run in motion, in the same file as its numbers."""

from __future__ import annotations

from instep.core.episode import Episode
from instep.report.page import ReportViewer
from instep.scene.folder import Scene

from .front_end import absence, bundle
from .messages import container, encode
from .shapes import scene_message
from .tracks import TrackOptions, track_message

MAX_TRIANGLES = 60_000
"""Most triangles of a scene in a report; more are thinned."""
MAX_ROWS = 1200
"""Most rows of a run in a report; longer ones are thinned."""


def report_viewer(scene: Scene | None, episode: Episode, title: str) -> ReportViewer | None:
    """The 3D view of an episode; None where the viewer was not built, or no scene shows these positions."""
    if scene is None or absence() or not scene.model.ngeom:
        return None
    if not set(episode.spec.q.labels) & set(scene.spec.q.labels):
        return None
    seconds = float(episode.t[-1] - episode.t[0])
    info = {"title": title, "subtitle": f"{seconds:.1f} s", "images": list[str]()}
    track = track_message(scene, episode, TrackOptions(max_rows=MAX_ROWS))
    data = container([scene_message(scene, max_triangles=MAX_TRIANGLES), encode("info", info), track])
    return ReportViewer(bundle(), data, "In 3D: drag to orbit, wheel to zoom, Space to pause, ? for all keys.")
