"""Files of Gaussians that name their bodies: glTF 2.0 (.glb) and OpenUSD (.usda, .usdc, .usdz).

glTF by the extension KHR_gaussian_splatting: each body is a node with a POINTS primitive: linear scales, opacities 0 to
1, rotations xyzw, one VEC3 accessor per harmonic. glTF is Y up and we are Z up, so the root node carries the turn and
the numbers stay as they are.

USD as ParticleField3DGaussianSplat prims, one per body: scales are linear, opacities 0 to 1, quaternions real first,
harmonics one after the other per Gaussian. The stage is Z up in metres. Every file is opened again after it was
written: exports that show nothing are a known complaint.
"""

from __future__ import annotations

import json
import struct
import tempfile
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.errors import BadInput, MissingExtra, Unsupported
from instep.core.poses import matrix_from_quat, normalized
from instep.core.reading import parse_json, read_file
from instep.core.world import Array, frozen_dataclass

from .gaussians import Z_UP_FROM_Y_UP, Gaussians, concatenate

NAME = "KHR_gaussian_splatting"
_GLB, _JSON, _BIN = 0x46546C67, 0x4E4F534A, 0x004E4942
_FLOAT, _INDEX = 5126, 5125
Z_UP_NODE = {"name": "z up", "rotation": [-(0.5**0.5), 0.0, 0.0, 0.5**0.5]}
"""A node that turns what is Z up below it to the Y up of glTF."""
_READ = {
    5120: ("i1", 127.0), 5121: ("u1", 255.0), 5122: ("<i2", 32767.0), 5123: ("<u2", 65535.0),
    _INDEX: ("<u4", 4294967295.0), _FLOAT: ("<f4", 1.0),
}  # fmt: skip
"""Types of components, and the whole number that a normalized one has for 1."""
_WIDTH = {"SCALAR": 1, "VEC2": 2, "VEC3": 3, "VEC4": 4}
MAX_BLOB = 4 << 30
"""Largest file of numbers [bytes]."""
_MAX_DEPTH = 64


def save_gltf(path: Path, gaussians: Gaussians) -> None:
    """Write every body as a node of its name, in one binary .glb file."""
    buffer = GltfBuffer()
    nodes: list[dict[str, Any]] = [{**Z_UP_NODE, "children": []}]
    meshes: list[dict[str, Any]] = []
    for name in gaussians.names:
        part = gaussians.on(name)
        if len(part) == 0:
            continue
        meshes.append({"name": name, "primitives": [gaussian_primitive(part, buffer)]})
        nodes.append({"name": name, "mesh": len(meshes) - 1})
        nodes[0]["children"].append(len(nodes) - 1)
    document = {
        "asset": {"version": "2.0", "generator": "instep"},
        "extensionsUsed": [NAME],
        "scene": 0,
        "scenes": [{"nodes": [0]}],
        "nodes": nodes,
        "meshes": meshes,
    }
    buffer.write(path, document)


def load_gltf(path: Path) -> Gaussians:
    """Read every primitive with Gaussians; the node above it names its body, the nodes' transforms are applied."""
    file = _File(path.name, *read_glb(read_file(path, MAX_BLOB), path.name))
    parts: list[Gaussians] = []
    try:
        scene = file.document["scenes"][file.document.get("scene", 0)]
        for node in scene["nodes"]:
            file.visit(node, Z_UP_FROM_Y_UP, parts, 0)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise BadInput(f"{path.name} is not sound glTF: {type(error).__name__} {error} in its scene.") from None
    if not parts:
        raise BadInput(f"{path.name} holds no primitive with {NAME}; a scene with Gaussians was expected.")
    return concatenate(parts)


@dataclass(slots=True)
class GltfBuffer:
    """The numbers of a binary glTF file, as they are added, and where each of them is."""

    blob: bytearray = field(default_factory=bytearray)
    views: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    accessors: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def accessor(self, values: Array, **more: Any) -> int:
        """Add numbers [n] or [n, 2 to 4], whole ones as indices; the number of their accessor."""
        whole = np.asarray(values).dtype.kind in "iu"
        data = np.ascontiguousarray(values, "<u4" if whole else "<f4")
        kind = {1: "SCALAR", 2: "VEC2", 3: "VEC3", 4: "VEC4"}[1 if data.ndim == 1 else data.shape[1]]
        view, component = self.view(data.tobytes()), _INDEX if whole else _FLOAT
        self.accessors.append(
            {"bufferView": view, "componentType": component, "count": len(data), "type": kind, **more}
        )
        return len(self.accessors) - 1

    def view(self, data: bytes) -> int:
        """Add bytes, such as an image; the number of their view."""
        self.blob.extend(b"\0" * (-len(self.blob) % 4))
        self.views.append({"buffer": 0, "byteOffset": len(self.blob), "byteLength": len(data)})
        self.blob.extend(data)
        return len(self.views) - 1

    def write(self, path: Path, document: dict[str, Any]) -> None:
        """Write a document with these numbers as a .glb file."""
        tables = {"accessors": self.accessors, "bufferViews": self.views, "buffers": [{"byteLength": len(self.blob)}]}
        _write_glb(path, {**document, **tables}, bytes(self.blob))


def gaussian_primitive(part: Gaussians, buffer: GltfBuffer) -> dict[str, Any]:
    """The primitive of some Gaussians, whose numbers are added to a buffer."""
    accessor = buffer.accessor
    quats = normalized(np.asarray(part.quats, float))
    means = np.asarray(part.means, np.float32)
    low, high = means.min(axis=0).tolist(), means.max(axis=0).tolist()
    attributes = {
        "POSITION": accessor(means, min=low, max=high),
        f"{NAME}:ROTATION": accessor(quats[:, [1, 2, 3, 0]]),
        f"{NAME}:SCALE": accessor(part.scales),
        f"{NAME}:OPACITY": accessor(part.opacities),
    }
    for degree, order, row in _coefficients(part.degree):
        attributes[f"{NAME}:SH_DEGREE_{degree}_COEF_{order}"] = accessor(part.sh[:, row])
    kernel = {"kernel": "ellipse", "colorSpace": "srgb_rec709_display", "projection": "perspective"}
    return {"mode": 0, "attributes": attributes, "extensions": {NAME: {**kernel, "sortingMethod": "cameraDistance"}}}


def _coefficients(degree: int) -> list[tuple[int, int, int]]:
    return [(band, order, band * band + order) for band in range(degree + 1) for order in range(2 * band + 1)]


@frozen_dataclass
class _File:
    name: str
    document: dict[str, Any]
    blob: bytes

    def visit(self, index: int, above: Array, parts: list[Gaussians], depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise BadInput(f"The nodes of {self.name} are nested more than {_MAX_DEPTH} deep, or in a circle.")
        node = self.document["nodes"][index]
        here = above @ node_transform(node)
        if "mesh" in node:
            mesh = self.document["meshes"][node["mesh"]]
            label = str(node.get("name") or mesh.get("name") or "world")
            for primitive in mesh["primitives"]:
                if NAME in primitive.get("extensions", {}):
                    part = self.gaussians(primitive).attached_to(label)
                    parts.append(part if np.allclose(here, np.eye(4), atol=1e-6) else part.moved(here))
        for child in node.get("children", ()):
            self.visit(child, here, parts, depth + 1)

    def gaussians(self, primitive: dict[str, Any]) -> Gaussians:
        attributes = primitive["attributes"]
        if primitive["extensions"][NAME].get("extensions"):
            raise Unsupported(f"{self.name} packs its Gaussians by a further extension; convert it to plain {NAME}.")

        def values(attribute: str, width: int) -> Array:
            if attribute not in attributes:
                raise BadInput(f"{self.name} has Gaussians without {attribute!r}, which {NAME} requires.")
            return self.accessor(attributes[attribute], width)

        degree = max(band for band in range(4) if f"{NAME}:SH_DEGREE_{band}_COEF_0" in attributes or band == 0)
        sh = np.stack([values(f"{NAME}:SH_DEGREE_{d}_COEF_{m}", 3) for d, m, _ in _coefficients(degree)], axis=1)
        quats = values(f"{NAME}:ROTATION", 4)[:, [3, 0, 1, 2]]
        means = values("POSITION", 3)
        scales, opacities = values(f"{NAME}:SCALE", 3), values(f"{NAME}:OPACITY", 1)[:, 0]
        return Gaussians(means, quats, scales, opacities, sh, np.zeros(len(means), np.int32))

    def accessor(self, index: int, width: int) -> Array:
        """The numbers of an accessor [count, width], which must lie inside the data."""
        table = accessor_table(self.document, self.blob, index, self.name)
        if table.shape[1] != width:
            kind = self.document["accessors"][index]["type"]
            raise BadInput(f"Accessor {index} of {self.name} is {kind}; {width} numbers each were expected.")
        return table


def accessor_table(document: dict[str, Any], blob: bytes, index: int, name: str, *, scaled: bool = True) -> Array:
    """The numbers of an accessor [count, width], which must lie inside the data: float32, or with `scaled` off as they
    are."""
    given = document["accessors"][index]
    if given.get("sparse") or "bufferView" not in given or given["componentType"] not in _READ:
        raise Unsupported(f"Accessor {index} of {name} is sparse, empty or of an unusual type.")
    if given["type"] not in _WIDTH:
        raise BadInput(f"Accessor {index} of {name} is {given['type']}; one to four numbers each were expected.")
    view, width = document["bufferViews"][given["bufferView"]], _WIDTH[given["type"]]
    if view.get("buffer", 0) != 0:
        raise Unsupported(f"{name} spreads its data over several buffers; one buffer is read.")
    kind, full = _READ[given["componentType"]]
    dtype, count = np.dtype(kind), int(given["count"])
    start = int(view.get("byteOffset", 0)) + int(given.get("byteOffset", 0))
    step = int(view.get("byteStride", width * dtype.itemsize))
    end = start + max(count - 1, 0) * step + width * dtype.itemsize
    if count < 0 or start < 0 or step < width * dtype.itemsize or (count and end > len(blob)):
        raise BadInput(
            f"Accessor {index} of {name} announces {count} elements, more than {len(blob)} bytes hold; the file was "
            "cut off or its header is wrong."
        )
    table = np.ndarray((count, width), dtype, blob, start, (step, dtype.itemsize))
    return table.astype(np.float32) / np.float32(full if given.get("normalized") else 1.0) if scaled else table


def node_transform(node: dict[str, Any]) -> Array:
    """The 4 x 4 transform of a node."""
    if "matrix" in node:
        return np.asarray(node["matrix"], float).reshape(4, 4).T
    out = np.eye(4)
    x, y, z, w = node.get("rotation", (0.0, 0.0, 0.0, 1.0))
    out[:3, :3] = matrix_from_quat(normalized(np.array([w, x, y, z]))) * np.asarray(node.get("scale", (1, 1, 1)), float)
    out[:3, 3] = node.get("translation", (0.0, 0.0, 0.0))
    return out


def _write_glb(path: Path, document: dict[str, Any], blob: bytes) -> None:
    text = json.dumps(document, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 4)
    blob += b"\0" * (-len(blob) % 4)
    total = 12 + 8 + len(text) + 8 + len(blob)
    with path.open("wb") as file:
        file.write(struct.pack("<III", _GLB, 2, total))
        file.write(struct.pack("<II", len(text), _JSON) + text)
        file.write(struct.pack("<II", len(blob), _BIN) + blob)


def read_glb(data: bytes, name: str) -> tuple[dict[str, Any], bytes]:
    """The document and the numbers of binary glTF; `name` is what errors call it."""
    if data[:4] != struct.pack("<I", _GLB):
        raise BadInput(f"{name} is not binary glTF: it does not begin with 'glTF'.")
    if len(data) < 20 or struct.unpack_from("<I", data, 8)[0] > len(data):
        raise BadInput(f"{name} is shorter than its header says; the file was cut off.")
    length, kind = struct.unpack_from("<II", data, 12)
    if kind != _JSON or 20 + length > len(data):
        raise BadInput(f"{name} does not begin with a JSON chunk of its length; it is not sound binary glTF.")
    document = parse_json(data[20 : 20 + length], name)
    after = 20 + length
    if len(data) < after + 8:
        return document, b""
    size = struct.unpack_from("<I", data, after)[0]
    if after + 8 + size > len(data):
        raise BadInput(f"The data of {name} is shorter than its header says; the file was cut off.")
    return document, data[after + 8 : after + 8 + size]


def save_usd(path: Path, gaussians: Gaussians) -> None:
    """Write every body as a prim of its name under /gaussians."""
    pxr = usd_library()
    if path.suffix == ".usdz":
        with tempfile.TemporaryDirectory() as folder:
            inner = Path(folder) / f"{path.stem}.usdc"
            _write_stage(pxr, inner, gaussians)
            path.unlink(missing_ok=True)
            if not pxr.UsdUtils.CreateNewUsdzPackage(pxr.Sdf.AssetPath(str(inner)), str(path)):
                raise BadInput(f"{path.name} could not be packed; is its folder writable?")
    else:
        path.unlink(missing_ok=True)
        _write_stage(pxr, path, gaussians)
    if len(load_usd(path)) != len(gaussians):
        raise BadInput(f"{path.name} does not hold the {len(gaussians)} Gaussians that were written to it.")


def load_usd(path: Path) -> Gaussians:
    """Read every Gaussian splat prim; its name is the body's, transforms above it are applied."""
    pxr = usd_library()
    try:
        stage = pxr.Usd.Stage.Open(str(path))
    except pxr.Tf.ErrorException as error:
        raise BadInput(f"{path.name} could not be opened as USD: {str(error).splitlines()[0].strip()}.") from None
    if stage is None:
        raise BadInput(f"{path.name} could not be opened as USD.")
    up = np.eye(4) if pxr.UsdGeom.GetStageUpAxis(stage) == pxr.UsdGeom.Tokens.z else Z_UP_FROM_Y_UP
    metres = pxr.UsdGeom.GetStageMetersPerUnit(stage)
    metres_from_stage = np.diag([metres, metres, metres, 1.0]) @ up
    cache = pxr.UsdGeom.XformCache()
    parts: list[Gaussians] = []
    for prim in stage.Traverse():
        if prim.IsA(pxr.UsdVol.ParticleField3DGaussianSplat):
            here = metres_from_stage @ np.array(cache.GetLocalToWorldTransform(prim)).T
            part = _from_prim(prim, path.name)
            parts.append(part if np.allclose(here, np.eye(4), atol=1e-7) else part.moved(here))
    if not parts:
        raise BadInput(f"{path.name} holds no ParticleField3DGaussianSplat; a stage with Gaussians was expected.")
    return concatenate(parts)


def usd_library() -> Any:
    """OpenUSD with the parts that are used; `MissingExtra` where it is not installed."""
    try:
        pxr = import_module("pxr")
        for part in ("Gf", "Sdf", "Tf", "Usd", "UsdGeom", "UsdPhysics", "UsdUtils", "UsdVol", "Vt"):
            import_module(f"pxr.{part}")
    except ImportError:
        raise MissingExtra("usd-core", "usd") from None
    return pxr


def _write_stage(pxr: Any, path: Path, gaussians: Gaussians) -> None:
    try:
        stage = pxr.Usd.Stage.CreateNew(str(path))
    except pxr.Tf.ErrorException:
        raise BadInput(f"{path.name} could not be created; is its folder writable?") from None
    pxr.UsdGeom.SetStageUpAxis(stage, pxr.UsdGeom.Tokens.z)
    pxr.UsdGeom.SetStageMetersPerUnit(stage, 1.0)
    root = pxr.UsdGeom.Xform.Define(stage, "/gaussians")
    stage.SetDefaultPrim(root.GetPrim())
    for name in gaussians.names:
        part = gaussians.on(name)
        if len(part) == 0:
            continue
        label = pxr.Tf.MakeValidIdentifier(name)
        prim = pxr.UsdVol.ParticleField3DGaussianSplat.Define(stage, f"/gaussians/{label}")
        prim.GetPrim().SetDisplayName(name)
        fill_splat(pxr, prim, part)
    stage.GetRootLayer().Save()


def fill_splat(pxr: Any, prim: Any, part: Gaussians) -> None:
    """Write Gaussians into a ParticleField3DGaussianSplat prim."""

    def vectors(kind: Any, values: Array) -> Any:
        return kind.FromNumpy(np.ascontiguousarray(values, np.float32))

    quats = normalized(np.asarray(part.quats, float))
    reach = 3.0 * np.asarray(part.scales).max(axis=1, keepdims=True)
    extent = np.stack([(part.means - reach).min(axis=0), (part.means + reach).max(axis=0)])
    prim.CreatePositionsAttr(vectors(pxr.Vt.Vec3fArray, part.means))
    prim.CreateOrientationsAttr(pxr.Vt.QuatfArray([pxr.Gf.Quatf(*map(float, q)) for q in quats]))
    prim.CreateScalesAttr(vectors(pxr.Vt.Vec3fArray, part.scales))
    prim.CreateOpacitiesAttr(vectors(pxr.Vt.FloatArray, part.opacities))
    prim.CreateRadianceSphericalHarmonicsDegreeAttr(part.degree)
    prim.CreateRadianceSphericalHarmonicsCoefficientsAttr(vectors(pxr.Vt.Vec3fArray, part.sh.reshape(-1, 3)))
    prim.CreateExtentAttr(vectors(pxr.Vt.Vec3fArray, extent))
    prim.CreateProjectionModeHintAttr("perspective")
    prim.CreateSortingModeHintAttr("zDepth")


def _from_prim(prim: Any, name: str) -> Gaussians:
    def given(attribute: str) -> Any:
        found = prim.GetAttribute(attribute).Get() or prim.GetAttribute(f"{attribute}h").Get()
        if found is None:
            raise BadInput(f"{prim.GetPath()} of {name} has no {attribute!r}; a whole set of Gaussians was expected.")
        return found

    def values(attribute: str, width: int) -> Array:
        return np.asarray(given(attribute), np.float32).reshape(-1, width)

    means = values("positions", 3)
    rows = [[q.GetReal(), *q.GetImaginary()] for q in given("orientations")]
    quats = np.array(rows, np.float32).reshape(-1, 4)
    degree = int(prim.GetAttribute("radiance:sphericalHarmonicsDegree").Get())
    sh = values("radiance:sphericalHarmonicsCoefficients", 3)
    if not 0 <= degree <= 3 or len(sh) != len(means) * (degree + 1) ** 2:
        raise BadInput(
            f"{prim.GetPath()} of {name} has {len(sh)} harmonics for {len(means)} Gaussians of degree {degree}."
        )
    sh = sh.reshape(len(means), -1, 3)
    label = prim.GetDisplayName() or prim.GetName()
    scales, opacities = values("scales", 3), values("opacities", 1)[:, 0]
    return Gaussians(means, quats, scales, opacities, sh, np.zeros(len(means), np.int32), (label,))
