"""Parity of two simulators: order, units, signs, frames, gains and motion must mean the same in both."""

from __future__ import annotations

import numpy as np

from instep.core.rollout import Script, replay, rollout
from instep.core.world import Array, Simulator, array_dataclass, frozen_dataclass, options_dataclass
from instep.scene.folder import Scene
from instep.scene.model import site_poses

from .evaluation import action_bounds

WIGGLE = 0.05
"""Most by which an actuator is moved to see what answers [rad, m or their rates]."""
SECONDS = 2.0
"""How long the motion lasts by which two simulators are compared [s]."""


@options_dataclass
class ParityLimits:
    """How far two simulators may be apart, as a share of how far each joint moved."""

    one_step: float = 0.5
    half_second: float = 0.2
    answer: float = 0.6
    """By how much the answer of a joint to its own actuator may differ."""
    frame: float = 0.002
    """How far apart the tips may be in the same pose [m]."""


@frozen_dataclass
class ParityCheck:
    """One property, and whether two simulators agree on it."""

    check: str
    """names, units, order, sign, gain, frame, one step or half a second."""
    ok: bool
    words: str


@array_dataclass
class ParityWorld:
    """A simulator with the scene it was made from."""

    name: str
    sim: Simulator
    scene: Scene


def check_parity(first: ParityWorld, second: ParityWorld, limits: ParityLimits | None = None) -> list[ParityCheck]:
    """Compare two simulators before a policy is judged by them; each finding names the culprit."""
    limits = limits or ParityLimits()
    named = [_names(first, second), _units(first, second)]
    if not all(finding.ok for finding in named):
        return named  # nothing else would mean anything
    return [*named, *_answers(first, second, limits), *_frames(first, second, limits), *_motion(first, second, limits)]


def _names(first: ParityWorld, second: ParityWorld) -> ParityCheck:
    for what in ("action", "q"):
        a, b = getattr(first.sim.spec, what).labels, getattr(second.sim.spec, what).labels
        thing = "action" if what == "action" else "position"
        if a == b:
            continue
        if sorted(a) == sorted(b):
            i = next(i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)
            words = f"{thing} {i} is {a[i]!r} in {first.name} and {b[i]!r} in {second.name}: the order differs"
            return ParityCheck("order", False, words)
        missing = sorted(set(a) ^ set(b))
        return ParityCheck("names", False, f"{thing} {missing[0]!r} is in one of {first.name}, {second.name} only")
    return ParityCheck("names", True, "the same actions and positions, in the same order")


def _units(first: ParityWorld, second: ParityWorld) -> ParityCheck:
    pairs = zip(first.sim.spec.action.labels, first.sim.spec.action.units, second.sim.spec.action.units, strict=True)
    for label, a, b in pairs:
        if a != b:
            return ParityCheck("units", False, f"{label!r} is in {a} in {first.name} and in {b} in {second.name}")
    return ParityCheck("units", True, "the same units")


def _answers(first: ParityWorld, second: ParityWorld, limits: ParityLimits) -> list[ParityCheck]:
    """Move one actuator at a time and see which joint answers, which way, how far and how fast."""
    a, b = _responses(first), _responses(second)
    labels, joints = first.sim.spec.action.labels, first.scene.robot
    found: list[ParityCheck] = []
    for i, label in enumerate(labels):
        own = int(np.argmax(np.abs(a.far[i])))
        if int(np.argmax(np.abs(b.far[i]))) != own:
            other = joints[int(np.argmax(np.abs(b.far[i])))]
            words = f"{label!r} moves {joints[own]!r} in {first.name}, but {other!r} in {second.name}"
            found.append(ParityCheck("order", False, words))
            continue
        far, soon = (float(y[i, own] / x[i, own]) if x[i, own] else 1.0 for x, y in ((a.far, b.far), (a.soon, b.soon)))
        if far < 0:
            words = f"{label!r} moves {joints[own]!r} the other way in {second.name}"
            found.append(ParityCheck("sign", False, words))
        elif _unlike(far, limits):
            hints = {180 / np.pi: "; degrees for radians?", np.pi / 180: "; radians for degrees?", 1e3: "; mm?"}
            hint = next((words for value, words in hints.items() if abs(np.log(max(far, 1e-9) / value)) < 0.15), "")
            words = f"{joints[own]!r} moves {far:.3g} times as far in {second.name} as in {first.name}{hint}"
            found.append(ParityCheck("gain", False, words))
        elif _unlike(soon, limits):
            # A gain in other units moves a joint as far in the end, but not as fast.
            words = f"{joints[own]!r} starts {soon:.3g} times as fast in {second.name} as in {first.name}"
            found.append(ParityCheck("gain", False, f"{words}: its gains differ"))
    return found or [ParityCheck("order", True, "every actuator moves its own joint, as far and as fast in both")]


def _unlike(ratio: float, limits: ParityLimits) -> bool:
    return abs(np.log(max(ratio, 1e-9))) > np.log1p(limits.answer)


@array_dataclass
class _Response:
    soon: Array
    """How far each joint moved in the first steps [actuators, joints]."""
    far: Array
    """How far it moved in the end."""


def _responses(side: ParityWorld) -> _Response:
    rest, sim = side.scene.rest_action(), side.sim
    count, size = len(rest), _sizes(side)
    start = sim.reset(0)
    q = np.repeat(start.q[None], count + 1, axis=0)
    state = sim.place(q, np.repeat(start.v[None], count + 1, axis=0))
    actions = np.repeat(rest[None], count + 1, axis=0)
    actions[np.arange(count), np.arange(count)] += size
    where = [sim.spec.q.labels.index(joint) for joint in side.scene.robot]
    steps, early = max(4, round(0.5 / sim.spec.dt)), max(2, round(0.04 / sim.spec.dt))
    soon = np.zeros((count, len(where)))
    for k in range(steps):
        state = sim.step(state, actions)
        if k == early - 1:
            soon = (state.q[:count] - state.q[count])[:, where]
    # The last world keeps its command: what moves there as well is no response.
    return _Response(soon, (state.q[:count] - state.q[count])[:, where])


def _sizes(side: ParityWorld) -> Array:
    """By how much to move each actuator: away from the nearer end of its range."""
    low, high = action_bounds(side.scene)
    span = np.where(np.isfinite(high), high - low, 2.0)
    size = np.minimum(0.04 * span, WIGGLE)
    middle = np.where(np.isfinite(high), 0.5 * (low + high), np.inf)
    return np.where(side.scene.rest_action() > middle, -size, size)


def _frames(first: ParityWorld, second: ParityWorld, limits: ParityLimits) -> list[ParityCheck]:
    """The tips must be in the same place for the same joints."""
    shared = [tip for tip in first.scene.tips if tip in second.scene.tips]
    models = (first.scene.model, second.scene.model)
    if not shared or models[0].nq != models[1].nq:
        return []
    q = np.stack([first.scene.start(seed)[0] for seed in range(5)])
    a, b = (site_poses(model, q, shared)[..., :3] for model in models)
    apart = np.linalg.norm(a - b, axis=-1).max(axis=0)
    worst = int(np.argmax(apart))
    ok = bool(apart[worst] <= limits.frame)
    words = f"{shared[worst]!r} is {1e3 * apart[worst]:.3g} mm apart in the same pose"
    return [ParityCheck("frame", ok, words if not ok else "the tips are in the same places")]


def _motion(first: ParityWorld, second: ParityWorld, limits: ParityLimits) -> list[ParityCheck]:
    """What the second predicts of a motion of the first, a step and half a second ahead, joint by joint."""
    rest, dt = first.scene.rest_action(), first.sim.spec.dt
    steps = max(4, round(SECONDS / dt))
    t, rng = np.arange(steps) * dt, np.random.default_rng((0, 0x9A21))
    # Away from the nearer end of each range, and back, each at a rate of its own.
    swing = 0.5 - 0.5 * np.cos(2 * np.pi * rng.uniform(0.6, 1.2, len(rest)) * t[:, None])
    low, high = action_bounds(first.scene)
    size = _sizes(first)
    actions = np.clip(rest + size * swing, low, high)
    episode = rollout(first.sim, Script(actions), steps=steps)
    where = [episode.spec.q.labels.index(joint) for joint in first.scene.robot]
    found: list[ParityCheck] = []
    for name, ahead, limit in (
        ("one step", 1, limits.one_step),
        ("half a second", max(2, round(0.5 / dt)), limits.half_second),
    ):
        rows = np.arange(ahead, len(episode), ahead)
        error = (replay(second.sim, episode, anchor=ahead).q - episode.q)[rows][:, where]
        moved = (episode.q[rows] - episode.q[rows - ahead])[:, where]
        floor = (0.02 * np.abs(size).min()) ** 2  # a joint that hardly moves is not judged by its own motion
        share = np.sqrt((error**2).mean(axis=0) / np.maximum((moved**2).mean(axis=0), floor))
        worst = int(np.argmax(share))
        joint, ok = first.scene.robot[worst], bool(share[worst] <= limit)
        words = f"{joint!r} is off by {100 * share[worst]:.3g} % of its motion over {name}, {100 * limit:g} % allowed"
        found.append(ParityCheck(name, ok, words))
    return found
