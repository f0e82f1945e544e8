"""Every public name of the lower packages is there, and a wrong one is an AttributeError."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest

PACKAGES = ("instep.core", "instep.scene", "instep.physics")


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_has_the_names_it_lists(name):
    package = importlib.import_module(name)
    assert not [public for public in package.__all__ if isinstance(getattr(package, public), ModuleType)]
    with pytest.raises(AttributeError, match="nonsense"):
        package.nonsense  # noqa: B018
