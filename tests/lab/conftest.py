"""A robot on four legs for the tests of lab."""

from __future__ import annotations

from pathlib import Path

import pytest

from instep.scene.folder import Scene
from instep.scene.new_scene import make_scene

QUADRUPED = Path(__file__).resolve().parents[2] / "examples" / "quadruped" / "quadruped.xml"


@pytest.fixture(scope="session")
def dog(tmp_path_factory) -> Scene:
    return make_scene(QUADRUPED, tmp_path_factory.mktemp("legs") / "dog", rate=100, legs=True).scene
