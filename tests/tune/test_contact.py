"""Contact has no gradient to follow: what shows in impacts alone is searched for."""

from __future__ import annotations

import time

import numpy as np
import pytest

from instep import MujocoWorld
from instep.core.episode import Episode
from instep.core.progress import Progress
from instep.scene.folder import Scene
from instep.tune.fit.searches import FitTask, contact_fit
from instep.tune.fit.shooting import ShootingOptions
from instep.tune.gated_fit import gated_fit
from instep.tune.gates import TuneOptions

PUCK = """
<mujoco>
  <option timestep="0.004" integrator="implicitfast" cone="elliptic"/>
  <worldbody>
    <geom name="ice" type="plane" size="3 3 0.1"/>
    <body name="puck" pos="0 0 0.05">
      <freejoint name="puck"/>
      <geom name="puck" type="box" size="0.05 0.05 0.05" mass="0.3" priority="1" friction="0.5 0.005 0.0001"/>
    </body>
  </worldbody>
</mujoco>
"""
TABLE = 'model = "scene.xml"\nrate = 50.0\n[robot]\njoints = []\n[objects]\nbodies = ["puck"]\n'


@pytest.fixture
def puck(tmp_path) -> MujocoWorld:
    (tmp_path / "scene.xml").write_text(PUCK)
    (tmp_path / "scene.toml").write_text(TABLE)
    return MujocoWorld(Scene.load(tmp_path))


def slid(sim: MujocoWorld, seed: int) -> Episode:
    """A puck pushed off once and left to itself."""
    rng = np.random.default_rng(seed)
    q = np.array([0.0, 0.0, 0.05, 1.0, 0.0, 0.0, 0.0])
    state = sim.place(q, np.concatenate([rng.uniform(0.4, 1.0, 2), [0.0], [0.0, 0.0, rng.uniform(-3, 3)]]))
    rows = [state]
    for _ in range(24):
        rows.append(sim.step(rows[-1], np.zeros(0)))
    columns = {
        "timestamp": sim.spec.dt * np.arange(25),
        "q": np.stack([s.q for s in rows]),
        "v": np.stack([s.v for s in rows]),
        "action": np.zeros((25, 0)),
    }
    return Episode(sim.spec, columns, {"name": f"push {seed}"})


def test_friction_planted_in_a_sliding_puck_is_found_again(puck):
    real = puck.tuned({"geom.puck.friction": 0.22})
    episodes = [slid(real, seed) for seed in range(6)]
    params = puck.scene.params("geom.puck.friction", "option.gravity")[:1]
    options = ShootingOptions(window=0.48, guesses=1, initial={"geom.puck.friction": 0.5})
    found = gated_fit(FitTask(puck, params, options), episodes[:4], episodes[4:], TuneOptions(seeds=3, draws=3))
    assert found.settings["geom.puck.friction"] == pytest.approx(0.22, rel=0.02)
    assert found.before["geom.puck.friction"] == 0.5
    assert found.comparison.better and found.passed


def test_a_search_stopped_by_hand_says_so_and_keeps_what_it_has(puck):
    real = puck.tuned({"geom.puck.friction": 0.22})
    episodes = [slid(real, seed) for seed in range(5)]

    def watch(iteration, cost, x):
        if iteration == 6:
            raise KeyboardInterrupt

    options = ShootingOptions(window=0.48, guesses=1, initial={"geom.puck.friction": 0.5})
    params = puck.scene.params("geom.puck.friction")
    found = gated_fit(FitTask(puck, params, options), episodes[:3], episodes[3:], progress=Progress(watch=watch))
    assert abs(found.settings["geom.puck.friction"] - 0.22) < 0.1
    assert not found.passed and "Interrupted" in found.gates[2].message


def test_a_contact_search_within_a_budget_still_finds_the_friction(puck):
    real = puck.tuned({"geom.puck.friction": 0.22})
    episodes = [slid(real, seed) for seed in range(40)]
    options = ShootingOptions(window=0.48, guesses=1, initial={"geom.puck.friction": 0.5})
    params = puck.scene.params("geom.puck.friction")
    found = contact_fit(puck, episodes, params, options, progress=Progress(3.0, clock=time.process_time))
    assert found.settings["geom.puck.friction"] == pytest.approx(0.22, rel=0.05)
    assert len(found.windows) == 40, "the cost is that of all windows"
