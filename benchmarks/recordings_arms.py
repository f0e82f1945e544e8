"""Arms: an SO-101 with and without a delta action, a Barrett WAM, a KUKA LWR4+."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from instep.core.errors import BadInput
from instep.core.stats import Estimate
from instep.scene.folder import Scene
from instep.tune.auto import chosen
from instep.tune.delta import DeltaOptions, learn
from instep.tune.delta_judge import judge
from instep.tune.drive import bare
from instep.tune.fit import FitOptions, fit
from recordings_common import RECORDINGS, paths, recorded, rms, row

ARM = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll")


def so101(out: Path, quick: bool) -> list[dict[str, Any]]:
    """Open-loop error of whole motions, each predicted by a scene that was fitted to other motions."""
    scene = Scene.load("so101")
    episodes = recorded("so101", "so101", scene)
    folds = 2 if quick else 3
    tuned, told = np.zeros((len(episodes), len(ARM))), np.zeros((len(episodes), len(ARM)))
    for fold in range(folds):
        inside = [e for i, e in enumerate(episodes) if i % folds != fold]
        outside = [i for i in range(len(episodes)) if i % folds == fold]
        sim = _so101_fit(scene, inside)
        columns = [sim.spec.q.labels.index(name) for name in ARM]
        for i, error in zip(outside, paths(sim, [episodes[i] for i in outside]), strict=True):
            tuned[i] = 1e3 * rms(error[:, columns])
            told[i] = 1e3 * rms((episodes[i].action - episodes[i].q)[:, columns])
        np.savez(out / "so101_folds.npz", tuned=tuned, told=told, folds=fold + 1)
    return [
        row("so101, told = done", told.mean(axis=1), "mrad"),
        row("so101, held-out motions, joints 0 to 4", tuned.mean(axis=1), "mrad", 10.0),
        *(
            row(f"so101, held-out motions, {n}", tuned[:, j], "mrad", 5.4 if j == 0 else None)
            for j, n in enumerate(ARM)
        ),
    ]


def so101_delta(out: Path, quick: bool) -> list[dict[str, Any]]:
    """Error 0.5 s and 1 s after the start of a window on motion types neither knobs nor delta were fitted to."""
    scene = Scene.load("so101")
    episodes = recorded("so101", "so101", scene)
    inside, outside = [e for i, e in enumerate(episodes) if i % 3], episodes[::3]
    sim = _so101_fit(scene, inside)
    found = judge(sim, learn(sim, inside, DeltaOptions(limit=600 if quick else 2000), joints=ARM), outside)
    rows = []
    for horizon in ("0.5 s", "1 s"):
        for name, goal in (("delta", 0.15), ("noise", None)):
            gain = found[horizon][name]
            ok = None if goal is None else gain["value"] >= goal and gain["low"] > 0
            label = "delta action" if name == "delta" else "noise of its size"
            rows.append({"name": f"so101, error gone after {horizon} by {label}", "value": 100 * gain["value"],
                         "low": 100 * gain["low"], "high": 100 * gain["high"], "unit": "%",
                         "goal": None if goal is None else 100 * goal, "ok": ok})  # fmt: skip
    return rows


def _so101_fit(scene: Scene, episodes: list[Any]) -> Any:
    choice = chosen(scene, episodes)
    sim = bare(scene).tuned(choice.held)
    options = FitOptions(window=2.0, limit=64, start=choice.start, starts=1, local=True, iterations=20)
    return sim.tuned(fit(sim, episodes, choice.knobs, options).settings)


LEAD = np.array([0.035, 0.05, 0.05, 0.025, 0.03, 0.03, 0.02])
"""D / P of the arm's controller [s]."""


def wam(out: Path, quick: bool) -> list[dict[str, Any]]:
    """Open-loop error over 20 s of each run, from the other runs, against the spread of repeats."""
    scene = Scene.load("wam7")
    episodes = recorded("quanser_wam", "quanser_wam/wam7", scene)
    choice = chosen(scene, episodes)
    sim = bare(scene).tuned({**choice.held, "option.timestep": 0.002})
    options = FitOptions(window=2.0, limit=12 if quick else 24, start=choice.start, starts=1, local=True, iterations=25)
    tuned = sim.tuned(fit(sim, episodes[:2], choice.knobs, options).settings)
    errors = 1e3 * np.array([rms(e) for e in paths(tuned, episodes[2:])])
    # What the arm was told is an angle and a velocity; the mapping makes one command of both.
    told = 1e3 * np.array([rms(e.action - LEAD * e["observation.target_velocity"] - e.q) for e in episodes])
    shortest = min(len(e) for e in episodes)
    runs = np.stack([e.q[:shortest] for e in episodes])
    floor = 1e3 * np.sqrt(((runs - runs.mean(axis=0)) ** 2).mean(axis=(0, 1)) * len(runs) / (len(runs) - 1))
    rows = [row("wam7, told = done, mean of joints", told.mean(axis=1), "mrad")]
    for j, name in enumerate(scene.robot):
        rows.append(row(f"wam7, held-out runs, {name}, times the repeat floor", errors[:, j] / floor[j], "1", 3.0))
    return rows


def kuka(out: Path, quick: bool) -> list[dict[str, Any]]:
    """Torques of one run from rigid-body parameters and friction fitted to the other, and from both to a later part."""
    model, runs = _kuka(every=10)
    rows = []
    for name, inside, outside in (
        ("kuka, slow run from the fast one", [1], [0]),
        ("kuka, fast run from the slow one", [0], [1]),
    ):
        theta = _regressed(model, [runs[i] for i in inside])
        errors = [runs[i]["tau"] - _torques(model, runs[i], theta) for i in outside]
        rows += _torque_rows(name, errors, [runs[i]["tau"] for i in outside], goal=inside == [1])
    early = [{k: v[: 2 * len(v) // 3] for k, v in r.items()} for r in runs]
    late = [{k: v[2 * len(v) // 3 :] for k, v in r.items()} for r in runs]
    theta = _regressed(model, early)
    errors = [r["tau"] - _torques(model, r, theta) for r in late]
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
        rows.append(row(f"{name}, torque error [{unit}]", estimate, unit, most if goal else None))
    return rows


def _kuka(every: int) -> tuple[mujoco.MjModel, list[dict[str, np.ndarray]]]:
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
        runs.append({**parts, "y": _regressor(model, parts)})
    return model, runs


def _regressor(model: mujoco.MjModel, run: dict[str, np.ndarray]) -> np.ndarray:
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


def _regressed(model: mujoco.MjModel, runs: list[dict[str, np.ndarray]]) -> np.ndarray:
    """Parameters near the model's own that explain the torques; friction and motor inertia are free.

    How near is decided inside the runs that are given: by the penalty that best predicts a fifth from the rest.
    """
    known = _a_priori(model)
    noise = np.array([0.4, 0.6, 0.4, 0.4, 0.3, 0.25, 0.15])
    rows = np.concatenate([_columns(r) / noise[None, :, None] for r in runs])
    left = np.concatenate([(r["tau"] - r["y"] @ known) / noise for r in runs])
    # How far a kilogram, a first moment and an inertia may be off; friction may be anything.
    size = np.concatenate([np.tile([0.3] + [0.05] * 3 + [0.02] * 6, model.nbody - 1), np.full(4 * model.nv, 30.0)])
    scaled = rows * size
    fifth = np.concatenate([np.arange(len(r["q"])) * 5 // len(r["q"]) for r in runs])

    def solved(keep: np.ndarray, penalty: float) -> np.ndarray:
        a, y = scaled[keep].reshape(-1, len(size)), left[keep].ravel()
        return np.linalg.solve(a.T @ a + penalty * np.eye(len(size)), a.T @ y)

    def missed(penalty: float) -> float:
        return sum(
            float(((scaled[fifth == k] @ solved(fifth != k, penalty) - left[fifth == k]) ** 2).sum()) for k in range(5)
        )

    best = min((1.0, 10.0, 100.0, 1000.0, 10000.0), key=missed)
    step = solved(np.ones(len(left), bool), best) * size
    step[: len(known)] += known
    return step


def _columns(run: dict[str, np.ndarray]) -> np.ndarray:
    """Inertial parameters, then Coulomb, viscous, offset and motor inertia of each joint."""
    friction = [np.tanh(run["v"] / 0.02), run["v"], np.ones_like(run["v"]), run["a"]]
    each = np.concatenate([part[:, :, None] * np.eye(part.shape[1])[None] for part in friction], axis=2)
    return np.concatenate([run["y"], each], axis=2)


def _torques(model: mujoco.MjModel, run: dict[str, np.ndarray], theta: np.ndarray) -> np.ndarray:
    return _columns(run) @ theta
