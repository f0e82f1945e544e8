"""Windows of a running robot: parameters to estimate, windows of samples, their prediction, and a check of the scene.

Re-identification follows parameters that are nearly right. If gains, inertia or delay are far from the robot's, the
errors of the first windows look like noise, and the first unusual motion like a sudden change. So the scene is compared
with joints that keep their speed: a scene that predicts half of them hardly better does not describe the robot.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import mujoco
import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.param import Param
from instep.core.rollout import MEMORY, rollout_positions
from instep.core.world import Array, Spec, frozen_dataclass
from instep.physics.engines import open_world
from instep.scene import address
from instep.scene.folder import Scene, SceneSimulator
from instep.scene.robot_structure import driving_actuators, without_free_bodies
from instep.tune.fit.windows import Tangent, Windows, tangent, tuned
from instep.tune.param_selection import Bounds, ParamSelection, named_params

from .parameter_filter import Nuisance, WindowEvidence

FIXED_FIELDS = ("delay", "timestep")
"""Fields that cannot change while a world runs: its memory depends on them."""
AUTO = ("auto",)
DELAY_SPREAD, DELAY_DRIFT, DELAY_RANGE = 0.002, 2e-5, 0.02
"""How well an identification knows the delay of commands, how far it drifts in a second, and may be off at most [s]."""
DAMPING_SPREAD, SERVO_SPREAD = 0.1, 0.03
"""How well it knows damping and inertia, as a share of those of a joint, and damping, of that of its servo."""
SERVO_LAG = 0.001
"""How well it knows the lag of a servo [s]: times its damping it acts as inertia of the joint."""
NUISANCE_DRIFT = 0.02
"""How far damping and inertia drift in a second, as a share of that."""
_HINGE_OR_SLIDE = (int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE))


def online_params(scene: Scene, patterns: Sequence[str] = AUTO, bounds: Bounds | None = None) -> ParamSelection:
    """The parameters that match some patterns; `auto` is the mass that the last link carries and the dry friction of
    driven joints, or their damping if the scene has no dry friction.

    Masses are searched on a linear scale, up to ten times the scene's: a payload adds to them.
    """
    bounds = bounds or {}
    names = automatic_addresses(scene) if tuple(patterns) == AUTO else list(patterns)
    found = named_params(scene, names, bounds)
    for param in found.params:
        if param.parts.field in FIXED_FIELDS:
            raise BadInput(f"{param.address!r} cannot change while a world runs; identify it with instep tune.")
    params = tuple(replace(p, log=False) if p.parts.field == "mass" else p for p in found.params)
    return replace(found, params=params)


def automatic_addresses(scene: Scene) -> list[str]:
    """What `auto` stands for in a scene."""
    model = scene.model
    driven = [
        joint
        for joint in scene.robot
        if (mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_JOINT, joint) >= 0) and driving_actuators(model, joint)
    ]
    if not driven:
        raise BadInput(f"Scene {scene.name!r} has no driven joints; name the parameters to re-identify.")
    last = int(model.site(scene.tips[0]).bodyid[0]) if scene.tips else int(model.joint(driven[-1]).bodyid[0])
    mass = [f"body.{model.body(last).name}.mass"] if model.body_mass[last] > 0 else []
    values = address.read(model, [f"joint.{joint}.frictionloss" for joint in driven])
    dry = [name for name, value in values.items() if value > 0]
    return [*mass, *(dry or [f"joint.{joint}.damping" for joint in driven])]


def nuisances(world: SceneSimulator, params: Sequence[Param]) -> list[Nuisance]:
    """What an identification leaves uncertain and what looks like a drift of the parameters: the delay of commands, and
    damping and inertia of driven joints with those of their servos."""
    model, asked = world.model, {p.address for p in params}
    if not model.nu:
        return []
    found = [] if any(name.endswith(".delay") for name in asked) else [_delay(model)]
    for joint in range(model.njnt):
        name = f"joint.{model.joint(joint).name}.damping"
        servos = [a for a in range(model.nu) if _drives(model, a, joint)]
        if not servos or name in asked:
            continue
        damping, own = address.read(model, [name])[name], 0.0
        for a in servos:
            own += max(-float(model.actuator_biasprm[a, 2]), 0.0) * float(model.actuator_gear[a, 0]) ** 2
        found += _uncertain(model, name, DAMPING_SPREAD * damping + SERVO_SPREAD * own)
        inertia = f"joint.{model.joint(joint).name}.armature"
        if inertia not in asked:
            armature = address.read(model, [inertia])[inertia]
            found += _uncertain(model, inertia, DAMPING_SPREAD * armature + SERVO_LAG * own)
    return found


def _uncertain(model: mujoco.MjModel, name: str, spread: float) -> list[Nuisance]:
    """A parameter that is not below 0 and known to a spread; none if that is 0."""
    if spread <= 0:
        return []
    value, [listed] = address.read(model, [name])[name], address.params(model, [name])
    param = Param(name, 0.0, 2 * value + 10 * spread, False, listed.unit)
    return [Nuisance(param, value, spread, NUISANCE_DRIFT * spread)]


def _delay(model: mujoco.MjModel) -> Nuisance:
    now = address.read(model, [address.DELAY])[address.DELAY]
    low = max(now - DELAY_RANGE, 0.0)
    param = Param(address.DELAY, low, min(low + 2 * DELAY_RANGE, address.LONGEST_DELAY), False, "s")
    return Nuisance(param, now, DELAY_SPREAD, DELAY_DRIFT)


def _drives(model: mujoco.MjModel, actuator: int, joint: int) -> bool:
    kind, to = model.actuator_trntype[actuator], model.actuator_trnid[actuator, 0]
    return kind == mujoco.mjtTrn.mjTRN_JOINT and to == joint and int(model.jnt_type[joint]) in _HINGE_OR_SLIDE


def online_world(scene: Scene, selection: ParamSelection, *, threads: int = 1) -> SceneSimulator:
    """The robot of a scene, without the bodies that move freely, with what the parameters depend on.

    Nobody measures the free bodies of a scene while it runs, so their effect on the robot is noise here.
    """
    alone = without_free_bodies(scene) or scene
    world = open_world(alone, threads=threads)
    return world.tuned(selection.fixed) if selection.fixed else world


BINS = 5
"""Parts of a window over which its error is averaged."""
DIFFERENCE_STEP = 0.02
"""Step of finite differences, in unit coordinates."""
CONTACT_SAMPLES = 5
"""Rows of a window at which contacts are looked for."""


class WindowPredictor:
    """A simulator that predicts windows; without contacts if nothing touches, which is about twice as fast.

    A delay of commands among the parameters moves the commands between the rows of a window: simulators count delays in
    steps of physics, and no derivative can be taken of that.
    """

    def __init__(self, sim: SceneSimulator, params: Sequence[Param], central: int | None = None):
        """The derivatives by the first `central` parameters are central differences (all if None), those by the
        others are one-sided, at half the cost."""
        self._sim, self._params = sim, tuple(params)
        self._delay = address.read(sim.model, [address.DELAY])[address.DELAY] if sim.model.nu else 0.0
        self._central = len(self._params) if central is None else central
        self._free: Any = getattr(sim, "without_contacts", lambda: None)()  # a MujocoWorld has it

    def evidence(self, window: Windows, x: Array, others: Sequence[Array] = ()) -> tuple[WindowEvidence, Array] | None:
        """What a window says at a point [params], and the errors of other points [others, channels, bins].

        None if the simulation diverges at the point or next to it.
        """
        n, two = len(x), self._central
        step = np.where(x + DIFFERENCE_STEP <= 1.0, DIFFERENCE_STEP, -DIFFERENCE_STEP)
        low = np.clip(x[:two] - step[:two], 0.0, 1.0)
        points = np.tile(x, (1 + n + two, 1))
        points[1 + np.arange(n), np.arange(n)] += step
        points[1 + n + np.arange(two), np.arange(two)] = low
        errors = self.errors(window, np.concatenate([points, *(other[None] for other in others)]))
        if not np.isfinite(errors[: 1 + n + two]).all():
            return None
        width, against = step.copy(), np.repeat(errors[:1], n, axis=0)
        width[:two], against[:two] = points[1 + np.arange(two), np.arange(two)] - low, errors[1 + n : 1 + n + two]
        # Errors are measured less predicted: where a prediction rises the error falls.
        slope = (against - errors[1 : 1 + n]) / width[:, None, None]
        return WindowEvidence(x.copy(), errors[0], slope), errors[1 + n + two :]

    def errors(self, window: Windows, points: Array) -> Array:
        """Measured less predicted at some points [points, params], in bins: [points, channels, bins]."""
        return -binned(self.residual(window, points)[..., window.tangent.measured])

    def residual(self, window: Windows, points: Array) -> Array:
        """Predicted less measured at some points [points, span, directions]; NaN after a divergence."""
        sim = self._sim if self._free is None or self._touches(window) else self._free
        values = {param.address: param.from_unit(points[:, i]) for i, param in enumerate(self._params)}
        later = values.pop(address.DELAY, np.full(len(points), self._delay)) - self._delay
        past, action = _delayed(window.past[0], window.action[0], later / sim.spec.dt)
        tuned_sim, n = tuned(sim, values), len(points)
        state = tuned_sim.place(np.repeat(window.q, n, axis=0), np.repeat(window.v, n, axis=0), 0.0, past)
        paths = rollout_positions(tuned_sim, state, np.moveaxis(action, 1, 0))
        return window.tangent.minus(paths, window.target)

    def _touches(self, window: Windows) -> bool:
        sim: Any = self._sim  # a MujocoWorld, which counts its contacts
        at = np.linspace(0, window.target.shape[1] - 1, CONTACT_SAMPLES, dtype=int)
        rows = window.target[0, at]
        state = sim.place(rows, np.zeros((len(rows), window.v.shape[-1])))
        return bool(np.asarray(sim.contacts(state)).any())


def _delayed(past: Array, action: Array, periods: Array) -> tuple[Array, Array]:
    """Commands before a window [memory, nu] and in it [span, nu], each of several delays [n] later, between rows in
    proportion: a command that comes within a period acts for the rest of it."""
    rows = np.concatenate([past, action])
    at = np.clip(np.arange(len(rows)) - periods[:, None], 0, len(rows) - 1)
    whole = np.minimum(at.astype(int), len(rows) - 2)
    share = (at - whole)[..., None]
    moved = (1 - share) * rows[whole] + share * rows[whole + 1]
    return moved[:, : len(past)], moved[:, len(past) :]


def binned(residual: Array) -> Array:
    """Means over equal parts of a window: [points, span, channels] to [points, channels, bins]."""
    span = residual.shape[1]
    edges = np.linspace(0, span, min(BINS, span) + 1, dtype=int)
    sums = np.add.reduceat(residual, edges[:-1], axis=1) / np.diff(edges)[None, :, None]
    return np.swapaxes(sums, 1, 2)


MAX_SHARE = 0.7
"""Error of a scene over that of joints that keep their speed, in the median, from which on it does not describe the
robot. Identified scenes are at 0.01 to 0.15, and that of a cable-driven arm with friction that no model has at 0.4."""
MIN_NOISE_FACTOR = 10.0
"""How many times its noise a joint must leave the motion at constant speed to be judged."""
DIFFERENCES = 3
"""Differences of readings that leave their noise: motion is nearly a parabola over so few rows."""


@frozen_dataclass
class SceneMismatch:
    """How far a scene is from its robot."""

    share: float
    """Error over that of a joint that keeps its speed, the median over joints that moved."""
    joint: str
    """The joint that is described worst."""
    error: float
    """Root mean square of its errors [rad or m]."""
    noise: float
    """Standard deviation of its readings [rad or m]."""

    def __str__(self) -> str:
        noise = f", {self.error / self.noise:.0f} times the noise of its readings" if self.noise > 0 else ""
        return (
            f"The scene does not describe this robot: its errors are {self.share:.1f} times those of joints that keep "
            f"their speed, in the median (worst is {self.joint!r}, {self.error:.3g}{noise}). Identify it first with "
            "instep tune; until then nothing is estimated and no change is reported."
        )


def scene_mismatch(
    windows: Sequence[Windows], evidence: Sequence[WindowEvidence], x: Array, dt: float
) -> SceneMismatch | None:
    """How far a scene is from its robot; None if it describes it, or if nothing moved.

    Errors are those that the parameters leave at a point [params], so errors that they can explain do not count.
    """
    left = _rms(np.stack([one.at(x) for one in evidence]))
    paths = [_displaced(window, dt) for window in windows]
    coasting = _rms(np.stack([binned(path[None])[0] for path in paths]))
    noise = np.median([_noise(path) for path in paths], axis=0)
    moved = coasting > MIN_NOISE_FACTOR * noise
    if not moved.any():
        return None
    shares = np.where(moved, left / np.maximum(coasting, 1e-12), 0.0)
    median, worst = float(np.median(shares[moved])), int(np.argmax(shares))
    if median <= MAX_SHARE:
        return None
    joint = windows[0].tangent.measured_labels[worst]
    return SceneMismatch(median, joint, float(left[worst]), float(noise[worst]))


def reading_variance(window: Windows, dt: float) -> Array:
    """Variance of the mean of the readings in a bin of a window [channels], from their differences."""
    path = _displaced(window, dt)
    return _noise(path) ** 2 * min(BINS, len(path)) / len(path)


def _displaced(window: Windows, dt: float) -> Array:
    """Distance of each measured direction from motion at constant speed [span, channels]."""
    span = window.target.shape[1]
    seconds = dt * np.arange(1.0, span + 1)
    moved = window.tangent.minus(window.target[0], window.q) - seconds[:, None] * window.v[0]
    return np.asarray(moved[:, window.tangent.measured])


def _noise(path: Array) -> Array:
    """Standard deviation of readings [channels]; zero if a window has too few rows to tell."""
    if len(path) <= DIFFERENCES + 1:
        return 0.0 * path[0]
    gain = math.sqrt(math.comb(2 * DIFFERENCES, DIFFERENCES))
    steps: Array = np.diff(path, DIFFERENCES, axis=0)
    return np.asarray(steps.std(axis=0), float) / gain


def _rms(errors: Array) -> Array:
    """Root mean square over windows and bins [windows, channels, bins] -> [channels]."""
    return np.asarray(np.sqrt(np.mean(errors**2, axis=(0, 2))))


SMOOTHING_S = 0.02
"""Time on either side of a start over which positions are smoothed to get its position and velocity [s]."""
MAX_GAP_PERIODS = 3.5
"""Periods without a reading from which on a window is not taken across the gap."""
_KEPT = 4
"""Windows whose samples are kept: late readings come after their commands."""


class SampleBuffer:
    """The last samples of a robot, in the order of a simulator's joints and actions, cut into windows as they come."""

    def __init__(self, spec: Spec, source: Spec, span: int, rest: tuple[Array, Array]):
        """`spec` is the simulator's, `source` that of the samples; `rest` is the state of unmeasured joints."""
        missing = [label for label in spec.action.labels if label not in source.action.labels]
        if missing:
            raise UnknownName("action of the robot", missing[0], source.action.labels)
        seen = [label in source.q.labels for label in spec.q.labels]
        if not any(seen):
            raise BadInput(
                f"The robot measures none of the joints of the scene (it measures: {', '.join(source.q.labels)})."
            )
        self._dt, self._span = spec.dt, span
        self._q_from = np.array([source.q.labels.index(n) if n in source.q.labels else -1 for n in spec.q.labels], int)
        self._u_from = np.array([source.action.labels.index(n) for n in spec.action.labels], int)
        self._rest_q, self._rest_v = rest
        self.tangent: Tangent = tangent(spec, source)
        self.half = max(2, round(SMOOTHING_S / spec.dt))
        """Rows on either side of a start that are smoothed."""
        kept = _KEPT * (span + 2 * self.half) + MEMORY
        self._readings: deque[tuple[float, Array]] = deque(maxlen=kept)
        self._commands: deque[tuple[float, Array]] = deque(maxlen=kept)
        self._begin: float | None = None
        self.lost = 0
        """Windows that were not taken because readings were missing."""

    def clear(self) -> None:
        """Forget all samples: the next one is of another run."""
        self._readings.clear()
        self._commands.clear()
        self._begin = None

    def add(self, t: float, q: Array, action: Array, stamp: float | None = None) -> Windows | None:
        """Take a sample: the command given at time t [s] and the newest reading, taken at `stamp`; a window or None."""
        at = t if stamp is None else float(stamp)
        self._commands.append((float(t), np.asarray(action, float)[self._u_from]))
        reading = np.where(self._q_from >= 0, np.asarray(q, float)[np.maximum(self._q_from, 0)], self._rest_q)
        if np.isfinite(at) and np.isfinite(reading).all() and (not self._readings or at > self._readings[-1][0] + 1e-9):
            self._readings.append((at, reading))
        if self._begin is None and self._readings:
            # A one-sided fit of a velocity is worth little, so the first window waits for rows before its start.
            self._begin = self._readings[0][0] + self.half * self._dt
        end = (self._begin or 0.0) + (self._span + self.half) * self._dt
        if self._begin is None or self._readings[-1][0] < end - 0.25 * self._dt:
            return None
        begin, self._begin = self._begin, self._begin + self._span * self._dt
        return self._window(begin)

    def _window(self, begin: float) -> Windows | None:
        """The window that begins at a time; None if readings are missing."""
        times = np.array([at for at, _ in self._readings])
        grid = begin + self._dt * np.arange(-self.half, self._span + self.half + 1)
        inside = times[(times > grid[0] - self._dt) & (times < grid[-1] + self._dt)]
        gaps = np.diff(np.concatenate([[grid[0]], inside, [grid[-1]]]))
        if gaps.max(initial=0.0) > MAX_GAP_PERIODS * self._dt or times[0] > grid[0] + 0.25 * self._dt:
            self.lost += 1
            return None
        rows = np.stack([q for _, q in self._readings])
        # Positions at the times of a grid [rows, nq], straight between readings.
        after = np.clip(np.searchsorted(times, grid), 1, len(times) - 1)
        before = after - 1
        share = np.clip((grid - times[before]) / (times[after] - times[before]), 0.0, 1.0)
        path = self.tangent.plus(rows[before], share[:, None] * self.tangent.minus(rows[after], rows[before]))
        start_q, start_v = self._start(path[: 2 * self.half + 1])
        given = self._given(begin + self._dt * np.arange(-MEMORY, self._span))
        nv = len(self.tangent.labels)
        return Windows(
            q=start_q[None],
            v=start_v[None],
            past=given[None, :MEMORY],
            action=given[None, MEMORY:],
            target=path[None, self.half + 1 : self.half + 1 + self._span],
            inside=np.ones((1, self._span), bool),
            run=np.zeros(1, int),
            tangent=self.tangent,
            noise_q=np.zeros(nv),
            noise_v=np.zeros(nv),
        )

    def _start(self, path: Array) -> tuple[Array, Array]:
        """Position and velocity in the middle of a short path [rows, nq], by a cubic through its rows."""
        form, rows = self.tangent, 2 * self.half + 1
        # Value and slope in the middle of the least-squares cubic through these rows.
        place, slope = np.linalg.pinv(np.vander(np.arange(rows) - self.half, 4, increasing=True))[:2]
        offsets = form.minus(path, path[self.half])
        shift, speed = place @ offsets, slope @ offsets / self._dt
        velocity = np.where(form.measured, speed, self._rest_v)
        return form.plus(path[self.half], np.where(form.measured, shift, 0.0)), velocity

    def _given(self, grid: Array) -> Array:
        """The commands in effect from each time on [rows, nu]; before the first one, the first."""
        times = np.array([at for at, _ in self._commands])
        # A reading and the command given with it have one time; half a period keeps rounding from choosing another.
        index = np.searchsorted(times, grid + 0.5 * self._dt, side="left") - 1
        rows = np.stack([command for _, command in self._commands])
        return rows[np.maximum(index, 0)]
