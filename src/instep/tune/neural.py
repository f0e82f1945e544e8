"""Neural posterior estimation with sbi: amortised over recordings, told by summaries that keep what a fit would use."""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from instep.core.errors import MissingExtra
from instep.core.world import Array

from .belief import Cloud
from .fit import Fit
from .infer import Likelihood, likelihood, replace_covariance
from .solve import linearise


@dataclass(frozen=True, slots=True, eq=False)
class Summary:
    """Rows of residuals boiled down to how a fit would move: one number per knob, in deviations of the posterior."""

    directions: Array
    """[knobs, rows]."""

    def __call__(self, rows: Array) -> Array:
        """[points, rows] -> [points, knobs]; finite also where a simulation was not."""
        finite = np.nan_to_num(rows, nan=1e3, posinf=1e3, neginf=-1e3).clip(-1e4, 1e4)
        return finite @ self.directions.T


def summary(found: Fit, target: Likelihood) -> Summary:
    """Project residuals on what a Gauss-Newton step would see."""
    normal = linearise(target.problem, found.point, both_sides=True)
    jacobian = normal.jacobian / target.problem.scale / np.sqrt(target.noise)
    flat = jacobian.reshape(len(found.x), -1)
    values, vectors = np.linalg.eigh(flat @ flat.T)
    white = (vectors / np.sqrt(np.maximum(values, 1e-9))) @ vectors.T
    return Summary(white @ flat)


def simulate(found: Fit, target: Likelihood, points: Array, rng: np.random.Generator) -> Array:
    """What recordings made with each point would be, minus what is predicted at the fit, in deviations of the noise."""
    here = target.rows(found.x[None])
    return target.rows(points) - here + rng.standard_normal((len(points), here.shape[1]))


def npe(found: Fit, *, seed: int = 0, sims: int = 2000, draws: int = 2000) -> Cloud:
    """A masked autoregressive flow trained on draws around the Laplace posterior, widened four times; one round."""
    torch, sbi = _libraries()
    rng = np.random.default_rng((seed, 0x49E))
    target = likelihood(found)
    boil = summary(found, target)
    wide = replace_covariance(found, 16.0)
    spread = np.sqrt(np.diag(wide.covariance))
    low, high = np.clip(found.x - 2 * spread, 0, 1), np.clip(found.x + 2 * spread, 0, 1)
    points = low + (high - low) * rng.random((sims, len(found.x)))
    seen = np.concatenate([boil(simulate(found, target, p, rng)) for p in np.array_split(points, max(1, sims // 256))])
    torch.manual_seed(seed)
    prior = sbi.utils.BoxUniform(torch.tensor(low, dtype=torch.float32), torch.tensor(high, dtype=torch.float32))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = sbi.inference.NPE(prior=prior, density_estimator="maf", show_progress_bars=False)
        trainer.append_simulations(_tensor(torch, points), _tensor(torch, seen))
        trainer.train(max_num_epochs=200, show_train_summary=False)
        posterior = trainer.build_posterior()
        real = boil(-target.rows(found.x[None]))
        found_points = posterior.sample((draws,), x=_tensor(torch, real)[0], show_progress_bars=False)
    return Cloud(found.knobs, np.clip(found_points.numpy().astype(float), 0.0, 1.0))


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
