"""Every task has a scripted expert that does it."""

from __future__ import annotations

import numpy as np
import pytest

from instep import MujocoWorld, rollouts, stack
from instep.policy.push_expert import (
    EndEffector,
    friction_radius,
    helix,
    outside,
    push_contacts,
    rotation_between,
    shortest_paths,
)
from instep.policy.task_experts import expert_of, framed
from instep.scene.folder import Scene
from instep.scene.tasks import TASKS, task_of
from instep.scene.tasks.task import Tasked

SEEDS = {"pusht": 4, "pusht_arm": 2, "handover": 2, "reach": 8, "track": 4, "course": 4}
TEE = np.array([[-0.1, 0.018, 0.1, 0.068], [-0.025, -0.132, 0.025, 0.018]])


def run(name: str, seeds: range) -> tuple[Tasked, np.ndarray]:
    scene = Scene.load(TASKS[name].scene)
    task = task_of(scene, name)
    world, expert = Tasked(MujocoWorld(scene), task), expert_of(task, scene)
    expert.reset()
    state = stack([world.reset(seed) for seed in seeds])
    for _ in range(world.steps):
        state = world.step(state, expert.act(world.observe(state)))
        if world.done(state).all():
            break
    return world, world.success(state)


@pytest.mark.parametrize("name", TASKS)
def test_the_expert_does_the_task(name):
    _, success = run(name, range(100, 100 + SEEDS[name]))
    assert success.all()


def test_the_expert_of_pusht_has_no_memory():
    scene = Scene.load("pusht")
    task = task_of(scene)
    world, expert = Tasked(MujocoWorld(scene), task), expert_of(task, scene)
    together = rollouts(world, expert, seeds=[1, 2], steps=60)
    alone = rollouts(world, expert, seeds=[2], steps=60)
    assert np.array_equal(together[1].action, alone[0].action)


def test_a_push_through_the_middle_does_not_turn_and_one_beside_it_does():
    square = np.array([[-0.05, -0.05, 0.05, 0.05]])
    ways = push_contacts(square, 0.01, friction_radius(square), spacing=0.02)
    centred = np.abs(ways.stick[1::3]).min(axis=-1) < 1e-9
    assert centred.any()
    assert np.allclose(ways.twist[1::3][centred][:, 2], 0)
    right = (ways.normal[1::3] @ [1, 0] > 0.9) & (ways.stick[1::3, 1] > 0.03)
    assert (ways.twist[1::3][right][:, 2] > 0).all(), "pushed left above the middle, a block turns counterclockwise"


def test_a_helix_is_many_small_steps_of_its_twist():
    twist, pose = np.array([0.6, -0.3, 7.0]), np.zeros(3)
    for _ in range(4000):
        c, s = np.cos(pose[2]), np.sin(pose[2])
        pose = pose + np.array([c * twist[0] - s * twist[1], s * twist[0] + c * twist[1], twist[2]]) * (0.2 / 4000)
    assert np.allclose(helix(twist, np.array(0.2)), pose, atol=1e-4)


def test_a_shortest_path_leads_around_the_block_and_arrives():
    place = np.array([[0.0, 0.1]])
    paths = shortest_paths(place, TEE, 0.025)
    point = np.array([0.0, -0.2])
    length, _ = paths.path(np.array(0), point)
    assert length > np.linalg.norm(place[0] - point), "the straight way leads through the block"
    nearest = np.inf
    for _ in range(200):
        _, ahead = paths.path(np.array(0), point)
        point = point + np.clip(ahead - point, -0.01, 0.01)
        nearest = min(nearest, float(outside(point, TEE)))
        if np.linalg.norm(point - place[0]) < 0.012:
            break
    assert np.linalg.norm(point - place[0]) < 0.012
    assert nearest > 0.0125, "the stick would have touched"


def test_inverse_kinematics_put_an_end_effector_at_its_pose():
    scene = Scene.load("mobile_ai")
    tip = EndEffector.of(scene, "left_tip", tuple(f"left_joint_{i}" for i in range(6)))
    frame, place = framed(-1.0, 0.7, 0.0), np.array([0.6, 0.1, 1.1])
    q = tip.solve(scene.start(0)[0], place, frame)
    at, now, jacobian = tip.kinematics(q)
    assert np.allclose(at, place, atol=1e-4)
    assert np.linalg.norm(rotation_between(now, frame)) < 1e-3
    step = np.full(6, 1e-5)
    moved = q.copy()
    moved[tip.joints] += step
    assert np.allclose(tip.kinematics(moved)[0] - at, jacobian[:3] @ step, atol=1e-8)
