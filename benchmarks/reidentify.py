"""Re-identification while a robot runs: payload, drifting friction, false changes.

The model is the identified scene. The robot is that scene in rapier (or in MuJoCo, where its parameters mean the same),
with small errors of every other parameter, noise, quantisation and delay. The filter was developed on seeds below 1000
and is judged on others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import chi2

from adaptive import IdentifiedArm, begin_pose, hidden_settings, identified_arms, sensed, tip_body
from harness import Case, KeptCases, Row, mean, median, percent, row
from instep import open_world
from instep.core.param import Param
from instep.core.statistics import Estimate, wilson
from instep.core.world import Simulator
from instep.physics.engines import Engine
from instep.scene import address
from instep.tune import Reidentification, Reidentifier
from instep.tune.param_selection import FRICTION_STIFFNESS

FIRST_SEED, CASES, QUICK_CASES = 1000, 20, 2
ARMS = ("arm7", "ur5e")
"""Arms whose servos show half a kilogram."""
QUIET_S, QUIET_CASES, QUICK_QUIET_CASES = 60.0, 60, 1
"""Length [s] and number of runs in which nothing changes: an hour in a full run."""


def run(out: Path, quick: bool = False) -> list[Row]:
    """Payloads, then friction, then runs without changes."""
    kept = KeptCases(out)
    arms = [arm for arm in identified_arms() if arm.name in ARMS]
    seeds = range(FIRST_SEED, FIRST_SEED + (QUICK_CASES if quick else CASES))
    payloads = {arm.name: _payloads(kept, arm, seeds) for arm in arms}
    rows = [one for name, cases in payloads.items() for one in _payload_rows(name, cases)]
    for arm in arms[:1] if quick else arms:
        rows += _friction_rows(kept, arm, seeds)
    quiet = _quiet(kept, arms, QUICK_QUIET_CASES if quick else QUIET_CASES)
    before = [case for cases in payloads.values() for case in cases]
    false = sum(int(case["false"]) for case in before) + sum(int(case["changes"]) for case in quiet)
    seconds = PICK_S * len(before) + sum(float(case["seconds"]) for case in quiet)
    rows.append(row("false changes per hour", _rate(false, seconds / 3600), "1/h", at_most=1.0))
    rows.append(row("robot time without changes", seconds / 60, "min"))
    rows.append(row("computer time", kept.cpu_s() / 60, "min"))
    return rows


def _payloads(kept: KeptCases, arm: IdentifiedArm, seeds: range) -> list[Case]:
    tasks = {f"payload {arm.name} {seed}": (payload_case, (arm, seed)) for seed in seeds}
    return kept.measured_in_processes(f"{arm.name}, payloads", tasks)


def _payload_rows(name: str, cases: list[Case]) -> list[Row]:
    errors = [100 * abs(case["found"] / PAYLOAD_KG - 1) for case in cases]
    noticed = [float(case["noticed"]) for case in cases if case["noticed"] is not None]
    label = f"{name}, payload of {PAYLOAD_KG:g} kg"
    near = wilson(sum(error <= 10 for error in errors), len(errors))
    rows = [
        row(f"{label}, error after {AFTER_S:g} s", median(errors), "%", at_most=10.0),
        row(f"{label}, within 10 % after {AFTER_S:g} s", percent(near), "%"),
        row(f"{label}, noticed as a change", percent(wilson(len(noticed), len(cases))), "%"),
    ]
    return [*rows, row(f"{label}, time to notice", median(noticed), "s")] if noticed else rows


def _friction_rows(kept: KeptCases, arm: IdentifiedArm, seeds: range) -> list[Row]:
    rows: list[Row] = []
    for engine, words in (("rapier", "robot in rapier"), ("mujoco", "robot in MuJoCo")):
        tasks = {f"friction {arm.name} {engine} {seed}": (friction_case, (arm, seed, engine)) for seed in seeds}
        cases = kept.measured_in_processes(f"{arm.name}, friction, {words}", tasks)
        label = f"{arm.name}, friction that doubles in {DRIFT_S:g} s, {words}"
        inside = mean([100 * case["inside"] for case in cases])
        rows.append(row(f"{label}, time inside the 95 % interval", inside, "%", at_least=85.0))
        rows.append(row(f"{label}, error", median([100 * case["off"] for case in cases]), "%"))
        rows.append(row(f"{label}, width of the interval", median([100 * case["width"] for case in cases]), "%"))
    return rows


def _quiet(kept: KeptCases, arms: list[IdentifiedArm], count: int) -> list[Case]:
    seeds = range(FIRST_SEED, FIRST_SEED + count)
    tasks = {f"quiet {seed}": (quiet_case, (arms[seed % len(arms)], seed, QUIET_S)) for seed in seeds}
    return kept.measured_in_processes("runs without a change", tasks)


def _rate(count: int, hours: float) -> Estimate:
    """A rate with the exact interval of a Poisson count."""
    low = float(chi2.ppf(0.025, 2 * count)) / 2 if count else 0.0
    return Estimate(count / hours, low / hours, float(chi2.ppf(0.975, 2 * count + 2)) / 2 / hours, count, "1/h")


PAYLOAD_KG = 0.5
PICK_S, AFTER_S = 16.0, 2.0
"""When the payload is picked up, and how long after it the estimate is judged [s]."""
DRIFT_S, DRIFT_FACTOR = 30.0, 2.0
"""How long friction takes to rise by a factor [s]."""
STEPS = 60
"""Steps in which friction rises."""


def payload_case(arm: IdentifiedArm, seed: int, engine: Engine = "rapier") -> Case:
    """A body of 0.5 kg picked up at the tip: how much was found after 2 s, when, and changes before it."""
    truth, name = hidden_settings(arm, "nothing", seed), arm.model().model.body(tip_body(arm.scene)).name
    mass = f"body.{name}.mass"
    own = truth[mass]
    found = run_case(arm, engine, seed, PICK_S + AFTER_S + 0.1, lambda t: {mass: own + PAYLOAD_KG * (t >= PICK_S)})
    index = [p.address for p in found.params].index(mass)
    before = [p for p in found.points if p.t <= PICK_S][-1].values[index]
    after = [p for p in found.points if p.t <= PICK_S + AFTER_S][-1].values[index]
    changes = [event.t for event in found.events if event.kind == "change"]
    noticed = [t - PICK_S for t in changes if t > PICK_S]
    return {
        "found": after - before,
        "noticed": min(noticed, default=None),
        "false": sum(t <= PICK_S for t in changes),
        "seconds": PICK_S,
    }


def friction_case(arm: IdentifiedArm, seed: int, engine: Engine, seconds: float = DRIFT_S) -> Case:
    """Dry friction of one joint that doubles slowly: how often its interval holds the truth, and false changes."""
    truth = hidden_settings(arm, "nothing", seed)
    names = [name for name in truth if name.endswith(".frictionloss") and arm.settings.get(name, 0.0) > 0]
    name = names[seed % min(3, len(names))]

    def value(t: float) -> float:
        return truth[name] * DRIFT_FACTOR ** (min(max(t, 0.0), seconds) / seconds)

    found = run_case(arm, engine, seed, seconds, lambda t: {name: value(seconds / STEPS * round(t / seconds * STEPS))})
    index = [p.address for p in found.params].index(name)
    estimated = [p for p in found.points if np.isfinite(p.errors).all()]
    inside = [p.low[index] <= value(p.t) <= p.high[index] for p in estimated]
    width = [(p.high[index] - p.low[index]) / p.values[index] for p in estimated]
    off = [abs(p.values[index] / value(p.t) - 1) for p in estimated]
    return {"inside": float(np.mean(inside)), "width": float(np.median(width)), "off": float(np.median(off)),
            "changes": found.counts()["change"]}  # fmt: skip


def quiet_case(arm: IdentifiedArm, seed: int, seconds: float, engine: Engine = "rapier") -> Case:
    """A robot that does not change: how many changes are found."""
    counts = run_case(arm, engine, seed, seconds, lambda t: {}).counts()
    return {"changes": counts["change"], "rolled back": counts["rolled back"], "seconds": seconds}


def run_case(
    arm: IdentifiedArm, engine: Engine, seed: int, seconds: float, changing: Callable[[float], Mapping[str, float]]
) -> Reidentification:
    """A robot of a seed, whose parameters change over time, through the filter."""
    truth, commands = hidden_settings(arm, "nothing", seed), arm.commands(seed, seconds)
    robots: dict[tuple[Any, ...], Any] = {}

    def robot(t: float) -> Any:
        settings = changing(t)
        key = tuple(settings.items())
        if key not in robots:
            robots.clear()
            inner: Simulator = open_world(arm.scene, engine, threads=1).tuned({**truth, **settings})
            robots[key] = sensed(inner)
        return robots[key]

    world = robot(0.0)
    state = world.place(begin_pose(arm.scene)[0], np.zeros(world.spec.v.shape), past=commands[:1])
    spec = replace(world.spec, q=world.spec.observation["observation.state"])
    sim, params = filter_model(arm)
    found = Reidentifier(sim, spec, params, address.read(sim.model, [p.address for p in params]))
    for command in commands:
        world = robot(state.t)
        seen = world.observe(state)
        found.add(state.t, seen["observation.state"], command, float(np.max(seen["observation.state.stamp"])))
        state = world.step(state, command)
    return found.result()


def filter_model(arm: IdentifiedArm) -> tuple[Any, list[Param]]:
    """The model with dry friction that holds, and what is estimated: the mass of the last link and dry friction."""
    base = arm.model()
    sim = base.tuned(dict.fromkeys(address.matching(base.model, ["joint.*.friction_stiffness"]), FRICTION_STIFFNESS))
    mass = f"body.{sim.model.body(tip_body(arm.scene)).name}.mass"
    own = address.read(sim.model, [mass])[mass]
    dry = [name for name in address.matching(sim.model, ["joint.*.frictionloss"])
           if address.read(sim.model, [name])[name] > 0 and "gripper" not in name]  # fmt: skip
    return sim, [Param(mass, own / 10, own + 4.0, False, "kg"), *address.params(sim.model, dry)]
