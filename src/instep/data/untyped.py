"""The edge of libraries that have no types: pyarrow, PyAV, h5py, zarr, mcap, rosbags. What they return is `Any`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from instep.core.errors import MissingExtra


def library(name: str) -> Any:
    """A module of a library, loaded when first used; one that is not installed is named with its extra."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name.split(".")[0]):
            raise
        raise MissingExtra(name.split(".")[0], "data") from None
