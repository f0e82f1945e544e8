"""The verb agree: does simulation rank policies as the robot does, and what success to expect on the robot."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from instep.app.arguments import Expert, Options, OutFolder, Positional
from instep.app.output import new_output
from instep.core.errors import BadInput
from instep.core.statistics import Estimate
from instep.core.world import options_dataclass
from instep.evaluate.agreement import (
    Episodes,
    agreement_scores,
    rank_agreements,
    read_rates,
    real_success_rates,
    transfer_scores,
)
from instep.evaluate.episode_batch import EpisodeResult, read_rows
from instep.report.eval_pages import agreement_page


@options_dataclass
class AgreeArgs:
    """Options of `instep agree`."""

    evaluation: Annotated[Path | None, tyro.conf.arg(name="eval")] = None
    """folder of an instep eval: the success on the robot to expect of its policies, from at least ten past policies in
    TABLE."""
    real: Path | None = None
    """CSV table of real trials (policy, seed, success) from starts of --eval: real success rates from these trials and
    all virtual episodes."""
    seed: Expert[int] = 0
    """seed of the resampling."""
    out: OutFolder = None


def agree(
    table: Positional[Annotated[Path, tyro.conf.arg(metavar="TABLE")]], /, args: Options[AgreeArgs] = AgreeArgs()
) -> int:
    """Compare success rates of policies in simulation with those on the robot: correlation, rank violations, bias.

    With --eval: the transfer score of each evaluated policy, the expected success on the robot with a 90 % interval.

    Args:
        table: CSV table of past policies with the columns task, policy, real, sim, n_real_trials.

    """
    rates, console = read_rates(table), Console()
    if args.real is not None and args.evaluation is None:
        raise BadInput("--real pairs real trials with the episodes of an evaluation; give --eval FOLDER too.")
    agreements = rank_agreements(rates, seed=args.seed)
    output = new_output("agree", args.out, seed=args.seed)
    output.read(table)
    rows = [
        {"task": r.task, "policies": len(r.policies), "pearson": r.correlation.value, "mmrv": r.violation.value}
        for r in agreements
    ]
    shown = Table("task", box=None)
    for head in ("n", "Pearson", "95 %", "Spearman", "MMRV", "perfect"):
        shown.add_column(head, justify="right", no_wrap=True)
    for r in agreements:
        c = r.correlation
        numbers = (f"{c.value:.3f}", f"{c.low:.2f} to {c.high:.2f}", f"{r.rank_correlation.value:.3f}")
        task = r.task.replace("_", " ")  # so that a narrow window may break it
        shown.add_row(task, str(len(r.policies)), *numbers, f"{r.violation.value:.3f}", f"{r.null.value:.3f}")
    console.print(shown)
    for r in agreements:
        console.print(f"{r.task}: {r.words}", highlight=False)
    scores, words = agreement_scores(agreements), dict[str, str]()
    if args.evaluation is not None:
        episodes, task = _read_evaluation(args.evaluation)
        output.read(args.evaluation)
        for (policy, world), score in transfer_scores(episodes, rates, task).items():
            scores[f"expected real success, {policy} by {world}"] = score.success
            words[f"{policy} by {world}"] = score.words
        if args.real is not None:
            output.read(args.real)
            more, said = _real_rates(episodes, args.real)
            scores |= more
            words |= said
    for name, sentence in words.items():
        console.print(f"{name}: {sentence}", highlight=False, markup=False)
    output.write(scores, tasks=rows, words=[f"{r.task}: {r.words}" for r in agreements], expected=words)
    print(output.page(agreement_page(rates, agreements, f"{len(rates)} pairs of success rates from {table}")))
    return 0


def _read_evaluation(folder: Path) -> tuple[Episodes, str]:
    """The episodes in the folder of an evaluation by policy and world, and its task."""
    path = folder / "episodes.parquet"
    if not path.is_file():
        raise BadInput(f"{str(folder)!r} is not the folder of an instep eval: it holds no episodes.parquet.")
    episodes: dict[tuple[str, str], list[EpisodeResult]] = {}
    rows = read_rows(path)
    for about, row in rows:
        episodes.setdefault((about.get("policy", ""), about.get("world", "")), []).append(row)
    if not rows:
        raise BadInput(f"The evaluation in {str(folder)!r} has no episodes.")
    return episodes, rows[0][0].get("task", "")


def _real_rates(episodes: Episodes, trials: Path) -> tuple[dict[str, Estimate], dict[str, str]]:
    """Real success rates from few real and all virtual episodes, with a sentence for each."""
    scores: dict[str, Estimate] = {}
    words: dict[str, str] = {}
    for (policy, world), rate in real_success_rates(episodes, trials).items():
        scores[f"real success, {policy} by {world}"] = rate.estimate
        scores[f"real success, {policy}, real trials alone"] = rate.plain
        words[f"real success of {policy} by {world}"] = (
            f"{rate.estimate} (real trials alone: {rate.plain}), worth {rate.gain:.2g} times the real trials"
        )
    return scores, words
