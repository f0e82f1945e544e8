"""Nearest neighbours and convex hulls."""

from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]

class cKDTree:
    def __init__(self, data: Array) -> None: ...
    def query(
        self, x: Array, k: int = 1, *, distance_upper_bound: float = ..., workers: int = 1
    ) -> tuple[Array, Array]: ...
    def query_ball_point(self, x: Array, r: float, *, workers: int = 1) -> Array: ...

class ConvexHull:
    simplices: Array
    neighbors: Array
    vertices: Array
    equations: Array
    volume: float
    area: float
    def __init__(self, points: Array) -> None: ...
