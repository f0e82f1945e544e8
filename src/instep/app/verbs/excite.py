"""The verb excite: design motions that make parameters identifiable."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from instep.app.arguments import ExpertOptions, Options, OutFolder, SceneArg
from instep.core.world import options_dataclass
from instep.tune.excitation import ExciteOptions

if TYPE_CHECKING:
    from instep.app.output import Output
    from instep.core.param import Param
    from instep.core.world import Spec
    from instep.scene.folder import Scene
    from instep.tune.excitation import ExcitationDesign, Watch
    from instep.tune.excitation_limits import ExcitationLimits

DEFAULT_FIELDS = ("damping", "frictionloss", "armature")
"""Parameters of every driven joint where none are named."""


@options_dataclass
class ExciteArgs:
    """Options of `instep excite`."""

    params: tuple[str, ...] = ()
    """what to identify ('joint.*.damping' action.delay); default: damping, dry friction and armature."""
    options: ExpertOptions[ExciteOptions] = ExciteOptions()
    out: OutFolder = None


def excite(
    scene: SceneArg,
    /,
    args: Options[ExciteArgs] = ExciteArgs(),
) -> int:
    """Design a motion inside limits that makes parameters identifiable, and write it to be played.

    OUT/data is a dataset whose actions `instep run replay:OUT/data robot:ADDRESS` plays; OUT/actions.csv holds the same
    numbers. Exits 1 where no motion inside the limits was found. Ctrl-C keeps the best motion so far.

    Args:
        scene: name of a shipped scene, a scene folder, or an MJCF or URDF file.

    """
    from instep.app.output import new_output
    from instep.physics.engines import open_world
    from instep.scene.folder import Scene
    from instep.tune.excitation import excite as search
    from instep.tune.excitation_limits import driven_joint_limits

    loaded = Scene.load(scene)
    limits = driven_joint_limits(loaded, args.options.allowed)
    sought = loaded.params(*(args.params or _default_params(loaded, limits)))
    output = new_output("excite", args.out, seed=args.options.seed)
    output.read_scene(loaded)
    sim = open_world(loaded)
    with _live(args.options.generations) as watch:
        design = search(sim, limits, sought, args.options, watch=watch)
    return _write(output, sim.spec, limits, design, args.options)


def _default_params(scene: Scene, limits: ExcitationLimits) -> list[str]:
    from instep.scene import address

    known = set(address.addresses(scene.model))
    return [name for joint in limits.joints for word in DEFAULT_FIELDS if (name := f"joint.{joint}.{word}") in known]


@contextmanager
def _live(generations: int) -> Generator[Watch]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("[bold]{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("designing a motion", total=generations)

        def watch(generation: int, score: float) -> None:
            words = f"designing a motion: score {score:.2f}"
            progress.update(task, completed=generation + 1, description=words)

        yield watch


def _write(
    output: Output, spec: Spec, limits: ExcitationLimits, design: ExcitationDesign, options: ExciteOptions
) -> int:

    from instep.core.episode import Episode
    from instep.core.statistics import Estimate
    from instep.data import write_dataset
    from instep.data.formats.table_formats import write_columns
    from instep.report.tune_pages import excitation_page

    t = np.arange(len(design.actions)) * spec.dt
    columns = {"timestamp": t, "q": design.q, "v": design.v, "action": design.actions}
    meta = {"task": f"excitation of {limits.scene.name}"}
    write_dataset([Episode(spec, columns, meta)], output.folder / "data")
    named = dict(zip(spec.action.labels, design.actions.T, strict=True))
    write_columns(output.folder / "actions.csv", {"timestamp": t, **named})
    least = design.smallest()
    spread = design.spread()
    output.write(
        {"smallest eigenvalue": Estimate(least, least, least, 1, "1")},
        identifiable=list(design.identifiability.identifiable),
        unidentifiable=list(design.identifiability.unidentifiable),
        weak=[direction.message for direction in design.identifiability.weak],
        spread=spread,
        limits=dict(design.limit_usage),
        feasible=design.feasible,
        noise=options.noise,
    )
    _show(design, spread)
    if limits.resting:
        print(f"Actuators that move no joint of the robot stay at rest: {', '.join(limits.resting)}.")
    print(output.page(excitation_page(design, limits, spec)))
    return 0 if design.feasible else 1


def _show(design: ExcitationDesign, spread: dict[str, float]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("parameter", "standard deviation", box=None, padding=(0, 2))
    table.columns[1].justify = "right"
    for param in design.params:
        table.add_row(
            param.address, _known(param, spread.get(param.address), np.log(param.high / param.low) if param.log else 0)
        )
    console.print(table)
    for direction in design.identifiability.weak[:4]:
        console.print(f"Not identifiable: {direction.message}.", highlight=False, markup=False)
    shares = ", ".join(f"{name} {share:.0%}" for name, share in design.limit_usage.items() if name != "contact")
    kept = "All limits are respected" if design.feasible else "No motion inside the limits was found; allow more"
    console.print(f"{kept}: {shares}.", highlight=False, markup=False)


def _known(param: Param, spread: float | None, decades: float) -> str:
    if spread is None:
        return "not identifiable"
    return f"± {spread * decades:.1%}" if param.log else f"± {spread * (param.high - param.low):.3g} {param.unit}"
