"""Imports at first use: public names of packages, and optional libraries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from .errors import MissingExtra


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
