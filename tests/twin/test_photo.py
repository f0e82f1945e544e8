"""Colours of pixels: the skin's edge, planted poses found by colours, light that changes, runs that repeat."""

from __future__ import annotations

from dataclasses import replace

import mujoco
import numpy as np
import pytest

from instep.core.poses import pose
from instep.core.rollout import Script, rollout
from instep.physics.mujoco_world import MujocoWorld
from instep.robot.recorded_world import Recording
from instep.scene.camera import Camera
from instep.splat.raster.rasterizer import Rasterizer
from instep.twin.camera_rig import Frame
from instep.twin.photometric import Colours, Photo, joined, repainted
from instep.twin.pose_filter import FilterOptions
from instep.twin.pose_solver import Sharpness, Shot, moved, planar_basis, solve
from instep.twin.projection import Outline, outline, sight
from instep.twin.surface_gaussians import Skin, skin_of
from instep.twin.twin import Twin

TEE = """
<mujoco><worldbody><body name="tee"><freejoint/>
    <geom type="box" pos="0 0.04 0" size="0.1 0.025 0.02"/><geom type="box" pos="0 -0.06 0" size="0.025 0.075 0.02"/>
</body></worldbody></mujoco>
"""
TOP = np.array([0.9, 0.5, 0.1])


@pytest.fixture(scope="module")
def tee() -> Outline:
    return outline(mujoco.MjModel.from_xml_string(TEE), "tee")


@pytest.fixture(scope="module")
def skin(tee: Outline) -> Skin:
    return skin_of(tee, TOP)


def camera(name: str, lean: float, at: tuple[float, float, float]) -> Camera:
    c, s = np.cos(lean), np.sin(lean)
    placed = np.eye(4)
    placed[:3, :3] = np.array([[1, 0, 0], [0, c, -s], [0, s, c]]) @ np.diag([1.0, -1.0, -1.0])
    placed[:3, 3] = at
    return Camera(name, 240, 160, (200.0, 200.0), (120.0, 80.0), body_from_camera=placed)


CAMERAS = (camera("a", -0.2, (0.05, 0.1, 0.6)), camera("b", 0.5, (0.0, -0.3, 0.5)))


def shaded(skin: Skin) -> np.ndarray:
    """Colours of faces under a lamp from above and one side."""
    lamp = np.array([0.4, 0.2, 0.9])
    return TOP * (0.4 + 0.6 * np.clip(skin.normals @ (lamp / np.linalg.norm(lamp)), 0, 1))[:, None]


def photographed(skin: Skin, view: Camera, T: np.ndarray, gain: float = 1.0) -> np.ndarray:
    """A picture of the skin before a grey table."""
    image = Rasterizer(skin.painted(shaded(skin)), threads=1).render(view, pose(T)[None])
    colour = image.colour + (1 - image.alpha[..., None]) * 0.4
    return np.clip(255 * gain * colour, 0, 255).astype(np.uint8)


def shot(tee: Outline, view: Camera, true: np.ndarray, believed: np.ndarray) -> Shot:
    whole = (0, 0, view.width, view.height)
    mask = sight(tee, view, true, true[:3, 3]).coverage(whole, 0.4)
    return Shot(view, mask, np.ones_like(mask), whole, believed)


def test_a_skin_lies_on_the_body_and_nowhere_inside_it(tee: Outline, skin: Skin) -> None:
    outward = skin.gaussians.means + 1e-3 * skin.normals
    inside = np.zeros(len(outward), bool)
    for x, y, wide, long in ((0, 0.04, 0.1, 0.025), (0, -0.06, 0.025, 0.075)):
        inside |= (np.abs(outward - [x, y, 0]) < [wide, long, 0.02]).all(axis=1)
    assert not inside.any()
    assert np.allclose(np.linalg.norm(skin.normals, axis=1), 1)


@pytest.mark.parametrize("view", CAMERAS, ids=lambda c: c.name)
def test_the_edge_of_a_skin_is_the_edge_of_the_silhouette(tee: Outline, skin: Skin, view: Camera) -> None:
    T = moved(np.eye(4), np.array([0.01, 0.02, 0.02, 0, 0, 0.7]))
    alpha = Rasterizer(skin.gaussians, threads=1).render(view, pose(T)[None]).alpha
    covered = sight(tee, view, T, T[:3, 3]).coverage((0, 0, view.width, view.height), 0.1)
    # To half a pixel: along the border of this T lie 250 pixels of its 2240.
    assert (alpha > 0.5).sum() == pytest.approx((covered > 0.5).sum(), rel=0.06)


@pytest.mark.parametrize("masks", [True, False])
def test_a_planted_pose_is_found_by_colours(tee: Outline, skin: Skin, masks: bool) -> None:
    believed = moved(np.eye(4), np.array([0.0, 0.0, 0.02, 0, 0, 0.3]))
    true = moved(believed, np.array([0.003, -0.002, 0, 0, 0, 0.03]))
    prior, basis = np.diag([0.01**2] * 3 + [0.1**2] * 3), planar_basis(np.array([0.0, 0.0, 1.0]))
    shots = [shot(tee, view, true, believed) for view in CAMERAS]
    frames = [Frame(view, photographed(skin, view, true), 0.0, 0.0) for view in CAMERAS]
    photo, colours = Photo(skin), Colours(shaded(skin), shaded(skin), 0, np.ones(2))
    found = solve(tee, shots, prior, basis, Sharpness(), 5 if masks else 1)
    for _ in range(1 if masks else 4):  # silhouettes are not looked at again
        equations = photo.equations(shots, frames, [1.0, 1.0], found.xi, colours)
        found = joined(found, equations, photo.exposure, prior, basis, masks)
    at = moved(believed, found.xi)
    assert np.linalg.norm(at[:3, 3] - true[:3, 3]) < 2e-4
    assert abs(found.xi[5] - 0.03) < 2e-3


def test_light_is_taken_off_before_colours_are_compared(tee: Outline, skin: Skin) -> None:
    T = moved(np.eye(4), np.array([0.0, 0.0, 0.02, 0, 0, 0.3]))
    shots = [shot(tee, view, T, T) for view in CAMERAS]
    photo, colours = Photo(skin), Colours(shaded(skin), shaded(skin), 0, np.ones(2))
    bright = [Frame(view, photographed(skin, view, T, 0.6), 0.0, 0.0) for view in CAMERAS]
    right, _ = photo.compared(shots, bright, [0.6, 0.6], colours)
    wrong, _ = photo.compared(shots, bright, [1.0, 1.0], colours)
    assert right < 0.05 < 0.15 < wrong


def test_colours_are_learned_from_what_cameras_show(tee: Outline, skin: Skin) -> None:
    T = moved(np.eye(4), np.array([0.0, 0.0, 0.02, 0, 0, 0.3]))
    shots = [shot(tee, view, T, T) for view in CAMERAS]
    frames = [Frame(view, photographed(skin, view, T), 0.0, 0.0) for view in CAMERAS]
    photo = Photo(skin)
    nothing = photo.unknown(2)
    assert not np.isfinite(nothing.used).any()
    learned = repainted(nothing, photo.compared(shots, frames, [1.0, 1.0], nothing)[1])
    up = skin.normals[:, 2] > 0.9
    assert np.isfinite(learned.used).all()
    assert np.median(np.abs(learned.used[up] - shaded(skin)[up])) < 0.03


@pytest.mark.parametrize("residual", ["photo", "both"])
def test_a_filter_that_compares_colours_follows_a_stand_in(filmed, follow, residual) -> None:
    run = follow(filmed, FilterOptions(residual=residual))
    assert np.median(run.error[10:]) < 1.5e-3 and np.degrees(np.median(run.turn[10:])) < 0.3
    assert np.nanmedian(run.log["tee.photo"][10:]) < 0.2
    again = follow(filmed, FilterOptions(residual=residual))
    assert np.array_equal(run.episode.q, again.episode.q)  # bit for bit


def test_a_scan_takes_the_place_of_the_skin(filmed, tmp_path) -> None:
    from instep.app.twin_run import How
    from instep.splat.io import save
    from instep.twin.camera_rig import Eyes
    from instep.twin.pose_filter import PoseFilter
    from instep.twin.segmentation import colour_mask

    scene = filmed.scene
    scan = skin_of(outline(scene.model, "tee"), TOP, pitch=0.02).gaussians
    save(tmp_path / "tee.ply", scan)
    scans = How(residual="both", scan=tmp_path).scans()
    assert list(scans) == ["tee"] and len(scans["tee"]) == len(scan)
    eyes = Eyes(tuple(scene.cameras.values()), colour_mask(TOP))
    scanned = PoseFilter(scene, eyes, FilterOptions(residual="both"), scans=scans)
    twin = Twin(MujocoWorld(scene), Recording(filmed.episode), scanned)
    run = rollout(twin, Script(filmed.episode.action), steps=20)
    error = np.linalg.norm(run.q[10:, 2:5] - filmed.episode.q[10:20, 2:5], axis=1)
    assert np.median(error) < 2e-3


def test_the_log_tells_when_colours_do_not_fit(filmed, follow) -> None:
    def stain(row: int, name: str, pixels: np.ndarray, stamp: float) -> tuple[np.ndarray, float]:
        return (pixels if row < 40 else np.clip(pixels * np.array([1.0, 1.5, 0.6]), 0, 255).astype(np.uint8)), stamp

    plain, stained = follow(filmed), follow(filmed.with_pictures(stain))
    assert np.array_equal(plain.log["tee.photo"][:40], stained.log["tee.photo"][:40], equal_nan=True)
    assert np.nanmean(stained.log["tee.photo"][42:]) > 1.2 * np.nanmean(plain.log["tee.photo"][42:])


def test_a_skin_keeps_its_shape_when_painted(skin: Skin) -> None:
    painted = skin.painted(shaded(skin))
    assert np.array_equal(painted.means, skin.gaussians.means)
    assert np.allclose(painted.colours, shaded(skin))
    assert replace(skin, gaussians=painted).gaussians is painted
