"""A scene as one binary glTF file: a node per body with its shapes and textures, and its Gaussians."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from instep import __version__
from instep.core.world import Array
from instep.scene.folder import Scene
from instep.splat.gaussians import Gaussians
from instep.splat.gaussians_from_geoms import scene_poses
from instep.splat.io.gltf import NAME, Z_UP_NODE, GltfBuffer, gaussian_primitive

from .exported_shapes import ExportedShape, exported_shapes

_NEAREST, _REPEAT = 9728, 10497


def save_scene_gltf(path: Path, scene: Scene, gaussians: Gaussians | None = None) -> None:
    """Write the shapes of a scene that are shown, where it starts, and Gaussians by KHR_gaussian_splatting."""
    writer = _Writer()
    names = [scene.model.body(b).name for b in range(scene.model.nbody)]
    poses = scene_poses(scene, names, scene.start(0)[0])
    shapes = [shape for shape in exported_shapes(scene) if shape.shown]
    for body, name in enumerate(names):
        writer.add_body(name, poses[body], [s for s in shapes if s.body == body], _on(gaussians, name))
    writer.write(path)


def _on(gaussians: Gaussians | None, name: str) -> Gaussians | None:
    if gaussians is None or name not in gaussians.names:
        return None
    part = gaussians.on(name)
    return part if len(part) else None


class _Writer:
    def __init__(self) -> None:
        self._buffer = GltfBuffer()
        self._nodes: list[dict[str, Any]] = [{**Z_UP_NODE, "children": []}]
        self._meshes: list[dict[str, Any]] = []
        self._materials: list[dict[str, Any]] = []
        self._images: list[dict[str, Any]] = []
        self._splats = False

    def add_body(self, name: str, pose: Array, shapes: list[ExportedShape], splats: Gaussians | None) -> None:
        """Add a node for a body at a pose (xyz, wxyz); nothing where it shows nothing."""
        if not shapes and splats is None:
            return
        w, x, y, z = (float(q) for q in pose[3:])
        node: dict[str, Any] = {"name": name, "translation": pose[:3].tolist(), "rotation": [x, y, z, w]}
        if shapes:
            self._meshes.append({"name": name, "primitives": [self._triangles(shape) for shape in shapes]})
            node["mesh"] = len(self._meshes) - 1
        self._nodes[0]["children"].append(len(self._nodes))
        self._nodes.append(node)
        if splats is not None:
            # A node of its own, so that its name is that of the body where Gaussians alone are read.
            self._splats = True
            self._meshes.append({"name": name, "primitives": [gaussian_primitive(splats, self._buffer)]})
            node["children"] = [len(self._nodes)]
            self._nodes.append({"name": name, "mesh": len(self._meshes) - 1})

    def write(self, path: Path) -> None:
        """Write the file."""
        document: dict[str, Any] = {
            "asset": {"version": "2.0", "generator": f"instep {__version__}"},
            "scene": 0, "scenes": [{"nodes": [0]}], "nodes": self._nodes, "meshes": self._meshes,
        }  # fmt: skip
        if self._materials:
            document["materials"] = self._materials
        if self._images:
            document["images"] = self._images
            document["samplers"] = [{"magFilter": _NEAREST, "minFilter": _NEAREST, "wrapS": _REPEAT, "wrapT": _REPEAT}]
            document["textures"] = [{"source": k, "sampler": 0} for k in range(len(self._images))]
        if self._splats:
            document["extensionsUsed"] = [NAME]
        self._buffer.write(path, document)

    def _triangles(self, shape: ExportedShape) -> dict[str, Any]:
        # Every corner has a vertex of its own: normals and textures change from face to face.
        corners = np.asarray(shape.mesh.corners.reshape(-1, 3), np.float32)
        normals = shape.mesh.normals
        normals = np.where(np.linalg.norm(normals, axis=1, keepdims=True) > 0, normals, [0.0, 0.0, 1.0])
        attributes = {
            "POSITION": self._buffer.accessor(
                corners, min=corners.min(axis=0).tolist(), max=corners.max(axis=0).tolist()
            ),
            "NORMAL": self._buffer.accessor(np.repeat(normals, 3, axis=0)),
        }
        if shape.texels is not None and shape.texture is not None:
            attributes["TEXCOORD_0"] = self._buffer.accessor(shape.texels.reshape(-1, 2))
        indices = self._buffer.accessor(np.arange(len(corners)))
        return {"attributes": attributes, "indices": indices, "material": self._material(shape)}

    def _material(self, shape: ExportedShape) -> int:
        surface: dict[str, Any] = {"metallicFactor": 0.0, "roughnessFactor": 0.9}
        if shape.texture is not None:
            self._images.append({"bufferView": self._buffer.view(shape.texture), "mimeType": "image/png"})
            surface["baseColorTexture"] = {"index": len(self._images) - 1}
        else:
            surface["baseColorFactor"] = np.clip(shape.rgba, 0.0, 1.0).tolist()
        found = {"name": shape.name, "pbrMetallicRoughness": surface, "doubleSided": True}
        self._materials.append({**found, **({"alphaMode": "BLEND"} if shape.rgba[3] < 1 else {})})
        return len(self._materials) - 1
