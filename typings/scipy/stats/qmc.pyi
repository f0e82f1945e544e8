"""Low-discrepancy samples."""

from typing import Any

from numpy.typing import NDArray

class Sobol:
    def __init__(self, d: int, *, scramble: bool = True, seed: Any = None, rng: Any = None) -> None: ...
    def random(self, n: int = 1) -> NDArray[Any]: ...
    def random_base2(self, m: int) -> NDArray[Any]: ...
