"""The verb tune: identify parameters from recordings, pass the gates, promote a new scene."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

if TYPE_CHECKING:
    from instep.app.output import Output
    from instep.app.tune_page import CostHistory
    from instep.core.episode import Episode
    from instep.core.world import Array, Simulator
    from instep.scene.folder import Scene
    from instep.tune.fit import ShootingOptions
    from instep.tune.gates import Tuned
    from instep.tune.least_squares import Watch
    from instep.tune.param_selection import ParamSelection
    from instep.tune.posterior_checks import PredictiveBand

Positional = tyro.conf.Positional
Method = Literal["none", "laplace", "eki", "svgd", "npe"]
NOTHING = 1e3
"""A residual of this size [rad or m] counts as one where a direction is not to count."""


def tune(
    data: Positional[Annotated[str, tyro.conf.arg(metavar="DATA")]],
    scene: Positional[Annotated[str, tyro.conf.arg(metavar="SCENE")]],
    /,
    *,
    params: tuple[str, ...] = ("auto",),
    bounds: tuple[str, ...] = (),
    mapping: str = "",
    ignore_coordinates: tuple[str, ...] = (),
    window: float = 1.0,
    windows: int = 200,
    held_out: float = 1 / 3,
    starts: int = 1,
    seeds: int = 4,
    draws: int = 10,
    drop_unpredictable: bool = False,
    fixed_start: bool = False,
    posterior: Method = "none",
    delta: bool = False,
    seed: int = 0,
    out: Path | None = None,
) -> int:
    """Identify parameters of a scene from recordings, check the result by gates, and write a new scene with them.

    The gates in order: telemetry, identifiability, solve, recovery of planted truths, residual whiteness, held-out
    replay. Where all are passed OUT/scene holds a copy of the scene with the identified settings; the scene that was
    given is not touched. OUT/report.html shows it all. Exits 1 where a gate was not passed. Ctrl-C keeps the best
    settings found so far.

    Args:
        data: recordings: a LeRobot folder, or a folder that a mapping of instep reads.
        scene: name of a shipped scene, a scene folder, or an MJCF or URDF file.
        params: what to identify: addresses with * for any part ('joint.*.damping' action.delay), or auto.
        bounds: ranges to search, as 'joint.*.damping=0.01:2'.
        mapping: mapping of DATA: a file (.toml), or the name of a shipped one where the folder's name does not say it.
        ignore_coordinates: measured coordinates without weight in the fit, such as 'tee.vz' 'tee.w[xy]' of a block that
            only slides.
        window: length of the windows that are simulated [s]; shorter for chaotic motion.
        windows: most windows used, spread over all recordings.
        held_out: share of the recordings that is kept for the last gate.
        starts: searches per seed, the first of all from the scene's own values.
        seeds: independent runs of the search, whose answers must agree.
        draws: planted truths in the recovery gate; 0 leaves it out.
        drop_unpredictable: leave out rows whose prediction is dominated by noise of the window's start state, as near
            an upright pendulum.
        fixed_start: take start states of windows as measured, rather than estimate them within their noise; for long
            windows that begin at rest.
        posterior: also infer how likely other values are, by this method.
        delta: also learn a delta action for what the parameters leave over.
        seed: seed of all random numbers.
        out: folder to write; a new one under runs/ where not given.

    """
    from instep.app.output import new_output
    from instep.app.tune_page import CostHistory
    from instep.core.errors import BadInput

    if not 0 < window < math.inf or windows < 2 or min(starts, seeds) < 1 or draws < 0:
        raise BadInput(
            "--window must be above 0 s, --windows at least 2, --starts and --seeds at least 1 and --draws at least 0, "
            f"not {window:g}, {windows}, {starts}, {seeds} and {draws}."
        )
    asked = Asked(
        data, scene, params, _bounds(bounds), mapping, ignore_coordinates, window, windows, held_out, starts, seeds,
        draws, seed, drop_unpredictable, fixed_start,
    )  # fmt: skip
    loaded = _load(asked)
    output = new_output("tune", out, seed=seed)
    output.read(loaded.data)
    output.read(loaded.scene.root)
    costs = CostHistory()
    tuned = _tuned(asked, loaded, costs)
    more: dict[str, object] = {}
    band = None
    with _kept_on_stop():
        if posterior != "none" and not tuned.fit.stopped:
            more["posterior"], band = _posterior(posterior, tuned, loaded, output, seed)
        if delta and not tuned.fit.stopped:
            more["delta"] = _delta(tuned, loaded, output, seed)
    code = _finish(asked, loaded, tuned, output, more)
    _page(loaded, tuned, output, costs, (band, more))
    print(output.folder / ("scene" if tuned.passed else "scene_not_passed"))
    return code


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user typed."""

    data: str
    scene: str
    params: tuple[str, ...]
    bounds: dict[str, tuple[float, float]]
    mapping: str
    ignore_coordinates: tuple[str, ...]
    window: float
    windows: int
    held_out: float
    starts: int
    seeds: int
    draws: int
    seed: int
    drop_unpredictable: bool
    fixed_start: bool


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """What was read."""

    data: Path
    scene: Scene
    sim: Simulator
    fitted: Sequence[Episode]
    held_out: Sequence[Episode]
    choice: ParamSelection


def _load(asked: Asked) -> Loaded:
    from instep.app.gap_run import at_rate, read
    from instep.physics.actuators import with_inputs
    from instep.physics.engines import without_delta
    from instep.scene.folder import Scene
    from instep.tune.gates import split
    from instep.tune.param_selection import auto_params, named_params

    scene = Scene.load(asked.scene)
    episodes, _ = at_rate(read(asked.data, asked.mapping), scene.dt)
    episodes = with_inputs(scene, episodes)
    choice = (
        auto_params(scene, episodes) if asked.params == ("auto",) else named_params(scene, asked.params, asked.bounds)
    )
    choice = _narrowed(choice, asked.bounds)
    sim = without_delta(scene)
    sim = sim.tuned(choice.held) if choice.held else sim
    fitted, held_out = split(episodes, asked.held_out)
    where = Path(asked.data)
    return Loaded(where if where.exists() else where.parent, scene, sim, fitted, held_out, choice)


def _narrowed(choice: ParamSelection, bounds: Mapping[str, tuple[float, float]]) -> ParamSelection:
    """The same choice within the bounds that were given, each of which must be of a parameter that is sought."""
    from fnmatch import fnmatchcase

    from instep.core.errors import UnknownName

    names = [param.address for param in choice.params]
    params, start = list(choice.params), dict(choice.start)
    for pattern, (low, high) in bounds.items():
        found = [i for i, name in enumerate(names) if fnmatchcase(name, pattern)]
        if not found:
            raise UnknownName("parameter among those to fit", pattern, names)
        for i in found:
            params[i] = replace(params[i], low=low, high=high, log=params[i].log and low > 0)
            start[names[i]] = min(max(start[names[i]], low), high)
    return replace(choice, params=tuple(params), start=start)


def _options(asked: Asked, loaded: Loaded) -> ShootingOptions:
    from instep.tune.fit import ShootingOptions

    joints = {k.parts.name for k in loaded.choice.params if k.parts.kind in ("joint", "actuator")}
    return ShootingOptions(
        window=asked.window,
        limit=asked.windows,
        start=loaded.choice.start,
        starts=asked.starts,
        local=len(joints) >= 4,
        drop_unpredictable=asked.drop_unpredictable,
        fixed_start=asked.fixed_start,
        scale=dict.fromkeys(_ignored(asked.ignore_coordinates, loaded.sim.spec.v.labels), NOTHING),
        seed=asked.seed,
    )


def _ignored(patterns: Sequence[str], labels: Sequence[str]) -> list[str]:
    """The measured directions that match any pattern; a pattern without one is an error."""
    from fnmatch import fnmatchcase

    from instep.core.errors import UnknownName

    for pattern in patterns:
        if not any(fnmatchcase(label, pattern) for label in labels):
            raise UnknownName("measured direction", pattern, labels)
    return [label for label in labels if any(fnmatchcase(label, pattern) for pattern in patterns)]


def _tuned(asked: Asked, loaded: Loaded, costs: CostHistory) -> Tuned:
    from instep.tune.gates import GateOptions
    from instep.tune.gates import tune as run

    gates = GateOptions(seeds=asked.seeds, draws=asked.draws, seed=asked.seed)
    with _live(len(loaded.choice.params), costs) as watch:
        return run(
            loaded.sim,
            (loaded.fitted, loaded.held_out),
            loaded.choice.params,
            _options(asked, loaded),
            gates,
            watch=watch,
        )


@contextmanager
def _live(params: int, costs: CostHistory) -> Iterator[Watch]:
    """A line that moves while the search runs: iterations, cost, seconds."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("[bold]{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"turning {params} parameters")
        count = 0

        def watch(iteration: int, cost: float, x: Array) -> None:
            nonlocal count
            count += 1
            costs(iteration, cost, x)
            progress.update(task, description=f"turning {params} parameters: step {count}, cost {cost:.5g}")

        yield watch


@contextmanager
def _kept_on_stop() -> Iterator[None]:
    """What follows a fit may be stopped by hand without losing the fit."""
    from rich.console import Console

    try:
        yield
    except KeyboardInterrupt:
        Console(stderr=True).print("Stopped: the parameters are kept, without what was under way.")


def _posterior(
    method: Method, tuned: Tuned, loaded: Loaded, output: Output, seed: int
) -> tuple[dict[str, object], PredictiveBand | None]:
    from rich.console import Console

    from instep.tune.posterior import infer
    from instep.tune.posterior_checks import check_posterior, predicted

    if method == "none":
        return {}, None
    with Console(stderr=True).status(f"inferring the posterior ({method})") as status:
        belief = infer(tuned.fit, method, seed=seed)
        status.update(f"judging the posterior ({method}) by planted truths and held-out recordings")
        band = predicted(tuned.fit.problem.shooter.sim, belief, loaded.held_out, tuned.fit, seed=seed)
        judged = check_posterior(
            belief, tuned.fit, loaded.held_out, output.folder, method=method, band=band, seed=seed
        )  # fmt: skip
    return judged, band


def _delta(tuned: Tuned, loaded: Loaded, output: Output, seed: int) -> dict[str, object]:
    from instep.physics.delta_model import DELTA_FILE
    from instep.tune.delta_eval import learn_and_evaluate

    sim = loaded.sim.tuned(tuned.settings)
    return learn_and_evaluate(sim, loaded.fitted, loaded.held_out, output.folder / DELTA_FILE, seed=seed)


def _finish(asked: Asked, loaded: Loaded, tuned: Tuned, output: Output, more: dict[str, object]) -> int:
    from instep.physics.actuators import is_actuator_param
    from instep.physics.delta_model import DELTA_FILE
    from instep.tune.param_export import export_all
    from instep.tune.promotion import promote

    settings = {**loaded.choice.held, **tuned.settings}
    facts = {
        "data": output.inputs,
        "seed": asked.seed,
        "gates": {gate.name: {"passed": gate.passed, "words": gate.words} for gate in tuned.gates},
        "intervals": {name: estimate.as_dict() for name, estimate in tuned.fit.estimates.items()},
        "frozen": list(tuned.weak.unobservable),
        "not_told": list(tuned.weak.confounded),
    }
    where = output.folder / ("scene" if tuned.passed else "scene_not_passed")
    promote(loaded.scene, settings, _fresh(where), facts)
    if (output.folder / DELTA_FILE).is_file() and "delta" in more:
        (output.folder / DELTA_FILE).rename(where / DELTA_FILE)
    # Other tools know the model's own numbers; those of drives stay in the scene's folder.
    plain = {name: value for name, value in settings.items() if not is_actuator_param(loaded.scene.model, name)}
    export_all(output.folder / "export", loaded.scene, tuned.fit, plain)
    scores = dict(tuned.fit.estimates)
    for gate in tuned.gates:
        scores |= {f"{gate.name}: {name}": estimate for name, estimate in gate.scores.items()}
    output.write(
        scores,
        passed=tuned.passed,
        gates=[{"name": g.name, "passed": g.passed, "words": g.words} for g in tuned.gates],
        frozen=list(tuned.weak.unobservable),
        not_told=list(tuned.weak.confounded),
        at_bounds=tuned.fit.at_bounds,
        channels={name: {"before": b, "after": a} for name, (b, a) in tuned.comparison.channels.items()},
        windows=len(tuned.fit.windows),
        worlds=tuned.fit.worlds,
        seconds=tuned.fit.seconds,
        stopped=tuned.fit.stopped,
        scene=str(where),
        written=time.strftime("%Y-%m-%dT%H:%M:%S"),
        **more,
    )
    _show(tuned, more.get("posterior"))
    return 0 if tuned.passed else 1


def _page(
    loaded: Loaded,
    tuned: Tuned,
    output: Output,
    costs: CostHistory,
    judged: tuple[PredictiveBand | None, Mapping[str, object]],
) -> None:
    """Write report.html beside the rest."""
    import mujoco

    from instep.app.tune_page import PageContent, page
    from instep.report.page import write_report
    from instep.tune.held_out import held_out_traces
    from instep.tune.posterior_checks import first_row

    found = tuned.fit
    sim = found.problem.shooter.sim
    before = {name: tuned.start[name] for name in found.settings if name in tuned.start}
    traces = held_out_traces(
        sim,
        loaded.held_out,
        {"before": before, "after": found.settings},
        found.windows.action.shape[1],
        skip=first_row(found.params, sim),
    )
    facts = {
        **{f"sha256 of {path}": digest for path, digest in output.inputs.items()},
        "seed": str(output.seed),
        "windows": f"{len(found.windows)} of {found.windows.action.shape[1] * sim.spec.dt:g} s",
        "simulated": f"{found.worlds} windows in {found.seconds:.1f} s in the last search",
        "engine": f"MuJoCo {mujoco.__version__}",
        "stopped by hand": "yes" if found.stopped else "no",
    }
    counts = (len(loaded.fitted), len(loaded.held_out))
    shown = PageContent(loaded.scene.name, counts, costs, traces, judged[0], judged[1], output.folder, facts)
    print(write_report(output.folder, page(tuned, shown)))


def _fresh(where: Path) -> Path:
    """The folder, emptied of what an earlier run of this verb left there."""
    import shutil

    for old in (where.parent / "scene", where.parent / "scene_not_passed"):
        if (old / "tuned.json").is_file():
            shutil.rmtree(old)
    return where


def _show(tuned: Tuned, posterior: object) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("param", "was", "is", "95 % interval", "unit", box=None, padding=(0, 2))
    for column in (1, 2, 3):
        table.columns[column].justify = "right"
    for name, estimate in tuned.fit.estimates.items():
        was = f"{tuned.start[name]:.4g}" if name in tuned.start else ""
        table.add_row(name, was, f"{estimate.value:.4g}", f"{estimate.low:.4g} … {estimate.high:.4g}", estimate.unit)
    console.print(table)
    marks = Table("gate", "", "verdict", box=None, padding=(0, 2))
    for gate in tuned.gates:
        marks.add_row(gate.name, "[green]passed[/]" if gate.passed else "[red]not passed[/]", gate.words)
    if isinstance(posterior, Mapping):
        marks.add_row("posterior", str(posterior["method"]), str(posterior["words"]))
    console.print(marks)


def _bounds(words: Sequence[str]) -> dict[str, tuple[float, float]]:
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
