"""The verb demo: the whole loop against a simulated robot in another process and another engine."""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from instep.app.output import PlainLines, new_output
from instep.app.side_process import robot_process
from instep.app.viewer.replay_view import measured_run, report_viewer
from instep.core.episode import Episode
from instep.core.errors import Unsupported
from instep.core.param import Param
from instep.core.poses import angle_between
from instep.core.reading import read_json_table
from instep.core.rollout import rollout, rollouts
from instep.core.statistics import Estimate, bootstrap
from instep.core.world import Array, Observation, State, array_dataclass
from instep.gap.gap_result import Gap
from instep.gap.horizon import measure_horizon
from instep.physics.engines import open_world, without_delta
from instep.physics.mujoco_cameras import VIDEO_FPS, graphics_library, shrunk, write_small_video
from instep.policy.push_expert import PushTo
from instep.policy.task_experts import expert_of
from instep.report.page import ReportVideo, formatted
from instep.report.run_pages import demo_page
from instep.robot import RobotWorld
from instep.scene import address
from instep.scene.folder import Scene
from instep.scene.tasks import task_of
from instep.tune.fit.shooting import Fit, ShootingOptions, fit

SCENE = "pusht"
PARAMS = ("action.delay", "actuator.*.kp")
"""The fitted parameters: delay of the commands and stiffness of the servos."""
TRAIN, HELD_OUT, SECONDS = (1, 2, 3, 4), (11, 12, 13), 5.0
JOINTS = "all m"
"""The curve over all positions."""
HORIZONS = {"one step": 0.0, "0.5 s": 0.5, "open loop": float("inf")}
TWIN_SECONDS = 14.0
"""Time limit of the policy through the twin [s]."""
FRAMES_PER_SECOND = 10
"""Images of each camera that are kept, per second of the run; each is a frame of the video."""
AFTER = 10
"""First rows of the twin, which are not scored: it is still finding its T."""
START_TIMEOUT_S = 180.0
"""Time limit for the simulated robot to start and to answer [s]: the first images of a slow machine take a while."""


@array_dataclass
class TwinRun:
    """A run of a policy through the twin of the simulated robot."""

    run: Episode
    robot: Episode
    """The simulated robot as it measured itself, with its T, which the twin does not see."""
    goal: Array
    """Pose of the outline [7]."""
    frames: Sequence[Array]
    """Camera images side by side with the outline of the twin's T, `FRAMES_PER_SECOND` of them."""

    @property
    def pushers(self) -> Array:
        """Distance of the two pushers [rows] [m]."""
        return np.linalg.norm(self.run.q[:, :2] - self.robot.q[:, :2], axis=1)

    @property
    def blocks(self) -> Array:
        """Distance of the two Ts [rows] [m]."""
        return np.linalg.norm(block(self.run)[:, :2] - block(self.robot)[:, :2], axis=1)

    def to_goal(self, episode: Episode) -> Array:
        """Distance of a T from its goal [rows] [m]."""
        return np.linalg.norm(block(episode)[:, :2] - self.goal[:2], axis=1)

    def scores(self) -> dict[str, Estimate]:
        """The numbers for result.json."""
        from instep.twin.tracking import block_median

        turn = angle_between(block(self.run)[:, 3:], block(self.robot)[:, 3:])
        heading = angle_between(block(self.robot)[-1:, 3:], self.goal[None, 3:])
        return {
            "twin: the robot's T from its goal, at the end": _one(self.to_goal(self.robot)[-1], "m"),
            "twin: the robot's T from its heading, at the end": _one(heading[0], "rad"),
            "twin: distance of the two Ts": block_median(self.blocks[AFTER:], "m"),
            "twin: angle between the two Ts": block_median(turn[AFTER:], "rad"),
            "twin: distance of the two pushers": block_median(self.pushers[AFTER:], "m"),
            "twin: time until the T was there": _one(self.run.t[-1] - self.run.t[0], "s"),
        }


@array_dataclass
class DemoResult:
    """What the demo found."""

    scene: Scene
    real: Sequence[Episode]
    """Held-out runs on the simulated robot."""
    virtual: Sequence[Episode]
    """The same policy from the same starts in the simulator."""
    fitted: Fit
    before: Gap
    after: Gap
    truth: dict[str, float]
    """Hidden parameters of the simulated robot, by address."""
    twin: TwinRun | None
    """The policy through the twin; None where nothing can be rendered."""
    video: ReportVideo | str
    """The robot's cameras with the outline of the twin's T, or why there is no video."""

    @property
    def apart(self) -> Estimate:
        """Distance of the blocks of the two worlds at the end of a run [m]."""
        ends = [np.stack([block(episode)[-1, :2] for episode in runs]) for runs in (self.real, self.virtual)]
        return bootstrap(np.linalg.norm(ends[0] - ends[1], axis=1), unit="m")

    def shipped(self, pattern: str) -> tuple[float, float]:
        """A fitted parameter in the scene as shipped, and hidden in the robot."""
        name = pattern.replace("*", self.scene.spec.action.labels[0])
        return address.read(self.scene.model, [name])[name], self.truth[name]

    def scores(self) -> dict[str, Estimate]:
        """The numbers for result.json."""
        found: dict[str, Estimate] = {}
        for when, gap in (("before", self.before), ("after", self.after)):
            found |= {f"{name} {when}": gap.curves[JOINTS].at(horizon) for name, horizon in HORIZONS.items()}
        found |= {f"parameter {name}": estimate for name, estimate in self.fitted.estimates.items()}
        return {**found, "object distance, closed loop": self.apart, **(self.twin.scores() if self.twin else {})}


def demo(*, hidden: int = 7, out: Path | None = None) -> int:
    """Run the whole loop against a simulated robot: act through a twin, record, measure the gap, fit, measure again.

    Args:
        hidden: seed of what is off in the simulated robot.
        out: folder to write; a new one under runs/ where not given.

    """
    begin, console = time.perf_counter(), Console(stderr=True)
    output, scene = new_output("demo", out, seed=hidden), Scene.load(SCENE)
    output.read(scene)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        rows = round((len(TRAIN + HELD_OUT) * SECONDS + TWIN_SECONDS) / scene.dt)
        task = progress.add_task("", total=rows)

        plain = None if console.is_terminal else PlainLines(sys.stderr)

        def tell(words: str) -> None:
            progress.update(task, description=words)
            if plain:
                print(words, file=sys.stderr, flush=True)

        def tick() -> None:
            progress.advance(task)
            if plain:
                plain(progress.tasks[0].description, progress.tasks[0].percentage / 100, math.inf)

        found = _whole_loop(scene, output.folder, hidden, tell, tick)
        progress.update(task, description="done", completed=rows)
    output.write(found.scores(), seconds=time.perf_counter() - begin, hidden="hidden.json")
    viewer = None if found.twin is None else report_viewer(scene, found.twin.run, "The demo through its twin")
    report = output.page(demo_page(found, viewer))
    for line in _summary(found):
        console.print(line, highlight=False)
    print(report)
    return 0


def _whole_loop(
    scene: Scene, folder: Path, hidden: int, tell: Callable[[str], None], tick: Callable[[], object]
) -> DemoResult:
    """All steps, each announced by `tell`; `tick` counts control steps of the robot."""
    no_graphics = ""
    try:
        graphics_library()
    except Unsupported as error:
        no_graphics = f"No video: {error}"

    def on_robot(words: str, act: Callable[[RobotWorld], Any], *more: str) -> Any:
        options = ["--engine", "rapier", "--hidden", str(hidden), "--pace", "step", *more]
        with (
            robot_process(SCENE, options, timeout=START_TIMEOUT_S) as child,
            RobotWorld(child.address, child.token, timeout=START_TIMEOUT_S) as robot,
        ):
            tell(words)
            return act(robot)

    x, y = scene.model.body("goal").pos[:2]
    policy, steps = PushTo((float(x), float(y))), round(SECONDS / scene.dt)

    def count(state: State, observation: Observation, action: Array) -> None:
        tick()

    def record(robot: RobotWorld) -> list[Episode]:
        return [rollout(robot, policy, steps=steps, seed=seed, watch=[count]) for seed in TRAIN + HELD_OUT]

    tell("start a simulated robot in another process")
    words = "push the T on the simulated robot and in the simulator"
    real: list[Episode] = on_robot(words, record, "--reveal", str(folder / "hidden.json"))
    train, held_out = real[: len(TRAIN)], real[len(TRAIN) :]
    virtual = rollouts(open_world(scene), policy, seeds=HELD_OUT, steps=steps)
    twin: TwinRun | None = None
    if not no_graphics:
        words = "push it onto its outline through a twin"
        twin = on_robot(words, lambda robot: run_through_twin(robot, scene, tick), "--cameras", *scene.cameras)
    tell("keep the episodes")
    _save(folder, {"real": real, "sim": virtual, "twin": [twin.run] if twin else []})
    tell("measure the gap")
    sim, known = open_world(scene), [joints_only(scene, episode) for episode in held_out]
    before = measure_horizon(sim, known)
    tell("fit two parameters")
    options = ShootingOptions(window=0.5, guesses=1, limit=64, iterations=12)
    params = [_shared_param(scene, pattern) for pattern in PARAMS]
    fitted = fit(without_delta(scene), [joints_only(scene, episode) for episode in train], params, options)
    tell("measure the gap again")
    after = measure_horizon(sim.tuned(fitted.settings), known)
    truth = read_json_table(folder / "hidden.json")
    video = no_graphics if twin is None else _video(folder, twin)
    return DemoResult(scene, held_out, virtual, fitted, before, after, truth, twin, video)


def block(episode: Episode) -> Array:
    """Pose of the T along a run [rows, 7]."""
    at = episode.spec.q.labels.index("tee.x")
    return episode.q[:, at : at + 7]


def joints_only(scene: Scene, episode: Episode) -> Episode:
    """The run with the positions of joints only, as a robot measures it."""
    keep = [episode.spec.q.labels.index(name) for name in scene.robot]
    spec = replace(
        episode.spec,
        q=replace(episode.spec.q, labels=scene.robot, unit="m", shape=(len(keep),)),
        v=replace(episode.spec.v, labels=scene.robot, unit="m/s", shape=(len(keep),)),
    )
    columns = {"timestamp": episode.t, "q": episode.q[:, keep], "v": episode.v[:, keep], "action": episode.action}
    return Episode(spec, columns, episode.meta)


def _shared_param(scene: Scene, pattern: str) -> Param:
    """One parameter for all matches: the servos of the pusher are of one make."""
    first = scene.params(pattern)[0]
    low, high = (0.0, 0.1) if pattern == address.DELAY else (first.low, first.high)
    return Param(pattern, low, high, first.log, first.unit)


def _save(folder: Path, worlds: dict[str, Sequence[Episode]]) -> None:
    """Keep the runs of each world as a LeRobot dataset of its own."""
    from instep.data import write_dataset

    for name, episodes in worlds.items():
        shutil.rmtree(folder / name, ignore_errors=True)  # of an earlier run into the same --out
        if episodes:
            write_dataset([e.with_columns({}, world=name, task="push the T") for e in episodes], folder / name)


def run_through_twin(robot: RobotWorld, scene: Scene, tick: Callable[[], object]) -> TwinRun:
    """Run the expert through a twin of the simulated robot until the twin's T covers its outline, or time is up."""
    from instep.twin import open_twin
    from instep.twin.body_outlines import draw_outline, outline_of, transform_at
    from instep.twin.camera_rig import IMAGES

    task, none, every = task_of(scene), np.zeros(0), round(1 / (FRAMES_PER_SECOND * scene.dt))
    seen: list[Observation | None] = []

    def watch(state: State, observation: Observation, action: Array) -> None:
        tick()
        kept = len(seen) % every == 0
        seen.append(robot.observe(state.hidden["twin"].real) if kept else None)

    run = rollout(
        open_twin(scene, robot), expert_of(task, scene), steps=round(TWIN_SECONDS / scene.dt), seed=HELD_OUT[0],
        watch=[watch], until=lambda state: bool(task.score(state, none, none) > 0.97),
    )  # fmt: skip
    shape, poses, frames = outline_of(scene.model, scene.objects[0]), block(run), list[Array]()
    for row, shown in enumerate(seen[: len(run)]):
        if shown is not None:
            images: list[Array] = []
            for name, camera in scene.cameras.items():
                at = transform_at(run.t, poses, float(shown.get(f"{IMAGES}{name}.stamp", run.t[row])))
                images.append(draw_outline(shown[IMAGES + name], camera, shape, at))
            frames.append(shrunk(np.concatenate(images, axis=1)))
    goal = scene.model.body("goal")
    return TwinRun(run, measured_run(run) or run, np.concatenate([goal.pos, goal.quat]), frames)


def _video(folder: Path, twin: TwinRun) -> ReportVideo:
    """The robot's cameras with the outline of the twin's T."""
    write_small_video(folder / "video.mp4", twin.frames)
    speed = f"{VIDEO_FPS / FRAMES_PER_SECOND:g} times its speed"
    caption = f"The robot, which follows the twin, by its three cameras with the outline of the twin's T, at {speed}."
    return ReportVideo((folder / "video.mp4").read_bytes(), caption)


def _summary(found: DemoResult) -> list[str]:
    before, after = found.before.curves[JOINTS], found.after.curves[JOINTS]
    lines = [f"  gap over {name:14s} {1e3 * before.at(horizon).value:7.2f} mm -> "
             f"[bold]{1e3 * after.at(horizon).value:.2f} mm[/]" for name, horizon in HORIZONS.items()]  # fmt: skip
    scores = found.twin.scores() if found.twin is not None else {}
    lines += [f"  {name:51s} {formatted(estimate, interval=False)}" for name, estimate in scores.items()]
    fitted = found.fitted.estimates.items()
    return [*lines, *(f"  {name:23s} {str(estimate).replace('[', chr(92) + '[')}" for name, estimate in fitted)]


def _one(value: float, unit: str) -> Estimate:
    return Estimate(float(value), float(value), float(value), 1, unit)
