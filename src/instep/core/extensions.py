"""Extension points: objects of other packages, registered by name under a group of entry points."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

from .errors import BadInput

T = TypeVar("T")


def extensions(group: str, built_in: Mapping[str, str], kind: type[T]) -> dict[str, T]:
    """The objects of a group by name: those of `built_in`, given as `module:OBJECT`, then those of other packages.

    A package registers an object in its `pyproject.toml`:

        [project.entry-points."instep.formats"]
        mylog = "my_package.logs:MY_LOG"
    """
    ours = [EntryPoint(name, value, group) for name, value in built_in.items()]
    found: dict[str, T] = {}
    for point in [*ours, *entry_points(group=group)]:
        if point.name in built_in and point.name in found:
            continue  # our own entry points name the same objects
        where = f"{point.name!r} of the entry points {group!r}"
        if point.name in found:
            raise BadInput(f"Two packages register {where}; uninstall one of them.")
        try:
            made = point.load()
        except (ImportError, AttributeError) as error:
            raise BadInput(f"{where} cannot be loaded ({error}); repair or uninstall its package.") from None
        if not isinstance(made, kind):
            raise BadInput(f"{where} is a {type(made).__name__}; a {kind.__name__} was expected.")
        found[point.name] = made
    return found
