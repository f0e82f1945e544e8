"""DART as a Simulator: a third opinion, where it is installed."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from engine_runs import pushed, run
from instep.core.errors import MissingExtra, Unsupported
from instep.physics.dart_world import DartWorld
from instep.physics.mujoco_world import MujocoWorld
from instep.scene.folder import Scene
from instep.testing import SIMULATOR_LAWS, WORLD_LAWS

G = 9.81
OPTION = '<option timestep="0.002" integrator="implicitfast" cone="elliptic" impratio="10"/>'
PENDULUM = """<body pos="0 0 2"><joint name="swing" axis="0 1 0" armature="{armature}"/>
<geom type="sphere" size="0.05" pos="0 0 -1" mass="1"/></body>"""
BLOCK = """<geom name="floor" type="plane" size="9 9 1" friction="{mu}"/><body name="block" pos="0 0 0.05"><freejoint/>
<geom type="box" size="0.05 0.05 0.05" mass="1" friction="0.01"/></body>"""


def scene(tmp_path, body: str, rest: str = "") -> Scene:
    path = tmp_path / "model.xml"
    path.write_text(f"<mujoco>{OPTION}<worldbody>{body}</worldbody>{rest}</mujoco>")
    return Scene.load(path)


def test_a_missing_library_is_named_with_the_line_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "dartpy", None)
    with pytest.raises(MissingExtra, match=r"instep\[engines\]"):
        DartWorld("pusht")


@pytest.mark.parametrize("law", WORLD_LAWS + SIMULATOR_LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("name", ["pusht", "diff_drive"])
def test_laws(law, name):
    law(DartWorld(name))


@pytest.mark.parametrize("armature", [0.0, 0.5])
def test_a_pendulum_has_the_period_of_the_formula(armature, tmp_path):
    sim = DartWorld(scene(tmp_path, PENDULUM.format(armature=armature)))
    q, _ = run(sim, sim.place([0.1], [0.0]), 12.0)
    x, t = q[:, 0], np.arange(len(q)) * sim.spec.dt
    down = np.flatnonzero((x[:-1] > 0) & (x[1:] <= 0))
    crossings = t[down] + sim.spec.dt * x[down] / (x[down] - x[down + 1])
    wanted = 2 * np.pi * np.sqrt((1 + 0.4 * 0.05**2 + armature) / G) * (1 + 0.1**2 / 16)
    assert np.diff(crossings).mean() == pytest.approx(wanted, rel=1e-3)


@pytest.mark.parametrize("mu", [0.1, 0.3, 0.6])
def test_a_block_slides_as_far_as_friction_lets_it(mu, tmp_path):
    sim = DartWorld(scene(tmp_path, BLOCK.format(mu=mu)))
    q, _ = run(sim, sim.place(sim.reset().q, [1.0, 0, 0, 0, 0, 0]), 0.3 + 1 / (mu * G))
    assert q[-1, 0] == pytest.approx(1 / (2 * mu * G), rel=0.02)


@pytest.mark.parametrize("name", ["furuta", "cartpole", "servo_pendulum", "pusht", "wam7"])
def test_shipped_scenes_move_as_in_mujoco(name):
    ways = []
    for kind in (MujocoWorld, DartWorld):
        sim = kind(name)
        push = 0.1 * np.ones(sim.model.nu)
        ways.append(run(sim, sim.reset(1), 0.5, sim.scene.rest_action() + push)[0])
    moved = abs(ways[0] - ways[0][0]).max()
    assert abs(ways[1] - ways[0]).max() < 0.1 * moved + 0.01


def test_dry_friction_and_gravity_compensation_hold_an_arm(tmp_path):
    body = """<body name="arm" pos="0 0 1"><joint name="a" axis="0 1 0" {joint}/><geom type="box" pos="0.2 0 0"
    size="0.2 0.02 0.02" mass="0.5" contype="0" conaffinity="0"/></body>"""
    free = DartWorld(scene(tmp_path, body.format(joint="")))
    stuck = DartWorld(scene(tmp_path, body.format(joint='frictionloss="2"')))
    carried = free.tuned({"body.arm.gravcomp": 1.0})
    ends = [run(sim, sim.reset(), 0.3)[0][-1, 0] for sim in (free, stuck, carried)]
    assert ends[0] > 0.5 and ends[1] < 0.1 * ends[0] and abs(ends[2]) < 1e-9


def test_worlds_of_a_batch_have_params_of_their_own():
    ends = pushed(DartWorld, np.array([0.1, 0.9]), 15)
    assert ends[0, 2] > ends[1, 2]


def test_quaternions_keep_their_side():
    sim = DartWorld("cube")
    q = sim.reset(0).q.copy()
    q[3:7] *= -np.sign(q[3])
    state = sim.step(sim.place(q, np.zeros(6)), np.zeros(0))
    assert state.q[3:7] @ q[3:7] > 0.99


def test_what_dart_cannot_do_is_said(tmp_path):
    with pytest.raises(Unsupported, match="shoulder_lift"):
        DartWorld("so101")
    body = """<geom size="1 1 1" type="plane"/><body><freejoint/>
    <geom name="egg" type="ellipsoid" size="0.1 0.2 0.1"/></body>"""
    with pytest.raises(Unsupported, match="egg"):
        DartWorld(scene(tmp_path, body))
