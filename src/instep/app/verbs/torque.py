"""One run of the verbs gap and tune with --torque: read, compare or identify, write."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from instep.app.data_args import DataArgs
from instep.app.gap_run import broken_scores, located, read_runs
from instep.app.output import Output, gate_table, new_output
from instep.core.errors import BadInput
from instep.core.world import frozen_dataclass
from instep.gap.torque_gap import TorqueGap, TorqueOptions, measure_torque_gap
from instep.report.page import Headline
from instep.scene.folder import Scene
from instep.tune.torque.torque_identification import IdentifyTorqueOptions, TorqueIdentification, identify_torque

if TYPE_CHECKING:
    from .tune import TuneArgs


@frozen_dataclass
class TorqueGapRequest:
    """The arguments of the verb gap with --torque."""

    data: str
    scene: str
    source: DataArgs
    cutoff: float
    limits: Mapping[str, float]
    """Score -> its largest allowed value."""
    out: Path | None


def run_torque_gap(args: TorqueGapRequest) -> int:
    """Compare torques, apply limits, write; the exit code is 1 where a limit is broken."""
    if not args.data or not args.scene:
        raise BadInput("--torque compares recordings with a scene: instep gap DATA SCENE --torque.")
    scene = Scene.load(args.scene)
    gap = measure_torque_gap(scene, read_runs(args.data, args.source, args.scene), TorqueOptions(cutoff=args.cutoff))
    output = new_output("gap", args.out)
    output.read(located(args.data))
    output.read_scene(scene)
    broken = broken_scores(gap.scores, args.limits)
    report = gap.report({f"input {path}": digest for path, digest in output.inputs.items()})
    if broken:
        report = replace(report, verdict=Headline("bad", "A limit is broken: " + "; ".join(broken)))
    output.write(gap.scores, notes=list(gap.notes), broken=broken, removed_by=dict(gap.shares))
    path = output.page(report)
    _print_scores(gap)
    Console().print(report.verdict.headline, highlight=False, markup=False)
    print(path)
    return 1 if broken else 0


def run_torque_tune(data: str, scene: str, args: TuneArgs) -> int:
    """Identify from torques, write the new scenes; the exit code is 1 where a gate was not passed."""
    loaded = Scene.load(scene)
    options = IdentifyTorqueOptions(
        held_out=args.held_out,
        hold_out=args.hold_out,
        cutoff=args.cutoff,
        payload_only=args.payload,
        draws=10 if args.draws is None else args.draws,
        seed=args.seed,
    )
    with Console(stderr=True).status("identifying from torques"):
        found = identify_torque(loaded, read_runs(data, args.source, scene), options)
    output = new_output("tune", args.out, seed=args.seed)
    output.read(located(data))
    output.read_scene(loaded)
    folder = _write_scenes(found, output)
    sides = {"before": found.before, "after": found.after}
    scores = {f"{side}: {name}": e for side, some in sides.items() for name, e in some.items()}
    output.write({**scores, **found.values}, **found.as_dict(), scene=str(folder))
    _print_found(found)
    page = output.page(found.report({f"sha256 of {k}": v for k, v in output.inputs.items()}))
    for gate in found.gates:
        if gate.required and not gate.passed:
            print(f"Not promoted: {gate.name} {gate.state}. {gate.remedy}", file=sys.stderr)
    print(folder)
    print(page)
    return 0 if found.passed else 1


def _write_scenes(found: TorqueIdentification, output: Output) -> Path:
    """Write the scene without a payload, and one with each payload; return the folder of the first."""
    for old in output.folder.glob("scene*/tuned.json"):
        shutil.rmtree(old.parent)
    stem = "scene" if found.passed else "scene_not_passed"
    facts = {"data": output.inputs}
    loads = {re.sub(r"\W+", "_", name): name for name in found.payloads}
    paths = [found.save(output.folder / f"{stem}_{k}", payload=name, provenance=facts) for k, name in loads.items()]
    if found.solution.problem.bodies:
        paths.insert(0, found.save(output.folder / stem, provenance=facts))
    return paths[0]


def _print_found(found: TorqueIdentification) -> None:
    console = Console()
    table = Table("joint", "error before [Nm]", "after", "of RMS torque", box=None, padding=(0, 2))
    for joint in found.held_out[0].joints:
        sides = (f"{scores[f'{joint} rms'].value:.3g}" for scores in (found.before, found.after))
        table.add_row(joint, *sides, f"{found.after[f'{joint} of rms torque'].value:.3g} %")
    console.print(table)
    for name, load in found.payloads.items():
        centre = ", ".join(f"{part.value:.3g}" for part in load.centre)
        console.print(f"{name}: {load.mass} at ({centre}) m of {load.body}", highlight=False, markup=False)
    console.print(gate_table(found.gates))


def _print_scores(gap: TorqueGap) -> None:
    table = Table("joint", "error [Nm]", "95 %", "of RMS torque", "of range", box=None, padding=(0, 2))
    for column in table.columns[1:]:
        column.justify = "right"
    for joint in gap.joints:
        rms, share, span = (gap.scores[f"{joint} {what}"] for what in ("rms", "of rms torque", "of range"))
        interval = f"{rms.low:.3g} to {rms.high:.3g}"
        table.add_row(joint, f"{rms.value:.3g}", interval, f"{share.value:.3g} %", f"{span.value:.3g} %")
    Console().print(table)
