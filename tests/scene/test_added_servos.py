"""Servos that a URDF is given."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from instep import Scene, open_world

_BODY = """<inertial><origin xyz="0 0 {z}"/><mass value="{mass}"/>
<inertia ixx="{i}" iyy="{i}" izz="{i}" ixy="0" ixz="0" iyz="0"/></inertial>"""
_LIMIT = '<limit lower="-2" upper="2.4" effort="18" velocity="20"/>'
_LINKS = (("hip", "1 0 0", 0.5, 2e-4), ("thigh", "0 1 0", 0.3, 3e-4), ("shank", "0 1 0", 0.03, 3e-5))


def quadruped() -> str:
    """A body on four legs so light that their servos could turn them by a radian between two physics steps."""
    text = f'<robot name="dog"><link name="base">{_BODY.format(z=0, mass=6, i=0.1)}</link>'
    for leg, x in (("front", 0.2), ("back", -0.2)):
        for side, y in (("left", 0.1), ("right", -0.1)):
            parent, origin = "base", f"{x} {y} 0"
            for name, axis, mass, inertia in _LINKS:
                link = f"{leg}_{side}_{name}"
                text += f'<link name="{link}">{_BODY.format(z=-0.05, mass=mass, i=inertia)}</link>'
                text += f'<joint name="{link}" type="revolute"><parent link="{parent}"/><child link="{link}"/>'
                text += f'<origin xyz="{origin}"/><axis xyz="{axis}"/>{_LIMIT}</joint>'
                parent, origin = link, "0 0 -0.1"
    return text + "</robot>"


@pytest.mark.parametrize("engine", ["mujoco", "rapier"])
def test_light_legs_track_a_sine_without_chatter(tmp_path: Path, engine):
    (tmp_path / "dog.urdf").write_text(quadruped())
    scene = Scene.load(tmp_path / "dog.urdf")
    sim = open_world(scene, engine)
    state, goal, speed = sim.reset(0), np.zeros(12), 0.0
    for k in range(round(2.0 / scene.dt)):
        goal = np.array([0.0, 0.6, 1.0] * 4) * min(1.0, k * scene.dt) + 0.3 * np.sin(2 * np.pi * k * scene.dt)
        state = sim.step(state, goal)
        speed = max(speed, float(np.abs(state.v).max()))
    assert np.abs(state.q - goal).max() < 0.1, "a lag of some 20 ms behind 3 rad/s"
    assert speed < 15.0, "servos that jump from one limit to the other reach more than 100 rad/s"
