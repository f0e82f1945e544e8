"""The closing study: every technique on the same perturbed robots, its costs, and the technique to buy first."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.errors import BadInput, LinkLost
from instep.core.param import Box
from instep.core.reading import TEXT, content_hash, is_list, parsing, read_entries, read_json_table
from instep.core.statistics import Estimate, bootstrap, wilson
from instep.core.world import Array, MapFn, array_dataclass, frozen_dataclass
from instep.evaluate.evaluation import LostBatch
from instep.policy.policy_specs import policy_fingerprint
from instep.report.figures import bars_figure, error_bars, plain_text, series_color
from instep.report.page import Figure, Headline, HtmlReport, Number, Section, Table
from instep.scene.folder import Scene
from instep.scene.tasks import task_of, tracking_unit

from .closing_trial import (
    ADR,
    BOUND,
    FIRST,
    NOMINAL,
    NOMINAL_FIRST,
    RANGES,
    SHARED_NEEDS,
    TECHNIQUES,
    UNTOUCHED,
    USUAL,
    ClosingBudget,
    RobotJob,
    TechniqueResult,
    robot_kind,
    run_robot,
)
from .policy_search import search_weights
from .simulation_training import grow_and_train


@frozen_dataclass
class ClosingPlan:
    """What to compare, on which robots."""

    scene: str
    task: str = ""
    base: str = "expert"
    techniques: tuple[str, ...] = USUAL
    robots: tuple[int, ...] = tuple(range(1, 21))
    """Seeds of the hidden parameters."""
    budget: ClosingBudget = ClosingBudget()


@array_dataclass
class SharedTraining:
    """The weights of such a training, and its processor time [s]."""

    weights: Array
    seconds: float


@array_dataclass
class SharedJob:
    """A training that serves every robot."""

    plan: ClosingPlan
    name: str
    begun: SharedTraining | None = None
    """The first half, where this is the second one."""


@array_dataclass
class ClosingStudy:
    """The results of every technique on every robot."""

    plan: ClosingPlan
    robots: Mapping[int, Mapping[str, TechniqueResult]]
    shared: Mapping[str, SharedTraining]
    error_unit: str = ""
    """Unit of the tracking error of the task."""

    @property
    def techniques(self) -> tuple[str, ...]:
        """The techniques that this robot can use, in their order."""
        first = next(iter(self.robots.values()))
        return tuple(name for name in TECHNIQUES if name in first)

    def means(self, name: str) -> Array:
        """Mean return on each robot [robots]."""
        return np.array([np.mean(found[name].scores) for found in self.robots.values()])

    def score(self, name: str) -> Estimate:
        """Mean return, with robots resampled."""
        return bootstrap(self.means(name))

    def success(self, name: str) -> Estimate:
        """Success rate over all starts on all robots."""
        won = [won for found in self.robots.values() for won in found[name].successes]
        return wilson(sum(won), len(won))

    def error(self, name: str) -> Estimate | None:
        """Mean tracking error, with robots resampled; None where the task defines none."""
        rows = [found[name].errors for found in self.robots.values()]
        return bootstrap([float(np.mean(row)) for row in rows], unit=self.error_unit) if all(rows) else None

    def gain(self, name: str, over: str = UNTOUCHED) -> Estimate:
        """Difference of returns, robot by robot."""
        return bootstrap(self.means(name) - self.means(over))

    def robot_minutes(self, name: str) -> float:
        """Time on each robot that a technique needs [min]."""
        return float(np.mean([found[name].robot_s for found in self.robots.values()])) / 60

    def computer_minutes(self, name: str) -> float:
        """Processor time per robot [min]; trainings that serve every robot are counted whole."""
        once = sum(self.shared[part].seconds for part in SHARED_NEEDS.get(name, ()))
        return (float(np.mean([found[name].computer_s for found in self.robots.values()])) + once) / 60

    def pareto(self) -> tuple[str, ...]:
        """Techniques that no other one beats in return while costing no more on the robot and on the computer."""
        sold = [name for name in self.techniques if name != BOUND]
        costs = np.array([(self.robot_minutes(n), self.computer_minutes(n), -self.score(n).value) for n in sold])
        no_worse, differ = (costs <= costs[:, None]).all(axis=-1), (costs != costs[:, None]).any(axis=-1)
        return tuple(name for name, beaten in zip(sold, (no_worse & differ).any(axis=1), strict=True) if not beaten)

    def buy_first(self) -> str:
        """The cheapest technique that surely gains and is not surely worse than the best; empty where none gains."""
        sure = [name for name in self.techniques if name not in (UNTOUCHED, BOUND) and self.gain(name).low > 0]
        if not sure:
            return ""
        best = max(sure, key=lambda name: self.score(name).value)
        close = [name for name in sure if name == best or self.gain(best, name).low <= 0]
        return min(close, key=lambda name: (round(self.robot_minutes(name), 2), self.computer_minutes(name)))

    def advice(self) -> str:
        """What to buy first, in one sentence."""
        name = self.buy_first()
        if not name:
            words = "no technique surely gains over the untouched policy"
            return f"Nothing pays here: {words} on {len(self.robots)} robots."
        gain, minutes = self.gain(name), self.robot_minutes(name)
        cost = f"{minutes:.1f} min on the robot" if minutes else "no time on the robot"
        return (
            f"Buy this first: {name} ({TECHNIQUES[name]}), a return {gain.value:+.3f} [{gain.low:+.3f}, "
            f"{gain.high:+.3f}] over the untouched policy, for {cost} and "
            f"{self.computer_minutes(name):.1f} min of one core."
        )

    @property
    def digest(self) -> str:
        """A fingerprint of all returns: two runs agree bit by bit where it does."""
        rows = {f"{robot} {name}": one.scores for robot, found in self.robots.items() for name, one in found.items()}
        return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()[:16]


def run_closing(
    plan: ClosingPlan, folder: Path, *, map: MapFn = map, watch: Callable[[str], None] | None = None
) -> ClosingStudy:
    """Run what is not yet kept in a folder: first the trainings that serve every robot, then every robot."""
    unknown = [name for name in plan.techniques if name not in TECHNIQUES]
    if unknown:
        raise BadInput(f"There is no technique {unknown[0]!r}; known: {', '.join(TECHNIQUES)}.")
    if UNTOUCHED not in plan.techniques or len(plan.robots) < 2:
        raise BadInput(f"The study needs {UNTOUCHED!r} among its techniques, and at least two --robots.")
    if min(plan.budget.starts, plan.budget.recordings) < 1 or plan.budget.seconds <= 0:
        raise BadInput("The study needs at least one of --starts and of --recordings, and --seconds above 0.")
    # Refuse a folder with results of another plan, scene or policy; more robots may be added.
    about = {**asdict(replace(plan, robots=())), "scene": content_hash(Scene.load(plan.scene).root)}
    mark = hashlib.sha256(json.dumps([about, policy_fingerprint(plan.base)], sort_keys=True).encode()).hexdigest()
    note = folder / "plan.json"
    if note.is_file() and read_entries(note, {"plan": TEXT})["plan"] != mark:
        raise BadInput(f"{str(folder)!r} holds a study with another scene, policy or budget; give another --out.")
    _write_json(note, {"plan": mark})
    shared = _shared_trainings(plan, folder, map, watch)
    weights = {name: found.weights for name, found in shared.items()}
    jobs = [
        RobotJob(plan.scene, plan.task, plan.base, robot, plan.techniques, weights, plan.budget)
        for robot in plan.robots
    ]
    robots: dict[int, Mapping[str, TechniqueResult]] = {}
    files = [folder / f"robot_{robot}.json" for robot in plan.robots]
    for robot, found in zip(plan.robots, _kept(jobs, files, _read_robot, run_robot, map), strict=True):
        robots[robot] = found
        if watch is not None:
            watch(f"robot {robot}")
    unit = tracking_unit(task_of(Scene.load(plan.scene), plan.task))
    return ClosingStudy(plan, robots, shared, unit)


SECOND = {NOMINAL: NOMINAL_FIRST, RANGES: FIRST}
"""Trainings that serve every robot, and their first halves."""


def _shared_trainings(
    plan: ClosingPlan, folder: Path, map: MapFn, watch: Callable[[str], None] | None
) -> dict[str, SharedTraining]:
    """The trainings that serve every robot: first halves and ADR at once, then second halves."""
    needed = {part for name in plan.techniques for part in SHARED_NEEDS.get(name, ())}
    shared: dict[str, SharedTraining] = {}
    for stage in ((NOMINAL_FIRST, FIRST, ADR), (NOMINAL, RANGES)):
        wanted = [name for name in stage if name in needed]
        jobs = [SharedJob(plan, name, shared.get(SECOND.get(name, ""))) for name in wanted]
        files = [folder / f"{name.replace(' ', '_')}.json" for name in wanted]
        for name, found in zip(wanted, _kept(jobs, files, _read_shared, train_shared, map), strict=True):
            shared[name] = found
            if watch is not None:
                watch(f"training: {name}")
    return shared


def train_shared(job: SharedJob) -> SharedTraining:
    """A training that serves every robot."""
    kind, options = robot_kind(Scene.load(job.plan.scene), job.plan.task, job.plan.base), job.plan.budget.search
    setup, began = kind.setup, time.process_time()
    if job.name == ADR:
        # As many episodes in all as the other trainings, spread over the rounds.
        share = replace(options, generations=max(1, 2 * options.generations // 7))
        found = grow_and_train(setup, kind.ranges, kind.nominal, share)[0]
    else:
        belief = None if job.name in (NOMINAL, NOMINAL_FIRST) else Box(tuple(kind.ranges))
        half = options if job.begun is None else job.plan.budget.second
        found = search_weights(setup.world, setup.trained, job.begun.weights if job.begun else None, belief, half)
    return SharedTraining(found.weights, time.process_time() - began)


def _kept(
    jobs: Sequence[Any], files: Sequence[Path], read: Callable[[Path], Any], run: Callable[[Any], Any], map: MapFn
) -> Iterator[Any]:
    """The results of jobs in order, those in files from there, the others run and written as they come."""
    missing = [(job, file) for job, file in zip(jobs, files, strict=True) if not file.is_file()]
    fresh: Iterator[Any] = iter(map(run, [job for job, _ in missing])) if missing else iter(())
    for file in files:
        if not file.is_file():
            found = next(fresh)
            if isinstance(found, LostBatch):
                raise LinkLost(f"A worker was lost: {found.why}; the same command with the same --out goes on.")
            _write_json(file, found)
        yield read(file)


def _write_json(file: Path, content: Mapping[str, Any] | SharedTraining) -> None:
    if isinstance(content, SharedTraining):
        content = {"weights": content.weights.tolist(), "seconds": content.seconds}
    temporary = file.with_suffix(".part")
    temporary.write_text(json.dumps(content, default=asdict) + "\n", encoding="utf-8")
    temporary.replace(file)


def _read_shared(path: Path) -> SharedTraining:
    with parsing(path, "a training that was kept"):
        table = read_json_table(path)
        return SharedTraining(np.array(table["weights"], float), float(table["seconds"]))


def _read_robot(path: Path) -> dict[str, TechniqueResult]:
    with parsing(path, "a robot that was kept"):
        found: dict[str, dict[str, Any]] = read_json_table(path)
        for entry in found.values():
            entry |= {key: tuple(value) for key, value in entry.items() if is_list(value)}
        return {name: TechniqueResult(**entry) for name, entry in found.items()}


def closing_scores(study: ClosingStudy) -> dict[str, Estimate]:
    """Returns, success rates and gains by technique."""
    found: dict[str, Estimate] = {}
    for name in study.techniques:
        found |= {f"return, {name}": study.score(name), f"success, {name}": study.success(name)}
        if (off := study.error(name)) is not None:
            found[f"tracking error, {name}"] = off
        if name != UNTOUCHED:
            found[f"gain, {name}"] = study.gain(name)
    return found


def closing_page(study: ClosingStudy, source: str) -> HtmlReport:
    """The report."""
    best = max(study.techniques, key=lambda name: study.score(name).value)
    numbers = [
        Number("untouched policy", f"{study.score(UNTOUCHED).value:.3f}", "mean return on the robots"),
        Number("best", f"{study.score(best).value:.3f}", best),
        Number("robots", str(len(study.robots)), "another engine, hidden parameters, noise and delay"),
    ]
    gains = {name: study.gain(name) for name in study.techniques if name != UNTOUCHED}
    errors = {name: found for name in study.techniques if (found := study.error(name)) is not None}
    words = f"Mean over an episode [{study.error_unit}]; the error at its end counts for the time that is left."
    tracking = [Section("Tracking error", words, [bars_figure(errors, title="error", x="tracking error")])]
    left_out = [name for name in study.plan.techniques if name not in study.techniques]
    why = f"Left out: {', '.join(left_out)}; a delta action corrects position commands, and this robot has none."
    sections = [
        Section(
            "Gain over the untouched policy",
            "Return is the mean score over the time limit. Differences are taken robot by robot, with 95 % intervals.",
            [bars_figure(gains, title="gain", x="gain of return")],
        ),
        Section(
            "Return and cost",
            "Techniques on the Pareto front are filled: no other one has a higher return for less time.",
            [_pareto_figure(study)],
        ),
        *(tracking if errors else ()),
        Section("All numbers", "", [_numbers(study)]),
        Section(
            "Techniques",
            why if left_out else "",
            [Table(("technique", "what it does"), [[n, TECHNIQUES[n]] for n in study.techniques])],
        ),
    ]
    headline = Headline("good" if study.buy_first() else "plain", study.advice())
    return HtmlReport("Closing the gap", source, headline, numbers, sections)


def _numbers(study: ClosingStudy) -> Table:
    rows: list[Sequence[str]] = []
    front = study.pareto()
    for name in study.techniques:
        score, rate, gain = study.score(name), study.success(name), study.gain(name)
        off = study.error(name)
        rows.append([
            name, f"{score.value:.3f} [{score.low:.3f}, {score.high:.3f}]",
            "" if name == UNTOUCHED else f"{gain.value:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]",
            f"{100 * rate.value:.0f} %", "" if off is None else f"{off.value:.3g}",
            f"{study.robot_minutes(name):.2f}", f"{study.computer_minutes(name):.2f}",
            "yes" if name in front else "",
        ])  # fmt: skip
    off = f"tracking error [{study.error_unit}]" if study.error_unit else "tracking error"
    head = ("technique", "return", "gain", "success", off, "robot [min]", "computer [min]", "Pareto front")
    return Table(head, rows)


def _pareto_figure(study: ClosingStudy) -> Figure:
    front, data = study.pareto(), list[dict[str, Any]]()
    for i, name in enumerate(study.techniques):
        score, minutes = study.score(name), study.robot_minutes(name)
        words = f"{plain_text(name)}: {score.value:.3f}, {minutes:.1f} min on the robot"
        symbol = "circle" if name in front else "circle-open"
        data.append({
            "type": "scatter", "mode": "markers", "name": plain_text(name), "hovertemplate": words + "<extra></extra>",
            "x": [study.computer_minutes(name)], "y": [score.value],
            "error_y": error_bars([score], color=series_color(i, 0.5)),
            "marker": {"color": series_color(i), "size": 9 + 6 * min(3.0, minutes), "symbol": symbol},
        })  # fmt: skip
    axes = {"xaxis": {"title": "processor time per robot [min]"}, "yaxis": {"title": "mean return on the robots"}}
    return {"data": data, "layout": {"height": 460, **axes}}
