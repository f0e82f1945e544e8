"""A robot behind a link in the viewer: whoever knows its token may watch, and the robot notices nothing of it."""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from instep.core.errors import BadInput, InstepError
from instep.core.world import Array
from instep.robot.link import LinkSession, LiveConnection
from instep.scene.folder import Scene

from .camera_images import IMAGES
from .images import image_message
from .messages import encode
from .shapes import scene_message
from .tracks import channel_names, live_row
from .view_server import LiveRow, ViewServer, running_beside

TRACK = "robot"
CONNECT_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 2.0
"""Time within which a robot must say that it has stopped [s]."""
RATE = 60.0
"""Most rows per second that are shown [Hz]."""


class RobotContent:
    """The newest state of a robot in a scene; the link is opened again where it breaks."""

    gaussians = False

    def __init__(self, address: str, token: str, scene: Scene, *, may_stop: bool = False):
        self._address, self._scene, self._may_stop = address, scene, may_stop
        self._session = LinkSession(address, token, "watch")
        try:
            self._spec = self._session.wait(CONNECT_TIMEOUT_S).hello.spec
        except BaseException:
            self._session.close()
            raise
        places = {label: i for i, label in enumerate(self._spec.q.labels)}
        self._shared = [(i, places[label]) for i, label in enumerate(scene.spec.q.labels) if label in places]
        if not self._shared:
            self._session.close()
            raise BadInput(f"The robot reports no position of scene {scene.name!r}; give the --scene of this robot.")
        self._start, self._stamps = scene.start(0)[0], dict[str, float]()

    def opening(self) -> Sequence[bytes]:
        """The scene and its live track."""
        channels = [*channel_names(self._spec.q, ""), *channel_names(self._spec.action, "action")]
        header: dict[str, Any] = {"id": TRACK, "label": "robot", "role": "main", "live": True, "channels": channels}
        cameras = [name.removeprefix(IMAGES) for name in self._spec.observation if name.startswith(IMAGES)]
        info = {
            "title": self._scene.name, "subtitle": f"robot at {self._address}", "images": cameras,
            "stop": self._may_stop,
        }  # fmt: skip
        return [scene_message(self._scene), encode("info", info), encode("track", header)]

    def answer(self, request: Mapping[str, Any]) -> Sequence[bytes]:
        """A watcher asks nothing of a robot but to stop, where that is allowed."""
        if "stop" not in request:
            return ()
        if not self._may_stop:
            raise BadInput("This page may not stop the robot; open it with --allow-stop.")
        self._session.stop(STOP_TIMEOUT_S)  # raises, and the page says so, where the robot does not confirm it
        return [encode("status", {"text": "The robot has stopped; make it safe, then reset it.", "level": "bad"})]

    @contextmanager
    def running(self, server: ViewServer) -> Generator[None]:
        """Show the robot until the context ends."""
        try:
            with running_beside(lambda over: self._run(server, over)):
                yield
        finally:
            self._session.close()

    def _run(self, server: ViewServer, over: threading.Event) -> None:
        shown, words = (0, -1), ""
        while not over.wait(1 / RATE):
            try:
                live = self._session.wait(1.0)
            except InstepError as error:
                live, said = None, (str(error), "bad")
            else:
                mode, reason = live.report.mode, live.report.reason
                said = (f"{mode}: {reason}" if reason else str(mode), "warn" if reason else "info")
            messages = {"status": encode("status", {"text": said[0], "level": said[1]})} if said[0] != words else {}
            words = said[0]
            if live is None:
                server.publish({}, messages)
                continue
            if (live.report.episode, live.report.tick) != shown:
                shown = live.report.episode, live.report.tick
                server.publish({TRACK: self._row(live)}, {**messages, **self._images(live)})

    def _row(self, live: LiveConnection) -> LiveRow:
        q: Array = self._start.copy()
        q[[i for i, _ in self._shared]] = live.report.q[[k for _, k in self._shared]]
        return live_row(self._scene, float(live.report.t), q, np.concatenate([live.report.q, live.report.sent]))

    def _images(self, live: LiveConnection) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for name, image in live.report.seen.items():
            stamp = live.report.stamps.get(name, live.report.t)
            if name.startswith(IMAGES) and self._stamps.get(name) != stamp:
                self._stamps[name] = stamp
                camera = name.removeprefix(IMAGES)
                found[camera] = image_message(camera, camera, float(live.report.t), np.asarray(image, np.uint8))
        return found
