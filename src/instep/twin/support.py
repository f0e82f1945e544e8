"""What a body rests on and what it must not enter."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

from instep.core.poses import matrix_from_quat, quat_exp
from instep.core.world import Array
from instep.scene.folder import Scene

from .projection import Outline, Place, model_of, mujoco

RESTS = 0.006
"""A body whose lowest corner is nearer than this to its support rests on it [m]."""
DEPTH = 1e-4
"""Penetrations shallower than this are those of soft contacts at rest [m]."""


@dataclass(frozen=True, slots=True, eq=False)
class Support:
    """A table: a plane with its normal, n . x = offset."""

    normal: Array
    offset: float

    def carries(self, shape: Outline, world_from_body: Array) -> bool:
        """Whether a body rests flat on it: three corners or more are near."""
        corners = shape.corners @ world_from_body[:3, :3].T + world_from_body[:3, 3]
        height = corners @ self.normal - self.offset
        return bool(np.sum(height < height.min() + RESTS) >= 3 and abs(height.min()) < RESTS)


def rested(support: Support, shape: Outline, world_from_body: Array) -> Array:
    """The same pose turned flat onto the support and moved along its normal until it touches."""
    out = world_from_body.copy()
    up = out[:3, int(np.argmax(np.abs(support.normal @ out[:3, :3])))]
    up = up if up @ support.normal > 0 else -up
    axis = np.cross(up, support.normal)
    sine = float(np.linalg.norm(axis))
    if sine > 1e-12:
        out[:3, :3] = matrix_from_quat(quat_exp(axis / sine * np.arcsin(min(sine, 1.0)))) @ out[:3, :3]
    corners = shape.corners @ out[:3, :3].T + out[:3, 3]
    out[:3, 3] -= (corners @ support.normal - support.offset).min() * support.normal
    return out


def support_of(model: Any) -> Support | None:
    """The first plane that is fixed in the world; None where there is none."""
    for g in range(model.ngeom):
        if model.geom_bodyid[g] == 0 and model.geom_type[g] == int(mujoco.mjtGeom.mjGEOM_PLANE):
            normal = matrix_from_quat(model.geom_quat[g])[:, 2]
            return Support(normal, float(normal @ model.geom_pos[g]))
    return None


def keep_apart(scene: Scene, q: Array, place: Place, passes: int = 4) -> tuple[Array, float]:
    """Positions with a body moved out of what it would enter, and how far it had to be moved [m].

    What is cut off is the conflict of pictures and physics: a picture that wants the body inside the robot is wrong,
    or the robot is not where the twin believes it.
    """
    model = model_of(scene)
    data = _scratch(model)
    body, out, cut = model.body(place.name).id, q.copy(), 0.0
    for _ in range(passes):
        data.qpos[:] = out
        mujoco.mj_kinematics(model, data)
        mujoco.mj_collision(model, data)
        push, deepest = np.zeros(3), DEPTH
        for i in range(data.ncon):
            contact = data.contact[i]
            first, second = (int(model.geom_bodyid[g]) for g in contact.geom)
            if body not in (first, second) or contact.dist > -deepest or 0 in (first, second):
                continue
            # The normal points from the first geom to the second.
            deepest = -float(contact.dist)
            push = np.array(contact.frame[:3]) * (deepest if second == body else -deepest)
        if not push.any():
            break
        out[place.q : place.q + 3] += push
        cut += float(np.linalg.norm(push))
    return out, cut


_SCRATCH = threading.local()


def _scratch(model: Any) -> Any:
    """Room to work in, one per thread and model: making it anew takes longer than using it."""
    kept = getattr(_SCRATCH, "kept", None)
    if kept is None or kept[0] is not model:
        kept = (model, mujoco.MjData(model))
        _SCRATCH.kept = kept
    return kept[1]
