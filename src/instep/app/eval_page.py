"""Films of episodes that did not succeed.

What an evaluation found, on the terminal and as a page.

The page of an agreement: does a virtual evaluation rank policies as reality does?
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from rich.table import Table as TerminalTable

from instep.core.errors import Unsupported
from instep.core.statistics import Estimate
from instep.core.world import Array
from instep.evaluate.agreement import RankAgreement, SuccessRates, real_rate
from instep.evaluate.comparison import PolicyComparison, compare_policies
from instep.evaluate.evaluation import Evaluation
from instep.report.figures import bars_figure, plain_text, series_color
from instep.report.page import Figure, Headline, HtmlReport, Number, Section, Table, formatted
from instep.scene.folder import Scene

FRAMES = 10
"""Pictures per second."""


def film(scene: Scene, tracks: dict[str, Array], folder: Path) -> tuple[dict[str, str], str]:
    """A film of each track of positions q by the scene's first camera, and why there is none where there is none."""
    from instep.data import VideoWriter
    from instep.physics.mujoco_cameras import MujocoRenderer

    if not tracks or not scene.cameras:
        return {}, "" if not tracks else f"scene {scene.name!r} has no camera"
    camera, renderer, made = next(iter(scene.cameras.values())), MujocoRenderer(scene), dict[str, str]()
    every = max(1, round(1 / (FRAMES * scene.dt)))
    try:
        for name, track in tracks.items():
            file = "".join(c if c.isalnum() or c in "-_" else "_" for c in name) + ".mp4"
            with VideoWriter(folder / file, FRAMES) as writer:
                for q in track[::every]:
                    writer.add(renderer.render(q, camera))
            made[name] = file
    except Unsupported as error:
        return made, str(error)
    finally:
        renderer.close()
    return made, ""


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


def comparisons(evaluation: Evaluation) -> dict[tuple[str, str, str], PolicyComparison]:
    """Every pair of policies, in every world, start by start."""
    policies = list(dict.fromkeys(policy for policy, _ in evaluation.results))
    worlds = list(dict.fromkeys(world for _, world in evaluation.results))
    return {
        (first, second, world): compare_policies(evaluation.results[first, world], evaluation.results[second, world])
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


def page(evaluation: Evaluation, facts: Mapping[str, str], films: Mapping[str, str]) -> HtmlReport:
    """The report: success per policy and world, comparisons, ways of failing."""
    bars = {f"{policy}, {world}": _percent(evaluation.success(policy, world)) for policy, world in evaluation.results}
    best = max(bars, key=lambda name: bars[name].value)
    numbers = [
        Number(name, formatted(estimate, interval=False), formatted(estimate))
        for name, estimate in list(bars.items())[:3]
    ]
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
    return HtmlReport(
        "instep eval",
        evaluation.task.text,
        Headline("plain", f"{best}: {formatted(bars[best])} success.", f"{bars[best].n} starts each."),
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
            (policy, world, formatted(_percent(rate)), str(rate.n), formatted(seconds) if seconds else "–",
             formatted(score) if score else "–", str(broken))
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


def agreement_report(rates: Sequence[SuccessRates], found: Sequence[RankAgreement], source: str) -> HtmlReport:
    """The page."""
    able = [r for r in found if r.informative]
    mean_r = sum(r.correlation.value for r in found) / len(found)
    mean_v = sum(r.violation.value for r in found) / len(found)
    if able:
        words = f"{len(able)} of {len(found)} tasks have enough policies to conclude anything."
    else:
        words = "No task has enough policies to conclude anything."
    strong = sum(r.correlation.low > 0 for r in able)
    because = f"At {strong} of them simulation and reality are correlated for certain." if able else ""
    numbers = [
        Number("mean correlation", f"{mean_r:.3f}", f"{len(found)} tasks"),
        Number("mean rank violation (MMRV)", f"{mean_v:.3f}", "simulation first, reality second"),
        Number("tasks with enough policies", f"{len(able)} of {len(found)}", "six policies and more"),
    ]
    sections = [
        Section(
            "Rates side by side",
            "Each point is a policy; on the dashed line the simulator is right.",
            [_scatter(rates)],
        ),
        _table(found),
        _agreement_rates(rates),
    ]
    return HtmlReport("Agreement of evaluations", source, Headline("plain", words, because), numbers, sections)


def agreement_scores(found: Sequence[RankAgreement]) -> dict[str, Estimate]:
    """Scores by task."""
    scores: dict[str, Estimate] = {}
    for r in found:
        scores |= {f"{r.task}: pearson": r.correlation, f"{r.task}: spearman": r.rank_correlation}
        scores |= {f"{r.task}: MMRV": r.violation, f"{r.task}: MMRV of a perfect simulator": r.null}
        scores |= {f"{r.task}: bias": r.bias}
    return scores


def _scatter(rates: Sequence[SuccessRates]) -> Figure:
    data: list[dict[str, Any]] = []
    for i, task in enumerate(dict.fromkeys(r.task for r in rates)):
        some = [r for r in rates if r.task == task]
        bounds = [real_rate(r) for r in some]
        trace: dict[str, Any] = {"type": "scatter", "mode": "markers", "name": plain_text(task)}
        trace |= {"x": [r.sim for r in some], "y": [r.real for r in some], "text": [plain_text(r.policy) for r in some]}
        trace["error_y"] = {
            "type": "data", "symmetric": False, "thickness": 1, "color": series_color(i, 0.5),
            "array": [b.high - b.value for b in bounds], "arrayminus": [b.value - b.low for b in bounds],
        }  # fmt: skip
        trace["marker"] = {"color": series_color(i), "size": 9, "symbol": i % 8}
        data.append(
            {**trace, "hovertemplate": "%{text}: sim %{x:.2f}, real %{y:.2f}<extra>" + plain_text(task) + "</extra>"}
        )
    line = {"type": "line", "x0": 0, "x1": 1, "y0": 0, "y1": 1, "line": {"color": "@floor", "dash": "dash"}}
    layout = {"height": 560, "shapes": [line], "xaxis": {"title": "success in simulation", "range": [-0.03, 1.03]}}
    return {"data": data, "layout": {**layout, "yaxis": {"title": "success on the robot", "range": [-0.03, 1.03]}}}


def _table(found: Sequence[RankAgreement]) -> Section:
    head = ("task", "K", "Pearson r", "95 % interval", "Spearman", "MMRV", "interval", "perfect sim", "bias")
    rows = [[r.task, str(len(r.policies)), *_numbers(r)] for r in found]
    words = Table(("task", "what may be concluded"), [[r.task, r.words] for r in found])
    lead = (
        "MMRV weighs a wrong order by how much the real rates differ; even a perfect simulator shows some, by the "
        "noise of few trials. K is the number of policies: with fewer than six, no correlation means anything."
    )
    return Section("Agreement by task", lead, [words, Table(head, rows)])


def _numbers(r: RankAgreement) -> list[str]:
    c, v = r.correlation, r.violation
    intervals = f"{c.low:.2f} to {c.high:.2f}", f"{v.low:.3f} to {v.high:.3f}"
    perfect = f"{r.null.value:.3f} (95 %: {r.null.high:.3f})"
    rank = f"{r.rank_correlation.value:.3f}"
    return [f"{c.value:.3f}", intervals[0], rank, f"{v.value:.3f}", intervals[1], perfect, f"{r.bias.value:+.3f}"]


def _agreement_rates(rates: Sequence[SuccessRates]) -> Section:
    rows: list[list[str]] = []
    for r in rates:
        bound = real_rate(r)
        interval = f"{bound.low:.2f} to {bound.high:.2f}"
        rows.append(
            [r.task, r.policy, f"{r.real:.3f}", interval, str(r.real_trials), f"{r.sim:.3f}", f"{r.sim - r.real:+.3f}"]
        )
    head = ("task", "policy", "real", "Wilson 95 %", "trials", "sim", "sim - real")
    return Section("All rates", "", [Table(head, rows)], folded=True)
