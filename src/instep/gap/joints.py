"""What a scene knows of its joints: their ranges, and which of them go round."""

from __future__ import annotations

from typing import Any, cast

from instep.scene.folder import Scene

_BALL_OR_FREE = 2
"""MuJoCo numbers joints 0 free, 1 ball, 2 slide, 3 hinge."""
_HINGE = 3


def ranges(scene: Scene) -> dict[str, tuple[float, float]]:
    """The range of each limited joint by label, or of its position servo where only that is limited [rad or m]."""
    model = cast(Any, scene).model
    found: dict[str, tuple[float, float]] = {}
    for j in range(model.njnt):
        if model.jnt_type[j] >= _BALL_OR_FREE and model.jnt_limited[j]:
            found[str(model.joint(j).name)] = (float(model.jnt_range[j, 0]), float(model.jnt_range[j, 1]))
    for a in range(model.nu):
        name = str(model.joint(model.actuator_trnid[a, 0]).name) if model.actuator_trntype[a] == 0 else ""
        # A servo that takes positions has a bias on the position.
        if name and name not in found and model.actuator_ctrllimited[a] and model.actuator_biasprm[a, 1] != 0:
            low, high = (float(x) / float(model.actuator_gear[a, 0]) for x in model.actuator_ctrlrange[a])
            found[name] = (low, high)
    return found


def going_round(scene: Scene) -> tuple[str, ...]:
    """Hinges without limits: their angles are the same after a turn."""
    model = cast(Any, scene).model
    limited = ranges(scene)
    names = [str(model.joint(j).name) for j in range(model.njnt) if model.jnt_type[j] == _HINGE]
    return tuple(name for name in names if name not in limited)
