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


def _unary(emit: Callable[[Any, Any], Any], result: Any, given: Any) -> Any:
    """An intrinsic of one argument; `emit` makes it from a builder and the argument."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return emit(builder, args[0])

    def make(typing: Any, x: Any) -> Any:
        return result(given), code

    return extending.intrinsic(make)


def _float_pair(emit: Callable[[Any, Any, Any], Any], result: Any) -> Any:
    """An intrinsic of two Float8."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return emit(builder, args[0], args[1])

    def make(typing: Any, x: Any, y: Any) -> Any:
        return result(float8, float8), code

    return extending.intrinsic(make)


def _call(builder: Any, name: str, result: Any, *args: Any) -> Any:
    """A call of an intrinsic function of LLVM."""
    kind = ir.FunctionType(result, [arg.type for arg in args])
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    return builder.call(function, list(args), fastmath=_FLAGS if result != ir.IntType(1) else ())


def _broadcast(b: Any, number: Any) -> Any:
    nothing = ir.Constant(_FLOATS, ir.Undefined)
    first = b.insert_element(nothing, number, ir.Constant(ir.IntType(32), 0))
    return b.shuffle_vector(first, nothing, ir.Constant(_INTS, [0] * WIDTH))


def _larger(b: Any, x: Any, y: Any) -> Any:
    return b.select(b.fcmp_ordered(">", x, y, flags=_FLAGS), x, y)


def _smaller(b: Any, x: Any, y: Any) -> Any:
    return b.select(b.fcmp_ordered("<", x, y, flags=_FLAGS), x, y)


def _exp2(b: Any, x: Any) -> Any:
    whole = b.fptosi(x, _INTS)
    part, value = b.fsub(x, b.sitofp(whole, _FLOATS), flags=_FLAGS), ir.Constant(_FLOATS, [_EXP2[0]] * WIDTH)
    for factor in _EXP2[1:]:
        value = b.fadd(b.fmul(value, part, flags=_FLAGS), ir.Constant(_FLOATS, [factor] * WIDTH), flags=_FLAGS)
    # Adding to the exponent's bits multiplies by 2^whole.
    exponent = b.shl(whole, ir.Constant(_INTS, [23] * WIDTH))
    return b.bitcast(b.add(b.bitcast(value, _INTS), exponent), _FLOATS)


def _cell_bits(b: Any, low: Any, high: Any) -> Any:
    one, zero, full = ir.Constant(_INTS, [1] * WIDTH), *(ir.Constant(_FLOATS, [k] * WIDTH) for k in (0.0, 8.0))

    def below(numbers: Any) -> Any:
        cut = b.select(b.fcmp_ordered(">", numbers, zero), numbers, zero)
        cut = b.select(b.fcmp_ordered("<", cut, full), cut, full)
        return b.sub(b.shl(one, b.fptosi(cut, _INTS)), one)

    bits = b.and_(below(high), b.not_(below(low)))
    return b.bitcast(b.trunc(bits, ir.VectorType(ir.IntType(8), WIDTH)), ir.IntType(64))


def _reduce_sums(b: Any, given: Any) -> Any:
    steps = ([0, 8, 1, 9, 4, 12, 5, 13], [2, 10, 3, 11, 6, 14, 7, 15]), (
        [0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15],
    ), ([0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15])  # fmt: skip
    vectors = [b.extract_value(given, i) for i in range(WIDTH)]
    for low, high in steps:
        vectors = [
            b.fadd(*(b.shuffle_vector(x, y, ir.Constant(_INTS, picked)) for picked in (low, high)), flags=_FLAGS)
            for x, y in zip(vectors[::2], vectors[1::2], strict=True)
        ]
    return vectors[0]


def _sum(b: Any, x: Any) -> Any:
    return _call(b, f"llvm.vector.reduce.fadd.v{WIDTH}f32", ir.FloatType(), ir.Constant(ir.FloatType(), -0.0), x)


@extending.intrinsic
def select(typing: Any, where: Any, yes: Any, no: Any) -> Any:
    """Element by element `yes` or `no`."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(args[0], args[1], args[2])

    return float8(bool8, float8, float8), code


broadcast = _unary(_broadcast, float8, types.float32)
"""One float32 in all elements."""
maximum, minimum = _float_pair(_larger, float8), _float_pair(_smaller, float8)
exp2 = _unary(_exp2, float8, float8)
"""2^x for x from -126 to 0; undefined outside."""
sqrt8 = _unary(lambda b, x: _call(b, f"llvm.sqrt.v{WIDTH}f32", _FLOATS, x), float8, float8)
any_of = _unary(lambda b, x: _call(b, f"llvm.vector.reduce.or.v{WIDTH}i1", ir.IntType(1), x), types.boolean, bool8)
"""Whether any element is true."""
cell_bits = _float_pair(_cell_bits, types.uint64)
"""A uint64 whose byte l has the bits from low[l] to high[l] - 1 set; both are cut to 0 to 8."""
reduce_max = _unary(
    lambda b, x: _call(b, f"llvm.vector.reduce.fmax.v{WIDTH}f32", ir.FloatType(), x), types.float32, float8
)
reduce_sum = _unary(_sum, types.float32, float8)
reduce_sums = _unary(_reduce_sums, float8, types.UniTuple(float8, WIDTH))
"""The sums of a tuple of eight Float8, as one: neighbours are shuffled together and added, three times."""
bits_as_float = _unary(lambda b, bits: b.bitcast(bits, ir.FloatType()), types.float32, types.int32)
"""The float32 with the bits of an int32."""
float_as_bits = _unary(lambda b, number: b.bitcast(number, ir.IntType(32)), types.int32, types.float32)
"""The int32 with the bits of a float32; positive numbers keep their order."""
trailing_zeros = _unary(lambda b, word: b.cttz(word, ir.Constant(ir.IntType(1), 1)), types.int64, types.uint64)
"""The place of the lowest 1 in a uint64 that is not 0."""


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


@extending.intrinsic
def fetch_add(typing: Any, counter: Any) -> Any:
    """Atomically increment counter[0] and return its old value."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        return builder.atomic_rmw("add", array.data, ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(types.Array(types.int64, 1, "C")), code


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
