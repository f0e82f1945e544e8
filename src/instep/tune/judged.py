"""Judge a posterior: is it calibrated, does it cover held-out recordings, is the model wrong; draw it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from instep.core.episode import Episode
from instep.core.stats import Estimate, wilson
from instep.core.world import Simulator

from .belief import Posterior, estimates, save
from .calibrate import calibration, misspecified
from .fit import Fit
from .infer import Method, infer
from .shoot import Shooter
from .windows import cut


def judge_posterior(
    belief: Posterior,
    found: Fit,
    held_out: Sequence[Episode],
    folder: Path,
    *,
    method: Method = "laplace",
    truths: int = 20,
    seed: int = 0,
) -> dict[str, object]:
    """Save the belief with a corner plot, and say how far it can be trusted."""
    save(belief, folder / "belief.json")
    corner(belief, folder / "corner.png", seed=seed)
    checked = calibration(found, lambda fit, number: infer(fit, method, seed=number), truths, seed=seed)
    sim = found.problem.shooter.sim
    band = covered(sim, belief, held_out, found, seed=seed)
    doubt = misspecified(found, belief, seed=seed)
    words = "The model explains the recordings up to noise."
    if doubt.value < 0.05:
        words = (
            "Residuals are not noise: something is missing from the model, so the posterior is about the model's knobs "
            "rather than the machine's."
        )
    return {
        "method": method,
        "estimates": {name: e.as_dict() for name, e in estimates(belief).items()},
        "coverage of planted truths": {f"{level:g}": checked.coverage(level).as_dict() for level in (0.5, 0.9)},
        "uniform ranks, p": checked.uniformity,
        "held-out rows inside the 90 % band": band.as_dict(),
        "misspecification p": doubt.value,
        "words": words,
    }


def covered(
    sim: Simulator, belief: Posterior, episodes: Sequence[Episode], found: Fit, *, draws: int = 40, seed: int = 0
) -> Estimate:
    """Share of held-out rows inside the 90 % band of the posterior's predictions, noise of the residuals added."""
    rng = np.random.default_rng((seed, 0xBA2D))
    windows = cut(sim, episodes, span=found.windows.action.shape[1], limit=64)
    shooter = Shooter(sim, windows, belief.knobs)
    residual = shooter(belief.draw(draws, rng))[..., windows.tangent.seen]
    scatter = found.point.residual.std(axis=(0, 1))
    made = residual + scatter * rng.standard_normal(residual.shape)
    low, high = np.nanquantile(made, [0.05, 0.95], axis=0)
    inside = ((low <= 0) & (high >= 0))[windows.inside]
    # Rows of a window are one observation, so the count behind the interval is that of windows.
    share, n = float(inside.mean()), len(windows) * inside.shape[-1]
    return wilson(round(share * n), n)


def corner(belief: Posterior, path: Path, *, draws: int = 1500, seed: int = 0) -> Path:
    """Draw every pair of knobs against each other, and each knob's own distribution on the diagonal."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rng = np.random.default_rng((seed, 0xC0))
    values = belief.sample(draws, rng)
    names = list(values)[:8]
    size = len(names)
    figure = Figure(figsize=(1.8 * size + 0.6, 1.8 * size + 0.6))
    FigureCanvasAgg(figure)
    for row, below in enumerate(names):
        for column, beside in enumerate(names[: row + 1]):
            axes = figure.add_subplot(size, size, row * size + column + 1)
            if row == column:
                axes.hist(values[below], bins=30, color="0.4")
                axes.set_yticks([])
            else:
                axes.plot(values[beside], values[below], ".", ms=1.5, color="0.3", alpha=0.4)
            axes.tick_params(labelsize=6)
            if row == size - 1:
                axes.set_xlabel(beside, fontsize=6)
            if column == 0:
                axes.set_ylabel(below, fontsize=6)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    return path
