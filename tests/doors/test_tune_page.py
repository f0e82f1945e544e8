"""The page of an identification, as the verb writes it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from instep import Episode, MujocoWorld, Script, rollout
from instep.app.cli import main
from instep.data.lerobot3_writer import write

SCENE = """
<mujoco model="lifter">
  <option timestep="0.005" integrator="implicitfast"/>
  <worldbody>
    <body name="link">
      <joint name="hinge" axis="0 1 0" damping="0.05" armature="0.02"/>
      <geom type="capsule" fromto="0 0 0 0 0 -0.3" size="0.02" mass="0.4"/>
    </body>
  </worldbody>
  <actuator><position name="hinge" joint="hinge" kp="4" kv="0.1"/></actuator>
</mujoco>
"""
FEW = ("--seeds", "1", "--starts", "1", "--draws", "2", "--window", "0.5")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Path, Path]:
    """A scene, and recordings of the same machine with more damping."""
    folder = tmp_path_factory.mktemp("page")
    scene, data = folder / "lifter", folder / "swings"
    scene.mkdir()
    (scene / "scene.xml").write_text(SCENE)
    (scene / "scene.toml").write_text('rate = 50\n[robot]\njoints = ["hinge"]\n')
    world = MujocoWorld(scene).tuned({"joint.hinge.damping": 0.2})
    runs = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        t = np.arange(120) * 0.02
        waves = [a * np.sin(6.28 * f * t + p) for a, f, p in rng.uniform([0.2, 0.3, 0], [0.5, 2.0, 6], (4, 3))]
        run = rollout(world, Script(np.sum(waves, axis=0)[:, None]), steps=120)
        q = run.q + 0.001 * rng.standard_normal(run.q.shape)
        runs.append(Episode(run.spec, {"timestamp": run.t, "q": q, "v": run.v, "action": run.action}, {}))
    write(runs, data)
    return scene, data


def test_the_page_shows_gates_knobs_held_out_motion_and_how_sure_it_is(made, tmp_path, capsys):
    scene, data = made
    out = tmp_path / "out"
    knobs = ("--knobs", "joint.hinge.damping")
    code = main(["tune", str(data), str(scene), *knobs, *FEW, "--posterior", "laplace", "--out", str(out)])
    assert code == 0
    assert str(out / "report.html") in capsys.readouterr().out
    page = (out / "report.html").read_text()
    for words in ("The error on held-out recordings fell by", "joint.hinge.damping", "identifiability", "90 % band",
                  "planted truths inside 90% intervals", "sha256 of", "MuJoCo"):  # fmt: skip
        assert words in page


def test_a_direction_to_ignore_that_is_not_measured_is_refused_with_the_nearest_name(made, tmp_path, capsys):
    scene, data = made
    code = main(["tune", str(data), str(scene), "--ignore", "hing", *FEW, "--out", str(tmp_path / "out")])
    assert code == 2
    assert "Did you mean 'hinge'?" in capsys.readouterr().err
