"""The verb demo: the whole loop, on this machine, in about a minute."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from instep.app import demo as loop
from instep.app.output import new_output
from instep.app.process import robot_process
from instep.app.report import write_report
from instep.core.episode import Episode
from instep.core.errors import Unsupported
from instep.physics.film import graphics
from instep.real.link import LinkWorld
from instep.scene.folder import Scene


def demo(*, hidden: int = 7, out: Path | None = None) -> int:
    """Run the whole loop against a stand-in robot: record, measure the gap, fit two knobs, measure again.

    Args:
        hidden: seed of what is off in the stand-in.
        out: folder to write; a new one under runs/ where not given.

    """
    begin, console = time.perf_counter(), Console(stderr=True)
    output, scene = new_output("demo", out, seed=hidden), Scene.load(loop.SCENE)
    output.read(scene.root)
    cameras, note = _cameras(scene)
    if note:
        console.print(f"No camera pictures: {note}", highlight=False, markup=False)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        runs = len(loop.TRAIN + loop.HELD_OUT) + len(cameras)
        task = progress.add_task(
            "start a stand-in robot in another process", total=runs * round(loop.SECONDS / scene.dt)
        )

        def tick(_: str) -> None:
            progress.advance(task)

        def on_robot(seeds: Sequence[int], *more: str) -> list[Episode]:
            options = ["--engine", "rapier", "--hidden", str(hidden), "--pace", "step", *more]
            with robot_process(loop.SCENE, options) as child, LinkWorld(child.address, child.token) as robot:
                progress.update(task, description="push the T on the stand-in and in the simulator")
                return loop.on_robot(robot, scene, seeds, tick)

        real = on_robot(loop.TRAIN + loop.HELD_OUT, "--reveal", str(output.folder / "hidden.json"))
        train, held_out = real[: len(loop.TRAIN)], real[len(loop.TRAIN) :]
        film = on_robot(loop.HELD_OUT[:1], "--cameras", *cameras) if cameras else []
        virtual = loop.in_simulator(scene, loop.HELD_OUT)
        progress.update(task, description="keep the episodes")
        loop.save(output.folder, {"real": real, "sim": virtual, "filmed": film})
        progress.update(task, description="measure the gap")
        before = loop.measured(scene, held_out)
        progress.update(task, description="fit two knobs")
        fitted = loop.find_knobs(scene, train)
        progress.update(task, description="measure the gap again")
        after = loop.measured(scene, held_out, fitted.settings)
        pictures, why = loop.side_by_side(scene, film[0], virtual[0]) if film else ([], note)
        truth = json.loads((output.folder / "hidden.json").read_text(encoding="utf-8"))
        found = loop.Loop(scene, held_out, virtual, fitted, before, after, truth, pictures, why)
        progress.update(task, description="done")
    output.write(loop.scores(found), seconds=time.perf_counter() - begin, hidden="hidden.json")
    loop.draw(found, output.folder / "demo.png")
    report = write_report(output.folder, loop.page(found))
    for line in _summary(found):
        console.print(line, highlight=False)
    print(report)
    return 0


def _cameras(scene: Scene) -> tuple[list[str], str]:
    """The camera to film with, or why there is none."""
    try:
        graphics()
    except Unsupported as error:
        return [], str(error)
    return [next(iter(scene.cameras))], ""


def _summary(found: loop.Loop) -> list[str]:
    before, after = found.before.curves[loop.JOINTS], found.after.curves[loop.JOINTS]
    lines = []
    for name, horizon in (("one step", 0.0), ("half a second", 0.5), ("whole run", float("inf"))):
        lines.append(f"  gap over {name:14s} {1e3 * before.at(horizon).value:7.2f} mm -> "
                     f"[bold]{1e3 * after.at(horizon).value:.2f} mm[/]")  # fmt: skip
    for name, estimate in found.fitted.estimates.items():
        lines.append(f"  {name:23s} {str(estimate).replace('[', chr(92) + '[')}")
    return lines
