"""The verbs excite and torque: motions that make parameters identifiable, and parameters from measured torques."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from instep.app.arguments import ExpertOptions, Options, OutFolder, RecordingsArg, SceneArg
from instep.app.output import Output, broken_limits, new_output, say, show_gates, show_table, stage_bar
from instep.core.episode import Episode
from instep.core.statistics import Estimate
from instep.core.world import options_dataclass
from instep.gap.torque_gap import TorqueOptions, measure_torque_gap
from instep.report.gap_page import torque_gap_page
from instep.report.page import Headline
from instep.report.tune_pages import excitation_page, torque_identification_page
from instep.scene import address
from instep.scene.folder import Scene
from instep.tune.excitation import ExciteOptions
from instep.tune.excitation import excite as search
from instep.tune.excitation_limits import driven_joint_limits
from instep.tune.torque.torque_identification import IdentifyTorqueOptions, TorqueIdentification, identify_torque

from .data import DataArgs, located, read_runs

if TYPE_CHECKING:
    from instep.core.param import Param
    from instep.core.world import Spec
    from instep.tune.excitation import ExcitationDesign

DEFAULT_FIELDS = ("damping", "frictionloss", "armature")
"""Parameters of every driven joint where none are named."""


@options_dataclass
class ExciteArgs:
    """Options of `instep excite`."""

    params: tuple[str, ...] = ()
    """what to identify ('joint.*.damping' action.delay); default: damping, dry friction and armature."""
    options: ExpertOptions[ExciteOptions] = ExciteOptions()
    out: OutFolder = None


def excite(scene: SceneArg, /, args: Options[ExciteArgs] = ExciteArgs()) -> int:
    """Design a motion inside limits that makes parameters identifiable, and write it to be played.

    OUT/data is a dataset whose actions `instep run replay:OUT/data robot:ADDRESS` plays; OUT/actions.csv holds the same
    numbers. Exits 1 where no motion inside the limits was found. Ctrl-C keeps the best motion so far.
    """
    from instep.physics.engines import open_world

    loaded = Scene.load(scene)
    limits, known = driven_joint_limits(loaded, args.options.allowed), set(address.addresses(loaded.model))
    usual = [name for joint in limits.joints for word in DEFAULT_FIELDS if (name := f"joint.{joint}.{word}") in known]
    sought = loaded.params(*(args.params or usual))
    output = new_output("excite", args.out, seed=args.options.seed)
    output.read(loaded)
    sim, generations = open_world(loaded), args.options.generations
    with stage_bar("designing a motion") as bar:
        design = search(
            sim, limits, sought, args.options,
            watch=lambda g, score: bar("designing a motion", (g + 1) / generations, f"score {score:.2f}"),
        )  # fmt: skip
    _write_motion(output, sim.spec, design, f"excitation of {loaded.name}")
    least, spread, found = design.smallest(), design.spread(), design.identifiability
    weak = [direction.message for direction in found.weak]
    output.write(
        {"smallest eigenvalue": Estimate(least, least, least, 1, "1")},
        identifiable=list(found.identifiable), unidentifiable=list(found.unidentifiable), weak=weak, spread=spread,
        limits=dict(design.limit_usage), feasible=design.feasible, noise=args.options.noise,
    )  # fmt: skip
    rows = [(param.address, _spread(param, spread.get(param.address))) for param in design.params]
    show_table(("parameter", "standard deviation"), rows, right=(1,))
    for message in weak[:4]:
        print(f"Not identifiable: {message}.")
    shares = ", ".join(f"{name} {share:.0%}" for name, share in design.limit_usage.items() if name != "contact")
    kept = "All limits are respected" if design.feasible else "No motion inside the limits was found; allow more"
    print(f"{kept}: {shares}.")
    if limits.resting:
        print(f"Actuators that move no joint of the robot stay at rest: {', '.join(limits.resting)}.")
    print(output.page(excitation_page(design, limits, sim.spec)))
    return 0 if design.feasible else 1


def _write_motion(output: Output, spec: Spec, design: ExcitationDesign, task: str) -> None:
    from instep.data import write_dataset
    from instep.data.formats.table_formats import write_columns

    t = np.arange(len(design.actions)) * spec.dt
    columns = {"timestamp": t, "q": design.q, "v": design.v, "action": design.actions}
    write_dataset([Episode(spec, columns, {"task": task})], output.folder / "data")
    named = dict(zip(spec.action.labels, design.actions.T, strict=True))
    write_columns(output.folder / "actions.csv", {"timestamp": t, **named})


def _spread(param: Param, spread: float | None) -> str:
    if spread is None:
        return "not identifiable"
    if param.log:
        return f"± {spread * np.log(param.high / param.low):.1%}"
    return f"± {spread * (param.high - param.low):.3g} {param.unit}"


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
    data: RecordingsArg,
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

    """
    loaded = Scene.load(scene)
    episodes = read_runs(data, args.source, scene)
    work = _compare if args.compare else _identify
    return work(loaded, episodes, data, args)


def _compare(scene: Scene, episodes: Sequence[Episode], data: str, args: TorqueArgs) -> int:
    gap = measure_torque_gap(scene, episodes, TorqueOptions(cutoff=args.identify.cutoff))
    broken = broken_limits(gap.scores, args.limit)
    output = _output(scene, data, args)
    report = torque_gap_page(gap, output.hashes)
    if broken:
        report = replace(report, verdict=Headline("bad", "A limit is broken: " + "; ".join(broken)))
    output.write(gap.scores, notes=list(gap.notes), broken=broken, removed_by=dict(gap.shares))
    rows: list[tuple[str, ...]] = []
    for joint in gap.joints:
        rms, share, span = (gap.scores[f"{joint} {what}"] for what in ("rms", "of rms torque", "of range"))
        interval = f"{rms.low:.3g} to {rms.high:.3g}"
        rows.append((joint, f"{rms.value:.3g}", interval, f"{share.value:.3g} %", f"{span.value:.3g} %"))
    show_table(("joint", "error [Nm]", "95 %", "of RMS torque", "of range"), rows, right=(1, 2, 3, 4))
    print(report.verdict.headline)
    print(output.page(report))
    return 1 if broken else 0


def _identify(scene: Scene, episodes: Sequence[Episode], data: str, args: TorqueArgs) -> int:
    found = identify_torque(scene, episodes, args.identify)
    output = _output(scene, data, args)
    stem, facts = "scene" if found.passed else "scene_not_passed", {"data": output.inputs}
    for old in output.folder.glob("scene*/tuned.json"):
        shutil.rmtree(old.parent)
    # One scene with each payload, and one without any.
    loads = {stem: ""} if found.solution.problem.bodies else dict[str, str]()
    loads |= {stem + "_" + re.sub(r"\W+", "_", name): name for name in found.payloads}
    paths = [found.save(output.folder / k, payload=name, provenance=facts) for k, name in loads.items()]
    sides = {"before": found.before, "after": found.after}
    scores = {f"{side}: {name}": e for side, some in sides.items() for name, e in some.items()}
    output.write({**scores, **found.values}, **found.as_dict(), scene=str(paths[0]))
    _print_found(found)
    page = output.page(torque_identification_page(found, output.hashes))
    for gate in found.gates:
        if gate.required and not gate.passed:
            say(f"Not promoted: {gate.name} {gate.state}. {gate.remedy}")
    print(paths[0])
    print(page)
    return 0 if found.passed else 1


def _output(scene: Scene, data: str, args: TorqueArgs) -> Output:
    output = new_output("torque", args.out, seed=args.identify.seed)
    output.read(located(data), scene)
    return output


def _print_found(found: TorqueIdentification) -> None:
    rows = [
        (joint, *(f"{scores[f'{joint} rms'].value:.3g}" for scores in (found.before, found.after)),
         f"{found.after[f'{joint} of rms torque'].value:.3g} %")
        for joint in found.held_out[0].joints
    ]  # fmt: skip
    show_table(("joint", "error before [Nm]", "after", "of RMS torque"), rows)
    for name, load in found.payloads.items():
        centre = ", ".join(f"{part.value:.3g}" for part in load.centre)
        print(f"{name}: {load.mass} at ({centre}) m of {load.body}")
    show_gates(found.gates)
