"""Adaptation of a trained policy to the images of a robot, from folder to folder.

`adapt_policy` needs no labels: images that the robot's cameras took, and those that the policy was trained on.
`fine_tune` needs a few demonstrations on the robot: it trains the policy further on them and on as many of the earlier
ones, first what follows the convolutions, then everything (progressive fine-tuning). What is written is a policy like
any other, with its adapters of images.

Training of a policy's image networks on rendered images in the appearance of a robot's camera, without its labels.

`restyled` turns rendered images into such as the robot's camera would have taken: through the inverse of an adapter of
the robot's images (its background, its distribution of colours), with the noise of its camera, and with what moves
textured at random, because the texture of an object cannot be told from few images. They pass through the adapter as
the robot's images do, so that the networks learn from what the adapter makes of both. Labels are those of the
simulator: actions and poses belong to the rendered episodes.
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
from instep.core.world import Array, array_dataclass, options_dataclass

from .flow_policy import ADAPTER, FlowNet, PolicyDescription, image_adapters, read_policy, save_policy
from .image_adaptation import INVERTIBLE, METHODS, ImageAdapter, fit_adapter
from .policy_map import CAMERA
from .training import TrainingData, TrainOptions, training_data

AUTO = "auto"
AdaptBy = Literal[
    "auto", "statistics", "colour", "spectrum", "learned", "background", "translator", "normalize", "coral",
    "adversarial",
]  # fmt: skip
MAX_IMAGES = 600
"""Most images of each kind and camera that an adaptation looks at, evenly spaced."""
STILL = 0.5
"""Share of the pixels that hardly change in the images of a camera that stays in place."""
STILL_GREY = 12.0
"""Median change of such a pixel, besides noise [grey levels]."""
RESTYLED_RATE = 2e-3
"""Largest learning rate of the training on restyled images."""
REHEARSED = 1200
"""Least number of examples of earlier demonstrations in a fine-tuning, where there are as many."""
HELD_BACK = ("pose.nets", "encoder.nets")
"""Weights that the first third of a fine-tuning leaves as they are: the convolutions."""


@options_dataclass
class AdaptOptions:
    """How a policy is adapted to the images of a robot."""

    adapt_by: AdaptBy = "auto"
    """how: images by statistics, colour, spectrum, learned, background or translator; the image network by normalize,
    coral or adversarial; auto: background where cameras stay in place, else colour, and then the image network is
    trained on the rendered recordings in the robot's appearance."""
    adapt_steps: int = 400
    """steps of what is trained for it."""


@array_dataclass
class CameraImages:
    """Images of one camera, in the size that the policy uses, uint8 [n, size, size, 3]."""

    rendered: Array
    """Those that the policy was trained on."""
    real: Array
    """Those of the robot."""


@array_dataclass
class PolicyAdaptation:
    """What an adaptation did."""

    folder: Path
    images: Mapping[str, CameraImages]
    adapted: Mapping[str, Array]
    """The robot's images as the network is given them, by camera."""


def adapt_policy(
    folder: Path,
    rendered: Sequence[Episode],
    real: Sequence[Episode],
    out: Path,
    options: AdaptOptions | None = None,
    *,
    seed: int = 0,
) -> PolicyAdaptation:
    """Adapt the policy in a folder to the images of a robot's recordings, without labels, and write it to `out`."""
    optional_library("torch", "learn")
    options = options or AdaptOptions()
    description, tensors = read_policy(folder)
    if not description.inputs.cameras:
        raise BadInput(f"The policy in {str(folder)!r} uses no camera, so there are no images to adapt it to.")
    if description.adapters:
        raise BadInput(f"The policy in {str(folder)!r} is adapted already; give the one that it was adapted from.")
    images = {camera: _images(description, camera, rendered, real) for camera in description.inputs.cameras}
    adapters = _adapters(images, options, seed)
    adapted = {camera: adapters[camera](own.real) if adapters else own.real for camera, own in images.items()}
    if options.adapt_by in ("normalize", "coral", "adversarial"):
        from .encoder_adaptation import EncoderOptions, adapt_networks

        pairs = {camera: (own.rendered, own.real) for camera, own in images.items()}
        how = EncoderOptions(steps=options.adapt_steps, seed=seed)
        tensors = adapt_networks(description, tensors, options.adapt_by, pairs, how)
    if options.adapt_by == AUTO:
        how_long = TrainOptions(
            steps=options.adapt_steps, learning_rate=RESTYLED_RATE, images_per_step=32, batch=32, ema_decay=0.98,
            seed=seed,
        )  # fmt: skip
        tensors = train_restyled(description, tensors, adapters, rendered, how_long)
    for camera, adapter in adapters.items():
        tensors |= {f"{ADAPTER}{camera}.{name}": value for name, value in adapter.tensors().items()}
    metadata = {**description.metadata, "adapted": options.adapt_by}
    methods = {camera: str(adapter.method) for camera, adapter in adapters.items()}
    save_policy(out, replace(description, metadata=metadata, adapters=methods), tensors)
    return PolicyAdaptation(out, images, adapted)


def _images(
    description: PolicyDescription, camera: str, rendered: Sequence[Episode], real: Sequence[Episode]
) -> CameraImages:
    return CameraImages(*(some_images(episodes, camera, description.image_size) for episodes in (rendered, real)))


def some_images(episodes: Sequence[Episode], camera: str, size: int) -> Array:
    """Some images of a camera, evenly spaced over all episodes, uint8 [n, size, size, 3]."""
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


def _adapters(images: Mapping[str, CameraImages], options: AdaptOptions, seed: int) -> dict[str, Any]:
    """Adapters of the robot's images by camera."""
    found: dict[str, Any] = {}
    for camera, own in images.items():
        method = options.adapt_by
        if method == AUTO:
            method = "background" if all(stays(some) for some in (own.real, own.rendered)) else "colour"
        if method == "translator":
            from .pixel_translator import fit_translators

            found[camera] = fit_translators(own.real, own.rendered, steps=options.adapt_steps, seed=seed)[0]
        elif method in METHODS:
            found[camera] = fit_adapter(method, own.real, own.rendered, seed=seed)
    return found


def stays(images: Array) -> bool:
    """Whether a camera stays in place: most of its pixels hardly change."""
    change = np.median(np.abs(images.astype(np.int16) - np.median(images, axis=0).astype(np.int16)), axis=0)
    return bool((change.max(axis=-1) < STILL_GREY).mean() > STILL)


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
    from .networks import Learner

    description, tensors = read_policy(folder)
    if not real:
        raise BadInput("A policy is fine-tuned on demonstrations of a robot, and there are none.")
    net = FlowNet({name.removeprefix("net."): value for name, value in tensors.items() if name.startswith("net.")})
    options = replace(
        options or TrainOptions(steps=400, learning_rate=1e-3), ema_decay=0.98,
        width=len(net.weights["input.bias"]), blocks=net.blocks,
    )  # fmt: skip
    torch.set_num_threads(max(1, options.threads))
    adapters = image_adapters(description, tensors)
    data = _adapted_data(description, adapters, real, options)
    if rendered:
        data = _balanced(data, _rehearsed(description, adapters, rendered, len(data.features), options))
    learner, begin = Learner(description, data, options, tensors), 0
    for until, frozen in ((options.steps // 3, HELD_BACK), (options.steps, ())):
        learner.freeze(frozen)
        loss = learner.run(begin, until) if until > begin else float("nan")
        begin = until
        if progress is not None:
            progress(until, loss)
    kept = {name: value for name, value in tensors.items() if name.startswith(ADAPTER)}
    found = {**learner.tensors(), **kept}
    if not all(np.isfinite(value).all() for value in found.values()):
        raise BadInput(f"The fine-tuning diverged; try a smaller --learning-rate than {options.learning_rate:g}.")
    metadata = {**description.metadata, "fine_tuned_on": str(len(real))}
    return save_policy(out, replace(description, metadata=metadata), found)


def _adapted_data(
    description: PolicyDescription, adapters: Mapping[str, Any], episodes: Sequence[Episode], options: TrainOptions
) -> TrainingData:
    """Examples of a robot's demonstrations, with images as the policy adapts them."""
    data = training_data(episodes, description, options.pose_noise)
    images = [
        adapters[camera](own) if camera in adapters else own
        for camera, own in zip(description.inputs.cameras, data.images, strict=True)
    ]
    return replace(data, images=tuple(images))


def _rehearsed(
    description: PolicyDescription,
    adapters: Mapping[str, Any],
    episodes: Sequence[Episode],
    few: int,
    options: TrainOptions,
) -> TrainingData:
    """Some examples of earlier demonstrations, in the appearance of the robot where its adapters tell it."""
    rng, count = np.random.default_rng((options.seed, 0xF17)), max(REHEARSED, 3 * few)
    data = some_rows(training_data(episodes, description, options.pose_noise), count, rng)
    told = {camera: adapter for camera, adapter in adapters.items() if adapter.method in INVERTIBLE}
    return restyled_data(description, told, data, options.seed)


def _balanced(few: TrainingData, many: TrainingData) -> TrainingData:
    """As many examples of both: those of the few repeated."""
    again = np.arange(len(many.features)) % len(few.features)

    def both(a: Array, b: Array) -> Array:
        return np.concatenate([a[again], b])

    def maybe(a: Array | None, b: Array | None) -> Array | None:
        return None if a is None or b is None else both(a, b)

    return TrainingData(
        both(few.features, many.features),
        both(few.chunks, many.chunks),
        tuple(both(a, b) for a, b in zip(few.images, many.images, strict=True)),
        maybe(few.joints, many.joints),
        maybe(few.poses, many.poses),
    )


MAX_ROWS = 2400
"""Most rows of the rendered episodes that are used, from all of them."""
TEXTURE = 0.35
"""Largest spread of the random texture of what moves, as a share of its brightness."""
TINT = 0.08
"""Spread of the random change of each colour of what moves, as a share."""
PATCHES = 20
"""Patches of texture along each side of an image."""
NOISE = (0.7, 1.2)
"""Noise of restyled images, as a multiple of that of the camera where it was measured."""
UNKNOWN_NOISE = 8 / 255
"""Largest noise where it was not: a camera that moves shows no background to measure it on."""
PORTION = 100
"""Images that are restyled at a time."""
KEPT = ("net",)
"""Weights of the part that decides on actions; it reads no images."""


def train_restyled(
    description: PolicyDescription,
    tensors: Mapping[str, Array],
    adapters: Mapping[str, ImageAdapter],
    rendered: Sequence[Episode],
    options: TrainOptions,
) -> dict[str, Array]:
    """The weights of a policy with its image networks trained on rendered episodes in the appearance of a robot."""
    from .networks import Learner

    rng = np.random.default_rng((options.seed, 0x5E57))
    data = some_rows(training_data(rendered, description), MAX_ROWS, rng)
    data = restyled_data(description, adapters, data, options.seed)
    net = FlowNet({name.removeprefix("net."): value for name, value in tensors.items() if name.startswith("net.")})
    options = replace(options, width=len(net.weights["input.bias"]), blocks=net.blocks)
    learner = Learner(description, data, options, tensors)
    learner.freeze(KEPT)
    learner.run(0, options.steps)
    # The running mean rounds, so what was not trained is taken as it was.
    kept = {name: value for name, value in tensors.items() if name.startswith(tuple(f"{part}." for part in KEPT))}
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
    """Rendered images uint8 [n, height, width, 3] as a robot's camera would have taken them, through its adapter."""
    rng, back = np.random.default_rng((seed, 0x7E57)), adapter.inverse
    portions: list[Array] = []
    for some in np.array_split(images, max(1, len(images) // PORTION)):
        like = back(some).astype(np.float32) / np.float32(255)
        factor = np.exp(back.moving(some) * _texture(like.shape, rng))
        like = like * factor + _levels(len(some), adapter, rng) * rng.standard_normal(like.shape, np.float32)
        portions.append(adapter(np.clip(255 * like + 0.5, 0, 255).astype(np.uint8)))
    return np.concatenate(portions)


def _levels(count: int, adapter: ImageAdapter, rng: np.random.Generator) -> Array:
    """Noise of each image, 0 to 1 [count, 1, 1, 1]."""
    measured = adapter.backgrounds is not None
    low, high = (adapter.noise * share for share in NOISE) if measured else (0.0, UNKNOWN_NOISE)
    return rng.uniform(low, high, (count, 1, 1, 1)).astype(np.float32)


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


def some_rows(data: TrainingData, count: int, rng: np.random.Generator) -> TrainingData:
    """Some examples at random, all where there are no more; examples of every episode are as likely."""
    if len(data.features) <= count:
        return data
    rows = np.sort(rng.permutation(len(data.features))[:count])
    return TrainingData(
        data.features[rows],
        data.chunks[rows],
        tuple(images[rows] for images in data.images),
        None if data.joints is None else data.joints[rows],
        None if data.poses is None else data.poses[rows],
    )
