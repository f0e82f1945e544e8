"""Arms: an SO-101 with and without a delta action, a Barrett WAM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from harness import row
from instep.core.statistics import Estimate
from instep.physics.engines import without_delta
from instep.scene.folder import Scene
from instep.tune.delta_action import DeltaOptions, Squares, error_reductions, learn_delta, squared_errors
from instep.tune.fit.shooting import ShootingOptions, fit
from instep.tune.param_selection import auto_params

from .common import error_row, paths, pooled, recorded, rms

FOLDS = 3
ARM = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll")


def so101(out: Path, quick: bool) -> list[dict[str, Any]]:
    """Open-loop error of whole motions, each predicted by a scene that was fitted to other motions."""
    scene = Scene.load("so101")
    episodes = recorded("so101", "so101", scene)
    tuned, commanded = np.zeros((len(episodes), len(ARM))), np.zeros((len(episodes), len(ARM)))
    pooled(_so101_fit, [(fold, out) for fold in range(FOLDS)])
    for fold in range(FOLDS):
        sim = _so101_fold(scene, episodes, fold, out)
        columns = [sim.spec.q.labels.index(name) for name in ARM]
        outside = range(fold, len(episodes), FOLDS)
        for i, error in zip(outside, paths(sim, [episodes[i] for i in outside]), strict=True):
            tuned[i] = 1e3 * rms(error[:, columns])
            commanded[i] = 1e3 * rms((episodes[i].action - episodes[i].q)[:, columns])
        np.savez(out / "so101_folds.npz", tuned=tuned, commanded=commanded, names=[e.meta["motion"] for e in episodes])
    return [
        error_row("so101, commands as prediction", commanded.mean(axis=1), "mrad"),
        error_row("so101, held-out motions, joints 0 to 4", tuned.mean(axis=1), "mrad", 10.0),
        *(
            error_row(f"so101, held-out motions, {n}", tuned[:, j], "mrad", 5.4 if j == 0 else None)
            for j, n in enumerate(ARM)
        ),
    ]


def so101_delta(out: Path, quick: bool) -> list[dict[str, Any]]:
    """Error 0.5 s and 1 s after the start of a window, every motion type held out once from both params and delta."""
    parts = pooled(_so101_squares, [(fold, out, quick) for fold in range(1 if quick else FOLDS)])
    removed = error_reductions(_joined(parts))
    rows = []
    for horizon in ("0.5 s", "1 s"):
        for name, goal in (("delta", 0.15), ("noise", None)):
            gain: Estimate = getattr(removed[horizon], name)
            ok = None if goal is None else gain.value >= goal and gain.low > 0
            label = "delta action" if name == "delta" else "noise of its size"
            found = Estimate(100 * gain.value, 100 * gain.low, 100 * gain.high, len(parts), "%")
            least = None if goal is None else 100 * goal
            rows.append(row(f"so101, error removed after {horizon} by {label}", found, at_least=least, ok=ok))
    return [*rows, *_left_over(parts)]


def _left_over(parts: list[Squares]) -> list[dict[str, Any]]:
    """Where the error sits that the parameters leave: by joint, and how much of its squares two motions own."""
    names = [e.meta["motion"] for e in recorded("so101", "so101", Scene.load("so101"))]
    motion = np.array([names[fold::FOLDS][r] for fold, part in enumerate(parts) for r in part["0.5 s"][0]])
    squares = 1e6 * np.concatenate([part["0.5 s"][1]["tuned"] for part in parts])
    sums = {name: squares[motion == name].sum(axis=0) for name in np.unique(motion)}
    rows = [
        error_row("so101, error after 0.5 s as tuned, median of windows", np.sqrt(np.median(squares, axis=0)), "mrad")
    ]
    for j, joint in enumerate(ARM):
        rows.append(
            error_row(f"so101, error after 0.5 s as tuned, {joint}", [float(np.sqrt(squares[:, j].mean()))], "mrad")
        )
        worst = sorted(sums, key=lambda name: -sums[name][j])[:2]
        share = 100 * sum(float(sums[name][j]) for name in worst) / float(squares[:, j].sum())
        rows.append(error_row(f"so101, {joint}, share of squared error in {' and '.join(worst)}", [share], "%"))
    return rows


def _so101_squares(fold: int, out: Path, quick: bool) -> Squares:
    scene = Scene.load("so101")
    episodes = recorded("so101", "so101", scene)
    inside = [e for i, e in enumerate(episodes) if i % FOLDS != fold]
    sim = _so101_fold(scene, episodes, fold, out)
    delta = learn_delta(sim, inside, DeltaOptions(limit=600 if quick else 2000), joints=ARM)
    delta.save(out / f"so101_delta_{fold}.npz")
    return squared_errors(sim, delta, episodes[fold::FOLDS], seed=fold)


def _joined(parts: list[Squares]) -> Squares:
    """The folds as one: recordings of different folds are different recordings."""
    out: Squares = {}
    for horizon in parts[0]:
        runs = np.concatenate([1000 * k + part[horizon][0] for k, part in enumerate(parts)])
        names = parts[0][horizon][1]
        out[horizon] = runs, {name: np.concatenate([part[horizon][1][name] for part in parts]) for name in names}
    return out


def _so101_fit(fold: int, out: Path) -> None:
    scene = Scene.load("so101")
    _so101_fold(scene, recorded("so101", "so101", scene), fold, out)


def _so101_fold(scene: Scene, episodes: list[Any], fold: int, out: Path) -> Any:
    """The scene fitted to all motions but every third one; found once and kept for the row of the delta."""
    inside = [e for i, e in enumerate(episodes) if i % FOLDS != fold]
    choice = auto_params(scene, inside)
    sim = without_delta(scene).tuned(choice.fixed)
    kept = out / f"so101_fold_{fold}.json"
    if not kept.is_file():
        options = ShootingOptions(window=2.0, limit=64, start=choice.start, starts=1, local=True, iterations=20)
        kept.write_text(json.dumps(fit(sim, inside, choice.params, options).settings, indent=2))
    return sim.tuned(json.loads(kept.read_text()))


LEAD = np.array([0.035, 0.05, 0.05, 0.025, 0.03, 0.03, 0.02])
"""D / P of the arm's controller [s]."""


def wam(out: Path, quick: bool) -> list[dict[str, Any]]:
    """Open-loop error over 20 s of runs that were not fitted, against the spread of repeats of one input.

    Fitted to the first two of five runs of one input; parameters were chosen on these two, mostly on their last 8 s by
    fits to the rest.
    """
    scene = Scene.load("wam7")
    episodes = recorded("quanser_wam", "quanser_wam/wam7", scene)
    choice = auto_params(scene, episodes)
    sim = without_delta(scene).tuned(choice.fixed)
    options = ShootingOptions(
        window=2.0, limit=6 if quick else 20, start=choice.start, starts=1, local=True, iterations=20
    )
    tuned = sim.tuned(fit(sim, episodes[:2], choice.params, options).settings)
    errors = 1e3 * np.array([rms(e) for e in paths(tuned, episodes[2:])]) / repeat_floor(episodes)
    # What the arm is commanded is an angle and a velocity; the mapping makes one command of both.
    commanded = 1e3 * np.array([rms(e.action - LEAD * e["observation.target_velocity"] - e.q) for e in episodes])
    rows = [error_row("wam7, commands as prediction, mean of joints", commanded.mean(axis=1), "mrad")]
    for j, name in enumerate(scene.robot):
        rows.append(error_row(f"wam7, held-out runs, {name}, times the repeat floor", errors[:, j], "1", 3.0))
    return rows


def repeat_floor(episodes: list[Any]) -> np.ndarray:
    """How far repeats of one input differ [mrad]."""
    shortest = min(len(e) for e in episodes)
    runs = np.stack([e.q[:shortest] for e in episodes])
    return 1e3 * np.sqrt(((runs - runs.mean(axis=0)) ** 2).mean(axis=(0, 1)) * len(runs) / (len(runs) - 1))
