"""What a training in simulation changes: numbers, and the policy that they make.

A search without gradients needs no more than this. Of an arm or a wheeled robot the numbers are the weights of a
residual on top of a policy, of a robot on legs the parameters of its gait.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np

from instep.core.records import array_dataclass
from instep.core.world import Array, Policy, Spec

from .base_estimation import LeggedEstimate
from .gait import GAIT_PARAMS, Gait, GaitBody, GaitFile
from .residual import SIGNALS, Residual, ResidualPolicy

GAIT_FILE = "gait.json"
GAIT_STEP = 0.2
"""Change of a parameter of a gait by a weight of 1, as a share of the range in which it is searched."""


class Trainable(Protocol):
    """Numbers and the policy that they make.

    Weights are [..., groups, numbers]; a search gives every group the same numbers unless it is told otherwise.
    """

    @property
    def weights(self) -> Array:
        """Where a training begins [groups, numbers]."""
        ...

    @property
    def base(self) -> str:
        """The policy that is trained, in the words of the command line."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the numbers of a group."""
        ...

    def policy(self, weights: Array) -> Policy:
        """The policy of some weights; a leading axis holds one set per world of a batch."""
        ...

    def save(self, weights: Array, folder: Path, about: Mapping[str, str]) -> Path:
        """Write the trained policy to a folder, with notes on its training."""
        ...


@array_dataclass
class TrainableResidual:
    """A residual on top of a fixed policy; one group per action."""

    fixed: Policy
    residual: Residual
    spec: Spec

    @property
    def weights(self) -> Array:
        """Those of the residual."""
        return self.residual.weights

    @property
    def base(self) -> str:
        """The fixed policy, in the words of the command line."""
        return self.residual.base

    @property
    def names(self) -> tuple[str, ...]:
        """The signals that a correction is linear in."""
        return SIGNALS

    def policy(self, weights: Array) -> Policy:
        """The fixed policy with the residual of these weights."""
        return ResidualPolicy(self.fixed, replace(self.residual, weights=weights), self.spec)

    def save(self, weights: Array, folder: Path, about: Mapping[str, str]) -> Path:
        """Write the residual."""
        return replace(self.residual, weights=weights, metadata=about).save(folder)


@array_dataclass
class TrainableGait:
    """The parameters of a gait, as changes of a given one, behind the estimation of the base; one group."""

    body: GaitBody
    gait: GaitFile
    base: str = "expert"

    @property
    def weights(self) -> Array:
        """No change."""
        return np.zeros((1, len(GAIT_PARAMS)))

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters of a gait."""
        return tuple(param.name for param in GAIT_PARAMS)

    def params(self, weights: Array) -> Array:
        """Parameters in the order of `GAIT_PARAMS`, inside their ranges where the given ones are [..., parameters]."""
        low, high = (np.array([getattr(param, end) for param in GAIT_PARAMS]) for end in ("low", "high"))
        given = self.gait.params
        changed = given + GAIT_STEP * (high - low) * weights[..., 0, :]
        return np.clip(changed, np.minimum(low, given), np.maximum(high, given))

    def policy(self, weights: Array) -> Policy:
        """The gait with these changes, fed by IMU and joints."""
        return LeggedEstimate(Gait(self.body, self.params(weights), self.gait.speed))

    def save(self, weights: Array, folder: Path, about: Mapping[str, str]) -> Path:
        """Write `gait.json`, which `instep experiment legs --gait` takes."""
        folder.mkdir(parents=True, exist_ok=True)
        words = "; ".join(f"{name} {value}" for name, value in about.items())
        return GaitFile(self.params(weights), self.gait.speed, f"Trained from {self.base}: {words}").write(
            folder / GAIT_FILE
        )
