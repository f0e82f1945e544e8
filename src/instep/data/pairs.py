"""Real and simulated runs side by side in one dataset.

A pair is one episode: the real columns under their own names, the simulated ones under the same names with `sim.`
before them (`q` and `sim.q`, `observation.images.top` and `sim.observation.images.top`). `meta["pair"]` names the
simulator. Two runs that do not share their rows are two episodes with the same `meta["pair"]`, and `meta["world"]` says
which is `real` and which is `sim`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.world import vector

PREFIX = "sim."


def paired(real: Episode, sim: Episode, name: str) -> Episode:
    """One episode of a real run and its simulated twin, row by row."""
    if len(real) != len(sim) or np.abs(real.t - sim.t).max(initial=0.0) > 0.5 * real.spec.dt:
        raise BadInput(
            f"A pair needs the same rows, but the real run has {len(real)} and the simulated one {len(sim)}, or their "
            "times differ by more than half a period; resample one onto the other."
        )
    columns = {f"{PREFIX}{key}": column for key, column in sim.columns.items() if key != "timestamp"}
    channels = {"q": sim.spec.q, "v": sim.spec.v, "action": sim.spec.action, **sim.spec.observation}
    observation = {f"{PREFIX}{key}": channel for key, channel in channels.items()}
    spec = replace(real.spec, observation={**real.spec.observation, **observation})
    return Episode(spec, {**real.columns, **columns}, {**real.meta, "pair": name})


def apart(pair: Episode) -> tuple[Episode, Episode]:
    """The real and the simulated run of a pair."""
    if "pair" not in pair.meta:
        raise BadInput("This episode is not a pair: it has no simulated run beside the real one.")
    own = {key: column for key, column in pair.columns.items() if not key.startswith(PREFIX)}
    other = {key.removeprefix(PREFIX): column for key, column in pair.columns.items() if key.startswith(PREFIX)}
    seen = {key: channel for key, channel in pair.spec.observation.items() if not key.startswith(PREFIX)}
    twin = {key.removeprefix(PREFIX): c for key, c in pair.spec.observation.items() if key.startswith(PREFIX)}
    spec = replace(pair.spec, observation=seen)
    named = {key: twin.pop(key, vector([])) for key in ("q", "v", "action")}
    sim_spec = replace(pair.spec, q=named["q"], v=named["v"], action=named["action"], observation=twin)
    real = Episode(spec, own, {**pair.meta, "world": "real"})
    return real, Episode(sim_spec, {"timestamp": pair.t, **other}, {**pair.meta, "world": "sim"})
