"""The viewer's process beside a run: reads the newest row, poses the bodies, and serves the page."""

from __future__ import annotations

import math
import os
import pickle
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import mujoco
import numpy as np

from instep.core.world import Array

from .images import image_message
from .live_view import LiveSetup
from .messages import encode
from .shared_row import SharedRow
from .view_server import LiveRow, Outcome, ViewServer

RATE = 60.0
"""Most rows per second that are shown [Hz]."""
IMAGE_RATE = 10.0
"""Most images per second and camera [Hz]."""
NICENESS = 5
"""It gives way to the loop that it watches."""
OUTCOME_NAMES: dict[int, Outcome] = {0: "", 1: "success", -1: "failure"}


class LiveContent:
    """The scene and its live tracks; rows are published by the server."""

    gaussians = False

    def __init__(self, setup: LiveSetup):
        count = setup.worlds or 1
        side, spacing = math.ceil(math.sqrt(count)), 2.6 * _radius(setup)
        self._messages = [setup.scene]
        info = {"title": setup.title, "subtitle": "live", "images": list(setup.layout.images)}
        self._messages.append(encode("info", info))
        for world in range(count):
            offset = [spacing * (world % side), -spacing * (world // side), 0.0]
            header: dict[str, Any] = {
                "id": f"world {world + 1}", "label": f"world {world + 1}", "role": "main", "live": True,
                "channels": list(setup.channels) if world == 0 else [], "offset": offset,
            }  # fmt: skip
            self._messages.append(encode("track", header))

    def opening(self) -> Sequence[bytes]:
        """The scene and the tracks, still empty."""
        return self._messages

    def answer(self, request: Mapping[str, Any]) -> Sequence[bytes]:
        """Nothing can be asked of what is live."""
        return ()


def main() -> int:
    """Serve until the input ends."""
    os.nice(NICENESS)
    setup = _setup()
    server = ViewServer(LiveContent(setup), port=setup.port)
    row = SharedRow(setup.layout, setup.block)
    over = threading.Event()
    print(server.start(), flush=True)
    threading.Thread(target=_wait_for_end, args=(over,), daemon=True).start()
    data, seen = mujoco.MjData(setup.model), 0
    images, next_image = dict.fromkeys(setup.layout.images, 0), 0.0
    while not over.wait(1 / RATE):
        found = row.read(seen)
        if found is None:
            continue
        seen, t, numbers = found
        shown: dict[str, bytes] = {}
        if time.monotonic() >= next_image:
            next_image = time.monotonic() + 1 / IMAGE_RATE
            shown = _new_images(row, images, t)
        server.publish(_rows(setup, data, t, numbers), shown)
    server.close()
    row.close()
    return 0


def _setup() -> LiveSetup:
    size = int.from_bytes(sys.stdin.buffer.read(8), "little")
    return pickle.loads(sys.stdin.buffer.read(size))  # noqa: S301 - from the process that started this one


def _wait_for_end(over: threading.Event) -> None:
    sys.stdin.buffer.read()
    over.set()


def _rows(setup: LiveSetup, data: mujoco.MjData, t: float, numbers: Array) -> dict[str, LiveRow]:
    if setup.worlds is None:
        return {"world 1": LiveRow(t, _poses(setup, data, numbers[: setup.width]), numbers)}
    found: dict[str, LiveRow] = {}
    for world, row in enumerate(numbers.reshape(setup.worlds, setup.width + 1)):
        shown = np.isfinite(row).all()
        poses = _poses(setup, data, row[:-1]) if shown else np.zeros((0, 7))
        outcome = OUTCOME_NAMES[int(row[-1])] if shown else "absent"
        found[f"world {world + 1}"] = LiveRow(t, poses, np.zeros(0), outcome)
    return found


def _poses(setup: LiveSetup, data: mujoco.MjData, q: Array) -> Array:
    data.qpos[:] = setup.start
    data.qpos[[i for i, _ in setup.places]] = q[[k for _, k in setup.places]]
    mujoco.mj_kinematics(setup.model, data)
    return np.concatenate([data.xpos, data.xquat], axis=1)


def _new_images(row: SharedRow, seen: dict[str, int], t: float) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for camera, counter in seen.items():
        if (new := row.read_image(camera, counter)) is not None:
            seen[camera], image = new
            found[camera] = image_message(camera, camera, t, image)
    return found


def _radius(setup: LiveSetup) -> float:
    return max(0.1, float(setup.model.stat.extent) / 2)


if __name__ == "__main__":
    sys.exit(main())
