"""Gate of a policy: rules applied in every engine and under every variation, after a parity check of the engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import nan
from pathlib import Path
from typing import cast
from xml.etree import ElementTree

import numpy as np

from instep.core.statistics import Estimate, bootstrap, wilson
from instep.core.world import MapFn, Simulator
from instep.scene.folder import Scene
from instep.scene.tasks.task import Task

from .comparison import compare_policies
from .engine_parity import ParityCheck, ParityWorld, check_parity
from .episode_batch import DIVERGED, EpisodeResult
from .evaluation import EvalOptions, Evaluation, PolicySpec, WorldSpec, action_bounds, evaluate_policies
from .gate_rules import GateRule, GateRules, belief_from_ranges


@dataclass(frozen=True, slots=True)
class GateCheck:
    """One rule, or one check before the rules, and whether it is kept."""

    group: str
    """parity, or the variation."""
    name: str
    passed: bool
    words: str
    value: Estimate | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """Whether a policy may pass, and why."""

    policy: str
    checks: tuple[GateCheck, ...]
    evaluations: dict[str, Evaluation] = field(default_factory=dict[str, Evaluation])
    """Variation -> evaluation."""

    @property
    def passed(self) -> bool:
        """Whether every rule is kept."""
        return all(one.passed for one in self.checks)

    @property
    def words(self) -> str:
        """The verdict in a sentence, with its first reason."""
        broken = [one for one in self.checks if not one.passed]
        if not broken:
            return f"{self.policy} passes: {len(self.checks)} of {len(self.checks)} checks are kept."
        more = f", and {len(broken) - 1} more" if len(broken) > 1 else ""
        return f"{self.policy} does not pass: {broken[0].group}, {broken[0].name}: {broken[0].words}{more}."


def gate_policy(
    policy: PolicySpec,
    sides: Sequence[tuple[WorldSpec, Scene]],
    task: Task,
    rules: GateRules,
    *,
    folder: Path | None = None,
    map: MapFn = map,
) -> Verdict:
    """Compare the engines, then run the policy in each of them under each variation, and apply the rules.

    Engines without parity end it there: what a policy does in them says nothing.
    """
    checks = list(_parity(sides, rules))
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


def _parity(sides: Sequence[tuple[WorldSpec, Scene]], rules: GateRules) -> list[GateCheck]:
    made = [ParityWorld(place.name, cast(Simulator, place.make()), scene) for place, scene in sides]
    found: list[GateCheck] = []
    for other in made[1:]:
        group = f"parity of {made[0].name} and {other.name}"
        findings: list[ParityCheck] = check_parity(made[0], other, rules.parity)
        found += [GateCheck(group, finding.check, finding.ok, finding.words) for finding in findings]
    return found


def _apply(rule: GateRule, policy: str, worlds: Sequence[str], done: Evaluation, variation: str) -> list[GateCheck]:
    found: list[GateCheck] = []
    if rule.measure == "gap":
        for world in worlds[1:]:
            pair = compare_policies(done.results[policy, worlds[0]], done.results[policy, world]).difference
            size = Estimate(abs(pair.value), 0.0, max(abs(pair.low), abs(pair.high)), pair.n)
            found.append(_judge(rule, f"gap between {worlds[0]} and {world}", size, variation))
        return found
    for world in worlds:
        rows = [row for row in done.results[policy, world] if row.valid]
        found.append(_judge(rule, f"{rule.measure} in {world}", _measured(rule.measure, rows), variation))
    return found


def _judge(rule: GateRule, name: str, value: Estimate, variation: str) -> GateCheck:
    low, high = (value.low, value.high) if rule.by == "bound" else (value.value, value.value)
    kept = (rule.at_least is None or low >= rule.at_least) and (rule.at_most is None or high <= rule.at_most)
    asked = rule.words.partition(" ")[2] + (" for the whole interval" if rule.by == "bound" else "")
    return GateCheck(variation, name, kept, f"{value}; asked for {asked}", value)


def _measured(measure: str, rows: Sequence[EpisodeResult]) -> Estimate:
    if not rows:
        return Estimate(nan, nan, nan, 0)
    if measure in ("success", "diverged"):
        wanted = [row.success if measure == "success" else row.outcome == DIVERGED for row in rows]
        return wilson(sum(wanted), len(wanted))
    if measure == "seconds":
        times = [row.seconds for row in rows if row.success]
        return bootstrap(times, lambda x: np.median(x, axis=-1), unit="s") if times else Estimate(nan, nan, nan, 0)
    if measure == "score":
        return bootstrap([row.score for row in rows])
    if measure == "decide_ms":
        return bootstrap([row.decide_ms for row in rows], lambda x: np.median(x, axis=-1), unit="ms")
    values = np.array([getattr(row, measure) for row in rows], float)
    # A limit of safety is on the worst that happened, not on a mean.
    worst = float(values.max())
    return Estimate(worst, worst, worst, len(rows))


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
        if not one.passed:
            failure = ElementTree.SubElement(case, "failure", message=_clean(one.words))
            failure.text = _clean(one.words)
        else:
            ElementTree.SubElement(case, "system-out").text = _clean(one.words)


def _count(element: ElementTree.Element, members: list[GateCheck]) -> None:
    element.set("tests", str(len(members)))
    element.set("failures", str(sum(not one.passed for one in members)))
    element.set("errors", "0")


def _clean(text: str) -> str:
    """XML 1.0 has no control characters, and names come from files of strangers."""
    return "".join(c if c.isprintable() else "?" for c in text)
