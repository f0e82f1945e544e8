"""The small net of a flow policy, in NumPy: what runs where torch is not installed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from instep.core.world import Array

FREQUENCIES = 8
"""Sines and cosines by which the net is told how far along the flow it is."""


@dataclass(frozen=True, slots=True, eq=False)
class FlowNet:
    """dx/dt = net(x, t, seen): a row of residual blocks over what is seen, the noisy chunk and the time.

    h = W0 [seen, x, t]; h += B silu(A norm(h)) for each block; out = W1 norm(h).
    """

    weights: Mapping[str, Array]

    @property
    def blocks(self) -> int:
        """How many residual blocks there are."""
        return sum(name.endswith(".up.weight") for name in self.weights)

    def __call__(self, seen: Array, x: Array, t: float) -> Array:
        """The velocity of the flow [n, size] at a time between 0 (noise) and 1 (actions)."""
        w = self.weights
        times = np.broadcast_to(time_features(np.float32(t)), (len(x), 2 * FREQUENCIES))
        h = np.concatenate([seen, x, times], axis=-1, dtype=np.float32) @ w["enter.weight"].T + w["enter.bias"]
        for i in range(self.blocks):
            up = _norm(h, w[f"block{i}.norm.weight"], w[f"block{i}.norm.bias"])
            up = _silu(up @ w[f"block{i}.up.weight"].T + w[f"block{i}.up.bias"])
            h = h + up @ w[f"block{i}.down.weight"].T + w[f"block{i}.down.bias"]
        return _norm(h, w["norm.weight"], w["norm.bias"]) @ w["leave.weight"].T + w["leave.bias"]

    def flow(self, seen: Array, x: Array, steps: int) -> Array:
        """Follow the flow from noise x to actions, by the midpoint rule."""
        x = np.asarray(x, np.float32)
        dt = 1.0 / steps
        for k in range(steps):
            middle = x + 0.5 * dt * self(seen, x, k * dt)
            x = x + dt * self(seen, middle, (k + 0.5) * dt)
        return x


def time_features(t: Array | np.float32) -> Array:
    """Sines and cosines of a time [..., 2 x frequencies]."""
    angle = np.asarray(t, np.float32)[..., None] * (np.pi * 2.0 ** np.arange(FREQUENCIES)).astype(np.float32)
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=-1)


def _norm(x: Array, weight: Array, bias: Array) -> Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5) * weight + bias


def _silu(x: Array) -> Array:
    return x / (1 + np.exp(-np.clip(x, -60, None)))
