"""Windows of many runs in one batch: each as if it were alone, and NaN after a divergence."""

from __future__ import annotations

import numpy as np
import pytest

from instep import MujocoWorld, Script, rollout
from instep.core.errors import Diverged
from instep.core.rollout import MAX_RECORDED_STATES, aligned, replay_all, rollout_positions, rollout_windows, run_policy
from instep.core.world import State, Wrapper, unroll
from instep.physics import mujoco_world
from instep.robot import Backlash


class Exploding(Wrapper):
    """A world whose rows diverge as soon as their first joint passes 0.3 rad."""

    def step(self, state: State, action: np.ndarray) -> State:
        after = self.world.step(state, action)
        gone = np.flatnonzero(after.q[..., 0] > 0.3)
        if len(gone):
            raise Diverged("It exploded.", tuple(int(i) for i in gone), after)
        return after


class Stepped(Wrapper):
    """A world that takes only single steps."""


@pytest.fixture
def sim() -> MujocoWorld:
    return MujocoWorld("arm7")


def run(sim: MujocoWorld, seed: int, rows: int, reach: float):
    swing = reach * np.sin(np.linspace(0, 3, rows))[:, None] * np.eye(1, sim.spec.action.shape[0])
    return rollout(sim, Script(sim.scene.rest_action() + swing), steps=rows, seed=seed)


def test_windows_of_many_runs_equal_each_alone(sim):
    runs = [aligned(run(sim, i, rows, 0.5), sim) for i, rows in enumerate((30, 12, 21))]
    windows = np.array([(0, 0), (1, 3), (2, 5), (0, 10), (1, 0)])
    spans = np.array([20, 5, 12, 3, 8])
    seen = {i: {} for i in range(len(windows))}

    def visit(step, live, state):
        for slot, i in enumerate(live):
            seen[int(i)][step] = state.q[slot].copy()

    survived = rollout_windows(sim, runs, windows, spans, visit)
    np.testing.assert_array_equal(survived, spans)
    for i, (which, row) in enumerate(windows):
        state = sim.place(runs[which].q[row], runs[which].v[row], 0.0, runs[which].past[row])
        assert sorted(seen[i]) == list(range(1, spans[i] + 1))
        for step in range(spans[i]):
            state = sim.step(state, runs[which].action[row + step])
            np.testing.assert_allclose(seen[i][step + 1], state.q, atol=1e-9)


def test_what_diverges_is_nan_from_there_and_the_others_go_on(sim):
    runs = [aligned(run(sim, i, 40, reach), sim) for i, reach in enumerate((0.1, 1.0))]
    calm, wild = (q for q, _ in replay_all(Exploding(sim), runs))
    plain = [q for q, _ in replay_all(sim, runs)]
    last = int(np.argmax(plain[1][:, 0] > 0.3))
    assert 1 < last < 39
    np.testing.assert_allclose(calm, plain[0], atol=1e-9)
    np.testing.assert_allclose(wild[:last], plain[1][:last], atol=1e-9)
    assert np.isnan(wild[last:]).all()


def test_positions_of_a_batch_repeat_actions_over_candidates(sim):
    given = aligned(run(sim, 0, 20, 1.0), sim)
    actions = np.stack([given.action[:15], given.action[4:19]], axis=1)
    q, v, past = (np.tile(part[[0, 4]], (3, *[1] * (part.ndim - 1))) for part in (given.q, given.v, given.past))
    paths = rollout_positions(sim, sim.place(q, v, 0.0, past), actions)
    assert paths.shape == (6, 15, given.q.shape[-1])
    np.testing.assert_allclose(paths[2:4], paths[:2], atol=1e-12)
    limited = rollout_positions(Exploding(sim), Exploding(sim).place(q, v, 0.0, past), actions)
    np.testing.assert_array_equal(np.isnan(limited[..., 0]), np.maximum.accumulate(paths[..., 0] > 0.3, axis=1))


@pytest.mark.parametrize("settings", [{}, {"action.delay": 0.03}, {"action.delay": np.linspace(0.0, 0.05, 6)}])
@pytest.mark.parametrize("around", [lambda sim: sim, lambda sim: Backlash(sim, gap=0.1)], ids=["bare", "backlash"])
@pytest.mark.parametrize("most", [mujoco_world.MAX_RECORDED, 1], ids=["whole", "split"])
def test_several_steps_in_one_call_are_single_steps_bit_for_bit(sim, around, settings, most, monkeypatch):
    monkeypatch.setattr(mujoco_world, "MAX_RECORDED", most)
    given, world = aligned(run(sim, 0, 20, 1.0), sim), around(sim.tuned(settings))
    rows = np.arange(6)
    state = world.place(given.q[rows], given.v[rows], 0.0, given.past[rows])
    actions = np.stack([given.action[rows + step] for step in range(12)])
    path = unroll(world, state, actions)
    for step, action in enumerate(actions):
        state = world.step(state, action)
        np.testing.assert_array_equal(path.q[:, step], state.q)
        np.testing.assert_array_equal(path.v[:, step], state.v)
    np.testing.assert_array_equal(path.state.hidden["mujoco"], state.hidden["mujoco"])
    after = [world.step(one, actions[0]).q for one in (path.state, state)]
    np.testing.assert_array_equal(*after)


def test_a_world_that_diverges_in_one_call_is_lost_where_single_steps_lose_it(sim, monkeypatch):
    given = aligned(run(sim, 0, 20, 1.0), sim)
    v = np.tile(given.v[0], (3, 1))
    v[1, 0] = 1e7
    q, past = np.tile(given.q[0], (3, 1)), np.tile(given.past[0], (3, 1, 1))
    actions = np.repeat(given.action[:15, None], 3, axis=1)
    together, single = (rollout_positions(w, w.place(q, v, 0.0, past), actions) for w in (sim, Stepped(sim)))
    assert unroll(sim, sim.place(q, v, 0.0, past), actions).survived[1] < 15
    assert np.isnan(together[1, -1]).all() and np.isfinite(together[[0, 2]]).all()
    np.testing.assert_array_equal(together, single)
    monkeypatch.setattr(mujoco_world, "MAX_RECORDED", 1)
    np.testing.assert_array_equal(rollout_positions(sim, sim.place(q, v, 0.0, past), actions), single)


def test_a_nudge_is_felt_for_one_step_only_so_it_is_stepped(sim):
    state = sim.place(*(np.tile(part, (2, 1)) for part in (sim.reset(0).q, sim.reset(0).v)))
    wrench = np.zeros((2, sim.model.nbody - 1, 6))
    assert unroll(sim, state, np.zeros((3, 2, sim.model.nu))) is not None
    assert unroll(sim, sim.nudge(state, wrench + 1.0), np.zeros((3, 2, sim.model.nu))) is None


def test_a_run_of_any_length_is_seen_by_its_watchers_and_not_kept(sim):
    seen: list[float] = []

    def count(state: State, observation: object, action: object) -> None:
        seen.append(float(state.t))

    policy = Script(sim.scene.rest_action()[None])
    assert run_policy(sim, policy, steps=5, watch=[count]) == "steps"
    assert np.array_equal(seen, rollout(sim, policy, steps=5).t)
    assert run_policy(sim, policy, steps=5, until=lambda state: bool(state.t > 0.0)) == "until"


def test_a_run_that_diverges_carries_its_last_states(sim):
    swing = sim.scene.rest_action() + np.linspace(0, 1.5, 400)[:, None] * np.eye(1, sim.spec.action.shape[0])
    with pytest.raises(Diverged) as error:
        run_policy(Exploding(sim), Script(swing), steps=400)
    assert error.value.record is not None
    assert 1 < len(error.value.record) <= MAX_RECORDED_STATES
    assert error.value.record.q[-1, 0] <= 0.3
