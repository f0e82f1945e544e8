"""Promotion writes a new scene and leaves the old one alone."""

from __future__ import annotations

import json

import pytest

from instep.core.errors import BadInput
from instep.scene import address
from instep.scene.folder import Scene
from instep.tune.param_export import promote, scene_hash


def test_a_promoted_scene_loads_with_its_settings_and_the_old_one_is_untouched(tmp_path, scene_folder):
    old = scene_folder(tmp_path / "old")
    before = scene_hash(old)
    new = promote(Scene.load(old), {"joint.hinge.damping": 0.123, "action.delay": 0.02}, tmp_path / "new", {"seed": 3})
    assert scene_hash(old) == before
    model = Scene.load(new).model
    assert address.read(model, ["joint.hinge.damping"])["joint.hinge.damping"] == 0.123
    record = json.loads((new / "tuned.json").read_text())
    assert record["parent"] == before
    assert record["seed"] == 3


def test_promoting_twice_keeps_the_settings_of_both(tmp_path, scene_folder):
    first = promote(Scene.load(scene_folder(tmp_path / "a")), {"joint.hinge.damping": 0.1}, tmp_path / "b", {})
    second = promote(Scene.load(first), {"joint.hinge.armature": 0.05}, tmp_path / "c", {})
    assert dict(Scene.load(second).settings) == {"joint.hinge.damping": 0.1, "joint.hinge.armature": 0.05}
    assert (second / "scene.toml").read_text().count("[settings]") == 1


def test_a_folder_with_something_in_it_is_refused(tmp_path, scene_folder):
    old = scene_folder(tmp_path / "old")
    with pytest.raises(BadInput, match="not empty"):
        promote(Scene.load(old), {"joint.hinge.damping": 0.2}, old, {})
