"""Search over the parameters of a whole arm: in its coupled simulation, and joint by joint under simulated loads.

The error of a joint depends most on its own unknowns. So the same unknown of every joint is changed at once, each joint
is moved by its own block of the normal equations, and a derivative costs two simulations of the arm. Joints that remain
above their noise are fitted alone under the simulated load: a joint takes microseconds to simulate, and at the true
values the load of the simulated arm is the true one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import cast

import numpy as np

from instep.core.episode import Episode
from instep.core.param import Param
from instep.core.progress import Progress
from instep.core.rollout import rollout_positions
from instep.core.world import Array, Simulator, array_dataclass
from instep.physics.mujoco_world import MujocoWorld
from instep.scene.folder import SceneSimulator
from instep.tune.fit.sensitivities import motion_is_linearisable
from instep.tune.fit.shooting import Fit, ShootingOptions, fit
from instep.tune.fit.windows import WORLD_BATCH, tuned

from .arm_model import (
    SKIPPED_S,
    ArmModel,
    arm_model,
    at_physics_steps,
    dynamics,
    estimate_joints,
    explore_joints,
    fit_joints,
    holding_friction,
    smoothed,
)
from .joint_model import DELAY, LAG, LARGEST_STEP, STEPS, JointModel

ROUNDS, COMPARED_ROUNDS = 4, 2
"""Most rounds of a search, and of one to compare with; what they leave is left to fits of the whole arm, which know how
joints move each other."""
AT_NOISE, FAR_FROM_NOISE = 1.12, 1.5
"""Residual over noise up to which a joint counts as fitted, and above which it may be in the wrong minimum."""
EXPLAINED = 3.0
"""Residual over noise up to which joints alone explain the recordings, once fits of the whole arm follow."""
LEAST_GAIN, LEAST_ROUND_GAIN = 0.02, 0.1
"""Relative fall of the error of each joint below which a step has led no further, and of each joint above its noise
below which a round has not."""
MOST_STEPS, LONG, SHORT = 6, 1.0, 0.3
"""Most steps of all joints at once, and factors of the differences they go by: long ones average over stick-slip."""
NOISE_SHARE = 0.8
"""Residuals below this share of the noise are no better."""
LARGEST_DELAY_STEP = 6e-3
FAR = 0.1
"""Largest error in a window up to which the simulated motion tells the load of each joint [rad]."""
FINAL_ITERATIONS, REPEATS, TOLERANCE = 12, 3, 1e-5
"""Most iterations of the fit that follows a search, how often joints that it leaves above their noise are searched
again, and the relative change of the cost below which it has converged."""
HOLDING_GAIN, HOLDING_ROUNDS = 0.1, 3
"""Relative fall of the error from which on dry friction is taken to hold, and rounds to find it."""
DAMPINGS = (1e-3, 1e-2, 1e-1, 1.0)
"""Damping of the steps that are tried."""


@dataclass(slots=True, eq=False)
class ArmSearch:
    """The coupled simulation of an arm over its windows, and the best unknowns so far."""

    arm: ArmModel
    sim: Simulator
    x: Array
    """The best unknowns so far."""
    residual: Array = field(default_factory=lambda: np.empty(0))
    """Predicted minus measured [windows, rows, joints] at the best unknowns."""

    def __post_init__(self) -> None:
        self.residual = self.residuals([self.x])[0]

    def improve(self, progress: Progress, rounds: int = ROUNDS, seed: int = 0) -> bool:
        """Search in the coupled simulation, and joint by joint under its loads, until all joints are at their noise.

        It also ends with the time, and when a round gains little. Returns whether it ended by itself, so that further
        rounds gain nothing.
        """
        for i in range(rounds):
            progress.advance("coupled search", i / rounds)
            before, bad = self.merit, self.unfinished()
            if (i and not bad) or progress.ended:
                return not bad
            self.descend(progress.part(i / rounds, (i + 0.8) / rounds))
            if not i and self._above(FAR_FROM_NOISE):
                # Under loads from a recording a light joint is often taken for a heavy and soft one.
                parts = self.arm.split(self.arm.start(float(self.x[-1])))
                for z, found in zip(parts, self.arm.split(self.x), strict=True):
                    z[LAG] = found[LAG]
                other = ArmSearch(self.arm, self.sim, self.arm.join(parts, float(self.x[-1])))
                other.descend(progress)
                self.take([other.x])
            descended = self.merit
            if self.unfinished() and not progress.ended:
                self.refit(seed + i, restart=True)
            least = LEAST_ROUND_GAIN * len(bad)
            if descended - self.merit < least or (i and before - self.merit < least):
                return True
        return False

    def descend(self, progress: Progress) -> None:
        """Move all joints at once by differences of the coupled simulation, long ones first, until they gain little."""
        for length in (LONG, SHORT):
            for _ in range(MOST_STEPS):
                if progress.ended or (length == LONG and not self.unfinished()):
                    break
                before, tried = self.merit, probes(self.arm, self.x, length)
                found = self.residuals(tried.points)
                self.take(damped_steps(self.arm, self.x, self.residual, tried, found))
                if before - self.merit < LEAST_GAIN * len(self.arm.joints):
                    break

    @property
    def rms(self) -> Array:
        """Root mean square residual of each joint [rad]."""
        return _rms(self.residual)

    @property
    def settings(self) -> dict[str, float]:
        """The best settings so far."""
        return self.arm.settings(self.x)

    @property
    def merit(self) -> float:
        """Sum of the logarithms of all joints' errors, none below its noise: what the search lowers."""
        return float(self._merit(self.rms))

    def unfinished(self) -> list[int]:
        """The joints whose error is above their noise."""
        return self._above(AT_NOISE)

    def _above(self, factor: float) -> list[int]:
        return [int(k) for k in np.flatnonzero(self.rms > factor * self.arm.noise)]

    def residuals(self, points: Sequence[Array] | Array) -> Array:
        """Predicted minus measured positions [points, windows, rows, joints], each within a radian."""
        windows, columns = self.arm.windows, self.arm.columns
        n, per_call = len(windows.q), max(1, WORLD_BATCH // len(windows.q))
        out: list[Array] = []
        for i in range(0, len(points), per_call):
            part = [self.arm.settings(x) for x in points[i : i + per_call]]
            sim = tuned(self.sim, {name: np.repeat([s[name] for s in part], n) for name in part[0]})
            q, v, past = (np.tile(a, (len(part), *[1] * (a.ndim - 1))) for a in (windows.q, windows.v, windows.past))
            paths = rollout_positions(sim, sim.place(q, v, 0.0, past), np.moveaxis(windows.action, 1, 0))
            paths = paths.reshape(len(part), n, *paths.shape[1:])[:, :, windows.skip - 1 :, columns]
            away = paths - windows.measured[:, windows.skip :, columns]
            out.append(np.clip(np.nan_to_num(away, nan=1.0), -1.0, 1.0))
        return np.concatenate(out)

    def refit(self, seed: int = 0, *, restart: bool = False) -> None:
        """Fit every joint alone again, under the load of the coupled arm as it is simulated now.

        At the true values the load is the true one, whatever the noise of the recording. Joints that are above their
        noise are first searched without derivatives; with `restart` also from other values, and with the split of
        damping between joint and servo free, where they are far from it.
        """
        unfinished = self.unfinished()
        far = self._above(FAR_FROM_NOISE) if restart else []
        self.arm = self.arm.with_saturation(self.x, far)
        loaded = self.recoupled()
        explored = explore_joints(loaded, self.x, unfinished, far, seed) if unfinished else self.x
        moved = fit_joints(loaded, explored)
        errors = np.stack([self.rms, _rms(self.residuals([moved]))[0]])
        self._accept([moved, self._chosen([self.x, moved], errors, float(moved[-1]))])

    def _chosen(self, points: Sequence[Array], errors: Array, delay: float) -> Array:
        """Each joint from the point with its least error [points, joints]."""
        parts = [self.arm.split(x) for x in points]
        return self.arm.join([parts[int(k)][j] for j, k in enumerate(np.argmin(errors, axis=0))], delay)

    def recoupled(self) -> ArmModel:
        """The joints under the inertia and load of the simulated motion, in windows where it is near the measured."""
        arm, windows, model = self.arm, self.arm.windows, self.arm.scene.model
        world = cast(MujocoWorld, self.sim.tuned(self.settings))
        state = world.place(windows.q, windows.v, 0.0, windows.past)
        found = world.physics_steps(state, np.moveaxis(windows.action, 1, 0))
        near = np.isfinite(found.v).all(axis=(1, 2)) & (np.abs(self.residual).max(axis=(1, 2)) < FAR)
        if not near.any():
            return arm
        q, v, held_a = found.q[near, :-1].copy(), found.v[near, :-1].copy(), found.acceleration[near].copy()
        a = np.diff(found.v[near], axis=1) / model.opt.timestep
        bad = self.unfinished()
        if bad:
            # Joints that are simulated badly load the others as they were measured to move.
            columns, dofs = arm.columns[bad], arm.dofs[bad]
            away = windows.measured[near][..., columns] - found.q[near, :: world.substeps][..., columns]
            parts = [np.moveaxis(part, 0, 1) for part in smoothed(np.moveaxis(away, 1, 0), self.sim.spec.dt)]
            moved, faster, pushed = (at_physics_steps(part, world.substeps) for part in parts)
            q[..., columns] += moved
            v[..., dofs] += faster
            a[..., dofs] += pushed
            held_a[..., dofs] += pushed
        inertia, held = dynamics(model, q, v, held_a)
        _, load = dynamics(model, q, v, a)
        joints: list[JointModel] = []
        for joint, z in zip(arm.joints, arm.split(self.x), strict=True):
            dof = int(model.jnt_dofadr[model.joint(joint.joint).id])
            own, friction = joint.constants, joint.values(z).friction
            # Dry friction leaves an acceleration proportional to its torque, unless it slips.
            away = found.acceleration[near, :, dof] + own.friction_gain * found.v[near, :-1, dof]
            dry = np.clip(-away / max(own.friction_softness, 1e-12), -friction, friction)
            other = found.constraint[near, :, dof] - dry
            parts = (inertia[..., dof], load[..., dof] - other, held[..., dof] - other)
            joints.append(joint.loaded(near, *parts))
        return replace(arm, joints=tuple(joints))

    def take(self, points: Sequence[Array]) -> None:
        """Go to the best of some unknowns, or to each joint's choice among those of one delay, where that is better."""
        every, errors = [self.x, *points], np.concatenate([self.rms[None], _rms(self.residuals(points))])
        delays = np.array([x[-1] for x in every])
        mixed = [self._chosen(every, np.where((delays == d)[:, None], errors, np.inf), d) for d in np.unique(delays)]
        self._accept([every[int(np.argmin(self._merit(errors)))], *mixed])

    def _accept(self, points: Sequence[Array]) -> None:
        """Go to the best of some points, where it is better."""
        residuals = self.residuals(points)
        merits = self._merit(_rms(residuals))
        k = int(np.argmin(merits))
        if merits[k] < self.merit:
            self.x, self.residual = points[k], residuals[k]

    def _merit(self, errors: Array) -> Array:
        return np.log(np.maximum(errors, NOISE_SHARE * self.arm.noise)).sum(axis=-1)


@array_dataclass
class ArmEstimate:
    """Parameters of an arm by direct estimates and a coupled search, and searches from elsewhere to compare with."""

    arm: ArmModel
    sim: Simulator
    x: Array
    rms: Array
    """Error of each joint [rad]."""
    holding: bool
    """Whether the recordings show dry friction that holds a loaded joint rather than letting it creep."""

    @property
    def settings(self) -> dict[str, float]:
        """The settings of the scene."""
        return self.arm.settings(self.x)

    @property
    def joint_names(self) -> tuple[str, ...]:
        """The joints that are estimated."""
        return tuple(joint.joint for joint in self.arm.joints)

    @property
    def friction_stiffness(self) -> dict[str, float]:
        """Settings of how dry friction holds, where it differs from the scene."""
        return holding_friction(self.joint_names) if self.holding else {}

    @property
    def explains(self) -> bool:
        """Whether no joint is far from its noise, so that nothing else is needed to explain the recordings."""
        return bool((self.rms <= EXPLAINED * self.arm.noise).all())

    def free(self, name: str) -> bool:
        """Whether a parameter of the arm's joints was searched; True for all others."""
        return self.arm.searched(name)

    def __call__(
        self,
        sim: Simulator,
        episodes: Sequence[Episode],
        params: Sequence[Param],
        options: ShootingOptions | None = None,
        *,
        progress: Progress | None = None,
    ) -> Fit:
        """A search from the options' start, or, where that is random, from an estimate of half the windows alone."""
        options, progress = options or ShootingOptions(), progress or Progress()
        exact = motion_is_linearisable(sim)
        options = replace(options, linearised=exact, local=options.local and not exact)
        options = replace(options, iterations=min(options.iterations, FINAL_ITERATIONS), tolerance=TOLERANCE)
        # Servos pull an arm back to its command, but while their motors are at their limit no derivative says how.
        options = replace(options, settle=SKIPPED_S)
        compared = options.random_guesses
        if compared:
            options = _from(options, self._of_half(options.seed, progress.part(0.0, 0.5, of_time_left=0.5)), params)
        found = fit(sim, episodes, params, options, progress=progress.part(0.5, 0.7))
        for i in range(0 if compared else REPEATS):
            begun = None if progress.ended or found.stopped else self._refitted(found, i)
            if begun is None:
                break
            progress.advance("search again", 0.7 + 0.3 * i / REPEATS)
            again = fit(sim, episodes, params, _from(options, begun, params), progress=progress)
            gained = self._misfit(found) - self._misfit(again)
            found = again if gained > 0 else found
            if gained < LEAST_GAIN:
                break
        return found

    def _misfit(self, found: Fit) -> float:
        """Sum of the logarithms of the errors of all joints, none below its noise."""
        sizes = np.array([found.rms.get(name, 0.0) for name in self.joint_names])
        return float(np.log(np.maximum(sizes, self.arm.noise)).sum())

    def _of_half(self, seed: int, progress: Progress) -> dict[str, float]:
        """Settings by direct estimates and a coupled search from every other window alone."""
        arm = self.arm.some(slice(seed % 2, None, 2))
        progress.advance("direct estimates of half the windows", 0.0)
        x = estimate_joints(arm)
        search = ArmSearch(arm, self.sim, x)
        search.take([arm.start(float(x[-1]))])
        search.improve(progress, COMPARED_ROUNDS)
        return search.settings

    def _refitted(self, found: Fit, seed: int) -> dict[str, float] | None:
        """Settings with joints that a fit left above their noise searched again alone, under its loads; None if none.

        Where a motor is at its limit, derivatives lead astray, and the loads were not known well before.
        """
        noise = dict(zip(self.joint_names, self.arm.noise, strict=True))
        if not any(found.rms.get(name, 0.0) > AT_NOISE * size for name, size in noise.items()):
            return None
        search = ArmSearch(self.arm, self.sim, self.arm.unknowns(found.settings))
        before = search.merit
        search.refit(seed, restart=True)
        return search.settings if search.merit < before - LEAST_GAIN else None


def estimate_arm(sim: SceneSimulator, episodes: Sequence[Episode], progress: Progress) -> ArmEstimate | None:
    """Parameters of the servo-driven joints of an arm, from its recordings alone; None where there are no such joints.

    Each joint is fitted alone; then the coupled arm is searched, each joint from the better of that and the scene's
    own values.
    """
    arm = arm_model(sim, episodes)
    if arm is None:
        return None
    progress.advance("direct estimates", 0.0)
    x = estimate_joints(arm)
    search = ArmSearch(arm, sim, x)
    search.take([arm.start(float(x[-1]))])
    settled = search.improve(progress.part(0.3, 0.7))
    creeps = 2 * len(search.unfinished()) > len(arm.joints)
    held = _holding(search, sim, settled, progress.part(0.7, 1.0)) if creeps else None
    search = held or search
    return ArmEstimate(search.arm, search.sim, search.x, search.rms, held is not None)


def _holding(search: ArmSearch, sim: SceneSimulator, settled: bool, progress: Progress) -> ArmSearch | None:
    """A search with dry friction that holds, where that explains the recordings better; None where it does not.

    `settled` says that the search without it would gain nothing by further rounds.
    """
    gain = HOLDING_GAIN * len(search.arm.joints)
    loaded, stiffer = search.recoupled(), search.arm.stiffer()
    alone = fit_joints(loaded.stiffer(), search.x)
    if loaded.stiffer().alone(alone) > loaded.alone(search.x) - gain:
        return None
    world = sim.tuned(holding_friction([joint.joint for joint in stiffer.joints]))
    held = ArmSearch(stiffer, world, alone)
    held.improve(progress.part(0.0, 0.6), rounds=HOLDING_ROUNDS)
    if not settled and held.merit < search.merit - gain:
        # What further rounds alone would gain is no sign of friction that holds.
        search.improve(progress.part(0.6, 1.0), rounds=HOLDING_ROUNDS, seed=ROUNDS)
    return held if held.merit < search.merit - gain else None


def _from(options: ShootingOptions, settings: Mapping[str, float], params: Sequence[Param]) -> ShootingOptions:
    """The options with other starts of those parameters that are fitted."""
    names = {param.address for param in params}
    initial = {**options.initial, **{name: value for name, value in settings.items() if name in names}}
    return replace(options, initial=initial, random_guesses=False)


def _rms(residual: Array) -> Array:
    return np.sqrt(np.mean(residual**2, axis=(-3, -2)))


@array_dataclass
class Probes:
    """Unknowns on both sides of some, one of every joint changed at once, the delay last."""

    index: tuple[int, ...]
    """Which unknown is changed in each pair of points."""
    points: Array
    """[2 * index, unknowns]."""

    @property
    def widths(self) -> Array:
        """Distance of the two points of each pair."""
        ahead, behind = self.points[0::2], self.points[1::2]
        return np.abs(ahead - behind).max(axis=1)


def probes(arm: ArmModel, x: Array, length: float) -> Probes:
    """Points for central differences, so much longer than usual."""
    index = (*sorted({i for joint in arm.joints for i in joint.free}), DELAY)
    points: list[Array] = []
    for i, sign in product(index, (1.0, -1.0)):
        parts = arm.split(x)
        for joint, z in zip(arm.joints, parts, strict=True):
            if i in joint.free:
                z[i] += sign * length * STEPS[i]
        delay = float(x[-1]) + (sign * length * STEPS[DELAY] if i == DELAY else 0.0)
        points.append(arm.join(parts, max(delay, 0.0)))
    return Probes(index, np.stack(points))


def damped_steps(arm: ArmModel, x: Array, residual: Array, tried: Probes, found: Array) -> list[Array]:
    """Unknowns after steps of Levenberg and Marquardt, each damping with and without a step of the delay.

    `residual` [windows, rows, joints] belongs to `x`, and `found` [points, ...] to the probes.
    """
    slopes = (found[0::2] - found[1::2]) / tried.widths[:, None, None, None]
    scale = np.maximum(NOISE_SHARE * arm.noise, np.sqrt(np.mean(residual**2, axis=(0, 1))))
    systems = [_system(arm, k, x, (residual / scale, slopes / scale), tried.index) for k in range(len(arm.joints))]
    out: list[Array] = []
    for damping in DAMPINGS:
        solved: list[Array] = []
        for curvature, gradient in systems:  # each joint for its gradient and for the column of the delay
            block = curvature[:-1, :-1] + np.diag(damping * np.diag(curvature)[:-1] + 1e-12)
            solved.append(np.linalg.solve(block, np.stack([gradient[:-1], curvature[:-1, -1]], axis=1)))
        bend = pull = 0.0
        for (curvature, gradient), follow in zip(systems, solved, strict=True):
            across = curvature[:-1, -1]
            bend += float((1 + damping) * curvature[-1, -1] - across @ follow[:, 1])
            pull += float(gradient[-1] - across @ follow[:, 0])
        later = float(np.clip(-pull / max(bend, 1e-9), -min(float(x[-1]), LARGEST_DELAY_STEP), LARGEST_DELAY_STEP))
        out += [_moved(arm, x, solved, change) for change in (later, 0.0)]
    return out


def _system(arm: ArmModel, k: int, x: Array, scaled: tuple[Array, Array], index: Sequence[int]) -> tuple[Array, Array]:
    """Normal equations of one joint over its own unknowns that are searched, and the delay."""
    joint, z, (residual, slopes) = arm.joints[k], arm.split(x)[k], scaled
    own = [index.index(i) for i in (*joint.free, DELAY)]
    jacobian = slopes[own, :, :, k].reshape(len(own), -1)
    away, weight = joint.priors(z)
    weight = weight[:, [*joint.free, DELAY]]
    return jacobian @ jacobian.T + weight.T @ weight, jacobian @ residual[..., k].ravel() + weight.T @ away


def _moved(arm: ArmModel, x: Array, solved: Sequence[Array], later: float) -> Array:
    parts = arm.split(x)
    for joint, z, follow in zip(arm.joints, parts, solved, strict=True):
        step = np.zeros(len(STEPS))
        step[list(joint.free)] = -follow[:, 0] - follow[:, 1] * later
        z += np.clip(step, -LARGEST_STEP, LARGEST_STEP)
        z[LAG] = max(z[LAG], x[-1] + later + 1e-4)
    return arm.join(parts, float(x[-1]) + later)
