"""The verb demo: the whole loop, on this machine, in about a minute."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from instep.app import demo as loop
from instep.app.output import new_output
from instep.app.process import robot_process
from instep.app.report import write_report
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
        steps = round(loop.SECONDS / scene.dt) * len(loop.TRAIN + loop.HELD_OUT)
        task = progress.add_task("start a stand-in robot in another process", total=steps + 40)
        options = ["--engine", "rapier", "--hidden", str(hidden), "--pace", "step"]
        options += ["--reveal", str(output.folder / "hidden.json")] + (["--cameras", *cameras] if cameras else [])
        with robot_process(loop.SCENE, options) as child:
            progress.update(task, description="push the T on the stand-in and in the simulator")
            tick = lambda _: progress.advance(task)  # noqa: E731
            with LinkWorld(child.address, child.token) as robot:
                train = loop.run_both(robot, scene, loop.TRAIN, tick)
                held_out = loop.run_both(robot, scene, loop.HELD_OUT, tick)
        virtual = loop.in_simulator(scene, loop.HELD_OUT)
        loop.save(output.folder, [*train, *held_out], virtual)
        progress.update(task, description="measure the gap")
        before = loop.measured(scene, held_out)
        progress.update(task, description="fit two knobs")
        fitted = loop.find_knobs(scene, train, tick)
        progress.update(task, description="measure the gap again")
        after = loop.measured(scene, held_out, fitted.settings)
        pictures, why = loop.side_by_side(scene, held_out[0], virtual[0]) if cameras else ([], note)
        found = loop.Loop(scene, held_out, virtual, fitted, before, after, pictures, why)
        progress.update(task, description="write the report", completed=steps + 40)
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
