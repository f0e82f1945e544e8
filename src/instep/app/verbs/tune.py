"""The verb tune: identify parameters from recordings, check them by gates, write a new scene."""

from __future__ import annotations

import math
import re
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from instep.app.arguments import Expert, Options
from instep.app.data_args import DataArgs
from instep.core.reading import NUMBER, read_entries, table_of
from instep.core.world import array_dataclass, options_dataclass

if TYPE_CHECKING:
    from instep.app.output import Output
    from instep.core.episode import Episode
    from instep.report.page import ReportViewer
    from instep.tune.identification import Identification

Positional = tyro.conf.Positional
BEST_FILE = "best.json"
"""File of OUT with the best values, from which --resume goes on."""
PosteriorMethod = Literal["none", "laplace", "eki", "svgd", "npe", "dropo"]


@options_dataclass
class TuneArgs:
    """Options of `instep tune`."""

    params: tuple[str, ...] = ("auto",)
    """what to identify: addresses with * for any part ('joint.*.damping' action.delay), or auto."""
    bounds: tuple[str, ...] = ()
    """ranges to search, as 'joint.*.damping=0.01:2'."""
    source: Options[DataArgs] = DataArgs()
    own: Expert[tuple[str, ...]] = ()
    """parameters that each group of recordings has of its own ('joint.*.frictionloss'); the others are shared."""
    group: Expert[tuple[str, ...]] = ()
    """groups of --own: a metadata field of the recordings, 'folder', or patterns as 'monday*=a' 'tuesday*=b'."""
    ignore_coordinates: Expert[tuple[str, ...]] = ()
    """measured coordinates without weight in the fit, such as 'tee.vz' 'tee.w[xy]' of a block that only slides."""
    window: Expert[float | None] = None
    """length of the windows that are simulated [s]; shorter for chaotic motion. Where it is not given, 1 s, and for
    arms with motors as long as the motion stays predictable."""
    windows: Expert[int] = 200
    """most windows used, spread over all recordings."""
    held_out: Expert[float] = 1 / 3
    """share of the recordings that is held out for the last gate."""
    starts: Expert[int] = 1
    """starting points per search, the first of all at the scene's own values."""
    seeds: Expert[int] = 4
    """independent searches, whose results must agree; with fewer than three nothing is promoted."""
    draws: Expert[int | None] = None
    """planted parameter sets in the recovery gate, enough for about forty values where not given; with 0 nothing is
    promoted."""
    budget: str = ""
    """how long it may take (90s, 2min, 1h); the best until then is kept, and gates that were not reached are not run.
"""
    resume: Path | None = None
    """folder of an earlier run, from whose best values a search begins."""
    drop_unpredictable: Expert[bool] = False
    """leave out rows whose prediction is dominated by noise of the window's start state, as near an upright pendulum.
"""
    fixed_start: Expert[bool] = False
    """take start states of windows as measured, rather than estimate them within their noise; for long windows that
    begin at rest."""
    posterior: PosteriorMethod = "none"
    """also infer a posterior by this method (dropo: a distribution to train on)."""
    delta: Expert[bool] = False
    """also learn a delta action for the error that the parameters leave."""
    seed: int = 0
    """seed of all random numbers."""
    out: Path | None = None
    """folder to write; a new one under runs/ where not given."""


def tune(
    data: Positional[Annotated[str, tyro.conf.arg(metavar="DATA")]],
    scene: Positional[Annotated[str, tyro.conf.arg(metavar="SCENE")]],
    /,
    args: Annotated[TuneArgs, tyro.conf.arg(name="")] = TuneArgs(),
) -> int:
    """Identify parameters of a scene from recordings, check the result by gates, and write a new scene with them.

    The gates in order: telemetry, identifiability, solve (independent searches agree), recovery of planted parameters,
    whiteness of residuals (advice), held-out error and robot match. Where all are passed OUT/scene holds a copy of the
    scene with the identified settings; the scene that was given is not changed. OUT/report.html shows the result. Exits
    1 where a gate was not passed or not run. Ctrl-C and the end of --budget keep the best settings so far; --resume OUT
    goes on.

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
    """Identify parameters from motion and write the new scene, exports, result.json and the page."""
    from instep.app.data_args import read_runs
    from instep.app.output import new_output, tune_progress
    from instep.core.progress import parse_duration
    from instep.gap.measure import recorded_at_rate
    from instep.physics.actuators import with_inputs
    from instep.report.tune_pages import identification_page
    from instep.scene.folder import scene_for
    from instep.tune.identification import IdentifyOptions, identify
    from instep.tune.param_selection import select_params

    options = IdentifyOptions(
        bounds=parse_bounds(args.bounds),
        window=args.window,
        windows=args.windows,
        held_out=args.held_out,
        starts=args.starts,
        seeds=args.seeds,
        draws=args.draws,
        ignore_coordinates=args.ignore_coordinates,
        drop_unpredictable=args.drop_unpredictable,
        fixed_start=args.fixed_start,
        own=args.own,
        groups=args.group,
        begin=best_values(args.resume),
        seed=args.seed,
    )
    budget = parse_duration(args.budget) if args.budget else math.inf
    runs = list(recorded) or read_runs(data, args.source, scene)
    loaded = scene_for(scene, runs, rate=args.source.rate)
    episodes, resampled = recorded_at_rate(runs, loaded.dt)
    for sentence in resampled:
        print(sentence, file=sys.stderr)
    # Names and bounds are checked before a folder is made.
    select_params(loaded, with_inputs(loaded, episodes), args.params, options.bounds)
    output = new_output("tune", args.out, seed=args.seed)
    output.read(Path(data) if Path(data).exists() else Path(data).parent)
    output.read_scene(loaded)
    with tune_progress(budget) as progress:
        found = identify(loaded, episodes, args.params, options, progress=progress)
    if not progress.ended:
        found = _with_extras(found, args.posterior, args.delta)
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
        steps.append(f"On a bound of the range that was searched: {names}. Widen it with --bounds 'NAME=LOW:HIGH'.")
    if found.status in ("stopped", "budget spent"):
        steps.append(f"To go on from the best values so far, give the same command with --resume {folder}")
    return steps


def _with_extras(found: Identification, posterior: PosteriorMethod, delta: bool) -> Identification:
    """The same with a posterior and a delta action where asked for; an interrupt keeps what is done."""
    from rich.console import Console

    console = Console(stderr=True)
    try:
        if posterior != "none":
            with console.status(f"inferring and checking the posterior ({posterior})"):
                found = found.with_posterior(posterior)
        if delta:
            with console.status("learning and evaluating a delta action"):
                found = found.with_delta()
    except KeyboardInterrupt:
        console.print("Stopped: the parameters are kept, without what was under way.")
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

    console, start, status = Console(), found.result.start, found.param_status
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


def parse_bounds(words: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Ranges of parameters by pattern, from words such as 'joint.*.damping=0.01:2'."""
    from instep.core.errors import BadInput

    found: dict[str, tuple[float, float]] = {}
    for word in words:
        match = re.fullmatch(r"(?P<name>[^=]+)=(?P<low>[^:]+):(?P<high>[^:]+)", word)
        try:
            if match is None:
                raise ValueError
            low, high = float(match["low"]), float(match["high"])
        except ValueError:
            raise BadInput(f"Bounds read 'joint.*.damping=0.01:2', not {word!r}.") from None
        if not (math.isfinite(low) and math.isfinite(high)):
            raise BadInput(f"The bounds of {match['name']!r} must be finite numbers, not {low:g} and {high:g}.")
        if not low < high:
            raise BadInput(f"The bounds of {match['name']!r} are reversed: {low:g} is not below {high:g}.")
        found[match["name"]] = (low, high)
    return found
