"""A twin of a simulated robot: the policy moves the simulated stick, the other world follows, a camera corrects the
T."""

import numpy as np

from instep import Constant, open_world, rollout
from instep.core.errors import Unsupported
from instep.physics.mujoco_cameras import render_cameras
from instep.scene.folder import Scene
from instep.twin.camera_rig import Eyes
from instep.twin.initialization import colour_of
from instep.twin.pose_filter import PoseFilter
from instep.twin.segmentation import colour_mask
from instep.twin.twin import Twin, correction_log

scene = Scene.load("pusht")
robot = render_cameras(open_world(scene).tuned({"geom.*.friction": 0.8}), scene)
eyes = Eyes(tuple(scene.cameras.values()), colour_mask(colour_of(scene, "tee")))
twin = Twin(open_world(scene), robot, PoseFilter(scene, eyes))

try:
    episode = rollout(twin, Constant(scene.rest_action()), steps=8, seed=3)
except Unsupported as error:  # no graphics library: nothing can be rendered
    print(error)
else:
    true = robot.reset(3).q[2:4]
    log = correction_log(twin, episode.columns)
    print(f"the T is at {episode.q[-1, 2:4].round(4)}, {1e3 * np.linalg.norm(episode.q[-1, 2:4] - true):.1f} mm off")
    print(f"believed to within {1e3 * log['tee.sigma'][-1]:.2f} mm, seen by {len(eyes.cameras)} cameras")
