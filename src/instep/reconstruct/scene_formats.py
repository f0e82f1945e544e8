"""Scenes as files of other programs: MJCF with OBJ meshes, URDF, glTF and OpenUSD; and their shapes as triangles.

A URDF link of a body with a joint has its origin at the joint, so shapes and inertia are shifted by it. A body with
several joints becomes a chain of links of negligible mass, since engines refuse moving links without mass.
"""

from __future__ import annotations

import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path, PurePosixPath
from typing import Any

import mujoco
import numpy as np

from instep import __version__
from instep.core.errors import BadInput, Unsupported
from instep.core.poses import matrix_from_quat, normalized, transform
from instep.core.world import Array, array_dataclass
from instep.data.frames import encode_png
from instep.scene.folder import Scene
from instep.splat.gaussians import Gaussians
from instep.splat.rendering import scene_poses
from instep.splat.scene_files import NAME, Z_UP_NODE, GltfBuffer, fill_splat, gaussian_primitive, usd_library

from .shape.triangle_mesh import TriangleMesh, hull_mesh

MESHES = "meshes"
"""Folder of the meshes beside a URDF file."""
_LINK_KG, _LINK_KGM2 = 1e-6, 1e-9
"""Mass and inertia of URDF links between two joints of one body."""
_EFFORT, _VELOCITY = 1e3, 1e2
"""Limits of joints without any in the model; URDF demands some."""
_FILES = ("file", "fileright", "fileleft", "fileup", "filedown", "filefront", "fileback")
_CUBE = np.array(list(product((-1.0, 1.0), repeat=3)))
_SIDES = 24
"""Corners of the circles of round shapes."""
_SLAB_M = 0.01
"""Thickness of a plane [m]: engines refuse flat meshes."""


@array_dataclass
class ExportedShape:
    """One geom as triangles in the frame of its body."""

    name: str
    body: int
    """Index of its body in the model."""
    mesh: TriangleMesh
    rgba: Array
    """[4], 0 to 1."""
    collides: bool
    shown: bool
    texels: Array | None = None
    """Texture coordinates of every corner of every face [faces, 3, 2], from the top left."""
    texture: bytes | None = None
    """PNG."""


def exported_shapes(scene: Scene) -> list[ExportedShape]:
    """Every geom of a scene that has a shape, as triangles."""
    model, found = scene.model, list[ExportedShape]()
    for geom in range(model.ngeom):
        mesh = _local_mesh(model, geom)
        if mesh is None:
            continue
        place = placed(model.geom_pos[geom], model.geom_quat[geom])
        collides = bool(model.geom_contype[geom] or model.geom_conaffinity[geom])
        # Geoms of this group and above are not shown, as in MuJoCo's viewer.
        shown = int(model.geom_group[geom]) < 3 and model.geom_rgba[geom][3] > 0
        texels, texture = _texture(model, geom)
        name = model.geom(geom).name or f"geom{geom}"
        found.append(
            ExportedShape(
                name, int(model.geom_bodyid[geom]), mesh.moved(place), _colour(model, geom), collides, bool(shown),
                texels, texture,
            )
        )  # fmt: skip
    return found


def mesh_triangles(model: Any, mesh: int) -> TriangleMesh:
    """A mesh of a model in the model's own frame of it, vertices as they are stored."""
    first, count = int(model.mesh_vertadr[mesh]), int(model.mesh_vertnum[mesh])
    begin, faces = int(model.mesh_faceadr[mesh]), int(model.mesh_facenum[mesh])
    points = np.array(model.mesh_vert[first : first + count], float)
    return TriangleMesh(points, np.array(model.mesh_face[begin : begin + faces], np.int32))


def placed(position: Any, quat: Any) -> Array:
    """A transform (4 x 4) of a position and a quaternion."""
    return transform(np.concatenate([np.asarray(position, float), np.asarray(quat, float)]))


def mjcf_words(numbers: Array | Sequence[float]) -> str:
    """Numbers as an attribute of XML."""
    return " ".join(f"{float(x):.9g}" for x in numbers)


def mesh_texels(model: Any, mesh: int) -> Array | None:
    """Texture coordinates of every corner of every face of a mesh [faces, 3, 2], from the top left; None without."""
    first = int(model.mesh_texcoordadr[mesh])
    if first < 0 or not model.mesh_texcoordnum[mesh]:
        return None
    begin, faces = int(model.mesh_faceadr[mesh]), int(model.mesh_facenum[mesh])
    corners = np.asarray(model.mesh_facetexcoord[begin : begin + faces])
    return np.array(model.mesh_texcoord[first + corners], float)


def _local_mesh(model: Any, geom: int) -> TriangleMesh | None:
    """A geom as triangles in its own frame; None for a kind without a surface."""
    kind, size = int(model.geom_type[geom]), np.asarray(model.geom_size[geom], float)
    types = mujoco.mjtGeom
    if kind == int(types.mjGEOM_MESH):
        return mesh_triangles(model, int(model.geom_dataid[geom]))
    if kind == int(types.mjGEOM_PLANE):
        x, y = (side if side > 0 else 1.0 for side in size[:2])  # half the side of an endless plane [m]
        size, shift = np.array([x, y, _SLAB_M / 2]), np.array([0.0, 0.0, -_SLAB_M / 2])
        return hull_mesh(_CUBE * size + shift)
    angle = 2 * np.pi * np.arange(_SIDES) / _SIDES
    circle = np.stack([np.cos(angle), np.sin(angle), np.zeros(_SIDES)], axis=1)
    tilts = np.pi * np.arange(1, _SIDES // 2) / (_SIDES // 2) - np.pi / 2
    ball = np.concatenate(
        [np.cos(a) * circle + [0.0, 0.0, np.sin(a)] for a in tilts] + [[[0.0, 0.0, 1.0], [0.0, 0.0, -1.0]]]
    )
    ends = np.array([[0.0, 0.0, size[1]], [0.0, 0.0, -size[1]]])
    if kind == int(types.mjGEOM_BOX):
        return hull_mesh(_CUBE * size)
    if kind == int(types.mjGEOM_SPHERE):
        return hull_mesh(size[0] * ball)
    if kind == int(types.mjGEOM_ELLIPSOID):
        return hull_mesh(size * ball)
    if kind == int(types.mjGEOM_CYLINDER):
        return hull_mesh(np.concatenate([size[0] * circle + end for end in ends]))
    if kind == int(types.mjGEOM_CAPSULE):
        half = size[0] * ball[ball[:, 2] >= -1e-9]
        return hull_mesh(np.concatenate([half + ends[0], half * [1.0, 1.0, -1.0] + ends[1]]))
    return None


def _colour(model: Any, geom: int) -> Array:
    """The colour of a geom [4]: that of its texture on average, else its own, else that of its material."""
    pixels, material = _pixels(model, geom), int(model.geom_matid[geom])
    if pixels is not None:
        return np.append(pixels.reshape(-1, 3).mean(axis=0) / 255, 1.0)
    grey = np.array([0.5, 0.5, 0.5, 1.0])
    own = np.asarray(model.geom_rgba[geom], float)
    return own if material < 0 or not np.allclose(own, grey) else np.array(model.mat_rgba[material], float)


def _texture(model: Any, geom: int) -> tuple[Array | None, bytes | None]:
    """Texture coordinates and image of a geom whose mesh has both; None else."""
    mesh = int(model.geom_dataid[geom])
    if mesh < 0 or int(model.geom_type[geom]) != int(mujoco.mjtGeom.mjGEOM_MESH):
        return None, None
    pixels, texels = _pixels(model, geom), mesh_texels(model, mesh)
    return (None, None) if pixels is None or texels is None else (texels, encode_png(pixels))


def _pixels(model: Any, geom: int) -> Array | None:
    """The texture of a geom's material [height, width, 3] uint8; None without."""
    material = int(model.geom_matid[geom])
    texture = -1 if material < 0 else int(np.max(model.mat_texid[material]))
    if texture < 0:
        return None
    height, width, channels = (int(n[texture]) for n in (model.tex_height, model.tex_width, model.tex_nchannel))
    begin = int(model.tex_adr[texture])
    pixels = np.asarray(model.tex_data[begin : begin + height * width * channels]).reshape(height, width, channels)
    return np.ascontiguousarray(pixels[..., :3] if channels >= 3 else np.repeat(pixels[..., :1], 3, axis=2))


def save_scene_mjcf(path: Path, scene: Scene) -> None:
    """Write the model without includes: meshes as meshes/NAME.obj in metres, other files under assets/."""
    tree = mjcf_tree(path.parent, scene)
    ET.indent(tree)
    path.write_text(ET.tostring(tree, encoding="unicode") + "\n", encoding="utf-8")


def mjcf_tree(folder: Path, scene: Scene) -> ET.Element:
    """The model of a scene as MJCF, after its meshes and other files were written into a folder."""
    source = scene.source
    xml = source.xml
    if source.urdf:
        xml = mujoco.MjSpec.from_string(xml, assets=dict(source.files)).to_xml()
    tree = ET.fromstring(xml)  # noqa: S314 - checked by read_source
    for compiler in tree.findall("compiler"):
        for place in ("meshdir", "texturedir", "assetdir"):
            compiler.attrib.pop(place, None)
    for mesh in tree.findall("asset/mesh"):
        if "file" in mesh.attrib:
            _write_mesh(folder, scene, mesh)
    for element in tree.iter():
        for attribute in _FILES:
            name = element.get(attribute)
            if name in source.files:
                (folder / "assets").mkdir(parents=True, exist_ok=True)
                (folder / "assets" / name).write_bytes(source.files[name])
                element.set(attribute, f"assets/{name}")
    return tree


def _write_mesh(folder: Path, scene: Scene, element: ET.Element) -> None:
    """Write a mesh in the frame of its file, scaled, and point its element to it."""
    name = element.get("name") or PurePosixPath(element.get("file", "")).stem
    model, mesh = scene.model, int(scene.model.mesh(name).id)
    file_from_mesh = placed(model.mesh_pos[mesh], model.mesh_quat[mesh])
    texels = mesh_texels(model, mesh)
    place = folder / "meshes" / f"{PurePosixPath(name).name}.obj"
    place.parent.mkdir(parents=True, exist_ok=True)
    mesh_triangles(model, mesh).moved(file_from_mesh).save_obj(
        place, None if texels is None else texels * [1.0, -1.0] + [0.0, 1.0]
    )
    element.attrib.update(name=name, file=f"meshes/{place.name}", scale="1 1 1", refpos="0 0 0", refquat="1 0 0 0")
    element.attrib.pop("content_type", None)


def save_scene_urdf(path: Path, scene: Scene) -> None:
    """Write the bodies of a scene as one tree of links whose root is the world."""
    model = scene.model
    (path.parent / MESHES).mkdir(parents=True, exist_ok=True)
    root = ET.Element("robot", {"name": scene.name})
    # MuJoCo's reader drops folders of mesh files and visual shapes unless it is asked to keep them.
    ET.SubElement(ET.SubElement(root, "mujoco"), "compiler", {"strippath": "false", "discardvisual": "false"})
    shapes = exported_shapes(scene)
    origins: list[Array] = []
    for body in range(model.nbody):
        origins.append(_add_joints(root, model, body, origins))
        link = ET.SubElement(root, "link", {"name": model.body(body).name})
        if body > 0 and model.body_mass[body] > 0:
            turn = matrix_from_quat(np.asarray(model.body_iquat[body], float))
            I = turn @ np.diag(np.asarray(model.body_inertia[body], float)) @ turn.T
            centre = np.asarray(model.body_ipos[body], float) - origins[body]
            _set_inertia(link, centre, float(model.body_mass[body]), I)
        for shape in (shape for shape in shapes if shape.body == body):
            _add_shape(link, path.parent, shape, origins[body])
    ET.indent(root)
    path.write_text(ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n", encoding="utf-8")


def _add_joints(root: ET.Element, model: Any, body: int, origins: list[Array]) -> Array:
    """Add the joints of a body to its parent; the origin of its link in the body's frame [3]."""
    own = np.zeros(3)
    if body == 0:
        return own
    name, parent = model.body(body).name, int(model.body_parentid[body])
    place, turn = np.array(model.body_pos[body], float), matrix_from_quat(np.asarray(model.body_quat[body], float))
    first, count = int(model.body_jntadr[body]), int(model.body_jntnum[body])
    above, start = model.body(parent).name, place - origins[parent]
    if not count:
        _add_joint(root, f"{name}_fixed", "fixed", (above, name), start, turn)
    for k, joint in enumerate(range(first, first + count)):
        anchor = np.array(model.jnt_pos[joint], float)
        below = name if k == count - 1 else f"{name}_{model.joint(joint).name}"
        if below != name:
            _set_inertia(ET.SubElement(root, "link", {"name": below}), np.zeros(3), _LINK_KG, _LINK_KGM2 * np.eye(3))
        shift = start + turn @ anchor if k == 0 else anchor - own
        label = model.joint(joint).name
        element = _add_joint(root, label, _kind(model, joint), (above, below), shift, turn if k == 0 else np.eye(3))
        if element.get("type") != "floating":
            _set_limits(element, model, joint)
        above, own = below, anchor
    return own


def _add_joint(root: ET.Element, name: str, kind: str, ends: tuple[str, str], place: Array, turn: Array) -> ET.Element:
    element = ET.SubElement(root, "joint", {"name": name, "type": kind})
    ET.SubElement(element, "parent", {"link": ends[0]})
    ET.SubElement(element, "child", {"link": ends[1]})
    _set_origin(element, place, turn)
    return element


def _kind(model: Any, joint: int) -> str:
    """The type of a joint in URDF."""
    kinds, kind = mujoco.mjtJoint, int(model.jnt_type[joint])
    if kind == int(kinds.mjJNT_BALL):
        name = model.joint(joint).name
        raise Unsupported(f"The joint {name!r} is a ball joint, which URDF does not have; export .usdc or a folder.")
    if kind == int(kinds.mjJNT_FREE):
        return "floating"
    if kind != int(kinds.mjJNT_HINGE):
        return "prismatic"
    return "revolute" if model.jnt_limited[joint] else "continuous"


def _set_limits(element: ET.Element, model: Any, joint: int) -> None:
    """Axis, limits and friction of a hinge or a slide."""
    ET.SubElement(element, "axis", {"xyz": mjcf_words(model.jnt_axis[joint])})
    low, high = (float(x) for x in model.jnt_range[joint]) if model.jnt_limited[joint] else (-1e3, 1e3)
    bounds = {} if element.get("type") == "continuous" else {"lower": f"{low:.9g}", "upper": f"{high:.9g}"}
    forces = [
        float(np.abs(model.actuator_forcerange[a]).max())
        for a in range(model.nu)
        if int(model.actuator_trnid[a][0]) == joint and model.actuator_forcelimited[a]
    ]
    effort = max(forces, default=_EFFORT)
    ET.SubElement(element, "limit", {**bounds, "effort": f"{effort:.9g}", "velocity": f"{_VELOCITY:g}"})
    dof = int(model.jnt_dofadr[joint])
    given = {"damping": f"{model.dof_damping[dof]:.9g}", "friction": f"{model.dof_frictionloss[dof]:.9g}"}
    ET.SubElement(element, "dynamics", given)


def _set_inertia(link: ET.Element, centre: Array, mass: float, I: Array) -> None:
    element = ET.SubElement(link, "inertial")
    _set_origin(element, centre, np.eye(3))
    ET.SubElement(element, "mass", {"value": f"{mass:.9g}"})
    entries = {"ixx": I[0, 0], "ixy": I[0, 1], "ixz": I[0, 2], "iyy": I[1, 1], "iyz": I[1, 2], "izz": I[2, 2]}
    ET.SubElement(element, "inertia", {key: f"{value:.9g}" for key, value in entries.items()})


def _add_shape(link: ET.Element, folder: Path, shape: ExportedShape, origin: Array) -> None:
    file = f"{MESHES}/{shape.name}.obj"
    texels = None if shape.texels is None else shape.texels * [1.0, -1.0] + [0.0, 1.0]
    shape.mesh.save_obj(folder / file, texels)
    kinds = [kind for kind, wanted in (("visual", shape.shown), ("collision", shape.collides)) if wanted]
    for kind in kinds:
        element = ET.SubElement(link, kind, {"name": f"{shape.name}_{kind}"})
        _set_origin(element, -origin, np.eye(3))
        ET.SubElement(ET.SubElement(element, "geometry"), "mesh", {"filename": file})
        if kind == "visual":
            material = ET.SubElement(element, "material", {"name": f"{shape.name}_material"})
            ET.SubElement(material, "color", {"rgba": mjcf_words(np.clip(shape.rgba, 0, 1))})


def _set_origin(element: ET.Element, place: Array, turn: Array) -> None:
    """Roll, pitch and yaw about fixed axes, as URDF has them: R = Rz(yaw) Ry(pitch) Rx(roll)."""
    pitch = float(np.arctan2(-turn[2, 0], np.hypot(turn[0, 0], turn[1, 0])))
    if np.hypot(turn[0, 0], turn[1, 0]) > 1e-9:
        roll, yaw = np.arctan2(turn[2, 1], turn[2, 2]), np.arctan2(turn[1, 0], turn[0, 0])
    else:  # straight up or down: roll and yaw are about one axis
        roll, yaw = np.arctan2(-turn[1, 2], turn[1, 1]), 0.0
    ET.SubElement(element, "origin", {"xyz": mjcf_words(place), "rpy": mjcf_words(np.array([roll, pitch, yaw], float))})


def save_scene_gltf(path: Path, scene: Scene, gaussians: Gaussians | None = None) -> None:
    """Write the visible shapes of a scene at its start as binary glTF, and Gaussians by KHR_gaussian_splatting."""
    buffer, root = GltfBuffer(), dict[str, Any](Z_UP_NODE, children=[])
    nodes, meshes, materials, images = [root], list[dict[str, Any]](), list[dict[str, Any]](), list[dict[str, Any]]()
    splats = False
    for name, pose, shapes, part in _drawn_bodies(scene, gaussians):
        shown = [shape for shape in shapes if shape.shown]
        if not shown and part is None:
            continue
        w, x, y, z = (float(q) for q in pose[3:])
        node: dict[str, Any] = {"name": name, "translation": pose[:3].tolist(), "rotation": [x, y, z, w]}
        if shown:
            node["mesh"] = len(meshes)
            primitives = [
                {**_triangles(shape, buffer), "material": len(materials) + k} for k, shape in enumerate(shown)
            ]
            meshes.append({"name": name, "primitives": primitives})
            materials += [_material(shape, buffer, images) for shape in shown]
        root["children"].append(len(nodes))
        nodes.append(node)
        if part is not None:  # a node of its own, named after the body, for readers of Gaussians alone
            splats, node["children"] = True, [len(nodes)]
            nodes.append({"name": name, "mesh": len(meshes)})
            meshes.append({"name": name, "primitives": [gaussian_primitive(part, buffer)]})
    document: dict[str, Any] = {
        "asset": {"version": "2.0", "generator": f"instep {__version__}"},
        "scene": 0, "scenes": [{"nodes": [0]}], "nodes": nodes, "meshes": meshes, "materials": materials,
        "images": images, "textures": [{"source": k, "sampler": 0} for k in range(len(images))],
        "samplers": [{"magFilter": 9728, "minFilter": 9728, "wrapS": 10497, "wrapT": 10497}] if images else [],
        "extensionsUsed": [NAME] if splats else [],
    }  # fmt: skip
    buffer.write(path, {key: value for key, value in document.items() if value != []})


def _drawn_bodies(
    scene: Scene, gaussians: Gaussians | None
) -> Iterator[tuple[str, Array, list[ExportedShape], Gaussians | None]]:
    """Name, pose at the start (xyz, wxyz), shapes and Gaussians of every body."""
    names = [scene.model.body(b).name for b in range(scene.model.nbody)]
    poses, shapes = scene_poses(scene, names, scene.start(0)[0]), exported_shapes(scene)
    for body, name in enumerate(names):
        part = None if gaussians is None or name not in gaussians.names else gaussians.on(name)
        own = [shape for shape in shapes if shape.body == body]
        yield name, np.asarray(poses[body], float), own, part if part is not None and len(part) else None


def _triangles(shape: ExportedShape, buffer: GltfBuffer) -> dict[str, Any]:
    """A primitive in which every corner has its own vertex: normals and textures change from face to face."""
    corners, normals = np.asarray(shape.mesh.corners.reshape(-1, 3), np.float32), shape.mesh.normals
    normals = np.where(np.linalg.norm(normals, axis=1, keepdims=True) > 0, normals, [0.0, 0.0, 1.0])
    low, high = corners.min(axis=0).tolist(), corners.max(axis=0).tolist()
    attributes = {"POSITION": buffer.accessor(corners, min=low, max=high)}
    attributes["NORMAL"] = buffer.accessor(np.repeat(normals, 3, axis=0))
    if shape.texels is not None and shape.texture is not None:
        attributes["TEXCOORD_0"] = buffer.accessor(shape.texels.reshape(-1, 2))
    return {"attributes": attributes, "indices": buffer.accessor(np.arange(len(corners)))}


def _material(shape: ExportedShape, buffer: GltfBuffer, images: list[dict[str, Any]]) -> dict[str, Any]:
    surface: dict[str, Any] = {"metallicFactor": 0.0, "roughnessFactor": 0.9}
    if shape.texture is not None:
        surface["baseColorTexture"] = {"index": len(images)}
        images.append({"bufferView": buffer.view(shape.texture), "mimeType": "image/png"})
    else:
        surface["baseColorFactor"] = np.clip(shape.rgba, 0.0, 1.0).tolist()
    found = {"name": shape.name, "pbrMetallicRoughness": surface, "doubleSided": True}
    return {**found, **({"alphaMode": "BLEND"} if shape.rgba[3] < 1 else {})}


def save_scene_usd(path: Path, scene: Scene, gaussians: Gaussians | None = None) -> None:
    """Write a scene at its start as .usda, .usdc or .usdz, without joints; Z up, in metres."""
    pxr = usd_library()
    if path.suffix == ".usdz":
        with tempfile.TemporaryDirectory() as folder:
            inner = Path(folder) / f"{path.stem}.usdc"
            _write(pxr, inner, scene, gaussians)
            path.unlink(missing_ok=True)
            if not pxr.UsdUtils.CreateNewUsdzPackage(pxr.Sdf.AssetPath(str(inner)), str(path)):
                raise BadInput(f"{path.name} could not be packed; is its folder writable?")
    else:
        path.unlink(missing_ok=True)
        _write(pxr, path, scene, gaussians)


def _write(pxr: Any, path: Path, scene: Scene, gaussians: Gaussians | None) -> None:
    try:
        stage = pxr.Usd.Stage.CreateNew(str(path))
    except pxr.Tf.ErrorException:
        raise BadInput(f"{path.name} could not be created; is its folder writable?") from None
    pxr.UsdGeom.SetStageUpAxis(stage, pxr.UsdGeom.Tokens.z)
    pxr.UsdGeom.SetStageMetersPerUnit(stage, 1.0)
    stage.SetDefaultPrim(pxr.UsdGeom.Xform.Define(stage, "/scene").GetPrim())
    gravity = np.asarray(scene.model.opt.gravity, float)
    strength = float(np.linalg.norm(gravity))
    physics = pxr.UsdPhysics.Scene.Define(stage, "/scene/physics")
    physics.CreateGravityDirectionAttr(pxr.Gf.Vec3f(*(gravity / max(strength, 1e-9)).tolist()))
    physics.CreateGravityMagnitudeAttr(strength)
    for body, (name, pose, shapes, part) in enumerate(_drawn_bodies(scene, gaussians)):
        place = f"/scene/{pxr.Tf.MakeValidIdentifier(name)}"
        prim = pxr.UsdGeom.Xform.Define(stage, place)
        prim.GetPrim().SetDisplayName(name)
        w, x, y, z = (float(q) for q in normalized(pose[3:]))
        prim.AddTranslateOp().Set(pxr.Gf.Vec3d(*pose[:3].tolist()))
        prim.AddOrientOp().Set(pxr.Gf.Quatf(w, x, y, z))
        if name in scene.objects:
            _add_mass(pxr, prim.GetPrim(), scene.model, body)
        for shape in shapes:
            _add_usd_shape(pxr, stage, f"{place}/{pxr.Tf.MakeValidIdentifier(shape.name)}", shape)
        if part is not None:
            fill_splat(pxr, pxr.UsdVol.ParticleField3DGaussianSplat.Define(stage, f"{place}/gaussians"), part)
            stage.GetPrimAtPath(f"{place}/gaussians").SetDisplayName(name)
    stage.GetRootLayer().Save()


def _add_mass(pxr: Any, prim: Any, model: Any, body: int) -> None:
    """Make a body rigid, with the mass, centre and inertia that it has in the scene."""
    pxr.UsdPhysics.RigidBodyAPI.Apply(prim)
    mass = pxr.UsdPhysics.MassAPI.Apply(prim)
    mass.CreateMassAttr(float(model.body_mass[body]))
    mass.CreateCenterOfMassAttr(pxr.Gf.Vec3f(*model.body_ipos[body].tolist()))
    mass.CreateDiagonalInertiaAttr(pxr.Gf.Vec3f(*model.body_inertia[body].tolist()))
    mass.CreatePrincipalAxesAttr(pxr.Gf.Quatf(*model.body_iquat[body].tolist()))


def _add_usd_shape(pxr: Any, stage: Any, place: str, shape: ExportedShape) -> None:
    mesh, triangles = pxr.UsdGeom.Mesh.Define(stage, place), shape.mesh
    mesh.CreatePointsAttr(pxr.Vt.Vec3fArray.FromNumpy(np.ascontiguousarray(triangles.vertices, np.float32)))
    mesh.CreateFaceVertexCountsAttr(pxr.Vt.IntArray([3] * len(triangles.faces)))
    mesh.CreateFaceVertexIndicesAttr(pxr.Vt.IntArray(triangles.faces.ravel().tolist()))
    mesh.CreateSubdivisionSchemeAttr("none")
    mesh.CreateExtentAttr(pxr.Vt.Vec3fArray.FromNumpy(np.ascontiguousarray(triangles.bounds, np.float32)))
    mesh.CreateDisplayColorAttr([pxr.Gf.Vec3f(*np.clip(shape.rgba[:3], 0, 1).tolist())])
    if not shape.shown:
        mesh.CreatePurposeAttr("guide")
    if shape.collides:
        pxr.UsdPhysics.CollisionAPI.Apply(mesh.GetPrim())
        collision = pxr.UsdPhysics.MeshCollisionAPI.Apply(mesh.GetPrim())
        collision.CreateApproximationAttr("convexHull")
