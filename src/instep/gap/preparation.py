"""Preparation of recordings for replay: resampled to the simulator's rate, angles unwrapped, velocities without lag.

Data checks: problems of recordings that would make a gap meaningless, found before anything is measured.

Each problem names the channel and what is probably wrong. Errors stop the measurement unless the user allows the check
by name; warnings are reported with the results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Literal

import numpy as np

from instep.core.episode import Episode, longest_stretch
from instep.core.errors import BadInput, UnknownName
from instep.core.world import Array, array_dataclass, frozen_dataclass
from instep.data.resample import GAP_PERIODS, MAX_DRIFT, MAX_JITTER, is_uneven, resampled
from instep.report.page import Section, Table

from .gap_result import run_name
from .horizon import QUAT, velocity, wrapped
from .joint_error import position_servos
from .time_alignment import lag

MAX_VELOCITY_LAG = 0.5
"""Recorded velocities that lag by this many rows or more are rebuilt."""


@frozen_dataclass
class PreparedRuns:
    """Recordings ready to be replayed, and what was changed."""

    episodes: list[Episode]
    wrapping: tuple[str, ...]
    """Angles that wrap: those asked for, and those whose recording jumps by a turn."""
    notes: tuple[str, ...]


def prepare(episodes: Sequence[Episode], wrapping: Sequence[str] = ()) -> PreparedRuns:
    """Recordings with unwrapped angles and, where the recorded ones lag or lack, rebuilt velocities.

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
    labels = [label for label in episodes[0].spec.v.labels if label in scalar_joints(episodes[0])]
    lacking = any("v" not in e for e in runs)
    rebuilt = labels if lacking else [label for label in labels if label in late]
    if rebuilt:
        runs = [with_velocities(e, rebuilt) for e in runs]
        why = "none were recorded" if lacking else f"the recorded ones lag by up to {1e3 * max(late.values()):.0f} ms"
        notes.append(f"Velocities of {', '.join(rebuilt)} are zero-phase derivatives of the positions: {why}.")
    return PreparedRuns(runs, tuple(dict.fromkeys((*wrapping, *jumping))), tuple(notes))


def recorded_at_rate(episodes: Sequence[Episode], dt: float) -> tuple[list[Episode], list[str]]:
    """The runs at the control period of a simulator [s], and a sentence about each group of them that was resampled.

    Runs at another rate, or with uneven clocks, are resampled: angles unwrapped and missing velocities found at their
    own rate first, then commands held, states interpolated, and what a lower rate cannot hold filtered out. A resampled
    run says so in its metadata.
    """
    if not episodes:
        raise BadInput("A gap needs at least one recorded run, and none was given.")
    runs: list[Episode] = []
    for i, episode in enumerate(episodes):
        other = abs(episode.spec.dt / dt - 1) > MAX_DRIFT
        if len(episode) < 2 or not (other or is_uneven(episode)):
            runs.append(episode)
            continue
        try:
            run = resampled(_with_velocities(_unwrapped(episode, _jumping(episode))), 1 / dt)
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


def _jumping(episode: Episode) -> list[str]:
    return [label for label in angles(episode) if jumps(episode, label)]


def _with_velocities(episode: Episode) -> Episode:
    """The episode with velocities of its joints, where none were recorded: between interpolated rows there are none."""
    lacking = "v" not in episode and bool(scalar_joints(episode))
    return with_velocities(episode, scalar_joints(episode)) if lacking else episode


def with_velocities(episode: Episode, labels: Sequence[str]) -> Episode:
    """The episode with the velocities of some joints taken from its positions."""
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


def angles(episode: Episode) -> list[str]:
    """Joints measured in radians."""
    units = dict(zip(episode.spec.q.labels, episode.spec.q.units, strict=True))
    return [label for label in episode.spec.q.labels if units[label] == "rad"]


def scalar_joints(episode: Episode) -> list[str]:
    """Joints whose velocity is the derivative of one position: no orientations, no coordinates of free bodies."""
    v = episode.spec.v.labels
    return [label for label in episode.spec.q.labels if label in v and label.rpartition(".")[2] not in QUAT]


def jumps(episode: Episode, label: str) -> bool:
    """Whether an angle jumps by about a whole turn between two rows."""
    step = np.diff(episode.q[:, episode.spec.q.labels.index(label)])
    # Half a turn per row is faster than anything that was sampled well; a wrap is a turn less a small step.
    return bool((np.abs(step) > 1.5 * np.pi).any()) and bool((np.abs(wrapped(step)) < 0.5 * np.pi).all())


def _unwrapped(episode: Episode, labels: Sequence[str]) -> Episode:
    if not labels:
        return episode
    q = np.array(episode.q, float)
    columns = [episode.spec.q.labels.index(label) for label in labels]
    q[:, columns] = np.unwrap(q[:, columns], axis=0)
    return episode.with_columns({"q": q})


SAMPLE_ROWS = 60_000
"""Rows, spread over all runs, from which a channel is checked."""
MAX_GAP_SHARE = 0.02
"""Share of gaps above which rows can no longer be counted as time."""
DEGREES = 180 / np.pi
MAX_SPEED = {"rad": 100.0, "m": 20.0}
"""Speeds [unit/s] no recorded robot reaches; beyond them a unit is wrong."""
MAX_OFFSET = {"rad": 0.7, "m": 0.1}
"""Offsets this large are a wrong zero, not a load."""
LARGE_OFFSET = {"rad": 0.05, "m": 0.005}


@frozen_dataclass
class DataProblem:
    """One problem of one channel."""

    severity: Literal["error", "warning"]
    check: str
    channel: str
    sentence: str


@frozen_dataclass
class DataChecks:
    """The problems that were found."""

    problems: tuple[DataProblem, ...]
    allowed: tuple[str, ...] = field(default=())

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

    def section(self) -> Section:
        """The problems as a section of a report."""
        rows = [[p.check, p.channel, p.sentence] for p in self.problems]
        caption = "Problems found in the recordings." if rows else "No problem was found in the recordings."
        return Section("Data checks", "", [Table(("check", "channel", "problem"), rows, caption)], folded=True)


@array_dataclass
class RecordedRuns:
    """The runs that are checked, with the ranges of joints by label where a model knows them."""

    episodes: tuple[Episode, ...]
    limits: Mapping[str, tuple[float, float]]

    def sample(self) -> list[Episode]:
        """Some of the runs, spread over all of them."""
        rows = sum(len(e) for e in self.episodes)
        return list(self.episodes[:: max(1, rows // SAMPLE_ROWS)])

    @property
    def servos(self) -> list[tuple[str, int, int]]:
        """Joints commanded by position: label, column of q, column of the action."""
        return position_servos(self.episodes)


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
    runs = RecordedRuns(tuple(episodes), dict(limits or {}))
    powered = replace(runs, episodes=tuple(s for e in episodes if len(s := e.powered_stretch()) > 1))
    problems: list[DataProblem] = []
    for name, check in CHECKS.items():
        subject = powered if name in COMMAND_CHECKS else runs
        found = list(check(subject)) if subject.episodes else []
        problems += found
        # Further checks would only repeat that numbers are missing.
        if name == "finite" and found and "finite" not in allow:
            break
    return DataChecks(tuple(problems), tuple(allow))


def stamps(runs: RecordedRuns) -> Iterator[DataProblem]:
    """Stamps that go back or stand still, scatter, or skip."""
    jitter = 0.0
    gaps: list[tuple[str, float, float]] = []
    steps_seen = 0
    for i, episode in enumerate(runs.episodes):
        t = np.asarray(episode.t, float)
        step = np.diff(t)
        if (step <= 0).any():
            row = int(np.argmax(step <= 0)) + 1
            how = "goes back" if step[row - 1] < 0 else "stands still"
            sentence = (
                f"Time {how} at row {row} of run {run_name(episode, i)!r} ({t[row - 1]:.4f} then {t[row]:.4f} s)."
            )
            yield DataProblem("error", "stamps", "timestamp", sentence)
            return
        period = float(np.median(step))
        jitter = max(jitter, float(np.quantile(np.abs(step - period), 0.95)) / period)
        wide = np.flatnonzero(step > GAP_PERIODS * period)
        gaps += [(run_name(episode, i), float(t[k]), float(step[k])) for k in wide]
        steps_seen += len(step)
    if gaps:
        run, at, long = max(gaps, key=lambda gap: gap[2])
        severity = "error" if len(gaps) > MAX_GAP_SHARE * steps_seen else "warning"
        sentence = f"{len(gaps)} gaps in the stamps, the longest {1e3 * long:.0f} ms at {at:.2f} s of run {run!r}."
        yield DataProblem(severity, "stamps", "timestamp", sentence)
    if jitter > MAX_JITTER:
        sentence = f"The stamps scatter by {100 * jitter:.0f} % of the period; rows are not evenly spaced."
        yield DataProblem("warning", "stamps", "timestamp", sentence)


def rate(runs: RecordedRuns) -> Iterator[DataProblem]:
    """Stamps that contradict the rate the dataset states."""
    for i, episode in enumerate(runs.episodes):
        period = float(np.median(np.diff(np.asarray(episode.t, float))))
        if abs(period / episode.spec.dt - 1) > 0.02 and period > 0:
            factor = period / episode.spec.dt
            hint = " (milliseconds instead of seconds?)" if 900 < factor < 1100 else ""
            sentence = (
                f"Run {run_name(episode, i)!r} is stamped every {1e3 * period:.4g} ms, but its rate says "
                f"{1e3 * episode.spec.dt:.4g} ms{hint}."
            )
            yield DataProblem("error", "rate", "timestamp", sentence)
            return


def finite(runs: RecordedRuns) -> Iterator[DataProblem]:
    """Numbers that are NaN or infinite."""
    for i, episode in enumerate(runs.episodes):
        for column, labels in (
            ("q", episode.spec.q.labels),
            ("v", episode.spec.v.labels),
            ("action", episode.spec.action.labels),
        ):
            if column not in episode:
                continue
            values = np.asarray(episode[column])
            if column == "action":
                values = values[:-1]  # the action of the last row leads nowhere
            bad = ~np.isfinite(values)
            if bad.any():
                row, place = (int(x) for x in np.argwhere(bad)[0])
                share = 100 * float(bad[:, place].mean())
                label = labels[place] if place < len(labels) else str(place)
                sentence = (
                    f"{label!r} in {column!r} of run {run_name(episode, i)!r} is not a finite number in row {row} "
                    f"({share:.0f} % of the run)."
                )
                yield DataProblem("error", "finite", label, sentence)
                return


def units(runs: RecordedRuns) -> Iterator[DataProblem]:
    """Degrees where radians are claimed, millimetres where metres are."""
    spec = runs.episodes[0].spec
    sample = runs.sample()
    for place, (label, unit) in enumerate(zip(spec.q.labels, spec.q.units, strict=True)):
        factor, other = (DEGREES, "degrees") if unit == "rad" else (1e3, "millimetres")
        if unit not in MAX_SPEED or label.rpartition(".")[2] in QUAT:
            continue
        columns = [np.asarray(e.q, float)[:, place] for e in sample]
        if (outside := _beyond(columns, runs.limits.get(label), factor)) is not None:
            sentence = f"{label!r} reaches {outside:.4g}, far beyond its range in {unit}: {other} instead of {unit}?"
            yield DataProblem("error", "units", label, sentence)
            continue
        if (speed := _speed(columns, unit, [e.spec.dt for e in sample])) > MAX_SPEED[unit]:
            sentence = f"{label!r} moves at {speed:.4g} {unit}/s, which no robot does: {other} instead of {unit}?"
            yield DataProblem("error", "units", label, sentence)
            continue
        yield from _velocity_unit(runs, label, unit, place)


def frozen(runs: RecordedRuns) -> Iterator[DataProblem]:
    """Sensors that stand still while their command moves."""
    spec = runs.episodes[0].spec
    for label, place, commanded in runs.servos:
        still = 0
        moved = 0
        for episode in runs.episodes:
            command, answer = episode.action[:-1, commanded], episode.q[:, place]
            if len(command) < 2 or _motion_range(command) < (0.05 if spec.q.units[place] == "rad" else 0.005):
                continue
            moved += 1
            still += float(np.ptp(answer)) == 0.0
        if still:
            sentence = f"{label!r} is frozen in {still} of the {moved} runs in which its command moves."
            yield DataProblem("error", "frozen", label, sentence)
    yield from _stuck(runs)


def quantised(runs: RecordedRuns) -> Iterator[DataProblem]:
    """Encoders so coarse that their step matters."""
    spec = runs.episodes[0].spec
    sample = runs.sample()[:20]
    for place, (label, unit) in enumerate(zip(spec.q.labels, spec.q.units, strict=True)):
        column = np.concatenate([np.asarray(e.q, float)[:, place] for e in sample])
        step = quantum(column)
        if step and step > 0.02 * max(_motion_range(column), 1e-12):
            share = 100 * step / _motion_range(column)
            sentence = f"{label!r} is resolved in steps of {step:.3g} {unit}, {share:.0f} % of its motion range."
            yield DataProblem("warning", "quantisation", label, sentence)


def clipped(runs: RecordedRuns) -> Iterator[DataProblem]:
    """Signals that stand at an end of their range for long."""
    spec = runs.episodes[0].spec
    for place, label in enumerate(spec.q.labels):
        column = np.concatenate([np.asarray(e.q, float)[:, place] for e in runs.sample()])
        if _motion_range(column) == 0:
            continue
        for end, at in (("upper", column.max()), ("lower", column.min())):
            share = float((column == at).mean())
            # A channel of few levels stands at each of them for long; only a pile at the very end is a clip.
            step = quantum(column)
            if share > 0.05 and (not step or share > 5 * float((np.abs(column - at) < 1.5 * step).mean()) - 4 * share):
                sentence = f"{label!r} stands at its {end} end {at:.4g} for {100 * share:.0f} % of the time: clipped?"
                yield DataProblem("warning", "clipping", label, sentence)


def quantum(column: Array) -> float:
    """The step a signal is resolved in, 0 where it has none."""
    levels = np.unique(np.asarray(column, float))
    if len(levels) < 3:
        return 0.0
    steps = np.diff(levels)
    step = float(np.median(steps[steps > 1e-9 * float(np.ptp(levels))])) if len(steps) else 0.0
    if step <= 0 or len(levels) > 0.7 * len(column):
        return 0.0
    off = np.abs(steps / step - np.round(steps / step))
    return step if float(np.quantile(off, 0.9)) < 0.05 else 0.0


def _beyond(columns: list[Array], limits: tuple[float, float] | None, factor: float) -> float | None:
    """The furthest value, where a range is known, is left by far, and would be kept in the other unit."""
    if limits is None or not np.isfinite(limits).all():
        return None
    low, high = limits
    width = high - low
    values = np.concatenate(columns)
    far = float(values[np.argmax(np.maximum(low - values, values - high))])
    outside = max(low - far, far - high) > max(width, 0.5)
    inside = low - 0.2 * width <= far / factor <= high + 0.2 * width
    return far if outside and inside else None


def _speed(columns: list[Array], unit: str, periods: list[float]) -> float:
    fastest = 0.0
    for column, dt in zip(columns, periods, strict=True):
        step = np.diff(column)
        step = wrapped(step) if unit == "rad" and (np.abs(step) < 2 * np.pi).all() else step
        if len(step):
            # The 90th percentile: single outliers are a fault of another kind.
            fastest = max(fastest, float(np.quantile(np.abs(step), 0.9)) / dt)
    return fastest


def _velocity_unit(runs: RecordedRuns, label: str, unit: str, place: int) -> Iterator[DataProblem]:
    """Velocities whose size contradicts the positions by a factor of units."""
    spec = runs.episodes[0].spec
    if label not in spec.v.labels or "v" not in runs.episodes[0]:
        return
    ratios: list[float] = []
    for episode in runs.sample()[:20]:
        v = np.asarray(episode["v"], float)[:, spec.v.labels.index(label)]
        step = np.diff(np.asarray(episode.q, float)[:, place]) / episode.spec.dt
        step = step[np.abs(step) < np.pi / episode.spec.dt]
        if len(step) > 10 and np.std(step) > 0:
            ratios.append(float(np.std(v) / np.std(step)))
    if not ratios:
        return
    ratio = float(np.median(ratios))
    for factor in (DEGREES, 1 / DEGREES) if unit == "rad" else (1e3, 1e-3):
        if 0.7 < ratio / factor < 1.4:
            sentence = f"The velocity of {label!r} is {ratio:.3g} times the rate of its position: degrees and radians?"
            yield DataProblem("error", "units", label, sentence)


def _stuck(runs: RecordedRuns) -> Iterator[DataProblem]:
    """All sensors at once constant for long in the middle of a motion: a sensor or a link that hung.

    One joint alone may as well stick by friction, so it is a warning there.
    """
    for i, episode in enumerate(runs.episodes):
        q = np.asarray(episode.q, float)
        if len(runs.servos) < 1 or len(q) < 10:
            continue
        same = (np.diff(q, axis=0) == 0).all(axis=1)
        command = np.abs(np.diff(episode.action[:, [commanded for _, _, commanded in runs.servos]], axis=0)).max(axis=1)
        begin, rows = longest_stretch(same)
        if rows * episode.spec.dt <= 0.5 or begin == 0 or begin + rows >= len(same):
            continue
        if float(np.nansum(command[begin : begin + rows])) > 0.1 * float(np.nansum(command)):
            sentence = (
                f"All positions of run {run_name(episode, i)!r} stand still for {rows * episode.spec.dt:.2g} s from "
                f"{begin * episode.spec.dt:.2f} s on while the command moves: a stale sensor?"
            )
            yield DataProblem("error" if q.shape[1] > 1 else "warning", "frozen", "q", sentence)
            return


def gains(runs: RecordedRuns) -> Iterator[DataProblem]:
    """Answers that are 57 or 1000 times their command, or that part of it."""
    for label, place, commanded in runs.servos:
        command, answer = _moving(runs, place, commanded)
        if len(command) < 20 or np.std(command) < 1e-9:
            continue
        strength = float(np.corrcoef(command, answer)[0, 1]) if np.std(answer) > 0 else 0.0
        gain = float(np.std(answer) / np.std(command))
        unit = runs.episodes[0].spec.q.units[place]
        odd = 180 / np.pi if unit == "rad" else 1e3
        if abs(strength) > 0.5 and (0.6 < gain / odd < 1.6 or 0.6 < gain * odd < 1.6):
            which = "degrees and radians" if unit == "rad" else "millimetres and metres"
            sentence = f"{label!r} answers its command {gain:.3g}-fold: are command and state in {which}?"
            yield DataProblem("error", "gain", label, sentence)


def follows(runs: RecordedRuns) -> Iterator[DataProblem]:
    """Joints that answer the command of another joint, or their own with inverted sign."""
    servos = runs.servos
    if not servos:
        return
    matrix = response(runs)
    for i, (label, _, _) in enumerate(servos):
        own = float(matrix[i, i])
        if np.isnan(own):
            continue
        if own < -0.6:
            sentence = f"{label!r} moves against its command (correlation {own:.2f}): is its sign inverted?"
            yield DataProblem("error", "order", label, sentence)
            continue
        others = np.where(np.arange(len(servos)) == i, -np.inf, np.nan_to_num(np.abs(matrix[i]), nan=-np.inf))
        best = int(np.argmax(others))
        if own < 0.4 and others[best] > 0.8:
            sentence = (
                f"{label!r} follows the command of {servos[best][0]!r} (correlation {others[best]:.2f}) rather than "
                f"its own ({own:.2f}): is the order of the joints right?"
            )
            yield DataProblem("error", "order", label, sentence)


def response(runs: RecordedRuns) -> Array:
    """Correlation of the rate of each answer (row) with that of each command (column), NaN where nothing moves.

    Rates rather than positions: slow common motion makes positions of all joints alike. Both are smoothed over the
    same 0.2 s, because an answer trails its command.
    """
    servos = runs.servos
    answers: list[Array] = []
    commands: list[Array] = []
    for episode in runs.sample():
        span = max(1, round(0.2 / episode.spec.dt))
        if len(episode) < 3 * span:
            continue
        q = np.asarray(episode.q, float)[:, [place for _, place, _ in servos]]
        a = np.asarray(episode.action, float)[:, [commanded for _, _, commanded in servos]].copy()
        a[-1] = a[-2]
        answers.append(q[span:] - q[:-span])
        commands.append(a[span:] - a[:-span])
    if not answers:
        return np.full((len(servos), len(servos)), np.nan)
    x, y = np.concatenate(answers), np.concatenate(commands)
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    size = np.sqrt((x**2).sum(axis=0))[:, None] * np.sqrt((y**2).sum(axis=0))[None, :]
    idle = (np.sqrt((y**2).mean(axis=0)) < 1e-4)[None, :] | (np.sqrt((x**2).mean(axis=0)) < 1e-4)[:, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(idle | (size == 0), np.nan, x.T @ y / size)


def offsets(runs: RecordedRuns) -> Iterator[DataProblem]:
    """Joints that rest away from where they are commanded to be."""
    for label, place, commanded in runs.servos:
        off = rest_offset(runs, place, commanded)
        unit = runs.episodes[0].spec.q.units[place]
        if off is None or abs(off) <= LARGE_OFFSET.get(unit, np.inf):
            continue
        severity = "error" if abs(off) > MAX_OFFSET[unit] else "warning"
        why = "is its zero elsewhere?" if severity == "error" else "a zero that is off, a load, or a contact."
        sentence = f"{label!r} rests {off:+.3g} {unit} from its command: {why}"
        yield DataProblem(severity, "offset", label, sentence)


def rest_offset(runs: RecordedRuns, place: int, commanded: int) -> float | None:
    """The median distance of an answer from its command while the command has been still for half a second."""
    found: list[Array] = []
    for episode in runs.sample():
        span = max(1, round(0.5 / episode.spec.dt))
        command, answer = np.asarray(episode.action, float)[:-1, commanded], np.asarray(episode.q, float)[:-1, place]
        if len(command) <= 2 * span:
            continue
        steady = np.abs(command[span:] - command[:-span]) < 1e-3
        found.append((answer - command)[span:][steady])
    values = np.concatenate(found) if found else np.zeros(0)
    if len(values) < 20:
        return None
    middle = float(np.median(values))
    scatter = float(np.median(np.abs(values - middle)))
    return middle if abs(middle) > 3 * scatter else None


def _moving(runs: RecordedRuns, place: int, commanded: int) -> tuple[Array, Array]:
    command: list[Array] = []
    answer: list[Array] = []
    for episode in runs.sample():
        a, q = np.asarray(episode.action, float)[:-1, commanded], np.asarray(episode.q, float)[:-1, place]
        command.append(a - a.mean())
        answer.append(q - q.mean())
    return np.concatenate(command), np.concatenate(answer)


CHECKS: dict[str, Callable[[RecordedRuns], Iterator[DataProblem]]] = {
    "finite": finite,
    "stamps": stamps,
    "rate": rate,
    "units": units,
    "frozen": frozen,
    "gain": gains,
    "order": follows,
    "offset": offsets,
    "quantisation": quantised,
    "clipping": clipped,
}
"""Every check by the name under which a user may allow it."""
COMMAND_CHECKS = ("frozen", "gain", "order", "offset")
"""Checks that compare positions with commands, which motors follow only while they are switched on."""


def _motion_range(column: Array) -> float:
    """The distance between the 1st and the 99th percentile of a signal."""
    low, high = np.quantile(column, [0.01, 0.99])
    return float(high - low)
