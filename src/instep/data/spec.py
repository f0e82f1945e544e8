"""A spec as JSON and back: the words that a LeRobot dataset has no place for."""

from __future__ import annotations

from typing import Any

from instep.core.errors import BadInput
from instep.core.world import Channel, Spec


def to_json(spec: Spec) -> dict[str, Any]:
    """A spec as plain values."""
    return {
        "dt": spec.dt,
        "q": _channel(spec.q),
        "v": _channel(spec.v),
        "action": _channel(spec.action),
        "observation": {name: _channel(channel) for name, channel in spec.observation.items()},
    }


def from_json(value: Any) -> Spec:
    """The spec of plain values, or one sentence about what is wrong with them."""
    try:
        return Spec(
            float(value["dt"]),
            _from(value["q"]),
            _from(value["v"]),
            _from(value["action"]),
            {str(name): _from(channel) for name, channel in value["observation"].items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"The stored description of the columns is damaged ({type(error).__name__}: {error}).") from None


def _channel(channel: Channel) -> dict[str, Any]:
    return {
        "labels": list(channel.labels),
        "unit": channel.unit,
        "shape": list(channel.shape),
        "dtype": channel.dtype,
    }


def _from(value: Any) -> Channel:
    return Channel(
        tuple(str(label) for label in value["labels"]),
        str(value["unit"]),
        tuple(int(n) for n in value["shape"]),
        str(value["dtype"]),
    )
