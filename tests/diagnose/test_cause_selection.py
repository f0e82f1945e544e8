"""Causes are fitted jointly: two planted at once are both found, and what cannot be separated is said."""

from __future__ import annotations

import numpy as np
import pytest

from instep import BadInput, Episode, Scene, open_world
from instep.core.world import Settings
from instep.diagnose.candidates import candidate_causes
from instep.diagnose.cause_selection import CauseSelection, explained_share, identify_causes
from instep.diagnose.diagnosis import diagnose_gap
from small_models import diagnosed_arm, write_scene
from tuning.planted_arms import random_arm, record


def recorded(scene: Scene, settings: Settings, size: float = 0.8) -> list[Episode]:
    """Runs of four seconds of the scene with these settings: noisy positions, and commands."""
    sim, _ = candidate_causes(scene, open_world(scene))
    q, actions = record(scene, sim.tuned(settings) if settings else sim, range(4), size, seconds=4.0)
    q = q + 1e-4 * np.random.default_rng(5).standard_normal(q.shape)
    t = np.arange(q.shape[1]) * scene.dt
    return [Episode(scene.spec, {"timestamp": t, "q": x, "action": u}) for x, u in zip(q, actions, strict=True)]


def selection(scene: Scene, settings: Settings, size: float = 0.8) -> CauseSelection:
    sim, candidates = candidate_causes(scene, open_world(scene))
    return identify_causes(sim, prepared(scene, recorded(scene, settings, size)), candidates)


def prepared(scene: Scene, episodes: list[Episode]) -> list[Episode]:
    from instep.gap.measure import prepared_for

    return prepared_for(open_world(scene), scene, episodes).episodes


@pytest.fixture(scope="module")
def arm(tmp_path_factory) -> Scene:
    return Scene.load(write_scene(tmp_path_factory.mktemp("arm"), diagnosed_arm(), ("shoulder", "elbow")))


def test_two_causes_are_ranked_by_the_share_of_the_gap_that_they_explain(arm):
    friction = {"joint.shoulder.frictionloss": 0.8, "joint.elbow.frictionloss": 0.4}
    found = diagnose_gap(arm, recorded(arm, {**friction, "action.delay": 0.05}))
    ranked = sorted(found.causes, key=lambda name: -found.causes[name].value)
    assert set(ranked[:2]) == {"dry friction", "latency"}
    assert str(found).startswith(f"Most likely {ranked[0]} (")
    assert sum(found.causes[name].value for name in ranked[:2]) == pytest.approx(1.0, abs=0.1)
    assert all(found.causes[name].low > 0 for name in ranked[:2]), "with intervals above zero"
    assert {m.name for m in found.modes if m.found} >= {"friction", "latency"}


def test_a_robot_whose_actuators_have_other_names_than_its_joints(tmp_path):
    scene = Scene.load(random_arm(4, tmp_path).scene)
    assert not set(scene.spec.action.labels) & set(scene.robot)
    kp = {f"actuator.{name}.kp": scene.model.actuator(name).gainprm[0] * 0.6 for name in scene.spec.action.labels}
    found = selection(scene, {**kp, "action.delay": 0.03})
    assert {cause.candidate.cause for cause in found.causes} == {"gains", "latency"}
    [delay] = [cause for cause in found.causes if cause.candidate.cause == "latency"]
    assert delay.settings["action.delay"] == pytest.approx(0.03, abs=0.004)


def test_a_simulator_that_is_right_has_no_cause(arm):
    found = selection(arm, {})
    assert found.causes == () and len(found.alone) == 8


def test_causes_that_act_alike_are_alternatives(tmp_path):
    # In one slow joint without gravity, damping and a delay make the same lag.
    model = """<mujoco><option timestep="0.01" gravity="0 0 0"/><worldbody><body name="link">
      <joint name="hinge" axis="0 0 1" damping="1"/><geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.02" mass="0.1"/>
    </body></worldbody><actuator><position name="hinge" joint="hinge" kp="40"/></actuator></mujoco>"""
    scene = Scene.load(write_scene(tmp_path, model, ("hinge",)))
    t = np.arange(300) * scene.dt
    runs = []
    for k in range(4):
        command = (0.5 + 0.1 * k) * t[:, None] / t[-1]
        sim = open_world(scene).tuned({"joint.hinge.damping": 2.0})
        state, rows = sim.reset(0), []
        for u in command:
            rows.append(state.q)
            state = sim.step(state, u)
        q = np.stack(rows) + 1e-4 * np.random.default_rng(k).standard_normal((300, 1))
        runs.append(Episode(scene.spec, {"timestamp": t, "q": q, "action": command}))
    found = diagnose_gap(scene, runs)
    assert found.ties and "cannot be separated by these recordings" in found.ties[0]
    assert all(sentence in found.gap.notes for sentence in found.ties)


def test_runs_that_are_too_short_are_refused(arm):
    sim, candidates = candidate_causes(arm, open_world(arm))
    short = [run.with_columns({k: c[:20] for k, c in run.columns.items()}) for run in recorded(arm, {})[:1]]
    with pytest.raises(BadInput, match="too short to search for causes"):
        identify_causes(sim, prepared(arm, short), candidates)


def test_the_share_that_a_change_explains_has_an_interval_over_pieces():
    rng = np.random.default_rng(0)
    before = rng.uniform(1, 2, 8)
    clear, none = explained_share(0.5 * before, before), explained_share(rng.uniform(1, 2, 8), before)
    assert clear.value == pytest.approx(0.5) and clear.low == pytest.approx(0.5)
    assert none.low < 0 < none.high
    left = np.full(8, 1e-6)
    left[0] = 0.02
    assert explained_share(left, before, 8).low > 0.9, "one piece that dominates what is left does not hide the gain"
