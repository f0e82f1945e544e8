"""Attribution finds the cause that was planted."""

from __future__ import annotations

import numpy as np
import pytest

from instep import BadInput, MujocoWorld, Script, rollout
from instep.core.statistics import Estimate
from instep.diagnose.diagnosis import AttributionOptions, attribute
from small_models import arm_model

COMPONENTS = {
    "delay": {"action.delay": 0.04},
    "gains": {"actuator.shoulder.kp": 14.0, "actuator.elbow.kp": 7.0},
    "friction": {"joint.shoulder.damping": 1.0, "joint.elbow.damping": 0.4},
    "inertia": {"body.fore.mass": 0.6},
}


@pytest.fixture(scope="module")
def sim(tmp_path_factory):
    path = tmp_path_factory.mktemp("arm") / "arm.xml"
    path.write_text(arm_model('damping="0.3" frictionloss="0.02"', 'damping="0.1" frictionloss="0.02"'))
    return MujocoWorld(path)


def record(world, runs=5, noise=0.0):
    out = []
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        t = np.arange(120) * world.spec.dt
        commanded = np.stack([0.6 * np.sin(rng.uniform(2, 6) * t + p) for p in rng.uniform(0, 6, 2)], axis=-1)
        run = rollout(world, Script(commanded), steps=120, seed=seed)
        out.append(run.with_columns({"q": run.q + rng.normal(0, noise, run.q.shape)}))
    return out


def test_shares_add_up_to_what_all_components_take_off(sim):
    real = record(sim.tuned({k: v for part in COMPONENTS.values() for k, v in part.items()}))
    found = attribute(sim, real, COMPONENTS)
    assert found.exact and found.replays == 16
    assert sum(e.value for e in found.causes.values()) == pytest.approx(found.before - found.after, rel=1e-9)
    assert found.after < 0.2 * found.before


NOMINAL = {
    "delay": {"action.delay": 0.0},
    "gains": {"actuator.shoulder.kp": 20.2, "actuator.elbow.kp": 9.9},
    "friction": {"joint.shoulder.damping": 0.305, "joint.elbow.damping": 0.098},
    "inertia": {"body.fore.mass": 0.302},
}
"""What a fit finds of components that are right: nearly the nominal values."""


@pytest.mark.parametrize("planted", list(COMPONENTS))
def test_the_planted_cause_owns_the_gap(sim, planted):
    identified = {**NOMINAL, planted: COMPONENTS[planted]}
    found = attribute(sim, record(sim.tuned(COMPONENTS[planted]), noise=1e-4), identified)
    best = max(found.causes, key=lambda name: found.causes[name].value)
    assert best == planted and found.causes[best].low > 0


def test_many_components_are_sampled_and_still_add_up(sim):
    parts = {f"{name} {i}": settings for name, settings in COMPONENTS.items() for i in range(3)}
    real = record(sim.tuned(COMPONENTS["delay"]), runs=2)
    found = attribute(sim, real, parts, options=AttributionOptions(orders=6, horizon=0.1, every=1.0))
    assert not found.exact
    assert sum(e.value for e in found.causes.values()) == pytest.approx(found.before - found.after, rel=1e-9)


def test_the_rest_is_laid_against_the_floor(sim):
    real = record(sim.tuned(COMPONENTS["friction"]), runs=2)
    known = AttributionOptions(floor=Estimate(0.01, 0.009, 0.011, 5, "1"))
    found = attribute(sim, real, {"friction": COMPONENTS["friction"]}, options=known)
    assert found.rest == pytest.approx(found.after - 0.01) and found.notes == ()
    assert "No floor" in attribute(sim, real, {"friction": COMPONENTS["friction"]}).notes[0]


def test_nothing_to_blame_is_refused(sim):
    with pytest.raises(BadInput, match="at least one component"):
        attribute(sim, record(sim, runs=1), {})
