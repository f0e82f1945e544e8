"""A scene as an OpenUSD stage: bodies with mass, shapes with collision, and Gaussians; Z up, in metres."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.errors import BadInput
from instep.core.poses import normalized
from instep.core.world import Array
from instep.scene.folder import Scene
from instep.splat.gaussians import Gaussians
from instep.splat.gaussians_from_geoms import scene_poses
from instep.splat.io.usd import fill_splat, usd_library

from .exported_shapes import ExportedShape, exported_shapes


def save_scene_usd(path: Path, scene: Scene, gaussians: Gaussians | None = None) -> None:
    """Write a scene where it starts as .usda, .usdc or .usdz; joints of a robot are not written."""
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
    names = [scene.model.body(b).name for b in range(scene.model.nbody)]
    poses, shapes = scene_poses(scene, names, scene.start(0)[0]), exported_shapes(scene)
    for body, name in enumerate(names):
        place = f"/scene/{pxr.Tf.MakeValidIdentifier(name)}"
        prim = pxr.UsdGeom.Xform.Define(stage, place)
        prim.GetPrim().SetDisplayName(name)
        _set_pose(pxr, prim, poses[body])
        if name in scene.objects:
            _add_mass(pxr, prim.GetPrim(), scene.model, body)
        for shape in (shape for shape in shapes if shape.body == body):
            _add_shape(pxr, stage, f"{place}/{pxr.Tf.MakeValidIdentifier(shape.name)}", shape)
        if gaussians is not None and name in gaussians.names and len(part := gaussians.on(name)):
            fill_splat(pxr, pxr.UsdVol.ParticleField3DGaussianSplat.Define(stage, f"{place}/gaussians"), part)
            stage.GetPrimAtPath(f"{place}/gaussians").SetDisplayName(name)
    stage.GetRootLayer().Save()


def _set_pose(pxr: Any, prim: Any, pose: Array) -> None:
    w, x, y, z = (float(q) for q in normalized(np.asarray(pose[3:], float)))
    prim.AddTranslateOp().Set(pxr.Gf.Vec3d(*pose[:3].tolist()))
    prim.AddOrientOp().Set(pxr.Gf.Quatf(w, x, y, z))


def _add_mass(pxr: Any, prim: Any, model: Any, body: int) -> None:
    """Make a body rigid, with the mass, centre and inertia that it has in the scene."""
    pxr.UsdPhysics.RigidBodyAPI.Apply(prim)
    mass = pxr.UsdPhysics.MassAPI.Apply(prim)
    mass.CreateMassAttr(float(model.body_mass[body]))
    mass.CreateCenterOfMassAttr(pxr.Gf.Vec3f(*model.body_ipos[body].tolist()))
    mass.CreateDiagonalInertiaAttr(pxr.Gf.Vec3f(*model.body_inertia[body].tolist()))
    mass.CreatePrincipalAxesAttr(pxr.Gf.Quatf(*model.body_iquat[body].tolist()))


def _add_shape(pxr: Any, stage: Any, place: str, shape: ExportedShape) -> None:
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
