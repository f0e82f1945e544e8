"""Steps of all joints of an arm at once, in its coupled simulation, from starts that loads of a recording lead to."""

from __future__ import annotations

import pytest

from instep import MujocoWorld
from instep.core.episode import Episode
from instep.core.progress import Progress
from instep.scene.folder import Scene
from instep.tune.arm.arm_model import ArmModel, arm_model, estimate_joints
from instep.tune.arm.arm_search import ArmSearch, damped_steps, probes
from instep.tune.arm.joint_model import OWN
from small_models import PLANAR_ARM, arm_recordings

CHANGES = {
    'mass="2"': 'mass="0.2"', 'mass="1"': 'mass="0.05"', 'mass="0.4"': 'mass="0.1"',
    'armature="0.05"': 'armature="1e-3"', 'armature="0.03"': 'armature="1e-4"', 'armature="0.01"': 'armature="1e-3"',
    'kv="30"': 'kv="50"', 'kv="12"': 'kv="25"', "-10 10": "-60 60", "-30 30": "-60 60",
}  # fmt: skip
"""What makes the planar arm light and its servos heavily damped."""
TRUTH = {
    "actuator.shoulder.kp": 480.0, "actuator.elbow.kp": 160.0, "actuator.wrist.kp": 95.0,
    "actuator.shoulder.kv": 60.0, "actuator.elbow.kv": 30.0, "actuator.wrist.kv": 6.0,
    "joint.shoulder.frictionloss": 1.5, "joint.elbow.frictionloss": 0.9, "joint.wrist.frictionloss": 0.3,
    "action.delay": 0.027,
}  # fmt: skip


@pytest.fixture(scope="module")
def light(tmp_path_factory) -> MujocoWorld:
    """An arm of light links and stiff, heavily damped servos, whose dry friction changes with every physics step."""
    file = tmp_path_factory.mktemp("light") / "arm.xml"
    model = PLANAR_ARM
    for old, new in CHANGES.items():
        model = model.replace(old, new)
    file.write_text(model)
    return MujocoWorld(Scene.load(file))


@pytest.fixture(scope="module")
def runs(light) -> list[Episode]:
    """Runs of that arm with planted values."""
    return arm_recordings(light, light.tuned(TRUTH))[:3]


@pytest.fixture(scope="module")
def model(light, runs) -> ArmModel:
    """Its joints and windows."""
    found = arm_model(light, runs)
    assert found is not None
    return found


def test_steps_of_all_joints_at_once_lead_to_the_planted_values(light, model):
    begun = ArmSearch(model, light, estimate_joints(model))
    assert (begun.rms > 2 * model.noise).any()  # loads of the recording alone lead elsewhere
    begun.improve(Progress())
    assert not begun.unfinished()
    for name in ("action.delay", "actuator.elbow.kp", "joint.shoulder.frictionloss", "joint.elbow.frictionloss"):
        assert begun.settings[name] == pytest.approx(TRUTH[name], rel=0.1)


def test_one_step_near_the_planted_values_lowers_the_error_of_every_joint(light, model):
    x = model.unknowns(TRUTH)
    for k in range(len(model.joints)):
        x[len(OWN) * k : len(OWN) * k + 3] += [0.03, 1e-3, 0.05]
    search = ArmSearch(model, light, x)
    before, tried = search.rms, probes(model, x, 0.3)
    found = search.residuals(tried.points)
    ways = damped_steps(model, x, search.residual, tried, found)
    search.take(ways)
    assert (search.rms < 0.5 * before).all()
