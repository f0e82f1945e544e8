"""Suspects: single changes of a simulator, each tried over a range; the one that explains most is named.

A suspect's value is chosen on some runs and judged on the others, so that a suspect that merely fits noise gains
nothing. Suspects that stand for one another (a delay and a soft servo both make an arm late) are told apart by who
explains more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from math import exp, inf, log, sqrt
from typing import Any, cast

import numpy as np

from instep.core.distributions import student_quantile
from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.param import Address
from instep.core.replay import Aligned, aligned
from instep.core.statistics import Estimate
from instep.core.world import Array, Settings, Simulator
from instep.gap.channels import Channels, channels
from instep.gap.horizon import HorizonOptions, ahead_of, windows_of
from instep.scene import address
from instep.scene.folder import Scene

from .failure_modes import Mode

LEAST = 0.1
"""A suspect must explain at least this share of the squared error to be named."""


Values = Mapping[str, float]
"""Joint -> value."""


@dataclass(frozen=True, slots=True, eq=False)
class Suspect:
    """One change that may explain a gap."""

    name: str
    """The failure mode it stands for."""
    values: tuple[float, ...]
    """What is tried, from the mildest on."""
    settings: Callable[[Values], Settings]
    """The settings for a value of each joint."""
    words: str
    """What the value is, for the evidence: 'a delay of {:.0f} ms'."""
    shown: float = 1.0
    """Factor from the value to what is shown."""
    shared: bool = False
    """Whether all joints have one value, as a delay has, or each its own, as friction has."""

    def at(self, value: float, joints: Sequence[str]) -> Settings:
        """The settings with one value for all joints."""
        return self.settings(dict.fromkeys(joints, value))


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspectOptions:
    """How suspects are questioned."""

    horizon: float = 0.25
    every: float = 0.2
    wrapping: tuple[str, ...] = ()
    pieces: int = 8
    """Runs are cut until there are at least so many pieces to judge by."""
    rounds: int = 2
    """How often the search is narrowed around the best value."""
    most: int = 240
    """Windows replayed for each value, spread over all runs."""


@dataclass(frozen=True, slots=True, eq=False)
class Questioned:
    """What came of one suspect."""

    suspect: Suspect
    value: float
    """The value that explains most; the middle one where joints have their own."""
    gain: Estimate
    """Share of the squared error it explains on runs it was not chosen by; all suspects' intervals hold at once."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])


def question(
    sim: Simulator,
    episodes: Sequence[Episode],
    suspects: Sequence[Suspect],
    *,
    options: SuspectOptions | None = None,
    watch: Callable[[str], None] | None = None,
) -> list[Questioned]:
    """How much of the gap each suspect explains, the best first; `watch` is told who is questioned."""
    options = options or SuspectOptions()
    if not episodes:
        raise BadInput("Suspects need at least one recorded run.")
    taker = _Taker(sim, episodes, options)
    nominal = taker.squares({})
    found: list[Questioned] = []
    for suspect in suspects:
        if watch is not None:
            watch(suspect.name)
        values = list(suspect.values)
        tried = [taker.squares(suspect.at(value, taker.joints)) for value in values]
        for _ in range(options.rounds):
            closer = _narrowed(values, [float(t.sum()) for t in tried])
            values += closer
            tried += [taker.squares(suspect.at(value, taker.joints)) for value in closer]
        found.append(_judged(suspect, (0.0, *values), np.stack([nominal, *tried]), taker.joints, len(suspects)))
    return sorted(found, key=lambda q: -q.gain.value)


def identify(
    sim: Simulator,
    episodes: Sequence[Episode],
    suspects: Sequence[Suspect],
    *,
    options: SuspectOptions | None = None,
    watch: Callable[[str], None] | None = None,
    most: int = 6,
) -> tuple[list[Questioned], list[Questioned]]:
    """The causes that explain a gap together, one found after the other, and what came of all suspects at first.

    After each cause the others are questioned again with it put right: one that only stood for it explains nothing any
    more. What explains no error for certain is left as it is, so that a right simulator is blamed for nothing.
    """
    first = question(sim, episodes, suspects, options=options, watch=watch)
    causes: list[Questioned] = []
    asked, settings = first, dict[str, Any]()
    while asked and _certain(asked[0]) and len(causes) < most:
        causes.append(asked[0])
        settings |= asked[0].settings
        rest = [s for s in suspects if all(s is not c.suspect for c in causes)]
        asked = question(sim.tuned(settings), episodes, rest, options=options, watch=watch) if rest else []
    return causes, first


def physical_modes(questioned: Sequence[Questioned]) -> list[Mode]:
    """The physical cause that explains most, where one does for certain; all others are ruled out."""
    modes: list[Mode] = []
    seen: set[str] = set()
    for place, q in enumerate(questioned):
        if q.suspect.name in seen:
            continue
        seen.add(q.suspect.name)
        words = q.suspect.words.format(q.value * q.suspect.shown) if q.value else "No value of it"
        share = f"explains {100 * max(q.gain.value, 0):.0f} % of the squared error on runs it was not chosen by"
        sentence = f"{words} {share} [{100 * q.gain.low:.0f}, {100 * q.gain.high:.0f} %]."
        modes.append(Mode(q.suspect.name, _certain(q) and place == 0, q.gain, sentence[0].upper() + sentence[1:]))
    return modes


def suspects_of(scene: Scene, sim: Simulator) -> tuple[Simulator, list[Suspect]]:
    """The simulator with play and limits that can be turned, and the suspects that suit its scene."""
    model = cast(Any, scene).model
    servos = [a for a in range(model.nu) if model.actuator_biasprm[a, 1] != 0]
    suspects = [
        _scaled(scene, "friction", "joint.*.damping", (2.0, 4.0, 8.0, 0.5, 0.25), "joint damping times {:.2g}"),
        _dry(scene),
        _scaled(scene, "gains", "actuator.*.kp", (0.8, 0.6, 0.4, 1.25, 1.6, 2.5), "servo stiffness times {:.2g}")
        if servos
        else _scaled(scene, "gains", "actuator.*.gain", (0.9, 0.75, 0.6, 1.1, 1.3, 1.6), "motor gain times {:.2g}"),
        _scaled(scene, "payload", "body.*.mass", (1.25, 1.6, 2.2, 0.8, 0.6), "link masses times {:.2g}"),
        _steps(scene),
        Suspect("latency", (0.01, 0.02, 0.03, 0.045, 0.06, 0.09, 0.13), _delay, "a delay of {:.0f} ms", 1e3, True)
        if model.nu
        else None,
        _grip(scene),
    ]
    wrapped: Any = sim
    if servos and len(servos) == model.nu and set(scene.spec.action.labels) <= set(scene.spec.q.labels):
        wrapped, loose = _loose(scene, wrapped)
        wrapped, weak = _weak(scene, wrapped, servos)
        suspects += [loose, weak]
    return wrapped, [s for s in suspects if s is not None]


def _certain(q: Questioned) -> bool:
    return q.gain.low > 0 and q.gain.value >= LEAST


class _Taker:
    """Mean squared errors of each channel and piece [channels, pieces] with some settings.

    A piece is a stretch of windows of one run: runs stay whole, because a window needs the commands before it.
    """

    def __init__(self, sim: Simulator, episodes: Sequence[Episode], options: SuspectOptions):
        self.sim = sim
        self.runs: list[Aligned] = [aligned(episode, sim) for episode in episodes]
        seen = np.all([run.seen[0] for run in self.runs], axis=0)
        self.compared: Channels = channels(sim.spec.q, seen, options.wrapping)
        self.joints = self.compared.names
        scales = self.compared.scales([run.q for run in self.runs])
        self.weight = np.array([1 / scales[unit] ** 2 for unit in self.compared.units]) / len(self.compared.units)
        shortest = min(len(run.q) for run in self.runs) - 1
        self.k = max(1, min(round(options.horizon / sim.spec.dt), shortest))
        windows, _ = windows_of(episodes, self.runs, HorizonOptions(every=options.every), sim.spec.dt)
        room = np.array([len(run.q) - 1 for run in self.runs])[windows[:, 0]]
        # What was commanded before a run began is not known, so its first moments cannot be told from a delay.
        known = windows[:, 1] * sim.spec.dt >= address.LONGEST_DELAY
        fitting = windows[:, 1] + self.k <= room
        windows = windows[fitting & known] if (fitting & known).sum() >= 3 else windows[fitting]
        self.windows = windows[:: max(1, -(-len(windows) // options.most))]
        self.piece = _pieces(self.windows, options.pieces)
        self.truth = np.stack([self.runs[int(i)].q[int(row) + self.k] for i, row in self.windows])

    def squares(self, settings: Settings) -> Array:
        """The mean squared error of each channel and piece, in parts of the overall error."""
        ahead, _ = ahead_of(self.sim.tuned(settings) if settings else self.sim, self.runs, self.windows, [self.k], None)
        errors = self.compared.difference(ahead[self.k], self.truth) ** 2 * self.weight
        # A window that diverged is as wrong as a prediction that knows nothing.
        errors = np.where(np.isfinite(errors), np.minimum(errors, 1e3), 1e3)
        n = int(self.piece.max()) + 1
        counts = np.bincount(self.piece, minlength=n)
        return np.stack([np.bincount(self.piece, column, n) / counts for column in errors.T])


def _judged(
    suspect: Suspect, values: Sequence[float], tried: Array, joints: Sequence[str], suspects: int
) -> Questioned:
    """What a suspect explains, from squared errors [values, channels, pieces].

    Each piece is judged by the values the other pieces chose: one for all joints, or for each joint the one that suits
    its own errors best. Errors are pooled before they are compared: a piece in which nothing went wrong has no say.
    """
    if suspect.shared:
        tried = tried.sum(axis=1, keepdims=True)
    pieces = tried.shape[2]
    judged = np.zeros(pieces)
    for i in range(pieces):
        others = np.delete(tried, i, axis=2).sum(axis=2)
        judged[i] = sum(float(tried[int(np.argmin(others[:, c])), c, i]) for c in range(tried.shape[1]))
    gain = _share(judged, tried[0].sum(axis=0), suspects)
    best = np.argmin(tried.sum(axis=2), axis=0)
    chosen = [values[int(b)] for b in (best if not suspect.shared else np.repeat(best, len(joints)))]
    # A joint that nothing suits better than what it has keeps it: its mildest value changes it least.
    told = {joint: value for joint, value in zip(joints, chosen, strict=True) if value}
    settings = dict(suspect.settings(told)) if told else {}
    return Questioned(suspect, float(np.median(list(told.values()))) if told else 0.0, gain, settings)


def _share(judged: Array, nominal: Array, suspects: int) -> Estimate:
    n = len(judged)
    nominal, judged = np.maximum(nominal, 1e-300), np.maximum(judged, 1e-300)
    whole = log(float(judged.sum()) / float(nominal.sum()))
    without = np.array([log((judged.sum() - judged[i]) / (nominal.sum() - nominal[i])) for i in range(n)])
    error = sqrt((n - 1) / n * float(((without - without.mean()) ** 2).sum()))
    half = student_quantile(1 - 0.025 / suspects, n - 1) * error
    return Estimate(1 - exp(whole), 1 - exp(min(whole + half, 50.0)), 1 - exp(whole - half), n, "1")


def _narrowed(values: Sequence[float], totals: Sequence[float]) -> list[float]:
    """Values between the best one tried and its neighbours, by size."""
    order = np.argsort(values)
    ranked, best = [values[int(i)] for i in order], int(np.argmin([totals[int(i)] for i in order]))
    between: list[float] = []
    for other in (best - 1, best + 1):
        if 0 <= other < len(ranked):
            a, b = ranked[best], ranked[other]
            between.append(sqrt(a * b) if a > 0 and b > 0 else 0.5 * (a + b))
    return between


def _pieces(windows: Array, least: int) -> Array:
    """To which piece each window belongs: runs are cut into stretches until there are enough pieces."""
    runs = np.unique(windows[:, 0])
    cuts = -(-least // len(runs))
    piece = np.zeros(len(windows), int)
    count = 0
    for run in runs:
        mine = np.flatnonzero(windows[:, 0] == run)
        for part in np.array_split(mine, min(cuts, len(mine))):
            piece[part] = count
            count += 1
    if count < 3:
        raise BadInput("The runs are too short to judge suspects by; record at least two seconds of motion.")
    return piece


def _scaled(scene: Scene, name: str, pattern: str, factors: tuple[float, ...], words: str) -> Suspect | None:
    """All parameters of a pattern times a factor, where any is above zero; links share one, joints have their own."""
    model = cast(Any, scene).model
    values = {k: v for k, v in _read(model, pattern).items() if v > 0}
    shared = pattern.startswith("body.")
    if shared:
        values = {k: v for k, v in values.items() if Address.parse(k).name not in scene.objects}
    if not values:
        return None

    def settings(told: Values) -> Settings:
        if shared:
            return {k: next(iter(told.values())) * v for k, v in values.items()}
        named = {k: Address.parse(k).name for k in values}
        return {k: told[named[k]] * v for k, v in values.items() if named[k] in told}

    return Suspect(name, factors, settings, words, shared=shared)


def _grip(scene: Scene) -> Suspect | None:
    """The friction between bodies that move freely and what they touch."""
    if not scene.objects:
        return None
    values = {k: v for k, v in _read(cast(Any, scene).model, "geom.*.friction").items() if v > 0}

    def settings(told: Values) -> Settings:
        return {k: next(iter(told.values())) * v for k, v in values.items()}

    factors = (0.75, 0.5, 0.3, 1.3, 1.8, 3.0)
    return Suspect("friction", factors, settings, "contact friction times {:.2g}", shared=True) if values else None


def _dry(scene: Scene) -> Suspect | None:
    """Dry friction in every joint of the robot, beyond what the model has, as a share of what its servos give."""
    model = cast(Any, scene).model
    given = _read(model, "joint.*.frictionloss")
    joints = {n: v for k, v in given.items() if (n := Address.parse(k).name) in scene.robot}
    if not joints:
        return None
    strength = dict.fromkeys(joints, 0.0)
    for a in range(model.nu):
        name = str(model.joint(model.actuator_trnid[a, 0]).name) if model.actuator_trntype[a] == 0 else ""
        if name in strength:
            reach = 0.05 if model.actuator_biasprm[a, 1] != 0 else 0.5
            strength[name] = abs(float(model.actuator_gainprm[a, 0] * model.actuator_gear[a, 0])) * reach

    def settings(told: Values) -> Settings:
        return {f"joint.{j}.frictionloss": v + told[j] * strength[j] for j, v in joints.items() if j in told}

    return Suspect("friction", (0.2, 0.5, 1.0, 2.0), settings, "dry friction worth {:.0f} mrad of servo error", 50.0)


def _read(model: Any, pattern: str) -> dict[str, float]:
    """The values of all parameters of a pattern; a scene without motors has none of theirs."""
    params = cast(Any, address)
    known = [a for a in params.addresses(model) if fnmatchcase(a, pattern)]
    return dict(params.read(model, known))


def _steps(scene: Scene) -> Suspect:
    step = float(cast(Any, scene).model.opt.timestep)

    def settings(told: Values) -> Settings:
        return {address.TIMESTEP: next(iter(told.values())) * step}

    return Suspect("time step", (0.5, 0.25, 0.1), settings, "a physics step times {:.2g}", shared=True)


def _delay(told: Values) -> Settings:
    return {address.DELAY: next(iter(told.values()))}


def _loose(scene: Scene, sim: Any) -> tuple[Any, Suspect]:
    """The simulator with play in its gears, none of it at first."""
    from instep.robot.imperfect import Backlash

    labels = scene.spec.action.labels

    def settings(told: Values) -> Settings:
        return cast(Settings, {"action.backlash": tuple(told.get(label, 0.0) for label in labels)})

    values = (0.01, 0.02, 0.04, 0.07, 0.12)
    return Backlash(sim, gap=0.0), Suspect("backlash", values, settings, "play of {:.0f} mrad", 1e3)


def _weak(scene: Scene, sim: Any, servos: Sequence[int]) -> tuple[Any, Suspect]:
    """The simulator with motors whose torque can be limited, as a share of what a 0.3 rad (or 3 cm) error asks for."""
    from instep.robot.imperfect import Saturated

    model = cast(Any, scene).model
    labels, units = scene.spec.action.labels, scene.spec.action.units
    stiffness = tuple(float(model.actuator_gainprm[a, 0]) for a in servos)
    damping = tuple(-float(model.actuator_biasprm[a, 2]) for a in servos)
    full = [k * (0.3 if unit == "rad" else 0.03) for k, unit in zip(stiffness, units, strict=True)]

    def settings(told: Values) -> Settings:
        torque = tuple(told.get(label, inf) * f for label, f in zip(labels, full, strict=True))
        return cast(Settings, {"action.torque": torque})

    made = Saturated(sim, torque=inf, speed=inf, stiffness=stiffness, damping=damping)
    values = (1.0, 0.6, 0.35, 0.2, 0.1)
    return made, Suspect("actuator limits", values, settings, "torque limited to {:.0f} % of a 0.3 rad pull", 100)
