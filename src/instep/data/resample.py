"""Resampling: cut, resample and align episodes; commands are held, states interpolated, velocities without delay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.poses import normalized, quat_exp, quat_inv, quat_log, quat_mul
from instep.core.world import Array, Channel

from .lerobot import channel_of

Interpolation: TypeAlias = Literal["hold", "linear"]
"""Between two samples: the last one (commands, images, flags) or the straight line (states)."""
QUATERNION = ("qw", "qx", "qy", "qz")
MAX_JITTER = 0.2
"""Scatter of the sampling period from which on a clock is uneven [share of the period, 95 % of the steps]."""
GAP_PERIODS = 2.5
"""A step longer than this many periods is a gap."""
MAX_DRIFT = 0.02
"""How far the mean period may be from the stated one [share]; clocks of recorders are off by parts in a thousand."""


def resampled(episode: Episode, rate: float) -> Episode:
    """The episode at an even rate [Hz]: actions, images and whole numbers held, states interpolated.

    Rows lie on a grid from the first time to the last; nothing is extrapolated. An action is the mean of the commands
    held during its period: where several fall into one, the first alone would come half a period late on average. At a
    lower rate than its own, states pass a zero-phase low-pass at half the new rate before they are sampled.
    """
    if len(episode) < 2:
        raise BadInput(f"An episode of {len(episode)} rows cannot be resampled; it needs at least two.")
    t = np.asarray(episode.t, float)
    if (np.diff(t) <= 0).any():
        row = int(np.argmax(np.diff(t) <= 0)) + 1
        raise BadInput(f"Time does not advance at row {row}, so the episode cannot be resampled; repair its times.")
    # A small tolerance is added so that the last row is kept when the span is a whole number of periods.
    grid = t[0] + np.arange(int(np.floor((t[-1] - t[0]) * rate + 1e-6)) + 1) / rate
    columns: dict[str, Any] = {"timestamp": grid}
    coarser = rate * float(np.median(np.diff(t))) < 0.98
    for name, column in episode.columns.items():
        if name == "timestamp":
            continue
        how, channel = interpolation_of(name, column), channel_of(name, episode.spec)
        if 0 in column.shape:
            columns[name] = onto(grid, t, column, how, channel)
        elif coarser and how == "linear" and not name.endswith(".stamp"):
            columns[name] = onto(grid, *_low_passed(t, column, 0.5 * rate, channel), how, channel)
        elif name == "action" and column.dtype.kind == "f":
            columns[name] = _mean_of_held(grid, t, column)
        else:
            columns[name] = onto(grid, t, column, how, channel)
    return Episode(replace(episode.spec, dt=1.0 / rate), columns, episode.meta)


def is_uneven(episode: Episode) -> bool:
    """Whether the rows of an episode are not evenly spaced: steps that scatter, gaps, or another rate than stated."""
    steps = np.diff(np.asarray(episode.t, float))
    if len(steps) < 2:
        return False
    period = float(np.median(steps))
    scatter = float(np.quantile(np.abs(steps - period), 0.95))
    drift = abs(float(steps.mean()) / episode.spec.dt - 1)
    return scatter > MAX_JITTER * period or float(steps.max()) > GAP_PERIODS * period or drift > MAX_DRIFT


def _low_passed(t: Array, column: Any, cutoff: float, channel: Channel | None) -> tuple[Array, Array]:
    """A column without what lies above a cut-off [Hz], not shifted, at evenly spaced times: those times and values."""
    step = float(np.median(np.diff(t)))
    even = t[0] + np.arange(int(np.floor((t[-1] - t[0]) / step + 1e-6)) + 1) * step
    values = np.asarray(onto(even, t, column, "linear", channel), float)
    flat = values.reshape(len(values), -1)
    for part in quaternions(channel.labels if channel else ()):
        turned = np.sign((flat[1:, part] * flat[:-1, part]).sum(axis=1))
        flat[1:, part] *= np.cumprod(np.where(turned < 0, -1.0, 1.0))[:, None]
    half = min(round(1.0 / (cutoff * step)), len(flat) - 1)
    taps = np.arange(-half, half + 1)
    kernel = np.sinc(2 * cutoff * step * taps) * (0.5 + 0.5 * np.cos(np.pi * taps / (half + 1)))
    kernel /= kernel.sum()
    # Reflected about its end point a signal goes on with the same derivative, so that its ends are not distorted.
    before, after = 2 * flat[:1] - flat[half:0:-1], 2 * flat[-1:] - flat[-2 : -half - 2 : -1]
    padded = np.concatenate([before, flat, after])
    out = np.stack([np.convolve(padded[:, k], kernel, "valid") for k in range(flat.shape[1])], axis=1)
    return even, out.reshape(values.shape)


def _mean_of_held(grid: Array, t: Array, column: Any) -> Array:
    """The mean of held samples from each time of an even grid to the next."""
    values = np.asarray(column, float)
    flat = values.reshape(len(values), -1)
    period = float(grid[1] - grid[0]) if len(grid) > 1 else float(t[-1] - t[0])
    # What a held signal sums up to is piecewise linear in time; the last sample is held on.
    sums = np.concatenate([np.zeros((1, flat.shape[1])), np.cumsum(flat[:-1] * np.diff(t)[:, None], axis=0)])
    times = np.append(t, t[-1] + period)
    sums = np.concatenate([sums, sums[-1:] + flat[-1:] * period])
    edges = np.append(grid, grid[-1] + period)
    total = np.stack([np.interp(edges, times, sums[:, k]) for k in range(flat.shape[1])], axis=1)
    # Where one sample is held throughout, it is taken as it is: a mean would round it.
    first, last = latest(edges[:-1], t), latest(edges[1:] - 1e-6 * period, t)
    mean = np.where((first == last)[:, None], flat[first], np.diff(total, axis=0) / period)
    return mean.reshape(len(grid), *values.shape[1:])


def onto(grid: Array, t: Array, column: Any, interpolation: Interpolation, channel: Channel | None = None) -> Any:
    """A column sampled at the times `t`, at the times `grid`."""
    if interpolation == "hold" or len(t) < 2:
        return column[latest(grid, t)]
    values = np.asarray(column, float)
    flat = values.reshape(len(values), -1)
    out = np.stack([np.interp(grid, t, flat[:, k]) for k in range(flat.shape[1])], axis=1) if flat.size else flat
    out = out.reshape(len(grid), *values.shape[1:]) if flat.size else np.zeros((len(grid), *values.shape[1:]))
    for part in quaternions(channel.labels if channel else ()):
        out[:, part] = _slerp(grid, t, values[:, part])
    return out


def latest(grid: Array, t: Array) -> Array:
    """Which sample was the last at or before each time; the first where there was none yet."""
    # Clocks that count rows meet the grid to within rounding, which is a microsecond for the time of day; that must not
    # cost a whole period.
    rounding = max(1e-9, 4 * float(np.spacing(np.abs(t[-1]))))
    return np.clip(np.searchsorted(t, np.asarray(grid) + rounding, side="right") - 1, 0, len(t) - 1)


def interpolation_of(name: str, column: Any) -> Interpolation:
    """How a column is resampled: actions, images, text and integers are held, other numbers interpolated."""
    held = name in ("action", "inputs") or name.startswith("action.") or column.dtype.kind != "f" or column.ndim > 3
    return "hold" if held else "linear"


def quaternions(labels: Sequence[str]) -> list[slice]:
    """Where orientations stand among labels: four in a row that end in qw, qx, qy, qz."""
    ends = [label.rsplit(".", 1)[-1] for label in labels]
    return [slice(k, k + 4) for k in range(len(ends) - 3) if tuple(ends[k : k + 4]) == QUATERNION]


def derivative(t: Array, values: Array, window: float) -> Array:
    """The rate of change of a column, with no delay.

    Each value is the derivative of the parabola that fits best within `window` [s] around it; since the window is
    centred, what it smooths it does not shift. Uneven times are met by the chain rule, dx/dt = (dx/dk) / (dt/dk).
    """
    x = np.asarray(values, float).reshape(len(values), -1)
    if len(x) < 3:
        return np.tile((x[-1:] - x[:1]) / (t[-1] - t[0]), (2, 1)) if len(x) == 2 else np.zeros_like(x)
    step = float(np.median(np.diff(t)))
    half = int(np.clip(round(0.5 * window / step), 1, (len(x) - 1) // 2))
    return _derivative(x, half) / _derivative(np.asarray(t, float)[:, None], half)


def velocity(t: Array, q: Array, labels: Sequence[str], window: float) -> Array:
    """Velocities of positions, with no delay; orientations become angular velocity in the body's frame [rad/s]."""
    parts, taken = quaternions(labels), 0
    out: list[Array] = []
    for part in parts:
        out.append(derivative(t, q[:, taken : part.start], window))
        turn = quat_log(quat_mul(quat_inv(q[:-1, part]), q[1:, part]))
        angle = np.concatenate([np.zeros((1, 3)), np.cumsum(turn, axis=0)])
        out.append(derivative(t, angle, window))
        taken = part.stop
    out.append(derivative(t, q[:, taken:], window))
    return np.concatenate(out, axis=1)


def velocity_labels(labels: Sequence[str]) -> list[str]:
    """The labels of the velocities that belong to positions: a joint keeps its name, a body has vx .. wz."""
    out: list[str] = []
    for label in labels:
        stem, _, end = label.rpartition(".")
        if end in ("x", "y", "z") and stem:
            out.append(f"{stem}.v{end}")
        elif end in ("qx", "qy", "qz"):
            out.append(f"{stem}.w{end[1]}" if stem else f"w{end[1]}")
        elif end != "qw":
            out.append(label)
    return out


def _derivative(x: Array, half: int) -> Array:
    k = np.arange(-half, half + 1)
    weights = k / float((k**2).sum())
    out = np.empty_like(x)
    middle = np.lib.stride_tricks.sliding_window_view(x, 2 * half + 1, axis=0) @ weights
    out[half : len(x) - half] = middle
    # At the ends the first and last whole window's parabola is read off at its rim.
    for rows, place in ((slice(0, half), slice(0, 2 * half + 1)), (slice(-half, None), slice(-2 * half - 1, None))):
        fit = np.polynomial.polynomial.polyfit(k, x[place], 2)
        at = k[:half] if rows.start == 0 else k[-half:]
        out[rows] = fit[1] + 2.0 * np.outer(at, fit[2])
    return out


def _slerp(grid: Array, t: Array, quats: Array) -> Array:
    lower = np.clip(np.searchsorted(t, grid, side="right") - 1, 0, len(t) - 2)
    share = np.clip((grid - t[lower]) / (t[lower + 1] - t[lower]), 0.0, 1.0)[:, None]
    a, b = normalized(quats[lower]), normalized(quats[lower + 1])
    return quat_mul(a, quat_exp(share * quat_log(quat_mul(quat_inv(a), b))))
