"""Write the logs in this folder: an arm whose friction and delay the URDF does not know, with 0.2 mrad of noise."""

from pathlib import Path

import numpy as np

import instep

HERE = Path(__file__).parent
HIDDEN = {"joint.*.frictionloss": 0.15, "joint.*.friction_stiffness": 0.9999, "action.delay": 0.03}

sim = instep.open_world(instep.load_scene(HERE / "arm.urdf", rate=100.0)).tuned(HIDDEN)
t = np.arange(600) * sim.spec.dt
for run in range(4):
    rng = np.random.default_rng(run)
    sines = np.sin(2 * np.pi * np.outer(t, rng.uniform(0.1, 1.2, 4))[..., None] + rng.uniform(0, 6, (4, 2)))
    command = 0.25 * (sines - sines[0]).sum(axis=1)
    episode = instep.rollout(sim, instep.Script(command), steps=len(t), seed=run)
    measured = episode.q + 2e-4 * rng.standard_normal(episode.q.shape)
    rows = np.column_stack([episode.t, np.degrees(measured), np.degrees(episode.action)])
    header = "t,shoulder_deg,elbow_deg,shoulder_goal_deg,elbow_goal_deg"
    np.savetxt(HERE / f"run{run}.csv", rows, fmt="%.4f", delimiter=",", header=header, comments="")
