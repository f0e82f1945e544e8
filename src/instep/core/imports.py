"""Imports at first use: public names of packages, optional libraries, and extensions by entry point."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from .errors import BadInput, MissingExtra, UnknownName


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package: module -> its public names, separated by spaces."""
    module_of = {name: module for module, names in modules.items() for name in names.split()}

    def find(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{module_of[name]}"), name)

    return find


def optional_library(name: str, extra: str, package: str = "") -> Any:
    """A module of an optional library, imported when first used; MissingExtra names the extra that installs it.

    `package` is the name under which it is installed, where that differs. It is the edge of packages without types.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name.split(".")[0]):
            raise
        raise MissingExtra(package or name.split(".")[0], extra) from None


def extension_names(group: str, shipped: Mapping[str, str]) -> list[str]:
    """The names in the entry-point group `instep.GROUP`, those that come with instep first."""
    from importlib.metadata import entry_points

    return list(dict.fromkeys([*shipped, *sorted(point.name for point in entry_points(group=f"instep.{group}"))]))


def extension(group: str, name: str, shipped: Mapping[str, str]) -> Any:
    """The object that a name stands for in the entry-point group `instep.GROUP`; its type is the group's protocol.

    `shipped` are the entries that come with instep, name -> "module:attribute", as in an entry point.
    """
    from importlib.metadata import entry_points

    if name in shipped:
        module, _, attribute = shipped[name].partition(":")
        return getattr(import_module(module), attribute)
    points = list(entry_points(group=f"instep.{group}", name=name))
    if not points:
        raise UnknownName(f"entry of instep.{group}", name, extension_names(group, shipped))
    try:
        return points[0].load()
    except (ImportError, AttributeError) as error:
        raise BadInput(
            f"{name!r} in the entry-point group 'instep.{group}' cannot be loaded from {points[0].value!r} ({error}); "
            "repair or uninstall the package that registers it."
        ) from None
