"""Failure modes, one clean and one broken pair each."""

from __future__ import annotations

import numpy as np
import pytest

from instep import BadInput, Episode, MujocoWorld
from instep.core.world import Spec, vector
from instep.diagnose.candidates import candidate_causes
from instep.diagnose.cause_selection import identify_causes, physical_modes
from instep.diagnose.failure_modes import (
    at_rest,
    compounding,
    conformal,
    contact_faults,
    embodiment_mismatch,
    noise_level,
    perceptual_sensitivity,
    sensor_noise,
    static_scene,
    stochasticity,
)
from instep.gap.gap_result import RunPair

T = np.arange(200) * 0.02
LABELS = [f"cube.{p}" for p in ("x", "y", "z", "qw", "qx", "qy", "qz")]
SPEC = Spec(0.02, vector(LABELS, [*"mmm", *"1111"]), vector(["cube.vx"]), vector([]))


def cube(x=0.0, z=0.03, shake=0.0):
    """A cube that rests, slides along x, or shakes."""
    rng = np.random.default_rng(0)
    q = np.zeros((200, 7))
    q[:, 0], q[:, 2], q[:, 3] = x, z, 1.0
    q[:, :3] += rng.normal(0, shake, (200, 3))
    return Episode(SPEC, {"timestamp": T, "q": q})


def found(modes):
    return {m.name for m in modes if m.found}


def test_a_body_that_moved_only_in_reality_is_a_static_scene():
    slid = cube(x=np.clip(T - 1, 0, 1) * 0.3)
    assert static_scene([RunPair(slid, cube())]).found
    assert not static_scene([RunPair(slid, slid)]).found and not static_scene([RunPair(cube(), cube())]).found


def test_bodies_that_sink_fall_through_or_shake_are_named():
    assert found(contact_faults([RunPair(cube(), cube(z=0.025))])) == {"penetration"}
    falling = 0.03 - np.clip(T - 1, 0, None) * 0.5
    assert found(contact_faults([RunPair(cube(), cube(z=falling))])) == {"tunnelling"}
    assert found(contact_faults([RunPair(cube(), cube(shake=5e-4))])) == {"contact jitter"}
    assert found(contact_faults([RunPair(cube(), cube())])) == set()


def test_rest_is_where_nothing_moves_for_a_while():
    still = at_rest(cube(x=np.clip(T - 2, 0, 1)).q[:, :3], 0.02)
    assert still[20:80].all() and not still[100:150].any()


JOINT = Spec(0.02, vector(["a"], "rad"), vector(["a"], "rad/s"), vector(["a"], "rad"))


def joint(noise, seed, commanded=None):
    rng = np.random.default_rng(seed)
    q = np.sin(3 * T)[:, None] + rng.normal(0, noise, (200, 1))
    return Episode(
        JOINT, {"timestamp": T, "q": q, "action": np.sin(3 * T)[:, None] if commanded is None else commanded}
    )


def test_noise_is_measured_under_a_smooth_motion():
    assert noise_level(joint(0.004, 0).q)[0] == pytest.approx(0.004, rel=0.2)
    loud = [RunPair(joint(0.004, k), joint(1e-4, 100 + k)) for k in range(4)]
    quiet = [RunPair(joint(1e-4, k), joint(1e-4, 100 + k)) for k in range(4)]
    assert sensor_noise(loud).found and not sensor_noise(quiet).found


def test_chance_is_scatter_that_sensors_do_not_explain():
    rng = np.random.default_rng(1)
    pushed = [joint(1e-4, k) for k in range(6)]
    pushed = [e.with_columns({"q": e.q + rng.normal(0, 0.05) * np.sin(T)[:, None]}) for e in pushed]
    assert stochasticity([pushed]).found
    assert not stochasticity([[joint(1e-3, k) for k in range(6)]]).found
    assert "No command was repeated" in stochasticity([]).evidence


def test_errors_that_end_larger_in_the_loop_compound():
    rng = np.random.default_rng(2)

    def grown(rate):
        return [(T[1:], 1e-3 * np.exp(rate * T[1:] + rng.normal(0, 0.05, 199))) for _ in range(6)]

    assert compounding(grown(2.0), grown(0.8)).found
    assert not compounding(grown(1.2), grown(1.2)).found
    assert not compounding([(T[1:], np.full(199, 0.1))] * 3, grown(1.0)[:3]).found


def test_a_policy_that_reads_textures_is_sensitive():
    rng = np.random.default_rng(3)
    real = rng.normal(size=(6, 10, 2))
    small = real + rng.normal(0, 0.05, real.shape)
    assert perceptual_sensitivity(real, real + 0.5, small).found
    assert not perceptual_sensitivity(real, real + rng.normal(0, 0.05, real.shape), small).found


def test_commands_this_body_does_not_know_are_a_mismatch():
    def commands(scale, seed):
        rng = np.random.default_rng(seed)
        return joint(0.0, seed, np.clip(scale * np.sin((2 + rng.random()) * T + rng.random())[:, None], -1, 1))

    usual = [commands(0.7, k) for k in range(24)]
    assert embodiment_mismatch([commands(2.5, 50 + k) for k in range(3)], usual).found
    assert not embodiment_mismatch([commands(0.7, 70 + k) for k in range(3)], usual).found
    with pytest.raises(BadInput, match="needs 19 usual runs"):
        embodiment_mismatch(usual[:2], usual[:10])


def test_a_conformal_threshold_needs_enough_runs():
    assert conformal(np.arange(18.0), 0.05) == float("inf")
    assert conformal(np.arange(1, 20.0), 0.05) == 19.0
    assert conformal(np.arange(1, 100.0), 0.05) == 95.0


@pytest.mark.parametrize(
    ("settings", "name"),
    [({"action.delay": 0.05}, "latency"), ({"joint.shoulder.damping": 1.5, "joint.elbow.damping": 0.3}, "friction")],
)
def test_the_suspect_that_explains_most_is_named(arm: MujocoWorld, record, settings, name):
    wrapped, candidates = candidate_causes(arm.scene, arm)
    modes = physical_modes(identify_causes(wrapped, record(arm.tuned(settings), range(3)), candidates))
    assert found(modes) == {name}
    assert "explains" in next(m for m in modes if m.found).evidence


def test_a_simulator_that_is_right_has_no_suspect(arm: MujocoWorld, record):
    runs = record(arm, range(3))
    rng = np.random.default_rng(0)
    noisy = [r.with_columns({"q": r.q + rng.normal(0, 1e-4, r.q.shape)}) for r in runs]
    wrapped, candidates = candidate_causes(arm.scene, arm)
    assert found(physical_modes(identify_causes(wrapped, noisy, candidates))) == set()
    with pytest.raises(BadInput, match="at least one recorded run"):
        identify_causes(wrapped, [], candidates)
