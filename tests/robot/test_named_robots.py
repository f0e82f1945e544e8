"""Robots by the name of their driver: served inside this process, behind the same limits as behind a link."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from importlib import metadata
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest

from instep.core.errors import BadInput, UnknownName
from instep.robot import Limits, SafetyOptions, WorldDriver, connect_robot

sys.path.append(str(Path(__file__).parent))
from point_mass_robot import NAMES, PointMass

OPENED: list[str] = []


@contextmanager
def open_mass(address: str):
    """A driver as another package would register it."""
    OPENED.append(address)
    try:
        yield WorldDriver(PointMass())
    finally:
        OPENED.append("closed")


@pytest.fixture
def registered(monkeypatch):
    others, ours = metadata.entry_points, EntryPoint("mass", "test_named_robots:open_mass", "instep.robots")

    def points(**wanted: str):
        return (
            [ours] * (wanted.get("name") in (None, "mass")) if "instep.robots" in wanted.values() else others(**wanted)
        )

    monkeypatch.setitem(sys.modules, "test_named_robots", sys.modules[__name__])
    monkeypatch.setattr(metadata, "entry_points", points)


def test_a_robot_by_name_is_a_world_inside_its_limits(registered):
    OPENED.clear()
    safety = SafetyOptions(limits=Limits(NAMES, -0.2, 0.2, 1.0, 5.0), hold_after=10.0, stop_after=20.0)
    with connect_robot("mass:/dev/ttyACM0", safety=safety) as robot:
        state = robot.reset(0)
        for _ in range(30):
            state = robot.step(state, np.array([9.0, -9.0]))
        assert np.abs(robot.observe(state)["action.sent"]).max() <= 0.2
    assert OPENED == ["/dev/ttyACM0", "closed"]


def test_an_unknown_driver_and_an_address_without_one_are_named(registered):
    with pytest.raises(UnknownName, match="mass"):
        connect_robot("mas:/dev/ttyACM0")
    with pytest.raises(BadInput, match="mass:ADDRESS"):
        connect_robot("localhost")
