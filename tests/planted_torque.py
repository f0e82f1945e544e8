"""A small arm whose torques are known exactly: recordings of motions with planted masses, friction and payloads."""

from __future__ import annotations

import numpy as np

from instep import Episode, Spec
from instep.core.world import vector
from instep.physics.inverse_dynamics import Motion, model_torques

JOINTS = ("base", "shoulder", "elbow", "wrist")
ARM = """
<mujoco model="planted">
  <compiler autolimits="true"/>
  <option timestep="0.002"/>
  <worldbody>
    <body name="turret" pos="0 0 0.2">
      <inertial pos="0 0.01 0.05" mass="3" fullinertia="0.02 0.02 0.015 0 0.001 0"/>
      <joint name="base" axis="0 0 1" damping="0.5" frictionloss="0.4" range="-3 3"/>
      <body name="upper" pos="0 0 0.1">
        <inertial pos="0.02 0 0.15" mass="2.5" fullinertia="0.03 0.03 0.006 0 0.001 0"/>
        <joint name="shoulder" axis="0 1 0" damping="0.4" frictionloss="0.3" range="-3 3"/>
        <body name="fore" pos="0 0 0.3">
          <inertial pos="0 0.01 0.12" mass="1.5" fullinertia="0.01 0.01 0.003 0 0 0.0005"/>
          <joint name="elbow" axis="0 1 0" damping="0.2" frictionloss="0.2" range="-3 3"/>
          <body name="hand" pos="0 0 0.25">
            <inertial pos="0.01 0 0.04" mass="0.6" fullinertia="0.001 0.0012 0.0008 0 0 0"/>
            <joint name="wrist" axis="1 0 0" damping="0.05" frictionloss="0.05" range="-3 3"/>
            <geom type="box" size="0.02 0.02 0.02" mass="0" contype="0" conaffinity="0"/>
          </body>
        </body>
      </body>
    </body>
  </worldbody>
  <actuator>
    <position name="base" joint="base" kp="100"/>
    <position name="shoulder" joint="shoulder" kp="100"/>
    <position name="elbow" joint="elbow" kp="100"/>
    <position name="wrist" joint="wrist" kp="50"/>
  </actuator>
</mujoco>
"""


def sines(seed: int, seconds: float = 10.0, rate: float = 200.0, size: float = 1.0) -> tuple[np.ndarray, Motion]:
    """Times and a motion of three sines per joint."""
    rng, t = np.random.default_rng((seed, 1)), np.arange(round(seconds * rate)) / rate
    q = np.zeros((len(t), 4))
    v, a = np.zeros_like(q), np.zeros_like(q)
    for k in range(4):
        for w in 2 * np.pi * np.array([0.15, 0.35, 0.6]) * rng.uniform(0.8, 1.2, 3):
            amplitude, phase = size * rng.uniform(0.2, 0.5), rng.uniform(0, 2 * np.pi)
            q[:, k] += amplitude * np.sin(w * t + phase)
            v[:, k] += amplitude * w * np.cos(w * t + phase)
            a[:, k] -= amplitude * w**2 * np.sin(w * t + phase)
    return t, Motion(q, v, a)


def recording(model, seed: int, *, noise: float = 0.02, offset=0.0, accelerations: bool = True, **meta: str) -> Episode:
    """A recording of the torques of a model, with noise of a fixed share of each joint's own torque."""
    t, motion = sines(seed)
    rng = np.random.default_rng((seed, 2))
    torque = model_torques(model, motion) + offset
    torque = torque + noise * torque.std(axis=0) * rng.normal(size=torque.shape)
    q = vector(list(JOINTS), "rad")
    observation = {"observation.effort": vector(list(JOINTS), "Nm"), "observation.acceleration": vector(list(JOINTS))}
    spec = Spec(1 / 200, q, vector(list(JOINTS), "rad/s"), q, observation)
    columns = {"timestamp": t, "q": motion.q, "v": motion.v, "action": motion.q, "observation.effort": torque}
    if accelerations:
        columns["observation.acceleration"] = motion.a
    return Episode(spec, columns, {"name": f"run {seed}", **meta})
