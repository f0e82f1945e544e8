"""Edit the objects of a scene folder: another mesh, fewer faces, two objects as one, another place.

What was done is kept under `edits` of build.json, and what the build recorded of a shape that is no more is taken out.

Other meshes for objects of a scene: one from a file in place of the old shape, or the same with fewer faces.

The files of one scene folder, open for changes: the tree of its model, its scene.toml and its Gaussians.

Put an object down on what is below it: lowered until it touches, or raised until it sinks into nothing.
"""

from __future__ import annotations

import copy
import json
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from instep import __version__
from instep.core.errors import BadInput, UnknownName
from instep.core.poses import matrix_from_quat
from instep.core.poses import pose as pose_of
from instep.core.reading import parsing, read_file, read_json_table, read_text
from instep.core.world import Array, array_dataclass, frozen_dataclass
from instep.data.frames import decode_image, encode_png
from instep.scene.folder import SCENE_FILE, Scene, commented_table
from instep.scene.model_source import MAX_XML
from instep.splat.gaussians import Gaussians, concatenate, gaussians_from_colours
from instep.splat.io import load_gaussians, save_gaussians
from instep.splat.rendering import orientations

from .appearance.object_appearance import texture_from_points
from .pipeline import BUILD_FILE
from .scene_formats import ExportedShape, exported_shapes, mesh_triangles
from .shape.convex_parts import convex_parts
from .shape.mesh_files import read_mesh
from .shape.object_shape import MAX_SIZE_M, MIN_SIZE_M
from .shape.triangle_mesh import TriangleMesh, simplified, welded
from .stages import FOLDER

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


_SAMPLES = 12_000
"""Points on the former surface whose colours the new one takes."""
_WELD_M = 1e-7
_MAX_BYTES = 1 << 29
_TOUCHING = {"contype": "1", "conaffinity": "1", "condim": "4"}


def read_mesh_file(path: Path) -> TriangleMesh:
    """A closed mesh from an OBJ, STL, PLY or GLB file, in metres."""
    if not path.is_file():
        raise BadInput(f"{str(path)!r} is no mesh that is read; an .obj, .stl, .ply or .glb file was expected.")
    mesh = welded(read_mesh(read_file(path, _MAX_BYTES), repr(path.name)))
    if not mesh.watertight:
        raise BadInput(f"The surface in {path.name!r} is not closed, so it has no volume; close it, and save it again.")
    if mesh.volume < 0:
        mesh = TriangleMesh(mesh.vertices, mesh.faces[:, ::-1].copy())
    if not MIN_SIZE_M <= mesh.diagonal <= MAX_SIZE_M:
        raise BadInput(f"The mesh in {path.name!r} is {mesh.diagonal:.4g} m across; are its lengths in metres?")
    return mesh


def file_mesh(model: Any, mesh: int) -> TriangleMesh:
    """A mesh of a model in the frame of its file, with equal vertices made one."""
    found = mesh_triangles(model, mesh).moved(placed(model.mesh_pos[mesh], model.mesh_quat[mesh]))
    return welded(found)


def replace_shape(files: SceneFiles, name: str, mesh: TriangleMesh, mass: float, seed: int = 0) -> Gaussians | None:
    """Give an object another mesh in the frame of its body: surface, convex parts, inertia, texture; its Gaussians.

    Texture and Gaussians take the colours of the nearest points of the former surface.
    """
    body, model = files.body(name), files.scene.model
    points, colours = surface_points(files.scene, name, seed)
    touching = [g for g in files.geoms(name) if model.geom_contype[g] or model.geom_conaffinity[g]]
    friction = words(model.geom_friction[touching[0]] if touching else [0.5, 0.005, 0.0001])
    for geom in body.findall("geom"):
        body.remove(geom)
    _drop_unused(files.tree)
    own, parts = _free_name(files.tree, name), convex_parts(mesh, seed=seed).meshes
    material = _save_textured(files, own, mesh, points, colours)
    shown = {"type": "mesh", "mesh": own, "material": material, "contype": "0", "conaffinity": "0", "group": "2"}
    ET.SubElement(body, "geom", {"name": f"{name}_surface", **shown})
    for k, part in enumerate(parts):
        part.save_obj(_mesh_folder(files) / f"{own}_part{k}.obj")
        given = {"name": f"{own}_part{k}", "file": f"meshes/{own}_part{k}.obj", "scale": "1 1 1"}
        ET.SubElement(_assets(files.tree), "mesh", given)
        rgba = words([*colours.mean(axis=0), 1.0])
        touched = {"type": "mesh", "mesh": f"{own}_part{k}", "rgba": rgba, "group": "3", "friction": friction}
        ET.SubElement(body, "geom", {"name": f"{name}_part{k}", **touched, **_TOUCHING})
    set_inertia(body, mass, mesh.centroid, mass / mesh.volume * mesh.unit_inertia)
    return _on_surface(mesh, points, colours, files.gaussians(name), seed)


def simplify_surfaces(files: SceneFiles, name: str, faces: int) -> tuple[int, int]:
    """Reduce the meshes that show an object to about so many faces in all; the faces before and after.

    Convex parts, mass and inertia stay.
    """
    body, model = files.body(name), files.scene.model
    meshes = [
        (g, e)
        for g, e in zip(files.geoms(name), body.findall("geom"), strict=True)
        if (int(model.geom_type[g]) == int(mujoco.mjtGeom.mjGEOM_MESH))
    ]
    seen = [(g, e) for g, e in meshes if not (model.geom_contype[g] or model.geom_conaffinity[g])] or meshes
    if not seen:
        raise BadInput(f"{name!r} has no mesh, so there are no faces to take away.")
    sizes = [len(mesh_triangles(model, int(model.geom_dataid[g])).faces) for g, _ in seen]
    if not 4 <= faces < sum(sizes):
        raise BadInput(f"The meshes of {name!r} have {sum(sizes)} faces; 4 up to fewer than that were expected.")
    after = 0
    for (geom, element), size in zip(seen, sizes, strict=True):
        before = file_mesh(model, int(model.geom_dataid[geom]))
        mesh = simplified(before, max(4, round(faces * size / sum(sizes))))
        after += len(mesh.faces)
        own = _free_name(files.tree, f"{element.get('mesh', name)}_simplified")
        points, colours = surface_points(files.scene, name, 0, [geom])
        local = np.linalg.inv(element_place(model, geom))
        material = _save_textured(files, own, mesh, points @ local[:3, :3].T + local[:3, 3], colours)
        place = element_place(model, geom)
        element.attrib.pop("rgba", None)
        element.attrib.update(mesh=own, material=material, type="mesh")
        set_place(element, place)
    # The inertia of what the object was before: a coarser surface does not make it lighter.
    number = int(model.body(name).id)
    turn = placed(np.zeros(3), model.body_iquat[number])[:3, :3]
    inertia = turn @ np.diag(model.body_inertia[number]) @ turn.T
    set_inertia(body, float(model.body_mass[number]), np.asarray(model.body_ipos[number]), inertia)
    _drop_unused(files.tree)
    return sum(sizes), after


def surface_points(scene: Scene, name: str, seed: int, geoms: Sequence[int] | None = None) -> tuple[Array, Array]:
    """Points spread over what is shown of an object, in its frame [n, 3], and their colours [n, 3], 0 to 1."""
    body = int(scene.model.body(name).id)
    own = [shape for shape in exported_shapes(scene) if shape.body == body]
    if geoms is not None:
        wanted = {scene.model.geom(g).name or f"geom{g}" for g in geoms}
        own = [shape for shape in own if shape.name in wanted]
    own = [shape for shape in own if shape.shown] or own
    if not own:
        raise BadInput(f"{name!r} has no shape that could be replaced.")
    rng = np.random.default_rng((seed, 0xED))
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


def _save_textured(files: SceneFiles, own: str, mesh: TriangleMesh, points: Array, colours: Array) -> str:
    """Write a mesh with a texture of the colours of points near it, and their elements; the material's name."""
    texture, folder = texture_from_points(mesh, points, colours), _mesh_folder(files)
    mesh.save_obj(folder / f"{own}.obj", texture.texels)
    (folder / f"{own}.png").write_bytes(encode_png(texture.image))
    assets = _assets(files.tree)
    ET.SubElement(assets, "texture", {"name": own, "type": "2d", "file": f"meshes/{own}.png"})
    ET.SubElement(assets, "material", {"name": own, "texture": own, "specular": "0"})
    ET.SubElement(assets, "mesh", {"name": own, "file": f"meshes/{own}.obj", "inertia": "shell", "scale": "1 1 1"})
    return own


def _on_surface(
    mesh: TriangleMesh, points: Array, colours: Array, former: Gaussians | None, seed: int
) -> Gaussians | None:
    """As many flat Gaussians on a mesh as the object had, in the colours of points near it; None where it had none."""
    from scipy.spatial import cKDTree

    if former is None:
        return None
    places, face = mesh.sampled(len(former), np.random.default_rng((seed, 0x6A)))
    pitch = float(np.sqrt(mesh.areas.sum() / len(former)))
    near = np.asarray(cKDTree(points).query(places)[1], int)
    flat = np.array([0.6, 0.6, 0.12]) * pitch
    return gaussians_from_colours(places, flat, colours[near], quats=orientations(mesh.normals[face]), opacities=0.9)


def _mesh_folder(files: SceneFiles) -> Path:
    out = files.scene.source.path.parent / "meshes"
    out.mkdir(exist_ok=True)
    return out


def _assets(tree: ET.Element) -> ET.Element:
    found = tree.find("asset")
    return ET.SubElement(tree, "asset") if found is None else found


def _free_name(tree: ET.Element, name: str) -> str:
    """The name, or with a number where an asset has it already."""
    taken = {asset.get("name") for asset in tree.findall("asset/*")}
    names = [name, *(f"{name}_{k}" for k in range(2, len(taken) + 3))]
    return next(one for one in names if one not in taken)


def _drop_unused(tree: ET.Element) -> None:
    """Remove meshes, materials and textures that nothing names any more."""
    for kind in ("mesh", "material", "texture"):
        used = {element.get(kind) for element in tree.iter() if element.tag != kind}
        for assets in tree.findall("asset"):
            for asset in [one for one in assets.findall(kind) if one.get("name") and one.get("name") not in used]:
                if not asset.get("builtin") and asset.get("type") != "skybox":
                    assets.remove(asset)


PLACES = ("pos", "quat", "euler", "axisangle", "xyaxes", "zaxis", "fromto")
"""Attributes that say where an element is."""
SPLATS = "splats"


@array_dataclass
class SceneFiles:
    """A scene folder with one model file, and the scene that it holds."""

    folder: Path
    scene: Scene
    tree: ET.Element

    @classmethod
    def open(cls, folder: Path) -> SceneFiles:
        """The files of a folder as they are."""
        scene = Scene.load(folder)
        with parsing(scene.source.path, "XML"):
            tree = ET.fromstring(read_text(scene.source.path, MAX_XML))  # noqa: S314 - checked by Scene.load
        return cls(folder, scene, tree)

    def body(self, name: str) -> ET.Element:
        """The element of an object, which must be written in the model's file and carry no other body."""
        if name not in self.scene.objects:
            raise UnknownName("object of the scene", name, self.scene.objects)
        found = [body for world in self.tree.findall("worldbody") for body in world.findall("body")]
        body = next((one for one in found if one.get("name") == name), None)
        if body is None or body.find("body") is not None:
            raise BadInput(
                f"{name!r} comes with a model that the scene attaches, or carries other bodies; only an object that is "
                "one body, written in the scene's own files, can be edited."
            )
        return body

    def geoms(self, name: str) -> list[int]:
        """The numbers of the shapes of an object, in the order of its elements."""
        body = int(self.scene.model.body(name).id)
        return [g for g in range(self.scene.model.ngeom) if self.scene.model.geom_bodyid[g] == body]

    def world_from_body(self, name: str) -> Array:
        """The pose of an object where the scene starts (4 x 4)."""
        self.body(name)
        drawn = [label for label in self.scene.initial if label.rpartition(".")[0] == name]
        if drawn:
            raise BadInput(
                f"Where {name!r} starts is drawn from {drawn[0]!r} and its like under [start] of scene.toml; change "
                "those ranges instead."
            )
        model, data = self.scene.model, mujoco.MjData(self.scene.model)
        data.qpos[:] = self.scene.start(0)[0]
        mujoco.mj_kinematics(model, data)
        out, body = np.eye(4), int(model.body(name).id)
        out[:3, :3], out[:3, 3] = data.xmat[body].reshape(3, 3), data.xpos[body]
        return out

    def coordinates(self, name: str) -> tuple[int, int]:
        """The first position and velocity of a free body in the model's vectors."""
        joint = int(self.scene.model.body_jntadr[self.scene.model.body(name).id])
        return int(self.scene.model.jnt_qposadr[joint]), int(self.scene.model.jnt_dofadr[joint])

    def place(self, name: str, world_from_body: Array) -> None:
        """Put an object elsewhere where the scene starts."""
        body, place, (at, _) = self.body(name), pose_of(world_from_body), self.coordinates(name)
        set_place(body, world_from_body)
        key = self.scene.initial.get("keyframe")
        for frame in (one for one in self.tree.findall("keyframe/key") if one.get("name") == key and key):
            numbers = frame.get("qpos", "").split()
            if numbers:
                frame.set("qpos", " ".join([*numbers[:at], *map(_word, place), *numbers[at + 7 :]]))

    def lift(self, name: str, rise: float) -> None:
        """Raise an object where the scene starts, also one whose place on the table is drawn from ranges."""
        number, (at, _) = int(self.scene.model.body(name).id), self.coordinates(name)
        place = placed(self.scene.model.body_pos[number], self.scene.model.body_quat[number])
        place[2, 3] += rise
        set_place(self.body(name), place)
        key = self.scene.initial.get("keyframe")
        for frame in (one for one in self.tree.findall("keyframe/key") if one.get("name") == key and key):
            numbers = frame.get("qpos", "").split()
            if numbers:
                numbers[at + 2] = _word(float(numbers[at + 2]) + rise)
                frame.set("qpos", " ".join(numbers))

    def facts(self, change: Callable[[Any], None]) -> None:
        """Change scene.toml; its comments stay."""
        import tomlkit

        path = self.folder / SCENE_FILE
        table = commented_table(path)
        change(table)
        path.write_text(tomlkit.dumps(table), encoding="utf-8")

    def gaussians(self, name: str) -> Gaussians | None:
        """The Gaussians of an object in its frame; None where it has none."""
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
        """Write the model and open the folder again; an edit that leaves no scene is refused here."""
        ET.indent(self.tree)
        self.scene.source.path.write_text(ET.tostring(self.tree, encoding="unicode") + "\n", encoding="utf-8")
        return SceneFiles.open(self.folder)


def element_place(model: Any, geom: int) -> Array:
    """Where the element of a shape is on its body (4 x 4): of a mesh, the frame of its file."""
    out = placed(model.geom_pos[geom], model.geom_quat[geom])
    mesh = int(model.geom_dataid[geom])
    if int(model.geom_type[geom]) == int(mujoco.mjtGeom.mjGEOM_MESH):
        out = out @ np.linalg.inv(placed(model.mesh_pos[mesh], model.mesh_quat[mesh]))
    return out


def placed(position: Any, quat: Any) -> Array:
    """A transform (4 x 4) of a position and a quaternion."""
    out = np.eye(4)
    out[:3, :3], out[:3, 3] = matrix_from_quat(np.asarray(quat, float)), position
    return out


def set_place(element: ET.Element, parent_from_element: Array) -> None:
    """Say where an element is, by position and quaternion alone."""
    for attribute in PLACES:
        element.attrib.pop(attribute, None)
    place = pose_of(parent_from_element)
    element.set("pos", words(place[:3]))
    element.set("quat", words(place[3:]))


def set_inertia(body: ET.Element, mass: float, centre: Array, inertia: Array) -> None:
    """State mass [kg], centre [3] [m] and inertia about it [3, 3] of a body, in its frame."""
    for own in body.findall("inertial"):
        body.remove(own)
    full = [inertia[0, 0], inertia[1, 1], inertia[2, 2], inertia[0, 1], inertia[0, 2], inertia[1, 2]]
    given = {"pos": words(centre), "mass": _word(mass), "fullinertia": words(full)}
    body.insert(0, ET.Element("inertial", given))


def words(numbers: Array | Sequence[float]) -> str:
    """Numbers as an attribute of MJCF."""
    return " ".join(_word(x) for x in np.asarray(numbers, float))


def _word(number: float) -> str:
    return f"{float(number):.9g}"


MAX_FALL_M = 2.0
"""How far below an object its support is searched [m]."""
_STEP_M = 1e-3
"""Least step of the search [m]."""
_TOUCHING_M = 1e-4
"""Depth up to which two shapes count as touching [m]: what stands beside an object does not hold it up."""
_PRECISION_M = 1e-6


def settled_height(model: Any, q: Array, name: str) -> float:
    """How far an object at positions `q` must be raised (negative: lowered) to rest on what is below it [m]."""
    body, data = int(model.body(name).id), mujoco.MjData(model)
    at = int(model.jnt_qposadr[model.body_jntadr[body]])
    pairs = _pairs(model, body)

    def gap(rise: float) -> float:
        """Least distance of the object from anything [m], negative inside; up to the longest fall."""
        data.qpos[:] = q
        data.qpos[at + 2] += rise
        mujoco.mj_kinematics(model, data)
        distance = getattr(mujoco, "mj_geomDistance")  # noqa: B009 - not in its types
        return min((float(distance(model, data, a, b, MAX_FALL_M, None)) for a, b in pairs), default=MAX_FALL_M)

    rise, apart = 0.0, gap(0.0)
    if apart < -_TOUCHING_M:
        while apart < 0:
            rise += max(_STEP_M, 0.5 * -apart)
            apart = gap(rise)
            if rise > MAX_FALL_M:
                raise BadInput(f"{name!r} is inside something and cannot be raised out of it; move it elsewhere.")
        return _bisected(gap, rise - max(_STEP_M, apart + _STEP_M), rise)
    free = rise
    while apart >= -_TOUCHING_M:
        free = rise
        rise -= max(_STEP_M, apart)
        if rise < -MAX_FALL_M:
            raise BadInput(f"Nothing is below {name!r} within {MAX_FALL_M:g} m there; move it above a table or floor.")
        apart = gap(rise)
    return _bisected(gap, rise, free)


def _pairs(model: Any, body: int) -> Sequence[tuple[int, int]]:
    """The shapes of a body, each with every other shape that it collides with."""
    own = [g for g in range(model.ngeom) if model.geom_bodyid[g] == body]
    rest = [g for g in range(model.ngeom) if model.geom_bodyid[g] != body]
    types, answers = model.geom_contype, model.geom_conaffinity
    return [(a, b) for a in own for b in rest if types[a] & answers[b] or types[b] & answers[a]]


def _bisected(gap: Any, low: float, high: float) -> float:
    """The least rise between a sunk and a free one at which nothing is sunk into."""
    while high - low > _PRECISION_M:
        middle = (low + high) / 2
        low, high = (low, middle) if gap(middle) >= 0 else (middle, high)
    return float(np.float64(high))
