"""Hello, gap: how far is a simulator from "reality", and how near when two parameters are right?

Reality here is another engine with other parameters, so that this runs anywhere.
"""

import numpy as np

from instep import Script, open_world, replay, rollout

sim = open_world("pusht")  # a scene in MuJoCo
truth = {"action.delay": 0.03, "actuator.*.kp": 350.0}
robot = open_world("pusht", "rapier").tuned(truth)  # "reality": another engine, other parameters

t = np.arange(240) * sim.spec.dt
wave = sim.scene.rest_action() + 0.05 * np.sin(2 * np.pi * t)[:, None]
recorded = rollout(robot, Script(wave), steps=240)  # what the robot did at these commands


def error(simulator, anchor):
    gap = replay(simulator, recorded, anchor=anchor).q - recorded.q
    return 1e3 * np.sqrt((gap[:, :2] ** 2).mean())  # the two joints of the pusher [mm]


for anchor, name in ((1, "one step"), (30, "half a second"), (None, "open loop")):
    print(
        f"{name:14s} {error(sim, anchor):6.2f} mm, with the right parameters {error(sim.tuned(truth), anchor):6.2f} mm"
    )
