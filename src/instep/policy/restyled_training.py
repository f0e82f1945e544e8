"""Training of a policy's image networks on rendered images in the appearance of a robot's camera, without its labels.

`restyled` turns rendered images into such as the robot's camera would have taken: through the inverse of an adapter of
the robot's images (its background, its distribution of colours), with the noise of its camera, and with what moves
textured at random, because the texture of an object cannot be told from few images. They pass through the adapter as
the robot's images do, so that the networks learn from what the adapter makes of both. Labels are those of the
simulator: actions and poses belong to the rendered episodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from instep.core.episode import Episode
from instep.core.world import Array

from .flow_policy import FlowNet, PolicyDescription
from .image_adaptation import ImageAdapter
from .training import TrainingData, TrainOptions, training_data

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
