"""One run of the verbs gap and tune with --torque: read, compare or identify, write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from instep.core.errors import BadInput
from instep.core.records import frozen_dataclass
from instep.gap.torque_gap import TorqueGap, measure_torque_gap
from instep.gap.torque_rows import TorqueOptions
from instep.report.page import Headline, write_report
from instep.scene.folder import Scene

from .gap_run import broken_scores, located, read_runs
from .output import new_output


@frozen_dataclass
class TorqueGapRequest:
    """The arguments of the verb gap with --torque."""

    data: str
    scene: str
    mapping: str
    cutoff: float
    limits: Mapping[str, float]
    """Score -> its largest allowed value."""
    out: Path | None


def run_torque_gap(args: TorqueGapRequest) -> int:
    """Compare torques, apply limits, write; the exit code is 1 where a limit is broken."""
    if not args.data or not args.scene:
        raise BadInput("--torque compares recordings with a scene: instep gap DATA SCENE --torque.")
    scene = Scene.load(args.scene)
    gap = measure_torque_gap(scene, read_runs(args.data, args.mapping, args.scene), TorqueOptions(cutoff=args.cutoff))
    output = new_output("gap", args.out)
    output.read(located(args.data))
    output.read(scene.root)
    broken = broken_scores(gap.scores, args.limits)
    report = gap.report({f"input {path}": digest for path, digest in output.inputs.items()})
    if broken:
        report = replace(report, verdict=Headline("bad", "A limit is broken: " + "; ".join(broken)))
    output.write(gap.scores, notes=list(gap.notes), broken=broken, removed_by=dict(gap.shares))
    path = write_report(output.folder, report)
    _print_scores(gap)
    Console().print(report.verdict.headline, highlight=False, markup=False)
    print(path)
    return 1 if broken else 0


def _print_scores(gap: TorqueGap) -> None:
    table = Table("joint", "error [Nm]", "95 %", "of RMS torque", "of range", box=None, padding=(0, 2))
    for column in table.columns[1:]:
        column.justify = "right"
    for joint in gap.joints:
        rms, share, span = (gap.scores[f"{joint} {what}"] for what in ("rms", "of rms torque", "of range"))
        interval = f"{rms.low:.3g} to {rms.high:.3g}"
        table.add_row(joint, f"{rms.value:.3g}", interval, f"{share.value:.3g} %", f"{span.value:.3g} %")
    Console().print(table)
