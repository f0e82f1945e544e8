"""The demo on a simulated robot: run, record, measure, fit two parameters, measure again, act through a twin."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.core.param import Param
from instep.core.rollout import rollout, rollouts
from instep.core.statistics import Estimate, bootstrap
from instep.core.world import Array, Observation, State, Watcher, array_dataclass
from instep.gap.gap_result import Curve, Gap, RunPair
from instep.gap.horizon import measure_horizon
from instep.physics.engines import open_world, without_delta
from instep.physics.mujoco_cameras import MAX_WIDTH, MujocoRenderer, shrunk
from instep.policy.push_expert import PushTo
from instep.report.figures import band_traces, series_color, titled
from instep.report.gap_page import horizon_figure, runs_figure
from instep.report.page import Headline, HtmlReport, Number, ReportImage, ReportVideo, Section, Table, formatted
from instep.robot import RobotWorld
from instep.scene import address
from instep.scene.folder import Scene
from instep.tune.fit.shooting import Fit, ShootingOptions, fit

from .demo_twin import TwinRun, section
from .demo_twin import scores as twin_scores
from .viewer.report_view import report_viewer

SCENE = "pusht"
PARAMS = ("action.delay", "actuator.*.kp")
"""What the demo finds again: delay of the commands and stiffness of the servos."""
TRAIN, HELD_OUT, SECONDS = (1, 2, 3, 4), (11, 12, 13), 5.0
JOINTS = "all m"
"""The curve that stands for all positions."""

OnStep = Callable[[], None]


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


def on_robot(robot: RobotWorld, scene: Scene, seeds: Sequence[int], on_step: OnStep) -> list[Episode]:
    """The policy on the simulated robot, one episode after the other, as on a robot."""
    policy, steps = PushTo(goal_of(scene)), round(SECONDS / scene.dt)
    return [rollout(robot, policy, steps=steps, seed=seed, watch=[_each(on_step)]) for seed in seeds]


def in_simulator(scene: Scene, seeds: Sequence[int]) -> list[Episode]:
    """The same policy in the simulator, all seeds in one batch."""
    return rollouts(open_world(scene), PushTo(goal_of(scene)), seeds=seeds, steps=round(SECONDS / scene.dt))


def find_params(scene: Scene, episodes: Sequence[Episode]) -> Fit:
    """Fit the two parameters to recorded runs by least squares over windows of half a second."""
    params = [_pattern_param(scene, pattern) for pattern in PARAMS]
    options = ShootingOptions(window=0.5, starts=1, limit=64, iterations=12)
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


def page(loop: DemoResult) -> HtmlReport:
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
            *([section(loop.twin)] if loop.twin else []),
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
                ("instep run expert twin:pusht --real robot:ADDRESS", "acts through a twin of a robot behind a link"),
                ("instep runs", "lists this and later runs; instep open shows their pages"),
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
