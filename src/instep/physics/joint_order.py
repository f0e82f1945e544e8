"""Which joint each unlabelled column of a log belongs to, by the dynamics of the robot.

A position servo trails its command by what its joint has to carry. With rows smoothed alike,

    u - q = d u' + b u'' + lag q' + armature q'' + friction sign(q') + offset + tau(q, q', q'') / kp,

where only tau, the torque of the rigid bodies (gravity, inertia, and what the other joints do to this one), depends on
which joint a column is. All other terms are the column's own; they are projected out with free factors, and so is the
gain kp > 0, so that neither gains nor friction of the robot have to be known. An order of the columns is as good as it
explains the rest.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import mujoco
import numpy as np

from instep.core.records import array_dataclass
from instep.core.world import Array
from instep.data.guess_parts import JointOrder, UnlabelledMotion
from instep.data.signal_relations import assigned
from instep.physics.inverse_dynamics import Motion, direction, rigid_torques
from instep.scene.folder import Scene

WINDOW_S = 0.3
"""Width over which positions and commands are fitted by a cubic, for rates and accelerations [s]."""
ROWS = 400
"""Rows that an order is judged by, spread over all runs."""
NOISE = {"rad": 3e-5, "m": 3e-6}
"""Smallest error of smoothed positions that is taken seriously."""
REVERSAL = 0.01
"""Speed below which a joint may turn round, where dry friction is not a function of its speed [rad/s or m/s]."""
DISPLACED = 4.0
"""Log odds against each column that stands elsewhere than in the order of the robot, where logs mostly have it."""
MAX_ORDERS = 1200
"""Orders that are tried at most."""
RESTARTS = 4
"""Random orders to begin from, beside that of the robot."""
MIN_ALIKE = 0.1
"""Correlation of what is left over with itself some rows later, above which these rows count as alike."""
_HINGE, _SLIDE = int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE)


@array_dataclass
class DynamicsOrder:
    """Finds the order of unlabelled columns of a robot by its dynamics."""

    scene: Scene

    def __call__(self, motion: UnlabelledMotion) -> JointOrder | None:
        """The order that explains the motion best; None where the motion is too short or commands are missing."""
        joints = [self.scene.model.joint(label) for label in motion.labels]
        if any(int(joint.type[0]) not in (_HINGE, _SLIDE) for joint in joints) or len(joints) < 2:
            return None
        signals = _smoothed(motion)
        if signals is None:
            return None
        search = _Search(self.scene, motion, signals)
        best = search.descend()
        return search.answer(best)


@array_dataclass
class _Signals:
    """Smoothed rows of all runs: positions and commands with two derivatives each, and which rows count."""

    q: Sequence[Array]
    u: Sequence[Array]
    kept: Array
    """Whether the joint of a column keeps its direction about a row [rows, columns]."""
    windows: float
    """How many windows of smoothing the rows span: numbers of a column that are independent of each other."""


def _smoothed(motion: UnlabelledMotion) -> _Signals | None:
    """Cubic fits over a sliding window; None where no run is three windows long or no column has a command."""
    width = max(5, round(WINDOW_S / motion.dt) | 1)
    commanded = np.all([np.isfinite(commands).all(axis=0) for commands in motion.commands], axis=0)
    q: list[list[Array]] = []
    u: list[list[Array]] = []
    kept: list[Array] = []
    for positions, commands in zip(motion.q, motion.commands, strict=True):
        if len(positions) < 3 * width or not np.isfinite(positions).all():
            continue
        q.append(_derivatives(positions, width, motion.dt))
        u.append(_derivatives(np.where(commanded, commands, 0.0), width, motion.dt))
        kept.append(_keeps_direction(q[-1][1], width // 4))
    if not q or commanded.sum() < 2:
        return None
    count = sum(len(part) for part in kept)
    chosen = slice(None, None, max(1, count // ROWS))
    joined = [[np.concatenate([fit[k] for fit in fits])[chosen] for k in range(3)] for fits in (q, u)]
    return _Signals(joined[0], joined[1], np.concatenate(kept)[chosen] & commanded, count / width)


def _derivatives(values: Array, width: int, dt: float) -> list[Array]:
    signal: Any = import_module("scipy.signal")  # its types do not name the function
    half = width // 2
    fits = (signal.savgol_filter(values, width, 3, deriv=k, delta=dt, axis=0) for k in range(3))
    return [fit[half : len(values) - half] for fit in fits]


def _keeps_direction(speed: Array, around: int) -> Array:
    low, high = speed.copy(), speed.copy()
    for k in range(1, around + 1):
        for extreme, pick in ((low, np.minimum), (high, np.maximum)):
            extreme[k:] = pick(extreme[k:], speed[:-k])
            extreme[:-k] = pick(extreme[:-k], speed[k:])
    return (low > REVERSAL) | (high < -REVERSAL)


class _Search:
    """What orders leave unexplained, kept as it is found; an order gives the place of the joint of each column."""

    def __init__(self, scene: Scene, motion: UnlabelledMotion, signals: _Signals) -> None:
        self.scene, self.motion, self.signals = scene, motion, signals
        self.joints = [scene.model.joint(label) for label in motion.labels]
        self.columns = [_own_terms(signals, k) for k in range(len(self.joints))]
        units = ["m" if int(joint.type[0]) == _SLIDE else "rad" for joint in self.joints]
        self.noise = np.array([NOISE[unit] ** 2 for unit in units])
        self.rows = signals.kept.sum(axis=0)
        self.numbers = np.full(len(units), signals.windows)
        self.tried: dict[tuple[int, ...], Array] = {}
        start, _ = scene.start(0)
        self.rest = np.tile(start, (len(signals.kept), 1))

    def score(self, order: tuple[int, ...]) -> float:
        """What an order leaves unexplained, with the odds against columns that are displaced; the lowest is best."""
        return self.misfit(order) + DISPLACED * sum(k != place for k, place in enumerate(order))

    def misfit(self, order: tuple[int, ...]) -> float:
        """The negative logarithm of the likelihood of the motion by an order."""
        if order not in self.tried:
            left = [float(rest @ rest) for rest in self.left_over(order)]
            self.tried[order] = np.log(np.array(left) / np.maximum(self.rows, 1) + self.noise)
        return float((0.5 * self.numbers * self.rows / len(self.rest) * self.tried[order]).sum())

    def left_over(self, order: tuple[int, ...]) -> list[Array]:
        """What the own terms of each column and the torque of its joint leave of u - q, in the rows that count."""
        torques = self._torques(order)
        found: list[Array] = []
        for k, (basis, rest) in enumerate(self.columns):
            torque = torques[self.signals.kept[:, k], k]
            torque = torque - basis @ (basis.T @ torque)
            size = float(torque @ torque)
            # A servo that went further under its load would have a negative gain.
            share = max(0.0, float(torque @ rest) / size) if size > 0 else 0.0
            found.append(rest - share * torque)
        return found

    def weigh(self, order: tuple[int, ...]) -> None:
        """Count rows of a column once that are alike: where a model is not the robot, what is left over is slow."""
        for k, rest in enumerate(self.left_over(order)):
            series = np.zeros(len(self.rest))
            series[self.signals.kept[:, k]] = rest
            power = float(series @ series)
            alike = 1.0
            for late in range(1, len(series) // 4):
                share = float(series[late:] @ series[:-late]) / power if power > 0 else 0.0
                if share < MIN_ALIKE:
                    break
                alike += 2 * share
            self.numbers[k] = min(self.signals.windows, len(self.rest) / alike)

    def descend(self) -> tuple[int, ...]:
        """The best order that exchanges of two columns lead to, from what ranges allow and from random orders."""
        rng = np.random.default_rng(0)
        count = len(self.joints)
        found = [self._descend_from(self._feasible(1.0 - np.eye(count)))]
        for _ in range(RESTARTS):
            if len(self.tried) + count**2 > MAX_ORDERS:
                break
            found.append(self._descend_from(self._feasible(rng.uniform(size=(count, count)))))
        self.weigh(min(found, key=self.score))
        return self._descend_from(min(found, key=self.score))

    def answer(self, best: tuple[int, ...]) -> JointOrder:
        """The labels of an order, and for each column how much worse the best order is that gives it another joint."""
        margins: list[float] = []
        rivals: list[str] = []
        for k, place in enumerate(best):
            others = [(self.misfit(order), order[k]) for order in self.tried if order[k] != place]
            misfit, rival = min(others, default=(np.inf, place))
            margins.append(float(misfit - self.misfit(best)))
            rivals.append(self.motion.labels[rival])
        return JointOrder(tuple(self.motion.labels[place] for place in best), tuple(margins), tuple(rivals))

    def _feasible(self, cost: Array) -> tuple[int, ...]:
        return tuple(assigned(cost + 1e3 * ~self.motion.allowed))

    def _descend_from(self, order: tuple[int, ...]) -> tuple[int, ...]:
        allowed = self.motion.allowed
        while True:
            best = order
            for a, b in itertools.combinations(range(len(order)), 2):
                if not (allowed[a, order[b]] and allowed[b, order[a]]):
                    continue
                swapped = list(order)
                swapped[a], swapped[b] = order[b], order[a]
                best = min(best, tuple(swapped), key=self.score)
            if best == order or len(self.tried) > MAX_ORDERS:
                return best
            order = best

    def _torques(self, order: tuple[int, ...]) -> Array:
        """The torque of the joint of each column [rows, columns]."""
        q, u = self.rest.copy(), np.zeros((2, len(self.rest), self.scene.model.nv))
        dofs: list[int] = []
        for k, place in enumerate(order):
            joint = self.joints[place]
            dofs.append(int(joint.dofadr[0]))
            q[:, int(joint.qposadr[0])] = self.signals.q[0][:, k]
            u[:, :, dofs[-1]] = self.signals.q[1][:, k], self.signals.q[2][:, k]
        return rigid_torques(self.scene.model, Motion(q, u[0], u[1]))[:, dofs]


def _own_terms(signals: _Signals, k: int) -> tuple[Array, Array]:
    """An orthonormal basis of the terms of a column that do not depend on its joint, and what they leave of u - q."""
    kept = signals.kept[:, k]
    _, speed, acceleration = (part[kept, k] for part in signals.q)
    command = [part[kept, k] for part in signals.u]
    terms = np.stack([np.ones(len(speed)), *command[1:], speed, acceleration, direction(speed)], axis=1)
    terms /= np.maximum(np.linalg.norm(terms, axis=0), 1e-12)
    basis, _ = np.linalg.qr(terms)
    behind = command[0] - signals.q[0][kept, k]
    return basis, behind - basis @ (basis.T @ behind)
