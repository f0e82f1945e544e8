"""The three kinds of dataclass."""

from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from instep.core.world import Array, array_dataclass, frozen_dataclass, options_dataclass


@frozen_dataclass
class Point:
    x: float
    y: float = 0.0


@array_dataclass
class Path:
    points: Array


@options_dataclass
class Options:
    steps: int = 3


def test_values_are_compared_and_hashed_by_their_fields() -> None:
    assert Point(1.0) == Point(1.0, 0.0) != Point(1.0, 2.0)
    assert len({Point(1.0), Point(1.0)}) == 1


def test_records_of_arrays_are_equal_to_themselves_only() -> None:
    path = Path(np.zeros(2))
    assert path == path and path != Path(np.zeros(2))
    assert len({path, Path(np.zeros(2))}) == 2


def test_options_are_given_by_name() -> None:
    assert Options(steps=4).steps == 4
    with pytest.raises(TypeError, match="positional"):
        Options(4)  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize(("record", "name"), [(Point(1.0), "x"), (Path(np.zeros(2)), "points"), (Options(), "steps")])
def test_no_field_can_be_set_and_none_added(record: object, name: str) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(record, name, 0)
    assert not hasattr(record, "__dict__")
