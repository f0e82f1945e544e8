"""Every world and every wrapper keeps the laws of instep.testing."""

from __future__ import annotations

from functools import cache

import pytest

from instep import MujocoWorld, RapierWorld
from instep.core.world import Simulator
from instep.robot import Backlash, Drifting, Dropping, Late, Noisy, Quantized, Saturated, Sluggish
from instep.scene.folder import shipped
from instep.testing import SIMULATOR_LAWS, WORLD_LAWS

LAWS = WORLD_LAWS + SIMULATOR_LAWS
ENGINES = {"mujoco": MujocoWorld, "rapier": RapierWorld}
WRAPPERS = {
    "noisy": lambda w: Noisy(w, 0.01),
    "late": lambda w: Late(w, action=3, observation=2),
    "dropping": lambda w: Dropping(w, action=0.3, observation=0.3),
    "quantized": lambda w: Quantized(w, 0.001, 0.002),
    "sluggish": lambda w: Sluggish(w, 0.05),
    "backlash": lambda w: Backlash(w, 0.01),
    "saturated": lambda w: Saturated(w, 30.0, 2.0, 500.0, 20.0),
    "drifting": lambda w: Drifting(w, 0.01, 0.001),
    "twice late": lambda w: Late(Late(w, action=1, observation=1), action=2, observation=1),
    "all of them": lambda w: Noisy(
        Drifting(Quantized(Dropping(Late(Backlash(Sluggish(w, 0.02), 0.002), 2, 1), 0.1, 0.1), 1e-3), 0.1), 0.01
    ),
}


@cache
def engine(name: str, scene: str) -> Simulator:
    return ENGINES[name](scene)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("scene", shipped())
@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_keeps_the_law_in_every_scene(name, scene, law):
    law(engine(name, scene))


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_every_wrapper_keeps_the_law(wrapper, law):
    law(WRAPPERS[wrapper](engine("mujoco", "pusht")))


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_a_world_with_a_delay_keeps_the_law(law):
    law(engine("mujoco", "pusht").tuned({"action.delay": 0.03}))


def test_two_threads_agree_with_one_bit_for_bit():
    import numpy as np

    from instep import Constant, rollouts

    one, two = MujocoWorld("arm7", threads=1), MujocoWorld("arm7", threads=2)
    policy = Constant(one.scene.rest_action() + 0.05)
    a = rollouts(one, policy, seeds=range(6), steps=30)
    b = rollouts(two, policy, seeds=range(6), steps=30)
    for x, y in zip(a, b, strict=True):
        assert np.array_equal(x.q, y.q) and np.array_equal(x.v, y.v)
