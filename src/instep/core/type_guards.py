"""Type guards for data that comes from outside: JSON, TOML, messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np

from .world import Array


def is_table(value: object) -> TypeGuard[dict[str, Any]]:
    """Whether a value is a dictionary."""
    return isinstance(value, dict)


def is_mapping(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether a value maps names to values."""
    return isinstance(value, Mapping)


def is_list(value: object) -> TypeGuard[list[Any]]:
    """Whether a value is a list."""
    return isinstance(value, list)


def is_sequence(value: object) -> TypeGuard[Sequence[Any]]:
    """Whether a value is a list or a tuple."""
    return isinstance(value, list | tuple)


def is_array(value: object) -> TypeGuard[Array]:
    """Whether a value is an array."""
    return isinstance(value, np.ndarray)


def is_scalar(value: object) -> TypeGuard[np.generic[Any]]:
    """Whether a value is a number of NumPy's."""
    return isinstance(value, np.generic)
