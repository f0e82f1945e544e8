"""Windows of recordings for multiple shooting: cutting, noise estimates, predictability, and their simulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.signal import savgol_filter

from instep.core import poses
from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.param import Param
from instep.core.rollout import aligned, rollout_positions, same_width
from instep.core.world import Array, Simulator, Spec, advance, array_dataclass

MAX_START_NOISE_SHARE = 0.05
"""Share of a coordinate's travel by which noise of the start state may move it before the rest of a window is cut."""
STATE_STEP = 1e-4
"""Step of finite differences of the state [rad or m, and per second]."""
WORLD_BATCH = 16384
"""Most worlds stepped in one call; more are done in turns."""


@array_dataclass
class Windows:
    """Windows of recordings: start states, commands and measured positions."""

    q: Array
    """Positions at the start of each window [n, nq]."""
    v: Array
    """Velocities at the start [n, nv]."""
    past: Array
    """Actions before the start [n, memory, nu], oldest first."""
    action: Array
    """Actions from the start on [n, span, nu]."""
    target: Array
    """Positions measured 1..span rows after the start [n, span, nq]."""
    inside: Array
    """Which of those rows exist [n, span]."""
    run: Array
    """Which episode a window came from [n]."""
    tangent: Tangent
    """The tangent space of the positions."""
    noise_q: Array
    """Noise of measured positions, per direction of the tangent [nv]."""
    noise_v: Array
    """Uncertainty of the velocities at the starts [nv]."""

    def __len__(self) -> int:
        return len(self.q)

    def subset(self, index: Array) -> Windows:
        """The windows at some indices."""
        parts = {name: getattr(self, name)[index] for name in ("q", "v", "past", "action", "target", "inside", "run")}
        return replace(self, **parts)


@array_dataclass
class Tangent:
    """Differences of positions in the directions of the velocities; of quaternions, rotation vectors."""

    scalar_q: Array
    """Where plain coordinates stand in q."""
    scalar_v: Array
    """Where their velocities stand in v."""
    quat_q: Array
    """Where quaternions begin in q."""
    quat_v: Array
    """Where their angular velocities begin in v."""
    labels: tuple[str, ...]
    """Name of each direction."""
    measured: Array
    """Which directions the recordings measured [nv]."""

    @property
    def measured_labels(self) -> tuple[str, ...]:
        """Names of the measured directions."""
        return tuple(label for label, measured in zip(self.labels, self.measured, strict=True) if measured)

    def minus(self, a: Array, b: Array) -> Array:
        """a - b [..., nv]."""
        out = np.zeros((*np.broadcast_shapes(a.shape, b.shape)[:-1], len(self.labels)))
        out[..., self.scalar_v] = a[..., self.scalar_q] - b[..., self.scalar_q]
        for q, v in zip(self.quat_q, self.quat_v, strict=True):
            turn = poses.quat_mul(poses.quat_inv(b[..., q : q + 4]), a[..., q : q + 4])
            out[..., v : v + 3] = poses.quat_log(turn)
        return out

    def plus(self, a: Array, step: Array) -> Array:
        """The positions a small step [..., nv] away from a."""
        out = np.broadcast_to(a, (*np.broadcast_shapes(a.shape[:-1], step.shape[:-1]), a.shape[-1])).copy()
        out[..., self.scalar_q] += step[..., self.scalar_v]
        for q, v in zip(self.quat_q, self.quat_v, strict=True):
            turned = poses.quat_mul(out[..., q : q + 4], poses.quat_exp(step[..., v : v + 3]))
            out[..., q : q + 4] = poses.normalized(turned)
        return out


def cut_windows(
    sim: Simulator,
    episodes: Sequence[Episode],
    *,
    span: int,
    stride: int | None = None,
    skip: int = 0,
    limit: int | None = None,
) -> Windows:
    """All windows of `span` rows, one every `stride` rows from row `skip` on, evenly thinned to `limit`."""
    if not episodes:
        raise BadInput("Identification needs at least one episode, and none was given.")
    if span < 1:
        raise BadInput(f"A window needs at least one row after its start, not {span}.")
    form = tangent(sim.spec, episodes[0].spec)
    pieces = [_windows(sim, e, i, form, (span, stride or span, skip)) for i, e in enumerate(episodes)]
    names = ("q", "v", "past", "action", "target", "inside", "run")
    parts = {name: [getattr(p, name) for p in pieces] for name in names}
    parts["action"] = same_width(parts["action"])
    joined = {name: np.concatenate(arrays) for name, arrays in parts.items()}
    noise_q = np.median([p.noise_q for p in pieces], axis=0)
    noise_v = np.median([p.noise_v for p in pieces], axis=0)
    windows = Windows(**joined, tangent=form, noise_q=noise_q, noise_v=noise_v)
    if limit is not None and len(windows) > limit:
        windows = windows.subset(np.linspace(0, len(windows) - 1, limit).round().astype(int))
    moved = np.abs(form.minus(windows.target, windows.q[:, None])).max(axis=(0, 1))
    if not (moved[form.measured] > 1e-9).any():
        raise BadInput("Nothing moves in the recordings, so no parameter can be identified; record a motion first.")
    return windows


def tangent(spec: Spec, recording: Spec) -> Tangent:
    """The tangent space of a world's positions, and which of its directions a recording measured."""
    labels = spec.q.labels
    quats = [i for i, label in enumerate(labels) if label.endswith(".qw")]
    inside = {j for i in quats for j in range(i, i + 4)}
    scalar_q = np.array([i for i in range(len(labels)) if i not in inside], int)
    shift = np.array([sum(i - q >= 4 for q in quats) for i in range(len(labels))], int)
    scalar_v = scalar_q - shift[scalar_q]
    quat_v = np.array([q - shift[q] for q in quats], int)
    names = list(spec.v.labels)
    measured = np.zeros(len(names), bool)
    held = np.isin(labels, recording.q.labels)
    measured[scalar_v] = held[scalar_q]
    for q, v in zip(quats, quat_v, strict=True):
        measured[v : v + 3] = held[q]
    return Tangent(scalar_q, scalar_v, np.array(quats, int), quat_v, tuple(names), measured)


def _windows(sim: Simulator, episode: Episode, run: int, form: Tangent, sizes: tuple[int, int, int]) -> Windows:
    given = aligned(episode, sim)
    rows = len(given.q)
    if rows < 3:
        raise BadInput(f"Episode {run} has {rows} rows; a window needs at least three.")
    span, stride, skip = sizes
    derived = "v" not in episode.columns
    # In the first row the derivative of positions is one-sided, and wrong by half a period of acceleration.
    skip = max(skip, int(derived))
    # A recording shorter than a window is one window; its missing rows do not count.
    starts = np.arange(min(skip, max(0, rows - 1 - span)), max(1, rows - span), stride)
    into = starts[:, None] + np.arange(1, span + 1)
    noise_q, noise_v = _noise(given.q, given.v, form, sim.spec.dt)
    if derived:
        noise_v = np.maximum(noise_v, _derivative_error(given.v, noise_q, sim.spec.dt)) if rows > 4 else noise_v
    return Windows(
        q=given.q[starts],
        v=given.v[starts],
        past=given.past[starts],
        action=given.action[np.minimum(into, rows - 1) - 1],
        target=given.q[np.minimum(into, rows - 1)],
        inside=into < rows,
        run=np.full(len(starts), run),
        tangent=form,
        noise_q=noise_q,
        noise_v=noise_v,
    )


def _noise(q: Array, v: Array, form: Tangent, dt: float) -> tuple[Array, Array]:
    """Standard deviation of the noise of positions and of velocities [nv], with the motion itself filtered out.

    The residual of a cubic (Savitzky-Golay) filter holds part of a fast motion, so fifth-order differences, which
    suppress motion, may lower the estimate, but not below a third: those of a coarse encoder are mostly zero.
    """
    steps = np.concatenate([np.zeros((1, len(form.labels))), np.cumsum(form.minus(q[1:], q[:-1]), axis=0)])
    width = min(7, len(q) - 1 + len(q) % 2)
    if width < 5:
        return np.zeros(len(form.labels)), np.zeros(len(form.labels))
    smooth = np.asarray(savgol_filter(steps, width, 3, axis=0))
    velocity = np.asarray(savgol_filter(steps, width, 3, deriv=1, delta=dt, axis=0))
    # A cubic over seven rows leaves 0.73 of white noise.
    noise_q, noise_v = _deviation(steps - smooth) / 0.73, _deviation(v - velocity)
    if len(q) >= 8:
        noise_q = np.clip(difference_noise(steps), noise_q / 3, noise_q)
        # A five-point derivative smooths less; it turns the noise of positions into 0.95 / dt times as much.
        velocity = (steps[:-4] - 8 * steps[1:-3] + 8 * steps[3:-1] - steps[4:]) / (12 * dt)
        excess = _deviation(v[2:-2] - velocity) ** 2 - (0.95 * noise_q / dt) ** 2
        noise_v = np.minimum(noise_v, np.maximum(np.sqrt(np.maximum(excess, 0.0)), difference_noise(v)))
    return noise_q, np.maximum(noise_v, noise_q / (width * dt))


def _derivative_error(v: Array, noise_q: Array, dt: float) -> Array:
    """Standard deviation of the error of velocities that are central differences of noisy positions [nv].

    Noise n of positions leaves n / (sqrt(2) dt), and the difference itself is wrong by a sixth of the second difference
    of the velocity, whose own noise is sqrt(5) times that of the velocity.
    """
    noise = noise_q / (np.sqrt(2) * dt)
    bend = (np.diff(v[1:-1], 2, axis=0) ** 2).mean(axis=0) - 5 * noise**2
    return np.sqrt(noise**2 + np.maximum(bend, 0.0) / 36)


def difference_noise(rows: Array) -> Array:
    """Standard deviation of the white noise of columns from fifth-order differences, whose variance is 252 times it."""
    return _deviation(np.diff(rows, 5, axis=0)) / np.sqrt(252)


def _deviation(rows: Array) -> Array:
    """Robust standard deviation of columns around zero, from the median absolute value."""
    return 1.4826 * np.median(np.abs(rows), axis=0)


def check_window_count(windows: Windows) -> None:
    """Refuse a single window: its scatter says nothing about uncertainty."""
    if len(windows) < 2:
        raise BadInput(
            "The recordings give one window only, so no uncertainty can be estimated; "
            "use a shorter --window or a longer recording."
        )


@dataclass(slots=True)
class Shooter:
    """A simulator, the windows it must predict, and the parameters that are set."""

    sim: Simulator
    windows: Windows
    params: Sequence[Param]
    worlds: int = field(default=0)
    """Windows simulated so far."""

    def __call__(self, points: Array, starts: Array | None = None) -> Array:
        """What is predicted minus what was measured [candidates, windows, span, nv]; NaN after a divergence.

        Rows after the end of a window are zero.
        `points` are params in unit coordinates [candidates, params]; `starts` shift each window's start, positions
        then velocities [candidates, windows, 2 nv].
        """
        candidates, n = len(points), len(self.windows)
        per_call = max(1, WORLD_BATCH // n)
        out = [
            self._batch(points[i : i + per_call], None if starts is None else starts[i : i + per_call])
            for i in range(0, candidates, per_call)
        ]
        self.worlds += candidates * n
        return np.concatenate(out)

    def settings(self, points: Array) -> dict[str, Array]:
        """Unit coordinates [..., parameters] as values by address."""
        return {param.address: param.from_unit(points[..., i]) for i, param in enumerate(self.params)}

    def _batch(self, points: Array, starts: Array | None) -> Array:
        w, candidates = self.windows, len(points)
        out = np.zeros((candidates, *w.target.shape[:2], w.v.shape[-1]))
        for picked, rows in self._lengths():
            out[:, picked, :rows] = self._residuals(points, None if starts is None else starts[:, picked], picked, rows)
        return out

    def _lengths(self) -> list[tuple[Array, int]]:
        """Windows in groups of about the same length, and how many rows of each group are simulated."""
        span = self.windows.inside.shape[1]
        ends = span - np.argmax(self.windows.inside[:, ::-1], axis=1)
        ends = np.where(self.windows.inside.any(axis=1), ends, 1)
        quarter = np.ceil(4 * ends / span)
        return [(picked := np.flatnonzero(quarter == q), int(ends[picked].max())) for q in np.unique(quarter)]

    def _residuals(self, points: Array, starts: Array | None, picked: Array, rows: int) -> Array:
        """Residuals of some windows [candidates, picked, rows, nv]."""
        w, n, candidates = self.windows, len(picked), len(points)
        each = {name: np.repeat(values, n) for name, values in self.settings(points).items()}
        q, v = np.tile(w.q[picked], (candidates, 1)), np.tile(w.v[picked], (candidates, 1))
        if starts is not None:
            size = v.shape[-1]
            shift = starts.reshape(-1, 2 * size)
            q, v = w.tangent.plus(q, shift[:, :size]), v + shift[:, size:]
        past = np.tile(w.past[picked], (candidates, *[1] * (w.past.ndim - 1)))
        sim = tuned(self.sim, each)
        paths = rollout_positions(sim, sim.place(q, v, 0.0, past), np.moveaxis(w.action[picked, :rows], 1, 0))
        return w.tangent.minus(paths.reshape(candidates, n, *paths.shape[1:]), w.target[picked, :rows])


def tuned(sim: Simulator, each: Mapping[str, Array]) -> Simulator:
    """The simulator with one value per world, or unchanged where nothing is set."""
    return sim.tuned(each) if each else sim


def predictable_windows(sim: Simulator, windows: Windows, share: float = MAX_START_NOISE_SHARE) -> Windows:
    """The windows, each cut where the noise of its start state, carried along, exceeds a share of the travel.

    Near an upright pendulum an error of a thousandth grows to a radian within a second: such rows hold no information
    about parameters, and their residuals hide those that do. Growth is linearised along the measured motion, so it does
    not depend on the parameters.
    """
    form, (n, span) = windows.tangent, windows.inside.shape
    path = np.concatenate([windows.q[:, None], windows.target], axis=1)
    speed = form.minus(path[:, 2:], path[:, :-2]) / (2 * sim.spec.dt)
    velocity = np.concatenate([windows.v[:, None], speed], axis=1)
    travel = np.ptp(form.minus(windows.target, windows.q[:1, None])[windows.inside], axis=0)
    noise = np.concatenate([windows.noise_q, windows.noise_v])
    spread = np.broadcast_to(np.diag(noise), (n, len(noise), len(noise)))
    half = len(windows.noise_q)
    inside = windows.inside.copy()
    for row in range(span):
        spread = _transition(sim, windows, path[:, row], velocity[:, row], windows.action[:, row]) @ spread
        deviation = np.sqrt((spread[:, :half] ** 2).sum(axis=-1))
        lost = (deviation > share * np.maximum(travel, 1e-9))[:, form.measured].any(axis=-1)
        inside[lost, row:] = False
        if not inside[:, row:].any():
            break
    return replace(windows, inside=inside)


def _transition(sim: Simulator, windows: Windows, q: Array, v: Array, action: Array) -> Array:
    """The state-transition matrix of one control step at each row [n, 2 nv, 2 nv]."""
    form, nv = windows.tangent, v.shape[-1]
    steps = np.concatenate([np.zeros((1, 2 * nv)), STATE_STEP * np.eye(2 * nv), -STATE_STEP * np.eye(2 * nv)])
    size, k = max(1, 4096 // len(steps)), 2 * nv  # perturbed states simulated in one batch
    parts: list[Array] = []
    for i in range(0, len(q), size):
        part = slice(i, i + size)
        at = form.plus(q[part, None], steps[:, :nv])
        speed = v[part, None] + steps[:, nv:]
        commands = np.repeat(action[part], len(steps), axis=0)
        flat = advance(sim, sim.place(at.reshape(-1, at.shape[-1]), speed.reshape(-1, nv)), commands)
        new_q, new_v = flat.q.reshape(at.shape), flat.v.reshape(speed.shape)
        change = np.concatenate(
            [form.minus(new_q[:, 1 : k + 1], new_q[:, k + 1 :]), new_v[:, 1 : k + 1] - new_v[:, k + 1 :]], axis=-1
        )
        parts.append(np.swapaxes(change, -1, -2) / (2 * STATE_STEP))
    return np.concatenate(parts)
