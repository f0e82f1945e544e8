"""Recorded machines as a user tunes them, `instep tune DATA SCENE`, beside a straight least-squares script."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from instep.core.episode import Episode
from instep.core.progress import Progress
from instep.core.world import Array, Simulator
from instep.physics.engines import without_delta
from instep.scene.folder import Scene
from instep.tune.fit.windows import Shooter, cut_windows
from instep.tune.gated_fit import window_errors
from instep.tune.gates import TuneOptions
from instep.tune.identification import Identification, identify
from instep.tune.param_selection import ParamSelection, select_params

from .arms import ARM, repeat_floor
from .common import error_row, paths, recorded, rms
from .pendula import GOALS, furuta_judged, furuta_split
from .tossed_cube import WIDTH, toss_errors

BUDGET_S, QUICK_BUDGET_S = 300.0, 40.0
"""Seconds of the processor for an identification, and those of a quick run: other work beside it must not count."""
Parts = tuple[list[Episode], list[Episode]]
"""Recordings that are given to tune, and those that are judged."""


@dataclass(frozen=True, slots=True)
class Score:
    """One error per held-out recording."""

    name: str
    errors: Array
    unit: str
    goal: float | None = None
    """Largest mean error; where None, that of the scene as given."""


@dataclass(frozen=True, slots=True)
class AutoMachine:
    """A recorded machine, the one command that tunes it, and how the result is judged."""

    scene: str
    folder: str
    part: str
    score: Callable[[Simulator, Sequence[Episode], Sequence[Episode]], list[Score]]
    """Scores of a simulator, from held-out and from all recordings."""
    split: Callable[[Sequence[Episode]], Parts] | None = None
    """Recordings to tune with and to judge; where None, those that tune itself holds out."""
    options: TuneOptions = field(default_factory=TuneOptions)
    """The options of the command: at most one."""


def so101(sim: Simulator, held_out: Sequence[Episode], _: Sequence[Episode]) -> list[Score]:
    """Open-loop error of whole motions, joints 0 to 4."""
    columns = [sim.spec.q.labels.index(name) for name in ARM]
    errors = np.array([1e3 * rms(error[:, columns]) for error in paths(sim, held_out)])
    return [Score("held-out motions, joints 0 to 4", errors.mean(axis=1), "mrad", 10.0)]


def xl330(sim: Simulator, held_out: Sequence[Episode], _: Sequence[Episode]) -> list[Score]:
    """Mean absolute error over whole runs at a gain that was not fitted; with the motor off where runs have that."""
    scores: list[Score] = []
    for on, words in ((True, "unseen gain 200"), (False, "unseen gain 200, motor off")):
        runs = [e for e in held_out if bool(e.powered.all()) == on]
        if runs:
            scores.append(Score(words, 1e3 * np.array([np.abs(e).mean() for e in paths(sim, runs)]), "mrad", 42.0))
    return scores


def furuta(sim: Simulator, held_out: Sequence[Episode], _: Sequence[Episode]) -> list[Score]:
    """Open-loop error over chirps and over swing-ups until the balance."""
    scores: list[Score] = []
    for words, runs in furuta_judged(Scene.load("furuta"), held_out).items():
        errors = 1e3 * np.array([rms(e) for e in paths(sim, runs)])
        scores += [Score(f"{words}, {a}", errors[:, j], "mrad", goal) for j, (a, goal) in enumerate(GOALS.items())]
    return scores


def double_pendulum(sim: Simulator, held_out: Sequence[Episode], _: Sequence[Episode]) -> list[Score]:
    """Error over windows of 0.5 s; the goal is what the authors' published values reach."""
    errors = np.sqrt(window_errors(sim, held_out, {}, 0.5)[0])
    return [Score(f"0.5 s windows, {joint}", errors[:, j], "rad") for j, joint in enumerate(sim.spec.q.labels)]


def cube(sim: Simulator, held_out: Sequence[Episode], _: Sequence[Episode]) -> list[Score]:
    """Mean error over whole tosses."""
    place, turn = toss_errors(sim, held_out, 1)
    position = Score("held-out tosses, position", 100 * place[0] / WIDTH, "% of width", 10.0)
    return [position, Score("held-out tosses, orientation", np.degrees(turn[0]), "deg", 15.0)]


def wam(sim: Simulator, held_out: Sequence[Episode], episodes: Sequence[Episode]) -> list[Score]:
    """Open-loop error of whole runs over the spread of repeats of one input."""
    errors = 1e3 * np.array([rms(e) for e in paths(sim, held_out)]) / repeat_floor(list(episodes))
    labels = sim.spec.q.labels
    return [
        Score(f"held-out runs, {name}, times the repeat floor", errors[:, j], "1", 3.0) for j, name in enumerate(labels)
    ]


def _other_gains(episodes: Sequence[Episode]) -> Parts:
    return [e for e in episodes if e.meta["kp"] != "200"], [e for e in episodes if e.meta["kp"] == "200"]


def _every_second(episodes: Sequence[Episode]) -> Parts:
    return list(episodes[::2]), list(episodes[1::2])


def _every_third(episodes: Sequence[Episode]) -> Parts:
    return [e for i, e in enumerate(episodes) if i % 3], list(episodes[::3])


def _pendulum(scene: str, part: str) -> AutoMachine:
    options = TuneOptions()
    return AutoMachine(scene, "double_pendulum", f"double_pendulum/{part}", double_pendulum, _every_second, options)


MACHINES = {
    "xl330": AutoMachine("servo_pendulum", "xl330", "xl330", xl330, _other_gains),
    "so101": AutoMachine("so101", "so101", "so101", so101),
    "furuta": AutoMachine("furuta", "quanser_wam", "quanser_wam/furuta", furuta, furuta_split, TuneOptions(window=2.0)),
    "double pendulum A.0": _pendulum("double_pendulum_a0", "sysid_a0"),
    "double pendulum C.0": _pendulum("double_pendulum_c0", "sysid_c0"),
    "double pendulum C.1": _pendulum("double_pendulum", "sysid"),
    "cube": AutoMachine("cube", "cube_toss", "cube_toss", cube, _every_third),
    "wam7": AutoMachine("wam7", "quanser_wam", "quanser_wam/wam7", wam),
}


def machine_rows(name: str, budget: float) -> list[dict[str, Any]]:
    """Errors of one machine with automatic parameters, with those of the scene as given and of a straight script."""
    machine = MACHINES[name]
    scene = Scene.load(machine.scene)
    episodes = recorded(machine.folder, machine.part, scene)
    inside, outside = machine.split(episodes) if machine.split is not None else (episodes, [])
    began = time.process_time()
    found = identify(scene, inside, "auto", machine.options, progress=Progress(budget, clock=time.process_time))
    took = time.process_time() - began
    outside = outside or list(found.held_out)
    given = without_delta(scene)
    selection = select_params(scene, found.fitted)
    script = given.tuned(straight_fit(given, found.fitted, selection, took))
    worlds = {"auto": given.tuned(found.settings), "scene as given": given, "least squares in the same time": script}
    scores = {words: machine.score(world, outside, episodes) for words, world in worlds.items()}
    rows: list[dict[str, Any]] = []
    for i, before in enumerate(scores["scene as given"]):
        goal = before.goal if before.goal is not None else float(before.errors.mean())
        for words, found_scores in scores.items():
            score = found_scores[i]
            bar = goal if words == "auto" else None
            rows.append(error_row(f"{name}, {words}, {score.name}", score.errors, score.unit, bar))
    return [*rows, *_run_rows(name, found, took)]


def _run_rows(name: str, found: Identification, took: float) -> list[dict[str, Any]]:
    """Time of an identification, and how many of the gates that promotion needs were passed."""
    required = [gate for gate in found.gates if gate.required]
    passed = sum(gate.passed for gate in required)
    return [
        error_row(f"{name}, auto, processor time", [took], "s"),
        error_row(f"{name}, auto, gates passed of {len(required)}", [passed], "1"),
    ]


LONGEST_S, MOST = 10.0, 64
"""Length of a stretch that is simulated [s], and how many there are."""
LARGEST = 10.0
"""Residual of a row after a divergence [rad or m]."""
STEP = 1e-3
"""Finite differences, as a share of the ranges."""


class _TimeIsUpError(Exception):
    """The time of the script is over."""


def straight_fit(
    sim: Simulator, episodes: Sequence[Episode], selection: ParamSelection, seconds: float
) -> dict[str, float]:
    """What a plain script finds in some seconds of the processor, from the scene's own values.

    Parameters and their ranges are those of the automatic selection. As in mujoco.sysid, each recording is simulated
    from its first row, and all positions are residuals. The batched simulation of instep is used, so that time goes
    into steps alone. The best point until then is returned.
    """
    ends, (low, high) = time.process_time() + seconds, (1e-3, 1 - 1e-3)
    span = min(max(len(e) for e in episodes) - 1, round(LONGEST_S / sim.spec.dt))
    shooter = Shooter(sim, cut_windows(sim, episodes, span=span, limit=MOST), selection.params)
    first = np.clip([float(p.to_unit(selection.initial[p.address])) for p in selection.params], 2 * low, 1 - 2 * low)
    best = (np.inf, first)

    def residuals(points: Array) -> Array:
        nonlocal best
        if time.process_time() > ends:
            raise _TimeIsUpError
        rows = shooter(points)[..., shooter.windows.tangent.measured].reshape(len(points), -1)
        rows = np.clip(np.nan_to_num(rows, nan=LARGEST), -LARGEST, LARGEST)
        costs = (rows**2).sum(axis=1)
        if costs.min() < best[0]:
            best = (float(costs.min()), points[int(np.argmin(costs))])
        return rows

    def jacobian(x: Array) -> Array:
        steps = np.where(x + STEP > high, -STEP, STEP)
        rows = residuals(np.concatenate([x[None], x + np.diag(steps)]))
        return ((rows[1:] - rows[0]) / steps[:, None]).T

    with suppress(_TimeIsUpError):
        least_squares(lambda x: residuals(x[None])[0], first, jac=jacobian, bounds=(low, high), x_scale="jac")
    return {p.address: float(p.from_unit(best[1][i])) for i, p in enumerate(selection.params)}
