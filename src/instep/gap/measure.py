"""Measure a gap: replays of recordings in a simulator, two sets of paired runs, or recordings alone.

Each function returns a `Gap` with everything its data allow: curves over the horizon, noise floor, command following,
joint errors of arms, error growth, lags, events and images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf, log
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.poses import angle_between, normalized
from instep.core.rollout import Watch
from instep.core.statistics import Estimate, jackknife, student_quantile
from instep.core.world import Array, Simulator
from instep.physics.actuators import with_inputs
from instep.physics.engines import open_world
from instep.scene.folder import Scene
from instep.scene.robot_structure import with_joint_labels
from instep.splat.image import ssim_map, unit_image

from .events import EventRule, default_event_rules, event_agreement, find_events, match_events
from .gap_result import AlignedStreams, CameraScores, ClockOffset, Curve, ErrorGrowth, Gap, GrowthShape, RunPair
from .horizon import QUAT, HorizonOptions, error_over_time, measure_horizon, rms, scipy, scores_of, velocity
from .joint_error import (
    Arm,
    arms_of,
    command_following,
    continuous_joints,
    joint_error_profile,
    metric_notes,
    position_servos,
    profile_scores,
)
from .paired_runs import compare_runs, correlation, parabola_peak, with_noise_floor, world_lag
from .preparation import PreparedRuns, prepare, recorded_at_rate

SHAPES: tuple[GrowthShape, ...] = ("exponential", "power", "logistic")
GROWTH_POINTS = 30
"""So many points of a curve are fitted: rows lie too close to be independent."""


def measure_gap(
    sim: Scene | Simulator | str | Path,
    episodes: Sequence[Episode],
    *,
    options: HorizonOptions | None = None,
    events: Sequence[EventRule] | None = None,
    watch: Watch | None = None,
) -> Gap:
    """How far a simulator is from recorded runs: it is placed at recorded states and given the recorded commands.

    `sim` is a scene (or its name or path) or a simulator. Joint errors of arms and grippers need the scene, which a
    simulator made by `open_world` knows. `events` replaces the default event rules; `watch` receives the number of
    control steps simulated since its last call.
    """
    world, scene = opened(sim)
    ready = prepared_for(world, scene, episodes)
    options = replace(options or HorizonOptions(), wrapping=ready.wrapping)
    gap = measure_horizon(world, ready.episodes, options=options, watch=watch)
    gap = with_noise_floor(gap, ready.episodes, options=options).with_scores({}, ready.notes)
    commanded = with_joint_labels(scene.model, ready.episodes) if scene is not None else ready.episodes
    if position_servos(commanded):
        following = command_following(commanded)
        gap = replace(gap, following=following).with_scores(following.scores)
    return _with_details(gap, scene, options, events)


def measure_pairs(
    real: Sequence[Episode],
    sim: Sequence[Episode],
    *,
    scene: Scene | None = None,
    options: HorizonOptions | None = None,
    events: Sequence[EventRule] | None = None,
) -> Gap:
    """How far two sets of paired runs are apart; a scene adds the errors of arms and tips."""
    options = replace(options or HorizonOptions(), wrapping=prepare(real).wrapping)
    gap = with_noise_floor(compare_runs(real, sim, options=options), real, options=options)
    gap = _with_details(gap, scene, options, events)
    cameras = tuple(camera_scores(gap.pairs))
    gap = replace(gap, kind="paired", cameras=cameras, wrapping=options.wrapping)
    scores = {name: estimate for camera in cameras for name, estimate in camera.scores.items()}
    return gap.with_scores(scores)


def measure_recordings(episodes: Sequence[Episode]) -> Gap:
    """The gap of recordings alone: positions against their commands, or the clocks of streams of one motion."""
    groups = stream_groups(episodes)
    if groups:
        streams = align_all_streams(groups)
        scores = {f"clock offset: {name}": pair.offset.seconds for name, pair in streams.items()}
        notes = [
            f"The offset of {name} scatters by {1e3 * pair.offset.spread:.1f} ms over windows."
            for name, pair in streams.items()
        ]
        return Gap({}, scores, notes=tuple(notes), kind="clocks", streams=streams)
    following = command_following(episodes)
    curves = {name: Curve(name, e.unit, (inf,), (e,), episodes[0].spec.dt) for name, e in following.rmse.items()}
    scores = {**scores_of(curves), **following.scores}
    return Gap(curves, scores, kind="commands", following=following)


def opened(sim: Scene | Simulator | str | Path) -> tuple[Simulator, Scene | None]:
    """A simulator and its scene, if it has one."""
    if isinstance(sim, Scene | str | Path):
        world = open_world(sim)
        return world, world.scene
    return sim, getattr(sim, "scene", None)


def prepared_for(sim: Simulator, scene: Scene | None, episodes: Sequence[Episode]) -> PreparedRuns:
    """Runs ready to be replayed in a simulator: at its rate, with unwrapped angles and velocities without lag."""
    fitting, notes = recorded_at_rate(episodes, sim.spec.dt)
    wrapping: Sequence[str] = ()
    if scene is not None:
        fitting = with_inputs(scene, fitting)
        wrapping = [n for n in continuous_joints(scene) if n in fitting[0].spec.q.labels]
    ready = prepare(fitting, wrapping)
    return replace(ready, notes=(*ready.notes, *notes))


def error_growth(t: Sequence[Array], errors: Sequence[Array]) -> ErrorGrowth:
    """The shape that fits the errors [rows] of runs over time [rows, s] best, its rate with an interval over runs.

    Three shapes are fitted to log E(t) on the rising part, and Akaike's corrected criterion chooses:
    exponential e0 exp(lambda t), power a t^beta (1/2 random walk, 1 drift, 2 acceleration), logistic (saturation).
    """
    curves = [part for part in (rising(a, e) for a, e in zip(t, errors, strict=True)) if part is not None]
    if not curves:
        raise BadInput("No run's error rises over at least eight points, so there is no growth to fit.")
    fits = {shape: [fit_shape(shape, x, y) for x, y in curves] for shape in SHAPES}
    scores = {shape: sum(aicc for _, aicc in fits[shape]) for shape in SHAPES}
    best = min(SHAPES, key=lambda shape: scores[shape])
    # Of all runs together, a difference of a few points is already certain; the mean run keeps the weights readable.
    relative = np.exp([-0.5 * (scores[shape] - scores[best]) / len(curves) for shape in SHAPES])
    weights: dict[GrowthShape, float] = dict(zip(SHAPES, (relative / relative.sum()).tolist(), strict=True))
    rates = np.array([float(parameters[1]) for parameters, _ in fits[best]])
    rate = jackknife(rates, unit="1" if best == "power" else "1/s")
    ends = [log(2) / x if x > 0 else inf for x in (rate.value, rate.high, rate.low)]
    ends = [np.nan] * 3 if best == "power" else ends
    doubling = Estimate(ends[0], ends[1], ends[2], rate.n, "s")
    return ErrorGrowth(best, rate, doubling, weights, tuple(rates.tolist()), tuple(zip(t, errors, strict=True)))


def rising(t: Array, error: Array) -> tuple[Array, Array] | None:
    """The rising part of an error and its logarithm, thinned; None if it does not rise.

    It ends where the smoothed error first reaches nine tenths of its highest value, plus a third as long, so that a
    saturation can be seen.
    """
    t, error = np.asarray(t, float), np.asarray(error, float)
    sound = np.isfinite(error) & (error > 0) & (t > 0)
    t, error = t[sound], error[sound]
    if len(t) < 8:
        return None
    width = max(1, len(error) // 50)
    smooth = np.sqrt(np.convolve(error**2, np.ones(width) / width, mode="valid"))
    at = np.convolve(t, np.ones(width) / width, mode="valid")
    top = int(np.argmax(smooth >= 0.9 * smooth.max()))
    end = min(len(smooth), max(8, top + top // 3 + 1))
    if smooth[:end].max() < 2 * smooth[0]:
        return None
    pick = np.unique(np.linspace(0, end - 1, GROWTH_POINTS).astype(int))
    return at[pick], np.log(smooth[pick])


def fit_shape(shape: GrowthShape, t: Array, y: Array) -> tuple[Array, float]:
    """Parameters of a shape fitted to log errors, and the corrected Akaike criterion."""
    n = len(t)
    if shape == "logistic":
        parameters, residual = _logistic(t, y)
    else:
        design = np.stack([np.ones(n), t if shape == "exponential" else np.log(t)], axis=-1)
        parameters = np.linalg.lstsq(design, y, rcond=None)[0]
        residual = y - design @ parameters
    k = len(parameters) + 1  # the spread of the residual is one more
    square = max(float(residual @ residual) / n, 1e-12)
    return parameters, n * log(square) + 2 * k + 2 * k * (k + 1) / max(n - k - 1, 1)


def _with_details(gap: Gap, scene: Scene | None, options: HorizonOptions, events: Sequence[EventRule] | None) -> Gap:
    """The gap with the errors of the arms whose joints were all compared, error growth and events."""
    arms = [arm for arm in arms_of(scene) if all(n in gap.curves for n in arm.labels)] if scene is not None else []
    if arms:
        profiles = tuple(joint_error_profile(pair, arms, scene) for pair in gap.pairs)
        gap = replace(gap, joint_errors=profiles).with_scores(profile_scores(profiles), metric_notes(arms))
    return _with_events(_with_growth(gap, options), arms, events)


def _with_growth(gap: Gap, options: HorizonOptions) -> Gap:
    """The gap with the growth of its error and its lag."""
    errors = error_over_time(gap.pairs, options=options)
    scores: dict[str, Estimate] = {}
    lag = world_lag(gap.pairs, options=options)
    if lag is not None:
        scores = {"lag of the second world": lag.lag, "overall, as timed": lag.before, "overall, lag off": lag.after}
    try:
        growth = error_growth([t for t, _ in errors], [e for _, e in errors])
    except BadInput as none:
        return gap.with_scores(scores, [str(none)])
    name = "growth exponent" if growth.shape == "power" else "growth rate"
    scores |= {name: growth.rate} | ({"doubling time": growth.doubling} if growth.shape != "power" else {})
    return replace(gap, growth=growth).with_scores(scores)


def _with_events(gap: Gap, arms: Sequence[Arm], rules: Sequence[EventRule] | None) -> Gap:
    """The gap with its events, if the rules find any in either world."""
    if rules is None:
        grippers = {arm.gripper: arm.ranges[arm.gripper] for arm in arms if arm.gripper}
        rules = default_event_rules(gap.pairs[0].real, grippers)
    finite = [pair for pair in gap.pairs if np.isfinite(pair.sim.q).all()]
    runs = [match_events(find_events(p.real, rules), find_events(p.sim, rules), run=p.name) for p in finite]
    found = event_agreement(runs)
    if found is None:
        return gap
    scores = {"events later by": found.delay, "events missing": found.missing, "events extra": found.extra}
    gap = replace(gap, events=tuple(m for run in runs for m in run), event_agreement=found)
    return gap.with_scores(scores | {"event order edits": found.order})


def _logistic(t: Array, y: Array) -> tuple[Array, Array]:
    """log E = log top - log(1 + exp(-lambda (t - t0)))."""

    def residual(p: Array) -> Array:
        return p[0] - np.logaddexp(0.0, -p[1] * (t - p[2])) - y

    span = float(t[-1] - t[0])
    starts = [[float(y.max()), 4.0 / span, float(t[0]) + share * span] for share in (0.3, 0.6, 0.9)]
    found: list[Any] = [scipy("optimize").least_squares(residual, start, max_nfev=200) for start in starts]
    best = min(found, key=lambda one: one.cost)
    return np.asarray(best.x, float), np.asarray(best.fun, float)


FRAMES_PER_RUN = 12
"""Frames of a run that are compared, spread over it."""
IMAGES, MASKS = "observation.images.", "observation.masks."


def frame_scores(real: Array, sim: Array, regions: Mapping[str, Array] | None = None) -> dict[str, float]:
    """PSNR [dB] and SSIM of two frames [h, w, 3] by region (masks [h, w]; 'frame' is the whole).

    'exposure matched' is the same after each colour of the simulated frame got the gain and offset that suit best.
    """
    a, b = unit_image(real), unit_image(sim)
    if a.shape != b.shape:
        raise BadInput(f"Paired frames must have one size, not {a.shape[:2]} and {b.shape[:2]}.")
    masks = {"frame": np.ones(a.shape[:2], bool), **(regions or {})}
    found: dict[str, float] = {}
    for words, image in (("", b), (", exposure matched", _exposure_matched(a, b))):
        square, similar = ((a - image) ** 2).mean(axis=-1), ssim_map(a, image).mean(axis=-1)
        for name, mask in masks.items():
            error = float(square[mask].mean()) if mask.any() else np.nan
            found[f"{name}{words} psnr"] = -10 * float(np.log10(error)) if error else inf
            found[f"{name}{words} ssim"] = float(similar[mask].mean()) if mask.any() else np.nan
    return found


def camera_scores(pairs: Sequence[RunPair]) -> list[CameraScores]:
    """Scores of every camera that both worlds recorded, by region if there are masks."""
    first = pairs[0] if pairs else None
    both = [c for c in first.real.columns if c.startswith(IMAGES) and c in first.sim.columns] if first else []
    return [_camera_scores(pairs, column) for column in both if not column.endswith(".stamp")]


def _camera_scores(pairs: Sequence[RunPair], column: str) -> CameraScores:
    """Means over runs of each run's mean score, with intervals over runs."""
    camera = column.removeprefix(IMAGES)
    means: dict[str, list[float]] = {}
    for pair in pairs:
        own: dict[str, list[float]] = {}
        for row in np.unique(np.linspace(0, len(pair.real) - 1, FRAMES_PER_RUN).astype(int)).tolist():
            masks = [np.asarray(side[MASKS + camera][row]).squeeze() > 0
                     for side in (pair.real, pair.sim) if MASKS + camera in side.columns]  # fmt: skip
            regions = {"region": masks[0]} if MASKS + camera in pair.real.columns else {}
            for name, score in frame_scores(pair.real[column][row], pair.sim[column][row], regions).items():
                own.setdefault(name, []).append(min(score, 100.0))
            if len(masks) == 2:
                union = int((masks[0] | masks[1]).sum())
                own.setdefault("mask IoU", []).append(int((masks[0] & masks[1]).sum()) / union if union else 1.0)
        for name, values in own.items():
            means.setdefault(name, []).append(float(np.mean(values)))
    units = {name: "dB" if name.endswith("psnr") else "1" for name in means}
    scores = {f"{camera} {name}": jackknife(np.array(values), unit=units[name]) for name, values in means.items()}
    middle, pair = len(pairs[0].real) // 2, pairs[0]
    return CameraScores(camera, scores, (np.asarray(pair.real[column][middle]), np.asarray(pair.sim[column][middle])))


def _exposure_matched(real: Array, sim: Array) -> Array:
    out = np.empty_like(sim)
    for c in range(sim.shape[2]):
        x, y = sim[..., c] - sim[..., c].mean(), real[..., c] - real[..., c].mean()
        spread = float((x**2).mean())
        out[..., c] = (float((x * y).mean()) / spread if spread > 1e-12 else 1.0) * x + real[..., c].mean()
    return np.clip(out, 0, 1)


MIN_WINDOWS = 5
"""Fewest windows from which an offset and its spread are estimated."""


Stream = tuple[Array, Array]
"""Stamps [s] and a signal [rows]."""


def clock_offset(first: Stream, second: Stream, *, longest: float = 5.0, windows: int = 8) -> ClockOffset:
    """How far the clock of the second stream is behind that of the first.

    Signals must be rates that both clocks see, such as angular speeds. A global search is refined in windows; those
    with little motion or a poor match are left out.
    """
    dt = 0.5 * min(float(np.median(np.diff(first[0]))), float(np.median(np.diff(second[0]))))
    grid = np.arange(max(first[0][0], second[0][0] - longest), min(first[0][-1], second[0][-1] + longest), dt)
    if len(grid) < 20:
        raise BadInput("The two streams share no time even when their clocks are shifted; check the stamps.")
    shifts = np.arange(-longest, longest + dt, dt)
    coarse = float(shifts[int(np.nanargmax(_shift_scores(first, second, grid, shifts)))])
    begin, end = max(first[0][0], second[0][0] + coarse), min(first[0][-1], second[0][-1] + coarse)
    reach = max(0.2, 10 * dt)
    shifts = coarse + np.arange(-reach, reach + dt, dt)
    found: list[float] = []
    matches: list[float] = []
    for low, high in pairwise(np.linspace(float(begin), float(end), windows + 1).tolist()):
        grid = np.arange(low + reach, high - reach, dt)
        scores = _shift_scores(first, second, grid, shifts) if len(grid) >= 20 else np.full(1, -np.inf)
        best = int(np.nanargmax(scores))
        offset = float(shifts[best] + parabola_peak(scores, best) * dt)
        if scores[best] > 0.5 and abs(offset - coarse) < 0.95 * reach:
            found.append(offset)
            matches.append(float(scores[best]))
    if len(found) < MIN_WINDOWS:
        raise BadInput(
            f"Only {len(found)} of {windows} windows show a common motion, and a clock offset needs {MIN_WINDOWS}; "
            "record longer, or move more."
        )
    middle, n = float(np.median(found)), len(found)
    # Of few values the median deviation is too small on average, by about n / (n - 0.8).
    spread = float(1.4826 * n / (n - 0.8) * np.median(np.abs(np.array(found) - middle)))
    # A median is noisier than a mean by sqrt(pi / 2). Student's quantile pays for the few windows; a median deviation
    # knows the spread only as well as the standard deviation of about half as many would.
    half = max(spread, 1e-12) * (np.pi / 2 / n) ** 0.5 * student_quantile(0.975, max(1, round(0.55 * (n - 1))))
    seconds = Estimate(middle, middle - half, middle + half, n, "s")
    return ClockOffset(seconds, spread, tuple(found), float(np.median(matches)))


def angular_speed(stamps: Array, quats: Array, *, baseline: float = 0.6) -> Stream:
    """Stamps [s] and angular speeds [rad/s] of orientations wxyz; the same in every frame.

    Each speed is the turn over a baseline [s] about its stamp, so noise is averaged without a lag. Give both streams
    the same baseline: filtering one side shifts it against the other.
    """
    stamps, fresh = np.unique(np.asarray(stamps, float), return_index=True)
    quats = normalized(np.asarray(quats, float)[fresh])
    step = max(1, round(0.5 * baseline / float(np.median(np.diff(stamps)))))
    before, after = slice(0, len(stamps) - 2 * step), slice(2 * step, len(stamps))
    turns = angle_between(quats[before], quats[after])
    span = stamps[after] - stamps[before]
    # Across a dropout the turn is an average over a longer time than the baseline.
    whole = span < 1.5 * baseline + 2 * float(np.median(np.diff(stamps)))
    return (0.5 * (stamps[after] + stamps[before]))[whole], (turns / span)[whole]


def stream_groups(episodes: Sequence[Episode]) -> dict[str, list[Episode]]:
    """Runs that are streams of one motion, by group: those whose `meta` names a `stream`."""
    groups: dict[str, list[Episode]] = {}
    for episode in episodes:
        if "stream" in episode.meta:
            groups.setdefault(episode.meta.get("group", ""), []).append(episode)
    return {name: group for name, group in groups.items() if len(group) > 1}


def align_all_streams(groups: Mapping[str, Sequence[Episode]]) -> dict[str, AlignedStreams]:
    """Each further stream of each group against its first; the stream with the higher rate leads."""
    found: dict[str, AlignedStreams] = {}
    for name, group in groups.items():
        ranked = sorted(group, key=lambda e: e.spec.dt)
        for other in ranked[1:]:
            key = name if len(ranked) == 2 else f"{name}: {other.meta['stream']}"
            found[key] = align_streams(ranked[0], other)
    return found


def align_streams(first: Episode, second: Episode) -> AlignedStreams:
    """How far the clock of the second stream is from that of the first, by the speed both see."""
    a, unit = _speed(first)
    b, other = _speed(second)
    if unit != other:
        raise BadInput(f"One stream gives speeds in {unit!r}, the other in {other!r}; they cannot be aligned.")
    found = clock_offset(a, b)
    names = (first.meta.get("stream", "first"), second.meta.get("stream", "second"))
    apart: list[float] = []
    for shift in (0.0, found.seconds.value):
        stamps = b[0] + shift
        inside = (stamps >= a[0][0]) & (stamps <= a[0][-1])
        apart.append(rms(np.interp(stamps[inside], a[0], a[1]) - b[1][inside]))
    return AlignedStreams(*names, found, apart[0], apart[1], unit, (a, b))


def _speed(episode: Episode) -> tuple[Stream, str]:
    """Stamps on the recorder's own clock [s], and the speed of the joints; of turning if the recording has a pose."""
    labels = episode.spec.q.labels
    t = np.asarray(episode.t, float) + float(episode.meta.get("start", 0.0))
    bodies = [label.removesuffix(".qw") for label in labels if label.endswith(".qw")]
    if bodies:
        columns = [labels.index(f"{bodies[0]}.{part}") for part in QUAT]
        return angular_speed(t, episode.q[:, columns]), "rad/s"
    rates = velocity(np.asarray(episode.q, float), episode.spec.dt)
    return (t, np.sqrt((rates**2).sum(axis=-1))), f"{episode.spec.q.units[0]}/s"


def _shift_scores(first: Stream, second: Stream, grid: Array, shifts: Array) -> Array:
    """The correlation of two streams at the moments of a grid, for each shift of the second clock."""
    a, second_at, scores = _sampled(first)(grid), _sampled(second), list[float]()
    for shift in shifts:
        b = second_at(grid - shift)
        both = np.isfinite(a) & np.isfinite(b)
        scores.append(correlation(a[both], b[both]) if both.sum() >= max(20, 0.3 * len(a)) else -np.inf)
    return np.array(scores)


def _sampled(stream: Stream) -> Callable[[Array], Array]:
    """A stream at any moment, NaN in gaps. Smoothing to the rate of the other would lag, so it is interpolated."""
    stamps, values = np.asarray(stream[0], float), np.asarray(stream[1], float)
    gap = 3 * float(np.median(np.diff(stamps)))

    def at(t: Array) -> Array:
        right = np.clip(np.searchsorted(stamps, t), 1, len(stamps) - 1)
        inside = (t >= stamps[0]) & (t <= stamps[-1]) & (stamps[right] - stamps[right - 1] <= gap)
        return np.where(inside, np.interp(t, stamps, values), np.nan)

    return at
