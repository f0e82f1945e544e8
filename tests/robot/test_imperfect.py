"""Imperfect sensors and motors do what their names say."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from instep import MujocoWorld, Script, replay, rollout
from instep.core.errors import BadInput, Diverged, UnknownName
from instep.core.world import Array, Observation, Spec, State, vector
from instep.robot import Backlash, Drifting, Dropping, Late, Noisy, Quantized, Saturated, Sluggish

JOINTS = ("a", "b")
SPEC = Spec(
    0.1, vector(JOINTS, "rad"), vector(JOINTS, "rad/s"), vector(JOINTS, "Nm"),
    {"observation.state": vector(JOINTS, "rad")},
)  # fmt: skip


@dataclass(frozen=True)
class Follower:
    """A world whose joints are where the last action put them: wrappers show without physics in between."""

    spec: Spec = SPEC

    def reset(self, seed: int = 0) -> State:
        return State(0.0, np.zeros(2), np.zeros(2))

    def step(self, state: State, action: Array) -> State:
        return State(state.t + 0.1, action.copy(), (action - state.q) / 0.1)

    def observe(self, state: State) -> Observation:
        return {"observation.state": state.q}


RAMP = np.stack([np.arange(1.0, 11.0), -np.arange(1.0, 11.0)], axis=1)


def run(world, actions=RAMP):
    return rollout(world, Script(actions), steps=len(actions))


def test_late_commands_arrive_as_many_steps_later():
    q = run(Late(Follower(), action=3)).q[:, 0]
    # Row 1 follows action 1; until the line is through, the first command is all that is known.
    assert q.tolist() == [0, 1, 1, 1, 1, 2, 3, 4, 5, 6]


def test_late_sensors_show_the_past_and_say_how_old_it_is():
    episode = run(Late(Follower(), observation=2))
    assert episode["observation.state"][:, 0].tolist() == [0, 0, 0, 1, 2, 3, 4, 5, 6, 7]
    assert episode["observation.state.stamp"][4:] == pytest.approx(episode.t[4:] - 0.2)


def test_noise_has_its_size_and_leaves_the_world_alone():
    world = Noisy(Follower(), 0.5)
    episode = rollout(world, Script(np.zeros((2000, 2))), steps=2000)
    assert episode["observation.state"].std() == pytest.approx(0.5, rel=0.05)
    assert not episode.q.any()
    other = rollout(world, Script(np.zeros((10, 2))), steps=10, seed=1)
    assert not np.array_equal(other["observation.state"], episode["observation.state"][:10])


def test_a_drifting_sensor_drifts_by_its_rate():
    episode = run(Drifting(Follower(), rate=2.0), np.zeros((11, 2)))
    assert episode["observation.state"][-1] == pytest.approx([2.0, 2.0])


def test_coarse_sensors_and_commands_are_rounded():
    episode = run(Quantized(Follower(), size=2.0, action_size=4.0), np.array([[1.0, 3.1], [5.9, 7.0]]))
    assert episode.q[1].tolist() == [0.0, 4.0]
    assert episode["observation.state"][1].tolist() == [0.0, 4.0]


def test_lost_commands_are_held_and_lost_observations_shown_again():
    episode = rollout(Dropping(Follower(), action=0.5, observation=0.5), Script(np.arange(400.0)[:, None].repeat(2, 1)), steps=400)  # fmt: skip  # noqa: E501
    held = np.diff(episode.q[:, 0]) == 0
    assert held.mean() == pytest.approx(0.5, abs=0.1)
    age = episode.t - episode["observation.state.stamp"]
    assert (age > 0.01).mean() == pytest.approx(0.5, abs=0.1) and age.min() >= 0


def test_a_sluggish_motor_covers_two_thirds_in_its_time_constant():
    step = np.vstack([np.zeros((1, 2)), np.ones((20, 2))])
    q = run(Sluggish(Follower(), tau=0.5), step).q[:, 0]
    # Row 2 is the first that the step has moved; five steps are one time constant.
    assert q[6] == pytest.approx(1 - np.exp(-1), abs=1e-9)


def test_backlash_swallows_a_reversal_as_wide_as_the_gap():
    there_and_back = np.concatenate([np.arange(0, 6.0), np.arange(4.0, -1, -1)])[:, None].repeat(2, 1)
    q = run(Backlash(Follower(), gap=2.0), there_and_back).q[1:, 0]
    assert q.tolist() == [0, 0, 1, 2, 3, 4, 4, 4, 3, 2]


def test_torque_fades_with_speed_and_is_whole_when_braking():
    world = Saturated(Follower(), torque=10.0, speed=20.0)
    fast = State(0.0, np.zeros(2), np.array([10.0, -10.0]))
    pushed = world.step(fast, np.array([50.0, 50.0]))
    assert pushed.q.tolist() == [5.0, 10.0]


def test_a_saturated_servo_asks_for_no_more_than_the_motor_gives():
    world = Saturated(Follower(), torque=(10.0, 20.0), stiffness=100.0)
    assert world.step(State(0.0, np.zeros(2), np.zeros(2)), np.ones(2)).q == pytest.approx([0.1, 0.2])


def test_wrappers_take_their_own_params_and_pass_the_others_on():
    world = Noisy(Sluggish(MujocoWorld("pusht"), 0.1), 0.0).tuned(
        {"sensor.noise": 0.5, "action.lag": 0.2, "body.tee.mass": 1.0}
    )
    assert world.sigma == 0.5 and world.world.tau == 0.2
    assert world.world.world.model.body("tee").mass[0] == 1.0


def test_a_replay_of_a_late_sluggish_world_needs_the_past_and_gets_it():
    sim = Late(Sluggish(MujocoWorld("pusht"), 0.08), action=3)
    wave = sim.world.world.scene.rest_action() + 0.05 * np.sin(np.arange(120) / 4)[:, None]
    recorded = rollout(sim, Script(wave), steps=120)
    # Without the past the lag would start anew at each anchor; 64 steps of it leave e^-13 of that.
    assert np.abs(replay(sim, recorded, anchor=10).q - recorded.q).max() < 1e-4


def test_a_negative_delay_is_refused():
    with pytest.raises(BadInput, match="at least 0"):
        Late(Follower(), action=-1)


def test_a_channel_that_is_not_there_is_named():
    with pytest.raises(UnknownName, match="observation"):
        Noisy(Follower(), 0.1, ("observation.stat",)).observe(Noisy(Follower(), 0.1).reset(0))


@dataclass(frozen=True)
class Fragile(Follower):
    """A follower whose second world diverges."""

    def step(self, state: State, action: Array) -> State:
        after = State(state.t + 0.1, action.copy(), action)
        raise Diverged("World 1 diverged.", (1,), after)


@pytest.mark.parametrize("wrapper", [Noisy, Drifting, Late, Dropping, Backlash, Sluggish])
def test_what_a_wrapper_remembers_survives_worlds_that_diverge(wrapper):
    world = wrapper(Fragile())
    state = world.begin(State(0.0, np.zeros((3, 2)), np.zeros((3, 2))), 0, None)
    with pytest.raises(Diverged) as error:
        world.step(state, np.ones((3, 2)))
    assert world.key in error.value.state.hidden
