"""Adaptation of a trained policy to the images of a robot, from folder to folder.

`adapt_policy` needs no labels: images of the robot's cameras, and those that the policy was trained on. It fits an
adapter of images, and with `auto` trains the image networks on rendered images in the robot's appearance: through the
inverse of the adapter, with the noise of the robot's camera and a random texture on moving things (few images do not
show the texture of an object). These images then pass through the adapter as the robot's images do. The labels,
actions and poses, are those of the simulator.

`fine_tune` needs a few demonstrations on the robot. It trains the policy further on them and on as many of the earlier
ones, first the layers after the convolutions, then everything (progressive fine-tuning).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput, UnknownName
from instep.core.imports import optional_library
from instep.core.world import Array, array_dataclass

from .flow_policy import ADAPTER, FlowNet, PolicyDescription, image_adapters, read_policy, save_policy
from .image_adaptation import METHODS, ImageAdapter, fit_adapter
from .policy_map import CAMERA
from .training import TrainingData, TrainOptions, training_data

AdaptBy = Literal["auto", "colour", "background"]
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
TEXTURE = 0.35
"""Largest spread of the random texture of moving things, as a share of their brightness."""
TINT = 0.08
"""Spread of the random change of each colour of moving things, as a share."""
PATCHES = 20
"""Patches of texture along each side of an image."""
NOISE = (0.7, 1.2)
"""Noise of restyled images, as a multiple of the measured noise of the camera."""
UNKNOWN_NOISE = 8 / 255
"""Largest noise where it is not measured: a moving camera shows no static background."""
PORTION = 100
"""Images that are restyled at a time."""


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


def adapt_policy(
    folder: Path, rendered: Sequence[Episode], real: Sequence[Episode], out: Path, by: AdaptBy = "auto", *,
    steps: int = 400, seed: int = 0,
) -> PolicyAdaptation:  # fmt: skip
    """Adapt the policy in a folder to the images of a robot's recordings, without labels, and write it to `out`.

    `auto` uses the background of fixed cameras and the colours of others, then trains the image networks on the
    rendered recordings in the robot's appearance for `steps` steps.
    """
    optional_library("torch", "learn")
    if by not in ("auto", *METHODS):
        raise UnknownName("adaptation", by, ("auto", *METHODS))
    description, tensors, images = open_adaptation(folder, rendered, real)
    adapters: dict[str, ImageAdapter] = {}
    for camera, own in images.items():
        method = by
        if method == "auto":
            method = "background" if is_fixed(own.real) and is_fixed(own.rendered) else "colour"
        adapters[camera] = fit_adapter(method, own.real, own.rendered)
    if by == "auto":
        options = TrainOptions(
            steps=steps, learning_rate=RESTYLED_RATE, images_per_step=32, batch=32, ema_decay=0.98, seed=seed
        )
        tensors = train_restyled(description, tensors, adapters, rendered, options)
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
    numbers = {
        f"{ADAPTER}{camera}.{name}": value
        for camera, adapter in adapters.items()
        for name, value in adapter.tensors().items()
    }
    methods = {camera: str(adapter.method) for camera, adapter in adapters.items()}
    metadata = {**description.metadata, "adapted": method}
    save_policy(out, replace(description, metadata=metadata, adapters=methods), {**tensors, **numbers})
    return PolicyAdaptation(out, images, adapted)


def some_images(episodes: Sequence[Episode], camera: str, size: int) -> Array:
    """Images of a camera, evenly spaced over all episodes, uint8 [n, size, size, 3]."""
    from .networks import resized

    for episode in episodes:
        if CAMERA + camera not in episode:
            known = [name.removeprefix(CAMERA) for name in episode.columns if name.startswith(CAMERA)]
            raise UnknownName("camera in the recordings", camera, known)
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
    kept = {name: value for name, value in tensors.items() if name.startswith("net.")}
    return {**learner.tensors(), **kept}


def restyled_data(
    description: PolicyDescription, adapters: Mapping[str, ImageAdapter], data: TrainingData, seed: int = 0
) -> TrainingData:
    """Rendered examples with the images of each adapted camera as the policy would read them on the robot."""
    images = [
        restyled(own, adapters[camera], seed=seed + number) if camera in adapters else own
        for number, (camera, own) in enumerate(zip(description.inputs.cameras, data.images, strict=True))
    ]
    return replace(data, images=tuple(images))


def restyled(images: Array, adapter: ImageAdapter, *, seed: int = 0) -> Array:
    """Rendered images uint8 [n, height, width, 3] in the appearance of a robot's camera, through its adapter."""
    rng, back = np.random.default_rng((seed, 0x7E57)), adapter.inverse
    noise = adapter.noise
    low, high = (0.0, UNKNOWN_NOISE) if noise is None else (noise * NOISE[0], noise * NOISE[1])
    portions: list[Array] = []
    for some in np.array_split(images, max(1, len(images) // PORTION)):
        like = back(some).astype(np.float32) / np.float32(255)
        factor = np.exp(back.moving(some) * _texture(like.shape, rng))
        levels = rng.uniform(low, high, (len(some), 1, 1, 1)).astype(np.float32)
        like = like * factor + levels * rng.standard_normal(like.shape, np.float32)
        portions.append(adapter(np.clip(255 * like + 0.5, 0, 255).astype(np.uint8)))
    return np.concatenate(portions)


def _texture(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Logarithms of factors of each colour: a random tint, and a random texture of smooth patches."""
    n, height, width, _ = shape
    coarse = rng.standard_normal((n, PATCHES, PATCHES, 3)).astype(np.float32)
    for axis, size in ((1, height), (2, width)):
        place = np.linspace(0, PATCHES - 1, size)
        before = np.minimum(place.astype(int), PATCHES - 2)
        share = (place - before).astype(np.float32).reshape([-1 if k == axis else 1 for k in range(4)])
        coarse = (1 - share) * coarse.take(before, axis) + share * coarse.take(before + 1, axis)
    spread = (TEXTURE * rng.random((n, 1, 1, 1))).astype(np.float32)
    return spread * coarse + (TINT * rng.standard_normal((n, 1, 1, 3))).astype(np.float32)


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
    images = [
        adapters[camera](own) if camera in adapters else own
        for camera, own in zip(description.inputs.cameras, data.images, strict=True)
    ]
    data = replace(data, images=tuple(images))
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
    kept = {name: value for name, value in tensors.items() if name.startswith(ADAPTER)}
    trained = {**learner.tensors(), **kept}
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
