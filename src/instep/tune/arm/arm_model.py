"""The model of an arm whose joints are fitted one by one: joints, windows of recordings, and the load of the others.

Each joint is simulated alone, and all joints at the best common delay. If the cost has many minima (saturation,
stick-slip), joints are first searched without derivatives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import cast

import mujoco
import numpy as np
from scipy.signal import savgol_filter

from instep.core.episode import Episode
from instep.core.optimize import CmaSearch, cma_generations
from instep.core.processes import usable_cores
from instep.core.rollout import Aligned, aligned
from instep.core.world import Array, array_dataclass
from instep.physics.engine_model import touching
from instep.scene import address
from instep.scene.folder import Scene, SceneSimulator
from instep.scene.robot_structure import driven_joints
from instep.tune.fit.windows import Tangent, tangent

from .joint_kernels import JointConstants, JointWindows, by_step
from .joint_model import DELAY, FRICTION, LAG, LONGEST_DELAY, OWN, JointModel, JointValues

WINDOW_S = 1.0
"""Length of the windows [s]."""
SKIPPED_S = 0.1
"""Start of each window that does not count [s]."""
MOST_WINDOWS = 30
SMOOTHING_S = 0.06
"""Length over which positions are smoothed, or seven rows where those are longer [s]."""
SATURATED_SHARE = 2e-3
"""Share of the rows with the motor at its limit from which on the joint's own damping is searched."""
FRICTION_STIFFNESS = 0.9999
"""Constraint impedance of dry friction that holds: with MuJoCo's default a loaded joint creeps."""
LEAST_RESOLUTION = 1e-9
"""Smaller differences of positions are no steps of an encoder [rad]."""
USUAL_ERROR = 0.9
"""Share of the rows in which a servo is within the limit of its motor, where the scene's stiffness is not plausible."""
SPREAD = np.array([0.3, 1e-3, 1.0, 0.6, 3e-4, 0.6, 3e-4])
"""Scale of the unknowns of a joint in a search without derivatives."""
GENERATIONS = 100
EXPLORED_WINDOWS = 12
"""Windows of a search without derivatives, of joints far from their noise; the others take all."""
FAR_WIDTH, NEAR_WIDTH = 0.5, 0.15
"""Initial width of such a search, for joints far from their noise and for those near it."""
DELAY_STEP, LAST_DELAY = 5e-3, 0.06
"""Grid of delays that are tried [s]."""
FINE_DELAYS = 9
"""Delays that are tried around the best."""
_ON_JOINT = int(mujoco.mjtTrn.mjTRN_JOINT)
_HINGE, _SLIDE = int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE)
_IMPLICIT = (int(mujoco.mjtIntegrator.mjINT_IMPLICIT), int(mujoco.mjtIntegrator.mjINT_IMPLICITFAST))


@array_dataclass
class ArmWindows:
    """Windows of recordings of a whole arm: smoothed start states, commands, measured positions."""

    q: Array
    """Positions at the starts [windows, nq]."""
    v: Array
    """Velocities at the starts [windows, nv]."""
    past: Array
    """Commands before the starts [windows, memory, nu]."""
    action: Array
    """Commands from the starts on [windows, rows - 1, nu]."""
    measured: Array
    """Measured positions [windows, rows, nq]."""
    skip: int


@array_dataclass
class ArmModel:
    """The joints of an arm that one actuator each drives, and the windows they share."""

    scene: Scene
    joints: tuple[JointModel, ...]
    windows: ArmWindows
    columns: Array
    """Where the joints stand in q."""

    @property
    def dofs(self) -> Array:
        """Where the joints stand in v."""
        model = self.scene.model
        return np.array([int(model.jnt_dofadr[model.joint(joint.joint).id]) for joint in self.joints])

    @property
    def noise(self) -> Array:
        """Noise of the measured positions of each joint [rad]."""
        return np.array([joint.noise for joint in self.joints])

    def split(self, x: Array) -> list[Array]:
        """The unknowns of each joint of those of the arm: those of all joints in turn, then the delay."""
        size = len(OWN)
        return [np.append(x[size * k : size * (k + 1)], x[-1]) for k in range(len(self.joints))]

    def join(self, parts: Sequence[Array], delay: float) -> Array:
        """The unknowns of the arm of those of its joints."""
        return np.concatenate([*(z[: len(OWN)] for z in parts), [delay]])

    def settings(self, x: Array) -> dict[str, float]:
        """Settings of the scene for the unknowns of the arm."""
        out = {address.DELAY: float(x[-1])}
        known = set(address.addresses(self.scene.model))
        for joint, z in zip(self.joints, self.split(x), strict=True):
            values, servo, square = joint.values(z), joint.constants.servo, joint.gear**2
            found = {
                f"joint.{joint.joint}.damping": values.damping,
                f"joint.{joint.joint}.frictionloss": values.friction,
                f"joint.{joint.joint}.armature": values.armature,
                f"actuator.{joint.actuator}.bias": values.offset / joint.gear,
            }
            if servo:
                found[f"actuator.{joint.actuator}.kp"] = values.stiffness / square
                found[f"actuator.{joint.actuator}.kv"] = values.servo_damping / square
            out |= {name: value for name, value in found.items() if name in known}
        return out

    def searched(self, name: str) -> bool:
        """Whether a parameter is fitted: all but a damping that the scene does not have beside the other one.

        Damping of joint and servo act alike unless the motor is at its limit; a prior holds them apart.
        """
        for joint in self.joints:
            servo, own = joint.given.servo_damping, joint.given.damping
            lesser = f"joint.{joint.joint}.damping" if servo >= own else f"actuator.{joint.actuator}.kv"
            if name == lesser:
                return min(servo, own) > 0
        return True

    def start(self, delay: float) -> Array:
        """The unknowns of the scene's own values, at a delay."""
        given = [joint.unknowns(replace(joint.given, delay=delay)) for joint in self.joints]
        return self.join(given, delay)

    def unknowns(self, settings: Mapping[str, float]) -> Array:
        """The unknowns of settings of the scene; where a setting is missing, of the scene's own value."""
        delay = float(settings.get(address.DELAY, self.joints[0].given.delay))
        parts: list[Array] = []
        for joint in self.joints:
            own, square, given = f"joint.{joint.joint}", joint.gear**2, joint.given
            servo = f"actuator.{joint.actuator}"
            found = JointValues(
                settings.get(f"{servo}.kp", given.stiffness / square) * square,
                settings.get(f"{servo}.kv", given.servo_damping / square) * square,
                settings.get(f"{own}.damping", given.damping),
                settings.get(f"{own}.frictionloss", given.friction),
                max(settings.get(f"{own}.armature", given.armature), 1e-9),
                settings.get(f"{servo}.bias", 0.0) * joint.gear,
                delay,
            )
            parts.append(joint.unknowns(found))
        return self.join(parts, delay)

    def with_saturation(self, x: Array, suspected: Sequence[int] = ()) -> ArmModel:
        """The same arm with those joints marked too whose motor reaches its limit at some unknowns, or may do so."""
        joints: list[JointModel] = []
        for k, (joint, z) in enumerate(zip(self.joints, self.split(x), strict=True)):
            may = k in suspected and np.isfinite(joint.constants.high)
            beyond = joint.saturates or bool(may) or joint.saturated_share(z) > SATURATED_SHARE
            joints.append(replace(joint, saturates=beyond))
        return replace(self, joints=tuple(joints))

    def alone(self, x: Array) -> float:
        """Sum of the logarithms of the errors of all joints, each alone."""
        return sum(float(np.log(joint.rms(z))) for joint, z in zip(self.joints, self.split(x), strict=True))

    def some(self, kept: slice) -> ArmModel:
        """The same arm with some of its windows."""
        own = self.windows
        parts = (own.q[kept], own.v[kept], own.past[kept], own.action[kept], own.measured[kept])
        joints = tuple(joint.some(kept) for joint in self.joints)
        return replace(self, joints=joints, windows=ArmWindows(*parts, own.skip))

    def stiffer(self) -> ArmModel:
        """The same arm with dry friction that holds a loaded joint, rather than letting it creep."""
        model = self.scene.model
        joints: list[JointModel] = []
        for joint in self.joints:
            dof = int(model.jnt_dofadr[model.joint(joint.joint).id])
            held = _friction_constants(model, dof, (FRICTION_STIFFNESS, FRICTION_STIFFNESS))
            joints.append(
                replace(joint, constants=joint.constants._replace(friction_gain=held[0], friction_softness=held[1]))
            )
        return replace(self, joints=tuple(joints))


def arm_model(sim: SceneSimulator, episodes: Sequence[Episode]) -> ArmModel | None:
    """The joints of a scene that move in the recordings and that one position servo each drives; None without any.

    None also where the recordings switch motors or gains.
    """
    if any("inputs" in episode for episode in episodes):
        return None
    scene, runs = sim.scene, [aligned(episode, sim) for episode in episodes]
    model, dt = scene.model, sim.spec.dt
    driven = _servo_joints(model, sim.spec.action.labels)
    moves = np.max([np.ptp(run.q, axis=0) for run in runs], axis=0)
    noise = np.median([_noise(run.q) for run in runs], axis=0)
    driven = {j: a for j, a in driven.items() if moves[model.jnt_qposadr[j]] > 10 * noise[model.jnt_qposadr[j]]}
    rows, before = round(WINDOW_S / dt), int(np.ceil(LONGEST_DELAY / dt)) + 2
    starts = [(run, s) for run, one in enumerate(runs) for s in range(max(before, 4), len(one.q) - rows - 4, rows)]
    if driven:
        starts = _free_windows(model, runs, starts, (rows, list(driven)))
    if not driven or len(starts) < 2:
        return None
    form = tangent(sim.spec, episodes[0].spec)
    smooth = [_smoothed_states(run.q, form, dt) for run in runs]
    q, v, a = (np.stack([smooth[r][i][s : s + rows] for r, s in starts]) for i in range(3))
    substeps = round(dt / model.opt.timestep)
    inertia, load = (at_physics_steps(part, substeps) for part in dynamics(model, q, v, a))
    measured = np.stack([runs[r].q[s : s + rows] for r, s in starts])
    commands = np.stack([runs[r].action[s - before : s + rows] for r, s in starts])
    skip = int(np.ceil(SKIPPED_S / dt))
    windows = ArmWindows(
        q[:, 0], v[:, 0], np.stack([runs[r].past[s] for r, s in starts]),
        np.stack([runs[r].action[s : s + rows - 1] for r, s in starts]), measured, skip,
    )  # fmt: skip
    joints: list[JointModel] = []
    for j, (actuator, column) in driven.items():
        dof, at, gear = model.jnt_dofadr[j], model.jnt_qposadr[j], float(model.actuator_gear[actuator, 0])
        command = commands[:, :, column]
        if model.actuator_ctrllimited[actuator]:
            command = np.clip(command, *model.actuator_ctrlrange[actuator])
        own_load = by_step(load[:, :, dof])
        own = JointWindows(
            by_step(command / gear), by_step(inertia[:, :, dof]), own_load, own_load, q[:, 0, at].copy(),
            v[:, 0, dof].copy(),
        )  # fmt: skip
        constants, given = (
            _constants(model, j, actuator, substeps),
            _given(model, j, actuator, float(own.inertia.mean())),
        )
        error = np.abs(own.command[:, -rows:] - q[:, :, at])
        given = _within_limit(given, error, min(constants.high, -constants.low))
        joints.append(
            JointModel(
                str(model.joint(j).name), str(model.actuator(actuator).name), gear, constants, own,
                np.ascontiguousarray(measured[:, :, at]), given, skip, max(float(noise[at]), 1e-7),
            )
        )  # fmt: skip
    return ArmModel(scene, tuple(joints), windows, np.array([int(model.jnt_qposadr[j]) for j in driven]))


def holding_friction(joints: Sequence[str]) -> dict[str, float]:
    """Settings with which dry friction holds a loaded joint, rather than letting it creep."""
    return {f"joint.{joint}.friction_stiffness": FRICTION_STIFFNESS for joint in joints}


def _servo_joints(model: mujoco.MjModel, labels: Sequence[str]) -> dict[int, tuple[int, int]]:
    """Joints that one position servo drives, with the servo and its column among the commands."""
    driven: dict[int, list[int]] = {}
    for a in range(model.nu):
        if int(model.actuator_trntype[a]) == _ON_JOINT:
            driven.setdefault(int(model.actuator_trnid[a, 0]), []).append(a)
    known = set(address.addresses(model))
    out: dict[int, tuple[int, int]] = {}
    for j, actuators in sorted(driven.items()):
        name = str(model.actuator(actuators[0]).name)
        plain = int(model.jnt_type[j]) in (_HINGE, _SLIDE) and int(model.actuator_dyntype[actuators[0]]) == 0
        alone = len(actuators) == 1 and driven_joints(model, actuators[0]) == (str(model.joint(j).name),)
        if alone and plain and f"actuator.{name}.kp" in known and name in labels:
            out[j] = (actuators[0], list(labels).index(name))
    return out


def _constants(model: mujoco.MjModel, j: int, a: int, substeps: int) -> JointConstants:
    dof, gear = int(model.jnt_dofadr[j]), abs(float(model.actuator_gear[a, 0]))
    low, high = -np.inf, np.inf
    if model.actuator_forcelimited[a]:
        low, high = gear * model.actuator_forcerange[a]
    if model.jnt_actfrclimited[j]:
        low, high = max(low, float(model.jnt_actfrcrange[j, 0])), min(high, float(model.jnt_actfrcrange[j, 1]))
    gain, softness = _friction_constants(model, dof, (float(model.dof_solimp[dof, 0]), float(model.dof_solimp[dof, 1])))
    implicit = int(model.opt.integrator) in _IMPLICIT
    return JointConstants(
        float(model.opt.timestep), substeps, float(low), float(high), True, implicit, float(gain), float(softness)
    )


def _friction_constants(model: mujoco.MjModel, dof: int, impedance: tuple[float, float]) -> tuple[float, float]:
    """How fast the constraint of dry friction removes velocity, and its compliance, at an impedance."""
    least, most = impedance
    # A negative time constant holds stiffness and damping themselves.
    time = float(model.dof_solref[dof, 0])
    gain = 2 / (most * time) if time > 0 else -float(model.dof_solref[dof, 1]) / most
    return gain, (1 - least) / least * float(model.dof_invweight0[dof])


def _given(model: mujoco.MjModel, j: int, a: int, inertia: float) -> JointValues:
    """The scene's values; where it has no damping, friction or armature, small ones that a search can start from."""
    dof, square = int(model.jnt_dofadr[j]), float(model.actuator_gear[a, 0]) ** 2
    stiffness = float(model.actuator_gainprm[a, 0]) * square
    servo = max(0.0, -float(model.actuator_biasprm[a, 2]) * square)
    damping, friction = float(model.dof_damping[dof]), float(model.dof_frictionloss[dof])
    if servo + damping < 1e-3 * stiffness:
        servo, damping = 0.0, 1e-3 * stiffness
    if friction <= 0:
        high = float(model.actuator_forcerange[a, 1]) * np.sqrt(square) if model.actuator_forcelimited[a] else 0.0
        friction = 0.01 * high if high > 0 else 0.002 * stiffness
    armature = max(float(model.dof_armature[dof]), 0.01 * inertia + 1e-6)
    delay = float(model.actuator_delay[a])
    return JointValues(stiffness, servo, damping, friction, armature, 0.0, delay)


def _free_windows(
    model: mujoco.MjModel, runs: Sequence[Aligned], starts: list[tuple[int, int]], size: tuple[int, list[int]]
) -> list[tuple[int, int]]:
    """Windows in which the arm touches nothing and no joint is at its limit, evenly thinned; all where those are few.

    The load of a joint in contact is not known before the arm is simulated.
    """
    rows, joints = size
    if len(starts) > 4 * MOST_WINDOWS:
        starts = [starts[i] for i in np.linspace(0, len(starts) - 1, 4 * MOST_WINDOWS).round().astype(int)]
    at = model.jnt_qposadr[joints]
    low, high = np.where(model.jnt_limited[joints], model.jnt_range[joints].T, [[-np.inf], [np.inf]])
    free: list[tuple[int, int]] = []
    for run, s in starts:
        part = runs[run].q[s : s + rows]
        at_limit = bool(((part[:, at] <= low) | (part[:, at] >= high)).any())
        if not at_limit and not touching(model, part[:: max(1, rows // 5)], joints).any():
            free.append((run, s))
    kept = free if len(free) >= min(5, len(starts)) else starts
    if len(kept) <= MOST_WINDOWS:
        return kept
    return [kept[i] for i in np.linspace(0, len(kept) - 1, MOST_WINDOWS).round().astype(int)]


def _noise(q: Array) -> Array:
    """Noise of positions, from their third differences, whose variance is 20 times that of the noise.

    Those of a coarse encoder are mostly zero, so noise is at least the error of rounding to its resolution.
    """
    steps = np.abs(np.diff(q, axis=0))
    resolution = np.where(steps > LEAST_RESOLUTION, steps, np.inf).min(axis=0)
    rounding = np.where(np.isfinite(resolution), resolution, 0.0) / np.sqrt(12)
    return np.maximum(np.median(np.abs(np.diff(q, 3, axis=0)), axis=0) / 0.6745 / np.sqrt(20), rounding)


def _within_limit(given: JointValues, error: Array, limit: float) -> JointValues:
    """The scene's values, softened where with them the motor would be at its limit for most of the recordings.

    A servo that lags behind its command by a tenth of a radian is no stiffer than ten times what its motor can do. From
    a stiffness far above that a search sees a motor that only switches between its limits.
    """
    if given.stiffness * float(np.median(error)) <= limit:
        return given
    softer = limit / float(np.quantile(error, USUAL_ERROR)) / given.stiffness
    return replace(given, stiffness=softer * given.stiffness, servo_damping=softer * given.servo_damping)


def smoothed(q: Array, dt: float) -> tuple[Array, Array, Array]:
    """Smoothed positions, velocities and accelerations of rows [rows, ...]."""
    width = max(7, 2 * round(SMOOTHING_S / dt / 2) + 1)
    parts = [
        savgol_filter(q, width + extra, order, deriv=derivative, delta=dt, axis=0)
        for derivative, order, extra in ((0, 3, 0), (1, 3, 0), (2, 4, 2))
    ]
    return cast(tuple[Array, Array, Array], tuple(parts))


def _smoothed_states(q: Array, form: Tangent, dt: float) -> tuple[Array, Array, Array]:
    """Positions with the plain coordinates smoothed, velocities and accelerations of all coordinates."""
    steps = np.concatenate([np.zeros((1, len(form.labels))), np.cumsum(form.minus(q[1:], q[:-1]), axis=0)])
    smooth, v, a = smoothed(steps, dt)
    moved = q.copy()
    moved[:, form.scalar_q] = q[0, form.scalar_q] + smooth[:, form.scalar_v]
    return moved, v, a


def at_physics_steps(rows: Array, substeps: int) -> Array:
    """Values at rows [windows, rows, ...], interpolated to the physics steps between them."""
    share = (np.arange(substeps) / substeps)[:, None]
    between = rows[:, :-1, None] * (1 - share) + rows[:, 1:, None] * share
    return between.reshape(len(rows), -1, rows.shape[-1])


def dynamics(model: mujoco.MjModel, q: Array, v: Array, a: Array) -> tuple[Array, Array]:
    """The inertia of each degree of freedom without its armature, and the remaining torque of inverse dynamics.

    Springs and gravity compensation count as load; friction, damping, contacts and actuators do not.
    """
    data, nv = mujoco.MjData(model), model.nv
    shape = (*v.shape[:-1], nv)
    inertia, load = np.empty(shape), np.empty(shape)
    full, torque = np.empty((nv, nv)), np.empty(nv)
    for at in np.ndindex(*shape[:-1]):
        data.qpos[:], data.qvel[:], data.qacc[:] = q[at], v[at], a[at]
        for stage in (mujoco.mj_kinematics, mujoco.mj_comPos, mujoco.mj_tendon, mujoco.mj_crb, mujoco.mj_comVel):
            stage(model, data)
        mujoco.mj_passive(model, data)
        mujoco.mj_rne(model, data, 1, torque)
        mujoco.mj_fullM(model, data, full)
        inertia[at] = np.diag(full) - model.dof_armature
        load[at] = torque - inertia[at] * a[at] - data.qfrc_spring - data.qfrc_gravcomp
    return inertia, load


def fit_joints(arm: ArmModel, x: Array) -> Array:
    """The unknowns of an arm, each joint fitted alone from some unknowns, at the best delay near theirs."""
    for width in (DELAY_STEP, DELAY_STEP / (FINE_DELAYS - 1)):
        x = refine_joints(arm, [[z] for z in arm.split(x)], float(x[-1]), width)
    return x


def explore_joints(arm: ArmModel, x: Array, unfinished: Sequence[int], far: Sequence[int], seed: int) -> Array:
    """Some joints searched without derivatives (CMA-ES), each with its own delay; then at the median of their delays.

    Those `far` from their noise are searched over fewer windows and in a wider range.
    """
    parts, thinned = arm.split(x), max(1, len(arm.windows.q) // EXPLORED_WINDOWS)

    def explored(k: int) -> Array:
        every, width = (thinned, FAR_WIDTH) if k in far else (1, NEAR_WIDTH)
        return explore(arm.joints[k].some(slice(None, None, every)), parts[k], seed, width)

    with ThreadPoolExecutor(usable_cores()) as pool:
        found = dict(zip(unfinished, pool.map(explored, unfinished), strict=True))
    delay = float(np.median([z[DELAY] for z in found.values()]))
    moved = [joint.at_delay(found.get(k, z), delay) for k, (joint, z) in enumerate(zip(arm.joints, parts, strict=True))]
    return arm.join(moved, delay)


def explore(joint: JointModel, z: Array, seed: int, width: float = FAR_WIDTH) -> Array:
    """The best unknowns and delay near some, by an evolution strategy that needs no derivatives."""
    free = np.array([*joint.free, DELAY])

    def trials(away: Array) -> Array:
        points = np.tile(z, (len(away), 1))
        points[:, free] += away * SPREAD[free]
        points[:, DELAY] = np.maximum(points[:, DELAY], 0.0)
        points[:, LAG] = np.maximum(points[:, LAG], points[:, DELAY] + 1e-4)
        return points

    best, least = z, float(joint.costs([z])[0])
    search = CmaSearch(spread=width, generations=GENERATIONS, bounded=False, seed=seed)
    for found in cma_generations(lambda away: joint.costs(list(trials(away))), np.zeros(len(free)), search):
        if found.costs[found.best] < least:
            best, least = trials(found.points)[found.best], float(found.costs[found.best])
    return best


def estimate_joints(arm: ArmModel) -> Array:
    """The unknowns of an arm, each joint fitted alone, at the delay that suits all of them best."""
    grid = np.arange(0.0, LAST_DELAY + 1e-9, DELAY_STEP)

    def profile(joint: JointModel) -> tuple[list[Array], Array]:
        return _profile(joint.some(slice(None, None, 3)), grid)  # one window of so many is used for the coarse grid

    with ThreadPoolExecutor(usable_cores()) as pool:
        profiles = list(pool.map(profile, arm.joints))
    best = _best_delay([cost for _, cost in profiles])
    near = range(max(best - 1, 0), min(best + 2, len(grid)))
    starts = [[points[i] for i in near] for points, _ in profiles]
    return refine_joints(arm, starts, float(grid[best]), DELAY_STEP)


def refine_joints(arm: ArmModel, starts: Sequence[Sequence[Array]], middle: float, width: float) -> Array:
    """The unknowns of an arm, each joint fitted alone from the nearest of its starts, at the best delay within `width`.

    A delay between two starts is reached from both: from one alone, those near it would seem better than they are.
    """
    delays = np.unique(np.maximum(0.0, middle + width * np.linspace(-1, 1, FINE_DELAYS)))

    def refine(pair: tuple[JointModel, Sequence[Array]]) -> tuple[list[Array], Array]:
        joint, given = pair
        ended: list[tuple[Array, float]] = []
        for delay in delays:
            nearest = sorted(given, key=lambda z: abs(float(z[DELAY] - delay)))[:2]
            tried = [joint.descend(joint.at_delay(z, float(delay)), iterations=8) for z in nearest]
            ended.append(min(tried, key=lambda found: found[1]))
        return [z for z, _ in ended], np.array([cost for _, cost in ended])

    with ThreadPoolExecutor(usable_cores()) as pool:
        refined = list(pool.map(refine, zip(arm.joints, starts, strict=True)))
    best = _best_delay([cost for _, cost in refined])
    return arm.join([points[best] for points, _ in refined], float(delays[best]))


def _profile(joint: JointModel, grid: Array) -> tuple[list[Array], Array]:
    """The best unknowns and their cost at each delay, from a regression, the delay before, and the scene's values."""
    points: list[Array] = []
    costs = np.empty(len(grid))
    for i, delay in enumerate(grid):
        direct = regress(joint, float(delay))
        own = joint.at_delay(joint.unknowns(joint.given), float(delay))
        own[FRICTION] = direct[FRICTION]
        tried = [direct, own, *([joint.at_delay(points[-1], float(delay))] if points else [])]
        ended: list[tuple[Array, float]] = []
        for z in tried:
            z, _ = joint.descend(z, (LAG, FRICTION), 3)
            ended.append(joint.descend(z, iterations=6))
        best = min(ended, key=lambda pair: pair[1])
        points.append(best[0])
        costs[i] = best[1]
    return points, costs


def _best_delay(costs: Sequence[Array]) -> int:
    """The delay with the least cost over all joints, each joint counting by its relative rise over its own best."""
    return int(np.argmin(np.sum([np.log(cost / cost.min()) for cost in costs], axis=0)))


def regress(joint: JointModel, delay: float) -> Array:
    """Unknowns of a joint by linear regression of its tracking error on velocity, its sign, acceleration and torque."""
    windows, period, given = joint.windows, joint.constants.step * joint.constants.substeps, joint.given
    rows = joint.measured.shape[1]
    before = windows.command.shape[1] - rows
    late = delay / period
    at = [min(max(math.floor(row - late), 0), before + rows - 1) for row in range(before, before + rows)]
    q, v, a = smoothed(joint.measured.T, period)
    speed = max(0.05 * float(v.std()), 3e-4 / period, 1e-9)
    inner, every = slice(4, -4), joint.constants.substeps
    inertia, load = (np.append(part[:, ::every], part[:, -1:], axis=1).T for part in (windows.inertia, windows.load))
    columns = (v, np.tanh(v / speed), a, inertia * a + load, np.ones_like(v))
    x = np.stack([column[inner].ravel() for column in columns], axis=1)
    y = (windows.command[:, at].T - q)[inner].ravel()
    scale = max(3 * joint.noise, 1e-6)
    normal, right = x.T @ x / scale**2, x.T @ y / scale**2
    spread, armature = given.stiffness / 0.4, given.armature / given.stiffness
    for i, value, weight in (
        (3, 1 / given.stiffness, spread**2), (2, armature, armature**-2.0), (4, 0.0, 0.01**-2.0), (1, 0.0, 1.0),
    ):  # fmt: skip
        normal[i, i] += weight
        right[i] += weight * value
    normal += 1e-9 * np.diag(np.diag(normal))
    found = np.linalg.solve(normal, right)
    stiffness = 1 / float(np.clip(found[3], 0.4 / given.stiffness, 2.5 / given.stiffness))
    return joint.unknowns(
        JointValues(
            stiffness, stiffness * max(float(found[0]), 2e-4), 0.0, stiffness * float(np.clip(found[1], 1e-6, 0.5)),
            stiffness * float(np.clip(found[2], 0.3 * armature, 5 * armature)), -stiffness * float(found[4]), delay,
        )
    )  # fmt: skip
