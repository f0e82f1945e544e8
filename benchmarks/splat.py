"""Quality and time of fitting Gaussians to a real recording: held-out PSNR inside the table, three cameras."""

from __future__ import annotations

import time
from pathlib import Path

from harness import Row, row
from instep.splat.capture import load_capture
from instep.splat.rendering import save_png
from instep.splat.scene_fit import fit_scene

ROOT = Path(__file__).resolve().parents[1]
RECORDINGS = (ROOT / "recordings", ROOT.parent / "shared" / "data")
"""Where the real demonstration is searched, as `pusht`."""


def run(out: Path, quick: bool = False) -> list[Row]:
    """Fit with the settings of `instep scene splat`, score what was held out, and leave the images in `out`."""
    folder = next((place / "pusht" for place in RECORDINGS if (place / "pusht").is_dir()), None)
    if folder is None:
        print("no recording of PushT: nothing is measured")
        return []
    begin, worked = time.perf_counter(), time.process_time()
    done = fit_scene(load_capture(folder))  # takes minutes, so a quick run is the whole one
    wall, worked = time.perf_counter() - begin, time.process_time() - worked
    save_png(out / "real_and_twin.png", done.comparison)
    rows = [
        row("pusht: PSNR on held-out frames, inside the table", done.scores["psnr"], at_least=27.0),
        row("pusht: SSIM on held-out frames, inside the table", done.scores["ssim"]),
        row("pusht: PSNR with the arm, for which there are no Gaussians", done.scores["psnr_with_hidden"]),
        row("pusht: share of the table left out for the arm", done.scores["left_out"]),
        row("pusht: Gaussians", len(done.gaussians), ""),
        row("pusht: time of the fit", wall, "s", at_most=180.0),
        row("pusht: time of the processor, both cores together", worked, "s"),
    ]
    if done.alignment is not None:
        shift = 1e3 * abs(done.alignment.shifts).max()
        rows.append(row("pusht: largest correction of a camera's position", shift, "mm"))
    return rows
