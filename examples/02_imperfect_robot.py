"""An imperfect robot: late, sluggish, loose and noisy, as wrappers around any world."""

import numpy as np

from instep import Script, open_world, replay, rollout
from instep.robot import Backlash, Late, Noisy, Quantized, Sluggish

sim = open_world("so101")
robot = Noisy(Quantized(Late(Backlash(Sluggish(sim, 0.04), 0.01), action=2, observation=1), 0.0015), 0.001)

t = np.arange(200) * sim.spec.dt
motion = sim.scene.rest_action() + 0.2 * np.sin(2 * np.pi * 0.5 * t)[:, None]
episode = rollout(robot, Script(motion), steps=200)

lag = episode["observation.state.stamp"][-1] - episode.t[-1]
print(f"the sensors are {-1e3 * lag:.0f} ms late")
seen = episode["observation.state"][:, 0]
print(f"shoulder_pan as seen differs from where it is by {1e3 * np.std(seen[1:] - episode.q[:-1, 0]):.2f} mrad")

for world, name in ((sim, "a perfect simulator"), (robot, "one with the same flaws")):
    error = np.abs(replay(world, episode, anchor=25).q - episode.q).max()
    print(f"{name} predicts half a second ahead to {1e3 * error:.2f} mrad")
