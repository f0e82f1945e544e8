"""Identification of arms never seen, as a new user would type it: `instep tune DATA SCENE` with no option.

Arms: robot files, shipped scenes and arms made at random, each with planted gains (±30 %), damping and armature
(×0.5–2), dry friction (0.5–3 % of the force range) and delay (5–40 ms), recorded in 4 runs of 10 s with noise of 0.1
mrad, in MuJoCo and in rapier. Motion begins where a folded arm touches nothing, and is so large that nothing touches,
that it is predictable, and that motors do not jump from one limit to the other between physics steps, as those of no
robot do (stiff servos of the Panda and SO-101 files at their limit); recordings in which they do have a row of their
own. Two further runs that are not given to `instep tune` say how well the scene that it wrote replays open loop. Single
cases: `python -m benchmarks robots --only ur5e "random 2"`.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from harness import KeptCases, Row, median, percent, row, run_instep
from instep import Scene, open_world
from instep.core.errors import BadInput, Unsupported
from instep.core.statistics import bootstrap, wilson
from instep.data import write_dataset
from instep.physics.engines import Engine
from tuning.planted_arms import MODELS, Arm, open_loop_error, planted_arm, random_arm, robot_files, shipped_arms

Split = Literal["dev", "held-out"]
FIRST_SEED: dict[Split, int] = {"dev": 0, "held-out": 1000}
"""Methods are developed on one set of seeds and judged on the other."""
LIMIT, QUICK_LIMIT = 400.0, 90.0
"""Time after which an identification is ended and counts as not promoted [s]."""
CORES = 2


@dataclass(frozen=True, slots=True)
class Case:
    """An arm, the engine that stands for reality, and the seed of what is planted."""

    arm: Arm
    engine: Engine
    seed: int
    chatter: bool = False
    """Whether its motors jump from one limit to the other between physics steps, at motion beyond what they can do."""

    @property
    def name(self) -> str:
        words = [self.arm.name, f"seed {self.seed}", *([] if self.engine == "mujoco" else [self.engine])]
        return ", ".join([*words, *(["chattering"] if self.chatter else [])])


def run(out: Path, quick: bool = False, only: Sequence[str] = ()) -> list[Row]:
    """Identify every arm of the held-out seeds; `only` picks cases of the development seeds by their names."""
    with tempfile.TemporaryDirectory() as folder:
        cases = chosen_cases(Path(folder), "dev" if only else "held-out", quick)
        cases = [case for case in cases if not only or any(word in case.name for word in only)]
        tasks = {case.name: partial(_measured_apart, case, QUICK_LIMIT if quick else LIMIT) for case in cases}
        with two_cores():
            return summary(KeptCases(out).measured_in_turn(tasks, _line))


def chosen_cases(folder: Path, split: Split, quick: bool) -> list[Case]:
    """All arms with MuJoCo as reality, those with rapier as reality, then those whose motors can be made to chatter."""
    first = FIRST_SEED[split]
    named = robot_files() + shipped_arms()
    if not MODELS.is_dir():
        print(f"no robot files: {MODELS} is not there", file=sys.stderr)
    if quick:
        named = [arm for arm in named if arm.name in ("ur5e", "so101 (shipped)")]
    seeds = range(first, first + (2 if quick else 24))
    made = [(random_arm(seed, folder), seed) for seed in seeds]
    known = [(arm, first + k) for k in range(1 if quick else 2) for arm in named]
    cases = [Case(arm, "mujoco", seed) for arm, seed in known + made]
    hidden = [(arm, first + 50) for arm in named] + [(arm, seed + 50) for arm, seed in made[: 1 if quick else 12]]
    cases += [Case(arm, "rapier", seed) for arm, seed in hidden[: 2 if quick else None]]
    return cases + ([] if quick else [Case(arm, "mujoco", first, chatter=True) for arm in named])


def _measured_apart(case: Case, limit: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return measured_case(case, Path(folder), limit)


@contextmanager
def two_cores() -> Iterator[None]:
    """Hold this process and those it starts on two cores, where the system allows that."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:CORES])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def measured_case(case: Case, folder: Path, limit: float) -> dict[str, Any]:
    """Record, identify by the command line, and replay runs that it was not given."""
    facts: dict[str, Any] = {"name": case.name, "engine": case.engine, "seed": case.seed, "chatter": case.chatter}
    try:
        planted = planted_arm(case.arm, case.seed, case.engine, chatter=case.chatter)
    except (BadInput, Unsupported) as error:
        return {**facts, "skipped": str(error)}
    write_dataset(planted.runs, folder / "data")
    began = time.perf_counter()
    code, words = run_instep(
        ["tune", str(folder / "data"), case.arm.scene, "--out", str(folder / "out")], folder, limit
    )
    facts |= {"seconds": time.perf_counter() - began, "exit": code, "promoted": code == 0, "scale": planted.scale}
    sim = open_world(planted.scene)
    facts["given"] = open_loop_error(sim, planted.held_out)
    if case.engine == "mujoco":
        facts["truth"] = open_loop_error(sim.tuned(planted.truth), planted.held_out)
    for name, key in (("scene", "written"), ("scene_not_passed", "not_promoted")):
        if (folder / "out" / name).is_dir():
            facts[key] = open_loop_error(open_world(Scene.load(folder / "out" / name)), planted.held_out)
    result = folder / "out" / "result.json"
    told = json.loads(result.read_text(encoding="utf-8")) if result.is_file() else {}
    facts |= {key: told[key] for key in ("gates", "status", "stage_seconds") if key in told}
    return facts | ({} if code in (0, 1) else {"message": words[-600:]})


def final_error(case: dict[str, Any]) -> float:
    """Error of the scene that a user has after the command: the one written where it was promoted, else the given."""
    return float(case["written"] if case["promoted"] else case["given"])


def summary(found: Sequence[dict[str, Any]]) -> list[Row]:
    """The rows of the table."""
    ran = [case for case in found if "skipped" not in case]
    beyond, done = [case for case in ran if case["chatter"]], [case for case in ran if not case["chatter"]]
    own = [case for case in done if case["engine"] == "mujoco"]
    other = [case for case in done if case["engine"] != "mujoco"]
    promoted = sum(case["promoted"] for case in own)
    near = sum(final_error(case) <= 2 * case["truth"] for case in own)
    fell = sum(final_error(case) <= 0.2 * case["given"] for case in other)
    worse = sum(case["promoted"] and final_error(case) > case["given"] for case in ran)
    settled, kept = (sum(case["promoted"] for case in some) for some in (other, beyond))
    left_out = [case for case in found if "skipped" in case and not case["chatter"]]
    seconds = [case["seconds"] for case in done]
    slow = bootstrap(np.array(seconds), lambda draws: np.quantile(draws, 0.95, axis=-1), unit="s")
    return [
        row(f"promoted, of {len(own)} arms", percent(wilson(promoted, len(own))), at_least=95),
        row("held-out open-loop error at most twice the planted truth's", percent(wilson(near, len(own))), at_least=90),
        row(f"promoted but worse than the scene given, of {len(ran)}", worse, "arms", at_most=0),
        row("time of an identification on two cores, median", median(seconds, "s"), at_most=60),
        row("time of an identification on two cores, 95th percentile", slow, at_most=180),
        row(f"rapier as reality ({len(other)} arms), error −80 %", percent(wilson(fell, len(other))), at_least=90),
        row("rapier as reality, promoted", percent(wilson(settled, len(other)))),
        row("motors that chatter in the recordings, promoted", percent(wilson(kept, len(beyond)))),
        row("arms left out, with the reason in cases.json", len(left_out), "arms"),
    ]  # fmt: skip


def _line(case: dict[str, Any]) -> str:
    if "skipped" in case:
        return f"{case['name']}: left out: {case['skipped']}"
    word = (
        "promoted" if case["promoted"] else "stopped at the limit" if case["exit"] is None else f"exit {case['exit']}"
    )
    error = case.get("written", case.get("not_promoted", math.nan))
    truth = f", truth {case['truth']:.3g}" if "truth" in case else ""
    return f"{case['name']}: {word} in {case['seconds']:.0f} s, error {case['given']:.3g} -> {error:.3g} mrad{truth}"
