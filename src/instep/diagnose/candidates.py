"""Candidate causes of a gap: single parameter changes of a simulator, each tried over a range of values.

The value of a candidate is chosen on some pieces of the runs and scored on the others, so that fitting noise gains
nothing. Candidates with similar effects (a delay and a soft servo both make an arm late) are separated by which one
explains more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from fnmatch import fnmatchcase
from math import exp, inf, log, sqrt
from typing import Any, cast

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput, InstepError
from instep.core.param import Address
from instep.core.records import array_dataclass, options_dataclass
from instep.core.replay import Aligned, aligned
from instep.core.statistics import Estimate, student_quantile
from instep.core.world import Array, Settings, Simulator
from instep.gap.channels import Channels, channels
from instep.gap.horizon import HorizonOptions, WindowOptions, predict_windows, windows_of
from instep.scene import address
from instep.scene.folder import Scene

from .failure_modes import FailureMode

MIN_SHARE = 0.1
"""A candidate must explain at least this share of the squared error to be reported."""
Values = Mapping[str, float]
"""Joint -> value."""
Watch = Callable[[str], None]
"""Receives the name of the candidate that is tried."""


@array_dataclass
class Candidate:
    """One parameter change that may explain a gap."""

    name: str
    """The failure mode it stands for."""
    values: tuple[float, ...]
    """Values to try, the mildest first."""
    settings: Callable[[Values], Settings]
    """The settings for a value of each joint."""
    words: str
    """Format of the value in the evidence: 'a delay of {:.0f} ms'."""
    shown: float = 1.0
    """Factor from the value to the number shown."""
    shared: bool = False
    """Whether all joints share one value (a delay) or each has its own (friction)."""

    def at(self, value: float, joints: Sequence[str]) -> Settings:
        """The settings with one value for all joints."""
        return self.settings(dict.fromkeys(joints, value))


@options_dataclass
class CandidateOptions(WindowOptions):
    """How candidates are tried."""

    horizon: float = 0.25
    """Length of a window [s]."""
    every: float = 0.2
    """Distance between window starts [s]."""
    pieces: int = 8
    """Runs are cut into at least this many pieces for cross-validation."""
    rounds: int = 2
    """Refinements of the search around the best value."""
    most: int = 240
    """Windows replayed for each value, spread over all runs."""
    max_causes: int = 6
    """Causes that are identified together at most; each further one doubles the replays of an attribution."""
    watch: Watch | None = None
    """Called with the name of each candidate before it is tried."""


@array_dataclass
class CandidateResult:
    """How much one candidate explains."""

    candidate: Candidate
    value: float
    """The value that explains most; the median where joints have their own."""
    gain: Estimate
    """Share of the squared error it explains on held-out pieces, with intervals simultaneous over all candidates."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def significant(self) -> bool:
        """Whether it explains enough, and its interval excludes zero."""
        return self.gain.low > 0 and self.gain.value >= MIN_SHARE


def try_candidates(
    sim: Simulator,
    episodes: Sequence[Episode],
    candidates: Sequence[Candidate],
    options: CandidateOptions | None = None,
) -> list[CandidateResult]:
    """How much of the gap each candidate explains by itself, the best first."""
    options = options or CandidateOptions()
    if not episodes:
        raise BadInput("A search for causes needs at least one recorded run.")
    errors = _WindowErrors(sim, episodes, options)
    nominal = errors.squares({})
    found: list[CandidateResult] = []
    for candidate in candidates:
        if options.watch is not None:
            options.watch(candidate.name)
        values = list(candidate.values)
        squares = [errors.squares(candidate.at(value, errors.joints)) for value in values]
        for _ in range(options.rounds):
            closer = _between_best(values, [float(s.sum()) for s in squares])
            values += closer
            squares += [errors.squares(candidate.at(value, errors.joints)) for value in closer]
        table = np.stack([nominal, *squares])
        found.append(_result(candidate, (0.0, *values), table, errors.joints, len(candidates)))
    return sorted(found, key=lambda result: -result.gain.value)


def identify_causes(
    sim: Simulator,
    episodes: Sequence[Episode],
    candidates: Sequence[Candidate],
    options: CandidateOptions | None = None,
) -> tuple[list[CandidateResult], list[CandidateResult]]:
    """The causes that explain a gap together by forward selection, and the first result of every candidate.

    After each cause the remaining candidates are tried again with it applied. Changes without a significant
    improvement on held-out pieces are not reported.
    """
    options = options or CandidateOptions()
    first = try_candidates(sim, episodes, candidates, options)
    causes: list[CandidateResult] = []
    results, settings = first, dict[str, Any]()
    while results and results[0].significant and len(causes) < options.max_causes:
        causes.append(results[0])
        settings |= results[0].settings
        rest = [c for c in candidates if all(c is not cause.candidate for cause in causes)]
        results = try_candidates(sim.tuned(settings), episodes, rest, options) if rest else []
    return causes, first


def physical_modes(results: Sequence[CandidateResult]) -> list[FailureMode]:
    """One failure mode per candidate name; only the best significant candidate counts as found."""
    modes: dict[str, FailureMode] = {}
    for place, r in enumerate(results):
        name = r.candidate.name
        if name in modes:
            continue
        words = r.candidate.words.format(r.value * r.candidate.shown) if r.value else "No value of it"
        share = f"explains {100 * max(r.gain.value, 0):.0f} % of the squared error on held-out pieces"
        sentence = f"{words} {share} [{100 * r.gain.low:.0f}, {100 * r.gain.high:.0f} %]."
        modes[name] = FailureMode(name, r.significant and place == 0, r.gain, sentence[0].upper() + sentence[1:])
    return list(modes.values())


def candidate_causes(scene: Scene, sim: Simulator) -> tuple[Simulator, list[Candidate]]:
    """The simulator extended by backlash and torque limits, and the candidates that apply to its scene."""
    model = cast(Any, scene).model
    servos = [a for a in range(model.nu) if model.actuator_biasprm[a, 1] != 0]
    gains = (
        _scaled(scene, "gains", "actuator.*.kp", (0.8, 0.6, 0.4, 1.25, 1.6, 2.5), "servo stiffness times {:.2g}")
        if servos
        else _scaled(scene, "gains", "actuator.*.gain", (0.9, 0.75, 0.6, 1.1, 1.3, 1.6), "motor gain times {:.2g}")
    )
    delays = (0.01, 0.02, 0.03, 0.045, 0.06, 0.09, 0.13)
    candidates = [
        _scaled(scene, "friction", "joint.*.damping", (2.0, 4.0, 8.0, 0.5, 0.25), "joint damping times {:.2g}"),
        _dry_friction(scene),
        gains,
        _scaled(scene, "payload", "body.*.mass", (1.25, 1.6, 2.2, 0.8, 0.6), "link masses times {:.2g}"),
        _time_step(scene),
        Candidate("latency", delays, _delay, "a delay of {:.0f} ms", 1e3, True) if model.nu else None,
        _contact_friction(scene),
    ]
    wrapped: Any = sim
    if servos and len(servos) == model.nu and set(scene.spec.action.labels) <= set(scene.spec.q.labels):
        wrapped, backlash = _backlash(scene, wrapped)
        wrapped, torque = _torque_limit(scene, wrapped, servos)
        candidates += [backlash, torque]
    return wrapped, [c for c in candidates if c is not None]


def supported(sim: Simulator, candidates: Sequence[Candidate]) -> tuple[list[Candidate], list[str]]:
    """The candidates whose parameters this engine has, and a note about each of the others."""
    kept: list[Candidate] = []
    notes: list[str] = []
    for candidate in candidates:
        try:
            sim.tuned(candidate.at(candidate.values[0], sim.spec.q.labels))
        except InstepError as error:
            notes.append(f"The cause {candidate.name!r} was not tried: {error}")
        else:
            kept.append(candidate)
    return kept, notes


class _WindowErrors:
    """Mean squared errors of each channel and piece [channels, pieces] under some settings.

    A piece is a stretch of windows of one run: runs stay whole, because a window needs the commands before it.
    """

    def __init__(self, sim: Simulator, episodes: Sequence[Episode], options: CandidateOptions):
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
        last = np.array([len(run.q) - 1 for run in self.runs])[windows[:, 0]]
        # Commands before the start of a run are unknown, so its first moments cannot identify a delay.
        known = windows[:, 1] * sim.spec.dt >= address.LONGEST_DELAY
        fitting = windows[:, 1] + self.k <= last
        windows = windows[fitting & known] if (fitting & known).sum() >= 3 else windows[fitting]
        self.windows = windows[:: max(1, -(-len(windows) // options.most))]
        self.piece = _pieces(self.windows, options.pieces)
        self.truth = np.stack([self.runs[int(i)].q[int(row) + self.k] for i, row in self.windows])

    def squares(self, settings: Settings) -> Array:
        """The mean squared error of each channel and piece, as parts of the overall error."""
        sim = self.sim.tuned(settings) if settings else self.sim
        ahead, _ = predict_windows(sim, self.runs, self.windows, [self.k], None)
        errors = self.compared.difference(ahead[self.k], self.truth) ** 2 * self.weight
        # A window that diverged counts as a large but finite error.
        errors = np.where(np.isfinite(errors), np.minimum(errors, 1e3), 1e3)
        n = int(self.piece.max()) + 1
        counts = np.bincount(self.piece, minlength=n)
        return np.stack([np.bincount(self.piece, column, n) / counts for column in errors.T])


def _result(
    candidate: Candidate, values: Sequence[float], squares: Array, joints: Sequence[str], candidates: int
) -> CandidateResult:
    """What a candidate explains, from squared errors [values, channels, pieces], by leave-one-piece-out.

    Each piece is scored with the values the other pieces chose: one for all joints, or for each joint the one that
    suits its own errors best. Errors are pooled before they are compared: a piece without errors has no weight.
    """
    if candidate.shared:
        squares = squares.sum(axis=1, keepdims=True)
    pieces = squares.shape[2]
    held_out = np.zeros(pieces)
    for i in range(pieces):
        others = np.delete(squares, i, axis=2).sum(axis=2)
        held_out[i] = sum(float(squares[int(np.argmin(others[:, c])), c, i]) for c in range(squares.shape[1]))
    gain = _explained_share(held_out, squares[0].sum(axis=0), candidates)
    best = np.argmin(squares.sum(axis=2), axis=0)
    chosen = [values[int(b)] for b in (best if not candidate.shared else np.repeat(best, len(joints)))]
    # Value 0 is the nominal model: such a joint is left as it is.
    changed = {joint: value for joint, value in zip(joints, chosen, strict=True) if value}
    settings = dict(candidate.settings(changed)) if changed else {}
    return CandidateResult(candidate, float(np.median(list(changed.values()))) if changed else 0.0, gain, settings)


def _explained_share(held_out: Array, nominal: Array, candidates: int) -> Estimate:
    n = len(held_out)
    nominal, held_out = np.maximum(nominal, 1e-300), np.maximum(held_out, 1e-300)
    whole = log(float(held_out.sum()) / float(nominal.sum()))
    without = np.array([log((held_out.sum() - held_out[i]) / (nominal.sum() - nominal[i])) for i in range(n)])
    error = sqrt((n - 1) / n * float(((without - without.mean()) ** 2).sum()))
    half = student_quantile(1 - 0.025 / candidates, n - 1) * error
    return Estimate(1 - exp(whole), 1 - exp(min(whole + half, 50.0)), 1 - exp(whole - half), n, "1")


def _between_best(values: Sequence[float], totals: Sequence[float]) -> list[float]:
    """Values between the best one tried and its neighbours in size."""
    order = np.argsort(values)
    ranked, best = [values[int(i)] for i in order], int(np.argmin([totals[int(i)] for i in order]))
    between: list[float] = []
    for other in (best - 1, best + 1):
        if 0 <= other < len(ranked):
            a, b = ranked[best], ranked[other]
            between.append(sqrt(a * b) if a > 0 and b > 0 else 0.5 * (a + b))
    return between


def _pieces(windows: Array, least: int) -> Array:
    """The piece each window belongs to: runs are cut into stretches until there are enough pieces."""
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
        raise BadInput("The runs are too short to search for causes; record at least two seconds of motion.")
    return piece


def _scaled(scene: Scene, name: str, pattern: str, factors: tuple[float, ...], words: str) -> Candidate | None:
    """All positive parameters of a pattern times a factor: one factor for all links, one per joint elsewhere."""
    nominal = {k: v for k, v in _read(cast(Any, scene).model, pattern).items() if v > 0}
    shared = pattern.startswith(("body.", "geom."))
    if pattern.startswith("body."):
        nominal = {k: v for k, v in nominal.items() if Address.parse(k).name not in scene.objects}
    if not nominal:
        return None

    def settings(values: Values) -> Settings:
        if shared:
            return {k: _single(values) * v for k, v in nominal.items()}
        return {k: values[n] * v for k, v in nominal.items() if (n := Address.parse(k).name) in values}

    return Candidate(name, factors, settings, words, shared=shared)


def _contact_friction(scene: Scene) -> Candidate | None:
    """The friction between free bodies and what they touch."""
    factors = (0.75, 0.5, 0.3, 1.3, 1.8, 3.0)
    words = "contact friction times {:.2g}"
    return _scaled(scene, "friction", "geom.*.friction", factors, words) if scene.objects else None


def _dry_friction(scene: Scene) -> Candidate | None:
    """Dry friction in every joint of the robot beyond the model's, as a share of its actuator strength."""
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

    def settings(values: Values) -> Settings:
        return {f"joint.{j}.frictionloss": v + values[j] * strength[j] for j, v in joints.items() if j in values}

    return Candidate("friction", (0.2, 0.5, 1.0, 2.0), settings, "dry friction worth {:.0f} mrad of servo error", 50.0)


def _read(model: Any, pattern: str) -> dict[str, float]:
    """The values of all parameters that match a pattern."""
    params = cast(Any, address)
    known = [a for a in params.addresses(model) if fnmatchcase(a, pattern)]
    return dict(params.read(model, known))


def _time_step(scene: Scene) -> Candidate:
    step = float(cast(Any, scene).model.opt.timestep)

    def settings(values: Values) -> Settings:
        return {address.TIMESTEP: _single(values) * step}

    return Candidate("time step", (0.5, 0.25, 0.1), settings, "a physics step times {:.2g}", shared=True)


def _delay(values: Values) -> Settings:
    return {address.DELAY: _single(values)}


def _single(values: Values) -> float:
    return next(iter(values.values()))


def _backlash(scene: Scene, sim: Any) -> tuple[Any, Candidate]:
    """The simulator with backlash in its gears, zero at first."""
    from instep.robot import Backlash

    labels = scene.spec.action.labels

    def settings(values: Values) -> Settings:
        return cast(Settings, {"action.backlash": tuple(values.get(label, 0.0) for label in labels)})

    gaps = (0.01, 0.02, 0.04, 0.07, 0.12)
    return Backlash(sim, gap=0.0), Candidate("backlash", gaps, settings, "backlash of {:.0f} mrad", 1e3)


def _torque_limit(scene: Scene, sim: Any, servos: Sequence[int]) -> tuple[Any, Candidate]:
    """The simulator with a torque limit, as a share of the torque of a 0.3 rad (or 3 cm) position error."""
    from instep.robot import Saturated

    model = cast(Any, scene).model
    labels, units = scene.spec.action.labels, scene.spec.action.units
    stiffness = tuple(float(model.actuator_gainprm[a, 0]) for a in servos)
    damping = tuple(-float(model.actuator_biasprm[a, 2]) for a in servos)
    full = [k * (0.3 if unit == "rad" else 0.03) for k, unit in zip(stiffness, units, strict=True)]

    def settings(values: Values) -> Settings:
        torque = tuple(values.get(label, inf) * f for label, f in zip(labels, full, strict=True))
        return cast(Settings, {"action.torque": torque})

    limited = Saturated(sim, torque=inf, speed=inf, stiffness=stiffness, damping=damping)
    words = "torque limited to {:.0f} % of that of a 0.3 rad error"
    return limited, Candidate("actuator limits", (1.0, 0.6, 0.35, 0.2, 0.1), settings, words, 100)
