"""The verb start: from a robot file and logs to a report in one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from instep.app.arguments import Options, OutFolder, Positional
from instep.core.records import options_dataclass


@options_dataclass
class StartArgs:
    """Options of `instep start`."""

    images: Path | None = None
    """folder of images of the place, with cameras.json or transforms.json: the next commands fit Gaussians to them."""
    map: Path | None = None
    """a mapping file (.toml), such as a corrected draft, in place of a guess."""
    rate: float | None = None
    """rows per second of logs without times [Hz]."""
    budget: str = "150s"
    """how long the identification may take (90s, 2min)."""
    runs: int = 6
    """measure the gap on so many runs, spread over all; 0 is all."""
    seed: int = 0
    """seed of all random numbers."""
    out: OutFolder = None


def start(
    robot: Positional[Annotated[Path, tyro.conf.arg(metavar="ROBOT")]],
    logs: Positional[tuple[Annotated[Path, tyro.conf.arg(metavar="LOGS")], ...]],
    /,
    args: Options[StartArgs] = StartArgs(),
) -> int:
    """Make a scene of a robot, guess how its logs are to be read, measure the gap, identify, and write a report.

    The guess is printed with a confidence per row, shown as a plot and written to OUT/map.toml, to be corrected and
    given again with --map. On a terminal it asks where it cannot know; piped it goes on with the best guess and flags
    it. OUT/scene is the scene, OUT/data the logs as a dataset, OUT/gap and OUT/tune hold the measurement and the
    identification, OUT/report.html sums up. Exits 1 where a part could not be done or the new scene did not pass.

    Args:
        robot: MJCF or URDF file of the robot.
        logs: recordings of it: CSV or NPZ files, ROS bags, MCAP files, or one folder of these or of a LeRobot dataset.

    """
    from instep.app.start_run import run_start

    return run_start(robot, logs, args)
