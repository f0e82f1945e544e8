"""Rules of a gate, read from a TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, cast

from instep.core.errors import BadInput, UnknownName
from instep.core.param import Box, Param
from instep.scene.folder import Scene

from .engine_parity import ParityLimits

MEASURES = {
    "success": "share of starts from which the task is done",
    "gap": "difference of the success between two worlds, start by start",
    "seconds": "median time to success [s]",
    "score": "mean score at the end",
    "speed": "largest speed of any joint [rad/s or m/s]",
    "jump": "largest change of an action from one step to the next",
    "beyond": "share of actions outside what the actuators take",
    "decide_ms": "median time the policy takes to decide, for one batch [ms]",
    "diverged": "share of episodes in which the simulation diverged",
}
"""What a rule may be about."""


@dataclass(frozen=True, slots=True)
class GateRule:
    """One limit on one measure."""

    measure: str
    at_least: float | None = None
    at_most: float | None = None
    by: Literal["bound", "value"] = "bound"
    """Whether the whole 95 % interval must keep the limit, or the value alone."""
    variation: str = ""
    """The variation it holds in; all of them where empty."""

    @property
    def words(self) -> str:
        """The limit in words."""
        limits = [f"at least {self.at_least:g}"] if self.at_least is not None else []
        limits += [f"at most {self.at_most:g}"] if self.at_most is not None else []
        return f"{self.measure} {' and '.join(limits)}"


@dataclass(frozen=True, slots=True)
class Variation:
    """Circumstances in which a policy is judged."""

    name: str = "nominal"
    latency: int = 0
    randomize: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GateRules:
    """What a gate asks."""

    scene: str
    rules: tuple[GateRule, ...]
    worlds: tuple[str, ...] = ("mujoco", "rapier")
    """Engines, or ENGINE@SCENE for another model of the same robot; the first is what others are compared with."""
    task: str = ""
    seeds: int = 100
    first: int = 10_000
    """Seed of the first start; apart from those a policy was trained and chosen on."""
    batch: int = 64
    variations: tuple[Variation, ...] = (Variation(),)
    parity: ParityLimits = field(default_factory=ParityLimits)


def read_gate_rules(path: Path) -> GateRules:
    """The rules in a TOML file."""
    if not path.is_file():
        raise BadInput(f"There is no file {str(path)!r}; a gate needs rules, see examples/ci/rules.toml.")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path.name} is not valid TOML: {error}.") from None
    return gate_rules_from(table, path.name)


def gate_rules_from(table: Mapping[str, Any], name: str) -> GateRules:
    """The rules in a parsed table."""
    known = {f.name for f in fields(GateRules)} - {"rules"} | {"rule"}
    _known(table, known, f"entry of {name}")
    if "scene" not in table:
        raise BadInput(f"{name} must say which scene the policy is judged in, as scene = 'pusht'.")
    rules = tuple(_rule(entry, name) for entry in cast(list[Any], table.get("rule", [])))
    if not rules:
        raise BadInput(f"{name} has no [[rule]]; a gate without rules would let everything through.")
    made = {key: table[key] for key in ("scene", "task", "seeds", "first", "batch") if key in table}
    if "worlds" in table:
        made["worlds"] = tuple(str(word) for word in table["worlds"])
    if "variations" in table:
        made["variations"] = tuple(_variation(k, v, name) for k, v in table["variations"].items())
    limits = cast(dict[str, Any], table.get("parity", {}))
    _known(limits, {f.name for f in fields(ParityLimits)}, f"entry under [parity] of {name}")
    names = {variation.name for variation in made.get("variations", (Variation(),))}
    for rule in rules:
        if rule.variation and rule.variation not in names:
            raise UnknownName("variation", rule.variation, names)
    return GateRules(rules=rules, parity=ParityLimits(**limits), **made)


def belief_from_ranges(words: Sequence[str], scene: Scene) -> Box | None:
    """The belief that parameters with ranges stand for, as 'geom.*.friction=0.2..0.6'."""
    return Box(tuple(_range(word, scene) for word in words)) if words else None


def _range(word: str, scene: Scene) -> Param:
    address, _, span = word.partition("=")
    low, _, high = span.partition("..")
    try:
        bounds = float(low), float(high)
    except ValueError:
        raise BadInput(f"Parameters are varied within ranges, as 'geom.*.friction=0.2..0.6', not {word!r}.") from None
    known = scene.params(address)
    if not known:
        raise BadInput(f"Scene {scene.name!r} has no parameter {address!r} to randomize; see instep scene params.")
    return Param(address, *bounds, known[0].log and bounds[0] > 0, known[0].unit)


def _rule(entry: Mapping[str, Any], name: str) -> GateRule:
    _known(entry, {f.name for f in fields(GateRule)}, f"entry under [[rule]] of {name}")
    measure = str(entry.get("measure", ""))
    if measure not in MEASURES:
        raise UnknownName("measure", measure, MEASURES)
    rule = GateRule(**entry)
    if (rule.at_least is None) == (rule.at_most is None) or rule.by not in ("bound", "value"):
        raise BadInput(
            f"A rule on {measure!r} in {name} takes either at_least or at_most, a number, and by = 'bound' or 'value'."
        )
    return rule


def _variation(key: str, entry: Mapping[str, Any], name: str) -> Variation:
    _known(entry, {"latency", "randomize"}, f"entry under [variations.{key}] of {name}")
    return Variation(key, int(entry.get("latency", 0)), tuple(entry.get("randomize", ())))


def _known(table: Mapping[str, Any], known: set[str], what: str) -> None:
    for key in table:
        if key not in known:
            raise UnknownName(what, key, known)
