"""Where the bodies and sites of a scene are, for any positions, without stepping anything."""

from __future__ import annotations

from collections.abc import Sequence

import mujoco
import numpy as np

from instep.core.errors import UnknownName
from instep.core.world import Array


def body_poses(model: mujoco.MjModel, q: Array) -> Array:
    """Poses xyz + wxyz of every body but the world [..., bodies, 7], from positions q [..., nq]."""
    out = np.empty((*q.shape[:-1], model.nbody - 1, 7))
    data = mujoco.MjData(model)
    for index in np.ndindex(*q.shape[:-1]):
        data.qpos[:] = q[index]
        mujoco.mj_kinematics(model, data)
        out[index][:, :3], out[index][:, 3:] = data.xpos[1:], data.xquat[1:]
    return out


def site_poses(model: mujoco.MjModel, q: Array, names: Sequence[str]) -> Array:
    """Poses xyz + wxyz of some sites [..., sites, 7], from positions q [..., nq]."""
    known = [model.site(s).name for s in range(model.nsite)]
    for name in names:
        if name not in known:
            raise UnknownName("site", name, known)
    ids = [known.index(name) for name in names]
    out = np.empty((*q.shape[:-1], len(names), 7))
    data, quat = mujoco.MjData(model), np.empty(4)
    for index in np.ndindex(*q.shape[:-1]):
        data.qpos[:] = q[index]
        mujoco.mj_kinematics(model, data)
        for slot, site in enumerate(ids):
            mujoco.mju_mat2Quat(quat, data.site_xmat[site])
            out[(*index, slot)] = (*data.site_xpos[site], *quat)
    return out
