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

import json
from collections.abc import Callable, Mapping, Sequence
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
        return self.run_levels(feature_rows(log))

    def run_levels(self, features: Array) -> Array:
        """The level of each frame of a run [rows], of its features [rows, features]."""
        return self.levels(_window_means(self.excess(features), self.skip)).max(axis=1)

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
        fixed = np.array([name in (*MILD, "lost") for name in FEATURES])
        known = np.isfinite(features).sum(axis=0) > WINDOW_FRAMES
        own = np.array([np.median(f[np.isfinite(f)]) if k else np.nan for f, k in zip(features.T, known, strict=True)])
        move = np.clip(
            np.where(known & ~fixed, own, self.centre) - self.centre, -OWN_SHIFT * self.spread, OWN_SHIFT * self.spread
        )
        return replace(self, centre=self.centre + move)

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        columns = {name: getattr(self, name) for name in ("centre", "spread", "largest")}
        rounded = {name: [float(f"{x:.4g}") for x in values] for name, values in columns.items()}
        table = {
            kind: dict(zip(rounded, values, strict=True))
            for kind, values in zip(FEATURES, zip(*rounded.values(), strict=True), strict=True)
        }
        content = {"features": table, "scores": [float(f"{x:.4g}") for x in self.scores], "skip": self.skip}
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


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
    means = np.concatenate([_window_means(plain.excess(run), skip)[skip:] for run in runs[:third]])
    plain = replace(plain, largest=np.maximum(means.max(axis=0), 1.0))
    return replace(plain, scores=np.sort([float(plain.run_levels(run)[skip:].max()) for run in runs[third:]]))


def feature_rows(log: Mapping[str, Array]) -> Array:
    """The features of each row of a log [rows, features]; between two images those of the last one, NaN before."""
    columns = {name: np.asarray(values, float) for name, values in log.items()}
    rows = max((len(values) for values in columns.values()), default=0)
    found = np.full((rows, len(FEATURES)), np.nan)
    for i, feature in enumerate(_FEATURE_OF.values()):
        values = feature(columns)
        if values is not None:
            found[:, i] = values
    # Values [rows, features] with each unknown one replaced by the last known.
    known = np.where(np.isfinite(found), np.arange(len(found))[:, None], -1)
    last = np.maximum.accumulate(known, axis=0)
    return np.where(last >= 0, np.take_along_axis(found, np.maximum(last, 0), axis=0), np.nan)


def _named(columns: Mapping[str, Array], word: str) -> list[Array]:
    return [values for name, values in columns.items() if name.endswith("." + word)]


def _largest(columns: Mapping[str, Array], word: str) -> Array | None:
    """The largest of a number over bodies or cameras; NaN where none has one."""
    found = _named(columns, word)
    if not found:
        return None
    stacked = np.where(np.isfinite(found), found, -np.inf).max(axis=0)
    return np.where(np.isfinite(stacked), stacked, np.nan)


def _over_sigma(columns: Mapping[str, Array], word: str) -> Array | None:
    """A length of a body over its standard deviation, the largest of all bodies, where an image corrected it."""
    parts: list[Array] = []
    for name in columns:
        body, _, ending = name.rpartition(".")
        if ending == word and f"{body}.sigma" in columns and f"{body}.nis" in columns:
            seen = np.isfinite(columns[f"{body}.nis"])
            parts.append(np.where(seen, columns[name] / np.maximum(columns[f"{body}.sigma"], 1e-6), np.nan))
    return _largest({f"{i}.part": part for i, part in enumerate(parts)}, "part")


def _worst_overlap(columns: Mapping[str, Array]) -> Array | None:
    """How much the worst overlap of a camera that sees enough of the body is short of 1."""
    short = {
        name: np.where(columns[name.removesuffix("overlap") + "visible_share"] > MIN_SEEN, 1.0 - values, np.nan)
        for name, values in columns.items()
        if name.endswith(".overlap") and name.removesuffix("overlap") + "visible_share" in columns
    }
    return _largest(short, "overlap")


def _disagreement(columns: Mapping[str, Array]) -> Array | None:
    found = _largest(columns, "disagreement")
    return None if found is None else found / MAX_DISAGREEMENT_M


def _share(columns: Mapping[str, Array], word: str) -> Array | None:
    """The share of cameras for which a number is not zero."""
    found = _named(columns, word)
    return np.mean(np.asarray(found) > 0, axis=0) if found else None


Feature = Callable[[Mapping[str, Array]], "Array | None"]
_FEATURE_OF: dict[str, Feature] = {
    "nis": lambda c: _largest(c, "nis"),
    "innovation": lambda c: _over_sigma(c, "shift"),
    "residual": lambda c: _largest(c, "residual"),
    "lost": lambda c: _largest(c, "frames_lost"),
    "overlap": _worst_overlap,
    "disagreement": _disagreement,
    "penetration": lambda c: _over_sigma(c, "penetration"),
    "joint_error": lambda c: c.get("joints.error"),
    "image_delay": lambda c: _largest(c, "image_delay"),
    "relocalized": lambda c: _largest(c, "relocalized"),
    "excluded": lambda c: _share(c, "excluded"),
    "fault": lambda c: _share(c, "fault"),
}


def _window_means(values: Array, skip: int) -> Array:
    """Means over the last frames [rows, features]; those before the run and before `skip` count as zero."""
    judged = np.where(np.arange(len(values))[:, None] < skip, 0.0, values)
    total = np.cumsum(np.concatenate([np.zeros((1, values.shape[1])), judged]), axis=0)
    begin = np.maximum(np.arange(len(values)) + 1 - WINDOW_FRAMES, 0)
    return (total[1:] - total[begin]) / WINDOW_FRAMES
