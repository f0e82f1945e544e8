"""Search over the parameters of a whole arm: Gauss-Newton on the coupled simulation, joints restarted one by one.

Each joint's unknowns move its own motion most, so derivatives are taken for all joints at once, and each joint takes
the step length that suits it. A joint that stays above its noise is fitted again alone, to what was measured minus what
the joint alone gets wrong about the arm, from several starts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from instep.core.episode import Episode
from instep.core.param import Param
from instep.core.progress import Progress
from instep.core.records import array_dataclass
from instep.core.replay import rollout_positions
from instep.core.world import Array, Simulator
from instep.physics.mujoco_world import MujocoWorld
from instep.scene.folder import SceneSimulator

from .joint_estimates import (
    DELAY_STEP,
    ArmModel,
    arm_model,
    dynamics,
    estimate_joints,
    holding_friction,
    refine_joints,
)
from .joint_model import (
    LAG,
    LARGEST_STEP,
    OWN,
    PRIOR_ARMATURE,
    PRIOR_DAMPING,
    PRIOR_FRICTION,
    PRIOR_GAIN,
    STEPS,
    JointModel,
)
from .shooting import Fit, ShootingOptions, fit
from .windows import WORLD_BATCH, tuned

WIDTHS = (3e-3, 3e-3, 1.5e-3, 1.5e-3, 0.8e-3)
"""How far from the best delay others are tried, round by round [s]."""
NOISE_SHARE = 0.8
"""Residuals below this share of the noise are no better."""
AT_NOISE = 1.12
"""Residual over noise up to which a joint counts as fitted."""
DAMPINGS = np.array([0.03, 0.3, 3.0, 30.0, 300.0, 3000.0])
FAR = 0.1
"""Largest error in a window up to which the simulated motion tells the load of each joint [rad]."""
LARGEST_DELAY_STEP = 0.006
FINAL_ITERATIONS = 8
"""Most iterations of the fit that follows a search."""
START_SPREAD = np.array([0.2, 5e-3, 1.0, 0.5, 1e-3, 0.0])
START_DELAY = 4e-3
"""How far from the best other searches begin: unknowns of a joint, and the delay [s]."""
HOLDING_GAIN = 0.02
"""Relative fall of the error from which on dry friction is taken to hold."""
LARGEST_STEPS = np.minimum(LARGEST_STEP[: len(OWN)], [0.7, 0.02, 1.0, 1.0, 0.01, 0.7])


@dataclass(slots=True, eq=False)
class ArmSearch:
    """The coupled simulation of an arm over its windows, and the best unknowns so far."""

    arm: ArmModel
    sim: Simulator
    x: Array
    residual: Array
    """Predicted minus measured [windows, rows, joints] at the best unknowns."""
    worlds: int = 0
    """Windows simulated so far."""

    @classmethod
    def at(cls, arm: ArmModel, sim: Simulator, x: Array) -> ArmSearch:
        """A search that begins at some unknowns."""
        search = cls(arm, sim, x, np.empty(0))
        search.residual = search.residuals(x[None])[0]
        return search

    def improve(self, progress: Progress, rounds: int = len(WIDTHS)) -> None:
        """Refit joints and descend in turns, until every joint is at its noise, nothing improves, or time ends."""
        for i in range(rounds):
            progress.advance("coupled search", i / rounds)
            before, bad = self.merit, self.unfinished()
            self.descend(3 if bad else 2, proceed=lambda: not progress.ended)
            if not bad or progress.ended:
                return
            self.refit(WIDTHS[i])
            if i and before - self.merit < 0.02 * len(bad):
                return

    def mix(self, others: Sequence[Array]) -> None:
        """Take each joint from the one of several unknowns with which it errs least, at the delay of the best."""
        points = np.stack([self.x, *others])
        errors = _rms(self.residuals(points))
        parts = [self.arm.split(points[int(k)])[j] for j, k in enumerate(np.argmin(errors, axis=0))]
        for point in others:
            self._accept(point)
        for delay in {float(point[-1]) for point in points}:
            self._accept(self.arm.join(parts, delay))

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
        return [int(k) for k in np.flatnonzero(self.rms > AT_NOISE * self.arm.noise)]

    def residuals(self, points: Array) -> Array:
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
            self.worlds += len(part) * n
        return np.concatenate(out)

    def descend(self, iterations: int, tolerance: float = 3e-3, proceed: Callable[[], bool] = lambda: True) -> None:
        """Gauss-Newton steps until the merit falls by less than `tolerance`, at long and then at short differences."""
        damping, shorter = 1e-3, 1.0
        for _ in range(iterations):
            if not proceed():
                return
            before = self.merit
            trials, dampings = self._trials(damping, shorter)
            damping = self._take(trials, dampings)
            if before - self.merit < tolerance:
                if shorter < 0.1:
                    return
                shorter, damping = shorter / 5, 1e-3

    def refit(self, width: float, *, other_starts: bool = True) -> None:
        """Fit every joint alone again, under the load of the coupled arm as it is simulated now.

        At the true values the load is the true one, whatever the noise of the recording; with `other_starts`, joints
        that are above their noise also start from other values.
        """
        again = self.unfinished() if other_starts else ()
        moved = refine_joints(self._recoupled(), self.x, width, again=again)
        before, after = self.arm.split(self.x), self.arm.split(moved)
        errors = _rms(self.residuals(np.stack([self.x, moved])))
        mixed = [b if errors[1, k] < errors[0, k] else a for k, (a, b) in enumerate(zip(before, after, strict=True))]
        for x in (moved, self.arm.join(mixed, float(moved[-1])), self.arm.join(mixed, float(self.x[-1]))):
            self._accept(x)

    def _recoupled(self) -> ArmModel:
        """The joints under the inertia and load of the simulated motion, in windows where it is near the measured."""
        arm, windows, model = self.arm, self.arm.windows, self.arm.scene.model
        world = cast(MujocoWorld, self.sim.tuned(self.settings))
        state = world.place(windows.q, windows.v, 0.0, windows.past)
        found = world.physics_steps(state, np.moveaxis(windows.action, 1, 0))
        near = np.isfinite(found.v).all(axis=(1, 2)) & (np.abs(self.residual).max(axis=(1, 2)) < FAR)
        if not near.any():
            return arm
        q, v = found.q[near, :-1], found.v[near, :-1]
        inertia, held = dynamics(model, q, v, found.acceleration[near])
        _, load = dynamics(model, q, v, np.diff(found.v[near], axis=1) / model.opt.timestep)
        joints: list[JointModel] = []
        for joint, z in zip(arm.joints, arm.split(self.x), strict=True):
            dof = int(model.jnt_dofadr[model.joint(joint.joint).id])
            own, friction = joint.constants, joint.values(z).friction
            # Dry friction leaves an acceleration proportional to its torque, unless it slips.
            away = found.acceleration[near, :, dof] + own.friction_gain * v[..., dof]
            dry = np.clip(-away / max(own.friction_softness, 1e-12), -friction, friction)
            other = found.constraint[near, :, dof] - dry
            parts = (inertia[..., dof], load[..., dof] - other, held[..., dof] - other)
            joints.append(joint.loaded(near, *parts))
        return replace(arm, joints=tuple(joints))

    def _trials(self, damping: float, shorter: float) -> tuple[Array, Array]:
        """Steps at several dampings."""
        arm, size, joints = self.arm, len(OWN), len(self.arm.joints)
        steps = np.concatenate([np.tile(STEPS[:size], joints), STEPS[-1:]]) * shorter
        scale = np.maximum(self.rms, 0.5 * arm.noise)
        moved = np.repeat(self.x[None], size + 1, axis=0)
        for i in range(size):
            moved[i, i : size * joints : size] += steps[i]
        moved[size, -1] += steps[-1]
        change = (self.residuals(moved) - self.residual) / scale
        rows = self.residual[..., 0].size
        jacobian = np.zeros((len(self.x), rows, joints))
        for k in range(joints):
            for i in arm.joints[k].free:
                jacobian[size * k + i, :, k] = change[i, :, :, k].ravel() / steps[i]
        jacobian[-1] = change[size].reshape(rows, joints) / steps[-1]
        flat = jacobian.reshape(len(self.x), -1)
        centre = arm.start(float(self.x[-1]))
        weak = np.tile([PRIOR_GAIN, 9.0, PRIOR_FRICTION, PRIOR_ARMATURE, 0.1, PRIOR_DAMPING], joints)
        weight = 0.1 * np.append(weak, 0.1) ** -2.0
        normal = flat @ flat.T + np.diag(weight + 1e-3 / steps**2)
        gradient = flat @ (self.residual / scale).ravel() + weight * (self.x - centre)
        largest = np.append(np.tile(LARGEST_STEPS, joints), LARGEST_DELAY_STEP)
        dampings = damping * DAMPINGS
        found: list[Array] = []
        for d in cast(list[float], dampings.tolist()):
            step: Array = -np.linalg.solve(normal + d * np.diag(np.diag(normal)), gradient)
            found.append(np.clip(step, -largest, largest))
        points = self.x + np.stack(found)
        points[:, -1] = np.clip(points[:, -1], 0.0, 0.12)
        return points, dampings

    def _take(self, points: Array, dampings: Array) -> float:
        """Take the best step, or each joint's own best step, and return the damping for the next."""
        errors, now = _rms(self.residuals(points)), self.rms
        best = int(np.argmin(self._merit(errors)))
        parts = self.arm.split(self.x)
        for k in range(len(parts)):
            own = int(np.argmin(errors[:, k]))
            if errors[own, k] <= now[k]:
                parts[k] = self.arm.split(points[own])[k]
        mixed = [self.arm.join(parts, float(delay)) for delay in (points[best][-1], self.x[-1])]
        tried = np.stack([points[best], *mixed])
        residuals = self.residuals(tried)
        merits = self._merit(_rms(residuals))
        k = int(np.argmin(merits))
        if merits[k] < self.merit:
            self.x, self.residual = tried[k], residuals[k]
        return float(np.clip(dampings[best], 1e-6, 1e2))

    def _accept(self, x: Array) -> None:
        residual = self.residuals(x[None])[0]
        if self._merit(_rms(residual)) < self.merit:
            self.x, self.residual = x, residual

    def _merit(self, errors: Array) -> Array:
        return np.log(np.maximum(errors, NOISE_SHARE * self.arm.noise)).sum(axis=-1)


def _rms(residual: Array) -> Array:
    return np.sqrt(np.mean(residual**2, axis=(-3, -2)))


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
        """A search from the options' start, or, where that is random, from the scene's values or from elsewhere."""
        options, progress = options or ShootingOptions(), progress or Progress()
        options = replace(options, iterations=min(options.iterations, FINAL_ITERATIONS))
        if not options.random_starts:
            return fit(sim, episodes, params, options, progress=progress)
        search = ArmSearch.at(self.arm, self.sim, self._start(options.seed))
        search.refit(DELAY_STEP, other_starts=False)
        search.improve(progress.part(0.0, 0.5, of_time_left=0.5), rounds=3)
        names, found = {param.address for param in params}, search.settings
        begun = {**options.start, **{name: value for name, value in found.items() if name in names}}
        settled = replace(options, start=begun, random_starts=False)
        return fit(sim, episodes, params, settled, progress=progress.part(0.5, 1.0))

    def _start(self, seed: int) -> Array:
        """The scene's own values for the first seed, values away from the best for all others."""
        delay = float(self.x[-1])
        if seed % 2:
            return self.arm.start(max(0.0, delay + START_DELAY * (-1.0 if seed % 4 == 1 else 1.0)))
        rng = np.random.default_rng((seed, 0xA4))
        away = np.append(np.tile(START_SPREAD, len(self.arm.joints)), START_DELAY) * rng.uniform(-1, 1, len(self.x))
        x = self.x + away
        x[-1] = max(0.0, x[-1])
        lag = slice(LAG, len(x) - 1, len(OWN))
        x[lag] = np.maximum(x[lag], x[-1] + 1e-3)
        return x


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
    progress.advance("direct estimates", 0.3)
    held = arm.stiffer()
    y = refine_joints(held, x, DELAY_STEP)
    holding = _alone(held, y) < _alone(arm, x) - HOLDING_GAIN * len(arm.joints)
    world: Simulator = sim
    if holding:
        arm, x = held, y
        world = sim.tuned(holding_friction([joint.joint for joint in arm.joints]))
    search = ArmSearch.at(arm, world, x)
    search.mix([arm.start(float(x[-1]))])
    search.improve(progress.part(0.4, 1.0))
    return ArmEstimate(arm, world, search.x, search.rms, holding)


def _alone(arm: ArmModel, x: Array) -> float:
    """Sum of the logarithms of the errors of all joints, each alone."""
    return sum(float(np.log(joint.rms(z))) for joint, z in zip(arm.joints, arm.split(x), strict=True))
