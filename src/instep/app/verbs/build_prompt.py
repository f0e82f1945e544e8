"""The verb build prompt: a page on which objects are marked in images."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Annotated

import tyro

from instep.app.arguments import Options, Positional
from instep.core.errors import BadInput
from instep.core.records import options_dataclass


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
    from instep.app.verbs.build import level_table
    from instep.app.verbs.view import shown
    from instep.app.viewer.front_end import PROMPTS
    from instep.app.viewer.prompt_content import PromptContent
    from instep.app.viewer.view_server import ViewServer
    from instep.build.posed_views import table_of, views_of
    from instep.build.prompt_segmenter import open_segmenter
    from instep.splat.capture import load_capture

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
