"""Tips of many configurations at once, compiled. The plain version is `Chain.reference`; a test says they agree."""

# pyright: basic, reportUnknownParameterType=false
# Numba compiles these functions; its decorators and ranges have no types.

from __future__ import annotations

import numpy as np
from numba import njit, prange

from instep.core.world import Array


def tip_poses(q: Array, fixed: Array, turns: Array, rest: Array, tool: Array) -> Array:
    """Poses xyz + wxyz [n, 7] of the tip for positions [n, joints]."""
    out = np.empty((len(q), 7))
    _march(q, fixed, turns, rest, tool, out)
    return out


@njit(parallel=True, cache=True, fastmath={"contract", "arcp", "nsz"})
def _march(q, fixed, turns, rest, tool, out):  # pragma: no cover - compiled
    n, joints = q.shape
    for row in prange(n):
        px, py, pz = 0.0, 0.0, 0.0
        w, x, y, z = 1.0, 0.0, 0.0, 0.0
        for i in range(joints + 1):
            # The fixed step: rotate its translation by the orientation so far, then turn on.
            if i < joints:
                fx, fy, fz = fixed[i, 0], fixed[i, 1], fixed[i, 2]
                fw, fa, fb, fc = fixed[i, 3], fixed[i, 4], fixed[i, 5], fixed[i, 6]
            else:
                fx, fy, fz = tool[0], tool[1], tool[2]
                fw, fa, fb, fc = tool[3], tool[4], tool[5], tool[6]
            cx, cy, cz = 2 * (y * fz - z * fy), 2 * (z * fx - x * fz), 2 * (x * fy - y * fx)
            px += fx + w * cx + y * cz - z * cy
            py += fy + w * cy + z * cx - x * cz
            pz += fz + w * cz + x * cy - y * cx
            w, x, y, z = (
                w * fw - x * fa - y * fb - z * fc,
                w * fa + x * fw + y * fc - z * fb,
                w * fb - x * fc + y * fw + z * fa,
                w * fc + x * fb - y * fa + z * fw,
            )
            if i < joints:
                moved = q[row, i] - rest[i]
                if turns[i]:
                    c, s = np.cos(0.5 * moved), np.sin(0.5 * moved)
                    w, x, y, z = w * c - z * s, x * c + y * s, y * c - x * s, w * s + z * c
                else:
                    px += 2 * (x * z + w * y) * moved
                    py += 2 * (y * z - w * x) * moved
                    pz += (1 - 2 * (x * x + y * y)) * moved
        out[row, 0], out[row, 1], out[row, 2] = px, py, pz
        out[row, 3], out[row, 4], out[row, 5], out[row, 6] = w, x, y, z
