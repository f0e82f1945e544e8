"""Matplotlib's figures: used through `Any` but for their class."""

from typing import Any

class Figure:
    def __init__(self, *args: Any, **options: Any) -> None: ...
    def __getattr__(self, name: str) -> Any: ...
