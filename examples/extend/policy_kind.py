"""A kind of policy: a proportional controller towards a fixed pose, opened by its gain.

The file `pyproject.toml` beside this one registers it in one line:

    [project.entry-points."instep.policies"]
    hold_pose = "policy_kind:open_hold_pose"

Every command that takes a policy then takes it: `instep run hold_pose:0.5 sim:pusht`.
"""

from __future__ import annotations

import numpy as np

from instep.core.rollout import rest_action
from instep.core.world import Policy, World
from instep.policy import FunctionPolicy


def open_hold_pose(rest: str, world: World) -> Policy:
    """The policy of a gain, for a world whose actions are positions of its joints."""
    gain, pose = float(rest), rest_action(world)
    return FunctionPolicy(lambda seen: (1 - gain) * np.asarray(seen["observation.state"]) + gain * pose)
