"""Arms: an SO-101; the spread of repeats of a Barrett WAM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from instep.physics.engines import without_delta
from instep.scene.folder import Scene
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


def _so101_fit(fold: int, out: Path) -> None:
    scene = Scene.load("so101")
    _so101_fold(scene, recorded("so101", "so101", scene), fold, out)


def _so101_fold(scene: Scene, episodes: list[Any], fold: int, out: Path) -> Any:
    """The scene fitted to all motions but every third one; kept in the folder."""
    inside = [e for i, e in enumerate(episodes) if i % FOLDS != fold]
    choice = auto_params(scene, inside)
    sim = without_delta(scene).tuned(choice.fixed)
    kept = out / f"so101_fold_{fold}.json"
    if not kept.is_file():
        options = ShootingOptions(window=2.0, limit=64, initial=choice.initial, guesses=1, local=True, iterations=20)
        kept.write_text(json.dumps(fit(sim, inside, choice.params, options).settings, indent=2))
    return sim.tuned(json.loads(kept.read_text()))


def repeat_floor(episodes: list[Any]) -> np.ndarray:
    """How far repeats of one input differ [mrad]."""
    shortest = min(len(e) for e in episodes)
    runs = np.stack([e.q[:shortest] for e in episodes])
    return 1e3 * np.sqrt(((runs - runs.mean(axis=0)) ** 2).mean(axis=(0, 1)) * len(runs) / (len(runs) - 1))
