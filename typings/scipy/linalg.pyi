"""Factorisations."""

from typing import Any

from numpy.typing import NDArray

def qr(a: NDArray[Any], *, mode: str, pivoting: bool) -> tuple[NDArray[Any], NDArray[Any]]: ...
