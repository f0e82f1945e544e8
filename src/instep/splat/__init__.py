"""Appearance: 3D Gaussians on bodies; render them, differentiate them, fit them to images, see worlds through them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from instep.core.imports import lazy_names

if TYPE_CHECKING:
    from .capture import CameraRecording, Capture, load_capture
    from .fitting import GaussianFit, GaussianFitOptions, SurfaceConstraint, fit_gaussians, initial_gaussians
    from .gaussians import Gaussians, concatenate, gaussians_from_colours
    from .image import Backdrop, RenderedImage, WeightedImage, psnr, ssim
    from .io import load_gaussians, save_gaussians
    from .plane_alignment import CameraAlignment, Plane, align_on_plane
    from .raster.fused import FusedRasterizer
    from .raster.fused_kernels import RenderChannels, RenderedTensors
    from .raster.gradients import Gradients, ImageGradient
    from .raster.rasterizer import LayeredRasterizer, Rasterizer, open_rasterizer
    from .rendered_world import RenderedCameras, Seen, Sensor, load_rendered_cameras
    from .rendering import Rendering, framing_camera, render, scene_gaussians
    from .scene_fit import SceneFit, SceneFitOptions, fit_scene
    from .video_background import background_near, colour_mask, foreground_mask, inpaint, static_background

__all__ = [
    "Backdrop",
    "CameraAlignment",
    "CameraRecording",
    "Capture",
    "FusedRasterizer",
    "GaussianFit",
    "GaussianFitOptions",
    "Gaussians",
    "Gradients",
    "ImageGradient",
    "LayeredRasterizer",
    "Plane",
    "Rasterizer",
    "RenderChannels",
    "RenderedCameras",
    "RenderedImage",
    "RenderedTensors",
    "Rendering",
    "SceneFit",
    "SceneFitOptions",
    "Seen",
    "Sensor",
    "SurfaceConstraint",
    "WeightedImage",
    "align_on_plane",
    "background_near",
    "colour_mask",
    "concatenate",
    "fit_gaussians",
    "fit_scene",
    "foreground_mask",
    "framing_camera",
    "gaussians_from_colours",
    "initial_gaussians",
    "inpaint",
    "load_capture",
    "load_gaussians",
    "load_rendered_cameras",
    "open_rasterizer",
    "psnr",
    "render",
    "save_gaussians",
    "scene_gaussians",
    "ssim",
    "static_background",
]

__getattr__ = lazy_names(
    __name__,
    {
        "capture": "CameraRecording Capture load_capture",
        "fitting": "GaussianFit GaussianFitOptions SurfaceConstraint fit_gaussians initial_gaussians",
        "gaussians": "Gaussians concatenate gaussians_from_colours",
        "image": "Backdrop RenderedImage WeightedImage psnr ssim",
        "io": "load_gaussians save_gaussians",
        "plane_alignment": "CameraAlignment Plane align_on_plane",
        "raster.fused": "FusedRasterizer",
        "raster.fused_kernels": "RenderChannels RenderedTensors",
        "raster.gradients": "Gradients ImageGradient",
        "raster.rasterizer": "LayeredRasterizer Rasterizer open_rasterizer",
        "rendered_world": "RenderedCameras Seen Sensor load_rendered_cameras",
        "rendering": "Rendering framing_camera render scene_gaussians",
        "scene_fit": "SceneFit SceneFitOptions fit_scene",
        "video_background": "background_near colour_mask foreground_mask inpaint static_background",
    },
)
