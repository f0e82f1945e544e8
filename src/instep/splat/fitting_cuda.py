"""Fit 3D Gaussians on a CUDA device: parameters, Adam's moments and images stay there from step to step.

`DeviceOptimizer` takes the steps of the optimiser in `fitting`, by the kernels of `raster/fused_fit.cu`.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from instep.core.errors import BadInput
from instep.core.poses import matrix_from_quat, normalized
from instep.core.world import Array, array_dataclass

from .fitting import MAX_LOG_THICKNESS, GaussianFitOptions, SurfaceConstraint, learning_rates, pixel_weights
from .gaussians import Gaussians
from .image import WeightedImage
from .raster.cuda_driver import torch_library
from .raster.fused import FusedRasterizer
from .raster.fused_kernels import (
    BACKWARD,
    Arguments,
    CameraSet,
    ListMemory,
    PackedTensors,
    RenderChannels,
    SceneTensors,
    differentiate_lists,
    float_tensor,
    list_memory,
    make_lists,
    moment_tensor,
    walk_lists,
)

_SOURCES = (*BACKWARD, "fused_fit.cu")
_CHANNELS = RenderChannels(alpha=True)
_MAX_TARGET_BYTES = 2 * 2**30
"""Images up to which they are kept on the device; more are copied there for every step."""
_POINTERS = (
    "shape", "shape_first", "shape_second", "sh", "sh_first", "sh_second", "means", "gaussians", "body", "by_gaussian",
    "by_harmonics", "gradient_sums", "seen", "held", "colour", "target", "weight", "by_colour", "loss",
)  # fmt: skip
_NUMBERS = (
    "normal_x", "normal_y", "normal_z", "offset", "tolerance", "max_log_thickness", "eye_x", "eye_y", "eye_z",
    "max_log_elongation", "means_rate", "quats_rate", "logs_rate", "logits_rate", "colour_rate", "harmonics_rate",
    "first_fade", "second_fade",
)  # fmt: skip


class FitArguments(ctypes.Structure):
    """`struct FitArguments` of fused_fit.cu."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_float) for name in _NUMBERS),
        ("n", ctypes.c_int), ("pixels", ctypes.c_int),
    ]  # fmt: skip


@array_dataclass
class _DeviceTarget:
    """An image to fit to, on the device."""

    source: WeightedImage
    """Kept, since targets are known by their identity."""
    cameras: CameraSet
    poses: Any
    image: Any
    weight: Any
    eye: Array
    """Where the camera is [3]."""


@array_dataclass
class _Frame:
    """The memory in which images of one size are rendered and differentiated."""

    tensors: dict[str, Any]
    lists: ListMemory
    moments: Any


class DeviceOptimizer:
    """Gaussians as unbounded parameters on a CUDA device, with Adam's moments and the mean size of their gradients."""

    def __init__(
        self, start: Gaussians, options: GaussianFitOptions, surface: SurfaceConstraint | None, device: str = "cuda"
    ):
        torch = torch_library()
        self.options, self.device, self.names, self.degree = options, device, start.names, start.degree
        self._rasterizer = FusedRasterizer(start.take(slice(0, 1)), device=device)
        means = np.asarray(start.means, float)
        opacities = np.clip(np.asarray(start.opacities, float), 0.01, 0.99)
        logs = np.log(np.maximum(np.asarray(start.scales, float), 1e-6))
        quats = normalized(np.asarray(start.quats, float))
        self._shape = self._tensor(np.column_stack([means, quats, logs, np.log(opacities / (1 - opacities))]))
        self._sh = self._tensor(start.sh)
        self._moments = [torch.zeros_like(part) for part in (self._shape, self._shape, self._sh, self._sh)]
        self._body = torch.tensor(np.ascontiguousarray(start.body, np.int32), device=device)
        held = np.zeros(len(start), bool) if surface is None else surface.contains(means)
        self._held = torch.tensor(held, device=device)
        self._losses = torch.zeros(max(1, options.steps), dtype=torch.float32, device=device)
        # The arguments that stay the same throughout a fit.
        out = FitArguments(max_log_elongation=float(np.log(options.max_elongation)))
        if surface is not None:
            plane: Array = surface.plane.normal / np.linalg.norm(surface.plane.normal[:3])
            out.normal_x, out.normal_y, out.normal_z, out.offset = plane
            out.tolerance, out.max_log_thickness = surface.tolerance, float(MAX_LOG_THICKNESS)
        self._arguments = out
        self._targets: dict[int, _DeviceTarget] = {}
        self._target_bytes = self._steps = 0
        self._gradient_sums, self._seen = torch.zeros_like(self._shape[:, 0]), torch.zeros_like(self._shape[:, 0])
        self._prepare()

    def __len__(self) -> int:
        return len(self._shape)

    def losses(self) -> Array:
        """Mean weighted squared error of each step, 0 for those to come."""
        return self._losses.cpu().numpy().astype(float)[: self.options.steps]

    def gaussians(self) -> Gaussians:
        """The present Gaussians."""
        shape, sh = self._shape.cpu().numpy().astype(float), self._sh.cpu().numpy().astype(float)
        opacities = 1.0 / (1.0 + np.exp(-shape[:, 10]))
        body = self._body.cpu().numpy()
        return Gaussians(shape[:, :3], shape[:, 3:7], np.exp(shape[:, 7:10]), opacities, sh, body, self.names)

    def descend(self, target: WeightedImage, step: int) -> None:
        """Render an image, and take a step against the gradient of the loss on it."""
        given = self._on_device(target)
        arguments, frame = self._launched(given)
        kernels = self._scene.kernels(given.cameras, _CHANNELS, _SOURCES)
        make_lists(kernels, self._scene, arguments, 1)
        walk_lists(kernels, "blend", arguments, 1)
        fit = self._step_arguments(given, frame, step)
        kernels.launch("image_loss", (min(264, -(-3 * fit.pixels // 256)), 1), 256, 0, fit)
        differentiate_lists(kernels, arguments, frame.moments, 1)
        kernels.launch("descend", (-(-len(self) // 128), 1), 128, 0, fit)

    def prune(self) -> None:
        """Drop transparent Gaussians, and those so large that they blur everything."""
        torch = torch_library()
        opacities, size = torch.sigmoid(self._shape[:, 10]), torch.exp(self._shape[:, 7:10].amax(dim=1))
        keep = (opacities > self.options.min_opacity) & (size < 20 * torch.quantile(size, 0.5))
        rows = torch.nonzero(keep)[:, 0]
        if len(rows) == 0:
            raise BadInput("All Gaussians became invisible while they were fitted; do the poses and the images agree?")
        if len(rows) < len(self):
            self._take(rows, 0)
            self._prepare()

    def densify(self, rng: np.random.Generator) -> None:
        """Double those with the largest gradients: a large one is split, a small one cloned."""
        torch = torch_library()
        room = min(self.options.max_count - len(self), int(self.options.densify_share * len(self)))
        mean = self._gradient_sums / torch.clamp(self._seen, min=1)
        if room > 0:
            chosen = torch.argsort(mean, descending=True, stable=True)[:room]
            chosen = chosen[mean[chosen] > torch.quantile(mean, 0.5)]
            self._double(chosen, rng)
            self._prepare()
        self._gradient_sums.zero_()
        self._seen.zero_()

    def _double(self, chosen: Any, rng: np.random.Generator) -> None:
        torch, old = torch_library(), len(self)
        size = torch.exp(self._shape[:, 7:10])
        large = (size[chosen].amax(dim=1) > torch.quantile(size.amax(dim=1), 0.5))[:, None]
        spread = self._tensor(rng.normal(size=(len(chosen), 3))) * size[chosen]
        quats = self._shape[chosen, 3:7].cpu().numpy().astype(float)
        turn = self._tensor(matrix_from_quat(normalized(quats)))
        apart = (turn @ spread[:, :, None])[:, :, 0]
        self._take(torch.cat([torch.arange(old, device=self.device), chosen]), len(chosen))
        nothing, shrink = torch.zeros_like(apart), torch.where(large, float(np.log(1.6)), 0.0)
        self._shape[old:, :3] += apart
        self._shape[chosen, :3] -= torch.where(large, apart, nothing)
        self._shape[old:, 7:10] -= shrink
        self._shape[chosen, 7:10] -= shrink

    def _take(self, rows: Any, added: int) -> None:
        """Some rows, the last `added` of which are new."""
        torch, old = torch_library(), rows[: len(rows) - added]
        self._shape, self._sh = self._shape[rows].contiguous(), self._sh[rows].contiguous()
        self._body, self._held = self._body[rows].contiguous(), self._held[rows].contiguous()

        def kept(values: Any) -> Any:
            new = torch.zeros((added, *values.shape[1:]), dtype=values.dtype, device=self.device)
            return torch.cat([values[old], new])

        self._moments = [kept(moments) for moments in self._moments]
        self._gradient_sums, self._seen = kept(self._gradient_sums), kept(self._seen)

    def _prepare(self) -> None:
        """Memory for as many Gaussians as there are now, and what the kernels take of them."""
        torch, n = torch_library(), len(self)

        def zeros(*shape: int) -> Any:
            return torch.zeros(shape, dtype=torch.float32, device=self.device)

        packed = PackedTensors(
            zeros(n, 4), zeros(n, 16), self._sh, self._body, len(self.names), self.degree, solid=True,
            single_image=True,
        )  # fmt: skip
        self._scene = SceneTensors(packed, self.device)
        self._by = {"by_gaussian": zeros(n, 10), "by_harmonics": zeros(*self._sh.shape)}
        self._frames: dict[tuple[int, int], _Frame] = {}
        self._launches: dict[int, tuple[Arguments, _Frame]] = {}
        shape_first, shape_second, sh_first, sh_second = self._moments
        _point(
            self._arguments, shape=self._shape, shape_first=shape_first, shape_second=shape_second, sh=self._sh,
            sh_first=sh_first, sh_second=sh_second, means=packed.means, gaussians=packed.rows, body=self._body,
            gradient_sums=self._gradient_sums, seen=self._seen, held=self._held, **self._by,
        )  # fmt: skip
        self._arguments.n = n
        self._packed = False

    def _on_device(self, target: WeightedImage) -> _DeviceTarget:
        known = self._targets.get(id(target))
        if known is not None:
            return known
        backdrops = None if target.backdrop is None else [target.backdrop]
        out = _DeviceTarget(
            target, self._rasterizer.camera_set([target.camera], backdrops), self._rasterizer.pose_tensor(target.poses),
            self._tensor(target.image), self._tensor(pixel_weights(target)),
            np.asarray(target.camera.body_from_camera, float)[:3, 3],
        )  # fmt: skip
        size = 16 * out.weight.numel() * (2 if target.backdrop is not None else 1)
        if self._target_bytes + size <= _MAX_TARGET_BYTES:
            self._targets[id(target)] = out
            self._target_bytes += size
        return out

    def _launched(self, given: _DeviceTarget) -> tuple[Arguments, _Frame]:
        """The arguments that render and differentiate an image."""
        known = self._launches.get(id(given))
        if known is not None:
            return known
        arguments = self._scene.arguments(given.cameras, given.poses)
        camera = given.cameras.cameras[0]
        size = camera.height, camera.width
        if size not in self._frames:
            self._frames[size] = self._frame(arguments, size)
        frame = self._frames[size]
        arguments.point(moments=frame.moments, **frame.tensors, **self._by)
        arguments.point_to_lists(frame.lists)
        if not self._packed:
            kernels = self._scene.kernels(given.cameras, _CHANNELS, _SOURCES)
            kernels.launch("pack_gaussians", (-(-len(self) // 128), 1), 128, 0, self._arguments)
            self._packed = True
        if id(given.source) in self._targets:
            self._launches[id(given)] = arguments, frame
        return arguments, frame

    def _frame(self, arguments: Arguments, size: tuple[int, int]) -> _Frame:
        torch = torch_library()

        def pixels(*more: int) -> Any:
            return torch.empty((*size, *more), dtype=torch.float32, device=self.device)

        images = {"colour": pixels(3), "alpha": pixels(), "by_colour": pixels(3)}
        lists = list_memory(self._scene, arguments, 1, ids=True)
        return _Frame(images, lists, moment_tensor(self._scene, arguments, 1))

    def _step_arguments(self, given: _DeviceTarget, frame: _Frame, step: int) -> FitArguments:
        out, rates = self._arguments, learning_rates(self.options, step / self.options.steps)
        self._steps += 1
        _point(
            out, colour=frame.tensors["colour"], by_colour=frame.tensors["by_colour"], target=given.image,
            weight=given.weight,
        )  # fmt: skip
        out.loss = self._losses.data_ptr() + 4 * step
        out.pixels = given.weight.numel()
        out.eye_x, out.eye_y, out.eye_z = given.eye
        out.means_rate, out.quats_rate, out.logs_rate = rates.means, rates.quats, rates.logs
        out.logits_rate, out.colour_rate, out.harmonics_rate = rates.logits, rates.colour, rates.harmonics
        out.first_fade, out.second_fade = 1 - 0.9**self._steps, 1 - 0.999**self._steps
        return out

    def _tensor(self, values: Array) -> Any:
        return float_tensor(values, self.device)


def _point(arguments: FitArguments, **tensors: Any) -> None:
    for name, tensor in tensors.items():
        setattr(arguments, name, tensor.data_ptr())
