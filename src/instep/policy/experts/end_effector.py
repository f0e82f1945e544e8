"""Kinematics of an end effector: its pose and Jacobian, and joint steps by damped least squares."""

from __future__ import annotations

import mujoco
import numpy as np

from instep.core.records import array_dataclass
from instep.core.world import Array
from instep.scene.folder import Scene

DAMPING = 0.03
"""Damping of the least squares near singularities [m or rad per rad]."""


@array_dataclass
class EndEffector:
    """One end effector and the joints that move it."""

    model: mujoco.MjModel
    data: mujoco.MjData
    """Simulation data to work in: an EndEffector belongs to one thread."""
    site: int
    joints: Array
    """Indices of the joints in q [n]."""
    dofs: Array
    """Indices of the joints in v [n]."""
    low: Array
    high: Array
    """Limits of the joints [n]."""

    @classmethod
    def of(cls, scene: Scene, site: str, joints: tuple[str, ...]) -> EndEffector:
        """The end effector at a site of a scene, moved by some of its joints."""
        model = scene.model
        ids = np.array([model.joint(name).id for name in joints])
        low, high = model.jnt_range[ids].T
        free = model.jnt_limited[ids] == 0
        low, high = np.where(free, -np.inf, low), np.where(free, np.inf, high)
        where = (model.jnt_qposadr[ids].astype(int), model.jnt_dofadr[ids].astype(int))
        return cls(model, mujoco.MjData(model), model.site(site).id, *where, low, high)

    def kinematics(self, q: Array) -> tuple[Array, Array, Array]:
        """Position [..., 3], orientation [..., 3, 3] and Jacobian [..., 6, joints] at positions q."""
        batch = q.shape[:-1]
        place, turn = np.empty((*batch, 3)), np.empty((*batch, 3, 3))
        jacobian = np.empty((*batch, 6, len(self.joints)))
        full = np.empty((6, self.model.nv))
        for index in np.ndindex(*batch):
            self.data.qpos[:] = q[index]
            mujoco.mj_kinematics(self.model, self.data)
            mujoco.mj_comPos(self.model, self.data)
            mujoco.mj_jacSite(self.model, self.data, full[:3], full[3:], self.site)
            place[index], turn[index] = self.data.site_xpos[self.site], self.data.site_xmat[self.site].reshape(3, 3)
            jacobian[index] = full[:, self.dofs]
        return place, turn, jacobian

    def kinematics_at(self, joints: Array, rest: Array) -> tuple[Array, Array, Array]:
        """The same with these joint positions [..., joints] and all else as in `rest` [nq]."""
        q = np.broadcast_to(rest, (*joints.shape[:-1], rest.size)).copy()
        q[..., self.joints] = joints
        return self.kinematics(q)

    def step(self, jacobian: Array, move: Array, turn: Array, *, settle: Array | None = None) -> Array:
        """The joint step [..., joints] that moves the end effector by `move` [m] and `turn` [rad], by damped least
        squares.

        The part of the joint step `settle` that does not move the end effector is added.
        """
        twist = np.concatenate([move, turn], axis=-1)[..., None]
        inverse = np.swapaxes(jacobian, -1, -2) @ np.linalg.inv(
            jacobian @ np.swapaxes(jacobian, -1, -2) + DAMPING**2 * np.eye(jacobian.shape[-2])
        )
        step = (inverse @ twist)[..., 0]
        if settle is not None:
            step = step + settle - (inverse @ (jacobian @ settle[..., None]))[..., 0]
        return step

    def solve(self, q: Array, place: Array, frame: Array, *, steps: int = 60) -> Array:
        """Inverse kinematics: positions q with the end effector at a position and orientation [..., 3, 3]."""
        q = np.array(q, float)
        for _ in range(steps):
            at, now, jacobian = self.kinematics(q)
            turn = rotation_between(now, frame)
            step = np.clip(self.step(jacobian, place - at, turn), -0.3, 0.3)
            q[..., self.joints] = np.clip(q[..., self.joints] + step, self.low, self.high)
        return q


def rotation_between(now: Array, target: Array) -> Array:
    """The rotation vector [rad] from orientations `now` [..., 3, 3] to `target`, in the world's frame."""
    turn = target @ np.swapaxes(now, -1, -2)
    axis = np.stack(
        [turn[..., 2, 1] - turn[..., 1, 2], turn[..., 0, 2] - turn[..., 2, 0], turn[..., 1, 0] - turn[..., 0, 1]],
        axis=-1,
    )
    sine = 0.5 * np.linalg.norm(axis, axis=-1)
    cosine = 0.5 * (np.trace(turn, axis1=-2, axis2=-1) - 1)
    angle = np.arctan2(sine, cosine)
    return axis * (0.5 * angle / np.maximum(sine, 1e-9))[..., None]
