"""Episodes: recorded or simulated runs as columns of equal length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .errors import BadInput, UnknownName
from .world import Array, Observation, Spec, State, array_dataclass


@array_dataclass
class Episode:
    """Rows of one run. Row i holds the state before action i, its observation, and action i.

    The usual columns are `timestamp` [s], `q`, `v`, `action` and the observations under their LeRobot names. `inputs`
    are inputs of motors beside the action (`elbow.enable`: 0 while the motor is off). `q.stamp` or
    `observation.images.top.stamp` [s] are capture times of a channel.
    """

    spec: Spec
    columns: Mapping[str, Array]
    meta: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        lengths = {name: len(column) for name, column in self.columns.items()}
        if len(set(lengths.values())) > 1:
            raise BadInput(f"The columns of an episode must have one length, but these differ: {lengths}.")

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __getitem__(self, name: str) -> Array:
        if name not in self.columns:
            raise UnknownName("column", name, self.columns)
        return self.columns[name]

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    @property
    def t(self) -> Array:
        """Time of each row [s]."""
        return self.columns["timestamp"] if "timestamp" in self.columns else np.arange(len(self)) * self.spec.dt

    @property
    def q(self) -> Array:
        """Positions [rows, nq]."""
        return self["q"]

    @property
    def v(self) -> Array:
        """Velocities [rows, nv]; central differences of `q` if none were recorded and the sizes agree."""
        if "v" in self.columns or self.q.shape[-1] != self.spec.v.shape[-1]:
            return self["v"]
        return np.gradient(self.q, self.t, axis=0) if len(self) > 1 else np.zeros_like(self.q)

    @property
    def action(self) -> Array:
        """Actions [rows, nu]."""
        return self["action"]

    @property
    def powered(self) -> Array:
        """Rows with all motors on [rows]."""
        off = [i for i, label in enumerate(self.spec.inputs.labels) if label.endswith(".enable")]
        return np.all(self["inputs"][:, off] > 0, axis=1) if "inputs" in self else np.ones(len(self), bool)

    def powered_stretch(self) -> Episode:
        """The longest stretch with all motors on."""
        powered = self.powered
        if powered.all():
            return self
        begin, rows = longest_stretch(powered)
        return self.rows(begin, begin + rows)

    def rows(self, start: int | None = None, stop: int | None = None) -> Episode:
        """Some consecutive rows."""
        return replace(self, columns={k: c[start:stop] for k, c in self.columns.items()})

    def with_columns(self, columns: Mapping[str, Array], **meta: str) -> Episode:
        """The same episode with columns added or replaced."""
        return replace(self, columns={**self.columns, **columns}, meta={**self.meta, **meta})


@dataclass(slots=True)
class Log:
    """A recorder of rows, for one world or a batch, that returns episodes at the end."""

    spec: Spec
    meta: Mapping[str, str] = field(default_factory=dict[str, str])
    keep: int | None = None
    """How many of the last rows to keep; all where None."""
    _rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def __call__(self, state: State, observation: Observation, action: Array) -> None:
        """Append one row; a Log is a Watcher."""
        row: dict[str, Any] = {"timestamp": np.broadcast_to(state.t, state.batch), "q": state.q, "v": state.v}
        row["action"] = np.asarray(action)
        row.update(observation)
        self._rows.append(row)
        if self.keep is not None and len(self._rows) > self.keep:
            del self._rows[0]

    def episode(self) -> Episode:
        """The rows of one world."""
        columns = {k: np.stack([np.asarray(r[k]) for r in self._rows]) for k in self._names()}
        return Episode(self.spec, columns, self.meta)

    def episodes(self, metas: Sequence[Mapping[str, str]]) -> list[Episode]:
        """The rows of each world of a batch; `metas` describe them in order."""
        columns = {k: np.stack([np.asarray(r[k]) for r in self._rows], axis=1) for k in self._names()}
        return [
            Episode(self.spec, {k: c[i] for k, c in columns.items()}, {**self.meta, **meta})
            for i, meta in enumerate(metas)
        ]

    def _names(self) -> list[str]:
        return list(self._rows[0]) if self._rows else []


def longest_stretch(flags: Array) -> tuple[int, int]:
    """Start and length of the longest run of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(int)))
    if not len(edges):
        return 0, 0
    lengths = edges[1::2] - edges[::2]
    best = int(np.argmax(lengths))
    return int(edges[2 * best]), int(lengths[best])


def by_label(values: Array, labels: Sequence[str], wanted: Sequence[str], default: Array) -> Array:
    """Columns of `values` in the order of `wanted`; missing ones come from `default`."""
    place = {label: i for i, label in enumerate(labels)}
    out = np.broadcast_to(default, (*values.shape[:-1], len(wanted))).astype(float)
    for i, label in enumerate(wanted):
        if label in place:
            out[..., i] = values[..., place[label]]
    return out
