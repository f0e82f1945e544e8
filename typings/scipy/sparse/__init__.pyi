"""Sparse matrices."""

from typing import Any

from numpy.typing import NDArray

class coo_matrix:
    def __init__(
        self, arg1: tuple[NDArray[Any], tuple[NDArray[Any], NDArray[Any]]], shape: tuple[int, int] | None = None
    ) -> None: ...
    def tocsr(self) -> Any: ...
