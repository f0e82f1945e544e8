"""The arms of a robot: which joints lead to which tip, and which one opens the gripper there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from instep.core.errors import BadInput
from instep.scene.folder import Scene

from .chain import Chain, chain_to
from .joints import ranges


@dataclass(frozen=True, slots=True, eq=False)
class Arm:
    """One arm: the joints and the gripper that a metric weighs, each by its range."""

    name: str
    joints: tuple[str, ...]
    gripper: str | None
    ranges: Mapping[str, float]
    """The range of each joint [rad] and of the gripper [m], by label."""
    weights: Mapping[str, float] = field(default_factory=dict[str, float])
    """The weight of each; one over their number where none is given, so that they sum to 1."""
    chain: Chain | None = None
    wrapping: tuple[str, ...] = ()
    """Joints that go round; a limited joint must not be named here, or errors above pi would be hidden."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The joints, then the gripper where there is one."""
        return (*self.joints, self.gripper) if self.gripper else self.joints

    def __post_init__(self) -> None:
        for label in self.labels:
            if not self.ranges.get(label, 0.0) > 0:
                raise BadInput(f"The range of {label!r} of {self.name!r} is not known; give it, in rad or m, above 0.")


def arms_of(scene: Scene) -> list[Arm]:
    """The arms of a scene, one per tip: the joints of its chain, and a joint of the robot that hangs at its end."""
    limits = {name: high - low for name, (low, high) in ranges(scene).items()}
    found: list[Arm] = []
    chains = {tip: chain_to(scene, tip) for tip in scene.tips}
    taken = {joint for chain in chains.values() for joint in chain.joints}
    for tip, chain in chains.items():
        gripper = next((g for g in _at_the_end(scene, tip) if g not in taken), None)
        labels = (*chain.joints, gripper) if gripper else chain.joints
        if all(limits.get(label, 0.0) > 0 for label in labels):
            kept = {label: limits[label] for label in labels}
            found.append(Arm(_name(tip, labels, len(scene.tips)), chain.joints, gripper, kept, chain=chain))
    return found


def _at_the_end(scene: Scene, tip: str) -> list[str]:
    """Joints of the robot on bodies that hang on the body of the tip, or carry it."""
    model = cast(Any, scene).model
    body = int(model.site(tip).bodyid[0])
    joints: list[str] = []
    for j in range(model.njnt):
        owner = int(model.jnt_bodyid[j])
        name = str(model.joint(j).name)
        if name in scene.robot and int(model.body_parentid[owner]) == body:
            joints.append(name)
    return joints


def _name(tip: str, labels: Sequence[str], tips: int) -> str:
    if tips == 1:
        return "arm"
    shared = 0
    while all(shared < len(label) and label[shared] == tip[shared : shared + 1] for label in labels):
        shared += 1
    return tip[:shared].rstrip("_/.-") or tip
