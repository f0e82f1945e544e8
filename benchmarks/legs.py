"""Robots with legs: feedback against replayed actions, estimated velocity, hidden robots, and what they cost.

Robots are a Unitree H1 and a Unitree Go2 in MuJoCo, with noise, and in rapier with hidden parameters, where the
simulation is always the plain scene in MuJoCo. The shipped gaits were searched on the plain scenes alone; hidden robots
have seeds that no search has met.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from instep import Scene, open_world
from instep.app.simulated_robot import hidden_settings
from instep.core.rollout import rollouts
from instep.core.statistics import Estimate, bootstrap, wilson
from instep.core.world import State
from instep.evaluate import LegOptions, leg_experiment
from instep.evaluate.leg_walks import FEEDBACK, SAME, SIMULATED, WalkNoise, noisy_robot
from instep.policy import Gait, GaitBody, LeggedEstimate, shipped_gait
from instep.policy.base_estimation import BaseFilter, wheel_velocity
from instep.policy.gait import base_motion, fallen
from instep.robot import Inertial
from instep.scene.new_scene import make_scene
from kept_cases import KeptCases
from rows import Row, percent, row
from tuning.planted_arms import MODELS

ROBOTS = {"humanoid": "unitree_h1/h1.xml", "quadruped": "unitree_go2/scene.xml"}
"""Robot -> its file under ../shared/models."""
FIRST_HIDDEN = 1000
TRIALS, QUICK_TRIALS = 20, 4
SECONDS, QUICK_SECONDS = 20.0, 6.0
HIDDEN_ROBOTS, QUICK_HIDDEN_ROBOTS = 20, 2
MAX_DELAY_S = 0.02
"""Largest delay of a hidden robot [s]; its seeds have up to 60 ms, for arms at 60 Hz."""


def run(out: Path, quick: bool = False) -> list[Row]:
    """Measure each robot that there is a file of, then a differential drive."""
    kept, rows = KeptCases(out), list[Row]()
    with tempfile.TemporaryDirectory() as folder:
        for name, file in ROBOTS.items():
            if (MODELS / file).is_file():
                scene = make_scene(MODELS / file, Path(folder) / name, rate=100, legs=True).scene
                rows += _robot(kept, name, scene, quick)
    rows.append(row("differential drive: error of the estimated speed", _wheels(), "m/s", at_most=0.1))
    return rows


def _robot(kept: KeptCases, name: str, scene: Scene, quick: bool) -> list[Row]:
    trials, seconds = (QUICK_TRIALS, QUICK_SECONDS) if quick else (TRIALS, SECONDS)
    found = kept.measured(f"{name} experiments {trials} {seconds:g}", lambda: _experiments(scene, trials, seconds))
    up = found[FEEDBACK]["upright"]
    same, other = found[SAME], found[SIMULATED]
    rows = [
        row(f"{name}: {seconds:g} s walks upright with feedback", percent(_share(up, seconds)), "%", at_least=95.0),
        row(f"{name}: error of the estimated velocity", Estimate(**found["error"]), "m/s", at_most=0.1),
        row(f"{name}: speed with feedback", Estimate(**found["speed"]), "m/s"),
    ]
    for label, walks in (("feedback on", found[FEEDBACK]), ("I", same), ("II, other engine", other)):
        rows.append(row(f"{name}: time upright, {label}", bootstrap(walks["upright"]), "s"))
        rows.append(row(f"{name}: distance from the recorded run, {label}", bootstrap(walks["distance"]), "m"))
    if name == "humanoid":
        early, late = bootstrap(other["upright"]), bootstrap(same["upright"])
        apart = early.high < late.low
        rows.append(row("humanoid: falls in I", percent(_share(same["upright"], seconds)), "%", at_most=5.0))
        rows.append(row("humanoid: II less than I, time upright", early.value - late.value, "s", at_most=0.0, ok=apart))
    many = QUICK_HIDDEN_ROBOTS if quick else HIDDEN_ROBOTS
    hidden = [_hidden_case(kept, name, scene, seed, seconds) for seed in range(FIRST_HIDDEN, FIRST_HIDDEN + many)]
    rows.append(row(f"{name}: upright on {many} hidden robots, rapier", percent(_share(hidden, seconds)), "%"))
    rows.append(row(f"{name}: robot time", found["robot minutes"] + sum(hidden) / 60, "min"))
    rows.append(row(f"{name}: computer time of the experiments", found["computer minutes"], "min"))
    return rows


def _share(upright: list[float], seconds: float) -> Estimate:
    return wilson(int(np.sum(np.asarray(upright) >= seconds - 1e-9)), len(upright))


def _experiments(scene: Scene, trials: int, seconds: float) -> dict[str, Any]:
    """Feedback and I on the robot as its scene describes it, II on a hidden robot in another engine."""
    body, sim = GaitBody.of(scene), open_world(scene)
    gait = shipped_gait(body.legs)
    options = LegOptions(trials=trials, seconds=seconds)

    def walking() -> Gait:
        return Gait(body, gait.params, gait.speed)

    nominal = leg_experiment(sim, sim, walking, options)
    robot = open_world(scene, "rapier").tuned(_settings(scene, FIRST_HIDDEN))
    moved = leg_experiment(sim, robot, walking, replace(options, trials=max(2, trials // 4)))
    plain = {
        label: {"upright": walks.upright.tolist(), "distance": walks.distance.tolist()}
        for label, walks in ((FEEDBACK, nominal.walks[FEEDBACK]), (SAME, nominal.walks[SAME]),
                             (SIMULATED, moved.walks[SIMULATED]))
    }  # fmt: skip
    return {
        **plain,
        "error": nominal.velocity_error.as_dict(),
        "speed": nominal.speed.as_dict(),
        "robot minutes": nominal.robot_minutes + moved.robot_minutes,
        "computer minutes": nominal.computer_minutes + moved.computer_minutes,
    }


def _settings(scene: Scene, seed: int) -> dict[str, float]:
    settings = hidden_settings(scene, seed)
    return {**settings, "action.delay": min(settings["action.delay"], MAX_DELAY_S)}


def _hidden_case(kept: KeptCases, name: str, scene: Scene, seed: int, seconds: float) -> float:
    key = f"{name} hidden {seed} {seconds:g}"
    return kept.measured(key, lambda: {"upright": _hidden(scene, seed, seconds)})["upright"]


def _hidden(scene: Scene, seed: int, seconds: float) -> float:
    """How long a hidden robot in another engine stays upright with feedback [s]."""
    body = GaitBody.of(scene)
    gait = shipped_gait(body.legs)
    robot = open_world(scene, "rapier").tuned(_settings(scene, seed))
    world, steps = noisy_robot(robot, body, WalkNoise()), round(seconds / scene.dt)
    policy = LeggedEstimate(Gait(body, gait.params, gait.speed))
    [walk] = rollouts(world, policy, seeds=[seed], steps=steps, until=fallen(scene, body))
    return seconds if walk.meta["ended"] == "steps" else (len(walk) - 1) * scene.dt


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


def _corrected(world: Inertial, estimate: BaseFilter, state: State) -> float:
    """Take a reading, and return the squared error of the speed."""
    seen = world.observe(state)
    imu, wheels = seen["observation.imu"], 0.03 * np.asarray(seen["observation.velocity"])
    estimate.predict(imu)
    estimate.correct(imu[:3], np.zeros(3), wheel_velocity(wheels[0], wheels[1]), True)
    return float((estimate.base(imu[:3])[6] - base_motion(state.q, state.v, 0, 0)[6]) ** 2)
