"""The verb scene splat: fit 3D Gaussians to posed images of a scene, or picture Gaussians that are there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console

from instep.core.errors import BadInput

if TYPE_CHECKING:
    from instep.app.output import Output
    from instep.splat.fitting import Progress as Tell
    from instep.splat.scene_fit import SceneFit

Positional = tyro.conf.Positional


def splat(
    images: Positional[Annotated[Path, tyro.conf.arg(metavar="IMAGES")]],
    scene: Positional[Annotated[str, tyro.conf.arg(metavar="SCENE")]] = "",
    /,
    *,
    steps: int = 1500,
    most: int = 20_000,
    learn: int = 50,
    held_out: int = 10,
    align: bool = True,
    orbit: int = 60,
    seed: int = 0,
    out: Path | None = None,
) -> int:
    """Fit 3D Gaussians to posed images and score them on images that were held out.

    Writes one Gaussian file per body (splats/world.ply and so on), cameras.json with the cameras as they were aligned,
    real_and_twin.png and orbit.mp4. Given a Gaussian file instead of images, it only pictures it.

    Args:
        images: folder with cameras.json and videos, or transforms.json and images; or a file of Gaussians.
        scene: scene whose bodies carry the Gaussians: a shipped name, a folder, an MJCF file. Names of the
            recording are kept where none is given.
        steps: steps of fitting, each on one picture.
        most: most Gaussians of what does not move.
        learn: frames of each video to learn from.
        held_out: frames of each video, or whole images, kept back to score on.
        align: put cameras that disagree about the table right first; --no-align takes them as they are.
        orbit: frames of the film of a camera that circles the scene; 0 for none.
        seed: seed of the fit.
        out: folder to write; a new one under runs/ where not given.

    """
    from instep.app.output import new_output
    from instep.app.splat_tools import named_as, picture, scan_frames
    from instep.scene.folder import Scene
    from instep.splat.capture import load_capture
    from instep.splat.fitting import GaussianFitOptions
    from instep.splat.io import FORMATS, load
    from instep.splat.scene_fit import SceneFitOptions, fit_scene

    if steps < 1 or most < 1 or learn < 2 or held_out < 1 or orbit < 0:
        raise BadInput("--steps, --most and --held-out must be at least 1, --learn at least 2, --orbit at least 0.")
    loaded = Scene.load(scene) if scene else None
    if images.suffix.lower() in FORMATS:
        gaussians = load(images)
        output = new_output("scene-splat", out, seed=seed)
        output.read(images)
        with _bar() as tell:
            picture(gaussians, output.folder, orbit, tell)
        output.write({}, gaussians=len(gaussians), bodies=list(gaussians.names))
        print(output.folder)
        return 0
    capture = load_capture(images)
    bodies = [body.gaussians.names[0] for body in capture.bodies]
    frames = {} if loaded is None else scan_frames(bodies, loaded)
    output = new_output("scene-splat", out, seed=seed)
    output.read(images)
    options = SceneFitOptions(
        train_frames=learn,
        held_out=held_out,
        align=align,
        fit=GaussianFitOptions(steps=steps, max_count=most, seed=seed),
    )
    with _bar() as tell:
        done = fit_scene(capture, options, tell)
        if loaded is not None:
            done = named_as(done, frames, loaded)
        _write(done, output, orbit, tell)
    _show(done)
    print(output.folder)
    return 0


def _write(done: SceneFit, output: Output, orbit: int, tell: Tell) -> None:
    from instep.app.splat_tools import circle
    from instep.splat.capture import save_cameras
    from instep.splat.io import save
    from instep.splat.rendering import save_png

    splats = output.folder / "splats"
    splats.mkdir(exist_ok=True)
    for name in done.gaussians.names:
        save(splats / f"{name.replace('/', '_')}.ply", done.gaussians.on(name))
    save_cameras(output.folder / "cameras.json", done.cameras)
    save_png(output.folder / "real_and_twin.png", done.comparison)
    counts = {name: len(done.gaussians.on(name)) for name in done.gaussians.names}
    moved = None if done.alignment is None else {
        "shifts_m": done.alignment.shifts, "turns_rad": done.alignment.turns,
        "correlation_before": done.alignment.before, "correlation_after": done.alignment.after,
    }  # fmt: skip
    output.write(done.scores, gaussians=counts, cameras=[camera.name for camera in done.cameras], alignment=moved)
    if orbit:
        circle(done, output.folder / "orbit.mp4", orbit, tell)


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
def _bar() -> Iterator[Tell]:
    """A bar that is told the share that is done and a few words."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("starting (the first start compiles, about 20 s)", total=1.0)

        def tell(share: float, words: str) -> None:
            progress.update(bar, completed=share, description=words)

        yield tell
