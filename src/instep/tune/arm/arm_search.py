"""Search over the parameters of a whole arm: in its coupled simulation, and joint by joint under simulated loads.

The error of a joint depends most on its own unknowns. So the same unknown of every joint is changed at once, each joint
is moved by its own block of the normal equations, and a derivative costs two simulations of the arm. Joints that remain
above their noise are fitted alone under the simulated load: a joint takes microseconds to simulate, and at the true
values the load of the simulated arm is the true one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
    SATURATED_SHARE,
    SKIPPED_S,
    ArmModel,
    arm_model,
    at_physics_steps,
    dynamics,
    holding_friction,
    smoothed,
)
from .joint_fit import LARGEST_DELAY_STEP, NOISE_SHARE, JointFit, estimate_joints, explore_joints, fit_joints
from .joint_model import ARMATURE, DAMPING, DELAY, GAIN, LAG, LARGEST_STEP, LONGEST_DELAY, STEPS, JointModel

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
COARSE_WINDOWS = 9
"""Windows of such steps as long as joints are far from their noise."""
FAR = 0.1
"""Largest error in a window up to which the simulated motion tells the load of each joint [rad]."""
FINAL_ITERATIONS, REPEATS, TOLERANCE = 12, 3, 1e-5
"""Most iterations of the fit that follows a search, how often joints that it leaves above their noise are searched
again, and the relative change of the cost below which it has converged."""
HOLDING_GAIN, HOLDING_ROUNDS = 0.1, 3
"""Relative fall of the error from which on dry friction is taken to hold, and rounds to find it."""
SCENE_ARMATURES, LESS_FRICTION = (1.0, 4.0), 0.6
"""Factors of the scene's armature, and of the found friction, with which joints are tried again."""
DELAY_CHANGES = (-4e-3, -2e-3, 2e-3, 4e-3)
"""Changes of the delay that are tried [s]."""
DAMPINGS = (1e-3, 1e-2, 1e-1, 1.0)
"""Damping of the steps that are tried."""


@dataclass(slots=True, eq=False)
class ArmSearch:
    """The coupled simulation of an arm over its windows, and the best unknowns so far."""

    arm: ArmModel
    sim: Simulator
    best: JointFit
    residual: Array
    """Predicted minus measured [windows, rows, joints] at the best unknowns."""

    @classmethod
    def at(cls, arm: ArmModel, sim: Simulator, x: Array) -> ArmSearch:
        """A search that begins at some unknowns."""
        begun = JointFit(x, np.zeros((2, len(arm.windows.q), len(arm.joints))))
        search = cls(arm, sim, begun, np.empty(0))
        search.residual = search.residuals([begun])[0]
        return search

    def improve(self, progress: Progress, rounds: int = ROUNDS, seed: int = 0) -> bool:
        """Search in the coupled simulation, and joint by joint under its loads, until all joints are at their noise.

        It also ends with the time, and when a round gains little. Returns whether it ended by itself, so that further
        rounds gain nothing.
        """
        settled = False
        for i in range(rounds):
            progress.advance("coupled search", i / rounds)
            before, bad = self.merit, self.unfinished()
            if (i and not bad) or progress.ended:
                settled = not bad
                break
            self.descend(progress.part(i / rounds, (i + 0.8) / rounds), from_scene=i == 0)
            descended = self.merit
            if self.unfinished() and not progress.ended:
                self.refit(seed + i, restart=True)
            least = LEAST_ROUND_GAIN * len(bad)
            if descended - self.merit < least or (i and before - self.merit < least):
                settled = True
                break
        self._without_needless_split()
        return settled

    def descend(self, progress: Progress, *, from_scene: bool = True) -> None:
        """Move all joints at once by differences of the coupled simulation.

        As long as joints are far from their noise, a share of the windows shows the direction, from the best of several
        guesses, and `from_scene` from its own gains, armatures and frictions with the lags that were found.
        """
        if self._above(FAR_FROM_NOISE):
            every = max(1, len(self.arm.windows.q) // COARSE_WINDOWS)
            coarse = ArmSearch.at(self.arm.some(slice(None, None, every)), self.sim, self.x)
            scene = _restarted(coarse.arm, coarse.x, _implied_delay(coarse.arm, coarse.x), True, 1.0, 0.0)
            coarse._take(other_guesses(coarse.arm, coarse.x))
            coarse._step(LONG, progress)
            if from_scene and coarse._above(FAR_FROM_NOISE):
                other = ArmSearch.at(coarse.arm, coarse.sim, scene)
                other._step(LONG, progress)
                coarse.mix([other.x])
            self._take([coarse.x])
        for share, length in ((0.5, LONG), (0.8, SHORT)):
            progress.advance("coupled search", share)
            self._step(length, progress)

    def _step(self, length: float, progress: Progress) -> None:
        """Steps of all joints at once, by differences so much longer than usual, until one gains little."""
        for _ in range(MOST_STEPS):
            if not self.unfinished() or progress.ended:
                return
            before, tried = self.merit, probes(self.arm, self.x, length)
            found = self.residuals(self._here(tried.points))
            self._take(damped_steps(self.arm, self.x, self.residual, tried, found))
            if before - self.merit < LEAST_GAIN * len(self.arm.joints):
                return

    def _without_needless_split(self) -> None:
        """Take back the split of damping between joint and servo where no motor turned out to reach its limit."""
        joints, parts = list(self.arm.joints), self.arm.split(self.x)
        for k, joint in enumerate(joints):
            if joint.saturates and joint.saturated_share(parts[k]) <= SATURATED_SHARE:
                joints[k] = replace(joint, saturates=False)
                parts[k][DAMPING] = 0.0
        plain = JointFit(self.arm.join(parts, float(self.x[-1])), self.best.shift)
        residual = self.residuals([plain])[0]
        if self._merit(_rms(residual)) < self.merit + LEAST_GAIN:
            self.arm, self.best, self.residual = replace(self.arm, joints=tuple(joints)), plain, residual

    def mix(self, others: Sequence[Array]) -> None:
        """Take each joint from the one of several unknowns with which it errs least, at the delay of the best."""
        points = [self.best, *self._here(others)]
        self._accept(points[1:])
        self._accept([self._mixed(points, float(point.x[-1])) for point in points])

    @property
    def x(self) -> Array:
        """The best unknowns so far."""
        return self.best.x

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

    def residuals(self, points: Sequence[JointFit]) -> Array:
        """Predicted minus measured positions [points, windows, rows, joints], each within a radian."""
        windows, columns, dofs = self.arm.windows, self.arm.columns, self.arm.dofs
        n, per_call = len(windows.q), max(1, WORLD_BATCH // len(windows.q))
        out: list[Array] = []
        for i in range(0, len(points), per_call):
            some = points[i : i + per_call]
            part = [self.arm.settings(point.x) for point in some]
            sim = tuned(self.sim, {name: np.repeat([s[name] for s in part], n) for name in part[0]})
            q, v, past = (np.tile(a, (len(part), *[1] * (a.ndim - 1))) for a in (windows.q, windows.v, windows.past))
            q[:, columns] += np.concatenate([point.shift[0] for point in some])
            v[:, dofs] += np.concatenate([point.shift[1] for point in some])
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
        loaded, explored = self.recoupled(), self.best
        if unfinished:
            explored = explore_joints(loaded, self.best, unfinished, far, seed)
        moved = [fit_joints(loaded, explored)]
        self._accept([*moved, self._mixed([self.best, *moved], float(moved[0].x[-1]))])

    def _mixed(self, points: Sequence[JointFit], delay: float) -> JointFit:
        """Each joint from the point with which it errs least."""
        return self._chosen(points, _rms(self.residuals(points)), delay)

    def _chosen(self, points: Sequence[JointFit], errors: Array, delay: float) -> JointFit:
        """Each joint from the point with its least error [points, joints]."""
        parts, chosen = [self.arm.split(point.x) for point in points], [int(k) for k in np.argmin(errors, axis=0)]
        shift = np.stack([points[k].shift[:, :, j] for j, k in enumerate(chosen)], axis=2)
        return JointFit(self.arm.join([parts[k][j] for j, k in enumerate(chosen)], delay), shift)

    def recoupled(self) -> ArmModel:
        """The joints under the inertia and load of the simulated motion, in windows where it is near the measured."""
        arm, windows, model = self.arm, self.arm.windows, self.arm.scene.model
        world = cast(MujocoWorld, self.sim.tuned(self.settings))
        start_q, start_v = windows.q.copy(), windows.v.copy()
        start_q[:, arm.columns] += self.best.shift[0]
        start_v[:, arm.dofs] += self.best.shift[1]
        state = world.place(start_q, start_v, 0.0, windows.past)
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

    def _take(self, points: Sequence[Array]) -> None:
        """Go to the best of some unknowns, or to each joint's choice among those of one delay, where that is better."""
        tried = self._here(points)
        every, errors = [self.best, *tried], np.concatenate([self.rms[None], _rms(self.residuals(tried))])
        delays = np.array([point.x[-1] for point in every])
        mixed = [self._chosen(every, np.where((delays == d)[:, None], errors, np.inf), d) for d in np.unique(delays)]
        self._accept([every[int(np.argmin(self._merit(errors)))], *mixed])

    def _here(self, points: Sequence[Array] | Array) -> list[JointFit]:
        """Points with the start states of the best."""
        return [JointFit(x, self.best.shift) for x in points]

    def _accept(self, points: Sequence[JointFit]) -> None:
        """Go to the best of some points, where it is better."""
        residuals = self.residuals(points)
        merits = self._merit(_rms(residuals))
        k = int(np.argmin(merits))
        if merits[k] < self.merit:
            self.best, self.residual = points[k], residuals[k]

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
        search = ArmSearch.at(arm, self.sim, x)
        search.mix([arm.start(float(x[-1]))])
        search.improve(progress, COMPARED_ROUNDS)
        return search.settings

    def _refitted(self, found: Fit, seed: int) -> dict[str, float] | None:
        """Settings with joints that a fit left above their noise searched again alone, under its loads; None if none.

        Where a motor is at its limit, derivatives lead astray, and the loads were not known well before.
        """
        noise = dict(zip(self.joint_names, self.arm.noise, strict=True))
        if not any(found.rms.get(name, 0.0) > AT_NOISE * size for name, size in noise.items()):
            return None
        search = ArmSearch.at(self.arm, self.sim, self.arm.unknowns(found.settings))
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
    search = ArmSearch.at(arm, sim, x)
    search.mix([arm.start(float(x[-1]))])
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
    alone = fit_joints(loaded.stiffer(), search.best)
    if _alone(loaded.stiffer(), alone) > _alone(loaded, search.best) - gain:
        return None
    world = sim.tuned(holding_friction([joint.joint for joint in stiffer.joints]))
    held = ArmSearch.at(stiffer, world, alone.x)
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


def _alone(arm: ArmModel, at: JointFit) -> float:
    """Sum of the logarithms of the errors of all joints, each alone."""
    parts = zip(arm.joints, arm.split(at.x), np.moveaxis(at.shift, 2, 0), strict=True)
    return sum(float(np.log(np.sqrt(np.mean(joint.errors(z, shift) ** 2)))) for joint, z, shift in parts)


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


def other_guesses(arm: ArmModel, x: Array) -> list[Array]:
    """Unknowns with gain, armature and friction of the scene in place of those found, at several delays.

    Under loads from a recording a light joint is often taken for a heavy and soft one, or one with more friction, and a
    longer delay for more inertia; no small step leads back.
    """
    choices = product((False, True), (0.0, *SCENE_ARMATURES), (1.0, LESS_FRICTION, 0.0))
    ways = [(delay, choice) for choice in choices for delay in (float(x[-1]), _implied_delay(arm, x))]
    delays = (max(0.0, float(x[-1]) + change) for change in DELAY_CHANGES)
    other = [(delay, (False, 0.0, 1.0)) for delay in delays]
    return [_restarted(arm, x, delay, *choice) for delay, choice in (*ways[1:], *other)]


def _restarted(arm: ArmModel, x: Array, delay: float, own_gain: bool, armature: float, friction: float) -> Array:
    """Unknowns at another delay with the scene's gain, or so much of its armature, or of the friction that was found.

    An armature of zero stays as it was found, and a friction of zero becomes the scene's.
    """
    parts: list[Array] = []
    for joint, found in zip(arm.joints, arm.split(x), strict=True):
        z = joint.at_delay(found, delay)
        values = joint.values(z)
        stiffness = joint.scene_stiffness if own_gain else values.stiffness
        rest = friction * values.friction or joint.given.friction, armature * joint.given.armature or values.armature
        parts.append(joint.restarted(z, stiffness, *rest))
    return arm.join(parts, delay)


def _implied_delay(arm: ArmModel, x: Array) -> float:
    """The delay with which the scene's armatures explain the same lags of first and second order.

    A servo of lag L = d + c/k after a delay d has a lag of second order L^2 - L d + d^2 / 2 - armature / k.
    """
    found: list[float] = []
    for joint, z in zip(arm.joints, arm.split(x), strict=True):
        lag, delay = float(z[LAG]), float(z[DELAY])
        excess = float(np.exp(z[ARMATURE])) - joint.given.armature / float(np.exp(z[GAIN]))
        inner = lag**2 - 2 * (lag * delay - delay**2 / 2 + excess)
        found.append(lag - np.sqrt(max(inner, 0.0)))
    return float(np.clip(np.median(found), 0.0, LONGEST_DELAY))
