"""Neural posterior estimation with sbi: amortised over recordings, told by summaries that keep what a fit would use."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import Any

import numpy as np

from instep.core.errors import MissingExtra
from instep.core.world import Array

from .beliefs import SampleBelief
from .fit import Fit
from .posterior import Likelihood, likelihood, whitener

WIDE = 6.0
"""How far the truths a network learns from may lie from the fit, in deviations of the Laplace posterior."""


@dataclass(frozen=True, slots=True, eq=False)
class Summary:
    """Rows of residuals boiled down to how a fit would move: one number per param, in deviations of the posterior."""

    directions: Array
    """[parameters, rows]."""

    def __call__(self, rows: Array) -> Array:
        """[points, rows] -> [points, parameters]; finite also where a simulation was not."""
        finite = np.nan_to_num(rows, nan=1e3, posinf=1e3, neginf=-1e3).clip(-1e4, 1e4)
        return finite @ self.directions.T


def summary(found: Fit, target: Likelihood) -> Summary:
    """Project residuals on what a Gauss-Newton step would see."""
    flat = np.nan_to_num(target.jacobian(found.x[None])[1][0])
    values, vectors = np.linalg.eigh(flat @ flat.T)
    white = (vectors / np.sqrt(np.maximum(values, 1e-9))) @ vectors.T
    return Summary(white @ flat)


def npe(found: Fit, *, seed: int = 0, sims: int = 1000, draws: int = 2000, truths: int = 200) -> SampleBelief:
    """A mixture of normals, given by a network: BayesSim's form, trained in one round around the Laplace posterior.

    The network speaks in coordinates in which that posterior is round, or thin diagonal ones would be blurred. One
    network answers for all recordings, so simulation-based calibration costs no training: the ranks of fresh truths
    come with the cloud.
    """
    torch, sbi = _libraries()
    rng = np.random.default_rng((seed, 0x49E))
    target = likelihood(found)
    boil, here = summary(found, target), target.rows(found.x[None])
    root = whitener(found)
    z = _inside(rng, found.x, root, sims + truths)
    points = found.x + z @ root.T
    # What recordings made with each point would be, minus what is predicted at the fit, in deviations of the noise.
    parts = [boil(target.rows(p) - here) for p in np.array_split(points, max(1, len(points) // 256))]
    # A projection of white noise on orthonormal directions is white noise, so it need not be drawn row by row.
    seen = np.concatenate(parts) + rng.standard_normal(z.shape)
    prior = sbi.utils.BoxUniform(_tensor(torch, np.full(len(root), -WIDE)), _tensor(torch, np.full(len(root), WIDE)))
    with _quiet(torch, seed):
        trainer = sbi.inference.NPE(prior=prior, density_estimator="mdn", tracker=_Untold(), show_progress_bars=False)
        trainer.append_simulations(_tensor(torch, z[:sims]), _tensor(torch, seen[:sims]))
        network = trainer.train(max_num_epochs=200, show_train_summary=False)
        # Rejecting what leaks out of the box can take for ever where a truth lies at its edge, so it is clipped.
        real = network.sample((draws,), condition=_tensor(torch, boil(-here)))[:, 0]
        checks = network.sample((100,), condition=_tensor(torch, seen[sims:]))
    ranks = (checks.detach().numpy() < z[None, sims:]).mean(axis=0)
    drawn = found.x + real.detach().numpy().astype(float) @ root.T
    return SampleBelief(found.params, np.clip(drawn, 0.0, 1.0), ranks)


def _inside(rng: np.random.Generator, centre: Array, root: Array, n: int) -> Array:
    """n points within some deviations of the Laplace posterior, uniformly where the bounds allow it [n, parameters]."""
    z = WIDE * rng.uniform(-1, 1, (n, len(root)))
    for _ in range(50):
        x = centre + z @ root.T
        out = ((x < 0) | (x > 1)).any(axis=1)
        z[out] = WIDE * rng.uniform(-1, 1, (int(out.sum()), len(root)))
    x = np.clip(centre + z @ root.T, 0.0, 1.0)
    return np.linalg.solve(root, (x - centre).T).T


class _Untold:
    """Takes what sbi would log, which otherwise goes into a folder of its own where the user stands."""

    log_dir = None

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


@contextmanager
def _quiet(torch: Any, seed: int) -> Iterator[None]:
    """One thread (small networks lose more than they gain by several), a seed, no warnings, no progress on stdout."""
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
        import sbi.inference
        import sbi.utils
        import torch
    except ImportError:
        raise MissingExtra("sbi", "learn") from None
    return torch, sbi
