"""The loader: every way to name a mapping gives the same episodes; heavy libraries are imported when used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import instep.data
from instep.core.errors import BadInput
from instep.data import load_episodes
from instep.data.mapping import from_file

MAPPING = """
format = "csv"
files = ["*.csv"]
time = "time"

[q]
from = ["angle"]
labels = ["hinge"]
unit = "rad"

[action]
from = ["goal"]
labels = ["hinge"]
unit = "rad"
"""


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    t = np.arange(50) / 50
    rows = np.stack([t, np.sin(t), np.cos(t)], axis=1)
    np.savetxt(folder / "run.csv", rows, delimiter=",", header="time,goal,angle", comments="")
    (tmp_path / "hinge.toml").write_text(MAPPING)
    return folder


def test_a_mapping_may_be_a_path_a_text_or_an_object(logs: Path):
    file = logs.parent / "hinge.toml"
    found = [load_episodes(logs, mapping) for mapping in (file, str(file), from_file(file), from_file(file)[0])]
    for (episode,) in found:
        assert np.array_equal(episode.q, found[0][0].q) and episode.spec.q.labels == ("hinge",)


def test_a_dataset_without_episodes_is_said(tmp_path: Path):
    (tmp_path / "journal").mkdir()
    with pytest.raises(BadInput, match="holds no episodes"):
        load_episodes(tmp_path)


def test_the_public_names_are_there_and_are_imported_when_used():
    code = (
        "import sys, instep.data, instep.robot; print([m for m in ('pyarrow', 'av', 'websockets') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
    assert all(getattr(instep.data, name) is not None for name in instep.data.__all__)
