"""Scans of delays: along a delay the cost has jumps at physics steps, and a search by derivatives stops at each.

An engine applies a command at the physics step after its delay, so the cost is smooth between steps only. A delay is
therefore scanned before a search, and stepped over the next jumps after it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from instep.core.world import Array

from .least_squares import Point, Problem, evaluate

SCAN_WINDOWS = 16
"""Most windows of a scan before a search."""
SCAN_PERIODS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0)
"""Delays that are scanned, in control periods."""
STEP_PERIODS = (-1.0, -0.5, -0.25, -0.1, -0.03, 0.03, 0.1, 0.25, 0.5, 1.0)
"""Changes of a delay that are tried after a search, in control periods."""
SUBSTEPS = (1, 2, 4, 5, 10)
"""Physics steps per control period at whose multiples, a kink of the cost, a delay is tried too."""
MIN_GAIN = 1e-3
"""Share of the cost that a changed delay must save."""


def with_scanned_delay(problem: Problem, point: Point) -> Point:
    """The point with the best of many delays, the same for all delays that are sought; itself where it is best."""
    at = _delays(problem)
    if not at:
        return point
    values = np.array(SCAN_PERIODS) * problem.shooter.sim.spec.dt
    xs = np.repeat(point.x[None], len(values), axis=0)
    for i in at:
        xs[:, i] = np.clip(problem.shooter.params[i].to_unit(values), 0.01, 0.99)
    few = _thinned(problem)
    costs = np.array([p.cost for p in evaluate(few, np.concatenate([point.x[None], xs]))])
    best = int(np.nanargmin(np.where(np.isfinite(costs), costs, np.inf)))
    return point if best == 0 else evaluate(problem, xs[best - 1 : best])[0]


def with_stepped_delay(problem: Problem, point: Point) -> Point:
    """The point with one delay changed so that the cost is lower, or the point itself where no change lowers it."""
    at = _delays(problem)
    if not at:
        return point
    dt, xs = problem.shooter.sim.spec.dt, list[Array]()
    for i in at:
        param = problem.shooter.params[i]
        delay = float(param.from_unit(point.x[i]))
        multiples = [dt / n * round(delay * n / dt) for n in SUBSTEPS]
        values = np.array([*(delay + dt * np.array(STEP_PERIODS)), *multiples])
        changed = np.repeat(point.x[None], len(values), axis=0)
        changed[:, i] = np.clip(param.to_unit(values), 0.0, 1.0)
        xs.append(changed)
    tried = np.concatenate(xs)
    # Start states were estimated with the old delay, so each is also tried as measured.
    starts = np.repeat(point.starts[None], len(tried), axis=0)
    found = evaluate(problem, np.concatenate([tried, tried]), np.concatenate([starts, np.zeros_like(starts)]))
    best = min(found, key=lambda p: p.cost if np.isfinite(p.cost) else np.inf)
    better = best.cost < (1 - MIN_GAIN) * point.cost
    return replace(best, difference_step=point.difference_step) if better else point


def _delays(problem: Problem) -> list[int]:
    return [i for i, param in enumerate(problem.shooter.params) if param.parts.field == "delay"]


def _thinned(problem: Problem) -> Problem:
    """The same problem over some of its windows."""
    shooter, n = problem.shooter, len(problem.shooter.windows)
    if n <= SCAN_WINDOWS:
        return problem
    index = np.linspace(0, n - 1, SCAN_WINDOWS).round().astype(int)
    return replace(problem, shooter=replace(shooter, windows=shooter.windows.subset(index)))
