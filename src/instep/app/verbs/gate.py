"""The verb gate: apply rules to a policy, for continuous integration."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table as TerminalTable

from instep.app.arguments import Expert, Options, PolicyArg, Positional
from instep.app.cluster import open_map, watch_batches
from instep.app.output import new_output, progress_bar
from instep.app.world_specs import CameraOptions
from instep.core.reading import content_hash
from instep.core.world import options_dataclass
from instep.evaluate.evaluation import PolicySpec, WorldSpec
from instep.evaluate.policy_gate import Verdict, gate_policy, read_gate_rules, write_junit
from instep.policy.policy_specs import policy_fingerprint, policy_from_spec
from instep.report.eval_pages import gate_page
from instep.scene.folder import Scene
from instep.scene.tasks import task_of


@options_dataclass
class GateArgs:
    """Options of `instep gate`."""

    seeds: int | None = None
    """how many starts, where it should differ from the file."""
    views: Options[CameraOptions] = CameraOptions()
    on: str = ""
    """where to run: ray, ray://HOST:PORT, processes:N or threads:N."""
    junit: Expert[Path | None] = None
    """file for the verdict as JUnit XML; junit.xml in the folder where not given."""
    out: Path | None = None
    """folder to write, or to resume; a new one under runs/ where not given."""


def gate(
    policy: PolicyArg,
    rules: Positional[Annotated[Path, tyro.conf.arg(metavar="RULES")]],
    /,
    args: Options[GateArgs] = GateArgs(),
) -> int:
    """Apply the rules in a TOML file to a policy; exit 0 if it passes, 1 if it does not.

    First the engines are compared: names, units, order, signs, frames, gains, and motion one step and half a second
    ahead. Then the policy runs in each engine under each variation, and the rules are applied.

    Args:
        policy: what instep eval takes: expert, a trained folder, FILE.py:NAME, FILE.onnx, openpi:ws://HOST:PORT, ...
        rules: a TOML file: scene, worlds, seeds, [variations.NAME], and [[rule]] with measure and at_least or at_most.

    """
    given, console = read_gate_rules(rules), Console(stderr=True)
    given = given if args.seeds is None else replace(given, seeds=args.seeds)
    task = task_of(Scene.load(given.scene), given.task)
    output = new_output("gate", args.out, seed=given.first)
    output.kept = f"finished batches are kept; the same command with --out {output.folder} goes on from them"
    output.read(rules)
    sides = [_side(word, given.scene, args.views) for word in given.worlds]
    spec = PolicySpec(policy, partial(policy_from_spec, policy), policy_fingerprint(policy))
    per_variation = given.seeds * len(sides)
    with progress_bar() as progress, open_map(args.on, gpu=args.views.device == "cuda") as mapped:
        bar = progress.add_task("compare the engines", total=per_variation * len(given.variations))
        watched = watch_batches(mapped, progress, bar, per_variation)
        verdict = gate_policy(spec, given, sides, task, folder=output.folder / "episodes", map=watched)
    write_junit(args.junit or output.folder / "junit.xml", verdict)
    scores = {f"{one.group}: {one.name}": one.value for one in verdict.checks if one.value is not None}
    checks = [{"group": o.group, "name": o.name, "passed": o.passed, "words": o.words} for o in verdict.checks]
    output.write(scores, passed=verdict.passed, verdict=verdict.words, checks=checks)
    report = output.page(gate_page(verdict, given))
    console.print(_table(verdict))
    console.print(verdict.words, highlight=False, markup=False)
    print(report)
    return 0 if verdict.passed else 1


def _side(word: str, scene: str, cameras: CameraOptions) -> tuple[WorldSpec, Scene]:
    where = word.partition("@")[2] or scene
    loaded = Scene.load(where)
    fingerprint = f"{content_hash(loaded.root)}{cameras.hash()}/{word}"
    return WorldSpec(word, partial(cameras.open, word, scene), fingerprint), loaded


def _table(verdict: Verdict) -> TerminalTable:
    table = TerminalTable("", "check", "", "found", box=None)
    for one in verdict.checks:
        table.add_row(one.group, one.name, "[green]passed[/]" if one.passed else "[red]failed[/]", one.words)
    return table
