"""The part of training that needs torch: the net, the loss, the optimiser."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from instep.core.world import Array

from .net import FREQUENCIES
from .train import Examples, TrainOptions
from .trained import Recipe


class Block(nn.Module):
    """h + B silu(A norm(h))."""

    def __init__(self, width: int):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)
        nn.init.zeros_(self.down.weight)
        nn.init.zeros_(self.down.bias)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        """The block."""
        return h + self.down(nn.functional.silu(self.up(self.norm(h))))


class TorchFlowNet(nn.Module):
    """The same net as `net.FlowNet`, for training."""

    def __init__(self, seen: int, size: int, width: int, blocks: int):
        super().__init__()
        self.enter = nn.Linear(seen + size + 2 * FREQUENCIES, width)
        for i in range(blocks):
            self.add_module(f"block{i}", Block(width))
        self._blocks = blocks
        self.norm, self.leave = nn.LayerNorm(width), nn.Linear(width, size)
        nn.init.zeros_(self.leave.weight)
        nn.init.zeros_(self.leave.bias)

    def forward(self, seen: torch.Tensor, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        """The velocity of the flow [n, size] at times [n, 1]."""
        angle = t * (math.pi * 2.0 ** torch.arange(FREQUENCIES, dtype=torch.float32, device=t.device))
        h = self.enter(torch.cat([seen, x, torch.sin(angle), torch.cos(angle)], dim=-1))
        for i in range(self._blocks):
            h = self.get_submodule(f"block{i}")(h)
        return self.leave(self.norm(h))


class Learner:
    """A training under way."""

    def __init__(self, recipe: Recipe, data: Examples, options: TrainOptions):
        torch.manual_seed(options.seed)
        self._recipe, self._options = recipe, options
        self._device = torch.device(options.device)
        self._scale = _scales(data)
        self._seen = self._placed((data.seen - self._scale["seen_mean"]) / self._scale["seen_size"])
        self._chunks = self._placed((data.chunks - self._scale["action_mean"]) / self._scale["action_size"])
        self._pictures = [self._placed(p) for p in data.pictures]
        self._eyes = self._new_eyes(0 if recipe.inputs.spotted else len(data.pictures))
        self._spot = self._new_spotter(data)
        sight = self._eyes.size if self._eyes is not None else 0
        self._net = TorchFlowNet(data.seen.shape[1] + sight, data.chunks.shape[1], options.width, options.blocks)
        parts = {"net": self._net, "eyes": self._eyes, "spot": self._spot}
        self._all = nn.ModuleDict({name: part for name, part in parts.items() if part is not None})
        self._all.to(self._device)
        self._mean = {k: v.detach().clone() for k, v in self._all.state_dict().items()}
        self._optimiser = torch.optim.AdamW(self._all.parameters(), lr=options.rate, weight_decay=1e-4)

    def run(self, begin: int, until: int) -> float:
        """Take the steps from one number to another; the mean loss of the last of them."""
        options, losses = self._options, []
        for step in range(begin, until):
            # Draws depend on the step alone, so that a training that was stopped goes on as if it had not been.
            draw = torch.Generator().manual_seed(options.seed * 1_000_003 + step)
            rows = torch.randint(len(self._seen), (options.batch,), generator=draw)
            loss = self._loss(rows, draw)
            self._optimiser.zero_grad(set_to_none=True)
            (loss if self._spot is None else loss + self._spot_loss(draw)).backward()
            # A spotter and the rest share nothing, so a steep step of one must not shorten the other's.
            for part in (self._all,) if self._spot is None else self._all.values():
                nn.utils.clip_grad_norm_(part.parameters(), 1.0)
            for group in self._optimiser.param_groups:
                group["lr"] = options.rate * _schedule(step, options.steps)
            self._optimiser.step()
            self._average(step)
            losses.append(loss.detach())
        return float(torch.stack(losses[-200:]).mean())

    def tensors(self) -> dict[str, Array]:
        """The running mean of the weights and the scales, as a policy holds them."""
        found = {f"scale.{name}": value for name, value in self._scale.items()}
        return {**found, **{name: value.cpu().numpy().copy() for name, value in self._mean.items()}}

    def state(self) -> dict[str, Array]:
        """Everything needed to go on later."""
        out = {f"now.{k}": v.detach().cpu().numpy() for k, v in self._all.state_dict().items()}
        out |= {f"mean.{k}": v.cpu().numpy() for k, v in self._mean.items()}
        for i, entry in self._optimiser.state_dict()["state"].items():
            out |= {f"optimiser.{i}.{k}": np.asarray(v.cpu().numpy(), np.float32) for k, v in entry.items()}
        return out

    def restore(self, state: Mapping[str, Array]) -> None:
        """Go on from an earlier state."""
        tensors = {k: self._placed(np.array(v)) for k, v in state.items()}
        self._all.load_state_dict({k[4:]: v for k, v in tensors.items() if k.startswith("now.")})
        self._mean = {k[5:]: v for k, v in tensors.items() if k.startswith("mean.")}
        whole: dict[str, Any] = self._optimiser.state_dict()
        whole["state"] = {}
        for name, value in tensors.items():
            if name.startswith("optimiser."):
                _, index, key = name.split(".")
                whole["state"].setdefault(int(index), {})[key] = value
        self._optimiser.load_state_dict(whole)

    def _loss(self, rows: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
        """How far the net is from the straight way between noise and actions.

        Draws are made on the processor, so that they are the same whatever device the net is on.
        """
        rows, where = rows.to(self._device), self._device
        seen, target = self._seen[rows], self._chunks[rows]
        seen = seen + self._options.jitter * torch.randn(seen.shape, generator=draw).to(where)
        if self._eyes is not None:
            pictures = [pictures[rows] for pictures in self._pictures]
            seen = torch.cat([seen, self._eyes(pictures, draw)], dim=-1)
        noise = torch.randn(target.shape, generator=draw).to(where)
        t = torch.rand((len(rows), 1), generator=draw).to(where)
        along = (1 - t) * noise + t * target
        return ((self._net(seen, along, t) - (target - noise)) ** 2).mean()

    def _spot_loss(self, draw: torch.Generator) -> torch.Tensor:
        """How far off the eyes are about where the body is, in units of their own."""
        rows = torch.randint(len(self._seen), (self._options.pictures,), generator=draw).to(self._device)
        said = self._spot([pictures[rows] for pictures in self._pictures], self._joints[rows])
        return nn.functional.smooth_l1_loss(said, self._spots[rows], beta=0.1)

    def _average(self, step: int) -> None:
        keep = min(self._options.decay, (1 + step) / (10 + step))
        with torch.no_grad():
            for name, value in self._all.state_dict().items():
                self._mean[name].mul_(keep).add_(value, alpha=1 - keep)

    def _placed(self, values: Array) -> torch.Tensor:
        return torch.from_numpy(values).to(self._device)

    def _new_eyes(self, cameras: int) -> Any:
        if not cameras:
            return None
        from .vision import TorchEyes

        return TorchEyes(cameras, self._options.image_size)

    def _new_spotter(self, data: Examples) -> Any:
        if data.joints is None or data.poses is None:
            return None
        from .spotter import TorchSpotter, targets

        size = data.joints.std(axis=0)
        scale = {"joint_mean": data.joints.mean(axis=0), "joint_size": np.where(size > 1e-6, size, 1.0)}
        scale["spot_mean"] = data.poses[:, :2].mean(axis=0)
        self._scale |= {name: value.astype(np.float32) for name, value in scale.items()}
        told = (data.joints - self._scale["joint_mean"]) / self._scale["joint_size"]
        self._joints = self._placed(told.astype(np.float32))
        self._spots = self._placed(targets(data.poses, self._scale["spot_mean"]))
        return TorchSpotter(len(data.pictures), data.joints.shape[1])


def _scales(data: Examples) -> dict[str, Array]:
    """Means and spreads; what hardly varies is not blown up."""
    seen, chunks = data.seen, data.chunks
    size = seen.std(axis=0)
    spread = chunks.std(axis=0)
    return {
        "seen_mean": seen.mean(axis=0),
        "seen_size": np.where(size > 1e-3, size, 1.0).astype(np.float32),
        "action_mean": chunks.mean(axis=0),
        # One size for all steps of an action, so that the near ones weigh as they should.
        "action_size": np.maximum(np.full_like(spread, 1e-4), spread),
    }


def _schedule(step: int, steps: int) -> float:
    warm = min(1.0, (step + 1) / 200)
    return warm * 0.5 * (1 + math.cos(math.pi * step / steps))
