"""Minimisation."""

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

class OptimizeResult:
    x: NDArray[Any]
    fun: Any
    jac: NDArray[Any]
    cost: float
    success: bool
    message: str

def minimize(
    fun: Callable[..., Any], x0: NDArray[Any], args: tuple[Any, ...] = (), **options: Any
) -> OptimizeResult: ...
def least_squares(fun: Callable[..., Any], x0: Any, **options: Any) -> OptimizeResult: ...
def lsq_linear(A: NDArray[Any], b: NDArray[Any], bounds: Any = ..., **options: Any) -> OptimizeResult: ...
