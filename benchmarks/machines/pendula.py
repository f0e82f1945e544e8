"""Pendula: a servo that lifts one, a Furuta pendulum, a double pendulum."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.physics.engines import without_delta
from instep.scene.folder import Scene
from instep.tune.fit.shooting import ShootingOptions

from .common import error_row, identified, paths, pooled, recorded, rms

SERVO = (
    "actuator.servo.kt", "actuator.servo.resistance", "actuator.servo.supply_resistance", "joint.servo.load",
    "joint.servo.frictionloss", "joint.servo.damping", "joint.servo.armature", "body.pendulum.com_y",
)  # fmt: skip
CABLE = (
    "actuator.arm.gear", "joint.arm.damping", "joint.arm.frictionloss", "joint.arm.stiffness", "joint.arm.springref",
    "joint.pendulum.damping", "joint.pendulum.frictionloss", "body.arm.inertia_z", "body.pendulum.inertia_x",
    "body.pendulum.com_z", "tendon.cable.stiffness", "tendon.cable.dead_band",
)  # fmt: skip
GOALS = {"theta": 150.0, "alpha": 30.0}
"""The bars [mrad], which are for a chirp of the other sign; these recordings hold none, so they are put to the rest."""
UPRIGHT = 2.6
"""When the pendulum of a swing-up comes near its top [s]; what follows is balanced, and nobody can foresee it."""
SAME_DAY = "qq-su_ectrl_250Hz_5s"
"""Swing-ups of the day on which the chirps were recorded."""
FIRST = 5
"""A row in which the first kick of a swing-up is under way."""

LINKS = (
    "actuator.*.gear", "joint.*.damping", "joint.*.frictionloss", "joint.*.armature", "body.*.com_z",
    "body.*.inertia_y", "action.delay",
)  # fmt: skip


def xl330(out: Path, quick: bool) -> list[dict[str, Any]]:
    """Mean absolute error over 6 s at a gain that was not fitted, friction under load and a sagging supply."""
    seeds = {"200": 1} if quick else {"200": 4, "800": 1, "100": 1}
    asked = [(gain, seed) for gain, count in seeds.items() for seed in range(count)]
    found = dict(zip(asked, pooled(_servo, asked), strict=True))
    scene = Scene.load("servo_pendulum")
    episodes, before = recorded("xl330", "xl330", scene), without_delta(scene)
    rows = []
    for gain, count in seeds.items():
        each = np.array([found[gain, seed][0] for seed in range(count)])
        drops = np.array([found[gain, seed][1] for seed in range(count)])
        # The goal is for a gain between those that were fitted.
        rows.append(error_row(f"xl330, unseen gain {gain}", each.mean(axis=0), "mrad", 42.0 if gain == "200" else None))
        if drops.size:
            rows.append(error_row(f"xl330, unseen gain {gain}, motor off", drops.mean(axis=0), "mrad", 42.0))
        if count > 1:
            spread = float(np.ptp(each.mean(axis=1)))
            rows.append(error_row(f"xl330, unseen gain {gain}, spread of {count} seeds", [spread], "mrad", 3.0))
        outside = [e for e in episodes if e.meta["kp"] == gain and e.powered.all()]
        nominal = [1e3 * float(np.abs(e).mean()) for e in paths(before, outside)]
        rows.append(error_row(f"xl330, gain {gain}, published values", nominal, "mrad"))
    return rows


def _servo(gain: str, seed: int) -> tuple[list[float], list[float]]:
    """Error of each run at a gain, from a fit to the other gains [mrad]: motor always on, and switched off to drop."""
    scene = Scene.load("servo_pendulum")
    episodes = recorded("xl330", "xl330", scene)
    inside = [e for e in episodes if e.meta["kp"] != gain]
    powered, drops = ([e for e in episodes if e.meta["kp"] == gain and e.powered.all() == on] for on in (True, False))
    options = ShootingOptions(
        window=6.0, fixed_start=True, guesses=2, random_guesses=seed > 0, seed=seed, iterations=25
    )
    sim, _ = identified(scene, inside, SERVO, options, {})
    return (
        [1e3 * float(np.abs(e).mean()) for e in paths(sim, powered)],
        [1e3 * float(np.abs(e).mean()) for e in paths(sim, drops)] if drops else [],
    )


def furuta(out: Path, quick: bool) -> list[dict[str, Any]]:
    """Open-loop errors over the 10 s chirp, and over swing-ups up to the balance, of runs that were not fitted.

    A cable that pulls the arm back, harder once it is taut, is what the nominal model lacks. Chirps of one sign alone
    does not show how it pulls on the other side; swing-ups can.
    """
    scene = Scene.load("furuta")
    judged = furuta_judged(scene, furuta_split(recorded("quanser_wam", "quanser_wam/furuta", scene))[1])
    days = {"fitted to three days": "", "fitted to the day of the chirp": SAME_DAY}
    settings = pooled(_pulled, [(day,) for day in days.values()])
    worlds = {"published values": without_delta(scene)}
    worlds |= {words: without_delta(scene).tuned(found) for words, found in zip(days, settings, strict=True)}
    rows = []
    for name, runs in judged.items():
        for words, world in worlds.items():
            errors = 1e3 * np.array([rms(e) for e in paths(world, runs)])
            for j, (angle, goal) in enumerate(GOALS.items()):
                bar = goal if "three" in words else None
                rows.append(error_row(f"furuta, {words}, {name}, {angle}", errors[:, j], "mrad", bar))
    return rows


def furuta_split(episodes: Sequence[Episode]) -> tuple[list[Episode], list[Episode]]:
    """Two chirps and every second swing-up to fit, the others to judge."""
    chirps, swings = ([e for e in episodes if ("chrip" in e.meta["group"]) == wanted] for wanted in (True, False))
    return [*chirps[:2], *swings[::2]], [*chirps[2:], *swings[1::2]]


def furuta_judged(scene: Scene, held_out: Sequence[Episode]) -> dict[str, list[Episode]]:
    """What is judged of held-out recordings: whole chirps, and swing-ups until the pendulum is balanced."""
    chirps = [e for e in held_out if "chrip" in e.meta["group"]]
    up = [e.rows(0, round(UPRIGHT / scene.dt)) for e in held_out if "chrip" not in e.meta["group"]]
    return {
        "held-out repeats of the chirp": chirps,
        "held-out swing-ups, first volts below 0": [e for e in up if e.action[FIRST, 0] < 0],
        "held-out swing-ups, first volts above 0": [e for e in up if e.action[FIRST, 0] > 0],
    }


def _pulled(day: str) -> dict[str, float]:
    """The furuta's parameters, found from two chirps and every second swing-up of one day, or of all."""
    scene = Scene.load("furuta")
    episodes = recorded("quanser_wam", "quanser_wam/furuta", scene)
    inside = [e for e in furuta_split(episodes)[0] if "chrip" in e.meta["group"] or day in e.meta["group"]]
    options = ShootingOptions(window=10.0, fixed_start=True, guesses=1, iterations=30, drop_unpredictable=True)
    return identified(scene, inside, CABLE, options, {})[1]
