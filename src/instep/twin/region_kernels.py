"""Compiled colours of a body and of its surroundings: learned histograms and backgrounds, a named colour, and masks.

A pixel of colour c belongs to the body, to the background, or to something unknown:

    f = H_body[c],   b = N(c; k B, sigma),   u = const + H_around[c]      where the background B of the pixel is known
    f = H_body[c],   b = H_around[c],        u = const                    elsewhere
    mask = f / (f + b),   weight = (f + b) / (f + b + u)

Histograms H are over 32 levels of each channel and hold the probability per bin; k is the shading that fits best.
"""

# pyright: basic, reportUnknownParameterType=false
# Numba compiles these functions; its decorators have no types.

from __future__ import annotations

import math

import numpy as np
from numba import njit

from .silhouette_kernels import INLINE, OPTIONS, TILE, edges_of, project_corners, region_around, signed_distance

BINS = 32
"""Levels of each channel that a histogram tells apart."""
STRIDE = 2
"""Every how many pixels colours are learned; which of them changes from frame to frame."""
UNKNOWN_SHARE = 0.01
"""How much a pixel counts that looks like nothing known, while colours are learned: a new face, or an occluder."""
BODY_OUTSIDE = 0.7
"""How much less a pixel outside counts that looks like the body: the outline may be off, or the colour not its own."""
LEAST_SHARE = 0.25
"""Probability of body or background below which a pixel does not count."""
LEAST_WEIGHT = 1e-6
"""Weight of a pixel that looks like nothing known; only pixels of known occluders have none."""
MAX_COUNT = 60
"""Frames after which a pixel of the background has settled."""
KNOWN_COUNT = 3
"""Frames after which the background of a pixel is used."""


@njit(**INLINE)
def _distance(shape, x, y, left, top):  # pragma: no cover - compiled
    """Signed distance of a pixel to a body's silhouette, (edges of its parts, distances of a drawn mesh or none)."""
    edges, drawn = shape
    if drawn.size:
        return float(drawn[y - top, x - left])
    d, _ = signed_distance(x + 0.5, y + 0.5, edges)
    return d


@njit(**OPTIONS)
def learn_pixels(pixels, shown, outline, phase, bands, counts):  # pragma: no cover - compiled
    """Add the colours of some pixels to `counts` [2, BINS^3]: those inside of an outline, and those around it.

    `shown` is mask and weight of the pixels so far: those that look like the other side count less, and those inside
    that look like neither count little. `outline` is its shape and the region of the pixels; `phase` chooses the
    pixels; `bands` are the least depth inside, and the least and largest distance outside [pixels].
    """
    (mask, weight), (shape, (left, top, right, bottom)) = shown, outline
    for y in range(top + phase // STRIDE % STRIDE, bottom, STRIDE):
        for x in range(left + phase % STRIDE, right, STRIDE):
            i, j = y - top, x - left
            if weight[i, j] <= 0:
                continue  # a known occluder
            d = _distance(shape, x, y, left, top)
            m, odd = float(mask[i, j]), UNKNOWN_SHARE * (1.0 - weight[i, j])
            if d < -bands[0]:
                _splat(counts[0], pixels[i, j], weight[i, j] * m + odd)
            elif bands[1] < d < bands[2]:
                _splat(counts[1], pixels[i, j], 1.0 - BODY_OUTSIDE * m * weight[i, j])


@njit(**INLINE)
def _splat(counts, colour, amount):  # pragma: no cover - compiled
    """Add a colour to the eight bins around it."""
    scale = BINS / 256.0
    r, g, b = scale * colour[0] - 0.5, scale * colour[1] - 0.5, scale * colour[2] - 0.5
    i, j, k = math.floor(r), math.floor(g), math.floor(b)
    for di in range(2):
        wi = r - i if di else 1.0 - (r - i)
        for dj in range(2):
            wj = g - j if dj else 1.0 - (g - j)
            for dk in range(2):
                wk = b - k if dk else 1.0 - (b - k)
                at = (min(max(i + di, 0), BINS - 1) * BINS + min(max(j + dj, 0), BINS - 1)) * BINS
                counts[at + min(max(k + dk, 0), BINS - 1)] += amount * wi * wj * wk


@njit(**OPTIONS)
def learn_colours(kept, counts, total, share):  # pragma: no cover - compiled
    """Replace a share of a histogram [BINS^3] by counts, over their total, blurred by (1, 2, 1) / 4 along each channel.

    Few bins have counts, so each is spread over its neighbours; what would leave the range stays in the last bin.
    """
    for at in range(counts.shape[0]):
        kept[at] *= np.float32(1.0) - share
    scale = share / (np.float32(64.0) * total)
    for at in range(counts.shape[0]):
        if counts[at] == 0:
            continue
        i, j, k = at // (BINS * BINS), at // BINS % BINS, at % BINS
        amount = scale * counts[at]
        for di in range(-1, 2):
            row = min(max(i + di, 0), BINS - 1) * BINS
            for dj in range(-1, 2):
                column = (row + min(max(j + dj, 0), BINS - 1)) * BINS
                part = amount * np.float32((2 - abs(di)) * (2 - abs(dj)))
                kept[column + max(k - 1, 0)] += part
                kept[column + k] += part + part
                kept[column + min(k + 1, BINS - 1)] += part


@njit(**OPTIONS)
def learn_background(pixels, mask, background, outline, phase, limits):  # pragma: no cover - compiled
    """Learn the background [height, width, 4] (colour, count) of pixels outside of an outline that show no body.

    A pixel that shows something else than its background for as long as that was seen takes the new colour.
    `limits` holds the distance from which a pixel is outside [pixels], the tolerance and the range of shading.
    """
    shape, (left, top, right, bottom) = outline
    away, tolerance, low, high = limits
    for y in range(top + phase // STRIDE % STRIDE, bottom, STRIDE):
        for x in range(left + phase % STRIDE, right, STRIDE):
            d = _distance(shape, x, y, left, top)
            if d < away or mask[y - top, x - left] > 0.5:
                continue
            c, kept = pixels[y - top, x - left], background[y, x]
            count = kept[3]
            if count == 0:
                kept[0], kept[1], kept[2], kept[3] = c[0], c[1], c[2], 1
            elif _departure(c, kept, low, high) < tolerance:
                kept[3] = min(count + 1, MAX_COUNT)
                share = 1.0 / min(count + 1, 8)
                for a in range(3):
                    kept[a] = int(kept[a] + share * (float(c[a]) - kept[a]) + 0.5)
            else:
                kept[3] = count - 1


@njit(**INLINE)
def _departure(colour, background, low, high):  # pragma: no cover - compiled
    """Largest difference of a colour from its background in the shading that fits best [grey levels]."""
    r, g, b = float(colour[0]), float(colour[1]), float(colour[2])
    x, y, z = float(background[0]), float(background[1]), float(background[2])
    k = min(max((r * x + g * y + b * z) / max(x * x + y * y + z * z, 1.0), low), high)
    return max(abs(r - k * x), abs(g - k * y), abs(b - k * z))


@njit(**OPTIONS)
def segment_region(pixels, histograms, background, region, limits):  # pragma: no cover - compiled
    """Mask and weight [height, width] of pixels by histograms of body and surroundings [2, BINS^3] and a background.

    `limits` holds the standard deviation of the background [grey levels], the density of the known background, that of
    the unknown, and the range of shading.
    """
    left, top, right, bottom = region
    height, width = bottom - top, right - left
    mask, weight = np.empty((height, width), np.float32), np.empty((height, width), np.float32)
    sigma, dense, unknown, low, high = limits
    scale = BINS / 256.0
    for i in range(height):
        for j in range(width):
            c, behind = pixels[i, j], background[i + top, j + left]
            at = (int(scale * c[0]) * BINS + int(scale * c[1])) * BINS + int(scale * c[2])
            f = histograms[0, at]
            if behind[3] >= KNOWN_COUNT:
                e = _departure(c, behind, low, high) / sigma
                # What the surroundings show elsewhere and not here may occlude the body as well as its background.
                b, odd = dense * math.exp(-0.5 * min(e * e, 60.0)), unknown + histograms[1, at]
            else:
                b, odd = histograms[1, at], unknown
            both = f + b
            mask[i, j] = f / both if both > 1e-12 else 0.0
            share = both / (both + odd)
            weight[i, j] = LEAST_WEIGHT if share < LEAST_SHARE else min(2.0 * share, 1.0)
    _mix_edges(pixels, mask, weight)
    return mask, weight


@njit(**OPTIONS)
def hide_interior(mask, weight, outline, depth):  # pragma: no cover - compiled
    """Pixels this deep inside of the predicted outline [pixels] that do not show the body show an occluder."""
    shape, (left, top, right, bottom) = outline
    edges, drawn = shape
    for y0 in range(top, bottom, TILE):
        for x0 in range(left, right, TILE):
            if drawn.size == 0:
                # A distance changes by a pixel per pixel: no pixel of a tile far from the inside is deep in it.
                middle, _ = signed_distance(x0 + 0.5 * TILE, y0 + 0.5 * TILE, edges)
                if middle - 0.7072 * TILE >= -depth:
                    continue
            for y in range(y0, min(y0 + TILE, bottom)):
                for x in range(x0, min(x0 + TILE, right)):
                    if mask[y - top, x - left] < 0.5 and weight[y - top, x - left] > LEAST_WEIGHT:
                        d = _distance(shape, x, y, left, top)
                        if d < -depth:
                            weight[y - top, x - left] = LEAST_WEIGHT


@njit(**OPTIONS)
def _mix_edges(pixels, mask, weight):  # pragma: no cover - compiled
    """Give pixels between body and background, which look like neither, the share of the body that mixes them."""
    height, width = mask.shape
    sure = np.empty((height, width), np.int8)
    for i in range(height):
        for j in range(width):
            sure[i, j] = 0 if weight[i, j] < 0.9 else 1 if mask[i, j] > 0.8 else -1 if mask[i, j] < 0.2 else 0
    body, behind = np.empty(3), np.empty(3)
    for i in range(1, height - 1):
        for j in range(1, width - 1):
            if sure[i, j] != 0:
                continue
            n = m = 0
            body[:], behind[:] = 0.0, 0.0
            for a in range(i - 1, i + 2):
                for b in range(j - 1, j + 2):
                    if sure[a, b] > 0:
                        n += 1
                        for k in range(3):
                            body[k] += pixels[a, b, k]
                    elif sure[a, b] < 0:
                        m += 1
                        for k in range(3):
                            behind[k] += pixels[a, b, k]
            if n == 0 or m == 0:
                continue
            along = across = 0.0
            for k in range(3):
                step = body[k] / n - behind[k] / m
                along += (pixels[i, j, k] - behind[k] / m) * step
                across += step * step
            mask[i, j] = min(max(along / max(across, 1.0), 0.0), 1.0)
            weight[i, j] = 1.0


LEVELS = 8
"""Levels of each channel in the coarse histograms of a search."""


@njit(**OPTIONS)
def coarse_colours(pixels):  # pragma: no cover - compiled
    """The bin of each pixel [height, width] in a coarse histogram; levels are finer in the dark, where images are."""
    height, width = pixels.shape[:2]
    level = np.empty(256, np.int16)
    for i in range(256):
        level[i] = min(int(LEVELS * math.sqrt((i + 0.5) / 256.0)), LEVELS - 1)
    out = np.empty((height, width), np.int16)
    for i in range(height):
        for j in range(width):
            r, g, b = level[pixels[i, j, 0]], level[pixels[i, j, 1]], level[pixels[i, j, 2]]
            out[i, j] = (r * LEVELS + g) * LEVELS + b
    return out


@njit(**OPTIONS)
def contrasts(parts, poses, camera, bins, bands):  # pragma: no cover - compiled
    """How little the colours inside of a body's silhouette resemble those around it, at each of many poses [n, 4, 4].

    One less the Bhattacharyya coefficient of both histograms, 0 to 1; 0 where the silhouette is not wholly in view.
    """
    corners, starts = parts
    out = np.zeros(poses.shape[0])
    _, _, width, height = camera
    counts = np.zeros((2, LEVELS**3))
    for n in range(poses.shape[0]):
        points, _ = project_corners(corners, poses[n], camera)
        if not np.isfinite(points[0, 0]):
            continue
        left, top, right, bottom = region_around(points, int(bands[1]) + 1, 1 << 20, 1 << 20)
        if points[:, 0].min() < 1 or points[:, 1].min() < 1:
            continue
        if points[:, 0].max() > width - 1 or points[:, 1].max() > height - 1:
            continue
        edges = edges_of(points, starts)
        counts[:] = 0.0
        for y in range(max(top, 0), min(bottom, height)):
            for x in range(max(left, 0), min(right, width)):
                d, _ = signed_distance(x + 0.5, y + 0.5, edges)
                if d < -bands[0]:
                    counts[0, bins[y, x]] += 1.0
                elif bands[0] < d < bands[1]:
                    counts[1, bins[y, x]] += 1.0
        inside, around = counts[0].sum(), counts[1].sum()
        if inside >= 12 and around >= 12:
            alike = 0.0
            for k in range(counts.shape[1]):
                if counts[0, k] > 0:
                    alike += math.sqrt(counts[0, k] * counts[1, k])
            out[n] = 1.0 - alike / math.sqrt(inside * around)
    return out


@njit(**OPTIONS)
def segment_pixels(pixels, chroma, strength, background, limits, halo):  # pragma: no cover - compiled
    """Body mask and pixel weight [height, width] of pixels [height, width, 3] by colour and background.

    `limits` holds the full-chroma share, least purity, overexposure level, background tolerance and range of shading;
    an empty `background` is not known. `halo` widens occluders by that many pixels.
    """
    height, width = pixels.shape[:2]
    mask, weight = np.empty((height, width), np.float32), np.ones((height, width), np.float32)
    full, pale, white, tolerance, low, high = limits
    for i in range(height):
        for j in range(width):
            r, g, b = float(pixels[i, j, 0]), float(pixels[i, j, 1]), float(pixels[i, j, 2])
            along = chroma[0] * r + chroma[1] * g + chroma[2] * b
            purity = min(max((along / max(r, g, b, 1.0) - pale) / 0.08, 0.0), 1.0)
            mask[i, j] = min(max(along / (full * strength), 0.0), 1.0) * purity
            if len(background) == 0 or mask[i, j] >= 0.08:
                continue
            if min(r, g, b) > white or _departure(pixels[i, j], background[i, j], low, high) > tolerance:
                weight[i, j] = -1.0
    for i in range(height):
        for j in range(width):
            if weight[i, j] >= 0:
                continue
            for a in range(max(i - halo, 0), min(i + halo + 1, height)):
                reach = halo - abs(a - i)
                for c in range(max(j - reach, 0), min(j + reach + 1, width)):
                    if weight[a, c] > 0 and mask[a, c] < 0.95:
                        weight[a, c] = 0.0
    for i in range(height):
        for j in range(width):
            weight[i, j] = max(weight[i, j], 0.0)
    return mask, weight


@njit(**OPTIONS)
def median_chroma(pixels, chroma, expected, purity):  # pragma: no cover - compiled
    """The median chroma of every second pixel that clearly shows the body, to half a grey level."""
    bins, n = np.zeros(1024, np.int64), 0
    for i in range(0, pixels.shape[0], 2):
        for j in range(0, pixels.shape[1], 2):
            r, g, b = float(pixels[i, j, 0]), float(pixels[i, j, 1]), float(pixels[i, j, 2])
            along = chroma[0] * r + chroma[1] * g + chroma[2] * b
            if along > 0.5 * expected and along > purity * max(r, g, b):
                bins[min(int(2.0 * along), 1023)] += 1
                n += 1
    if n < 20:
        return expected
    seen = 0
    for i in range(1024):
        seen += bins[i]
        if 2 * seen >= n:
            return 0.5 * i + 0.25
    return expected
