"""Every set of real recordings opens by its folder's name, with the labels of its scene."""

from __future__ import annotations

import json
from pathlib import Path

import mujoco
import numpy as np
import pytest

import instep
from instep.data import load_episodes, write_dataset
from instep.data.lerobot.reader import read_lerobot

LIBRARY = Path(instep.__file__).parent / "scene" / "library"
SETS = {
    # set: (episodes, rows, rows per second of the first)
    "so101": (35, 156_307, 49.85),
    "quanser_wam/furuta": (25, 41_275, 250.0),
    "quanser_wam/cartpole": (10, 15_625, 250.0),
    "quanser_wam/wam7": (5, 50_005, 500.0),
    "double_pendulum": (68, 261_633, 500.0),
    "cube_toss": (342, 35_804, 148.0),
    "xl330": (9, 10_800, 200.0),
    "simple_pendulum": (10, 70_340, 499.9),
    "kuka_lwr4": (2, 10_054, 200.0),
    "tx40": (1, 25_000, 5000.0),
    "ibm_double_pendulum": (14, 250_625, 400.0),
    "diff_drive": (1, 1_787, 60.0),
    "pusht": (1, 499, 54.9),
    "pose_streams": (6, 17_952, 29.97),
    "g1_lerobot": (70, 25_852, 30.0),
}
WITHOUT_SCENE = ("simple_pendulum", "kuka_lwr4", "tx40", "pose_streams", "g1_lerobot", "pusht")


@pytest.mark.parametrize("name", SETS)
def test_a_set_opens_by_its_folder_s_name(recordings: Path, name: str):
    episodes = load_episodes(recordings / name)
    count, rows, rate = SETS[name]
    assert len(episodes) == count and sum(len(episode) for episode in episodes) == rows
    assert 1 / episodes[0].spec.dt == pytest.approx(rate, rel=1e-3)
    for episode in episodes:
        assert (np.diff(episode.t) > -1e-9).all() and episode.t[0] == 0.0
        assert np.isfinite(episode.q).all() and np.isfinite(episode.action).all()
        assert episode.q.shape[1] == len(episode.spec.q.labels)


@pytest.mark.parametrize("name", [n for n in SETS if n not in WITHOUT_SCENE])
def test_labels_are_those_of_the_scene(recordings: Path, name: str):
    episode = load_episodes(recordings / name)[0]
    model = mujoco.MjModel.from_xml_path(str(LIBRARY / episode.meta["scene"] / "scene.xml"))
    joints = {model.joint(j).name for j in range(model.njnt)}
    motors = {model.actuator(k).name for k in range(model.nu)}
    assert {label.split(".")[0] for label in episode.spec.q.labels} <= joints
    assert {label.split(".")[0] for label in episode.spec.v.labels} <= joints
    assert set(episode.spec.action.labels) == motors


def test_another_folder_of_the_same_layout_opens_as_that_set(recordings: Path, tmp_path: Path):
    (tmp_path / "monday").symlink_to(recordings / "so101")
    assert len(load_episodes(tmp_path / "monday", "so101")) == 35


def test_the_gripper_is_an_angle_of_the_scene(recordings: Path):
    model = mujoco.MjModel.from_xml_path(str(LIBRARY / "so101" / "scene.xml"))
    low, high = model.joint("gripper").range
    for episode in load_episodes(recordings / "so101"):
        assert low - 0.02 <= episode.q[:, 5].min() and episode.q[:, 5].max() <= high + 0.02


def test_derived_velocity_leads_the_late_register(recordings: Path):
    run = load_episodes(recordings / "so101")[3]
    own, register = run.v[:, 1], run["observation.velocity"][:, 1]
    lags = [np.corrcoef(own[10:-10], np.roll(register, -k)[10:-10])[0, 1] for k in range(4)]
    assert int(np.argmax(lags)) == 1, "the register is one row late"


def test_repeats_share_their_input(recordings: Path):
    chirps = [e for e in load_episodes(recordings / "quanser_wam/furuta") if "chrip" in e.meta["group"]]
    assert [e.meta["repeat"] for e in chirps] == list("01234")
    q = np.stack([e.q for e in chirps])
    assert np.allclose(np.stack([e.action for e in chirps])[:, :2000].std(axis=0), 0, atol=1e-3)
    assert q.std(axis=0).mean() < 0.01, "the noise floor of the repeats"


def test_the_free_cube_falls_with_gravity(recordings: Path):
    tosses = load_episodes(recordings / "cube_toss")[:40]
    flights = [np.polyfit(toss.t[:8], toss.v[:8, 2], 1)[0] for toss in tosses]
    assert np.median(flights) == pytest.approx(-9.81, abs=0.5)


def test_three_cameras_are_paired_by_time(recordings: Path):
    (episode,) = load_episodes(recordings / "pusht")
    for name in [n for n in episode.columns if n.endswith(".stamp")]:
        age = episode.t + float(episode.meta["start"]) - episode[name]
        assert age.min() > -1e-6 and np.median(age) < 0.02, "the newest frame that was there, never a later one"
    image = episode["observation.images.cam_234222302164"][100]
    assert image.shape == (270, 480, 3) and 5 < image.mean() < 250
    camera = json.loads(episode.meta["camera.cam_220422302296"])
    assert np.shape(camera["K"]) == (3, 3) and np.shape(camera["world_from_camera"]) == (4, 4)


def test_g1_matches_its_metadata_and_survives_version_3_and_back(recordings: Path, tmp_path: Path):
    source = recordings / "g1_lerobot"
    info = json.loads((source / "meta/info.json").read_text())
    stats = [json.loads(line)["stats"] for line in (source / "meta/episodes_stats.jsonl").read_text().splitlines()]
    first = read_lerobot(source)
    assert len(first) == info["total_episodes"] and sum(map(len, first)) == info["total_frames"]
    for episode, known in zip(first, stats, strict=True):
        for name in ("observation.state", "action"):
            np.testing.assert_array_equal(episode[name].min(0), np.float32(known[name]["min"]))
            np.testing.assert_array_equal(episode[name].max(0), np.float32(known[name]["max"]))
    shown = [e.meta["index"] for e in first if "missing" not in e.meta]
    assert shown == ["29", "59"], "two of seventy have their video"
    some = [first[28], first[29], first[59]]
    third = read_lerobot(
        write_dataset(read_lerobot(write_dataset(some, tmp_path / "v3")), tmp_path / "v2", version="v2.1")
    )
    for a, b in zip(some, third, strict=True):
        assert set(a.columns) == set(b.columns)
        for name in ("observation.state", "action", "timestamp"):
            np.testing.assert_array_equal(a[name], b[name])
    camera = "observation.images.cam_high"
    np.testing.assert_array_equal(some[1][camera][77], third[1][camera][77], "video is copied, not encoded again")
