"""Behaviour cloning: learn the flow from noise to chunks of actions, given the observation they were taken at."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput, UnknownName
from instep.core.imports import optional_library
from instep.core.processes import usable_cores
from instep.core.reading import COUNT, TABLE, read_entries
from instep.core.world import Array, array_dataclass, frozen_dataclass, options_dataclass
from instep.scene.tasks.manipulation_tasks import heading

from .flow_policy import (
    JOINTS,
    POSES,
    STATE,
    BodyFrame,
    PolicyDescription,
    PolicyInputs,
    read_weights,
    save_policy,
    write_weights,
)
from .policy_map import CAMERA

if TYPE_CHECKING:
    from .networks import Learner


@options_dataclass
class TrainOptions:
    """Options of behaviour cloning."""

    steps: int = 6000
    """steps of training."""
    batch: int = 256
    """examples per step."""
    learning_rate: float = 3e-3
    """largest learning rate; it rises over the first steps and falls to zero along a cosine."""
    width: int = 256
    """width of the network."""
    horizon: int = 16
    """actions of a chunk."""
    execute: int = 4
    """actions of a chunk that are executed."""
    threads: int = 0
    """threads of the training; where 0, one without cameras, whose networks are too small to share, else all."""
    device: str = "cpu"
    """device of the training, as torch names it: cpu, cuda. The trained policy needs no such device."""
    seed: int = 0
    """seed of the weights and of the order of examples."""
    blocks: int = 3
    """residual blocks of the network."""
    flow_steps: int = 4
    """Integration steps of the flow from noise to actions."""
    ema_decay: float = 0.999
    """Decay of the running mean of the weights, which is what is kept."""
    input_noise: float = 0.01
    """Noise added to the features, as a share of their spread, so that a network does not fit single rows."""
    image_size: int = 96
    cameras: tuple[str, ...] = ()
    channels: tuple[str, ...] = STATE
    frame: tuple[str, str, str] | None = None
    """Observe and act in the frame of a body: labels of the x and y of the contact point, and its name. With cameras,
    and without the poses of bodies among the channels, a pose estimator is learned from the recordings."""
    images_per_step: int = 64
    """Images per step from which a pose estimator learns."""
    pose_noise: tuple[float, float] = (0.001, 0.01)
    """Errors of a pose estimator [m], [rad]: the rest of the network learns from poses with this noise."""
    checkpoint_every: int = 2000
    """Steps from one checkpoint to the next."""


@frozen_dataclass
class TrainProgress:
    """The state of a training at a checkpoint."""

    step: int
    loss: float
    seconds: float
    success: float | None = None
    """Success on held-out starts, where that was evaluated."""


@array_dataclass
class TrainingData:
    """Observations and the actions that followed, row by row."""

    features: Array
    """Features of the observations [rows, size]."""
    chunks: Array
    """Actions that followed [rows, horizon x nu]."""
    images: tuple[Array, ...] = ()
    """Images, per camera [rows, size, size, 3], bytes."""
    joints: Array | None = None
    """Joint positions [rows, joints], where a pose estimator is learned."""
    poses: Array | None = None
    """Its targets [rows, 7]."""

    def rows(self, index: Array) -> TrainingData:
        """The examples at these rows."""
        return TrainingData(
            self.features[index],
            self.chunks[index],
            tuple(images[index] for images in self.images),
            None if self.joints is None else self.joints[index],
            None if self.poses is None else self.poses[index],
        )

    def random_rows(self, count: int, rng: np.random.Generator) -> TrainingData:
        """Some examples at random, all where there are no more."""
        if len(self.features) <= count:
            return self
        return self.rows(np.sort(rng.permutation(len(self.features))[:count]))

    def joined(self, other: TrainingData) -> TrainingData:
        """These examples, then others."""
        return TrainingData(
            np.concatenate([self.features, other.features]),
            np.concatenate([self.chunks, other.chunks]),
            tuple(np.concatenate(pair) for pair in zip(self.images, other.images, strict=True)),
            None if self.joints is None or other.joints is None else np.concatenate([self.joints, other.joints]),
            None if self.poses is None or other.poses is None else np.concatenate([self.poses, other.poses]),
        )


def train(
    episodes: Sequence[Episode],
    folder: str | Path,
    options: TrainOptions | None = None,
    *,
    evaluate: Callable[[Path], float] | None = None,
    progress: Callable[[TrainProgress], None] | None = None,
) -> Path:
    """Train a policy on episodes and write it to a folder; an interrupted training continues where it was.

    `evaluate` gives the success rate of the policy in a folder, at each checkpoint.
    """
    folder, options = Path(folder), options or TrainOptions()
    if not episodes:
        raise BadInput("A policy is trained on episodes, and there are none.")
    torch = optional_library("torch", "learn")
    torch.set_num_threads(options.threads or (usable_cores() if options.cameras else 1))
    _check_device(torch, options.device)
    from .networks import Learner

    description = describe_policy(episodes, options)
    learner = Learner(description, training_data(episodes, description, options.pose_noise), options)
    begin = _resume(learner, folder, options)
    start = time.perf_counter()
    while begin < options.steps:
        until = min(options.steps, (begin // options.checkpoint_every + 1) * options.checkpoint_every)
        loss = learner.run(begin, until)
        begin = until
        tensors = learner.tensors()
        if not all(np.isfinite(t).all() for t in tensors.values()):
            tried = options.learning_rate
            raise BadInput(f"The training diverged after {until} steps; try a smaller --learning-rate than {tried:g}.")
        metadata = {**description.metadata, "steps": str(until)}
        save_policy(folder, replace(description, metadata=metadata), tensors)
        write_weights(folder / "training.safetensors", learner.state())
        temporary = folder / "training.json.part"
        temporary.write_text(json.dumps({"step": until, "options": _options_table(options)}), encoding="utf-8")
        temporary.replace(folder / "training.json")
        success = None if evaluate is None else evaluate(folder)
        if progress is not None:
            progress(TrainProgress(until, loss, time.perf_counter() - start, success))
    return folder


def describe_policy(episodes: Sequence[Episode], options: TrainOptions) -> PolicyDescription:
    """The description of a policy that is trained on these episodes."""
    spec = episodes[0].spec
    for episode in episodes:
        if episode.spec.action.labels != spec.action.labels:
            raise BadInput("The episodes have different actions; a policy is trained on one robot at a time.")
    channels = tuple(name for name in options.channels if all(name in episode for episode in episodes))
    inputs = PolicyInputs.of(spec, channels, options.cameras)
    if options.frame is not None:
        if options.cameras and POSES not in options.channels and POSES in episodes[0]:
            _check_body(options.frame[2], spec.observation[POSES].labels)
            inputs = inputs.with_estimated_pose(options.frame[2])
        inputs = replace(inputs, frame=_body_frame(options.frame, inputs, episodes))
    known = inputs.channels.get(JOINTS, ())
    relative = tuple(
        unit in ("rad", "m") and label in known
        for label, unit in zip(spec.action.labels, spec.action.units, strict=True)
    )
    rows = sum(len(episode) for episode in episodes)
    metadata = {"episodes": str(len(episodes)), "rows": str(rows), "seed": str(options.seed)}
    return PolicyDescription(
        inputs, tuple(spec.action.labels), relative, options.horizon, min(options.execute, options.horizon),
        options.flow_steps, spec.dt, options.image_size, metadata,
    )  # fmt: skip


def _body_frame(frame: tuple[str, str, str], inputs: PolicyInputs, episodes: Sequence[Episode]) -> BodyFrame:
    """The frame of a body; its goal is its median pose at the end of the demonstrations."""
    x, y, body = frame
    labels = inputs.channels.get(POSES, ())
    joints, actions = inputs.channels.get(JOINTS, ()), episodes[0].spec.action.labels
    for label in (x, y):
        if label not in joints:
            raise UnknownName("joint", label, joints)
        if label not in actions:
            raise UnknownName("action", label, actions)
    _check_body(body, labels)
    start = labels.index(f"{body}.x")
    last = [inputs.select({name: e[name][-1:] for name in inputs.channels}, e.spec)[POSES][0] for e in episodes]
    ends = np.array(last)[:, start : start + 7]
    position, angle = np.median(ends[:, :2], axis=0), heading(ends[:, 3:])
    turn = np.arctan2(np.median(np.sin(angle)), np.median(np.cos(angle)))
    return BodyFrame((x, y), body, (float(position[0]), float(position[1]), float(turn)))


def _check_body(body: str, labels: Sequence[str]) -> None:
    if f"{body}.x" not in labels:
        raise UnknownName("body", body, [label.removesuffix(".x") for label in labels if label.endswith(".x")])


def training_data(
    episodes: Sequence[Episode], description: PolicyDescription, pose_noise: tuple[float, float] = (0.0, 0.0)
) -> TrainingData:
    """Every row of the episodes as an example; at the end of an episode the last action is repeated."""
    features: list[Array] = []
    chunks: list[Array] = []
    poses: list[dict[str, Array]] = []
    images: list[list[Array]] = [[] for _ in description.inputs.cameras]
    for number, episode in enumerate(episodes):
        _check_channels(description, episode)
        rows, observed = len(episode), description.inputs.select(episode.columns, episode.spec)
        if description.inputs.estimated_body:
            poses.append(observed)
            observed = {**observed, POSES: _with_noise(observed[POSES], pose_noise, number)}
        features.append(description.inputs.features(observed))
        ahead = np.minimum(np.arange(rows)[:, None] + np.arange(description.horizon), rows - 1)
        steps = np.asarray(episode.action, float)[ahead] - description.offsets(observed)[:, None]
        chunks.append(description.to_body(observed, steps).reshape(rows, -1))
        for camera, kept in zip(description.inputs.cameras, images, strict=True):
            from .networks import resized

            kept.append(resized(episode[CAMERA + camera], description.image_size))
    return TrainingData(
        np.concatenate(features).astype(np.float32),
        np.concatenate(chunks).astype(np.float32),
        tuple(np.concatenate(kept) for kept in images),
        *(np.concatenate([own[name] for own in poses]) for name in (JOINTS, POSES) if poses),
    )


def _check_channels(description: PolicyDescription, episode: Episode) -> None:
    """Raise where a recording lacks what the policy learns from."""
    for name, labels in description.inputs.channels.items():
        have = episode.spec.observation[name].labels if name in episode else ()
        absent = [label for label in labels if label not in have]
        if absent:
            raise BadInput(
                f"A policy with {name} learns from recordings that hold {absent[0]!r} there, and one does not; give "
                "recordings with the observations that it was trained with."
            )


def _with_noise(poses: Array, noise: tuple[float, float], number: int) -> Array:
    """Poses xyz + wxyz [rows, 7] of a body that lies flat, moved and rotated at random."""
    rng, (distance, turn) = np.random.default_rng((number, 0xD0B7)), noise
    half = (heading(poses[:, 3:]) + turn * rng.normal(size=len(poses))) / 2
    position = poses[:, :2] + distance * rng.normal(size=(len(poses), 2))
    zeros = np.zeros((len(poses), 2))
    return np.column_stack([position, poses[:, 2], np.cos(half), zeros, np.sin(half)])


def _resume(learner: Learner, folder: Path, options: TrainOptions) -> int:
    """The step at which an earlier training with the same options was interrupted."""
    note, weights = folder / "training.json", folder / "training.safetensors"
    if not note.is_file() or not weights.is_file():
        return 0
    table = read_entries(note, {"options": TABLE, "step": COUNT})
    if table["options"] != _options_table(options):
        raise BadInput(
            f"{str(folder)!r} holds a training with other options; give another folder, or the same options."
        )
    learner.restore(read_weights(weights))
    return table["step"]


def _options_table(options: TrainOptions) -> dict[str, Any]:
    names = [name for name in TrainOptions.__dataclass_fields__ if name not in ("threads", "device")]
    return json.loads(json.dumps({name: getattr(options, name) for name in names}))


def _check_device(torch: Any, device: str) -> None:
    kind = device.partition(":")[0]
    if kind not in ("cpu", "cuda", "mps"):
        raise BadInput(f"A network is trained on cpu, cuda or mps, not on {device!r}.")
    if (kind == "cuda" and not torch.cuda.is_available()) or (kind == "mps" and not torch.backends.mps.is_available()):
        raise BadInput(f"This torch finds no {kind} device on this machine; train on cpu, or install a torch for it.")
