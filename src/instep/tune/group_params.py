"""Groups of recordings, of several days or machines, with parameters of their own beside those that they share.

An own parameter is searched once per group, under the address `joint.elbow.frictionloss@monday`. A `GroupedWorld` is a
simulator that takes such addresses, and simulates each window with the values of its group in the same native call:
the number of its group, from 1 on, is one of the recording's inputs.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePath

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput, UnknownName
from instep.core.param import Param
from instep.core.reading import read_json_table
from instep.core.world import Array, Settings, Spec, State, SwitchedSimulator, vector
from instep.physics.engines import open_world
from instep.scene.folder import AroundSimulator, Scene, SceneSimulator

from .param_export import GROUP_FOLDER
from .param_selection import ParamSelection

GROUP = "group"
"""Label of the input that is the number of a recording's group, and key of the state that holds it for one step."""


def grouped_episodes(episodes: Sequence[Episode], rules: Sequence[str]) -> tuple[list[Episode], tuple[str, ...]]:
    """The recordings with the number of their group among the inputs, and the names of the groups.

    A rule is the name of a metadata field (or `folder`, that of the file), or reads PATTERN=NAME: recordings whose
    name, file or field `group` match the pattern are in that group.
    """
    found = [_group_of(episode, i, rules) for i, episode in enumerate(episodes)]
    names = tuple(dict.fromkeys(found))
    if len(names) < 2:
        raise BadInput(
            f"All recordings are in one group ({', '.join(names)}); own parameters need --group with two or more."
        )
    numbered: list[Episode] = []
    for episode, name in zip(episodes, found, strict=True):
        known = episode["inputs"] if "inputs" in episode else np.ones((len(episode), 0))
        labels = [*(episode.spec.inputs.labels if "inputs" in episode else ()), GROUP]
        inputs = np.concatenate([known, np.full((len(episode), 1), float(names.index(name) + 1))], axis=1)
        spec = replace(episode.spec, inputs=vector(labels, "1"))
        numbered.append(replace(episode.with_columns({"inputs": inputs}), spec=spec))
    return numbered, names


def split_by_group(episodes: Sequence[Episode], groups: Sequence[str]) -> list[list[Episode]]:
    """The recordings of each group."""
    return [[e for e in episodes if group_number(e) == i + 1] for i in range(len(groups))]


def group_number(episode: Episode) -> int:
    """The number of the group of a recording, from 1 on."""
    return int(episode["inputs"][0, episode.spec.inputs.labels.index(GROUP)])


def own_params(selection: ParamSelection, patterns: Sequence[str], groups: Sequence[str]) -> ParamSelection:
    """The selection in which each group has its own of the parameters that match a pattern."""
    names = [param.address for param in selection.params]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UnknownName("parameter among those to fit", pattern, names)
    params: list[Param] = []
    initial: dict[str, float] = {}
    for param in selection.params:
        own = any(fnmatchcase(param.address, pattern) for pattern in patterns)
        for address in [f"{param.address}@{group}" for group in groups] if own else [param.address]:
            params.append(replace(param, address=address))
            initial[address] = selection.initial[param.address]
    return replace(selection, params=tuple(params), initial=initial)


def settings_of_group(settings: Mapping[str, float], group: str) -> dict[str, float]:
    """The settings of the scene of one group: what is shared, and its own."""
    parts = {name: name.partition("@") for name in settings}
    return {parts[name][0]: value for name, value in settings.items() if parts[name][2] in ("", group)}


def typical_settings(settings: Mapping[str, float]) -> dict[str, float]:
    """The settings with the mean over the groups in place of each group's own."""
    values: dict[str, list[float]] = {}
    for name, value in settings.items():
        values.setdefault(name.partition("@")[0], []).append(float(value))
    return {name: float(np.mean(several)) for name, several in values.items()}


class GroupedWorld(AroundSimulator[SceneSimulator]):
    """A simulator whose worlds take parameters of their group; a Simulator like any other."""

    def __init__(self, world: SceneSimulator, groups: Sequence[str], own: Settings | None = None):
        self._shared, self.groups = world, tuple(groups)
        self.own: dict[str, float | Array] = dict(own or {})
        """Values of own parameters by address and group: `action.delay@monday`."""
        self._addresses = list(dict.fromkeys(name.partition("@")[0] for name in self.own))
        # The layout of the state depends on whether commands are delayed, so states are made by a world that has all.
        self.world = world.tuned(self._values(np.ones(1, int))) if self.own else world
        self._worlds: dict[bytes, SceneSimulator] = {}
        self._lock = threading.Lock()
        inputs = (*world.spec.inputs.labels, GROUP)
        self._spec = replace(world.spec, inputs=vector(inputs, "1"))

    @property
    def spec(self) -> Spec:
        """Description of the numbers; the group is the last of the inputs."""
        return self._spec

    def switch(self, state: State, inputs: Array) -> State:
        """The state whose next step takes these inputs, the number of the group last."""
        inputs = np.asarray(inputs, float)
        group, rest = inputs[..., -1], inputs[..., :-1]
        if not np.isin(group, np.arange(1, len(self.groups) + 1)).all():
            raise BadInput(f"A group has a number from 1 to {len(self.groups)} ({', '.join(self.groups)}).")
        if (rest != 1).any():
            inner: SwitchedSimulator = self.world  # pyright: ignore[reportAssignmentType] - its spec names inputs
            state = inner.switch(state, rest)
        return state.with_hidden(GROUP, group)

    def step(self, state: State, action: Array) -> State:
        """One control period later, each world with the values of its group; the first group where none was given."""
        group = np.asarray(state.hidden.get(GROUP, np.ones(state.batch)), int)
        plain = replace(state, hidden={key: value for key, value in state.hidden.items() if key != GROUP})
        return self._of(group.reshape(-1)).step(plain, action)

    def tuned(self, settings: Settings) -> GroupedWorld:
        """The same world with some parameters set, shared or of one group (`joint.elbow.damping@monday`)."""
        own = {name: value for name, value in settings.items() if "@" in name}
        for name in own:
            if name.partition("@")[2] not in self.groups:
                raise UnknownName("group of recordings", name.partition("@")[2], self.groups)
        rest = {name: value for name, value in settings.items() if name not in own}
        return GroupedWorld(self._shared.tuned(rest) if rest else self._shared, self.groups, {**self.own, **own})

    def _of(self, group: Array) -> SceneSimulator:
        """The world in which each of a batch has the values of its group [worlds]."""
        if not self.own:
            return self.world
        key = group.tobytes()
        with self._lock:
            if key not in self._worlds:
                if len(self._worlds) >= 4:
                    del self._worlds[next(iter(self._worlds))]
                self._worlds[key] = self._shared.tuned(self._values(group))
            return self._worlds[key]

    def _values(self, group: Array) -> dict[str, float | Array]:
        """Own parameters by address for a batch of worlds; one number where all of them are in one group."""
        out: dict[str, float | Array] = {}
        for address in self._addresses:
            given = [self.own.get(f"{address}@{name}") for name in self.groups]
            # A group whose own value is not set yet has that of the first one that is.
            first = next(value for value in given if value is not None)
            each = [first if value is None else value for value in given]
            if (group == group[0]).all():
                out[address] = each[int(group[0]) - 1]
                continue
            wide = np.stack([np.broadcast_to(np.asarray(value, float), group.shape) for value in each])
            out[address] = wide[group - 1, np.arange(len(group))]
        return out


def open_written(folder: Path) -> SceneSimulator:
    """A written scene; where groups of recordings have parameters of their own, with those of each group's scene."""
    world = open_world(Scene.load(folder))
    made = read_json_table(folder / "tuned.json").get("groups")
    if not made:
        return world
    grouped = GroupedWorld(world, made["names"])
    for group in grouped.groups:
        scene = Scene.load(folder / GROUP_FOLDER / group)
        values = {**scene.settings, **scene.actuator_settings}
        grouped = grouped.tuned({f"{address}@{group}": values[address] for address in made["own"]})
    return grouped


def _group_of(episode: Episode, place: int, rules: Sequence[str]) -> str:
    name, source = episode.meta.get("name", str(place)), episode.meta.get("source", "")
    for rule in rules:
        pattern, separator, group = rule.rpartition("=")
        if separator:
            if any(fnmatchcase(word, pattern) for word in (name, source, episode.meta.get("group", ""))):
                return _checked_name(group)
        elif rule == "folder":
            return _checked_name(PurePath(source).parent.name or "top")
        elif rule in episode.meta:
            return _checked_name(episode.meta[rule])
        else:
            raise UnknownName(f"metadata field of run {name!r}", rule, ["folder", *episode.meta])
    raise BadInput(
        f"Run {name!r} ({source or 'no file'}) is in no group; --group takes a metadata field, 'folder', or "
        "'PATTERN=NAME'."
    )


def _checked_name(group: str) -> str:
    """The name of a group, which becomes that of a folder."""
    if not group or any(sign in group for sign in "@/\\:") or group.startswith("."):
        raise BadInput(f"{group!r} cannot be the name of a group: it must be a plain word without @ / \\ : .")
    return group
