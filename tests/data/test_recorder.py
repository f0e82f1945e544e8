from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from instep.core.errors import BadInput, Unsupported
from instep.core.rollout import Constant, rollout
from instep.core.world import Array, Channel, Observation, Spec, State, vector
from instep.data import Recorder, RecordOptions, load_episodes, recover
from instep.data.recovery import finish_recording, record_episodes

pytestmark = pytest.mark.realtime

CAMERA = "observation.images.top"
SMALL = RecordOptions(queue_mb=4)


class Slider:
    """A mass that moves by its action, seen by a camera at half the rate of the loop."""

    def __init__(self, rate: float = 100.0):
        observation = {"observation.state": vector(["x"], "m"), CAMERA: Channel((), "", (40, 60, 3), "uint8")}
        self.spec = Spec(1 / rate, vector(["x"], "m"), vector(["x"], "m/s"), vector(["x"], "m/s"), observation)

    def reset(self, seed: int = 0) -> State:
        return State(0.0, np.array([float(seed)]), np.zeros(1))

    def step(self, state: State, action: Array) -> State:
        return State(state.t + self.spec.dt, state.q + action * self.spec.dt, action)

    def observe(self, state: State) -> Observation:
        number = round(state.t / self.spec.dt) // 2
        image = np.full((40, 60, 3), number % 256, np.uint8)
        return {"observation.state": state.q, CAMERA: image, f"{CAMERA}.stamp": np.float64(number * 2 * self.spec.dt)}


def assert_equal_to(given, read) -> None:
    for name in ("q", "v", "action", "observation.state", f"{CAMERA}.stamp", "timestamp"):
        np.testing.assert_array_equal(np.squeeze(given[name]), np.squeeze(read[name]), err_msg=name)


def test_a_recorded_run_is_read_back_equal(tmp_path: Path):
    world, policy = Slider(), Constant(np.array([0.3]))
    with Recorder(tmp_path / "set", world.spec, meta={"task": "slide"}, options=SMALL) as recorder:
        runs = []
        for seed in range(3):
            runs.append(rollout(world, policy, steps=40, seed=seed, watch=[recorder]))
            recorder.commit(seed=str(seed))
    status = recorder.status()
    assert (status.seen, status.written, status.synced, status.dropped, status.episodes) == (120, 120, 120, 0, 3)
    before = load_episodes(tmp_path / "set")
    for given, read in zip(runs, before, strict=True):
        assert_equal_to(given, read)
        np.testing.assert_array_equal(np.asarray(read[CAMERA]), given[CAMERA], "images in a journal are exact")
    finished = finish_recording(tmp_path / "set")
    assert finished.episodes == 3 and finished.rows == 120 and finished.losses == ()
    assert not (tmp_path / "set/journal").exists()
    for seed, (given, read) in enumerate(zip(runs, load_episodes(tmp_path / "set"), strict=True)):
        assert_equal_to(given, read)
        assert read.meta["task"] == "slide" and read.meta["seed"] == str(seed) and read.meta["complete"] == "yes"
        assert np.abs(np.asarray(read[CAMERA]).astype(int) - given[CAMERA]).mean() < 4
        assert (np.diff(read["clock.monotonic"]) > 0).all() and abs(read["clock.wall"][0] - time.time()) < 600


def test_a_camera_slower_than_the_loop_is_stored_once_per_image(tmp_path: Path):
    world = Slider()
    with Recorder(tmp_path, world.spec, options=SMALL) as recorder:
        rollout(world, Constant(np.zeros(1)), steps=40, watch=[recorder])
    manifest = json.loads((tmp_path / "journal/000000.json").read_text())
    assert manifest["commit"]["written"] == {"rows": 40, "images": 20, "gaps": 0}
    (found,) = recover(tmp_path)
    assert found.episode is not None and len(found.episode[CAMERA]) == 40


def test_the_verb_records_one_episode_per_seed_and_appends(tmp_path: Path):
    world = Slider()
    for first in (0, 2):
        recorder = Recorder(tmp_path, world.spec, options=SMALL)
        seeds = [first, first + 1]
        finished = record_episodes(world, Constant(np.zeros(1)), recorder, seeds=seeds, steps=10)
        assert finished.episodes == 2 and finished.status is not None and finished.status.dropped == 0
    assert [episode.meta["seed"] for episode in load_episodes(tmp_path)] == ["0", "1", "2", "3"]
    assert [episode.meta["recorded"] for episode in load_episodes(tmp_path)] == ["0", "1", "2", "3"]


def test_time_that_starts_again_begins_a_new_episode(tmp_path: Path):
    world = Slider()
    with Recorder(tmp_path, world.spec, options=SMALL) as recorder:
        for seed in range(2):
            rollout(world, Constant(np.zeros(1)), steps=5, seed=seed, watch=[recorder])
    first, second = recover(tmp_path)
    assert first.complete and second.complete
    assert first.episode is not None and first.episode.meta["ended"] == "reset"


def test_an_episode_cut_off_by_an_error_is_kept_but_not_called_complete(tmp_path: Path):
    world = Slider()
    with pytest.raises(ZeroDivisionError), Recorder(tmp_path, world.spec, options=SMALL) as recorder:
        rollout(world, Constant(np.zeros(1)), steps=7, watch=[recorder])
        raise ZeroDivisionError
    (found,) = recover(tmp_path)
    assert not found.complete and found.episode is not None and len(found.episode) == 7
    assert "not committed" in found.losses[0].what


def test_a_row_that_does_not_fit_is_dropped_and_named(tmp_path: Path):
    world = Slider()
    with Recorder(tmp_path, world.spec, options=SMALL) as recorder:
        for k in range(10):
            state = State(k / 100, np.zeros(1), np.zeros(1))
            seen = dict(world.observe(state))
            if k == 4:
                seen[CAMERA] = np.zeros((20, 60, 3), np.uint8)
            if k == 6:
                del seen["observation.state"]
            recorder(state, seen, np.zeros(1))
    (found,) = recover(tmp_path)
    assert recorder.status().dropped == 1 and found.episode is not None and len(found.episode) == 9
    assert "rows 4 to 4 were dropped" in found.losses[0].what and "(20, 60, 3)" in found.losses[0].what
    assert np.isnan(found.episode["observation.state"][5]).all() and "observation.state" in found.episode.meta["absent"]


def test_a_batch_is_refused_in_one_sentence(tmp_path: Path):
    world = Slider()
    recorder = Recorder(tmp_path, world.spec, options=SMALL)
    with pytest.raises(Unsupported, match="watches one world"):
        recorder(State(0.0, np.zeros((2, 1)), np.zeros((2, 1))), {}, np.zeros((2, 1)))
    recorder.stop()


@pytest.mark.parametrize("kind", ["reused", "view of reused", "lasting", "reversed"])
def test_images_are_recorded_as_they_were_shown_whoever_owns_them(tmp_path: Path, kind: str):
    """A driver fills one buffer again and again; other sources never write to an image again."""
    world = Slider()
    buffer = np.zeros((40, 60, 3), np.uint8)
    with Recorder(tmp_path / "set", world.spec, options=SMALL) as recorder:
        for k in range(60):
            buffer[:] = 0
            buffer[:20] = k
            given = {
                "reused": buffer, "view of reused": buffer.view(), "lasting": buffer.copy(), "reversed": buffer[::-1],
            }  # fmt: skip
            image = given[kind]
            image.flags.writeable = kind == "reused"
            seen = {CAMERA: image, "observation.state": np.zeros(1)}
            recorder(State(k * 0.01, np.zeros(1), np.zeros(1)), seen, np.zeros(1))
            buffer[:] = 255
    (episode,) = load_episodes(tmp_path / "set")
    row = 30 if kind == "reversed" else 10
    assert recorder.status().dropped == 0
    np.testing.assert_array_equal(np.asarray(episode[CAMERA])[:, row, 0, 0], np.arange(60))


def test_what_was_shown_survives_a_process_that_ends_without_closing(tmp_path: Path):
    program = f"""
import numpy as np
from pathlib import Path
from instep.core.world import Channel, Spec, State, vector
from instep.data import Recorder
spec = Spec(0.01, vector(["x"]), vector(["x"]), vector(["x"]), {{"{CAMERA}": Channel((), "", (40, 60, 3), "uint8")}})
recorder = Recorder(Path({str(tmp_path / "set")!r}), spec)
for k in range(50):
    image = np.full((40, 60, 3), k, np.uint8)
    image.flags.writeable = False
    recorder(State(k * 0.01, np.zeros(1), np.zeros(1)), {{"{CAMERA}": image}}, np.zeros(1))
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    kept, deadline = 0, time.monotonic() + 10
    while kept < 50 and time.monotonic() < deadline:
        time.sleep(0.05)  # the writing process ends on its own
        kept = sum(len(one.episode) for one in recover(tmp_path / "set") if one.episode is not None)
    assert kept == 50


def test_a_second_writer_is_refused_while_the_first_records(tmp_path: Path):
    spec = Slider().spec
    first = Recorder(tmp_path / "set", spec, options=SMALL)
    with pytest.raises(BadInput, match="Another process is recording into"):
        Recorder(tmp_path / "set", spec, options=SMALL)
    first.stop()
    Recorder(tmp_path / "set", spec, options=SMALL).stop()
