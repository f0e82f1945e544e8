"""SIMD vector types for compiled kernels: eight float32 as one value, and a few instructions Python has no word for.

`Float8` is a numba type whose values are LLVM vectors, so a kernel can keep pixels in registers through a loop; LLVM
makes one AVX2 register of it, or two NEON registers. Multiplications and additions may be contracted to fused ones.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import extending as _extending
from numba import types
from numba.core import cgutils as _cgutils
from numba.core.typing import templates as _templates
from numba.extending import models

extending: Any = _extending
cgutils: Any = _cgutils
templates: Any = _templates
"""Numba's own types say little of these, and it calls what it decorates with other arguments than are written."""
WIDTH = 8
"""Numbers in a Float8."""

_FLOATS = ir.VectorType(ir.FloatType(), WIDTH)
_INTS = ir.VectorType(ir.IntType(32), WIDTH)
_BOOLS = ir.VectorType(ir.IntType(1), WIDTH)
_FLAGS = ("nnan", "nsz", "arcp", "contract", "afn", "reassoc")
_EXP2 = (6.831869e-3, 5.3223526e-2, 2.3945671e-1, 6.9306356e-1, 1.0)
"""2^x on (-1, 0], highest power first, relative error 3e-6: a hundredth of what a byte of colour can show."""


class Float8Type(types.Type):
    """The type of eight float32."""

    def __init__(self) -> None:
        super().__init__(name="Float8")


class Bool8Type(types.Type):
    """The type of eight booleans."""

    def __init__(self) -> None:
        super().__init__(name="Bool8")


float8 = Float8Type()
bool8 = Bool8Type()


@extending.register_model(Float8Type)
class _Float8Model(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, _FLOATS)


@extending.register_model(Bool8Type)
class _Bool8Model(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, _BOOLS)


def _binary(symbol: Any, emit: Callable[[Any, Any, Any], Any], result: Any) -> None:
    """Define a Python operator on two Float8."""
    cases = [templates.signature(result, float8, float8)]
    template = type("_Template", (templates.ConcreteTemplate,), {"cases": cases})
    register: Any = templates.infer_global(symbol)
    register(template)

    def lowered(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return emit(builder, args[0], args[1])

    extending.lower_builtin(symbol, float8, float8)(lowered)


_binary(operator.add, lambda b, x, y: b.fadd(x, y, flags=_FLAGS), float8)
_binary(operator.sub, lambda b, x, y: b.fsub(x, y, flags=_FLAGS), float8)
_binary(operator.mul, lambda b, x, y: b.fmul(x, y, flags=_FLAGS), float8)
_binary(getattr(operator, "truediv"), lambda b, x, y: b.fdiv(x, y, flags=_FLAGS), float8)  # noqa: B009 - untyped
_binary(operator.gt, lambda b, x, y: b.fcmp_ordered(">", x, y), bool8)
_binary(operator.ge, lambda b, x, y: b.fcmp_ordered(">=", x, y), bool8)
_binary(operator.lt, lambda b, x, y: b.fcmp_ordered("<", x, y), bool8)
_binary(operator.le, lambda b, x, y: b.fcmp_ordered("<=", x, y), bool8)


def constant(*numbers: float) -> Any:
    """A function without arguments that gives these eight numbers inside a kernel."""

    @extending.intrinsic
    def make(typing: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return ir.Constant(_FLOATS, [float(number) for number in numbers])

        return float8(), code

    return make


@extending.intrinsic
def broadcast(typing: Any, number: Any) -> Any:
    """One float32 in all elements."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        nothing = ir.Constant(_FLOATS, ir.Undefined)
        first = builder.insert_element(nothing, args[0], ir.Constant(ir.IntType(32), 0))
        return builder.shuffle_vector(first, nothing, ir.Constant(_INTS, [0] * WIDTH))

    return float8(types.float32), code


@extending.intrinsic
def select(typing: Any, where: Any, yes: Any, no: Any) -> Any:
    """Element by element `yes` or `no`."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(args[0], args[1], args[2])

    return float8(bool8, float8, float8), code


@extending.intrinsic
def maximum(typing: Any, x: Any, y: Any) -> Any:
    """Elementwise maximum."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", args[0], args[1], flags=_FLAGS), args[0], args[1])

    return float8(float8, float8), code


@extending.intrinsic
def minimum(typing: Any, x: Any, y: Any) -> Any:
    """Elementwise minimum."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered("<", args[0], args[1], flags=_FLAGS), args[0], args[1])

    return float8(float8, float8), code


@extending.intrinsic
def exp2(typing: Any, x: Any) -> Any:
    """2^x for x from -126 to 0; undefined outside."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        whole = builder.fptosi(args[0], _INTS)
        part = builder.fsub(args[0], builder.sitofp(whole, _FLOATS), flags=_FLAGS)
        value = ir.Constant(_FLOATS, [_EXP2[0]] * WIDTH)
        for factor in _EXP2[1:]:
            product = builder.fmul(value, part, flags=_FLAGS)
            value = builder.fadd(product, ir.Constant(_FLOATS, [factor] * WIDTH), flags=_FLAGS)
        # Adding to the exponent's bits multiplies by 2^whole.
        exponent = builder.shl(whole, ir.Constant(_INTS, [23] * WIDTH))
        return builder.bitcast(builder.add(builder.bitcast(value, _INTS), exponent), _FLOATS)

    return float8(float8), code


@extending.intrinsic
def sqrt8(typing: Any, x: Any) -> Any:
    """Elementwise square root."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_FLOATS, [_FLOATS])
        sqrt = cgutils.get_or_insert_function(builder.module, kind, f"llvm.sqrt.v{WIDTH}f32")
        return builder.call(sqrt, [args[0]], fastmath=_FLAGS)

    return float8(float8), code


@extending.intrinsic
def any_of(typing: Any, where: Any) -> Any:
    """Whether any element is true."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(1), [_BOOLS])
        reduce = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.or.v{WIDTH}i1")
        return builder.call(reduce, [args[0]])

    return types.boolean(bool8), code


@extending.intrinsic
def cell_bits(typing: Any, low: Any, high: Any) -> Any:
    """A uint64 whose byte l has the bits from low[l] to high[l] - 1 set; both are cut to 0 to 8."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        one = ir.Constant(_INTS, [1] * WIDTH)

        def below(numbers: Any) -> Any:
            zero, full = ir.Constant(_FLOATS, [0.0] * WIDTH), ir.Constant(_FLOATS, [8.0] * WIDTH)
            cut = builder.select(builder.fcmp_ordered(">", numbers, zero), numbers, zero)
            cut = builder.select(builder.fcmp_ordered("<", cut, full), cut, full)
            return builder.sub(builder.shl(one, builder.fptosi(cut, _INTS)), one)

        bits = builder.and_(below(args[1]), builder.not_(below(args[0])))
        small = builder.trunc(bits, ir.VectorType(ir.IntType(8), WIDTH))
        return builder.bitcast(small, ir.IntType(64))

    return types.uint64(float8, float8), code


@extending.intrinsic
def reduce_max(typing: Any, x: Any) -> Any:
    """The largest element."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.FloatType(), [_FLOATS])
        reduce = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.fmax.v{WIDTH}f32")
        return builder.call(reduce, [args[0]], fastmath=_FLAGS)

    return types.float32(float8), code


@extending.intrinsic
def reduce_sum(typing: Any, x: Any) -> Any:
    """The sum of the elements."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.FloatType(), [ir.FloatType(), _FLOATS])
        reduce = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.fadd.v{WIDTH}f32")
        return builder.call(reduce, [ir.Constant(ir.FloatType(), -0.0), args[0]], fastmath=_FLAGS)

    return types.float32(float8), code


@extending.intrinsic
def reduce_sums(typing: Any, vectors: Any) -> Any:
    """The sums of a tuple of eight Float8, as one: neighbours are shuffled together and added, three times."""
    steps = ([0, 8, 1, 9, 4, 12, 5, 13], [2, 10, 3, 11, 6, 14, 7, 15]), (
        [0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15],
    ), ([0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15])  # fmt: skip

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vectors = [builder.extract_value(args[0], i) for i in range(WIDTH)]
        for low, high in steps:
            vectors = [
                builder.fadd(
                    builder.shuffle_vector(x, y, ir.Constant(_INTS, low)),
                    builder.shuffle_vector(x, y, ir.Constant(_INTS, high)),
                    flags=_FLAGS,
                )
                for x, y in zip(vectors[::2], vectors[1::2], strict=True)
            ]
        return vectors[0]

    return float8(types.UniTuple(float8, WIDTH)), code


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), _FLOATS.as_pointer())


@extending.intrinsic
def load(typing: Any, array: Any, index: Any) -> Any:
    """Eight neighbours of a contiguous float32 array, from a flat index on."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_pointer(context, builder, signature.args[0], args[0], args[1]), align=4)

    return float8(array, types.int64), code


@extending.intrinsic
def store(typing: Any, array: Any, index: Any, value: Any) -> Any:
    """Write eight neighbours of a contiguous float32 array, from a flat index on."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], _pointer(context, builder, signature.args[0], args[0], args[1]), align=4)
        return context.get_dummy_value()

    return types.void(array, types.int64, float8), code


F = np.float32
I = np.int32
U = np.uint64

CELL = 4
"""Side of a cell [pixels]. A cell's 16 pixels, two Float8, stay in registers while the Gaussians pass by."""
CELLS = 8
"""Cells along one side of a tile: 64 in all, so that the cells a Gaussian touches are the bits of one number."""
TILE = CELL * CELLS
"""Side of a tile [pixels]."""

BLUR = F(0.3)
NEAR_PLANE_M = F(0.01)
MIN_ALPHA = F(1.0 / 255.0)
MAX_ALPHA = F(0.999)
MIN_TRANSMITTANCE = F(1e-4)
LOG2_E = F(1.4426950408889634)
LOG2_255 = F(7.994353436858858)

KERNEL: Any = {
    "nogil": True,
    "cache": True,
    "error_model": "numpy",
    "fastmath": {"nnan", "nsz", "arcp", "contract", "afn", "reassoc"},
}
"""Options of every kernel. Infinities are kept (an empty backdrop is infinitely far), NaN never enters."""
INLINE: Any = {**KERNEL, "forceinline": True, "_nrt": False}
"""Options of the parts of a kernel, which become one function with it.

They neither allocate nor return arrays, so they count no references: to an array in a tuple numba would count one at
every access, atomically, which takes as long as blending a Gaussian."""


@extending.intrinsic
def bits_as_float(typing: Any, bits: Any) -> Any:
    """The float32 with the bits of an int32."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.int32), code


@extending.intrinsic
def float_as_bits(typing: Any, number: Any) -> Any:
    """The int32 with the bits of a float32; positive numbers keep their order."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(32))

    return types.int32(types.float32), code


@extending.intrinsic
def trailing_zeros(typing: Any, word: Any) -> Any:
    """The place of the lowest 1 in a uint64 that is not 0."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), code


@extending.intrinsic
def fetch_add(typing: Any, counter: Any) -> Any:
    """Atomically increment counter[0] and return its old value."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        return builder.atomic_rmw("add", array.data, ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(types.Array(types.int64, 1, "C")), code
