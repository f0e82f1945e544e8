"""Evaluation finds the success rates that were planted, and counts failures of the infrastructure separately."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from instep import BadInput, Box, LinkLost, MujocoWorld, Param
from instep.app.cluster import open_map
from instep.app.output import new_output
from instep.app.verbs.lab import run_adr
from instep.app.world_specs import world_from_eval_spec
from instep.core import counter_rng
from instep.core.world import Array, Channel, Observation, State, vector
from instep.evaluate.episode_batch import EpisodeResult, run_batch
from instep.evaluate.evaluation import (
    EvalBatch,
    EvalOptions,
    LostBatch,
    PolicySpec,
    WorldSpec,
    compare_policies,
    evaluate_policies,
)
from instep.policy.chunking import Latency
from instep.policy.policy_specs import FunctionPolicy, policy_from_spec
from instep.robot import Late
from instep.scene.folder import Scene
from instep.scene.tasks.locomotion_tasks import Course
from instep.scene.tasks.task import Tasked
from instep.tune.posterior.beliefs import load_belief

CART = """
<mujoco model="cart">
  <option timestep="0.01" gravity="0 0 0"/>
  <worldbody>
    <body name="cart">
      <joint name="x" type="slide" axis="1 0 0" damping="0.2"/>
      <geom type="sphere" size="0.1" mass="1"/>
    </body>
  </worldbody>
  <actuator><position name="x" joint="x" kp="40" kv="10"/></actuator>
  <keyframe><key name="home" qpos="0"/></keyframe>
</mujoco>
"""
SHOWN = vector(["target"], "m")


@dataclass(frozen=True)
class Go:
    """Bring the cart to a point between -1 and 1; beyond 3 it is lost."""

    name: str = "go"
    text: str = "Go to the point."
    seconds: float = 1.5
    dwell: float = 0.05
    events: tuple[str, ...] = ("near", "there")
    failures: tuple[str, ...] = ("ran away",)
    goal_channel: Channel = SHOWN

    def sample_goal(self, seed: int) -> Array:
        return 2 * counter_rng.uniform(counter_rng.key(seed, "go"), 1) - 1

    def observed_goal(self, state: State, goal: Array, reached: Array) -> Array:
        return np.array(goal)

    def conditions(self, state: State, goal: Array) -> Array:
        away = np.abs(state.q[..., 0] - goal[..., 0])
        return np.stack([away < 0.3, away < 0.05], axis=-1)

    def failed(self, state: State, goal: Array) -> Array:
        return (np.abs(state.q[..., 0]) > 3)[..., None]

    def score(self, state: State, goal: Array, reached: Array) -> Array:
        return np.clip(1 - np.abs(state.q[..., 0] - goal[..., 0]), 0, 1)


@pytest.fixture
def cart(tmp_path: Path) -> Path:
    path = tmp_path / "cart.xml"
    path.write_text(CART)
    return path


def goer(world: object) -> FunctionPolicy:
    """Goes to the point."""
    return FunctionPolicy(lambda seen: seen["observation.goal"])


def half(world: object) -> FunctionPolicy:
    """Goes to the point where that lies on the right, else stays."""
    return FunctionPolicy(lambda seen: np.where(seen["observation.goal"] > 0, seen["observation.goal"], 0.0))


def runaway(world: object) -> FunctionPolicy:
    """Runs away where the point lies far on the left."""
    return FunctionPolicy(lambda seen: np.where(seen["observation.goal"] < -0.5, -9.0, seen["observation.goal"]))


def place(path: Path) -> WorldSpec:
    return WorldSpec("mujoco", partial(MujocoWorld, path), str(path))


def targets(seeds: range) -> np.ndarray:
    return np.array([Go().sample_goal(seed)[0] for seed in seeds])


def test_a_planted_success_rate_is_found(cart):
    seeds = range(200)
    done = evaluate_policies([PolicySpec("half", half)], [place(cart)], Go(), seeds)
    expected = (targets(seeds) > -0.05).mean()
    rate = done.success("half", "mujoco")
    assert rate.value == pytest.approx(expected, abs=0.02)
    assert rate.low < rate.value < rate.high and rate.n == 200
    assert set(done.failures("half", "mujoco")) <= {"timeout", "timeout after 'near'"}


def test_ways_of_failing_are_told_apart(cart):
    seeds = range(60)
    done = evaluate_policies([PolicySpec("runaway", runaway)], [place(cart)], Go(), seeds)
    found = done.failures("runaway", "mujoco")
    assert sum(n for mode, n in found.items() if mode.startswith("ran away")) == int((targets(seeds) < -0.5).sum())


def test_an_episode_does_not_depend_on_the_others_in_its_batch(cart):
    one = evaluate_policies([PolicySpec("go", goer)], [place(cart)], Go(), range(12), options=EvalOptions(batch=12))
    other = evaluate_policies([PolicySpec("go", goer)], [place(cart)], Go(), range(12), options=EvalOptions(batch=5))
    assert [r.digest for r in one.results["go", "mujoco"]] == [r.digest for r in other.results["go", "mujoco"]]


def test_a_world_that_diverges_ends_its_own_episode_only(cart):
    def wild(seen: Observation) -> Array:
        return np.where(seen["observation.goal"] < -0.5, 9e9, seen["observation.goal"])

    cart.write_text(CART.replace('kp="40"', 'kp="4000"'))
    done = evaluate_policies([PolicySpec("wild", lambda w: FunctionPolicy(wild))], [place(cart)], Go(), range(40))
    outcomes = np.array([row.outcome for row in done.results["wild", "mujoco"]])
    far = targets(range(40)) < -0.5
    assert (outcomes[far] == "diverged").all()
    assert (outcomes[~far] == "success").all()


def test_an_evaluation_goes_on_where_it_was_stopped(cart, tmp_path):
    asked = ([PolicySpec("go", goer)], [place(cart)], Go(), range(40))
    whole = evaluate_policies(*asked, options=EvalOptions(batch=8))
    options = EvalOptions(batch=8, folder=tmp_path / "kept")
    ran: list[int] = []

    def stopping(function, jobs):
        for job in jobs:
            if len(ran) == 2:
                raise KeyboardInterrupt
            ran.append(job.seeds[0])
            yield function(job)

    with pytest.raises(KeyboardInterrupt):
        evaluate_policies(*asked, options=options, map=stopping)
    ran.clear()

    def counting(function, jobs):
        for job in jobs:
            ran.append(job.seeds[0])
            yield function(job)

    rest = evaluate_policies(*asked, options=options, map=counting)
    assert ran == [16, 24, 32], "two of five batches were done before"
    assert rest.results == whole.results


def test_results_of_another_content_are_not_reused(cart, tmp_path):
    options = EvalOptions(folder=tmp_path / "kept")
    evaluate_policies([PolicySpec("p", goer, "first")], [place(cart)], Go(), range(8), options=options)
    done = evaluate_policies([PolicySpec("p", half, "second")], [place(cart)], Go(), range(8), options=options)
    assert done.success("p", "mujoco").value < 1


def test_episodes_are_written_one_row_each(cart, tmp_path):
    import pyarrow.parquet as parquet

    done = evaluate_policies([PolicySpec("half", half)], [place(cart)], Go(), range(10))
    table = parquet.read_table(done.write_parquet(tmp_path / "episodes.parquet")).to_pydict()
    assert table["seed"] == list(range(10))
    assert table["success"] == [row.success for row in done.results["half", "mujoco"]]


DEADLY = """
import os
from pathlib import Path

import numpy as np

FLAG = Path({flag!r})


class Deadly:
    def reset(self, seed=0):
        if seed == 4 and ({always} or not FLAG.exists()):
            FLAG.touch()
            os._exit(9)

    def act(self, observation):
        return np.full(observation["observation.state"].shape, 0.1)


class DeadlyToAll(Deadly):
    def reset(self, seed=0):
        if seed == 4 and not FLAG.exists():
            os.kill(os.getppid(), 9)  # the server that workers are forked from
        super().reset(seed)


def ahead(observation):
    return np.full(observation["observation.state"].shape, 0.1)
"""


def course() -> tuple[WorldSpec, Course]:
    """Work that another process can import: a shipped scene, and a policy in a file."""
    task = replace(Course.of(Scene.load("diff_drive"), "course"), seconds=0.5)
    return WorldSpec("mujoco", partial(world_from_eval_spec, "mujoco", "diff_drive"), "diff_drive"), task


def in_file(folder: Path, name: str, *, always: bool = False) -> PolicySpec:
    file = folder / "policy.py"
    file.write_text(DEADLY.format(flag=str(folder / "flag"), always=always))
    return PolicySpec(name, partial(policy_from_spec, f"python:{file}:{name}"))


@pytest.mark.parametrize("on", ["processes:2", "threads:2"])
def test_processes_and_threads_give_what_this_process_gives_bit_by_bit(tmp_path, on):
    where, task = course()
    asked = ([in_file(tmp_path, "ahead")], [where], task, range(12))
    here = evaluate_policies(*asked, options=EvalOptions(batch=4))
    with open_map(on) as mapped:
        there = evaluate_policies(*asked, options=EvalOptions(batch=4), map=mapped)
    assert here.results == there.results
    assert all(row.digest for row in here.results["ahead", "mujoco"])


@pytest.mark.fault(44)
@pytest.mark.parametrize(("always", "broken"), [(False, 0), (True, 4)])
def test_a_worker_that_dies_once_loses_nothing_and_one_that_always_dies_is_the_machinery_s_failure(
    tmp_path, always, broken
):
    where, task = course()
    policy = in_file(tmp_path, "Deadly", always=always)
    with open_map("processes:1") as mapped:
        done = evaluate_policies([policy], [where], task, range(12), options=EvalOptions(batch=4), map=mapped)
    assert done.infrastructure_failures("Deadly", "mujoco") == broken
    assert done.success("Deadly", "mujoco").n == 12 - broken


@pytest.mark.fault(44)
def test_a_worker_that_hangs_is_ended_at_its_deadline(tmp_path):
    where, task = course()
    file = tmp_path / "slow.py"
    file.write_text("import time\n\n\ndef slow(observation):\n    time.sleep(60)\n")
    policy = PolicySpec("slow", partial(policy_from_spec, f"python:{file}:slow"))
    with open_map("processes:1", deadline=3.0) as mapped:
        done = evaluate_policies([policy], [where], task, [0, 1], map=mapped)
    assert done.infrastructure_failures("slow", "mujoco") == 2
    assert "did not answer within 3 s" in done.results["slow", "mujoco"][0].why


def test_threads_work_at_the_same_time_and_each_in_a_world_of_its_own(cart):
    both, worlds = threading.Barrier(2, timeout=30), dict[int, list[int]]()

    def make(world):
        both.wait()  # a thread that worked alone would wait here in vain
        worlds.setdefault(threading.get_ident(), []).append(id(world.world))
        return goer(world)

    with open_map("threads:2") as mapped:
        evaluate_policies(
            [PolicySpec("go", make)], [place(cart)], Go(), range(8), options=EvalOptions(batch=2), map=mapped
        )
    assert len(worlds) == 2 and not set.intersection(*(set(some) for some in worlds.values()))


def test_an_unknown_place_to_run_is_refused():
    for words in ("cloud", "processes:none", "processes:0", "threads:", "threads:0"):
        with pytest.raises(BadInput), open_map(words):
            pass


def test_infrastructure_failures_are_tried_again(cart, tmp_path):
    options = EvalOptions(folder=tmp_path / "kept")
    asked = ([PolicySpec("go", goer)], [place(cart)], Go(), range(8))
    broken = evaluate_policies(*asked, options=options, map=lambda function, jobs: iter([LostBatch("out of memory")]))
    assert broken.infrastructure_failures("go", "mujoco") == 8 and broken.success("go", "mujoco").n == 0
    assert evaluate_policies(*asked, options=options).success("go", "mujoco").n == 8


def test_a_policy_server_that_goes_away_is_an_infrastructure_failure(cart):
    def gone(seen: Observation) -> Array:
        raise LinkLost("The policy server stopped answering.")

    done = evaluate_policies([PolicySpec("gone", lambda w: FunctionPolicy(gone))], [place(cart)], Go(), range(4))
    assert done.infrastructure_failures("gone", "mujoco") == 4
    assert "stopped answering" in done.results["gone", "mujoco"][0].why


def test_latency_of_a_policy_equals_late_sensors(cart):
    world, go = MujocoWorld(cart), Go()
    late = run_batch(Tasked(Late(world, observation=3), go), FunctionPolicy(nervous), range(6))
    slow = run_batch(Tasked(world, go), Latency(FunctionPolicy(nervous), 3), range(6))
    quick = run_batch(Tasked(world, go), FunctionPolicy(nervous), range(6))
    assert [r.digest for r in slow.episodes] != [r.digest for r in quick.episodes]
    assert [r.digest for r in late.episodes] == [r.digest for r in slow.episodes]


def nervous(seen: Observation) -> Array:
    """Overdoes each correction, so that a delay makes it swing."""
    return seen["observation.state"] + 2.5 * (seen["observation.goal"] - seen["observation.state"])


def test_varied_params_are_drawn_per_seed_and_kept_with_the_episode(cart):
    belief = Box((Param("joint.x.damping", 0.1, 200.0, True),))
    done = evaluate_policies(
        [PolicySpec("go", goer)], [place(cart)], Go(), range(60), options=EvalOptions(randomize=belief, batch=16)
    )
    rows = done.results["go", "mujoco"]
    damping = np.array([row.settings["joint.x.damping"] for row in rows])
    assert 0.1 < damping.min() < 1 and 20 < damping.max() < 200
    success = np.array([row.success for row in rows])
    assert success[damping < 3].all() and not success[damping > 120].any()
    again = evaluate_policies([PolicySpec("go", goer)], [place(cart)], Go(), [7], options=EvalOptions(randomize=belief))
    assert again.results["go", "mujoco"][0].digest == rows[7].digest


def ended(successes: np.ndarray) -> list[EpisodeResult]:
    return [EpisodeResult(i, "success" if s else "timeout", "", 1, 1.0, 0.0) for i, s in enumerate(successes)]


def compared(rng, n: int, first: float, second: float, alike: float = 0.5):
    """Two policies of these success rates on the same n starts.

    An outcome is decided by the start alone in a share `alike` of the cases, so that pairs are correlated.
    """
    shared = rng.random(n)
    own = np.where(rng.random((2, n)) < alike, shared, rng.random((2, n)))
    return compare_policies(ended(own[0] < first), ended(own[1] < second))


def test_the_number_of_episodes_still_needed_gives_the_power_it_promises():
    rng = np.random.default_rng(0)
    a, b = 0.8, 0.65

    needed = np.median([compared(rng, 4000, a, b).needed for _ in range(5)])
    power = np.mean([compared(rng, int(needed), a, b).p < 0.05 for _ in range(400)])
    assert 0.74 < power < 0.9


def test_the_interval_of_a_paired_difference_covers_the_truth():
    rng = np.random.default_rng(1)
    hits = []
    for _ in range(600):
        difference = compared(rng, 80, 0.7, 0.55, alike=0.6).difference
        hits.append(difference.low <= 0.15 <= difference.high)
    assert 0.93 < np.mean(hits) < 0.98


def test_alike_policies_are_not_called_different():
    rng = np.random.default_rng(2)
    assert np.mean([compared(rng, 60, 0.6, 0.6).p < 0.05 for _ in range(500)]) < 0.06


def test_broken_episodes_are_left_out_of_both_sides_of_a_pair():
    first, second = ended(np.ones(10, bool)), ended(np.zeros(10, bool))
    second[:4] = [EpisodeResult(i, "infra", "", 0, 0.0, 0.0) for i in range(4)]
    assert compare_policies(first, second).difference.n == 6


def test_bad_questions_are_refused(cart):
    good = PolicySpec("go", goer)
    for policies, seeds, options, words in (
        ([], [0], EvalOptions(), "at least one policy"),
        ([good, good], [0], EvalOptions(), "both called 'go'"),
        ([good], [1, 1], EvalOptions(), "must differ"),
        ([good], [0], EvalOptions(batch=0), "at least one episode"),
        ([good], [0], EvalOptions(latency=-1), "control steps of at least 0"),
    ):
        with pytest.raises(BadInput, match=words):
            evaluate_policies(policies, [place(cart)], Go(), seeds, options=options)


def test_a_policy_that_raises_says_so_in_one_sentence(cart):
    def wrong(seen: Observation) -> Array:
        return seen["observation.images.top"]

    with pytest.raises(BadInput, match="wrong raised KeyError"):
        evaluate_policies([PolicySpec("wrong", lambda w: FunctionPolicy(wrong))], [place(cart)], Go(), range(3))


def test_speed_jumps_and_saturation_are_measured(cart):
    bounds = np.array([[-0.5], [0.5]])
    played = run_batch(Tasked(MujocoWorld(cart), Go()), goer(None), range(20), bounds=bounds)
    far = np.abs(targets(range(20))) > 0.5
    assert all((row.beyond == 1.0) == bool(f) for row, f in zip(played.episodes, far, strict=True))
    assert all(row.speed > 0 for row in played.episodes) and all(row.jump == 0 for row in played.episodes)


def test_adr_widens_a_range_until_the_policy_fails_and_writes_a_belief(cart, tmp_path):
    options = EvalOptions(batch=16)
    job = EvalBatch(PolicySpec("go", goer), place(cart), Go(), tuple(range(6)), options)
    output = new_output("eval", tmp_path / "out")
    assert run_adr(job, ["joint.x.damping=0.1..500"], Scene.load(cart), output) == 0
    (found,) = load_belief(output.folder).params
    assert found.low == pytest.approx(0.1) and 5 < found.high < 200
    done = evaluate_policies(
        [PolicySpec("go", goer)], [place(cart)], Go(), range(20), options=EvalOptions(randomize=Box((found,)))
    )
    assert done.success("go", "mujoco").value > 0.5


def test_a_shard_that_was_cut_off_is_run_again(cart, tmp_path):
    options = EvalOptions(folder=tmp_path / "kept")
    evaluate_policies([PolicySpec("go", goer)], [place(cart)], Go(), range(8), options=options)
    (shard,) = (tmp_path / "kept").glob("*.parquet")
    shard.write_bytes(shard.read_bytes()[:-40])
    ran: list[int] = []

    def counting(function, jobs):
        ran.extend(job.seeds[0] for job in jobs)
        return map(function, jobs)

    evaluate_policies([PolicySpec("go", goer)], [place(cart)], Go(), range(8), options=options, map=counting)
    assert ran == [0]


def test_evidence_against_equal_policies_grows_with_the_episodes():
    better, worse = np.ones(60, bool), np.arange(60) % 4 == 0
    assert compare_policies(ended(better), ended(worse)).evidence > 20
    assert compare_policies(ended(better), ended(better)).evidence == 1.0
