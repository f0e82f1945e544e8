"""CPU rasteriser of 3D Gaussians: the images of `reference`, compiled, on all cores.

Gaussians are projected, binned into tiles of 32 x 32 pixels with the exact set of 4 x 4 cells each one reaches, and
blended cell by cell in registers. Threads take tiles from a shared counter. The depth order is kept from frame to
frame as the order of the arrays, so a tile's list is nearly sorted when it is made.

`LayeredRasterizer` renders static bodies once per camera and moving bodies over them.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from instep.core.errors import BadInput, MissingExtra, UnknownName, Unsupported
from instep.core.processes import usable_cores
from instep.core.world import Array, array_dataclass
from instep.scene.camera import Camera
from instep.splat.gaussians import Gaussians
from instep.splat.image import Backdrop, Region, RenderedImage, checked_region

from .blending import BackdropArrays, ImageArrays, blend_tiles
from .gaussian_projection import (
    CameraView,
    camera_from_bodies,
    evaluate_sh,
    project,
    view_parameters,
    world_from_camera,
)
from .gradients import Gradients, Loss, image_gradients
from .tiles import (
    PackedGaussians,
    TileLists,
    Workspace,
    WorkspacePool,
    allocate_lists,
    fill_tiles,
    pack,
    row_range,
    run_on_threads,
)

if TYPE_CHECKING:
    from .fused import FusedRasterizer

Device: TypeAlias = Literal["cpu", "cuda"]
"""Where Gaussians are rendered."""
_MAX_DISORDER = 0.25
"""Share of a frame's list entries that may be out of order before the arrays are sorted again."""
_MIN_SORT_INTERVAL = 16
"""Frames between two sorts, so that a camera that keeps turning does not pay for one each time."""
_MAX_CAMERAS = 16
"""Cameras whose depth order is remembered."""
_MAX_SERIAL = 4000
"""Gaussians up to which one thread projects faster than several."""


@dataclass(slots=True)
class _CameraOrder:
    """The Gaussians in the depth order of one camera, and how many frames ago it was made."""

    packed: PackedGaussians
    age: int = 0


@array_dataclass
class PreparedFrame:
    """A frame up to the point where tiles are blended; shared by rendering and derivatives."""

    camera: Camera
    region: Region
    packed: PackedGaussians
    view: CameraView
    space: Workspace
    backdrop: BackdropArrays
    threads: int

    @property
    def placing_threads(self) -> int:
        """How many threads project the Gaussians."""
        return 1 if len(self.packed.ids) <= _MAX_SERIAL else self.threads

    def tile_lists(self) -> TileLists:
        """The lists of the tiles, none of them taken yet."""
        return self.space.tile_lists(self.packed.ids)

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the image."""
        left, top, right, bottom = self.region
        return bottom - top, right - left


class Rasterizer:
    """Gaussians packed for rendering many frames. Several threads may render at once."""

    def __init__(self, gaussians: Gaussians, *, threads: int | None = None):
        self.gaussians = gaussians
        self.threads = usable_cores() if threads is None else threads
        if self.threads < 1:
            raise BadInput(f"A rasteriser needs at least one thread, not {self.threads}.")
        self._packed = pack(gaussians)
        self._spaces = WorkspacePool()
        self._camera_orders: dict[str, _CameraOrder] = {}
        self._orders: dict[str, Array] = {}

    def updated(self, gaussians: Gaussians) -> Rasterizer:
        """A rasteriser of changed Gaussians that starts with this one's memory and depth orders."""
        new = Rasterizer(gaussians, threads=self.threads)
        new._spaces = self._spaces
        if len(gaussians) == len(self.gaussians):
            new._orders = {**self._orders, **{name: sight.packed.ids for name, sight in self._camera_orders.items()}}
        return new

    def render(
        self, camera: Camera, poses: Array | None = None, *,
        backdrop: Backdrop | None = None, region: Region | None = None,
    ) -> RenderedImage:  # fmt: skip
        """Render the Gaussians; `poses` [bodies, 7] place the bodies, in the order of `gaussians.names`."""
        with self.prepared(camera, poses, backdrop, region) as frame:
            return self.blend(frame)

    def render_batch(
        self, camera: Camera, poses: Array, *,
        backdrop: Backdrop | None = None, region: Region | None = None,
    ) -> Array:  # fmt: skip
        """Colours uint8 [worlds, height, width, 3] for `poses` [worlds, bodies, 7], one thread per image."""
        left, top, right, bottom = checked_region(camera, region)
        out = np.empty((len(poses), bottom - top, right - left, 3), np.uint8)
        tickets = iter(range(len(poses)))  # next() on a range iterator is atomic under the lock of Python

        def render(_: int) -> None:
            for world in tickets:
                with self.prepared(camera, poses[world], backdrop, region, threads=1) as frame:
                    out[world] = self.blend(frame).bytes

        run_on_threads(render, min(self.threads, max(1, len(poses))))
        return out

    def render_with_gradients(
        self, camera: Camera, poses: Array | None, loss: Loss, *,
        backdrop: Backdrop | None = None, region: Region | None = None,
    ) -> tuple[RenderedImage, Gradients]:  # fmt: skip
        """Render, evaluate the loss, and return the image with the gradients of the loss by all parameters."""
        with self.prepared(camera, poses, backdrop, region) as frame:
            image = self.blend(frame)
            return image, image_gradients(self.gaussians, frame, image, loss(image), poses)

    @contextmanager
    def prepared(
        self,
        camera: Camera,
        poses: Array | None,
        backdrop: Backdrop | None,
        region: Region | None,
        *,
        threads: int | None = None,
    ) -> Generator[PreparedFrame]:
        """A frame projected and binned into tiles; its workspace is returned at the end of the block."""
        region = checked_region(camera, region)
        transforms = camera_from_bodies(self.gaussians.names, camera, poses)
        frames = np.ascontiguousarray(transforms[:, :3].reshape(-1, 12), np.float32)
        space = self._spaces.take()
        try:
            packed = self._camera_order(camera, frames).packed
            view, behind = (
                CameraView(frames, view_parameters(camera, region)),
                _backdrop_arrays(camera, region, backdrop),
            )
            frame = PreparedFrame(
                camera, region, packed, view, space, behind, self.threads if threads is None else threads
            )
            _bin_into_tiles(frame, transforms)
            yield frame
        finally:
            self._spaces.give_back(space)

    def blend(self, frame: PreparedFrame) -> RenderedImage:
        """Blend a prepared frame into an image."""
        tiles, shape = frame.tile_lists(), frame.shape
        image = ImageArrays(np.empty((*shape, 3), np.float32), np.empty(shape, np.float32), np.empty(shape, np.float32))
        breaks = [0] * frame.threads

        def blend(part: int) -> None:
            breaks[part] = blend_tiles(tiles, frame.backdrop, image)

        run_on_threads(blend, frame.threads)
        self._maintain_order(frame, sum(breaks))
        return RenderedImage(*image)

    def _camera_order(self, camera: Camera, frames: Array) -> _CameraOrder:
        sight = self._camera_orders.get(camera.name)
        if sight is None:
            order = self._orders.get(camera.name)
            sight = _CameraOrder(self._packed.sorted_for(frames) if order is None else self._packed.permuted(order))
            if len(self._camera_orders) >= _MAX_CAMERAS:
                self._camera_orders.pop(next(iter(self._camera_orders)), None)
            self._camera_orders[camera.name] = sight
        return sight

    def _maintain_order(self, frame: PreparedFrame, breaks: int) -> None:
        sight = self._camera_orders.get(frame.camera.name)
        if sight is None:
            return
        sight.age += 1
        if sight.age > _MIN_SORT_INTERVAL and breaks > _MAX_DISORDER * frame.space.starts[-1]:
            self._camera_orders[frame.camera.name] = _CameraOrder(frame.packed.sorted_for(frame.view.frames))


def open_rasterizer(
    gaussians: Gaussians, device: Device = "cpu", *, threads: int | None = None
) -> Rasterizer | FusedRasterizer:
    """A rasterizer on the processor or on a CUDA device."""
    if device == "cpu":
        return Rasterizer(gaussians, threads=threads)
    from .fused import FusedRasterizer

    return FusedRasterizer(gaussians, device=device)


def _open_layer(gaussians: Gaussians, threads: int | None, device: Device) -> Rasterizer | FusedRasterizer:
    """A rasteriser of one layer; on the processor, with a warning, where there is no CUDA device to use."""
    try:
        return open_rasterizer(gaussians, device, threads=threads)
    except (MissingExtra, Unsupported) as error:
        warnings.warn(f"Images are rendered on the CPU, not on {device}: {error}", stacklevel=3)
        return Rasterizer(gaussians, threads=threads)


def _bin_into_tiles(frame: PreparedFrame, transforms: Array) -> None:
    packed, space, n = frame.packed, frame.space, len(frame.packed.ids)
    threads = frame.placing_threads
    space.fit(n, frame.region, threads)
    degree = int(packed.harmonics.shape[1] ** 0.5) - 1 if len(packed.harmonics) else 0
    eyes = np.ascontiguousarray(-np.einsum("bji,bj->bi", transforms[:, :3, :3], transforms[:, :3, 3]), np.float32)
    shaded = packed._replace(colours=space.colours) if degree else packed

    def place(part: int) -> None:
        rows = row_range(n, part, threads)
        if degree:
            evaluate_sh(rows, packed, eyes, degree, space.colours)
        project(rows, shaded, frame.view, space.projected, space.changes[part])

    run_on_threads(place, threads)
    space.fit_entries(allocate_lists(space.changes, space.starts, space.places, space.slots_from))
    tiles = frame.tile_lists()

    def fill(part: int) -> None:
        rows = row_range(n, part, threads)
        fill_tiles(rows, space.projected, tiles, space.places[part], space.slots, space.slots_from[part])

    run_on_threads(fill, threads)


def _backdrop_arrays(camera: Camera, region: Region, backdrop: Backdrop | None) -> BackdropArrays:
    """The colours and depths behind a region, empty where they are black and infinitely far."""
    black, nowhere = np.empty((0, 0, 3), np.float32), np.empty((0, 0), np.float32)
    if backdrop is None:
        return BackdropArrays(black, nowhere)
    if backdrop.depth.shape != (camera.height, camera.width):
        raise BadInput(
            f"A backdrop of {backdrop.depth.shape[1]} x {backdrop.depth.shape[0]} pixels was given for the "
            f"{camera.width} x {camera.height} image of camera {camera.name!r}."
        )
    left, top, right, bottom = region
    colour = np.ascontiguousarray(backdrop.colour[top:bottom, left:right], np.float32)
    depth = np.ascontiguousarray(backdrop.depth[top:bottom, left:right], np.float32)
    return BackdropArrays(colour if colour.any() else black, nowhere if np.isposinf(depth).all() else depth)


_OCCLUDING_ALPHA = 0.5
"""Alpha above which the static layer is an opaque surface."""
_MAX_BACKGROUNDS = 32
"""Static layers that are kept."""


class LayeredRasterizer:
    """Gaussians of which some bodies never move.

    Where a moving body meets a half-transparent part of the static layer, that layer counts as one surface at its mean
    depth.
    """

    def __init__(
        self, gaussians: Gaussians, static: Sequence[str] = ("world",), *,
        threads: int | None = None, device: Device = "cpu",
    ):  # fmt: skip
        for name in static:
            if name not in gaussians.names:
                raise UnknownName("body", name, gaussians.names)
        self._static_rows = [gaussians.names.index(name) for name in static]
        fixed = np.isin(gaussians.body, self._static_rows)
        self.gaussians = gaussians
        self.static = _open_layer(gaussians.take(fixed), threads, device)
        self.dynamic = _open_layer(gaussians.take(~fixed), threads, device)
        self._whole = _open_layer(gaussians, threads, device)
        self._backgrounds: dict[tuple[object, ...], RenderedImage] = {}

    def background(self, camera: Camera, poses: Array | None = None) -> RenderedImage:
        """The static layer as a camera sees it, kept until the camera or a static body has moved."""
        names = self.gaussians.names
        static = b"" if poses is None else np.ascontiguousarray(np.asarray(poses, float)[self._static_rows]).tobytes()
        place = np.ascontiguousarray(world_from_camera(names, camera, poses)).tobytes()
        key = (camera.width, camera.height, camera.focal, camera.centre, camera.distortion, place, static)
        kept = self._backgrounds.get(key)
        if kept is None:
            kept = self.static.render(camera, poses)
            if len(self._backgrounds) >= _MAX_BACKGROUNDS:
                self._backgrounds.pop(next(iter(self._backgrounds)), None)
            self._backgrounds[key] = kept
        return kept

    def render(self, camera: Camera, poses: Array | None = None, *, region: Region | None = None) -> RenderedImage:
        """Render the moving bodies over the static layer."""
        if not self.fixed(camera):
            return self._whole.render(camera, poses, region=region)
        behind = backdrop_from_image(self.background(camera, poses))
        image = self.dynamic.render(camera, poses, backdrop=behind, region=region)
        left, top, right, bottom = checked_region(camera, region)
        shown = behind.depth[top:bottom, left:right]
        alpha = np.where(np.isfinite(shown), np.float32(1.0), image.alpha)
        depth = np.where(image.alpha > _OCCLUDING_ALPHA, image.depth, np.minimum(shown, image.depth))
        return RenderedImage(image.colour, alpha, depth)

    def render_batch(self, camera: Camera, poses: Array) -> Array:
        """Colours uint8 [..., height, width, 3] for `poses` [..., bodies, 7] whose static bodies are alike."""
        flat = poses.reshape(-1, *poses.shape[-2:])
        if self.fixed(camera) and len(flat):
            backdrop = backdrop_from_image(self.background(camera, flat[0]))
            images = self.dynamic.render_batch(camera, flat, backdrop=backdrop)
        else:
            images = self._whole.render_batch(camera, flat)
        return images.reshape(*poses.shape[:-2], *images.shape[1:])

    def render_colours(self, camera: Camera, poses: Array) -> Iterator[Array]:
        """Colours float32 [height, width, 3] of one world after the other, for `poses` [worlds, bodies, 7]."""
        if isinstance(self._whole, Rasterizer) or not len(poses):
            yield from (self.render(camera, pose).colour for pose in poses)
        elif self.fixed(camera) and not isinstance(self.dynamic, Rasterizer):
            behind = backdrop_from_image(self.background(camera, poses[0]))
            yield from self.dynamic.render_colours(camera, poses, backdrop=behind)
        else:
            yield from self._whole.render_colours(camera, poses)

    def fixed(self, camera: Camera) -> bool:
        """Whether a camera never moves."""
        names = self.gaussians.names
        return camera.body not in names or names.index(camera.body) in self._static_rows


def backdrop_from_image(image: RenderedImage) -> Backdrop:
    """An image as a backdrop: opaque where alpha is above one half, infinitely far elsewhere."""
    return Backdrop(image.colour, np.where(image.alpha > _OCCLUDING_ALPHA, image.depth, np.float32(np.inf)))
