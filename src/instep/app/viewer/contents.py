"""What `instep view` shows: a scene, recordings of it, or Gaussians."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.type_guards import is_mapping
from instep.scene.folder import Scene

from .camera_images import CameraImages, ImageRequest
from .event_marks import event_message, recorded_marks
from .messages import encode
from .shapes import scene_message
from .tracks import TrackOptions, positions_in, track_message


class SceneContent:
    """A scene at its initial state."""

    gaussians = False

    def __init__(self, scene: Scene):
        self._messages = [scene_message(scene)]

    def opening(self) -> Sequence[bytes]:
        """The scene."""
        return self._messages

    def answer(self, request: Mapping[str, Any]) -> Sequence[bytes]:
        """Nothing can be asked of a scene."""
        return ()


class RecordingContent:
    """Episodes in a scene, one shown at a time, with the images of their cameras."""

    gaussians = False

    def __init__(self, scene: Scene, episodes: Sequence[Episode], title: str, first: int = 0):
        if not len(episodes):
            raise BadInput("There is no episode to show.")
        self._scene, self._episodes, self._title = scene, episodes, title
        self._shown = first
        self._scene_message = scene_message(scene)
        self._tracks: dict[int, bytes] = {}
        self._images = CameraImages(scene)

    def opening(self) -> Sequence[bytes]:
        """The scene, and the episode that was chosen last."""
        messages = [self._scene_message, *self._episode(self._shown)]
        count = len(self._episodes)
        if count > 1:
            options = [str(i + 1) for i in range(count)]
            header = {"name": "episode", "label": "Episode", "options": options, "value": self._shown}
            messages.append(encode("choice", header))
        return messages

    def answer(self, request: Mapping[str, Any]) -> Sequence[bytes]:
        """Another episode, or the images of a time."""
        chosen = request.get("choose")
        if is_mapping(chosen) and isinstance(chosen.get("episode"), int):
            self._shown = int(np.clip(chosen["episode"], 0, len(self._episodes) - 1))
            return self._episode(self._shown)
        wanted = ImageRequest.of(request)
        if wanted is None:
            return ()
        episode = self._episodes[self._shown]
        return self._images.messages(episode, positions_in(self._scene, episode)[wanted.row(episode)], wanted)

    def _episode(self, number: int) -> Sequence[bytes]:
        episode = self._episodes[number]
        length = episode.t[-1] - episode.t[0]
        count = len(self._episodes)
        which = f"episode {number + 1} of {count}, " if count > 1 else ""
        words = f"{which}{len(episode)} rows, {length:.1f} s"
        info = {"title": self._title, "subtitle": words, **self._images.info(episode)}
        if number not in self._tracks:
            self._tracks = {number: track_message(self._scene, episode, TrackOptions())}  # one is kept: they are large
        return [encode("info", info), self._tracks[number], event_message(recorded_marks(episode))]
