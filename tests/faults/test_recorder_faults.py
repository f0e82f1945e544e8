"""What can befall a recording, each fault injected for real: killed processes, full disks, rotten bytes."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from instep.core.errors import BadInput
from instep.core.world import Channel, Spec, State, vector
from instep.data import Recorder, RecordOptions, finish_recording, load_episodes
from instep.data.journal import CRC, HEADER, scan
from instep.data.recovery import recover, recover_episode

pytestmark = pytest.mark.realtime

CAMERA = "observation.images.top"
KILLS = 50
SMALL = RecordOptions(queue_mb=4)


def spec_of(size: tuple[int, int] = (54, 96)) -> Spec:
    joint = vector(["joint"], "rad")
    return Spec(1 / 60, joint, joint, joint, {CAMERA: Channel((), "", (*size, 3), "uint8")})


def show(recorder: Recorder, row: int, size: tuple[int, int] = (54, 96)) -> None:
    """Row k holds the number k in every column, and an image that says it too."""
    image = np.full((*size, 3), row % 251, np.uint8)
    state = State(row / 60, np.array([float(row)]), np.array([-float(row)]))
    recorder(state, {CAMERA: image, "observation.state": state.q}, np.array([row * 0.5]))


def assert_rows_sound(episode, rows: int) -> None:
    assert len(episode) == rows
    k = episode.q[:, 0]
    assert (episode.v[:, 0] == -k).all() and (episode.action[:, 0] == 0.5 * k).all()
    assert (np.diff(k) > 0).all()
    for place in {0, rows // 2, rows - 1} if rows else ():
        assert (episode[CAMERA][place] == int(k[place]) % 251).all()


def record_for_ever(folder: Path, pipe: int) -> None:
    """Record episodes of forty rows, telling after each row how many have been acknowledged."""
    recorder = Recorder(folder, spec_of(), options=RecordOptions(queue_mb=8))
    os.write(pipe, b"pid %d\n" % recorder.writer_pid)
    row = 0
    while True:
        show(recorder, row)
        row += 1
        if row == 40:
            recorder.commit()
            row = 0
        os.write(pipe, b"%d\n" % recorder.status().written)
        time.sleep(0.001)


@pytest.mark.fault(34)
@pytest.mark.fault(37)
def test_fifty_kills_lose_no_written_row(tmp_path: Path):
    rng = np.random.default_rng(34)
    for kill in range(KILLS):
        folder = tmp_path / str(kill)
        acknowledged = _record_and_kill(folder, rng, which=("loop", "writer", "both")[kill % 3])
        begun = time.process_time()
        found = recover(folder)
        assert time.process_time() - begun < 1.0, "recovery takes less than a second of work"
        assert sum(len(one.episode) for one in found if one.episode is not None) >= acknowledged
        assert [one.index for one in found] == list(range(len(found))), "no index shifts"
        for one in found[:-1]:
            assert one.complete and one.episode is not None
            assert_rows_sound(one.episode, 40)
        if found and found[-1].episode is not None:
            assert_rows_sound(found[-1].episode, len(found[-1].episode))
        shutil.rmtree(folder)


def _record_and_kill(folder: Path, rng: np.random.Generator, which: str) -> int:
    """Record as fast as it goes, kill at a random moment, and return how many rows had been acknowledged."""
    reading, writing = os.pipe()
    # A fork shares what is loaded already, so that fifty processes start in seconds.
    loop = os.fork()
    if loop == 0:
        try:
            os.close(reading)
            record_for_ever(folder, writing)
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as lines:
        writer = int(lines.readline().split()[1])
        target, acknowledged = int(rng.integers(1, 150)), 0
        while acknowledged < target:
            acknowledged = int(lines.readline())
        if which in ("writer", "both"):
            os.kill(writer, signal.SIGKILL)
        if which == "writer":
            time.sleep(0.005)
        os.kill(loop, signal.SIGKILL)
        os.waitpid(loop, 0)
        rest = [int(line) for line in lines if line.endswith("\n")]
    _wait_until_gone(writer)
    return max([acknowledged, *rest])


def _wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            return
        if state == "Z":
            return
        time.sleep(0.002)
    raise AssertionError("the writing process did not end by itself")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small recording of two episodes of five rows, three KiB of journal each."""
    folder = tmp_path_factory.mktemp("recorded")
    with Recorder(folder, spec_of((8, 8)), options=RecordOptions(queue_mb=4, image_bytes=16)) as recorder:
        for _ in range(2):
            for row in range(5):
                show(recorder, row, (8, 8))
            recorder.commit(task="count")
    assert all(found.complete for found in recover(folder))
    return folder


@pytest.mark.fault(36)
@pytest.mark.parametrize("ending", ["rows", "images"])
def test_every_truncation_opens_and_is_named(recorded: Path, tmp_path: Path, ending: str):
    here, whole = _copy(recorded, tmp_path), (recorded / f"journal/000000.{ending}").read_bytes()
    for cut in range(0, len(whole), 1):
        (here / f"journal/000000.{ending}").write_bytes(whole[:cut])
        found = recover_episode(here / "journal", 0)
        assert not found.complete and found.losses, cut
        if found.episode is not None and len(found.episode):
            assert_rows_sound(found.episode, len(found.episode))


@pytest.mark.fault(36)
@pytest.mark.parametrize("ending", ["rows", "images"])
def test_every_bit_flip_opens_and_loses_only_the_damage(recorded: Path, tmp_path: Path, ending: str):
    here, whole = _copy(recorded, tmp_path), (recorded / f"journal/000000.{ending}").read_bytes()
    path = here / f"journal/000000.{ending}"
    for place in range(len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << (place * 5 % 8)
        path.write_bytes(flipped)
        found = recover_episode(here / "journal", 0)
        assert found.losses and not found.complete, place
        assert found.episode is not None and len(found.episode) >= 4, "one record at most is lost"
        assert_rows_sound(found.episode, len(found.episode))
    assert [one.index for one in recover(here)] == [0, 1]


@pytest.mark.fault(36)
def test_a_shard_that_vanishes_shifts_no_index(recorded: Path, tmp_path: Path):
    here = _copy(recorded, tmp_path)
    for ending in ("rows", "images"):
        (here / f"journal/000000.{ending}").unlink()
    first, second = recover(here)
    assert first.episode is None and "no description" in first.losses[-1].what
    assert second.index == 1 and second.complete
    finished = finish_recording(here)
    assert finished.episodes == 1 and "Episode 0:" in finished.losses[0]
    assert load_episodes(here)[0].meta["recorded"] == "1"


@pytest.mark.fault(37)
def test_an_episode_without_its_commit_is_not_complete(recorded: Path, tmp_path: Path):
    here = _copy(recorded, tmp_path)
    for ending in ("rows", "images"):
        path = here / f"journal/000001.{ending}"
        last = scan(path).records[-1]
        path.write_bytes(path.read_bytes()[: last.start - HEADER.size])
    found = recover(here)
    assert [one.complete for one in found] == [True, False] and [one.index for one in found] == [0, 1]
    finish_recording(here)
    assert [episode.meta["complete"] for episode in load_episodes(here)] == ["yes", "no"]
    assert len(load_episodes(here)) == 2, "two episodes stay two"


@pytest.mark.fault(35)
def test_power_loss_takes_nothing_that_was_synced(recorded: Path, tmp_path: Path):
    """After the last sync each sector of 512 bytes is kept, dropped or torn at random."""
    rng = np.random.default_rng(35)
    here = _copy(recorded, tmp_path)
    path = here / "journal/000000.rows"
    whole = path.read_bytes()
    ends = [record.start + record.length + CRC.size for record in scan(path).records]
    for _ in range(400):
        synced = int(rng.choice(ends))
        rows_synced = sum(r.kind == 2 and r.start < synced for r in scan(recorded / "journal/000000.rows").records)
        store = bytearray(whole[: int(rng.integers(synced, len(whole) + 1))])
        for start in range(synced, len(store), 512):
            fate = rng.integers(3)
            if fate == 1:
                store[start : start + 512] = bytes(len(store[start : start + 512]))
            elif fate == 2:
                torn = int(rng.integers(512))
                store[start + torn : start + 512] = bytes(len(store[start + torn : start + 512]))
        path.write_bytes(store)
        found = recover_episode(here / "journal", 0)
        assert found.episode is not None or synced == 0
        if found.episode is not None:
            assert len(found.episode) >= rows_synced
            assert_rows_sound(found.episode, len(found.episode))


@pytest.mark.fault(33)
def test_a_full_disk_leaves_a_readable_recording_and_an_untouched_loop(tmp_path: Path):
    recorder = Recorder(tmp_path, spec_of(), options=SMALL)
    for row in range(30):
        show(recorder, row)
    recorder.flush()
    # No file of the writing process may grow any further: what a full disk does, without needing one.
    resource.prlimit(recorder.writer_pid, resource.RLIMIT_FSIZE, (1000, 1000))
    slowest = 0.0
    for row in range(30, 200):
        begun = time.perf_counter()
        show(recorder, row)
        slowest = max(slowest, time.perf_counter() - begun)
    status = recorder.stop()
    assert slowest < 0.25, "the loop does not wait for the disk"
    assert "EFBIG" in status.error or "File too large" in status.error
    assert status.dropped == 200 - status.written and status.written >= 30, "every row is written or counted"
    (found,) = recover(tmp_path)
    assert not found.complete and found.episode is not None
    assert_rows_sound(found.episode, len(found.episode))
    assert len(found.episode) >= 30
    assert len(load_episodes(tmp_path)[0]) == len(found.episode)


@pytest.mark.fault(33)
def test_a_slow_disk_drops_rows_with_a_gap_record_and_never_stalls(tmp_path: Path):
    recorder = Recorder(tmp_path, spec_of((540, 960)), options=SMALL)
    for row in range(3):
        show(recorder, row, (540, 960))
        recorder.flush()
    os.kill(recorder.writer_pid, signal.SIGSTOP)
    try:
        slowest = 0.0
        for row in range(3, 23):
            begun = time.perf_counter()
            show(recorder, row, (540, 960))
            slowest = max(slowest, time.perf_counter() - begun)
    finally:
        os.kill(recorder.writer_pid, signal.SIGCONT)
    recorder.flush()
    show(recorder, 23, (540, 960))
    recorder.commit()
    status = recorder.stop()
    assert slowest < 0.25 and status.dropped > 10 and status.error == ""
    (found,) = recover(tmp_path)
    assert found.episode is not None and len(found.episode) == 24 - status.dropped
    assert sum(loss.rows for loss in found.losses) == status.dropped
    assert "the queue was full" in found.losses[0].what and found.episode.q[-1, 0] == 23
    assert set(np.diff(found.episode.q[:, 0])) == {1.0, 1.0 + status.dropped}, "the hole is where the rows are missing"


@pytest.mark.fault(38)
def test_video_and_table_that_disagree_are_named(recorded: Path, tmp_path: Path):
    here = _copy(recorded, tmp_path)
    finish_recording(here)
    from instep.data.video import VideoWriter

    path = next((here / "videos").rglob("*.mp4"))
    with VideoWriter(path, 60) as writer:
        for _ in range(3):
            writer.add(np.zeros((8, 8, 3), np.uint8))
    with pytest.raises(BadInput, match="the video and its table disagree"):
        load_episodes(here)[1]


@pytest.mark.fault(43)
def test_a_scene_that_changed_on_disk_refuses_to_go_on(tmp_path: Path):
    scene = tmp_path / "scene.xml"
    scene.write_text("<mujoco/>")
    with Recorder(tmp_path / "set", spec_of(), assets=[scene], options=SMALL) as recorder:
        show(recorder, 0)
    finish_recording(tmp_path / "set")
    Recorder(tmp_path / "set", spec_of(), assets=[scene], options=SMALL).stop()
    scene.write_text("<mujoco model='other'/>")
    with pytest.raises(BadInput, match=r"'scene.xml' has changed since the last episode"):
        Recorder(tmp_path / "set", spec_of(), assets=[scene], options=SMALL)


@pytest.mark.fault(6)
def test_a_wall_clock_that_jumps_is_written_down_and_moves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with Recorder(tmp_path, spec_of(), options=SMALL) as recorder:
        show(recorder, 0)
        now = time.time_ns
        monkeypatch.setattr("instep.data.recorder.time.time_ns", lambda: now() + 3_600_000_000_000)
        show(recorder, 1)
        show(recorder, 2)
    (found,) = recover(tmp_path)
    assert found.complete and found.episode is not None
    where, _, jump = found.episode.meta["clock.jumps"].partition(": ")
    assert where == "row 1" and float(jump.split()[0]) == pytest.approx(3600, abs=0.01)
    assert (np.diff(found.episode["clock.monotonic"]) < 10).all()
    assert np.allclose(found.episode.t, np.arange(3) / 60), "the times of rows do not come from a clock that jumps"


def _copy(recorded: Path, tmp_path: Path) -> Path:
    shutil.copytree(recorded, tmp_path / "copy")
    return tmp_path / "copy"
