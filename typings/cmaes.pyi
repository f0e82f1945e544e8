"""The covariance matrix adaptation evolution strategy."""

from typing import Any

from numpy.typing import NDArray

class CMA:
    dim: int
    population_size: int
    generation: int
    def __init__(
        self,
        mean: NDArray[Any],
        sigma: float,
        bounds: NDArray[Any] | None = None,
        n_max_resampling: int = 100,
        seed: int | None = None,
        population_size: int | None = None,
        cov: NDArray[Any] | None = None,
        lr_adapt: bool = False,
    ) -> None: ...
    @property
    def mean(self) -> NDArray[Any]: ...
    def ask(self) -> NDArray[Any]: ...
    def tell(self, solutions: list[tuple[NDArray[Any], float]]) -> None: ...
    def should_stop(self) -> bool: ...
