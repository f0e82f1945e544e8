"""Minimisation without derivatives (CMA-ES), one batch of evaluations per generation."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from .world import Array, array_dataclass, options_dataclass


@options_dataclass
class CmaSearch:
    """Length and width of a search."""

    spread: float
    """Initial standard deviation, in units of the coordinates."""
    generations: int
    population: int | None = None
    """Candidates per generation; by the number of coordinates if None."""
    bounded: bool = True
    """Whether coordinates stay inside [0, 1]."""
    seed: int = 0


@array_dataclass
class Generation:
    """The candidates of one generation."""

    points: Array
    """[candidates, coordinates]."""
    costs: Array
    """[candidates]."""
    mean: Array
    """Mean of the search after this generation [coordinates]."""

    @property
    def best(self) -> int:
        """Index of the candidate with the least cost."""
        return int(np.argmin(self.costs))


def cma_generations(costs_of: Callable[[Array], Array], mean: Array, search: CmaSearch) -> Iterator[Generation]:
    """Minimise a cost from a mean on; it ends early once the search has collapsed to a point.

    `costs_of` takes all candidates of a generation at once [candidates, coordinates].
    """
    from cmaes import CMA

    bounds = np.tile([0.0, 1.0], (len(mean), 1)) if search.bounded else None
    optimizer = CMA(mean=mean, sigma=search.spread, bounds=bounds, seed=search.seed, population_size=search.population)
    for _ in range(search.generations):
        points = np.array([optimizer.ask() for _ in range(optimizer.population_size)])
        costs = np.asarray(costs_of(points), float)
        optimizer.tell(list(zip(points, costs.tolist(), strict=True)))
        yield Generation(points, costs, np.array(optimizer.mean))
        if optimizer.should_stop():
            return
