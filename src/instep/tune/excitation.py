"""Excitation design: Fourier series of commands with the most information about parameters, inside limits.

With J the derivative of all measured positions by the parameters in unit coordinates and sigma the noise of the
sensors,

    F = J^T J / sigma^2

is the Fisher information of a motion; its smallest eigenvalue belongs to the least known direction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field

import numpy as np

from instep.core.errors import BadInput
from instep.core.optimize import CmaSearch, cma_generations
from instep.core.param import Param
from instep.core.rollout import rollout_batch
from instep.core.world import Array, Simulator, State, array_dataclass, options_dataclass
from instep.scene import address
from instep.scene.address import TIMESTEP

from .excitation_limits import (
    ExcitationLimits,
    MotionLimits,
    basis,
    best_superposition,
    frequency_responses,
    limit_usage,
    tones,
)
from .fit.uncertainty import UNIFORM, Identifiability, assess

COMMAND_MARGIN = 3.0
"""Factor by which commands may exceed the speed and acceleration limits of a joint: servos smooth them."""
STEP = 0.01
"""Step of finite differences, as a share of a range; larger than a fit's, since stick-slip is not smooth."""
MAX_CURVATURE = 0.15
"""Share of a parameter's usual effect on a joint by which forward and backward differences may differ."""

Watch = Callable[[int, float], None]
"""Called with the generation and the best score so far."""


@options_dataclass
class ExciteOptions:
    """Options of an excitation design; `instep excite` takes them as flags."""

    seconds: float = 5.0
    """length of the motion [s]."""
    highest: float = 4.0
    """highest frequency of the commands [Hz]."""
    tones: int = 5
    """sines per joint, spread evenly over octaves."""
    noise: float = 1e-3
    """noise of measured positions [rad or m]."""
    energy_weight: float = 0.5
    """weight of a decade of energy against one of information: 0 goes to the limits, 1 is the ratio alone."""
    generations: int = 15
    """length of the search."""
    population: int = 16
    """candidates per generation."""
    allowed: MotionLimits = field(default_factory=MotionLimits)
    seed: int = 0
    """seed of the search."""

    def __post_init__(self) -> None:
        if not all(0 < value < math.inf for value in (self.seconds, self.highest, self.noise)) or self.generations < 1:
            raise BadInput(
                "--seconds, --highest and --noise must be above 0 and finite, and --generations at least 1, "
                f"not {self.seconds:g}, {self.highest:g}, {self.noise:g} and {self.generations}."
            )


@array_dataclass
class ExcitationDesign:
    """A motion, its information about parameters, and how much of the limits it uses."""

    params: tuple[Param, ...]
    actions: Array
    """[steps, nu]."""
    q: Array
    """Simulated positions [steps, nq]."""
    v: Array
    information: Array
    """F times the variance of a uniform prior over the bounds [parameters, parameters]."""
    identifiability: Identifiability
    limit_usage: Mapping[str, float]
    """Used share of each limit."""

    @property
    def feasible(self) -> bool:
        """Whether every limit is respected."""
        return max(self.limit_usage.values()) <= 1.0

    def smallest(self, names: Sequence[str] | None = None) -> float:
        """The smallest eigenvalue over some parameters; over the identifiable ones where none are named."""
        chosen = set(self.identifiability.identifiable if names is None else names)
        kept = [i for i, param in enumerate(self.params) if param.address in chosen]
        return float(np.linalg.eigvalsh(self.information[np.ix_(kept, kept)])[0]) if kept else 0.0

    def spread(self) -> dict[str, float]:
        """Standard deviation of each identifiable parameter from one such motion, as a share of its range."""
        kept = [i for i, param in enumerate(self.params) if param.address in self.identifiability.identifiable]
        inverse = np.linalg.inv(self.information[np.ix_(kept, kept)]) * UNIFORM**2
        return {self.params[i].address: float(np.sqrt(inverse[n, n])) for n, i in enumerate(kept)}


def excite(
    sim: Simulator,
    scene_limits: ExcitationLimits,
    params: Sequence[Param],
    options: ExciteOptions,
    *,
    watch: Watch | None = None,
) -> ExcitationDesign:
    """Find the motion that maximises the smallest eigenvalue of the information; Ctrl-C keeps the best so far."""
    if not params:
        raise BadInput("An excitation is designed for parameters, and none were given.")
    # The simulator with about 5 ms per step, which is enough to compare motions.
    step = sim.spec.dt / max(1, round(sim.spec.dt / 5e-3))
    coarse = sim.tuned({TIMESTEP: step})
    series = _Series(scene_limits, sim.spec.dt, options)
    rng = np.random.default_rng((options.seed, 0xE2C))
    guesses = np.clip(series.first + series.spread * rng.standard_normal((4, len(series.first))), 0.0, 1.0)
    names = _identifiable(coarse, scene_limits, params, series, guesses, options)
    kept = [param for param in params if param.address in names]
    best, top = guesses[0], -np.inf
    try:
        added = _superposition(coarse, scene_limits, kept, series, options)
        for generation, (x, score) in enumerate(_generations(coarse, scene_limits, kept, series, options)):
            best, top = (x, score) if score > top else (best, top)
            if watch is not None:
                watch(generation, top)
    except KeyboardInterrupt:
        added = series.actions(best)
    found = [_within_limits(sim, scene_limits, params, actions, options) for actions in (series.actions(best), added)]
    names = [param.address for param in kept]

    def value(design: ExcitationDesign) -> float:
        floor, spent = design.smallest(names), energy(scene_limits, design.actions)
        return float(_score_of(np.array(floor), np.array(spent), options))

    return max(found, key=lambda design: (design.feasible, value(design)))


def evaluate_motion(
    sim: Simulator, limits: ExcitationLimits, params: Sequence[Param], actions: Array, options: ExciteOptions
) -> ExcitationDesign:
    """The information of any motion [steps, nu], and how much of the limits it uses."""
    found, q, v = information(sim, limits, params, actions[None], options.noise)
    scaled = found[0] * UNIFORM**2
    identifiability = assess(scaled, [param.address for param in params])
    return ExcitationDesign(
        tuple(params), actions, q[0], v[0], scaled, identifiability, limit_usage(limits, q[0], v[0], actions)
    )


def information(
    sim: Simulator, limits: ExcitationLimits, params: Sequence[Param], motions: Array, noise: float
) -> tuple[Array, Array, Array]:
    """F of each motion [motions, parameters, parameters], and its path: q, v [motions, steps, ...]."""
    x = np.array([float(param.to_unit(value)) for param, value in zip(params, _values(limits, params), strict=True)])
    steps = STEP * np.eye(len(params))
    q, v = _rollout(sim, limits, params, x + np.concatenate([np.zeros((1, len(x))), steps, -steps]), motions)
    seen = q[..., limits.at]
    up, down = np.nan_to_num(np.split(seen[1:] - seen[0], 2))  # [parameters, motions, steps, joints]
    # A joint that sticks on one side and slips on the other holds no information: the smaller difference counts.
    small, large = np.minimum(np.abs(up), np.abs(down)), np.maximum(np.abs(up), np.abs(down))
    # A small asymmetry is curvature; cutting it off would make unidentifiable parameters look identifiable.
    curved = np.abs(up + down) < MAX_CURVATURE * np.sqrt(((up - down) ** 2).mean(axis=-2, keepdims=True))
    smooth = ((up * down < 0) & (small > 0.5 * large)) | curved
    change = np.where(smooth, (up - down) / 2, np.where(up * down < 0, np.sign(up) * small, 0.0))
    jacobian = change / (STEP * noise)
    return np.einsum("imtj,kmtj->mik", jacobian, jacobian, optimize=True), q[0], v[0]


def chirp(limits: ExcitationLimits, steps: int, *, energy: float, highest: float, lowest: float = 0.1) -> Array:
    """A chirp on all joints at once with a given energy [steps, nu], as a reference."""
    t = np.arange(steps) * limits.scene.dt
    rate = (highest - lowest) / t[-1]
    wave = np.sin(2 * np.pi * (lowest * t + rate * t**2 / 2)) * _fade(t)
    actions = np.tile(limits.rest, (steps, 1))
    begin = actions[0, limits.actuators]
    room = np.where(limits.position_controlled, np.minimum(limits.high - begin, begin - limits.low), np.inf)
    # A joint that begins at its stop, such as an open gripper, cannot move both ways.
    free = ~np.isfinite(room)
    moves = free | (room > 0.05 * np.median(np.where(free, np.pi, room)))
    size = np.sqrt(energy / (int(moves.sum()) * (wave**2).sum()))
    actions[:, limits.actuators] += size * wave[:, None] * moves
    return actions


def energy(limits: ExcitationLimits, actions: Array) -> float:
    """Sum over time and joints of the squared deviation of commands from their mean, in reaches where tendons move."""
    moved = actions[:, limits.actuators] / np.where(limits.through_tendon, limits.reach, 1.0)
    return float(((moved - moved.mean(axis=0)) ** 2).sum())


class _Series:
    """Commands by coordinates in [0, 1]: per joint a centre, a size, then an amplitude and a phase for each tone."""

    def __init__(self, limits: ExcitationLimits, dt: float, options: ExciteOptions):
        self._limits, self._reach = limits, limits.reach
        steps = max(8, round(options.seconds / dt))
        self.t = np.arange(steps) * dt
        top = max(1, round(options.highest * options.seconds))
        # Each joint has its own frequencies, so that couplings between joints are identifiable.
        tops = [max(1, top - j % max(1, top // 4)) for j in range(len(limits.joints))]
        self._tones = np.round([np.geomspace(each, 1, options.tones)[::-1] for each in tops])  # [joints, tones]
        self._begin = limits.rest[limits.actuators]
        # An open gripper begins at its stop, so that its tendon is moved around the middle of its range.
        below, above = (np.where(np.isfinite(room), room, 0.0) for room in self._bounds())
        self._middle = self._begin + np.where(limits.through_tendon, (above - below) / 2, 0.0)
        # High frequencies hold more information per energy, so the search begins with most of it there.
        amplitudes = 0.8 * np.geomspace(0.1, 1.0, options.tones) if options.tones > 1 else [0.8]
        self.first = np.tile([0.5, 0.4, *amplitudes, *[0.5] * self._tones.shape[1]], len(limits.joints))
        self.spread = np.tile(
            [0.1, 0.2, *[0.15] * self._tones.shape[1], *[0.5] * self._tones.shape[1]], len(limits.joints)
        )

    def actions(self, x: Array) -> Array:
        """The commands of one candidate [steps, nu], scaled joint by joint to what the limits allow of a command."""
        limits, (n, tones) = self._limits, self._tones.shape
        parts = x.reshape(n, 2 + 2 * tones)
        omega = 2 * np.pi * self._tones / (self.t[-1] + self.t[1])
        size = parts[:, 2 : 2 + tones]
        angle = omega * self.t[:, None, None] + 2 * np.pi * parts[:, 2 + tones :]
        wave = (size * np.sin(angle)).sum(axis=-1) * _fade(self.t)[:, None]  # [steps, joints]
        low, high = self._bounds()
        centre = self._middle + (2 * parts[:, 0] - 1) * np.minimum(self._reach, np.minimum(high, low)) / 2
        room = np.minimum(np.minimum(high - (centre - self._begin), low + (centre - self._begin)), self._reach)
        wave = wave * parts[:, 1] * np.minimum(room / np.maximum(np.abs(wave).max(axis=0), 1e-12), self._paced(wave))
        moved = self._begin + (centre - self._begin) * _fade(self.t)[:, None] + wave
        out = np.tile(limits.rest, (len(self.t), 1))
        out[:, limits.actuators] = moved
        return out

    def sines(self, options: ExciteOptions) -> tuple[Array, Array, Array, Sequence[int]]:
        """Commands at rest, small sines and cosines of one joint each, tone, joint and phase of each; the tones."""
        limits, rest = self._limits, np.tile(self._limits.rest, (len(self.t), 1))
        cycles = tones(max(1, round(options.highest * options.seconds)))
        low, high = self._bounds()
        room = np.minimum(np.minimum(low, high), self._reach)
        waves: list[Array] = []
        places: list[tuple[int, int, int]] = []
        for joint in np.flatnonzero(room > 0.05 * np.median(room)):
            for tone, number in enumerate(cycles):
                angle = 2 * np.pi * number * self.t / (self.t[-1] + self.t[1])
                for phase, shape in enumerate((np.sin(angle), np.cos(angle))):
                    waves.append(np.zeros_like(rest))
                    waves[-1][:, limits.actuators[joint]] = 0.01 * shape * _fade(self.t)
                    places.append((tone, int(joint), phase))
        return rest, np.stack(waves), np.array(places), cycles

    def _bounds(self) -> tuple[Array, Array]:
        """How far commands may go below and above where they begin."""
        limits, model = self._limits, self._limits.scene.model
        ranges = model.actuator_ctrlrange[limits.actuators]
        bounded = model.actuator_ctrllimited[limits.actuators].astype(bool)
        low = np.where(bounded, ranges[:, 0], -np.inf)
        high = np.where(bounded, ranges[:, 1], np.inf)
        low = np.where(limits.position_controlled, np.maximum(low, limits.low), low)
        high = np.where(limits.position_controlled, np.minimum(high, limits.high), high)
        return np.maximum(self._begin - low, 0.0), np.maximum(high - self._begin, 0.0)

    def _paced(self, wave: Array) -> Array:
        """By how much each joint's wave may be scaled to keep speed and acceleration, where it is a position."""
        allowed, dt = self._limits.allowed, self.t[1]
        speed = np.abs(np.diff(wave, axis=0)).max(axis=0) / dt
        jerked = np.abs(np.diff(wave, 2, axis=0)).max(axis=0) / dt**2
        slower = COMMAND_MARGIN * allowed.speed / np.maximum(speed, 1e-9)
        paced = np.minimum(slower, COMMAND_MARGIN * allowed.acceleration / np.maximum(jerked, 1e-9))
        return np.where(self._limits.position_controlled, paced, np.inf)


def _superposition(
    sim: Simulator, limits: ExcitationLimits, params: Sequence[Param], series: _Series, options: ExciteOptions
) -> Array:
    """The best superposition of small sines, as large as the limits let it be [steps, nu].

    Dry friction, delays, parameters outside the model and tendons, which move several joints, have no linear response
    of one joint: then the motion is rest.
    """
    rest, waves, places, cycles = series.sines(options)
    known = set(address.addresses(limits.scene.model))
    if limits.through_tendon.any():
        return rest
    if any(k.address not in known or k.parts.field in ("frictionloss", "delay") for k in params):
        return rest
    responses = frequency_responses(limits, params, _values(limits, params), cycles, len(rest))
    given = basis(rest, waves, responses, places, options.noise, float((_fade(series.t) ** 2).mean()))
    rng = np.random.default_rng((options.seed, 0xADD))
    spent = float((waves**2).sum(axis=(1, 2)).mean()) * len(limits.joints)
    actions = rest
    for _ in range(2):
        # The information at rest does not grow with the motion, so the amplitude matters for the shape.
        actions = given.actions(best_superposition(given, spent, rng))
        # The largest size that respects all limits.
        motions = actions[0] + np.geomspace(0.1, 20.0, 24)[:, None, None] * (actions - actions[0])
        q, v = _rollout(sim, limits, (), np.zeros((1, 0)), motions)
        sound = _violation(limits, np.nan_to_num(q[0], nan=1e3), np.nan_to_num(v[0], nan=1e3), motions) <= 0
        actions = motions[max(int(np.argmin(sound)) - 1, 0) if not sound.all() else -1]
        spent = energy(limits, actions)
    return actions


def _generations(
    sim: Simulator, limits: ExcitationLimits, params: Sequence[Param], series: _Series, options: ExciteOptions
) -> Iterator[tuple[Array, float]]:
    """The best candidate of each generation and its score, by CMA-ES from the best of some random motions on."""
    rng = np.random.default_rng((options.seed, 0xE2D))

    def losses(points: Array) -> Array:
        motions = np.stack([series.actions(p) for p in points])
        found, q, v = information(sim, limits, params, motions, options.noise)
        floor = np.linalg.eigvalsh(found * UNIFORM**2)[:, 0]
        spent = np.array([energy(limits, motion) for motion in motions])
        return 10 * _violation(limits, q, v, motions) - _score_of(floor, spent, options)

    noise = rng.standard_normal((2 * options.population, len(series.first)))
    points = np.clip(series.first + series.spread * noise, 0.0, 1.0)
    first = losses(points)
    best = points[int(np.argmin(first))]
    yield best, -float(first.min())
    search = CmaSearch(
        spread=0.12, generations=options.generations - 1, population=options.population,
        seed=int(rng.integers(2**31)),
    )  # fmt: skip
    for found in cma_generations(losses, best, search):
        yield found.points[found.best], -float(found.costs[found.best])


def _score_of(floor: Array, spent: Array, options: ExciteOptions) -> Array:
    """Decades of the smallest eigenvalue minus weighted decades of the energy."""
    return np.log10(np.maximum(floor, 1e-12)) - options.energy_weight * np.log10(np.maximum(spent, 1e-12))


def _violation(limits: ExcitationLimits, q: Array, v: Array, motions: Array) -> Array:
    """Total violation of the limits by each motion [motions]; 0 inside."""
    each = (limit_usage(limits, q[i], v[i], motion) for i, motion in enumerate(motions))
    return np.array([sum(max(0.0, share - 1.0) for share in shares.values()) for shares in each])


def _identifiable(
    sim: Simulator,
    limits: ExcitationLimits,
    params: Sequence[Param],
    series: _Series,
    guesses: Array,
    options: ExciteOptions,
) -> tuple[str, ...]:
    """The parameters that some random motions make identifiable; the motion is designed for those."""
    motions = np.stack([series.actions(x) for x in guesses])
    found, _, _ = information(sim, limits, params, motions, options.noise)
    names = assess(found.sum(axis=0) * UNIFORM**2, [param.address for param in params]).identifiable
    if not names:
        raise BadInput("No motion inside the limits reveals any of these parameters; allow more speed or reach.")
    return names


def _within_limits(
    sim: Simulator, limits: ExcitationLimits, params: Sequence[Param], actions: Array, options: ExciteOptions
) -> ExcitationDesign:
    """The motion scaled down until it respects all limits in the fine simulation."""
    sizes = np.array([1.0, 0.97, 0.94, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5, 0.35, 0.2])
    motions = actions[0] + sizes[:, None, None] * (actions - actions[0])
    q, v = _rollout(sim, limits, (), np.zeros((1, 0)), motions)
    beyond = _violation(limits, q[0], v[0], motions)
    return evaluate_motion(sim, limits, params, motions[int(np.argmax(beyond <= 0))], options)


def _rollout(
    sim: Simulator, limits: ExcitationLimits, params: Sequence[Param], points: Array, motions: Array
) -> tuple[Array, Array]:
    """Positions and velocities before each action [settings, motions, steps, ...], NaN once diverged."""
    settings, n = len(points), len(motions)
    each = {k.address: np.repeat(k.from_unit(points[:, i]), n) for i, k in enumerate(params)}
    begin = sim.reset(0)
    tuned = sim.tuned(each)
    state = tuned.place(np.tile(begin.q, (settings * n, 1)), np.tile(begin.v, (settings * n, 1)))
    q, v = (np.empty((settings * n, motions.shape[1], part.shape[-1])) for part in (begin.q, begin.v))
    q[:, 0], v[:, 0] = state.q, state.v

    def visit(step: int, live: Array, state: State) -> None:
        q[:, step], v[:, step] = state.q, state.v

    spans = np.full(settings * n, motions.shape[1] - 1)
    survived = rollout_batch(tuned, state, lambda _, step: np.tile(motions[:, step], (settings, 1)), spans, visit)
    q[np.arange(motions.shape[1]) > survived[:, None]] = np.nan
    return q.reshape(settings, n, *q.shape[1:]), v.reshape(settings, n, *v.shape[1:])


def _values(limits: ExcitationLimits, params: Sequence[Param]) -> list[float]:
    """The scene's values of the parameters, moved inside their bounds."""
    found = address.read(limits.scene.model, [param.address for param in params])
    return [float(k.from_unit(np.clip(float(k.to_unit(max(found[k.address], k.low))), 0.02, 0.98))) for k in params]


def _fade(t: Array) -> Array:
    """A window that fades in and out over a tenth of the time at either end."""
    edge = max(0.1 * t[-1], t[1])
    ends = np.minimum(np.minimum(t, t[-1] - t) / edge, 1.0)
    return ends**2 * (3 - 2 * ends)
