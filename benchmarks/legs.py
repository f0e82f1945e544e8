"""Robots with legs: feedback against replayed actions, estimated velocity, hidden robots, and costs.

Robots are a Unitree H1 and a Unitree Go2 in MuJoCo, with noise, and in rapier with hidden parameters, where the
simulation is always the plain scene in MuJoCo. The shipped gaits were searched on the plain scenes and on ranges;
hidden robots have seeds that no search has met.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from harness import KeptCases, Row, percent, row
from instep import Scene, open_world
from instep.app.cluster import open_map
from instep.core.episode import Episode
from instep.core.processes import usable_cores
from instep.core.rollout import Script, rollouts
from instep.core.statistics import Estimate, bootstrap, wilson
from instep.core.world import State, World, frozen_dataclass
from instep.lab.gait import Gait, GaitBody, GaitFile, base_motion, fallen, ranges_gait, shipped_gait
from instep.lab.leg_estimation import BaseFilter, Inertial, LeggedEstimate, WalkNoise, noisy_robot, wheel_velocity
from instep.lab.legs_study import FEEDBACK, SAME, LegBudget, LegOptions, close_on_legs, hidden_legs, leg_experiment
from instep.scene.new_scene import make_scene
from tuning.planted_arms import MODELS

FIRST_HIDDEN = 1000
QUICK_BUDGET = LegBudget(shifts=1, walks=1, seconds=3.0, generations=1, population=4, samples=2, walk_s=2.0, judged=2)
HIDDEN_PUSHES = {"humanoid": 0.0, "quadruped": 0.4}
"""Change of velocity by a push every 3 s, on hidden robots [m/s]: of hidden quadrupeds without pushes the plain gait
walks two in three."""
KINDS = ("closed", "nominal", "actions")
"""Kinds of trials in the order in which they run."""


@frozen_dataclass
class Plan:
    """How much is measured."""

    robots: int = 20
    """Hidden robots."""
    walks: int = 20
    """Walks with feedback and in I."""
    seconds: float = 20.0
    """Length of these walks, and of those of hidden robots."""
    budget: LegBudget = LegBudget()
    first: int = FIRST_HIDDEN


QUICK = Plan(robots=2, walks=4, seconds=6.0, budget=QUICK_BUDGET)
Job = tuple[str, Callable[[], dict[str, Any]]]


def run(out: Path, quick: bool = False, only: Sequence[str] = ()) -> list[Row]:
    """Measure each robot that there is a file of, then a differential drive; `only` gives kinds of trials."""
    plan = QUICK if quick else Plan()
    names = [name for name, file in ROBOTS.items() if (MODELS / file).is_file()]
    jobs = [job for name in names for job in _jobs(name, plan) if not only or job[0].split()[1] in only]
    jobs.sort(key=lambda job: KINDS.index(job[0].split()[1]))
    cases = _cases(KeptCases(out), jobs)
    rows = [one for name in names for one in _rows(name, cases, plan)]
    return [*rows, row("differential drive: error of the estimated speed", _wheels(), "m/s", at_most=0.1)]


def _jobs(name: str, plan: Plan) -> list[Job]:
    """The trials of a robot."""
    hidden = range(plan.first, plan.first + plan.robots)
    kinds: dict[str, Callable[[int], Callable[[], dict[str, Any]]]] = {
        "closed": lambda seed: partial(
            closed_gap,
            name,
            seed,
            plan.seconds,
            replace(plan.budget, push=max(0.2, HIDDEN_PUSHES[name])),
            HIDDEN_PUSHES[name],
        ),
        "actions": lambda seed: partial(simulated_actions, name, seed, plan.seconds),
    }
    jobs = [(f"{name} {kind} {seed} {plan}", make(seed)) for kind, make in kinds.items() for seed in hidden]
    pairs = range(0, plan.walks, 2)
    return jobs + [
        (f"{name} nominal {seed} {plan}", partial(nominal_walks, name, seed, 2, plan.seconds)) for seed in pairs
    ]


def _cases(kept: KeptCases, jobs: Sequence[Job]) -> dict[str, dict[str, Any]]:
    """The cases by key, without the plan; those that are not kept yet are measured in as many processes as cores."""
    missing = [job for job in jobs if job[0] not in kept]
    with open_map(f"processes:{usable_cores()}", deadline=3600.0) as mapped:
        for k, (job, found) in enumerate(zip(missing, mapped(_called, [job[1] for job in missing]), strict=True), 1):
            kept.measured(job[0], lambda found=found: found)
            sys.stderr.write(f"{k} of {len(missing)}: {' '.join(job[0].split()[:3])}\n")
    return {" ".join(key.split()[:3]): kept.measured(key, dict) for key, _ in jobs}


def _called(job: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    return job()


class _Found:
    """The cases of one robot, by kind."""

    def __init__(self, name: str, cases: dict[str, dict[str, Any]]):
        self.name, self._cases = name, cases

    def kind(self, kind: str) -> list[dict[str, Any]]:
        """The cases of a kind."""
        return [case for key, case in self._cases.items() if key.startswith(f"{self.name} {kind} ")]

    def all(self, kind: str, key: str) -> list[float]:
        """An entry of all its cases in one list."""
        return [float(x) for case in self.kind(kind) for x in np.atleast_1d(case[key])]


def _rows(name: str, cases: dict[str, dict[str, Any]], plan: Plan) -> list[Row]:
    found, rows = _Found(name, cases), list[Row]()
    makers = {"nominal": _experiment_rows, "closed": _closing_rows}
    for kind, make in makers.items():
        if found.kind(kind):
            rows += make(found, plan)
    for what in ("robot", "computer"):
        minutes = sum(float(c[f"{what} minutes"]) for k, c in cases.items() if k.startswith(name))
        rows.append(row(f"{name}: {what} time of all trials", minutes, "min"))
    return rows


def _experiment_rows(found: _Found, plan: Plan) -> list[Row]:
    name, seconds = found.name, plan.seconds
    up, same = found.all("nominal", "feedback"), found.all("nominal", "I")
    other = found.all("actions", "II")
    rows = [
        row(f"{name}: {seconds:g} s walks upright with feedback", _percent(up, seconds), "%", at_least=95.0),
        row(f"{name}: error of the estimated velocity", bootstrap(found.all("nominal", "error")), "m/s", at_most=0.1),
        row(f"{name}: speed with feedback", bootstrap(found.all("nominal", "speed")), "m/s"),
    ]
    for label, kind in (("feedback", "nominal"), ("I", "nominal"), ("II", "actions")):
        if found.kind(kind):
            said = {"II": "II, hidden robots in another engine"}.get(label, label)
            rows.append(row(f"{name}: time upright, {said}", bootstrap(found.all(kind, label)), "s"))
            far = bootstrap(found.all(kind, f"{label} distance"))
            rows.append(row(f"{name}: distance from the recorded run, {said}", far, "m"))
    if name == "humanoid" and other:
        early, late = bootstrap(other), bootstrap(same)
        rows.append(row("humanoid: upright to the end in I", _percent(same, seconds), "%", at_most=5.0))
        rows.append(
            row("humanoid: time upright, II less I (intervals apart)", early.value - late.value, "s", at_most=0.0,
                ok=early.high < late.low)
        )  # fmt: skip
    return rows


def _closing_rows(found: _Found, plan: Plan) -> list[Row]:
    name, seconds, many = found.name, plan.seconds, len(found.kind("closed"))
    up = {label: np.array(found.all("closed", label)) for label in ("plain", "ranges", "closed")}
    gain = (up["closed"] >= seconds - 1e-9).astype(float) - (up["plain"] >= seconds - 1e-9)
    pushed = f", pushed by {HIDDEN_PUSHES[name]:g} m/s every 3 s" if HIDDEN_PUSHES[name] else ""
    said = f"on {many} hidden robots, rapier{pushed}"
    return [
        row(f"{name}: upright {said}, plain gait", _percent(up["plain"], seconds), "%", at_most=60.0),
        row(f"{name}: upright {said}, randomisation alone", _percent(up["ranges"], seconds), "%"),
        row(f"{name}: upright {said}, identification + randomisation", _percent(up["closed"], seconds), "%",
            at_least=85.0),
        _gain_row(f"{name}: its gain over the plain gait, paired", gain),
        row(f"{name}: speed of the closed gait", bootstrap(found.all("closed", "closed speed")), "m/s"),
        row(f"{name}: identification, recorded on each robot", bootstrap(found.all("closed", "recorded minutes")),
            "min"),
        row(f"{name}: identification, falls on each robot", bootstrap(found.all("closed", "falls"))),
        row(f"{name}: identification and training, one core per robot",
            bootstrap(found.all("closed", "closing minutes")), "min"),
        row(f"{name}: error of the identified delay", bootstrap(_delay_errors(found)), "ms"),
    ]  # fmt: skip


def _gain_row(name: str, gain: np.ndarray) -> Row:
    """A gain in the share of robots upright; its goal is met where all of the interval is above 0."""
    found = percent(bootstrap(gain))
    return row(name, found, "%", at_least=0.0, ok=found.low > 0)


def _delay_errors(found: _Found) -> list[float]:
    return [1000 * abs(case["delay"][1] - case["delay"][0]) for case in found.kind("closed")]


def _percent(upright: Any, seconds: float) -> Estimate:
    return percent(wilson(int(np.sum(np.asarray(upright) >= seconds - 1e-9)), len(upright)))


def _wheels() -> Estimate:
    """Root mean square error of the speed of a differential drive that is driven through curves [m/s]."""
    scene, errors = Scene.load("diff_drive"), list[float]()
    for seed in range(8):
        world, rng = Inertial(open_world(scene), 0, 0), np.random.default_rng((seed, 0x33))
        state, estimate = world.reset(seed), BaseFilter(scene.dt)
        estimate.begin(world.observe(state)["observation.imu"])
        squares = list[float]()
        for k in range(round(10 / scene.dt)):
            turn = 0.1 * np.sin(0.02 * k + seed)
            state = world.step(state, np.clip(0.3 + np.array([-turn, turn]) + rng.normal(0, 0.02, 2), -0.6, 0.6))
            squares.append(_corrected(world, estimate, state))
        errors.append(float(np.sqrt(np.mean(squares))))
    return bootstrap(errors, unit="m/s")


def _corrected(world: Inertial[Any], estimate: BaseFilter, state: State) -> float:
    """Take a reading, and return the squared error of the speed."""
    seen = world.observe(state)
    imu, wheels = seen["observation.imu"], 0.03 * np.asarray(seen["observation.velocity"])
    estimate.predict(imu)
    estimate.correct(imu[:3], np.zeros(3), wheel_velocity(wheels[0], wheels[1]), np.ones((), bool))
    return float((estimate.base(imu[:3])[6] - base_motion(state.q, state.v, 0, 0)[6]) ** 2)


ROBOTS = {"humanoid": "unitree_h1/h1.xml", "quadruped": "unitree_go2/scene.xml"}
"""Robot -> its file under ../shared/models."""
RATE_HZ = 100.0
Case = dict[str, Any]


@cache
def scene_of(name: str) -> Scene:
    """The scene of a robot, made once in each process."""
    return make_scene(MODELS / ROBOTS[name], Path(tempfile.mkdtemp()) / name, rate=RATE_HZ, legs=True).scene


def hidden_robot(scene: Scene, seed: int, noise: WalkNoise | None = None) -> World:
    """A robot in another engine, with hidden parameters, a noisy IMU and noisy joints."""
    robot = open_world(scene, "rapier").tuned(hidden_legs(scene, seed))
    return noisy_robot(robot, GaitBody.of(scene), noise or WalkNoise())


def nominal_walks(name: str, seed: int, trials: int, seconds: float) -> Case:
    """Feedback and I on the robot as its scene describes it, with noise: conditions, error of the estimate, speed."""
    scene = scene_of(name)
    body, sim = GaitBody.of(scene), open_world(scene, threads=1)
    gait = shipped_gait(body.legs)
    options = LegOptions(trials=trials, seconds=seconds, seed=seed)
    found = leg_experiment(sim, sim, lambda: Gait(body, gait.params, gait.speed), options)
    up, same = found.walks[FEEDBACK], found.walks[SAME]
    return {
        "feedback": up.upright.tolist(), "feedback distance": up.distance.tolist(),
        "I": same.upright.tolist(), "I distance": same.distance.tolist(), "error": found.velocity_error.value,
        "speed": found.speed.value, "robot minutes": found.robot_minutes, "computer minutes": found.computer_minutes,
    }  # fmt: skip


def simulated_actions(name: str, seed: int, seconds: float) -> Case:
    """II: a hidden robot plays the actions that the controller took in the simulator."""
    scene, began = scene_of(name), time.perf_counter()
    body, sim = GaitBody.of(scene), open_world(scene, threads=1)
    gait, steps, over = shipped_gait(body.legs), round(seconds / scene.dt), fallen(scene, body)
    policy = LeggedEstimate(Gait(body, gait.params, gait.speed))
    [ideal] = rollouts(noisy_robot(sim, body), policy, seeds=[0], steps=steps, until=over)
    [walk] = rollouts(hidden_robot(scene, seed), Script(ideal.action), seeds=[seed], steps=steps, until=over)
    end = min(len(walk), len(ideal)) - 1
    far = float(np.linalg.norm(walk.q[end, :2] - ideal.q[end, :2]))
    return {"II": _upright(walk, seconds), "II distance": far, **_spent(began, [walk])}


def closed_gap(name: str, seed: int, seconds: float, budget: LegBudget, push: float) -> Case:
    """A hidden robot with the plain gait, with the gait of ranges, and with the one that closing the gap gave.

    Where `push` is above 0, it is pushed every 3 s.
    """
    scene, began = scene_of(name), time.perf_counter()
    robot, sim = hidden_robot(scene, seed, WalkNoise(push=push)), open_world(scene, threads=1)
    body = GaitBody.of(scene)
    plain = shipped_gait(body.legs)
    closed = close_on_legs(robot, sim, plain, budget, seed=seed)
    tried = {"plain": plain.params, "ranges": ranges_gait(body.legs).params, "closed": closed.gait.params}
    walks = {label: _walked(robot, body, scene, params, plain, seed, seconds) for label, params in tried.items()}
    truth, delay = hidden_legs(scene, seed), closed.found()["action.delay"]
    return {
        **{label: _upright(walk, seconds) for label, walk in walks.items()},
        **{f"{label} speed": _speed(walk) for label, walk in walks.items()},
        "chosen": closed.chosen, "falls": closed.falls, "recorded minutes": closed.robot_minutes,
        "closing minutes": closed.computer_minutes, "costs": closed.costs,
        "delay": [truth["action.delay"], delay.value, delay.low, delay.high],
        **_spent(began, list(walks.values())),
    }  # fmt: skip


def _walked(
    robot: World, body: GaitBody, scene: Scene, params: Any, gait: GaitFile, seed: int, seconds: float
) -> Episode:
    policy = LeggedEstimate(Gait(body, params, gait.speed))
    [walk] = rollouts(robot, policy, seeds=[seed], steps=round(seconds / scene.dt), until=fallen(scene, body))
    return walk


def _upright(walk: Episode, seconds: float) -> float:
    return seconds if walk.meta["ended"] == "steps" else (len(walk) - 1) * walk.spec.dt


def _speed(walk: Episode) -> float:
    return float((walk.q[-1, 0] - walk.q[0, 0]) / (len(walk) * walk.spec.dt))


def _spent(began: float, walks: list[Episode]) -> Case:
    minutes = sum(len(walk) * walk.spec.dt for walk in walks) / 60
    return {"robot minutes": minutes, "computer minutes": (time.perf_counter() - began) / 60}
