"""Least squares of joint torques over physically consistent inertias, friction and payloads.

The unknowns are log-Cholesky coordinates of each body and payload, with a Gaussian prior around the scene's body, and
the parameters of linear terms. Torques are linear in the inertial parameters, so the data enter through one Gram matrix
per joint, and a Gauss-Newton step costs milliseconds. Neighbouring residuals are correlated: the weight of a joint is
one over its residual's deviation and over the root of its correlation time, both estimated with the parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Literal

import mujoco
import numpy as np

from instep.core.world import Array, array_dataclass, frozen_dataclass
from instep.gap.torque_gap import TorqueRun
from instep.physics.inverse_dynamics import (
    direction,
    inertial_parameters,
    inertial_regressor,
    model_torques,
    rigid_torques,
    tilt_regressor,
)
from instep.tune.fit.least_squares import FitStatus

ROUNDS = 5
"""Rounds of weights and parameters."""
MAX_STEPS = 60
ENOUGH = 1e-3
"""A step that lowers the cost (twice the negative log-likelihood) by less than this is the last."""
MIN_FREEDOM = 0.1
"""Least share of the independent rows that is left after the parameters are taken off."""
FOLDS = 5
MIN_GAIN = 0.05
"""A further term must lower the error on left-out stretches of the fitted runs by this share."""
PRIOR_WIDTH = 0.3
"""Width of the prior of each body's log-Cholesky coordinates: 0.3 allows masses within a factor of 1.8 and centres of
mass within 0.3 radii of gyration, at one standard deviation."""
PAYLOAD_KG, PAYLOAD_RADIUS_M, PAYLOAD_WIDTH = 1.0, 0.1, 1.5
"""Reference of a payload before anything is known, and the width of its prior in log-Cholesky coordinates."""


@array_dataclass
class TorqueProblem:
    """Recordings as matrices: torque less the scene's torque, by every parameter that may be fitted."""

    model: mujoco.MjModel
    bodies: tuple[int, ...]
    payloads: tuple[str, ...]
    terms: tuple[TorqueTerm, ...]
    columns: tuple[TermColumns, ...]
    matrix: Array
    """[rows, joints, parameters]: inertial ones of bodies and payloads, then those of the terms."""
    left: Array
    """Measured torques less those of the scene [rows, joints]."""
    run: Array
    """Which run a row belongs to."""
    bases: tuple[LogCholesky, ...]
    """Coordinates of the bodies, then of the payloads."""
    given: Array
    """Inertial parameters of the bodies in the scene, zeros for payloads [bodies and payloads, 10]."""

    @property
    def inertial(self) -> int:
        """How many of the columns are inertial parameters."""
        return 10 * len(self.bases)

    def span(self, term: int) -> Array:
        """Places of the parameters of a term, by its number."""
        first = self.inertial + sum(len(c.names) for c in self.columns[:term])
        return np.arange(first, first + len(self.columns[term].names))

    def with_terms(self, terms: Sequence[TorqueTerm]) -> TorqueProblem:
        """The same with some of the terms."""
        kept = [self.terms.index(term) for term in terms]
        places = [np.arange(self.inertial), *(self.span(k) for k in kept)]
        columns = tuple(self.columns[k] for k in kept)
        return replace(self, terms=tuple(terms), columns=columns, matrix=self.matrix[:, :, np.concatenate(places)])

    def theta(self, x: Array) -> Array:
        """Changes of the inertial parameters, and the linear parameters, at coordinates x."""
        parts = [base.inertial(x[10 * k : 10 * k + 10]) - self.given[k] for k, base in enumerate(self.bases)]
        return np.concatenate([*parts, x[self.inertial :]])

    def jacobian(self, x: Array) -> Array:
        """Derivative of `theta` [parameters, parameters]."""
        out = np.eye(len(x))
        for k, base in enumerate(self.bases):
            block = slice(10 * k, 10 * k + 10)
            out[block, block] = base.jacobian(x[block])
        return out


@array_dataclass
class TorqueSolution:
    """Fitted parameters of a problem."""

    problem: TorqueProblem
    x: Array
    """Log-Cholesky coordinates, then linear parameters."""
    precision: Array
    """Of x: data, weighted by their independent rows, and prior."""
    prior: Array
    """Standard deviations of the prior of x."""
    weight: Array
    """Of each joint [1/Nm]."""
    residual: Array
    """[rows, joints] [Nm]."""
    status: FitStatus
    steps: int
    inflation: float = 1.0
    """How much larger the variance of the noise is than that of the residuals: n / (n - p), with n independent rows and
    p parameters that the data determine."""
    calibration: float = 1.0
    """How much wider intervals must be than the covariance says to hold planted values (see `torque_recovery`)."""

    @property
    def theta(self) -> Array:
        """Changes of the inertial parameters and the linear parameters."""
        return self.problem.theta(self.x)

    @property
    def inertial(self) -> Array:
        """Inertial parameters of bodies and payloads [bodies and payloads, 10]."""
        return self.theta[: self.problem.inertial].reshape(-1, 10) + self.problem.given

    @property
    def linear(self) -> Array:
        """Changes of the parameters of the terms."""
        return self.x[self.problem.inertial :]

    def covariance(self) -> Array:
        """Of `theta`."""
        jacobian = self.problem.jacobian(self.x)
        return self.inflation * self.calibration**2 * jacobian @ np.linalg.solve(self.precision, jacobian.T)

    def predict(self, problem: TorqueProblem) -> Array:
        """Torques beyond those of the scene, for the rows of another problem with the same parameters."""
        return problem.matrix @ self.theta


@array_dataclass
class TorqueLayout:
    """Which parameters a problem has."""

    bodies: tuple[int, ...]
    terms: tuple[TorqueTerm, ...]
    carrier: int = 0
    """The body that holds payloads."""
    loads: mujoco.MjModel | None = None
    """The model whose rigid-body torques are the loads of load-dependent friction (default: the scene's)."""


def torque_problem(
    model: mujoco.MjModel, runs: Sequence[TorqueRun], layout: TorqueLayout, like: TorqueProblem | None = None
) -> TorqueProblem:
    """The matrices of recordings; `like` is a problem whose payloads and priors it shares."""
    runs, bodies = list(runs), layout.bodies
    payloads = like.payloads if like else tuple(sorted({run.payload for run in runs if run.payload}))
    own = inertial_parameters(model, bodies)
    parts: list[Array] = []
    for run in runs:
        regressor = inertial_regressor(model, run.motion, [*bodies, layout.carrier])[:, run.dofs]
        rigid = rigid_torques(layout.loads or model, run.motion)[:, run.dofs]
        carried = [regressor[:, :, -10:] * float(run.payload == name) for name in payloads]
        linear = [term_matrix(model, run, term, rigid) for term in layout.terms]
        parts.append(np.concatenate([regressor[:, :, : 10 * len(bodies)], *carried, *linear], axis=2))
    left = np.concatenate([run.torque - model_torques(model, run.motion)[:, run.dofs] for run in runs])
    reference = PAYLOAD_KG * np.array([1, 0, 0, 0, *(2 * PAYLOAD_RADIUS_M**2 * np.array([1, 0, 0, 1, 0, 1]))])
    bases = tuple(LogCholesky.around(pi) for pi in [*own, *([reference] * len(payloads))])
    given = np.concatenate([own, np.zeros((len(payloads), 10))])
    columns = like.columns if like else tuple(term_columns(model, runs, term) for term in layout.terms)
    place = np.repeat(np.arange(len(runs)), [len(run) for run in runs])
    matrix = np.concatenate(parts)
    return TorqueProblem(model, bodies, payloads, layout.terms, columns, matrix, left, place, bases, given)


def fit_torques(problem: TorqueProblem, *, start: Array | None = None, rounds: int = ROUNDS) -> TorqueSolution:
    """The most probable parameters, with the weights of the joints found along with them."""
    prior, low = _prior(problem)
    # A^T A and A^T y of each joint.
    by_joint = np.moveaxis(problem.matrix, 1, 0)
    grams, sides = np.swapaxes(by_joint, 1, 2) @ by_joint, np.einsum("jrp,rj->jp", by_joint, problem.left)
    weight = 1 / np.maximum(problem.left.std(axis=0), 1e-6 * (1 + np.abs(problem.left).max()))
    x = np.zeros(len(prior)) if start is None else start
    status, steps, residual = FitStatus.STALLED, 0, problem.left
    for _ in range(rounds):
        total = np.tensordot(weight**2, grams, 1), np.tensordot(weight**2, sides, 1)
        x, status, steps = _descend(problem, total, (prior, low), x)
        residual = problem.left - problem.matrix @ problem.theta(x)
        weight = joint_weights(residual, problem.run)
    jacobian = problem.jacobian(x)
    data = jacobian.T @ np.tensordot(weight**2, grams, 1) @ jacobian
    precision = data + np.diag(prior**-2.0)
    rows = float(((residual * weight) ** 2).sum())  # the sum over joints of rows over correlation times
    used = float(np.trace(np.linalg.solve(precision, data)))
    inflation = rows / max(rows - used, MIN_FREEDOM * rows)
    return TorqueSolution(problem, x, precision, prior, weight, residual, status, steps, inflation)


def choose_terms(problem: TorqueProblem) -> tuple[tuple[TorqueTerm, ...], dict[str, float]]:
    """The terms that pay, and how much each candidate lowered the error on left-out stretches when it was tried last.

    Greedy: the best candidate is added while it lowers the error by at least `MIN_GAIN` and more than the standard
    error of its gain over the stretches. Inertial parameters are linear around a first fit.
    """
    first = fit_torques(problem.with_terms(ALWAYS), rounds=3)
    prior, low = _prior(problem)
    jacobian = np.eye(len(prior))
    inertial = problem.inertial
    jacobian[:inertial, :inertial] = first.problem.jacobian(first.x)[:inertial, :inertial]
    start = np.zeros(len(prior))
    start[:inertial] = first.x[:inertial]
    left = problem.left - problem.matrix[:, :, :inertial] @ problem.theta(start)[:inertial]
    scaled = problem.matrix @ jacobian
    # Stretches of rows, each from all runs.
    parts = [np.array_split(np.flatnonzero(problem.run == r), FOLDS) for r in np.unique(problem.run)]
    grams: list[tuple[Array, Array, float]] = []
    for k in range(FOLDS):
        rows = np.concatenate([part[k] for part in parts])
        a = (scaled[rows] * first.weight[:, None]).reshape(-1, scaled.shape[2])
        y = (left[rows] * first.weight).ravel()
        grams.append((a.T @ a, a.T @ y, float(y @ y)))
    centre = np.where(np.arange(len(prior)) < inertial, -start, 0.0)

    def errors(terms: Sequence[TorqueTerm]) -> Array:
        used = [problem.span(k) for k in sorted(problem.terms.index(t) for t in terms)]
        columns = np.concatenate([np.arange(inertial), *used])
        return _left_out(grams, columns, (prior[columns], low[columns], centre[columns]))

    chosen, best, gains = list(ALWAYS), errors(ALWAYS), dict[str, float]()
    while True:
        tried = {term: errors([*chosen, term]) for term in problem.terms if term not in chosen}
        for term, error in tried.items():
            gains[term.name] = float(1 - np.sqrt(error.sum() / best.sum()))
        spread = {t: float((best - error).std(ddof=1)) * len(best) ** 0.5 for t, error in tried.items()}
        good = [t for t in tried if gains[t.name] >= MIN_GAIN and float((best - tried[t]).sum()) > spread[t]]
        if not good:
            return tuple(t for t in problem.terms if t in chosen), gains
        chosen.append(min(good, key=lambda t: float(tried[t].sum())))
        best = tried[chosen[-1]]


def all_terms(joints: tuple[str, ...]) -> tuple[TorqueTerm, ...]:
    """The terms of every fit and the candidates."""
    return (*ALWAYS, *candidates(joints))


def correlation_rows(residual: Array, run: Array) -> float:
    """How many neighbouring rows count as one: 1 + 2 sum of the autocorrelations until they fade."""
    total, power = 1.0, float((residual**2).mean())
    for lag in range(1, len(residual) // 2):
        same = run[lag:] == run[:-lag]
        rho = float((residual[lag:] * residual[:-lag])[same].mean()) / power if same.any() and power > 0 else 0.0
        if rho < 0.05:
            break
        total += 2 * rho
    return total


def joint_weights(residual: Array, run: Array) -> Array:
    """Weights of the joints [1/Nm]: one over the deviation and the root of the correlation time of each residual."""
    deviation = np.maximum(residual.std(axis=0), 1e-9)
    return 1 / (deviation * np.sqrt([correlation_rows(column, run) for column in residual.T]))


def _prior(problem: TorqueProblem) -> tuple[Array, Array]:
    """Standard deviations of the prior, and lower limits."""
    bodies, payloads = 10 * len(problem.bodies), 10 * len(problem.payloads)
    wide = [np.full(bodies, PRIOR_WIDTH), np.full(payloads, PAYLOAD_WIDTH), *(c.scale for c in problem.columns)]
    low = [np.full(bodies + payloads, -np.inf), *(c.low for c in problem.columns)]
    return np.concatenate(wide), np.concatenate(low)


def _left_out(grams: Sequence[tuple[Array, Array, float]], columns: Array, limits: tuple[Array, Array, Array]) -> Array:
    """Squared error of each stretch, weighted, from parameters fitted to the other stretches."""
    prior, low, centre = limits
    parts = [(g[np.ix_(columns, columns)], s[columns], power) for g, s, power in grams]
    gram, side = sum(p[0] for p in parts), sum(p[1] for p in parts)
    errors: list[float] = []
    for g, s, power in parts:
        normal = gram - g + np.diag(prior**-2.0)
        x = bounded_minimum(normal, side - s + centre / prior**2, low)
        errors.append(float(power - 2 * s @ x + x @ g @ x))
    return np.array(errors)


def _descend(
    problem: TorqueProblem, data: tuple[Array, Array], limits: tuple[Array, Array], x: Array
) -> tuple[Array, FitStatus, int]:
    """Levenberg-Marquardt on theta^T G theta - 2 s^T theta + |x / prior|^2, linear parameters above their limits."""
    (gram, side), (prior, low) = data, limits

    def cost(at: Array) -> float:
        theta = problem.theta(at)
        return float(theta @ gram @ theta - 2 * side @ theta + ((at / prior) ** 2).sum())

    now, damping = cost(x), 1e-3
    for step in range(1, MAX_STEPS + 1):
        jacobian = problem.jacobian(x)
        normal = jacobian.T @ gram @ jacobian + np.diag(prior**-2.0)
        slope = jacobian.T @ (side - gram @ problem.theta(x)) - x / prior**2
        while True:
            trial = x + bounded_minimum(normal + damping * np.diag(prior**-2.0), slope, low - x)
            then = cost(trial)
            if then <= now or damping > 1e9:
                break
            damping *= 10
        if then > now:
            return x, FitStatus.STALLED, step
        gain, x, now, damping = now - then, trial, then, max(damping / 10, 1e-9)
        if gain < ENOUGH:
            return x, FitStatus.CONVERGED, step
    return x, FitStatus.BUDGET_SPENT, MAX_STEPS


def bounded_minimum(normal: Array, side: Array, low: Array) -> Array:
    """The minimum of x^T N x / 2 - s^T x with x >= low, where 0 is allowed, by a primal active set."""
    x = np.zeros(len(side))
    held = np.isfinite(low) & (low > -1e-14)
    for _ in range(20 * len(side)):
        free = ~held
        full = np.where(held, low, 0.0)
        full[free] = np.linalg.solve(normal[np.ix_(free, free)], (side - normal @ full)[free])
        broken = free & (full < low - 1e-13)
        if broken.any():
            ratio = np.where(broken, (low - x) / np.where(broken, full - x, 1.0), np.inf)
            first = int(np.argmin(ratio))
            x = x + min(1.0, max(0.0, float(ratio[first]))) * (full - x)
            x[first], held[first] = low[first], True
            continue
        x = full
        force = np.where(held, normal @ x - side, 0.0)
        worst = int(np.argmin(force))
        if force[worst] >= -1e-9 * (1e-300 + float(np.abs(side).max())):
            break
        held[worst] = False
    return np.maximum(x, low)


TermKind = Literal["coulomb", "viscous", "offset", "armature", "drag", "load", "tilt", "coupling"]
FIELDS = {"coulomb": "frictionloss", "viscous": "damping", "armature": "armature", "drag": "drag", "load": "load"}
"""Fields of joint addresses that terms identify."""
TILT_M_S2 = 0.3
"""Usual size of gravity along x and y: a base that is 2 degrees off level."""
LOAD_SHARE = 0.3
"""Usual share of a load that becomes friction."""
UNITS = {"coulomb": "Nm", "viscous": "Nm s/rad", "offset": "Nm", "armature": "kg m2", "drag": "Nm s2/rad2", "load": "1"}


@frozen_dataclass
class TorqueTerm:
    """One term of joint torques beside rigid bodies, linear in its parameters, which are changes of the scene's values:

        coulomb   F_c sign(v)                  armature  J a
        viscous   F_v v                        drag      D |v| v
        offset    b                            load      k |tau_rigid| sign(v)
        tilt      gravity along x and y        coupling  the first three of an angle q_i + s q_j, s = 1 or -1

    A coupling is a motor that turns with two joints, as in the wrists of industrial arms: its friction and rotor act on
    both. In a scene it is a fixed tendon.
    """

    kind: TermKind
    joints: tuple[str, str] = ("", "")
    """The two joints of a coupling."""
    sign: int = 1

    @property
    def name(self) -> str:
        """Its name in reports."""
        words = {"drag": "drag", "load": "load-dependent friction", "tilt": "tilted base", "armature": "rotor inertia"}
        if self.kind == "coupling":
            return f"motor that turns with {self.joints[0]} {'+' if self.sign > 0 else '-'} {self.joints[1]}"
        return words.get(self.kind, self.kind)

    @property
    def tendon(self) -> str:
        """Name of the fixed tendon of a coupling."""
        return f"{self.joints[0]}_{'plus' if self.sign > 0 else 'minus'}_{self.joints[1]}"


ALWAYS = (TorqueTerm("coulomb"), TorqueTerm("viscous"), TorqueTerm("offset"))
"""Terms of every fit."""


@array_dataclass
class TermColumns:
    """The parameters of a term: names, units, usual size, smallest value, and the scene's own value."""

    names: tuple[str, ...]
    units: tuple[str, ...]
    scale: Array
    """Standard deviation of the prior: as much as would explain the whole torque of a joint."""
    low: Array
    given: Array


def candidates(joints: tuple[str, ...]) -> tuple[TorqueTerm, ...]:
    """Terms that are added only if they lower the error: for all joints, and couplings of neighbours."""
    plain = tuple(TorqueTerm(kind) for kind in ("armature", "tilt", "drag", "load"))
    return plain + tuple(TorqueTerm("coupling", pair, sign) for pair in pairwise(joints) for sign in (1, -1))


def term_matrix(model: mujoco.MjModel, run: TorqueRun, term: TorqueTerm, rigid: Array) -> Array:
    """The torques by each parameter of a term [rows, joints, parameters]; `rigid` are those of the rigid bodies."""
    v, a = run.motion.v[:, run.dofs], run.motion.a[:, run.dofs]
    if term.kind == "tilt":
        return tilt_regressor(model, run.motion)[:, run.dofs]
    if term.kind == "coupling":
        arms = np.zeros(len(run.joints))
        arms[run.joints.index(term.joints[0])], arms[run.joints.index(term.joints[1])] = 1.0, term.sign
        speed, rate = v @ arms, a @ arms
        return np.stack([direction(speed), speed, rate], axis=-1)[:, None, :] * arms[:, None]
    columns = {
        "coulomb": direction(v),
        "viscous": v,
        "offset": np.ones_like(v),
        "armature": a,
        "drag": np.abs(v) * v,
        "load": np.abs(rigid) * direction(v),
    }[term.kind]
    return columns[:, :, None] * np.eye(len(run.joints))


def term_columns(model: mujoco.MjModel, runs: list[TorqueRun], term: TorqueTerm) -> TermColumns:
    """Names, units, prior and limits of the parameters of a term."""
    joints, dofs = runs[0].joints, runs[0].dofs
    if term.kind == "tilt":
        names, free = ("option.gravity_x", "option.gravity_y"), np.full(2, -np.inf)
        return TermColumns(names, ("m/s2", "m/s2"), np.full(2, TILT_M_S2), free, np.array(model.opt.gravity[:2]))
    # Values of each kind that would explain the whole torque of a joint.
    torque = _rms([run.torque for run in runs])
    speed, rate = (_rms([getattr(run.motion, part)[:, dofs] for run in runs]) for part in ("v", "a"))
    sizes = {"coulomb": torque, "viscous": torque / speed, "armature": torque / rate, "offset": torque}
    sizes |= {"drag": torque / speed**2, "load": np.full(len(dofs), LOAD_SHARE)}
    if term.kind == "coupling":
        kinds, k = ("coulomb", "viscous", "armature"), joints.index(term.joints[1])
        scale = np.array([sizes[kind][k] for kind in kinds])
        names = tuple(f"tendon.{term.tendon}.{FIELDS[kind]}" for kind in kinds)
        return TermColumns(names, tuple(UNITS[kind] for kind in kinds), scale, np.zeros(3), np.zeros(3))
    given = {"coulomb": model.dof_frictionloss, "viscous": model.dof_damping, "armature": model.dof_armature}
    given["drag"] = model.dof_dampingpoly[:, 0]
    own = np.array(given.get(term.kind, np.zeros(model.nv)))[dofs]
    field = FIELDS.get(term.kind)
    names = tuple(f"joint.{joint}.{field}" if field else f"torque offset of {joint}" for joint in joints)
    # Friction and rotors cannot push; drag may be negative where damping falls with speed, as that of grease does.
    low = -own if term.kind in ("coulomb", "viscous", "armature", "load") else np.full(len(joints), -np.inf)
    return TermColumns(names, (UNITS[term.kind],) * len(joints), sizes[term.kind], low, own)


def _rms(parts: list[Array]) -> Array:
    return np.maximum(np.sqrt((np.concatenate(parts) ** 2).mean(axis=0)), 1e-9)


MIN_RADIUS_M = 0.01
"""Smallest radius of gyration of a reference: bodies without inertia (points, rods, frames) get this one."""
_PLACES = ((0, 0), (1, 1), (2, 2), (0, 1), (1, 2), (0, 2), (0, 3), (1, 3), (2, 3))
"""Entries of U that x1 to x9 set."""


def pseudo_inertia(pi: Array) -> Array:
    """The pseudo-inertia [..., 4, 4] of ten inertial parameters [..., 10]."""
    pi = np.asarray(pi, float)
    inertia = np.empty((*pi.shape[:-1], 3, 3))
    for k, (i, j) in enumerate(((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2))):
        inertia[..., i, j] = inertia[..., j, i] = pi[..., 4 + k]
    out = np.empty((*pi.shape[:-1], 4, 4))
    trace = np.trace(inertia, axis1=-2, axis2=-1)[..., None, None]
    out[..., :3, :3] = 0.5 * trace * np.eye(3) - inertia
    out[..., :3, 3] = out[..., 3, :3] = pi[..., 1:4]
    out[..., 3, 3] = pi[..., 0]
    return out


def inertial_of(pseudo: Array) -> Array:
    """The ten inertial parameters [..., 10] of a pseudo-inertia [..., 4, 4]."""
    second = pseudo[..., :3, :3]
    inertia = np.trace(second, axis1=-2, axis2=-1)[..., None, None] * np.eye(3) - second
    upper = [inertia[..., i, j] for i, j in ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2))]
    return np.stack([pseudo[..., 3, 3], *np.moveaxis(pseudo[..., :3, 3], -1, 0), *upper], axis=-1)


def consistent(pi: Array) -> Array:
    """Whether inertial parameters [..., 10] belong to a body of positive density: P is positive definite."""
    return np.linalg.eigvalsh(pseudo_inertia(pi)).min(axis=-1) > 0


@array_dataclass
class LogCholesky:
    """Log-Cholesky coordinates around a reference body, which are physical everywhere.

    The pseudo-inertia P = [[S, h], [h^T, m]] of a body holds its mass m, first moment h = m c and second moment
    S = tr(I) / 2 - I, with I the inertia about the frame of the body. It is positive definite for a positive density;
    then masses are positive and moments fulfil the triangle inequality. With a reference P0 = L L^T,

        P(x) = L U(x) U(x)^T L^T,    U = e^x0 [[e^x1, x4, x6, x7], [0, e^x2, x5, x8], [0, 0, e^x3, x9], [0, 0, 0, 1]]

    is positive definite for every x in R^10, and P(0) = P0. L is upper triangular, so the mass is m0 e^(2 x0), and x7
    to x9 move the centre of mass in units of the body's own radii of gyration.
    """

    factor: Array
    """Upper triangular L of the reference P0 = L L^T [4, 4]."""

    @classmethod
    def around(cls, pi: Array) -> LogCholesky:
        """Coordinates around given inertial parameters, which are made physical first."""
        mass, centre = float(pi[0]), np.asarray(pi[1:4]) / pi[0]
        spread = pseudo_inertia(pi)[:3, :3] - mass * np.outer(centre, centre)
        moments, axes = np.linalg.eigh(spread)
        spread = (axes * np.maximum(moments, mass * MIN_RADIUS_M**2)) @ axes.T
        factor = np.zeros((4, 4))
        # Cholesky from the last row up gives an upper triangular factor.
        factor[:3, :3] = np.linalg.cholesky(spread[::-1, ::-1])[::-1, ::-1]
        factor[:, 3] = np.sqrt(mass) * np.append(centre, 1.0)
        return cls(factor)

    def inertial(self, x: Array) -> Array:
        """Inertial parameters [10] at coordinates x [10]."""
        root = self.factor @ _upper(x)
        return inertial_of(root @ root.T)

    def jacobian(self, x: Array) -> Array:
        """Derivatives of the inertial parameters by the coordinates [10, 10]."""
        upper = _upper(x)
        root, out = self.factor @ upper, np.empty((10, 10))
        for k in range(10):
            change = upper if k == 0 else np.zeros((4, 4))
            if k:
                i, j = _PLACES[k - 1]
                change[i, j] = upper[i, j] if i == j else np.exp(x[0])
            step = self.factor @ change @ root.T
            out[:, k] = inertial_of(step + step.T)
        return out


def _upper(x: Array) -> Array:
    out = np.eye(4)
    for value, (i, j) in zip(x[1:], _PLACES, strict=True):
        out[i, j] = np.exp(value) if i == j else value
    return np.exp(x[0]) * out
