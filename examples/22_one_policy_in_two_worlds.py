"""One policy in simulation and on a robot: a simulated one here, `ws://HOST:PORT` and its token for a real one."""

import instep

scene = instep.load_scene("pusht")
policy = instep.Constant(scene.rest_action() + 0.02)
simulated = instep.rollout(instep.open_world(scene), policy, steps=60, seed=1)
with instep.connect("simulated:pusht") as robot:
    measured = instep.rollout(robot, policy, steps=60, seed=1)
joints = [scene.spec.q.labels.index(name) for name in scene.robot]
difference = simulated.q[:, joints] - measured.q[:, joints]
print(f"largest difference of the joints: {1e3 * abs(difference).max():.1f} mm")
