"""The verbs scene edit, export, check and splat."""

from __future__ import annotations

import math
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import tyro

from instep.app.arguments import Expert, Options, OutFolder, Positional, SceneArg
from instep.app.output import new_output, say, show_table, stage_bar
from instep.core.errors import BadInput
from instep.core.reading import is_list
from instep.core.world import options_dataclass

if TYPE_CHECKING:
    from instep.app.output import Output
    from instep.core.world import Array
    from instep.reconstruct.edits import SceneEdit
    from instep.scene.camera import Camera
    from instep.scene.folder import Scene
    from instep.splat.gaussians import Gaussians
    from instep.splat.scene_fit import SceneFit

USD = (".usda", ".usdc", ".usdz")
ENDINGS = ("a folder (MJCF and OBJ)", ".urdf", ".glb", *USD, ".ply", ".spz", ".splat")
COLOURS = {"green": "green", "amber": "yellow", "red": "red", "unknown": "dim"}
SCORE_WORDS = {
    "psnr": "PSNR on held-out images", "ssim": "SSIM on held-out images",
    "psnr_with_hidden": "PSNR with what the twin has no model of (the arm)",
    "left_out": "share of the table that was left out for it",
}  # fmt: skip


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
        _write_folder(loaded, work)
        shutil.rmtree(work / "stages", ignore_errors=True)  # records of the scene before
        done = edit_scene(work, edits)
        work.rename(out)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    for one in done:
        say(", ".join(f"{key} {_words(value)}" for key, value in one.items() if key != "version"))
    print(out)
    return 0


def _words(value: object) -> str:
    if is_list(value):
        return " ".join(_words(one) for one in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _edits(args: SceneEditArgs) -> list[SceneEdit]:
    from instep.reconstruct.edits import MeshReplacement, ObjectMotion

    def pairs(option: str, words: tuple[str, ...], example: str) -> list[tuple[str, str]]:
        split = [word.partition("=") for word in words]
        for word, parts in zip(words, split, strict=True):
            if not all(parts):
                raise BadInput(f"--{option} is given as {example}, not {word!r}.")
        return [(name, text) for name, _, text in split]

    found: list[SceneEdit] = [MeshReplacement(n, Path(f)) for n, f in pairs("replace", args.replace, "cup=cup.obj")]
    for name, text in pairs("move", args.move, "cup=0.1,0,0,90"):
        try:
            x, y, z, yaw = [float(part) for part in (*text.split(","), *["0"] * (text.count(",") == 2))]
        except ValueError:
            x = y = z = yaw = math.nan
        if not math.isfinite(x + y + z + yaw):
            raise BadInput(
                f"--move is given as NAME=DX,DY,DZ or NAME=DX,DY,DZ,YAW, such as cup=0.1,0,0,90, not '{name}={text}'."
            )
        found.append(ObjectMotion(name, (x, y, z), yaw))
    return found


def export(scene: SceneArg, out: Positional[Annotated[Path, tyro.conf.arg(metavar="OUT")]], /) -> int:
    """Write a scene for other programs, by the ending of OUT.

    A folder gets MJCF with OBJ meshes (and opens as a scene); .urdf has its meshes in meshes/ beside it; .glb holds
    shapes, textures and Gaussians; .usda, .usdc and .usdz hold shapes with collision, rigid bodies and Gaussians; .ply,
    .spz and .splat hold the Gaussians alone, where the scene starts.

    Args:
        out: file or folder to write; it must not be there.

    """
    from instep.scene.folder import Scene

    loaded, ending = Scene.load(scene), out.suffix.lower()
    if out.exists():
        raise BadInput(f"{str(out)!r} is there already; give a new file or folder.")
    if ending and ending not in ENDINGS:
        raise BadInput(f"{out.name!r} has no ending that a scene is written to; known are {', '.join(ENDINGS)}.")
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        _export(loaded, out, ending)
    except BaseException:
        shutil.rmtree(out, ignore_errors=True) if out.is_dir() else out.unlink(missing_ok=True)
        raise
    print(out)
    return 0


def _export(scene: Scene, out: Path, ending: str) -> None:
    from instep.reconstruct.scene_formats import save_scene_gltf, save_scene_urdf, save_scene_usd
    from instep.splat.gaussian_files import load_gaussians, save_gaussians
    from instep.splat.rendering import scene_gaussians

    splats = scene.root / "splats"
    scanned = load_gaussians(splats) if splats.is_dir() else None
    if not ending:
        _write_folder(scene, out)
    elif ending == ".urdf":
        save_scene_urdf(out, scene)
    elif ending == ".glb":
        save_scene_gltf(out, scene, scanned)
    elif ending in USD:
        save_scene_usd(out, scene, scanned)
    else:
        save_gaussians(out, _in_world(scene, scene_gaussians(scene) if scanned is None else scanned))


def _write_folder(scene: Scene, out: Path) -> None:
    """Write a scene as a folder of its own: one MJCF file, OBJ meshes, and what else its folder holds."""
    from instep.reconstruct.scene_formats import save_scene_mjcf
    from instep.scene.folder import SCENE_FILE
    from instep.tune.param_export import copy_scene

    copy_scene(scene, out)
    folder = (scene.root / SCENE_FILE).is_file() and scene.name == scene.root.resolve().name
    model = scene.source.path.resolve().relative_to(scene.root.resolve()) if folder else Path("scene.xml")
    save_scene_mjcf(out / model, scene)


def _in_world(scene: Scene, found: Gaussians) -> Gaussians:
    """Gaussians as one body, where the scene starts."""
    from instep.core.poses import transform
    from instep.splat.gaussians import concatenate
    from instep.splat.rendering import scene_poses

    poses = scene_poses(scene, found.names, scene.start(0)[0])
    parts = [found.on(name).moved(transform(pose)) for name, pose in zip(found.names, poses, strict=True)]
    return concatenate([part.attached_to("world") for part in parts])


@options_dataclass
class SceneCheckArgs:
    """Options of `instep scene check`."""

    out: OutFolder = None


def check(scene: SceneArg, /, args: Options[SceneCheckArgs] = SceneCheckArgs()) -> int:
    """Check the shapes, inertia, contacts and rest of a scene; exit 1 if something is red.

    Of a reconstructed scene also silhouettes, views and held-out images.
    """
    from instep.reconstruct.checks import check_scene, worst_state
    from instep.report.page import ReportImage
    from instep.report.scene_pages import scene_check_page
    from instep.scene.folder import Scene
    from instep.splat.rendering import render, scene_gaussians, scene_poses

    loaded = Scene.load(scene)
    findings = check_scene(loaded)
    output, worst = new_output("scene-check", args.out), worst_state(findings)
    output.read(loaded)
    output.write({}, state=worst, findings=[asdict(finding) for finding in findings])
    rows = [(f.check, f.subject, f"[{COLOURS[f.state]}]{f.state}[/]", f.value, f.message) for f in findings]
    show_table(("check", "of", "", "found", "meaning"), rows, error=True)
    splats = loaded.root / "splats"
    gaussians = scene_gaussians(loaded, splats if splats.is_dir() else None)
    shown = render(gaussians, poses=scene_poses(loaded, gaussians.names, loaded.start(0)[0])).images[0]
    about, image = loaded.about or str(loaded.source.path.name), ReportImage.of(shown, "3D Gaussians")
    print(output.page(scene_check_page(f"Check of {loaded.name}", about, findings, image)))
    return 1 if worst == "red" else 0


@options_dataclass
class SplatArgs:
    """Options of `instep scene splat`."""

    steps: int = 1500
    """optimisation steps, each on one image."""
    max_gaussians: Expert[int] = 20_000
    """most Gaussians of the static background."""
    train_frames: Expert[int] = 50
    """frames of each video to fit to."""
    held_out: Expert[int] = 10
    """frames of each video, or whole images, kept back to score on."""
    align: bool = True
    """first align cameras that disagree about the table; --no-align takes them as they are."""
    cameras: Path | None = None
    """a calibration file whose cameras take the place of those of the same name, as they are."""
    up: Expert[Literal["y", "z"]] = "z"
    """the axis that points up in a .ply or .splat file of Gaussians that states none; most scanning apps write y."""
    orbit: Expert[int] = 60
    """frames of the video of a camera that circles the scene; 0 for none."""
    device: Expert[Literal["cpu", "cuda"]] = "cpu"
    """where images are rendered and differentiated: cpu, or cuda (instep[gpu])."""
    seed: int = 0
    """seed of the fit."""
    out: OutFolder = None


def splat(
    images: Positional[Annotated[Path, tyro.conf.arg(metavar="IMAGES")]],
    scene: SceneArg = "",
    /,
    args: Options[SplatArgs] = SplatArgs(),
) -> int:
    """Fit 3D Gaussians to posed images and score them on held-out images.

    Writes one Gaussian file per body (splats/world.ply and so on), cameras.json with the aligned cameras,
    real_and_twin.png and orbit.mp4. Given a Gaussian file instead of images, it only renders it.

    Args:
        images: folder with cameras.json and videos, or transforms.json and images; or a file of Gaussians.
        scene: scene whose bodies carry the Gaussians: a shipped name, a folder, an MJCF file. Names of the
            recording are kept where none is given.

    """
    from instep.scene.camera_files import load_calibration
    from instep.scene.folder import Scene
    from instep.splat.capture import calibrated_capture, load_capture
    from instep.splat.fitting import GaussianFitOptions
    from instep.splat.gaussian_files import FORMATS
    from instep.splat.scene_fit import SceneFitOptions, check_in_world, fit_scene, in_scene, scan_frames

    if args.steps < 1 or args.max_gaussians < 1 or args.train_frames < 2 or args.held_out < 1 or args.orbit < 0:
        raise BadInput(
            "--steps, --max-gaussians and --held-out must be at least 1, --train-frames at least 2, --orbit at least 0."
        )
    loaded = Scene.load(scene) if scene else None
    if images.suffix.lower() in FORMATS:
        return _render_file(images, args)
    capture = load_capture(images)
    if args.cameras is not None:
        capture = calibrated_capture(capture, load_calibration(args.cameras))
    check_in_world(capture)
    frames = {} if loaded is None else scan_frames([body.gaussians.names[0] for body in capture.bodies], loaded)
    output = new_output("scene-splat", args.out, seed=args.seed)
    output.read(images)
    fit = GaussianFitOptions(steps=args.steps, max_count=args.max_gaussians, seed=args.seed, device=args.device)
    align = args.align and args.cameras is None
    options = SceneFitOptions(train_frames=args.train_frames, held_out=args.held_out, align=align, fit=fit)
    with stage_bar("starting (the first start compiles, about 20 s)") as bar:
        done = fit_scene(capture, options, lambda share, words: bar(words, share, ""))
        done = done if loaded is None else in_scene(done, frames, loaded)
        _write_fit(done, output)
        if args.orbit:
            bar("rendering an orbit", 0.97, "")
            _orbit_fit(done, output.folder, args.orbit)
    for name, score in done.scores.items():
        say(f"{SCORE_WORDS.get(name, name)}: {score}")
    print(output.folder)
    return 0


def _write_fit(done: SceneFit, output: Output) -> None:
    from instep.scene.camera_files import Calibration
    from instep.splat.gaussian_files import save_gaussians
    from instep.splat.rendering import save_png

    parts = {name: done.gaussians.on(name) for name in done.gaussians.names}
    (output.folder / "splats").mkdir(exist_ok=True)
    for name, part in parts.items():
        save_gaussians(output.folder / "splats" / f"{name.replace('/', '_')}.ply", part)
    found = done.alignment
    about = f"{'used' if found is None else 'aligned'} by instep scene splat"
    Calibration({camera.name: camera for camera in done.cameras}, about=about).save(output.folder / "cameras.json")
    save_png(output.folder / "real_and_twin.png", done.comparison)
    moved = None if found is None else {
        "shifts_m": found.shifts, "turns_rad": found.turns,
        "correlation_before": found.before, "correlation_after": found.after,
    }  # fmt: skip
    counts = {name: len(part) for name, part in parts.items()}
    output.write(done.scores, gaussians=counts, cameras=[camera.name for camera in done.cameras], aligned=moved)


def _render_file(file: Path, args: SplatArgs) -> int:
    """Render Gaussians from outside, render.png, and from a camera that circles them, orbit.mp4."""
    from instep.splat.gaussian_files import load_gaussians
    from instep.splat.rendering import render

    gaussians = load_gaussians(file, up=args.up)
    output = new_output("scene-splat", args.out, seed=args.seed)
    output.read(file)
    shown = render(gaussians, device=args.device)
    shown.save(output.folder / "render.png")
    if args.orbit:
        centre = np.quantile(gaussians.means, [0.02, 0.98], axis=0).mean(axis=0)
        _orbit(gaussians, (shown.cameras[0], centre), None, output.folder, args.orbit)
    output.write({}, gaussians=len(gaussians), bodies=list(gaussians.names))
    print(output.folder)
    return 0


def _orbit_fit(done: SceneFit, folder: Path, frames: int) -> None:
    """Write a video of a camera that circles the point that the cameras see."""
    from instep.splat.fitting import focus_point
    from instep.splat.scene_fit import IDENTITY_POSE

    tracks = done.body_poses
    poses = np.stack([tracks[n][len(tracks[n]) // 2] if n in tracks else IDENTITY_POSE for n in done.gaussians.names])
    camera, centre = replace(done.cameras[0], name="orbit"), focus_point(done.cameras)
    if centre is None:
        centre = camera.body_from_camera[:3, 3] + camera.body_from_camera[:3, 2]
    _orbit(done.gaussians, (camera, centre), poses, folder, frames)


def _orbit(gaussians: Gaussians, around: tuple[Camera, Array], poses: Array | None, folder: Path, frames: int) -> None:
    from instep.splat.raster.rasterizer import Rasterizer
    from instep.splat.rendering import orbit_images, save_video

    save_video(folder / "orbit.mp4", orbit_images(Rasterizer(gaussians), *around, frames=frames, poses=poses))
