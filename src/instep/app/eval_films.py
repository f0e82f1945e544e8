"""Films of episodes that did not succeed."""

from __future__ import annotations

from pathlib import Path

from instep.core.errors import Unsupported
from instep.core.world import Array
from instep.scene.folder import Scene

FRAMES = 10
"""Pictures per second."""


def film(scene: Scene, tracks: dict[str, Array], folder: Path) -> tuple[dict[str, str], str]:
    """A film of each track of positions q by the scene's first camera, and why there is none where there is none."""
    from instep.data.video import VideoWriter
    from instep.physics.film import Studio

    if not tracks or not scene.cameras:
        return {}, "" if not tracks else f"scene {scene.name!r} has no camera"
    camera, studio, made = next(iter(scene.cameras.values())), Studio(scene), dict[str, str]()
    every = max(1, round(1 / (FRAMES * scene.dt)))
    try:
        for name, track in tracks.items():
            file = "".join(c if c.isalnum() or c in "-_" else "_" for c in name) + ".mp4"
            with VideoWriter(folder / file, FRAMES) as writer:
                for q in track[::every]:
                    writer.add(studio.picture(q, camera))
            made[name] = file
    except Unsupported as error:
        return made, str(error)
    finally:
        studio.close()
    return made, ""
