"""Evaluation on a Ray cluster of two nodes gives what this process gives, and a worker that is killed loses nothing."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from instep import BadInput
from instep.app.cluster import open_map, ray_map
from instep.app.world_specs import world_from_eval_spec
from instep.evaluate.evaluation import EvalOptions, LostBatch, PolicySpec, WorldSpec, evaluate_policies
from instep.policy.policy_specs import policy_from_spec
from instep.scene.folder import Scene
from instep.scene.tasks.locomotion_tasks import Course

pytestmark = pytest.mark.realtime

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
def cluster(ray) -> Iterator[Any]:
    """Two nodes on this machine, each with a raylet and workers of its own."""
    from ray.cluster_utils import Cluster

    assert not ray.is_initialized()
    # Ray believes in as many GPUs as it is told; nothing here uses them.
    two = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 1, "include_dashboard": False})
    two.add_node(num_cpus=1, num_gpus=1)
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
    policy = PolicySpec("Deadly", partial(policy_from_spec, f"python:{file}:Deadly"))
    return (
        [policy],
        [WorldSpec("mujoco", partial(world_from_eval_spec, "mujoco", "diff_drive"), "diff_drive")],
        task,
        range(12),
    )


@pytest.mark.fault(44)
def test_two_nodes_give_what_this_process_gives_bit_by_bit_though_a_worker_is_killed(cluster, tmp_path):
    with open_map("ray") as mapped:
        there = evaluate_policies(*asked(tmp_path), options=EvalOptions(batch=4), map=mapped)
    assert (tmp_path / "flag").exists(), "a worker was killed on the way"
    here = evaluate_policies(*asked(tmp_path), options=EvalOptions(batch=4))
    assert there.results == here.results
    assert there.infrastructure_failures("Deadly", "mujoco") == 0
    assert all(row.digest for row in there.results["Deadly", "mujoco"])


def test_both_nodes_work_and_results_come_in_order(cluster, tmp_path):
    def node_of(item: int) -> tuple[int, str]:
        node = str(cluster.get_runtime_context().get_node_id())
        (tmp_path / node).touch()
        deadline = time.monotonic() + 60
        while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)  # however slow the other node is to start, it gets some of the work
        return item, node

    done = list(ray_map(node_of, range(8)))
    assert [item for item, _ in done] == list(range(8))
    assert len({node for _, node in done}) == 2


def test_work_sees_a_gpu_where_it_asks_for_one_and_none_where_it_does_not(cluster):
    def visible(item: int) -> str:
        return os.environ.get("CUDA_VISIBLE_DEVICES", "all")

    with open_map("ray", gpu=True) as mapped:
        assert set(mapped(visible, range(6))) == {"0"}
    with open_map("ray") as mapped:
        assert "0" not in set(mapped(visible, range(2)))


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
    assert isinstance(second, LostBatch)


def test_an_address_that_is_none_is_refused():
    for words in ("ray:", "ray://", "rays"):
        with pytest.raises(BadInput), open_map(words):
            pass


@pytest.fixture(scope="module")
def head(ray) -> Iterator[tuple[str, dict[str, str]]]:
    """The address of a cluster that was started as its users start one, and what a client's environment must hold."""
    program = Path(sys.executable).with_name("ray")
    ports = [free_port() for _ in range(2)]
    env = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    env["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # with it the processes that Ray's proxy forks die at once (grpcio 1.85)
    words = [f"--port={ports[0]}", f"--ray-client-server-port={ports[1]}", "--num-cpus=1", "--include-dashboard=false"]
    with tempfile.TemporaryDirectory(prefix="r") as folder:  # Ray's sockets need a short path
        running = subprocess.Popen(
            [program, "start", "--head", *words, "--disable-usage-stats", f"--temp-dir={folder}", "--block"],
            env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            assert running.stdout is not None
            assert any("Ray runtime started" in line for line in running.stdout), "ray start ended without a cluster"
            yield f"ray://127.0.0.1:{ports[1]}", env
        finally:
            os.killpg(running.pid, signal.SIGTERM)
            try:
                running.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                os.killpg(running.pid, signal.SIGKILL)
                running.communicate()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.mark.slow
def test_a_cluster_at_an_address_gives_what_this_machine_gives(head, tmp_path):
    address, env = head
    file = tmp_path / "mine.py"
    file.write_text("def ahead(seen):\n    return 0.1 + 0 * seen['observation.state']\n")
    digests = []
    for where, on in (("here", []), ("there", ["--on", address])):
        words = ["eval", f"python:{file}:ahead", "diff_drive", "--seeds", "6", "--batch", "3", "--videos", "0", *on]
        program = (
            f"from instep.app.cli import main; raise SystemExit(main({[*words, '--out', str(tmp_path / where)]!r}))"
        )
        done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        table = pq.read_table(tmp_path / where / "episodes.parquet")
        digests.append(dict(zip(table["seed"].to_pylist(), table["digest"].to_pylist(), strict=True)))
    assert digests[0] == digests[1] and len(digests[0]) == 6 and all(digests[0].values())
