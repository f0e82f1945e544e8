"""Edit the objects of a scene folder: another mesh, fewer faces, two objects as one, another place.

What was done is kept under `edits` of build.json, and what the build recorded of a shape that is no more is taken out.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from instep import __version__
from instep.core.errors import BadInput
from instep.core.reading import read_json_table
from instep.core.records import frozen_dataclass
from instep.core.world import Array
from instep.splat.gaussians import concatenate

from .mesh_edit import read_mesh_file, replace_shape, simplify_surfaces
from .pipeline import BUILD_FILE
from .scene_files import SceneFiles, element_place, placed, set_inertia, set_place, words
from .settling import settled_height
from .stage_store import FOLDER

_BY_VOLUME = "volume times"
"""How the source of a mass begins that is computed from the volume."""


@frozen_dataclass
class MeshReplacement:
    """Another mesh for an object, in the frame of its body."""

    name: str
    file: Path


@frozen_dataclass
class MeshSimplification:
    """Fewer faces for the meshes that show an object."""

    name: str
    faces: int


@frozen_dataclass
class ObjectMerge:
    """Two objects as one, which keeps the name of the first."""

    name: str
    other: str


@frozen_dataclass
class ObjectMotion:
    """Another place for an object, where it then rests on what is below it."""

    name: str
    shift: tuple[float, float, float]
    """Along the axes of the world [m]."""
    yaw_deg: float
    """About the vertical through its frame, anticlockwise from above [deg]."""


SceneEdit = MeshReplacement | MeshSimplification | ObjectMerge | ObjectMotion


def edit_scene(folder: Path, edits: Sequence[SceneEdit]) -> list[dict[str, Any]]:
    """Edit a scene folder whose model is one file, in place and one edit after another; what was done."""
    path = folder / BUILD_FILE
    record: dict[str, Any] = read_json_table(path) if path.is_file() else {"version": __version__}
    done: list[dict[str, Any]] = []
    files = SceneFiles.open(folder)
    for edit in edits:
        files, facts = _applied(files, edit, record)
        done.append({**facts, "version": __version__})
    if not (folder / FOLDER).is_dir() and record.get("stages"):
        record["stages_kept"] = False
    record["edits"] = [*record.get("edits", []), *done]
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    _prune(files)
    return done


def _applied(files: SceneFiles, edit: SceneEdit, record: dict[str, Any]) -> tuple[SceneFiles, dict[str, Any]]:
    if isinstance(edit, MeshReplacement):
        return _replaced(files, edit, record)
    if isinstance(edit, MeshSimplification):
        before, after = simplify_surfaces(files, edit.name, edit.faces)
        return files.save(), {"edit": "simplify", "object": edit.name, "faces": [before, after]}
    return _merged(files, edit, record) if isinstance(edit, ObjectMerge) else _moved(files, edit)


def _replaced(files: SceneFiles, edit: MeshReplacement, record: dict[str, Any]) -> tuple[SceneFiles, dict[str, Any]]:
    mesh, name = read_mesh_file(edit.file), edit.name
    files.body(name)
    mass, known = float(files.scene.model.body(name).mass[0]), record.get("objects", {}).get(name)
    if known is not None:
        if known["mass"]["source"].startswith(_BY_VOLUME):
            share = mesh.volume / known["volume_m3"]
            known["mass"] |= {key: share * known["mass"][key] for key in ("value", "low", "high")}
            mass = known["mass"]["value"]
        known["volume_m3"] = mesh.volume
        span = [known["mass"]["low"], known["mass"]["high"]]
        files.facts(lambda table: _set_range(table, f"body.{name}.mass", span))
    gaussians = replace_shape(files, name, mesh, mass)
    files.save_gaussians(name, gaussians)
    _forget_shape(record, name)
    files, rise = _settled(files.save(), name)
    kept = "none" if gaussians is None else "on the new surface, in the colours of the former one"
    facts = {"edit": "replace", "object": name, "file": edit.file.name, "faces": len(mesh.faces)}
    return files, {**facts, "volume_m3": mesh.volume, "mass_kg": mass, "raised_m": rise, "gaussians": kept}


def _moved(files: SceneFiles, edit: ObjectMotion) -> tuple[SceneFiles, dict[str, Any]]:
    turn, angle = np.eye(3), np.radians(edit.yaw_deg)
    turn[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    place = files.world_from_body(edit.name).copy()
    place[:3, :3] = turn @ place[:3, :3]
    place[:3, 3] += edit.shift
    files.place(edit.name, place)
    files, rise = _settled(files.save(), edit.name)
    shift = [*edit.shift[:2], edit.shift[2] + rise]
    return files, {"edit": "move", "object": edit.name, "shift_m": shift, "yaw_deg": edit.yaw_deg}


def _settled(files: SceneFiles, name: str) -> tuple[SceneFiles, float]:
    """The object on what is below it, and how far it was raised [m]; one whose height is drawn from a range stays."""
    if f"{name}.z" in files.scene.initial:
        return files, 0.0
    rise = settled_height(files.scene.model, files.scene.start(0)[0], name)
    files.lift(name, rise)
    return files.save(), rise


def _merged(files: SceneFiles, edit: ObjectMerge, record: dict[str, Any]) -> tuple[SceneFiles, dict[str, Any]]:
    name, other = edit.name, edit.other
    if name == other:
        raise BadInput(f"{name!r} cannot be merged with itself; name two objects, as in --merge cup+lid.")
    body, gone = files.body(name), files.body(other)
    first_from_second = np.linalg.inv(files.world_from_body(name)) @ files.world_from_body(other)
    _check_unnamed(files, other)
    _combine_inertia(files, body, edit, first_from_second)
    _take_shapes(files, body, gone, other, first_from_second)
    for world in files.tree.findall("worldbody"):
        if gone in list(world):
            world.remove(gone)
    at, speed = files.coordinates(other)
    for key in files.tree.findall("keyframe/key"):
        for attribute, begin, count in (("qpos", at, 7), ("qvel", speed, 6)):
            if numbers := key.get(attribute, "").split():
                key.set(attribute, " ".join([*numbers[:begin], *numbers[begin + count :]]))
    files.facts(lambda table: _without_object(table, name, other))
    sets = [(files.gaussians(name), np.eye(4)), (files.gaussians(other), first_from_second)]
    found = [part.moved(place).attached_to(name) for part, place in sets if part is not None]
    files.save_gaussians(other, None)
    if found:
        files.save_gaussians(name, concatenate(found))
    _merge_record(record, name, other)
    return files.save(), {"edit": "merge", "object": name, "with": other}


def _check_unnamed(files: SceneFiles, name: str) -> None:
    """Refuse to take away an object that a task or tuned settings name."""
    named = [address for address in files.scene.settings if address.split(".")[:2] == ["body", name]]
    if name in json.dumps(dict(files.scene.task), default=str).replace('"', " ").split():
        named.append("the task")
    if named:
        raise BadInput(f"{named[0]} of scene.toml names {name!r}; merge the other way round, or take that out first.")


def _combine_inertia(files: SceneFiles, body: Any, edit: ObjectMerge, first_from_second: Array) -> None:
    """State the mass and inertia of two objects as those of one."""
    model, parts = files.scene.model, list[tuple[float, Array, Array]]()
    for name, place in ((edit.name, np.eye(4)), (edit.other, first_from_second)):
        number = int(model.body(name).id)
        own = place @ placed(model.body_ipos[number], model.body_iquat[number])
        inertia = own[:3, :3] @ np.diag(model.body_inertia[number]) @ own[:3, :3].T
        parts.append((float(model.body_mass[number]), own[:3, 3], inertia))
    mass = sum(part[0] for part in parts)
    centre = np.sum([part[0] * part[1] for part in parts], axis=0) / mass
    total = np.zeros((3, 3))
    for own, at, inertia in parts:
        arm = at - centre
        total += inertia + own * (arm @ arm * np.eye(3) - np.outer(arm, arm))
    set_inertia(body, mass, centre, total)


def _take_shapes(files: SceneFiles, body: Any, gone: Any, other: str, first_from_second: Array) -> None:
    """Move the shapes and sites of one body to another."""
    model, shapes = files.scene.model, iter(files.geoms(other))
    number = int(model.body(other).id)
    sites = iter([s for s in range(model.nsite) if model.site_bodyid[s] == number])
    for element in list(gone):
        if element.tag in ("inertial", "freejoint", "joint"):
            continue
        if element.tag not in ("geom", "site"):
            raise BadInput(f"{other!r} carries a {element.tag}, which cannot be merged; take it out first.")
        new = copy.deepcopy(element)
        if element.tag == "site":
            site = next(sites)
            set_place(new, first_from_second @ placed(model.site_pos[site], model.site_quat[site]))
        else:
            geom = next(shapes)
            set_place(new, first_from_second @ element_place(model, geom))
            if "mesh" not in new.attrib:
                new.set("size", words(model.geom_size[geom]))
        if gone.get("childclass") and "class" not in new.attrib:
            new.set("class", gone.get("childclass"))
        body.append(new)


def _set_range(table: Any, address: str, span: Sequence[float]) -> None:
    if address in table.get("params", {}):
        table["params"][address] = [float(value) for value in span]


def _without_object(table: Any, name: str, other: str) -> None:
    """Take an object out of scene.toml whose shapes another one has now."""
    bodies = [one for one in table["objects"]["bodies"] if one != other]
    table["objects"]["bodies"] = bodies
    ranges = table.get("params", {})
    both = [ranges.get(f"body.{one}.mass") for one in (name, other)]
    if all(span is not None for span in both):
        _set_range(table, f"body.{name}.mass", [both[0][k] + both[1][k] for k in (0, 1)])
    for address in [one for one in ranges if one.split(".")[:2] == ["body", other]]:
        del ranges[address]


def _merge_record(record: dict[str, Any], name: str, other: str) -> None:
    objects = record.get("objects", {})
    gone = objects.pop(other, None)
    if gone is not None and name in objects:
        own = objects[name]
        own["volume_m3"] += gone["volume_m3"]
        own["mass"] |= {key: own["mass"][key] + gone["mass"][key] for key in ("value", "low", "high")}
        own["mass"]["source"] = f"sum: {own['mass']['source']}; {gone['mass']['source']}"
    for one in (name, other):
        _forget_shape(record, one)


def _forget_shape(record: dict[str, Any], name: str) -> None:
    """Take out what a build measured of a shape that is no more: silhouettes, parts, texture."""
    for stage in ("shape", "parts", "appearance"):
        record.get("stages", {}).get(stage, {}).get("objects", {}).pop(name, None)


def _prune(files: SceneFiles) -> None:
    """Remove files of meshes/ and of their textures that the model does not name any more."""
    root = files.scene.source.path.parent
    named = {element.get("file") for element in files.tree.iter() if element.get("file")}
    for path in (root / "meshes").glob("*"):
        if path.suffix in (".obj", ".png") and f"meshes/{path.name}" not in named:
            path.unlink()
