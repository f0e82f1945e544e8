"""Identified parameters as files: a new scene folder, and an export folder with JSON and the formats of other tools."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from instep import __version__
from instep.core.errors import BadInput
from instep.core.reading import read_json_table
from instep.core.records import frozen_dataclass
from instep.physics.actuators import ACTUATORS_FILE, is_actuator_param, read_actuators
from instep.physics.delta_model import DELTA_FILE
from instep.scene.folder import SCENE_FILE, Scene
from instep.scene.settings_file import write_scene_table, write_settings

from .model_export import ExportedFile, all_settings, tuned_model, write_mjcf, write_urdf, write_usd, write_yaml
from .shooting import Fit

GROUP_FOLDER = "group_scenes"
"""Folder of a new scene that holds one scene per group of recordings, where groups have parameters of their own."""
NOT_COPIED = shutil.ignore_patterns("__pycache__", "tuned.json", DELTA_FILE, GROUP_FOLDER)
"""Files of a scene that a new one does not inherit: a delta action belongs to the parameters it was learnt with."""


def promote(scene: Scene, settings: Mapping[str, float], out: Path, provenance: Mapping[str, Any]) -> Path:
    """Write a copy of the scene with `[settings]` added, and `tuned.json` that says where they came from.

    The folder is complete: it loads anywhere, and taking the settings out again gives the old scene back.
    """
    copy_scene(scene, out)
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
    Scene.load(out)  # raises here and now where the new scene does not load
    return out


def add_provenance(folder: Path, facts: Mapping[str, Any]) -> None:
    """Add facts to `tuned.json` of a promoted scene."""
    path = folder / "tuned.json"
    record = {**read_json_table(path), **facts}
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def copy_scene(scene: Scene, out: Path) -> None:
    """Copy a scene into a new folder; a bare robot file becomes a folder."""
    if out.exists() and any(out.iterdir()):
        raise BadInput(f"The folder {str(out)!r} is not empty; a promoted scene needs a new one.")
    if (scene.root / SCENE_FILE).is_file() and scene.name == scene.root.resolve().name:
        shutil.copytree(scene.root, out, dirs_exist_ok=True, ignore=NOT_COPIED)
    else:
        _write_folder(scene, out)


def scene_hash(root: Path) -> str:
    """SHA-256 over names and contents of a scene's own files, so that a version can be named."""
    digest = hashlib.sha256()
    for file in sorted(
        p for p in root.rglob("*") if p.is_file() and p.name != "tuned.json" and "__pycache__" not in p.parts
    ):
        digest.update(str(file.relative_to(root)).encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _write_folder(scene: Scene, out: Path) -> None:
    """Make a scene folder of a bare robot file."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "scene.xml").write_text(scene.source.xml, encoding="utf-8")
    for name, content in scene.source.files.items():
        path = out / name
        if not path.resolve().is_relative_to(out.resolve()):
            raise BadInput(f"The scene names a file outside its folder, {name!r}; it cannot be copied.")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    write_scene_table(out / SCENE_FILE, scene)


@frozen_dataclass
class ExportResult:
    """The files of an export, and what none of them holds."""

    files: tuple[ExportedFile, ...]
    left_out: tuple[str, ...] = ()

    @property
    def paths(self) -> list[Path]:
        """Where the files are."""
        return [file.path for file in self.files]

    def as_dict(self) -> dict[str, Any]:
        """What `result.json` holds of it: by file, the settings that it holds as notes."""
        return {"notes": {file.path.name: list(file.notes) for file in self.files}, "left_out": list(self.left_out)}


def export_all(
    folder: Path,
    scene: Scene,
    found: Fit,
    settings: Mapping[str, float],
    *,
    urdf: Path | None = None,
    left_out: Sequence[str] = (),
) -> ExportResult:
    """Write the scene's settings, with these added, in all formats into one folder, with a README.

    A URDF is written where one is given or the scene was made of one, USD where usd-core is installed. `left_out` names
    what else belongs to the scene and is in none of the files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    settings = all_settings(scene, settings)
    urdf = urdf or (scene.source.path if scene.source.urdf and scene.source.path.is_file() else None)
    files = [
        ExportedFile(write_params(folder / "params.json", found, settings)),
        ExportedFile(write_yaml(folder / "params.yaml", settings)),
        ExportedFile(write_joint_limits(folder / "joint_limits.yaml", scene, settings)),
        write_mjcf(folder / "tuned.xml", scene, settings),
    ]
    if urdf is not None:
        files.append(write_urdf(folder / urdf.name, urdf, scene, settings))
    if find_spec("pxr") is not None:
        files.append(write_usd(folder / "tuned.usda", scene, settings))
    else:
        left_out = [*left_out, "tuned.usda, which needs usd-core (pip install usd-core)"]
    result = ExportResult(tuple(files), tuple(left_out))
    (folder / "README.md").write_text(_readme(result, settings), encoding="utf-8")
    return result


def _readme(result: ExportResult, settings: Mapping[str, float]) -> str:
    """What is in each file, and what of it the tools that read the format do not apply."""
    lines = [f"# Identified parameters ({len(settings)})", "", "Values are in SI units, by address.", ""]
    for file in result.files:
        lines.append(f"- `{file.path.name}`")
        if file.notes:
            lines.append("  holds these as notes, since the format has no field for them: " + ", ".join(file.notes))
    lines += [f"- not written: {reason}" for reason in result.left_out]
    return "\n".join(lines) + "\n"


def write_joint_limits(path: Path, scene: Scene, settings: Mapping[str, float]) -> Path:
    """Limits of the robot's joints as `joint_limits.yaml`, the file MoveIt and ros2_control read."""
    model = tuned_model(scene, settings)
    lines = ["joint_limits:"]
    for name in scene.robot:
        joint = model.joint(name)
        effort = _effort(model, int(joint.id))
        lines.append(f"  {json.dumps(name)}:")
        limited = bool(joint.limited[0])
        lines.append(f"    has_position_limits: {str(limited).lower()}")
        if limited:
            lines += [f"    min_position: {joint.range[0]:.9g}", f"    max_position: {joint.range[1]:.9g}"]
        lines.append(f"    has_effort_limits: {str(effort is not None).lower()}")
        if effort is not None:
            lines.append(f"    max_effort: {effort:.9g}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _effort(model: mujoco.MjModel, joint: int) -> float | None:
    """The largest force of the actuator that drives a joint, at the joint."""
    on_joint = model.actuator_trntype == int(mujoco.mjtTrn.mjTRN_JOINT)
    for a in np.flatnonzero(on_joint & (model.actuator_trnid[:, 0] == joint)):
        if model.actuator_forcelimited[a]:
            return float(abs(model.actuator_forcerange[a, 1] * model.actuator_gear[a, 0]))
    return None


def write_params(path: Path, found: Fit, settings: Mapping[str, float]) -> Path:
    """Values, units, intervals and bounds of a fit, and all settings of the scene, as JSON."""
    intervals = found.estimates
    table = {
        param.address: {
            **intervals[param.address].as_dict(),
            "bounds": [param.low, param.high],
            "scale": "log" if param.log else "linear",
        }
        for param in found.params
    }
    content = {
        "instep": __version__, "mujoco": mujoco.__version__, "seed": found.seed, "params": table,
        "settings": {name: float(value) for name, value in settings.items()},
    }  # fmt: skip
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return path
