"""The three kinds of dataclass of this project, each defined once: values, records of arrays, options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen_dataclass(cls: type[T]) -> type[T]:
    """A frozen dataclass with slots. Two of them with equal fields are equal, so it can be a key of a mapping."""
    return dataclass(frozen=True, slots=True)(cls)


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(field,))
def array_dataclass(cls: type[T]) -> type[T]:
    """A frozen dataclass with slots whose fields hold arrays, worlds or functions.

    It is equal only to itself: `==` of two arrays is an array, so fields cannot be compared by truth value.
    """
    return dataclass(frozen=True, slots=True, eq=False)(cls)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def options_dataclass(cls: type[T]) -> type[T]:
    """A frozen dataclass with slots whose fields are given by name only: the options of a function or a command."""
    return dataclass(frozen=True, slots=True, kw_only=True)(cls)
