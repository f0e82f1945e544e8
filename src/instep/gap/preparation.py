"""Preparation of recordings: checks, resampling to the simulator's rate, unwrapped angles, velocities without lag.

A check finds problems that would make a gap meaningless. Each problem names the channel and the probable cause. Errors
stop the measurement unless the user allows the check by name; warnings are reported with the results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from instep.core.episode import Episode, longest_stretch
from instep.core.errors import BadInput, UnknownName
from instep.core.world import Array, array_dataclass, frozen_dataclass
from instep.data.resample import GAP_PERIODS, MAX_DRIFT, MAX_JITTER, is_uneven, resampled

from .gap_result import run_name
from .horizon import QUAT, velocity, wrapped
from .joint_error import position_servos
from .paired_runs import lag

MAX_VELOCITY_LAG = 0.5
"""Recorded velocities that lag by this many rows or more are rebuilt."""
SAMPLE_ROWS = 60_000
"""Rows, spread over all runs, from which a channel is checked."""
MAX_GAP_SHARE = 0.02
"""Share of gaps above which rows can no longer be counted as time."""
OTHER_UNIT = {"rad": (180 / np.pi, "degrees"), "m": (1e3, "millimetres")}
"""The unit that a recording may have been made in by mistake, and its factor."""
MAX_SPEED = {"rad": 100.0, "m": 20.0}
"""Speeds [unit/s] no recorded robot reaches; beyond them a unit is wrong."""
MAX_OFFSET = {"rad": 0.7, "m": 0.1}
"""Offsets this large are a wrong zero, not a load."""
LARGE_OFFSET = {"rad": 0.05, "m": 0.005}
MIN_MOTION = {"rad": 0.05}
"""Range of a command above which its joint must move; 0.005 in other units."""


@frozen_dataclass
class PreparedRuns:
    """Recordings ready to be replayed, and the changes made to them."""

    episodes: list[Episode]
    wrapping: tuple[str, ...]
    """Angles that wrap: those given, and those whose recording jumps by a turn."""
    notes: tuple[str, ...]


@frozen_dataclass
class DataProblem:
    """One problem of one channel."""

    channel: str
    sentence: str
    severity: Literal["error", "warning"] = "error"
    check: str = ""


@frozen_dataclass
class DataChecks:
    """The problems of recordings."""

    problems: tuple[DataProblem, ...]
    allowed: tuple[str, ...] = ()

    @property
    def errors(self) -> tuple[DataProblem, ...]:
        """Problems that forbid a measurement."""
        return tuple(p for p in self.problems if p.severity == "error" and p.check not in self.allowed)

    @property
    def warnings(self) -> tuple[DataProblem, ...]:
        """Problems a reader of the results should know."""
        return tuple(p for p in self.problems if p not in self.errors)

    def require(self) -> None:
        """Raise the first error in one sentence, with the number of further errors."""
        if not self.errors:
            return
        first, more = self.errors[0], len(self.errors) - 1
        rest = f" {more} more such problem{'s' if more > 1 else ''}." if more else ""
        raise BadInput(f"{first.sentence} Repair the recording, or allow it with --allow {first.check}.{rest}")


@array_dataclass
class RecordedRuns:
    """The runs that are checked, with the ranges of joints by label if a model knows them."""

    episodes: tuple[Episode, ...]
    limits: Mapping[str, tuple[float, float]]
    servos: list[tuple[str, int, int]]
    """Joints commanded by position: label, column of q, column of the action."""

    @property
    def units(self) -> tuple[str, ...]:
        """The unit of each position."""
        return self.episodes[0].spec.q.units

    def sample(self) -> list[Episode]:
        """Some of the runs, spread over all of them."""
        rows = sum(len(e) for e in self.episodes)
        return list(self.episodes[:: max(1, rows // SAMPLE_ROWS)])

    def positions(self) -> Iterator[tuple[str, str, list[Array]]]:
        """Label, unit and the values of each position in the sample."""
        spec, sample = self.episodes[0].spec, self.sample()
        for place, (label, unit) in enumerate(zip(spec.q.labels, spec.q.units, strict=True)):
            yield label, unit, [np.asarray(e.q, float)[:, place] for e in sample]


def prepare(episodes: Sequence[Episode], wrapping: Sequence[str] = ()) -> PreparedRuns:
    """Recordings with unwrapped angles, and with rebuilt velocities if the recorded ones lag or are missing.

    A velocity read from a filter lags, and a window started with it looks like an error of the model: on a Furuta
    pendulum 16 ms of lag turn 25 mrad into 68 mrad after a tenth of a second.
    """
    if not episodes:
        return PreparedRuns([], tuple(wrapping), ())
    jumping = list(dict.fromkeys(label for e in episodes for label in _jumping(e)))
    runs = [_unwrapped(e, jumping) for e in episodes]
    late = late_velocities(runs)
    notes: list[str] = []
    if jumping:
        notes.append(f"The recording of {', '.join(jumping)} jumps by a turn and was unwrapped.")
    joints = scalar_joints(episodes[0])
    missing = any("v" not in e for e in runs)
    rebuilt = [n for n in episodes[0].spec.v.labels if n in joints and (missing or n in late)]
    if rebuilt:
        runs = [with_velocities(e, rebuilt) for e in runs]
        why = "none were recorded" if missing else f"the recorded ones lag by up to {1e3 * max(late.values()):.0f} ms"
        notes.append(f"Velocities of {', '.join(rebuilt)} are zero-phase derivatives of the positions: {why}.")
    return PreparedRuns(runs, tuple(dict.fromkeys((*wrapping, *jumping))), tuple(notes))


def recorded_at_rate(episodes: Sequence[Episode], dt: float) -> tuple[list[Episode], list[str]]:
    """The runs at the control period of a simulator [s], and a sentence about each group of resampled runs.

    Runs at another rate, or with uneven clocks, are resampled. Angles are unwrapped and missing velocities derived at
    their own rate first. Then commands are held, states interpolated, and frequencies above a lower rate removed. A
    resampled run says so in its metadata.
    """
    if not episodes:
        raise BadInput("A gap needs at least one recorded run, and none was given.")
    runs: list[Episode] = []
    for i, episode in enumerate(episodes):
        other = abs(episode.spec.dt / dt - 1) > MAX_DRIFT
        if len(episode) < 2 or not (other or is_uneven(episode)):
            runs.append(episode)
            continue
        run = _unwrapped(episode, _jumping(episode))
        if "v" not in run and (joints := scalar_joints(run)):
            run = with_velocities(run, joints)  # between interpolated rows there are none
        try:
            run = resampled(run, 1 / dt)
        except BadInput as error:
            raise BadInput(f"Run {episode.meta.get('name', str(i))!r} is not {1 / dt:.4g} Hz. {error}") from None
        kind = f"at {1 / episode.spec.dt:.4g} Hz" if other else "with uneven clocks"
        runs.append(run.with_columns({}, resampled=kind))
    return runs, resampling_notes(runs)


def resampling_notes(episodes: Sequence[Episode]) -> list[str]:
    """A sentence about each group of runs that were resampled from the same rate."""
    groups = Counter((e.meta["resampled"], f"{1 / e.spec.dt:.4g} Hz") for e in episodes if "resampled" in e.meta)
    return [
        f"{n} recording{'s' if n > 1 else ''} {kind} {'were' if n > 1 else 'was'} resampled to {rate}."
        for (kind, rate), n in groups.items()
    ]


def with_velocities(episode: Episode, labels: Sequence[str]) -> Episode:
    """The episode with the velocities of some joints derived from its positions."""
    places = episode.spec.q.labels
    v = np.array(episode["v"], float) if "v" in episode else np.zeros((len(episode), len(episode.spec.v.labels)))
    columns = [places.index(label) for label in labels]
    dt = float(np.median(np.diff(episode.t))) if len(episode) > 1 else episode.spec.dt
    v[:, [episode.spec.v.labels.index(label) for label in labels]] = velocity(episode.q[:, columns], dt)
    return episode.with_columns({"v": v})


def late_velocities(episodes: Sequence[Episode]) -> dict[str, float]:
    """Joints whose recorded velocity trails the derivative of their position, and by how much [s]."""
    found: dict[str, list[float]] = {}
    for episode in episodes:
        if "v" not in episode or len(episode) < 40:
            continue
        dt = episode.spec.dt
        for label in scalar_joints(episode):
            truth = velocity(episode.q[:, [episode.spec.q.labels.index(label)]], dt)[:, 0]
            recorded = np.asarray(episode["v"], float)[:, episode.spec.v.labels.index(label)]
            if np.std(truth) < 1e-9 or np.std(recorded) < 1e-9:
                continue
            trail = lag(truth, recorded, dt, longest=max(0.06, 4 * dt))
            if trail.correlation > 0.7 and not trail.at_limit:
                found.setdefault(label, []).append(trail.seconds)
    typical = {label: float(np.median(lags)) for label, lags in found.items()}
    return {label: seconds for label, seconds in typical.items() if seconds >= MAX_VELOCITY_LAG * episodes[0].spec.dt}


def scalar_joints(episode: Episode) -> list[str]:
    """Joints whose velocity is the derivative of one position: no orientations, no coordinates of free bodies."""
    v = episode.spec.v.labels
    return [label for label in episode.spec.q.labels if label in v and label.rpartition(".")[2] not in QUAT]


def check_data(
    episodes: Sequence[Episode], *, limits: Mapping[str, tuple[float, float]] | None = None, allow: Sequence[str] = ()
) -> DataChecks:
    """Check recordings: finite values, clocks, units, order, sign, offsets, quantisation, clipping, frozen channels."""
    for name in allow:
        if name not in CHECKS:
            raise UnknownName("check", name, CHECKS)
    if not episodes:
        raise BadInput("The dataset holds no episode; a gap needs at least one recorded run.")
    for i, episode in enumerate(episodes):
        if "q" not in episode:
            raise BadInput("The recording holds no positions ('q'), so there is nothing to compare; import it anew.")
        if len(episode) < 2:
            name = episode.meta.get("name", str(i))
            raise BadInput(f"Run {name!r} has {len(episode)} row; a gap needs at least two. Leave it out.")
    runs = RecordedRuns(tuple(episodes), dict(limits or {}), position_servos(episodes))
    powered = replace(runs, episodes=tuple(s for e in episodes if len(s := e.powered_stretch()) > 1))
    problems: list[DataProblem] = []
    for name, check in CHECKS.items():
        subject = powered if name in COMMAND_CHECKS else runs
        found = [replace(p, check=name) for p in check(subject)] if subject.episodes else []
        problems += found
        # Further checks would only repeat that numbers are missing.
        if name == "finite" and found and "finite" not in allow:
            break
    return DataChecks(tuple(problems), tuple(allow))


def _finite(runs: RecordedRuns) -> Iterator[DataProblem]:
    """Numbers that are NaN or infinite."""
    for i, episode in enumerate(runs.episodes):
        spec = episode.spec
        for column, channel in (("q", spec.q), ("v", spec.v), ("action", spec.action)):
            if column not in episode:
                continue
            # The action of the last row leads nowhere.
            bad = ~np.isfinite(np.asarray(episode[column])[: len(episode) - (column == "action")])
            if bad.any():
                row, place = (int(x) for x in np.argwhere(bad)[0])
                label = channel.labels[place] if place < len(channel.labels) else str(place)
                sentence = (
                    f"{label!r} in {column!r} of run {run_name(episode, i)!r} is not a finite number in row {row} "
                    f"({100 * float(bad[:, place].mean()):.0f} % of the run)."
                )
                yield DataProblem(label, sentence)
                return


def _stamps(runs: RecordedRuns) -> Iterator[DataProblem]:
    """Stamps that go back or stand still, scatter, or skip."""
    jitter, steps_seen = 0.0, 0
    gaps: list[tuple[str, float, float]] = []
    for i, episode in enumerate(runs.episodes):
        t, name = np.asarray(episode.t, float), run_name(episode, i)
        step = np.diff(t)
        if (step <= 0).any():
            row = int(np.argmax(step <= 0)) + 1
            how = "goes back" if step[row - 1] < 0 else "stands still"
            sentence = f"Time {how} at row {row} of run {name!r} ({t[row - 1]:.4f} then {t[row]:.4f} s)."
            yield DataProblem("timestamp", sentence)
            return
        period = float(np.median(step))
        jitter = max(jitter, float(np.quantile(np.abs(step - period), 0.95)) / period)
        gaps += [(name, float(t[k]), float(step[k])) for k in np.flatnonzero(step > GAP_PERIODS * period)]
        steps_seen += len(step)
    if gaps:
        run, at, long = max(gaps, key=lambda gap: gap[2])
        severity = "error" if len(gaps) > MAX_GAP_SHARE * steps_seen else "warning"
        sentence = f"{len(gaps)} gaps in the stamps, the longest {1e3 * long:.0f} ms at {at:.2f} s of run {run!r}."
        yield DataProblem("timestamp", sentence, severity)
    if jitter > MAX_JITTER:
        sentence = f"The stamps scatter by {100 * jitter:.0f} % of the period; rows are not evenly spaced."
        yield DataProblem("timestamp", sentence, "warning")


def _rate(runs: RecordedRuns) -> Iterator[DataProblem]:
    """Stamps that contradict the rate the dataset states."""
    for i, episode in enumerate(runs.episodes):
        period, stated = float(np.median(np.diff(np.asarray(episode.t, float)))), episode.spec.dt
        if abs(period / stated - 1) > 0.02 and period > 0:
            hint = " (milliseconds instead of seconds?)" if 900 < period / stated < 1100 else ""
            stamped = f"Run {run_name(episode, i)!r} is stamped every {1e3 * period:.4g} ms"
            yield DataProblem("timestamp", f"{stamped}, but its rate says {1e3 * stated:.4g} ms{hint}.")
            return


def _units(runs: RecordedRuns) -> Iterator[DataProblem]:
    """Degrees instead of radians, millimetres instead of metres."""
    periods = [e.spec.dt for e in runs.sample()]
    for label, unit, columns in runs.positions():
        if unit not in MAX_SPEED or label.rpartition(".")[2] in QUAT:
            continue
        factor, other = OTHER_UNIT[unit]
        if (outside := _beyond(columns, runs.limits.get(label), factor)) is not None:
            sentence = f"{label!r} reaches {outside:.4g}, far beyond its range in {unit}: {other} instead of {unit}?"
            yield DataProblem(label, sentence)
        elif (speed := _speed(columns, unit, periods)) > MAX_SPEED[unit]:
            sentence = f"{label!r} moves at {speed:.4g} {unit}/s, which no robot does: {other} instead of {unit}?"
            yield DataProblem(label, sentence)
        else:
            ratio = _velocity_ratio(runs, label)
            if any(0.7 < ratio / f < 1.4 for f in (factor, 1 / factor)):
                sentence = (
                    f"The velocity of {label!r} is {ratio:.3g} times the rate of its position: degrees and radians?"
                )
                yield DataProblem(label, sentence)


def _frozen(runs: RecordedRuns) -> Iterator[DataProblem]:
    """Sensors that stand still while their command moves."""
    for label, place, commanded in runs.servos:
        commands = [(e.action[:-1, commanded], e.q[:, place]) for e in runs.episodes if len(e) > 2]
        least = MIN_MOTION.get(runs.units[place], 0.005)
        moved = [answer for command, answer in commands if _motion_range(command) >= least]
        still = sum(float(np.ptp(answer)) == 0.0 for answer in moved)
        if still:
            sentence = f"{label!r} is frozen in {still} of the {len(moved)} runs in which its command moves."
            yield DataProblem(label, sentence)
    for i, episode in enumerate(runs.episodes):
        found = _all_frozen(episode, [commanded for _, _, commanded in runs.servos])
        if found is not None:
            sentence = (
                f"All positions of run {run_name(episode, i)!r} stand still for {found[1]:.2g} s from {found[0]:.2f} s "
                "on while the command moves: a stale sensor?"
            )
            # One joint alone may as well stick by friction.
            severity = "error" if episode.q.shape[1] > 1 else "warning"
            yield DataProblem("q", sentence, severity)
            return


def _gains(runs: RecordedRuns) -> Iterator[DataProblem]:
    """Answers that are 57 or 1000 times their command, or that part of it."""
    for label, place, commanded in runs.servos:
        parts = [(e.action[:-1, commanded], e.q[:-1, place]) for e in runs.sample()]
        command, answer = (np.concatenate([x - x.mean() for x in side]) for side in zip(*parts, strict=True))
        if len(command) < 20 or np.std(command) < 1e-9 or np.std(answer) == 0:
            continue
        gain, unit = float(np.std(answer) / np.std(command)), runs.units[place]
        factor, _ = OTHER_UNIT.get(unit, OTHER_UNIT["m"])
        other = 0.6 < gain / factor < 1.6 or 0.6 < gain * factor < 1.6
        if other and abs(float(np.corrcoef(command, answer)[0, 1])) > 0.5:
            which = "degrees and radians" if unit == "rad" else "millimetres and metres"
            yield DataProblem(
                label, f"{label!r} answers its command {gain:.3g}-fold: are command and state in {which}?"
            )


def _order(runs: RecordedRuns) -> Iterator[DataProblem]:
    """Joints that answer the command of another joint, or their own with inverted sign."""
    servos = runs.servos
    matrix = _responses(runs)
    for i, (label, _, _) in enumerate(servos):
        own = float(matrix[i, i])
        if np.isnan(own):
            continue
        others = np.where(np.arange(len(servos)) == i, -np.inf, np.nan_to_num(np.abs(matrix[i]), nan=-np.inf))
        best = int(np.argmax(others))
        if own < -0.6:
            sentence = f"{label!r} moves against its command (correlation {own:.2f}): is its sign inverted?"
            yield DataProblem(label, sentence)
        elif own < 0.4 and others[best] > 0.8:
            sentence = (
                f"{label!r} follows the command of {servos[best][0]!r} (correlation {others[best]:.2f}) rather than "
                f"its own ({own:.2f}): is the order of the joints right?"
            )
            yield DataProblem(label, sentence)


def _offsets(runs: RecordedRuns) -> Iterator[DataProblem]:
    """Joints that rest away from their command."""
    for label, place, commanded in runs.servos:
        off, unit = _rest_offset(runs, place, commanded), runs.units[place]
        if off is None or abs(off) <= LARGE_OFFSET.get(unit, np.inf):
            continue
        severity = "error" if abs(off) > MAX_OFFSET[unit] else "warning"
        why = "is its zero elsewhere?" if severity == "error" else "a zero that is off, a load, or a contact."
        yield DataProblem(label, f"{label!r} rests {off:+.3g} {unit} from its command: {why}", severity)


CHECKS: dict[str, Callable[[RecordedRuns], Iterator[DataProblem]]] = {
    "finite": _finite,
    "stamps": _stamps,
    "rate": _rate,
    "units": _units,
    "frozen": _frozen,
    "gain": _gains,
    "order": _order,
    "offset": _offsets,
}
"""Every check by the name under which a user may allow it."""
COMMAND_CHECKS = ("frozen", "gain", "order", "offset")
"""Checks that compare positions with commands, which motors follow only while they are switched on."""


def _motion_range(column: Array) -> float:
    """The distance between the 1st and the 99th percentile of a signal."""
    low, high = np.quantile(column, [0.01, 0.99])
    return float(high - low)


def _beyond(columns: list[Array], limits: tuple[float, float] | None, factor: float) -> float | None:
    """The furthest value, if it is far outside a known range and would be inside in the other unit."""
    if limits is None or not np.isfinite(limits).all():
        return None
    (low, high), values = limits, np.concatenate(columns)
    far = float(values[np.argmax(np.maximum(low - values, values - high))])
    room = 0.2 * (high - low)
    inside = low - room <= far / factor <= high + room
    return far if max(low - far, far - high) > max(high - low, 0.5) and inside else None


def _speed(columns: list[Array], unit: str, periods: list[float]) -> float:
    """The 90th percentile of the speed of the fastest run: single outliers are a fault of another kind."""
    fastest = 0.0
    for step, dt in zip(map(np.diff, columns), periods, strict=True):
        step = wrapped(step) if unit == "rad" and (np.abs(step) < 2 * np.pi).all() else step
        fastest = max(fastest, float(np.quantile(np.abs(step), 0.9)) / dt if len(step) else 0.0)
    return fastest


def _velocity_ratio(runs: RecordedRuns, label: str) -> float:
    """Velocities over the rates of their positions, the median over runs; 0 if it is not known."""
    spec, ratios = runs.episodes[0].spec, list[float]()
    for episode in runs.sample()[:20] if label in spec.v.labels and "v" in runs.episodes[0] else ():
        step = np.diff(np.asarray(episode.q, float)[:, spec.q.labels.index(label)]) / episode.spec.dt
        step = step[np.abs(step) < np.pi / episode.spec.dt]
        if len(step) > 10 and np.std(step) > 0:
            ratios.append(float(np.std(episode["v"][:, spec.v.labels.index(label)]) / np.std(step)))
    return float(np.median(ratios)) if ratios else 0.0


def _all_frozen(episode: Episode, commanded: Sequence[int]) -> tuple[float, float] | None:
    """Begin and length [s] of half a second and more in which no position changes while commands move."""
    q, dt = np.asarray(episode.q, float), episode.spec.dt
    if not commanded or len(q) < 10:
        return None
    same = (np.diff(q, axis=0) == 0).all(axis=1)
    command = np.abs(np.diff(episode.action[:, commanded], axis=0)).max(axis=1)
    begin, rows = longest_stretch(same)
    if rows * dt <= 0.5 or begin == 0 or begin + rows >= len(same):
        return None
    moved = float(np.nansum(command[begin : begin + rows])) > 0.1 * float(np.nansum(command))
    return (begin * dt, rows * dt) if moved else None


def _responses(runs: RecordedRuns) -> Array:
    """Correlation of the rate of each answer (row) with that of each command (column), NaN if nothing moves.

    Rates rather than positions: slow common motion makes positions of all joints alike. Both are smoothed over the
    same 0.2 s, because an answer trails its command.
    """
    places, actions = [place for _, place, _ in runs.servos], [commanded for _, _, commanded in runs.servos]
    rates: list[Array] = []
    for episode in runs.sample() if runs.servos else ():
        span = max(1, round(0.2 / episode.spec.dt))
        if len(episode) >= 3 * span:
            values = np.concatenate([episode.q[:, places], episode.action[:, actions]], axis=1, dtype=float)
            values[-1, len(places) :] = values[-2, len(places) :]
            rates.append(values[span:] - values[:-span])
    n = len(places)
    if not rates:
        return np.full((n, n), np.nan)
    moved = np.concatenate(rates)
    idle = moved.std(axis=0) < 1e-4
    with np.errstate(invalid="ignore", divide="ignore"):
        found = np.corrcoef(moved, rowvar=False).reshape(2 * n, 2 * n)[:n, n:]
    return np.where(idle[:n, None] | idle[n:], np.nan, found)


def _rest_offset(runs: RecordedRuns, place: int, commanded: int) -> float | None:
    """The median distance of an answer from its command while the command has been still for half a second."""
    found: list[Array] = []
    for episode in runs.sample():
        span, command = max(1, round(0.5 / episode.spec.dt)), np.asarray(episode.action, float)[:-1, commanded]
        if len(command) > 2 * span:
            steady = np.abs(command[span:] - command[:-span]) < 1e-3
            found.append((episode.q[:-1, place] - command)[span:][steady])
    values = np.concatenate(found) if found else np.zeros(0)
    if len(values) < 20:
        return None
    middle = float(np.median(values))
    return middle if abs(middle) > 3 * float(np.median(np.abs(values - middle))) else None


def _jumping(episode: Episode) -> list[str]:
    """Angles that jump by about a whole turn between two rows."""
    found: list[str] = []
    for label, unit, column in zip(episode.spec.q.labels, episode.spec.q.units, episode.q.T, strict=True):
        step = np.diff(column)
        # Half a turn per row is faster than anything that was sampled well; a wrap is a turn less a small step.
        wraps = (np.abs(step) > 1.5 * np.pi).any() and (np.abs(wrapped(step)) < 0.5 * np.pi).all()
        found += [label] if unit == "rad" and wraps else []
    return found


def _unwrapped(episode: Episode, labels: Sequence[str]) -> Episode:
    if not labels:
        return episode
    q = np.array(episode.q, float)
    columns = [episode.spec.q.labels.index(label) for label in labels]
    q[:, columns] = np.unwrap(q[:, columns], axis=0)
    return episode.with_columns({"q": q})
