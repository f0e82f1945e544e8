"""Failure modes of a simulator and of a policy in it, each detected with its evidence."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, exp, inf, isfinite, log, nan

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from instep.core.episode import Episode, Log, longest_stretch
from instep.core.errors import BadInput, Diverged
from instep.core.rollout import Aligned, aligned, checked_action, rollout_windows
from instep.core.statistics import Estimate, jackknife
from instep.core.world import Array, Policy, Simulator, State, frozen_dataclass
from instep.gap.gap_result import Gap, RunPair
from instep.gap.horizon import QUAT, HorizonOptions, channels, error_over_time, rms
from instep.gap.measure import error_growth
from instep.gap.paired_runs import compare_runs, noise_floor, repeated_runs, split_by_outcome
from instep.gap.preparation import scalar_joints

MOVED_M = 0.02
"""A body that moved by more than this has moved [m]."""
LASTING_S = 0.5
"""A residual must last this long to count [s]."""
SINK_M = 0.002
"""A body that rests this much lower than in reality penetrates [m]."""
TUNNEL_M = 0.05
"""A body this far below everything it reached in reality passed through [m]."""
JITTER_M_S = 0.005
"""A body that should rest and moves at this speed shakes [m/s]."""
REST_M = 0.004
"""A body placed if it was seen to rest must stay within this [m]."""
MODES: dict[str, str] = {
    "perceptual sensitivity": "the policy acts differently on a rendered image than on a real one of the same state",
    "embodiment mismatch": "the policy commands what this body cannot do",
    "reconstruction artefacts": "the scene's shapes contradict where things were seen to rest",
    "closed-loop compounding": "errors grow faster with the policy in the loop than without",
    "dynamics gap": "the error exceeds the scatter of the robot's own repeats",
    "static scene": "a body moved in reality and not in the simulator",
    "friction": "joint or contact friction differs",
    "actuator limits": "motors saturate",
    "latency": "commands take effect later",
    "backlash": "gears have backlash",
    "gains": "servos are stiffer or softer",
    "payload": "the arm is heavier or lighter",
    "time step": "the simulator's step is too coarse",
    "penetration": "bodies sink into each other",
    "tunnelling": "a body passes through another",
    "contact jitter": "bodies shake where they should rest",
    "sensor noise": "sensors are noisier than the simulator's",
    "stochasticity": "repeats of one command differ by more than sensors can explain",
}
"""Every mode by name, in a few words."""


@frozen_dataclass
class FailureMode:
    """A failure mode, found or ruled out."""

    name: str
    found: bool
    strength: Estimate
    """What was measured; the unit and the threshold are in the evidence."""
    evidence: str
    """One sentence: the measurement and its threshold."""


def found_modes(modes: Sequence[FailureMode]) -> list[FailureMode]:
    """The modes that were found, the strongest physical cause first."""
    found = [m for m in modes if m.found]
    return sorted(found, key=lambda m: -m.strength.value if isfinite(m.strength.value) else 0.0)


def observed_modes(sim: Simulator, episodes: Sequence[Episode], gap: Gap) -> list[FailureMode]:
    """The failure modes that show in the runs themselves, without changing the simulator."""
    finite = [p for p in gap.pairs if p.sim.q.size and np.isfinite(p.sim.q).all()]
    modes = [dynamics_gap(gap), stochasticity(repeated_runs(episodes))]
    if finite:
        modes.append(sensor_noise(finite))
    if bodies(episodes[0]) and finite:
        modes += [*contact_faults(finite), static_scene(finite), rest_test(sim, episodes)]
    return modes


def dynamics_gap(gap: Gap, *, least: float = 1.5) -> FailureMode:
    """Whether the error exceeds the scatter of repeats, beyond both intervals, at every horizon from half a second on.

    Shorter horizons are left out: there, errors of the start state weigh more than the model.
    """
    name = "dynamics gap"
    if "overall" not in gap.floor:
        return FailureMode(
            name, False, Estimate(nan, nan, nan, 0), "No command was repeated, so the robot's scatter is unknown."
        )
    ratios: list[tuple[Estimate, str]] = []
    for horizon, words in zip(gap.curves["overall"].horizons, gap.curves["overall"].names(), strict=True):
        error, scatter = gap.curves["overall"].at(horizon), gap.floor["overall"].at(horizon)
        if horizon >= 0.5 and isfinite(error.low) and isfinite(scatter.high) and scatter.high > 0:
            high = error.high / max(scatter.low, 1e-300)
            ratios.append((Estimate(error.value / scatter.value, error.low / scatter.high, high, error.n), words))
    if not ratios:
        return FailureMode(name, False, Estimate(nan, nan, nan, 0), "The runs are too short to decide.")
    ratio, when = min(ratios, key=lambda entry: entry[0].low)
    sentence = f"The error is {ratio.value:.2g} times the scatter of repeats at {when} and more elsewhere"
    return FailureMode(
        name, ratio.low > least, ratio, f"{sentence} (at least {ratio.low:.2g}; named from {least:g} on)."
    )


def static_scene(pairs: Sequence[RunPair]) -> FailureMode:
    """Whether a body moved in reality and stayed if it was in the simulator, for longer than half a second."""
    name = "static scene"
    worst, where = 0.0, ""
    runs = 0
    for pair in pairs:
        for body in bodies(pair.real):
            real, sim = (_positions(side, body) for side in (pair.real, pair.sim))
            moved = np.linalg.norm(real - real[0], axis=-1)
            answer = np.linalg.norm(sim - sim[0], axis=-1)
            apart = np.linalg.norm(sim - real, axis=-1)
            ignored = (moved > MOVED_M) & (answer < 0.25 * moved) & (apart > 0.5 * MOVED_M)
            lasted = longest_stretch(ignored)[1] * pair.real.spec.dt
            runs += lasted > LASTING_S
            if lasted > worst:
                worst, where = lasted, body
    strength = Estimate(worst, worst, worst, len(pairs), "s")
    if worst <= LASTING_S:
        return FailureMode(name, False, strength, "Every body that moved in reality moved in the simulator too.")
    words = f"{where!r} moved in reality and stayed in the simulator for {worst:.2g} s, in {runs} of {len(pairs)} runs."
    return FailureMode(name, True, strength, words)


def sensor_noise(pairs: Sequence[RunPair], *, least: float = 3.0) -> FailureMode:
    """Whether measured positions are noisier than simulated ones, by third differences."""
    name = "sensor noise"
    logs: list[float] = []
    levels: list[float] = []
    for pair in pairs:
        labels = scalar_joints(pair.real) or list(pair.real.spec.q.labels)
        columns = [pair.real.spec.q.labels.index(label) for label in labels]
        real, sim = (noise_level(side.q[:, columns]) for side in (pair.real, pair.sim))
        span = np.maximum(np.ptp(pair.real.q[:, columns], axis=0), 1e-9)
        # Below a millionth of the motion there is no noise worth its name, only rounding.
        logs.append(float(np.median(np.log(np.maximum(real, 1e-6 * span) / np.maximum(sim, 1e-6 * span)))))
        levels.append(float(np.median(real)))
    ratio = jackknife(np.array(logs))
    strength = Estimate(exp(ratio.value), exp(ratio.low), exp(ratio.high), len(logs), "1")
    # Of one run there is no interval: it must be twice as noisy.
    loud = strength.low > least if len(logs) > 1 else strength.value > 2 * least
    level = f"{float(np.median(levels)):.2g}, {strength.value:.2g} times that of the simulated ones"
    return FailureMode(name, loud, strength, f"Measured positions carry noise of {level}.")


def stochasticity(real: Sequence[Sequence[Episode]], *, least: float = 3.0) -> FailureMode:
    """Whether repeats of one command differ by more than their sensors can explain."""
    name = "stochasticity"
    kinds = split_by_outcome(real)
    if not kinds:
        return FailureMode(name, False, Estimate(nan, nan, nan, 0), "No command was repeated.")
    scatter = noise_floor(kinds)
    compared = channels(kinds[0][0].spec.q)
    best = Estimate(0.0, 0.0, 0.0, 0, "1")
    words = "Repeats scatter no more than their sensors do."
    for channel, columns in zip(compared.names, compared.columns, strict=True):
        if len(columns) != 1:
            continue
        level = float(np.median([noise_level(e.q[:, [columns[0]]])[0] for kind in kinds for e in kind]))
        span = max(float(np.ptp(kinds[0][0].q[:, columns[0]])), 1e-9)
        spread = scatter[channel].at(inf)
        base = max(level, 1e-4 * span)
        ratio = Estimate(spread.value / base, spread.low / base, spread.high / base, spread.n, "1")
        if ratio.low > best.low:
            best = ratio
            words = f"Repeats of {channel!r} scatter by {spread.value:.3g}, {ratio.value:.2g} times its sensor noise."
    return FailureMode(name, best.low > least, best, words)


def noise_level(q: Array) -> Array:
    """The standard deviation of white noise on smooth signals [rows, n]: third differences grow it by sqrt(20)."""
    q = np.asarray(q, float)
    level = np.zeros(q.shape[1])
    if len(q) >= 8:
        # The median is blind to the few rows where the motion itself is not smooth.
        level[:] = 1.4826 / 20**0.5 * np.median(np.abs(np.diff(q, n=3, axis=0)), axis=0)
    return level


def bodies(episode: Episode) -> list[str]:
    """Bodies that have a pose."""
    labels = episode.spec.q.labels
    names = [label.removesuffix(".qw") for label in labels if label.endswith(".qw")]
    return [n for n in names if all(f"{n}.{part}" in labels for part in ("x", "y", "z", *QUAT))]


def contact_faults(pairs: Sequence[RunPair]) -> list[FailureMode]:
    """Penetration, tunnelling and jitter of the simulator's bodies while the real ones rest."""
    sunk: list[float] = []
    fallen: list[float] = []
    shaken: list[float] = []
    for pair in pairs:
        for body in bodies(pair.real):
            real, sim = (_positions(side, body) for side in (pair.real, pair.sim))
            if not np.isfinite(sim).all():
                continue
            fallen.append(float(real[:, 2].min() - sim[:, 2].min()))
            resting = at_rest(real, pair.real.spec.dt)
            if resting.sum() < 10:
                continue
            sunk.append(float(np.median((real - sim)[resting, 2])))
            shaken.append(_shaking(sim, pair.real.spec.dt, resting) - _shaking(real, pair.real.spec.dt, resting))
    through = _worst(fallen) if fallen else 0.0
    modes = [_mode("tunnelling", fallen, TUNNEL_M, "m", "A body ended {:.3g} m below all it ever was in reality.")]
    # A body that fell through is below where it should rest, too; that is the same fault once.
    below = sunk if through <= TUNNEL_M else []
    modes.append(_mode("penetration", below, SINK_M, "m", "Bodies rest {:.2g} m lower than they did in reality."))
    calm = shaken if through <= TUNNEL_M else []
    return [
        *modes,
        _mode("contact jitter", calm, JITTER_M_S, "m/s", "Bodies shake at {:.2g} m/s where they should rest."),
    ]


def rest_test(sim: Simulator, episodes: Sequence[Episode], *, span: float = 0.3) -> FailureMode:
    """Whether bodies stay at their measured rest poses: overlapping or floating shapes make them jump or fall."""
    name = "reconstruction artefacts"
    moved: list[float] = []
    worst = ""
    for episode in episodes:
        run = aligned(episode, sim)
        labels = sim.spec.q.labels
        for body in bodies(episode):
            if f"{body}.x" not in labels:
                continue
            place = [labels.index(f"{body}.{part}") for part in "xyz"]
            resting = np.flatnonzero(at_rest(run.q[:, place], sim.spec.dt))
            starts = resting[:: max(1, len(resting) // 4)][:4]
            starts = starts[starts < len(run.q) - 2]
            if len(starts) == 0:
                continue
            jump = _jump(sim, run, starts, place, max(2, round(span / sim.spec.dt)))
            moved.append(jump)
            worst = body if jump >= max(moved) else worst
    if not moved:
        return FailureMode(
            name, False, Estimate(nan, nan, nan, 0, "m"), "No body was seen to rest, so shapes were not tested."
        )
    value = float(np.median(moved))
    strength = Estimate(value, min(moved), max(moved), len(moved), "m")
    words = f"{worst!r}, put if it was seen to rest, moves by {1e3 * value:.1f} mm (allowed {1e3 * REST_M:.0f} mm)."
    return FailureMode(name, value > REST_M, strength, words)


def at_rest(position: Array, dt: float, *, lasting: float = 0.2) -> Array:
    """Rows [rows] at which a body has been and stays still, by positions [rows, 3]."""
    rows = max(2, round(lasting / dt))
    still = np.zeros(len(position), bool)
    if len(position) > 2 * rows:
        around = sliding_window_view(position, 2 * rows + 1, axis=0)
        still[rows : len(position) - rows] = np.ptp(around, axis=-1).max(axis=-1) < 1e-3 + 0.002 * rows * dt
    return still


def _positions(episode: Episode, body: str) -> Array:
    labels = episode.spec.q.labels
    return np.asarray(episode.q, float)[:, [labels.index(f"{body}.{part}") for part in "xyz"]]


def _jump(sim: Simulator, run: Aligned, starts: Array, place: Sequence[int], steps: int) -> float:
    """How far a body put at some rows of a run is from there some steps later [m]."""
    windows = np.array([(0, int(s)) for s in starts])
    spans = np.minimum(steps, len(run.q) - 1 - starts)
    ends = np.full((len(starts), 3), np.nan)

    def visit(step: int, live: Array, state: State) -> None:
        ends[live] = state.q[: len(live)][:, place]

    survived = rollout_windows(sim, [run], windows, spans, visit)
    ends[survived < spans] = np.inf
    return float(np.median(np.linalg.norm(ends - run.q[starts][:, place], axis=-1)))


def _shaking(position: Array, dt: float, rows: Array) -> float:
    """The root mean square speed of a body while it should rest [m/s]."""
    speed = np.linalg.norm(np.gradient(position, dt, axis=0), axis=-1)
    return rms(speed[rows])


def _mode(name: str, values: Sequence[float], limit: float, unit: str, words: str) -> FailureMode:
    if not values:
        return FailureMode(
            name, False, Estimate(nan, nan, nan, 0, unit), "No body was seen to rest, so this was not tested."
        )
    value = _worst(values)
    strength = Estimate(value, min(values), max(values), len(values), unit)
    sentence = f"{words.format(value)[:-1]} (named above {limit:g} {unit})."
    return FailureMode(name, value > limit, strength, sentence)


def _worst(values: Sequence[float]) -> float:
    """The value that a quarter of the runs exceed: one odd run names nothing, a fault of some runs does."""
    return float(np.quantile(values, 0.75))


MIN_USUAL_RUNS = 19
"""Runs needed for a conformal threshold with 5 % false alarms."""
IMAGES = "observation.images."


def closed_loop_runs(sim: Simulator, policy: Policy, episodes: Sequence[Episode]) -> list[Episode]:
    """The policy in closed loop in a simulator, from the start of each recorded run and for as long.

    A run in which the simulation diverges ends there.
    """
    found: list[Episode] = []
    for i, episode in enumerate(episodes):
        start = aligned(episode, sim)
        state = sim.place(start.q[0], start.v[0], 0.0, start.past[0])
        policy.reset(i)
        rows = Log(sim.spec, dict(episode.meta))
        for _ in range(len(episode)):
            seen = sim.observe(state)
            action = checked_action(policy.act(seen), sim.spec, state.batch)
            rows(state, seen, action)
            try:
                state = sim.step(state, action)
            except Diverged:
                break
        found.append(rows.episode())
    return found


def closed_loop_modes(
    sim: Simulator,
    policy: Policy,
    episodes: Sequence[Episode],
    pairs: Sequence[RunPair],
    *,
    wrapping: Sequence[str] = (),
) -> list[FailureMode]:
    """Compounding and embodiment mismatch of a policy that is run in closed loop from the recorded starts.

    `pairs` are the recorded runs beside the open-loop replay of their commands.
    """
    options = HorizonOptions(wrapping=tuple(wrapping))
    runs = closed_loop_runs(sim, policy, episodes)
    closed = error_over_time(compare_runs([pair.real for pair in pairs], runs, options=options).pairs, options=options)
    modes = [compounding(closed, error_over_time(pairs, options=options))]
    if len(episodes) >= MIN_USUAL_RUNS:
        modes.append(embodiment_mismatch(runs, episodes))
    return modes


def image_sensitivity(
    policy: Policy, episodes: Sequence[Episode], pairs: Sequence[RunPair], *, frames: int = 12, seed: int = 0
) -> FailureMode:
    """Perceptual sensitivity of a policy on paired images: recorded runs beside the same states in another world."""
    cameras = [c for c in pairs[0].real.columns if c.startswith(IMAGES) and c in pairs[0].sim.columns]
    if not cameras:
        raise BadInput("The sensitivity of a policy to images needs images of the same camera in both datasets.")
    rng = np.random.default_rng((seed, 0x1A6E))
    actions: list[list[list[Array]]] = [[], [], []]
    for episode, pair in zip(episodes, pairs, strict=True):
        rows = np.linspace(0, len(pair.real) - 1, frames).astype(int)
        for kind in actions:
            kind.append([])
        for row in rows.tolist():
            seen = {n: c[row] for n, c in episode.columns.items() if n.startswith("observation.")}
            views = {c: _image_views(pair.real[c][row], pair.sim[c][row], rng) for c in cameras}
            for kind, store in enumerate(actions):
                policy.reset(seed)
                action = policy.act({**seen, **{camera: view[kind] for camera, view in views.items()}})
                store[-1].append(np.asarray(action, float))
    real, rendered, control = (np.array(kind) for kind in actions)
    return perceptual_sensitivity(real, rendered, control)


def _image_views(real: Array, rendered: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """A real image, the rendered one, and the real one with noise of the same image distance."""
    a, b = np.asarray(real), np.asarray(rendered)
    noise = rng.normal(size=a.shape)
    distance = float(np.linalg.norm(b.astype(float) - a.astype(float)))
    noisy = a.astype(float) + noise * distance / float(np.linalg.norm(noise))
    return a, b, np.clip(noisy, 0, 255).astype(a.dtype) if a.dtype == np.uint8 else noisy.astype(a.dtype)


def compounding(closed: Sequence[tuple[Array, Array]], open_loop: Sequence[tuple[Array, Array]]) -> FailureMode:
    """Whether errors end larger with the policy in the loop than when its actions are only replayed, and grow there.

    Runs are given as times and errors, in pairs: each closed-loop run beside the replay of its actions.
    """
    name = "closed-loop compounding"
    try:
        fast = error_growth([t for t, _ in closed], [e for _, e in closed])
    except BadInput:
        return FailureMode(name, False, Estimate(nan, nan, nan, 0), "Closed-loop errors do not grow.")
    ends = [log(max(_end(c), 1e-12) / max(_end(o), 1e-12)) for (_, c), (_, o) in zip(closed, open_loop, strict=True)]
    ratio = jackknife(np.array(ends))
    strength = Estimate(exp(ratio.value), exp(min(ratio.low, 50.0)), exp(min(ratio.high, 50.0)), ratio.n, "1")
    words = f"Closed-loop errors grow ({fast.shape}) and end {strength.value:.2g} times as large as replayed ones"
    return FailureMode(name, strength.low > 2, strength, f"{words} (at least {strength.low:.2g}; named from 2 on).")


def perceptual_sensitivity(real: Array, rendered: Array, control: Array) -> FailureMode:
    """Whether a policy acts otherwise on rendered images than on real ones of the same states.

    Actions [runs, frames, nu] for the real image, for the rendered one, and for the real one with noise of as much
    image distance as lies between the two: what a robust policy may do.
    """
    change = np.linalg.norm(np.asarray(rendered, float) - real, axis=-1).mean(axis=-1)
    usual = np.linalg.norm(np.asarray(control, float) - real, axis=-1).mean(axis=-1)
    size = float(np.linalg.norm(np.asarray(real, float).std(axis=(0, 1)))) + 1e-12
    # Changes below a thousandth of how much actions vary are no change, whatever their ratio.
    ratio = jackknife(np.log(np.maximum(change, 1e-3 * size) / np.maximum(usual, 1e-3 * size)))
    strength = Estimate(exp(ratio.value), exp(ratio.low), exp(ratio.high), ratio.n, "1")
    words = (
        f"On rendered images the actions change by {float(change.mean()) / size:.2g} of their usual variation, "
        f"{strength.value:.2g} times as much as noise of the same image distance makes them."
    )
    return FailureMode("perceptual sensitivity", strength.low > 1.5, strength, words)


def embodiment_mismatch(runs: Sequence[Episode], usual: Sequence[Episode]) -> FailureMode:
    """Whether a policy commands what this body cannot do, against commands that are known to suit it.

    Each run scores by its jerk, its tracking residual and how far its actions lie from the usual ones; the threshold is
    the conformal quantile of the usual runs.
    """
    name = "embodiment mismatch"
    if len(usual) < MIN_USUAL_RUNS:
        raise BadInput(f"A threshold for 5 % false alarms needs {MIN_USUAL_RUNS} usual runs, not {len(usual)}.")
    table = np.array([_command_features(e, usual) for e in usual])
    middle, spread = np.median(table, axis=0), 1.4826 * np.median(np.abs(table - np.median(table, axis=0)), axis=0)
    spread = np.maximum(spread, 0.05 * np.abs(middle) + 1e-9)
    scores = ((table - middle) / spread).max(axis=1)
    threshold = conformal(scores, 0.05)
    found = np.array([_command_features(e, usual) for e in runs])
    standard = (found - middle) / spread
    own = standard.max(axis=1)
    worst = ("jerk", "tracking residual", "distance from the usual actions")[int(standard.mean(axis=0).argmax())]
    share = float((own > threshold).mean())
    value = float(np.median(own))
    strength = Estimate(value, float(own.min()), float(own.max()), len(own), "1")
    words = f"{share:.0%} of the runs exceed the threshold {threshold:.2g} of usual commands, most by their {worst}."
    return FailureMode(name, share > 0.5, strength, words)


def conformal(scores: Array, alpha: float) -> float:
    """The threshold that a new usual score exceeds with a chance of at most alpha; infinite if runs are too few."""
    ordered = np.sort(np.asarray(scores, float))
    # Round before the ceiling: 20 * 0.95 must be 19, not 20.
    place = ceil(round((len(ordered) + 1) * (1 - alpha), 9))
    return inf if place > len(ordered) else float(ordered[place - 1])


def _command_features(episode: Episode, usual: Sequence[Episode]) -> Array:
    action, labels = np.asarray(episode.action, float)[:-1], episode.spec.action.labels
    known = np.concatenate([e.action[:-1] for e in usual])
    spread = np.maximum(np.std(known, axis=0), 1e-9)
    jerk = rms(np.diff(action, n=3, axis=0) / spread) if len(action) > 3 else nan
    places = [episode.spec.q.labels.index(label) for label in labels if label in episode.spec.q.labels]
    residual = rms((action - episode.q[:-1, places]) / spread) if len(places) == len(labels) else 0.0
    return np.array([jerk, residual, rms((action - known.mean(axis=0)) / spread)])


def _end(error: Array) -> float:
    """The error over the last tenth of a run."""
    return rms(error[-max(1, len(error) // 10) :])
