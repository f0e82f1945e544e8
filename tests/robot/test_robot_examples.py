"""The examples of drivers run without hardware, and say in one sentence what they miss."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "robots"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FOLDER / arguments[0]), *arguments[1:]]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_vendor_example_runs_against_its_pretend_sdk():
    done = run("vendor_driver.py", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "after 1 s joint_0 is at 0.200 rad and the gripper at 0.0440 m, inside its limit\n"


def test_the_ros_example_checks_its_mapping_without_ros():
    done = run("ros2_driver.py", "shoulder,elbow,wrist", "--check")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("the mapping of shoulder, elbow, wrist holds in 100 orders")


@pytest.mark.parametrize(
    ("library", "arguments"), [("rclpy", ("ros2_driver.py", "a,b")), ("trossen_arm", ("vendor_driver.py", "192.0.2.1"))]
)
def test_a_missing_library_is_one_sentence(library, arguments):
    path, *rest = arguments
    hidden = f"import runpy, sys; sys.modules[{library!r}] = None; sys.argv = {[path, *rest]!r}; "
    hidden += f"runpy.run_path({str(FOLDER / path)!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1 and library in done.stderr


def test_examples_stay_short():
    for path in FOLDER.glob("*.py"):
        assert len(path.read_text().splitlines()) < 100, path.name
