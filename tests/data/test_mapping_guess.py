"""A mapping is guessed from logs that nobody described, and what may be wrong in it is said."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.world import Spec, vector
from instep.data import guess_mapping, load_episodes, write_dataset
from instep.data.guess import draft_toml
from instep.data.guess.joint_columns import RobotActuator, RobotJoint, RobotLayout
from instep.data.guess.log_columns import match_names, tokens
from instep.data.mapping import parse

JOINTS = ("shoulder_pan_joint", "shoulder_lift_joint", "elbow_joint", "wrist_1_joint", "wrist_2_joint", "wrist_3_joint")
RANGES = ((-3.1, 3.1), (-3.1, 0.2), (0.3, 2.9), (-6.2, 6.2), (-6.2, 6.2), (-6.2, 6.2))
ARM = RobotLayout(
    tuple(RobotJoint(name, low, high) for name, (low, high) in zip(JOINTS, RANGES, strict=True)),
    tuple(
        RobotActuator(name.removesuffix("_joint"), (name,), low, high)
        for name, (low, high) in zip(JOINTS, RANGES, strict=True)
    ),
)
HOME = np.array([0.0, -1.4, 1.5, -1.6, -1.5, 0.3])
DT = 0.008


def motion(seed: int = 0, rows: int = 900) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Times, positions, velocities and commands of an arm that follows sums of sines 60 ms late."""
    rng = np.random.default_rng(seed)
    t = np.arange(rows) * DT
    tones = rng.uniform([0.1, 0.15, 0.0], [0.4, 0.9, 6.28], (6, 3, 3))

    def at(time: np.ndarray) -> np.ndarray:
        size, tone, phase = np.moveaxis(tones, 2, 0)
        return HOME + (size * np.sin(6.28 * time[:, None, None] * tone + phase)).sum(axis=2)

    q = at(t - 0.06)
    return t, q + 1e-4 * rng.standard_normal(q.shape), np.gradient(q, DT, axis=0), at(t)


def write_table(path: Path, columns: dict[str, np.ndarray], delimiter: str = ",") -> Path:
    rows = np.stack(list(columns.values()), axis=1)
    np.savetxt(path, rows, delimiter=delimiter, header=delimiter.join(columns), comments="")
    return path


def flat(stem: str, values: np.ndarray) -> dict[str, np.ndarray]:
    return {f"{stem}_{k}": values[:, k] for k in range(values.shape[1])}


def doubts(guess) -> dict[str, str]:
    return {row.what: row.doubt for row in guess.doubts}


def read(guess, tmp_path: Path) -> Episode:
    """The first episode through the draft as it is written to a file."""
    path = tmp_path / "draft.toml"
    path.write_text(draft_toml(guess), encoding="utf-8")
    return load_episodes(guess.folder, path)[0]


def test_names_are_split_into_words_and_numbers():
    assert tokens("actual_q_0") == tokens("actualQ0") == ("actual", "q", "0")
    assert match_names([("elbow",), ("shoulder", "pan")], JOINTS) == [2, 0]
    assert match_names([("shoulder",)], JOINTS) is None, "two joints are of the shoulder"
    assert match_names([("0",), ("1",)], ("joint1", "joint2")) is None, "counted from 0, while the robot counts from 1"


@pytest.mark.parametrize("delimiter", [",", " "])
def test_a_log_of_a_ur_controller_is_read(tmp_path: Path, delimiter: str):
    t, q, v, u = motion()
    columns = {"timestamp": 1e5 + t, **flat("target_q", u), **flat("target_qd", v), **flat("actual_q", q)}
    columns |= {**flat("actual_qd", v), **flat("actual_current", 3 * v), **flat("actual_TCP_pose", q)}
    write_table(tmp_path / "run.csv", columns | {"robot_mode": 7 + 0 * t}, delimiter)
    guess = guess_mapping([tmp_path / "run.csv"], ARM)
    episode = read(guess, tmp_path)
    np.testing.assert_allclose(episode.q, q)
    np.testing.assert_allclose(episode.action, u)
    np.testing.assert_allclose(episode["v"], v)
    assert episode.spec.q.labels == JOINTS and episode.spec.action.labels == tuple(a.name for a in ARM.actuators)
    assert episode.spec.dt == pytest.approx(DT, rel=1e-4)
    assert "no joint names" in doubts(guess)["position of elbow_joint"], "numbered columns are flagged"
    assert "time" not in doubts(guess)


def test_degrees_named_joints_and_milliseconds_are_sure(tmp_path: Path):
    t, q, _, u = motion()
    order = [2, 0, 1, 5, 4, 3]
    columns = {"time_ms": 1e3 * t}
    columns |= {f"{JOINTS[k]}_deg": np.degrees(q[:, k]) for k in order}
    columns |= {f"goal_{JOINTS[k].removesuffix('_joint')}": np.degrees(u[:, k]) for k in reversed(order)}
    write_table(tmp_path / "run.csv", columns)
    guess = guess_mapping([tmp_path], ARM)
    assert doubts(guess) == {}
    episode = read(guess, tmp_path)
    places = [episode.spec.q.labels.index(name) for name in JOINTS]
    np.testing.assert_allclose(episode.q[:, places], q, atol=1e-9)
    places = [episode.spec.action.labels.index(actuator.name) for actuator in ARM.actuators]
    np.testing.assert_allclose(episode.action[:, places], u, atol=1e-9)
    assert episode.spec.dt == pytest.approx(DT, rel=1e-4)


def test_swapped_commands_in_degrees_are_found_by_which_joint_answers(tmp_path: Path):
    t, q, _, u = motion()
    order = [3, 1, 2, 0, 5, 4]
    np.savez(tmp_path / "run.npz", t=t, q=np.degrees(q), cmd=np.degrees(u[:, order]))
    guess = guess_mapping([tmp_path / "run.npz"], ARM)
    episode = read(guess, tmp_path)
    np.testing.assert_allclose(episode.q, q, atol=1e-9)
    places = [episode.spec.action.labels.index(actuator.name) for actuator in ARM.actuators]
    np.testing.assert_allclose(episode.action[:, places], u, atol=1e-9)
    assert all("guess" in row.confidence for row in guess.rows if row.what.startswith(("position", "command")))


def test_ranges_of_joints_move_columns_without_names(tmp_path: Path):
    t, q, _, u = motion()
    swapped = [0, 2, 1, 3, 4, 5]  # the elbow only bends one way, the shoulder only the other
    np.savez(tmp_path / "run.npz", t=t, q=q[:, swapped], cmd=u[:, swapped])
    guess = guess_mapping([tmp_path / "run.npz"], ARM)
    episode = read(guess, tmp_path)
    assert episode.spec.q.labels == tuple(JOINTS[k] for k in swapped)
    assert "ranges exclude" in doubts(guess)["position of elbow_joint"]


def test_names_that_the_motion_contradicts_are_flagged(tmp_path: Path):
    t, q, _, u = motion()
    columns = {"t": t, **{f"pos_{name}": q[:, k] for k, name in enumerate(JOINTS)}}
    columns |= {f"cmd_{name}": u[:, k] for name, k in zip(JOINTS, [1, 0, 2, 3, 4, 5], strict=True)}
    columns["cmd_wrist_3_joint"] = -u[:, 5]
    write_table(tmp_path / "run.csv", columns)
    said = doubts(guess_mapping([tmp_path / "run.csv"], ARM))
    assert "answers it" in said["command of shoulder_pan"] and "answers it" in said["command of shoulder_lift"]
    assert "sign inverted" in said["command of wrist_3"]
    assert "command of elbow" not in said


def test_commands_and_states_in_different_units_are_told_by_their_ratio(tmp_path: Path):
    t, q, v, u = motion()
    columns = {"t": t, **{f"pos_{n}": np.degrees(q[:, k]) for k, n in enumerate(JOINTS)}}
    columns |= {f"cmd_{n}": u[:, k] for k, n in enumerate(JOINTS)}
    columns |= {f"vel_{n}": v[:, k] for k, n in enumerate(JOINTS)}
    write_table(tmp_path / "run.csv", columns)
    guess = guess_mapping([tmp_path / "run.csv"], ARM)
    episode = read(guess, tmp_path)
    np.testing.assert_allclose(episode.q, q, atol=1e-9)
    np.testing.assert_allclose(episode.action, u, atol=1e-9)
    np.testing.assert_allclose(episode["v"], v, atol=1e-9)


def test_arrays_without_words_are_told_apart_by_which_comes_first(tmp_path: Path):
    t, q, _, u = motion()
    np.savez(tmp_path / "run.npz", arr_0=u, arr_1=q, arr_2=t)
    guess = guess_mapping([tmp_path / "run.npz"], ARM)
    episode = read(guess, tmp_path)
    np.testing.assert_allclose(episode.q, q)
    np.testing.assert_allclose(episode.action, u)
    assert "trails" in doubts(guess)["position of elbow_joint"]


def test_a_log_without_times_is_flagged_and_takes_a_rate(tmp_path: Path):
    _, q, _, u = motion()
    np.savez(tmp_path / "run.npz", q=q, action=u)
    assert "--rate" in doubts(guess_mapping([tmp_path / "run.npz"], ARM))["time"]
    guess = guess_mapping([tmp_path / "run.npz"], ARM, rate=125.0)
    assert "time" not in doubts(guess) and read(guess, tmp_path).spec.dt == pytest.approx(0.008)


@pytest.mark.parametrize(("top", "said"), [(100.0, "percent"), (1.0, "0 to 1")])
def test_a_gripper_in_shares_of_its_range_is_flagged(tmp_path: Path, top: float, said: str):
    t, q, _, _ = motion()
    arm = RobotLayout((*ARM.joints[:5], RobotJoint("gripper", -0.2, 1.7)), ARM.actuators)
    percent = top * (0.5 + 0.45 * np.sin(t))
    names = [joint.name for joint in arm.joints]
    values = np.column_stack([np.degrees(q[:, :5]), percent])
    columns = {"t": t, **{f"pos_{n}": values[:, k] for k, n in enumerate(names)}}
    write_table(tmp_path / "run.csv", columns)
    guess = guess_mapping([tmp_path / "run.csv"], arm)
    assert said in doubts(guess)["position of gripper"] and "position of elbow_joint" not in doubts(guess)
    np.testing.assert_allclose(read(guess, tmp_path).q[:, 5], -0.2 + percent / top * 1.9, atol=1e-6)


@pytest.mark.parametrize("names", [JOINTS, tuple(f"motor_{k}" for k in range(6))])
def test_a_lerobot_dataset_of_others_is_read(tmp_path: Path, names: tuple[str, ...]):
    t, q, _, u = motion(rows=300)
    spec = Spec(DT, vector(names), vector(names), vector(names), {"observation.state": vector(names)})
    columns = {"timestamp": t, "observation.state": q.astype(np.float32), "action": u.astype(np.float32)}
    write_dataset([Episode(replace(spec, q=vector([]), v=vector([])), columns, {"task": "wave"})], tmp_path / "set")
    (tmp_path / "set" / "meta" / "instep.json").unlink()
    guess = guess_mapping([tmp_path / "set"], ARM)
    episode = read(guess, tmp_path)
    np.testing.assert_allclose(episode.q, q, atol=1e-6)
    np.testing.assert_allclose(episode.action, u, atol=1e-6)
    assert episode.spec.q.labels == JOINTS and episode.spec.q.units == ("rad",) * 6
    assert ("position of elbow_joint" in doubts(guess)) == (names != JOINTS)


def test_without_a_robot_the_columns_name_the_joints(tmp_path: Path):
    t, q, _, u = motion()
    columns = {"time": t, "base_pos": q[:, 0], "tip_pos": q[:, 1], "base_cmd": u[:, 0], "tip_cmd": u[:, 1]}
    write_table(tmp_path / "run.csv", columns)
    episode = read(guess_mapping([tmp_path / "run.csv"]), tmp_path)
    assert episode.spec.q.labels == episode.spec.action.labels == ("base", "tip")


def test_a_draft_says_what_to_check_and_is_valid(tmp_path: Path):
    t, q, _, u = motion()
    np.savez(tmp_path / "run.npz", t=t, q=np.degrees(q), cmd=np.degrees(u))
    guess = guess_mapping([tmp_path / "run.npz"], ARM)
    text = draft_toml(guess, scene="my arm")
    assert parse(text, "draft")[0].scene == "my arm" and 'from_unit = "deg"' in text
    assert "# CHECK" in text and "no joint names" in text
    assert next(row.what for row in guess.rows) == "time"


def test_logs_that_cannot_be_read_are_refused_in_a_sentence(tmp_path: Path):
    with pytest.raises(BadInput, match="There is no log"):
        guess_mapping([tmp_path / "none.csv"], ARM)
    with pytest.raises(BadInput, match="holds no log"):
        guess_mapping([tmp_path], ARM)
    (tmp_path / "a.csv").write_text("name,comment\nx,y\n")
    with pytest.raises(BadInput, match="No columns of joint positions"):
        guess_mapping([tmp_path / "a.csv"], ARM)
    (tmp_path / "b.json").write_text(json.dumps({}))
    with pytest.raises(BadInput, match="is no log of a known format"):
        guess_mapping([tmp_path / "b.json"], ARM)


@pytest.mark.parametrize(
    ("head", "cells"),
    [
        ("time", lambda s: [f"2026-03-01T{10 + int(x // 3600):02d}:59:{x % 60:09.6f}Z" for x in s]),
        ("stamp", lambda s: [f"2026-03-01 23:59:{x:.3f}".replace(".", ",") for x in s + 10]),
        ("clock", lambda s: [f"{(23 + int(x >= 3)) % 24:02d}:{59 * (x < 3):02d}:{(x + 57) % 60:06.3f}" for x in s]),
        ("epoch", lambda s: [f"{1.7e9 + x:.3f}" for x in s]),
        ("timestamp", lambda s: [f"{round((1.7e9 + x) * 1e3)}" for x in s]),
        ("timestamp", lambda s: [f"{round((1.7e9 + x) * 1e6)}" for x in s]),
        ("timestamp", lambda s: [f"{round((1.7e9 + x) * 1e9)}" for x in s]),
    ],
)
def test_usual_times_of_csv_logs_are_read(tmp_path: Path, head: str, cells):
    t, q, _, u = motion(rows=600)
    numbers = [",".join(f"{x:.9g}" for x in row) for row in np.column_stack([q, u])]
    names = [f"pos_{name}" for name in JOINTS] + [f"cmd_{name}" for name in JOINTS]
    quoted = [f'"{cell}"' if head == "stamp" else cell for cell in cells(t)]
    lines = [",".join([head, *names]), *(f"{cell},{row}" for cell, row in zip(quoted, numbers, strict=True))]
    (tmp_path / "run.csv").write_text("\n".join(lines) + "\n")
    guess = guess_mapping([tmp_path / "run.csv"], ARM)
    assert "time" not in doubts(guess)
    episode = read(guess, tmp_path)
    np.testing.assert_allclose(episode.t, t, atol=2e-3)
    assert episode.spec.dt == pytest.approx(DT, rel=0.02)


def test_text_that_is_no_time_is_refused_in_a_sentence(tmp_path: Path):
    (tmp_path / "run.csv").write_text("when,q\nyesterday,1\ntoday,2\n")
    mapping = parse('format = "csv"\nfiles = ["*.csv"]\ntime = "when"\n[q]\nfrom = ["q"]\n', "x")
    with pytest.raises(BadInput, match="'yesterday'; ISO 8601"):
        load_episodes(tmp_path, mapping)


@pytest.mark.parametrize("lists", [("joint_names",), ("q_names", "cmd_names")])
def test_names_that_an_npz_file_lists_are_taken(tmp_path: Path, lists: tuple[str, ...]):
    t, q, _, u = motion()
    order = [4, 1, 2, 0, 5, 3]
    named = np.array([JOINTS[k] for k in order])
    np.savez(tmp_path / "run.npz", t=t, q=q[:, order], cmd=u[:, order], **dict.fromkeys(lists, named))
    guess = guess_mapping([tmp_path / "run.npz"], ARM)
    assert doubts(guess) == {} and read(guess, tmp_path).spec.q.labels == tuple(named)


def test_a_gripper_that_slides_is_read_in_metres_beside_joints_in_degrees(tmp_path: Path):
    t, q, _, _ = motion()
    arm = RobotLayout((*ARM.joints[:5], RobotJoint("gripper", 0.0, 0.05, "m")), ARM.actuators)
    columns = {"t": t, **{f"pos_{n}": np.degrees(q[:, k]) for k, n in enumerate(JOINTS[:5])}}
    write_table(tmp_path / "run.csv", columns | {"pos_gripper": 0.025 + 0.02 * np.sin(t)})
    guess = guess_mapping([tmp_path / "run.csv"], arm)
    assert "position of gripper" not in doubts(guess)
    np.testing.assert_allclose(read(guess, tmp_path).q[:, 5], 0.025 + 0.02 * np.sin(t), atol=1e-9)
