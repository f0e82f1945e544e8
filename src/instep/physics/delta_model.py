"""Delta-action model: a learned correction of commands, so that the simulator does what the robot did.

The error that parameters leave is put into the action, s' = f(s, a + delta(s, a)), which keeps contacts and limits
physical. Outside the states it was trained on the delta is zero, and it is never larger than in training.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import mujoco
import numpy as np

from instep.core.reading import parsing
from instep.core.rollout import checked_action
from instep.core.world import Array, S, Spec, State, Wrapper, array_dataclass
from instep.data.files import read_npz
from instep.scene.folder import Scene, SceneSimulator

DELTA_FILE = "delta.npz"

MEMORY = 10
"""Number of earlier commands among the features."""


@array_dataclass
class DeltaModel:
    """The correction of a command as a function of state, command and earlier commands."""

    labels: tuple[str, ...]
    """Labels of the actions it corrects."""
    centre: Array
    """Mean of the raw features [joints, raw]."""
    size: Array
    """Standard deviation of the raw features [joints, raw]."""
    waves: Array
    """Frequencies of the random cosine features [joints, raw, waves]."""
    phase: Array
    """Phases of the random cosine features [joints, waves]."""
    weight: Array
    """Regression weights [joints, raw + waves + 1]."""
    reach: Array
    """Distance from the training states beyond which a joint's delta is zero [joints]."""
    most: Array
    """Largest delta [joints]."""

    def __call__(self, q: Array, v: Array, actions: Array) -> Array:
        """The delta [..., joints] for positions and velocities of the corrected joints and the commands up to now
        [..., MEMORY + 1, joints], oldest first."""
        raw = (features(q, v, actions) - self.centre) / self.size
        wide = random_features(raw, self.waves, self.phase)
        out = np.clip(np.einsum("...jf,jf->...j", wide, self.weight), -self.most, self.most)
        far = np.sqrt((raw**2).mean(axis=-1))
        return np.where(far <= self.reach, out, 0.0)

    def save(self, path: Path) -> None:
        """Write it beside a scene."""
        parts = {name: getattr(self, name) for name in ("centre", "size", "waves", "phase", "weight", "reach", "most")}
        np.savez_compressed(path, labels=np.array(self.labels), **parts)

    @classmethod
    def load(cls, path: Path) -> DeltaModel:
        """Read it back."""
        parts = read_npz(path)
        with parsing(path, "a delta-action model"):
            return cls(tuple(str(label) for label in parts.pop("labels")), **parts)


@array_dataclass
class DeltaCorrected(Wrapper[S]):
    """A simulator whose commands are corrected by a delta-action model; its own action is the robot's command."""

    delta: DeltaModel | None = None

    @property
    def scene(self) -> Scene:
        """The scene that is simulated."""
        return cast(SceneSimulator, self.world).scene

    @property
    def model(self) -> mujoco.MjModel:
        """The compiled MuJoCo model of the scene; read it, do not change it."""
        return cast(SceneSimulator, self.world).model

    @property
    def substeps(self) -> int:
        """Physics steps per control step."""
        return cast(SceneSimulator, self.world).substeps

    def begin(self, state: State, seed: int, past: Array | None) -> State:
        """Keep the last commands; the history before the first repeats it."""
        size = self.spec.action.shape[0]
        if past is None:
            history = np.full((*state.batch, MEMORY, size), np.nan)
        else:
            given = np.broadcast_to(past, (*state.batch, *np.shape(past)[-2:]))
            history = given[..., np.maximum(np.arange(-MEMORY, 0) + given.shape[-2], 0), :].astype(float)
        return state.with_hidden(self.key, history)

    def step(self, state: State, action: Array) -> State:
        """Add the delta to the command."""
        action = checked_action(action, self.spec, state.batch)
        history = np.asarray(state.hidden[self.key], float)
        history = np.where(np.isnan(history), action[..., None, :], history)
        full = np.concatenate([history, action[..., None, :]], axis=-2)
        sent = action
        if self.delta is not None:
            q, v, a = label_indices(self.spec, self.delta.labels)
            sent = action.copy()
            sent[..., a] += self.delta(state.q[..., q], state.v[..., v], full[..., a])
        return self.world.step(state, sent).with_hidden(self.key, full[..., 1:, :])


def position_actions(spec: Spec) -> tuple[str, ...]:
    """The actions that are position commands of a joint with the same name."""
    names: list[str] = []
    for label, unit in zip(spec.action.labels, spec.action.units, strict=True):
        if label in spec.q.labels and label in spec.v.labels and spec.q.units[spec.q.labels.index(label)] == unit:
            names.append(label)
    return tuple(names)


def features(q: Array, v: Array, actions: Array) -> Array:
    """Raw features at the time of a command, per joint [..., joints, raw]."""
    now, short, long = actions[..., -1, :], actions[..., -1 - MEMORY // 3, :], actions[..., 0, :]
    own = [now - q, v, np.tanh(v / 0.05), now - short, short - long, np.tanh((now - long) / 0.02), q]
    size = q.shape[-1]
    others = np.broadcast_to(q[..., None, :], (*q.shape[:-1], size, size))
    return np.concatenate([np.stack(own, axis=-1), np.sin(others), np.cos(others)], axis=-1)


def random_features(raw: Array, waves: Array, phase: Array) -> Array:
    """Raw features, random cosines of them, and a constant [..., joints, raw + waves + 1]."""
    cosines = np.cos(np.einsum("...jr,jrw->...jw", raw, waves) + phase)
    return np.concatenate([raw, cosines, np.ones((*raw.shape[:-1], 1))], axis=-1)


def label_indices(spec: Spec, labels: Sequence[str]) -> tuple[list[int], list[int], list[int]]:
    """Indices of labels among positions, velocities and actions."""
    return (
        [spec.q.labels.index(label) for label in labels],
        [spec.v.labels.index(label) for label in labels],
        [spec.action.labels.index(label) for label in labels],
    )
