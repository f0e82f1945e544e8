"""Adaptation of images without labels: make images of a robot look like the rendered ones that a policy was trained on.

An adapter is fitted from unpaired images of both kinds, applied to every image before the policy reads it, and costs
about a millisecond for an image of 96 x 96:

    colour       mean and covariance of the three colours (the colour transfer of Reinhard and Pitie; CORAL of pixels)
    background   for fixed cameras: the static background is replaced by that of the wanted images, and the colours of
                 moving things get the distribution of those in the wanted images

Both have an inverse: rendered images made to look like a robot's train a policy for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Literal, TypeAlias

import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.world import Array, array_dataclass

Method = Literal["colour", "background"]
METHODS: tuple[Method, ...] = ("colour", "background")
TRANSLATOR = "translator"
"""Method of a pixel translator, whose networks are in `networks`."""
OFF, LEAST_OFF = 2.0, 0.01
"""Difference from the background at which a pixel counts half as moving, in median differences, and the smallest median
that is used (0 to 1)."""
LEAST_NOISE = 0.02
"""Smallest deviation of the noise of a pixel, 0 to 1."""
LARGEST_OF_THREE = 1.33
"""Mean of the largest of three magnitudes of independent normal numbers of deviation 1."""
CELLS = 10
"""Bins of each colour that separate moving things from the background."""
QUANTILES = 33
"""Quantiles that match the colours of moving things."""
OFTEN = 0.15
"""Share of images with something in front of a pixel, above which the median of the pixel is not trusted."""
LEAST_SEEN = 3
"""Images that must show the background of a pixel."""
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
class ColourAdapter:
    """Match mean and covariance of the colours: (x - shift) mix + offset."""

    shift: Array
    """[3]."""
    mix: Array
    """[3, 3]."""
    offset: Array
    """[3]."""

    method = "colour"
    noise = None
    """Unknown: a moving camera shows no static background."""

    def __call__(self, images: Array) -> Array:
        """Images uint8 [..., height, width, 3], adapted."""
        return _bytes((np.asarray(images, float) / 255 - self.shift) @ self.mix + self.offset)

    @property
    def inverse(self) -> ColourAdapter:
        """The adapter of wanted images to given ones."""
        return ColourAdapter(self.offset, np.linalg.inv(self.mix), self.shift)

    def moving(self, images: Array) -> Array:
        """1 everywhere: without a background every pixel may move."""
        return np.ones((*np.shape(images)[:-1], 1), np.float32)

    def tensors(self) -> dict[str, Array]:
        """Its numbers by name, as a file of weights holds them."""
        return {name: np.asarray(getattr(self, name), np.float32) for name in ("shift", "mix", "offset")}


@array_dataclass
class BackgroundAdapter:
    """Replace the static background, and match the quantiles of the colours of moving things."""

    mix: Array
    """Quantiles of each colour of moving things in the given and then in the wanted images [2 x QUANTILES, 3]."""
    backgrounds: Array
    """Background of the given and of the wanted images, and the median difference from the first
    [3, height, width, 3]."""

    method = "background"

    def __call__(self, images: Array) -> Array:
        """Images uint8 [..., height, width, 3], adapted."""
        share, (given, wanted) = self.moving(images), np.split(self.mix, 2)
        levels, pixels = np.arange(256) / 255, np.asarray(images, np.uint8)
        curves = [np.interp(levels, given[:, c], wanted[:, c]).astype(np.float32) for c in range(3)]
        moved = np.stack([curve[pixels[..., c]] for c, curve in enumerate(curves)], axis=-1)
        behind = self.backgrounds[1].astype(np.float32)
        return _bytes(behind + share * (moved - behind))

    @property
    def inverse(self) -> BackgroundAdapter:
        """The adapter of wanted images to given ones; rendered images have no noise."""
        given, wanted = np.split(self.mix, 2)
        layers = np.stack([self.backgrounds[1], self.backgrounds[0], np.zeros_like(self.backgrounds[2])])
        return BackgroundAdapter(np.concatenate([wanted, given]), layers)

    @property
    def noise(self) -> float:
        """Standard deviation of the pixel noise of the given images, 0 to 1."""
        return float(self.backgrounds[2].mean()) / LARGEST_OF_THREE

    def moving(self, images: Array) -> Array:
        """Probability that each pixel shows a moving thing [..., height, width, 1]."""
        return _moving(np.asarray(images, np.float32) / np.float32(255), self.backgrounds)

    def tensors(self) -> dict[str, Array]:
        """Its numbers by name, as a file of weights holds them."""
        return {name: np.asarray(getattr(self, name), np.float32) for name in ("mix", "backgrounds")}


ImageAdapter: TypeAlias = ColourAdapter | BackgroundAdapter


def read_adapter(method: str, tensors: Mapping[str, Array]) -> ImageAdapter:
    """The adapter of a method from its numbers by name."""
    if method not in METHODS:
        raise UnknownName("adaptation", method, METHODS)
    shapes: dict[str, tuple[int | None, ...]] = {"shift": (3,), "mix": (3, 3), "offset": (3,)}
    if method == "background":
        shapes = {"mix": (2 * QUANTILES, 3), "backgrounds": (3, None, None, 3)}
    for name, shape in shapes.items():
        own = np.shape(tensors.get(name, ()))
        if len(own) != len(shape) or any(want not in (None, have) for want, have in zip(shape, own, strict=True)):
            raise BadInput(
                f"An adapter of images by {method!r} has {name} of the shape {own}; it was cut off or forged."
            )
    numbers = {name: np.asarray(tensors[name], float) for name in shapes}
    return ColourAdapter(**numbers) if method == "colour" else BackgroundAdapter(**numbers)


def fit_adapter(method: Method, given: Array, wanted: Array) -> ImageAdapter:
    """The adapter that makes images like `given` look like `wanted`, both uint8 [n, height, width, 3], unpaired."""
    if method not in METHODS:
        raise UnknownName("adaptation", method, METHODS)
    for images in (given, wanted):
        if images.ndim != 4 or images.shape[-1] != 3 or not len(images):
            raise BadInput(f"Images have the shape [n, height, width, 3], not {images.shape}.")
    if method == "background":
        return _fit_background(given, wanted)
    a, b = (np.asarray(images, float).reshape(-1, 3) / 255 for images in (given, wanted))
    return ColourAdapter(a.mean(axis=0), alignment(a, b), b.mean(axis=0))


def alignment(given: Array, wanted: Array) -> Array:
    """The matrix that gives centred rows [n, k] the covariance of others: CORAL, for colours or for features.

    C_given^-1/2 C_wanted^1/2 with the covariances C. With fewer rows than features these have no inverse that holds for
    other rows, so they are shrunk towards their diagonals by k / n, and each feature is scaled by itself where n < k.
    """
    shrink = min(1.0, given.shape[1] / min(len(given), len(wanted)))
    return np.asarray(_covariance_power(given, shrink, -0.5) @ _covariance_power(wanted, shrink, 0.5))


def _covariance_power(rows: Array, shrink: float, exponent: float) -> Array:
    """A power of the covariance of rows [n, k], shrunk towards its diagonal."""
    full = np.atleast_2d(np.cov(rows.T))
    shrunk = (1 - shrink) * full + shrink * np.diag(np.diag(full))
    values, vectors = np.linalg.eigh(shrunk + 1e-4 * float(np.trace(full)) / len(full) * np.eye(len(full)))
    return (vectors * np.maximum(values, 1e-12) ** exponent) @ vectors.T


def align_features(features: Array, given: Array, wanted: Array) -> Array:
    """Features [n, k] of images like `given`, with the mean and covariance of those of `wanted` (CORAL)."""
    return (features - given.mean(axis=0)) @ alignment(given, wanted) + wanted.mean(axis=0)


def feature_distance(first: Array, second: Array) -> float:
    """Frechet distance of two sets of features [n, k] as independent normal distributions, per feature."""
    means = (first.mean(axis=0) - second.mean(axis=0)) ** 2
    spreads = (first.std(axis=0) - second.std(axis=0)) ** 2
    return float((means + spreads).mean())


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


def adaptation_sheet(given: Array, wanted: Array, *, count: int = 4) -> Array:
    """A sheet of images: some of `given`, the same after each adaptation in the order of METHODS, some of `wanted`."""
    adapted = [fit_adapter(method, given, wanted)(given[:count]) for method in METHODS]
    rows = [given[:count], *adapted, wanted[:count]]
    return np.concatenate([np.concatenate(list(images), axis=1) for images in rows])


def _bytes(values: Array) -> Array:
    return np.clip(255 * values + 0.5, 0, 255).astype(np.uint8)


def _fit_background(given: Array, wanted: Array) -> BackgroundAdapter:
    """The backgrounds of both kinds of images, and the colours of moving things; all colours without such."""
    if given.shape[1:] != wanted.shape[1:]:
        raise BadInput("Backgrounds are matched between images of one size; resize them first.")
    layers, colours = list[Array](), list[Array]()
    for some in (given, wanted):
        images = (np.asarray(some, float) / 255).astype(np.float32)
        still = _static_background(images)
        layer = np.stack([still, still, np.full_like(still, np.median(_off(images, still)))])
        moving = _moving(images, layer)[..., 0] > 0.5
        colours.append(images[moving] if moving.sum() > 10 else images.reshape(-1, 3))
        layers.append(layer)
    curves = np.concatenate([np.quantile(some, np.linspace(0, 1, QUANTILES), axis=0) for some in colours])
    return BackgroundAdapter(curves, np.stack([layers[0][0], layers[1][0], layers[0][2]]))


def _static_background(images: Array) -> Array:
    """The static background of images [n, height, width, 3].

    The median, where a pixel shows it most of the time. Where something often stands before it, colours that moving
    things have elsewhere are left out.
    """
    still = np.median(images, axis=0)
    off = np.abs(images - still).max(axis=-1)
    noise = max(1.48 * float(np.median(np.median(np.abs(images - still), axis=0))), LEAST_NOISE)
    quiet = (off > 4 * noise).mean(axis=0) < OFTEN
    cells = np.minimum((images * CELLS).astype(int), CELLS - 1) @ np.array([CELLS**2, CELLS, 1])
    moving, resting = (
        np.bincount(cells[which & quiet], minlength=CELLS**3) + 1.0 for which in (off > 5 * noise, off < 2 * noise)
    )
    moves = (moving / moving.sum() > resting / resting.sum())[cells]  # by its colour
    hidden = ((~moves).sum(axis=0) >= LEAST_SEEN) & ~quiet
    still[hidden] = np.nanmedian(np.where(moves[:, hidden, None], np.nan, images[:, hidden]), axis=0)
    return still


def _moving(values: Array, backgrounds: Array) -> Array:
    """Probability that each pixel differs from the first background [..., height, width, 1], with its neighbours."""
    if backgrounds.shape[1:] != values.shape[-3:]:
        height, width = backgrounds.shape[1:3]
        raise BadInput(f"The adapter is for images of {width} x {height} pixels.")
    usual = np.maximum(backgrounds[2, ..., 0], LEAST_OFF).astype(np.float32)
    off = _off(values, backgrounds[0].astype(np.float32)) / usual
    # In single precision exp overflows above 88; the share is 0 long before.
    return (1 / (1 + np.exp(np.minimum(-4 * (off - OFF), 60))))[..., None]


def _off(values: Array, background: Array) -> Array:
    """Largest difference of any colour from a background, averaged over 3 x 3 pixels [..., height, width]."""
    ndimage: Any = import_module("scipy.ndimage")
    off = np.abs(values - background).max(axis=-1)
    return np.asarray(ndimage.uniform_filter(off, (*(1,) * (off.ndim - 2), 3, 3), mode="nearest"))
