"""The mask of an object in an image: colour mixtures, graph cuts, soft edges, and signed distance to the outline."""

from __future__ import annotations

import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array, array_dataclass
from instep.scene.camera import Camera
from instep.splat.fitting import pixel_rays

FAR_PX = 64.0
"""Largest distance from an outline [pixels]; larger ones are clipped."""
UNKNOWN_PX = 1e9
"""Distance where nothing is known: finite, so that interpolation yields a number."""
SMOOTHNESS = 12.0
"""Cost of a label change between two like pixels, in units of log likelihood."""
_MIN_VARIANCE = (4 / 255) ** 2
"""Least variance of a colour in a mixture: the noise of a camera."""


@array_dataclass
class ObjectMask:
    """The pixels of an image that show an object."""

    camera: Camera
    alpha: Array
    """Share of each pixel that shows the object [height, width], 0 to 1."""
    known: Array
    """False where something else may occlude the object [height, width]."""

    def __post_init__(self) -> None:
        shape = (self.camera.height, self.camera.width)
        if self.alpha.shape != shape or self.known.shape != shape:
            has, wanted = self.alpha.shape[::-1], shape[::-1]
            raise BadInput(f"A mask of camera {self.camera.name!r} has {has} pixels; {wanted} were expected.")

    @property
    def inside(self) -> Array:
        """Known pixels that show mostly the object [height, width]."""
        return (self.alpha > 0.5) & self.known

    @property
    def region(self) -> tuple[int, int, int, int]:
        """Left, top, right and bottom of the object, right and bottom outside."""
        rows, columns = np.nonzero(self.alpha > 0.5)
        if not len(rows):
            return (0, 0, 0, 0)
        return int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1

    @property
    def middle_ray(self) -> Array:
        """The ray through the middle of the region, of length 1 along the optical axis [3]."""
        left, top, right, bottom = self.region
        return pixel_rays(self.camera, np.array([(left + right) / 2, (top + bottom) / 2]))

    def padded_region(self, margin: int) -> tuple[int, int, int, int]:
        """The region with a margin [pixels], inside the image."""
        (left, top, right, bottom), width, height = self.region, self.camera.width, self.camera.height
        return max(0, left - margin), max(0, top - margin), min(width, right + margin), min(height, bottom + margin)

    @property
    def cut(self) -> bool:
        """Whether the object reaches the border of the image, so that a part of it may be outside."""
        left, top, right, bottom = self.region
        return right > left and (left == 0 or top == 0 or right == self.camera.width or bottom == self.camera.height)

    def signed_distance(self) -> Array:
        """Distance of each pixel's centre from the outline [height, width] [pixels], positive inside; UNKNOWN_PX else.

        The outline passes where the interpolated alpha is one half, so distances are exact to a fraction of a pixel.
        There is no outline where the object borders on unknown pixels.
        """
        from scipy.spatial import cKDTree

        crossings = _crossings(self.alpha, self.known)
        sign = np.where(self.alpha > 0.5, 1.0, -1.0)
        out = sign * FAR_PX
        if len(crossings):
            left, top = np.maximum(crossings.min(axis=0) - FAR_PX, 0).astype(int)
            right, bottom = np.ceil(crossings.max(axis=0) + FAR_PX).astype(int)
            cut = np.s_[top:bottom, left:right]
            rows, columns = np.indices(self.alpha.shape)[:, top:bottom, left:right]
            centres = np.stack([columns.ravel() + 0.5, rows.ravel() + 0.5], axis=1)
            near, _ = cKDTree(crossings).query(centres, distance_upper_bound=FAR_PX)
            out[cut] = sign[cut] * np.minimum(near, FAR_PX).reshape(rows.shape)
        return np.where(self.known, out, UNKNOWN_PX)


def overlap(a: Array, b: Array, known: Array | None = None) -> float:
    """Intersection over union of two soft masks, over the known pixels."""
    weight = 1.0 if known is None else known.astype(float)
    union = float((weight * np.maximum(a, b)).sum())
    return float((weight * np.minimum(a, b)).sum()) / union if union > 0 else 0.0


def inside_box(shape: tuple[int, ...], box: tuple[float, float, float, float]) -> Array:
    """The pixels inside a box (left, top, right, bottom) [height, width]."""
    rows, columns = np.indices(shape[:2])
    left, top, right, bottom = box
    return (columns >= left) & (columns < right) & (rows >= top) & (rows < bottom)


@array_dataclass
class ColourMixture:
    """A mixture of normal distributions of colours."""

    means: Array
    """[parts, 3], 0 to 1."""
    precisions: Array
    """Inverse covariances [parts, 3, 3]."""
    offsets: Array
    """Logarithm of weight and normalisation of each part [parts]."""

    def log_likelihood(self, colours: Array) -> Array:
        """Logarithm of the density at colours [..., 3]."""
        flat = np.asarray(colours, float).reshape(-1, 3)
        parts = np.empty((len(self.means), len(flat)))
        for k, (mean, precision, offset) in enumerate(zip(self.means, self.precisions, self.offsets, strict=True)):
            parts[k] = offset - 0.5 * squared_deviation(flat - mean, precision)
        best = parts.max(axis=0)
        return (best + np.log(np.exp(parts - best).sum(axis=0))).reshape(np.shape(colours)[:-1])

    def shares(self, colours: Array) -> Array:
        """Share of some colours [n, 3] that are likeliest by each part [parts]."""
        apart = colours[:, None] - self.means
        by_part = self.offsets - 0.5 * np.einsum("nki,kij,nkj->nk", apart, self.precisions, apart)
        return np.bincount(by_part.argmax(axis=1), minlength=len(self.means)) / max(len(colours), 1)


def squared_deviation(apart: Array, precision: Array) -> Array:
    """Squared deviations [...] of differences [..., 3] in units of variance, by an inverse covariance [3, 3]."""
    return ((apart @ np.linalg.cholesky(precision)) ** 2).sum(axis=-1)


def colour_mixture(colours: Array, parts: int = 5, seed: int = 0) -> ColourMixture:
    """The mixture of some colours [n, 3], by k-means."""
    rng = np.random.default_rng((seed, 0xC0))
    some = np.asarray(colours, float).reshape(-1, 3)
    some = some if len(some) <= 4000 else some[rng.permutation(len(some))[:4000]]
    centres = some[rng.permutation(len(some))[: min(parts, len(some))]]
    label = np.zeros(len(some), int)
    for _ in range(8):
        label = np.argmin(((some[:, None] - centres) ** 2).sum(axis=2), axis=1)
        centres = np.stack([some[label == k].mean(axis=0) if (label == k).any() else c for k, c in enumerate(centres)])
    means, precisions, offsets = list[Array](), list[Array](), list[float]()
    for k in range(len(centres)):
        own = some[label == k]
        if len(own) < 3:
            continue
        covariance = np.cov(own.T) + _MIN_VARIANCE * np.eye(3)
        means.append(own.mean(axis=0))
        precisions.append(np.linalg.inv(covariance))
        offsets.append(float(np.log(len(own) / len(some)) - 0.5 * np.log(np.linalg.det(2 * np.pi * covariance))))
    if not means:
        means, precisions = [some.mean(axis=0)], [np.eye(3) / _MIN_VARIANCE]
        offsets = [float(-1.5 * np.log(2 * np.pi * _MIN_VARIANCE))]
    return ColourMixture(np.array(means), np.array(precisions), np.array(offsets))


def min_cut(preference: Array, image: Array, smoothness: float = SMOOTHNESS) -> Array:
    """The labelling of least cost [height, width] bool.

    `preference` is the log likelihood ratio of foreground to background of each pixel; infinite where the label is
    given. Neighbours of like colour cost `smoothness` if their labels differ.
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    height, width = preference.shape
    number = np.reshape(np.arange(height * width, dtype=np.int64), (height, width))
    source, sink = height * width, height * width + 1
    ends, weights = _neighbours(number, np.asarray(image, float), smoothness)
    wish = np.clip(preference, -1e4, 1e4).ravel()
    first = np.concatenate([ends[0], ends[1], np.full(int((wish > 0).sum()), source), np.flatnonzero(wish < 0)])
    second = np.concatenate([ends[1], ends[0], np.flatnonzero(wish > 0), np.full(int((wish < 0).sum()), sink)])
    capacity = np.concatenate([weights, weights, wish[wish > 0], -wish[wish < 0]])
    whole = np.maximum(np.round(1000.0 * capacity), 0).astype(np.int32)  # whole units of flow per unit of cost
    graph = coo_matrix((whole, (first, second)), shape=(sink + 1, sink + 1)).tocsr()
    left = graph - maximum_flow(graph, source, sink).flow
    left.data = np.maximum(left.data, 0)
    left.eliminate_zeros()
    reached = breadth_first_order(left, source, return_predecessors=False)
    out = np.zeros(sink + 1, bool)
    out[reached] = True
    return out[: height * width].reshape(height, width)


def soften(image: Array, mask: Array, reach: int = 3) -> Array:
    """The share of each pixel that shows the foreground [height, width], 0 to 1.

    A pixel at the edge is a mixture a F + (1 - a) B of the colours F inside and B outside, both taken nearby.
    """
    from scipy.ndimage import binary_dilation, binary_erosion, gaussian_filter

    out = mask.astype(np.float32)
    rows, columns = np.nonzero(mask)
    if not len(rows):
        return out
    margin = 8 * reach  # nothing changes farther from the foreground
    near = np.s_[
        max(0, rows.min() - margin) : rows.max() + margin, max(0, columns.min() - margin) : columns.max() + margin
    ]
    image, mask = image[near], mask[near]
    inner, outer = binary_erosion(mask, iterations=2), ~binary_dilation(mask, iterations=2)
    near_in, near_out = _spread(image, inner, reach), _spread(image, outer, reach)
    apart = near_in - near_out
    length = (apart**2).sum(axis=-1)
    mixed = np.clip(((image - near_out) * apart).sum(axis=-1) / np.maximum(length, 1e-9), 0.0, 1.0)
    # Where inside and outside look alike, the labels alone place the edge.
    plain = np.clip(gaussian_filter(mask.astype(float), 0.7), 0.0, 1.0)
    clear = np.clip(length / 0.15**2, 0.0, 1.0)
    out[near] = np.where(inner | outer, mask.astype(float), clear * mixed + (1 - clear) * plain)
    return out


def _spread(image: Array, known: Array, reach: int) -> Array:
    """The mean colour of the known pixels nearby [height, width, 3]; of the nearest farther one where there are
    none."""
    from scipy.ndimage import distance_transform_edt, gaussian_filter

    weight = gaussian_filter(known.astype(float), reach)
    colour = gaussian_filter(np.where(known[..., None], image, 0.0), (reach, reach, 0))
    out = colour / np.maximum(weight, 1e-9)[..., None]
    sure = weight > 0.01
    if sure.all() or not sure.any():
        return out
    rows, columns = distance_transform_edt(~sure, return_distances=False, return_indices=True)
    return out[rows, columns]


def _neighbours(number: Array, image: Array, smoothness: float) -> tuple[tuple[Array, Array], Array]:
    """Pairs of neighbouring pixels (also diagonal ones) and the cost of separating them."""
    views = [
        (np.s_[:, :-1], np.s_[:, 1:], 1.0),
        (np.s_[:-1], np.s_[1:], 1.0),
        (np.s_[:-1, :-1], np.s_[1:, 1:], np.sqrt(0.5)),
        (np.s_[:-1, 1:], np.s_[1:, :-1], np.sqrt(0.5)),
    ]
    squares = [((image[a] - image[b]) ** 2).sum(axis=-1) for a, b, _ in views]
    scale = 2 * float(np.mean([s.mean() for s in squares])) + 1e-6
    first = np.concatenate([number[a].ravel() for a, _, _ in views])
    second = np.concatenate([number[b].ravel() for _, b, _ in views])
    cost = [smoothness * share * np.exp(-s / scale).ravel() for s, (_, _, share) in zip(squares, views, strict=True)]
    return (first, second), np.concatenate(cost)


def _crossings(alpha: Array, known: Array) -> Array:
    """Points (x, y) between neighbouring known pixels where the interpolated alpha is one half [n, 2] [pixels]."""
    level = alpha - 0.5
    level = np.where(np.abs(level) < 1e-6, 1e-6, level)
    found: list[Array] = []
    for axis in (0, 1):
        ends = (slice(None, -1), slice(1, None))
        first, second = (np.moveaxis(level, axis, 0)[cut] for cut in ends)
        sure, too = (np.moveaxis(known, axis, 0)[cut] for cut in ends)
        a, b = np.nonzero((first * second < 0) & sure & too)
        share = first[a, b] / (first[a, b] - second[a, b])
        along, across = a + 0.5 + share, b + 0.5
        found.append(np.stack([across, along] if axis == 0 else [along, across], axis=1))
    return np.concatenate(found)
