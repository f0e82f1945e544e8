"""The photometric residual: surface Gaussians, planted poses found by colours, illumination, runs that repeat."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from instep.core.poses import pose
from instep.core.rollout import Script, rollout
from instep.physics.mujoco_world import MujocoWorld
from instep.robot import Recording
from instep.scene.camera import Camera
from instep.splat.raster.rasterizer import Rasterizer
from instep.twin import CameraRig, FilterOptions, PoseFilter, Twin, TwinOptions
from instep.twin.body_outlines import Outline, outline_of, project_outline
from instep.twin.camera_rig import CameraFrame, MaskCrop, colour_mask
from instep.twin.photometric import (
    BodyColours,
    PhotometricResidual,
    SurfaceGaussians,
    photometric_step,
    surface_gaussians,
)
from instep.twin.pose_solver import moved, planar_basis, solve_pose

from .conftest import looking_down

TOP = np.array([0.9, 0.5, 0.1])


@pytest.fixture(scope="module")
def surface(tee: Outline) -> SurfaceGaussians:
    return surface_gaussians(tee, TOP)


CAMERAS = (looking_down("a", (0.05, 0.1, 0.6), -0.2), looking_down("b", (0.0, -0.3, 0.5), 0.5))


def shaded(surface: SurfaceGaussians) -> np.ndarray:
    """Colours of faces under a lamp from above and one side."""
    lamp = np.array([0.4, 0.2, 0.9])
    return TOP * (0.4 + 0.6 * np.clip(surface.normals @ (lamp / np.linalg.norm(lamp)), 0, 1))[:, None]


def photographed(surface: SurfaceGaussians, view: Camera, T: np.ndarray, gain: float = 1.0) -> np.ndarray:
    """An image of the surface in front of a grey table."""
    image = Rasterizer(surface.with_colours(shaded(surface)), threads=1).render(view, pose(T)[None])
    colour = image.colour + (1 - image.alpha[..., None]) * 0.4
    return np.clip(255 * gain * colour, 0, 255).astype(np.uint8)


def crop(tee: Outline, view: Camera, true: np.ndarray, predicted: np.ndarray) -> MaskCrop:
    whole = (0, 0, view.width, view.height)
    mask = project_outline(tee, view, true, true[:3, 3]).coverage(whole, 0.4)
    return MaskCrop(view, mask, np.ones_like(mask), whole, predicted)


def test_surface_gaussians_lie_on_the_body_and_nowhere_inside_it(tee: Outline, surface: SurfaceGaussians) -> None:
    outward = surface.gaussians.means + 1e-3 * surface.normals
    inside = np.zeros(len(outward), bool)
    for x, y, wide, long in ((0, 0.04, 0.1, 0.025), (0, -0.06, 0.025, 0.075)):
        inside |= (np.abs(outward - [x, y, 0]) < [wide, long, 0.02]).all(axis=1)
    assert not inside.any()
    assert np.allclose(np.linalg.norm(surface.normals, axis=1), 1)


@pytest.mark.parametrize("view", CAMERAS, ids=lambda c: c.name)
def test_the_edge_of_surface_gaussians_is_the_edge_of_the_silhouette(
    tee: Outline, surface: SurfaceGaussians, view: Camera
) -> None:
    T = moved(np.eye(4), np.array([0.01, 0.02, 0.02, 0, 0, 0.7]))
    alpha = Rasterizer(surface.gaussians, threads=1).render(view, pose(T)[None]).alpha
    covered = project_outline(tee, view, T, T[:3, 3]).coverage((0, 0, view.width, view.height), 0.1)
    # To half a pixel: along the border of this T lie 250 pixels of its 2240.
    assert (alpha > 0.5).sum() == pytest.approx((covered > 0.5).sum(), rel=0.06)


@pytest.mark.parametrize("masks", [True, False])
def test_a_planted_pose_is_found_by_colours(tee: Outline, surface: SurfaceGaussians, masks: bool) -> None:
    predicted = moved(np.eye(4), np.array([0.0, 0.0, 0.02, 0, 0, 0.3]))
    true = moved(predicted, np.array([0.003, -0.002, 0, 0, 0, 0.03]))
    prior, basis = np.diag([0.01**2] * 3 + [0.1**2] * 3), planar_basis(np.array([0.0, 0.0, 1.0]))
    crops = [crop(tee, view, true, predicted) for view in CAMERAS]
    frames = [CameraFrame(view, photographed(surface, view, true), 0.0, 0.0) for view in CAMERAS]
    photo, colours = PhotometricResidual(surface), BodyColours(shaded(surface), shaded(surface), 0, np.ones(2))
    found = solve_pose(tee, crops, prior, basis, 5 if masks else 1)
    for _ in range(1 if masks else 4):  # silhouettes are not extracted again
        equations = photo.equations(crops, frames, [1.0, 1.0], found.xi, colours)
        found = photometric_step(found, equations, prior, basis, masks)
    at = moved(predicted, found.xi)
    assert np.linalg.norm(at[:3, 3] - true[:3, 3]) < 2e-4
    assert abs(found.xi[5] - 0.03) < 2e-3


def test_light_is_taken_off_before_colours_are_compared(tee: Outline, surface: SurfaceGaussians) -> None:
    T = moved(np.eye(4), np.array([0.0, 0.0, 0.02, 0, 0, 0.3]))
    crops = [crop(tee, view, T, T) for view in CAMERAS]
    photo, colours = PhotometricResidual(surface), BodyColours(shaded(surface), shaded(surface), 0, np.ones(2))
    bright = [CameraFrame(view, photographed(surface, view, T, 0.6), 0.0, 0.0) for view in CAMERAS]
    right, _ = photo.compare(crops, bright, [0.6, 0.6], colours)
    wrong, _ = photo.compare(crops, bright, [1.0, 1.0], colours)
    assert right < 0.05 < 0.15 < wrong


def test_colours_are_learned_from_what_cameras_show(tee: Outline, surface: SurfaceGaussians) -> None:
    T = moved(np.eye(4), np.array([0.0, 0.0, 0.02, 0, 0, 0.3]))
    crops = [crop(tee, view, T, T) for view in CAMERAS]
    frames = [CameraFrame(view, photographed(surface, view, T), 0.0, 0.0) for view in CAMERAS]
    photo = PhotometricResidual(surface)
    nothing = photo.unknown(2)
    assert not np.isfinite(nothing.used).any()
    learned = nothing.updated(photo.compare(crops, frames, [1.0, 1.0], nothing)[1])
    up = surface.normals[:, 2] > 0.9
    assert np.isfinite(learned.used).all()
    assert np.median(np.abs(learned.used[up] - shaded(surface)[up])) < 0.03


@pytest.mark.parametrize("residual", ["photo", "both"])
def test_a_filter_that_compares_colours_follows_a_simulated_robot(recording, follow, residual) -> None:
    run = follow(recording, FilterOptions(residual=residual))
    assert np.median(run.error[10:]) < 1.5e-3 and np.degrees(np.median(run.turn[10:])) < 0.3
    assert np.nanmedian(run.log["tee.colour_residual"][10:]) < 0.2
    again = follow(recording, FilterOptions(residual=residual))
    assert np.array_equal(run.episode.q, again.episode.q)  # bit for bit


def test_a_scan_replaces_the_surface_gaussians(recording, tmp_path) -> None:
    from instep.splat.io import save_gaussians

    scene = recording.scene
    scan = surface_gaussians(outline_of(scene.model, "tee"), TOP, cell=0.02).gaussians
    save_gaussians(tmp_path / "tee.ply", scan)
    scans = TwinOptions(residual="both", scan=tmp_path).scans()
    assert list(scans) == ["tee"] and len(scans["tee"]) == len(scan)
    rig = replace(CameraRig.of(scene), mask=colour_mask(TOP))
    scanned = PoseFilter(scene, rig, FilterOptions(residual="both"), scans=scans)
    twin = Twin(MujocoWorld(scene), Recording(recording.episode), scanned)
    run = rollout(twin, Script(recording.episode.action), steps=20)
    error = np.linalg.norm(run.q[10:, 2:5] - recording.episode.q[10:20, 2:5], axis=1)
    assert np.median(error) < 2e-3


def test_the_log_tells_when_colours_do_not_fit(recording, follow) -> None:
    def stain(row: int, name: str, pixels: np.ndarray, stamp: float) -> tuple[np.ndarray, float]:
        return (pixels if row < 40 else np.clip(pixels * np.array([1.0, 1.5, 0.6]), 0, 255).astype(np.uint8)), stamp

    plain, stained = follow(recording), follow(recording.with_images(stain))
    assert np.array_equal(
        plain.log["tee.colour_residual"][:40], stained.log["tee.colour_residual"][:40], equal_nan=True
    )
    assert np.nanmean(stained.log["tee.colour_residual"][42:]) > 1.2 * np.nanmean(plain.log["tee.colour_residual"][42:])


def test_surface_gaussians_keep_their_shape_in_other_colours(surface: SurfaceGaussians) -> None:
    recoloured = surface.with_colours(shaded(surface))
    assert np.array_equal(recoloured.means, surface.gaussians.means)
    assert np.allclose(recoloured.colours, shaded(surface))
    assert replace(surface, gaussians=recoloured).gaussians is recoloured
