"""Edit the objects of a scene folder: another mesh, another place.

`build.json` lists the edits; measurements of a replaced shape are removed from it.
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from instep import __version__
from instep.core.errors import BadInput, UnknownName
from instep.core.poses import pose as pose_of
from instep.core.reading import parsing, read_file, read_json_table, read_text
from instep.core.world import Array, array_dataclass, frozen_dataclass
from instep.data.frames import decode_image
from instep.scene.folder import SCENE_FILE, Scene, commented_table
from instep.scene.model_source import MAX_XML
from instep.splat.gaussian_files import load_gaussians, save_gaussians
from instep.splat.gaussians import Gaussians, gaussians_from_colours
from instep.splat.rendering import orientations

from .object_appearance import texture_from_points
from .pipeline import BUILD_FILE
from .scene_formats import ExportedShape, exported_shapes, mjcf_words, placed
from .scene_writing import BY_VOLUME, TouchedParts, add_shapes, add_surface, set_inertia
from .shape.convex_parts import convex_parts
from .shape.object_shape import MAX_SIZE_M, MIN_SIZE_M
from .shape.triangle_mesh import TriangleMesh, read_mesh, welded
from .stages import FOLDER

PLACES = ("pos", "quat", "euler", "axisangle", "xyaxes", "zaxis", "fromto")
"""Attributes of the place of an element."""
SPLATS = "splats"
MAX_FALL_M = 2.0
"""Depth below an object in which its support is searched [m]."""
_STEP_M, _PRECISION_M = 1e-3, 1e-6
"""Least step and precision of that search [m]."""
_TOUCHING_M = 1e-4
"""Depth up to which shapes only touch [m]: an object is not held by what is beside it."""
_SAMPLES = 12_000
"""Coloured points on the former surface of an object."""


@frozen_dataclass
class MeshReplacement:
    """Another mesh for an object, in the frame of its body."""

    name: str
    file: Path


@frozen_dataclass
class ObjectMotion:
    """Another place for an object, resting on what is below it."""

    name: str
    shift: tuple[float, float, float]
    """Along the axes of the world [m]."""
    yaw_deg: float
    """About the vertical through its frame, anticlockwise from above [deg]."""


SceneEdit = MeshReplacement | ObjectMotion


def edit_scene(folder: Path, edits: Sequence[SceneEdit]) -> list[dict[str, Any]]:
    """Edit a scene folder whose model is one file, in place and in order; a record of each edit."""
    path = folder / BUILD_FILE
    record: dict[str, Any] = read_json_table(path) if path.is_file() else {"version": __version__}
    done: list[dict[str, Any]] = []
    files = SceneFiles.open(folder)
    for edit in edits:
        files, facts = _moved(files, edit) if isinstance(edit, ObjectMotion) else _replaced(files, edit, record)
        done.append({**facts, "version": __version__})
    if not (folder / FOLDER).is_dir() and record.get("stages"):
        record["stages_kept"] = False
    record["edits"] = [*record.get("edits", []), *done]
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    named = {element.get("file") for element in files.tree.iter()}
    for unused in (files.scene.source.path.parent / "meshes").glob("*"):
        if unused.suffix in (".obj", ".png") and f"meshes/{unused.name}" not in named:
            unused.unlink()
    return done


@array_dataclass
class SceneFiles:
    """A scene folder with one model file, and the scene in it."""

    folder: Path
    scene: Scene
    tree: ET.Element

    @classmethod
    def open(cls, folder: Path) -> SceneFiles:
        """The files of a folder."""
        scene = Scene.load(folder)
        with parsing(scene.source.path, "XML"):
            tree = ET.fromstring(read_text(scene.source.path, MAX_XML))  # noqa: S314 - checked by Scene.load
        return cls(folder, scene, tree)

    @property
    def root(self) -> Path:
        """The folder of the model file, with `meshes/`."""
        return self.scene.source.path.parent

    def body(self, name: str) -> ET.Element:
        """The element of an object, which must be in the model's file and carry no other body."""
        if name not in self.scene.objects:
            raise UnknownName("object of the scene", name, self.scene.objects)
        body = self.tree.find(f"worldbody/body[@name='{name}']")
        if body is None or body.find("body") is not None:
            raise BadInput(f"{name!r} is attached, or carries bodies; edit one body of the scene's own files.")
        return body

    def geoms(self, name: str) -> list[int]:
        """The geoms of an object, in the order of its elements."""
        body = int(self.scene.model.body(name).id)
        return [g for g in range(self.scene.model.ngeom) if self.scene.model.geom_bodyid[g] == body]

    def collides(self, geom: int) -> bool:
        """Whether a geom has contacts."""
        return bool(self.scene.model.geom_contype[geom] or self.scene.model.geom_conaffinity[geom])

    def world_from_body(self, name: str) -> Array:
        """The pose of an object at the start of the scene (4 x 4)."""
        self.body(name)
        drawn = [label for label in self.scene.initial if label.rpartition(".")[0] == name]
        if drawn:
            raise BadInput(
                f"The start of {name!r} is drawn from {drawn[0]!r} under [start] of scene.toml; change that."
            )
        model, data = self.scene.model, mujoco.MjData(self.scene.model)
        data.qpos[:] = self.scene.start(0)[0]
        mujoco.mj_kinematics(model, data)
        body = int(model.body(name).id)
        return placed(data.xpos[body], data.xquat[body])

    def place(self, name: str, world_from_body: Array) -> None:
        """Put an object elsewhere at the start of the scene."""
        set_place(self.body(name), world_from_body)
        words = mjcf_words(pose_of(world_from_body)).split()
        self._keyframed(name, lambda numbers: words)

    def lift(self, name: str, rise: float) -> None:
        """Raise an object at the start of the scene, also one whose place on the table is drawn from ranges."""
        number = int(self.scene.model.body(name).id)
        place = placed(self.scene.model.body_pos[number], self.scene.model.body_quat[number])
        place[2, 3] += rise
        set_place(self.body(name), place)
        self._keyframed(name, lambda n: [*n[:2], mjcf_words([float(n[2]) + rise]), *n[3:]])

    def _keyframed(self, name: str, change: Callable[[list[str]], list[str]]) -> None:
        """Change the seven positions of an object in the keyframe of the start."""
        key, model = self.scene.initial.get("keyframe"), self.scene.model
        at = int(model.jnt_qposadr[model.body_jntadr[model.body(name).id]])
        for frame in (one for one in self.tree.findall("keyframe/key") if one.get("name") == key and key):
            numbers = frame.get("qpos", "").split()
            if numbers:
                frame.set("qpos", " ".join([*numbers[:at], *change(numbers[at : at + 7]), *numbers[at + 7 :]]))

    def set_range(self, address: str, span: Sequence[float]) -> None:
        """Change the range of a parameter in scene.toml, if it has one; comments stay."""
        import tomlkit

        path = self.folder / SCENE_FILE
        table: Any = commented_table(path)
        if address in table.get("params", {}):
            table["params"][address] = [float(value) for value in span]
        path.write_text(tomlkit.dumps(table), encoding="utf-8")

    def gaussians(self, name: str) -> Gaussians | None:
        """The Gaussians of an object in its frame; None if it has none."""
        splats = self.folder / SPLATS
        found = load_gaussians(splats) if splats.is_dir() else None
        return None if found is None or name not in found.names else found.on(name)

    def save_gaussians(self, name: str, gaussians: Gaussians | None) -> None:
        """Write the Gaussians of an object, or remove them."""
        for path in (self.folder / SPLATS).glob(f"{name}.*"):
            path.unlink()
        if gaussians is not None:
            save_gaussians(self.folder / SPLATS / f"{name}.ply", gaussians.attached_to(name))

    def save(self) -> SceneFiles:
        """Write the model and open the folder again; an edit that leaves no valid scene is refused here."""
        ET.indent(self.tree)
        self.scene.source.path.write_text(ET.tostring(self.tree, encoding="unicode") + "\n", encoding="utf-8")
        return SceneFiles.open(self.folder)


def set_place(element: ET.Element, parent_from_element: Array) -> None:
    """State the place of an element by position and quaternion alone."""
    for attribute in PLACES:
        element.attrib.pop(attribute, None)
    place = pose_of(parent_from_element)
    element.set("pos", mjcf_words(place[:3]))
    element.set("quat", mjcf_words(place[3:]))


def settled_height(model: Any, q: Array, name: str) -> float:
    """The rise of an object at positions `q` (negative: fall) after which it rests on what is below it [m]."""
    body, data = int(model.body(name).id), mujoco.MjData(model)
    at = int(model.jnt_qposadr[model.body_jntadr[body]])
    own = [g for g in range(model.ngeom) if model.geom_bodyid[g] == body]
    rest = [g for g in range(model.ngeom) if model.geom_bodyid[g] != body]
    types, answers = model.geom_contype, model.geom_conaffinity
    pairs = [(a, b) for a in own for b in rest if types[a] & answers[b] or types[b] & answers[a]]
    distance = getattr(mujoco, "mj_geomDistance")  # noqa: B009 - not in its types

    def gap(rise: float) -> float:
        """Least distance of the object from anything [m], negative inside; at most the longest fall."""
        data.qpos[:] = q
        data.qpos[at + 2] += rise
        mujoco.mj_kinematics(model, data)
        return min((float(distance(model, data, a, b, MAX_FALL_M, None)) for a, b in pairs), default=MAX_FALL_M)

    high, apart = 0.0, gap(0.0)
    while apart < -_TOUCHING_M:  # it is inside something
        high += max(_STEP_M, -0.5 * apart)
        apart = gap(high)
        if high > MAX_FALL_M:
            raise BadInput(f"{name!r} is inside something and cannot be raised out of it; move it elsewhere.")
    low = high
    while apart >= -_TOUCHING_M:
        high, low = low, low - max(_STEP_M, apart)
        if low < -MAX_FALL_M:
            raise BadInput(f"Nothing is within {MAX_FALL_M:g} m below {name!r}; move it above a table or floor.")
        apart = gap(low)
    while high - low > _PRECISION_M:
        middle = (low + high) / 2
        low, high = (low, middle) if gap(middle) >= 0 else (middle, high)
    return high


def _settled(files: SceneFiles, name: str) -> tuple[SceneFiles, float]:
    """The object on what is below it, and its rise [m]; an object whose height is drawn from a range stays."""
    if f"{name}.z" in files.scene.initial:
        return files, 0.0
    rise = settled_height(files.scene.model, files.scene.start(0)[0], name)
    files.lift(name, rise)
    return files.save(), rise


def _moved(files: SceneFiles, edit: ObjectMotion) -> tuple[SceneFiles, dict[str, Any]]:
    turn, angle = np.eye(3), np.radians(edit.yaw_deg)
    turn[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    place = files.world_from_body(edit.name)
    place[:3, :3] = turn @ place[:3, :3]
    place[:3, 3] += edit.shift
    files.place(edit.name, place)
    files, rise = _settled(files.save(), edit.name)
    shift = [*edit.shift[:2], edit.shift[2] + rise]
    return files, {"edit": "move", "object": edit.name, "shift_m": shift, "yaw_deg": edit.yaw_deg}


def _replaced(files: SceneFiles, edit: MeshReplacement, record: dict[str, Any]) -> tuple[SceneFiles, dict[str, Any]]:
    """Surface, parts, inertia, texture and Gaussians by another mesh, in the colours of the former surface."""
    mesh, name = _read_closed(edit.file), edit.name
    body, model = files.body(name), files.scene.model
    mass, known = float(model.body(name).mass[0]), record.get("objects", {}).get(name)
    if known is not None:
        if known["mass"]["source"].startswith(BY_VOLUME):
            share = mesh.volume / known["volume_m3"]
            known["mass"] |= {key: share * known["mass"][key] for key in ("value", "low", "high")}
            mass = known["mass"]["value"]
        known["volume_m3"] = mesh.volume
        files.set_range(f"body.{name}.mass", [known["mass"]["low"], known["mass"]["high"]])
    points, colours = surface_points(files.scene, name)
    touching = [g for g in files.geoms(name) if files.collides(g)]
    friction = mjcf_words(model.geom_friction[touching[0]] if touching else [0.5, 0.005, 0.0001])
    for geom in body.findall("geom"):
        body.remove(geom)
    _drop_unused(files.tree)
    # The name, with a number if an asset has it already.
    taken = {asset.get("name") for asset in files.tree.findall("asset/*")}
    names = [name, *(f"{name}_{k}" for k in range(2, len(taken) + 3))]
    own = next(one for one in names if one not in taken)
    add_surface(files.tree, files.root, own, mesh, texture_from_points(mesh, points, colours))
    rgba = mjcf_words([*colours.mean(axis=0), 1.0])
    add_shapes(files.tree, files.root, body, own, TouchedParts(convex_parts(mesh).meshes, rgba, friction))
    set_inertia(body, mass, mesh.centroid, mass / mesh.volume * mesh.unit_inertia)
    gaussians = _on_surface(mesh, points, colours, files.gaussians(name))
    files.save_gaussians(name, gaussians)
    for stage in ("shape", "parts", "appearance"):  # measurements of the former shape
        record.get("stages", {}).get(stage, {}).get("objects", {}).pop(name, None)
    files, rise = _settled(files.save(), name)
    kept = "none" if gaussians is None else "on the new surface, in the colours of the former one"
    facts = {"edit": "replace", "object": name, "file": edit.file.name, "faces": len(mesh.faces)}
    return files, {**facts, "volume_m3": mesh.volume, "mass_kg": mass, "raised_m": rise, "gaussians": kept}


def _read_closed(path: Path) -> TriangleMesh:
    """A closed mesh from an OBJ, STL or GLB file, in metres."""
    if not path.is_file():
        raise BadInput(f"There is no mesh {str(path)!r}; an .obj, .stl or .glb file was expected.")
    mesh = welded(read_mesh(read_file(path, 1 << 29), repr(path.name)))
    if not mesh.watertight:
        raise BadInput(f"The surface in {path.name!r} is not closed, so it has no volume; close it, and save it again.")
    if not MIN_SIZE_M <= mesh.diagonal <= MAX_SIZE_M:
        raise BadInput(f"The mesh in {path.name!r} is {mesh.diagonal:.4g} m across; are its lengths in metres?")
    return TriangleMesh(mesh.vertices, mesh.faces[:, ::-1].copy()) if mesh.volume < 0 else mesh


def surface_points(scene: Scene, name: str) -> tuple[Array, Array]:
    """Points on the visible surface of an object, in its frame [n, 3], and their colours [n, 3], 0 to 1."""
    body = int(scene.model.body(name).id)
    own = [shape for shape in exported_shapes(scene) if shape.body == body]
    own = [shape for shape in own if shape.shown] or own
    if not own:
        raise BadInput(f"{name!r} has no shape to replace.")
    rng = np.random.default_rng((0, 0xED))
    found = [_coloured_points(shape, _SAMPLES // len(own), rng) for shape in own]
    return np.concatenate([points for points, _ in found]), np.concatenate([colours for _, colours in found])


def _coloured_points(shape: ExportedShape, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
    areas = shape.mesh.areas
    face = rng.choice(len(areas), count, p=areas / areas.sum())
    shares = rng.dirichlet(np.ones(3), count)
    points = np.einsum("nk,nki->ni", shares, shape.mesh.corners[face])
    if shape.texels is None or shape.texture is None:
        return points, np.tile(shape.rgba[:3], (count, 1))
    image = np.asarray(decode_image(shape.texture), float)[..., :3] / 255
    at = np.einsum("nk,nki->ni", shares, shape.texels[face]) * [image.shape[1], image.shape[0]]
    column, row = np.clip(at.astype(int), 0, [image.shape[1] - 1, image.shape[0] - 1]).T
    return points, image[row, column]


def _on_surface(mesh: TriangleMesh, points: Array, colours: Array, former: Gaussians | None) -> Gaussians | None:
    """As many flat Gaussians on a mesh as the object had, in the colours of points near it; None if it had none."""
    from scipy.spatial import cKDTree

    if former is None:
        return None
    places, face = mesh.sampled(len(former), np.random.default_rng((0, 0x6A)))
    pitch = float(np.sqrt(mesh.areas.sum() / len(former)))
    near = np.asarray(cKDTree(points).query(places)[1], int)
    flat = np.array([0.6, 0.6, 0.12]) * pitch
    return gaussians_from_colours(places, flat, colours[near], quats=orientations(mesh.normals[face]), opacities=0.9)


def _drop_unused(tree: ET.Element) -> None:
    """Remove unused meshes, materials and textures."""
    for kind in ("mesh", "material", "texture"):
        used = {element.get(kind) for element in tree.iter() if element.tag != kind}
        for assets in tree.findall("asset"):
            for asset in [one for one in assets.findall(kind) if one.get("name") and one.get("name") not in used]:
                if not asset.get("builtin") and asset.get("type") != "skybox":
                    assets.remove(asset)
