"""The verb scene camera: list, render, add, move and remove cameras of a scene."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from instep.app.arguments import Expert, Options, OutFolder, Positional, SceneArg
from instep.core.errors import BadInput, UnknownName, Unsupported
from instep.core.world import options_dataclass
from instep.scene.camera import Camera, aimed_place, pinhole
from instep.scene.camera_files import (
    field_of_view,
    framing_robot,
    load_calibration,
    remove_camera,
    scene_with_cameras,
    write_camera,
)
from instep.scene.folder import LIBRARY, ROBOT_FILES, SCENE_FILE, Scene
from instep.scene.new_scene import make_scene

from .scene import render_images

Point = tuple[float, float, float]
Size = tuple[int, int]
MAX_SIDE_PX = 8192


@options_dataclass
class CameraArgs:
    """Options of `instep scene camera`."""

    add: str = ""
    """name of a camera to add."""
    move: str = ""
    """name of a camera to change; options that are not given keep their values."""
    remove: str = ""
    """name of a camera to remove."""
    cameras: Path | None = None
    """calibration file (JSON) whose cameras replace those of the same name."""
    frame: bool = False
    """frame the whole robot."""
    at: Point | None = None
    """where the camera is [m], in the frame of its body."""
    towards: Point | None = None
    """a point that it looks at [m], in the frame of its body."""
    up: Expert[Point] = (0.0, 0.0, 1.0)
    """the direction that is up in its image."""
    body: Expert[str] = ""
    """body that carries the camera, such as a gripper (default: the world)."""
    size: Expert[Size | None] = None
    """width and height of its images [pixels] (default: 640 480)."""
    angle: Expert[float | None] = None
    """horizontal field of view [deg]; 45 degrees along the shorter side by default."""
    focal: Expert[tuple[float, float] | None] = None
    """focal lengths fx fy [pixels], in place of `angle`."""
    centre: Expert[tuple[float, float] | None] = None
    """principal point cx cy [pixels]; the middle of the image where not given."""
    distortion: Expert[tuple[float, ...] | None] = None
    """lens distortion k1 k2 p1 p2 k3 as in OpenCV; none where not given."""
    out: OutFolder = None


def camera(
    scene: SceneArg,
    folder: Positional[Annotated[str, tyro.conf.arg(metavar="DIR")]] = "",
    /,
    args: Options[CameraArgs] = CameraArgs(),
) -> None:
    """List the cameras of a scene, or add, move or remove one and write the scene.

    `--out DIR` renders the listed or changed cameras as DIR/NAME.png.

    Args:
        scene: name of a shipped scene, a scene folder, or an MJCF or URDF file.
        folder: folder to write: a new one, or the scene's own folder to change it in place.

    """
    loaded = Scene.load(scene)
    actions = [args.add, args.move, args.remove, str(args.cameras or "")]
    if not any(actions):
        if folder or args != CameraArgs(out=args.out):
            raise BadInput("No change is given; use --add NAME, --move NAME, --remove NAME or --cameras FILE.")
        _list(loaded)
        if args.out is not None:
            if not loaded.cameras:
                raise BadInput(f"Scene {loaded.name!r} has no cameras; add one with --add NAME --frame.")
            _preview(loaded, list(loaded.cameras), args.out)
        return
    if sum(map(bool, actions)) > 1:
        raise BadInput("Give one of --add, --move, --remove and --cameras at a time.")
    if not folder:
        raise BadInput(
            f"Name the folder to write after {scene!r}: a new one, or the scene's own folder to change it in place."
        )
    into = Path(folder)
    if args.remove:
        _known(loaded, args.remove)
        remove_camera(_prepared(loaded, scene, into), args.remove)
        print(into)
        return
    cameras = _cameras(loaded, args)
    if not loaded.source.urdf:
        scene_with_cameras(loaded, cameras)  # raises before anything is written
    target = _prepared(loaded, scene, into)
    for one in cameras.values():
        write_camera(target, one)
    _preview(Scene.load(into), list(cameras), args.out)
    print(into)


def _list(scene: Scene) -> None:
    table = Table(
        "camera", "body", "at [m]", "looks along", "pixels", "field of view", "lens", box=None, padding=(0, 2)
    )
    for name, one in scene.cameras.items():
        place = one.body_from_camera
        at, along = (" ".join(f"{x:.3g}" for x in column[:3]) for column in (place[:, 3], place[:, 2]))
        lens = "distorted" if any(one.distortion) else ""
        table.add_row(name, one.body, at, along, f"{one.width} x {one.height}", f"{field_of_view(one):.1f} deg", lens)
    Console().print(table if scene.cameras else f"Scene {scene.name!r} has no cameras.")


def _known(scene: Scene, name: str) -> Camera:
    if name not in scene.cameras:
        raise UnknownName("camera", name, scene.cameras)
    return scene.cameras[name]


def _cameras(scene: Scene, args: CameraArgs) -> dict[str, Camera]:
    """The cameras to write."""
    if args.cameras is not None:
        if args != CameraArgs(cameras=args.cameras, out=args.out):
            raise BadInput("--cameras takes places and lenses from its file; give no other option of a camera.")
        return dict(load_calibration(args.cameras).cameras)
    name = args.add or args.move
    if args.add and args.add in scene.cameras:
        raise BadInput(f"Scene {scene.name!r} has a camera {args.add!r}; change it with --move {args.add}.")
    if args.add and not (args.frame or args.at):
        raise BadInput("A new camera needs a place: --at X Y Z and --towards X Y Z, or --frame.")
    seen = _with_lens(_known(scene, name) if args.move else pinhole(name), args)
    return {name: _placed(scene, seen, args)}


def _with_lens(given: Camera, args: CameraArgs) -> Camera:
    """The camera with the image size, field of view and distortion that are given."""
    if args.angle is not None and args.focal is not None:
        raise BadInput("Give the field of view by angle or by focal, not by both.")
    if args.angle is not None and not 1 <= args.angle <= 150:
        raise BadInput(f"angle must be 1 to 150 degrees across, not {args.angle:g}.")
    if args.size is not None:
        if not all(8 <= side <= MAX_SIDE_PX for side in args.size):
            raise BadInput(f"size takes width and height of 8 to {MAX_SIDE_PX} pixels, not {args.size}.")
        (width, height), (fx, fy), (cx, cy) = args.size, given.focal, given.centre
        x, y = width / given.width, height / given.height
        square = fx == fy
        focal = (fx * min(x, y),) * 2 if square else (fx * x, fy * y)
        given = replace(given, width=width, height=height, focal=focal, centre=(cx * x, cy * y))
    if args.angle is not None:
        wide = pinhole(given.name, (given.width, given.height), args.angle)
        given = replace(given, focal=wide.focal, centre=wide.centre)
    if args.focal is not None:
        if min(args.focal) <= 0:
            raise BadInput(f"focal takes fx and fy above 0 in pixels, not {args.focal}.")
        given = replace(given, focal=args.focal)
    given = given if args.centre is None else replace(given, centre=args.centre)
    if args.distortion is not None:
        if len(args.distortion) > 5:
            raise BadInput("distortion takes up to 5 numbers: k1 k2 p1 p2 k3.")
        given = replace(given, distortion=args.distortion)
    return given


def _placed(scene: Scene, seen: Camera, args: CameraArgs) -> Camera:
    """The camera at the place that is given."""
    if args.frame:
        if args.at or args.towards or args.body:
            raise BadInput("--frame chooses the place itself; leave out --at, --towards and body.")
        return framing_robot(scene, seen)
    if (args.at is None) != (args.towards is None) or (args.body and args.at is None):
        raise BadInput("A place is given by --at X Y Z and --towards X Y Z, in the frame of its body.")
    if args.at is None or args.towards is None:
        return seen
    at, towards, up = (np.array(point, float) for point in (args.at, args.towards, args.up))
    if not np.isfinite([at, towards, up]).all():
        raise BadInput("--at, --towards and up take finite numbers.")
    return replace(seen, body=args.body or seen.body, body_from_camera=aimed_place(seen.name, at, towards, up))


def _prepared(scene: Scene, words: str, into: Path) -> Path:
    """The folder that is edited: the scene's own, or a new copy of it."""
    from instep.tune.param_export import copy_scene

    if Path(words).suffix in ROBOT_FILES:
        make_scene(Path(words), into)
    elif (into / SCENE_FILE).is_file() and into.resolve() == scene.root.resolve():
        if scene.root.resolve().is_relative_to(LIBRARY.resolve()):
            raise BadInput(f"{str(into)!r} comes with instep and is not changed; name a new folder.")
    else:
        copy_scene(scene, into)
    return into


def _preview(scene: Scene, cameras: list[str], out: Path | None) -> None:
    from instep.app.output import new_output

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    output = new_output("scene-camera", out)
    try:
        paths = render_images(scene, cameras, output.folder)
    except Unsupported as error:
        console.print(f"The scene is written, but there is no preview: {error}", markup=False)
        return
    for path in paths:
        console.print(f"preview {path}", markup=False)
