"""Surfaces of bodies: the triangles of their meshes, coarser and in the same place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from instep.core.world import Array
from instep.scene.folder import Scene
from instep.twin.body_outlines import (
    MAX_TRIANGLES,
    Outline,
    body_faces,
    clustered,
    hull_faces,
    mesh_surface,
    outline_of,
    project_outline,
)
from instep.twin.camera_rig import MaskCrop
from instep.twin.pose_solver import motion_between, moved, planar_basis, solve_pose

from .conftest import looking_down


def _bowl(rings: int = 60, turns: int = 120) -> tuple[Array, Array]:
    """A hemisphere of 5 cm that is open above: vertices and triangles."""
    up, around = np.meshgrid(np.linspace(0.02, np.pi / 2, rings), np.linspace(0, 2 * np.pi, turns + 1), indexing="ij")
    x, y, z = np.sin(up) * np.cos(around), np.sin(up) * np.sin(around), 1 - np.cos(up)
    vertices = 0.05 * np.stack([x, y, z], axis=-1).reshape(-1, 3)
    i, j = np.meshgrid(np.arange(rings - 1), np.arange(turns), indexing="ij")
    a = (i * (turns + 1) + j).reshape(-1)
    return vertices, np.concatenate(
        [np.stack([a, a + turns + 1, a + 1], 1), np.stack([a + 1, a + turns + 1, a + turns + 2], 1)]
    )


def test_a_coarser_surface_stays_where_the_fine_one_is() -> None:
    vertices, triangles = _bowl()
    found = clustered(vertices[triangles], 16)
    assert len(found.triangles) < len(triangles) / 5
    far = np.linalg.norm(found.vertices - [0, 0, 0.05], axis=1)
    assert np.abs(far - 0.05).max() < 3e-4
    middles = found.vertices[found.triangles].mean(axis=1)
    assert np.mean(np.abs(np.sum(found.normals * (middles - [0, 0, 0.05]), axis=1)) / 0.05 > 0.9) > 0.95


@pytest.fixture
def bowl(tmp_path: Path) -> Scene:
    vertices, triangles = _bowl(30, 60)
    lines = [f"v {x:.6f} {y:.6f} {z:.6f}" for x, y, z in vertices] + [
        f"f {a + 1} {b + 1} {c + 1}" for a, b, c in triangles
    ]
    (tmp_path / "bowl.obj").write_text("\n".join(lines))
    (tmp_path / "bowl.xml").write_text(
        '<mujoco><asset><mesh name="bowl" file="bowl.obj" inertia="shell"/></asset><worldbody>'
        '<body name="bowl" pos="0 0 0.1"><freejoint/><geom type="mesh" mesh="bowl" mass="0.1"/></body>'
        '<body name="block" pos="1 0 0.1"><freejoint/><geom type="box" size="0.1 0.1 0.1"/></body></worldbody></mujoco>'
    )
    return Scene.load(tmp_path / "bowl.xml")


def test_the_inside_of_a_bowl_is_part_of_its_surface_and_boxes_are_hulls(bowl: Scene) -> None:
    surface = mesh_surface(bowl.model, "bowl")
    assert surface is not None
    assert len(surface.triangles) <= MAX_TRIANGLES
    # A hull would close the bowl with a lid; no face of the surface is there.
    middles = surface.vertices[surface.triangles].mean(axis=1)
    assert not np.any((middles[:, 2] > 0.045) & (np.linalg.norm(middles[:, :2], axis=1) < 0.03))
    outline = outline_of(bowl.model, "bowl")
    doubled = body_faces(outline.scaled(np.full(3, 2.0)), bowl)
    assert np.allclose(doubled.vertices, 2 * surface.vertices)
    assert mesh_surface(bowl.model, "block") is None
    assert len(body_faces(outline_of(bowl.model, "block"), bowl).triangles) == 12


def test_the_silhouette_of_a_mesh_that_is_not_convex_finds_a_pose_again(tee: Outline) -> None:
    faces, camera, true = hull_faces(tee), looking_down(), np.eye(4)
    true[:3, 3] = 0.01, 0.02, 0.02
    drawn = replace(tee, surface=(faces.vertices, faces.triangles))
    region = (0, 0, camera.width, camera.height)
    mask = project_outline(tee, camera, true).coverage(region, 0.3).astype(np.float32)
    for off in ([0.004, -0.003, 0, 0, 0, 0.05], [-0.006, 0.002, 0, 0, 0, -0.08]):
        begun = moved(true, np.array(off))
        crop = MaskCrop(camera, mask, np.ones_like(mask), region, begun)
        prior, basis = np.diag([0.02**2] * 3 + [0.2**2] * 3), planar_basis(np.array([0.0, 0.0, 1.0]))
        found = solve_pose(drawn, [crop], prior, basis, 6)
        left = motion_between(true, moved(begun, found.xi))
        assert np.linalg.norm(left[:3]) < 1e-3  # a third of a pixel
        assert np.linalg.norm(left[3:]) < np.radians(0.4)
        assert found.fits[0].overlap > 0.95
        plain = solve_pose(tee, [crop], prior, basis, 6)
        ratio = np.diag(found.information) / np.diag(plain.information)
        assert np.all((ratio > 0.5) & (ratio < 2.0))
