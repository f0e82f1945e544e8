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
from instep.app.simulated_robot import robot_process
from instep.app.viewer.replay_view import report_viewer
from instep.core.episode import Episode
from instep.core.errors import Unsupported
from instep.core.param import Param
from instep.core.poses import angle_between
from instep.core.reading import read_json_table
from instep.core.rollout import rollout, rollouts
from instep.core.statistics import Estimate, bootstrap
from instep.core.world import Array, Observation, State, Watcher, array_dataclass
from instep.gap.gap_result import Curve, Gap, RunPair
from instep.gap.horizon import measure_horizon
from instep.physics.engines import open_world, without_delta
from instep.physics.mujoco_cameras import (
    MAX_WIDTH,
    VIDEO_FPS,
    MujocoRenderer,
    graphics_library,
    shrunk,
    write_small_video,
)
from instep.policy.push_expert import PushTo
from instep.policy.task_experts import expert_of
from instep.report.figures import band_traces, lines_figure, series_color, titled
from instep.report.gap_page import horizon_figure, runs_figure
from instep.report.page import Headline, HtmlReport, Number, ReportImage, ReportVideo, Section, Table, formatted
from instep.robot import RobotWorld
from instep.scene import address
from instep.scene.folder import Scene
from instep.scene.tasks import task_of
from instep.tune.fit.shooting import Fit, ShootingOptions, fit

SCENE = "pusht"
PARAMS = ("action.delay", "actuator.*.kp")
"""What the demo finds again: delay of the commands and stiffness of the servos."""
TRAIN, HELD_OUT, SECONDS = (1, 2, 3, 4), (11, 12, 13), 5.0
JOINTS = "all m"
"""The curve that stands for all positions."""

OnStep = Callable[[], None]
TWIN_SECONDS = 14.0
"""How long the policy may take at most [s]."""
FRAMES_PER_SECOND = 10
"""Images of a camera of the simulated robot per second, each of which is a frame of the video."""
AFTER = 10
"""Rows that are not scored, while the twin finds its T."""
START_TIMEOUT_S = 180.0
"""How long the simulated robot may take to start and to answer [s]: the first images of a slow machine take a while."""


def demo(*, hidden: int = 7, out: Path | None = None) -> int:
    """Run the whole loop against a simulated robot: act through a twin, record, measure the gap, fit, measure again.

    Args:
        hidden: seed of what is off in the simulated robot.
        out: folder to write; a new one under runs/ where not given.

    """
    begin, console = time.perf_counter(), Console(stderr=True)
    output, scene = new_output("demo", out, seed=hidden), Scene.load(SCENE)
    output.read_scene(scene)
    cameras, note = _cameras(scene)
    if note:
        console.print(f"No camera images: {note}", highlight=False, markup=False)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        seconds = len(TRAIN + HELD_OUT) * SECONDS + (TWIN_SECONDS if cameras else 0.0)
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
                robot_process(SCENE, options, timeout=START_TIMEOUT_S) as child,
                RobotWorld(child.address, child.token, timeout=START_TIMEOUT_S) as robot,
            ):
                tell(words)
                return act(robot)

        words, reveal = "push the T on the simulated robot and in the simulator", str(output.folder / "hidden.json")
        real: list[Episode] = on_robot(
            words, lambda robot: episodes_on_robot(robot, scene, TRAIN + HELD_OUT, tick), "--reveal", reveal
        )
        train, held_out = real[: len(TRAIN)], real[len(TRAIN) :]
        virtual = in_simulator(scene, HELD_OUT)
        twin: TwinRun | None = None
        if cameras:
            words = "push it onto its outline through a twin"
            twin = on_robot(words, lambda r: run_through_twin(r, scene, HELD_OUT[0], tick), "--cameras", *cameras)
        tell("keep the episodes")
        save(output.folder, {"real": real, "sim": virtual, "twin": [twin.run] if twin else []})
        tell("measure the gap")
        before = measured(scene, held_out)
        tell("fit two parameters")
        fitted = find_params(scene, train)
        tell("measure the gap again")
        after = measured(scene, held_out, fitted.settings)
        images = side_by_side(scene, twin) if twin else []
        truth = read_json_table(output.folder / "hidden.json")
        video = _video(output.folder, twin, note)
        found = DemoResult(scene, held_out, virtual, fitted, before, after, truth, images, twin, note, video)
        progress.update(task, description="done")
    output.write(scores(found), seconds=time.perf_counter() - begin, hidden="hidden.json")
    report = output.page(demo_page(found))
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


def _summary(found: DemoResult) -> list[str]:
    before, after = found.before.curves[JOINTS], found.after.curves[JOINTS]
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
    """What was hidden in the simulated robot, by address."""
    images: Sequence[ReportImage]
    twin: TwinRun | None = None
    """The policy through the twin; None where nothing can be rendered."""
    note: str = ""
    """Why there are no images, or nothing."""
    video: ReportVideo | str = ""
    """The robot's cameras with the outline of the twin's T, or why there is no video."""


def goal_of(scene: Scene) -> tuple[float, float]:
    """Where the block should go, read off the scene."""
    x, y = scene.model.body("goal").pos[:2]
    return float(x), float(y)


def episodes_on_robot(robot: RobotWorld, scene: Scene, seeds: Sequence[int], on_step: OnStep) -> list[Episode]:
    """The policy on the simulated robot, one episode after the other, as on a robot."""
    policy, steps = PushTo(goal_of(scene)), round(SECONDS / scene.dt)
    return [rollout(robot, policy, steps=steps, seed=seed, watch=[_each(on_step)]) for seed in seeds]


def in_simulator(scene: Scene, seeds: Sequence[int]) -> list[Episode]:
    """The same policy in the simulator, all seeds in one batch."""
    return rollouts(open_world(scene), PushTo(goal_of(scene)), seeds=seeds, steps=round(SECONDS / scene.dt))


def find_params(scene: Scene, episodes: Sequence[Episode]) -> Fit:
    """Fit the two parameters to recorded runs by least squares over windows of half a second."""
    params = [_pattern_param(scene, pattern) for pattern in PARAMS]
    options = ShootingOptions(window=0.5, guesses=1, limit=64, iterations=12)
    robot_only = [_joints_only(episode, scene) for episode in episodes]
    return fit(without_delta(scene), robot_only, params, options)


def measured(scene: Scene, episodes: Sequence[Episode], settings: dict[str, float] | None = None) -> Gap:
    """The gap of the simulator, as shipped or with parameters set, to recorded runs."""
    sim = open_world(scene)
    return measure_horizon(
        sim.tuned(settings) if settings else sim, [_joints_only(episode, scene) for episode in episodes]
    )


def side_by_side(scene: Scene, through: TwinRun) -> list[ReportImage]:
    """What the simulated robot's camera saw and what the twin would have seen, at a few moments."""
    renderer, camera = MujocoRenderer(scene), next(iter(scene.cameras.values()))
    try:
        return [
            ReportImage.of(
                shrunk(np.concatenate([m.image, renderer.render(m.q, camera)], axis=0), MAX_WIDTH),
                f"{m.t:.1f} s: the robot above, the twin below",
            )
            for m in through.moments
        ]
    finally:
        renderer.close()


def demo_page(loop: DemoResult) -> HtmlReport:
    """The report of the demo."""
    before, after = loop.before.curves[JOINTS], loop.after.curves[JOINTS]
    drop = {h: 1 - after.at(h).value / before.at(h).value for h in (0.0, 0.5, np.inf)}
    better = drop[np.inf] > 0
    headline = (
        f"Two fitted parameters took {100 * drop[np.inf]:.0f} % off the open-loop gap of runs they were not fitted to."
        if better
        else "Two fitted parameters did not make the simulator better on runs they were not fitted to."
    )
    named = {"one step ahead": 0.0, "half a second ahead": 0.5, "over the whole run": np.inf}
    numbers = tuple(
        Number(
            name,
            f"{1e3 * before.at(h).value:.3g} → {1e3 * after.at(h).value:.2g} mm",
            f"now {formatted(after.at(h))}",
        )
        for name, h in named.items()
    )
    return HtmlReport(
        "instep demo",
        f"{loop.scene.about} The simulated robot runs in another process and another engine, with hidden parameters.",
        Headline(
            "good" if better else "bad", headline, "Error of the pusher's joints, root mean square over held-out runs."
        ),
        numbers,
        (
            _robot_section(loop),
            _closed_section(loop),
            _runs_section(loop),
            _params_section(loop, before, after),
            *([twin_section(loop.twin)] if loop.twin else []),
            _seen_section(loop),
            NEXT,
        ),
        {"scene": loop.scene.name, "fitted on": f"seeds {TRAIN}", "held out": f"seeds {HELD_OUT}"},
        loop.video,
        None if loop.twin is None else report_viewer(loop.scene, loop.twin.run, "The demo through its twin"),
    )


def scores(loop: DemoResult) -> dict[str, Estimate]:
    """The numbers of the demo for result.json."""
    found: dict[str, Estimate] = {}
    for when, gap in (("before", loop.before), ("after", loop.after)):
        for name, horizon in (("one step", 0.0), ("0.5 s", 0.5), ("open loop", np.inf)):
            found[f"{name} {when}"] = gap.curves[JOINTS].at(horizon)
    found |= {f"parameter {name}": estimate for name, estimate in loop.fitted.estimates.items()}
    found["object distance, closed loop"] = bootstrap(_object_distance(loop), unit="m")
    return {**found, **(twin_scores(loop.twin) if loop.twin else {})}


NEXT = Section(
    "What next",
    "The same steps with a robot of yours:",
    [
        Table(
            ("command", "what it does"),
            [
                ("instep start ROBOT.urdf LOGS", "goes from your robot's file and its logs to a report like this one"),
                ("instep gap DATA SCENE", "measures how far a simulator is from recordings, and why"),
                ("instep tune DATA SCENE", "identifies its parameters, and writes a scene with them"),
                (
                    "instep twin pusht --policy expert --real robot:ADDRESS",
                    "acts through a twin of a robot behind a link",
                ),
                ("instep runs", "lists this and later runs; instep runs --open N shows a page"),
            ],
        )
    ],
)


def _robot_section(loop: DemoResult) -> Section:
    """What stands for the real robot here."""
    lead = (
        "There is no real robot here, so another program stands for it: it runs in its own process, in another physics "
        f"engine (rapier), and answers over the link that a real robot uses. {len(loop.truth)} parameters are hidden "
        "in it, such as the delay of commands and the stiffness of servos; its sensors are noisy and one control step "
        "late. The simulator (MuJoCo) knows none of this."
    )
    return Section("1. A simulated robot", lead)


def _params_section(loop: DemoResult, before: Curve, after: Curve) -> Section:
    rows: list[tuple[str, ...]] = []
    for name, estimate in loop.fitted.estimates.items():
        part = name.replace("*", loop.scene.spec.action.labels[0])
        shipped = address.read(loop.scene.model, [part])[part]
        interval = f"{estimate.low:.4g} to {estimate.high:.4g}"
        numbers = (f"{shipped:.4g}", f"{estimate.value:.4g}", interval, f"{loop.truth[part]:.4g}")
        rows.append((name, *numbers, estimate.unit))
    lead = (
        f"Two parameters, found by least squares in {loop.fitted.seconds:.1f} s from runs "
        f"{', '.join(map(str, TRAIN))}. The robot's sensors are one control step late on top of its commands; the fit "
        "sees the sum of both as one delay. The figure shows runs that were not used for the fit."
    )
    head = ("parameter", "as shipped", "fitted", "95 % interval", "hidden in the robot", "unit")
    curves = {
        "as shipped": replace(before, name="as shipped"),
        "two parameters fitted": replace(after, name="two parameters fitted"),
    }
    figure = horizon_figure(curves, {}, list(curves), "How wrong the simulator is, by how far ahead it predicts")
    return Section("4. Identify", lead, [Table(head, rows), figure])


def _runs_section(loop: DemoResult) -> Section:
    pair: RunPair = loop.before.pairs[0]
    curve = loop.before.curves[JOINTS]
    lead = (
        "The simulator is placed in the robot's state, given the recorded commands, and compared some time later: it "
        f"is {formatted(curve.at(0.0))} off after one control step, {formatted(curve.at(0.5))} after half a second, "
        f"and {formatted(curve.at(np.inf))} over whole runs. The figure shows one run from start to end."
    )
    return Section("3. Measure the gap", lead, [runs_figure(pair, list(loop.scene.robot), title="")])


def _closed_section(loop: DemoResult) -> Section:
    data: list[dict[str, Any]] = []
    for i, (name, episodes) in enumerate((("simulated robot", loop.real), ("simulator", loop.virtual))):
        distances = 1e3 * np.array(
            [
                np.linalg.norm(_block(loop.scene, episode) - np.array(goal_of(loop.scene)), axis=1)
                for episode in episodes
            ]
        )
        t = episodes[0].t
        data += band_traces(t, distances.min(axis=0), distances.max(axis=0), series=i, name=f"{name}, all runs")
        data.append(
            {"type": "scatter", "mode": "lines", "name": f"{name}, mean", "x": t, "y": distances.mean(axis=0)}
            | {"line": {"color": series_color(i), "width": 2}}
        )
    layout = {"title": titled("Distance of the block to its goal"), "height": 380, "xaxis": {"title": "time [s]"}}
    figure = {"data": data, "layout": {**layout, "yaxis": {"title": "distance [mm]", "rangemode": "tozero"}}}
    lead = (
        f"The same policy ran {len(TRAIN + HELD_OUT)} times on the simulated robot, and from the starts of "
        f"{len(HELD_OUT)} of these runs in the simulator. Contact makes small differences grow: at the end the blocks "
        f"are {formatted(bootstrap(_object_distance(loop), unit='m'))} apart."
    )
    return Section("2. Record", lead, [figure])


def _seen_section(loop: DemoResult) -> Section:
    if not loop.images:
        return Section("What the camera saw", loop.note)
    return Section("What the camera saw", "Light, lens and noise are the simulated robot's own.", [list(loop.images)])


def _object_distance(loop: DemoResult) -> Array:
    pairs = zip(loop.real, loop.virtual, strict=True)
    return np.array([np.linalg.norm(_block(loop.scene, a)[-1] - _block(loop.scene, b)[-1]) for a, b in pairs])


def _block(scene: Scene, episode: Episode) -> Array:
    place = episode.spec.q.labels.index(f"{scene.objects[0]}.x")
    return episode.q[:, place : place + 2]


def _joints_only(episode: Episode, scene: Scene) -> Episode:
    """Only what a robot knows of itself: its joints. The block is left out of the fit and of the gap."""
    keep = [episode.spec.q.labels.index(name) for name in scene.robot]
    spec = replace(
        episode.spec,
        q=replace(episode.spec.q, labels=scene.robot, unit="m", shape=(len(keep),)),
        v=replace(episode.spec.v, labels=scene.robot, unit="m/s", shape=(len(keep),)),
    )
    columns = {"timestamp": episode.t, "q": episode.q[:, keep], "v": episode.v[:, keep], "action": episode.action}
    return Episode(spec, columns, episode.meta)


def _pattern_param(scene: Scene, pattern: str) -> Param:
    """One parameter for all that match: the servos of the pusher are of one make."""
    first = scene.params(pattern)[0]
    low, high = (0.0, 0.1) if pattern == address.DELAY else (first.low, first.high)
    return Param(pattern, low, high, first.log, first.unit)


def _each(on_step: OnStep) -> Watcher:
    def watch(state: State, observation: Observation, action: Array) -> None:
        on_step()

    return watch


def save(folder: Path, worlds: dict[str, Sequence[Episode]]) -> None:
    """Keep the runs of each world as a LeRobot dataset of its own."""
    from instep.data import write_dataset

    for name, episodes in worlds.items():
        shutil.rmtree(folder / name, ignore_errors=True)  # of an earlier run into the same --out
        if episodes:
            write_dataset([e.with_columns({}, world=name, task="push the T") for e in episodes], folder / name)


@array_dataclass
class TwinMoment:
    """What the simulated robot's cameras saw, and where the twin was."""

    t: float
    q: Array
    image: Array
    """Of the first camera [height, width, 3]."""
    overlay: Array
    """Of all cameras side by side, with the silhouette of the twin's T."""


@array_dataclass
class TwinRun:
    """A run of a policy through the twin."""

    scene: Scene
    run: Episode
    """The twin's: `twin.measured` is what the simulated robot says of itself, its T as well."""
    moments: tuple[TwinMoment, ...]
    """A few of them, with what the cameras saw."""
    frames: tuple[Array, ...] = ()
    """What the cameras saw with the outline of the twin's T, small, `FRAMES_PER_SECOND` of them [height, width, 3]."""

    @property
    def joints(self) -> Array:
        """Distance of the simulated robot's pusher from the twin's [rows] [m]."""
        keep = [self.run.spec.q.labels.index(name) for name in self.scene.robot]
        measured = [self.run.spec.observation["twin.measured"].labels.index(name) for name in self.scene.robot]
        return np.linalg.norm(self.run.q[:, keep] - self.run["twin.measured"][:, measured], axis=1)

    @property
    def apart(self) -> Array:
        """Distance of the twin's T from the simulated robot's [rows] [m]."""
        return np.linalg.norm(self.twins[:, :2] - self.true[:, :2], axis=1)

    @property
    def angle(self) -> Array:
        """Angle between the two [rows] [rad]."""
        return angle_between(self.twins[:, 3:], self.true[:, 3:])

    @property
    def twins(self) -> Array:
        """Pose of the twin's T [rows, 7]."""
        return self._block(self.run.q, self.run.spec.q.labels)

    @property
    def true(self) -> Array:
        """Pose of the simulated robot's T [rows, 7]; the twin does not see it."""
        return self._block(self.run["twin.measured"], self.run.spec.observation["twin.measured"].labels)

    def to_goal(self, poses: Array) -> Array:
        """Distance of a T from its goal [rows] [m]."""
        return np.linalg.norm(poses[:, :2] - np.array(self.scene.model.body("goal").pos[:2]), axis=1)

    def _block(self, q: Array, labels: tuple[str, ...]) -> Array:
        at = labels.index(f"{self.scene.objects[0]}.x")
        return q[:, at : at + 7]


def run_through_twin(robot: RobotWorld, scene: Scene, seed: int, on_step: Callable[[], None]) -> TwinRun:
    """Run the expert through a twin of the simulated robot until the twin's T covers its outline, or time is up."""
    from instep.twin import open_twin

    task = task_of(scene)
    images = _CameraLog(scene, robot)
    twin, done = open_twin(scene, robot), np.zeros(0)

    def watch(state: State, observation: Observation, action: Array) -> None:
        on_step()
        images(state)

    run = rollout(
        twin,
        expert_of(task, scene),
        steps=round(TWIN_SECONDS / scene.dt),
        seed=seed,
        watch=[watch],
        until=lambda state: bool(task.score(state, done, done) > 0.97),
    )
    return TwinRun(scene, run, images.picked(), tuple(images.frames))


def twin_scores(twin: TwinRun) -> dict[str, Estimate]:
    """The twin's numbers for result.json."""
    from instep.twin.tracking import block_median

    end = twin.to_goal(twin.true)[-1:]
    turn = angle_between(twin.true[-1:, 3:], np.array(twin.scene.model.body("goal").quat)[None])
    return {
        "twin: the robot's T from its goal, at the end": _one(float(end[0]), "m"),
        "twin: the robot's T from its heading, at the end": _one(float(turn[0]), "rad"),
        "twin: distance of the two Ts": block_median(twin.apart[AFTER:], "m"),
        "twin: angle between the two Ts": block_median(twin.angle[AFTER:], "rad"),
        "twin: distance of the two pushers": block_median(twin.joints[AFTER:], "m"),
        "twin: time until the T was there": _one(float(twin.run.t[-1] - twin.run.t[0]), "s"),
    }


def twin_section(twin: TwinRun) -> Section:
    """The twin's part of the report."""
    run, found = twin.run, twin_scores(twin)
    goal = {
        "the robot's T": (run.t, 1e3 * twin.to_goal(twin.true)),
        "the twin's T": (run.t, 1e3 * twin.to_goal(twin.twins)),
    }
    errors = {
        "T: twin against robot": (run.t[AFTER:], 1e3 * twin.apart[AFTER:]),
        "pusher: robot against twin": (run.t[AFTER:], 1e3 * twin.joints[AFTER:]),
    }
    end = 1e3 * float(twin.to_goal(twin.true)[-1])
    lead = (
        "The policy observes and commands the twin only. The robot follows the twin's joints, and three cameras of the "
        "robot correct the pose of the twin's T. At the end the robot's T is "
        f"{end:.1f} mm from its goal; on the way the two Ts were "
        f"{formatted(found['twin: distance of the two Ts'])} apart, "
        f"the two pushers {formatted(found['twin: distance of the two pushers'])}."
    )
    shown = [
        ReportImage.of(shrunk(m.overlay), f"{m.t:.1f} s: the robot's cameras, with the outline of the twin's T")
        for m in twin.moments
    ]
    return Section(
        "5. Act through the twin",
        lead,
        [
            lines_figure(goal, title="Distance of the T to its goal", x="time [s]", y="distance [mm]"),
            lines_figure(errors, title="Distance between twin and robot", x="time [s]", y="distance [mm]"),
            *([image] for image in shown),
        ],
    )


class _CameraLog:
    """Keeps what the cameras saw a second apart, and small frames of all of it."""

    def __init__(self, scene: Scene, robot: RobotWorld):
        from instep.twin.body_outlines import outline_of

        self._scene, self._robot, self._every = scene, robot, max(1, round(1 / (FRAMES_PER_SECOND * scene.dt)))
        self.frames: list[Array] = []
        self._shape = outline_of(scene.model, scene.objects[0])
        self._at = scene.spec.q.labels.index(f"{scene.objects[0]}.x")
        self._states: list[State] = []
        self._kept: list[TwinMoment] = []

    def __call__(self, state: State) -> None:
        self._states.append(State(state.t, state.q, state.v))
        if (len(self._states) - 1) % self._every == 0:
            moment = self._moment(state)
            if len(self.frames) % FRAMES_PER_SECOND == 0:
                self._kept.append(moment)
            self.frames.append(shrunk(moment.overlay))

    def picked(self) -> tuple[TwinMoment, ...]:
        """The first, the middle and the last."""
        return tuple(self._kept[i] for i in sorted({0, len(self._kept) // 2, len(self._kept) - 1}))

    def _moment(self, state: State) -> TwinMoment:
        from instep.twin.body_outlines import draw_outline, transform_at
        from instep.twin.camera_rig import IMAGES

        seen = self._robot.observe(state.hidden["twin"].real)
        times = np.array([s.t for s in self._states[-30:]])
        poses = np.stack([s.q[self._at : self._at + 7] for s in self._states[-30:]])
        images: list[Array] = []
        for name, camera in self._scene.cameras.items():
            T = transform_at(times, poses, float(seen.get(f"{IMAGES}{name}.stamp", state.t)))
            images.append(draw_outline(seen[IMAGES + name], camera, self._shape, T))
        first = seen[IMAGES + next(iter(self._scene.cameras))]
        return TwinMoment(state.t, state.q, first, np.concatenate(images, axis=1))


def _one(value: float, unit: str) -> Estimate:
    return Estimate(value, value, value, 1, unit)
