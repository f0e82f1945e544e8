"""The verb tune: identify parameters from recordings, check them by gates, write a new scene."""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from instep.app.arguments import ExpertOptions, Options, OutFolder, Positional, SceneArg
from instep.app.data_args import DataArgs
from instep.core.reading import NUMBER, read_entries, table_of
from instep.core.world import array_dataclass, options_dataclass
from instep.tune.gates import TuneOptions

if TYPE_CHECKING:
    from instep.app.output import Output
    from instep.core.episode import Episode
    from instep.report.page import ReportViewer
    from instep.tune.identification import Identification
    from instep.tune.posterior.beliefs import PosteriorFunction

DataName = Positional[Annotated[str, tyro.conf.arg(metavar="DATA")]]
BEST_FILE = "best.json"
"""File of OUT with the best values, from which --resume goes on."""
PosteriorMethod = Literal["none", "laplace", "eki", "svgd", "npe", "dropo"]


@options_dataclass
class TuneArgs:
    """Options of `instep tune`."""

    params: tuple[str, ...] = ("auto",)
    """what to identify: addresses with * for any part ('joint.*.damping' action.delay), or auto."""
    options: ExpertOptions[TuneOptions] = TuneOptions()
    source: Options[DataArgs] = DataArgs()
    budget: str = ""
    """time limit (90s, 2min, 1h); keeps the best values, and does not run gates that were not reached."""
    resume: Path | None = None
    """folder of an earlier run, whose best values become the initial guess."""
    posterior: PosteriorMethod = "none"
    """also infer a posterior by this method (dropo: a distribution to train on)."""
    out: OutFolder = None


def tune(data: DataName, scene: SceneArg, /, args: Options[TuneArgs] = TuneArgs()) -> int:
    """Identify parameters of a scene from recordings, check the result by gates, and write a new scene with them.

    The gates in order: telemetry, identifiability, solve (independent searches agree), recovery of planted parameters,
    whiteness of residuals (advice), held-out error, robot match and written scene. If all pass, OUT/scene is a copy of
    the scene with the identified settings; the given scene is not changed. OUT/report.html shows the result. Exits 1 if
    a gate was not passed or not run. Ctrl-C and the end of --budget keep the best values; --resume OUT goes on.

    Args:
        data: recordings: a LeRobot folder, or a folder that a mapping of instep reads.
        scene: name of a shipped scene, a scene folder, or an MJCF or URDF file.

    """
    done = run_tune(data, scene, args)
    _print_summary(done.found)
    for sentence in _next_steps(done.found, done.output.folder):
        print(sentence, file=sys.stderr)
    print(done.folder)
    print(done.page)
    return 0 if done.found.passed else 1


@array_dataclass
class TuneResult:
    """An identification that was written: its scene and its page."""

    found: Identification
    output: Output
    folder: Path
    """The new scene."""
    page: Path


def run_tune(data: str, scene: str, args: TuneArgs, recorded: Sequence[Episode] = ()) -> TuneResult:
    """Identify parameters from motion and write the new scene, exports, result.json and the page.

    `recorded` are the runs of `data`, if they were read before.
    """
    from instep.app.data_args import read_runs
    from instep.app.output import new_output, tune_progress
    from instep.core.progress import parse_duration
    from instep.gap.measure import recorded_at_rate
    from instep.physics.actuators import with_inputs
    from instep.report.tune_pages import identification_page
    from instep.scene.folder import scene_for
    from instep.tune.identification import identify
    from instep.tune.param_selection import select_params

    options = replace(args.options, initial={**best_values(args.resume), **args.options.initial})
    budget = parse_duration(args.budget) if args.budget else math.inf
    runs = list(recorded) or read_runs(data, args.source, scene)
    loaded = scene_for(scene, runs, rate=args.source.rate)
    episodes, resampled = recorded_at_rate(runs, loaded.dt)
    for sentence in resampled:
        print(sentence, file=sys.stderr)
    # Names and bounds are checked before a folder is made.
    select_params(loaded, with_inputs(loaded, episodes), args.params, options.bounds)
    output = new_output("tune", args.out, seed=options.seed)
    output.read(Path(data) if Path(data).exists() else Path(data).parent)
    output.read_scene(loaded)
    with tune_progress(budget) as progress:
        found = identify(loaded, episodes, args.params, options, progress=progress)
    if not progress.ended and args.posterior != "none":
        found = _with_posterior(found, args.posterior)
    found, folder = _write(found, output)
    hashes = {f"sha256 of {path}": digest for path, digest in output.inputs.items()}
    page = replace(identification_page(found, hashes), viewer=_viewer(found))
    return TuneResult(found, output, folder, output.page(page))


def _viewer(found: Identification) -> ReportViewer | None:
    """The first held-out recording as a ghost over its replay, before and after; None where groups have own values."""
    from instep.app.viewer.replay_view import replay_viewer
    from instep.core.errors import Diverged
    from instep.core.rollout import replay

    if not found.held_out or found.groups:
        return None
    recorded = found.held_out[0]
    sims = {"before": found.given, "after": found.sim.tuned(found.result.settings)}
    replays: dict[str, Episode] = {}
    for label, sim in sims.items():
        with suppress(Diverged):  # then it is not shown
            replays[label] = replay(sim, recorded, anchor=None)
    if not replays:
        return None
    words = "A held-out recording as a ghost over the simulator, before and after identification, in 3D"
    return replay_viewer(found.scene, recorded, replays, "Held-out recording", words)


def best_values(folder: Path | None) -> dict[str, float]:
    """The best values of an earlier run; none where there is no such run."""
    from instep.core.errors import BadInput

    if folder is None:
        return {}
    try:
        settings = read_entries(folder / BEST_FILE, {"settings": table_of(NUMBER)})["settings"]
        return {str(name): float(value) for name, value in settings.items()}
    except BadInput:
        message = f"The folder {str(folder)!r} holds no {BEST_FILE} of an earlier run; --resume takes the --out of one."
        raise BadInput(message) from None


def _next_steps(found: Identification, folder: Path) -> list[str]:
    """What to do where the new scene is not promoted, one sentence each."""
    open_gates = [gate for gate in found.gates if gate.required and not gate.passed]
    if not open_gates:
        return []
    listed = ", ".join(f"{gate.name} {gate.state}" for gate in open_gates)
    steps = [f"Not promoted: {listed}. The scene that was given stays as it is."]
    steps += [f"{gate.name}: {gate.remedy}" for gate in open_gates if gate.remedy]
    if found.fit.at_bounds:
        names = ", ".join(found.fit.at_bounds)
        steps.append(f"On a bound of the range that was searched: {names}. Widen it with --bounds NAME LOW HIGH.")
    if found.status in ("stopped", "budget spent"):
        steps.append(f"To go on from the best values so far, give the same command with --resume {folder}")
    return steps


def _with_posterior(found: Identification, method: PosteriorMethod) -> Identification:
    """The same with a posterior; an interrupt keeps the parameters."""
    from rich.console import Console

    from instep.lab.posteriors import dropo, npe, svgd

    published: dict[str, PosteriorFunction] = {"svgd": svgd, "npe": npe, "dropo": dropo}
    console = Console(stderr=True)
    try:
        with console.status(f"inferring and checking the posterior ({method})"):
            # The distribution of DROPO is wider than a posterior by design, so it is not calibrated.
            truths = 0 if method == "dropo" else None
            return found.with_posterior(published.get(method) or method, truths=truths)
    except KeyboardInterrupt:
        console.print("Stopped: the parameters are kept, without a posterior.")
        return found


def _write(found: Identification, output: Output) -> tuple[Identification, Path]:
    """Write the new scene, exports, the posterior, best values and result.json; the result and its scene."""
    from instep.app.output import write_json
    from instep.tune.identification import NOT_PROMOTED, PROMOTED

    for old in (output.folder / PROMOTED, output.folder / NOT_PROMOTED):
        if (old / "tuned.json").is_file():
            shutil.rmtree(old)
    found, folder = found.promoted(output.folder, provenance={"data": output.inputs})
    exports = found.export(output.folder / "export")
    # Name what formats of the export have no field for.
    for file in exports.files:
        if file.notes:
            some = ", ".join(file.notes[:3]) + (f" and {len(file.notes) - 3} more" if len(file.notes) > 3 else "")
            print(f"{file.path.name} holds {some} as notes that other tools do not apply (export/README.md).")
    for what in exports.left_out:
        print(f"Not exported: {what}.")
    write_json(output.folder / BEST_FILE, {"status": str(found.status), "settings": found.result.settings})
    if found.posterior is not None:
        found.posterior.save(output.folder)
    scores = dict(found.intervals)
    for gate in found.gates:
        scores |= {f"{gate.name}: {name}": estimate for name, estimate in gate.scores.items()}
    written = time.strftime("%Y-%m-%dT%H:%M:%S")
    output.write(scores, **found.as_dict(), scene=str(folder), exports=exports.as_dict(), written=written)
    return found, folder


def _print_summary(found: Identification) -> None:
    from rich.console import Console
    from rich.table import Table

    from instep.app.output import gate_table

    console, start, status = Console(), found.result.before, found.param_status
    table = Table("parameter", "before", "after", "95 % interval", "unit", "status", box=None, padding=(0, 2))
    for column in (1, 2, 3):
        table.columns[column].justify = "right"
    for name, now in found.intervals.items():
        before = f"{start[name]:.4g}" if name in start else ""
        interval = f"{now.low:.4g} … {now.high:.4g}" if now.has_interval else ""
        table.add_row(name, before, f"{now.value:.4g}", interval, now.unit, str(status[name]))
    for name, value in found.result.unidentified.items():
        table.add_row(name, f"{start.get(name, value):.4g}", f"{value:.4g}", "", "", str(status[name]))
    console.print(table)
    gates = gate_table(found.gates)
    if found.posterior is not None:
        gates.add_row("posterior", found.posterior.method, found.posterior.message)
    console.print(gates)
