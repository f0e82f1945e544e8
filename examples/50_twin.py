"""A twin of a simulated robot: the policy moves the simulated stick, the robot follows, cameras correct the T."""

import numpy as np

from instep import Constant, Unsupported, load_scene, open_twin, open_world, rollout
from instep.physics.mujoco_cameras import render_cameras
from instep.twin import correction_log

scene = load_scene("pusht")
robot = render_cameras(open_world(scene).tuned({"geom.*.friction": 0.8}), scene)
twin = open_twin(scene, robot)

try:
    episode = rollout(twin, Constant(scene.rest_action()), steps=8, seed=3)
except Unsupported as error:  # no graphics library: nothing can be rendered
    print(error)
else:
    true = robot.reset(3).q[2:4]
    log = correction_log(episode)
    print(f"the T is at {episode.q[-1, 2:4].round(4)}, {1e3 * np.linalg.norm(episode.q[-1, 2:4] - true):.1f} mm off")
    print(f"standard deviation {1e3 * log['tee.sigma'][-1]:.2f} mm, from {len(scene.cameras)} cameras")
