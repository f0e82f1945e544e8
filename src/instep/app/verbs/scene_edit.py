"""The verb scene edit: another mesh for an object, fewer faces, two objects as one, another place."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console

from instep.app.arguments import Options, Positional, SceneArg
from instep.core.errors import BadInput
from instep.core.records import options_dataclass
from instep.core.type_guards import is_list

if TYPE_CHECKING:
    from instep.build.object_edits import SceneEdit


@options_dataclass
class SceneEditArgs:
    """Options of `instep scene edit`."""

    replace: tuple[str, ...] = ()
    """other meshes, NAME=FILE: a closed .obj, .stl, .ply or .glb in metres, in the frame of the body as
    meshes/NAME.obj is."""
    simplify: tuple[str, ...] = ()
    """fewer faces, NAME=FACES; convex parts, mass and inertia stay."""
    merge: tuple[str, ...] = ()
    """two objects as one that keeps the first name, FIRST+SECOND."""
    move: tuple[str, ...] = ()
    """other places, NAME=DX,DY,DZ or NAME=DX,DY,DZ,YAW: metres along the world's axes and degrees anticlockwise; the
    object then rests on what is below it."""


def edit(
    scene: SceneArg,
    out: Positional[Annotated[Path, tyro.conf.arg(metavar="OUT")]],
    /,
    args: Options[SceneEditArgs] = SceneEditArgs(),
) -> int:
    """Edit the objects of a scene and write it as a new folder; the old one stays as it is.

    Edits are made in the order replace, simplify, merge, move. Gaussians follow their object; a replaced mesh gets new
    ones in the colours of the former surface. build.json says what was edited.

    Args:
        scene: name of a shipped scene, a scene folder, or an MJCF or URDF file.
        out: folder to write; it must not be there. It is written whole or not at all.

    """
    from instep.app.verbs.scene_export import write_folder
    from instep.build.object_edits import edit_scene
    from instep.scene.folder import Scene

    edits = _edits(args)
    if not edits:
        raise BadInput("Nothing to edit was named; say --replace, --simplify, --merge or --move.")
    if out.exists():
        raise BadInput(f"{str(out)!r} is there already; give a new folder.")
    loaded = Scene.load(scene)
    work = out.with_name(out.name + ".part")
    shutil.rmtree(work, ignore_errors=True)
    try:
        work.parent.mkdir(parents=True, exist_ok=True)
        write_folder(loaded, work)
        shutil.rmtree(work / "stages", ignore_errors=True)  # what a build could go on from is of the scene before
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
    from instep.build.object_edits import MeshReplacement, MeshSimplification, ObjectMerge

    found: list[SceneEdit] = []
    for word in args.replace:
        name, file = _pair(word, "=", "--replace", "cup=cup.obj")
        found.append(MeshReplacement(name, Path(file)))
    for word in args.simplify:
        name, count = _pair(word, "=", "--simplify", "cup=500")
        if not count.isdecimal():
            raise BadInput(f"--simplify is given as NAME=FACES, such as cup=500, not {word!r}.")
        found.append(MeshSimplification(name, int(count)))
    merges = [ObjectMerge(*_pair(word, "+", "--merge", "cup+lid")) for word in args.merge]
    return [*found, *merges, *(_motion(word) for word in args.move)]


def _motion(word: str) -> SceneEdit:
    from instep.build.object_edits import ObjectMotion

    name, text = _pair(word, "=", "--move", "cup=0.1,0,0,90")
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in (3, 4) or not all(math.isfinite(number) for number in numbers):
        raise BadInput(f"--move is given as NAME=DX,DY,DZ or NAME=DX,DY,DZ,YAW, such as cup=0.1,0,0,90, not {word!r}.")
    return ObjectMotion(name, (numbers[0], numbers[1], numbers[2]), numbers[3] if len(numbers) == 4 else 0.0)


def _pair(word: str, sign: str, option: str, example: str) -> tuple[str, str]:
    first, found, second = word.partition(sign)
    if not (first and found and second):
        raise BadInput(f"{option} is given as {example}, not {word!r}.")
    return first, second
