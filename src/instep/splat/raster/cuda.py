"""CUDA rasteriser: the images and gradients of `rasterizer`, rendered by gsplat.

Bodies, harmonics and backdrops are handled here in torch; gsplat rasterises and differentiates. Arrays are NumPy, so
code written for the CPU runs unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from instep.core.errors import BadInput, MissingExtra, Unsupported
from instep.core.poses import quat_from_matrix
from instep.core.world import Array
from instep.scene.camera import Camera
from instep.splat import gaussians as sh
from instep.splat.gaussians import Gaussians
from instep.splat.image import Backdrop, Region, RenderedImage, checked_region

from .gaussian_projection import world_from_bodies, world_from_camera
from .gradients import Gradients, Loss
from .reference import BLUR, NEAR_PLANE_M

_PARTS = ("means", "quats", "scales", "opacities", "sh")


class CudaRasterizer:
    """Gaussians on a CUDA device. Lens distortion and backdrops at a depth are supported on the CPU only."""

    def __init__(self, gaussians: Gaussians, *, device: str = "cuda"):
        torch = _library()
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise Unsupported("There is no CUDA device on this machine; render with device='cpu'.")
        self.gaussians, self.device = gaussians, device
        self.parts: dict[str, Any] = {
            name: torch.tensor(np.asarray(getattr(gaussians, name), np.float32), device=device) for name in _PARTS
        }
        self._body = torch.tensor(np.asarray(gaussians.body, np.int64), device=device)

    def render(
        self, camera: Camera, poses: Array | None = None, *,
        backdrop: Backdrop | None = None, region: Region | None = None,
    ) -> RenderedImage:  # fmt: skip
        """Render the Gaussians; as `Rasterizer.render`."""
        with _library().no_grad():
            colour, alpha, depth = self.render_tensors([camera], poses)
        return _image(
            _over(colour[0], alpha[0], _backdrop_colour(camera, backdrop)), alpha[0], depth[0], camera, region
        )

    def render_cameras(self, cameras: Sequence[Camera], poses: Array | None = None) -> list[RenderedImage]:
        """Render the Gaussians for several cameras of one image size in one call."""
        with _library().no_grad():
            colour, alpha, depth = self.render_tensors(cameras, poses)
        return [_image(colour[i], alpha[i], depth[i], camera, None) for i, camera in enumerate(cameras)]

    def render_with_gradients(
        self, camera: Camera, poses: Array | None, loss: Loss, *,
        backdrop: Backdrop | None = None, region: Region | None = None,
    ) -> tuple[RenderedImage, Gradients]:  # fmt: skip
        """Render, evaluate the loss, and return the image with the gradients; as `Rasterizer.render_with_gradients`."""
        torch = _library()
        behind = _backdrop_colour(camera, backdrop)
        bodies = torch.zeros(len(self.gaussians.names), 6, device=self.device, requires_grad=True)
        eye = torch.zeros(1, 6, device=self.device, requires_grad=True)
        leaves = [self.parts[name].requires_grad_(True) for name in _PARTS]
        try:
            colour, alpha, depth = self.render_tensors([camera], poses, (bodies, eye))
            shown = _over(colour[0], alpha[0], behind)
            image = _image(shown, alpha[0], depth[0], camera, region)
            gradient = loss(image)
            if np.shape(gradient.colour) != image.colour.shape:
                raise BadInput(
                    f"A loss gave gradients of shape {np.shape(gradient.colour)} for an image of {image.colour.shape}."
                )
            left, top, right, bottom = checked_region(camera, region)
            cut = np.s_[top:bottom, left:right]
            total = (shown[cut] * self.tensor(gradient.colour)).sum()
            for channel, by in ((alpha[0], gradient.alpha), (depth[0], gradient.depth)):
                total = total if by is None else total + (channel[cut] * self.tensor(by)).sum()
            found = torch.autograd.grad(total, [*leaves, bodies, eye], allow_unused=True)
        finally:
            for leaf in leaves:
                leaf.requires_grad_(False)
        means, quats, scales, opacities, colours, by_pose, by_eye = (
            np.zeros(tuple(leaf.shape), np.float32) if gradient is None else gradient.cpu().numpy()
            for leaf, gradient in zip([*leaves, bodies, eye], found, strict=True)
        )
        return image, Gradients(means, quats, scales, opacities, colours, by_pose, by_eye[0])

    def updated(self, gaussians: Gaussians) -> CudaRasterizer:
        """A rasteriser of changed Gaussians on the same device."""
        return CudaRasterizer(gaussians, device=self.device)

    def render_tensors(
        self, cameras: Sequence[Camera], poses: Array | None = None, motions: Any = None
    ) -> tuple[Any, Any, Any]:
        """Colour [cameras, height, width, 3], alpha and depth [cameras, height, width] as tensors on the device.

        `motions` (tensors [bodies, 6] and [cameras, 6]) shift and turn bodies and cameras to first order, to
        differentiate by them at zero.
        """
        _check(cameras)
        torch = _library()
        bodies, turned, places, lenses = self._placed(cameras, poses)
        turn, shift = bodies[self._body, :3, :3], bodies[self._body, :3, 3]
        arm = (turn @ self.parts["means"][:, :, None])[:, :, 0]
        means, quats, spin = arm + shift, quat_mul(turned[self._body], self.parts["quats"]), None
        if motions is not None:
            by_body = motions[0][self._body]
            spin = by_body[:, 3:]
            means = means + by_body[:, :3] + torch.linalg.cross(spin, arm)
            quats = quats + 0.5 * quat_mul(torch.nn.functional.pad(spin, (1, 0)), quats)
        eyes, views = _views(places, None if motions is None else motions[1])
        colours = self._colours(means, turn, spin, eyes)
        rendered, alpha, _ = _rasterization()(
            means, quats, self.parts["scales"], self.parts["opacities"], colours, views, lenses,
            cameras[0].width, cameras[0].height, near_plane=NEAR_PLANE_M, eps2d=BLUR, packed=False,
            render_mode="RGB+ED",
        )  # fmt: skip
        return rendered[..., :3], alpha[..., 0], rendered[..., 3]

    def _placed(self, cameras: Sequence[Camera], poses: Array | None) -> tuple[Any, Any, Any, Any]:
        """world_from_body, its rotations as quaternions, world_from_camera and intrinsics, copied in one transfer."""
        names = self.gaussians.names
        bodies = world_from_bodies(names, poses)
        parts = [
            bodies,
            quat_from_matrix(bodies[:, :3, :3]),
            np.stack([world_from_camera(names, camera, poses) for camera in cameras]),
            np.stack([camera.K for camera in cameras]),
        ]
        ends = np.cumsum([0, *(part.size for part in parts)])
        flat = self.tensor(np.concatenate([part.ravel() for part in parts]))
        views = [flat[i:j].reshape(part.shape) for i, j, part in zip(ends, ends[1:], parts, strict=False)]
        return views[0], views[1], views[2], views[3]

    def _colours(self, means: Any, turn: Any, spin: Any, eyes: Any) -> Any:
        """Colours [cameras, n, 3] of the Gaussians, seen along directions in the frames of their bodies."""
        torch, coefficients = _library(), self.parts["sh"]
        degree = self.gaussians.degree
        if degree == 0:
            return torch.clamp(0.5 + sh.C0 * coefficients[:, 0], min=0.0).expand(len(eyes), -1, -1)
        gaze = means - eyes[:, None]
        if spin is not None:
            gaze = gaze - torch.linalg.cross(spin.expand_as(gaze), gaze)
        local = (turn.transpose(1, 2) @ gaze[..., None])[..., 0]
        basis = _basis(torch, torch.nn.functional.normalize(local, dim=-1), degree)
        return torch.clamp(0.5 + torch.einsum("cnk,nkr->cnr", basis, coefficients), min=0.0)

    def tensor(self, values: Array) -> Any:
        """Numbers as float32 on the device."""
        return _library().tensor(np.asarray(values, np.float32), device=self.device)


def _views(places: Any, motions: Any) -> tuple[Any, Any]:
    """Camera positions [cameras, 3] and camera_from_world [cameras, 4, 4], after a small motion."""
    torch = _library()
    turn, eyes = places[:, :3, :3], places[:, :3, 3]
    if motions is not None:
        eyes = eyes + motions[:, :3]
        turn = turn + torch.linalg.cross(motions[:, 3:, None].expand(-1, -1, 3), turn, dim=1)
    back = turn.transpose(1, 2)
    top = torch.cat([back, -back @ eyes[:, :, None]], dim=2)
    return eyes, torch.cat([top, places[:, 3:]], dim=1)


def quat_mul(a: Any, b: Any) -> Any:
    """Products of quaternions wxyz [..., 4]."""
    torch = _library()
    real = a[..., :1] * b[..., :1] - (a[..., 1:] * b[..., 1:]).sum(-1, keepdim=True)
    rest = a[..., :1] * b[..., 1:] + b[..., :1] * a[..., 1:] + torch.linalg.cross(a[..., 1:], b[..., 1:])
    return torch.cat([real, rest], dim=-1)


def _basis(torch: Any, direction: Any, degree: int) -> Any:
    """`sh.basis` of tensors."""
    x, y, z = direction.unbind(-1)
    parts = [torch.full_like(x, sh.C0), -sh.C1 * y, sh.C1 * z, -sh.C1 * x]
    if degree >= 2:
        xx, yy, zz, c = x * x, y * y, z * z, sh.C2
        parts += [c[0] * x * y, c[1] * y * z, c[2] * (2 * zz - xx - yy), c[3] * x * z, c[4] * (xx - yy)]
        if degree >= 3:
            c = sh.C3
            parts += [c[0] * y * (3 * xx - yy), c[1] * x * y * z, c[2] * y * (4 * zz - xx - yy)]
            parts += [c[3] * z * (2 * zz - 3 * xx - 3 * yy), c[4] * x * (4 * zz - xx - yy)]
            parts += [c[5] * z * (xx - yy), c[6] * x * (xx - 3 * yy)]
    return torch.stack(parts, dim=-1)


def _over(colour: Any, alpha: Any, behind: Array | None) -> Any:
    if behind is None:
        return colour
    return colour + (1 - alpha)[..., None] * _library().tensor(np.asarray(behind, np.float32), device=colour.device)


def _image(colour: Any, alpha: Any, depth: Any, camera: Camera, region: Region | None) -> RenderedImage:
    left, top, right, bottom = checked_region(camera, region)
    cut = np.s_[top:bottom, left:right]
    shown, cover, deep = (channel.detach()[cut].cpu().numpy() for channel in (colour, alpha, depth))
    return RenderedImage(shown, cover, np.where(cover > 0, deep, np.float32(np.inf)))


def _backdrop_colour(camera: Camera, backdrop: Backdrop | None) -> Array | None:
    if backdrop is None:
        return None
    if backdrop.depth.shape != (camera.height, camera.width):
        raise BadInput(
            f"A backdrop of {backdrop.depth.shape[1]} x {backdrop.depth.shape[0]} pixels was given for the "
            f"{camera.width} x {camera.height} image of camera {camera.name!r}."
        )
    if not np.isposinf(backdrop.depth).all():
        raise Unsupported("gsplat cannot hide Gaussians behind a backdrop at a depth; render with device='cpu'.")
    return backdrop.colour


def _check(cameras: Sequence[Camera]) -> None:
    if not cameras:
        raise BadInput("Rendering needs at least one camera, and none was given.")
    if len({(camera.width, camera.height) for camera in cameras}) > 1:
        raise BadInput("Cameras that are rendered in one call must have images of one size.")
    for camera in cameras:
        if any(camera.distortion):
            raise Unsupported(
                f"The lens of camera {camera.name!r} bends the image, which is not rendered on a GPU; "
                "render with device='cpu'."
            )


def _library() -> Any:
    try:
        import torch
    except ImportError:
        raise MissingExtra("torch", "gpu") from None
    return torch


def _rasterization() -> Any:
    try:
        from gsplat import rasterization
    except ImportError:
        raise MissingExtra("gsplat", "gpu") from None
    return rasterization
