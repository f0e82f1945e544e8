"""The verbs tune and reidentify: parameters from recordings, at once with gates, and on line over time."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from instep.app.arguments import Expert, ExpertOptions, Options, OutFolder, RecordingsArg, SceneArg
from instep.app.output import Output, new_output, say, show_gates, show_table, tune_progress, write_json
from instep.core.errors import BadInput, Diverged
from instep.core.reading import NUMBER, read_entries, table_of
from instep.core.world import array_dataclass, options_dataclass
from instep.tune.gates import TuneOptions

from .data import DataArgs, located, read_at_scene, read_runs

if TYPE_CHECKING:
    from instep.core.episode import Episode
    from instep.report.page import ReportViewer
    from instep.tune.identification import Identification
    from instep.tune.posterior.beliefs import PosteriorFunction

BEST_FILE = "best.json"
"""File of OUT with the best values, from which --resume goes on."""
PosteriorMethod = Literal["none", "laplace", "eki", "svgd", "npe"]


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
    """also infer a posterior by this method."""
    out: OutFolder = None


def tune(data: RecordingsArg, scene: SceneArg, /, args: Options[TuneArgs] = TuneArgs()) -> int:
    """Identify parameters of a scene from recordings, check the result by gates, and write a new scene with them.

    The gates in order: telemetry, identifiability, solve (independent searches agree), recovery of planted parameters,
    whiteness of residuals (advice), held-out error, robot match and written scene. If all pass, OUT/scene is a copy of
    the scene with the identified settings; the given scene is not changed. OUT/report.html shows the result. Exits 1 if
    a gate was not passed or not run. Ctrl-C and the end of --budget keep the best values; --resume OUT goes on.
    """
    done = run_tune(data, scene, args)
    _print_summary(done.found)
    say(*_next_steps(done.found, done.output.folder))
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
    from instep.core.progress import parse_duration
    from instep.physics.actuators import with_inputs
    from instep.report.tune_pages import identification_page
    from instep.tune.identification import identify
    from instep.tune.param_selection import select_params

    options = replace(args.options, initial={**best_values(args.resume), **args.options.initial})
    budget = parse_duration(args.budget) if args.budget else math.inf
    runs = list(recorded) or read_runs(data, args.source, scene)
    loaded, episodes = read_at_scene(runs, scene, args.source.rate)
    # Names and bounds are checked before a folder is made.
    select_params(loaded, with_inputs(loaded, episodes), args.params, options.bounds)
    output = new_output("tune", args.out, seed=options.seed)
    output.read(located(data), loaded)
    with tune_progress(budget) as progress:
        found = identify(loaded, episodes, args.params, options, progress=progress)
    if not progress.ended and args.posterior != "none":
        found = _with_posterior(found, args.posterior)
    found, folder = _write(found, output)
    page = replace(identification_page(found, output.hashes), viewer=_viewer(found))
    return TuneResult(found, output, folder, output.page(page))


def _viewer(found: Identification) -> ReportViewer | None:
    """The first held-out recording as a ghost over its replay, before and after; None where groups have own values."""
    from instep.app.viewer.replay_view import replay_viewer
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

    from instep.lab.posteriors import npe, svgd

    published: dict[str, PosteriorFunction] = {"svgd": svgd, "npe": npe}
    try:
        with Console(stderr=True).status(f"inferring and checking the posterior ({method})"):
            return found.with_posterior(published.get(method) or method)
    except KeyboardInterrupt:
        say("Stopped: the parameters are kept, without a posterior.")
        return found


def _write(found: Identification, output: Output) -> tuple[Identification, Path]:
    """Write the new scene, exports, the posterior, best values and result.json; the result and its scene."""
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
    start, status, rows = found.result.before, found.param_status, list[tuple[str, ...]]()
    for name, now in found.intervals.items():
        before = f"{start[name]:.4g}" if name in start else ""
        interval = f"{now.low:.4g} … {now.high:.4g}" if now.has_interval else ""
        rows.append((name, before, f"{now.value:.4g}", interval, now.unit, str(status[name])))
    for name, value in found.result.unidentified.items():
        rows.append((name, f"{start.get(name, value):.4g}", f"{value:.4g}", "", "", str(status[name])))
    show_table(("parameter", "before", "after", "95 % interval", "unit", "status"), rows, right=(1, 2, 3))
    posterior = found.posterior
    show_gates(found.gates, *([] if posterior is None else [("posterior", posterior.method, posterior.message)]))


@options_dataclass
class ReidentifyArgs:
    """Options of `instep reidentify`."""

    params: tuple[str, ...] = ("auto",)
    """what to estimate: addresses with * for any part ('joint.*.frictionloss' body.hand.mass), or auto: the mass that
    the last link carries, and the dry friction of driven joints."""
    bounds: Expert[Mapping[str, tuple[float, float]]] = field(default_factory=dict[str, tuple[float, float]])
    """ranges of parameters, as body.hand.mass 0.1 4."""
    source: Options[DataArgs] = DataArgs()
    window: Expert[float] = 0.2
    """length of the windows that are predicted [s]."""
    drift: Expert[float] = 0.02
    """how fast a parameter usually drifts, as a share of its value per second."""
    out: OutFolder = None


def reidentify(data: RecordingsArg, scene: SceneArg, /, args: Options[ReidentifyArgs] = ReidentifyArgs()) -> int:
    """Replay recordings through the on-line filter of parameters, as a robot or a twin runs it with --reidentify.

    Recordings are one run, in their order. Estimates at a time depend on nothing after it. OUT/report.html shows every
    parameter with its interval over time, sudden changes, and the updates that passed the gate; OUT/drift.parquet holds
    the numbers. Nothing is written into the scene. Exits 1 if there is no estimate: the recordings are too short, or
    the scene does not describe the robot and must be identified first.
    """
    from instep.app.reidentified_run import drift_facts, write_drift
    from instep.report.tune_pages import reidentification_page
    from instep.tune import ReidentifyOptions, online_params
    from instep.tune.online.parameter_filter import DriftOptions
    from instep.tune.online.reidentification import reidentify as replayed

    options = ReidentifyOptions(window=args.window, filter=replace(DriftOptions(), drift=args.drift))
    loaded, episodes = read_at_scene(read_runs(data, args.source, scene), scene, args.source.rate)
    # Names and bounds are checked before a folder is made.
    online_params(loaded, args.params, args.bounds)
    output = new_output("reidentify", args.out)
    output.read(located(data), loaded)
    with tune_progress() as progress:
        found = replayed(loaded, episodes, args.params, options, bounds=args.bounds, progress=progress)
    write_drift(output.folder, found)
    gain = "reduction of the next window's error by"
    gains = {f"{gain} the values in use": found.improvement(), f"{gain} the estimate": found.improvement("estimate")}
    output.write({**found.estimates, **gains}, **drift_facts(found))
    report = reidentification_page(f"instep reidentify: {loaded.name}", found, output.hashes)
    kinds = ("not described", "change", "applied", "rolled back")
    say(*(f"{event.t:8.1f} s  {event.words}" for event in found.events if event.kind in kinds))
    say(f"{report.verdict.headline} {report.verdict.because}")
    print(output.page(report))
    return 0 if found.ready else 1
