"""Recordings in the viewer: with the images of their cameras, over their replays in simulators, and inside reports."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.param import Param
from instep.core.reading import is_mapping
from instep.core.rollout import replay
from instep.core.world import Array, array_dataclass
from instep.gap.gap_result import RunPair
from instep.report.page import ReportViewer
from instep.scene.address import read
from instep.scene.folder import Scene, SceneSimulator

from .messages import (
    IMAGES,
    MAX_ROWS,
    ChannelTable,
    TrackOptions,
    channel_table,
    container,
    encode,
    error_marks,
    event_message,
    image_message,
    positions_in,
    recorded_marks,
    scene_message,
    track_message,
)
from .view_server import ViewContent, absence, bundle

HORIZONS: Mapping[str, float | None] = {
    "one step": 0.0, **{f"{s:g} s": s for s in (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)}, "whole run": None,
}  # fmt: skip
"""Times that a replay runs before it is placed on the recording again [s]; the whole run where None."""
ERROR_QUANTILE = 0.98
"""Errors of this quantile, over all joints of one unit, have the full colour."""


@array_dataclass
class Replays:
    """The simulators in which recordings at their rate are replayed."""

    sims: Mapping[str, SceneSimulator]
    """By label, earlier ones first; the last is the one whose joints are coloured and whose parameters can be set."""
    params: Sequence[Param] = ()
    """Parameters with a slider."""


class RecordingContent(ViewContent):
    """Episodes in a scene, one shown at a time, with the images of their cameras.

    With replays the recording is a ghost over them; the horizon and parameters are chosen in the page.
    """

    def __init__(
        self, scene: Scene, episodes: Sequence[Episode], title: str, first: int = 0, replays: Replays | None = None
    ):
        if not len(episodes):
            raise BadInput("There is no episode to show.")
        self._scene, self._episodes, self._title, self._replays = scene, episodes, title, replays
        self._scene_message, self._render = scene_message(scene), RenderThread(scene)
        self._chosen = {"episode": first, "horizon": len(HORIZONS) - 1}
        self._settings: dict[str, float] = {}
        self._main = episodes[first]
        """The episode in full colour: the recording or its last replay."""
        self._tracks: Sequence[bytes] = ()

    def opening(self) -> Sequence[bytes]:
        """The scene, the tracks as they were chosen last, and the choices."""
        messages = [self._scene_message, *(self._tracks or self._shown())]
        if self._replays is not None:
            messages.append(self._choice("horizon", "Replay for", [*HORIZONS], ordered=True))
        if len(self._episodes) > 1:
            messages.append(self._choice("episode", "Episode", [str(i + 1) for i in range(len(self._episodes))]))
        if self._replays is not None and self._replays.params:
            messages.append(encode("params", {"params": self._sliders(self._replays.params)}))
        return messages

    def answer(self, request: Mapping[str, Any]) -> Sequence[bytes]:
        """Another horizon or episode, other parameters, or the images of a time."""
        chosen, given = request.get("choose"), request.get("set")
        if is_mapping(chosen):
            counts = {"episode": len(self._episodes), "horizon": len(HORIZONS)}
            self._chosen |= {
                k: min(max(v, 0), counts[k] - 1) for k, v in chosen.items() if k in counts and isinstance(v, int)
            }
            return self._shown()
        if is_mapping(given) and self._replays is not None:
            known = {param.address: param for param in self._replays.params}
            for address in given.keys() & known.keys():
                if isinstance(value := given[address], int | float):
                    self._settings[address] = float(np.clip(value, known[address].low, known[address].high))
            return self._shown()
        return self._images(request.get("images"), request.get("show", "real"))

    def _choice(self, name: str, label: str, options: Sequence[str], **more: bool) -> bytes:
        header = {"name": name, "label": label, "options": options, "value": self._chosen[name], **more}
        return encode("choice", header)

    def _sliders(self, params: Sequence[Param]) -> list[dict[str, Any]]:
        values = {**read(self._scene.model, [param.address for param in params]), **self._settings}
        return [
            {"address": p.address, "low": p.low, "high": p.high, "log": p.log, "unit": p.unit,
             "value": float(np.clip(values.get(p.address, p.low), p.low, p.high))}
            for p in params
        ]  # fmt: skip

    def _shown(self) -> Sequence[bytes]:
        """The tracks of the chosen episode and their marks."""
        place, count = self._chosen["episode"], len(self._episodes)
        episode = self._main = self._episodes[place]
        marks = recorded_marks(episode)
        if self._replays is None:
            which = f"episode {place + 1} of {count}, " if count > 1 else ""
            words = f"{which}{len(episode)} rows, {episode.t[-1] - episode.t[0]:.1f} s"
            tracks = [track_message(self._scene, episode, TrackOptions())]
        else:
            sims = dict(self._replays.sims)
            last = next(reversed(sims))
            if self._settings:
                sims[last] = sims[last].tuned(self._settings)
            seconds = [*HORIZONS.values()][self._chosen["horizon"]]
            anchors = {n: None if seconds is None else max(1, round(seconds / sim.spec.dt)) for n, sim in sims.items()}
            replays = {name: replay(sim, episode, anchor=anchors[name]) for name, sim in sims.items()}
            self._main, words = replays[last], error_words(replays, episode)
            tracks = replay_tracks(self._scene, replays, episode)
            marks += error_marks(episode.t, error_table(self._main, episode))
        cameras = _cameras(episode)
        compare = any(name in self._scene.cameras for name in cameras)
        info = {"title": self._title, "subtitle": words, "images": cameras, "compare": compare}
        self._tracks = [encode("info", info), *tracks, event_message(marks)]
        return self._tracks

    def _images(self, at: object, kind: object) -> Sequence[bytes]:
        """The images at a time [s]: real, rendered, or their difference."""
        if not isinstance(at, int | float) or not np.isfinite(at) or kind not in ("real", "rendered", "difference"):
            return ()
        episode, found = self._episodes[self._chosen["episode"]], list[bytes]()
        row = int(np.clip(np.searchsorted(episode.t - episode.t[0], at + 1e-6) - 1, 0, len(episode) - 1))
        for camera in _cameras(episode):
            if kind != "real" and camera not in self._scene.cameras:
                continue
            label, image = camera, np.asarray(episode[IMAGES + camera][row], np.uint8)
            if kind != "real":
                label = f"{camera}, {kind}"
                rendered = _fitting(self._render(self._positions(row), camera), image)
                apart = np.abs(image.astype(np.int16) - rendered).astype(np.uint8)
                image = rendered if kind == "rendered" else apart
            found.append(image_message(camera, label, float(at), image))
        return found

    def _positions(self, row: int) -> Array:
        """Positions [nq] at a row; where a replay diverged, its last finite ones."""
        q = positions_in(self._scene, self._main)[: row + 1]
        return q[np.flatnonzero(np.isfinite(q).all(axis=1))[-1]]


def _cameras(episode: Episode) -> list[str]:
    """The cameras whose images an episode holds."""
    names = [name for name in episode.columns if name.startswith(IMAGES) and not name.endswith(".stamp")]
    return [name.removeprefix(IMAGES) for name in names]


def _fitting(image: Array, other: Array) -> Array:
    """An image in the size of another."""
    import av

    if image.shape == other.shape:
        return image
    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
    height, width = other.shape[:2]
    return frame.reformat(width=width, height=height, interpolation="BILINEAR").to_ndarray(format="rgb24")


class RenderThread:
    """Render a scene in one thread: a context of graphics belongs to one, and requests come in several."""

    def __init__(self, scene: Scene):
        self._scene, self._thread = scene, ThreadPoolExecutor(1, "instep-view-render")
        self._renderer: Any = None

    def __call__(self, q: Array, camera: str) -> Array:
        """The image [height, width, 3] of a camera at positions [nq]."""
        return self._thread.submit(self._image, q, camera).result()

    def _image(self, q: Array, camera: str) -> Array:
        from instep.physics.mujoco_cameras import MujocoRenderer

        if self._renderer is None:
            self._renderer = MujocoRenderer(self._scene)  # fails where there are no graphics
            weakref.finalize(self, self._thread.submit, self._renderer.close).atexit = False
        return self._renderer.render(q, self._scene.cameras[camera])


def replay_tracks(
    scene: Scene, replays: Mapping[str, Episode], recorded: Episode, max_rows: int = MAX_ROWS
) -> list[bytes]:
    """Replays by label, earlier ones and the recording as ghosts; joints of the last replay are coloured by error."""
    first, *_, last = [*replays, *replays]
    scales, messages = error_scales(error_table(replays[first], recorded)), list[bytes]()
    for i, (label, simulated) in reversed([*enumerate(replays.items())]):
        table = error_table(simulated, recorded)
        options = TrackOptions(id=f"sim {i}", label=label, role="ghost", max_rows=max_rows)
        if label == last:
            errors = joint_errors(scene, table, scales, len(channel_table(simulated).channels))
            options = replace(options, role="main", errors=errors)
        messages.append(track_message(scene, simulated, options, table))
    return [*messages, track_message(scene, recorded, TrackOptions(role="ghost", max_rows=max_rows))]


def error_words(replays: Mapping[str, Episode], recorded: Episode) -> str:
    """The errors of replays in a line."""
    listed: list[str] = []
    for label, simulated in replays.items():
        table = error_table(simulated, recorded)
        angles = [i for i, channel in enumerate(table.channels) if channel["unit"] == "rad"]
        values, unit = (table.values[:, angles], "mrad") if angles else (table.values, "mm")
        words = f"{1e3 * float(np.sqrt(np.nanmean(values**2))):.3g} {unit}" if values.size else "–"
        listed.append(f"{label} {words}")
    return f"RMS error of joints: {' → '.join(listed)}"


def error_table(simulated: Episode, recorded: Episode) -> ChannelTable:
    """The distance of simulated from recorded positions of joints, as channels."""
    q, known = simulated.spec.q, recorded.spec.q.labels
    shared = [(i, known.index(label)) for i, label in enumerate(q.labels) if label in known and "." not in label]
    names = [{"name": f"error.{q.labels[i]}", "unit": q.units[i], "group": "error"} for i, _ in shared]
    ours, theirs = [i for i, _ in shared], [k for _, k in shared]
    return ChannelTable(names, np.abs(simulated.q[:, ours] - recorded.q[: len(simulated), theirs]))


def error_scales(table: ChannelTable) -> dict[str, float]:
    """The error that has the full colour, by unit."""
    units = np.array([channel["unit"] for channel in table.channels])
    return {u: max(1e-9, float(np.nanquantile(table.values[:, units == u], ERROR_QUANTILE))) for u in {*units.tolist()}}


def joint_errors(scene: Scene, table: ChannelTable, scales: Mapping[str, float], first: int) -> list[dict[str, Any]]:
    """Which channel colours which body; `first` is the place of the first error among the channels of the track."""
    bodies = {scene.model.joint(j).name: int(scene.model.jnt_bodyid[j]) for j in range(scene.model.njnt)}
    joints = [channel["name"].removeprefix("error.") for channel in table.channels]
    return [
        {"body": bodies[joint], "channel": first + i, "scale": scales[table.channels[i]["unit"]]}
        for i, joint in enumerate(joints) if joint in bodies
    ]  # fmt: skip


MAX_REPORT_TRIANGLES = 60_000
"""Most triangles of a scene in a report; more are thinned."""
MAX_REPORT_ROWS = 1200
"""Most rows of a run in a report; longer ones are thinned."""
MEASURED = "twin.measured"
"""What the robot of a twin said of itself."""


def report_viewer(scene: Scene | None, episode: Episode, title: str) -> ReportViewer | None:
    """The 3D view of an episode; None where the viewer was not built, or no scene shows these positions.

    Of a run through a twin the robot that follows is a ghost.
    """
    if scene is None or not _can_show(scene, episode):
        return None
    followed = measured_run(episode)
    label, shown = ("recording", "In 3D") if followed is None else ("twin", "The twin in 3D, the robot as a ghost")
    tracks = [track_message(scene, episode, TrackOptions(label=label, max_rows=MAX_REPORT_ROWS))]
    if followed is not None:
        ghost = TrackOptions(id="robot", label="robot", role="ghost", max_rows=MAX_REPORT_ROWS)
        tracks.append(track_message(scene, followed, ghost))
    tracks.append(event_message(recorded_marks(episode)))
    return _viewer(scene, tracks, (title, f"{episode.t[-1] - episode.t[0]:.1f} s"), shown)


def replay_viewer(
    scene: Scene, recorded: Episode, replays: Mapping[str, Episode], title: str, caption: str
) -> ReportViewer | None:
    """A recording as a ghost over its replays, earlier ones first; None where the viewer was not built."""
    if not _can_show(scene, recorded):
        return None
    marks = error_marks(recorded.t, error_table(list(replays.values())[-1], recorded))
    tracks = [*replay_tracks(scene, replays, recorded, MAX_REPORT_ROWS), event_message(marks)]
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
    labels = episode.spec.q.labels
    shared = [(labels.index(label), i) for i, label in enumerate(channel.labels) if label in labels]
    q, measured = episode.q.copy(), np.asarray(episode[MEASURED], float)
    for to, place in shared:
        q[:, to] = np.where(np.isfinite(measured[:, place]), measured[:, place], q[:, to])
    columns = {"timestamp": episode.t, "q": q, "v": episode.v, "action": episode.action}
    return Episode(replace(episode.spec, observation={}), columns, episode.meta) if shared else None


def _can_show(scene: Scene, episode: Episode) -> bool:
    shown = set(episode.spec.q.labels) & set(scene.spec.q.labels)
    return not absence() and bool(scene.model.ngeom) and bool(shown)


def _viewer(scene: Scene, tracks: Sequence[bytes], titles: tuple[str, str], caption: str) -> ReportViewer:
    info = encode("info", {"title": titles[0], "subtitle": titles[1], "images": list[str]()})
    data = container([scene_message(scene, max_triangles=MAX_REPORT_TRIANGLES), info, *tracks])
    return ReportViewer(bundle(), data, f"{caption}. Drag to orbit, wheel to zoom, Space to pause, ? for all keys.")
