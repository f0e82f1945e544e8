"""Adaptation of images without labels: make those of a robot look like the rendered ones that a policy was trained on.

An adapter is fitted from unpaired images of both kinds, applied to every image before the policy reads it, and costs
about a millisecond for an image of 96 x 96. `fit_adapter` knows five, from the plainest to a learned one:

    statistics   mean and spread of each colour
    colour       mean and covariance of the three colours (the colour transfer of Reinhard and Pitie; CORAL of pixels)
    spectrum     amplitudes of low spatial frequencies, with the phases kept (Fourier domain adaptation)
    learned      a polynomial map of colours and place, trained on unpaired images by sliced optimal transport
    background   for cameras that stay in place: what never moves is replaced by what is there in the wanted images, and
                 the colours of the rest get the distribution of those of the wanted rest

`pixel_translator` has a network for the same job. All run both ways: rendered images made to look like a robot's train
a policy for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.world import Array, Observation, Policy, array_dataclass

from .policy_map import CAMERA

Method = Literal["statistics", "colour", "spectrum", "learned", "background"]
METHODS: tuple[Method, ...] = ("statistics", "colour", "spectrum", "learned", "background")
INVERTIBLE: tuple[Method, ...] = ("statistics", "colour", "background")
"""Methods whose adapters say what rendered images would look like on the robot."""
SPECTRUM_SHARE = 0.05
"""Share of the spatial frequencies, from the lowest on, whose amplitudes are matched."""
PIXELS = 20_000
"""Pixels of each kind that a learned adapter is trained on."""
SLICES = 40
"""Random projections of the colours along which distributions are matched in turn."""
SMOOTH = 1e-3
"""Ridge of the polynomial, as a share of the pixels."""
OFF, LEAST_OFF = 2.0, 0.01
"""Difference from the background at which a pixel is half taken for something else, as a multiple of the median one,
and the least that is taken for the median, 0 to 1."""
LEAST_NOISE = 0.02
"""Least deviation of the noise of a pixel, 0 to 1."""
LARGEST_OF_THREE = 1.33
"""Mean of the largest of three magnitudes of independent normal numbers of deviation 1."""
CELLS = 10
"""Steps of each colour by which things that move are told from what does not."""
QUANTILES = 33
"""Quantiles by which the colours of what moves are matched."""
OFTEN = 0.15
"""Share of the images in which something stands before a pixel, from which on its median is not trusted."""
LEAST_SEEN = 3
"""Images that must show the background of a pixel."""


@array_dataclass
class ImageAdapter:
    """A fitted map from images to images."""

    method: Method
    shift: Array
    """Colours that are subtracted first [3]."""
    mix: Array
    """Matrix of the colours [3, 3], or of their polynomial [terms, 3]; of backgrounds the quantiles of each colour of
    what moves, in the given and then in the wanted images [2 x QUANTILES, 3]."""
    offset: Array
    """Colours that are added last [3]."""
    amplitude: Array | None = None
    """Amplitudes of the spectrum [height, width, 3]."""
    backgrounds: Array | None = None
    """What never moves in the given and in the wanted images, and the median difference from the given one
    [3, height, width, 3]."""

    def __call__(self, images: Array) -> Array:
        """Images uint8 [..., height, width, 3], adapted."""
        if self.method == "background" and self.backgrounds is not None:
            return np.clip(255 * self._before(images, self.backgrounds) + 0.5, 0, 255).astype(np.uint8)
        values = np.asarray(images, float) / 255
        if self.method == "spectrum" and self.amplitude is not None:
            out = _with_amplitude(values, self.amplitude)
        elif self.method == "learned":
            out = _terms(values - self.shift, _places(values)) @ self.mix
        else:
            out = (values - self.shift) @ self.mix + self.offset
        return np.clip(255 * out + 0.5, 0, 255).astype(np.uint8)

    @property
    def inverse(self) -> ImageAdapter:
        """The adapter of wanted images to given ones; of those by statistics, colour and background alone."""
        if self.method == "background" and self.backgrounds is not None:
            given, wanted = np.split(self.mix, 2)
            layers = np.stack([self.backgrounds[1], self.backgrounds[0], np.zeros_like(self.backgrounds[2])])
            return replace(self, mix=np.concatenate([wanted, given]), backgrounds=layers)
        if self.method not in INVERTIBLE:
            raise BadInput(f"Images adapted by {self.method!r} do not say what the robot's would look like.")
        return replace(self, shift=self.offset, mix=np.linalg.inv(self.mix), offset=self.shift)

    @property
    def noise(self) -> float:
        """Standard deviation of the noise of a pixel in the given images, 0 to 1; 0 where it was not measured."""
        return 0.0 if self.backgrounds is None else float(self.backgrounds[2].mean()) / LARGEST_OF_THREE

    def moving(self, images: Array) -> Array:
        """How surely each pixel shows something before the background, 0 to 1 [..., height, width, 1]; 1 without."""
        if self.backgrounds is None:
            return np.ones((*np.shape(images)[:-1], 1), np.float32)
        return _moving(_unit(images), self.backgrounds)

    def _before(self, images: Array, backgrounds: Array) -> Array:
        """What moves, in adapted colours, before the wanted background."""
        share, (given, wanted) = _moving(_unit(images), backgrounds), np.split(self.mix, 2)
        levels, bytes_ = np.arange(256) / 255, np.asarray(images, np.uint8)
        curves = [np.interp(levels, given[:, c], wanted[:, c]).astype(np.float32) for c in range(3)]
        moved = np.stack([curve[bytes_[..., c]] for c, curve in enumerate(curves)], axis=-1)
        behind = backgrounds[1].astype(np.float32)
        return behind + share * (moved - behind)

    def tensors(self) -> dict[str, Array]:
        """Its numbers by name, as a file of weights holds them."""
        parts = {"shift": self.shift, "mix": self.mix, "offset": self.offset, "amplitude": self.amplitude}
        parts["backgrounds"] = self.backgrounds
        return {name: np.asarray(value, np.float32) for name, value in parts.items() if value is not None}


MIXES: Mapping[str, int] = {"learned": 15, "background": 2 * QUANTILES}
"""Rows of the mix of methods other than by a matrix."""


def read_adapter(method: str, tensors: Mapping[str, Array]) -> ImageAdapter:
    """The adapter of a method from its numbers by name."""
    name: Method | None = next((known for known in METHODS if known == method), None)
    if name is None:
        raise UnknownName("adaptation", method, METHODS)
    part = {"spectrum": ("amplitude",), "background": ("backgrounds",)}.get(name, ())
    for one in ("shift", "mix", "offset", *part):
        if one not in tensors:
            raise BadInput(f"An adapter of images by {method!r} lacks its {one}; it was cut off or forged.")
    shapes = {"shift": (3,), "offset": (3,), "mix": (MIXES.get(name, 3), 3)}
    for one, shape in shapes.items():
        if tensors[one].shape != shape:
            raise BadInput(f"An adapter of images by {method!r} has a {one} of the shape {tensors[one].shape}.")
    for one in part:
        layers = (3,) if one == "backgrounds" else ()
        if (
            tensors[one].ndim != 3 + len(layers)
            or tensors[one].shape[: len(layers)] != layers
            or not (tensors[one].shape[-1] == 3)
        ):
            raise BadInput(f"An adapter of images by {method!r} has {one} of the shape {tensors[one].shape}.")
    numbers = {one: np.asarray(tensors[one], float) for one in ("shift", "mix", "offset", *part)}
    return ImageAdapter(name, **numbers)


def fit_adapter(method: Method, given: Array, wanted: Array, *, seed: int = 0) -> ImageAdapter:
    """The adapter that makes images like `given` look like `wanted`, both uint8 [n, height, width, 3], unpaired."""
    if method not in METHODS:
        raise UnknownName("adaptation", method, METHODS)
    for images in (given, wanted):
        if images.ndim != 4 or images.shape[-1] != 3 or not len(images):
            raise BadInput(f"Images have the shape [n, height, width, 3], not {images.shape}.")
    a, b = np.asarray(given, float) / 255, np.asarray(wanted, float) / 255
    flat_a, flat_b = a.reshape(-1, 3), b.reshape(-1, 3)
    shift, offset = flat_a.mean(axis=0), flat_b.mean(axis=0)
    if method == "statistics":
        mix = np.diag(flat_b.std(axis=0) / np.maximum(flat_a.std(axis=0), 1e-3))
        return ImageAdapter(method, shift, mix, offset)
    if method == "colour":
        return ImageAdapter(method, shift, alignment(flat_a, flat_b), offset)
    if method == "spectrum":
        if a.shape[1:] != b.shape[1:]:
            raise BadInput("Spectra are matched between images of one size; resize them first.")
        amplitude = np.abs(np.fft.fft2(b, axes=(1, 2))).mean(axis=0)
        return ImageAdapter(method, shift, np.eye(3), offset, amplitude)
    if method == "background":
        return _background(a, b)
    return _learned(a, b, np.random.default_rng((seed, 0x1A6E)))


def alignment(given: Array, wanted: Array) -> Array:
    """The matrix that gives centred rows [n, k] the covariance of others: CORAL, for colours or for features.

    C_given^-1/2 C_wanted^1/2 with the covariances C. With fewer rows than features these have no inverse that holds for
    other rows, so they are shrunk towards their diagonals by k / n, and each feature is scaled by itself where n < k.
    """
    shrink = min(1.0, given.shape[1] / min(len(given), len(wanted)))
    whiten, colour = (_covariance(rows, shrink) for rows in (given, wanted))
    return np.asarray(_power(whiten, -0.5) @ _power(colour, 0.5))


def _covariance(rows: Array, shrink: float) -> Array:
    full = np.atleast_2d(np.cov(rows.T))
    diagonal = np.diag(np.diag(full))
    return (1 - shrink) * full + shrink * diagonal + 1e-4 * float(np.trace(full)) / len(full) * np.eye(len(full))


def align_features(features: Array, given: Array, wanted: Array) -> Array:
    """Features [n, k] of images like `given`, with the mean and covariance of those of `wanted` (CORAL)."""
    return (features - given.mean(axis=0)) @ alignment(given, wanted) + wanted.mean(axis=0)


def feature_distance(first: Array, second: Array) -> float:
    """Frechet distance of two sets of features [n, k] as independent normal distributions, per feature."""
    means = (first.mean(axis=0) - second.mean(axis=0)) ** 2
    spreads = (first.std(axis=0) - second.std(axis=0)) ** 2
    return float((means + spreads).mean())


def adaptation_sheet(given: Array, wanted: Array, *, count: int = 4) -> Array:
    """A sheet of images: some of `given`, the same after each adaptation in the order of METHODS, some of `wanted`."""
    adapted = [fit_adapter(method, given, wanted)(given[:count]) for method in METHODS]
    rows = [given[:count], *adapted, wanted[:count]]
    return np.concatenate([np.concatenate(list(images), axis=1) for images in rows])


class AdaptedPolicy:
    """A policy whose camera images pass through adapters; the policy itself stays as it is."""

    def __init__(self, policy: Policy, adapters: Mapping[str, ImageAdapter]):
        self._policy, self._adapters = policy, {CAMERA + name: adapter for name, adapter in adapters.items()}

    def reset(self, seed: int = 0) -> None:
        """Reset the policy."""
        self._policy.reset(seed)

    def act(self, observation: Observation) -> Array:
        """The action for the adapted images."""
        missing = [name for name in self._adapters if name not in observation]
        if missing:
            raise UnknownName("camera", missing[0].removeprefix(CAMERA), list(observation))
        adapted = {name: adapter(np.asarray(observation[name])) for name, adapter in self._adapters.items()}
        return self._policy.act({**observation, **adapted})


def _power(matrix: Array, exponent: float) -> Array:
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.maximum(values, 1e-12) ** exponent) @ vectors.T


def _with_amplitude(values: Array, amplitude: Array) -> Array:
    height, width = values.shape[-3:-1]
    if amplitude.shape[:2] != (height, width):
        raise BadInput(f"The adapter is for images of {amplitude.shape[1]} x {amplitude.shape[0]} pixels.")
    spectrum = np.fft.fft2(values, axes=(-3, -2))
    y, x = np.abs(np.fft.fftfreq(height))[:, None], np.abs(np.fft.fftfreq(width))[None]
    low = (np.maximum(x, y) <= SPECTRUM_SHARE)[..., None]
    size = np.abs(spectrum)
    return np.fft.ifft2(np.where(low, amplitude, size) * np.exp(1j * np.angle(spectrum)), axes=(-3, -2)).real


def _learned(a: Array, b: Array, rng: np.random.Generator) -> ImageAdapter:
    """Move colours along random directions until their distributions agree, then fit a polynomial to the move."""
    places = np.broadcast_to(_places(a), (*a.shape[:-1], 2)).reshape(-1, 2)
    pick = rng.integers(0, len(places), PIXELS)
    start, place = a.reshape(-1, 3)[pick], places[pick]
    wanted = b.reshape(-1, 3)[rng.integers(0, b.size // 3, PIXELS)]
    moved = start.copy()
    for _ in range(SLICES):
        turn, _ = np.linalg.qr(rng.standard_normal((3, 3)))
        for axis in turn.T:
            here, there = moved @ axis, np.sort(wanted @ axis)
            order = np.argsort(here)
            step = np.empty(len(here))
            step[order] = there - here[order]
            moved = moved + 0.5 * step[:, None] * axis
    shift = start.mean(axis=0)
    terms = _terms(start - shift, place)
    gram: Array = terms.T @ terms + SMOOTH * PIXELS * np.diag([0.0, *[1.0] * (terms.shape[1] - 1)])
    return ImageAdapter("learned", shift, np.linalg.solve(gram, np.asarray(terms.T @ moved)), np.zeros(3))


def _background(a: Array, b: Array) -> ImageAdapter:
    """The backgrounds of both kinds of images, and the colours of what moves before them."""
    if a.shape[1:] != b.shape[1:]:
        raise BadInput("Backgrounds are matched between images of one size; resize them first.")
    layers, colours = list[Array](), list[Array]()
    for images in (a.astype(np.float32), b.astype(np.float32)):
        backgrounds = _still(images)
        moving = _moving(images, backgrounds)[..., 0] > 0.5
        # Where nothing moves, colours as they are.
        colours.append(images[moving] if moving.sum() > 10 else images.reshape(-1, 3))
        layers.append(backgrounds)
    curves = np.concatenate([np.quantile(some, np.linspace(0, 1, QUANTILES), axis=0) for some in colours])
    both = np.stack([layers[0][0], layers[1][0], layers[0][2]])
    return ImageAdapter("background", np.zeros(3), curves, np.zeros(3), backgrounds=both)


def _still(images: Array) -> Array:
    """What never moves, twice, and the median difference from it [3, height, width, 3].

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
    own = (moving / moving.sum() > resting / resting.sum())[cells]  # of what moves, by its colour
    hidden = ((~own).sum(axis=0) >= LEAST_SEEN) & ~quiet
    still[hidden] = np.nanmedian(np.where(own[:, hidden, None], np.nan, images[:, hidden]), axis=0)
    return np.stack([still, still, np.full_like(still, np.median(_off(images, still)))])


def _moving(values: Array, backgrounds: Array) -> Array:
    """The share of each pixel that is not the given background [..., height, width, 1], from the pixels around it."""
    if backgrounds.shape[1:] != values.shape[-3:]:
        height, width = backgrounds.shape[1:3]
        raise BadInput(f"The adapter is for images of {width} x {height} pixels.")
    usual = np.maximum(backgrounds[2, ..., 0], LEAST_OFF).astype(np.float32)
    off = _off(values, backgrounds[0].astype(np.float32)) / usual
    # In single precision exp overflows above 88; the share is 0 long before.
    return (1 / (1 + np.exp(np.minimum(-4 * (off - OFF), 60))))[..., None]


def _unit(images: Array) -> Array:
    """Bytes as numbers from 0 to 1 in single precision."""
    return np.asarray(images, np.float32) / np.float32(255)


def _off(values: Array, background: Array) -> Array:
    """Largest difference of any colour from a background [..., height, width], mean over the pixels around each."""
    apart = np.abs(values - background)
    off = np.maximum(np.maximum(apart[..., 0], apart[..., 1]), apart[..., 2])
    for axis in (-2, -1):
        padded = np.pad(off, [(int(k == axis + off.ndim),) * 2 for k in range(off.ndim)], mode="edge")
        size = off.shape[axis]
        off = sum((padded.take(range(i, i + size), axis) for i in range(3)), start=np.float32(0)) / np.float32(3)
    return np.asarray(off)


def _places(values: Array) -> Array:
    """Column and row of each pixel from -0.5 to 0.5 [height, width, 2]."""
    height, width = values.shape[-3:-1]
    y, x = np.meshgrid(np.linspace(-0.5, 0.5, height), np.linspace(-0.5, 0.5, width), indexing="ij")
    return np.stack([x, y], axis=-1)


def _terms(colours: Array, places: Array) -> Array:
    """Polynomial of colours to degree 2, and of the place to degree 2 [..., terms]."""
    r, g, b = np.moveaxis(colours, -1, 0)
    x, y = (np.broadcast_to(part, r.shape) for part in np.moveaxis(places, -1, 0))
    parts = [np.ones_like(r), r, g, b, r * r, g * g, b * b, r * g, r * b, g * b, x, y, x * x, y * y, x * y]
    return np.stack(parts, axis=-1)
