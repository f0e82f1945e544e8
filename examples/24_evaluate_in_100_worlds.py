"""Evaluate a policy in 100 worlds, each with its own servo stiffness and delay."""

import instep
from instep.evaluate import EvalOptions
from instep.policy import expert_of
from instep.report.eval_pages import eval_page
from instep.report.page import write_html
from instep.scene import task_of

scene = instep.load_scene("pusht")
expert = expert_of(task_of(scene), scene)
belief = instep.Box((instep.Param("actuator.*.kp", 200.0, 450.0), instep.Param("action.delay", 0.0, 0.04)))
result = instep.evaluate_policies(expert, scene, episodes=100, options=EvalOptions(randomize=belief))
print(result)
write_html("evaluation.html", eval_page(result))
