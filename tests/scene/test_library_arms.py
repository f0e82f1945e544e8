"""The arms of the library reach, weigh and pull as published."""

from __future__ import annotations

import tomllib
from pathlib import Path

import mujoco
import numpy as np
import pytest

from instep.core.poses import transform
from library_models import LIBRARY, at_home, load


def listed(name: str) -> list[str]:
    return tomllib.loads((LIBRARY / name / "scene.toml").read_text(encoding="utf-8"))["robot"]["joints"]


WXAI = {  # trossen_arm_description: ee_gripper_link in base_link
    (0, 0, 0, 0, 0, 0): ((0.253762, 0, 0.1635), np.eye(3)),
    (0, np.pi / 3, np.pi / 6, np.pi / 5, 0, 0): (
        (0.381554, 0, 0.288013),
        [[0.994522, 0, -0.104528], [0, 1, 0], [0.104528, 0, 0.994522]],
    ),
    (0.3, 1.0, 0.8, -0.4, 0.5, -0.6): (
        (0.331268, 0.009627, 0.205847),
        [[0.83363, -0.206638, 0.512212], [-0.243967, 0.694242, 0.677133], [-0.49552, -0.689441, 0.528328]],
    ),
}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("angles", WXAI)
def test_an_arm_of_mobile_ai_reaches_the_published_poses(side: str, angles: tuple[float, ...]):
    model = load("mobile_ai")
    data = at_home(model)
    for number, angle in enumerate(angles):
        data.joint(f"{side}_joint_{number}").qpos[0] = angle
    mujoco.mj_forward(model, data)
    base, tip = data.site(f"{side}_base"), data.site(f"{side}_tip")
    base_from_world = base.xmat.reshape(3, 3).T
    position, rotation = WXAI[angles]
    assert base_from_world @ (tip.xpos - base.xpos) == pytest.approx(np.array(position), abs=1e-6)
    assert base_from_world @ tip.xmat.reshape(3, 3) == pytest.approx(np.array(rotation), abs=1e-6)


def test_the_base_of_mobile_ai_goes_where_its_odometer_says():
    model = load("mobile_ai")
    data = at_home(model)
    for forward, turn in ((-0.3, 0.0), (0.0, 1.0), (-0.2, -0.5), (0.0, 0.0)):
        data.ctrl[14:16] = [forward, turn]
        for _ in range(90):
            mujoco.mj_step(model, data, 8)
    rotation = data.body("base").xmat.reshape(3, 3)
    assert np.arctan2(rotation[1, 0], rotation[0, 0]) == pytest.approx(data.joint("base_turn").qpos[0], abs=0.03)
    assert data.joint("base_forward").qpos[0] < -0.3
    # It cannot move sideways: first straight back, then on the new heading.
    assert np.hypot(*data.body("base").xpos[:2]) <= abs(data.joint("base_forward").qpos[0]) + 0.01


def test_so101_moves_as_the_published_model(models: Path):
    ours, theirs = load("so101"), mujoco.MjModel.from_xml_path(str(models / "robotstudio_so101" / "so101.xml"))
    a, b, rng = mujoco.MjData(ours), mujoco.MjData(theirs), np.random.default_rng(0)
    names = listed("so101")
    for _ in range(20):
        for name in names:
            angle, speed = rng.uniform(*ours.joint(name).range), rng.normal()
            a.joint(name).qpos[0] = b.joint(name).qpos[0] = angle
            a.joint(name).qvel[0] = b.joint(name).qvel[0] = speed
        mujoco.mj_forward(ours, a)
        mujoco.mj_forward(theirs, b)
        tip, reference = a.site("gripper"), b.site("gripperframe")
        assert tip.xpos == pytest.approx(reference.xpos, abs=1e-9)
        assert tip.xmat == pytest.approx(reference.xmat, abs=1e-9)
        # Gravity and Coriolis terms agree, so masses and inertias do (one is rounded to 9 digits).
        assert a.qfrc_bias == pytest.approx(b.qfrc_bias, abs=1e-8)
    for field in ("damping", "frictionloss", "armature", "range"):
        for name in names:
            assert getattr(ours.joint(name), field) == pytest.approx(getattr(theirs.joint(name), field))
    assert ours.actuator_gainprm == pytest.approx(theirs.actuator_gainprm)
    assert ours.actuator_biasprm == pytest.approx(theirs.actuator_biasprm)


def test_where_the_recorded_so101_stalls_its_jaw_is_at_the_table(recordings: Path):
    model = load("so101")
    data, table, jaw = mujoco.MjData(model), model.geom("table"), model.geom("fixed_jaw").id
    corners = np.stack(np.meshgrid(*[[-1, 1]] * 3), axis=-1).reshape(-1, 3) * model.geom_size[jaw]
    stalled, heights = [], []
    for run in sorted((recordings / "so101").glob("*.npz")):
        with np.load(run) as file:
            q, short = file["q"], (file["q_cmd"] - file["q"])[:, 2]
        for row in range(50, len(q), 50):
            data.qpos[:] = q[row]
            mujoco.mj_kinematics(model, data)
            low = data.geom_xpos[jaw][2] + (corners @ data.geom_xmat[jaw].reshape(3, 3)[2]).min()
            heights.append(low - table.pos[2])
            # A sagging elbow is beyond its command; one that stands still far short of it is held by something.
            if short[row - 10 : row + 1].min() > 0.07 and np.ptp(q[row - 10 : row + 1, 2]) < 0.003:
                stalled.append(heights[-1])
    # Zeros of the joints are known to some hundredths of a radian, which is a centimetre at the jaw.
    assert len(stalled) >= 8 and np.abs(stalled).max() < 0.01
    assert min(heights) > -0.01


def test_pusht_arm_reaches_as_the_published_panda(models: Path):
    ours, theirs = load("pusht_arm"), mujoco.MjModel.from_xml_path(str(models / "franka_emika_panda" / "panda.xml"))
    a, b, rng = mujoco.MjData(ours), mujoco.MjData(theirs), np.random.default_rng(0)
    for _ in range(10):
        for number in range(1, 8):
            angle = rng.uniform(*ours.joint(f"joint_{number}").range)
            a.joint(f"joint_{number}").qpos[0] = b.joint(f"joint{number}").qpos[0] = angle
        mujoco.mj_forward(ours, a)
        mujoco.mj_forward(theirs, b)
        assert a.body("hand").xpos == pytest.approx(b.body("hand").xpos, abs=1e-9)
        assert a.body("hand").xmat == pytest.approx(b.body("hand").xmat, abs=1e-9)


def test_wam7_reaches_as_its_denavit_hartenberg_table_says():
    model = load("wam7")
    data, rng = mujoco.MjData(model), np.random.default_rng(0)
    half = np.pi / 2
    links = [(0, -half, 0), (0, half, 0), (0.045, -half, 0.55), (-0.045, half, 0), (0, -half, 0.3), (0, half, 0)]
    for _ in range(10):
        q = rng.uniform(*model.jnt_range.T)
        data.qpos[:] = q
        mujoco.mj_forward(model, data)
        world_from_link = transform(np.array([0, 0, 0.346, 1, 0, 0, 0]))
        for angle, (a, alpha, d) in zip(q, [*links, (0, 0, 0.06)], strict=True):
            world_from_link = world_from_link @ denavit_hartenberg(angle, a, alpha, d)
        assert data.site("tool").xpos == pytest.approx(world_from_link[:3, 3], abs=1e-9)
        assert data.site("tool").xmat.reshape(3, 3) == pytest.approx(world_from_link[:3, :3], abs=1e-9)


def denavit_hartenberg(angle: float, a: float, alpha: float, d: float) -> np.ndarray:
    turn, lift = transform(np.array([0, 0, d, np.cos(angle / 2), 0, 0, np.sin(angle / 2)])), np.eye(4)
    lift[:3] = transform(np.array([a, 0, 0, np.cos(alpha / 2), np.sin(alpha / 2), 0, 0]))[:3]
    return turn @ lift


def test_wam7_has_the_published_gains_limits_and_masses():
    model = load("wam7")
    assert model.actuator_gainprm[:, 0].tolist() == [200, 300, 100, 100, 10, 10, 2.5]
    assert (-model.actuator_biasprm[:, 2]).tolist() == [7, 15, 5, 2.5, 0.3, 0.3, 0.05]
    assert model.actuator_forcerange[:, 1].tolist() == [150, 125, 40, 60, 5, 5, 2]
    masses = [10.76768767, 3.87493756, 1.80228141, 2.40016804, 0.12376019, 0.41797364, 0.06864753]
    assert [model.body(f"link_{n}").mass[0] for n in range(1, 8)] == pytest.approx(masses)
