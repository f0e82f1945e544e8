from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from instep.core.errors import BadInput, UnknownName
from instep.data import load_episodes
from instep.data.mapping import shipped, shipped_mappings

ARM = """
about = "A made-up arm."
scene = "arm"
format = "csv"
files = ["*.csv"]
time = "time"
[meta]
group = "{stem}"
[q]
from = ["a", "b"]
labels = ["shoulder", "elbow"]
unit = "rad"
from_unit = "deg"
sign = [1, -1]
offset = [0.0, 0.5]
[action]
from = "a_goal"
labels = ["shoulder"]
unit = "rad"
from_unit = "deg"
"""


def write_csv(folder: Path, name: str, rows: int = 50) -> np.ndarray:
    t = np.arange(rows) / 50
    values = np.stack([t, 90 * np.sin(t), 10 * t, 90 * np.sin(t + 0.1)], axis=1)
    lines = ["time,a,b,a_goal", *(",".join(repr(float(x)) for x in row) for row in values)]
    (folder / name).write_text("\n".join(lines))
    return values


def test_degrees_signs_and_offsets_become_the_scene_s_convention(tmp_path: Path):
    values = write_csv(tmp_path, "run.csv")
    (tmp_path / "arm.toml").write_text(ARM)
    (episode,) = load_episodes(tmp_path, mapping=tmp_path / "arm.toml")
    np.testing.assert_allclose(episode.q[:, 0], np.radians(values[:, 1]))
    np.testing.assert_allclose(episode.q[:, 1], 0.5 - np.radians(values[:, 2]))
    assert episode.spec.q.labels == ("shoulder", "elbow") and episode.spec.dt == pytest.approx(0.02)
    assert episode.meta["group"] == "run" and episode.meta["scene"] == "arm"
    np.testing.assert_array_equal(episode["observation.state"], episode.q)


def test_a_command_of_an_angle_and_a_velocity_becomes_one(tmp_path: Path):
    values = write_csv(tmp_path, "run.csv")
    plus = 'unit = "rad"\nfrom_unit = "deg"\nplus = { from = "b", scale = [0.1] }\n'
    text = ARM.removesuffix('unit = "rad"\nfrom_unit = "deg"\n') + plus
    (tmp_path / "arm.toml").write_text(text)
    (episode,) = load_episodes(tmp_path, mapping=tmp_path / "arm.toml")
    np.testing.assert_allclose(episode.action[:, 0], np.radians(values[:, 3]) + 0.1 * values[:, 2])


def test_gzipped_text_reads_the_same(tmp_path: Path):
    write_csv(tmp_path, "run.csv")
    (tmp_path / "arm.toml").write_text(ARM.replace("*.csv", "*.csv.gz"))
    (tmp_path / "run.csv.gz").write_bytes(gzip.compress((tmp_path / "run.csv").read_bytes()))
    assert len(load_episodes(tmp_path, mapping=tmp_path / "arm.toml")[0]) == 50


def test_a_coupled_gear_a_wrapped_angle_and_counts_below_zero(tmp_path: Path):
    angle = np.linspace(0, 9, 40)
    wrapped = (angle + np.pi) % (2 * np.pi) - np.pi
    counts = np.array([65535.0, 3.0] * 20)
    np.savez(tmp_path / "run.npz", m=np.stack([angle, angle * 3], 1), w=wrapped, n=counts)
    (tmp_path / "m.toml").write_text(
        """
        format = "npz"
        files = ["*.npz"]
        rate = 100
        q = { from = "m", labels = ["one", "two"], matrix = [[1, 0], [-3, 1]] }
        [observation]
        "observation.turn" = { from = "w", labels = ["turn"], unwrap = true }
        "observation.load" = { from = "n", labels = ["load"], bits = 16 }
        """
    )
    (episode,) = load_episodes(tmp_path, mapping=tmp_path / "m.toml")
    np.testing.assert_allclose(episode.q, np.stack([angle, 0 * angle], 1), atol=1e-12)
    np.testing.assert_allclose(episode["observation.turn"][:, 0], angle)
    assert set(episode["observation.load"][:, 0]) == {-1.0, 3.0}


def test_the_action_after_the_last_state_is_held_and_rows_are_skipped(tmp_path: Path):
    np.savez(tmp_path / "run.npz", s=np.arange(10.0), a=np.arange(9.0), t=np.arange(10) * 0.1 + 5)
    (tmp_path / "m.toml").write_text(
        'format="npz"\nfiles=["*.npz"]\ntime="t"\nskip=2\nq={from="s",labels=["j"]}\naction={from="a",labels=["j"]}'
    )
    (episode,) = load_episodes(tmp_path, mapping=tmp_path / "m.toml")
    assert list(episode.q[:, 0]) == list(range(2, 10)) and list(episode.action[-2:, 0]) == [8.0, 8.0]
    assert episode.t[0] == 0.0 and float(episode.meta["start"]) == pytest.approx(5.2)


def test_one_file_is_cut_at_its_offsets_and_repeats_are_counted(tmp_path: Path):
    np.savez(tmp_path / "all.npz", x=np.arange(10.0), cuts=np.array([0, 3, 10]))
    (tmp_path / "m.toml").write_text(
        'format="npz"\nfiles=["*.npz"]\nrate=10\nsplit="cuts"\nrepeats=true\nq={from="x",labels=["j"]}'
    )
    first, second = load_episodes(tmp_path, mapping=tmp_path / "m.toml")
    assert (len(first), len(second)) == (3, 7) and list(second.q[:, 0]) == list(range(3, 10))
    assert (first.meta["repeat"], second.meta["repeat"]) == ("0", "1")


def test_a_json_log_gives_its_header_to_the_notes(tmp_path: Path):
    rows = [{"t": k * 0.01, "x": k, "on": True} for k in range(5)]
    (tmp_path / "log.json").write_text(json.dumps({"gain": 7, "entries": rows}))
    (tmp_path / "m.toml").write_text(
        'format="json"\nfiles=["*.json"]\ntime="t"\nq={from="x",labels=["j"]}\n[meta]\ngain="{gain}"'
    )
    assert load_episodes(tmp_path, mapping=tmp_path / "m.toml")[0].meta["gain"] == "7"


def test_lines_of_several_kinds(tmp_path: Path):
    (tmp_path / "log.txt").write_text("odom 0.0 1 2\nrange 0.0 5\nodom 0.1 3 4\nrange 0.1 6\n")
    (tmp_path / "m.toml").write_text(
        'format="lines"\nfiles=["*.txt"]\ntime="odom[0]"\nq={from="range[1]",labels=["r"]}\n'
        'action={from="odom[1:3]",labels=["a","b"]}'
    )
    (episode,) = load_episodes(tmp_path, mapping=tmp_path / "m.toml")
    assert episode.action.tolist() == [[1, 2], [3, 4]] and episode.q.tolist() == [[5], [6]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('from = "a_goal"', 'from = "goal"'), "no column in 'run.csv' named 'goal'. Did you mean 'a_goal'"),
        (('time = "time"', 'tyme = "time"'), "no entry of the mapping 'arm' named 'tyme'. Did you mean 'time'"),
        (('from_unit = "deg"', 'from_unit = "gon"'), "no unit of a file named 'gon'"),
        (('labels = ["shoulder", "elbow"]', 'labels = ["shoulder"]'), "names 1 labels for a, b"),
        (("sign = [1, -1]", "sign = [1, -1, 1]"), "do not fit 2 numbers"),
        (('files = ["*.csv"]', 'files = ["*.tsv"]'), "holds no files like"),
        (('format = "csv"', 'format = "cvs"'), "no format named 'cvs'. Did you mean 'csv'"),
        (("[meta]", "[meta"), "not valid TOML"),
        (("sign = [1, -1]", "centre = [0.1, 0.2]"), "three numbers"),
    ],
)
def test_a_wrong_mapping_is_named_in_one_sentence(tmp_path: Path, change: tuple[str, str], message: str):
    write_csv(tmp_path, "run.csv")
    (tmp_path / "arm.toml").write_text(ARM.replace(*change))
    with pytest.raises(BadInput) as error:
        load_episodes(tmp_path, mapping=tmp_path / "arm.toml")
    assert message in str(error.value) and "\n" not in str(error.value)


def test_every_shipped_mapping_parses():
    names = shipped_mappings()
    assert {"so101", "quanser_wam/furuta", "g1_lerobot"} <= set(names)
    for name in names:
        if name != "quanser_wam":
            assert shipped(name)[0].about
    with pytest.raises(BadInput, match="quanser_wam/furuta, quanser_wam/cartpole"):
        shipped("quanser_wam")
    with pytest.raises(UnknownName, match="Did you mean 'so101'"):
        shipped("so100")
    with pytest.raises(UnknownName):
        shipped("../../pyproject")


def test_a_mapping_without_its_files_says_so(tmp_path: Path):
    with pytest.raises(BadInput, match="There is no folder"):
        load_episodes(tmp_path / "nowhere")
    (tmp_path / "things").mkdir()
    with pytest.raises(BadInput, match="no mapping is called 'things'"):
        load_episodes(tmp_path / "things")
    with pytest.raises(BadInput, match=r"no files like \*.npz"):
        load_episodes(tmp_path / "things", "so101")
