"""Your own robot: load an MJCF or URDF file, list its parameters, set them, run a batch of worlds."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from instep import Scene, Script, open_world, rollouts

ROBOT = """
<mujoco>
  <option timestep="0.002" integrator="implicitfast"/>
  <worldbody>
    <body name="upper"><joint name="shoulder" axis="0 1 0" damping="0.2"/>
      <geom type="capsule" fromto="0 0 0 0 0 -0.3" size="0.02"/>
      <body name="lower" pos="0 0 -0.3"><joint name="elbow" axis="0 1 0" damping="0.1"/>
        <geom type="capsule" fromto="0 0 0 0 0 -0.25" size="0.015"/></body></body>
  </worldbody>
  <actuator>
    <position name="shoulder" joint="shoulder" kp="40"/>
    <position name="elbow" joint="elbow" kp="20"/>
  </actuator>
</mujoco>"""

with TemporaryDirectory() as folder:
    path = Path(folder) / "arm.xml"
    path.write_text(ROBOT)
    scene = Scene.load(path)

for param in scene.params("joint.*.damping", "actuator.*.kp", "action.delay"):
    print(f"{param.address:26s} {param.low:8.3g} to {param.high:8.3g} {param.unit}")

dampings = np.linspace(0.05, 2.0, 8)
many = open_world(scene).tuned({"joint.elbow.damping": dampings})  # eight worlds, one native call per step
step = Script(np.array([[0.5, 0.8]]))
for damping, episode in zip(dampings, rollouts(many, step, seeds=range(8), steps=60), strict=True):
    print(f"damping {damping:4.2f}: elbow at {episode.q[20, 1]:.3f} rad after {episode.t[20]:.2f} s")
