"""The verb torque: measured joint torques against a scene, and inertias, friction and payloads identified from them."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from instep.app.arguments import ExpertOptions, Options, OutFolder, Positional, SceneArg
from instep.app.data_args import DataArgs, located, read_runs
from instep.app.output import Output, broken_limits, gate_table, new_output
from instep.core.episode import Episode
from instep.core.world import options_dataclass
from instep.gap.torque_gap import TorqueGap, TorqueOptions, measure_torque_gap
from instep.report.gap_page import torque_gap_page
from instep.report.page import Headline
from instep.report.tune_pages import torque_identification_page
from instep.scene.folder import Scene
from instep.tune.torque.torque_identification import IdentifyTorqueOptions, TorqueIdentification, identify_torque


@options_dataclass
class TorqueArgs:
    """Options of `instep torque`."""

    source: Options[DataArgs] = DataArgs()
    identify: ExpertOptions[IdentifyTorqueOptions] = IdentifyTorqueOptions()
    compare: bool = False
    """only compare the torques with those of the scene; nothing is identified."""
    limit: tuple[str, ...] = ()
    """with --compare: largest allowed scores, as 'torque error=5'; exit code 1 if one is broken."""
    out: OutFolder = None


def torque(
    data: Positional[Annotated[str, tyro.conf.arg(metavar="DATA")]],
    scene: SceneArg,
    /,
    args: Options[TorqueArgs] = TorqueArgs(),
) -> int:
    """Identify inertias, friction and payloads of a scene from measured joint torques, and write a new scene with them.

    Nothing is simulated: inverse dynamics is linear in these parameters. OUT/scene holds a copy of the scene if every
    gate is passed, OUT/report.html the result. Exits 1 if a gate was not passed. --compare only measures the error of
    the scene's torques.

    Args:
        data: recordings with the column observation.effort [Nm], or with commands in Nm.
        scene: name of a shipped scene, a scene folder, or an MJCF or URDF file.

    """
    loaded = Scene.load(scene)
    episodes = read_runs(data, args.source, scene)
    if args.compare:
        return _compare(loaded, episodes, data, args)
    return _identify(loaded, episodes, data, args)


def _compare(scene: Scene, episodes: Sequence[Episode], data: str, args: TorqueArgs) -> int:
    gap = measure_torque_gap(scene, episodes, TorqueOptions(cutoff=args.identify.cutoff))
    broken = broken_limits(gap.scores, args.limit)
    output = _output(scene, data, args)
    report = torque_gap_page(gap, {f"input {path}": digest for path, digest in output.inputs.items()})
    if broken:
        report = replace(report, verdict=Headline("bad", "A limit is broken: " + "; ".join(broken)))
    output.write(gap.scores, notes=list(gap.notes), broken=broken, removed_by=dict(gap.shares))
    path = output.page(report)
    _print_scores(gap)
    Console().print(report.verdict.headline, highlight=False, markup=False)
    print(path)
    return 1 if broken else 0


def _identify(scene: Scene, episodes: Sequence[Episode], data: str, args: TorqueArgs) -> int:
    with Console(stderr=True).status("identifying from torques"):
        found = identify_torque(scene, episodes, args.identify)
    output = _output(scene, data, args)
    folder = _write_scenes(found, output)
    sides = {"before": found.before, "after": found.after}
    scores = {f"{side}: {name}": e for side, some in sides.items() for name, e in some.items()}
    output.write({**scores, **found.values}, **found.as_dict(), scene=str(folder))
    _print_found(found)
    page = output.page(torque_identification_page(found, {f"sha256 of {k}": v for k, v in output.inputs.items()}))
    for gate in found.gates:
        if gate.required and not gate.passed:
            print(f"Not promoted: {gate.name} {gate.state}. {gate.remedy}", file=sys.stderr)
    print(folder)
    print(page)
    return 0 if found.passed else 1


def _output(scene: Scene, data: str, args: TorqueArgs) -> Output:
    output = new_output("torque", args.out, seed=args.identify.seed)
    output.read(located(data))
    output.read_scene(scene)
    return output


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
