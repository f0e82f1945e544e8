"""The shipped scenes: whole, sound, and true to the numbers their machines publish."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest

import instep.scene

LIBRARY = Path(instep.scene.__file__).parent / "library"
NAMES = sorted(path.parent.name for path in LIBRARY.glob("*/scene.toml"))
GRAVITY = 9.81


def table(name: str) -> dict[str, Any]:
    return tomllib.loads((LIBRARY / name / "scene.toml").read_text(encoding="utf-8"))


def load(name: str) -> mujoco.MjModel:
    model = mujoco.MjModel.from_xml_path(str(LIBRARY / name / table(name)["model"]))
    model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)
    return model


def at_home(model: mujoco.MjModel) -> mujoco.MjData:
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, model.key("home").id)
    mujoco.mj_forward(model, data)
    return data


def free_bodies(model: mujoco.MjModel) -> list[str]:
    free = model.jnt_type == int(mujoco.mjtJoint.mjJNT_FREE)
    return [model.body(model.jnt_bodyid[j]).name for j in np.flatnonzero(free)]


def joints(model: mujoco.MjModel) -> list[str]:
    return [model.joint(j).name for j in range(model.njnt)]


def steps_per_action(name: str, model: mujoco.MjModel) -> float:
    return 1 / (table(name)["rate"] * model.opt.timestep)


@pytest.mark.parametrize("name", NAMES)
def test_a_scene_names_only_what_its_model_has(name: str):
    model, about = load(name), table(name)
    robot, objects = about["robot"], about.get("objects", {}).get("bodies", [])
    assert about["about"].endswith(".") and about["source"] and about["task"]["text"]
    for joint in robot["joints"]:
        kind = model.joint(joint).type[0]
        assert kind in (int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE))
    for tip in robot.get("tips", [robot["tip"]] if "tip" in robot else []):
        assert model.site(tip).id >= 0
    assert sorted(objects) == sorted(free_bodies(model))
    for camera in about.get("cameras", {}):
        width, height = model.cam_resolution[model.camera(camera).id]
        assert width <= model.vis.global_.offwidth and height <= model.vis.global_.offheight
        assert model.cam_sensorsize[model.camera(camera).id].min() > 0
    start = dict(about["start"])
    assert model.key(start.pop("keyframe")).name == "home"
    coordinates = {*joints(model), *(f"{body}.{axis}" for body in objects for axis in ("x", "y", "z", "yaw"))}
    assert set(start) <= coordinates
    assert all(low < high for low, high in start.values())


@pytest.mark.parametrize("name", NAMES)
def test_an_actuator_has_the_name_of_its_joint(name: str):
    model, robot = load(name), table(name)["robot"]["joints"]
    for a in range(model.nu):
        actuator = model.actuator(a)
        assert actuator.name == model.joint(actuator.trnid[0]).name
        assert actuator.name == actuator.name.lower()
        assert actuator.name in robot
        assert actuator.ctrllimited[0]
    for body in free_bodies(model):
        assert model.joint(body).type[0] == int(mujoco.mjtJoint.mjJNT_FREE)


@pytest.mark.parametrize("name", NAMES)
def test_a_scene_stands_alone_and_is_cheap_to_draw(name: str):
    model, text = load(name), (LIBRARY / name / "scene.xml").read_text(encoding="utf-8")
    assert model.nmesh == 0 and "file=" not in text and "<include" not in text
    assert model.vis.quality.shadowsize == 0 and model.vis.quality.offsamples == 0
    assert model.opt.gravity.tolist() == [0, 0, -GRAVITY]


@pytest.mark.parametrize("name", NAMES)
def test_a_control_period_is_a_whole_number_of_steps(name: str):
    steps = steps_per_action(name, load(name))
    assert steps == pytest.approx(round(steps), abs=1e-9)


@pytest.mark.parametrize("hold", [1, 20])
@pytest.mark.parametrize("name", NAMES)
def test_ten_seconds_of_random_actions_stay_finite(name: str, hold: int):
    model = load(name)
    data, rng, steps = at_home(model), np.random.default_rng(hold), round(steps_per_action(name, model))
    for row in range(round(10 * table(name)["rate"])):
        if row % hold == 0:
            data.ctrl[:] = rng.uniform(*model.actuator_ctrlrange.T)
        mujoco.mj_step(model, data, steps)
    assert np.isfinite(data.qpos).all()
    # A divergence shows as a warning; the fastest sound joint (a freely spun elbow) stays near 120 rad/s.
    assert not any(warning.number for warning in data.warning)
    assert np.abs(data.qvel).max() < 200
