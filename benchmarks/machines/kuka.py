"""Torques of a KUKA LWR4+ by regression: one run at one speed predicts the other at another speed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.statistics import Estimate
from instep.data import load_episodes
from instep.gap.torque_gap import NORM, RELATIVE, TorqueRun, torque_scores
from instep.physics.inverse_dynamics import direction, inertial_regressor, rigid_groups
from instep.scene.folder import Scene
from instep.tune.torque.torque_identification import IdentifyTorqueOptions, identify_torque

from .common import RECORDINGS, error_row


def kuka(out: Path, quick: bool) -> list[dict[str, Any]]:
    """Torques of one run from parameters identified from the other, and of the last third of both from the rest.

    What is identified is what `instep torque` identifies. Beside it stands plain least squares over inertial
    parameters, Coulomb and viscous friction and offsets, without prior, limits or a tilted base.
    """
    folder = next((p / "kuka_lwr4" for p in RECORDINGS if (p / "kuka_lwr4").is_dir()), None)
    if folder is None:
        raise BadInput("There are no recordings 'kuka_lwr4'; put the recordings folder beside the benchmarks.")
    scene = Scene.load(folder / "kuka_lwr4_mujoco.urdf")
    slow, fast = [e.with_columns({}, name=e.meta["group"]) for e in load_episodes(folder)]
    rows: list[dict[str, Any]] = []
    for name, held_out in (("slow run from the fast one", slow), ("fast run from the slow one", fast)):
        options = IdentifyTorqueOptions(hold_out=(held_out.meta["name"],), draws=0)
        found = identify_torque(scene, [slow, fast], options)
        goal = held_out is slow
        rows += _rows(f"kuka, {name}", found.after, goal)
        rows += _rows(f"kuka, {name}, plain least squares", _plain(scene, found.fitted, found.held_out), False)
    parts: dict[str, list[Episode]] = {"early": [], "late": []}
    for e in (slow, fast):
        cut = 2 * len(e) // 3
        for part, rows_of in (("early", e.rows(stop=cut)), ("late", e.rows(start=cut))):
            parts[part].append(rows_of.with_columns({}, name=f"{e.meta['name']} {part}"))
    early, late = parts["early"], parts["late"]
    names = tuple(e.meta["name"] for e in late)
    found = identify_torque(scene, [*early, *late], IdentifyTorqueOptions(hold_out=names, draws=0))
    return rows + _rows("kuka, last third of both runs from the rest", found.after, False)


def _rows(name: str, scores: Any, goal: bool) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for score, unit, most in ((RELATIVE, "%", 2.5), (NORM, "Nm", 0.65)):
        out.append(error_row(f"{name}, torque error [{unit}]", scores[score], unit, most if goal else None))
    return out


def _plain(scene: Scene, fitted: Sequence[TorqueRun], held_out: Sequence[TorqueRun]) -> dict[str, Estimate]:
    """What `numpy.linalg.lstsq` reaches."""
    theta = np.linalg.lstsq(
        np.concatenate([_columns(scene, run).reshape(-1, _columns(scene, run).shape[2]) for run in fitted]),
        np.concatenate([run.torque.ravel() for run in fitted]),
        rcond=1e-9,
    )[0]
    errors = [run.torque - _columns(scene, run) @ theta for run in held_out]
    return torque_scores(errors, [run.torque for run in held_out], held_out[0].joints)


def _columns(scene: Scene, run: TorqueRun) -> np.ndarray:
    regressor = inertial_regressor(scene.model, run.motion, rigid_groups(scene.model))[:, run.dofs]
    v = run.motion.v[:, run.dofs]
    friction = [part[:, :, None] * np.eye(v.shape[1]) for part in (direction(v), v, np.ones_like(v))]
    return np.concatenate([regressor, *friction], axis=2)
