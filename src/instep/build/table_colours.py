"""The colours of a table in light and shadow, and of flat things that lie on it."""

from __future__ import annotations

import numpy as np

from instep.core.records import array_dataclass
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
_MIN_CELLS, _MIN_SHEET = 40, 400
"""Fewest cells whose colours are described, and of a sheet."""
_SHEET_EDGE = 0.12
"""Change of colour over a few cells that the pattern and the edges of a sheet have [0 to 1]."""
_EDGE_CELLS, _GAP_CELLS = 5, 4
"""Cells along a side over which that is seen, and width of gaps in a sheet between its colours."""
_SEEN_BY, _LEAST_VIEWS, _FLAT_SHARE = 0.7, 5, 0.25
"""Share of the views that show an edge where it is flat, fewest views for that, and share of the edges of a sheet that
are: what stands on it hides others."""
TableColours = list[tuple[Array, Array]]
"""Mean [3] and inverse covariance [3, 3] of each colour of a table."""


@array_dataclass
class Sheets:
    """Flat things on a table that have other colours."""

    colours: TableColours
    area: Array
    """Where they are in its map [cells along x, cells along y]."""


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


def sheets_on_table(colour: Array, spread: Array, samples: Array, own: TableColours) -> Sheets:
    """What lies flat on a table, such as a sheet of paper or the top of a turntable under an object.

    `samples` are the colours of the map [cells along x, cells along y, 3] in each view, NaN where it shows none.
    Nearly all views show the edges of something flat and of its pattern at the same cells. Beside what rises from the
    table, half of the views show its other side.
    """
    from scipy.ndimage import binary_closing, binary_dilation, binary_fill_holes, label

    steady = spread < UNSURE_SPREAD
    other = binary_closing(is_foreign(colour, own) & steady, iterations=_GAP_CELLS)
    parts, count = label(other)  # pyright: ignore[reportGeneralTypeIssues]
    sizes = np.bincount(parts.ravel(), minlength=count + 1)
    change = local_change(colour)
    found, area = list[tuple[Array, Array]](), np.zeros(spread.shape, bool)
    for k in 1 + np.flatnonzero(sizes[1:] >= _MIN_SHEET):
        part = parts == k
        edges = np.asarray(binary_dilation(part, iterations=2), bool) & (change > _SHEET_EDGE) & np.isfinite(spread)
        if not edges.any():
            continue
        seen = np.isfinite(samples[:, edges, 0]).sum(axis=0)
        with np.errstate(invalid="ignore"):
            alike = np.abs(samples[:, edges] - colour[edges]).max(axis=-1) < 0.5 * change[edges]
        if np.mean(alike.sum(axis=0) >= _SEEN_BY * np.maximum(seen, _LEAST_VIEWS)) > _FLAT_SHARE:
            found += common_colours(colour[part & steady])
            area |= np.asarray(binary_fill_holes(part), bool)
    return Sheets(found, area)


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
