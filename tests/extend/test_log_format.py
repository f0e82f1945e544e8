"""The example of a log format is known to every command that reads logs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from instep.core.errors import BadInput, UnknownName
from instep.data import export_episodes, find_logs, guess_mapping, load_episodes
from instep.data.formats import formats

MAP = 'format = "floats"\nfiles = ["*.f32"]\ntime = "time"\n[q]\nfrom = "q"\nlabels = ["shoulder"]\nunit = "rad"\n'


@pytest.fixture
def log(tmp_path: Path, extensions: None):
    formats.cache_clear()
    t = np.arange(200) / 100
    table = np.stack([t, np.sin(t), np.sin(t + 0.1)], axis=1).astype("<f4")
    (tmp_path / "logs").mkdir()
    path = tmp_path / "logs" / "run.f32"
    path.write_bytes(b"time q goal_q\n" + table.tobytes())
    yield path
    formats.cache_clear()


def test_a_mapping_and_a_guess_read_it(log: Path):
    (log.parent / "map.toml").write_text(MAP)
    [episode] = load_episodes(log.parent, log.parent / "map.toml")
    assert np.allclose(episode.q[:, 0], np.sin(episode.t), atol=1e-6)
    for given in (log, log.parent):
        guess = guess_mapping(find_logs([given]))
        assert guess.mapping.format == "floats" and guess.rate == pytest.approx(100, rel=1e-3)


def test_a_damaged_file_and_a_format_that_cannot_be_written_are_named(log: Path, tmp_path: Path):
    log.write_bytes(log.read_bytes()[:-1])
    with pytest.raises(BadInput, match="no rows of 3 floats"):
        find_logs([log]).first_runs()
    with pytest.raises(UnknownName, match="export format named 'floats'"):
        export_episodes(log, "floats", tmp_path / "out")
