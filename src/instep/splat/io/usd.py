"""Gaussians in OpenUSD (.usda, .usdc, .usdz) as ParticleField3DGaussianSplat prims, one per body.

Scales are linear, opacities 0 to 1, quaternions real first, harmonics one after the other per Gaussian. The stage is
Z up in metres. Every file is opened again after it was written: exports that show nothing are a known complaint.
"""

from __future__ import annotations

import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.errors import BadInput, MissingExtra
from instep.core.poses import normalized
from instep.core.world import Array
from instep.splat.gaussians import Z_UP_FROM_Y_UP, Gaussians, concatenate


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
    def values(attribute: str, width: int) -> Array:
        given = prim.GetAttribute(attribute).Get() or prim.GetAttribute(f"{attribute}h").Get()
        if given is None:
            raise BadInput(f"{prim.GetPath()} of {name} has no {attribute!r}; a whole set of Gaussians was expected.")
        return np.asarray(given, np.float32).reshape(-1, width)

    means = values("positions", 3)
    raw = prim.GetAttribute("orientations").Get() or prim.GetAttribute("orientationsh").Get()
    if raw is None:
        raise BadInput(f"{prim.GetPath()} of {name} has no 'orientations'; a whole set of Gaussians was expected.")
    quats = np.array([[q.GetReal(), *q.GetImaginary()] for q in raw], np.float32).reshape(-1, 4)
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
