"""Adaptive control of arms with hidden payload, friction and actuator loss: tracking, limits, stability and cost.

The reference model is the scene in MuJoCo with the parameters an identification would have left in it. The robot is the
scene in rapier, with one large hidden change, small errors of every other parameter, noise, quantisation and delay. The
error is that of the true joints to the model over the motion, which begins after half a second at rest. Errors with and
without adaptive control are compared robot by robot. The law was developed on seeds below 1000 and is judged on others.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import mujoco
import numpy as np

from harness import KeptCases, Row, median, row
from instep import Scene, open_world
from instep.core.statistics import Estimate, bootstrap, wilson
from instep.core.world import Array, Simulator, State, World, Wrapper
from instep.policy import Adaptive, AdaptiveOptions
from instep.policy.reference_model import ReferenceArm
from instep.robot import Guarded, Late, Noisy, Quantized, scene_limits
from instep.scene import address
from instep.scene.folder import SceneSimulator
from instep.scene.robot_structure import without_free_bodies
from tuning.planted_arms import MODELS, begin_pose, force_range, motion, random_arm

FIRST_SEED, CASES, QUICK_CASES = 1000, 20, 2
METHODS = ("none", "mrac")
RANDOM_CASES, QUICK_RANDOM_CASES = 1000, 40
RATE = 500.0
"""Rate at which the share of a core is measured [Hz]."""


def run(out: Path, quick: bool = False) -> list[Row]:
    """Measure tracking on every arm, then stability and cost."""
    kept, rows = KeptCases(out), list[Row]()
    seconds, cases = (4.0, QUICK_CASES) if quick else (8.0, CASES)
    arms = identified_arms()
    seeds = range(FIRST_SEED, FIRST_SEED + cases)
    tasks = {
        f"{arm.name} {change} {seed}": (_case, (arm, change, seed, seconds))
        for arm in arms
        for change in CHANGES
        for seed in seeds
    }
    found = dict(zip(tasks, kept.measured_in_processes("arms with a hidden change", tasks), strict=True))
    for arm in arms:
        for change in CHANGES:
            chosen = [found[f"{arm.name} {change} {seed}"] for seed in seeds]
            rows += _tracking(f"{arm.name}, {change}", {m: [case[m]["error"] for case in chosen] for m in METHODS})
    inside = [case[method]["inside"] for case in found.values() for method in METHODS]
    rows.append(
        row("runs in which every command was inside the limits", wilson(sum(inside), len(inside)), at_least=1.0)
    )
    many = QUICK_RANDOM_CASES if quick else RANDOM_CASES
    tasks = {f"random {seed}": (_random, (seed,)) for seed in range(FIRST_SEED, FIRST_SEED + many)}
    randomly = kept.measured_in_processes("random arms", tasks)
    stable = sum(case["stable"] for case in randomly)
    rows.append(row(f"stable runs of {many} random robots", wilson(stable, many), at_least=1.0))
    rows.append(row(f"share of a core at {RATE:g} Hz, mrac on 7 joints", _core_share(arms[0]), "%", at_most=10.0))
    rows.append(row("robot time", len(inside) * seconds / 60, "min"))
    rows.append(row("computer time", kept.cpu_s() / 60, "min"))
    return rows


def _case(arm: IdentifiedArm, change: Change, seed: int, seconds: float) -> dict[str, Any]:
    robot = hidden_robot(arm, change, seed)
    trials = {method: run_trial(arm, robot, seed, method != "none", seconds) for method in METHODS}
    return {method: asdict(trial) for method, trial in trials.items()}


def _tracking(name: str, errors: dict[str, list[float]]) -> list[Row]:
    """The errors, and by how much adaptive control cuts them, robot by robot."""
    rows = [row(f"{name}: RMS error, {method}", median(found), "mrad") for method, found in errors.items()]
    rows.append(row(f"{name}: cut by mrac against none", _cut(errors["mrac"], errors["none"]), "%", at_least=60.0))
    return rows


def _cut(error: list[float], other: list[float]) -> Estimate:
    """Mean share of an error that is gone, over pairs [%]."""
    return bootstrap(100 * (1 - np.asarray(error) / np.asarray(other)), unit="%")


def _random(seed: int) -> dict[str, Any]:
    """A random arm, its gains, delay and changes beyond what the model knows: does the run stay bounded?"""
    return {"stable": random_case(seed)}


def _core_share(arm: IdentifiedArm) -> Estimate:
    """CPU time of a step of the wrapper without that of the robot, over the period [%]."""
    return median(100 * RATE * np.asarray(step_costs(arm)), "%")


Change = Literal["payload", "friction", "actuator loss", "nothing"]
CHANGES: tuple[Change, ...] = ("payload", "friction", "actuator loss")
NOISE, RESOLUTION, DELAY = 1e-4, 5e-5, 0.010
"""Noise and step of position sensors [rad], and delay of commands [s]."""
SECONDS, HOLD = 8.0, 0.5
"""Length of the motion and of the rest before it [s]."""
SCALES, MAX_EFFORT = (1.0, 0.6, 0.35, 0.2, 0.1), 0.5
"""Sizes of motions that are tried, and the largest share of its torque that a servo of the model may need."""


@dataclass(frozen=True, slots=True, eq=False)
class IdentifiedArm:
    """An arm as identified."""

    name: str
    scene: Scene
    settings: Mapping[str, float]
    scale: float = 1.0
    """Size of its motions: the largest at which its servos have torque to spare."""

    def commands(self, seed: int, seconds: float) -> Array:
        """A rest, then a motion [rows, nu]."""
        moved = motion(self.scene, seed, self.scale, seconds)
        return np.concatenate([np.repeat(moved[:1], round(HOLD / self.scene.dt), axis=0), moved])

    def model(self) -> SceneSimulator:
        """The reference model."""
        return open_world(self.scene, threads=1).tuned(self.settings)


def identified_arms() -> list[IdentifiedArm]:
    """The arms, each at the rate of a follower."""
    arms = [_arm("arm7", Scene.load("arm7"), 250.0), _arm("so101", Scene.load("so101"), 200.0)]
    path = MODELS / "universal_robots_ur5e" / "ur5e.xml"
    if path.is_file():
        arms.append(_arm("ur5e", Scene.load(path), 250.0))
    return arms


def _arm(name: str, scene: Scene, rate: float) -> IdentifiedArm:
    """A scene at a rate with what an identification would have found: dry friction of 2 % of the torque, and a delay.

    The servos of the so101 scene are so stiff that no payload moves them by what its encoders resolve; those of the
    arms that hobbyists build are not. They get 50 Nm/rad and 1 Nm s/rad.
    """
    alone = without_free_bodies(scene) or scene
    alone = replace(alone, reader=replace(alone.reader, spec=replace(alone.reader.spec, dt=1 / rate)))
    settings: dict[str, float] = {address.DELAY: DELAY}
    for a in range(alone.model.nu):
        joint = alone.model.joint(int(alone.model.actuator_trnid[a, 0])).name
        if name == "so101":
            actuator = alone.model.actuator(a).name
            settings |= {f"actuator.{actuator}.kp": 50.0, f"actuator.{actuator}.kv": 1.0}
        elif joint != "gripper":
            settings[f"joint.{joint}.frictionloss"] = 0.02 * force_range(alone.model, a)
    arm = IdentifiedArm(name, alone, settings)
    for scale in SCALES:
        arm = replace(arm, scale=scale)
        if _effort_share(arm) <= MAX_EFFORT:
            break
    return arm


def _effort_share(arm: IdentifiedArm) -> float:
    """Largest torque of the model's servos in a motion, as a share of their limits."""
    model, share = arm.model(), 0.0
    servos = ReferenceArm.of(model)
    commands = arm.commands(0, 4.0)
    state = model.place(begin_pose(arm.scene)[0], np.zeros(model.spec.v.shape), past=commands[:1])
    for k, command in enumerate(commands):
        state = model.step(state, command)
        if k * arm.scene.dt >= HOLD:
            efforts = servos.motion(state.q, state.v, None, command).effort
            share = max(share, float(np.max(np.abs(efforts) / servos.servos.limit)))
    return share


def hidden_robot(arm: IdentifiedArm, change: Change, seed: int) -> Simulator:
    """The robot of a seed, in another engine."""
    return open_world(arm.scene, "rapier").tuned(hidden_settings(arm, change, seed))


def hidden_settings(arm: IdentifiedArm, change: Change, seed: int) -> dict[str, float]:
    """What a robot has that its model lacks: one large change, and errors of an identification in the rest."""
    rng, model = np.random.default_rng((seed, 0xADA)), arm.model().model
    truth = dict(arm.settings)
    for pattern, error in {"joint.*.damping": 0.1, "joint.*.frictionloss": 0.1, "joint.*.armature": 0.05}.items():
        values = address.read(model, address.matching(model, [pattern]))
        truth |= {name: value * (1 + error * rng.uniform(-1, 1)) for name, value in values.items() if value > 0}
    for body in address.matching(model, ["body.*.mass"]):
        value = address.read(model, [body])[body]
        if value > 0:
            truth[body] = value * (1 + 0.02 * rng.uniform(-1, 1))
    truth[address.DELAY] = DELAY + 0.002 * rng.uniform(-1, 1)
    size = rng.uniform(0.8, 1.2)
    if change == "payload":
        truth |= _payload(arm, 0.3 * size, rng, truth)
    elif change == "friction":
        factor = 1 + 2 * size
        names = [name for name in truth if name.endswith((".damping", ".frictionloss"))]
        truth |= {name: factor * truth[name] for name in names}
    elif change == "actuator loss":
        servos = address.read(model, address.matching(model, ["actuator.*.kp", "actuator.*.kv"]))
        truth |= {name: (1 - 0.3 * size) * value for name, value in servos.items()}
    return truth


def _payload(
    arm: IdentifiedArm, share: float, rng: np.random.Generator, truth: Mapping[str, float]
) -> dict[str, float]:
    """A body at the tip, up to 5 cm off it, that raises the largest holding torque of the arm by a share."""
    model = arm.model().model
    data, held, lever = mujoco.MjData(model), 0.0, 0.0
    tip = tip_body(arm.scene)
    jacobian = np.zeros((3, model.nv))
    for q in motion(arm.scene, 0, arm.scale)[::50]:
        data.qpos[: len(q)] = q
        mujoco.mj_forward(model, data)
        mujoco.mj_jac(model, data, jacobian, None, data.xpos[tip], tip)
        held = max(held, float(np.abs(data.qfrc_bias).max()))
        lever = max(lever, float(np.abs(jacobian[2]).max()))
    mass, name = share * held / (9.81 * lever), model.body(tip).name
    own = truth.get(f"body.{name}.mass", float(model.body_mass[tip]))
    com = (own * model.body_ipos[tip] + mass * rng.uniform(-0.05, 0.05, 3)) / (own + mass)
    places = {f"body.{name}.com_{axis}": float(value) for axis, value in zip("xyz", com, strict=True)}
    return {f"body.{name}.mass": own + mass, **places}


def tip_body(scene: Scene) -> int:
    """The body that carries the tip, or the last one."""
    model = scene.model
    return int(model.site(scene.tips[0]).bodyid[0]) if scene.tips else int(model.jnt_bodyid[-1])


def sensed(robot: Simulator) -> World:
    """The robot as a program meets it: noisy, quantised sensors that are a period late."""
    return Late(Noisy(Quantized(robot, RESOLUTION), NOISE), observation=1)


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of one run."""

    error: float
    """RMS error of the true joints to the model [mrad]."""
    worst: float
    """Largest error [mrad]."""
    inside: bool
    """Whether every command was inside the limits, and all was finite."""


def run_trial(arm: IdentifiedArm, robot: Simulator, seed: int, adaptive: bool, seconds: float = SECONDS) -> Trial:
    """One run of a robot, with plain servos or with adaptive control."""
    commands = arm.commands(seed, seconds)
    wanted = reference_positions(arm, commands)
    limits = scene_limits(arm.scene)
    world = Guarded(sensed(robot), limits)
    if adaptive:
        world = Adaptive.around(world, arm.model(), AdaptiveOptions(noise=1.5 * NOISE))
    state = world.place(begin_pose(arm.scene)[0], np.zeros(robot.spec.v.shape), past=commands[:1])
    errors, inside, index = np.empty((len(commands), len(_driven(arm)))), True, _driven(arm)
    for k, command in enumerate(commands):
        state = world.step(state, command)
        errors[k] = (state.q - wanted[k])[index]
        sent = world.observe(state)["action.sent"]
        inside &= bool(np.all((sent >= limits.low) & (sent <= limits.high)) and np.isfinite(errors[k]).all())
    errors = errors[round(HOLD / arm.scene.dt) :]
    return Trial(1e3 * float(np.sqrt(np.mean(errors**2))), 1e3 * float(np.abs(errors).max()), inside)


def reference_positions(arm: IdentifiedArm, commands: Array) -> Array:
    """Where the model is after each command [rows, nq]."""
    model = arm.model()
    state = model.place(begin_pose(arm.scene)[0], np.zeros(model.spec.v.shape), past=commands[:1])
    rows = np.empty((len(commands), len(state.q)))
    for k, command in enumerate(commands):
        state = model.step(state, command)
        rows[k] = state.q
    return rows


def _driven(arm: IdentifiedArm) -> list[int]:
    """Positions of the joints that are scored: those of the arm, not of a gripper."""
    return [i for i, label in enumerate(arm.scene.spec.q.labels) if "gripper" not in label and "finger" not in label]


def random_case(seed: int) -> bool:
    """Whether a run of a random robot stays bounded: no farther from its model than a plain servo, or 20 mrad.

    A random arm with planted parameters is the model; the robot has up to a factor of 2 in each gain and inertia, three
    times the friction, a payload of up to 60 % of its holding torque, and up to 10 ms more delay.
    """
    rng = np.random.default_rng((seed, 0x57AB))
    arm = _random_arm(seed)
    truth = hidden_settings(arm, CHANGES[seed % 3], seed)
    for name in list(truth):
        if name.startswith(("actuator.", "joint.")):
            truth[name] *= 2 ** rng.uniform(-0.7, 0.7)
    truth[address.DELAY] = arm.settings[address.DELAY] + rng.uniform(0, 0.01)
    robot = open_world(arm.scene, threads=1).tuned(truth)
    plain = run_trial(arm, robot, seed, False, 2.0)
    found = run_trial(arm, robot, seed, True, 2.0)
    return found.inside and found.worst <= max(2 * plain.worst, 20.0)


def _random_arm(seed: int) -> IdentifiedArm:
    """A random arm of position servos (those of even seeds) at 200 Hz with a delay of 5 to 30 ms."""
    rng = np.random.default_rng((seed, 0xA53))
    number = 2 * (seed % 60)
    with tempfile.TemporaryDirectory() as folder:
        scene = Scene.load(random_arm(number, Path(folder)).scene)
    timestep = scene.model.opt.timestep
    arm = _arm(f"random {number}", scene, 1 / (round(0.005 / timestep) * timestep))
    return replace(arm, settings={**arm.settings, address.DELAY: rng.uniform(0.005, 0.03)}, scale=0.5)


def step_costs(arm: IdentifiedArm, steps: int = 400) -> list[float]:
    """CPU time of single steps of mrac less that of the world inside, at 500 Hz [s]."""
    scene = replace(arm.scene, reader=replace(arm.scene.reader, spec=replace(arm.scene.spec, dt=0.002)))
    fast = replace(arm, scene=scene)
    inside, costs = list[float](), list[float]()
    world = Adaptive.around(_Timed(Guarded(fast.model(), scene_limits(scene)), inside), fast.model())
    state = world.reset(0)
    for k, command in enumerate(fast.commands(0, 4.0)[: steps + 100]):
        begin = time.thread_time()
        state = world.step(state, command)
        if k >= 100:
            costs.append(time.thread_time() - begin - inside[-1])
    return costs


@dataclass(frozen=True, slots=True, eq=False)
class _Timed(Wrapper[Guarded[SceneSimulator]]):
    """A world that notes the CPU time of its steps [s].

    They are timed where they happen: a step that is repeated right after itself finds all it needs in the caches.
    """

    spent: list[float]

    def step(self, state: State, action: Array) -> State:
        """A step of the world inside."""
        begin = time.thread_time()
        after = self.world.step(state, action)
        self.spent.append(time.thread_time() - begin)
        return after
