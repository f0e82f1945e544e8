"""New frames of a camera rig: those that are newer than the last, and whose images show no fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from instep.core.world import Array, Observation, State

from .camera_rig import IMAGES, CameraFrame, CameraRig
from .image_checks import ImageFault, image_fault, learn_view, sample_image, unknown_views

MAX_FRAME_GAP_S = 0.25
"""Time after the last image from which a camera is late, and the covariance grows [s]."""
SHARED = "shared"
"""Names of arrays that a frame's memory still shares with that of the frame before; only there during a frame."""
IMAGE_MEMORY = ("stamp", "print", "same", "seen", "fault", "view", "grain")
"""What is remembered of the images themselves."""


def unknown_images(state: State, cameras: int) -> dict[str, Any]:
    """What is remembered of cameras and their images before the first."""
    return {
        "stamp": np.full(cameras, -np.inf),
        "print": np.zeros(cameras),
        "same": np.zeros(cameras, int),
        "seen": np.full(cameras, state.t),
        "fault": np.zeros(cameras, int),
        **unknown_views(cameras),
        "age": np.zeros(()),
        "strength": np.full(cameras, 100.0),
        "disagreement": np.zeros(cameras),
        "disagreeing": np.zeros(cameras, int),
        "excluded": np.zeros(cameras, bool),
    }


def new_frames(
    rig: CameraRig, dt: float, memory: Mapping[str, Any], observation: Observation, t: float,
    shared: frozenset[str] = frozenset(),
) -> tuple[list[CameraFrame | None], dict[str, Any]]:  # fmt: skip
    """Frames that are newer than the last of their camera and show no fault, and the memory with what was found.

    Arrays of the names in `shared` are not copied; who changes one of them does so by `changeable`.
    """
    kept = {k: value if k in shared else np.array(value) for k, value in memory.items()}
    if shared:
        kept[SHARED] = {k for k in kept if k in shared}
    frames: list[CameraFrame | None] = []
    for c, frame in enumerate(rig.frames(observation, t)):
        if frame is None and IMAGES + rig.cameras[c].name in observation:
            kept["fault"][c] = ImageFault.UNREADABLE
        elif frame is not None and frame.stamp > t + dt:
            kept["fault"][c] = ImageFault.FUTURE
        elif frame is None or frame.stamp <= kept["stamp"][c]:
            if t - kept["seen"][c] > MAX_FRAME_GAP_S and not kept["fault"][c]:
                kept["fault"][c] = ImageFault.LATE
        else:
            kept["same"][c] = kept["same"][c] + 1 if frame.fingerprint == kept["print"][c] else 0
            kept["stamp"][c], kept["print"][c] = frame.stamp, frame.fingerprint
            frames.append(healthy_frame(rig, c, frame, kept))
            continue
        frames.append(None)
    kept["age"] = np.asarray(t - kept["seen"].max())
    return frames, kept


def changeable(memory: dict[str, Any], name: str) -> Array:
    """An array of a memory that may be changed: copied first where the frame before still owns it."""
    shared = memory.get(SHARED, set[str]())
    if name in shared:
        memory[name] = np.array(memory[name])
        shared.remove(name)
    return memory[name]


def image_log(rig: CameraRig, memory: Mapping[str, Any], t: float) -> dict[str, float]:
    """Fault and latency of every camera's newest image."""
    found: dict[str, float] = {}
    for c, camera in enumerate(rig.cameras):
        stamp = float(memory["stamp"][c])
        found[f"{camera.name}.fault"] = float(memory["fault"][c])
        found[f"{camera.name}.latency"] = t - stamp if np.isfinite(stamp) else np.nan
    return found


def healthy_frame(rig: CameraRig, c: int, frame: CameraFrame | None, memory: dict[str, Any]) -> CameraFrame | None:
    """The frame where nothing is wrong with its image, which then is usual; None else, with the fault in memory."""
    if frame is None:
        return None
    sample = sample_image(frame.pixels)
    alike = [(camera.height, camera.width) == frame.pixels.shape[:2] for camera in rig.cameras]
    # An image that repeats to the last bit under new stamps comes from a camera that hangs.
    still = memory["same"][c] >= 2
    fault = ImageFault.FROZEN if still else image_fault(sample, c, memory, alike, fixed=rig.cameras[c].in_world)
    memory["fault"][c] = fault
    if fault:
        return None
    memory["seen"][c] = frame.stamp
    learn_view(memory, c, sample)
    return frame
