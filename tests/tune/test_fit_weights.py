"""Objects that a robot pushes have no weight where only parameters of the robot are identified."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import instep
from instep.core.episode import Episode
from instep.core.param import Param
from instep.core.rollout import Script, rollout
from instep.core.world import vector
from instep.scene.folder import Scene, scene_of_file
from instep.tune.fit.least_squares import FitStatus
from instep.tune.gates import FitDetails, TuneOptions
from instep.tune.identification import identify
from instep.tune.recording_checks import pushed_bodies

PUSHER = """<mujoco>
  <option timestep="0.005" integrator="implicitfast"/>
  <worldbody>
    <geom name="table" type="plane" size="3 3 0.1"/>
    <body name="stick" pos="0 0 0.05">
      <joint name="slide" type="slide" axis="1 0 0"/>
      <geom type="cylinder" size="0.02 0.04" mass="0.5"/>
    </body>
    <body name="puck" pos="0.08 0.01 0.03">
      <freejoint name="puck_joint"/>
      <geom name="puck" type="box" size="0.03 0.05 0.03" mass="0.04" friction="0.3 0.005 0.0001"/>
    </body>
  </worldbody>
  <actuator><position name="slide" joint="slide" kp="300" kv="20"/></actuator>
</mujoco>"""


@pytest.fixture
def scene(tmp_path) -> Scene:
    (tmp_path / "pusher.xml").write_text(PUSHER)
    return scene_of_file(tmp_path / "pusher.xml", 50.0)


def params(*addresses: str) -> list[Param]:
    return [Param(address, 0.0, 1.0, log=False, unit="1") for address in addresses]


def test_a_gain_is_fitted_to_the_robot_alone_though_the_object_slides_on_another_table(scene):
    real = instep.open_world(scene).tuned({"actuator.slide.kp": 200.0, "action.delay": 0.03, "geom.puck.friction": 0.9})
    rng = np.random.default_rng(3)
    runs = []
    for _ in range(4):
        ends = np.repeat(rng.uniform(-0.05, 0.35, 12), 20)[:, None]
        runs.append(rollout(real, Script(ends), steps=len(ends)))
    options = TuneOptions(windows=12, seeds=1, draws=0)
    found = identify(scene, runs, ["actuator.slide.kp", "action.delay"], options)
    assert found.values["actuator.slide.kp"] == pytest.approx(200.0, rel=0.03)
    assert found.values["action.delay"] == pytest.approx(0.03, abs=0.002)
    assert any("puck has no weight" in note for note in found.as_dict()["notes"])
    # Rows of a coordinate without weight are no observations, or intervals would be too narrow.
    problem = found.fit.problem
    assert problem.weighing == 1 and len(problem.scale) == 7 and problem.free_starts <= 2
    assert not problem.sigma_start[1:7].any() and not problem.sigma_start[8:].any()  # the puck starts as measured


@pytest.mark.parametrize("chosen", ["auto", ["actuator.slide.kp", "action.delay"]])
def test_objects_that_were_not_recorded_need_no_weight(scene, chosen):
    real = instep.open_world(scene).tuned({"actuator.slide.kp": 200.0})
    runs = []
    for seed in range(3):
        ends = np.repeat(np.random.default_rng(seed).uniform(-0.3, 0.0, 6), 20)[:, None]  # away from the puck
        run = rollout(real, Script(ends), steps=len(ends))
        spec = replace(run.spec, q=vector(["slide"], "m"), v=vector(["slide"], "m/s"))
        columns = {"timestamp": run.t, "q": run.q[:, :1], "v": run.v[:, :1], "action": run.action}
        runs.append(Episode(spec, columns, {"name": f"run {seed}"}))
    found = identify(
        scene,
        runs,
        chosen,
        TuneOptions(windows=6, seeds=1, draws=0),
        details=FitDetails(ignore_coordinates=("puck.*",)),
    )
    # Without noise the two could be fitted ever better; of all the ratios alone are known, and the search may stall.
    assert found.status is FitStatus.CONVERGED or chosen == "auto"
    assert found.comparison.improvement.value > 0.9
    assert not any("no weight" in note for note in found.as_dict()["notes"])


def test_objects_count_where_a_parameter_is_theirs_or_nothing_else_moves(scene):
    labels = scene.spec.v.labels
    assert pushed_bodies(scene, params("actuator.slide.kp", "body.stick.mass"), labels) == ["puck"]
    for own in ("geom.puck.friction", "body.puck.mass", "joint.puck_joint.damping", "option.timestep"):
        assert pushed_bodies(scene, params("actuator.slide.kp", own), labels) == []
    assert pushed_bodies(scene, params("actuator.slide.kp"), [x for x in labels if x.startswith("puck.")]) == []
