"""Shortest paths."""

from typing import Any

def dijkstra(csgraph: Any, **options: Any) -> Any: ...
