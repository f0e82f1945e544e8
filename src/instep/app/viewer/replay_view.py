"""Recordings over their replays in simulators, in the viewer and inside reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.param import Param
from instep.core.reading import is_mapping
from instep.core.rollout import replay
from instep.core.world import Array, array_dataclass, frozen_dataclass
from instep.gap.gap_result import RunPair
from instep.report.page import ReportViewer
from instep.scene.folder import Scene, SceneSimulator

from .contents import ComparedImages, ImageRequest
from .messages import container, encode
from .tracks import (
    MAX_ROWS,
    ChannelTable,
    TrackOptions,
    channel_table,
    error_marks,
    event_message,
    positions_in,
    recorded_marks,
    scene_message,
    track_message,
)
from .view_server import absence, bundle

ERROR_QUANTILE = 0.98
"""Errors of this quantile, over all joints of one unit, have the full colour."""


@frozen_dataclass
class Horizon:
    """How long a replay runs before it is placed on the recording again."""

    label: str
    seconds: float | None
    """One control step where 0, the whole run where None."""

    def rows(self, dt: float) -> int | None:
        """The same in rows, as `replay` takes it."""
        return None if self.seconds is None else max(1, round(self.seconds / dt))


HORIZONS = (
    Horizon("one step", 0.0),
    *(Horizon(f"{seconds:g} s", seconds) for seconds in (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)),
    Horizon("whole run", None),
)


@array_dataclass
class Replayed:
    """What is compared: recordings at the rate of the simulators, which are the earlier ones first."""

    episodes: Sequence[Episode]
    sims: Mapping[str, SceneSimulator]
    """By label; the last is the one whose joints are coloured and whose parameters can be set."""
    params: Sequence[Param]
    """Parameters with a slider."""


class GapContent:
    """A recording over its replays; the horizon, the episode and parameters are chosen in the page."""

    gaussians = False

    def __init__(self, given: Replayed, title: str, first: int = 0):
        if not given.sims:
            raise BadInput("There is no simulator to replay the recording in.")
        self._given, self._title, self._shown, self._horizon = given, title, first, len(HORIZONS) - 1
        self._settings: dict[str, float] = {}
        self._scene: Scene = list(given.sims.values())[-1].scene
        self._scene_message = scene_message(self._scene)
        self._images = ComparedImages(self._scene)
        self._replayed: Episode | None = None

    def opening(self) -> Sequence[bytes]:
        """The scene, the choices, and the tracks as they were chosen last."""
        options = [horizon.label for horizon in HORIZONS]
        choice = {
            "name": "horizon", "label": "Replay for", "options": options, "value": self._horizon, "ordered": True,
        }  # fmt: skip
        messages = [self._scene_message, *self._tracks(), encode("choice", choice)]
        count = len(self._given.episodes)
        if count > 1:
            numbers = [str(i + 1) for i in range(count)]
            header = {"name": "episode", "label": "Episode", "options": numbers, "value": self._shown}
            messages.append(encode("choice", header))
        if self._given.params:
            messages.append(encode("params", {"params": self._sliders()}))
        return messages

    def answer(self, request: Mapping[str, Any]) -> Sequence[bytes]:
        """Another horizon or episode, or other parameters: the replays are computed again."""
        chosen, given = request.get("choose"), request.get("set")
        if is_mapping(chosen):
            horizon, episode = chosen.get("horizon"), chosen.get("episode")
            if isinstance(horizon, int):
                self._horizon = int(np.clip(horizon, 0, len(HORIZONS) - 1))
            if isinstance(episode, int):
                self._shown = int(np.clip(episode, 0, len(self._given.episodes) - 1))
            return self._tracks()
        if is_mapping(given):
            known = {param.address: param for param in self._given.params}
            for address, value in given.items():
                if address in known and isinstance(value, int | float):
                    self._settings[address] = float(np.clip(value, known[address].low, known[address].high))
            return self._tracks()
        wanted = ImageRequest.of(request)
        if wanted is None:
            return ()
        episode = self._given.episodes[self._shown]
        return self._images.messages(episode, self._replayed_at(wanted.row(episode)), wanted)

    def _sliders(self) -> list[dict[str, Any]]:
        from instep.scene.address import read

        addresses = [param.address for param in self._given.params]
        values = {**read(self._scene.model, addresses), **self._settings}
        return [
            {"address": p.address, "low": p.low, "high": p.high, "log": p.log, "unit": p.unit,
             "value": float(np.clip(values.get(p.address, p.low), p.low, p.high))}
            for p in self._given.params
        ]  # fmt: skip

    def _tracks(self) -> Sequence[bytes]:
        episode = self._given.episodes[self._shown]
        sims = list(self._given.sims.items())
        if self._settings:
            label, sim = sims[-1]
            sims[-1] = label, sim.tuned(self._settings)
        horizon = HORIZONS[self._horizon]
        replays = {label: replay(sim, episode, anchor=horizon.rows(sim.spec.dt)) for label, sim in sims}
        words = error_words(replays, episode)
        info = {"title": self._title, "subtitle": words, **self._images.info(episode)}
        last = self._replayed = list(replays.values())[-1]
        marks = [*recorded_marks(episode), *error_marks(episode.t, error_table(last, episode))]
        return [*replay_tracks(self._scene, replays, episode), event_message(marks), encode("info", info)]

    def _replayed_at(self, row: int) -> Array:
        """Positions [nq] of the last simulator at a row of the recording; where it diverged, its last sound ones."""
        if self._replayed is None:
            self._tracks()
        assert self._replayed is not None  # noqa: S101 - the tracks have just been computed
        q = positions_in(self._scene, self._replayed)[: row + 1]
        sound = np.flatnonzero(np.isfinite(q).all(axis=1))
        return q[sound[-1]]


def replay_tracks(
    scene: Scene, replays: Mapping[str, Episode], recorded: Episode, max_rows: int = MAX_ROWS
) -> list[bytes]:
    """Replays by label, earlier ones and the recording as ghosts; joints of the last replay are coloured by error."""
    scales = error_scales(next(iter(replays.values())), recorded)
    messages: list[bytes] = []
    for i, (label, simulated) in reversed(list(enumerate(replays.items()))):
        last = i == len(replays) - 1
        table = error_table(simulated, recorded)
        errors = joint_errors(scene, table, scales, len(channel_table(simulated).channels)) if last else ()
        options = TrackOptions(
            id=f"sim {i}",
            label=label,
            role="main" if last else "ghost",
            contacts=last,
            errors=errors,
            max_rows=max_rows,
        )
        messages.append(track_message(scene, simulated, options, table))
    real = TrackOptions(id="recording", label="recording", role="ghost", contacts=False, max_rows=max_rows)
    return [*messages, track_message(scene, recorded, real)]


def error_words(replays: Mapping[str, Episode], recorded: Episode) -> str:
    """The errors of replays in a line."""
    listed = [f"{label} {_rms(error_table(simulated, recorded))}" for label, simulated in replays.items()]
    return f"RMS error of joints: {' → '.join(listed)}"


def error_table(simulated: Episode, recorded: Episode) -> ChannelTable:
    """The distance of simulated from recorded positions of joints, as channels."""
    places = {label: i for i, label in enumerate(recorded.spec.q.labels)}
    shared = [(i, places[label], label) for i, label in enumerate(simulated.spec.q.labels)
              if label in places and "." not in label]  # fmt: skip
    units = simulated.spec.q.units
    names = [{"name": f"error.{label}", "unit": units[i], "group": "error"} for i, _, label in shared]
    values = [np.abs(simulated.q[:, i] - recorded.q[: len(simulated), k]) for i, k, _ in shared]
    return ChannelTable(names, np.stack(values, axis=1) if values else np.zeros((len(simulated), 0)))


def error_scales(simulated: Episode, recorded: Episode) -> dict[str, float]:
    """The error that has the full colour, by unit."""
    table = error_table(simulated, recorded)
    scales: dict[str, float] = {}
    for unit in {name["unit"] for name in table.channels}:
        values: Array = table.values[:, [i for i, name in enumerate(table.channels) if name["unit"] == unit]]
        scales[unit] = max(1e-9, float(np.nanquantile(values, ERROR_QUANTILE)))
    return scales


def joint_errors(scene: Scene, table: ChannelTable, scales: Mapping[str, float], first: int) -> list[dict[str, Any]]:
    """Which channel colours which body; `first` is the place of the first error among the channels of the track."""
    bodies = {scene.model.joint(j).name: int(scene.model.jnt_bodyid[j]) for j in range(scene.model.njnt)}
    found: list[dict[str, Any]] = []
    for i, name in enumerate(table.channels):
        joint = name["name"].removeprefix("error.")
        if joint in bodies:
            found.append({"body": bodies[joint], "channel": first + i, "scale": scales[name["unit"]]})
    return found


def _rms(table: ChannelTable) -> str:
    angles = [i for i, name in enumerate(table.channels) if name["unit"] == "rad"]
    columns, unit = (angles, "mrad") if angles else (list(range(len(table.channels))), "mm")
    if not columns:
        return "–"
    return f"{1e3 * float(np.sqrt(np.nanmean(table.values[:, columns] ** 2))):.3g} {unit}"


MAX_REPORT_TRIANGLES = 60_000
"""Most triangles of a scene in a report; more are thinned."""
MAX_REPORT_ROWS = 1200
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
    tracks = [track_message(scene, episode, TrackOptions(label=label, max_rows=MAX_REPORT_ROWS))]
    if followed is not None:
        ghost = TrackOptions(id="robot", label="robot", role="ghost", contacts=False, max_rows=MAX_REPORT_ROWS)
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
    data = container([scene_message(scene, max_triangles=MAX_REPORT_TRIANGLES), info, *tracks])
    return ReportViewer(bundle(), data, f"{caption}. {HOW}")
