"""Distributions and tests."""

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

class TestResult:
    statistic: float
    pvalue: float

class Distribution:
    def ppf(self, q: float, *shape: float) -> float: ...
    def cdf(self, x: float, *shape: float) -> float: ...

t: Distribution
norm: Distribution

def kstest(rvs: NDArray[Any], cdf: str | Callable[..., Any], **options: Any) -> TestResult: ...
def __getattr__(name: str) -> Any: ...
