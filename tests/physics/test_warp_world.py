"""MuJoCo Warp as a Simulator: MuJoCo's mathematics in single precision, where it is installed."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from instep import Scene, open_world
from instep.core.errors import BadInput, MissingExtra, Unsupported
from instep.physics import warp_world
from instep.physics.mujoco_world import MujocoWorld
from instep.testing import SIMULATOR_LAWS, WORLD_LAWS
from small_models import servo_model

pytestmark = pytest.mark.timeout(900)  # kernels are compiled on the first use
BALLS = """<mujoco><option timestep="0.005"/><worldbody><geom name="floor" type="plane" size="3 3 .1"/>
{bodies}</worldbody></mujoco>"""


@pytest.fixture(scope="module")
def pusht(mujoco_warp) -> warp_world.WarpWorld:
    return warp_world.WarpWorld("pusht", deterministic=True)


@pytest.fixture
def servo(tmp_path) -> Scene:
    """One joint with a servo."""
    text = servo_model(timestep=0.002, armature=0.01, mass=0.2, kp=5.0)
    (tmp_path / "scene.xml").write_text(
        text.replace("</actuator>", '</actuator><sensor><jointpos joint="hinge"/></sensor>')
    )
    (tmp_path / "scene.toml").write_text('rate = 100.0\n[robot]\njoints = ["hinge"]\n')
    return Scene.load(tmp_path)


def test_a_missing_library_is_named_with_the_line_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "warp", None)
    with pytest.raises(MissingExtra, match=r"instep\[warp\]"):
        open_world("pusht", "warp")


@pytest.mark.parametrize("law", WORLD_LAWS + SIMULATOR_LAWS, ids=lambda law: law.__name__)
def test_laws(law, pusht):
    law(pusht)


def test_a_push_goes_as_in_mujoco(pusht):
    """Two dozen worlds in which the pusher moves through the place of the T, in one batch."""
    reference, n = MujocoWorld("pusht"), 24
    starts = [reference.reset(k) for k in range(n)]
    q, v = np.stack([s.q for s in starts]), np.stack([s.v for s in starts])
    a, b = pusht.place(q, v), reference.place(q, v)
    for k in range(45):
        action = q[:, :2] + (q[:, 2:4] - q[:, :2]) * min(1.0, k / 30)
        a, b = pusht.step(a, action), reference.step(b, action)
    apart, pushed = np.abs(a.q - b.q).max(axis=1), np.hypot(*(b.q - q)[:, 2:4].T)
    assert np.median(pushed) > 0.05 and np.median(apart) < 4e-3
    assert apart.max() < 0.1 * pushed.max(), "a contact that comes a step later tells, and no more"


def test_parameters_differ_between_the_worlds_of_a_batch(mujoco_warp, servo):
    settings = {"joint.hinge.damping": np.array([0.05, 0.2, 0.8]), "action.delay": np.array([0.0, 0.02, 0.05])}
    pair = [world.tuned(settings) for world in (warp_world.WarpWorld(servo), MujocoWorld(servo))]
    q = []
    for world in pair:
        state = world.place(np.zeros((3, 1)), np.zeros((3, 1)))
        rows = []
        for _ in range(40):
            state = world.step(state, np.full((3, 1), 0.5))
            rows.append(state.q)
        q.append(np.stack(rows))
    assert np.abs(q[0] - q[1]).max() < 2e-5 and np.ptp(q[1][10]) > 0.01
    with pytest.raises(BadInput, match=r"so it steps 3 worlds \(got 1\)"):
        pair[0].step(pair[0].reset(0), np.zeros(1))


def test_an_unrolled_batch_is_the_stepped_one_bit_for_bit(mujoco_warp, servo):
    world, rng = warp_world.WarpWorld(servo), np.random.default_rng(1)
    actions = rng.uniform(-0.5, 0.5, (12, 4, 1))
    state = start = world.place(rng.uniform(-0.3, 0.3, (4, 1)), np.zeros((4, 1)))
    found = world.unroll(start, actions)
    for k, action in enumerate(actions):
        state = world.step(state, action)
        assert np.array_equal(found.q[:, k], state.q) and np.array_equal(found.v[:, k], state.v)
    assert np.array_equal(found.state.hidden["mujoco"], state.hidden["mujoco"]) and found.survived.tolist() == [12] * 4
    assert np.array_equal(
        world.observe(found.state)["observation.sensors"], world.observe(state)["observation.sensors"]
    )
    assert world.unroll(world.nudge(start, np.ones((4, 1, 6))), actions) is None


def test_mujoco_goes_on_from_what_warp_gave(mujoco_warp, servo):
    world, reference = warp_world.WarpWorld(servo), MujocoWorld(servo)
    state = world.step(world.reset(0), np.array([0.4]))
    after = [each.step(state, np.array([0.4])).q for each in (world, reference)]
    assert np.abs(after[0] - after[1]).max() < 1e-6


def test_contacts_without_room_are_computed_again_with_more(mujoco_warp, tmp_path, monkeypatch):
    bodies = "".join(
        f'<body pos="{0.25 * i} {0.25 * j} .1"><freejoint/><geom size=".1"/></body>' for i in range(3) for j in range(3)
    )
    (tmp_path / "balls.xml").write_text(BALLS.format(bodies=bodies))
    scene = Scene.load(tmp_path / "balls.xml")
    make, small = mujoco_warp.make_data, SimpleNamespace(naconmax=2, njmax=6)
    monkeypatch.setattr(mujoco_warp, "make_data", lambda *words, **room: make(*words, **room) if room else small)
    world, reference = warp_world.WarpWorld(scene), MujocoWorld(scene)
    a, b = world.reset(0), reference.reset(0)
    for _ in range(5):
        a, b = world.step(a, np.zeros(0)), reference.step(b, np.zeros(0))
    assert world._room > 1 and np.abs(a.q - b.q).max() < 1e-4


def test_without_a_gpu_it_says_that_mujoco_is_faster(mujoco_warp, servo, caplog):
    warp_world.WarpWorld(servo)
    assert ("No GPU found" in caplog.text) != warp_world.optional_library("warp", "warp").get_device().is_cuda


def test_motors_cannot_be_switched_and_actuator_models_are_refused(mujoco_warp, servo):
    world, reference = warp_world.WarpWorld(servo), MujocoWorld(servo)
    off = reference.switch(reference.reset(0), np.zeros(len(reference.spec.inputs.labels)))
    with pytest.raises(BadInput, match="cannot switch motors"):
        world.step(off, np.zeros(1))
    assert not world.spec.inputs.labels
    with (servo.root / "scene.toml").open("a") as table:
        table.write('[actuators.friction]\n"joint.hinge.static" = 0.4\n')
    with pytest.raises(Unsupported, match="has no actuator models"):
        open_world(servo.root, "warp")
