"""Steer the tips of arms by their joints: where they are, and which joint steps move them as wished."""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np

from instep.core.world import Array
from instep.scene.folder import Scene

DAMPING = 0.03
"""Singular directions of the tip are followed less than this allows [m or rad per rad]."""


@dataclass(frozen=True, slots=True, eq=False)
class Tip:
    """One end effector and the joints that move it."""

    model: mujoco.MjModel
    data: mujoco.MjData
    """Scratch space: a Tip belongs to one thread."""
    site: int
    joints: Array
    """Where the joints stand in q [n]."""
    dofs: Array
    """Where they stand in v [n]."""
    low: Array
    high: Array
    """Limits of the joints [n]."""

    @classmethod
    def of(cls, scene: Scene, site: str, joints: tuple[str, ...]) -> Tip:
        """The tip at a site of a scene, moved by some of its joints."""
        model = scene.model
        ids = np.array([model.joint(name).id for name in joints])
        low, high = model.jnt_range[ids].T
        # A joint without limits may turn as it likes.
        free = model.jnt_limited[ids] == 0
        low, high = np.where(free, -np.inf, low), np.where(free, np.inf, high)
        where = (model.jnt_qposadr[ids].astype(int), model.jnt_dofadr[ids].astype(int))
        return cls(model, mujoco.MjData(model), model.site(site).id, *where, low, high)

    def look(self, q: Array) -> tuple[Array, Array, Array]:
        """Position [..., 3], orientation [..., 3, 3] and Jacobian [..., 6, joints] of the tip, for positions q."""
        batch = q.shape[:-1]
        place, turn = np.empty((*batch, 3)), np.empty((*batch, 3, 3))
        slope = np.empty((*batch, 6, len(self.joints)))
        full = np.empty((6, self.model.nv))
        for index in np.ndindex(*batch):
            self.data.qpos[:] = q[index]
            mujoco.mj_kinematics(self.model, self.data)
            mujoco.mj_comPos(self.model, self.data)
            mujoco.mj_jacSite(self.model, self.data, full[:3], full[3:], self.site)
            place[index], turn[index] = self.data.site_xpos[self.site], self.data.site_xmat[self.site].reshape(3, 3)
            slope[index] = full[:, self.dofs]
        return place, turn, slope

    def step(self, slope: Array, move: Array, turn: Array, *, settle: Array | None = None) -> Array:
        """The joint step [..., joints] that moves the tip by `move` [m] and `turn` [rad], by damped least squares.

        `settle` is a step wished for in the joints; what of it does not move the tip is taken.
        """
        wish = np.concatenate([move, turn], axis=-1)[..., None]
        back = np.swapaxes(slope, -1, -2) @ np.linalg.inv(
            slope @ np.swapaxes(slope, -1, -2) + DAMPING**2 * np.eye(slope.shape[-2])
        )
        step = (back @ wish)[..., 0]
        if settle is not None:
            step = step + settle - (back @ (slope @ settle[..., None]))[..., 0]
        return step

    def solve(self, q: Array, place: Array, frame: Array, *, steps: int = 60) -> Array:
        """Positions q with the tip at a place with an orientation [..., 3, 3], from a first guess."""
        q = np.array(q, float)
        for _ in range(steps):
            at, now, slope = self.look(q)
            turn = rotation_between(now, frame)
            step = np.clip(self.step(slope, place - at, turn), -0.3, 0.3)
            q[..., self.joints] = np.clip(q[..., self.joints] + step, self.low, self.high)
        return q


def rotation_between(now: Array, wished: Array) -> Array:
    """The rotation vector [rad] from orientations `now` [..., 3, 3] to the wished ones, in the world's frame."""
    turn = wished @ np.swapaxes(now, -1, -2)
    axis = np.stack(
        [turn[..., 2, 1] - turn[..., 1, 2], turn[..., 0, 2] - turn[..., 2, 0], turn[..., 1, 0] - turn[..., 0, 1]],
        axis=-1,
    )
    sine = 0.5 * np.linalg.norm(axis, axis=-1)
    cosine = 0.5 * (np.trace(turn, axis1=-2, axis2=-1) - 1)
    angle = np.arctan2(sine, cosine)
    return axis * (0.5 * angle / np.maximum(sine, 1e-9))[..., None]
