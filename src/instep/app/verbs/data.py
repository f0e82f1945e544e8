"""Verbs about data: other formats in, a summary, other formats out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from instep.app.arguments import DataArg, Expert, Options, Positional
from instep.app.data_args import DataArgs, mapping_of
from instep.app.output import new_output
from instep.data import (
    Selection,
    WriteOptions,
    dataset_page,
    describe_dataset,
    export_episodes,
    import_recordings,
    load_episodes,
)
from instep.data.datasets import DatasetInfo

MOST_ROWS = 30
"""Episodes shown in the table; result.json has them all."""


def import_data(
    source: Positional[Annotated[Path, tyro.conf.arg(metavar="SOURCE")]],
    folder: DataArg,
    /,
    *,
    args: Options[DataArgs] = DataArgs(),
    robot_type: Expert[str] = "",
) -> int:
    """Read recordings of another format and write them as a new LeRobot dataset, whole or not at all.

    Args:
        source: CSV, NPZ, HDF5 (ALOHA), zarr (diffusion policy), MCAP, ROS bags, LeRobot v2.1: a file or a folder.
        folder: dataset to make.
        robot_type: what LeRobot metadata call the robot (so101_follower); the scene of the mapping where not given.

    """
    options = WriteOptions(robot_type=robot_type or None)
    source, mapping = mapping_of(source, args)
    done = import_recordings(source, folder, mapping=mapping, rate=args.rate, options=options)
    Console(stderr=True).print(f"{done.episodes} episodes, {done.rows} rows.")
    print(done.folder)
    return 0


def export(
    source: DataArg,
    form: Positional[Annotated[str, tyro.conf.arg(metavar="FORMAT")]],
    folder: Positional[Annotated[Path, tyro.conf.arg(metavar="OUT")]],
    /,
    *,
    args: Options[DataArgs] = DataArgs(),
    episodes: str = "",
    cameras: Expert[str] = "",
    columns: str = "",
    robot_type: str = "",
) -> int:
    """Write the episodes of a dataset in another format.

    Args:
        source: dataset, or recordings that a mapping reads.
        form: lerobot-v3.0, lerobot-v2.1, mcap, csv, npz, hdf5 (ALOHA's layout), rosbag (ROS 2) or rerun (.rrd).
        folder: folder to make.
        episodes: numbers and ranges, 0,3,5:8; all where not given.
        cameras: names of cameras, separated by commas; none for no images; all where not given.
        columns: names of columns that are not images, separated by commas; all where not given.
        robot_type: what LeRobot metadata call the robot (so101_follower); as in DATA, or its scene, where not given.

    """
    source, mapping = mapping_of(source, args)
    chosen = Selection(episodes, _names(cameras), _names(columns), args.rate)
    done = export_episodes(source, form, folder, mapping=mapping, selection=chosen, robot_type=robot_type)
    console = Console(stderr=True)
    console.print(f"{done.episodes} episodes, {done.rows} rows.")
    if done.left_out:
        console.print(f"{form} cannot hold {', '.join(done.left_out)}; left out.", markup=False)
    print(done.folder)
    return 0


def info(
    source: DataArg,
    /,
    *,
    args: Options[DataArgs] = DataArgs(),
    out: Path | None = None,
) -> int:
    """Describe a dataset: episodes, rates, jitter, gaps, channels with units and ranges; and a page.

    Args:
        source: dataset, or recordings that a mapping reads.
        out: folder to write; a new one under runs/ where not given.

    """
    source, mapping = mapping_of(source, args)
    episodes = Selection(rate=args.rate).of(load_episodes(source, mapping))
    found = describe_dataset(episodes, source)
    output, console = new_output("data-info", out), Console()
    console.print(_episodes(found))
    console.print(_channels(found))
    output.write({}, **found.as_dict())
    print(output.page(dataset_page(found, episodes)))
    return 0


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _episodes(found: DatasetInfo) -> Table:
    title = f"{found.source}: {len(found.episodes)} episodes, {found.rows} rows, {found.seconds:.1f} s"
    table = Table(title=title + (f", scene {found.scene}" if found.scene else ""))
    for name, right in (
        ("#", 1),
        ("rows", 1),
        ("s", 1),
        ("Hz", 1),
        ("jitter ms", 1),
        ("longest ms", 1),
        ("gaps", 1),
        ("", 0),
    ):
        table.add_column(name, justify="right" if right else "left")
    for episode in found.episodes[:MOST_ROWS]:
        jitter = "nominal" if math.isnan(episode.jitter_ms) else f"{episode.jitter_ms:.2f}"
        note = episode.note or ("" if episode.complete else "not complete")
        row = (episode.index, episode.rows, f"{episode.seconds:.2f}", f"{episode.rate:.4g}", jitter)
        table.add_row(*map(str, row), f"{episode.longest_ms:.1f}", str(episode.gaps), note or episode.task)
    if len(found.episodes) > MOST_ROWS:
        table.caption = f"and {len(found.episodes) - MOST_ROWS} more, in result.json"
    return table


def _channels(found: DatasetInfo) -> Table:
    table = Table("channel", "label", "unit", "kind")
    for name in ("low", "high", "finite"):
        table.add_column(name, justify="right")
    last = ""
    for channel in found.channels:
        ends = ("", "") if math.isnan(channel.low) else (f"{channel.low:.4g}", f"{channel.high:.4g}")
        share = "" if math.isnan(channel.finite) else f"{100 * channel.finite:.0f} %"
        first = channel.name if channel.name != last else ""
        table.add_row(first, channel.label, channel.unit, channel.kind, *ends, share)
        last = channel.name
    return table
