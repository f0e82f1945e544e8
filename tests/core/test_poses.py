"""Quaternions and poses against rotations one can see."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instep.core import poses

numbers = st.floats(-1, 1, allow_nan=False)
quats = st.tuples(numbers, numbers, numbers, numbers).filter(lambda q: sum(x * x for x in q) > 0.01)


@pytest.mark.parametrize(("axis", "image"), [((1, 0, 0), (0, 0, 1)), ((0, 1, 0), (0, 1, 0)), ((0, 0, 1), (-1, 0, 0))])
def test_a_quarter_turn_moves_y_where_it_should(axis, image):
    quat = poses.quat_exp(np.array(axis) * np.pi / 2)
    assert poses.rotate(quat, np.array([0.0, 1.0, 0.0])) == pytest.approx(image, abs=1e-12)


@settings(max_examples=200, deadline=None)
@given(quats, quats)
def test_matrices_quaternions_and_logarithms_agree(a, b):
    a, b = poses.normalized(np.array(a)), poses.normalized(np.array(b))
    product = poses.matrix_from_quat(a) @ poses.matrix_from_quat(b)
    assert poses.matrix_from_quat(poses.quat_mul(a, b)) == pytest.approx(product, abs=1e-9)
    back = poses.quat_from_matrix(poses.matrix_from_quat(a))
    assert abs(back @ a) == pytest.approx(1, abs=1e-9)
    assert abs(poses.quat_exp(poses.quat_log(a)) @ a) == pytest.approx(1, abs=1e-9)
    cosine = min(1.0, abs(a @ b))
    assert poses.angle_between(a, b) == pytest.approx(2 * np.arccos(cosine), abs=1e-6)


@settings(max_examples=100, deadline=None)
@given(quats, quats, st.tuples(numbers, numbers, numbers))
def test_poses_compose_and_invert_like_transforms(a, b, p):
    first = np.concatenate([p, poses.normalized(np.array(a))])
    second = np.concatenate([np.array(p)[::-1], poses.normalized(np.array(b))])
    expected = poses.transform(first) @ poses.transform(second)
    assert poses.transform(poses.compose(first, second)) == pytest.approx(expected, abs=1e-9)
    assert poses.transform(poses.compose(first, poses.inverse(first))) == pytest.approx(np.eye(4), abs=1e-9)
    assert poses.transform(poses.pose(expected)) == pytest.approx(expected, abs=1e-9)
