"""The verbs view and runs: a scene, recordings or a run in the browser, in 3D; and past runs with their pages."""

from __future__ import annotations

import shlex
import sys
import time
import webbrowser
from contextlib import nullcontext, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from instep.app.arguments import Expert, Options, Positional, TokenFile, link_token
from instep.app.output import CONFIG, REPORT, RESULT, RUNS, has_display, say, show_table
from instep.app.viewer.showing import PlacingContent, is_scene, open_content, view_images, view_page
from instep.app.viewer.view_server import ViewServer
from instep.core.errors import BadInput
from instep.core.reading import is_mapping, is_sequence, read_json_table, read_toml
from instep.core.world import frozen_dataclass, options_dataclass
from instep.physics.mujoco_cameras import VIDEO_FPS, write_small_video
from instep.scene.folder import Scene

if TYPE_CHECKING:
    from instep.app.viewer.teleoperation import RobotContent, TeleopContent

SIZE = 1200, 760
"""Size of images [pixels]."""
MOST_RUNS = 20
"""Runs that are listed on a terminal; all are where the list is piped."""
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


def view(thing: ThingArg, /, args: Options[ViewArgs] = ViewArgs()) -> int:
    """Show a scene, a dataset or a run in the browser, in 3D: play, scrub, plot channels, pick and measure.

    The page is served to this machine alone, at an address with a token; nothing is fetched from anywhere else.

    Args:
        thing: a scene (shipped name, folder, robot file), a dataset or other recordings, the folder of a run,
            robot:ADDRESS with --scene, or Gaussians (.ply, .spz, .splat, .glb, a folder with one file per body; --scene
            has the bodies).

    """
    live = _live(thing, args)
    placing = PlacingContent(_given_scene(thing, "--place takes"), args.place) if args.place else None
    content = live or placing or open_content(
        thing, scene=args.scene, map=args.map, episode=args.episode - 1, against=args.against, params=args.params
    )  # fmt: skip
    server = ViewServer(content, port=args.port)
    url = server.start()
    try:
        with live.running(server) if live is not None else nullcontext():
            if args.image is not None or args.film is not None:
                return _captured(url, args)
            return wait_while_shown(url, browser=not args.no_browser, seconds=args.seconds)
    finally:
        server.close()


def wait_while_shown(url: str, *, browser: bool, seconds: float | None) -> int:
    """Print the address of a page, open it where there is a display, and wait until the end."""
    say("Stop it with Ctrl-C.")
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
    if kind != "robot" and not args.teleop:
        return None
    from instep.app.viewer.teleoperation import FollowingRobot, RobotContent, TeleopContent

    if kind == "robot":
        if not args.scene:
            raise BadInput("A robot is shown in a scene; give the one of this robot with --scene.")
        return RobotContent(address, link_token(args.token), Scene.load(args.scene), may_stop=args.allow_stop)
    scene = _given_scene(thing, "--teleop simulates")
    if not args.real:
        return TeleopContent(scene, None)
    kind, _, address = args.real.partition(":")
    if kind != "robot":
        raise BadInput(f"--real takes robot:ADDRESS, not {args.real!r}.")
    return TeleopContent(scene, FollowingRobot(address, link_token(args.token), scene))


def _given_scene(thing: str, option: str) -> Scene:
    if not is_scene(thing):
        raise BadInput(f"{option} a scene, and {thing!r} is none; give a shipped name, a folder or a robot file.")
    return Scene.load(thing)


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


def runs(
    *,
    open: Annotated[str | None, tyro.conf.arg(metavar="N")] = None,
    folder: Path = RUNS,
) -> int:
    """List past runs, the newest first: verb, inputs, headline, time, and the path of the page.

    Args:
        open: open a page in the browser and print its path: the number in the list (1 is the newest), the name of its
            folder, or a folder. Without a display the path is only printed.
        folder: folder that holds the folders of the runs.

    """
    if open is not None:
        page = _page(open, folder)
        if sys.stdout.isatty() and has_display():
            webbrowser.open(page.absolute().as_uri())
        print(page)
        return 0
    found = list_runs(folder)
    rows = [(str(run.number), run.verb, run.inputs, run.headline, run.when, str(run.path)) for run in found]
    if not found:
        say(f"No runs under {str(folder)!r}; instep demo makes one.")
    elif sys.stdout.isatty():
        from rich.markup import escape

        colours = {"good": "green", "bad": "red", "plain": "default"}
        # Names come from files of strangers: no markup.
        plain = [tuple(map(escape, row)) for row in rows]
        coloured = [
            (*cells[:3], f"[{colours.get(run.verdict, 'default')}]{cells[3]}[/]", *cells[4:])
            for run, cells in zip(found[:MOST_RUNS], plain, strict=False)
        ]
        show_table(("", "verb", "inputs", "headline", "when", "path"), coloured)
        if len(found) > MOST_RUNS:
            say(f"{len(found) - MOST_RUNS} older ones; `instep runs | cat` lists all.")
    else:
        print("\n".join("\t".join(row) for row in rows))
    return 0


def _page(which: str, folder: Path) -> Path:
    for place in (Path(which), folder / which):
        if not which.isdigit() and place.is_dir():
            if not (place / REPORT).is_file():
                raise BadInput(f"The folder {str(place)!r} holds no {REPORT}; instep runs lists the runs with a page.")
            return place / REPORT
    found = list_runs(folder)
    if not which.isdigit() or not 1 <= int(which) <= len(found):
        raise BadInput(
            f"There is no run {which!r} under {str(folder)!r}, which holds {len(found)}; give a number from instep "
            "runs, or the name of a folder."
        )
    run = found[int(which) - 1]
    if not run.page:
        raise BadInput(f"Run {which} ({run.path}) has no page: instep {run.verb} writes none, or it was stopped.")
    return run.path


@frozen_dataclass
class PastRun:
    """One run of a verb."""

    number: int
    """Place in the list; 1 is the newest."""
    verb: str
    inputs: str
    """The words after the verb, without options."""
    headline: str
    """What was found: the conclusion of its page, or its first score."""
    verdict: str
    """good, bad or plain, as on its page."""
    when: str
    """When it was started, in local time."""
    path: Path
    """Its page, or its folder where it has none."""

    @property
    def page(self) -> bool:
        """Whether there is a page."""
        return self.path.name == REPORT


def list_runs(folder: Path = RUNS) -> list[PastRun]:
    """The runs under a folder, the newest first; folders that no verb wrote are left out."""
    known: list[tuple[dict[str, Any], Path]] = []
    for path in folder.glob(f"*/{CONFIG}"):
        with suppress(BadInput):
            known.append((read_toml(path), path.parent))
    known = [(config, place) for config, place in known if "verb" in config]
    known.sort(key=lambda pair: (_started(*pair), pair[1].name), reverse=True)
    return [_past_run(i + 1, config, path) for i, (config, path) in enumerate(known)]


def _past_run(number: int, config: dict[str, Any], folder: Path) -> PastRun:
    try:
        result = read_json_table(folder / RESULT)
    except BadInput:
        result = {"headline": "no result", "verdict": "bad"}
    # The operands of the command: the words between the verb and the first option.
    verb, command = str(config["verb"]), config.get("command")
    words = [str(word) for word in command][1 + len(verb.split("-")) :] if is_sequence(command) else []
    first = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    return PastRun(
        number, verb, shlex.join(words[:first]), str(result.get("headline", "")) or _first_score(result),
        str(result.get("verdict", "plain")), _started(config, folder).strftime("%Y-%m-%d %H:%M"),
        folder / REPORT if (folder / REPORT).is_file() else folder,
    )  # fmt: skip


def _started(config: dict[str, Any], folder: Path) -> datetime:
    started = config.get("started")
    if isinstance(started, datetime):
        return started.astimezone()
    return datetime.fromtimestamp((folder / CONFIG).stat().st_mtime).astimezone()


def _first_score(result: dict[str, Any]) -> str:
    scores = result.get("scores")
    for name, score in scores.items() if is_mapping(scores) else ():
        if is_mapping(score) and isinstance(score.get("value"), int | float):
            return f"{name}: {score['value']:.4g} {score.get('unit') or ''}".replace(" 1", "").strip()
    return ""
