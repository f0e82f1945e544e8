"""Randomise appearance: brightness, colour of the light, noise of the sensor, by the same beliefs as physics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from instep.core.errors import UnknownName
from instep.core.knob import Box, Knob
from instep.core.world import Array, World
from instep.physics.film import Filmed, Look, filmed
from instep.scene.folder import Scene

LOOKS = (
    Knob("look.gain", 0.6, 1.4, True, "1"),
    Knob("look.red", 0.85, 1.18, True, "1"),
    Knob("look.green", 0.85, 1.18, True, "1"),
    Knob("look.blue", 0.85, 1.18, True, "1"),
    Knob("look.noise", 0.0, 8.0, False, "1/255"),
)
"""What can be turned in a camera's picture, with ranges that pictures of one room differ by over a day."""


def appearance() -> Box:
    """The usual range of looks."""
    return Box(LOOKS)


def look_of(settings: Mapping[str, float | Array], number: int = 0) -> Look:
    """The look of one draw; knobs that are not of a look are passed over, a misspelt one is not."""
    known = {knob.address for knob in LOOKS}
    for name in settings:
        if name.startswith("look.") and name not in known:
            raise UnknownName("knob of a look", name, known)

    def value(name: str, usual: float) -> float:
        given = settings.get(name, usual)
        return float(given if isinstance(given, float | int) else given[number])

    tint = (value("look.red", 1.0), value("look.green", 1.0), value("look.blue", 1.0))
    return Look(value("look.gain", 1.0), tint, value("look.noise", 0.0))


def seen(
    world: World, scene: Scene, cameras: Sequence[str], settings: Mapping[str, float | Array], number: int = 0
) -> Filmed:
    """A world filmed with the look of one draw."""
    return filmed(world, scene, tuple(cameras), look_of(settings, number))
