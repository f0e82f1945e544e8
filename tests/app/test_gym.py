"""Every task as a Gymnasium environment: the checker passes, and vectors agree with single ones."""

from __future__ import annotations

import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

import instep.app.gym_envs
from instep import BadInput, UnknownName
from instep.scene.tasks import TASKS

IDS = [f"instep/{entry.title}-v0" for entry in TASKS.values()]


@pytest.mark.parametrize("identity", IDS)
def test_the_checker_of_gymnasium_passes(identity):
    env = gymnasium.make(identity)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # A taste, not a rule: actions here are positions and speeds in their own units.
        warnings.filterwarnings("ignore", message=".*recommend using a symmetric and normalized space.*")
        check_env(env.unwrapped, skip_render_check=True)
    env.close()
    env.close()


def test_the_checker_passes_with_images(opengl):
    env = gymnasium.make("instep/PushT-v0", render_mode="rgb_array", cameras=("cam_234222303707",))
    check_env(env.unwrapped)
    assert env.reset(seed=1)[0]["pixels"]["cam_234222303707"].shape == (270, 480, 3)
    assert env.render().dtype == np.uint8
    env.close()


def test_virtual_cameras_show_all_worlds_at_once(tmp_path):
    file = tmp_path / "cameras.toml"
    file.write_text(
        "[top]\nat = [0.46, 0.33, 0.75]\ntowards = [0.46, 0.33, 0.0]\nup = [0.0, 1.0, 0.0]\nsize = [32, 24]\n"
    )
    virtual = instep.app.gym_envs.VirtualCameras(file)
    envs = gymnasium.make_vec("instep/PushT-v0", 3, vectorization_mode="vector_entry_point", virtual=virtual)
    seen = envs.reset(seed=4)[0]["pixels"]["top"]
    one = gymnasium.make("instep/PushT-v0", virtual=virtual)
    np.testing.assert_array_equal(seen[1], one.reset(seed=5)[0]["pixels"]["top"])
    assert seen.shape == (3, 24, 32, 3) and not np.array_equal(seen[0], seen[1])
    envs.close()
    one.close()


@pytest.mark.parametrize("identity", IDS)
def test_a_random_policy_runs_in_every_task(identity):
    env = gymnasium.make(identity)
    env.action_space.seed(0)
    seen, info = env.reset(seed=3)
    assert env.observation_space.contains(seen) and info["is_success"] is False
    for _ in range(5):
        seen, reward, over, late, info = env.step(env.action_space.sample())
        assert env.observation_space.contains(seen)
        assert type(reward) is float and type(over) is bool and type(late) is bool and type(info["is_success"]) is bool
    env.close()


def test_lerobot_finds_what_its_evaluation_asks_for():
    env = gymnasium.make("instep/PushT-v0").unwrapped
    assert env.task == "pusht" and env.task_description == "Push the T block onto its outline."
    assert env._max_episode_steps == 1800 and env.metadata["render_fps"] == 60
    assert set(env.reset(seed=0)[0]) == {"agent_pos", "agent_vel", "environment_state"}


def test_observations_share_nothing_with_each_other():
    env = gymnasium.make("instep/Reach-v0")
    first, _ = env.reset(seed=0)
    kept = {k: v.copy() for k, v in first.items()}
    second = env.step(env.action_space.sample())[0]
    for name in first:
        assert not np.shares_memory(first[name], second[name])
        assert np.array_equal(first[name], kept[name])


def test_an_episode_that_takes_too_long_is_cut_off_and_one_that_succeeds_ends():
    env = gymnasium.make("instep/Reach-v0").unwrapped
    env._max_episode_steps = 3
    env.reset(seed=0)
    ends = [env.step(env.action_space.low * 0)[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]


def test_the_expert_earns_success_in_the_environment():
    from instep.policy.task_experts import expert_of

    env = gymnasium.make("instep/Reach-v0").unwrapped
    seen, _ = env.reset(seed=5)
    expert = expert_of(env._world.task, env._shown.scene)
    for _ in range(env._max_episode_steps):
        ours = {"observation.state": seen["agent_pos"], "observation.goal": seen["goal"]}
        seen, reward, over, _, info = env.step(expert.act(ours))
        if over:
            break
    assert info["is_success"] is True and reward > 0.9


def test_a_vector_gives_what_single_environments_give():
    envs = gymnasium.make_vec("instep/PushT-v0", num_envs=3, vectorization_mode="vector_entry_point")
    seen, _ = envs.reset(seed=10)
    singles = [gymnasium.make("instep/PushT-v0") for _ in range(3)]
    firsts = [env.reset(seed=10 + i)[0] for i, env in enumerate(singles)]
    for name in seen:
        assert np.array_equal(seen[name], np.stack([first[name] for first in firsts]))
    actions = np.stack([[0.3, 0.3], [0.4, 0.2], [0.2, 0.5]]).astype(np.float32)
    for _ in range(4):
        seen, reward, over, _, info = envs.step(actions)
        rows = [env.step(a) for env, a in zip(singles, actions, strict=True)]
        assert np.array_equal(seen["agent_pos"], np.stack([row[0]["agent_pos"] for row in rows]))
        assert reward.tolist() == [row[1] for row in rows] and over.tolist() == [row[2] for row in rows]
        assert info["is_success"].tolist() == [row[4]["is_success"] for row in rows]
    assert envs.observation_space.contains(seen)
    envs.close()


def vector(mode: str, limit: int = 3):
    envs = gymnasium.make_vec(
        "instep/Reach-v0",
        num_envs=2,
        vectorization_mode="vector_entry_point",
        autoreset_mode=mode,
    )
    envs.unwrapped._max_episode_steps = limit
    return envs.unwrapped


def test_worlds_begin_anew_one_step_later_by_default():
    envs = vector(AutoresetMode.NEXT_STEP)
    envs.reset(seed=0)
    still = np.zeros((2, 6), np.float32)
    ends = [envs.step(still) for _ in range(5)]
    assert [bool(end[3].all()) for end in ends] == [False, False, True, False, False]
    assert ends[3][1].tolist() == [0.0, 0.0], "the step in which a world begins anew earns nothing"
    assert not np.array_equal(ends[2][0]["goal"], ends[3][0]["goal"]), "a new episode has a new goal"


def test_single_worlds_begin_anew_by_mask():
    envs = vector(AutoresetMode.DISABLED, 50)
    first, _ = envs.reset(seed=0)
    envs.step(np.zeros((2, 6), np.float32))
    seen, _ = envs.reset(options={"reset_mask": np.array([False, True])})
    assert np.array_equal(seen["goal"][0], first["goal"][0]) and not np.array_equal(seen["goal"][1], first["goal"][1])
    assert envs._steps.tolist() == [1, 0]


def test_each_world_of_a_vector_has_its_own_time():
    envs = gymnasium.make_vec(
        "instep/Track-v0", num_envs=2, vectorization_mode="vector_entry_point",
        autoreset_mode=AutoresetMode.DISABLED,
    ).unwrapped  # fmt: skip
    envs.reset(seed=[4, 4])
    for _ in range(10):
        envs.step(np.zeros((2, 6), np.float32))
    envs.reset(seed=[None, 4], options={"reset_mask": np.array([False, True])})
    single = gymnasium.make("instep/Track-v0")
    start = single.reset(seed=4)[0]["goal"]
    assert np.array_equal(envs._seen()["goal"][1], start), "the target starts anew with its own world"
    assert not np.array_equal(envs._seen()["goal"][0], start)


def test_another_engine_can_be_asked_for():
    env = gymnasium.make("instep/Course-v0", engine="rapier")
    env.reset(seed=0)
    assert np.isfinite(env.step(np.array([0.1, 0.1], np.float32))[0]["environment_state"]).all()


def test_what_is_not_there_is_said():
    with pytest.raises(UnknownName, match="no camera named 'front'"):
        gymnasium.make("instep/PushT-v0", cameras=("front",))
    with pytest.raises(UnknownName, match="no task named 'dance'"):
        instep.app.gym_envs.InstepEnv("dance")
    with pytest.raises(BadInput, match="begins with reset"):
        instep.app.gym_envs.InstepEnv("reach").step(np.zeros(6, np.float32))
