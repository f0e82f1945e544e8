"""Tasks: goals sampled from the seed, events in order, success and failure judged by where things are."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from instep import BadInput, MujocoWorld, RapierWorld, stack, take
from instep.core.world import put
from instep.robot import Late
from instep.scene.folder import Scene
from instep.scene.tasks import TASKS, task_of
from instep.scene.tasks.manipulation_tasks import PushOnto
from instep.scene.tasks.task import Tasked
from instep.testing import SIMULATOR_LAWS, WORLD_LAWS

ENGINES = {"mujoco": MujocoWorld, "rapier": RapierWorld}


@cache
def tasked(name: str, engine: str = "mujoco") -> Tasked:
    scene = Scene.load(TASKS[name].scene)
    return Tasked(ENGINES[engine](scene), task_of(scene, name))


def pose_q(world: Tasked, x: float, y: float, turn: float) -> np.ndarray:
    q = world.reset(0).q.copy()
    body = world.task.body
    q[body : body + 2] = x, y
    q[body + 3 : body + 7] = np.cos(turn / 2), 0, 0, np.sin(turn / 2)
    return q


@pytest.mark.parametrize("law", WORLD_LAWS + SIMULATOR_LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("name", TASKS)
def test_a_world_with_a_task_keeps_the_law(name, law):
    law(tasked(name))


@pytest.mark.parametrize("name", TASKS)
def test_the_goal_comes_from_the_seed_and_nothing_else(name):
    task = tasked(name).task
    assert np.array_equal(task.sample_goal(5), task.sample_goal(5))
    if task.goal_channel.labels:
        assert not np.array_equal(task.sample_goal(5), task.sample_goal(6))
        assert tasked(name).observe(tasked(name).reset(5))["observation.goal"].shape == task.goal_channel.shape


def test_a_block_on_its_outline_is_done_only_after_it_stayed_there():
    world = tasked("pusht")
    x, y, turn = world.task.target
    state = world.place(pose_q(world, x, y, turn), world.reset(0).v)
    assert world.score(state) > 0.99
    assert not world.success(state)
    steps = 0
    while not world.success(state):
        state, steps = world.step(state, state.q[:2]), steps + 1
    assert steps * world.spec.dt == pytest.approx(world.task.dwell, abs=1.5 * world.spec.dt)
    assert world.event_times(state)[-1] == pytest.approx(state.t)


@pytest.mark.parametrize(
    ("dx", "turn", "low", "high"),
    [(0, 0, 0.99, 1.0), (0.005, 0, 0.90, 0.97), (0, 0.08, 0.88, 0.96), (0.05, 0, 0, 0.6), (0.3, 0, 0, 0)],
)
def test_coverage_falls_with_the_error_of_the_pose(dx, turn, low, high):
    world = tasked("pusht")
    x, y, heading = world.task.target
    state = world.place(pose_q(world, x + dx, y, heading + turn), world.reset(0).v)
    assert low <= world.score(state) <= high


def test_coverage_agrees_with_areas_counted_on_a_fine_grid():
    task: PushOnto = tasked("pusht").task
    rng = np.random.default_rng(0)
    for dx, dy, turn in rng.uniform([-0.05, -0.05, -1], [0.05, 0.05, 1], (5, 3)):
        axis = np.arange(-0.25, 0.25, 0.0015)
        points = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)

        def inside(p):
            boxes = [(p >= box[:2]).all(-1) & (p <= box[2:]).all(-1) for box in np.array(task.shape)]
            return np.any(boxes, axis=0)

        c, s = np.cos(turn), np.sin(turn)
        moved = (points - [dx, dy]) @ np.array([[c, -s], [s, c]])
        expected = (inside(points) & inside(moved)).sum() / inside(points).sum()
        h = task.target[2]
        away = np.array([np.cos(h) * dx - np.sin(h) * dy, np.sin(h) * dx + np.cos(h) * dy, turn])
        assert task._covered(away) == pytest.approx(expected, abs=0.03)


def test_a_block_out_of_reach_is_a_failure_that_stays():
    world = tasked("pusht")
    x, y, turn = world.task.target
    state = world.place(pose_q(world, x + 0.4, y, turn), world.reset(0).v)
    assert world.failure(state) == 0 and world.done(state)
    assert world.failure(world.step(state, state.q[:2])) == 0


def test_events_count_in_order_only():
    world = tasked("course")
    gates = world.task.sample_goal(0).reshape(-1, 2)
    home = world.reset(0)

    def at(gate):
        q = home.q.copy()
        q[world.task.body : world.task.body + 2] = gate
        return q

    memory = world.place(at(gates[0]), home.v).hidden["tasked"]
    second = world.world.place(at(gates[1]), home.v)
    third = world._updated(world.world.place(at(gates[2]), home.v), memory)
    assert world.reached(second.with_hidden("tasked", memory)).sum() == 1
    assert np.isfinite(third["when"]).sum() == 1, "gate 3 does not count before gate 2"
    assert np.isfinite(world._updated(second, memory)["when"]).sum() == 2


def test_a_batch_of_tasks_is_judged_world_by_world():
    world = tasked("pusht")
    x, y, turn = world.task.target
    placed = [world.place(pose_q(world, x + d, y, turn), world.reset(0).v) for d in (0.0, 0.1, 0.4)]
    together = stack(placed)
    assert [float(world.score(s)) for s in placed] == world.score(together).tolist()
    assert world.failure(together).tolist() == [-1, -1, 0]
    again = put(together, np.array([2]), stack([take(together, 0)]))
    assert world.failure(again).tolist() == [-1, -1, -1]


def test_success_is_judged_by_where_things_are_even_if_sensors_are_late():
    scene = Scene.load("pusht")
    task = task_of(scene)
    plain, late = Tasked(MujocoWorld(scene), task), Tasked(Late(MujocoWorld(scene), observation=5), task)
    x, y, turn = task.target
    q = pose_q(plain, x, y, turn)
    assert plain.score(plain.place(q, plain.reset(0).v)) == late.score(late.place(q, late.reset(0).v))


def test_both_engines_draw_the_same_starts_and_goals():
    for name in ("pusht", "reach", "course"):
        a, b = tasked(name).reset(11), tasked(name, "rapier").reset(11)
        assert np.allclose(a.q, b.q, atol=1e-6)
        assert np.array_equal(a.hidden["tasked"]["goal"], b.hidden["tasked"]["goal"])


def test_a_scene_without_a_task_says_how_to_name_one():
    with pytest.raises(BadInput, match="has no task; name one with --task"):
        task_of(Scene.load("cube"))
