"""Small models for planted truths, shared by benchmarks and tests: a servo of one joint, arms of two and of three."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from instep import MujocoWorld
from instep.core.episode import Episode
from instep.core.rollout import Script, rollout

SERVO = """
<mujoco>
  <option timestep="{timestep}" integrator="implicitfast"/>
  <worldbody>
    <body name="link" gravcomp="{gravcomp}">
      <joint name="{joint}" axis="0 1 0" damping="{damping}" armature="{armature}"/>
      <geom type="capsule" fromto="0 0 0 0 0 -0.3" size="0.02" mass="{mass}"/>
    </body>
    {bystander}
  </worldbody>
  <actuator><position name="{joint}" joint="{joint}" kp="{kp}" kv="{kv}"/></actuator>
</mujoco>
"""
BYSTANDER = """
    <body name="bystander" pos="1 0 0">
      <joint name="other" axis="0 1 0" damping="0.05" armature="0.01"/>
      <geom type="capsule" fromto="0 0 0 0 0 -0.1" size="0.02" mass="0.1"/>
    </body>
"""
ARM = """
<mujoco model="arm">
  <option {option}/>
  <worldbody>
    <body name="upper" pos="0 0 0.4">
      <joint name="shoulder" axis="0 1 0" {shoulder}/>
      <geom name="upper" type="capsule" fromto="0 0 0 0.3 0 0" size="0.02" mass="0.5"/>
      <body name="fore" pos="0.3 0 0">
        <joint name="elbow" axis="0 1 0" {elbow}/>
        <geom name="fore" type="capsule" fromto="0 0 0 0.25 0 0" size="0.02" mass="0.3"/>
        {hand}
      </body>
    </body>
  </worldbody>
  <actuator>
    <position name="shoulder" joint="shoulder" {gains[0]}/>
    <position name="elbow" joint="elbow" {gains[1]}/>
    {motors}
  </actuator>
</mujoco>
"""


HANGING = """
<mujoco>
  <option timestep="0.002" integrator="implicitfast"/>
  <worldbody>
    <body name="upper" pos="0 0 1">
      <joint name="shoulder" axis="0 1 0" armature="0.01" {joint}/>
      <geom type="capsule" fromto="0 0 0 0 0 -0.3" size="0.02" mass="0.5" contype="0" conaffinity="0"/>
      {end}
    </body>
  </worldbody>
  {rest}
</mujoco>
"""
FINGERS = """
      <body name="left" pos="0 0.01 -0.3">
        <joint name="left" type="slide" axis="0 1 0" range="0 0.04" damping="5" armature="0.1"/>
        <geom type="box" size="0.005 0.005 0.02" mass="0.02" contype="0" conaffinity="0"/>
      </body>
      <body name="right" pos="0 -0.01 -0.3">
        <joint name="right" type="slide" axis="0 -1 0" range="0 0.04" damping="5" armature="0.1"/>
        <geom type="box" size="0.005 0.005 0.02" mass="0.02" contype="0" conaffinity="0"/>
      </body>
"""
COUPLED = """
  <tendon><fixed name="split"><joint joint="left" coef="0.5"/><joint joint="right" coef="0.5"/></fixed></tendon>
  <equality><joint joint1="left" joint2="right" solref="0.005 1"/></equality>
  <actuator>
    <position name="motor1" joint="shoulder" kp="20" kv="1"/>
    <general name="grip" tendon="split" biastype="affine" gainprm="0.0157" biasprm="0 -100 -10" ctrlrange="0 255"/>
  </actuator>
"""
ARM_NOISE = 1e-4
"""Noise of the positions of `arm_recordings` [rad]."""
PLANAR_ARM = """<mujoco model="planar">
  <compiler angle="radian"/>
  <option timestep="0.002" integrator="implicitfast"/>
  <default><joint axis="0 1 0" range="-3 3"/></default>
  <worldbody>
    <body name="upper" pos="0 0 1">
      <joint name="shoulder" damping="1" armature="0.05"/>
      <geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.03" mass="2" contype="0" conaffinity="0"/>
      <body name="lower" pos="0.3 0 0">
        <joint name="elbow" damping="0.5" armature="0.03"/>
        <geom type="capsule" fromto="0 0 0 0.25 0 0" size="0.03" mass="1" contype="0" conaffinity="0"/>
        <body name="hand" pos="0.25 0 0">
          <joint name="wrist" damping="0.2" armature="0.01"/>
          <geom type="capsule" fromto="0 0 0 0.1 0 0" size="0.03" mass="0.4" contype="0" conaffinity="0"/>
        </body>
      </body>
    </body>
  </worldbody>
  <actuator>
    <position name="shoulder" joint="shoulder" kp="400" kv="30" forcerange="-60 60"/>
    <position name="elbow" joint="elbow" kp="200" kv="12" forcerange="-30 30"/>
    <position name="wrist" joint="wrist" kp="80" kv="4" forcerange="-10 10"/>
  </actuator>
</mujoco>"""
SERVO_VALUES = {
    "timestep": 0.005, "joint": "hinge", "damping": 0.05, "armature": 0.02, "mass": 0.4, "gravcomp": 0.0, "kp": 4.0,
    "kv": 0.1,
}  # fmt: skip


def servo_model(*, bystander: bool = False, **values: float | str) -> str:
    """A hanging link driven by a position servo, some of its values changed; a bystander is a joint nothing drives."""
    if unknown := values.keys() - SERVO_VALUES.keys():
        raise KeyError(f"the servo has no {sorted(unknown)}")
    return SERVO.format(**{**SERVO_VALUES, **values}, bystander=BYSTANDER if bystander else "")


def hanging_model(joint: str, end: str, rest: str) -> str:
    """A link that hangs from a shoulder: attributes of its joint, bodies at its end, what follows the worldbody."""
    return HANGING.format(joint=joint, end=end, rest=rest)


def gripper_model(joint: str = 'damping="0.3"') -> str:
    """A hanging link with two coupled fingers that an actuator drives through a tendon; attributes of its shoulder."""
    return hanging_model(joint, FINGERS, COUPLED)


def arm_model(
    shoulder: str = 'damping="0.3"',
    elbow: str = 'damping="0.1"',
    *,
    option: str = 'timestep="0.005" integrator="implicitfast"',
    gains: tuple[str, str] = ('kp="20" kv="1"', 'kp="10" kv="0.5"'),
    hand: str = "",
    motors: str = "",
) -> str:
    """An arm of two hinges with position servos: attributes of its joints and gains, what its end carries."""
    return ARM.format(option=option, shoulder=shoulder, elbow=elbow, gains=gains, hand=hand, motors=motors)


def diagnosed_arm() -> str:
    """The arm into which causes and failure modes are injected, with friction in its joints."""
    return arm_model(
        'damping="0.25" frictionloss="0.02" armature="0.01" range="-170 170"',
        'damping="0.12" frictionloss="0.01" armature="0.005" range="-170 170"',
        option='timestep="0.01" integrator="Euler"',
        gains=('kp="30" kv="1"', 'kp="15" kv="0.4"'),
    )


def write_scene(folder: Path, model: str, joints: Sequence[str], more: str = "") -> Path:
    """A scene at 50 Hz in a folder: the model, its driven joints, and further lines of the table `[robot]`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "scene.xml").write_text(model)
    named = ", ".join(f'"{joint}"' for joint in joints)
    (folder / "scene.toml").write_text(f'model = "scene.xml"\nrate = 50.0\n[robot]\njoints = [{named}]\n{more}')
    return folder


def arm_recordings(arm: MujocoWorld, real: MujocoWorld) -> list[Episode]:
    """Four runs of the planar arm with noisy positions."""
    episodes = list[Episode]()
    for seed in range(4):
        rng = np.random.default_rng(seed)
        t = np.arange(round(6.0 / arm.spec.dt)) * arm.spec.dt
        parts = rng.uniform([0.05, 0.2, 0], [0.2, 1.2, 6], (3, 4, 3))
        actions = np.stack([sum(a * np.sin(2 * np.pi * f * t + p) for a, f, p in waves) for waves in parts], axis=1)
        made = rollout(real, Script(actions), steps=len(t) - 1)
        q = made.q + ARM_NOISE * rng.standard_normal(made.q.shape)
        episodes.append(
            Episode(made.spec, {"timestamp": made.t, "q": q, "action": made.action}, {"name": f"run {seed}"})
        )
    return episodes
