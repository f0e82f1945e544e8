"""Trust in a twin: how far the numbers of its correction are from those of nominal runs.

Features of a frame carry no unit of the scene: innovations over their standard deviation, residuals and overlaps as
shares, counts of frames, the share of cameras at fault. So a calibration holds for other scenes too, and one is shipped
with the package (`shipped_trust`). The score of a feature is its mean excess over the nominal median during a fifth of
a second, over the largest such mean in nominal runs; the level of a frame is the largest score of its features. By
split conformal prediction, trust is the share of nominal runs whose largest level is at least as large,

    trust(s) = (1 + #{nominal runs with level >= s}) / (1 + number of nominal runs)

so that a new nominal run falls below `alpha` with probability alpha at most, whatever the distribution.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from instep.core.errors import BadInput
from instep.core.reading import read_json
from instep.core.world import Array, array_dataclass

FEATURES: Mapping[str, tuple[float, str]] = {
    "nis": (3.0, "the innovation against its covariance (NIS)"),
    "innovation": (1.0, "the correction of a body over its standard deviation"),
    "residual": (0.02, "the residual of silhouettes"),
    "lost": (1.0, "frames in which no camera showed the body"),
    "overlap": (0.02, "the overlap of silhouettes"),
    "disagreement": (0.25, "the disagreement of cameras"),
    "penetration": (0.5, "the penetration of robot and body"),
    "joint_error": (0.01, "the distance of the robot's joints from the twin's"),
    "image_delay": (0.02, "the age of images beyond their stamps"),
    "relocalized": (0.25, "a body was found elsewhere"),
    "excluded": (0.1, "a camera was excluded"),
    "fault": (0.1, "a camera was at fault"),
}
"""Features of a frame: the smallest spread that counts as nominal, and what it is in words."""
MILD = ("joint_error", "image_delay", "relocalized", "excluded", "fault")
"""Features that other cameras or the next frames can make up for: they slow a twin down and never stop it."""
MILD_LEVEL = 1.2
"""Largest level of such a feature, in levels of the largest nominal run."""
MAX_DISAGREEMENT_M = 0.004
"""Disagreement at which a camera is excluded [m]; the unit of that feature."""
MIN_SEEN = 0.3
"""Share of a body that a camera must see for its overlap to count."""
WINDOW_FRAMES = 12
"""Frames over which features are averaged: a fifth of a second at 60 Hz."""
WARMUP_ROWS = 5
"""Rows at the beginning that are not scored, while the twin finds its bodies."""
MAX_EXCESS = 20.0
"""Largest excess of a feature, in spreads, so that one frame alone does not decide."""
OWN_SECONDS, OWN_SHIFT = 2.0, 1.0
"""The first seconds of a run refine the medians [s], by at most so many spreads."""
SHIPPED = Path(__file__).with_name("trust_nominal.json")


@array_dataclass
class Trust:
    """A calibrated measure of trust."""

    centre: Array
    """Median of each feature in nominal runs [features]."""
    spread: Array
    """Distance of its 95 % quantile from the median [features]."""
    largest: Array
    """Largest mean excess of each feature over a window, in nominal runs [features]."""
    scores: Array
    """Largest levels of further nominal runs, ascending [runs]."""
    skip: int = WARMUP_ROWS

    @property
    def limit(self) -> float:
        """The largest level of any nominal run: what lies above it is an anomaly."""
        return float(self.scores[-1])

    def excess(self, features: Array) -> Array:
        """How far features [..., features] lie above their medians, in spreads, 0 at least; 0 where unknown."""
        above = np.clip((features - self.centre) / self.spread, 0.0, MAX_EXCESS)
        return np.where(np.isfinite(features), above, 0.0)

    def levels(self, means: Array) -> Array:
        """Mean excesses over a window [..., features] as levels of their largest nominal ones."""
        found = means / self.largest
        mild = [name in MILD for name in FEATURES]
        return np.where(mild, np.minimum(found, MILD_LEVEL * self.limit), found)

    def frames(self, log: Mapping[str, Array]) -> Array:
        """The level of each frame of a log [rows]."""
        return self.levels(_window_means(self.excess(feature_rows(log)), self.skip)).max(axis=1)

    def of(self, level: Array | float) -> Array:
        """Trust in [0, 1] for levels."""
        above = len(self.scores) - np.searchsorted(self.scores, np.asarray(level), side="left")
        return (1.0 + above) / (1.0 + len(self.scores))

    def alarm(self, log: Mapping[str, Array], alpha: float = 0.05) -> int | None:
        """The first row at which trust falls to alpha or below; None where it never does."""
        low = np.flatnonzero(self.of(self.frames(log))[self.skip :] <= alpha)
        return int(low[0]) + self.skip if len(low) else None

    def shifted(self, features: Array) -> Trust:
        """Trust with medians moved to those of nominal rows [rows, features], by no more than a spread.

        A fault that is there from the beginning can so hide no more than one spread of a feature. Mild features and
        lost frames are not moved: their nominal value is none.
        """
        centre, reach = self.centre.copy(), OWN_SHIFT * self.spread
        for i, name in enumerate(FEATURES):
            known = features[np.isfinite(features[:, i]), i]
            if len(known) > WINDOW_FRAMES and name not in (*MILD, "lost"):
                centre[i] = np.clip(np.median(known), centre[i] - reach[i], centre[i] + reach[i])
        return replace(self, centre=centre)


@cache
def shipped_trust() -> Trust:
    """The calibration that comes with the package, from nominal runs of simulated robots."""
    content = read_json(SHIPPED)
    rows = [content["features"][name] for name in FEATURES]
    centre, spread, largest = (np.array([row[kind] for row in rows], float) for kind in ("centre", "spread", "largest"))
    return Trust(centre, spread, largest, np.array(content["scores"], float), int(content["skip"]))


def calibrate_trust(nominal: Sequence[Mapping[str, Array]], skip: int = WARMUP_ROWS) -> Trust:
    """Trust from the logs of nominal runs: a third gives the distributions, the others the levels.

    Of each run the first `skip` rows are left out, while the twin still finds its bodies.
    """
    if len(nominal) < 4:
        raise BadInput(f"Trust needs at least four nominal runs to be calibrated on, and {len(nominal)} were given.")
    return calibrate_features([feature_rows(log) for log in nominal], skip)


def calibrate_features(runs: Sequence[Array], skip: int = WARMUP_ROWS) -> Trust:
    """Trust from the features of nominal runs, each [rows, features]; see `calibrate_trust`."""
    third = len(runs) // 3
    rows = np.concatenate([run[skip:] for run in runs[:third]])
    least = np.array([spread for spread, _ in FEATURES.values()])
    centre, spread = np.zeros(len(FEATURES)), least.copy()
    for i in range(len(FEATURES)):
        if (known := rows[np.isfinite(rows[:, i]), i]).size:
            centre[i] = np.median(known)
            spread[i] = max(float(np.quantile(known, 0.95)) - centre[i], least[i])
    plain = Trust(centre, spread, np.ones(len(FEATURES)), np.array([np.inf]), skip)
    means = [_window_means(plain.excess(run), skip)[skip:] for run in runs]
    plain = replace(plain, largest=np.maximum(np.concatenate(means[:third]).max(axis=0), 1.0))
    return replace(plain, scores=np.sort([float(plain.levels(mean).max()) for mean in means[third:]]))


def feature_rows(log: Mapping[str, Array]) -> Array:
    """The features of each row of a log [rows, features]; between two images those of the last one, NaN before."""
    columns = {name: np.asarray(values, float) for name, values in log.items()}
    rows = max((len(values) for values in columns.values()), default=0)
    found, features = np.full((rows, len(FEATURES)), np.nan), _features(columns)
    for i, name in enumerate(FEATURES):
        if (values := features[name]) is not None:
            found[:, i] = values
    # Each unknown value is replaced by the last known one; where there is none, by its own NaN.
    last = np.maximum.accumulate(np.where(np.isfinite(found), np.arange(rows)[:, None], 0), axis=0)
    return np.take_along_axis(found, last, axis=0)


def _features(columns: Mapping[str, Array]) -> dict[str, Array | None]:
    """The features of each row of a log [rows]; None where the log does not hold their numbers."""
    bodies: dict[str, dict[str, Array]] = {}
    for name, values in columns.items():
        body, _, word = name.rpartition(".")
        bodies.setdefault(body, {})[word] = values

    def named(word: str) -> list[Array]:
        return [one[word] for one in bodies.values() if word in one]

    def largest(found: Sequence[Array]) -> Array | None:
        """The largest over bodies or cameras; NaN where none has a number."""
        return None if not found else np.fmax.reduce([np.where(np.isfinite(one), one, np.nan) for one in found])

    def over_sigma(word: str) -> Array | None:
        """A length of a body over its standard deviation, where an image corrected it."""
        known = [one for one in bodies.values() if {word, "sigma", "nis"} <= one.keys()]
        return largest([np.where(np.isfinite(b["nis"]), b[word] / np.maximum(b["sigma"], 1e-6), np.nan) for b in known])

    def share(word: str) -> Array | None:
        """The share of cameras for which a number is not zero."""
        return np.mean(np.asarray(found) > 0, axis=0) if (found := named(word)) else None

    seen = [one for one in bodies.values() if {"overlap", "visible_share"} <= one.keys()]
    return {
        "innovation": over_sigma("shift"),
        "lost": largest(named("frames_lost")),
        # How much the worst overlap of a camera that sees enough of the body is short of 1.
        "overlap": largest([np.where(one["visible_share"] > MIN_SEEN, 1.0 - one["overlap"], np.nan) for one in seen]),
        "disagreement": largest([apart / MAX_DISAGREEMENT_M for apart in named("disagreement")]),
        "penetration": over_sigma("penetration"),
        "joint_error": columns.get("joints.error"),
        "excluded": share("excluded"),
        "fault": share("fault"),
        **{word: largest(named(word)) for word in ("nis", "residual", "image_delay", "relocalized")},
    }


def _window_means(values: Array, skip: int) -> Array:
    """Means over the last frames [rows, features]; those before the run and before `skip` count as zero."""
    judged = np.concatenate([np.zeros((WINDOW_FRAMES, values.shape[1])), values])
    judged[WINDOW_FRAMES : WINDOW_FRAMES + skip] = 0.0
    total = np.cumsum(judged, axis=0)
    return (total[WINDOW_FRAMES:] - total[:-WINDOW_FRAMES]) / WINDOW_FRAMES
