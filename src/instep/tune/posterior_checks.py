"""Are posteriors as sure as they may be? Simulation-based calibration, coverage, and a warning of misspecification.

Judge a posterior: is it calibrated, does it cover held-out recordings, is the model wrong; draw it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy import stats

from instep.core.episode import Episode
from instep.core.param import Param
from instep.core.statistics import Estimate, wilson
from instep.core.world import Array, Simulator

from .beliefs import GaussianBelief, Posterior, SampleBelief, estimates, save
from .fit import Fit, uncertainty
from .least_squares import descend, evaluate
from .parameter_recovery import some, synthetic_problem
from .posterior import Likelihood, Method, infer, likelihood, widened_laplace
from .shooting import Shooter
from .windows import Windows, cut

LEVELS = (0.5, 0.8, 0.9, 0.95)


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """Where truths fell within their posteriors."""

    names: tuple[str, ...]
    ranks: Array
    """Share of posterior draws below the truth [truths, parameters]; uniform where the posterior is right."""

    def coverage(self, level: float) -> Estimate:
        """Share of truths inside the central interval of a level, over all parameters."""
        inside = np.abs(self.ranks - 0.5) <= level / 2
        return wilson(int(inside.sum()), inside.size)

    @property
    def uniformity(self) -> dict[str, float]:
        """p-value that the ranks are uniform, by parameter (Kolmogorov and Smirnov's test)."""
        return {name: float(stats.kstest(self.ranks[:, i], "uniform").pvalue) for i, name in enumerate(self.names)}

    @property
    def error(self) -> float:
        """Mean distance between nominal and actual coverage, over levels."""
        return float(np.mean([abs(self.coverage(level).value - level) for level in LEVELS]))


def calibration(
    found: Fit, method: Callable[[Fit, int], Posterior], truths: int = 50, *, seed: int = 0, draws: int = 400
) -> Calibration:
    """Plant truths near a fit, fit again, infer, and rank each truth among the draws of its posterior."""
    rng = np.random.default_rng((seed, 0x5BC))
    ranks: list[Array] = []
    # Truths come from a region wider than any posterior, or every method would look right.
    region = widened_laplace(found, 16.0)
    for number in range(truths):
        truth = region.draw(1, rng)[0]
        again = refit(found, truth, rng)
        belief = method(again, number)
        points = belief.draw(draws, rng) if isinstance(belief, GaussianBelief) else belief.points
        ranks.append((points < truth).mean(axis=0))
    return Calibration(tuple(k.address for k in found.params), np.array(ranks))


def refit(found: Fit, truth: Array, rng: np.random.Generator, iterations: int = 10) -> Fit:
    """The fit that recordings made with a known truth would have given."""
    problem = synthetic_problem(found, truth, rng)
    begin = replace(evaluate(problem, found.x[None])[0], nudge=found.point.nudge)
    point = descend(problem, begin, iterations, 1e-5)
    covariance, information = uncertainty(problem, point)
    return replace(found, problem=problem, point=point, covariance=covariance, information=information)


def misspecification(found: Fit, belief: Posterior, *, draws: int = 50, seed: int = 0) -> Estimate:
    """How likely residuals as coloured as the real ones are, if the posterior and white noise were the whole truth.

    The statistic is the lag-one correlation of the residuals: noise has none, missing physics has.
    """
    rng = np.random.default_rng((seed, 0x315))
    target: Likelihood = likelihood(found)
    shape, size = found.point.residual.shape, found.point.residual.size
    here = target.rows(found.x[None])[:, :size]
    made = target.rows(belief.draw(draws, rng))[:, :size] - here
    made = made + rng.standard_normal(made.shape)
    # Where start states are off by more than was thought, it is no fault of the physics: they are taken at their best.
    likes, real = (
        [_lag_one(rows.reshape(shape)) for rows in target.shrunk(some.reshape(len(some), shape[0], -1))]
        for some in (made, here)
    )
    beyond = int((np.array(likes) >= real[0]).sum())
    return Estimate((beyond + 1) / (draws + 1), 0.0, 1.0, draws, "1")


def _lag_one(residual: Array) -> float:
    power = float((residual**2).mean())
    return float((residual[:, 1:] * residual[:, :-1]).mean()) / power if power > 0 else 0.0


TRUTHS: dict[Method, int] = {"laplace": 20, "eki": 10, "svgd": 4, "npe": 0}
"""Planted truths a posterior is checked on; each costs a fit and an inference. A network checks itself."""
FEW = 12
"""Most windows that such a check uses."""


def check_posterior(
    belief: Posterior,
    found: Fit,
    held_out: Sequence[Episode],
    folder: Path,
    *,
    method: Method = "laplace",
    band: PredictiveBand | None = None,
    seed: int = 0,
) -> dict[str, object]:
    """Save the belief with a corner plot and a band of predictions, and say how far it can be trusted."""
    save(belief, folder / "belief.json")
    corner_plot(belief, folder / "corner.png", seed=seed)
    count = TRUTHS[method]
    ranks = belief.ranks if isinstance(belief, SampleBelief) else None
    names = tuple(param.address for param in belief.params)
    checked = Calibration(names, ranks) if ranks is not None else None
    if checked is None and count:
        # A check on fewer windows is one of the same method, and takes a fraction of the time.
        few = some(found, FEW)
        checked = calibration(few, lambda fit, number: infer(fit, method, seed=number), count, seed=seed)
    band = band or predicted(found.problem.shooter.sim, belief, held_out, found, seed=seed)
    plot_band(band, folder / "band.png")
    doubt = misspecification(found, belief, seed=seed)
    return {
        "method": method,
        "estimates": {name: e.as_dict() for name, e in estimates(belief).items()},
        "truths": 0 if checked is None else len(checked.ranks),
        "coverage of planted truths": _coverages(checked),
        "uniform ranks, p": {} if checked is None else checked.uniformity,
        "held-out rows inside the 90 % band": band.inside.as_dict(),
        "misspecification p": doubt.value,
        "words": _words(doubt.value, band.inside),
        "files": ["belief.json", "belief.npz", "corner.png", "band.png"],
    }


def _coverages(checked: Calibration | None) -> dict[str, object]:
    return {} if checked is None else {f"{level:g}": checked.coverage(level).as_dict() for level in LEVELS}


def _words(doubt: float, inside: Estimate) -> str:
    said = "The model explains the recordings up to noise."
    if doubt < 0.05:
        said = (
            "Residuals are not noise: the model lacks something, so the posterior is about the model's params "
            "rather than the machine's."
        )
    if inside.high < 0.9:
        said += (
            f" Held-out rows leave the 90 % band too often ({inside.value:.0%} inside): widen the belief before use."
        )
    return said


@dataclass(frozen=True, slots=True, eq=False)
class PredictiveBand:
    """What a posterior predicts for held-out windows, minus what was measured."""

    low: Array
    """[windows, span, channels]."""
    high: Array
    windows: Windows
    inside: Estimate
    """Share of rows within the 90 % band."""


def predicted(
    sim: Simulator, belief: Posterior, episodes: Sequence[Episode], found: Fit, *, draws: int = 40, seed: int = 0
) -> PredictiveBand:
    """The 90 % band of the posterior's predictions of held-out recordings: parameters, start states, noise of rows."""
    rng = np.random.default_rng((seed, 0xBA2D))
    windows = cut(sim, episodes, span=found.windows.action.shape[1], skip=first_row(belief.params, sim), limit=64)
    shooter = Shooter(sim, windows, belief.params)
    # Starts are as uncertain as was thought, or as far off as those of the fit turned out to be.
    moved = np.sqrt((found.point.starts**2).mean(axis=0))
    sigma = np.where(found.problem.sigma_start > 0, np.maximum(found.problem.sigma_start, moved), 0.0)
    starts = rng.standard_normal((draws, len(windows), len(sigma))) * sigma if sigma.any() else None
    residual = shooter(belief.draw(draws, rng), starts)[..., windows.tangent.seen]
    scatter = found.point.residual.std(axis=(0, 1))
    made = residual + scatter * rng.standard_normal(residual.shape)
    low, high = np.nanquantile(made, [0.05, 0.95], axis=0)
    inside = ((low <= 0) & (high >= 0))[windows.inside]
    # Rows of a window are one observation, so the count behind the interval is that of windows.
    share, n = float(inside.mean()), len(windows) * inside.shape[-1]
    return PredictiveBand(low, high, windows, replace(wilson(round(share * n), n), value=share))


def first_row(params: Sequence[Param], sim: Simulator) -> int:
    """The first row to predict from: commands before a recording are unknown, and a late one could still move it."""
    return round(max((param.high for param in params if param.parts.field == "delay"), default=0.0) / sim.spec.dt)


def plot_band(band: PredictiveBand, path: Path) -> Path:
    """Draw one held-out window of each channel inside its band."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    windows = band.windows
    names = [name for name, seen in zip(windows.tangent.labels, windows.tangent.seen, strict=True) if seen][:6]
    motion = windows.tangent.minus(windows.target, windows.q[:, None])[..., windows.tangent.seen]
    figure = Figure(figsize=(7.0, 1.6 * len(names) + 0.6))
    FigureCanvasAgg(figure)
    for i, name in enumerate(names):
        which = int(np.argmax(np.ptp(motion[..., i], axis=1)))
        rows = windows.inside[which]
        axes = figure.add_subplot(len(names), 1, i + 1)
        measured = motion[which, rows, i]
        steps = np.arange(len(measured))
        low, high = measured + band.low[which, rows, i], measured + band.high[which, rows, i]
        axes.fill_between(steps, low, high, color="0.8", label="90 % band")
        axes.plot(steps, measured, color="0.1", lw=1, label="measured")
        axes.set_ylabel(name, fontsize=7)
        axes.tick_params(labelsize=6)
    figure.axes[0].legend(fontsize=6, frameon=False)
    figure.axes[-1].set_xlabel("rows after the start of the window", fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    return path


def corner_plot(belief: Posterior, path: Path, *, draws: int = 1500, seed: int = 0) -> Path:
    """Draw every pair of parameters against each other, and each parameter's own distribution on the diagonal."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

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
            axes.xaxis.set_major_locator(MaxNLocator(3))
            if row == size - 1:
                axes.set_xlabel(beside, fontsize=6)
            if column == 0:
                axes.set_ylabel(below, fontsize=6)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    return path
