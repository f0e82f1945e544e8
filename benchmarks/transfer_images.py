"""Success that a policy from images loses under another light, lens and texture, and what adaptation regains.

The task: bring the stick of PushT to a point 3 cm before the end of the stem of the T, wherever the T lies, and hold it
there. The policy observes the stick's joints and one rendered image of 96 x 96; it was cloned from a scripted expert in
the simulator, with plainly rendered images. Each robot has the same dynamics, so that nothing but images differs, and
cameras of its own: brightness, colours and noise of the sensor, distortion of the lens, and texture of every surface,
sampled from the ranges of `appearance` and `views`. Without labels a technique is given images of a few runs of the
policy as it is, and what the policy was trained on, with the simulator's labels; with five episodes, demonstrations on
the robot too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from harness import row
from instep.app.cluster import open_map
from instep.core.world import Array, Observation, Stateless, array_dataclass, frozen_dataclass, options_dataclass
from instep.scene.tasks.manipulation_tasks import heading, wrapped
from instep.scene.tasks.task import NO_GOAL, WithoutGoal

FILE = Path(__file__).resolve().parents[1] / "examples/virtual/pusht.toml"
CAMERA = "static"
POINT = (0.0, -0.19)
"""Where the stick should be in the frame of the T [m]: 3 cm before the end of its stem, less the stick's radius."""
SHOWN, SEEN, TAUGHT, JUDGED = 600_000, 610_000, 620_000, 630_000
"""First seeds of starts: of demonstrations in the simulator, of runs on the robot whose images are kept, of
demonstrations on the robot, and of trials."""
FIRST_ROBOT = 301
"""Seed of the first hidden appearance; the code was developed on seeds 1 to 60."""
CHANNELS = ("observation.state", "observation.velocity")


@options_dataclass
class Plan:
    """How much is done."""

    robots: int
    demos: int
    steps: int
    """Steps of the training."""
    runs: int
    """Runs on each robot whose images are kept, without labels."""
    starts: int
    """Trials of each policy on each robot."""
    adapt_steps: int
    methods: tuple[str, ...]


FULL = Plan(
    robots=20, demos=240, steps=2500, runs=24, starts=12, adapt_steps=200,
    methods=("colour", "background", "translator", "normalize", "auto"),
)  # fmt: skip
QUICK = replace(
    FULL, robots=3, demos=120, steps=1000, starts=8, runs=12, adapt_steps=150, methods=("background", "auto")
)


@array_dataclass
class Approach(WithoutGoal):
    """Bring the stick to a point beside a block that lies somewhere on the table, and hold it there."""

    name: str = "approach"
    text: str = "Bring the stick to the end of the stem of the T."
    tolerance: float = 0.015
    """How near is near enough [m]."""
    seconds: float = 3.0
    dwell: float = 0.3
    events: tuple[str, ...] = ("reached",)
    failures: tuple[str, ...] = ()
    goal_channel: Any = NO_GOAL

    def conditions(self, state: Any, goal: Array) -> Array:
        """Reached: within the tolerance."""
        return (self._away(state) < self.tolerance)[..., None]

    def failed(self, state: Any, goal: Array) -> Array:
        """Nothing can go wrong for good."""
        return np.zeros((*state.batch, 0), bool)

    def score(self, state: Any, goal: Array, reached: Array) -> Array:
        """1 at the point, 0 from 20 cm on."""
        return np.clip(1 - self._away(state) / 0.2, 0, 1)

    def _away(self, state: Any) -> Array:
        return np.linalg.norm(state.q[..., :2] - beside(state.q[..., 2:9]), axis=-1)


def beside(pose: Array) -> Array:
    """The point that is asked for, for a pose of the T [..., 2]."""
    angle = heading(pose[..., 3:])
    c, s, (x, y) = np.cos(angle), np.sin(angle), POINT
    return pose[..., :2] + np.stack([c * x - s * y, s * x + c * y], axis=-1)


@frozen_dataclass
class ApproachExpert(Stateless):
    """Out to a circle around the block, along it, and to the point."""

    speed: float = 0.5
    """[m/s]"""
    lead: float = 0.1
    """Time by which the command runs ahead [s]."""

    def act(self, observation: Observation) -> Array:
        """The target of the stick [..., 2]."""
        stick = np.asarray(observation["observation.state"], float)[..., :2]
        pose = np.asarray(observation["observation.environment_state"], float)
        centre, goal = pose[..., :2], beside(pose)
        out, wanted = stick - centre, goal - centre
        now = np.arctan2(out[..., 1], out[..., 0])
        turn = wrapped(np.arctan2(wanted[..., 1], wanted[..., 0]) - now)
        radius = np.linalg.norm(wanted, axis=-1)
        step = np.clip(turn, -0.35, 0.35)[..., None]
        angle = now[..., None] + step
        target = centre + radius[..., None] * np.concatenate([np.cos(angle), np.sin(angle)], axis=-1)
        move = target - stick
        length = np.linalg.norm(move, axis=-1, keepdims=True)
        return stick + move * np.minimum(1.0, self.speed * self.lead / np.maximum(length, 1e-9))


def tasked() -> Any:
    """The world with the task, without cameras."""
    from instep import open_world
    from instep.scene.folder import Scene
    from instep.scene.tasks.task import Tasked

    return Tasked(open_world(Scene.load("pusht"), threads=1), Approach())


def hidden_appearance(robot: int) -> dict[str, Array]:
    """Light, colours and noise, lens and texture of a robot's camera, uniformly from the usual ranges."""
    from instep.scene.folder import Scene
    from instep.tune.posterior.beliefs import VIEWS, parse_belief

    words = [f"{p.address}={p.low}..{p.high}" for p in VIEWS if p.address in ("view.lens", "view.texture")]
    belief = parse_belief(["appearance", *words], Scene.load("pusht"))
    return {} if belief is None else belief.sample(1, np.random.default_rng((robot, 0x1A9E)))


@lru_cache(maxsize=2)
def cameras(robot: int) -> tuple[Any, Any]:
    """The camera of a robot, the plain one where 0, and its sensor."""
    from instep.scene.folder import Scene
    from instep.splat.rendered_world import Sensor, load_rendered_cameras, randomized_views

    plain = load_rendered_cameras(FILE, Scene.load("pusht"), (CAMERA,), threads=1)
    if robot == 0:
        return plain, Sensor()
    amounts = hidden_appearance(robot)
    return randomized_views(plain, amounts, robot), Sensor().adjusted(amounts)


def seen(robot: int) -> Any:
    """The world as a policy of a robot sees it."""
    from instep.scene.tasks.task import Tasked

    rendered, sensor = cameras(robot)
    world = tasked()
    return Tasked(replace(rendered.on(world.world), sensor=sensor), world.task)


def runs(robot: int, policy: Any, first: int, count: int, *, seconds: float = 1.2, every: int = 1) -> list[Any]:
    """Runs of a policy with the images that a robot's camera took, of the expert where there is no policy; with `every`
    only one image in so many is kept."""
    from instep.core.rollout import rollouts

    world, (rendered, sensor) = tasked() if policy is None else seen(robot), cameras(robot)
    steps = round(seconds / world.spec.dt)
    found = rollouts(world, policy or ApproachExpert(), seeds=range(first, first + count), steps=steps)
    spec = tasked().spec
    bare = [
        replace(run, spec=spec, columns={k: v[::every] for k, v in run.columns.items() if "images" not in k})
        for run in found
    ]
    return [rendered.add_images(run, sensor, first + k) for k, run in enumerate(bare)]


def demonstrations(folder: Path, plan: Plan) -> list[Any]:
    """Demonstrations in the simulator with plainly rendered images, kept as plain arrays."""
    from instep.core.episode import Episode

    file = folder / f"shown_{plan.demos}.npz"
    if not file.is_file():
        found = runs(0, None, SHOWN, plan.demos)
        np.savez(file, **{f"{k}/{name}": v for k, run in enumerate(found) for name, v in run.columns.items()})
    kept, columns = np.load(file), dict[str, dict[str, Array]]()
    for name in kept.files:
        number, _, column = name.partition("/")
        columns.setdefault(number, {})[column] = kept[name]
    spec = seen(0).spec
    return [Episode(spec, own) for own in columns.values()]


def train_base(folder: Path, plan: Plan) -> Path:
    """The policy that every robot is given: cloned from demonstrations with plainly rendered images."""
    from instep.policy.flow_policy import read_policy
    from instep.policy.training import TrainOptions, train

    kept = folder / f"base_{plan.demos}_{plan.steps}"
    if (kept / "policy.json").is_file() and read_policy(kept)[0].metadata.get("steps") == str(plan.steps):
        return kept
    options = TrainOptions(
        steps=plan.steps, checkpoint_every=plan.steps, frame=("pusher_x", "pusher_y", "tee"), cameras=(CAMERA,),
        channels=CHANNELS, images_per_step=48, width=128, batch=128, threads=4,
    )  # fmt: skip
    return train(demonstrations(folder, plan), kept, options)


def judged(robot: int, folder: Path, plan: Plan) -> list[bool]:
    """From which starts a policy does the task on a robot."""
    from instep.evaluate.episode_batch import run_batch
    from instep.policy.flow_policy import load_policy

    world = seen(robot)
    found = run_batch(world, load_policy(folder, world.spec), range(JUDGED, JUDGED + plan.starts))
    return [bool(one.success) for one in found.episodes]


CLEAN, LOST, FIVE, ALONE = "plain images", "untouched", "auto and 5 episodes", "5 episodes alone"


@array_dataclass
class Job:
    """A robot, and what is tried on it."""

    robot: int
    base: Path
    folder: Path
    plan: Plan


@lru_cache(maxsize=2)
def plainly(base: Path, plan: Plan) -> list[bool]:
    """Trials with the images that the policy was trained on: the same for every robot."""
    return judged(0, base, plan)


def on_robot(job: Job) -> dict[str, dict[str, Any]]:
    """Trials of every technique on one robot: successes, and processor time of the adaptation [s]."""
    import torch

    from instep.lab.image_baselines import BASELINES, adapt_by_baseline
    from instep.policy.flow_policy import load_policy
    from instep.policy.training import AdaptOptions, TrainOptions, adapt_policy, fine_tune

    torch.set_num_threads(1)
    plan, found = job.plan, dict[str, dict[str, Any]]()
    shown = demonstrations(job.folder, plan)

    def note(name: str, folder: Path, seconds: float = 0.0) -> None:
        found[name] = {"won": judged(job.robot, folder, plan), "seconds": seconds}

    def timed(name: str, make: Callable[[Path], Any]) -> None:
        began, out = time.process_time(), job.folder / f"robot_{job.robot}_{name.replace(' ', '_')}"
        make(out)
        note(name, out, time.process_time() - began)

    found[CLEAN] = {"won": plainly(job.base, plan), "seconds": 0.0}
    note(LOST, job.base)
    base = load_policy(job.base, seen(job.robot).spec)
    unlabelled = runs(job.robot, base, SEEN, plan.runs, seconds=1.5, every=6)
    taught = runs(job.robot, None, TAUGHT, 5)
    for method in plan.methods:
        adapt = partial(adapt_by_baseline if method in BASELINES else adapt_policy, job.base, shown, unlabelled)
        timed(
            method, lambda out, adapt=adapt, method=method: adapt(out, AdaptOptions(by=method, steps=plan.adapt_steps))
        )
    how = TrainOptions(steps=plan.adapt_steps, learning_rate=1e-3, images_per_step=32, batch=64)
    adapted = job.folder / f"robot_{job.robot}_auto"
    if "auto" not in plan.methods:
        return found
    timed(FIVE, lambda out: fine_tune(adapted, taught, shown, out, how))
    timed(ALONE, lambda out: fine_tune(job.base, taught, shown, out, how))
    return found


def regained_rows(out: Path, plan: Plan, on: str = "", first: int = FIRST_ROBOT) -> list[dict[str, Any]]:
    """Success lost and regained, robot by robot; robots that are done are kept in files."""
    folder = out / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    base = train_base(folder, plan)
    demonstrations(folder, plan)  # once, before every process reads them
    robots = range(first, first + plan.robots)
    missing = [robot for robot in robots if not (folder / f"robot_{robot}.json").is_file()]
    with open_map(on, deadline=7200.0) as mapped:
        jobs = [Job(robot, base, folder, plan) for robot in missing]
        for robot, found in zip(missing, mapped(on_robot, jobs), strict=True):
            (folder / f"robot_{robot}.json").write_text(json.dumps(found), encoding="utf-8")
    kept = [json.loads((folder / f"robot_{robot}.json").read_text(encoding="utf-8")) for robot in robots]
    minutes = row("pictures: time", (time.perf_counter() - began) / 60, "min")
    return [*_rows(kept), minutes]


def _rows(kept: Sequence[dict[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    from instep.core.statistics import bootstrap, wilson

    rates = {name: np.array([np.mean(robot[name]["won"]) for robot in kept]) for name in kept[0]}
    count = len(kept) * len(kept[0][CLEAN]["won"])
    rows = [row("pictures: perturbed cameras", len(kept), "")]
    rows += [row(f"pictures: success, {n}", wilson(round(r.mean() * count), count)) for n, r in rates.items()]
    rows.append(row("pictures: success lost, camera by camera", bootstrap(rates[CLEAN] - rates[LOST])))
    for name, rate in rates.items():
        if name in (CLEAN, LOST):
            continue
        share = regained(rates[CLEAN], rates[LOST], rate)
        goal = {"auto": 0.7, FIVE: 0.9}.get(name)
        rows.append(row(f"pictures: share of the lost success regained, {name}", share, at_least=goal))
        rows.append(row(f"pictures: success gained, {name}, camera by camera", bootstrap(rate - rates[LOST])))
        seconds = float(np.mean([robot[name]["seconds"] for robot in kept]))
        rows.append(row(f"pictures: time of one core, {name}", seconds, "s"))
    return rows


def regained(clean: Array, lost: Array, found: Array) -> Any:
    """Share of the lost success that is regained, over all robots, with an interval by resampling them."""
    from instep.core.statistics import Estimate

    picks = np.random.default_rng(0).integers(0, len(lost), (2000, len(lost)))
    shares = [(found[p] - lost[p]).sum() / max((clean[p] - lost[p]).sum(), 1e-9) for p in picks]
    value = (found - lost).sum() / max((clean - lost).sum(), 1e-9)
    low, high = np.quantile(shares, [0.025, 0.975])
    return Estimate(float(value), float(low), float(high), len(lost), "")
