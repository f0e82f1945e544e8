"""Gate of a policy: rules from a TOML file, applied in every engine and under every variation.

The engines are compared first: results in engines that disagree mean nothing. A measure is a function of the episodes
of a policy in one world. Other packages add measures as entry points of the group `instep.gates`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, fields
from functools import partial
from itertools import groupby
from math import nan
from pathlib import Path
from typing import Any, Literal, cast
from xml.etree import ElementTree

import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.imports import extension, extension_names
from instep.core.param import Box, Param
from instep.core.reading import (
    ANY_TEXT,
    MAYBE_NAMES,
    NAMES,
    NUMBER,
    TABLE,
    TABLES,
    TEXT,
    Entry,
    at_least,
    checked_table,
    read_toml,
    table_of,
    whole_from,
)
from instep.core.statistics import Estimate, bootstrap, wilson
from instep.core.world import MapFn, Policy, Simulator, array_dataclass, frozen_dataclass
from instep.physics.engines import ENGINES, open_world
from instep.scene.folder import Scene
from instep.scene.tasks import Task, task_of

from .engine_parity import ParityLimits, ParityWorld, check_parity
from .episode_batch import DIVERGED, EpisodeResult
from .evaluation import (
    EvalOptions,
    Evaluation,
    PolicySpec,
    WorldSpec,
    action_bounds,
    compare_policies,
    evaluate_policies,
    policy_specs,
)

Measure = Callable[[Sequence[EpisodeResult]], Estimate]
"""A number about the valid episodes of a policy in one world; there is at least one."""
GROUP = "gates"
GAP = "gap"
"""The one measure about two worlds: the difference of the success rates, start by start."""


def _median(values: list[float], unit: str) -> Estimate:
    return bootstrap(values, lambda x: np.median(x, axis=-1), unit=unit) if values else Estimate(nan, nan, nan, 0)


def _largest(values: list[float]) -> Estimate:
    """A safety limit is on the worst case, not on a mean."""
    return Estimate(max(values), max(values), max(values), len(values))


MEASURES: dict[str, Measure] = {
    "success": lambda rows: wilson(sum(row.success for row in rows), len(rows)),
    "seconds": lambda rows: _median([row.seconds for row in rows if row.success], "s"),
    "score": lambda rows: bootstrap([row.score for row in rows]),
    "speed": lambda rows: _largest([row.speed for row in rows]),
    "jump": lambda rows: _largest([row.jump for row in rows]),
    "beyond": lambda rows: _largest([row.beyond for row in rows]),
    "decide_ms": lambda rows: _median([row.decide_ms for row in rows], "ms"),
    "diverged": lambda rows: wilson(sum(row.outcome == DIVERGED for row in rows), len(rows)),
}
"""The measures that come with instep, named after the fields of an episode."""


@frozen_dataclass
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


@frozen_dataclass
class Variation:
    """Circumstances in which a policy is judged."""

    name: str = "nominal"
    latency: int = 0
    randomize: tuple[str, ...] = ()


@frozen_dataclass
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


MAX_SEEDS = 1_000_000
"""Most starts of a gate, and most worlds of a batch."""
_TOP: Mapping[str, Entry] = {
    "scene": TEXT, "rule": TABLES, "worlds": NAMES, "task": ANY_TEXT, "seeds": whole_from(1, MAX_SEEDS),
    "first": whole_from(0, 2**31), "batch": whole_from(1, MAX_SEEDS), "variations": table_of(TABLE), "parity": TABLE,
}  # fmt: skip
_RULE: Mapping[str, Entry] = {
    "measure": TEXT, "at_least": NUMBER, "at_most": NUMBER, "by": TEXT, "variation": ANY_TEXT
}  # fmt: skip
_VARIATION: Mapping[str, Entry] = {"latency": whole_from(0, 1000), "randomize": MAYBE_NAMES}
_PARITY: Mapping[str, Entry] = {f.name: at_least(0.0) for f in fields(ParityLimits)}


def read_gate_rules(path: str | Path) -> GateRules:
    """The rules in a TOML file."""
    path = Path(path)
    if not path.is_file():
        raise BadInput(f"There is no file {str(path)!r}; a gate needs rules, see examples/ci/rules.toml.")
    return gate_rules_from(read_toml(path), path.name)


def gate_rules_from(table: Mapping[str, Any], name: str) -> GateRules:
    """The rules in a parsed table."""
    checked_table(table, _TOP, name)
    if "scene" not in table:
        raise BadInput(f"{name} must say which scene the policy is judged in, as scene = 'pusht'.")
    rules = tuple(_rule(entry, name) for entry in table.get("rule", []))
    if not rules:
        raise BadInput(f"{name} has no [[rule]]; a gate without rules would let everything through.")
    made = {key: table[key] for key in ("scene", "task", "seeds", "first", "batch") if key in table}
    if "worlds" in table:
        made["worlds"] = tuple(str(word) for word in table["worlds"])
    if "variations" in table:
        variations = table["variations"].items()
        own = [(key, checked_table(entry, _VARIATION, f"[variations.{key}] of {name}")) for key, entry in variations]
        made["variations"] = tuple(Variation(k, e.get("latency", 0), tuple(e.get("randomize", ()))) for k, e in own)
    limits = checked_table(table.get("parity", {}), _PARITY, f"[parity] of {name}")
    names = {variation.name for variation in made.get("variations", (Variation(),))}
    for rule in rules:
        if rule.variation and rule.variation not in names:
            raise UnknownName("variation", rule.variation, names)
    return GateRules(rules=rules, parity=ParityLimits(**limits), **made)


@frozen_dataclass
class GateCheck:
    """One rule, or one parity check before the rules."""

    group: str
    """parity, or the variation."""
    name: str
    passed: bool
    words: str
    value: Estimate | None = None


@array_dataclass
class Verdict:
    """Whether a policy may pass, and why."""

    policy: str
    checks: tuple[GateCheck, ...]
    evaluations: dict[str, Evaluation] = field(default_factory=dict[str, Evaluation])
    """Variation -> evaluation."""

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(one.passed for one in self.checks)

    @property
    def words(self) -> str:
        """The verdict in a sentence, with its first reason."""
        broken = [one for one in self.checks if not one.passed]
        if not broken:
            return f"{self.policy} passes: {len(self.checks)} of {len(self.checks)} checks passed."
        more = f", and {len(broken) - 1} more" if len(broken) > 1 else ""
        return f"{self.policy} does not pass: {broken[0].group}, {broken[0].name}: {broken[0].words}{more}."


def gate_policy(
    policy: Policy | PolicySpec,
    rules: GateRules,
    sides: Sequence[tuple[WorldSpec, Scene]] | None = None,
    task: Task | None = None,
    *,
    folder: Path | None = None,
    map: MapFn = map,
) -> Verdict:
    """Compare the engines, then run the policy in each of them under each variation, and apply the rules.

    `sides` are the worlds with their scenes, and `task` what success means; those of the rules where not given.
    Engines without parity end it there: what a policy does in them says nothing.
    """
    policy = policy if isinstance(policy, PolicySpec) else policy_specs(policy)[0]
    sides = [_side(word, rules.scene) for word in rules.worlds] if sides is None else sides
    task = task or task_of(Scene.load(rules.scene), rules.task)
    checks = _parity(sides, rules)
    if not all(check.passed for check in checks):
        return Verdict(policy.name, tuple(checks))
    worlds, scene, done = [world for world, _ in sides], sides[0][1], dict[str, Evaluation]()
    seeds = range(rules.first, rules.first + rules.seeds)
    for variation in rules.variations:
        options = EvalOptions(
            batch=rules.batch,
            latency=variation.latency,
            randomize=belief_from_ranges(variation.randomize, scene),
            bounds=action_bounds(scene),
            folder=folder,
        )
        evaluation = evaluate_policies([policy], worlds, task, seeds, options=options, map=map)
        done[variation.name] = evaluation
        for rule in rules.rules:
            if rule.variation in ("", variation.name):
                checks += _apply(rule, policy.name, [world.name for world in worlds], evaluation, variation.name)
    return Verdict(policy.name, tuple(checks), done)


def _side(word: str, scene: str) -> tuple[WorldSpec, Scene]:
    """An engine, or ENGINE@SCENE, as a world of a gate."""
    engine, _, other = word.partition("@")
    if engine not in ENGINES:
        raise UnknownName("engine", engine, ENGINES)
    loaded = Scene.load(other or scene)
    return WorldSpec(word, partial(open_world, loaded, engine)), loaded


def _parity(sides: Sequence[tuple[WorldSpec, Scene]], rules: GateRules) -> list[GateCheck]:
    made = [ParityWorld(place.name, cast(Simulator, place.make()), scene) for place, scene in sides]
    found: list[GateCheck] = []
    for other in made[1:]:
        group = f"parity of {made[0].name} and {other.name}"
        findings = check_parity(made[0], other, rules.parity)
        found += [GateCheck(group, finding.check, finding.ok, finding.words) for finding in findings]
    return found


def _apply(rule: GateRule, policy: str, worlds: Sequence[str], done: Evaluation, variation: str) -> list[GateCheck]:
    found: list[GateCheck] = []
    if rule.measure == GAP:
        for world in worlds[1:]:
            pair = compare_policies(done.results[policy, worlds[0]], done.results[policy, world]).difference
            size = Estimate(abs(pair.value), 0.0, max(abs(pair.low), abs(pair.high)), pair.n)
            found.append(_judge(rule, f"gap between {worlds[0]} and {world}", size, variation))
        return found
    for world in worlds:
        rows = [row for row in done.results[policy, world] if row.valid]
        measure: Measure = MEASURES.get(rule.measure) or extension(GROUP, rule.measure, {})
        value = measure(rows) if rows else Estimate(nan, nan, nan, 0)
        found.append(_judge(rule, f"{rule.measure} in {world}", value, variation))
    return found


def _judge(rule: GateRule, name: str, value: Estimate, variation: str) -> GateCheck:
    low, high = (value.low, value.high) if rule.by == "bound" else (value.value, value.value)
    kept = (rule.at_least is None or low >= rule.at_least) and (rule.at_most is None or high <= rule.at_most)
    limit = rule.words.partition(" ")[2] + (" for the whole interval" if rule.by == "bound" else "")
    return GateCheck(variation, name, kept, f"{value}; limit: {limit}", value)


def write_junit(path: Path, verdict: Verdict) -> Path:
    """Write a verdict as JUnit XML: a suite per variation, a case per rule."""
    suites = ElementTree.Element("testsuites", name=_clean(f"instep gate {verdict.policy}"))
    for group, members in groupby(verdict.checks, key=lambda one: one.group):
        _suite(suites, group, list(members))
    _count(suites, list(verdict.checks))
    ElementTree.indent(suites)
    path.write_bytes(ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True))
    return path


def _suite(suites: ElementTree.Element, group: str, members: list[GateCheck]) -> None:
    suite = ElementTree.SubElement(suites, "testsuite", name=_clean(group))
    _count(suite, members)
    for one in members:
        case = ElementTree.SubElement(suite, "testcase", classname=_clean(group), name=_clean(one.name))
        message = {} if one.passed else {"message": _clean(one.words)}
        ElementTree.SubElement(case, "system-out" if one.passed else "failure", message).text = _clean(one.words)


def _count(element: ElementTree.Element, members: list[GateCheck]) -> None:
    failures = sum(not one.passed for one in members)
    element.attrib |= {"tests": str(len(members)), "failures": str(failures), "errors": "0"}


def _clean(text: str) -> str:
    """XML 1.0 has no control characters, and names come from files of strangers."""
    return "".join(c if c.isprintable() else "?" for c in text)


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
    checked_table(entry, _RULE, f"[[rule]] of {name}")
    measure = str(entry.get("measure", ""))
    known = (*MEASURES, *extension_names(GROUP, {}), GAP)
    if measure not in known:
        raise UnknownName("measure", measure, known)
    rule = GateRule(**entry)
    if (rule.at_least is None) == (rule.at_most is None) or rule.by not in ("bound", "value"):
        raise BadInput(
            f"A rule on {measure!r} in {name} takes either at_least or at_most, a number, and by = 'bound' or 'value'."
        )
    return rule
