"""Direct estimates of arms that motors drive by torques, and searches over their coupled motion.

In the inverse dynamics of a joint that a motor drives,

    gear * gain * u(t - delay) = I(q, v, a) + armature * a + damping * v + friction * sign(v),

everything is linear in the unknowns once the delay is known, and the delay is scanned. These values start a search over
the motion of the whole arm, in which each motor moves all joints and nothing pulls a joint back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import mujoco
import numpy as np
from scipy.optimize import lsq_linear
from scipy.signal import savgol_filter

from instep.core.episode import Episode
from instep.core.param import Param
from instep.core.progress import Progress
from instep.core.rollout import Aligned, aligned
from instep.core.world import Array, Simulator, array_dataclass
from instep.scene import address
from instep.scene.folder import Scene, SceneSimulator
from instep.scene.robot_structure import driven_joints, driving_actuators
from instep.tune.fit.sensitivities import motion_is_linearisable, sensitivities
from instep.tune.fit.shooting import Fit, ShootingOptions, fit
from instep.tune.fit.windows import Shooter, cut_windows
from instep.tune.param_selection import ParamSelection

from .arm_model import ArmModel, arm_model, dynamics, estimate_joints, holding_friction

SMOOTHING_S = 0.06
"""Length over which positions and torques are smoothed, or seven rows where those are longer [s]."""
DELAYS = np.arange(0.0, 0.0601, 0.002)
"""Delays that are tried [s]."""
FACTORS = {"gain": (0.3, 3.0), "damping": (0.05, 20.0), "armature": (0.05, 20.0)}
"""How far from the scene's values a regression may go."""
SHORT_WINDOW, FEW_WINDOWS = 0.4, 24
"""Length [s] and number of the windows with which a search begins that starts far away."""
BRIEF_ITERATIONS = 12
"""Most iterations of a search over few windows."""
LONGEST_WINDOW, SHORTEST_WINDOW = 5.0, 1.0
"""Lengths between which the windows of searches are chosen [s]."""
LEAST_WINDOWS = 6
"""Least number of windows of a search, where recordings have so many."""
MAX_START_ERROR = 0.03
"""Largest error that the noise of a start state may grow to within a window [rad or m]."""
HOLDING_GAIN = 0.02
"""Relative fall of the error from which on dry friction is taken to hold."""
START_SPREAD = 0.35
"""Deviation of the logarithms of values, and START_DELAY [s] of the delay, from the best, where searches begin."""
START_DELAY = 4e-3
_ON_JOINT, _NO_DYNAMICS = int(mujoco.mjtTrn.mjTRN_JOINT), int(mujoco.mjtDyn.mjDYN_NONE)
_PLAIN = (int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE))


@array_dataclass
class MotorEstimate:
    """Parameters of an arm with motors, by regression and a brief coupled search, and searches from elsewhere."""

    settings: Mapping[str, float]
    """The best settings so far."""
    scene_values: Mapping[str, float]
    """The scene's values of the same parameters."""
    joint_names: tuple[str, ...]
    """The joints that move."""
    holding: bool
    """Whether the recordings show dry friction that holds a loaded joint rather than letting it creep."""
    window: float
    """Length of the windows of searches [s]."""
    servos: ArmModel | None = None
    """The joints that servos drive, where there are any."""

    @property
    def friction_stiffness(self) -> dict[str, float]:
        """Settings of how dry friction holds, where it differs from the scene."""
        return holding_friction(self.joint_names) if self.holding else {}

    def free(self, name: str) -> bool:
        """Whether a parameter is searched; of a servo's damping and its joint's, only one may be."""
        return self.servos is None or self.servos.searched(name)

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
        options, progress = linearised(options or ShootingOptions()), progress or Progress()
        # Windows of this length, over as much motion as before.
        limit = options.limit and max(LEAST_WINDOWS, round(options.limit * options.window / self.window))
        options = replace(options, window=self.window, limit=limit)
        if not options.random_guesses:
            return fit(sim, episodes, params, options, progress=progress)
        start = self._start(params, options.seed)
        options = replace(options, initial=start, random_guesses=False)
        brief = fit(sim, episodes, params, short_windows(options), progress=progress.part(0.0, 0.4, of_time_left=0.4))
        options = replace(options, initial=brief.settings)
        return fit(sim, episodes, params, options, progress=progress.part(0.4, 1.0))

    def _start(self, params: Sequence[Param], seed: int) -> dict[str, float]:
        """The scene's own values for odd seeds, values away from the best for others."""
        rng, start = np.random.default_rng((seed, 0x307)), dict[str, float]()
        for param in params:
            name, best = param.address, self.settings[param.address]
            if seed % 2:
                start[name] = self.scene_values[name]
            elif name == address.DELAY:
                start[name] = best + START_DELAY * rng.uniform(-1, 1)
            elif param.log:
                start[name] = best * float(np.exp(START_SPREAD * rng.uniform(-1, 1)))
            else:
                start[name] = best
            start[name] = float(np.clip(start[name], param.low, param.high))
        return start


def estimate_motors(
    sim: SceneSimulator,
    episodes: Sequence[Episode],
    selection: ParamSelection,
    progress: Progress,
    *,
    window: float | None = None,
) -> MotorEstimate | None:
    """Parameters of an arm of which motors drive some joints, from its recordings alone; None for other robots.

    All joints that move must be driven, by motors or servos: a pendulum on a motor is no arm. `window` is the length
    of the windows of searches [s]; where None, as long as the motion stays predictable.
    """
    motors = motor_joints(sim.scene, sim.spec.action.labels)
    names = sim.scene.model.actuator
    motors = {joint: a for joint, a in motors.items() if f"actuator.{names(a).name}.gear" in selection.initial}
    if not motors or not motion_is_linearisable(sim) or any("inputs" in episode for episode in episodes):
        return None
    progress.advance("direct estimates", 0.0)
    servos = arm_model(sim, episodes)
    driven = {*motors, *(joint.joint for joint in (servos.joints if servos else ()))}
    if not {param.parts.name for param in selection.params if param.parts.kind == "joint"} <= driven:
        return None
    params = [p for p in selection.params if servos is None or servos.searched(p.address)]
    given = {param.address: selection.initial[param.address] for param in params}
    found = {} if servos is None else servos.settings(estimate_joints(servos))
    found |= regress_motors(sim, [aligned(episode, sim) for episode in episodes], motors)
    found = {name: value for name, value in found.items() if name in given}
    joints = tuple(dict.fromkeys(p.parts.name for p in params if p.address.endswith(".frictionloss")))
    options = short_windows(linearised(ShootingOptions(initial={**given, **found}, guesses=1)))
    fits: list[Fit] = []
    for i, world in enumerate((sim, sim.tuned(holding_friction(joints)))):
        part = progress.part(0.2 + 0.4 * i, 0.6 + 0.4 * i, of_time_left=0.5 + 0.5 * i)
        part.advance("direct estimates", 0.0)
        options = replace(options, initial=fits[-1].settings) if fits else options
        fits.append(fit(world, episodes, params, options, progress=part))
    holding = _error(fits[1]) < _error(fits[0]) - HOLDING_GAIN * len(joints)
    best = fits[int(holding)]
    window = predictable_window(best, episodes) if window is None else window
    return MotorEstimate(best.settings, given, joints, holding, window, servos)


def predictable_window(found: Fit, episodes: Sequence[Episode]) -> float:
    """The longest windows that divide the runs and in which the noise of a start state stays small [s]; at least 1 s.

    Nothing pulls back a joint that a motor drives, so long windows say most about it; yet where errors of the start
    grow, the motion after a while says nothing more.
    """
    sim, dt = found.problem.shooter.sim, found.problem.shooter.sim.spec.dt
    skip = round(max((param.high for param in found.params if param.parts.field == "delay"), default=0.0) / dt)
    rows = int(np.median([len(episode) for episode in episodes])) - 1 - skip
    for parts in range(max(1, round(rows * dt / LONGEST_WINDOW)), max(2, round(rows * dt / SHORTEST_WINDOW))):
        span = rows // parts
        windows = cut_windows(sim, episodes, span=span, skip=skip, limit=LEAST_WINDOWS)
        shooter = Shooter(sim, windows, found.params)
        shifts = np.zeros((len(windows), 2 * windows.v.shape[-1]))
        growth = sensitivities(shooter, found.x, shifts).starts
        noise = np.concatenate([windows.noise_q, windows.noise_v])[:, None, None, None]
        if float(np.sqrt(((noise * growth) ** 2).sum(axis=0)).max()) < MAX_START_ERROR:
            return span * dt
    return SHORTEST_WINDOW


def linearised(options: ShootingOptions) -> ShootingOptions:
    """The options with derivatives from linearised equations of motion."""
    return replace(options, linearised=True, local=False)


def short_windows(options: ShootingOptions) -> ShootingOptions:
    """The options with few short windows, in which far start values lead less far away."""
    window, limit = min(options.window, SHORT_WINDOW), min(options.limit or FEW_WINDOWS, FEW_WINDOWS)
    return replace(options, window=window, limit=limit, iterations=min(options.iterations, BRIEF_ITERATIONS))


def motor_joints(scene: Scene, labels: Sequence[str]) -> dict[str, int]:
    """The joints that one motor drives by a torque, and these motors."""
    model, out = scene.model, dict[str, int]()
    for a in range(model.nu):
        joint, name = int(model.actuator_trnid[a, 0]), str(model.actuator(a).name)
        if int(model.actuator_trntype[a]) != _ON_JOINT or name not in labels or model.actuator_biasprm[a, 1:3].any():
            continue
        plain = int(model.jnt_type[joint]) in _PLAIN and int(model.actuator_dyntype[a]) == _NO_DYNAMICS
        moved = str(model.joint(joint).name)
        if plain and driven_joints(model, a) == (moved,) and driving_actuators(model, moved) == (name,):
            out[moved] = a
    return out


def regress_motors(sim: SceneSimulator, runs: Sequence[Aligned], motors: Mapping[str, int]) -> dict[str, float]:
    """Gear, damping, dry friction and armature of joints with motors, and the delay, by linear regression.

    Positions, velocities, accelerations and torques go through the same filter, so that smoothing does not bias them.
    """
    model, dt = sim.scene.model, sim.spec.dt
    width = max(7, 2 * round(SMOOTHING_S / dt / 2) + 1)
    inner, memory = slice(width, -width), runs[0].past.shape[1]
    q, v, a = (
        np.concatenate([savgol_filter(r.q, width, order, deriv=d, delta=dt, axis=0)[inner] for r in runs])
        for d, order in ((0, 3), (1, 3), (2, 4))
    )
    inertia, load = dynamics(model, q, v, a)
    torque = inertia * a + load
    commands = [np.concatenate([r.past[0], r.action[:, : model.nu]]) for r in runs]
    columns = list(sim.spec.action.labels)
    found: list[tuple[float, dict[str, float]]] = []
    for delay in DELAYS:
        cost, values = 0.0, {address.DELAY: float(delay)}
        for joint, actuator in motors.items():
            column = columns.index(str(model.actuator(actuator).name))
            driven = [_applied(model, actuator, c[:, column], memory, delay / dt) for c in commands]
            drive = np.concatenate([savgol_filter(u, width, 3)[inner] for u in driven])
            dof = int(model.joint(joint).dofadr[0])
            own, error = _regressed(model, (joint, actuator), (drive, v[:, dof], a[:, dof]), torque[:, dof])
            values |= own
            cost += np.log(max(error, 1e-300))
        found.append((cost, values))
    return min(found, key=lambda pair: pair[0])[1]


def _applied(model: mujoco.MjModel, actuator: int, commands: Array, memory: int, late: float) -> Array:
    """Force of a motor at each row, per unit of its gear: the mean over a row of delayed commands that are held."""
    if model.actuator_ctrllimited[actuator]:
        commands = np.clip(commands, *model.actuator_ctrlrange[actuator])
    at = np.arange(memory, len(commands)) - 0.5 - late
    force = float(model.actuator_gainprm[actuator, 0]) * np.interp(at, np.arange(len(commands)), commands)
    low, high = model.actuator_forcerange[actuator] if model.actuator_forcelimited[actuator] else (-np.inf, np.inf)
    return np.clip(force, low, high)


def _regressed(
    model: mujoco.MjModel, names: tuple[str, int], motion: tuple[Array, Array, Array], torque: Array
) -> tuple[dict[str, float], float]:
    """Values of one joint and its motor from force, velocity, acceleration and torque, and the error that is left."""
    joint, actuator = names
    drive, v, a = motion
    dof, gear = int(model.joint(joint).dofadr[0]), float(model.actuator_gear[actuator, 0])
    inertia = float(model.dof_M0[dof])
    damping, armature = float(model.dof_damping[dof]) or inertia, float(model.dof_armature[dof]) or 0.1 * inertia
    # Where a joint reverses, the sign of dry friction is unsure.
    moving = np.abs(v) > 0.15 * float(v.std())  # share of a joint's usual speed below which it counts as reversing
    columns = np.stack([gear * drive, -damping * v, -armature * a, -np.sign(v)], axis=1)[moving]
    low = [FACTORS[name][0] for name in ("gain", "damping", "armature")]
    high = [FACTORS[name][1] for name in ("gain", "damping", "armature")]
    found = lsq_linear(columns, torque[moving], ([*low, 0.0], [*high, np.inf]))
    values = {
        f"actuator.{model.actuator(actuator).name}.gear": gear * float(found.x[0]),
        f"joint.{joint}.damping": float(damping * found.x[1]),
        f"joint.{joint}.armature": float(armature * found.x[2]),
        f"joint.{joint}.frictionloss": float(found.x[3]),
    }
    return values, float(found.cost)


def _error(found: Fit) -> float:
    """Sum of the logarithms of the errors of all coordinates."""
    return float(np.log(np.maximum(list(found.rms.values()), 1e-12)).sum())
