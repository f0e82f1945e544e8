from __future__ import annotations

import numpy as np

from instep.data import lerobot as feature_stats


def test_parts_combine_to_the_whole():
    rng = np.random.default_rng(0)
    rows = [rng.normal(k, 1 + k, (50 + 30 * k, 3)) for k in range(4)]
    together = feature_stats.merged_stats([feature_stats.episode_stats({"q": part}) for part in rows])["q"]
    whole = feature_stats.vector_stats(np.concatenate(rows))
    for name in ("min", "max", "mean", "std", "count"):
        np.testing.assert_allclose(together[name], whole[name], err_msg=name)
    weights = np.array([len(part) for part in rows]) / sum(len(part) for part in rows)
    expected = sum(w * np.quantile(part, 0.9, axis=0) for w, part in zip(weights, rows, strict=True))
    np.testing.assert_allclose(together["q90"], expected)


def test_one_dead_reading_does_not_spoil_the_rest():
    values = np.ones((10, 2))
    values[3, 0] = np.nan
    values[:, 1] = np.inf
    found = feature_stats.vector_stats(values)
    assert found["mean"][0] == 1 and np.isfinite(found["max"]).all()
