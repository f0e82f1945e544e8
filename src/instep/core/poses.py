"""Rigid poses: unit quaternions wxyz, poses xyz + wxyz, and 4 x 4 transforms. Leading axes are a batch."""

from __future__ import annotations

import numpy as np

from .world import Array


def normalized(quat: Array) -> Array:
    """Unit quaternions [..., 4]."""
    return quat / np.linalg.norm(quat, axis=-1, keepdims=True)


def quat_mul(a: Array, b: Array) -> Array:
    """The rotation b, then a."""
    aw, ax, ay, az = np.moveaxis(np.asarray(a, float), -1, 0)
    bw, bx, by, bz = np.moveaxis(np.asarray(b, float), -1, 0)
    return np.stack(
        [
            aw * bw - ax * bx - ay * by - az * bz,
            aw * bx + ax * bw + ay * bz - az * by,
            aw * by - ax * bz + ay * bw + az * bx,
            aw * bz + ax * by - ay * bx + az * bw,
        ],
        axis=-1,
    )


def quat_inv(quat: Array) -> Array:
    """The inverse of unit quaternions."""
    return np.asarray(quat, float) * np.array([1.0, -1.0, -1.0, -1.0])


def rotate(quat: Array, point: Array) -> Array:
    """Points [..., 3] rotated by unit quaternions [..., 4]."""
    q, p = np.asarray(quat, float), np.asarray(point, float)
    twice = 2.0 * np.cross(q[..., 1:], p)
    return p + q[..., :1] * twice + np.cross(q[..., 1:], twice)


def quat_exp(rotvec: Array) -> Array:
    """The unit quaternion of a rotation vector [rad]."""
    rotvec = np.asarray(rotvec, float)
    half = 0.5 * np.linalg.norm(rotvec, axis=-1, keepdims=True)
    return np.concatenate([np.cos(half), 0.5 * rotvec * np.sinc(half / np.pi)], axis=-1)


def quat_log(quat: Array) -> Array:
    """The rotation vector [rad] of a unit quaternion, of the shorter way round."""
    q = np.asarray(quat, float)
    q = np.where(q[..., :1] < 0, -q, q)
    sine = np.linalg.norm(q[..., 1:], axis=-1, keepdims=True)
    angle = 2.0 * np.arctan2(sine, q[..., :1])
    small = sine < 1e-12
    return q[..., 1:] * np.where(small, 2.0, angle / np.where(small, 1.0, sine))


def quat_from_matrix(matrix: Array) -> Array:
    """Unit quaternions of rotation matrices [..., 3, 3], w >= 0."""
    m = np.asarray(matrix, float)
    xx, yy, zz = m[..., 0, 0], m[..., 1, 1], m[..., 2, 2]
    # The four squared components times four; the largest is a safe divisor.
    squares = np.stack([1 + xx + yy + zz, 1 + xx - yy - zz, 1 - xx + yy - zz, 1 - xx - yy + zz], axis=-1)
    yz, zx, xy = m[..., 2, 1] - m[..., 1, 2], m[..., 0, 2] - m[..., 2, 0], m[..., 1, 0] - m[..., 0, 1]
    sxy, szx, syz = m[..., 1, 0] + m[..., 0, 1], m[..., 0, 2] + m[..., 2, 0], m[..., 2, 1] + m[..., 1, 2]
    rows = np.stack(
        [
            np.stack([squares[..., 0], yz, zx, xy], axis=-1),
            np.stack([yz, squares[..., 1], sxy, szx], axis=-1),
            np.stack([zx, sxy, squares[..., 2], syz], axis=-1),
            np.stack([xy, szx, syz, squares[..., 3]], axis=-1),
        ],
        axis=-2,
    )
    best = np.argmax(squares, axis=-1)[..., None, None]
    quat = normalized(np.take_along_axis(rows, best, axis=-2)[..., 0, :])
    return np.where(quat[..., :1] < 0, -quat, quat)


def matrix_from_quat(quat: Array) -> Array:
    """Rotation matrices [..., 3, 3] of unit quaternions."""
    w, x, y, z = np.moveaxis(np.asarray(quat, float), -1, 0)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


def transform(pose: Array) -> Array:
    """4 x 4 transforms of poses xyz + wxyz [..., 7]."""
    pose = np.asarray(pose, float)
    out = np.zeros((*pose.shape[:-1], 4, 4))
    out[..., :3, :3] = matrix_from_quat(pose[..., 3:])
    out[..., :3, 3] = pose[..., :3]
    out[..., 3, 3] = 1.0
    return out


def pose(matrix: Array) -> Array:
    """Poses xyz + wxyz [..., 7] of 4 x 4 transforms."""
    matrix = np.asarray(matrix, float)
    return np.concatenate([matrix[..., :3, 3], quat_from_matrix(matrix[..., :3, :3])], axis=-1)


def compose(a: Array, b: Array) -> Array:
    """world_from_b = compose(world_from_a, a_from_b), for poses xyz + wxyz."""
    a, b = np.asarray(a, float), np.asarray(b, float)
    return np.concatenate([a[..., :3] + rotate(a[..., 3:], b[..., :3]), quat_mul(a[..., 3:], b[..., 3:])], axis=-1)


def inverse(a: Array) -> Array:
    """a_from_world of world_from_a, for poses xyz + wxyz."""
    a = np.asarray(a, float)
    back = quat_inv(a[..., 3:])
    return np.concatenate([-rotate(back, a[..., :3]), back], axis=-1)


def angle_between(a: Array, b: Array) -> Array:
    """The angle [rad] between two orientations, 0 to pi."""
    return np.linalg.norm(quat_log(quat_mul(quat_inv(a), b)), axis=-1)
