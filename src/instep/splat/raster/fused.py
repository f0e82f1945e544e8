"""Gaussians of thousands of worlds on a CUDA device: every camera of every world in one call.

The images of `rasterizer`, lens, backdrop, harmonics and bodies included, by the kernels of `fused_kernels`. They stay
on the device as tensors, which other libraries take without a copy through DLPack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from instep.core.errors import BadInput, UnknownName, Unsupported
from instep.core.world import Array, array_dataclass
from instep.scene.camera import Camera
from instep.splat.gaussians import Gaussians
from instep.splat.image import Backdrop, Region, RenderedImage, checked_region, full_region

from .cuda_driver import torch_library
from .fused_kernels import (
    MAX_REGIONS,
    REGION_PX,
    CameraSet,
    RenderChannels,
    RenderedTensors,
    SceneTensors,
    differentiate_images,
    pack_tensors,
    render_images,
)
from .gaussian_projection import view_parameters
from .gradients import Gradients, ImageGradient, Loss

_MAX_CAMERA_SETS = 8
_WORLDS_AT_ONCE = 512
_IMAGE = RenderChannels(alpha=True, depth=True)
_MAX_PINNED_BYTES = 64 * 2**20
"""Images up to which they are copied into page-locked memory, several times as fast."""


@array_dataclass
class TensorGradients:
    """Gradients of a loss, tensors on the device; as `Gradients`, with leading axes for worlds and cameras."""

    poses: Any
    """By the bodies' poses [worlds, bodies, 6]: translation and rotation about the origin, along the world's axes."""
    cameras: Any
    """By the cameras' poses in the world [worlds, cameras, 6], in the same way."""
    means: Any = None
    """By centres [n, 3]; this and what follows only where it was asked for, summed over all images."""
    quats: Any = None
    scales: Any = None
    opacities: Any = None
    sh: Any = None


@array_dataclass
class PixelTensors:
    """Gradient of a loss by the pixels of all images, tensors on the device."""

    colour: Any
    """[worlds, cameras, height, width, 3]."""
    alpha: Any = None
    """[worlds, cameras, height, width]."""
    depth: Any = None
    """[worlds, cameras, height, width]; 0 where nothing is rendered."""


TensorLoss: TypeAlias = Callable[[RenderedTensors], PixelTensors]
"""A function from the images to the gradient of the loss by their pixels."""


class FusedRasterizer:
    """Gaussians on a CUDA device, rendered for all cameras of all worlds in one call."""

    def __init__(self, gaussians: Gaussians, *, device: str = "cuda"):
        self.scene = SceneTensors(pack_tensors(gaussians, device), device)
        self.gaussians, self.device = gaussians, device
        self._sets: dict[tuple[int, ...], CameraSet] = {}

    def render_worlds(
        self, cameras: Sequence[Camera] | CameraSet, poses: Any = None, channels: RenderChannels | None = None
    ) -> RenderedTensors:
        """Render every camera in every world; `poses` [worlds, bodies, 7] or [bodies, 7] is an array or a tensor."""
        given = cameras if isinstance(cameras, CameraSet) else self.camera_set(cameras)
        return render_images(self.scene, given, self.pose_tensor(poses), channels or RenderChannels())

    def render_worlds_with_gradients(
        self, cameras: Sequence[Camera] | CameraSet, poses: Any, loss: TensorLoss, *, gaussians: bool = False
    ) -> tuple[RenderedTensors, TensorGradients]:
        """Render, evaluate the loss, and return images and gradients by poses; by the Gaussians where asked for."""
        given = cameras if isinstance(cameras, CameraSet) else self.camera_set(cameras)
        torch, placed = torch_library(), self.pose_tensor(poses)
        images = render_images(self.scene, given, placed, _IMAGE)
        by = loss(images)
        if tuple(by.colour.shape) != tuple(images.colour.shape):
            raise BadInput(
                f"A loss gave gradients of shape {tuple(by.colour.shape)} for images of {tuple(images.colour.shape)}."
            )
        worlds, views, bodies, n = len(placed), len(given.cameras), len(self.gaussians.names), len(self.gaussians)

        def zeros(*shape: int) -> Any:
            return torch.zeros(shape, dtype=torch.float32, device=self.device)

        found = {"by_pose": zeros(worlds, views, bodies, 6), "by_camera": zeros(worlds, views, 6)}
        if gaussians:
            found |= {"by_gaussian": zeros(n, 10), "by_harmonics": zeros(*self.gaussians.sh.shape)}
            found |= {"by_quat": zeros(n, 4), "by_scale": zeros(n, 3), **self._shape_parameters}
        pixels = {
            f"by_{name}": None if value is None else value.to(self.device, torch.float32).contiguous()
            for name, value in (("colour", by.colour), ("alpha", by.alpha), ("depth", by.depth))
        }
        differentiate_images(self.scene, given, placed, images, found | pixels)
        out = TensorGradients(found["by_pose"].sum(dim=1), found["by_camera"])
        if not gaussians:
            return images, out
        by_gaussian = found["by_gaussian"]
        opacities = by_gaussian[:, 9] / self._opacities
        return images, replace(
            out, means=by_gaussian[:, :3], quats=found["by_quat"], scales=found["by_scale"], opacities=opacities,
            sh=found["by_harmonics"],
        )  # fmt: skip

    def camera_set(self, cameras: Sequence[Camera], backdrops: Sequence[Backdrop] | None = None) -> CameraSet:
        """Cameras made ready to be rendered many times, with a backdrop each."""
        key = tuple(id(camera) for camera in cameras)
        known = self._sets.get(key)
        if known is None:
            known = self._camera_set(cameras)
            if len(self._sets) >= _MAX_CAMERA_SETS:
                self._sets.pop(next(iter(self._sets)))
            self._sets[key] = known
        return known if backdrops is None else self._before(known, backdrops)

    def pose_tensor(self, poses: Any) -> Any:
        """Poses [worlds, bodies, 7] on the device; every body frame is the world's where there are none."""
        torch, bodies = torch_library(), len(self.gaussians.names)
        if torch.is_tensor(poses) and _is_ready(poses, bodies, self.scene.packed.body.device):
            return poses
        if poses is None:
            poses = np.tile(np.array([0.0, 0, 0, 1, 0, 0, 0], np.float32), (1, bodies, 1))
        if not torch.is_tensor(poses):
            array = np.asarray(poses, np.float64)
            if not np.isfinite(array).all():
                raise BadInput("A pose of a body is not finite; a position and a unit quaternion were expected.")
            poses = torch.from_numpy(np.ascontiguousarray(array))
        if poses.ndim not in (2, 3) or tuple(poses.shape[-2:]) != (bodies, 7):
            raise BadInput(
                f"Poses of shape {tuple(poses.shape)} were given for the bodies {', '.join(self.gaussians.names)}; "
                f"(worlds, {bodies}, 7), each xyz + wxyz, was expected."
            )
        return poses.reshape(-1, bodies, 7).to(self.device, torch.float64, non_blocking=True).contiguous()

    def render(
        self, camera: Camera, poses: Array | None = None, *,
        backdrop: Backdrop | None = None, region: Region | None = None,
    ) -> RenderedImage:  # fmt: skip
        """Render the Gaussians; as `Rasterizer.render`."""
        return _image(self.render_worlds(self._one(camera, backdrop), poses, _IMAGE), camera, region)

    def render_cameras(self, cameras: Sequence[Camera], poses: Array | None = None) -> list[RenderedImage]:
        """Render the Gaussians for several cameras of one image size in one call."""
        images = self.render_worlds(cameras, poses, _IMAGE)
        colour, alpha, depth = (channel[0].cpu().numpy() for channel in (images.colour, images.alpha, images.depth))
        return [RenderedImage(colour[i], alpha[i], depth[i]) for i in range(len(cameras))]

    def render_batch(
        self, camera: Camera, poses: Array, *,
        backdrop: Backdrop | None = None, region: Region | None = None,
    ) -> Array:  # fmt: skip
        """Colours uint8 [worlds, height, width, 3] for `poses` [worlds, bodies, 7]; as `Rasterizer.render_batch`."""
        left, top, right, bottom = checked_region(camera, region)
        if len(poses) == 0:
            return np.empty((0, bottom - top, right - left, 3), np.uint8)
        images = self.render_worlds(self._one(camera, backdrop), poses, RenderChannels(colour=False, bytes=True))
        return _host_array(images.bytes[:, 0, top:bottom, left:right])

    def render_colours(self, camera: Camera, poses: Array, *, backdrop: Backdrop | None = None) -> Iterator[Array]:
        """Colours float32 [height, width, 3] of one world after the other, some hundred of them rendered at once."""
        given = self._one(camera, backdrop)
        for start in range(0, len(poses), _WORLDS_AT_ONCE):
            images = self.render_worlds(given, poses[start : start + _WORLDS_AT_ONCE])
            yield from _host_array(images.colour[:, 0])

    def render_with_gradients(
        self, camera: Camera, poses: Array | None, loss: Loss, *,
        backdrop: Backdrop | None = None, region: Region | None = None,
    ) -> tuple[RenderedImage, Gradients]:  # fmt: skip
        """Render, evaluate the loss, and return the image with the gradients; as `Rasterizer.render_with_gradients`."""
        left, top, right, bottom = checked_region(camera, region)
        shown: list[RenderedImage] = []

        def pixels(images: RenderedTensors) -> PixelTensors:
            shown.append(_image(images, camera, region))
            by = loss(shown[0])
            _check_gradient(by, shown[0])
            wide: list[Any] = []
            for value, whole in ((by.colour, images.colour), (by.alpha, images.alpha), (by.depth, images.depth)):
                if value is None:
                    wide.append(None)
                    continue
                placed = torch_library().zeros_like(whole)
                placed[0, 0, top:bottom, left:right] = self.scene.tensor(value)
                wide.append(placed)
            return PixelTensors(*wide)

        _, found = self.render_worlds_with_gradients(self._one(camera, backdrop), poses, pixels, gaussians=True)
        parts = (found.means, found.quats, found.scales, found.opacities, found.sh, found.poses[0], found.cameras[0, 0])
        means, quats, scales, opacities, sh, by_pose, by_camera = (part.cpu().numpy() for part in parts)
        return shown[0], Gradients(means, quats, scales, opacities, sh, by_pose, by_camera)

    def updated(self, gaussians: Gaussians) -> FusedRasterizer:
        """A rasteriser of changed Gaussians on the same device."""
        return FusedRasterizer(gaussians, device=self.device)

    @cached_property
    def _shape_parameters(self) -> dict[str, Any]:
        """Quaternions [n, 4] and scales [n, 3], which only gradients need."""
        return {"quats": self.scene.tensor(self.gaussians.quats), "scales": self.scene.tensor(self.gaussians.scales)}

    @cached_property
    def _opacities(self) -> Any:
        """Opacities [n], not 0."""
        return self.scene.tensor(np.maximum(np.asarray(self.gaussians.opacities, float), 1e-12))

    def _one(self, camera: Camera, backdrop: Backdrop | None) -> CameraSet:
        return self.camera_set([camera], None if backdrop is None else [backdrop])

    def _camera_set(self, cameras: Sequence[Camera]) -> CameraSet:
        torch, names = torch_library(), self.gaussians.names
        if not cameras:
            raise BadInput("Rendering needs at least one camera, and none was given.")
        if len({(camera.width, camera.height) for camera in cameras}) > 1:
            raise BadInput("Cameras that are rendered in one call must have images of one size.")
        if max(cameras[0].width, cameras[0].height) > MAX_REGIONS * REGION_PX:
            raise Unsupported(
                f"An image of {cameras[0].width} x {cameras[0].height} pixels is longer than "
                f"{MAX_REGIONS * REGION_PX} on a side, the most that is rendered on a GPU; render with device='cpu'."
            )
        for camera in cameras:
            if camera.body != "world" and camera.body not in names:
                raise UnknownName("body", camera.body, names)
        mounted = [names.index(camera.body) if camera.body in names else -1 for camera in cameras]
        return CameraSet(
            tuple(cameras),
            self.scene.tensor(np.stack([view_parameters(camera, full_region(camera)) for camera in cameras])),
            torch.tensor(np.stack([camera.body_from_camera[:3].ravel() for camera in cameras]), device=self.device),
            torch.tensor(mounted, dtype=torch.int32, device=self.device),
            lens=any(any(camera.distortion) for camera in cameras),
        )

    def _before(self, given: CameraSet, backdrops: Sequence[Backdrop]) -> CameraSet:
        for camera, backdrop in zip(given.cameras, backdrops, strict=True):
            if backdrop.depth.shape != (camera.height, camera.width):
                raise BadInput(
                    f"A backdrop of {backdrop.depth.shape[1]} x {backdrop.depth.shape[0]} pixels was given for the "
                    f"{camera.width} x {camera.height} image of camera {camera.name!r}."
                )
        behind = self.scene.tensor(np.stack([backdrop.colour for backdrop in backdrops]))
        depth = np.stack([backdrop.depth for backdrop in backdrops])
        limit = None if np.isposinf(depth).all() else self.scene.tensor(depth)
        return replace(given, behind=behind, limit=limit)


def _host_array(tensor: Any) -> Array:
    """A tensor of the device as an array."""
    torch = torch_library()
    if tensor.numel() * tensor.element_size() > _MAX_PINNED_BYTES:
        return tensor.cpu().numpy()
    out = torch.empty(tuple(tensor.shape), dtype=tensor.dtype, pin_memory=True)
    out.copy_(tensor, non_blocking=True)
    torch.cuda.current_stream().synchronize()
    return out.numpy()


def _is_ready(poses: Any, bodies: int, device: Any) -> bool:
    """Whether a tensor of poses is what the kernels take; each conversion would delay the first of them."""
    alike = poses.dtype == torch_library().float64 and poses.device == device and poses.is_contiguous()
    return alike and poses.ndim == 3 and tuple(poses.shape[1:]) == (bodies, 7)


def _image(images: RenderedTensors, camera: Camera, region: Region | None) -> RenderedImage:
    left, top, right, bottom = checked_region(camera, region)
    cut = np.s_[0, 0, top:bottom, left:right]
    colour, alpha, depth = (channel[cut].cpu().numpy() for channel in (images.colour, images.alpha, images.depth))
    return RenderedImage(colour, alpha, depth)


def _check_gradient(gradient: ImageGradient, image: RenderedImage) -> None:
    if np.shape(gradient.colour) != image.colour.shape:
        raise BadInput(
            f"A loss gave gradients of shape {np.shape(gradient.colour)} for an image of {image.colour.shape}."
        )
