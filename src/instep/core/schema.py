"""Schemas of tables from outside: which entries a JSON or TOML table may have, and what each must hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeGuard

from .errors import BadInput, UnknownName
from .reading import read_json_table
from .records import frozen_dataclass
from .type_guards import is_list, is_table

MAX_NUMBER = 1e15
"""Largest number that a table may hold."""


@frozen_dataclass
class Entry:
    """What an entry of a table must hold."""

    usable: Callable[[object], bool]
    words: str
    """What is expected, in words."""


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a finite number of usable size."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_NUMBER


def is_whole(value: object) -> TypeGuard[int]:
    """Whether a value is a whole number."""
    return isinstance(value, int) and is_number(value)


def is_text(value: object) -> TypeGuard[str]:
    """Whether a value is a text that is not empty."""
    return isinstance(value, str) and bool(value)


def _is_names(value: object) -> bool:
    return is_list(value) and bool(value) and all(is_text(one) for one in value) and len(set(value)) == len(value)


def is_numbers(value: object) -> TypeGuard[list[float]]:
    """Whether a value is a list of usable numbers."""
    return is_list(value) and all(is_number(one) for one in value)


def is_range(value: object) -> TypeGuard[list[float]]:
    """Whether a value is a lower and an upper bound."""
    return is_numbers(value) and len(value) == 2 and value[0] <= value[1]


def one_of(*words: str) -> Entry:
    """One of some words."""
    return Entry(lambda value: isinstance(value, str) and value in words, f"one of {', '.join(map(repr, words))}")


def at_least(low: float) -> Entry:
    """A number with a lower bound."""
    return Entry(lambda value: is_number(value) and value >= low, f"a number of at least {low:g}")


def whole_from(low: int, high: int) -> Entry:
    """A whole number between bounds."""
    return Entry(lambda value: is_whole(value) and low <= value <= high, f"a whole number from {low} to {high}")


def table_of(entry: Entry) -> Entry:
    """A table whose entries have any name, and each the same kind of value."""
    return Entry(lambda value: is_table(value) and all(map(entry.usable, value.values())), f"a table of {entry.words}")


TEXT = Entry(is_text, "a text in quotes")
ANY_TEXT = Entry(lambda value: isinstance(value, str), "a text in quotes")
NUMBER = Entry(is_number, "a finite number")
POSITIVE = Entry(lambda value: is_number(value) and value > 0, "a number above 0")
COUNT = Entry(lambda value: is_whole(value) and value >= 0, "a whole number of at least 0")
FLAG = Entry(lambda value: isinstance(value, bool), "true or false")
NAMES = Entry(_is_names, "a list of different names, such as ['shoulder', 'elbow']")
MAYBE_NAMES = Entry(lambda value: value == [] or _is_names(value), "a list of different names, perhaps empty")
TEXTS = Entry(lambda value: is_list(value) and all(isinstance(one, str) for one in value), "a list of texts")
NUMBERS = Entry(is_numbers, "a list of numbers")
RANGE = Entry(is_range, "[low, high], two numbers in this order")
TABLE = Entry(is_table, "a table")
TABLES = Entry(lambda value: is_list(value) and all(map(is_table, value)), "a list of tables")


def checked_table(table: object, schema: Mapping[str, Entry], where: str) -> dict[str, Any]:
    """The table, after each of its entries was checked; `where` names it in error texts."""
    if not is_table(table):
        raise BadInput(f"{where} is {shown(table)}; a table with {', '.join(list(schema)[:6])} was expected.")
    for name, value in table.items():
        if name not in schema:
            raise UnknownName(f"entry of {where}", name, schema)
        check_entry(value, schema[name], name, where)
    return table


def read_entries(path: Path, schema: Mapping[str, Entry]) -> dict[str, Any]:
    """The object of a JSON file, after the entries that it must have were checked; others may stand beside them."""
    return with_entries(read_json_table(path), schema, str(path))


def with_entries(table: dict[str, Any], schema: Mapping[str, Entry], where: str) -> dict[str, Any]:
    """The table, after the entries that it must have were checked; others may stand beside them."""
    for name, entry in schema.items():
        if name not in table:
            raise BadInput(f"{where!r} has no entry {name!r}; expected {entry.words}.")
        check_entry(table[name], entry, name, repr(where))
    return table


def check_entry(value: object, entry: Entry, name: str, where: str) -> None:
    """Refuse a value that is not what its entry must hold."""
    if not entry.usable(value):
        raise BadInput(f"{where} has {name} = {shown(value)}; expected {entry.words}.")


def shown(value: object) -> str:
    """A value in an error text, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
