"""Evaluation on a Ray cluster of two nodes gives what this process gives, and a worker that is killed loses nothing."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from instep import BadInput
from instep.app.cluster import ray_map, spread
from instep.app.virtual import open_place, open_words
from instep.gap.evaluate import Candidate, EvalOptions, Lost, Place, evaluate
from instep.scene.folder import Scene
from instep.scene.tasks.course import Course

POLICY = """
import os
from pathlib import Path

import numpy as np

FLAG = Path({flag!r})


class Deadly:
    def reset(self, seed=0):
        if seed == 4 and not FLAG.exists():
            FLAG.touch()
            os.kill(os.getpid(), 9)

    def act(self, observation):
        return np.full(observation["observation.state"].shape, 0.1)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes on this machine, each with a raylet and workers of its own."""
    ray = pytest.importorskip("ray", reason="Ray is not installed; pip install 'instep[cluster]'")
    from ray.cluster_utils import Cluster

    if ray.is_initialized():
        pytest.skip("Ray is already running in this process")
    two = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    two.add_node(num_cpus=1)
    ray.init(address=two.address, log_to_driver=False, logging_level=logging.ERROR)
    try:
        two.wait_for_nodes()
        yield ray
    finally:
        ray.shutdown()
        two.shutdown()


def asked(folder: Path) -> tuple[Any, ...]:
    """Work that another process can import: a shipped scene, and a policy in a file that kills its first worker."""
    task = replace(Course.of(Scene.load("diff_drive"), "course"), seconds=0.5)
    file = folder / "policy.py"
    file.write_text(POLICY.format(flag=str(folder / "flag")))
    policy = Candidate("Deadly", partial(open_words, f"python:{file}:Deadly"))
    return [policy], [Place("mujoco", partial(open_place, "mujoco", "diff_drive"), "diff_drive")], task, range(12)


@pytest.mark.fault(44)
def test_two_nodes_give_what_this_process_gives_bit_by_bit_though_a_worker_is_killed(cluster, tmp_path):
    with spread("ray") as mapped:
        there = evaluate(*asked(tmp_path), options=EvalOptions(batch=4), map=mapped)
    assert (tmp_path / "flag").exists(), "a worker was killed on the way"
    here = evaluate(*asked(tmp_path), options=EvalOptions(batch=4))
    assert there.results == here.results
    assert there.broken("Deadly", "mujoco") == 0
    assert all(row.digest for row in there.results["Deadly", "mujoco"])


def test_both_nodes_work_and_results_come_in_order(cluster):
    def node_of(item: int) -> tuple[int, str]:
        time.sleep(0.3)  # long enough that one node alone would be slower than two
        return item, str(cluster.get_runtime_context().get_node_id())

    done = list(ray_map(node_of, range(8)))
    assert [item for item, _ in done] == list(range(8))
    assert len({node for _, node in done}) == 2


def test_what_a_user_can_mend_is_said_as_it_is(cluster):
    def refuse(item: int) -> int:
        raise BadInput(f"{item} is not allowed.")

    with pytest.raises(BadInput, match="7 is not allowed"):
        list(ray_map(refuse, [7]))


@pytest.mark.fault(44)
def test_work_that_kills_every_worker_is_lost_and_the_rest_is_not(cluster):
    def die(item: int) -> int:
        if item == 1:
            os.kill(os.getpid(), 9)
        return item

    first, second, third = ray_map(die, [0, 1, 2])
    assert (first, third) == (0, 2)
    assert isinstance(second, Lost)


def test_an_address_that_is_none_is_refused():
    for words in ("ray:", "ray://", "rays"):
        with pytest.raises(BadInput), spread(words):
            pass
