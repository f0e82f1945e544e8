"""Appearance: 3D Gaussians on bodies; render them, differentiate them, fit them to images, see worlds through them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from instep.core.imports import lazy_names

if TYPE_CHECKING:
    from .capture import load_capture
    from .gaussian_files import load_gaussians, save_gaussians
    from .gaussians import Gaussians, concatenate, gaussians_from_colours
    from .image import psnr, ssim
    from .raster.fused import FusedRasterizer
    from .raster.fused_kernels import RenderChannels, RenderedTensors
    from .raster.gradients import Gradients
    from .raster.rasterizer import Rasterizer
    from .rendered_world import Seen
    from .rendering import Rendering, render
    from .scene_fit import fit_scene

__all__ = [
    "FusedRasterizer",
    "Gaussians",
    "Gradients",
    "Rasterizer",
    "RenderChannels",
    "RenderedTensors",
    "Rendering",
    "Seen",
    "concatenate",
    "fit_scene",
    "gaussians_from_colours",
    "load_capture",
    "load_gaussians",
    "psnr",
    "render",
    "save_gaussians",
    "ssim",
]

__getattr__ = lazy_names(
    __name__,
    {
        "capture": "load_capture",
        "gaussian_files": "load_gaussians save_gaussians",
        "gaussians": "Gaussians concatenate gaussians_from_colours",
        "image": "psnr ssim",
        "raster.fused": "FusedRasterizer",
        "raster.fused_kernels": "RenderChannels RenderedTensors",
        "raster.gradients": "Gradients",
        "raster.rasterizer": "Rasterizer",
        "rendered_world": "Seen",
        "rendering": "Rendering render",
        "scene_fit": "fit_scene",
    },
)
