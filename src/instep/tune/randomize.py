"""Randomise from beliefs: posteriors, boxes and mixtures of them, over physics, sensors and actuators.

Randomising is `with_imperfections(sim, belief).tuned(belief.sample(n, rng))`: one setting per world of a batch.

Randomise appearance: brightness, colour of the light, noise of the sensor, by the same beliefs as physics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.param import Belief, Box, Param
from instep.core.world import Array, Simulator, World
from instep.physics.mujoco_cameras import ImageEffects, WithCameras, render_cameras
from instep.robot.imperfect import Backlash, Drifting, Dropping, Noisy, Quantized, Sluggish
from instep.scene.folder import Scene

from .beliefs import GaussianBelief, Posterior, SampleBelief, load

LAYERS: tuple[Any, ...] = (Backlash, Sluggish, Quantized, Drifting, Noisy, Dropping)
"""Imperfections of motors and sensors, in the order in which they are put on a world, motors first."""
UNITS = {
    "sensor.noise": "rad",
    "sensor.drift": "rad/s",
    "sensor.walk": "rad/s^0.5",
    "sensor.resolution": "rad",
    "sensor.loss": "1",
    "action.resolution": "rad",
    "action.lag": "s",
    "action.backlash": "rad",
    "action.loss": "1",
}
"""Parameters that a layer gives to a world, and their units."""


@dataclass(frozen=True, slots=True)
class IndependentBeliefs:
    """Several beliefs about different parameters, independent of each other."""

    parts: tuple[Belief, ...]

    def sample(self, n: int, rng: np.random.Generator) -> dict[str, Array]:
        """n settings, address -> [n]."""
        out: dict[str, Array] = {}
        for part in self.parts:
            drawn = part.sample(n, rng)
            twice = next((name for name in drawn if name in out), None)
            if twice is not None:
                raise BadInput(f"Two beliefs speak about {twice!r}; give each parameter to one of them.")
            out |= drawn
        return out


@dataclass(frozen=True, slots=True)
class MixtureBelief:
    """A mixture of two beliefs about the same params, such as a posterior with a share of the prior."""

    usual: Belief
    other: Belief
    share: float
    """Of draws that come from the other."""

    def sample(self, n: int, rng: np.random.Generator) -> dict[str, Array]:
        """n settings, address -> [n]."""
        first, second = self.usual.sample(n, rng), self.other.sample(n, rng)
        if set(first) != set(second):
            name = next(iter(set(first) ^ set(second)))
            raise BadInput(
                f"Beliefs that are mixed must be about the same parameters; only one of them knows {name!r}."
            )
        other = rng.random(n) < self.share
        return {name: np.where(other, second[name], first[name]) for name in first}


def to_box(belief: Posterior, level: float = 0.95, *, draws: int = 4000, seed: int = 0) -> Box:
    """The box that holds the central interval of each parameter, for trainers that take ranges only."""
    points = belief.draw(draws, np.random.default_rng((seed, 0xB0)))
    low, high = np.quantile(points, [0.5 - level / 2, 0.5 + level / 2], axis=0)
    params: list[Param] = []
    for i, param in enumerate(belief.params):
        ends = [float(param.from_unit(share)) for share in (low[i], max(high[i], low[i] + 1e-9))]
        params.append(replace(param, low=ends[0], high=ends[1]))
    return Box(tuple(params))


def widened(belief: Posterior, factor: float) -> Posterior:
    """The same belief, less sure: every deviation from the middle times a factor, inside the bounds."""
    if factor <= 0:
        raise BadInput(f"A belief is widened by a factor above 0, not {factor:g}.")
    if isinstance(belief, GaussianBelief):
        return replace(belief, covariance=belief.covariance * factor**2)
    middle = np.median(belief.points, axis=0)
    return SampleBelief(belief.params, np.clip(middle + factor * (belief.points - middle), 0.0, 1.0))


def with_imperfections(sim: Simulator, names: Sequence[str]) -> Simulator:
    """The simulator with the imperfect motors and sensors that some parameters belong to, as yet without effect."""
    for layer in LAYERS:
        if any(name in layer.params for name in names):
            sim = layer(sim)
    return sim


def belief_addresses(belief: Belief) -> tuple[str, ...]:
    """The addresses a belief speaks about."""
    return tuple(belief.sample(1, np.random.default_rng(0)))


def parse_belief(words: Sequence[str], scene: Scene) -> Belief | None:
    """What `--randomize` asks for: files that hold beliefs, and ranges as 'geom.*.friction=0.2..0.6', all together."""
    parts: list[Belief] = []
    ranged: list[Param] = []
    for word in words:
        if Path(word).exists():
            parts.append(load_belief(Path(word)))
        else:
            ranged += _ranged(word, scene)
    if ranged:
        parts.append(Box(tuple(ranged)))
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else IndependentBeliefs(tuple(parts))


def load_belief(path: Path) -> Belief:
    """A belief by its JSON file, or by the folder of a run that left one."""
    if path.is_dir():
        if not (path / "belief.json").is_file():
            raise BadInput(f"The folder {str(path)!r} holds no belief.json; run instep tune with --posterior first.")
        path = path / "belief.json"
    return load(path)


def _ranged(word: str, scene: Scene) -> list[Param]:
    name, _, span = word.partition("=")
    low, _, high = span.partition("..")
    try:
        bounds = float(low), float(high)
    except ValueError:
        raise BadInput(
            f"--randomize takes files that hold beliefs and ranges, as 'geom.*.friction=0.2..0.6', not {word!r}."
        ) from None
    if name in UNITS:
        return [Param(name, *bounds, unit=UNITS[name])]
    try:
        known = scene.params(name)
    except UnknownName:
        raise UnknownName("param", name, [*UNITS, *(param.address for param in scene.params())]) from None
    # A pattern is one parameter with one value for all its parts, as `tuned` takes it.
    return [Param(name, *bounds, known[0].log and bounds[0] > 0, known[0].unit)]


LOOKS = (
    Param("look.gain", 0.6, 1.4, True, "1"),
    Param("look.red", 0.85, 1.18, True, "1"),
    Param("look.green", 0.85, 1.18, True, "1"),
    Param("look.blue", 0.85, 1.18, True, "1"),
    Param("look.noise", 0.0, 8.0, False, "1/255"),
)
"""What can be turned in a camera's picture, with ranges that pictures of one room differ by over a day."""


def appearance() -> Box:
    """The usual range of looks."""
    return Box(LOOKS)


def look_of(settings: Mapping[str, float | Array], number: int = 0) -> ImageEffects:
    """The look of one draw; parameters that are not of a look are passed over, a misspelt one is not."""
    known = {param.address for param in LOOKS}
    for name in settings:
        if name.startswith("look.") and name not in known:
            raise UnknownName("parameter of a look", name, known)

    def value(name: str, usual: float) -> float:
        given = settings.get(name, usual)
        return float(given if isinstance(given, float | int) else given[number])

    tint = (value("look.red", 1.0), value("look.green", 1.0), value("look.blue", 1.0))
    return ImageEffects(value("look.gain", 1.0), tint, value("look.noise", 0.0))


def seen(
    world: World, scene: Scene, cameras: Sequence[str], settings: Mapping[str, float | Array], number: int = 0
) -> WithCameras:
    """A world filmed with the look of one draw."""
    return render_cameras(world, scene, tuple(cameras), look_of(settings, number))
