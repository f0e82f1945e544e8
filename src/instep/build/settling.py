"""Put an object down on what is below it: lowered until it touches, or raised until it sinks into nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mujoco
import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array

MAX_FALL_M = 2.0
"""How far below an object its support is searched [m]."""
_STEP_M = 1e-3
"""Least step of the search [m]."""
_TOUCHING_M = 1e-4
"""Depth up to which two shapes count as touching [m]: what stands beside an object does not hold it up."""
_PRECISION_M = 1e-6


def settled_height(model: Any, q: Array, name: str) -> float:
    """How far an object at positions `q` must be raised (negative: lowered) to rest on what is below it [m]."""
    body, data = int(model.body(name).id), mujoco.MjData(model)
    at = int(model.jnt_qposadr[model.body_jntadr[body]])
    pairs = _pairs(model, body)

    def gap(rise: float) -> float:
        """Least distance of the object from anything [m], negative inside; up to the longest fall."""
        data.qpos[:] = q
        data.qpos[at + 2] += rise
        mujoco.mj_kinematics(model, data)
        distance = getattr(mujoco, "mj_geomDistance")  # noqa: B009 - not in its types
        return min((float(distance(model, data, a, b, MAX_FALL_M, None)) for a, b in pairs), default=MAX_FALL_M)

    rise, apart = 0.0, gap(0.0)
    if apart < -_TOUCHING_M:
        while apart < 0:
            rise += max(_STEP_M, 0.5 * -apart)
            apart = gap(rise)
            if rise > MAX_FALL_M:
                raise BadInput(f"{name!r} is inside something and cannot be raised out of it; move it elsewhere.")
        return _bisected(gap, rise - max(_STEP_M, apart + _STEP_M), rise)
    free = rise
    while apart >= -_TOUCHING_M:
        free = rise
        rise -= max(_STEP_M, apart)
        if rise < -MAX_FALL_M:
            raise BadInput(f"Nothing is below {name!r} within {MAX_FALL_M:g} m there; move it above a table or floor.")
        apart = gap(rise)
    return _bisected(gap, rise, free)


def _pairs(model: Any, body: int) -> Sequence[tuple[int, int]]:
    """The shapes of a body, each with every other shape that it collides with."""
    own = [g for g in range(model.ngeom) if model.geom_bodyid[g] == body]
    rest = [g for g in range(model.ngeom) if model.geom_bodyid[g] != body]
    types, answers = model.geom_contype, model.geom_conaffinity
    return [(a, b) for a in own for b in rest if types[a] & answers[b] or types[b] & answers[a]]


def _bisected(gap: Any, low: float, high: float) -> float:
    """The least rise between a sunk and a free one at which nothing is sunk into."""
    while high - low > _PRECISION_M:
        middle = (low + high) / 2
        low, high = (low, middle) if gap(middle) >= 0 else (middle, high)
    return float(np.float64(high))
