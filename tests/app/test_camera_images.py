"""Rendered images beside recorded ones, where there are no graphics."""

from __future__ import annotations

import numpy as np
import pytest

import instep
from instep.app.viewer.contents import ComparedImages, ImageRequest
from instep.core.episode import Episode
from instep.core.errors import Unsupported
from instep.core.world import Channel
from instep.physics import mujoco_cameras


@pytest.mark.timeout(60)
def test_a_machine_without_graphics_says_so_and_goes_on_with_recorded_images(monkeypatch: pytest.MonkeyPatch):
    scene = instep.load_scene("pusht")
    camera = next(iter(scene.cameras))
    spec = scene.spec.with_observations(
        {f"observation.images.{camera}": Channel(("height", "width", "channels"), "", (8, 12, 3), "uint8")}
    )
    rows = {"timestamp": np.zeros(1), "q": np.zeros((1, len(scene.spec.q.labels)))}
    episode = Episode(spec, {**rows, f"observation.images.{camera}": np.zeros((1, 8, 12, 3), np.uint8)}, {})

    def no_graphics(*_: object) -> None:
        raise Unsupported("No graphics here.")

    monkeypatch.setattr(mujoco_cameras, "MujocoRenderer", no_graphics)
    images = ComparedImages(scene)
    for _ in range(2):
        with pytest.raises(Unsupported, match="No graphics"):
            images.messages(episode, np.zeros(9), ImageRequest(0.0, "rendered"))
    assert len(images.messages(episode, np.zeros(9), ImageRequest(0.0, "real"))) == 1
