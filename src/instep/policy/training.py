"""The part of training that needs torch: the net, the loss, the optimiser.

Clone behaviour: learn the flow from noise to chunks of actions, given what was seen when they were taken.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from instep.core.episode import Episode
from instep.core.errors import BadInput, MissingExtra, UnknownName
from instep.core.world import Array

from .flow_policy import FREQUENCIES, Recipe, read_weights, save_policy, write_weights
from .observation_encoding import POSES, STATE, Frame, Inputs, heading


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
        from .image_encoder import TorchEyes

        return TorchEyes(cameras, self._options.image_size)

    def _new_spotter(self, data: Examples) -> Any:
        if data.joints is None or data.poses is None:
            return None
        from .image_encoder import TorchSpotter, targets

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


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """How to train."""

    steps: int = 6000
    batch: int = 256
    rate: float = 3e-3
    """Largest step size; it rises over the first steps and falls to nothing along a cosine."""
    width: int = 256
    blocks: int = 3
    horizon: int = 16
    """Actions of a chunk."""
    execute: int = 4
    """Actions of a chunk that are played."""
    samples: int = 4
    """Steps of the flow from noise to actions."""
    decay: float = 0.999
    """Decay of the running mean of the weights, which is what is kept."""
    jitter: float = 0.01
    """Noise added to what is seen, as a share of its spread, so that a net does not cling to single rows."""
    image_size: int = 96
    cameras: tuple[str, ...] = ()
    channels: tuple[str, ...] = STATE
    frame: tuple[str, str, str] | None = None
    """See and act in the frame of a body: labels of the x and y that touch it, and its name. Where cameras are given
    and the poses of bodies are not among the channels, eyes learn from the recordings to tell where it is."""
    pictures: int = 64
    """Pictures per step from which such eyes learn."""
    doubt: tuple[float, float] = (0.001, 0.01)
    """By how much such eyes may err [m], [rad]: the rest of the net learns from poses that are off by it."""
    seed: int = 0
    every: int = 2000
    """Steps from one checkpoint to the next."""
    threads: int = 0
    """Threads of the training; where 0, one for numbers alone, whose nets are too small to share, else all."""
    device: str = "cpu"
    """Where the net is trained, as torch names it: cpu, cuda. The policy that comes out needs no such device."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a training stands."""

    step: int
    loss: float
    seconds: float
    success: float | None = None
    """Success on virtual seeds that are not in the data, where that was judged."""


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """What was seen and what was done next, row by row."""

    seen: Array
    """Numbers seen [rows, size]."""
    chunks: Array
    """Actions that followed [rows, horizon x nu]."""
    pictures: tuple[Array, ...] = ()
    """Pictures seen, per camera [rows, size, size, 3], bytes."""
    joints: Array | None = None
    """Where the joints stood [rows, joints], where eyes learn to tell a pose."""
    poses: Array | None = None
    """The poses that they should tell [rows, 7]."""


def train(
    episodes: Sequence[Episode],
    folder: Path,
    options: TrainOptions | None = None,
    *,
    judge: Callable[[Path], float] | None = None,
    tell: Callable[[Progress], None] | None = None,
) -> Path:
    """Train a policy on episodes and write it into a folder; a training that was stopped goes on where it was.

    `judge` is asked at each checkpoint how well the policy in a folder does on seeds that are not in the data.
    """
    options = options or TrainOptions()
    if not episodes:
        raise BadInput("A policy is trained on episodes, and there are none.")
    torch = _torch()
    torch.set_num_threads(options.threads or (os.cpu_count() or 1 if options.cameras else 1))
    _check_device(torch, options.device)
    recipe = recipe_of(episodes, options)
    data = examples(episodes, recipe, options.doubt)

    learner = Learner(recipe, data, options)
    begin = _resume(learner, folder, options)
    clock = time.perf_counter()
    while begin < options.steps:
        until = min(options.steps, (begin // options.every + 1) * options.every)
        loss = learner.run(begin, until)
        begin = until
        tensors = learner.tensors()
        if not all(np.isfinite(t).all() for t in tensors.values()):
            raise BadInput(f"The training diverged after {until} steps; a smaller rate than {options.rate:g} may help.")
        save_policy(folder, replace(recipe, facts={**recipe.facts, "steps": str(until)}), tensors)
        _keep(learner, folder, until, options)
        success = None if judge is None else judge(folder)
        if tell is not None:
            tell(Progress(until, loss, time.perf_counter() - clock, success))
    return folder


def recipe_of(episodes: Sequence[Episode], options: TrainOptions) -> Recipe:
    """What a policy trained on these episodes will need."""
    spec = episodes[0].spec
    for episode in episodes:
        if episode.spec.action.labels != spec.action.labels:
            raise BadInput("The episodes have different actions; a policy is trained on one robot at a time.")
    channels = tuple(name for name in options.channels if all(name in episode for episode in episodes))
    inputs = Inputs.of(spec, channels, options.cameras)
    if options.frame is not None:
        if options.cameras and POSES not in options.channels and POSES in episodes[0]:
            _check_body(options.frame[2], spec.observation[POSES].labels)
            inputs = inputs.spotting(options.frame[2])
        inputs = replace(inputs, frame=_frame(options.frame, inputs, episodes))
    known = inputs.channels.get("observation.state", ())
    relative = tuple(
        unit in ("rad", "m") and label in known
        for label, unit in zip(spec.action.labels, spec.action.units, strict=True)
    )
    rows = sum(len(episode) for episode in episodes)
    facts = {"episodes": str(len(episodes)), "rows": str(rows), "seed": str(options.seed)}
    return Recipe(
        inputs, tuple(spec.action.labels), relative, options.horizon, min(options.execute, options.horizon),
        options.samples, spec.dt, options.image_size, facts,
    )  # fmt: skip


def _frame(asked: tuple[str, str, str], inputs: Inputs, episodes: Sequence[Episode]) -> Frame:
    """The frame of a body; its home is where it was at the end of the demonstrations."""
    x, y, body = asked
    labels = inputs.channels.get("observation.environment_state", ())
    joints, actions = inputs.channels.get("observation.state", ()), episodes[0].spec.action.labels
    for label in (x, y):
        if label not in joints:
            raise UnknownName("joint", label, joints)
        if label not in actions:
            raise UnknownName("action", label, actions)
    _check_body(body, labels)
    start = labels.index(f"{body}.x")
    last = [inputs.told({name: e[name][-1:] for name in inputs.channels}, e.spec)[POSES][0] for e in episodes]
    ends = np.array(last)[:, start : start + 7]
    place, angle = np.median(ends[:, :2], axis=0), heading(ends[:, 3:])
    turn = np.arctan2(np.median(np.sin(angle)), np.median(np.cos(angle)))
    return Frame((x, y), body, (float(place[0]), float(place[1]), float(turn)))


def _check_body(body: str, labels: Sequence[str]) -> None:
    if f"{body}.x" not in labels:
        raise UnknownName("body", body, [label.removesuffix(".x") for label in labels if label.endswith(".x")])


def examples(episodes: Sequence[Episode], recipe: Recipe, doubt: tuple[float, float] = (0.0, 0.0)) -> Examples:
    """Every row of the episodes as an example; at the end of an episode the last action goes on."""
    seen: list[Array] = []
    chunks: list[Array] = []
    told: list[dict[str, Array]] = []
    pictures: list[list[Array]] = [[] for _ in recipe.inputs.cameras]
    for number, episode in enumerate(episodes):
        rows, observed = len(episode), recipe.inputs.told(episode.columns, episode.spec)
        if recipe.inputs.spotted:
            told.append(observed)
            observed = {**observed, POSES: _doubted(observed[POSES], doubt, number)}
        seen.append(recipe.inputs.features(observed))
        ahead = np.minimum(np.arange(rows)[:, None] + np.arange(recipe.horizon), rows - 1)
        steps = np.asarray(episode.action, float)[ahead] - recipe.stands(observed)[:, None]
        chunks.append(recipe.to_frame(observed, steps).reshape(rows, -1))
        for camera, kept in zip(recipe.inputs.cameras, pictures, strict=True):
            from .image_encoder import shrunk

            kept.append(shrunk(episode[f"observation.images.{camera}"], recipe.image_size))
    return Examples(
        np.concatenate(seen).astype(np.float32),
        np.concatenate(chunks).astype(np.float32),
        tuple(np.concatenate(kept) for kept in pictures),
        *(np.concatenate([own[name] for own in told]) for name in ("observation.state", POSES) if told),
    )


def _doubted(poses: Array, doubt: tuple[float, float], number: int) -> Array:
    """Poses xyz + wxyz [rows, 7] of a body that lies flat, moved and turned at random, as eyes may err."""
    rng, (far, turn) = np.random.default_rng((number, 0xD0B7)), doubt
    half = (heading(poses[:, 3:]) + turn * rng.normal(size=len(poses))) / 2
    place = poses[:, :2] + far * rng.normal(size=(len(poses), 2))
    nothing = np.zeros((len(poses), 2))
    return np.column_stack([place, poses[:, 2], np.cos(half), nothing, np.sin(half)])


def _resume(learner: Any, folder: Path, options: TrainOptions) -> int:
    """The step at which an earlier training of the same kind stopped."""
    note, weights = folder / "training.json", folder / "training.safetensors"
    if not note.is_file() or not weights.is_file():
        return 0
    table = json.loads(note.read_text(encoding="utf-8"))
    if table.get("options") != _asked(options):
        raise BadInput(
            f"{str(folder)!r} holds a training with other options; give another folder, or the same options."
        )
    learner.restore(read_weights(weights))
    return int(table["step"])


def _keep(learner: Any, folder: Path, step: int, options: TrainOptions) -> None:
    write_weights(folder / "training.safetensors", learner.state())
    temporary = folder / "training.json.part"
    temporary.write_text(json.dumps({"step": step, "options": _asked(options)}), encoding="utf-8")
    temporary.replace(folder / "training.json")


def _asked(options: TrainOptions) -> dict[str, Any]:
    names = [name for name in TrainOptions.__dataclass_fields__ if name not in ("threads", "device")]
    return json.loads(json.dumps({name: getattr(options, name) for name in names}))


def _check_device(torch: Any, device: str) -> None:
    kind = device.partition(":")[0]
    if kind not in ("cpu", "cuda", "mps"):
        raise BadInput(f"A net is trained on cpu, cuda or mps, not on {device!r}.")
    if (kind == "cuda" and not torch.cuda.is_available()) or (kind == "mps" and not torch.backends.mps.is_available()):
        raise BadInput(f"This torch finds no {kind} device on this machine; train on cpu, or install a torch for it.")


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise MissingExtra("torch", "learn") from None
    return torch
