"""On-line re-identification: estimate parameters while a robot runs, detect changes, and check updates.

`Reidentifier` takes samples one at a time; `reidentify` replays recordings through it, as if the robot ran. New values
are applied only if they predict later windows better. A proposal is frozen, and every window after it is predicted with
it and with the values in use. It is applied once the mean difference of the errors is above zero by more than its
interval. An applied value stays on trial against the value before, and is rolled back if that predicts better.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import field
from math import sqrt
from typing import Literal

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput, UnknownName
from instep.core.param import Param
from instep.core.progress import Progress
from instep.core.statistics import Z95, Estimate
from instep.core.world import Array, Spec, array_dataclass, frozen_dataclass, options_dataclass
from instep.scene.folder import Scene, SceneSimulator
from instep.tune.fit.windows import Windows
from instep.tune.gated_fit import relative_reduction
from instep.tune.param_selection import Bounds

from .parameter_filter import (
    Change,
    ChangeDetector,
    ChangeOptions,
    DriftOptions,
    Estimated,
    FilteredWindow,
    ParameterFilter,
    WindowEvidence,
)
from .window_prediction import (
    AUTO,
    SampleBuffer,
    SceneMismatch,
    WindowPredictor,
    nuisances,
    online_params,
    online_world,
    reading_variance,
    scene_mismatch,
)

Decision = Literal["applied", "not applied", "rolled back", "kept"]


@options_dataclass
class UpdateOptions:
    """When values are taken, and when they are given back."""

    min_windows: int = 5
    """Windows after which a proposal is judged for the first time."""
    max_windows: int = 20
    """Windows after which a proposal that is not better is dropped, and the last windows by which values are judged."""
    watch_windows: int = 50
    """Windows over which values that were applied stay on trial against those before."""
    deviations: float = 4.0
    """Half the width of the interval that a difference must exceed, in standard errors. A difference is judged after
    every window, so this is wider than for one look: 4 is about 1 % over all looks at few windows."""


class Trial:
    """A comparison of values in use with others, window by window."""

    def __init__(self, other: Array, applied: bool, options: UpdateOptions):
        """`other` are the proposed values, or the values before if `applied`, in unit coordinates."""
        self.other, self.applied, self._options = other, applied, options
        # Values that were applied are judged by what came last, not by how good they were at first.
        self._used: deque[float] = deque(maxlen=options.max_windows)
        self._other: deque[float] = deque(maxlen=options.max_windows)
        self._seen = 0

    def add(self, used: float, other: float) -> Decision | None:
        """Take the errors of one window; a decision once there is one."""
        self._used.append(used)
        self._other.append(other)
        self._seen = n = self._seen + 1
        if n < self._options.min_windows:
            return None
        if self.difference.low > 0:
            return "rolled back" if self.applied else "applied"
        if self.applied:
            return "kept" if n >= self._options.watch_windows else None
        return "not applied" if n >= self._options.max_windows else None

    @property
    def difference(self) -> Estimate:
        """Mean error of the values in use less that of the others, in standard deviations of the usual error."""
        pairs = np.array(self._used) - np.array(self._other)
        n, mean = len(pairs), float(pairs.mean())
        half = self._options.deviations * float(pairs.std(ddof=1)) / sqrt(n) if n > 1 else float("inf")
        return Estimate(mean, mean - half, mean + half, n, "sigma")

    @property
    def reduction(self) -> float:
        """Share by which the error of the others is smaller."""
        return 1.0 - float(np.mean(self._other)) / max(float(np.mean(self._used)), 1e-300)


BLOCK_WINDOWS = 25
"""Neighbouring windows that are resampled together."""
PAUSE_S = 10.0
"""Time that the pause between two recordings counts as [s]: parameters may have drifted meanwhile."""
RELINEARISED = 8
"""Most windows that are simulated again where a change was found."""
UNSETTLED = 0.2
"""Share of a sudden change by which the value after it may still be off: the first window may lie across the change."""
RANGE_END = 1e-3
"""Share of a range from its end within which an estimate is not believed."""
MAX_ERROR = 1e3
"""Largest error of a window that counts, in standard deviations; that of a simulation that diverged."""
EventKind = Literal["ready", "not described", "change", "proposed", "applied", "not applied", "rolled back"]


@options_dataclass
class ReidentifyOptions:
    """Options of on-line re-identification."""

    window: float = 0.2
    """Length of the windows that are predicted [s]."""
    warm_up: int = 20
    """Windows from which noise is measured before anything is estimated."""
    filter: DriftOptions = DriftOptions()
    change: ChangeOptions = ChangeOptions()
    update: UpdateOptions = UpdateOptions()
    min_shift: float = 3.0
    """How far the estimate must be from the values in use to be proposed, in its own standard deviations."""
    nuisances: bool = True
    """Whether the delay of commands and damping and inertia of driven joints are estimated besides."""


@frozen_dataclass
class ReidentifyEvent:
    """An event of the parameters."""

    t: float
    """Time of the run [s]."""
    kind: EventKind
    words: str
    """The event in a sentence."""
    settings: Mapping[str, float] = field(default_factory=dict[str, float])
    """The values that it is about, by address."""


@array_dataclass
class DriftPoint:
    """The parameters after one window."""

    t: float
    """Time at which the window was complete [s]."""
    values: Array
    """Estimates [params]."""
    low: Array
    """Lower ends of their 95 % intervals [params]."""
    high: Array
    used: Array
    """Values in use [params]."""
    errors: Array
    """Error of the window as predicted by the estimate before it, by the values in use and by the first values, in
    standard deviations of the usual error [3]; NaN until the noise is measured."""
    nuisance: Array
    """Estimates of the nuisances [nuisances]."""


@array_dataclass
class Reidentification:
    """The result of re-identification over a run."""

    params: tuple[Param, ...]
    points: Sequence[DriftPoint]
    """The parameters after each window."""
    events: Sequence[ReidentifyEvent]
    """All that happened, in order."""
    settings: Mapping[str, float]
    """The values in use at the end, by address."""
    ready: bool
    """Whether the noise was measured, so that there are estimates."""
    lost: int = 0
    """Windows that were not taken because readings were missing."""
    diverged: int = 0
    """Windows that the simulator could not predict."""
    nuisances: tuple[Param, ...] = ()
    """The nuisances that were estimated too."""
    mismatch: SceneMismatch | None = None
    """Why nothing is estimated, if the scene does not describe the robot."""

    @property
    def estimates(self) -> dict[str, Estimate]:
        """The last estimates with their 95 % intervals; without ends if the run was too short."""
        if not self.points:
            return {}
        last, n = self.points[-1], len(self.points)
        low, high = (last.low, last.high) if self.ready else (np.full(len(self.params), np.nan),) * 2
        rows = zip(self.params, last.values, low, high, strict=True)
        return {p.address: Estimate(float(v), float(a), float(b), n, p.unit) for p, v, a, b in rows}

    def improvement(self, of: Literal["in use", "estimate"] = "in use", seed: int = 0) -> Estimate:
        """Share by which the values in use, or the estimates, predict the next window better than the first values.

        Estimates are those before the window that they predict. Blocks of windows are resampled; NaN if there are
        fewer than two.
        """
        rows = np.array([point.errors for point in self.points if np.isfinite(point.errors).all()])
        blocks = [rows[i : i + BLOCK_WINDOWS] ** 2 for i in range(0, len(rows) - BLOCK_WINDOWS + 1, BLOCK_WINDOWS)]
        if len(blocks) < 2:
            return Estimate(np.nan, np.nan, np.nan, len(blocks), "1")
        sums = np.array([block[:, [2, 1 if of == "in use" else 0]].mean(axis=0) for block in blocks])
        return relative_reduction(sums, np.ones(len(sums)), seed)

    def counts(self) -> dict[str, int]:
        """How often each kind of event happened."""
        kinds: tuple[EventKind, ...] = ("change", "proposed", "applied", "not applied", "rolled back")
        return {kind: sum(event.kind == kind for event in self.events) for kind in kinds}


class Reidentifier:
    """Parameters of a simulator, estimated from the samples of a running robot.

    `add` takes a sample and returns what happened. `settings` are the values in use: those it began with until a
    better set has passed the gate. Nothing else is changed; the caller tunes its own simulator by them.
    """

    def __init__(
        self,
        sim: SceneSimulator,
        source: Spec,
        params: Sequence[Param],
        start: Mapping[str, float],
        options: ReidentifyOptions | None = None,
    ):
        """`source` describes the samples; `start` are the values in use, by address."""
        self.params, self.options = tuple(params), options or ReidentifyOptions()
        _check(self.params, start, self.options, sim.spec.dt)
        span, rest = max(2, round(self.options.window / sim.spec.dt)), sim.reset(0)
        self._buffer = SampleBuffer(sim.spec, source, span, (rest.q, rest.v))
        besides = nuisances(sim, self.params) if self.options.nuisances else []
        self._nuisances = tuple(one.param for one in besides)
        self._predictor = WindowPredictor(sim, [*self.params, *self._nuisances], len(self.params))
        begin = np.array([float(np.clip(p.to_unit(start[p.address]), 0, 1)) for p in self.params])
        self._filter = ParameterFilter(self.params, begin, self.options.filter, besides)
        self._start = self._used = self._filter.now.x
        self._detector = ChangeDetector(self.params, self.options.change)
        self._recent: deque[Windows] = deque(maxlen=RELINEARISED)
        self._first: list[tuple[Windows, WindowEvidence]] = []
        self._mismatch: SceneMismatch | None = None
        self._dt = sim.spec.dt
        self._proposal: Trial | None = None
        self._replaced: Trial | None = None
        self._refused: Array | None = None
        self._pause, self._last = 0.0, 0.0
        self._points: list[DriftPoint] = []
        self._events: list[ReidentifyEvent] = []
        self._diverged = 0

    @property
    def settings(self) -> dict[str, float]:
        """The values in use, by address."""
        return self._settings(self._used)

    def result(self) -> Reidentification:
        """The result so far."""
        return Reidentification(
            self.params, tuple(self._points), tuple(self._events), self.settings, self._filter.begun,
            self._buffer.lost, self._diverged, self._nuisances, self._mismatch,
        )  # fmt: skip

    def pause(self, seconds: float = PAUSE_S) -> None:
        """Say that the samples that follow are of another run, some time after."""
        self._buffer.clear()
        self._pause += seconds

    def add(self, t: float, q: Array, action: Array, stamp: float | None = None) -> list[ReidentifyEvent]:
        """Take a sample: the command given at time t [s] and the newest reading, taken at `stamp` if that is known.

        A window is complete every `options.window` seconds; then it is predicted, and the events are returned.
        """
        window = self._buffer.add(t, q, action, stamp)
        if window is None:
            return []
        before = len(self._events)
        self._take(window, t)
        return self._events[before:]

    @property
    def latest(self) -> DriftPoint | None:
        """The parameters after the last window; None before the first."""
        return self._points[-1] if self._points else None

    def _take(self, window: Windows, t: float) -> None:
        trials = [trial for trial in (self._proposal, self._replaced) if trial is not None]
        others = [self._used, self._start, *(one.other for one in trials)]
        found = self._predictor.evidence(window, self._filter.now.x, others)
        if found is None:
            self._diverged += 1
            return
        evidence, errors = found
        sizes = self._sizes(np.concatenate([evidence.error[None], errors]))
        if not self._filter.begun:
            self._warm_up(window, evidence, t)
        else:
            # Neither the values in use nor those on trial have seen this window.
            for trial, size in zip(trials, sizes[3:], strict=True):
                decision = trial.add(float(sizes[1]), float(size))
                if decision is not None:
                    self._decide(trial, decision, t)
            self._estimate(evidence, window, t)
            self._propose(t)
        half = Z95 * np.sqrt(self._filter.interval_variance)
        x = self._filter.now.x
        low, high = (self._values(np.clip(x + sign * half, 0.0, 1.0)) for sign in (-1, 1))
        besides = [float(p.from_unit(one)) for p, one in zip(self._nuisances, x[len(self.params) :], strict=True)]
        used = self._values(self._used)
        self._points.append(DriftPoint(t, self._values(x), low, high, used, sizes[:3], np.array(besides)))

    def _warm_up(self, window: Windows, evidence: WindowEvidence, t: float) -> None:
        """Begin once there are enough windows, if the scene describes the robot in them; else try those that follow."""
        self._first.append((window, evidence))
        if len(self._first) < self.options.warm_up:
            return
        windows, found = [one for one, _ in self._first], [one for _, one in self._first]
        # At least a hundredth of the usual error of a channel, so that the noise of a perfect model stays invertible.
        floor = np.maximum(0.01 * np.sqrt(np.mean([one.error**2 for one in found], axis=(0, 2))), 1e-9)
        estimate = self._filter.first_estimate(found, self.options.window, floor)
        known, self._mismatch = self._mismatch, scene_mismatch(windows, found, estimate[0].x, self._dt)
        self._first = []
        if self._mismatch is not None:
            if known is None:
                self._note(t, "not described", str(self._mismatch), {})
            return
        self._filter.begin(estimate)
        self._last, self._pause = t, 0.0
        self._note(t, "ready", f"Noise was measured from {self.options.warm_up} windows; estimates begin.", {})

    def _estimate(self, evidence: WindowEvidence, window: Windows, t: float) -> None:
        seconds = self._pause or max(t - self._last, 0.0)
        self._pause, self._last = 0.0, t
        before, found = self._filter.now, self._filter.step(evidence, seconds)
        self._recent.append(window)
        alarm = self._detector.add(FilteredWindow(before, evidence, seconds, t), found.scores)
        change: Change | None = None
        if alarm:
            # Noise that was measured from few windows makes unusual motion look like a change.
            doubt = 1 + 2 * self.options.warm_up / len(self._points)
            state = self._filter
            change = self._detector.confirmed(state.noise, state.drift, state.jumped(), doubt)
        if change is not None:
            self._changed(change, t)
        elif not self._detector.suspected:
            self._filter.learn_noise(evidence, found)
            self._filter.learn_readings(reading_variance(window, self._dt))

    def _changed(self, change: Change, t: float) -> None:
        """Take the estimate since a change, and begin to look for the next one."""
        windows, which = self._detector.windows[-change.since :], list(change.which)
        began = windows[0].before
        jump = np.zeros(len(began.x))
        jump[which] = self._filter.jumped()[which]
        begin = began.jumped(jump)
        self._filter.now = change.estimate
        # What was linearised before the change is linearised again where the parameters are now.
        for _ in range(2):
            self._filter.now = self._filtered_again(begin, windows)
        now, unsettled = self._filter.now, np.zeros(len(began.x))
        unsettled[which] = (UNSETTLED * (now.x - began.x)[which]) ** 2
        self._filter.now = now.jumped(unsettled)
        was, moved = self._settings(began.x), self._settings(now.x)
        changed = [self.params[i] for i in which]
        said = ", ".join(f"{p.address} from {was[p.address]:.4g} to {moved[p.address]:.4g} {p.unit}" for p in changed)
        ago = t - windows[0].t + self.options.window
        self._detector.restart()
        self._recent.clear()
        self._proposal = self._replaced = self._refused = None
        words = f"Sudden change about {ago:.1f} s ago: {said} (log likelihood ratio {change.log_likelihood_ratio:.0f})."
        self._note(t, "change", words, {p.address: moved[p.address] for p in changed})

    def _filtered_again(self, begin: Estimated, windows: Sequence[FilteredWindow]) -> Estimated:
        """The estimate after some windows, the last of which are simulated again at the estimate of now."""
        at = self._filter.now.x
        self._filter.now = begin
        again = [None] * (len(windows) - len(self._recent)) + list(self._recent)[-len(windows) :]
        for old, window in zip(windows, again, strict=True):
            found = None if window is None else self._predictor.evidence(window, at)
            self._filter.step(old.evidence if found is None else found[0], old.seconds)
        return self._filter.now

    def _sizes(self, errors: Array) -> Array:
        """Root mean square of errors [points, channels, bins] in standard deviations of the usual ones [points]."""
        if not self._filter.begun:
            return np.full(len(errors), np.nan)
        finite = np.isfinite(errors).all(axis=(1, 2))
        squared = np.where(finite, self._filter.noise.squared(np.nan_to_num(errors)) / errors[0].size, np.inf)
        return np.sqrt(np.minimum(squared, MAX_ERROR**2))

    def _decide(self, trial: Trial, decision: str, t: float) -> None:
        settings = self._settings(trial.other)
        size = f"{abs(trial.reduction):.0%} {'smaller' if trial.reduction >= 0 else 'larger'}"
        words = f"{_told(settings)} (error over {trial.difference.n} unseen windows {size})"
        if decision == "applied":
            before, self._used = self._used, trial.other
            self._proposal, self._replaced = None, Trial(before, True, self.options.update)
            self._note(t, "applied", f"Applied: {words}.", settings)
        elif decision == "rolled back":
            self._refused, self._used = self._used, trial.other
            self._proposal = self._replaced = None
            self._note(t, "rolled back", f"Rolled back to {words}.", settings)
        elif decision == "not applied":
            self._proposal, self._refused = None, trial.other
            self._note(t, "not applied", f"Not applied, no better than the values in use: {words}.", settings)
        else:
            self._replaced = None

    def _propose(self, t: float) -> None:
        """Put the estimate on trial if it is away from the values in use, and from what was refused."""
        known = [self._used] if self._refused is None else [self._used, self._refused]
        if self._proposal is not None or self._detector.suspected:
            return
        now, asked = self._filter.now, slice(len(self.params))
        deviation = np.sqrt(np.maximum(now.variance[asked], 1e-18))
        if min(float(np.max(np.abs(now.x - x)[asked] / deviation)) for x in known) < self.options.min_shift:
            return
        x, settings = self._filter.now.x, self._settings(self._filter.now.x)
        ends = [p.address for p, one in zip(self.params, x, strict=False) if not RANGE_END < one < 1 - RANGE_END]
        if ends:
            self._refused = x.copy()
            words = (
                f"Not applied: {', '.join(ends[:4])} at the end of its range, so something else is wrong in the model"
            )
            words += "; identify the scene with instep tune, or widen --bounds."
            self._note(t, "not applied", words, settings)
            return
        # A world that runs takes over the parameters, not the nuisances, so that is what is tried.
        proposed = np.concatenate([x[: len(self.params)], self._start[len(self.params) :]])
        self._proposal = Trial(proposed, False, self.options.update)
        self._note(t, "proposed", f"Proposed: {_told(settings)}.", settings)

    def _values(self, x: Array) -> Array:
        """The values of the parameters, without nuisances."""
        return np.array([float(p.from_unit(one)) for p, one in zip(self.params, x[: len(self.params)], strict=True)])

    def _settings(self, x: Array) -> dict[str, float]:
        return {p.address: float(value) for p, value in zip(self.params, self._values(x), strict=True)}

    def _note(self, t: float, kind: EventKind, words: str, settings: Mapping[str, float]) -> None:
        self._events.append(ReidentifyEvent(t, kind, words, dict(settings)))


def reidentify(
    scene: Scene,
    episodes: Sequence[Episode],
    params: Sequence[str] = AUTO,
    options: ReidentifyOptions | None = None,
    *,
    bounds: Bounds | None = None,
    progress: Progress | None = None,
) -> Reidentification:
    """Replay recordings, one after the other, through the on-line filter, as if the robot ran.

    `params` are patterns of addresses, or `auto` (see `online_params`). The estimates at a time depend on nothing after
    it. Between two recordings parameters may drift as in ten seconds.
    """
    if not episodes:
        raise BadInput("Re-identification needs at least one recording, and none was given.")
    selection, progress = online_params(scene, params, bounds), progress or Progress()
    sim = online_world(scene, selection)
    found = Reidentifier(sim, episodes[0].spec, selection.params, selection.initial, options)
    began, rows = 0.0, sum(len(episode) for episode in episodes)
    done = 0
    for episode in episodes:
        found.pause()
        t = began + np.arange(len(episode)) * episode.spec.dt
        for k in range(len(episode)):
            found.add(float(t[k]), episode.q[k], episode.action[k])
            if k % 50 == 0:
                progress.advance("replay", (done + k) / rows)
            if progress.ended:
                return found.result()
        began, done = float(t[-1]) + episode.spec.dt, done + len(episode)
    progress.advance("replay", 1.0)
    return found.result()


def _told(settings: Mapping[str, float]) -> str:
    some = [f"{name} = {value:.4g}" for name, value in list(settings.items())[:4]]
    return ", ".join(some) + (f" and {len(settings) - 4} more" if len(settings) > 4 else "")


def _check(params: Sequence[Param], start: Mapping[str, float], options: ReidentifyOptions, dt: float) -> None:
    if not params:
        raise BadInput("Re-identification needs at least one parameter, and none was given.")
    for param in params:
        if param.address not in start:
            raise UnknownName("first value", param.address, start)
    if not options.window >= 2 * dt:
        raise BadInput(
            f"A window of {options.window:g} s is shorter than two control periods of {dt:g} s; use a longer --window."
        )
