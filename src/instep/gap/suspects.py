"""Suspects: single changes of a simulator, each tried over a range; the one that explains most is named.

A suspect's value is chosen on some runs and judged on the others, so that a suspect that merely fits noise gains
nothing. Suspects that stand for one another (a delay and a soft servo both make an arm late) are told apart by who
explains more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log, sqrt
from typing import Any, cast

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.replay import Aligned, aligned
from instep.core.stats import Estimate
from instep.core.stats_tails import student_quantile
from instep.core.world import Array, Settings, Simulator
from instep.scene import address
from instep.scene.folder import Scene

from .channels import Channels, channels
from .horizon import HorizonOptions, ahead_of, windows_of
from .modes import Mode

LEAST = 0.1
"""A suspect must explain at least this share of the squared error to be named."""


@dataclass(frozen=True, slots=True, eq=False)
class Suspect:
    """One change that may explain a gap."""

    name: str
    """The failure mode it stands for."""
    values: tuple[float, ...]
    """What is tried, from the mildest on."""
    settings: Callable[[float], Settings]
    words: str
    """What the value is, for the evidence: 'a delay of {:.0f} ms'."""
    shown: float = 1.0
    """Factor from the value to what is shown."""


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


@dataclass(frozen=True, slots=True, eq=False)
class Questioned:
    """What came of one suspect."""

    suspect: Suspect
    value: float
    gain: Estimate
    """Share of the squared error it explains on runs it was not chosen by; all suspects' intervals hold at once."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])


def question(
    sim: Simulator, episodes: Sequence[Episode], suspects: Sequence[Suspect], *, options: SuspectOptions | None = None
) -> list[Questioned]:
    """How much of the gap each suspect explains, the best first."""
    options = options or SuspectOptions()
    if not episodes:
        raise BadInput("Suspects need at least one recorded run.")
    taker = _Taker(sim, episodes, options)
    nominal = taker.squares({})
    found: list[Questioned] = []
    for suspect in suspects:
        values = list(suspect.values)
        tried = [taker.squares(suspect.settings(value)) for value in values]
        for _ in range(options.rounds):
            closer = _narrowed(values, [float(t.sum()) for t in tried])
            values += closer
            tried += [taker.squares(suspect.settings(value)) for value in closer]
        gain, best = _cross_judged(np.stack([nominal, *tried]), len(suspects))
        value = (0.0, *values)[best]
        found.append(Questioned(suspect, value, gain, dict(suspect.settings(value)) if best else {}))
    return sorted(found, key=lambda q: -q.gain.value)


def physical_modes(questioned: Sequence[Questioned]) -> list[Mode]:
    """The physical cause that explains most, where one does for certain; all others are ruled out."""
    modes: list[Mode] = []
    seen: set[str] = set()
    for place, q in enumerate(questioned):
        if q.suspect.name in seen:
            continue
        seen.add(q.suspect.name)
        certain = q.gain.low > 0 and q.gain.value >= LEAST
        words = q.suspect.words.format(q.value * q.suspect.shown) if q.value else "No value of it"
        share = f"explains {100 * max(q.gain.value, 0):.0f} % of the squared error on runs it was not chosen by"
        sentence = f"{words} {share} [{100 * q.gain.low:.0f}, {100 * q.gain.high:.0f} %]."
        modes.append(Mode(q.suspect.name, certain and place == 0, q.gain, sentence[0].upper() + sentence[1:]))
    return modes


def suspects_of(scene: Scene, sim: Simulator) -> tuple[Simulator, list[Suspect]]:
    """The simulator with play and limits that can be turned, and the suspects that suit its scene."""
    from instep.real.imperfect import Backlash

    model = cast(Any, scene).model
    servos = [a for a in range(model.nu) if model.actuator_biasprm[a, 1] != 0]
    names = [str(model.actuator(a).name) for a in servos]
    wrapped: Any = sim
    suspects = [
        _scaled(scene, "friction", "joint.*.damping", (2.0, 4.0, 8.0, 0.5, 0.25), "joint damping times {:.2g}"),
        _dry(scene),
        _scaled(scene, "gains", "actuator.*.kp", (0.8, 0.6, 0.4, 1.25, 1.6, 2.5), "servo stiffness times {:.2g}"),
        _scaled(scene, "payload", "body.*.mass", (1.25, 1.6, 2.2, 0.8, 0.6), "link masses times {:.2g}"),
        _steps(scene),
    ]
    suspects.append(
        Suspect("latency", (0.01, 0.02, 0.03, 0.045, 0.06, 0.09, 0.13), _delay, "a delay of {:.0f} ms", 1e3)
    )
    if servos and len(servos) == model.nu:
        wrapped = Backlash(wrapped, gap=0.0)
        suspects.append(
            Suspect(
                "backlash", (0.01, 0.02, 0.04, 0.07, 0.12), lambda x: {"action.backlash": x}, "play of {:.0f} mrad", 1e3
            )
        )
        wrapped, limits = _limited(scene, wrapped, servos, names)
        suspects.append(limits)
    return wrapped, [s for s in suspects if s is not None]


class _Taker:
    """Mean squared errors of each piece of the runs [pieces] with some settings, infinite where all diverged.

    A piece is a stretch of windows of one run: runs stay whole, because a window needs the commands before it.
    """

    def __init__(self, sim: Simulator, episodes: Sequence[Episode], options: SuspectOptions):
        self.sim = sim
        self.runs: list[Aligned] = [aligned(episode, sim) for episode in episodes]
        seen = np.all([run.seen[0] for run in self.runs], axis=0)
        self.compared: Channels = channels(sim.spec.q, seen, options.wrapping)
        scales = self.compared.scales([run.q for run in self.runs])
        self.weight = np.array([1 / scales[unit] ** 2 for unit in self.compared.units]) / len(self.compared.units)
        shortest = min(len(run.q) for run in self.runs) - 1
        self.k = max(1, min(round(options.horizon / sim.spec.dt), shortest))
        windows, _ = windows_of(episodes, self.runs, HorizonOptions(every=options.every), sim.spec.dt)
        room = np.array([len(run.q) - 1 for run in self.runs])[windows[:, 0]]
        self.windows = windows[windows[:, 1] + self.k <= room]
        self.piece = _pieces(self.windows, options.pieces)
        self.truth = np.stack([self.runs[int(i)].q[int(row) + self.k] for i, row in self.windows])

    def squares(self, settings: Settings) -> Array:
        """The mean squared error of each piece."""
        ahead, _ = ahead_of(self.sim.tuned(settings) if settings else self.sim, self.runs, self.windows, [self.k], None)
        errors = self.compared.difference(ahead[self.k], self.truth) ** 2 @ self.weight
        # A window that diverged is as wrong as a prediction that knows nothing.
        errors = np.where(np.isfinite(errors), np.minimum(errors, 1e3), 1e3)
        n = int(self.piece.max()) + 1
        return np.bincount(self.piece, errors, n) / np.bincount(self.piece, minlength=n)


def _cross_judged(tried: Array, suspects: int) -> tuple[Estimate, int]:
    """The share of squared error [values, pieces] a suspect explains, each piece judged by the value others chose.

    Errors are pooled before they are compared: a piece in which nothing went wrong has no say.
    """
    n = tried.shape[1]
    judged = np.array([tried[int(np.argmin(np.delete(tried, i, axis=1).sum(axis=1))), i] for i in range(n)])
    nominal = np.maximum(tried[0], 1e-300)
    whole = log(float(judged.sum()) / float(nominal.sum()))
    without = np.array([log((judged.sum() - judged[i]) / (nominal.sum() - nominal[i])) for i in range(n)])
    error = sqrt((n - 1) / n * float(((without - without.mean()) ** 2).sum()))
    half = student_quantile(1 - 0.025 / suspects, n - 1) * error
    best = int(np.argmin(tried.sum(axis=1)))
    return Estimate(1 - exp(whole), 1 - exp(min(whole + half, 50.0)), 1 - exp(whole - half), n, "1"), best


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
    """All knobs of a pattern times a factor, where any of them is above zero."""
    model = cast(Any, scene).model
    values = {k: v for k, v in _read(model, pattern).items() if v > 0}
    if pattern.startswith("body."):
        values = {k: v for k, v in values.items() if k.split(".")[1] not in scene.objects}
    if not values:
        return None
    return Suspect(name, factors, lambda f: {k: f * v for k, v in values.items()}, words)


def _dry(scene: Scene) -> Suspect | None:
    """Dry friction in every joint of the robot, beyond what the model has, as a share of what its servos give."""
    model = cast(Any, scene).model
    given = _read(model, "joint.*.frictionloss")
    joints = {k: v for k, v in given.items() if k.split(".")[1] in scene.robot}
    if not joints:
        return None
    strength: dict[str, float] = {}
    for a in range(model.nu):
        if model.actuator_trntype[a] == 0:
            stiffness = abs(float(model.actuator_gainprm[a, 0] * model.actuator_gear[a, 0]))
            reach = 0.05 if model.actuator_biasprm[a, 1] != 0 else 0.5
            strength[str(model.joint(model.actuator_trnid[a, 0]).name)] = stiffness * reach

    def settings(share: float) -> Settings:
        return {k: v + share * strength.get(k.split(".")[1], 0.0) for k, v in joints.items()}

    return Suspect("friction", (0.2, 0.5, 1.0, 2.0), settings, "dry friction worth {:.0f} mrad of servo error", 50.0)


def _read(model: Any, pattern: str) -> dict[str, float]:
    """The values of all knobs of a pattern."""
    knobs = cast(Any, address)
    return dict(knobs.read(model, knobs.matching(model, [pattern])))


def _steps(scene: Scene) -> Suspect:
    step = float(cast(Any, scene).model.opt.timestep)
    return Suspect("time step", (0.5, 0.25, 0.1), lambda f: {address.TIMESTEP: f * step}, "a physics step times {:.2g}")


def _delay(seconds: float) -> Settings:
    return {address.DELAY: seconds}


def _limited(scene: Scene, sim: Any, servos: Sequence[int], names: Sequence[str]) -> tuple[Any, Suspect]:
    """The simulator with motors whose torque can be limited, as a share of what a 0.3 rad (or 3 cm) error asks for."""
    from instep.real.imperfect import Saturated

    model = cast(Any, scene).model
    stiffness = tuple(float(model.actuator_gainprm[a, 0]) for a in servos)
    damping = tuple(-float(model.actuator_biasprm[a, 2]) for a in servos)
    units = scene.spec.action.units
    reach = np.array([0.3 if units[scene.spec.action.labels.index(n)] == "rad" else 0.03 for n in names])
    full = np.array(stiffness) * reach

    def settings(share: float) -> Settings:
        return {"action.torque": tuple(float(x) for x in share * full)}  # type: ignore[dict-item]

    made = Saturated(sim, torque=np.inf, speed=np.inf, stiffness=stiffness, damping=damping)
    suspect = Suspect(
        "actuator limits", (1.0, 0.6, 0.35, 0.2, 0.1), settings, "torque limited to {:.0f} % of a 0.3 rad pull", 100
    )
    return made, suspect
