"""Trust: calibrated on runs in which all was well."""

from __future__ import annotations

import numpy as np
import pytest

from instep.core.errors import BadInput
from instep.twin import calibrate_trust, correction_log


def nominal(seed: int, strange: float = 0.0) -> dict[str, np.ndarray]:
    """A log of 200 frames; from the middle on it may be strange."""
    rng = np.random.default_rng((seed, 9))
    off = np.where(np.arange(200) >= 100, strange, 0.0)
    return {
        "tee.nis": rng.chisquare(3, 200) + 3 * off,
        "tee.residual": 0.1 + 0.01 * rng.random(200) + 0.02 * off,
        "cam.overlap": rng.random(200),
    }


def test_a_nominal_run_alarms_as_rarely_as_promised() -> None:
    trust = calibrate_trust([nominal(seed) for seed in range(120)])
    alarms = [trust.alarm(nominal(seed)) is not None for seed in range(1000, 1300)]
    assert np.mean(alarms) < 0.09  # alpha is 0.05; 300 runs leave a standard deviation of 0.013


def test_a_strange_run_is_noticed_after_it_turns_strange() -> None:
    trust = calibrate_trust([nominal(seed) for seed in range(120)])
    rows = [trust.alarm(nominal(seed, 3.0)) for seed in range(2000, 2040)]
    found = [row for row in rows if row is not None]
    assert len(found) >= 38 and np.median(found) < 120
    assert sum(row < 100 for row in found) <= 4


def test_between_two_images_the_last_numbers_count_and_a_body_that_is_lost_is_noticed() -> None:
    trust = calibrate_trust([nominal(seed) for seed in range(60)])
    log = nominal(5)
    log["tee.nis"][1::2] = np.nan
    assert trust.alarm(log, 0.02) is None
    log["tee.frames_lost"] = np.where(np.arange(200) > 120, 8.0, 0.0)
    row = trust.alarm(log)
    assert row is not None and 120 < row < 140


def test_rows_that_are_not_judged_are_in_no_window() -> None:
    def found_late(seed: int) -> dict[str, np.ndarray]:
        log = nominal(seed)
        log["cam.overlap"][:3], log["tee.nis"][:3] = 0.0, 1e6  # the twin still searches its body
        return log

    plain, late = (calibrate_trust([make(seed) for seed in range(60)]) for make in (nominal, found_late))
    assert np.array_equal(plain.scores, late.scores)
    assert np.array_equal(plain.frames(nominal(70)), plain.frames(found_late(70)))


def test_three_runs_are_too_few() -> None:
    with pytest.raises(BadInput, match="four nominal runs"):
        calibrate_trust([nominal(seed) for seed in range(3)])


def test_the_log_is_read_back_from_an_episode(recording, follow) -> None:
    run = follow(recording)
    log = correction_log(run.episode)
    assert set(run.twin.correct.logged) | {"joints.error"} == set(log)
    assert np.nanmax(log["joints.error"]) == np.nanmax(np.abs(run.episode["twin.joint_error"]))
    with pytest.raises(BadInput, match="not run through a corrected twin"):
        correction_log(recording.episode)


def test_the_command_line_says_how_far_a_run_can_be_trust_scores(recording, follow, tmp_path) -> None:
    from instep.app.verbs.twin_run import calibrated_on, trust_scores
    from instep.data import write_dataset

    well = follow(recording).episode
    rng = np.random.default_rng(0)

    def like(scale: float):
        rows = well["twin.correction"] * rng.uniform(0.95, 1.05, well["twin.correction"].shape) * scale
        return well.with_columns({"twin.correction": rows}, task="push")

    write_dataset([like(1.0) for _ in range(12)], tmp_path / "nominal")
    trust = calibrated_on(tmp_path / "nominal")
    assert trust_scores(like(1.0), trust)["trust"].value > 0.1
    assert trust_scores(like(6.0), trust)["trust"].value == pytest.approx(1 / 9)  # below all of eight
    assert trust_scores(like(1.0).rows(stop=1), trust) == {}  # it ended before trust is judged
