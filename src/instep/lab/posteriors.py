"""Posteriors as baselines: Stein variational gradient descent (SVGD), neural posteriors (BayesSim), ensembles.

SVGD and the neural posterior use the likelihood of `instep.tune.posterior.beliefs`. On the posteriors of
`benchmarks/tune.py` they are as well calibrated as the Laplace posterior, which takes a fraction of their time.

`ensemble_posterior` needs ranges and a short recording, but no fit and no gradients: ensemble Kalman inversion.
Members are sampled from the ranges, run through all windows in one batch, and moved by a Kalman step several times. The
noise is what the best member leaves, times its correlation time. The share that is correlated in time is an error of
the model, the same in every window, so it counts once: the errors of another engine widen the posterior. It takes
seconds; `infer` is the careful method for a robot of yours.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from io import StringIO
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput, Diverged, MissingExtra
from instep.core.param import Param
from instep.core.world import Array, Simulator, options_dataclass
from instep.tune.fit.shooting import Fit
from instep.tune.fit.uncertainty import correlation_time
from instep.tune.fit.windows import Shooter, Windows, cut_windows
from instep.tune.posterior.beliefs import (
    Likelihood,
    SampleBelief,
    assimilate,
    likelihood,
    whitener,
    widened_laplace,
)

SVGD_RATE = 0.3
"""Step length; 1 would carry particles of a standard normal target to its mean."""
NPE_RANGE = 6.0
"""Range of the parameters a network is trained on, in standard deviations of the Laplace posterior."""
Gradient = Callable[[Array], Array]
"""A function of points [points, directions], such as a log density or its gradient."""


def svgd(found: Fit, *, seed: int = 0, particles: int = 0, steps: int = 12, draws: int = 400) -> SampleBelief:
    """Stein variational gradient descent on the multiple-shooting likelihood, from the Laplace posterior.

    Particles move in coordinates that whiten the Laplace posterior, so that one step length suits all directions; all
    are differentiated in one batch. Samples are taken around the final particles and weighted by the likelihood.
    """
    rng = np.random.default_rng((seed, 0x57E1))
    target = likelihood(found)
    root, centre = whitener(found), found.x

    def gradient(z: Array) -> Array:
        return target.gradients(np.clip(centre + z @ root.T, 0.0, 1.0)) @ root

    def log(z: Array) -> Array:
        x = centre + z @ root.T
        inside = ((x >= 0) & (x <= 1)).all(axis=1)
        return np.where(inside, target.log(np.clip(x, 0.0, 1.0)), -np.inf)

    points = widened_laplace(found, 1.5).draw(particles or max(30, 2 * len(found.params)), rng)
    z = svgd_flow(gradient, np.linalg.solve(root, (points - centre).T).T, steps)
    return SampleBelief(found.params, np.clip(centre + weighted_samples(log, z, draws, rng) @ root.T, 0.0, 1.0))


def svgd_flow(gradient_of: Gradient, z: Array, steps: int) -> Array:
    """Stein variational gradient descent of particles [particles, directions] in whitened coordinates.

    A Gaussian kernel alone underestimates the spread: 0.85 of a normal target's deviation in three dimensions, 0.55 in
    ten, 0.4 in thirty. A linear kernel gives the mean and covariance of the target in any dimension, as long as there
    are more particles than directions, but only stretches and shears. So the first half of the steps uses the Gaussian
    kernel, the second half both.
    """
    for step in range(steps):
        gradient = gradient_of(z)
        # k grad log p + grad k with a Gaussian kernel k of the median width.
        gaps = z[:, None] - z[None]  # [i, j, d] = z_i - z_j
        squared = (gaps**2).sum(axis=-1)
        apart = squared[squared > 0]
        width = max(float(np.median(apart)) / np.log(len(z) + 1), 1e-9) if apart.size else 1.0
        kernel = np.exp(-squared / width)
        near = (kernel @ gradient + (kernel[..., None] * gaps * 2 / width).sum(axis=1)) / len(z)
        # The same with the kernel 1 + (z_i - m) (z_j - m), zero where E[grad] = 0 and E[grad (z - m)^T] = -1.
        away = z - z.mean(axis=0)
        linear = gradient.mean(axis=0) + away @ (away.T @ gradient) / (len(z) - 1) + away
        push = near / float(kernel.mean()) if step < steps // 2 else near + linear
        # Far from the target gradients are large; particles move at most about a deviation per step.
        z = z + SVGD_RATE * push / max(1.0, float(np.sqrt((push**2).mean())))
    return z


def weighted_samples(log: Gradient, z: Array, n: int, rng: np.random.Generator) -> Array:
    """n samples of a density [n, directions] by importance resampling from a Gaussian mixture around the particles.

    The mixture has the mean and covariance of the particles: its centres are shrunk towards their mean by as much as
    the components widen it. Weights are truncated at the root of n times their mean, so that no sample dominates.
    """
    count, size = z.shape
    share = min(0.95, (4 / (count * (size + 2))) ** (1 / (size + 4)))  # Silverman's rule
    mean = z.mean(axis=0)
    values, vectors = np.linalg.eigh(np.atleast_2d(np.cov(z.T)))
    root = vectors * np.sqrt(np.maximum(values, 1e-12))
    away: Array = z - mean
    centres = np.linalg.solve(np.asarray(root), away.T).T * np.sqrt(1 - share**2)
    round_points = centres[np.arange(n) % count] + share * rng.standard_normal((n, size))
    points = mean + round_points @ root.T
    squared = ((round_points[:, None] - centres) ** 2).sum(axis=-1) / share**2
    mixture = np.logaddexp.reduce(-0.5 * squared, axis=1)
    weight = log(points) - mixture
    if not np.isfinite(weight).any():
        raise Diverged("Every simulation near the particles diverged; use shorter windows or narrower bounds.")
    weight = np.exp(weight - weight.max())
    weight = np.minimum(weight / weight.mean(), np.sqrt(n))
    # Systematic resampling: one random offset for all.
    picked = np.searchsorted(np.cumsum(weight / weight.sum()), (np.arange(n) + rng.random()) / n)
    return points[np.minimum(picked, n - 1)]


def summary(found: Fit, target: Likelihood) -> Callable[[Array], Array]:
    """Summary statistics of residuals [points, rows]: their projection on a Gauss-Newton step [points, parameters]."""
    flat = np.nan_to_num(target.jacobian(found.x[None])[1][0])
    values, vectors = np.linalg.eigh(flat @ flat.T)
    directions = (vectors / np.sqrt(np.maximum(values, 1e-9))) @ vectors.T @ flat

    def project(rows: Array) -> Array:
        # Finite also where a simulation diverged.
        return np.nan_to_num(rows, nan=1e3, posinf=1e3, neginf=-1e3).clip(-1e4, 1e4) @ directions.T

    return project


def npe(found: Fit, *, seed: int = 0, sims: int = 1000, draws: int = 2000, truths: int = 200) -> SampleBelief:
    """Neural posterior estimation with sbi: a mixture density network (BayesSim), trained once around the Laplace fit.

    The network works in coordinates that whiten that posterior. It is amortised over recordings, so simulation-based
    calibration costs no training: the ranks of fresh parameters come with the samples.
    """
    torch, sbi = _libraries()
    rng = np.random.default_rng((seed, 0x49E))
    target = likelihood(found)
    summarise, here = summary(found, target), target.rows(found.x[None])
    root = whitener(found)
    z = _within_range(rng, found.x, root, sims + truths)
    points = found.x + z @ root.T
    # Recordings simulated at each point minus the prediction at the fit, in deviations of the noise.
    parts = [summarise(target.rows(p) - here) for p in np.array_split(points, max(1, len(points) // 256))]
    # A projection of white noise on orthonormal directions is white noise, so it need not be sampled row by row.
    seen = np.concatenate(parts) + rng.standard_normal(z.shape)
    prior = sbi.utils.BoxUniform(
        _tensor(torch, np.full(len(root), -NPE_RANGE)), _tensor(torch, np.full(len(root), NPE_RANGE))
    )
    with _quiet(torch, seed):
        trainer = sbi.inference.NPE(
            prior=prior, density_estimator="mdn", tracker=_NoTracker(), show_progress_bars=False
        )
        trainer.append_simulations(_tensor(torch, z[:sims]), _tensor(torch, seen[:sims]))
        network = trainer.train(max_num_epochs=200, show_train_summary=False)
        # Rejecting samples outside the bounds can take for ever where a parameter lies at its bound, so they are
        # clipped.
        real = network.sample((draws,), condition=_tensor(torch, summarise(-here)))[:, 0]
        checks = network.sample((100,), condition=_tensor(torch, seen[sims:]))
    ranks = (checks.detach().numpy() < z[None, sims:]).mean(axis=0)
    sampled = found.x + real.detach().numpy().astype(float) @ root.T
    return SampleBelief(found.params, np.clip(sampled, 0.0, 1.0), ranks)


def _within_range(rng: np.random.Generator, centre: Array, root: Array, n: int) -> Array:
    """n whitened points around the Laplace posterior, uniform where the bounds allow it [n, parameters]."""
    z = NPE_RANGE * rng.uniform(-1, 1, (n, len(root)))
    for _ in range(50):
        x = centre + z @ root.T
        out = ((x < 0) | (x > 1)).any(axis=1)
        z[out] = NPE_RANGE * rng.uniform(-1, 1, (int(out.sum()), len(root)))
    x = np.clip(centre + z @ root.T, 0.0, 1.0)
    return np.linalg.solve(root, (x - centre).T).T


class _NoTracker:
    """Discards what sbi logs, which otherwise goes into a folder in the working directory."""

    log_dir = None

    def __getattr__(self, name: str) -> Any:
        return self._discard

    def _discard(self, *_: Any, **__: Any) -> None:
        pass


@contextmanager
def _quiet(torch: Any, seed: int) -> Generator[None]:
    """One thread (several are slower for small networks), a seed, no warnings, no progress on stdout."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_num_threads(threads)


def _tensor(torch: Any, values: Array) -> Any:
    return torch.tensor(values, dtype=torch.float32)


def _libraries() -> tuple[Any, Any]:
    try:
        logging.getLogger("sbi").setLevel(logging.ERROR)
        torch, sbi = import_module("torch"), import_module("sbi")
        for part in ("inference", "utils"):
            import_module(f"sbi.{part}")
    except ImportError:
        raise MissingExtra("sbi", "learn") from None
    return torch, sbi


@options_dataclass
class EnsembleOptions:
    """Options of an ensemble posterior."""

    members: int = 64
    steps: int = 4
    """Kalman steps, among which the recording is split."""
    window_s: float = 0.5
    """Length of a window [s]."""
    windows: int = 16
    """Most windows used, evenly spaced."""
    seed: int = 0


def ensemble_posterior(
    sim: Simulator, episodes: Sequence[Episode], params: Sequence[Param], options: EnsembleOptions | None = None
) -> SampleBelief:
    """Samples of parameters inside their ranges that predict the windows of recordings."""
    options = options or EnsembleOptions()
    if not params or options.members < 4 or options.steps < 1:
        raise BadInput("An ensemble posterior needs parameters, at least 4 members and at least 1 step.")
    span = max(2, round(options.window_s / sim.spec.dt))
    windows = cut_windows(sim, episodes, span=span, limit=options.windows)
    if not len(windows):
        raise BadInput(f"The recordings hold no window of {options.window_s:g} s; record longer ones.")
    shooter, rng = Shooter(sim, windows, tuple(params)), np.random.default_rng((options.seed, 0xE45))
    points = rng.random((options.members, len(params)))
    for _ in range(options.steps):
        points = assimilate(points, _whitened(shooter(points), windows), float(options.steps), rng)
    return SampleBelief(tuple(params), points)


def _whitened(residual: Array, windows: Windows) -> Array:
    """Residuals in deviations of the noise [members, rows]; those that diverged are not finite."""
    measured = residual[..., windows.tangent.measured]
    size = np.maximum(np.nanmedian(np.abs(measured), axis=(0, 1, 2)), windows.noise_q[windows.tangent.measured] + 1e-9)
    scaled = measured / size  # [members, windows, span, directions]
    power = np.where(np.isfinite(scaled).all(axis=(1, 2, 3)), (scaled**2).mean(axis=(1, 2, 3)), np.inf)
    best = scaled[int(np.argmin(power))]
    steps = correlation_time(best)
    # Errors of the model repeat: windows do not average out the share 1 - 1 / steps that is correlated in time.
    repeated = 1 + (len(windows) - 1) * (1 - 1 / steps)
    noise = max(float(power.min()), 1e-9) * steps * repeated
    return scaled.reshape(len(scaled), -1) / np.sqrt(noise)
