"""Measure a gap: replays of recordings in a simulator, two sets of paired runs, or recordings alone.

Each function returns a `Gap` with everything its data allow: curves over the horizon, noise floor, command following,
joint errors of arms, error growth, lags, events and images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf, isfinite, log
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.rollout import Watch
from instep.core.statistics import Estimate, binomial_tail, jackknife, student_quantile
from instep.core.world import Array, Simulator, frozen_dataclass
from instep.physics.actuators import with_inputs
from instep.physics.engines import open_world
from instep.scene.folder import Scene
from instep.scene.robot_structure import with_joint_labels
from instep.splat.image import ssim_map, unit_image

from .events import EventRule, default_event_rules, event_agreement, find_events, match_events
from .gap_result import CameraScores, CommandFollowing, Curve, ErrorGrowth, Gap, GrowthShape, RunPair
from .horizon import HorizonOptions, error_over_time, measure_horizon, scipy, scores_of
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
from .paired_runs import compare_runs, noise_floors, repeated_runs, with_noise_floor
from .preparation import PreparedRuns, prepare, recorded_at_rate
from .time_alignment import align_all_streams, stream_groups, warped_error, world_lag

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
        gap = replace(gap, following=following).with_scores(_following_scores(following))
    gap = _with_details(gap, scene, options, events)
    floors = noise_floors(repeated_runs(ready.episodes), options=options)
    scores = {f"floor: {group}: {n}": c.at(inf) for group, curves in floors.items() for n, c in curves.items()}
    return replace(gap, floors=floors).with_scores(scores)


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
    warped = warped_error(gap.pairs, options=options)
    cameras = tuple(camera_scores(gap.pairs))
    gap = replace(gap, kind="paired", cameras=cameras, wrapping=options.wrapping)
    scores = {name: estimate for camera in cameras for name, estimate in camera.scores.items()}
    return gap.with_scores(scores | ({"overall, time-warped": warped} if warped is not None else {}))


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
    scores = {**scores_of(curves), **_following_scores(following)}
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


def growth_difference(first: ErrorGrowth, second: ErrorGrowth) -> Estimate:
    """How much faster the first grows than the second, with Welch's interval."""
    a, b = np.array(first.rates), np.array(second.rates)
    difference = float(a.mean() - b.mean())
    if len(a) < 2 or len(b) < 2:
        return Estimate(difference, np.nan, np.nan, min(len(a), len(b)), "1/s")
    va, vb = float(a.var(ddof=1)) / len(a), float(b.var(ddof=1)) / len(b)
    if va + vb == 0:
        return Estimate(difference, difference, difference, len(a) + len(b), "1/s")
    degrees = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
    half = student_quantile(0.975, max(1, int(degrees))) * (va + vb) ** 0.5
    return Estimate(difference, difference - half, difference + half, len(a) + len(b), "1/s")


def crossing(t: Array, error: Array, threshold: float, *, dwell: int = 5) -> float:
    """When an error first exceeds a threshold for `dwell` rows in a row [s]; infinity if it never does."""
    above = np.asarray(error, float) > threshold
    if len(above) < dwell:
        return inf
    lasting = np.convolve(above.astype(int), np.ones(dwell, int), mode="valid") == dwell
    return float(t[int(np.argmax(lasting))]) if lasting.any() else inf


def time_to_threshold(times: Sequence[float]) -> Estimate:
    """The median time to a threshold over runs [s], with the exact interval of a median; infinity is 'never'."""
    ordered = np.sort(np.asarray(times, float))
    n = len(ordered)
    if n == 0:
        raise BadInput("A time to a threshold needs at least one run.")
    middle = float(ordered[(n - 1) // 2]) if n % 2 or not isfinite(ordered[n // 2]) else float(np.median(ordered))
    # The k-th smallest and k-th largest hold the median unless fewer than k of n fall on one side.
    k = 0
    while k + 1 <= n // 2 and binomial_tail(k, n) <= 0.025:
        k += 1
    if k == 0:
        return Estimate(middle, np.nan, np.nan, n, "s")
    return Estimate(middle, float(ordered[k - 1]), float(ordered[n - k]), n, "s")


def _with_details(gap: Gap, scene: Scene | None, options: HorizonOptions, events: Sequence[EventRule] | None) -> Gap:
    """The gap with the errors of the arms whose joints were all compared, error growth and events."""
    arms = [arm for arm in arms_of(scene) if all(n in gap.curves for n in arm.labels)] if scene is not None else []
    if arms:
        profiles = tuple(joint_error_profile(pair, arms, scene) for pair in gap.pairs)
        gap = replace(gap, joint_errors=profiles).with_scores(profile_scores(profiles), metric_notes(arms))
    return _with_events(_with_growth(gap, options), arms, events)


def _with_growth(gap: Gap, options: HorizonOptions) -> Gap:
    """The gap with the growth of its error, its lag, and when it crosses three times the floor."""
    errors = error_over_time(gap.pairs, options=options)
    scores: dict[str, Estimate] = {}
    lag = world_lag(gap.pairs, options=options)
    if lag is not None:
        scores = {"lag of the second world": lag.lag, "overall, as timed": lag.before, "overall, lag off": lag.after}
    if "overall" in gap.floor and (floor := gap.floor["overall"].at(inf).value):
        scores["time to 3 x floor"] = time_to_threshold([crossing(t, e, 3 * floor) for t, e in errors])
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


def _following_scores(following: CommandFollowing) -> dict[str, Estimate]:
    errors = {f"command following: {name}": estimate for name, estimate in following.rmse.items()}
    return errors | {f"lag: {name}": estimate for name, estimate in following.lag.items()}


def _logistic(t: Array, y: Array) -> tuple[Array, Array]:
    """log E = log top - log(1 + exp(-lambda (t - t0)))."""

    def residual(p: Array) -> Array:
        return p[0] - np.logaddexp(0.0, -p[1] * (t - p[2])) - y

    span = float(t[-1] - t[0])
    starts = [[float(y.max()), 4.0 / span, float(t[0]) + share * span] for share in (0.3, 0.6, 0.9)]
    found: list[Any] = [scipy("optimize").least_squares(residual, start, max_nfev=200) for start in starts]
    best = min(found, key=lambda one: one.cost)
    return np.asarray(best.x, float), np.asarray(best.fun, float)


@frozen_dataclass
class ImageScore:
    """How alike two frames are within a region."""

    psnr: float
    """Peak signal to noise ratio [dB]; infinite for equal frames."""
    ssim: float
    """Structural similarity, 1 for equal frames."""
    features: float
    """Distance of gradient features over three scales, 0 for equal frames (multi-scale GMSD, Xue et al. 2014)."""
    edges: float
    """Mean distance from an edge of one frame to the nearest edge of the other, both ways [px]."""
    unexplained: float
    """Share of pixels that differ by more than a tenth of the range."""


def compare_frames(
    real: Array, sim: Array, regions: Mapping[str, Array] | None = None, *, matched: bool = False
) -> dict[str, ImageScore]:
    """Scores of two frames [h, w, 3] by region (masks [h, w]); 'frame' is the whole.

    With `matched`, the simulated frame first gets the gain and offset per colour that suit best: what is left is not
    exposure.
    """
    a, b = unit_image(real), unit_image(sim)
    if a.shape != b.shape:
        raise BadInput(f"Paired frames must have one size, not {a.shape[:2]} and {b.shape[:2]}.")
    if matched:
        b = photometric(a, b)
    whole = np.ones(a.shape[:2], bool)
    maps = _Maps(a, b)
    return {name: maps.score(np.asarray(mask, bool)) for name, mask in {"frame": whole, **(regions or {})}.items()}


def iou(first: Array, second: Array) -> float:
    """Intersection over union of two masks; 1 if both are empty."""
    a, b = np.asarray(first, bool), np.asarray(second, bool)
    union = int((a | b).sum())
    return 1.0 if union == 0 else int((a & b).sum()) / union


def photometric(real: Array, sim: Array, static: Array | None = None) -> Array:
    """The simulated image with the gain and offset of each colour that suit the static background best."""
    a, b = unit_image(real), unit_image(sim)
    where = np.ones(a.shape[:2], bool) if static is None else np.asarray(static, bool)
    out = np.empty_like(b)
    for c in range(a.shape[2]):
        x, y = b[..., c][where], a[..., c][where]
        spread = float(((x - x.mean()) ** 2).mean())
        gain = float(((x - x.mean()) * (y - y.mean())).mean()) / spread if spread > 1e-12 else 1.0
        out[..., c] = gain * (b[..., c] - float(x.mean())) + float(y.mean())
    return np.clip(out, 0, 1)


def image_scores(runs: Sequence[Sequence[ImageScore]], prefix: str) -> dict[str, Estimate]:
    """Means over runs of each run's mean score, with intervals over runs."""
    found: dict[str, Estimate] = {}
    for name, unit in (("psnr", "dB"), ("ssim", "1"), ("features", "1"), ("edges", "px"), ("unexplained", "1")):
        means = [float(np.mean([min(getattr(s, name), 100.0) for s in run])) for run in runs if run]
        if means:
            found[f"{prefix} {name}"] = jackknife(np.array(means), unit=unit)
    return found


class _Maps:
    """What is computed once per pair and read within every region."""

    def __init__(self, real: Array, sim: Array):
        self.square = ((real - sim) ** 2).mean(axis=-1)
        self.worst = np.abs(real - sim).max(axis=-1)
        self.ssim = ssim_map(real, sim).mean(axis=-1)
        self.gradients = _gradient_maps(real.mean(axis=-1), sim.mean(axis=-1))
        self.edges = _edge_distances(real.mean(axis=-1), sim.mean(axis=-1))

    def score(self, region: Array) -> ImageScore:
        """The scores within a region."""
        if not region.any():
            return ImageScore(*(float("nan"),) * 5)
        error = float(self.square[region].mean())
        features = [
            float(np.std(m[region[:: 2**i, :: 2**i][: m.shape[0], : m.shape[1]]])) for i, m in enumerate(self.gradients)
        ]
        edges = [float(d[e & region].mean()) for e, d in self.edges if (e & region).any()]
        return ImageScore(
            float("inf") if error == 0 else -10 * float(np.log10(error)),
            float(self.ssim[region].mean()),
            float(np.mean(features)),
            float(np.mean(edges)) if edges else 0.0,
            float((self.worst[region] > 0.1).mean()),
        )


def _gradient_maps(a: Array, b: Array, scales: int = 3) -> list[Array]:
    """Similarity of gradient magnitudes at each scale; its standard deviation is the distance."""
    c = 170 / 255**2
    maps: list[Array] = []
    for _ in range(scales):
        ga, gb = _gradient(a), _gradient(b)
        maps.append((2 * ga * gb + c) / (ga**2 + gb**2 + c))
        a, b = _halved(a), _halved(b)
    return maps


def _gradient(x: Array) -> Array:
    ndimage = scipy("ndimage")
    return np.hypot(ndimage.prewitt(x, axis=0), ndimage.prewitt(x, axis=1)) / 3


def _halved(x: Array) -> Array:
    x = x[: x.shape[0] // 2 * 2, : x.shape[1] // 2 * 2]
    return 0.25 * (x[::2, ::2] + x[1::2, ::2] + x[::2, 1::2] + x[1::2, 1::2])


def _edge_distances(a: Array, b: Array) -> list[tuple[Array, Array]]:
    """Edges of each image, and how far every pixel is from an edge of the other [px]."""
    edges = [_gradient(x) > 0.1 for x in (a, b)]
    far = float(np.hypot(*a.shape))
    distance = [
        np.asarray(scipy("ndimage").distance_transform_edt(~e)) if e.any() else np.full(a.shape, far) for e in edges
    ]
    return [(edges[0], distance[1]), (edges[1], distance[0])]


FRAMES_PER_RUN = 12
"""Frames of a run that are compared, spread over it."""
IMAGES, MASKS = "observation.images.", "observation.masks."


def camera_scores(pairs: Sequence[RunPair]) -> list[CameraScores]:
    """Scores of every camera that both worlds recorded, by region if there are masks."""
    if not pairs:
        return []
    both = [c for c in pairs[0].real.columns if c.startswith(IMAGES) and c in pairs[0].sim.columns]
    return [_camera_scores(pairs, column) for column in both if not column.endswith(".stamp")]


def _camera_scores(pairs: Sequence[RunPair], column: str) -> CameraScores:
    camera = column.removeprefix(IMAGES)
    raw: dict[str, list[list[ImageScore]]] = {}
    matched: dict[str, list[list[ImageScore]]] = {}
    overlaps: list[float] = []
    example: tuple[Array, Array] | None = None
    for pair in pairs:
        rows = np.unique(np.linspace(0, len(pair.real) - 1, FRAMES_PER_RUN).astype(int))
        for row in rows:
            a, b = np.asarray(pair.real[column][int(row)]), np.asarray(pair.sim[column][int(row)])
            region, overlap = _region(pair, camera, int(row))
            overlaps += overlap
            for store, fit in ((raw, False), (matched, True)):
                for name, score in compare_frames(a, b, region, matched=fit).items():
                    store.setdefault(name, [[] for _ in pairs])[pairs.index(pair)].append(score)
            if example is None or row <= rows[len(rows) // 2]:
                example = (a, b)
    scores: dict[str, Estimate] = {}
    for name in raw:
        scores |= image_scores(raw[name], f"{camera} {name}")
        scores |= image_scores(matched[name], f"{camera} {name}, exposure matched")
    if overlaps:
        scores[f"{camera} mask IoU"] = jackknife(np.array(overlaps), unit="1")
    return CameraScores(camera, scores, example or (np.zeros((1, 1, 3)), np.zeros((1, 1, 3))))


def _region(pair: RunPair, camera: str, row: int) -> tuple[dict[str, Array], list[float]]:
    name = MASKS + camera
    if name not in pair.real.columns:
        return {}, []
    mask = np.asarray(pair.real[name][row]).squeeze() > 0
    if name not in pair.sim.columns:
        return {"region": mask}, []
    return {"region": mask}, [iou(mask, np.asarray(pair.sim[name][row]).squeeze() > 0)]
