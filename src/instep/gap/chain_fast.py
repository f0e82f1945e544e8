"""Tips of many configurations at once, compiled. The plain version is `Chain.reference`; a test says they agree.

Configurations go through the chain in packs, so that each step is the same for all lanes of a register; sine and
cosine are polynomials for the same reason.
"""

# pyright: basic, reportUnknownParameterType=false
# Numba compiles these functions; its decorators and ranges have no types.

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numba import njit, prange

from instep.core.world import Array

PACK = 64


def tip_poses(q: Array, fixed: Array, turns: Array, rest: Array, tool: Array) -> Array:
    """Poses xyz + wxyz [n, 7] of the tip for positions [n, joints]."""
    out = np.empty((len(q), 7))
    steps = np.concatenate([fixed, tool[None]])
    cast(Any, _march)(q, steps, turns, rest, out)
    return out


@njit(parallel=True, cache=True, fastmath={"contract", "arcp", "nsz", "reassoc"})
def _march(q, steps, turns, rest, out):  # pragma: no cover - compiled
    n, joints = q.shape
    for pack in prange((n + PACK - 1) // PACK):
        first = pack * PACK
        lanes = min(PACK, n - first)
        p, r = np.zeros((3, PACK)), np.zeros((4, PACK))
        r[0, :] = 1.0
        moved, sine, cosine = np.zeros(PACK), np.empty(PACK), np.empty(PACK)
        for i in range(joints + 1):
            _fixed(p, r, steps[i])
            if i == joints:
                break
            for k in range(lanes):
                moved[k] = q[first + k, i] - rest[i]
            if turns[i]:
                _half(moved, sine, cosine)
                for k in range(PACK):
                    c, s = cosine[k], sine[k]
                    w, x, y, z = r[0, k], r[1, k], r[2, k], r[3, k]
                    r[0, k], r[1, k], r[2, k], r[3, k] = w * c - z * s, x * c + y * s, y * c - x * s, w * s + z * c
            else:
                for k in range(PACK):
                    w, x, y, z = r[0, k], r[1, k], r[2, k], r[3, k]
                    p[0, k] += 2 * (x * z + w * y) * moved[k]
                    p[1, k] += 2 * (y * z - w * x) * moved[k]
                    p[2, k] += (1 - 2 * (x * x + y * y)) * moved[k]
        for k in range(lanes):
            out[first + k, 0], out[first + k, 1], out[first + k, 2] = p[0, k], p[1, k], p[2, k]
            out[first + k, 3], out[first + k, 4] = r[0, k], r[1, k]
            out[first + k, 5], out[first + k, 6] = r[2, k], r[3, k]


@njit(inline="always")
def _fixed(p, r, step):  # pragma: no cover - compiled
    """A fixed step: rotate its translation by the orientation so far, then turn on."""
    fx, fy, fz, fw, fa, fb, fc = step[0], step[1], step[2], step[3], step[4], step[5], step[6]
    for k in range(PACK):
        w, x, y, z = r[0, k], r[1, k], r[2, k], r[3, k]
        cx, cy, cz = 2 * (y * fz - z * fy), 2 * (z * fx - x * fz), 2 * (x * fy - y * fx)
        p[0, k] += fx + w * cx + y * cz - z * cy
        p[1, k] += fy + w * cy + z * cx - x * cz
        p[2, k] += fz + w * cz + x * cy - y * cx
        r[0, k] = w * fw - x * fa - y * fb - z * fc
        r[1, k] = w * fa + x * fw + y * fc - z * fb
        r[2, k] = w * fb - x * fc + y * fw + z * fa
        r[3, k] = w * fc + x * fb - y * fa + z * fw


@njit(inline="always")
def _half(angle, sine, cosine):  # pragma: no cover - compiled
    """Sine and cosine of half of each angle, to the last bits, within 10^5 turns.

    The half is brought into +-pi/4 by a whole number of quarter turns, taken off in three parts so that no digit is
    lost; there the two series of the standard C library serve.
    """
    for k in range(PACK):
        half = 0.5 * angle[k]
        quarter = np.floor(half * 0.6366197723675814 + 0.5)
        x = half - quarter * 1.5707963267341256
        x = x - quarter * 6.077100506303966e-11
        x = x - quarter * 2.0222662487959506e-21
        z = x * x
        s = x + x * z * (
            -1.66666666666666324348e-01 + z * (8.33333333332248946124e-03 + z * (-1.98412698298579493134e-04
            + z * (2.75573137070700676789e-06 + z * (-2.50507602534068634195e-08 + z * 1.58969099521155010221e-10))))
        )  # fmt: skip
        c = 1 - 0.5 * z + z * z * (
            4.16666666666666019037e-02 + z * (-1.38888888888741095749e-03 + z * (2.48015872894767294178e-05
            + z * (-2.75573143513906633035e-07 + z * (2.08757232129817482790e-09 + z * -1.13596475577881948265e-11))))
        )  # fmt: skip
        odd = quarter - 2 * np.floor(0.5 * quarter)  # whether sine and cosine change places
        turn = quarter - 4 * np.floor(0.25 * quarter)
        back = 1 - 2 * np.floor(0.5 * turn)  # the sign of the sine
        sine[k] = back * (s + odd * (c - s))
        ahead = 1 - 2 * np.floor(0.5 * (turn + 1)) if turn < 2.5 else 1.0
        cosine[k] = ahead * (c + odd * (s - c))
