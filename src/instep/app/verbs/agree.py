"""The verb agree: whether a virtual evaluation ranks policies as reality does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from instep.app.arguments import OutFolder, Positional


def agree(
    table: Positional[Annotated[Path, tyro.conf.arg(metavar="TABLE")]],
    /,
    seed: int = 0,
    out: OutFolder = None,
) -> int:
    """Compare the success rates of a virtual evaluation with real ones: correlation, difference, rank violation.

    Args:
        table: a CSV file with the columns task, policy, real, sim, n_real_trials.
        seed: seed of the intervals.
        out: folder to write; a new one under runs/ if not given.

    """
    from rich.console import Console
    from rich.table import Table

    from instep.app.output import new_output
    from instep.evaluate.agreement import agreement_report, agreement_scores, rank_agreements, read_rates

    rates = read_rates(table)
    found = rank_agreements(rates, seed=seed)
    output = new_output("agree", out, seed=seed)
    output.read(table)
    rows = [
        {"task": r.task, "policies": len(r.policies), "pearson": r.correlation.value, "mmrv": r.violation.value}
        for r in found
    ]
    output.write(agreement_scores(found), tasks=rows, words=[f"{r.task}: {r.words}" for r in found])
    report = agreement_report(rates, found, f"{len(rates)} pairs of success rates from {table}")
    path = output.page(report)
    listed = Table("task", box=None)
    for head in ("n", "Pearson", "95 %", "Spearman", "MMRV", "perfect"):
        listed.add_column(head, justify="right", no_wrap=True)
    for r in found:
        c = r.correlation
        numbers = (f"{c.value:.3f}", f"{c.low:.2f} to {c.high:.2f}", f"{r.rank_correlation.value:.3f}")
        task = r.task.replace("_", " ")  # so that a narrow window may break it
        listed.add_row(task, str(len(r.policies)), *numbers, f"{r.violation.value:.3f}", f"{r.null.value:.3f}")
    listed.caption = "n policies; 'perfect' is the MMRV of a perfect simulator with so few trials"
    console = Console()
    console.print(listed)
    console.print(report.verdict.headline, highlight=False, markup=False)
    print(path)
    return 0
