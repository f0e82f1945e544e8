"""Bad input gets one clear sentence, exit code 2, soon and in little memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROBOT = """<mujoco><worldbody><body name="arm"><joint name="elbow"/><geom size=".1" mass="{mass}"/></body></worldbody>
<actuator><motor name="elbow" joint="elbow"/></actuator></mujoco>"""
TOML = '[robot]\njoints = ["{joint}"]\n'


# A process begins with the peak memory of the one that started it, here a test worker: so a small one stands between.
MEASURE = """
import json, os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
errors = process.stderr.read()
_, status, usage = os.wait4(process.pid, 0)
print(json.dumps([os.waitstatus_to_exitcode(status), errors, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024]))
"""


def instep(*words: str | Path, cwd: Path) -> tuple[int, str, float, float]:
    """Exit code, standard error, seconds of work and peak memory [MB] of one call."""
    command = [sys.executable, "-c", MEASURE, sys.executable, "-m", "instep.app.cli", *map(str, words)]
    return tuple(json.loads(subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True).stdout))


def scene(folder: Path, xml: str, joint: str = "elbow", toml: str = TOML) -> Path:
    folder.mkdir()
    (folder / "scene.xml").write_text(xml)
    (folder / "scene.toml").write_text(toml.format(joint=joint))
    return folder


def outside(folder: Path, xml: str, name: str) -> Path:
    """A scene that asks for a file beside its folder."""
    (folder / name).write_text("42")
    return scene(folder / "s", xml.format(folder=folder))


def linked_mesh(tmp_path: Path) -> Path:
    folder = scene(tmp_path / "s", '<mujoco><asset><mesh name="m" file="m.obj"/></asset></mujoco>')
    (tmp_path / "m.obj").write_text("v 0 0 0")
    os.symlink(tmp_path / "m.obj", folder / "m.obj")
    return folder


ENTITY = '<!DOCTYPE mujoco [<!ENTITY leak SYSTEM "file://{folder}/secret">]>' + ROBOT.format(mass="&leak;")
INCLUDE = '<mujoco><include file="../other.xml"/></mujoco>'
MESH = '<mujoco><asset><mesh name="m" file="../../etc/passwd.obj"/></asset></mujoco>'
BODIES = '<replicate count="100000"><replicate count="100"><body><geom size=".1"/></body></replicate></replicate>'
REPLICATES = f"<mujoco><worldbody>{BODIES}</worldbody></mujoco>"
FIELD = '<mujoco><asset><hfield name="h" nrow="100000" ncol="100000" size="1 1 1 1"/></asset></mujoco>'
DEEP = "<mujoco>" + "<body>" * 400 + "</body>" * 400 + "</mujoco>"
CASES = {
    "a missing scene": (lambda p: p / "nowhere" / "scene.xml", "There is no file"),
    "a name that is near": (lambda p: "pushtt", "Did you mean 'pusht'?"),
    "broken XML": (lambda p: scene(p / "s", "<mujoco><worldbody>"), "not well-formed XML"),
    "a wrong element": (lambda p: scene(p / "s", "<mujoco><worldbodi/></mujoco>"), "MuJoCo cannot compile scene.xml"),
    "broken TOML": (lambda p: scene(p / "s", ROBOT.format(mass=1), toml="joints = ["), "not valid TOML"),
    "an unknown entry": (lambda p: scene(p / "s", ROBOT.format(mass=1), toml="robott = 1"), "Did you mean 'robot'?"),
    "an unknown joint": (lambda p: scene(p / "s", ROBOT.format(mass=1), "elbw"), "Did you mean 'elbow'?"),
    "an external entity": (lambda p: outside(p, ENTITY, "secret"), "DOCTYPE or an entity"),
    "an include outside": (lambda p: outside(p, INCLUDE, "other.xml"), "lies outside"),
    "a mesh outside": (lambda p: scene(p / "s", MESH), "lies outside"),
    "a link that leaves": (linked_mesh, "lies outside"),
    "a replicate bomb": (lambda p: scene(p / "s", REPLICATES), "at most 10000 copies"),
    "a height field bomb": (lambda p: scene(p / "s", FIELD), "at most 4000000"),
    "deep nesting": (lambda p: scene(p / "s", DEEP), "nested deeper"),
    "a NaN mass": (lambda p: scene(p / "s", ROBOT.format(mass="nan")), "must be a finite number"),
    "an infinite mass": (lambda p: scene(p / "s", ROBOT.format(mass="inf")), "must be a finite number"),
    "a negative mass": (lambda p: scene(p / "s", ROBOT.format(mass=-1)), "MuJoCo cannot compile"),
    "too much memory": (lambda p: scene(p / "s", '<mujoco><size memory="900G"/></mujoco>'), "at most 256M"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_bad_scene_is_refused_in_one_sentence(tmp_path, case):
    make, expected = CASES[case]
    code, errors, seconds, memory = instep("scene", "params", make(tmp_path), cwd=tmp_path)
    assert code == 2
    assert expected in errors
    assert "Traceback" not in errors and len(errors.strip().splitlines()) == 1
    assert seconds < 5 and memory < 512
    assert not (tmp_path / "runs").exists()


def test_an_action_of_the_wrong_size_is_refused(tmp_path):
    code, errors, _, _ = instep("run", "constant:0.1", "sim:pusht", "--steps", "5", cwd=tmp_path)
    assert code == 2
    assert "pusher_x, pusher_y" in errors and "Traceback" not in errors


def test_an_unknown_verb_offers_the_nearest(tmp_path):
    code, errors, _, _ = instep("params", "pusht", cwd=tmp_path)
    assert code == 2 and "There is no verb 'params'" in errors


def test_an_output_folder_that_is_not_ours_is_left_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    code, errors, _, _ = instep("scene", "camera", "pusht", "--out", "mine", cwd=tmp_path)
    assert code == 2 and "not empty" in errors
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.txt"]
