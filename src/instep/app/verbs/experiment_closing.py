"""The verb experiment closing: every way to close the gap on the same perturbed robots, and which one to buy first."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from instep.app.arguments import Options, SceneArg
from instep.app.closing.closing_study import ClosingPlan, ClosingStudy, closing_page, closing_scores, run_closing
from instep.app.closing.closing_trial import UNTOUCHED, USUAL, ClosingBudget
from instep.app.cluster import open_map
from instep.app.output import new_output, progress_bar
from instep.core.errors import BadInput
from instep.core.world import options_dataclass
from instep.scene.folder import Scene

QUICK = ClosingBudget(
    starts=2, seconds=3.0, recordings=2, rehearsals=4, generations=3, population=6, samples=3, members=32, windows=8,
    delta_windows=150,
)  # fmt: skip
"""The budget of --quick."""


@options_dataclass
class ClosingArgs:
    """Options of `instep experiment closing`."""

    policy: str = "expert"
    """the policy that is improved, as in instep eval."""
    task: str = ""
    """task of the scene; its first where not given."""
    robots: int = 20
    """perturbed robots, each in another engine with hidden parameters, noise and delay."""
    first: int = 1
    """seed of the hidden parameters of the first robot."""
    techniques: tuple[str, ...] = ()
    """techniques by name, among which untouched must be; all where not given, but for
    "in the robot itself", a bound: what a training gains that knows the simulated robot."""
    quick: bool = False
    """a small budget, minutes instead of an hour; it replaces the options of the budget."""
    budget: Options[ClosingBudget] = ClosingBudget()
    on: str = ""
    """where robots run: ray (this machine), ray://HOST:PORT (a cluster), or processes:N."""
    out: Path | None = None
    """folder to write, or to continue; a new one under runs/ where not given."""


def closing(scene: SceneArg, /, args: Options[ClosingArgs] = ClosingArgs()) -> int:
    """Compare ways to close the gap on perturbed robots: return, success, tracking error, time on robot and computer.

    Techniques: training in the scene as it is, over hand ranges, over ranges of ADR, at identified parameters, over the
    posterior, with a delta action, on the robot itself, and pairs of them. Every robot that is done is kept: the same
    command with the same --out continues. Returns do not depend on where robots run.

    Args:
        scene: the scene, with a task.

    """
    if args.robots < 2:
        raise BadInput(f"The experiment needs at least two --robots, not {args.robots}.")
    loaded, console = Scene.load(scene), Console(stderr=True)
    output = new_output("experiment closing", args.out, seed=args.first)
    output.kept = f"finished robots are kept; the same command with --out {output.folder} goes on from them"
    output.read_scene(loaded)
    robots, techniques = tuple(range(args.first, args.first + args.robots)), args.techniques or USUAL
    budget = QUICK if args.quick else args.budget
    plan = ClosingPlan(scene, args.task, args.policy, techniques, robots, budget)
    work = output.folder / "robots"
    work.mkdir(exist_ok=True)
    with progress_bar() as progress, open_map(args.on, deadline=7200.0) as mapped:
        bar = progress.add_task("train", total=len(robots))

        def watch(words: str) -> None:
            progress.update(bar, advance=words.startswith("robot"), description=words)

        study = run_closing(plan, work, map=mapped, watch=watch)
    _print(study, console)
    costs = {
        name: {"robot_minutes": study.robot_minutes(name), "computer_minutes": study.computer_minutes(name)}
        for name in study.techniques
    }
    output.write(
        closing_scores(study), advice=study.advice(), buy_first=study.buy_first(), pareto=list(study.pareto()),
        costs=costs, digest=study.digest, budget=asdict(replace(budget)),
    )  # fmt: skip
    print(output.page(closing_page(study, f"{loaded.name}, {len(robots)} robots")))
    return 0


def _print(study: ClosingStudy, console: Console) -> None:
    table = Table(
        "technique", "return", "gain", "95 %", "success", "tracking error", "robot [min]", "computer [min]", box=None
    )
    for name in study.techniques:
        gain = study.gain(name)
        own = ("", "") if name == UNTOUCHED else (f"{gain.value:+.3f}", f"{gain.low:+.3f} to {gain.high:+.3f}")
        success, minutes = study.success(name).value, (study.robot_minutes(name), study.computer_minutes(name))
        off = study.error(name)
        table.add_row(
            name, f"{study.score(name).value:.3f}", *own, f"{100 * success:.0f} %",
            "" if off is None else f"{off.value:.3g} {off.unit}", *(f"{m:.2f}" for m in minutes),
        )  # fmt: skip
    console.print(table)
    console.print(study.advice(), highlight=False)
