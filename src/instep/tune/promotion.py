"""Promote identified parameters into a new scene folder; the old one is never touched."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mujoco

from instep import __version__
from instep.core.errors import BadInput
from instep.physics.actuators import ACTUATORS_FILE, is_actuator_param, read_actuators
from instep.physics.delta_model import DELTA_FILE
from instep.scene.folder import SCENE_FILE, Scene
from instep.scene.settings_file import write_scene_table, write_settings

LEFT = shutil.ignore_patterns("__pycache__", "tuned.json", DELTA_FILE)
"""What does not go along: a delta action belongs to the parameters it was learnt with."""


def promote(scene: Scene, settings: Mapping[str, float], out: Path, provenance: Mapping[str, Any]) -> Path:
    """Write a copy of the scene with `[settings]` added, and `tuned.json` that says where they came from.

    The folder is complete: it loads anywhere, and taking the settings out again gives the old scene back.
    """
    if out.exists() and any(out.iterdir()):
        raise BadInput(f"The folder {str(out)!r} is not empty; a promoted scene needs a new one.")
    if (scene.root / SCENE_FILE).is_file() and scene.name == scene.root.resolve().name:
        shutil.copytree(scene.root, out, dirs_exist_ok=True, ignore=LEFT)
    else:
        _from_file(scene, out)
    own = {name: value for name, value in settings.items() if is_actuator_param(scene.model, name)}
    rest = {name: value for name, value in settings.items() if name not in own}
    merged = {**{k: float(v) for k, v in scene.settings.items()}, **rest}  # type: ignore[arg-type]
    if own:
        write_settings(out / ACTUATORS_FILE, {**read_actuators(scene.root), **own})
    write_settings(out / SCENE_FILE, merged)
    record = {
        "instep": __version__,
        "mujoco": mujoco.__version__,
        "scene": scene.name,
        "parent": scene_hash(scene.root),
        "settings": {**merged, **own},
        **provenance,
    }
    (out / "tuned.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    Scene.load(out)  # a promoted scene that does not load must be heard of now
    return out


def scene_hash(root: Path) -> str:
    """SHA-256 over names and contents of a scene's own files, so that a version can be named."""
    digest = hashlib.sha256()
    for file in sorted(
        p for p in root.rglob("*") if p.is_file() and p.name != "tuned.json" and "__pycache__" not in p.parts
    ):
        digest.update(str(file.relative_to(root)).encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _from_file(scene: Scene, out: Path) -> None:
    """A scene that was a bare robot file becomes a folder of its own."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "scene.xml").write_text(scene.source.xml, encoding="utf-8")
    for name, content in scene.source.files.items():
        path = out / name
        if not path.resolve().is_relative_to(out.resolve()):
            raise BadInput(f"The scene names a file outside its folder, {name!r}; it cannot be copied.")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    write_scene_table(out / SCENE_FILE, scene)
