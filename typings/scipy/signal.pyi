"""Filters of signals."""

from typing import Any

from numpy.typing import NDArray

def savgol_filter(
    x: NDArray[Any], window_length: int, polyorder: int, deriv: int = 0, delta: float = 1.0, axis: int = -1
) -> NDArray[Any]: ...
def butter(N: int, Wn: float, *, fs: float, output: str = "sos") -> NDArray[Any]: ...
def sosfiltfilt(sos: NDArray[Any], x: NDArray[Any], axis: int = -1, *, padlen: int | None = None) -> NDArray[Any]: ...
