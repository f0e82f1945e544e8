from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from instep.core.errors import BadInput
from instep.data.datasets import load
from instep.data.lerobot import writer_v3
from instep.data.pairs import apart, paired

from .conftest import small_episode


def test_a_pair_comes_apart_as_it_was(tmp_path: Path):
    real, sim = small_episode(9, 0, cameras=False), small_episode(9, 1, cameras=False)
    sim = sim.with_columns({"timestamp": real.t})
    folder = writer_v3.write([paired(real, sim, "mujoco")], tmp_path / "set")
    (stored,) = load(folder)
    assert {"q", "sim.q", "action", "sim.action", "sim.observation.state"} <= set(stored.columns)
    one, other = apart(stored)
    for name in ("q", "v", "action", "observation.state"):
        np.testing.assert_array_equal(one[name], real[name])
        np.testing.assert_array_equal(other[name], sim[name])
    assert one.spec == real.spec and other.spec == sim.spec
    assert (one.meta["world"], other.meta["world"], one.meta["pair"]) == ("real", "sim", "mujoco")


def test_runs_of_other_rows_are_no_pair():
    real = small_episode(9, cameras=False)
    with pytest.raises(BadInput, match="needs the same rows"):
        paired(real, small_episode(8, cameras=False), "mujoco")
    with pytest.raises(BadInput, match="is not a pair"):
        apart(replace(real))
