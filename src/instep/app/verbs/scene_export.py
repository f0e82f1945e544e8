"""The verb scene export: a scene as MJCF with OBJ meshes, URDF, glTF, USD, or its Gaussians alone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from instep.app.arguments import Positional, SceneArg
from instep.core.errors import BadInput

if TYPE_CHECKING:
    from instep.scene.folder import Scene
    from instep.splat.gaussians import Gaussians

_USD = (".usda", ".usdc", ".usdz")
_GAUSSIANS = (".ply", ".spz", ".splat", ".sog")
ENDINGS = ("a folder (MJCF and OBJ)", ".urdf", ".glb", *_USD, *_GAUSSIANS)


def export(
    scene: SceneArg,
    out: Positional[Annotated[Path, tyro.conf.arg(metavar="OUT")]],
    /,
) -> int:
    """Write a scene for other programs, by the ending of OUT.

    A folder gets MJCF with OBJ meshes (and opens as a scene); .urdf has its meshes in meshes/ beside it; .glb holds
    shapes, textures and Gaussians; .usda, .usdc and .usdz hold shapes with collision, rigid bodies and Gaussians; .ply,
    .spz, .splat and .sog hold the Gaussians alone, where the scene starts.

    Args:
        scene: name of a shipped scene, a scene folder, or an MJCF or URDF file.
        out: file or folder to write; it must not be there.

    """
    from instep.scene.folder import Scene

    loaded = Scene.load(scene)
    ending = out.suffix.lower()
    if out.exists():
        raise BadInput(f"{str(out)!r} is there already; give a new file or folder.")
    if ending and ending not in ENDINGS:
        raise BadInput(f"{out.name!r} has no ending that a scene is written to; known are {', '.join(ENDINGS)}.")
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        _write(loaded, out, ending)
    except BaseException:
        shutil.rmtree(out, ignore_errors=True) if out.is_dir() else out.unlink(missing_ok=True)
        raise
    print(out)
    return 0


def _write(scene: Scene, out: Path, ending: str) -> None:
    if not ending:
        write_folder(scene, out)
    elif ending == ".urdf":
        from instep.build.scene_urdf import save_scene_urdf

        save_scene_urdf(out, scene)
    elif ending == ".glb":
        from instep.build.scene_gltf import save_scene_gltf

        save_scene_gltf(out, scene, _scanned(scene))
    elif ending in _USD:
        from instep.build.scene_usd import save_scene_usd

        save_scene_usd(out, scene, _scanned(scene))
    else:
        from instep.splat.io import save_gaussians

        save_gaussians(out, _in_world(scene))


def write_folder(scene: Scene, out: Path) -> None:
    """Write a scene as a folder of its own: one MJCF file, OBJ meshes, and what else its folder holds."""
    from instep.build.scene_mjcf import save_scene_mjcf
    from instep.scene.folder import SCENE_FILE
    from instep.tune.param_export import copy_scene

    copy_scene(scene, out)
    folder = (scene.root / SCENE_FILE).is_file() and scene.name == scene.root.resolve().name
    model = scene.source.path.resolve().relative_to(scene.root.resolve()) if folder else Path("scene.xml")
    save_scene_mjcf(out / model, scene)


def _in_world(scene: Scene) -> Gaussians:
    """The Gaussians of a scene as one body, where the scene starts; those of its shapes where it has no others."""
    from instep.core.poses import transform
    from instep.splat.gaussians import concatenate
    from instep.splat.gaussians_from_geoms import scene_gaussians, scene_poses

    found = _scanned(scene)
    found = scene_gaussians(scene) if found is None else found
    poses = scene_poses(scene, found.names, scene.start(0)[0])
    parts = [found.on(name).moved(transform(pose)) for name, pose in zip(found.names, poses, strict=True)]
    return concatenate([part.attached_to("world") for part in parts])


def _scanned(scene: Scene) -> Gaussians | None:
    """The Gaussians that were built or fitted with a scene; None where there are none."""
    from instep.splat.io import load_gaussians

    splats = scene.root / "splats"
    return load_gaussians(splats) if splats.is_dir() else None
