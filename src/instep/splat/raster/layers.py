"""A scene in layers: what never moves is drawn once per camera, what moves over it, robots before or behind both."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.world import Array
from instep.scene.camera import Camera
from instep.splat.gaussians import Gaussians
from instep.splat.image import Backdrop, Image, Region, checked_region

from .camera_frames import world_from_camera
from .rasterizer import Raster

_SOLID = 0.5
"""Coverage above which the static layer counts as a surface that can hide things."""
_KEPT = 32
"""Static layers that are remembered."""


class Layers:
    """Gaussians of which some bodies never move.

    Where a moving body meets a half-transparent part of the static layer, that layer counts as one surface at its mean
    depth; for tables and walls that is what it is.
    """

    def __init__(self, gaussians: Gaussians, static: Sequence[str] = ("world",), *, threads: int | None = None):
        for name in static:
            if name not in gaussians.names:
                raise UnknownName("body", name, gaussians.names)
        rows = [gaussians.names.index(name) for name in static]
        still = np.isin(gaussians.body, rows)
        self.gaussians = gaussians
        self.static = Raster(gaussians.take(still), threads=threads)
        self.dynamic = Raster(gaussians.take(~still), threads=threads)
        self._whole = Raster(gaussians, threads=threads)
        self._rows = rows
        self._kept: dict[tuple[object, ...], Image] = {}

    def background(self, camera: Camera, poses: Array | None = None) -> Image:
        """The static layer as a camera sees it; drawn when first asked for, and again only if the camera has moved."""
        key = self._key(camera, poses)
        kept = self._kept.get(key)
        if kept is None:
            kept = self.static.render(camera, poses)
            if len(self._kept) >= _KEPT:
                self._kept.pop(next(iter(self._kept)), None)
            self._kept[key] = kept
        return kept

    def render(
        self,
        camera: Camera,
        poses: Array | None = None,
        *,
        before: Backdrop | None = None,
        region: Region | None = None,
    ) -> Image:
        """Draw the moving bodies over the static layer; `before` is what else stands there, as a robot's silhouette."""
        if not self.fixed(camera):
            return self._whole.render(camera, poses, backdrop=before, region=region)
        behind = self.behind(camera, poses, before)
        image = self.dynamic.render(camera, poses, backdrop=behind, region=region)
        left, top, right, bottom = checked_region(camera, region)
        shown = behind.depth[top:bottom, left:right]
        alpha = np.where(np.isfinite(shown), np.float32(1.0), image.alpha)
        depth = np.where(image.alpha > _SOLID, image.depth, np.minimum(shown, image.depth))
        return Image(image.colour, alpha, depth)

    def render_batch(self, camera: Camera, poses: Array) -> Array:
        """Colours uint8 [worlds, height, width, 3] for `poses` [worlds, bodies, 7] whose static bodies are alike."""
        if self.fixed(camera) and len(poses):
            return self.dynamic.render_batch(camera, poses, backdrop=self.behind(camera, poses[0], None))
        return self._whole.render_batch(camera, poses)

    def behind(self, camera: Camera, poses: Array | None, before: Backdrop | None) -> Backdrop:
        """All that stands around the moving bodies."""
        static = self.background(camera, poses)
        if before is None:
            return surface(static)
        through = static.colour + (1 - static.alpha)[..., None] * before.colour
        hidden = before.depth < static.depth
        behind = np.where(hidden[..., None], before.colour, through)
        return Backdrop(behind, np.minimum(surface(static).depth, before.depth))

    def fixed(self, camera: Camera) -> bool:
        """Whether a camera never moves, so that the static layer can be kept for it."""
        names = self.gaussians.names
        return camera.body not in names or names.index(camera.body) in self._rows

    def _key(self, camera: Camera, poses: Array | None) -> tuple[object, ...]:
        names = self.gaussians.names
        still = b"" if poses is None else np.ascontiguousarray(np.asarray(poses, float)[self._rows]).tobytes()
        place = np.ascontiguousarray(world_from_camera(names, camera, poses)).tobytes()
        return (camera.width, camera.height, camera.focal, camera.centre, camera.distortion, place, still)


def surface(image: Image) -> Backdrop:
    """A picture as a backdrop: solid where it is mostly covered, behind everything elsewhere."""
    return Backdrop(image.colour, np.where(image.alpha > _SOLID, image.depth, np.float32(np.inf)))


def nearer(a: Backdrop, b: Backdrop) -> Backdrop:
    """Two backdrops as one: at each pixel the one that is nearer."""
    if a.depth.shape != b.depth.shape:
        raise BadInput(f"Backdrops of {a.depth.shape} and {b.depth.shape} pixels cannot be put together.")
    first = a.depth <= b.depth
    return Backdrop(np.where(first[..., None], a.colour, b.colour), np.where(first, a.depth, b.depth))


def silhouette(mask: Array, depth: Array | float, colour: Array | tuple[float, float, float]) -> Backdrop:
    """An occluder known only by its outline: a mask [height, width], how far it is [m], and what it looks like."""
    mask = np.asarray(mask, bool)
    shown = np.broadcast_to(np.asarray(colour, np.float32), (*mask.shape, 3))
    return Backdrop(np.where(mask[..., None], shown, np.float32(0.0)), np.where(mask, depth, np.inf))
