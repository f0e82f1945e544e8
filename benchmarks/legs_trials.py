"""Trials of robots with legs, each a function of plain arguments so that it can run in any process.

Hidden robots are in rapier, with hidden parameters and a delay of at most 20 ms; the simulation is in MuJoCo.
"""

from __future__ import annotations

import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from instep import Scene, open_world
from instep.core.episode import Episode
from instep.core.rollout import Script, rollouts
from instep.core.world import World
from instep.lab.gait import Gait, GaitBody, GaitFile, fallen, ranges_gait, shipped_gait
from instep.lab.leg_estimation import LeggedEstimate
from instep.lab.leg_walks import FEEDBACK, SAME, LegOptions, WalkNoise, leg_experiment, noisy_robot
from instep.lab.legs_study import LegBudget, close_on_legs, hidden_legs
from instep.scene.new_scene import make_scene
from tuning.planted_arms import MODELS

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
        "I": same.upright.tolist(), "I distance": same.distance.tolist(), "error": found.errors,
        "speed": found.speeds, "robot minutes": found.robot_minutes, "computer minutes": found.computer_minutes,
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
