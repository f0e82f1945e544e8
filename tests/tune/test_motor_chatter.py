"""Motors that jump between their limits from one physics step to the next are named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from instep import Episode, Scene, open_world
from instep.tune import TuneOptions, identify
from instep.tune.scene_gates import chattering

FEW = TuneOptions(windows=24, seeds=3, draws=0)
STIFF = """
<mujoco>
  <option timestep="0.002" integrator="implicitfast"/>
  <worldbody><body name="link"><joint name="hinge" axis="0 0 1" damping="0.1" armature="0.01"/>
    <geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.02" mass="0.5"/></body></worldbody>
  <actuator><position name="servo" joint="hinge" kp="KP" kv="KV" forcerange="-2 2"/></actuator>
</mujoco>
"""


def scene(tmp_path, kp: float, kv: float) -> Scene:
    path = tmp_path / "arm.xml"
    path.write_text(STIFF.replace("KP", str(kp)).replace("KV", str(kv)), encoding="utf-8")
    return Scene.load(path)


def swept(of: Scene, seed: int = 0) -> Episode:
    """A recording of fast sweeps."""
    sim, rng = open_world(of), np.random.default_rng(seed)
    t = np.arange(240) * of.dt
    action = 0.6 * np.sin(2 * np.pi * rng.uniform(1.0, 1.5) * t)[:, None]
    state, q, v = sim.reset(0), [], []
    for row in action:
        q.append(state.q + 1e-4 * rng.standard_normal(1))
        v.append(state.v)
        state = sim.step(state, row)
    spec = replace(sim.spec, observation={})
    columns = {"timestamp": t, "q": np.array(q), "v": np.array(v), "action": action}
    return Episode(spec, columns, {"name": f"run {seed}"})


def test_a_stiff_damped_servo_at_its_limit_chatters_and_a_soft_one_does_not(tmp_path):
    stiff, soft = scene(tmp_path, 4500, 450), scene(tmp_path, 5, 0.5)
    shares = chattering(open_world(stiff), [swept(stiff)])
    assert shares["servo"] > 0.05
    assert chattering(open_world(soft), [swept(soft)]) == {}


def test_the_solve_gate_names_motors_that_chatter(tmp_path):
    stiff = scene(tmp_path, 4500, 450)
    found = identify(stiff, [swept(stiff, seed) for seed in range(3)], ["joint.hinge.frictionloss"], FEW)
    gate = next(gate for gate in found.gates if gate.name == "solve")
    assert "servo in " in gate.message and "chatter" in gate.message
    assert gate.passed or "slower motion" in gate.remedy
