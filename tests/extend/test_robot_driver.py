"""The example of a robot driver is a world by its name, behind the limits of a served robot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from instep.core.errors import BadInput, UnknownName
from instep.robot import Limits, SafetyOptions, connect_robot

PATIENT = {"hold_after": 10.0, "stop_after": 20.0}  # a busy machine may take its time


def test_a_robot_by_name_is_a_world_inside_its_limits(tmp_path: Path, extensions: None):
    line = tmp_path / "line"
    line.write_text("0.0")
    safety = SafetyOptions(limits=Limits(("shoulder",), -0.2, 0.2, 1.0, 5.0), **PATIENT)
    with connect_robot(f"text_servo:{line}", safety=safety) as robot:
        state = robot.reset(0)
        for _ in range(40):
            state = robot.step(state, np.array([9.0]))
        assert 0 < float(robot.observe(state)["action.sent"][0]) <= 0.2
    assert 0 < float(line.read_text()) <= 0.2


def test_an_unknown_driver_and_an_address_without_one_are_named(extensions: None):
    with pytest.raises(UnknownName, match="text_servo"):
        connect_robot("text_srvo:/dev/ttyACM0")
    with pytest.raises(BadInput, match="text_servo:ADDRESS"):
        connect_robot("localhost")
