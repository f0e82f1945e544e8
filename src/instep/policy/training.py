"""Training of policies: behaviour cloning, adaptation to the images of a robot, fine-tuning.

`train` learns the flow from noise to chunks of actions, given the observation they were taken at.

`adapt_policy` needs no labels: images of the robot's cameras, and those that the policy was trained on. It fits an
adapter of images, and with `auto` trains the image networks on rendered images in the robot's appearance: through the
inverse of the adapter, with the noise of the robot's camera and a random texture on moving things (few images do not
show the texture of an object). These images then pass through the adapter as the robot's images do. The labels,
actions and poses, are those of the simulator.

`fine_tune` needs a few demonstrations on the robot. It trains the policy further on them and on as many of the earlier
ones, first the layers after the convolutions, then everything (progressive fine-tuning).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput, UnknownName
from instep.core.imports import optional_library
from instep.core.processes import usable_cores
from instep.core.reading import COUNT, TABLE, read_entries
from instep.core.world import Array, array_dataclass, frozen_dataclass, options_dataclass
from instep.scene.tasks.manipulation_tasks import heading

from .flow_policy import image_adapters, read_policy, save_policy
from .image_adaptation import METHODS, ImageAdapter, fit_adapter, restyled
from .policy_inputs import (
    ADAPTER,
    JOINTS,
    POSES,
    STATE,
    BodyFrame,
    FlowNet,
    PolicyDescription,
    PolicyInputs,
    read_weights,
    write_weights,
)
from .policy_map import CAMERA, cameras_of

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
        return self._each(lambda column: column[index])

    def random_rows(self, count: int, rng: np.random.Generator) -> TrainingData:
        """Some examples at random, all where there are no more."""
        n = len(self.features)
        return self if n <= count else self.rows(np.sort(rng.permutation(n)[:count]))

    def joined(self, other: TrainingData) -> TrainingData:
        """These examples, then others."""
        columns = iter(other.columns)
        return self._each(lambda column: np.concatenate([column, next(columns)]))

    @property
    def columns(self) -> tuple[Array, ...]:
        """All that is there, in order."""
        poses = () if self.joints is None or self.poses is None else (self.joints, self.poses)
        return (self.features, self.chunks, *self.images, *poses)

    def _each(self, change: Callable[[Array], Array]) -> TrainingData:
        features, chunks, *more = map(change, self.columns)
        count = len(self.images)
        return TrainingData(features, chunks, tuple(more[:count]), *more[count:])


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
    kind = options.device.partition(":")[0]
    found = {"cpu": lambda: True, "cuda": torch.cuda.is_available, "mps": torch.backends.mps.is_available}
    if kind not in found:
        raise BadInput(f"A network is trained on cpu, cuda or mps, not on {options.device!r}.")
    if not found[kind]():
        raise BadInput(f"This torch finds no {kind} device on this machine; train on cpu, or install a torch for it.")
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
        chunks.append(description.rotated(observed, steps, into="body").reshape(rows, -1))
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
    table = {name: value for name, value in asdict(options).items() if name not in ("threads", "device")}
    return json.loads(json.dumps(table))


AdaptBy = Literal["auto", "colour", "background", "translator", "normalize"]
"""Ways to adapt; the last two are baselines of `instep.lab`."""
MAX_IMAGES = 600
"""Largest number of images of each kind and camera that an adaptation reads, evenly spaced."""
STILL = 0.5
"""Share of nearly constant pixels in the images of a fixed camera."""
STILL_GREY = 12.0
"""Median change of a nearly constant pixel, besides noise [grey levels]."""
RESTYLED_RATE = 2e-3
"""Largest learning rate of the training on restyled images."""
REHEARSED = 1200
"""Least number of earlier examples in a fine-tuning, if there are as many."""
HELD_BACK = ("pose.nets", "encoder.nets")
"""Weights that are frozen in the first third of a fine-tuning: the convolutions."""
MAX_ROWS = 2400
"""Largest number of rows of the rendered episodes that `auto` trains on."""


@array_dataclass
class CameraImages:
    """Images of one camera, in the size that the policy uses, uint8 [n, size, size, 3]."""

    rendered: Array
    """Images that the policy was trained on."""
    real: Array
    """Images of the robot."""


@array_dataclass
class PolicyAdaptation:
    """The result of an adaptation."""

    folder: Path
    images: Mapping[str, CameraImages]
    adapted: Mapping[str, Array]
    """The robot's images as the network gets them, by camera."""


@options_dataclass
class AdaptOptions:
    """Options of an adaptation to images."""

    by: AdaptBy = "auto"
    steps: int = 400
    """Steps of training, where the method trains."""
    seed: int = 0


def adapt_policy(
    folder: Path, rendered: Sequence[Episode], real: Sequence[Episode], out: Path, options: AdaptOptions | None = None
) -> PolicyAdaptation:
    """Adapt the policy in a folder to the images of a robot's recordings, without labels, and write it to `out`.

    `auto` uses the background of fixed cameras and the colours of others, then trains the image networks on the
    rendered recordings in the robot's appearance.
    """
    optional_library("torch", "learn")
    options = options or AdaptOptions()
    by = options.by
    if by == "translator" or by == "normalize":
        raise UnknownName("adaptation", by, ("auto", *METHODS))
    description, tensors, images = open_adaptation(folder, rendered, real)
    adapters: dict[str, ImageAdapter] = {}
    for camera, own in images.items():
        method = by
        if method == "auto":
            method = "background" if is_fixed(own.real) and is_fixed(own.rendered) else "colour"
        adapters[camera] = fit_adapter(method, own.real, own.rendered)
    if by == "auto":
        how = TrainOptions(
            steps=options.steps, seed=options.seed, learning_rate=RESTYLED_RATE, images_per_step=32, batch=32,
            ema_decay=0.98,
        )  # fmt: skip
        tensors = train_restyled(description, tensors, adapters, rendered, how)
    return save_adapted(out, description, tensors, images, adapters, by)


def open_adaptation(
    folder: Path, rendered: Sequence[Episode], real: Sequence[Episode]
) -> tuple[PolicyDescription, dict[str, Array], dict[str, CameraImages]]:
    """Description and weights of the policy in a folder, and images of each of its cameras."""
    description, tensors = read_policy(folder)
    if not description.inputs.cameras:
        raise BadInput(f"The policy in {str(folder)!r} uses no camera, so there are no images to adapt it to.")
    if description.adapters:
        raise BadInput(f"The policy in {str(folder)!r} is adapted already; give the one that it was adapted from.")
    images = {
        camera: CameraImages(*(some_images(kind, camera, description.image_size) for kind in (rendered, real)))
        for camera in description.inputs.cameras
    }
    return description, tensors, images


def save_adapted(
    out: Path, description: PolicyDescription, tensors: Mapping[str, Array], images: Mapping[str, CameraImages],
    adapters: Mapping[str, Any], method: str,
) -> PolicyAdaptation:  # fmt: skip
    """Write an adapted policy with its adapters of images."""
    adapted = {camera: adapters[camera](own.real) if adapters else own.real for camera, own in images.items()}
    numbers = {f"{ADAPTER}{camera}.{k}": v for camera, one in adapters.items() for k, v in one.tensors().items()}
    methods = {camera: str(adapter.method) for camera, adapter in adapters.items()}
    metadata = {**description.metadata, "adapted": method}
    save_policy(out, replace(description, metadata=metadata, adapters=methods), {**tensors, **numbers})
    return PolicyAdaptation(out, images, adapted)


def some_images(episodes: Sequence[Episode], camera: str, size: int) -> Array:
    """Images of a camera, evenly spaced over all episodes, uint8 [n, size, size, 3]."""
    from .networks import resized

    for episode in episodes:
        if CAMERA + camera not in episode:
            raise UnknownName("camera in the recordings", camera, cameras_of(episode.columns))
    rows = [(k, i) for k, episode in enumerate(episodes) for i in range(len(episode))]
    if not rows:
        raise BadInput(f"There are no images of camera {camera!r}: the recordings are empty.")
    chosen: list[int] = np.unique(np.linspace(0, len(rows) - 1, MAX_IMAGES).round().astype(int)).tolist()
    picked = [rows[j] for j in chosen]
    return np.concatenate([resized(episodes[k][CAMERA + camera][i : i + 1], size) for k, i in picked])


def is_fixed(images: Array) -> bool:
    """Whether the images are of a fixed camera: most pixels hardly change."""
    change = np.median(np.abs(images.astype(np.int16) - np.median(images, axis=0).astype(np.int16)), axis=0)
    return bool((change.max(axis=-1) < STILL_GREY).mean() > STILL)


def train_restyled(
    description: PolicyDescription,
    tensors: Mapping[str, Array],
    adapters: Mapping[str, ImageAdapter],
    rendered: Sequence[Episode],
    options: TrainOptions,
) -> dict[str, Array]:
    """The weights of a policy with its image networks trained on rendered episodes in the appearance of a robot."""
    rng = np.random.default_rng((options.seed, 0x5E57))
    data = training_data(rendered, description)
    data = restyled_data(description, adapters, data.random_rows(MAX_ROWS, rng), options.seed)
    learner = _learner(description, tensors, data, options)
    # The part that decides on actions reads no images.
    learner.freeze(("net",))
    learner.run(0, options.steps)
    # The running mean rounds, so frozen weights are taken as they were.
    return learner.tensors() | {name: value for name, value in tensors.items() if name.startswith("net.")}


def restyled_data(
    description: PolicyDescription, adapters: Mapping[str, ImageAdapter], data: TrainingData, seed: int = 0
) -> TrainingData:
    """Rendered examples with the images of each adapted camera as the policy would read them on the robot."""
    images = list(data.images)
    for number, camera in enumerate(description.inputs.cameras):
        if camera in adapters:
            images[number] = restyled(images[number], adapters[camera], seed=seed + number)
    return replace(data, images=tuple(images))


def fine_tune(
    folder: Path,
    real: Sequence[Episode],
    rendered: Sequence[Episode],
    out: Path,
    options: TrainOptions | None = None,
    *,
    progress: Callable[[int, float], None] | None = None,
) -> Path:
    """Train the policy in a folder further on demonstrations of a robot, beside earlier ones, and write it to `out`.

    Half of the examples are of either kind, so that a few episodes do not make it forget the rest.
    """
    torch = optional_library("torch", "learn")
    if not real:
        raise BadInput("A policy is fine-tuned on demonstrations of a robot, and there are none.")
    description, tensors = read_policy(folder)
    options = replace(options or TrainOptions(steps=400, learning_rate=1e-3), ema_decay=0.98)
    torch.set_num_threads(max(1, options.threads))
    adapters = image_adapters(description, tensors)
    data = training_data(real, description, options.pose_noise)
    seen = zip(description.inputs.cameras, data.images, strict=True)
    data = replace(data, images=tuple(adapters[name](own) if name in adapters else own for name, own in seen))
    if rendered:
        rng, count = np.random.default_rng((options.seed, 0xF17)), max(REHEARSED, 3 * len(data.features))
        earlier = training_data(rendered, description, options.pose_noise).random_rows(count, rng)
        known = {camera: adapter for camera, adapter in adapters.items() if adapter.method in METHODS}
        earlier = restyled_data(description, known, earlier, options.seed)
        again = np.arange(len(earlier.features)) % len(data.features)
        data = data.rows(again).joined(earlier)
    learner, begin = _learner(description, tensors, data, options), 0
    for until, frozen in ((options.steps // 3, HELD_BACK), (options.steps, ())):
        learner.freeze(frozen)
        loss = learner.run(begin, until) if until > begin else float("nan")
        begin = until
        if progress is not None:
            progress(until, loss)
    trained = learner.tensors() | {name: value for name, value in tensors.items() if name.startswith(ADAPTER)}
    if not all(np.isfinite(value).all() for value in trained.values()):
        raise BadInput(f"The fine-tuning diverged; try a smaller --learning-rate than {options.learning_rate:g}.")
    metadata = {**description.metadata, "fine_tuned_on": str(len(real))}
    return save_policy(out, replace(description, metadata=metadata), trained)


def _learner(
    description: PolicyDescription, tensors: Mapping[str, Array], data: TrainingData, options: TrainOptions
) -> Any:
    """The optimisation of a policy from its weights, with networks of their size."""
    from .networks import Learner

    net = FlowNet({name.removeprefix("net."): value for name, value in tensors.items() if name.startswith("net.")})
    sized = replace(options, width=len(net.weights["input.bias"]), blocks=net.blocks)
    return Learner(description, data, sized, tensors)
