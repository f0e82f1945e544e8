"""Rapier as a Simulator: what it takes over from a model, what it refuses, what it remembers."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from instep.core.errors import BadInput, Diverged, Unsupported
from instep.core.world import stack
from instep.physics.rapier_build import bent_faces, refusing
from instep.physics.rapier_world import KEY, RapierWorld
from instep.scene.folder import Scene

OPTION = '<option timestep="0.002" integrator="implicitfast"/>'
CART = """<body name="cart"><joint name="cart" type="slide" axis="1 0 0" {joint}/>
<geom type="sphere" size="0.05" mass="1"/></body>"""


def made(tmp_path, body: str, rest: str = "", option: str = OPTION) -> RapierWorld:
    path = tmp_path / "model.xml"
    path.write_text(f"<mujoco>{option}<worldbody>{body}</worldbody>{rest}</mujoco>")
    return RapierWorld(Scene.load(path))


def run(sim, state, steps: int, action=()):
    for _ in range(steps):
        state = sim.step(state, np.asarray(action, float))
    return state


REFUSED = {
    "air": (CART, '<option density="1.2"/>', "air or water"),
    "muscle": (CART, '<actuator><muscle name="m" joint="cart" lengthrange="0 1"/></actuator>', "activation"),
    "filter": (CART, '<actuator><general name="m" joint="cart" dyntype="filter" dynprm="1"/></actuator>', "activation"),
    "space tendon": (
        CART + '<site name="post" pos="1 0 0"/><site name="other" pos="1 1 0"/>',
        '<tendon><spatial name="rope"><site site="post"/><site site="other"/></spatial></tendon>',
        "'rope'",
    ),
    "springy tendon": (
        CART,
        '<tendon><fixed name="rope" stiffness="3"><joint joint="cart" coef="1"/></fixed></tendon>',
        "stiffness",
    ),
    "site force": (
        CART + '<site name="post" pos="1 0 0"/>',
        '<actuator><general name="jet" site="post" gear="1 0 0 0 0 0"/></actuator>',
        "'jet'",
    ),
    "moving surface": (
        CART + '<geom name="belt" type="box" size="1 1 0.1" surfacevel="1 0 0 0 0 0"/>',
        "",
        "'belt'",
    ),
    "contact pair": (
        CART + '<geom name="a" type="plane" size="1 1 1"/><body><freejoint/><geom name="b" size="0.1"/></body>',
        '<contact><pair geom1="a" geom2="b"/></contact>',
        "contact pairs",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_rapier_cannot_do_is_said(what, tmp_path):
    body, rest, word = REFUSED[what]
    with pytest.raises(Unsupported, match=word):
        made(tmp_path, body.format(joint=""), rest)


def test_a_param_that_would_change_nothing_is_refused():
    with pytest.raises(Unsupported, match="torsion"):
        RapierWorld("pusht").tuned({"geom.tee_bar.torsion": 0.01})


def test_a_wrong_state_is_refused():
    sim = RapierWorld("pusht")
    with pytest.raises(BadInput, match="9 positions and 8 velocities"):
        sim.place(np.zeros(8), np.zeros(8))


def test_a_batch_that_diverges_keeps_its_sound_worlds():
    sim = RapierWorld("pusht")
    state = stack([sim.reset(0), sim.reset(1)])
    wrench = np.zeros((2, sim.model.nbody - 1, 6))
    wrench[1] = 1e30
    with pytest.raises(Diverged) as caught:
        run(sim, sim.nudge(state, wrench), 1, np.tile(sim.scene.rest_action(), (2, 1)))
    assert caught.value.worlds == (1,)
    after = caught.value.state
    assert np.isnan(after.q[1]).all() and np.isfinite(after.q[0]).all()
    assert np.array_equal(after.q[0], sim.step(sim.reset(0), sim.scene.rest_action()).q)


def test_a_kept_engine_and_a_restored_one_agree_bit_for_bit():
    one, two = RapierWorld("pusht"), RapierWorld("pusht")
    state = one.reset(4)
    action = state.q[:2] + np.array([0.15, 0.02])
    for _ in range(40):
        kept, restored = one.step(state, action), two.step(state, action)
        assert np.array_equal(kept.q, restored.q) and np.array_equal(kept.v, restored.v)
        assert kept.hidden[KEY]["memory"].item() == restored.hidden[KEY]["memory"].item()
        state = kept


def test_a_state_goes_on_after_a_process_boundary():
    sim = RapierWorld("pusht")
    state = run(sim, sim.reset(4), 10, sim.scene.rest_action())
    twin, same = pickle.loads(pickle.dumps(sim)), pickle.loads(pickle.dumps(state))  # noqa: S301 - our own bytes
    a, b = run(sim, state, 5, sim.scene.rest_action()), run(twin, same, 5, sim.scene.rest_action())
    assert np.array_equal(a.q, b.q)


def test_threads_change_nothing():
    one, two = RapierWorld("pusht"), RapierWorld("pusht", threads=2)
    state = stack([one.reset(seed) for seed in range(5)])
    action = np.tile(one.scene.rest_action() + 0.1, (5, 1))
    a, b = run(one, state, 10, action), run(two, state, 10, action)
    assert np.array_equal(a.q, b.q) and np.array_equal(a.v, b.v)


def test_a_delay_brings_the_actions_of_the_past():
    sim = RapierWorld("pusht").tuned({"action.delay": 2.0 / 60})
    state, rest = sim.reset(0), sim.scene.rest_action()
    pushed = rest + np.array([0.05, 0.0])
    past = np.stack([rest, pushed, rest])
    late = sim.place(state.q, state.v, past=past)
    # Two periods late: first the push of two steps ago arrives, then what was said since.
    first = sim.step(late, rest)
    prompt = RapierWorld("pusht")
    assert np.array_equal(first.q, prompt.step(prompt.place(state.q, state.v), pushed).q)
    second = sim.step(first, rest)
    assert np.array_equal(second.q, prompt.step(prompt.step(prompt.place(state.q, state.v), pushed), rest).q)


def test_a_delay_is_met_to_the_nearest_physics_step(tmp_path):
    xml = '<actuator><motor name="cart" joint="cart"/></actuator>'
    sim = made(tmp_path, CART.format(joint=""), xml, '<option timestep="0.002" gravity="0 0 0"/>')
    ways = [run(sim.tuned({"action.delay": d}), sim.reset(), 1, [1.0]).v[0] for d in (0.0, 0.0051, 0.008)]
    # 1 N on 1 kg for 16 ms, less 3 steps (5.1 ms rounds to 6), less 4.
    assert ways == pytest.approx([0.016, 0.010, 0.008], rel=1e-4)


def test_a_nudge_acts_at_the_centre_of_mass_for_one_period(tmp_path):
    body = '<body name="rod"><freejoint/><geom type="box" pos="0.2 0 0" size="0.2 0.02 0.02" mass="2"/></body>'
    sim = made(tmp_path, body, option='<option timestep="0.002" gravity="0 0 0"/>')
    state = sim.step(sim.nudge(sim.reset(), np.array([[0, 4.0, 0, 0, 0, 0]])), np.zeros(0))
    assert state.v == pytest.approx([0, 4 / 2 * sim.spec.dt, 0, 0, 0, 0], abs=1e-6)
    assert sim.step(state, np.zeros(0)).v == pytest.approx(state.v, abs=1e-6)


CONTACTS = {
    "contype": ('contype="2" conaffinity="2"', "", False),
    "conaffinity alone": ('contype="0" conaffinity="1"', "", True),
    "excluded": ("", '<contact><exclude body1="shelf" body2="ball"/></contact>', False),
    "plain": ("", "", True),
}


@pytest.mark.parametrize("kind", CONTACTS)
def test_only_what_may_touch_does(kind, tmp_path):
    bits, rest, touches = CONTACTS[kind]
    body = f"""<body name="shelf"><geom type="box" size="0.5 0.5 0.05"/></body>
    <body name="ball" pos="0 0 0.2"><freejoint/><geom type="sphere" size="0.05" {bits}/></body>"""
    state = run(sim := made(tmp_path, body, rest), sim.reset(), 60)
    assert (state.q[2] > 0.09) == touches


def test_more_kinds_of_geoms_than_bits_are_told_apart_too(tmp_path):
    # A chain of 40 links in which each touches all but its neighbours needs as many groups as links.
    chain, tail = "", ""
    for _ in range(40):
        chain += '<body pos="0.06 0 0"><joint axis="0 1 0" damping="0.5"/>'
        chain += '<geom type="capsule" fromto="0 0 0 0.06 0 0" size="0.02" mass="0.02"/>'
        tail += "</body>"
    floor = '<geom name="floor" type="plane" pos="0 0 -0.5" size="5 5 1"/>'
    sim = made(tmp_path, floor + chain + tail)
    assert sim._setups[0].built.hooks is not None
    state = run(sim, sim.reset(), 6)
    assert np.isfinite(state.q).all()


def test_a_margin_holds_a_body_off(tmp_path):
    body = """<geom name="floor" type="plane" size="9 9 1" margin="0.01"/><body pos="0 0 0.07"><freejoint/>
    <geom type="sphere" size="0.05" margin="0.005"/></body>"""
    state = run(sim := made(tmp_path, body), sim.reset(), 60)
    assert state.q[2] == pytest.approx(0.065, abs=1e-3)


def test_the_geom_of_higher_priority_sets_the_friction(tmp_path):
    body = """<geom name="floor" type="plane" size="9 9 1" friction="1"/>
    <body name="block" pos="0 0 0.05"><freejoint/><geom type="box" size="0.05 0.05 0.05" friction="0.2" priority="1"/>
    </body>"""
    sim = made(tmp_path, body)
    start = sim.place(sim.reset().q, [1.0, 0, 0, 0, 0, 0])
    assert run(sim, start, 50).q[0] == pytest.approx(1 / (2 * 0.2 * 9.81), rel=0.02)


def test_welds_and_pins_hold(tmp_path):
    body = """<body name="a" pos="0 0 1"><freejoint/><geom type="box" size="0.1 0.05 0.05" mass="1"/></body>
    <body name="b" pos="0.3 0 1"><freejoint/><geom type="box" size="0.1 0.05 0.05" mass="1"/></body>"""
    rest = """<equality><connect body1="a" anchor="-0.1 0 0"/><weld body1="a" body2="b"/></equality>"""
    state = run(sim := made(tmp_path, body, rest), sim.reset(), 40)
    from instep.physics.engine_model import rotate

    pinned = state.q[:3] + rotate(state.q[3:7], np.array([-0.1, 0, 0]))
    assert pinned == pytest.approx([-0.1, 0, 1], abs=3e-3)
    across = rotate(state.q[3:7] * [1, -1, -1, -1], state.q[7:10] - state.q[:3])
    assert across == pytest.approx([0.3, 0, 0], abs=3e-3)
    assert np.linalg.norm(state.v[3:6]) > 1


def test_a_geared_joint_follows_and_a_tendon_pulls_both(tmp_path):
    body = """<body name="left" pos="0 0.1 0"><joint name="left" type="slide" axis="0 1 0" damping="2"/>
    <geom size="0.02" mass="0.1" contype="0" conaffinity="0"/></body><body name="right" pos="0 -0.1 0">
    <joint name="right" type="slide" axis="0 1 0" damping="2"/>
    <geom size="0.02" mass="0.2" contype="0" conaffinity="0"/></body>"""
    rest = """<tendon><fixed name="both"><joint joint="left" coef="0.5"/><joint joint="right" coef="-0.5"/></fixed>
    </tendon><equality><joint joint1="right" joint2="left" polycoef="0 -1 0 0 0"/></equality>
    <actuator><position name="grip" tendon="both" kp="100" kv="2"/></actuator>"""
    sim = made(tmp_path, body, rest, '<option timestep="0.002" integrator="implicitfast" gravity="0 0 0"/>')
    state = sim.reset()
    for _ in range(60):
        state = sim.step(state, np.array([0.03]))
        assert state.q[1] == pytest.approx(-state.q[0], abs=1e-3)
    assert state.q == pytest.approx([0.03, -0.03], abs=1e-3)


FLAT = """<mujoco><asset><mesh name="card" vertex="0 0 0  1 0 0  0 1e-4 0  1 1e-4 1e-9  .5 .5e-4 1e-8"/></asset>
<worldbody><geom type="plane" size="1 1 1"/><body pos="0 0 0.02">
<inertial pos=".5 0 0" mass="1" diaginertia=".01 .01 .01"/>
<freejoint/><geom type="mesh" mesh="card"/></body></worldbody></mujoco>"""


def test_a_mesh_as_flat_as_a_card_falls_and_comes_to_rest(tmp_path):
    (tmp_path / "card.xml").write_text(FLAT)
    sim = RapierWorld(tmp_path / "card.xml")
    state = sim.reset(0)
    for _ in range(round(1.0 / sim.spec.dt)):
        state = sim.step(state, np.zeros(0))
    assert -1e-3 < state.q[2] < 0.01 and np.abs(state.v).max() < 0.1


@pytest.mark.parametrize(("limits", "reached"), [("-inf inf", 3.0), ("-1e30 1e30", 3.0), ("-inf 1", 1.0)])
def test_open_limits_are_no_limits(tmp_path, limits, reached):
    servo = '<actuator><position name="m" joint="j" kp="20" kv="4"/></actuator>'
    body = f'<body><joint name="j" axis="0 0 1" range="{limits}" limited="true"/><geom size=".1"/></body>'
    (tmp_path / "wheel.xml").write_text(
        f'<mujoco><compiler angle="radian"/><worldbody>{body}</worldbody>{servo}</mujoco>'
    )
    sim = RapierWorld(tmp_path / "wheel.xml")
    state = sim.reset(0)
    for _ in range(round(3.0 / sim.spec.dt)):
        state = sim.step(state, np.array([3.0]))
    assert state.q[0] == pytest.approx(reached, abs=0.05)


def test_what_rapier_itself_refuses_is_one_sentence():
    def panic() -> None:
        raise type("PanicException", (BaseException,), {})("called `Option::unwrap()` on a `None` value\nnote: more")

    sentence = r"cannot build this scene \(called .* value\); run this scene in MuJoCo\."
    with pytest.raises(Unsupported, match=sentence), refusing("build this scene"):
        panic()
    with pytest.raises(ValueError, match="ours"), refusing("build this scene"):
        raise ValueError("ours")


@pytest.mark.parametrize("corners", [5, 12, 40])
def test_what_stands_on_a_round_face_does_not_tip_over(tmp_path, corners):
    turn = 2 * np.pi * np.arange(corners) / corners
    rim = np.stack([0.04 * np.cos(turn), 0.04 * np.sin(turn)], axis=1)
    can = " ".join(f"{x:.6f} {y:.6f} {z}" for z in (0.0, 0.14) for x, y in rim)
    mesh = f'<asset><mesh name="can" vertex="{can}"/></asset>'
    floor = '<geom type="plane" size="1 1 .1"/>'
    sim = made(tmp_path, f'{floor}<body><freejoint/><geom type="mesh" mesh="can" mass="0.3"/></body>', mesh)
    begin = sim.reset(0)
    end = run(sim, begin, round(2.0 / sim.spec.dt))
    assert np.abs(end.q[:3] - begin.q[:3]).max() < 1e-3, "four corners of the face beside each other hold nothing"
    assert np.abs(end.q[4:7]).max() < 2e-3


def test_corners_of_a_face_beside_the_four_that_span_it_are_moved_inwards_a_little():
    turn = 2 * np.pi * np.arange(16) / 16
    can = np.array([[np.cos(a), np.sin(a), z] for z in (0.0, 3.0) for a in turn])
    bent = bent_faces(can)
    low = bent[bent[:, 2] < 1]
    assert (low[:, 2] < 1e-9).sum() == 4 and low[:, 2].max() < 0.02
    box = np.array([[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)], float)
    assert sorted(map(tuple, bent_faces(box))) == sorted(map(tuple, box)), "four corners of a face stay where they are"
