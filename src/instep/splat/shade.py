"""The colour of every Gaussian from where a camera stands, compiled. The same basis as in `sh`."""

from __future__ import annotations

import math
from typing import Any

from numba import njit

from . import sh
from .simd import FAST, INLINE, F

_C0, _C1 = F(sh.C0), F(sh.C1)
_A0, _A1, _A2, _A3, _A4 = (F(c) for c in sh.C2)
_B0, _B1, _B2, _B3, _B4, _B5, _B6 = (F(c) for c in sh.C3)


@njit(**INLINE)
def weights(x: Any, y: Any, z: Any, degree: Any, out: Any) -> None:
    """The basis at a unit direction."""
    out[0] = _C0
    if degree >= 1:
        out[1], out[2], out[3] = -_C1 * y, _C1 * z, -_C1 * x
    if degree >= 2:
        xx, yy, zz = x * x, y * y, z * z
        out[4], out[5], out[6] = _A0 * x * y, _A1 * y * z, _A2 * (F(2.0) * zz - xx - yy)
        out[7], out[8] = _A3 * x * z, _A4 * (xx - yy)
        if degree >= 3:
            out[9], out[10] = _B0 * y * (F(3.0) * xx - yy), _B1 * x * y * z
            out[11], out[12] = _B2 * y * (F(4.0) * zz - xx - yy), _B3 * z * (F(2.0) * zz - F(3.0) * (xx + yy))
            out[13], out[14] = _B4 * x * (F(4.0) * zz - xx - yy), _B5 * z * (xx - yy)
            out[15] = _B6 * x * (xx - F(3.0) * yy)


@njit(**FAST)
def shade(
    start: Any, stop: Any, means: Any, harmonics: Any, body: Any, eyes: Any, basis: Any, degree: Any, colours: Any
) -> None:
    """Colours of the Gaussians from start to stop; `eyes` [bodies, 3] is the camera's place in each body's frame.

    Seen in the body's own frame the harmonics need no turning. `basis` [16] is a place to work in.
    """
    for i in range(start, stop):
        b = body[i]
        x, y, z = means[i, 0] - eyes[b, 0], means[i, 1] - eyes[b, 1], means[i, 2] - eyes[b, 2]
        scale = F(1.0) / max(F(1e-12), F(math.sqrt(x * x + y * y + z * z)))
        weights(x * scale, y * scale, z * scale, degree, basis)
        for channel in range(3):
            value = F(0.5)
            for k in range((degree + 1) ** 2):
                value += basis[k] * harmonics[i, k, channel]
            colours[i, channel] = max(value, F(0.0))
