"""Other meshes for objects of a scene: one from a file in place of the old shape, or the same with fewer faces."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from instep.core.errors import BadInput
from instep.core.reading import read_file
from instep.core.world import Array
from instep.data.frames import decode_image, encode_png
from instep.scene.folder import Scene
from instep.splat.gaussians import Gaussians, gaussians_from_colours
from instep.splat.gaussians_from_geoms import orientations

from .convex_decomposition import convex_parts
from .exported_shapes import ExportedShape, exported_shapes, mesh_triangles
from .mesh_files import read_mesh
from .mesh_texture import texture_from_points
from .scene_files import SceneFiles, element_place, placed, set_inertia, set_place, words
from .shape import MAX_SIZE_M, MIN_SIZE_M
from .triangle_mesh import TriangleMesh, simplified, without_unused

_SAMPLES = 12_000
"""Points on the former surface whose colours the new one takes."""
_WELD_M = 1e-7
_MAX_BYTES = 1 << 29
_TOUCHING = {"contype": "1", "conaffinity": "1", "condim": "4"}


def read_mesh_file(path: Path) -> TriangleMesh:
    """A closed mesh from an OBJ, STL, PLY or GLB file, in metres."""
    if not path.is_file():
        raise BadInput(f"{str(path)!r} is no mesh that is read; an .obj, .stl, .ply or .glb file was expected.")
    mesh = _welded(read_mesh(read_file(path, _MAX_BYTES), repr(path.name)))
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
    return _welded(found)


def _welded(mesh: TriangleMesh) -> TriangleMesh:
    """The mesh with equal vertices made one, without faces that have no area then."""
    _, index, same = np.unique(np.round(mesh.vertices / _WELD_M), axis=0, return_index=True, return_inverse=True)
    faces = same.reshape(-1)[mesh.faces]
    kept = (faces != np.roll(faces, 1, axis=1)).all(axis=1)
    return without_unused(TriangleMesh(mesh.vertices[index], faces[kept].astype(np.int32)))


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
    meshes = [(g, e) for g, e in zip(files.geoms(name), body.findall("geom"), strict=True) if _is_mesh(model, g)]
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


def _is_mesh(model: Any, geom: int) -> bool:
    return int(model.geom_type[geom]) == int(mujoco.mjtGeom.mjGEOM_MESH)


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
