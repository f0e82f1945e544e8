"""How well and how fast a real recording becomes Gaussians: held-out PSNR inside the table, three cameras."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from instep.core.statistics import Estimate
from instep.splat.capture import load_capture
from instep.splat.fitting import GaussianFitOptions
from instep.splat.rendering import save_png
from instep.splat.scene_fit import SceneFitOptions, fit_scene

ROOT = Path(__file__).resolve().parents[1]
RECORDINGS = (ROOT / "recordings", ROOT.parent / "shared" / "data")
"""Where the real demonstration is looked for, as `pusht`."""
Row = dict[str, Any]


def run(out: Path, quick: bool = False) -> list[Row]:
    """Fit with the settings of `instep scene splat`, score what was held out, and leave the pictures in `out`."""
    folder = next((place / "pusht" for place in RECORDINGS if (place / "pusht").is_dir()), None)
    if folder is None:
        print("no recording of PushT: nothing is measured")
        return []
    options = SceneFitOptions(fit=GaussianFitOptions(steps=150 if quick else 1500))
    begin, worked = time.perf_counter(), time.process_time()
    done = fit_scene(load_capture(folder), options)
    wall, worked = time.perf_counter() - begin, time.process_time() - worked
    save_png(out / "real_and_twin.png", done.comparison)
    rows = [
        _scored("pusht: PSNR on held-out frames, inside the table", done.scores["psnr"], 27.0),
        _scored("pusht: SSIM on held-out frames, inside the table", done.scores["ssim"]),
        _scored("pusht: PSNR with the arm, for which there are no Gaussians", done.scores["psnr_with_hidden"]),
        _scored("pusht: share of the table left out for the arm", done.scores["left_out"]),
        _number("pusht: Gaussians", len(done.gaussians), ""),
        _number("pusht: time of the fit", wall, "s", 180.0),
        _number("pusht: time of the processor, both cores together", worked, "s"),
    ]
    if done.alignment is not None:
        rows.append(
            _number("pusht: largest correction of a camera's position", 1e3 * abs(done.alignment.shifts).max(), "mm")
        )
    return rows


def _scored(name: str, score: Estimate, least: float | None = None) -> Row:
    return {
        "name": name, "value": score.value, "low": score.low, "high": score.high, "unit": score.unit, "goal": least,
        "ok": None if least is None else bool(score.value >= least),
    }  # fmt: skip


def _number(name: str, value: float, unit: str, most: float | None = None) -> Row:
    ok = None if most is None else bool(value <= most)
    return {"name": name, "value": float(value), "low": None, "high": None, "unit": unit, "goal": most, "ok": ok}
