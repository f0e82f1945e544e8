"""The gap, to be seen: a recording as a ghost over its replay in simulators, joints coloured by their error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.param import Param
from instep.core.reading import is_mapping
from instep.core.rollout import replay
from instep.core.world import Array, array_dataclass, frozen_dataclass
from instep.scene.folder import Scene, SceneSimulator

from .contents import CameraImages, ImageRequest
from .messages import encode
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
        self._images = CameraImages(self._scene)
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
