"""Cut recordings into windows a simulator can be started in: the shots of multiple shooting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.signal import savgol_filter

from instep.core import poses
from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.replay import aligned
from instep.core.world import Array, Simulator, Spec


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """Stretches of recordings, each with where it began, what was commanded and what was measured."""

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
    """How positions are subtracted."""
    noise_q: Array
    """Noise of measured positions, per direction of the tangent [nv]."""
    noise_v: Array
    """Uncertainty of the velocities at the starts [nv]."""

    def __len__(self) -> int:
        return len(self.q)

    def some(self, index: Array) -> Windows:
        """Some of the windows."""
        parts = {name: getattr(self, name)[index] for name in ("q", "v", "past", "action", "target", "inside", "run")}
        return replace(self, **parts)


@dataclass(frozen=True, slots=True, eq=False)
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
    seen: Array
    """Which directions the recordings measured [nv]."""

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


def cut(
    sim: Simulator,
    episodes: Sequence[Episode],
    *,
    span: int,
    stride: int | None = None,
    skip: int = 0,
    limit: int | None = None,
) -> Windows:
    """All windows of `span` rows, one every `stride` rows from row `skip` on, at most `limit` of them evenly chosen."""
    if not episodes:
        raise BadInput("Identification needs at least one episode, and none was given.")
    if span < 1:
        raise BadInput(f"A window needs at least one row after its start, not {span}.")
    form = tangent(sim.spec, episodes[0].spec)
    pieces = [_windows(sim, e, i, form, (span, stride or span, skip)) for i, e in enumerate(episodes)]
    names = ("q", "v", "past", "action", "target", "inside", "run")
    joined = {name: np.concatenate([getattr(p, name) for p in pieces]) for name in names}
    noise_q = np.median([p.noise_q for p in pieces], axis=0)
    noise_v = np.median([p.noise_v for p in pieces], axis=0)
    windows = Windows(**joined, tangent=form, noise_q=noise_q, noise_v=noise_v)
    if limit is not None and len(windows) > limit:
        windows = windows.some(np.linspace(0, len(windows) - 1, limit).round().astype(int))
    _check(windows)
    return windows


def tangent(spec: Spec, measured: Spec) -> Tangent:
    """How positions of a world are subtracted, and which of them a recording holds."""
    labels = spec.q.labels
    quats = [i for i, label in enumerate(labels) if label.endswith(".qw")]
    inside = {j for i in quats for j in range(i, i + 4)}
    scalar_q = np.array([i for i in range(len(labels)) if i not in inside], int)
    shift = np.array([sum(i - q >= 4 for q in quats) for i in range(len(labels))], int)
    scalar_v = scalar_q - shift[scalar_q]
    quat_v = np.array([q - shift[q] for q in quats], int)
    names = list(spec.v.labels)
    seen = np.zeros(len(names), bool)
    held = np.isin(labels, measured.q.labels)
    seen[scalar_v] = held[scalar_q]
    for q, v in zip(quats, quat_v, strict=True):
        seen[v : v + 3] = held[q]
    return Tangent(scalar_q, scalar_v, np.array(quats, int), quat_v, tuple(names), seen)


def _windows(sim: Simulator, episode: Episode, run: int, form: Tangent, sizes: tuple[int, int, int]) -> Windows:
    given = aligned(episode, sim)
    rows = len(given.q)
    if rows < 3:
        raise BadInput(f"Episode {run} has {rows} rows; a window needs at least three.")
    span, stride, skip = sizes
    # A recording shorter than a window is one window; its missing rows do not count.
    starts = np.arange(min(skip, max(0, rows - 1 - span)), max(1, rows - span), stride)
    into = starts[:, None] + np.arange(1, span + 1)
    noise_q, noise_v = _noise(given.q, given.v, form, sim.spec.dt)
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
    """Noise of positions, and how far velocities are from the slope of the positions, both without the motion itself.

    What a cubic leaves of a fast motion is not all noise, so differences of fifth order, which see next to nothing of a
    motion, may lower it, yet not below a third: those of a coarse encoder are mostly nought.
    """
    steps = np.concatenate([np.zeros((1, len(form.labels))), np.cumsum(form.minus(q[1:], q[:-1]), axis=0)])
    width = min(7, len(q) - 1 + len(q) % 2)
    if width < 5:
        return np.zeros(len(form.labels)), np.zeros(len(form.labels))
    smooth = np.asarray(savgol_filter(steps, width, 3, axis=0))
    slope = np.asarray(savgol_filter(steps, width, 3, deriv=1, delta=dt, axis=0))
    # 0.73 is what a cubic over seven rows leaves of white noise.
    noise_q, noise_v = _deviation(steps - smooth) / 0.73, _deviation(v - slope)
    if len(q) >= 8:
        noise_q = np.clip(_jagged(steps), noise_q / 3, noise_q)
        # A slope over five rows bends less; 0.95 / dt is what it makes of the noise of positions.
        slope = (steps[:-4] - 8 * steps[1:-3] + 8 * steps[3:-1] - steps[4:]) / (12 * dt)
        apart = _deviation(v[2:-2] - slope) ** 2 - (0.95 * noise_q / dt) ** 2
        noise_v = np.minimum(noise_v, np.maximum(np.sqrt(np.maximum(apart, 0.0)), _jagged(v)))
    return noise_q, np.maximum(noise_v, noise_q / (width * dt))


def _jagged(rows: Array) -> Array:
    """White noise of columns, by their differences of fifth order, whose variance is 252 times as large."""
    return _deviation(np.diff(rows, 5, axis=0)) / np.sqrt(252)


def _deviation(rows: Array) -> Array:
    """Standard deviation of columns around nought, by their median, which rare large values do not move."""
    return 1.4826 * np.median(np.abs(rows), axis=0)


def _check(windows: Windows) -> None:
    if len(windows) < 2:
        raise BadInput(
            "The recordings give one window only, so nothing can be said about uncertainty; "
            "use a shorter --window or a longer recording."
        )
    form = windows.tangent
    moved = np.abs(form.minus(windows.target, windows.q[:, None])).max(axis=(0, 1))
    if not (moved[form.seen] > 1e-9).any():
        raise BadInput("Nothing moves in the recordings, so no parameter can be identified; record a motion first.")
