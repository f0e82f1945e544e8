"""Silhouettes: corners, hulls, coverage, and their derivatives."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from instep.core.errors import BadInput, UnknownName
from instep.core.poses import transform
from instep.scene.camera import Camera
from instep.twin.body_outlines import Outline, outline_of, project_outline
from instep.twin.camera_rig import MaskCrop, colour_mask
from instep.twin.pose_solver import (
    FitWeights,
    PixelNoise,
    compare_silhouette,
    moved,
    planar_basis,
    solve_pose,
)

from .conftest import TEE, looking_down
from .reference import body_share, chroma, counted, normal_equations, occluders


def shown(shape: Outline, camera: Camera, T: np.ndarray) -> MaskCrop:
    """What a camera would show of the body, exactly."""
    whole = (0, 0, camera.width, camera.height)
    mask = project_outline(shape, camera, T).coverage(whole, 0.4)
    return MaskCrop(camera, mask, np.ones_like(mask), whole, T)


def test_parts_that_are_cut_at_an_angle_are_made_to_overlap_and_never_leave_the_body() -> None:
    """A T turned by 37 degrees whose parts do not lie along the axes: boxes around them reach between bar and stem."""
    turn = np.array([[np.cos(0.65), -np.sin(0.65)], [np.sin(0.65), np.cos(0.65)]])
    rings = [
        [(-100, 0), (-100, -50), (100, -50), (100, 0)],
        [(-25, 150), (-25, 0), (25, 0), (25, 150)],
    ]
    parts = [1e-3 * np.array([[*(turn @ p), z] for p in ring for z in (-20, 20)]) for ring in rings]
    mesh = "".join(
        f'<mesh name="m{k}" vertex="{" ".join(f"{x:.9f}" for x in part.ravel())}"/>' for k, part in enumerate(parts)
    )
    geoms = '<geom type="mesh" mesh="m0"/><geom type="mesh" mesh="m1"/>'
    text = f'<mujoco><asset>{mesh}</asset><worldbody><body name="tee"><freejoint/>{geoms}</body></worldbody></mujoco>'
    found = outline_of(mujoco.MjModel.from_xml_string(text), "tee")
    flat = (found.corners[:, :2] @ turn) * 1e3
    in_bar = (np.abs(flat[:, 0]) < 100.1) & (flat[:, 1] > -50.1) & (flat[:, 1] < 0.1)
    in_stem = (np.abs(flat[:, 0]) < 25.1) & (flat[:, 1] > -50.1) & (flat[:, 1] < 150.1)
    assert (in_bar | in_stem).all()
    assert flat[found.starts[1] :, 1].min() < -20  # the stem reaches into the bar


def test_parts_that_touch_are_made_to_overlap(tee: Outline) -> None:
    stem = tee.corners[tee.starts[1] :]
    assert stem[:, 1].max() == pytest.approx(0.04)  # the middle of the bar
    assert stem[:, 1].min() == pytest.approx(-0.135)


def test_a_body_nobody_can_see_is_refused() -> None:
    model = mujoco.MjModel.from_xml_string(TEE)
    with pytest.raises(BadInput, match="no geom that a camera could see"):
        outline_of(model, "ghost")
    with pytest.raises(UnknownName, match="tee"):
        outline_of(model, "tea")


def test_coverage_counts_the_area_of_a_box() -> None:
    camera = looking_down(lean=0.0, at=(0.0, 0.0, 1.0))
    corners = np.array([[x, y, 0.0] for x in (-0.1, 0.1) for y in (-0.05, 0.05)])
    plate = Outline("plate", corners, np.array([0, 4]), 0.2)
    covered = project_outline(plate, camera, np.eye(4)).coverage((0, 0, 240, 160), 0.1)
    assert covered.sum() == pytest.approx(40 * 20, rel=0.01)  # 0.2 m x 0.1 m at 200 pixels per metre


def test_derivatives_of_corners_agree_with_finite_differences(tee: Outline) -> None:
    camera, T = looking_down(), transform(np.array([0.02, 0.03, 0.02, 0.9, 0.1, -0.05, 0.4]))
    T[:3, :3] = np.linalg.qr(T[:3, :3])[0]
    here = project_outline(tee, camera, T)
    for k in range(6):
        xi = np.zeros(6)
        xi[k] = 1e-6
        there = project_outline(tee, camera, moved(T, xi))
        derivative = (there.points - here.points) / 1e-6
        assert np.allclose(derivative, here.jacobian[:, :, k], rtol=1e-3, atol=1e-2)


def test_the_gradient_is_that_of_the_cost(tee: Outline) -> None:
    camera, T = looking_down(), np.eye(4)
    crop = shown(tee, camera, moved(T, np.array([0.004, -0.003, 0, 0, 0, 0.05])))
    crop = MaskCrop(camera, crop.mask, crop.weight, crop.region, T)
    noise = PixelNoise(robust=10.0, sigma=1.0, kappa=1.0)
    gradient = compare_silhouette(tee, crop, weights=FitWeights(noise=noise)).gradient
    whole = (0, 0, camera.width, camera.height)

    def cost(xi: np.ndarray) -> float:
        at = moved(T, xi)
        return 0.5 * float(np.sum((project_outline(tee, camera, at).coverage(whole, 0.7) - crop.mask) ** 2))

    for k in (0, 1, 5):
        xi = np.zeros(6)
        xi[k] = 1e-4
        derivative = (cost(xi) - cost(-xi)) / 2e-4
        assert gradient[k] == pytest.approx(derivative, rel=0.08)  # edges change hands from pixel to pixel


@pytest.mark.parametrize("soft", [0.7, 2.0, 5.0])
def test_the_compiled_equations_are_the_readable_ones(tee: Outline, soft: float) -> None:
    camera, T = looking_down(), moved(np.eye(4), np.array([0.01, 0.02, 0.02, 0.1, -0.05, 0.7]))
    crop = shown(tee, camera, moved(T, np.array([0.004, -0.003, 0, 0, 0, 0.05])))
    weight = (np.random.default_rng(1).random(crop.mask.shape) < 0.8).astype(np.float32)
    crop = MaskCrop(camera, crop.mask, weight, crop.region, T)
    noise = PixelNoise(sigma=1.0, kappa=1.0, robust=0.5)
    view = compare_silhouette(tee, crop, None, soft, weights=FitWeights(noise=noise))
    seen = project_outline(tee, camera, T, 8 if soft < 1 else 32)
    left, top, right, bottom = seen.region
    part = slice(top, bottom), slice(left, right)
    H, g, tally = normal_equations(
        seen.points, seen.jacobian, seen.edges, crop.mask[part], weight[part], np.array([left, top], float), soft, 0.5
    )
    scale = np.abs(H).max()
    assert np.abs(view.information - H).max() < 1e-5 * scale  # float32 sums of flat blocks
    assert np.abs(view.gradient - g).max() < 1e-4 * np.abs(g).max()
    assert view.overlap == pytest.approx(tally[2] / tally[3], rel=1e-6)
    # Beyond six widths of the edge the fast one takes the silhouette as flat.
    assert view.residual == pytest.approx(np.sqrt(tally[0] / tally[1]), rel=3e-3)
    basis = planar_basis(np.array([0.0, 0.0, 1.0]))
    planar = compare_silhouette(tee, crop, None, soft, basis, FitWeights(noise=noise))
    assert np.allclose(planar.information, basis.T @ view.information @ basis, rtol=1e-9, atol=1e-9 * scale)


def test_the_compiled_chroma_is_the_plain_one() -> None:
    rng = np.random.default_rng(4)
    mask = colour_mask(np.array([1.0, 0.3, 0.1]))
    pixels = np.clip(np.array([190, 70, 40]) + rng.normal(0, 20, (60, 80, 3)), 0, 255).astype(np.uint8)
    assert mask.strength(pixels, 100.0) == pytest.approx(chroma(mask, pixels[::2, ::2], 100.0), abs=0.5)


def test_the_compiled_mask_is_the_plain_one() -> None:
    rng = np.random.default_rng(3)
    pixels = rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)
    background = rng.integers(0, 200, (40, 50, 3)).astype(np.float32)
    mask = colour_mask(np.array([1.0, 0.3, 0.1]))
    plain = body_share(mask, pixels, 120.0)
    weight = counted(plain, occluders(pixels, background))
    fast_mask, fast_weight = mask.segment(pixels, 120.0, background)
    assert np.allclose(fast_mask, plain, atol=1e-5)
    assert np.mean(fast_weight != weight) < 0.002  # pixels whose mask lies on a threshold to the last bit


def test_a_grey_body_cannot_be_segmented_by_its_colour() -> None:
    with pytest.raises(BadInput, match="nearly grey"):
        colour_mask(np.array([0.5, 0.52, 0.5]))


@pytest.mark.parametrize("off", [(0.003, -0.002, 0.03), (0.03, 0.02, -0.4), (-0.05, 0.0, 0.5)])
def test_a_planted_pose_is_found_again(tee: Outline, off: tuple[float, float, float]) -> None:
    cameras = [looking_down("a"), looking_down("b", (0.0, -0.3, 0.5), 0.5)]
    T = np.eye(4)
    T[2, 3] = 0.02
    true = np.array([off[0], off[1], 0.0, 0.0, 0.0, off[2]])
    crops = [shown(tee, camera, moved(T, true)) for camera in cameras]
    crops = [MaskCrop(s.camera, s.mask, s.weight, s.region, T) for s in crops]
    basis = planar_basis(np.array([0.0, 0.0, 1.0]))
    found = solve_pose(tee, crops, np.diag([0.05**2] * 3 + [0.5**2] * 3), basis, 25)
    assert np.linalg.norm(found.xi[:3] - true[:3]) < 5e-4
    assert abs(found.xi[5] - true[5]) < 0.01
    assert np.all(np.linalg.eigvalsh(found.covariance) > -1e-12)


def test_all_six_unknowns_are_found_off_the_table(tee: Outline) -> None:
    cameras = [looking_down("a"), looking_down("b", (0.0, -0.3, 0.5), 0.5), looking_down("c", (0.12, 0.0, 0.5), 0.1)]
    true = np.array([0.004, -0.003, 0.005, 0.03, -0.02, 0.05])
    crops = [shown(tee, camera, moved(np.eye(4), true)) for camera in cameras]
    crops = [MaskCrop(s.camera, s.mask, s.weight, s.region, np.eye(4)) for s in crops]
    found = solve_pose(tee, crops, np.diag([0.05**2] * 3 + [0.5**2] * 3), np.eye(6), 25)
    assert np.linalg.norm(found.xi[:3] - true[:3]) < 1e-3
    assert np.linalg.norm(found.xi[3:] - true[3:]) < 0.02
