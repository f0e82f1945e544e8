"""What an evaluation found, on the terminal and as a page."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

from rich.table import Table as TerminalTable

from instep.app.figures import bars_figure
from instep.app.report import Number, Report, Section, Table, Verdict, say
from instep.core.stats import Estimate
from instep.gap.eval_compare import Comparison, compare
from instep.gap.evaluate import Evaluation


def scores_of(evaluation: Evaluation) -> dict[str, Estimate]:
    """The numbers for result.json."""
    found: dict[str, Estimate] = {}
    for policy, world in evaluation.results:
        name = f"{policy} in {world}"
        found[f"success, {name}"] = evaluation.success(policy, world)
        if (seconds := evaluation.seconds(policy, world)) is not None:
            found[f"time to success, {name}"] = seconds
        if (score := evaluation.score(policy, world)) is not None:
            found[f"score, {name}"] = score
    for (first, second, world), found_difference in comparisons(evaluation).items():
        found[f"success, {first} less {second} in {world}"] = found_difference.difference
    return found


def comparisons(evaluation: Evaluation) -> dict[tuple[str, str, str], Comparison]:
    """Every pair of policies, in every world, start by start."""
    policies = list(dict.fromkeys(policy for policy, _ in evaluation.results))
    worlds = list(dict.fromkeys(world for _, world in evaluation.results))
    return {
        (first, second, world): compare(evaluation.results[first, world], evaluation.results[second, world])
        for first, second in combinations(policies, 2)
        for world in worlds
    }


def terminal(evaluation: Evaluation) -> TerminalTable:
    """One line per policy and world."""
    table = TerminalTable("policy", "world", "success", "95 % interval", "n", "time", "how it fails", box=None)
    for policy, world in evaluation.results:
        rate, seconds = evaluation.success(policy, world), evaluation.seconds(policy, world)
        modes = ", ".join(f"{count} {mode}" for mode, count in list(evaluation.failures(policy, world).items())[:3])
        broken = evaluation.broken(policy, world)
        modes += f"; {broken} broken by the machinery" if broken else ""
        table.add_row(
            policy,
            world,
            f"{100 * rate.value:.1f} %",
            f"{100 * rate.low:.1f} to {100 * rate.high:.1f}",
            str(rate.n),
            f"{seconds.value:.1f} s" if seconds else "",
            modes,
        )
    return table


def page(evaluation: Evaluation, facts: Mapping[str, str], films: Mapping[str, str]) -> Report:
    """The report: success per policy and world, comparisons, ways of failing."""
    bars = {f"{policy}, {world}": _percent(evaluation.success(policy, world)) for policy, world in evaluation.results}
    best = max(bars, key=lambda name: bars[name].value)
    numbers = [Number(name, say(estimate, interval=False), say(estimate)) for name, estimate in list(bars.items())[:3]]
    sections = [
        Section(
            "Success",
            "Share of the starts from which the task was done, with Wilson's 95 % interval.",
            [bars_figure(bars, title="", x="success [%]"), _rates(evaluation)],
        )
    ]
    pairs = comparisons(evaluation)
    if pairs:
        sections.append(
            Section(
                "The policies against each other",
                "Start by start, by McNemar's test. A large p does not say that two policies are alike.",
                [Table(("first", "second", "world", "first less second"), [(*k, str(c)) for k, c in pairs.items()])],
            )
        )
    modes = "What came instead of success, and after which event."
    sections.append(Section("How they fail", modes, [_modes(evaluation)]))
    if films:
        rows = [(name, file) for name, file in films.items()]
        sections.append(
            Section("Films of failures", "In the folder of this report.", [Table(("episode", "file"), rows)])
        )
    return Report(
        "instep eval",
        evaluation.task.text,
        Verdict("plain", f"{best}: {say(bars[best])} success.", f"{bars[best].n} starts each."),
        numbers,
        sections,
        facts,
    )


def _rates(evaluation: Evaluation) -> Table:
    rows: list[tuple[str, ...]] = []
    for policy, world in evaluation.results:
        rate, seconds = evaluation.success(policy, world), evaluation.seconds(policy, world)
        score, broken = evaluation.score(policy, world), evaluation.broken(policy, world)
        rows.append(
            (policy, world, say(_percent(rate)), str(rate.n), say(seconds) if seconds else "–",
             say(score) if score else "–", str(broken))
        )  # fmt: skip
    return Table(("policy", "world", "success", "n", "median time", "score at the end", "broken"), rows)


def _modes(evaluation: Evaluation) -> Table:
    rows = [
        (policy, world, mode, str(count))
        for policy, world in evaluation.results
        for mode, count in evaluation.failures(policy, world).items()
    ]
    return Table(("policy", "world", "what happened", "episodes"), rows or [("–", "–", "nothing failed", "0")])


def _percent(rate: Estimate) -> Estimate:
    return Estimate(100 * rate.value, 100 * rate.low, 100 * rate.high, rate.n, "%")
