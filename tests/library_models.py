"""The models of the shipped scenes as MuJoCo compiles them, for tests of the library."""

from __future__ import annotations

from pathlib import Path

import mujoco

import instep.scene

LIBRARY = Path(instep.scene.__file__).parent / "library"


def load(name: str) -> mujoco.MjModel:
    """The model of a shipped scene."""
    return mujoco.MjModel.from_xml_path(str(LIBRARY / name / "scene.xml"))


def at_home(model: mujoco.MjModel) -> mujoco.MjData:
    """A state at the keyframe `home`."""
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, model.key("home").id)
    mujoco.mj_forward(model, data)
    return data
