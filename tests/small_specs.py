"""Specs of small robots whose joints are observed and commanded."""

from __future__ import annotations

from collections.abc import Sequence

from instep.core.world import Channel, Spec, vector


def joints_spec(
    joints: Sequence[str] = ("a", "b"), units: Sequence[str] | str = "rad", *, top: tuple[int, int] | None = None,
    **observed: Channel,
) -> Spec:  # fmt: skip
    """A robot with these joints, perhaps with a camera `top` of this height and width, and with more observations."""
    names = [units] * len(joints) if isinstance(units, str) else list(units)
    own = vector(joints, names)
    image = {} if top is None else {"top": Channel(("height", "width", "channels"), "", (*top, 3), "uint8")}
    seen = {"observation.state": own, **{f"observation.{name}": channel for name, channel in observed.items()}}
    seen |= {f"observation.images.{name}": channel for name, channel in image.items()}
    return Spec(0.02, own, vector(joints, [f"{unit}/s" for unit in names]), own, seen)
