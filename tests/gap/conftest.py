"""A small real world for the tests of the gap room."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from instep import Episode, MujocoWorld, Script, rollout

ARM = """
<mujoco model="arm">
  <option timestep="0.005" integrator="implicitfast"/>
  <worldbody>
    <body name="upper" pos="0 0 0.4">
      <joint name="shoulder" axis="0 1 0" damping="0.3" range="-170 170"/>
      <geom name="upper" type="capsule" fromto="0 0 0 0.3 0 0" size="0.02" mass="0.5"/>
      <body name="fore" pos="0.3 0 0">
        <joint name="elbow" axis="0 1 0" damping="0.1" range="-170 170"/>
        <geom name="fore" type="capsule" fromto="0 0 0 0.25 0 0" size="0.02" mass="0.3"/>
        <body name="hand" pos="0.25 0 0">
          <joint name="slide" type="slide" axis="1 0 0" damping="5" range="0 0.1"/>
          <geom name="hand" type="box" size="0.02 0.02 0.02" mass="0.1"/>
          <site name="tip" pos="0.02 0 0"/>
        </body>
      </body>
    </body>
  </worldbody>
  <actuator>
    <position name="shoulder" joint="shoulder" kp="20" kv="1"/>
    <position name="elbow" joint="elbow" kp="10" kv="0.5"/>
    <position name="slide" joint="slide" kp="200" kv="10"/>
  </actuator>
</mujoco>
"""


@pytest.fixture(scope="session")
def arm(tmp_path_factory: pytest.TempPathFactory) -> MujocoWorld:
    """An arm of two hinges and a slide, stepped at 50 Hz."""
    folder: Path = tmp_path_factory.mktemp("arm")
    (folder / "scene.xml").write_text(ARM)
    (folder / "scene.toml").write_text('rate = 50\n[robot]\njoints = ["shoulder", "elbow", "slide"]\ntips = ["tip"]\n')
    return MujocoWorld(folder)


def commands(seed: int, rows: int = 200, amplitude: float = 0.5) -> np.ndarray:
    """Smooth commands for the arm, different for each seed."""
    rng = np.random.default_rng(seed)
    t = np.arange(rows) * 0.02
    phase, rate = rng.uniform(0, 6, 3), rng.uniform(0.5, 3, 3)
    return np.sin(rate * t[:, None] + phase) * np.array([amplitude, amplitude, 0.03]) + np.array([0, 0, 0.05])


Record = Callable[[MujocoWorld, range], list[Episode]]


@pytest.fixture(scope="session")
def record() -> Record:
    """Runs of the arm under smooth commands, one per seed."""

    def recorded(world: MujocoWorld, seeds: range, rows: int = 200) -> list[Episode]:
        return [
            rollout(world, Script(commands(seed, rows)), steps=rows, seed=seed).with_columns({}, name=f"run {seed}")
            for seed in seeds
        ]

    return recorded


@pytest.fixture(scope="session")
def runs(arm: MujocoWorld, record: Record) -> list[Episode]:
    """What a robot did whose joints rub more than the model says."""
    return record(arm.tuned({"joint.shoulder.damping": 1.0, "joint.elbow.damping": 0.4}), range(6))
