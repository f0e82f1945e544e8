"""Checks of recordings before any number is taken."""

from __future__ import annotations

import numpy as np
import pytest

from instep import BadInput, Episode, UnknownName
from instep.core.world import Spec, vector
from instep.gap.preparation import check_data, quantum


def change(runs, column, edit):
    """The runs with one column edited; `edit` gets a copy of it."""
    return [run.with_columns({column: edit(np.array(run[column]))}) for run in runs]


def only(runs, **options):
    """The errors of a preflight, each a (check, channel)."""
    return [(f.check, f.channel) for f in check_data(runs, **options).errors]


def test_sound_recordings_pass(runs):
    found = check_data(runs, limits={"shoulder": (-3, 3), "elbow": (-3, 3), "slide": (0, 0.1)})
    assert found.problems == ()
    found.require()


def test_nothing_is_refused(runs):
    with pytest.raises(BadInput, match="holds no episode"):
        check_data([])
    with pytest.raises(BadInput, match="has 1 row"):
        check_data([runs[0].rows(0, 1)])


def test_a_nan_is_named_with_its_channel_and_row(runs):
    def spoil(q):
        q[7, 1] = np.nan
        return q

    with pytest.raises(BadInput, match="'elbow' in 'q' of run 'run 0' is not a finite number in row 7"):
        check_data(change(runs, "q", spoil)).require()


def test_time_that_goes_back_or_stands_still_is_refused(runs):
    def back(t):
        t[50] = t[48]
        return t

    def still(t):
        t[50] = t[49]
        return t

    with pytest.raises(BadInput, match="Time goes back at row 50"):
        check_data(change(runs, "timestamp", back)).require()
    with pytest.raises(BadInput, match="Time stands still at row 50"):
        check_data(change(runs, "timestamp", still)).require()


def test_gaps_and_jitter_are_warned_of_and_many_gaps_refused(runs):
    def one_gap(t):
        t[100:] += 0.2
        return t

    found = check_data(change(runs, "timestamp", one_gap))
    assert not found.errors and "6 gaps in the stamps, the longest 220 ms" in found.warnings[0].sentence

    def many(t):
        return t + 0.1 * (np.arange(len(t)) // 10)

    assert ("stamps", "timestamp") in only(change(runs, "timestamp", many))
    rng = np.random.default_rng(0)
    shaky = check_data(change(runs, "timestamp", lambda t: t + rng.uniform(-0.006, 0.006, len(t))))
    assert any("scatter" in f.sentence for f in shaky.warnings)


def test_stamps_in_milliseconds_are_suspected(runs):
    with pytest.raises(BadInput, match="milliseconds instead of seconds"):
        check_data(change(runs, "timestamp", lambda t: 1000 * t)).require()


@pytest.mark.parametrize("column", ["q", "action"])
def test_degrees_instead_of_radians_are_named(runs, column):
    def degrees(values):
        values[:, 1] *= 180 / np.pi
        return values

    converted = change(runs, column, degrees)
    found = check_data(converted)
    assert ("gain", "elbow") in only(converted)
    assert any("degrees" in f.sentence and "elbow" in f.sentence for f in found.errors)


def test_degrees_in_both_state_and_command_are_seen_by_the_range(runs):
    def degrees(values):
        values[:, 1] *= 180 / np.pi
        return values

    converted = change(change(runs, "q", degrees), "action", degrees)
    with pytest.raises(BadInput, match=r"'elbow' reaches .* degrees instead of rad"):
        check_data(converted, limits={"elbow": (-2.9, 2.9)}).require()


def test_millimetres_are_suspected(runs):
    def millimetres(values):
        values[:, 2] *= 1000
        return values

    assert ("gain", "slide") in only(change(runs, "q", millimetres))


def test_velocities_in_degrees_are_suspected(runs):
    def degrees(values):
        values[:, 0] *= 180 / np.pi
        return values

    assert ("units", "shoulder") in only(change(runs, "v", degrees))


def test_swapped_joints_are_named(runs):
    with pytest.raises(BadInput, match=r"'shoulder' follows the command of 'elbow' .*order of the joints"):
        check_data(change(runs, "action", lambda a: a[:, [1, 0, 2]])).require()


def test_a_turned_sign_is_named(runs):
    def turn(values):
        values[:, 0] *= -1
        return values

    with pytest.raises(BadInput, match="'shoulder' moves against its command"):
        check_data(change(runs, "q", turn)).require()


def test_a_zero_that_is_elsewhere_is_refused_and_a_small_one_warned_of(runs):
    def hold(a):
        a[:] = a[20]
        return a

    still = change(runs, "action", hold)
    for shift, severity in ((1.0, "error"), (0.2, "warning")):

        def parked(q, shift=shift):
            return np.tile([0.3 + shift, 0.0, 0.05], (len(q), 1))

        commanded = change(still, "action", lambda a: np.tile([0.3, 0.0, 0.05], (len(a), 1)))
        offsets = [f for f in check_data(change(commanded, "q", parked)).problems if f.check == "offset"]
        assert [(f.channel, f.severity) for f in offsets] == [("shoulder", severity)]


def test_a_frozen_channel_is_named(runs):
    def freeze(q):
        q[:, 1] = q[0, 1]
        return q

    with pytest.raises(BadInput, match="'elbow' is frozen in 6 of the 6 runs"):
        check_data(change(runs, "q", freeze)).require()


def test_a_sensor_that_hangs_in_the_middle_is_named(runs):
    def hang(q):
        q[60:120] = q[60]
        return q

    with pytest.raises(BadInput, match=r"All positions of run 'run 0' stand still for 1.2 s from 1.20 s on"):
        check_data(change(runs, "q", hang)).require()


def test_coarse_encoders_and_clipping_are_warned_of(runs):
    coarse = check_data(change(runs, "q", lambda q: np.round(q / 0.05) * 0.05))
    assert any(f.check == "quantisation" and f.channel == "shoulder" for f in coarse.warnings)
    clipped = check_data(change(runs, "q", lambda q: np.clip(q, -0.2, 0.2)))
    assert any(f.check == "clipping" and f.channel == "elbow" for f in clipped.warnings)


def test_the_step_of_an_encoder_is_found():
    q = np.round(np.sin(np.linspace(0, 9, 5000)) / 1.534e-3) * 1.534e-3
    assert quantum(q) == pytest.approx(1.534e-3)
    assert quantum(np.random.default_rng(0).normal(size=5000)) == 0.0


def test_recordings_without_actions_are_looked_at_too(runs):
    bare = [Episode(run.spec, {"timestamp": run.t, "q": run.q}, run.meta) for run in runs]
    assert check_data(bare).errors == ()


def test_what_a_user_allows_becomes_a_warning(runs):
    swapped = change(runs, "action", lambda a: a[:, [1, 0, 2]])
    allowed = check_data(swapped, allow=["order"])
    allowed.require()
    assert any(f.check == "order" for f in allowed.warnings)
    with pytest.raises(UnknownName, match="Did you mean 'order'"):
        check_data(runs, allow=["ordre"])


def test_one_joint_that_stands_still_may_stick_and_is_warned_of():
    spec = Spec(0.02, vector(["hinge"], "rad"), vector(["hinge"], "rad/s"), vector(["hinge"], "rad"))
    t = np.arange(200) * 0.02
    q = 0.5 * np.sin(3 * t)[:, None]
    commanded = np.sin(3 * t + 0.05)[:, None] * 0.5
    q[60:120] = q[60]
    found = check_data(
        [Episode(spec, {"timestamp": t, "q": q, "v": np.gradient(q, 0.02, axis=0), "action": commanded})]
    )
    assert not any("stand still" in f.sentence for f in found.errors)
    assert any("stand still" in f.sentence for f in found.warnings)
