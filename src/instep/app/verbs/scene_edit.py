"""The verbs scene edit, scene export and scene check."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console
from rich.table import Table

from instep.app.arguments import Options, OutFolder, Positional, SceneArg
from instep.core.errors import BadInput
from instep.core.reading import is_list
from instep.core.world import options_dataclass

if TYPE_CHECKING:
    from instep.core.world import Array
    from instep.reconstruct.checks import Finding
    from instep.reconstruct.edits import SceneEdit
    from instep.scene.folder import Scene
    from instep.splat.gaussians import Gaussians


@options_dataclass
class SceneEditArgs:
    """Options of `instep scene edit`."""

    replace: tuple[str, ...] = ()
    """other meshes, NAME=FILE: a closed .obj, .stl or .glb in metres, in the frame of the body like meshes/NAME.obj."""
    move: tuple[str, ...] = ()
    """other places, NAME=DX,DY,DZ or NAME=DX,DY,DZ,YAW: metres along the world's axes and degrees anticlockwise; the
    object then rests on what is below it."""


def edit(
    scene: SceneArg,
    out: Positional[Annotated[Path, tyro.conf.arg(metavar="OUT")]],
    /,
    args: Options[SceneEditArgs] = SceneEditArgs(),
) -> int:
    """Edit the objects of a scene and write it as a new folder.

    Edits are made in the order replace, move. Gaussians follow their object; a replaced mesh gets new
    ones in the colours of the former surface. build.json lists the edits.

    Args:
        scene: name of a shipped scene, a scene folder, or an MJCF or URDF file.
        out: new folder; it is written whole or not at all.

    """
    from instep.reconstruct.edits import edit_scene
    from instep.scene.folder import Scene

    edits = _edits(args)
    if not edits:
        raise BadInput("There is nothing to edit; give --replace or --move.")
    if out.exists():
        raise BadInput(f"{str(out)!r} exists; give a new folder.")
    loaded = Scene.load(scene)
    work = out.with_name(out.name + ".part")
    shutil.rmtree(work, ignore_errors=True)
    try:
        work.parent.mkdir(parents=True, exist_ok=True)
        write_folder(loaded, work)
        shutil.rmtree(work / "stages", ignore_errors=True)  # records of the scene before
        done = edit_scene(work, edits)
        work.rename(out)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    console = Console(stderr=True, highlight=False)
    for one in done:
        console.print(", ".join(f"{key} {_words(value)}" for key, value in one.items() if key != "version"))
    print(out)
    return 0


def _words(value: object) -> str:
    if is_list(value):
        return " ".join(_words(one) for one in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _edits(args: SceneEditArgs) -> list[SceneEdit]:
    from instep.reconstruct.edits import MeshReplacement

    found: list[SceneEdit] = []
    for word in args.replace:
        name, file = _pair(word, "--replace", "cup=cup.obj")
        found.append(MeshReplacement(name, Path(file)))
    return [*found, *(_motion(word) for word in args.move)]


def _motion(word: str) -> SceneEdit:
    from instep.reconstruct.edits import ObjectMotion

    name, text = _pair(word, "--move", "cup=0.1,0,0,90")
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in (3, 4) or not all(math.isfinite(number) for number in numbers):
        raise BadInput(f"--move is given as NAME=DX,DY,DZ or NAME=DX,DY,DZ,YAW, such as cup=0.1,0,0,90, not {word!r}.")
    return ObjectMotion(name, (numbers[0], numbers[1], numbers[2]), numbers[3] if len(numbers) == 4 else 0.0)


def _pair(word: str, option: str, example: str) -> tuple[str, str]:
    first, found, second = word.partition("=")
    if not (first and found and second):
        raise BadInput(f"{option} is given as {example}, not {word!r}.")
    return first, second


_USD = (".usda", ".usdc", ".usdz")
_GAUSSIANS = (".ply", ".spz", ".splat")
ENDINGS = ("a folder (MJCF and OBJ)", ".urdf", ".glb", *_USD, *_GAUSSIANS)


def export(scene: SceneArg, out: Positional[Annotated[Path, tyro.conf.arg(metavar="OUT")]], /) -> int:
    """Write a scene for other programs, by the ending of OUT.

    A folder gets MJCF with OBJ meshes (and opens as a scene); .urdf has its meshes in meshes/ beside it; .glb holds
    shapes, textures and Gaussians; .usda, .usdc and .usdz hold shapes with collision, rigid bodies and Gaussians; .ply,
    .spz and .splat hold the Gaussians alone, where the scene starts.

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
        from instep.reconstruct.scene_formats import save_scene_urdf

        save_scene_urdf(out, scene)
    elif ending == ".glb":
        from instep.reconstruct.scene_formats import save_scene_gltf

        save_scene_gltf(out, scene, _scanned(scene))
    elif ending in _USD:
        from instep.reconstruct.scene_formats import save_scene_usd

        save_scene_usd(out, scene, _scanned(scene))
    else:
        from instep.splat.io import save_gaussians

        save_gaussians(out, _in_world(scene))


def write_folder(scene: Scene, out: Path) -> None:
    """Write a scene as a folder of its own: one MJCF file, OBJ meshes, and what else its folder holds."""
    from instep.reconstruct.scene_formats import save_scene_mjcf
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
    from instep.splat.rendering import scene_gaussians, scene_poses

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


_COLOURS = {"green": "green", "amber": "yellow", "red": "red", "unknown": "dim"}


@options_dataclass
class SceneCheckArgs:
    """Options of `instep scene check`."""

    out: OutFolder = None


def check(scene: SceneArg, /, args: Options[SceneCheckArgs] = SceneCheckArgs()) -> int:
    """Check the shapes, inertia, contacts and rest of a scene; exit 1 if something is red.

    Of a reconstructed scene also silhouettes, views and held-out images.

    Args:
        scene: name of a shipped scene, a scene folder, or an MJCF or URDF file.

    """
    from instep.app.output import new_output
    from instep.reconstruct.checks import check_scene, worst_state
    from instep.report.page import ReportImage
    from instep.report.scene_pages import scene_check_page
    from instep.scene.folder import Scene

    loaded = Scene.load(scene)
    findings = check_scene(loaded)
    output = new_output("scene-check", args.out)
    output.read_scene(loaded)
    worst = worst_state(findings)
    output.write({}, state=worst, findings=[_plain(finding) for finding in findings])
    table = Table("check", "of", "", "found", "meaning", box=None, padding=(0, 2))
    for found in findings:
        table.add_row(
            found.check, found.subject, f"[{_COLOURS[found.state]}]{found.state}[/]", found.value, found.message
        )
    Console(stderr=True, highlight=False).print(table)
    image = ReportImage.of(_image(loaded), "3D Gaussians")
    about = loaded.about or str(loaded.source.path.name)
    print(output.page(scene_check_page(f"Check of {loaded.name}", about, findings, image)))
    return 1 if worst == "red" else 0


def _plain(finding: Finding) -> dict[str, str]:
    return {key: getattr(finding, key) for key in ("check", "subject", "state", "value", "message")}


def _image(scene: Scene) -> Array:
    """The scene as it starts, by the Gaussians that were built with it where it has some."""
    from instep.splat.rendering import render, scene_gaussians, scene_poses

    splats = scene.root / "splats"
    found = scene_gaussians(scene, splats if splats.is_dir() else None)
    return render(found, poses=scene_poses(scene, found.names, scene.start(0)[0])).images[0]
