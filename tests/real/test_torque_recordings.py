"""Torques of real arms: the KUKA LWR4+ at another speed than the one fitted."""

from __future__ import annotations

from instep.data import load_episodes
from instep.gap.torque_gap import NORM, RELATIVE
from instep.tune.torque.torque_identification import IdentifyTorqueOptions, identify_torque


def test_torques_of_the_slow_kuka_run_follow_from_the_fast_one(recordings):
    folder = recordings / "kuka_lwr4"
    episodes = [e.with_columns({}, name=e.meta["group"]) for e in load_episodes(folder)]
    options = IdentifyTorqueOptions(hold_out=("measurements_2",), draws=0)
    found = identify_torque(folder / "kuka_lwr4_mujoco.urdf", episodes, options)
    assert found.after[RELATIVE].value <= 2.5 and found.after[NORM].value <= 0.65
    assert found.before[RELATIVE].value > 9
    states = {gate.name: gate.state for gate in found.gates}
    assert states["consistency"] == states["held-out"] == states["reopened"] == "passed"
