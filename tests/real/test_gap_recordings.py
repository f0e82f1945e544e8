"""The gap room on recordings of real robots."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from instep.app.cli import main

SIMPLER = {
    "google_robot_pick_coke_can": (0.975, 0.771, 0.031, 0.062),
    "google_robot_move_near": (0.856, 0.943, 0.111, 0.003),
    "google_robot_open_drawer": (0.983, 1.000, 0.000, 0.000),
    "google_robot_close_drawer": (0.771, 0.771, 0.123, 0.113),
    "google_robot_place_apple_in_closed_top_drawer": (0.969, 0.985, 0.000, 0.011),
    "widowx_spoon_on_towel": (0.827, 1.000, 0.000, 0.000),
    "widowx_carrot_on_plate": (0.571, 0.500, 0.111, 0.009),
    "widowx_stack_cube": (1.000, 1.000, 0.000, 0.000),
    "widowx_put_eggplant_in_basket": (0.989, 1.000, 0.000, 0.000),
}


def scores(out: Path) -> dict:
    return json.loads((out / "result.json").read_text())["scores"]


def test_all_nine_tasks_of_simpler_come_out(recordings, tmp_path):
    from instep.evaluate.agreement import rank_agreements, read_rates

    table = recordings / "policy_tables" / "simpler_real_vs_sim.csv"
    assert main(["agree", str(table), "--out", str(tmp_path / "out")]) == 0
    found = {r.task: r for r in rank_agreements(read_rates(table))}
    assert len(found) == 9
    expected = sorted(SIMPLER.values())
    made = [(r.correlation.value, r.rank_correlation.value, r.violation.value, r.swapped) for r in found.values()]
    for a, b in zip(sorted(made), expected, strict=True):
        assert a == pytest.approx(b, abs=6e-4)
    google = [r for r in found.values() if r.task.startswith("google")]
    assert sum(r.violation.value for r in google) / 5 == pytest.approx(0.053, abs=1e-3)
    assert sum(r.correlation.value for r in google) / 5 == pytest.approx(0.911, abs=1e-3)


def test_the_arm_of_the_g1_answers_150_ms_late(recordings, tmp_path):
    assert main(["gap", str(recordings / "g1_lerobot"), "--out", str(tmp_path / "out")]) == 0
    found = scores(tmp_path / "out")
    assert found["lag: all rad"]["value"] == pytest.approx(0.149, abs=0.01)
    assert found["command following: all rad"]["value"] == pytest.approx(0.0205, abs=5e-4)


def test_the_clocks_of_the_pose_streams_are_brought_together(recordings, tmp_path):
    assert main(["gap", str(recordings / "pose_streams"), "--out", str(tmp_path / "out")]) == 0
    found = scores(tmp_path / "out")
    one, two = found["clock offset: vicon_1"], found["clock offset: vicon_2"]
    # The same rig twice: there is no truth, but the two must agree within their intervals.
    assert one["low"] < two["high"] and two["low"] < one["high"]
    assert abs(one["value"]) < 0.05 and one["high"] - one["low"] < 0.05


@pytest.mark.parametrize(
    ("part", "scene", "expected"),
    [
        ("furuta", "furuta", {"qq_chrip_10to0Hz_+1.5V_250Hz_10s: arm": (0.005, 0.009)}),
        ("furuta", "furuta", {"qq_chrip_10to0Hz_+1.5V_250Hz_10s: pendulum": (0.0045, 0.009)}),
        ("cartpole", "cartpole", {"qcp_chrip_3to0Hz_+3.5V_250Hz: cart": (0.005, 0.0095)}),
        ("cartpole", "cartpole", {"qcp_chrip_3to0Hz_+3.5V_250Hz: pole": (0.17, 0.23)}),
    ],
)
def test_the_floors_of_repeats_are_what_the_machines_scatter(recordings, part, scene, expected):
    from instep.data import load_episodes
    from instep.gap.paired_runs import noise_floor, repeated_runs, split_by_outcome
    from instep.gap.preparation import prepare

    ready = prepare(list(load_episodes(recordings / "quanser_wam" / part)))
    groups = split_by_outcome(repeated_runs(ready.episodes))
    found = {group[0].meta["group"]: noise_floor([group]) for group in groups}
    for name, (low, high) in expected.items():
        group, _, channel = name.partition(": ")
        assert low <= found[group][channel].at(float("inf")).value <= high


def test_the_floor_of_the_wam_is_0_4_to_4_3_mrad(recordings):
    from instep.data import load_episodes
    from instep.gap.paired_runs import noise_floor, repeated_runs, split_by_outcome

    group = noise_floor(split_by_outcome(repeated_runs(list(load_episodes(recordings / "quanser_wam" / "wam7")))))
    values = [group[f"joint_{i}"].at(float("inf")).value for i in range(1, 8)]
    assert min(values) == pytest.approx(0.0004, abs=1e-4) and max(values) == pytest.approx(0.0043, abs=1e-4)


def test_sound_recordings_pass_the_preflight(recordings):
    from instep.data import load_episodes
    from instep.gap.preparation import check_data

    for name in ("so101", "quanser_wam/furuta", "quanser_wam/cartpole", "quanser_wam/wam7", "cube_toss", "g1_lerobot"):
        assert check_data(list(load_episodes(recordings / name))).errors == ()


def test_the_so101_is_measured_with_its_commands_beside(recordings, tmp_path):
    out = tmp_path / "out"
    assert main(["gap", str(recordings / "so101"), "so101", "--runs", "3", "--plain", "--out", str(out)]) == 0
    found = scores(out)
    assert found["all rad@full"]["n"] == 3 and 0.005 < found["all rad@full"]["value"] < 0.08
    assert found["command following: elbow_flex"]["value"] == pytest.approx(0.06, abs=0.02)
    assert found["RMSE_norm"]["value"] < 0.05 and found["tip position arm"]["unit"] == "m"
