"""The colours of a table in light and shadow."""

from __future__ import annotations

import numpy as np

from instep.core.world import Array

from .graph_cut import colour_mixture, squared_deviation

TABLE_SHADING = (0.45, 1.3)
"""Range of factors by which light and shadow change the brightness of the table."""
UNSURE_SPREAD = 0.06
"""Standard deviation over views from which a part of the map may show different things [0 to 1]."""
_TABLE_COLOURS, _RARE_SHARE = 6, 0.06
"""Colours that a table is described by, and the share of it below which a colour is not taken for the table's."""
_OTHER_COLOUR = 12.0
"""Squared deviation from all colours of the table from which a part of its map may be the foot of something on it."""
_MIN_CELLS = 40
"""Fewest cells whose colours are described."""
_EDGE_CELLS = 5
"""Cells along a side over which changes of colour are seen."""
TableColours = list[tuple[Array, Array]]
"""Mean [3] and inverse covariance [3, 3] of each colour of a table."""


def common_colours(seen: Array) -> TableColours:
    """The colours of a table [n, 3], without those that only a small part of it has."""
    if len(seen) < _MIN_CELLS:
        return []
    colours = colour_mixture(seen, _TABLE_COLOURS)
    parts = zip(colours.means, colours.precisions, colours.shares(seen), strict=True)
    return [(mean, precision) for mean, precision, share in parts if share >= _RARE_SHARE]


def local_change(colour: Array) -> Array:
    """How much the colour of a map changes around each cell [cells along x, cells along y]."""
    from scipy.ndimage import maximum_filter, minimum_filter

    cells = (_EDGE_CELLS, _EDGE_CELLS, 1)
    return (maximum_filter(colour, cells) - minimum_filter(colour, cells)).max(axis=-1)


def is_foreign(colours: Array, table: TableColours) -> Array:
    """Which colours [..., 3] a table has nowhere, in any light [...]."""
    least = np.full(colours.shape[:-1], np.inf if table else 0.0)
    for mean, precision in table:
        light = np.clip(colours @ precision @ mean / (mean @ precision @ mean), *TABLE_SHADING)
        least = np.minimum(least, squared_deviation(colours - light[..., None] * mean, precision))
    return least > _OTHER_COLOUR


def density_in_any_light(image: Array, colours: TableColours, shading: tuple[float, float]) -> Array:
    """Log density of the colour of each pixel as one that a table has anywhere, at the likeliest light [height, width].

    Light and shadow change the brightness of the table by a factor in a range.
    """
    out = np.full(image.shape[:2], -np.inf)
    for mean, precision in colours:
        light = np.clip(image @ precision @ mean / (mean @ precision @ mean), *shading)
        apart = squared_deviation(image - light[..., None] * mean, precision)
        out = np.maximum(out, 0.5 * np.linalg.slogdet(precision / (2 * np.pi))[1] - 0.5 * apart)
    return out
