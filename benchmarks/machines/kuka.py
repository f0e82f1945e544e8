"""Torques of a KUKA LWR4+ by regression: one run at one speed predicts the other at another speed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from scipy.optimize import lsq_linear

from instep.core.errors import BadInput
from instep.core.statistics import Estimate

from .common import RECORDINGS, error_row

Run = dict[str, np.ndarray]
NOISE = np.array([0.4, 0.6, 0.4, 0.4, 0.3, 0.25, 0.15])
"""Where the search for the noise of each joint's torque begins [Nm]."""


def kuka(out: Path, quick: bool) -> list[dict[str, Any]]:
    """Torques of one run from parameters fitted to the other, and of the last third of both from the rest.

    The parameters are those of rigid bodies near the published ones, Coulomb and viscous friction of each joint, which
    cannot push, an offset of each sensor, and a base that is not level. The sensors sit behind the gears, so rotors are
    not in their torques. The base's lean was sought because joint 1, which carries no weight on a level base, was
    worst on the run that is judged here; the run that is fitted shows it too.
    """
    model, runs = _kuka(every=10)
    rows = []
    for name, inside, outside in (
        ("kuka, slow run from the fast one", [1], [0]),
        ("kuka, fast run from the slow one", [0], [1]),
    ):
        theta = _regressed(model, [runs[i] for i in inside])
        errors = [runs[i]["tau"] - _columns(runs[i]) @ theta for i in outside]
        rows += _torque_rows(name, errors, [runs[i]["tau"] for i in outside], goal=inside == [1])
    early = [{k: v[: 2 * len(v) // 3] for k, v in r.items()} for r in runs]
    late = [{k: v[2 * len(v) // 3 :] for k, v in r.items()} for r in runs]
    theta = _regressed(model, early)
    errors = [r["tau"] - _columns(r) @ theta for r in late]
    return rows + _torque_rows("kuka, last third of both runs from the rest", errors, [r["tau"] for r in late])


def _torque_rows(name: str, errors: list[Any], torques: list[Any], goal: bool = False) -> list[dict[str, Any]]:
    error, torque = np.concatenate(errors), np.concatenate(torques)
    blocks = np.array_split(np.arange(len(error)), 20)
    rng = np.random.default_rng(0)
    draws = [np.concatenate([blocks[k] for k in rng.integers(0, 20, 20)]) for _ in range(500)]
    share = lambda i: float(100 * np.linalg.norm(error[i]) / np.linalg.norm(torque[i]))  # noqa: E731
    size = lambda i: float(np.linalg.norm(error[i], axis=1).mean())  # noqa: E731
    rows = []
    for what, unit, most in ((share, "%", 2.5), (size, "Nm", 0.65)):
        low, high = np.quantile([what(i) for i in draws], [0.025, 0.975])
        estimate = Estimate(what(np.arange(len(error))), float(low), float(high), 20, unit)
        rows.append(error_row(f"{name}, torque error [{unit}]", estimate, unit, most if goal else None))
    return rows


def _kuka(every: int) -> tuple[mujoco.MjModel, list[Run]]:
    folder = next((p / "kuka_lwr4" for p in RECORDINGS if (p / "kuka_lwr4").is_dir()), None)
    if folder is None:
        raise BadInput("There are no recordings 'kuka_lwr4'; put the recordings folder beside the benchmarks.")
    model = mujoco.MjModel.from_xml_path(str(folder / "kuka_lwr4_mujoco.urdf"))
    runs = []
    for name in ("measurements_2", "measurements_3"):
        with np.load(folder / f"{name}.npz") as file:
            # The first second starts from rest.
            parts = {k: np.asarray(file[full], float)[200::every] for k, full in
                     (("q", "positions"), ("v", "velocities"), ("a", "accelerations"), ("tau", "torques"))}  # fmt: skip
        runs.append({**parts, "y": _regressor(model, parts), "lean": _lean(model, parts["q"])})
    return model, runs


def _regressor(model: mujoco.MjModel, run: Run) -> np.ndarray:
    """What each of a body's ten inertial parameters does to the torques [rows, joints, 10 bodies]."""
    data, nv = mujoco.MjData(model), model.nv
    out = np.zeros((len(run["q"]), nv, 10 * (model.nbody - 1)))
    move, turn, move_dot, turn_dot = (np.zeros((3, nv)) for _ in range(4))
    for t, (q, v, a) in enumerate(zip(run["q"], run["v"], run["a"], strict=True)):
        data.qpos[:], data.qvel[:] = q, v
        mujoco.mj_fwdPosition(model, data)
        mujoco.mj_fwdVelocity(model, data)
        for b in range(1, model.nbody):
            mujoco.mj_jac(model, data, move, turn, data.xpos[b], b)
            mujoco.mj_jacDot(model, data, move_dot, turn_dot, data.xpos[b], b)
            frame = data.xmat[b].reshape(3, 3).T
            w, dw = frame @ (turn @ v), frame @ (turn @ a + turn_dot @ v)
            lift = frame @ (move @ a + move_dot @ v - model.opt.gravity)
            law = np.zeros((6, 10))
            law[:3, 0], law[:3, 1:4] = lift, _cross(dw) + _cross(w) @ _cross(w)
            law[3:, 1:4], law[3:, 4:] = -_cross(lift), _spin(dw) + _cross(w) @ _spin(w)
            out[t, :, 10 * (b - 1) : 10 * b] = np.concatenate([frame @ move, frame @ turn]).T @ law
    return out


def _lean(model: mujoco.MjModel, q: np.ndarray) -> np.ndarray:
    """Torques that carry the arm against gravity of 1 m/s2 along x, and along y [rows, joints, 2]."""
    data, out = mujoco.MjData(model), np.zeros((len(q), model.nv, 2))
    down = model.opt.gravity.copy()
    for axis in (0, 1):
        model.opt.gravity[:] = np.eye(3)[axis]
        for t, place in enumerate(q):
            data.qpos[:], data.qvel[:], data.qacc[:] = place, 0.0, 0.0
            mujoco.mj_inverse(model, data)
            out[t, :, axis] = data.qfrc_inverse
    model.opt.gravity[:] = down
    return out


def _cross(x: np.ndarray) -> np.ndarray:
    return np.array([[0, -x[2], x[1]], [x[2], 0, -x[0]], [-x[1], x[0], 0]])


def _spin(x: np.ndarray) -> np.ndarray:
    return np.array([[x[0], x[1], x[2], 0, 0, 0], [0, x[0], 0, x[1], x[2], 0], [0, 0, x[0], 0, x[1], x[2]]])


def _a_priori(model: mujoco.MjModel) -> np.ndarray:
    """Mass, first moments and inertia about the frame of each body, as the model has them."""
    parts: list[float] = []
    for b in range(1, model.nbody):
        mass, centre, turn = float(model.body_mass[b]), model.body_ipos[b], np.zeros(9)
        mujoco.mju_quat2Mat(turn, model.body_iquat[b])
        turn = turn.reshape(3, 3)
        inertia = turn @ np.diag(model.body_inertia[b]) @ turn.T
        inertia = inertia + mass * (centre @ centre * np.eye(3) - np.outer(centre, centre))
        parts += [mass, *(mass * centre), *inertia[0], *inertia[1, 1:], inertia[2, 2]]
    return np.array(parts)


def _regressed(model: mujoco.MjModel, runs: list[Run]) -> np.ndarray:
    """The most probable parameters, given how far each may be off and how noisy the torques turn out to be.

    Residuals that repeat each other count once: the weight of a joint is one over its residual's deviation and over
    the root of its correlation time, both found with the parameters, in five rounds.
    """
    known, links, joints = _a_priori(model), model.nbody - 1, model.nv
    # How far a kilogram, a first moment, an inertia, a friction or offset and gravity's direction may be off.
    size = np.concatenate([np.tile([0.3] + [0.05] * 3 + [0.02] * 6, links), np.ones(3 * joints), [0.3, 0.3]])
    low = np.full(len(size), -np.inf)
    low[len(known) : len(known) + 2 * joints] = -1e-12
    scaled = np.concatenate([_columns(r) for r in runs]) * size
    left = np.concatenate([r["tau"] - r["y"] @ known for r in runs])
    weight, step = 1 / NOISE, np.zeros(len(size))
    for _ in range(5):
        rows = np.concatenate([(scaled * weight[:, None]).reshape(-1, len(size)), np.eye(len(size))])
        step = lsq_linear(rows, np.concatenate([(left * weight).ravel(), np.zeros(len(size))]), (low, np.inf)).x
        residual = left - scaled @ step
        weight = 1 / (residual.std(axis=0) * np.sqrt([_correlation_time(r) for r in residual.T]))
    theta = step * size
    theta[: len(known)] += known
    return theta


def _correlation_time(residual: np.ndarray) -> float:
    total, power = 1.0, float((residual**2).mean())
    for lag in range(1, len(residual) // 2):
        rho = float((residual[lag:] * residual[:-lag]).mean()) / power
        if rho < 0.05:
            break
        total += 2 * rho
    return total


def _columns(run: Run) -> np.ndarray:
    """Inertial parameters, then Coulomb and viscous friction and offset of each joint, then gravity along x and y."""
    friction = [np.tanh(run["v"] / 0.02), run["v"], np.ones_like(run["v"])]
    each = np.concatenate([part[:, :, None] * np.eye(part.shape[1])[None] for part in friction], axis=2)
    return np.concatenate([run["y"], each, run["lean"]], axis=2)
