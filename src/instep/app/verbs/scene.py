"""The verbs scene new, params, set and camera."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from instep.app.arguments import Expert, Options, OutFolder, Positional, SceneArg
from instep.app.output import new_output, say, show_table
from instep.core.errors import BadInput, UnknownName, Unsupported
from instep.core.world import options_dataclass
from instep.scene import address
from instep.scene.camera import Camera, aimed_place, pinhole
from instep.scene.camera_files import (
    field_of_view,
    framing_robot,
    load_calibration,
    remove_camera,
    scene_with_cameras,
    write_camera,
)
from instep.scene.folder import LIBRARY, ROBOT_FILES, SCENE_FILE, Scene, shipped
from instep.scene.model import overlapping_links
from instep.scene.new_scene import make_scene
from instep.tune.param_export import copy_scene, promote

Point = tuple[float, float, float]
MAX_SIDE_PX = 8192


def params(
    scene: Positional[Annotated[str, tyro.conf.arg(metavar="SCENE")]] = "",
    patterns: Positional[tuple[Annotated[str, tyro.conf.arg(metavar="PATTERN")], ...]] = (),
    /,
) -> None:
    """List the parameters of a scene with unit, value and search range; without SCENE, the shipped scenes.

    Args:
        patterns: addresses to list, with * for any part: 'joint.*.damping' 'action.delay'.

    """
    if not scene:
        known = {name: Scene.load(name) for name in shipped()}
        rows = [
            (name, f"{1 / one.dt:g} Hz", str(len(one.robot)), ", ".join(one.objects), one.about)
            for name, one in known.items()
        ]
        show_table(("scene", "rate", "robot", "objects", "what it is"), rows)
        print(LIBRARY)
        return
    loaded = Scene.load(scene)
    listed = loaded.params(*patterns)
    values = address.read(loaded.model, [param.address for param in listed])
    rows = [
        (p.address, f"{values[p.address]:.5g}", f"{p.low:.4g}", f"{p.high:.4g}", p.unit, "log" if p.log else "")
        for p in listed
    ]
    show_table(("param", "value", "low", "high", "unit", "scale"), rows, right=(1, 2, 3))


def new(
    robot: Positional[Annotated[Path, tyro.conf.arg(metavar="ROBOT")]],
    folder: Positional[Annotated[Path, tyro.conf.arg(metavar="DIR")]],
    /,
    *,
    rate: float | None = None,
    legs: bool = False,
) -> None:
    """Make a scene folder from a robot: an MJCF or URDF file, with the meshes and textures it uses.

    A robot file without a camera gets one that frames the robot.

    Args:
        robot: MJCF or URDF file; what it includes must lie in its folder, package:// too.
        rate: control rate [Hz], taken to the nearest whole number of physics steps; about 60 Hz where not given.
        legs: for a robot with legs: position servos in place of motors, a floor, and a pose to stand in.

    """
    made = make_scene(robot, folder, rate=rate, legs=legs)
    scene = made.scene
    print(
        f"{len(scene.robot)} joints, {scene.model.nu} actuators, {len(scene.objects)} free bodies, "
        f"{len(scene.cameras)} cameras, {1 / scene.dt:.4g} Hz control."
    )
    if made.servos:
        lacking = "position servos" if legs else "actuators"
        print(
            f"The file has no {lacking}, so {made.servos} position servos were added; "
            "their gains are a guess to be tuned (see scene.xml)."
        )
    for near, link in overlapping_links(scene.model):
        print(f"{link!r} does not collide with {near!r}: the file says so, or their shapes overlap at rest.")
    print(folder)


def set_params(
    scene: SceneArg,
    folder: Positional[Annotated[Path, tyro.conf.arg(metavar="DIR")]],
    settings: Positional[tuple[Annotated[str, tyro.conf.arg(metavar="PARAM=VALUE")], ...]],
    /,
) -> None:
    """Save a scene with other parameter values as a new folder; the old one stays as it is.

    Args:
        settings: what to set: 'joint.*.damping=0.3' action.delay=0.02

    """
    loaded = Scene.load(scene)
    try:
        wanted = {name: float(value) for name, _, value in (word.partition("=") for word in settings)}
    except ValueError:
        wanted = {}
    if not wanted:
        raise BadInput(f"{' '.join(settings)!r} holds no settings; PARAM=VALUE was expected, as in action.delay=0.02.")
    resolved = {name: float(value) for name, value in address.ordered(loaded.model, wanted).items()}
    promote(loaded, resolved, folder, {"by": "instep scene set"})
    print(folder)


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
    size: Expert[tuple[int, int] | None] = None
    """width and height of its images [pixels] (default: 640 480)."""
    angle: Expert[float | None] = None
    """horizontal field of view [deg]; 45 degrees along the shorter side by default."""
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
        folder: folder to write: a new one, or the scene's own folder to change it in place.

    """
    loaded, into = Scene.load(scene), Path(folder)
    actions = sum(map(bool, (args.add, args.move, args.remove, args.cameras)))
    if actions > 1:
        raise BadInput("Give one of --add, --move, --remove and --cameras at a time.")
    if not actions:
        if folder or args != CameraArgs(out=args.out):
            raise BadInput("No change is given; use --add NAME, --move NAME, --remove NAME or --cameras FILE.")
        _list_cameras(loaded, args.out)
        return
    if not folder:
        raise BadInput(
            f"Name the folder to write after {scene!r}: a new one, or the scene's own folder to change it in place."
        )
    if (name := args.remove or args.move) and name not in loaded.cameras:
        raise UnknownName("camera", name, loaded.cameras)
    changed = {} if args.remove else _changed(loaded, args)
    if changed and not loaded.source.urdf:
        scene_with_cameras(loaded, changed)  # raises before anything is written
    _prepare(loaded, scene, into)
    if args.remove:
        remove_camera(into, args.remove)
    for one in changed.values():
        write_camera(into, one)
    if changed:
        _preview(Scene.load(into), list(changed), args.out)
    print(into)


def _list_cameras(scene: Scene, out: Path | None) -> None:
    if not scene.cameras:
        raise BadInput(f"Scene {scene.name!r} has no cameras; add one with --add NAME --frame.")
    rows: list[tuple[str, ...]] = []
    for name, one in scene.cameras.items():
        place = one.body_from_camera
        at, along = (" ".join(f"{x:.3g}" for x in column[:3]) for column in (place[:, 3], place[:, 2]))
        lens = "distorted" if any(one.distortion) else ""
        rows.append((name, one.body, at, along, f"{one.width} x {one.height}", f"{field_of_view(one):.1f} deg", lens))
    show_table(("camera", "body", "at [m]", "looks along", "pixels", "field of view", "lens"), rows)
    if out is not None:
        _preview(scene, list(scene.cameras), out)


def _changed(scene: Scene, args: CameraArgs) -> dict[str, Camera]:
    """The cameras to write."""
    if args.cameras is not None:
        if args != CameraArgs(cameras=args.cameras, out=args.out):
            raise BadInput("--cameras takes places and lenses from its file; give no other option of a camera.")
        return dict(load_calibration(args.cameras).cameras)
    if args.add in scene.cameras:
        raise BadInput(f"Scene {scene.name!r} has a camera {args.add!r}; change it with --move {args.add}.")
    if args.add and not (args.frame or args.at):
        raise BadInput("A new camera needs a place: --at X Y Z and --towards X Y Z, or --frame.")
    seen = _with_lens(pinhole(args.add) if args.add else scene.cameras[args.move], args)
    if args.frame:
        if args.at or args.towards or args.body:
            raise BadInput("--frame chooses the place itself; leave out --at, --towards and body.")
        return {seen.name: framing_robot(scene, seen)}
    if (args.at is None) != (args.towards is None) or (args.body and args.at is None):
        raise BadInput("A place is given by --at X Y Z and --towards X Y Z, in the frame of its body.")
    if args.at is not None:
        at, towards, up = (np.array(point, float) for point in (args.at, args.towards, args.up))
        if not np.isfinite([at, towards, up]).all():
            raise BadInput("--at, --towards and up take finite numbers.")
        seen = replace(seen, body=args.body or seen.body, body_from_camera=aimed_place(seen.name, at, towards, up))
    return {seen.name: seen}


def _with_lens(given: Camera, args: CameraArgs) -> Camera:
    """The camera with the image size and the field of view that are given."""
    if args.angle is not None and not 1 <= args.angle <= 150:
        raise BadInput(f"angle must be 1 to 150 degrees across, not {args.angle:g}.")
    if args.size is not None:
        if not all(8 <= side <= MAX_SIDE_PX for side in args.size):
            raise BadInput(f"size takes width and height of 8 to {MAX_SIDE_PX} pixels, not {args.size}.")
        x, y = args.size[0] / given.width, args.size[1] / given.height
        (fx, fy), (cx, cy) = given.focal, given.centre
        focal = (fx * min(x, y),) * 2 if fx == fy else (fx * x, fy * y)
        given = replace(given, width=args.size[0], height=args.size[1], focal=focal, centre=(cx * x, cy * y))
    if args.angle is not None:
        wide = pinhole(given.name, (given.width, given.height), args.angle)
        given = replace(given, focal=wide.focal, centre=wide.centre)
    return given


def _prepare(scene: Scene, words: str, into: Path) -> None:
    """Make the folder that is edited: the scene's own, or a new copy of it."""
    if Path(words).suffix in ROBOT_FILES:
        make_scene(Path(words), into)
    elif not (into / SCENE_FILE).is_file() or into.resolve() != scene.root.resolve():
        copy_scene(scene, into)
    elif scene.root.resolve().is_relative_to(LIBRARY.resolve()):
        raise BadInput(f"{str(into)!r} comes with instep and is not changed; name a new folder.")


def _preview(scene: Scene, cameras: list[str], out: Path | None) -> None:
    """Render a scene where it starts through some of its cameras, one PNG per camera."""
    from instep.physics.mujoco_cameras import MujocoRenderer
    from instep.report.page import encode_png

    folder = new_output("scene-camera", out).folder
    try:
        renderer = MujocoRenderer(scene)
        for name in cameras:
            path = folder / f"{name.replace('/', '_')}.png"
            path.write_bytes(encode_png(renderer.render(scene.start(0)[0], scene.cameras[name])))
            say(f"preview {path}")
        renderer.close()
    except Unsupported as error:
        say(f"The scene is written, but there is no preview: {error}")
