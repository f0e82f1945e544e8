"""The verb demo: the whole loop, on this machine, in about a minute."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from instep.app import demo_loop as loop
from instep.app.demo_twin import FRAMES_PER_SECOND, SECONDS, TwinRun, run_through_twin
from instep.app.demo_twin import scores as twin_scores
from instep.app.output import PlainLines, new_output
from instep.app.simulated_robot import robot_process
from instep.core.episode import Episode
from instep.core.errors import Unsupported
from instep.core.reading import read_json_table
from instep.physics.mujoco_cameras import VIDEO_FPS, graphics_library, write_small_video
from instep.report.page import ReportVideo, formatted
from instep.robot import RobotWorld
from instep.scene.folder import Scene

START_TIMEOUT_S = 180.0
"""How long the simulated robot may take to start and to answer [s]: the first images of a slow machine take a while."""


def demo(*, hidden: int = 7, out: Path | None = None) -> int:
    """Run the whole loop against a simulated robot: act through a twin, record, measure the gap, fit, measure again.

    Args:
        hidden: seed of what is off in the simulated robot.
        out: folder to write; a new one under runs/ where not given.

    """
    begin, console = time.perf_counter(), Console(stderr=True)
    output, scene = new_output("demo", out, seed=hidden), Scene.load(loop.SCENE)
    output.read_scene(scene)
    cameras, note = _cameras(scene)
    if note:
        console.print(f"No camera images: {note}", highlight=False, markup=False)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        seconds = len(loop.TRAIN + loop.HELD_OUT) * loop.SECONDS + (SECONDS if cameras else 0.0)
        task = progress.add_task("start a simulated robot in another process", total=round(seconds / scene.dt))

        plain, stage = None if console.is_terminal else PlainLines(sys.stderr), ["start a simulated robot"]

        def tell(words: str) -> None:
            stage[0] = words
            progress.update(task, description=words)
            if plain is not None:
                print(words, file=sys.stderr, flush=True)

        def tick() -> None:
            progress.advance(task)
            if plain is not None:
                plain(stage[0], progress.tasks[0].percentage / 100, math.inf)

        def on_robot(words: str, act: Callable[[RobotWorld], Any], *more: str) -> Any:
            options = ["--engine", "rapier", "--hidden", str(hidden), "--pace", "step", *more]
            with (
                robot_process(loop.SCENE, options, timeout=START_TIMEOUT_S) as child,
                RobotWorld(child.address, child.token, timeout=START_TIMEOUT_S) as robot,
            ):
                tell(words)
                return act(robot)

        def pushed(robot: RobotWorld) -> list[Episode]:
            return loop.on_robot(robot, scene, loop.TRAIN + loop.HELD_OUT, tick)

        def twinned(robot: RobotWorld) -> TwinRun:
            return run_through_twin(robot, scene, loop.HELD_OUT[0], tick)

        words, reveal = "push the T on the simulated robot and in the simulator", str(output.folder / "hidden.json")
        real: list[Episode] = on_robot(words, pushed, "--reveal", reveal)
        train, held_out = real[: len(loop.TRAIN)], real[len(loop.TRAIN) :]
        virtual = loop.in_simulator(scene, loop.HELD_OUT)
        twin = on_robot("push it onto its outline through a twin", twinned, "--cameras", *cameras) if cameras else None
        tell("keep the episodes")
        loop.save(output.folder, {"real": real, "sim": virtual, "twin": [twin.run] if twin else []})
        tell("measure the gap")
        before = loop.measured(scene, held_out)
        tell("fit two parameters")
        fitted = loop.find_params(scene, train)
        tell("measure the gap again")
        after = loop.measured(scene, held_out, fitted.settings)
        images = loop.side_by_side(scene, twin) if twin else []
        truth = read_json_table(output.folder / "hidden.json")
        video = _video(output.folder, twin, note)
        found = loop.DemoResult(scene, held_out, virtual, fitted, before, after, truth, images, twin, note, video)
        progress.update(task, description="done")
    output.write(loop.scores(found), seconds=time.perf_counter() - begin, hidden="hidden.json")
    report = output.page(loop.page(found))
    for line in _summary(found):
        console.print(line, highlight=False)
    print(report)
    return 0


def _video(folder: Path, twin: TwinRun | None, note: str) -> ReportVideo | str:
    """The robot's cameras with the outline of the twin's T, or why there is no video."""
    if twin is None:
        return f"No video: {note}"
    write_small_video(folder / "video.mp4", twin.frames)
    speed = f"{VIDEO_FPS / FRAMES_PER_SECOND:g} times its speed"
    caption = f"The robot, which follows the twin, by its three cameras with the outline of the twin's T, at {speed}."
    return ReportVideo((folder / "video.mp4").read_bytes(), caption)


def _cameras(scene: Scene) -> tuple[list[str], str]:
    """The cameras to render, or why there are none."""
    try:
        graphics_library()
    except Unsupported as error:
        return [], str(error)
    return list(scene.cameras), ""


def _summary(found: loop.DemoResult) -> list[str]:
    before, after = found.before.curves[loop.JOINTS], found.after.curves[loop.JOINTS]
    lines: list[str] = []
    for name, horizon in (("one step", 0.0), ("half a second", 0.5), ("whole run", float("inf"))):
        lines.append(f"  gap over {name:14s} {1e3 * before.at(horizon).value:7.2f} mm -> "
                     f"[bold]{1e3 * after.at(horizon).value:.2f} mm[/]")  # fmt: skip
    if found.twin is not None:
        for name, estimate in twin_scores(found.twin).items():
            lines.append(f"  {name:51s} {formatted(estimate, interval=False)}")
    for name, estimate in found.fitted.estimates.items():
        lines.append(f"  {name:23s} {str(estimate).replace('[', chr(92) + '[')}")
    return lines
