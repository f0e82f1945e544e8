"""Filters of images and masks."""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]

def binary_dilation(input: Array, structure: Array | None = None, iterations: int = 1) -> Array: ...
def binary_erosion(input: Array, structure: Array | None = None, iterations: int = 1) -> Array: ...
def binary_opening(input: Array, structure: Array | None = None, iterations: int = 1) -> Array: ...
def distance_transform_edt(input: Array) -> Array: ...
def gaussian_filter(
    input: Array,
    sigma: float | Sequence[float],
    *,
    order: int | Sequence[int] = 0,
    mode: str = "reflect",
    truncate: float = 4.0,
    axes: tuple[int, ...] | None = None,
) -> Array: ...
def label(input: Array, structure: Array | None = None) -> tuple[Array, int]: ...
def map_coordinates(
    input: Array, coordinates: Any, *, order: int = 3, mode: str = "constant", cval: float = 0.0, prefilter: bool = True
) -> Array: ...
def prewitt(input: Array, axis: int = -1, mode: str = "reflect") -> Array: ...
