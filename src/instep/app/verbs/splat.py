"""The verb scene splat: fit 3D Gaussians to posed images of a scene, or render Gaussians from a file."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich.console import Console

from instep.app.arguments import Expert, Options, OutFolder, Positional, SceneArg
from instep.core.errors import BadInput
from instep.core.world import options_dataclass

if TYPE_CHECKING:
    from instep.app.output import Output
    from instep.core.world import Array
    from instep.scene.camera import Camera
    from instep.splat.fitting import Progress as Report
    from instep.splat.gaussians import Gaussians
    from instep.splat.scene_fit import SceneFit


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
    orbit: int = 60
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
    from instep.app.output import new_output
    from instep.scene.camera_files import load_calibration
    from instep.scene.folder import Scene
    from instep.splat.capture import calibrated_capture, load_capture
    from instep.splat.fitting import GaussianFitOptions
    from instep.splat.io import FORMATS, load_gaussians
    from instep.splat.scene_fit import SceneFitOptions, check_in_world, fit_scene, in_scene, scan_frames

    if args.steps < 1 or args.max_gaussians < 1 or args.train_frames < 2 or args.held_out < 1 or args.orbit < 0:
        raise BadInput(
            "--steps, --max-gaussians and --held-out must be at least 1, --train-frames at least 2, --orbit at least 0."
        )
    loaded = Scene.load(scene) if scene else None
    if images.suffix.lower() in FORMATS:
        gaussians = load_gaussians(images, up=args.up)
        output = new_output("scene-splat", args.out, seed=args.seed)
        output.read(images)
        with _progress_bar() as report:
            _render_file(gaussians, output.folder, args.orbit, args.device, report)
        output.write({}, gaussians=len(gaussians), bodies=list(gaussians.names))
        print(output.folder)
        return 0
    capture = load_capture(images)
    if args.cameras is not None:
        capture = calibrated_capture(capture, load_calibration(args.cameras))
    check_in_world(capture)
    bodies = [body.gaussians.names[0] for body in capture.bodies]
    frames = {} if loaded is None else scan_frames(bodies, loaded)
    output = new_output("scene-splat", args.out, seed=args.seed)
    output.read(images)
    fit = GaussianFitOptions(steps=args.steps, max_count=args.max_gaussians, seed=args.seed, device=args.device)
    align = args.align and args.cameras is None
    options = SceneFitOptions(train_frames=args.train_frames, held_out=args.held_out, align=align, fit=fit)
    with _progress_bar() as report:
        done = fit_scene(capture, options, report)
        if loaded is not None:
            done = in_scene(done, frames, loaded)
        _write(done, output, args.orbit, report)
    _show(done)
    print(output.folder)
    return 0


def _write(done: SceneFit, output: Output, orbit: int, report: Report) -> None:
    from instep.scene.camera_files import Calibration
    from instep.splat.io import save_gaussians
    from instep.splat.rendering import save_png

    splats = output.folder / "splats"
    splats.mkdir(exist_ok=True)
    for name in done.gaussians.names:
        save_gaussians(splats / f"{name.replace('/', '_')}.ply", done.gaussians.on(name))
    made = "aligned" if done.alignment is not None else "used"
    calibration = Calibration({camera.name: camera for camera in done.cameras}, about=f"{made} by instep scene splat")
    calibration.save(output.folder / "cameras.json")
    save_png(output.folder / "real_and_twin.png", done.comparison)
    counts = {name: len(done.gaussians.on(name)) for name in done.gaussians.names}
    moved = None if done.alignment is None else {
        "shifts_m": done.alignment.shifts, "turns_rad": done.alignment.turns,
        "correlation_before": done.alignment.before, "correlation_after": done.alignment.after,
    }  # fmt: skip
    output.write(done.scores, gaussians=counts, cameras=[camera.name for camera in done.cameras], aligned=moved)
    if orbit:
        _orbit_fit(done, output.folder / "orbit.mp4", orbit, report)


def _render_file(
    gaussians: Gaussians, folder: Path, frames: int, device: Literal["cpu", "cuda"], report: Report
) -> None:
    """Render Gaussians from outside, render.png, and from a camera that circles them, orbit.mp4."""
    import numpy as np

    from instep.splat.rendering import render

    report(0.1, f"{len(gaussians)} Gaussians")
    shown = render(gaussians, device=device)
    shown.save(folder / "render.png")
    if frames:
        low, high = np.quantile(gaussians.means, [0.02, 0.98], axis=0)
        report(0.97, "rendering an orbit")
        _orbit(gaussians, shown.cameras[0], (low + high) / 2, None, folder / "orbit.mp4", frames)


def _orbit_fit(done: SceneFit, path: Path, frames: int, report: Report) -> None:
    """Write a video of a camera that circles the point that the cameras see."""
    import numpy as np

    from instep.splat.fitting import focus_point
    from instep.splat.scene_fit import IDENTITY_POSE

    tracks = done.body_poses
    poses = np.stack([tracks[n][len(tracks[n]) // 2] if n in tracks else IDENTITY_POSE for n in done.gaussians.names])
    camera, centre = replace(done.cameras[0], name="orbit"), focus_point(done.cameras)
    if centre is None:
        centre = camera.body_from_camera[:3, 3] + camera.body_from_camera[:3, 2]
    report(0.97, "rendering an orbit")
    _orbit(done.gaussians, camera, centre, poses, path, frames)


def _orbit(gaussians: Gaussians, camera: Camera, centre: Array, poses: Array | None, path: Path, frames: int) -> None:
    from instep.splat.raster.rasterizer import Rasterizer
    from instep.splat.rendering import orbit_images, save_video

    save_video(path, orbit_images(Rasterizer(gaussians), camera, centre, frames=frames, poses=poses))


def _show(done: SceneFit) -> None:
    console = Console(stderr=True, highlight=False)
    words = {
        "psnr": "PSNR on held-out images",
        "ssim": "SSIM on held-out images",
        "psnr_with_hidden": "PSNR with what the twin has no model of (the arm)",
        "left_out": "share of the table that was left out for it",
    }
    for name, score in done.scores.items():
        console.print(f"{words.get(name, name)}: {score}")


@contextmanager
def _progress_bar() -> Generator[Report]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("starting (the first start compiles, about 20 s)", total=1.0)

        def report(share: float, words: str) -> None:
            progress.update(bar, completed=share, description=words)

        yield report
