"""The verb view: a scene, recordings or a run in the browser, in 3D."""

from __future__ import annotations

import sys
import time
import webbrowser
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console

from instep.app.arguments import Expert, Options, Positional, TokenFile, link_token
from instep.app.viewer.showing import PlacingContent, ViewRequest, is_scene, open_content, view_images, view_page
from instep.app.viewer.view_server import ViewServer
from instep.core.errors import BadInput
from instep.core.world import options_dataclass
from instep.physics.mujoco_cameras import VIDEO_FPS, write_small_video
from instep.scene.folder import Scene

from .runs import has_display

if TYPE_CHECKING:
    from instep.app.viewer.teleoperation import FollowingRobot, RobotContent, TeleopContent

SIZE = 1200, 760
"""Size of images [pixels]."""
ThingArg = Positional[Annotated[str, tyro.conf.arg(metavar="THING")]]


@options_dataclass
class ViewArgs:
    """Options of `instep view`."""

    scene: str = ""
    """scene of recordings whose own one is not known: a shipped name, a folder, or a robot file."""
    against: tuple[str, ...] = ()
    """scenes in which the recording is replayed, earlier ones first, such as before and after identification: the
    recording is a ghost over the last one, whose joints are coloured by their error."""
    params: tuple[str, ...] = ()
    """parameters of the last scene with a slider (patterns such as 'joint.*.damping'); the replay follows them."""
    map: Path | None = None
    """mapping file of the recordings (.toml)."""
    episode: Expert[int] = 1
    """episode that is shown first."""
    port: int = 0
    """port on this machine; a free one where 0."""
    no_browser: bool = False
    """print the address, and open no browser."""
    seconds: Expert[float | None] = None
    """end after so many seconds [s]; else with Ctrl-C."""
    image: Path | None = None
    """write a PNG of the page and end; a Chromium of this machine renders it."""
    film: Path | None = None
    """write an MP4 of the recording in 3D and end, likewise."""
    teleop: bool = False
    """simulate the scene in real time; its end effectors follow a drag of the mouse, or a controller in VR."""
    real: str = ""
    """robot:ADDRESS that follows the simulated one of --teleop, through its own limits, only while the page keeps it
    armed: a robot that is armed goes to its start first."""
    allow_stop: Expert[bool] = False
    """give the page of robot:ADDRESS a button that stops the robot until it is reset."""
    place: Path | None = None
    """write start poses of objects to this new file (JSON), for 'instep run ... --start': drag the objects of the scene
    to where they are."""
    token: TokenFile = None
    at: Expert[float] = 0.0
    """time that --image shows [s]."""


def view(
    thing: ThingArg,
    /,
    args: Options[ViewArgs] = ViewArgs(),
) -> int:
    """Show a scene, a dataset or a run in the browser, in 3D: play, scrub, plot channels, pick and measure.

    The page is served to this machine alone, at an address with a token; nothing is fetched from anywhere else.

    Args:
        thing: a scene (shipped name, folder, robot file), a dataset or other recordings, the folder of a run,
            robot:ADDRESS with --scene, or Gaussians (.ply, .spz, .splat, .glb, a folder with one file per body; --scene
            has the bodies).

    """
    request = ViewRequest(
        thing=thing, scene=args.scene, map=args.map, episode=args.episode - 1, against=args.against, params=args.params
    )
    live = _live(thing, args)
    server = ViewServer(live or _placed(thing, args) or open_content(request), port=args.port)
    url = server.start()
    try:
        with live.running(server) if live is not None else nullcontext():
            if args.image is not None or args.film is not None:
                return _captured(url, args)
            return shown(url, browser=not args.no_browser, seconds=args.seconds)
    finally:
        server.close()


def shown(url: str, *, browser: bool, seconds: float | None) -> int:
    """Print the address of a page, open it where there is a display, and wait until the end."""
    Console(stderr=True, highlight=False).print("[dim]Stop it with Ctrl-C.[/]")
    print(url, flush=True)
    if browser and sys.stdout.isatty() and has_display():
        webbrowser.open(url)
    with suppress(KeyboardInterrupt):
        time.sleep(seconds if seconds is not None else 10 * 365 * 86400)
    return 0


def _live(thing: str, args: ViewArgs) -> TeleopContent | RobotContent | None:
    """What moves by itself: a robot behind a link, or a simulated one; None where nothing does."""
    kind, _, address = thing.partition(":")
    if args.allow_stop and kind != "robot":
        raise BadInput("--allow-stop stops a robot behind a link; show one with robot:ADDRESS.")
    if args.real and (not args.teleop or kind == "robot"):
        raise BadInput("--real follows a simulated robot that is moved by hand; give a scene and --teleop with it.")
    if kind == "twin":
        command = f"instep twin {address} --real robot:ADDRESS --view"
        raise BadInput(f"A twin is shown while it runs; start it with: {command}")
    if kind == "robot":
        if not args.scene:
            raise BadInput("A robot is shown in a scene; give the one of this robot with --scene.")
        from instep.app.viewer.teleoperation import RobotContent

        return RobotContent(address, link_token(args.token), Scene.load(args.scene), may_stop=args.allow_stop)
    if not args.teleop:
        return None
    if not is_scene(thing):
        raise BadInput(
            f"--teleop simulates a scene, and {thing!r} is none; give a shipped name, a folder or a robot file."
        )
    from instep.app.viewer.teleoperation import TeleopContent

    scene = Scene.load(thing)
    return TeleopContent(scene, _real(scene, args) if args.real else None)


def _real(scene: Scene, args: ViewArgs) -> FollowingRobot:
    """The robot that follows a simulated one."""
    from instep.app.viewer.teleoperation import FollowingRobot

    kind, _, address = args.real.partition(":")
    if kind != "robot":
        raise BadInput(f"--real takes robot:ADDRESS, not {args.real!r}.")
    return FollowingRobot(address, link_token(args.token), scene)


def _placed(thing: str, args: ViewArgs) -> PlacingContent | None:
    """The scene whose objects are dragged; None where no file is asked for."""
    if args.place is None:
        return None
    if not is_scene(thing):
        raise BadInput(f"--place takes a scene, and {thing!r} is none; give a shipped name, a folder or a robot file.")
    return PlacingContent(Scene.load(thing), args.place)


def _captured(url: str, args: ViewArgs) -> int:
    """Write what was asked for, and print its path."""
    with view_page() as page:
        state = page.open(f"{url}&theme=light", SIZE)
        if args.image is not None:
            page.image(args.at)
            print(page.screenshot(args.image))
        if args.film is not None:
            length = float(state["end"] - state["begin"])
            if length <= 0:
                raise BadInput("There is no recording to make a film of; give data or a run.")
            print(write_small_video(args.film, view_images(page, length, VIDEO_FPS)))
    return 0
