"""Images for the viewer, as JPEG."""

from __future__ import annotations

from io import BytesIO

import numpy as np

from instep.core.world import Array
from instep.physics.trajectory_video import shrunk

from .messages import encode

MAX_WIDTH = 640
"""Widest image that is sent [pixels]."""
QUALITY = 82


def image_message(camera: str, label: str, t: float, image: Array) -> bytes:
    """An image of a camera at a time; `label` is below it."""
    header = {"camera": camera, "label": label, "t": round(t, 4), "format": "jpeg"}
    return encode("image", header, {"data": np.frombuffer(jpeg(image), np.uint8)})


def jpeg(image: Array) -> bytes:
    """An image [height, width, 3] as a JPEG of at most `MAX_WIDTH` columns."""
    from PIL import Image  # comes with Matplotlib

    stream = BytesIO()
    Image.fromarray(shrunk(image, MAX_WIDTH)).save(stream, "JPEG", quality=QUALITY)
    return stream.getvalue()
