"""The verbs about scenes, and the helps of all verbs."""

from __future__ import annotations

import numpy as np
import pytest

from instep import MujocoWorld, RapierWorld, Scene
from instep.app.cli import VERBS, main


def test_help_and_version(capsys):
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(f"instep {verb}" in said for verb in VERBS)
    assert main(["scene"]) == 0
    assert "instep scene params" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("instep 0.")


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(verb, capsys):
    assert main([*verb.split(), "--help"]) == 0
    said = capsys.readouterr().out
    assert "usage:" in said and "Traceback" not in said and "MISSING" not in said


def test_params_are_listed_with_units_and_ranges(capsys):
    assert main(["scene", "params", "so101", "joint.elbow*.damping", "action.delay"]) == 0
    said = capsys.readouterr().out
    assert "joint.elbow_flex.damping" in said and "Nm s/rad" in said and "action.delay" in said


def test_turned_params_are_saved_and_mean_the_same_in_both_engines(tmp_path, capsys):
    folder = tmp_path / "changed"
    assert main(["scene", "set", "pusht", str(folder), "action.delay=0.03", "actuator.*.kp=350"]) == 0
    settings = {"action.delay": 0.03, "actuator.*.kp": 350.0}
    for engine in (MujocoWorld, RapierWorld):
        saved, tuned = engine(Scene.load(folder)), engine("pusht").tuned(settings)
        a, b = saved.reset(0), tuned.reset(0)
        for i in range(20):
            u = saved.scene.rest_action() + 0.002 * i
            a, b = saved.step(a, u), tuned.step(b, u)
        assert np.array_equal(a.q, b.q), engine.__name__
    assert main(["scene", "set", "pusht", str(tmp_path / "x"), "action.delay"]) == 2
    assert "PARAM=VALUE was expected" in capsys.readouterr().err


def test_images_of_a_scene_are_written(tmp_path, opengl):
    assert main(["scene", "camera", "pusht", "--out", str(tmp_path / "p")]) == 0
    assert len(list((tmp_path / "p").glob("*.png"))) == 3


def test_the_doctor_looks_at_everything(capsys):
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    for part in ("mujoco", "rapier3d", "camera images", "threads", "timer at 60 Hz", "disk", "GPU"):
        assert part in said
