"""Mass and friction of a built object: given values, densities by material, each with an interval and a source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from instep.core.errors import BadInput, UnknownName
from instep.core.records import frozen_dataclass

DENSITIES: Mapping[str, tuple[float, float, float]] = {
    "unknown": (500.0, 100.0, 1500.0),
    "foam": (40.0, 15.0, 120.0),
    "cardboard": (150.0, 60.0, 350.0),
    "wood": (600.0, 350.0, 900.0),
    "plastic": (950.0, 300.0, 1400.0),
    "printed": (700.0, 250.0, 1250.0),
    "ceramic": (2300.0, 1700.0, 2700.0),
    "glass": (2500.0, 2200.0, 2700.0),
    "aluminium": (2700.0, 2600.0, 2850.0),
    "steel": (7850.0, 7700.0, 8050.0),
}
"""Density of materials as objects of them have it, air inside included: usual, least, most [kg/m^3]."""
FRICTION = (0.5, 0.2, 1.0)
"""Sliding friction of household objects on tables: usual, least, most."""
_WEIGHED_SHARE = 0.02
"""Half width of the interval of a weighed mass."""


@frozen_dataclass
class PhysicalValue:
    """A mass or a friction with where it comes from."""

    value: float
    low: float
    high: float
    source: str
    """How it is known: given, a density table, identified."""


def given_numbers(words: Sequence[str], what: str) -> dict[str, float]:
    """Numbers by object in words such as `tee=0.35`."""
    out: dict[str, float] = {}
    for word in words:
        name, separator, text = word.partition("=")
        try:
            out[name] = float(text)
        except ValueError:
            out[name] = -1.0
        if not separator or not 0 < out[name] < 1e4:
            raise BadInput(f"{what} is given as NAME=NUMBER above 0, such as tee=0.35, not {word!r}.")
    return out


def given_materials(words: Sequence[str]) -> dict[str, str]:
    """Materials by object in words such as `tee=wood`."""
    out: dict[str, str] = {}
    for word in words:
        name, _, material = word.partition("=")
        if material not in DENSITIES:
            raise UnknownName("material", material, DENSITIES)
        out[name] = material
    return out


def mass_of(volume: float, weighed: float | None, material: str) -> PhysicalValue:
    """The mass [kg] of a volume [m^3]: as weighed, else by the density of a material."""
    if weighed is not None:
        return PhysicalValue(weighed, (1 - _WEIGHED_SHARE) * weighed, (1 + _WEIGHED_SHARE) * weighed, "weighed")
    usual, least, most = DENSITIES[material]
    source = f"volume times the density of {material} ({usual:g} kg/m^3)"
    return PhysicalValue(usual * volume, least * volume, most * volume, source)


def friction_of(given: float | None) -> PhysicalValue:
    """The sliding friction: as given, else that of household objects."""
    if given is not None:
        return PhysicalValue(given, 0.8 * given, 1.25 * given, "given")
    usual, least, most = FRICTION
    return PhysicalValue(usual, least, most, "usual for household objects on a table")
