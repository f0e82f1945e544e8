"""The verb reidentify: recordings through the on-line filter of parameters, as if the robot ran."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from instep.app.arguments import Expert, Options, OutFolder, Positional, SceneArg
from instep.app.data_args import DataArgs
from instep.core.world import options_dataclass

if TYPE_CHECKING:
    from instep.core.statistics import Estimate
    from instep.tune.online.reidentification import Reidentification


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


def reidentify(
    data: Positional[Annotated[str, tyro.conf.arg(metavar="DATA")]],
    scene: SceneArg,
    /,
    args: Options[ReidentifyArgs] = ReidentifyArgs(),
) -> int:
    """Replay recordings through the on-line filter of parameters, as a robot or a twin runs it with --reidentify.

    Recordings are one run, in their order. Estimates at a time depend on nothing after it. OUT/report.html shows every
    parameter with its interval over time, sudden changes, and the updates that passed the gate; OUT/drift.parquet holds
    the numbers. Nothing is written into the scene. Exits 1 if there is no estimate: the recordings are too short, or
    the scene does not describe the robot and must be identified first.

    Args:
        data: recordings: a LeRobot folder, or a folder that a mapping of instep reads.
        scene: name of a shipped scene, a scene folder, or an MJCF or URDF file.

    """
    from dataclasses import replace

    from instep.app.data_args import read_runs
    from instep.app.output import new_output, tune_progress
    from instep.app.reidentified_run import drift_facts, write_drift
    from instep.gap.measure import recorded_at_rate
    from instep.report.tune_pages import reidentification_page
    from instep.scene.folder import scene_for
    from instep.tune import ReidentifyOptions, online_params
    from instep.tune.online.parameter_filter import DriftOptions
    from instep.tune.online.reidentification import reidentify as replayed

    options = ReidentifyOptions(window=args.window, filter=replace(DriftOptions(), drift=args.drift))
    runs = read_runs(data, args.source, scene)
    loaded = scene_for(scene, runs, rate=args.source.rate)
    episodes, resampled = recorded_at_rate(runs, loaded.dt)
    for sentence in resampled:
        print(sentence, file=sys.stderr)
    # Names and bounds are checked before a folder is made.
    online_params(loaded, args.params, args.bounds)
    output = new_output("reidentify", args.out)
    output.read(Path(data) if Path(data).exists() else Path(data).parent)
    output.read_scene(loaded)
    with tune_progress() as progress:
        found = replayed(loaded, episodes, args.params, options, bounds=args.bounds, progress=progress)
    write_drift(output.folder, found)
    output.write(_scores(found), **drift_facts(found))
    hashes = {f"sha256 of {path}": digest for path, digest in output.inputs.items()}
    report = reidentification_page(f"instep reidentify: {loaded.name}", found, hashes)
    _print(found, f"{report.verdict.headline} {report.verdict.because}")
    print(output.page(report))
    return 0 if found.ready else 1


def _scores(found: Reidentification) -> dict[str, Estimate]:
    gains = {
        "reduction of the next window's error by the values in use": found.improvement(),
        "reduction of the next window's error by the estimate": found.improvement("estimate"),
    }
    return {**found.estimates, **gains}


def _print(found: Reidentification, words: str) -> None:
    from rich.console import Console

    console = Console(stderr=True)
    for event in found.events:
        if event.kind in ("not described", "change", "applied", "rolled back"):
            console.print(f"{event.t:8.1f} s  {event.words}", highlight=False, markup=False)
    console.print(words, highlight=False, markup=False)
