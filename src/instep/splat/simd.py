"""Number types, constants and options that kernels share, and a few machine instructions Python has no word for."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from .lanes import intrinsic

F = np.float32
I = np.int32
U = np.uint64

CELL = 4
"""Side of a cell [pixels]. A cell's 16 pixels, two Lanes, stay in registers while the Gaussians pass by."""
CELLS = 8
"""Cells along one side of a tile: 64 in all, so that the cells a Gaussian touches are the bits of one number."""
TILE = CELL * CELLS
"""Side of a tile [pixels]."""

BLUR = F(0.3)
NEAR = F(0.01)
FAINT = F(1.0 / 255.0)
SOLID = F(0.999)
DARK = F(1e-4)
LOG2_E = F(1.4426950408889634)
LOG2_255 = F(7.994353436858858)

FAST: Any = {
    "nogil": True,
    "cache": True,
    "error_model": "numpy",
    "fastmath": {"nnan", "nsz", "arcp", "contract", "afn", "reassoc"},
}
"""Options of every kernel. Infinities are kept (an empty backdrop is infinitely far), NaN never enters."""
INLINE: Any = {**FAST, "forceinline": True}
"""Options of the parts of a kernel, which become one function with it."""


@intrinsic
def bits_as_float(typing: Any, bits: Any) -> Any:
    """The float32 with the bits of an int32."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.int32), code


@intrinsic
def float_as_bits(typing: Any, number: Any) -> Any:
    """The int32 with the bits of a float32; positive numbers keep their order."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(32))

    return types.int32(types.float32), code


@intrinsic
def lowest_bit(typing: Any, word: Any) -> Any:
    """The place of the lowest 1 in a uint64 that is not 0."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), code


@intrinsic
def next_ticket(typing: Any, counter: Any) -> Any:
    """The value of counter[0], which grows by one for whoever asks next, in whichever thread."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        return builder.atomic_rmw("add", array.data, ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(types.Array(types.int64, 1, "C")), code
