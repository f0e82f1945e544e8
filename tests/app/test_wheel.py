"""The wheel holds everything, and works from where it is installed."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from instep.app.viewer.view_server import absence

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation", "-q", "-w", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    [path] = out.glob("*.whl")
    return path


def test_the_wheel_is_for_every_machine_and_holds_scenes_templates_and_types(wheel):
    assert wheel.name.endswith("-py3-none-any.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"instep/py.typed", "instep/scene/library/pusht/scene.xml", "instep/scene/library/pusht/scene.toml"} <= names
    assert any(name.startswith("instep/report/templates/") for name in names)
    assert not any("benchmarks/" in name or name.startswith(("tests/", "web/", "tools/")) for name in names)
    assert "instep/app/viewer/templates/standalone.html" in names
    assert (
        absence()
        or {f"instep/app/viewer/static/{name}" for name in ("viewer.js", "viewer_gaussians.js", "prompts.js")} <= names
    )


def test_the_installed_wheel_steps_a_world(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")  # our own wheel, as pip would lay it out
    code = "import instep; w = instep.MujocoWorld('so101'); s = w.step(w.reset(0), w.scene.rest_action()); "
    code += "print(instep.__file__, s.t)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    assert str(tmp_path) in done.stdout and "0.02" in done.stdout
