"""Libraries that come without types, loaded when first used."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def scipy(part: str) -> Any:
    """A part of SciPy, such as 'signal'; its types are unknown to the checker."""
    return import_module(f"scipy.{part}")
