"""Map a table from above, and predict what each view would show of it without objects.

The map holds the colours that the views agree on. Poses and the map are off by a fraction of a pixel. On a plain table
that changes nothing; on a pattern it changes a pixel by as much as the pattern changes over that fraction, so the
tolerance follows the contrast around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array, array_dataclass
from instep.reconstruct.capture.posed_views import PosedView
from instep.reconstruct.shape.visual_hull import projected
from instep.scene.camera import Camera
from instep.splat.fitting import focus_point, pixel_rays, plane_distances

from .object_mask import colour_mixture, squared_deviation

TABLE_SHADING = (0.45, 1.3)
"""Range of factors by which light and shadow change the brightness of the table."""
_UNSURE_SPREAD = 0.06
"""Standard deviation over views above which a cell of the map may show an object in some views [0 to 1]."""
_MAP_CELLS = 320
"""Cells along a side of the map of a plain table."""
_CELLS_PER_PX, _MAX_SAMPLES = 1.35, 24_000_000
"""Cells of the map of a patterned table over pixels of an image, along a side; limit of memory."""
_PLAIN = 0.02
"""Change of colour between pixels up to which a part of a patterned table is plain [0 to 1]."""
_TABLE_COLOURS, _RARE_SHARE = 6, 0.06
"""Colours in the description of a table, and the share of its area below which a colour is dropped."""
_OTHER_COLOUR = 12.0
"""Squared deviation [variances] above which a colour is not of the table; 0.7 % of its own pixels are above."""
_MIN_CELLS = 40
"""Fewest cells or pixels of a statistic of colours."""
TableColours = list[tuple[Array, Array]]
"""Mean [3] and inverse covariance [3, 3] of each colour of a table."""


@array_dataclass
class Background:
    """What a view would show without objects."""

    colour: Array
    """[height, width, 3], 0 to 1."""
    sigma: Array
    """Standard deviation of a channel [height, width]."""
    sure: Array
    """Where it is known [height, width]."""

    def evidence_against(self, image: Array) -> Array:
        """Log likelihood ratio of any other colour to this background [height, width]; 0 where nothing is known."""
        apart = ((image - self.colour) ** 2).sum(axis=-1)
        against = 0.5 * apart / self.sigma**2 - 3 * np.log(1 / (self.sigma * np.sqrt(2 * np.pi)))
        return np.where(self.sure, against, 0.0)


@array_dataclass
class TableMap:
    """The colours of a table seen from above."""

    origin: Array
    """x and y of the first cell [2] [m]."""
    pitch: float
    """Size of a cell [m]."""
    colour: Array
    """[cells along x, cells along y, 3]."""
    spread: Array
    """Standard deviation over views [cells along x, cells along y]; infinite where too few see it."""
    foreign: Array = field(default_factory=lambda: np.zeros((0, 0), bool))
    """Cells of a colour that the table has nowhere else [cells along x, cells along y]."""
    gains: Array = field(default_factory=lambda: np.ones((0, 3)))
    """Factors of the colours of each view [views, 3] that remove differences of exposure and white balance."""
    colours: TableColours = field(default_factory=list[tuple[Array, Array]])
    """The colours that the table has all over."""
    patterned: bool = False
    """Whether the colour changes from cell to cell."""

    def predicted(self, meets: Array) -> Background:
        """The table at the points where the rays of pixels meet it [height, width, 3].

        A pixel far away shows several cells of a pattern, so it is the mean over a grid of points in the pixel.
        """
        from scipy.ndimage import map_coordinates

        at = np.nan_to_num((meets[..., :2] - self.origin) / self.pitch, nan=-10.0)
        where, mapped = [at[..., 0], at[..., 1]], np.isfinite(self.spread).astype(float)
        sure = map_coordinates(mapped, where, order=1, cval=0.0) > 0.99
        sigma = map_coordinates(np.where(mapped > 0, self.spread, 0.0), where, order=1, cval=0.0)
        steps = np.gradient(at, axis=(0, 1)) if self.patterned else [np.zeros_like(at)] * 2
        offsets = [(y / 3, x / 3) for y in (-1, 0, 1) for x in (-1, 0, 1)] if self.patterned else [(0.0, 0.0)]
        behind = np.zeros((*at.shape[:2], 3))
        for y, x in offsets:
            point = at + y * steps[0] + x * steps[1]
            for k in range(3):
                channel = self.colour[..., k]
                behind[..., k] += map_coordinates(channel, [point[..., 0], point[..., 1]], order=1, cval=0.0)
        return Background(behind / len(offsets), sigma, sure)


def table_meetings(camera: Camera, plane: Array) -> Array:
    """Where the rays of pixels meet the table [height, width, 3]; NaN where they do not."""
    rows, columns = np.indices((camera.height, camera.width))
    rays = pixel_rays(camera, np.stack([columns + 0.5, rows + 0.5], axis=-1))
    t = plane_distances(camera, rays, plane)
    return np.where((t > 0)[..., None], camera.body_from_camera[:3, 3] + t[..., None] * rays, np.nan)


def map_table(views: Sequence[PosedView], plane: Array, objects: Sequence[Array]) -> TableMap:
    """The median colour of the table over views, without the pixels of objects.

    A table with a pattern is mapped again with cells about as fine as the pixels of the views.
    """
    focus = focus_point([view.camera for view in views])
    if focus is None:
        raise BadInput("The cameras look along one line; views from all around were expected.")
    distance = float(np.median([np.linalg.norm(view.camera.body_from_camera[:3, 3] - focus) for view in views]))
    half = 1.8 * distance * max(0.5 * max(v.camera.width, v.camera.height) / min(v.camera.focal) for v in views)
    found = _map_with(views, plane, objects, (focus[:2], half), _MAP_CELLS)
    seen = np.where(np.isfinite(found.spread)[..., None], found.colour, np.nan)
    changes = np.abs(np.diff(seen, axis=0)).max(axis=-1)
    known = changes[np.isfinite(changes)]
    # Median change of colour between cells above which a table is patterned [0 to 1].
    if not len(known) or np.median(known) < 0.025:
        return found
    side = max(max(view.camera.width, view.camera.height) for view in views)
    cells = min(int(_CELLS_PER_PX * side), int(np.sqrt(_MAX_SAMPLES / len(views))))
    if cells > _MAP_CELLS:
        found = _map_with(views, plane, objects, (focus[:2], half), cells)
    return replace(found, patterned=True)


def with_contrast(found: Background, image: Array, blocked: Array, noise: float) -> Background:
    """The prediction with deviations in proportion to its contrast, as measured where no object is in front."""
    contrast = np.zeros(blocked.shape)
    for k in range(3):
        contrast = np.maximum(contrast, np.hypot(*np.gradient(found.colour[..., k])))
    error = ((image - found.colour) ** 2).mean(axis=-1)
    textured = found.sure & ~blocked & (contrast > _PLAIN)
    if textured.sum() < 5 * _MIN_CELLS:
        return replace(found, sigma=np.hypot(noise, np.minimum(found.sigma, 0.05)))
    # The median of the mean of three squared normal deviations is 0.79 of their variance.
    excess = np.maximum(error[textured] / 0.79 - noise**2, 0.0) / contrast[textured] ** 2
    # Largest error of a pixel, as a share of the contrast around it.
    blur = min(float(np.sqrt(np.median(excess))), 1.5)
    return replace(found, sigma=np.hypot(noise, blur * contrast))


def is_foreign(colours: Array, table: TableColours) -> Array:
    """Which colours [..., 3] a table has nowhere, in any light [...]."""
    least = np.full(colours.shape[:-1], np.inf if table else 0.0)
    for mean, precision in table:
        light = np.clip(colours @ precision @ mean / (mean @ precision @ mean), *TABLE_SHADING)
        least = np.minimum(least, squared_deviation(colours - light[..., None] * mean, precision))
    return least > _OTHER_COLOUR


def density_in_any_light(image: Array, colours: TableColours, shading: tuple[float, float]) -> Array:
    """Log density of the colour of each pixel as one of a table at its likeliest light [height, width].

    Light and shadow change the brightness of the table by a factor in the range `shading`.
    """
    out = np.full(image.shape[:2], -np.inf)
    for mean, precision in colours:
        light = np.clip(image @ precision @ mean / (mean @ precision @ mean), *shading)
        apart = squared_deviation(image - light[..., None] * mean, precision)
        out = np.maximum(out, 0.5 * np.linalg.slogdet(precision / (2 * np.pi))[1] - 0.5 * apart)
    return out


def _map_with(
    views: Sequence[PosedView], plane: Array, objects: Sequence[Array], square: tuple[Array, float], count: int
) -> TableMap:
    """The map of a square (its middle [2] and half its side [m]) with a number of cells along a side."""
    from scipy.ndimage import binary_dilation, map_coordinates

    middle, half = square
    pitch = 2 * half / count
    cells = np.indices((count, count)) * pitch - half
    X, Y = middle[0] + cells[0], middle[1] + cells[1]
    points = np.stack([X, Y, -(plane[3] + plane[0] * X + plane[1] * Y) / plane[2]], axis=-1)
    samples = np.full((len(views), count, count, 3), np.nan, np.float32)
    for k, (view, own) in enumerate(zip(views, objects, strict=True)):
        pixels, depth = projected(view.camera, points)
        pixels = pixels - 0.5
        inside = (depth > 1e-3) & (pixels > 0).all(axis=-1)
        inside &= (pixels < [view.camera.width - 1, view.camera.height - 1]).all(axis=-1)
        at = [pixels[..., 1][inside], pixels[..., 0][inside]]
        if own.any():
            hidden = np.asarray(binary_dilation(own, iterations=3), np.float32)
            inside[inside] = map_coordinates(hidden, at, order=0, cval=1.0) < 0.5
            at = [pixels[..., 1][inside], pixels[..., 0][inside]]
        for channel in range(3):
            samples[k, inside, channel] = map_coordinates(view.image[..., channel], at, order=1, mode="nearest")
    first, _ = _median(samples)
    with np.errstate(all="ignore"):
        gains = np.nanmedian(first / np.maximum(samples, 0.02), axis=(1, 2))
    gains = np.clip(np.nan_to_num(gains, nan=1.0), 0.5, 2.0)
    samples *= gains[:, None, None].astype(np.float32)
    colour, spread = _median(samples)
    seen = colour[spread < _UNSURE_SPREAD]
    colours = TableColours()
    if len(seen) >= _MIN_CELLS:
        mixture = colour_mixture(seen, _TABLE_COLOURS)
        parts = zip(mixture.means, mixture.precisions, mixture.shares(seen), strict=True)
        colours = [(mean, precision) for mean, precision, share in parts if share >= _RARE_SHARE]
    _see_table(colour, spread, samples, colours)
    foreign = is_foreign(colour, colours)
    return TableMap(np.asarray(middle) - half, pitch, colour, spread, foreign, gains, colours)


def _see_table(colour: Array, spread: Array, samples: Array, colours: TableColours) -> None:
    """Replace cells where most views show an object by the table's own colours that two views or more agree on."""
    unsure = spread > _UNSURE_SPREAD
    some = samples[:, unsure]
    own = ~is_foreign(np.nan_to_num(some), colours)
    seen, apart = _median(np.where(own[..., None], some, np.nan), least=2)
    better = apart < np.minimum(spread[unsure], _UNSURE_SPREAD)
    colour[unsure] = np.where(better[:, None], seen, colour[unsure])
    spread[unsure] = np.where(better, apart, spread[unsure])


def _median(samples: Array, least: int = 3) -> tuple[Array, Array]:
    """The median over views of samples [views, ..., 3] (NaN where not seen), and the deviation from it [...]: infinite
    where fewer than `least` views see it."""
    count = np.isfinite(samples[..., 0]).sum(axis=0)
    with np.errstate(all="ignore"):
        ordered = np.sort(samples, axis=0)  # NaN goes to the end
        middle = np.maximum((count - 1) // 2, 0)[None, ..., None]
        colour = np.take_along_axis(ordered, middle, axis=0)[0]
        apart = np.sort(np.abs(samples - colour).max(axis=-1), axis=0)
        spread = 1.48 * np.take_along_axis(apart, np.minimum(count // 2, len(samples) - 1)[None], axis=0)[0]
    known = count >= least
    return np.where(known[..., None], colour, 0.5), np.where(known, spread, np.inf)
