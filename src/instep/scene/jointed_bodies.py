"""Bodies on a hinge or slide that no motor drives, such as drawers and lids: which joint moves them."""

from __future__ import annotations

from collections.abc import Sequence

import mujoco
import numpy as np

from instep.core.errors import BadInput, UnknownName

_KINDS = (int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE))


def joint_of(model: mujoco.MjModel, body: str) -> int:
    """The only joint of a body, a hinge or slide, below which nothing moves it."""
    names = [model.body(b).name for b in range(1, model.nbody)]
    if body not in names:
        raise UnknownName("body", body, names)
    b = int(model.body(body).id)
    joints = np.flatnonzero(model.jnt_bodyid == b)
    if len(joints) != 1 or int(model.jnt_type[joints[0]]) not in _KINDS:
        raise BadInput(
            f"Body {body!r} under 'jointed' of [objects] has {len(joints)} joints; one hinge or slide was expected. "
            "Put bodies that move freely under 'bodies'."
        )
    parent = int(model.body_parentid[b])
    if model.body_weldid[parent] != 0:
        raise BadInput(
            f"Body {body!r} under 'jointed' of [objects] is carried by {model.body(parent).name!r}, which moves too; "
            "only bodies on something that stands still can be followed. Leave it out."
        )
    return int(joints[0])


def check_jointed(model: mujoco.MjModel, bodies: Sequence[str], robot: Sequence[str]) -> None:
    """Refuse bodies whose joint is the robot's or an actuator's, and slides without limits."""
    for body in bodies:
        j = joint_of(model, body)
        driven = (model.actuator_trntype == int(mujoco.mjtTrn.mjTRN_JOINT)) & (model.actuator_trnid[:, 0] == j)
        if model.joint(j).name in robot or driven.any():
            raise BadInput(
                f"Body {body!r} under 'jointed' of [objects] is on {model.joint(j).name!r}, a joint of the robot, "
                "which is measured; leave it out."
            )
        if not model.jnt_limited[j] and int(model.jnt_type[j]) == int(mujoco.mjtJoint.mjJNT_SLIDE):
            raise BadInput(
                f"The slide of body {body!r} under 'jointed' of [objects] has no range, in which it could be searched; "
                "give the joint a range in the model."
            )
