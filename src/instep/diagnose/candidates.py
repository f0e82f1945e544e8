"""Candidate causes of a gap: families of parameters that are changed together, each with coordinates of its own.

At coordinate 0 a parameter is as the scene has it. A family has one coordinate per joint (friction, gains), or few that
all joints share (a delay). `cause_selection` finds those that explain a gap together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from math import exp, inf, log
from typing import Any, cast

import numpy as np

from instep.core.errors import InstepError
from instep.core.param import Address
from instep.core.world import Array, Settings, Simulator, array_dataclass
from instep.scene import address
from instep.scene.folder import Scene

Values = Mapping[str, float]
"""Coordinate -> value; what is not named is left as it is."""
_ON_JOINT = 0


@array_dataclass
class Candidate:
    """A family of parameters that may explain a gap."""

    name: str
    """The failure mode it stands for."""
    cause: str
    """The cause as it is reported: two causes can stand for one failure mode, as damping and dry friction do."""
    coordinates: tuple[str, ...]
    """Names of its coordinates: joint names, or other words if all joints share them."""
    grid: tuple[tuple[float, ...], ...]
    """Points to try first, each with one number per coordinate or one for all of them."""
    low: tuple[float, ...]
    """Lowest value of each coordinate."""
    high: tuple[float, ...]
    settings: Callable[[Values], Settings]
    """The settings at some coordinates."""
    words: Callable[[Array], str]
    """A change in a few words: 'a delay of 30 ms'."""
    shared: bool = False
    """Whether coordinates act on all joints, or each on the joint of its name."""
    probe: float = 0.1
    """Change of a coordinate for measuring its effect; 0 if the effect comes in steps."""

    def at(self, x: Array) -> Settings:
        """The settings at coordinates [coordinates]; a coordinate at zero is left as it is."""
        changed = {name: float(v) for name, v in zip(self.coordinates, x, strict=True) if abs(v) > 1e-9}
        return self.settings(changed) if changed else {}

    def points(self) -> Array:
        """The points of the grid within the bounds [points, coordinates]."""
        full = np.stack([np.broadcast_to(np.asarray(p, float), len(self.coordinates)) for p in self.grid])
        return np.clip(full, self.low, self.high)


def candidate_causes(scene: Scene, sim: Simulator) -> tuple[Simulator, list[Candidate]]:
    """The simulator extended by backlash and torque limits, and the candidates that apply to its scene."""
    model = cast(Any, scene).model
    drives = _drives(model, scene.robot)
    candidates = [
        _damping(model, scene.robot, drives),
        _dry_friction(model, scene.robot, drives),
        _gains(model, drives),
        _payload(scene, model),
        _time_step(model),
        _delay(model) if model.nu else None,
        _contact_friction(scene, model),
    ]
    extended: Any = sim
    if drives and all(model.actuator_biasprm[a, 1] != 0 for a in drives.values()):
        extended, backlash = _backlash(scene, extended, drives)
        extended, limits = _torque_limits(scene, extended, drives)
        candidates += [backlash, limits]
    return extended, [c for c in candidates if c is not None]


def supported(sim: Simulator, candidates: Sequence[Candidate]) -> tuple[list[Candidate], list[str]]:
    """The candidates whose parameters this engine has, and a note about each of the others."""
    kept: list[Candidate] = []
    notes: list[str] = []
    for candidate in candidates:
        try:
            sim.tuned(candidate.at(candidate.points()[0]))
        except InstepError as error:
            notes.append(f"The cause {candidate.cause!r} was not tried: {error}")
        else:
            kept.append(candidate)
    return kept, notes


def _drives(model: Any, robot: Sequence[str]) -> dict[str, int]:
    """Joint of the robot -> the one actuator that acts on it directly."""
    found: dict[str, list[int]] = {}
    for a in range(model.nu):
        if model.actuator_trntype[a] == _ON_JOINT:
            found.setdefault(str(model.joint(model.actuator_trnid[a, 0]).name), []).append(a)
    return {joint: found[joint][0] for joint in robot if len(found.get(joint, ())) == 1}


def _strength(model: Any, actuator: int) -> float:
    """The largest torque of an actuator at its joint; without a limit that of a servo error of 0.25 rad, or of 1."""
    per_unit = abs(float(model.actuator_gainprm[actuator, 0] * model.actuator_gear[actuator, 0]))
    if model.actuator_forcelimited[actuator]:
        return float(np.abs(model.actuator_forcerange[actuator]).max() * abs(model.actuator_gear[actuator, 0]))
    if model.actuator_biasprm[actuator, 1] != 0:
        return 0.25 * per_unit
    largest = np.abs(model.actuator_ctrlrange[actuator]).max() if model.actuator_ctrllimited[actuator] else 1.0
    return per_unit * float(largest)


def _per_joint(name: str, cause: str, joints: Sequence[str], bounds: tuple[Any, Any], **rest: Any) -> Candidate:
    """A family with one coordinate for each joint; bounds are numbers or one per joint."""
    low, high = (tuple(float(x) for x in np.broadcast_to(np.asarray(b, float), len(joints))) for b in bounds)
    grid = tuple((float(x),) for x in rest.pop("grid"))
    return Candidate(name, cause, tuple(joints), grid, low, high, **rest)


def _factors(*values: float) -> tuple[float, ...]:
    return tuple(log(v) for v in values)


def _factor_words(what: str) -> Callable[[Array], str]:
    return lambda x: f"{what} times {exp(_typical(x)):.2g}"


def _typical(x: Array) -> float:
    """The median of the coordinates that were changed."""
    changed = x[np.abs(x) > 1e-9]
    return float(np.median(changed)) if changed.size else 0.0


def _damping(model: Any, robot: Sequence[str], drives: Mapping[str, int]) -> Candidate | None:
    """Viscous friction of each joint: its damping and that of its servo, which act alike, times a factor."""
    given = {k: v for k, v in _read(model, "joint.*.damping").items() if Address.parse(k).name in robot}
    servo = {j: {n: v for n, v in _read(model, f"actuator.{model.actuator(a).name}.kv").items() if v > 0}
             for j, a in drives.items()}  # fmt: skip
    joints = {Address.parse(k).name: v for k, v in given.items()}
    if not joints:
        return None
    # A joint without any damping gets a share of what its actuator gives, per rad/s.
    bare = {j: 0.05 * _strength(model, drives[j]) for j, v in joints.items() if v <= 0 and j in drives and not servo[j]}

    def settings(values: Values) -> Settings:
        found: dict[str, float] = {}
        for joint, x in values.items():
            if joint in bare:
                found[f"joint.{joint}.damping"] = bare[joint] * max(exp(x) - 1, 0.0)
                continue
            if joints[joint] > 0:
                found[f"joint.{joint}.damping"] = joints[joint] * exp(x)
            found |= {name: v * exp(x) for name, v in servo.get(joint, {}).items()}
        return found

    factors = _factors(1.5, 2.5, 5.0, 10.0, 0.6, 0.3)
    bounds = (np.array([0.0 if j in bare else log(0.05) for j in joints]), log(40))
    words = _factor_words("joint damping")
    return _per_joint("friction", "joint damping", list(joints), bounds, grid=factors, settings=settings, words=words)


def _dry_friction(model: Any, robot: Sequence[str], drives: Mapping[str, int]) -> Candidate | None:
    """Dry friction in every joint of the robot beyond the model's, as a share of its actuator's torque."""
    given = {Address.parse(k).name: v for k, v in _read(model, "joint.*.frictionloss").items()}
    joints = {j: given[j] for j in robot if j in given and j in drives}
    if not joints:
        return None
    strength = {j: _strength(model, drives[j]) for j in joints}

    def settings(values: Values) -> Settings:
        return {f"joint.{j}.frictionloss": max(joints[j] + x * strength[j], 0.0) for j, x in values.items()}

    def words(x: Array) -> str:
        return f"dry friction of {100 * _typical(x):.2g} % of the torque of the actuators"

    low = np.array([-v / strength[j] for j, v in joints.items()])
    grid = (0.005, 0.015, 0.04, 0.1, 0.25, *([-1.0] if low.any() else []))
    return _per_joint(
        "friction", "dry friction", list(joints), (low, 1.0), grid=grid, settings=settings, words=words, probe=0.01
    )


def _gains(model: Any, drives: Mapping[str, int]) -> Candidate | None:
    """The stiffness of each servo, or the gain of each motor, times a factor."""
    nominal: dict[str, tuple[str, float]] = {}
    for joint, a in drives.items():
        own = _read(model, f"actuator.{model.actuator(a).name}.*")
        field = "kp" if model.actuator_biasprm[a, 1] != 0 else "gain"
        name = f"actuator.{model.actuator(a).name}.{field}"
        if own.get(name, 0.0) > 0:
            nominal[joint] = (name, own[name])
    if not nominal:
        return None

    def settings(values: Values) -> Settings:
        return {nominal[j][0]: nominal[j][1] * exp(x) for j, x in values.items()}

    servos = any(name.endswith(".kp") for name, _ in nominal.values())
    words = _factor_words("servo stiffness" if servos else "motor gain")
    factors = _factors(0.85, 0.65, 0.4, 1.2, 1.6, 2.5)
    bounds = (log(0.05), log(20))
    return _per_joint("gains", "gains", list(nominal), bounds, grid=factors, settings=settings, words=words)


def _payload(scene: Scene, model: Any) -> Candidate | None:
    """The masses of all links times a factor, and a mass held by the last link of each chain of joints."""
    masses = {k: v for k, v in _read(model, "body.*.mass").items() if v > 0}
    masses = {k: v for k, v in masses.items() if Address.parse(k).name not in scene.objects}
    moving = {int(model.jnt_bodyid[model.joint(name).id]) for name in scene.robot}
    parents = {int(model.body_parentid[b]) for b in moving}
    tips = {f"body.{model.body(b).name}.mass" for b in moving - parents if model.body_mass[b] > 0}
    total = float(sum(model.body_mass[b] for b in moving))
    if not masses or not tips & masses.keys():
        return None

    def settings(values: Values) -> Settings:
        factor, held = exp(values.get("links", 0.0)), max(values.get("held", 0.0), 0.0)
        return {k: factor * v + (held * total / len(tips) if k in tips else 0.0) for k, v in masses.items()}

    def words(x: Array) -> str:
        parts = [f"link masses times {exp(x[0]):.2g}"] * bool(abs(x[0]) > 0.02)
        parts += [f"a payload of {x[1] * total:.2g} kg"] * bool(x[1] > 1e-3)
        return " and ".join(parts) or "other link masses"

    links = tuple((x, 0.0) for x in _factors(1.25, 1.6, 2.2, 0.8, 0.6))
    held = tuple((0.0, x) for x in (0.03, 0.1, 0.25))
    bounds = (log(0.2), 0.0), (log(6), 1.0)
    return Candidate("payload", "payload", ("links", "held"), links + held, *bounds, settings, words, True, 0.05)


def _contact_friction(scene: Scene, model: Any) -> Candidate | None:
    """The friction at contacts of free bodies."""
    given = {k: v for k, v in _read(model, "geom.*.friction").items() if v > 0}
    if not scene.objects or not given:
        return None

    def settings(values: Values) -> Settings:
        return {k: _single(values, exp) * v for k, v in given.items()}

    words = _factor_words("contact friction")
    grid = tuple((x,) for x in _factors(0.75, 0.5, 0.3, 1.3, 1.8, 3.0))
    bounds = (log(0.1),), (log(10),)
    return Candidate("friction", "contact friction", ("all",), grid, *bounds, settings, words, True, 0.2)


def _time_step(model: Any) -> Candidate:
    """A finer physics step, which the engine rounds to one that divides the control period."""
    step = float(model.opt.timestep)

    def settings(values: Values) -> Settings:
        return {address.TIMESTEP: _single(values, exp) * step}

    words = _factor_words("a physics step")
    grid = tuple((x,) for x in _factors(0.5, 0.2))
    return Candidate("time step", "time step", ("all",), grid, (log(0.2),), (0.0,), settings, words, True, 0.0)


def _delay(model: Any) -> Candidate:
    """A delay of all commands beyond the scene's."""
    given = float(_read(model, address.DELAY)[address.DELAY])

    def settings(values: Values) -> Settings:
        return {address.DELAY: given + _single(values, float)}

    def words(x: Array) -> str:
        return f"a delay of {1e3 * (given + x[0]):.0f} ms"

    grid = ((0.01,), (0.02,), (0.03,), (0.045,), (0.06,), (0.09,), (0.13,), *([(-given,)] if given else []))
    bounds = (-given,), (address.LONGEST_DELAY - given - 1e-3,)
    probe = max(0.006, 1.5 * float(model.opt.timestep))
    return Candidate("latency", "latency", ("all",), grid, *bounds, settings, words, True, probe)


def _single(values: Values, form: Callable[[float], float]) -> float:
    return form(next(iter(values.values())))


def _backlash(scene: Scene, sim: Any, drives: Mapping[str, int]) -> tuple[Any, Candidate]:
    """The simulator with backlash in its gears, zero at first."""
    from instep.robot import Backlash

    order = _by_action(scene, drives)

    def settings(values: Values) -> Settings:
        return cast(Settings, {"action.backlash": tuple(values.get(joint, 0.0) for joint in order)})

    def words(x: Array) -> str:
        return f"backlash of {1e3 * _typical(x):.0f} mrad"

    grid = (0.005, 0.015, 0.03, 0.06, 0.12)
    made = _per_joint(
        "backlash", "backlash", list(drives), (0.0, 0.4), grid=grid, settings=settings, words=words, probe=0.01
    )
    return Backlash(sim, gap=0.0), made


def _torque_limits(scene: Scene, sim: Any, drives: Mapping[str, int]) -> tuple[Any, Candidate | None]:
    """Torque limits of the actuators: the model's own times a factor, or of a simulator that gets some."""
    model = cast(Any, scene).model
    names = {joint: f"actuator.{model.actuator(a).name}.force" for joint, a in drives.items()}
    if all(model.actuator_forcelimited[a] for a in drives.values()):
        given = _read(model, "actuator.*.force")

        def scaled(values: Values) -> Settings:
            return {names[j]: given[names[j]] * exp(-x) for j, x in values.items()}

        return sim, _limits(drives, scaled, "the model's torque limits")
    return _saturated(scene, sim, drives)


def _saturated(scene: Scene, sim: Any, drives: Mapping[str, int]) -> tuple[Any, Candidate | None]:
    """The simulator with torque limits, as shares of the torque of a 0.3 rad (or 3 cm) position error."""
    from instep.robot import Saturated

    model = cast(Any, scene).model
    order = _by_action(scene, drives)
    if set(order) != set(scene.spec.action.labels):
        return sim, None
    servos = [drives[joint] for joint in order]
    stiffness = tuple(float(model.actuator_gainprm[a, 0]) for a in servos)
    damping = tuple(-float(model.actuator_biasprm[a, 2]) for a in servos)
    units = scene.spec.action.units
    full = [k * (0.3 if unit == "rad" else 0.03) for k, unit in zip(stiffness, units, strict=True)]

    def settings(values: Values) -> Settings:
        share = [exp(-values[joint]) if joint in values else inf for joint in order]
        return cast(Settings, {"action.torque": tuple(s * f for s, f in zip(share, full, strict=True))})

    limited = Saturated(sim, torque=inf, speed=inf, stiffness=stiffness, damping=damping)
    return limited, _limits(drives, settings, "that of a 0.3 rad error")


def _limits(drives: Mapping[str, int], settings: Callable[[Values], Settings], of: str) -> Candidate:
    def words(x: Array) -> str:
        return f"torque limited to {100 * exp(-_typical(x)):.0f} % of {of}"

    grid = tuple(-log(share) for share in (0.7, 0.5, 0.35, 0.25, 0.17, 0.1, 0.06))
    return _per_joint(
        "actuator limits", "actuator limits", list(drives), (0.0, 4.0), grid=grid, settings=settings, words=words
    )


def _by_action(scene: Scene, drives: Mapping[str, int]) -> list[str]:
    """The joint that each action drives; the action itself if it drives several or none."""
    model = cast(Any, scene).model
    joints = {str(model.actuator(a).name): joint for joint, a in drives.items()}
    return [joints.get(label, label) for label in scene.spec.action.labels]


def _read(model: Any, pattern: str) -> dict[str, float]:
    """The values of all parameters that match a pattern."""
    params = cast(Any, address)
    known = [a for a in params.addresses(model) if fnmatchcase(a, pattern)]
    return dict(params.read(model, known))
