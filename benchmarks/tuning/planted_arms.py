"""Arms with planted parameters: robot files, shipped scenes and arms made at random, and recordings of them.

A recording is what a user has: noisy joint positions and commands of runs of several seconds. Position servos follow a
smooth sum of sines; motors get the torques of a controller that follows it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import mujoco
import numpy as np

from instep import Episode, Scene, open_world
from instep.core.errors import BadInput, Diverged
from instep.core.param import Address
from instep.core.rollout import aligned, replay_all
from instep.core.world import Array, Simulator, State
from instep.physics.engine_model import touching
from instep.physics.engines import Engine
from instep.scene import address
from instep.scene.folder import shipped
from instep.tune.scene_gates import chattering

MODELS = Path(__file__).resolve().parents[3] / "shared" / "models"
"""Robot files that are read in place where they are there."""
RUNS, HELD_OUT, SECONDS = 4, 2, 10.0
"""Runs given to the identification, runs kept aside, and their length [s]."""
NOISE = {"rad": 1e-4, "m": 1e-5}
"""Noise of measured positions by the unit of the joint."""
SCALES = (1.0, 0.6, 0.35, 0.2, 0.1)
"""Sizes of the motion that are tried: until nothing touches that did not at rest, all is predictable, none chatters."""
MAX_TRUTH_ERROR = 5.0
"""Largest open-loop error of the planted truth [mrad]: above it the motion amplifies the noise of its first row."""
UNFOLDED = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Shares of the way from the start of a scene to the middle of its joints' ranges at which motions may begin."""
BANDWIDTH = 6.0
"""Natural frequency of the controller that makes torque commands [rad/s]."""
_ON_JOINT, _FREE = int(mujoco.mjtTrn.mjTRN_JOINT), int(mujoco.mjtJoint.mjJNT_FREE)


@dataclass(frozen=True, slots=True)
class Arm:
    """An arm to be identified, as a user would name it."""

    name: str
    scene: str
    """Name of a shipped scene, or path of a robot file."""


@dataclass(frozen=True, slots=True, eq=False)
class PlantedArm:
    """A scene as given, the parameters of the arm it stands for, and recordings of that arm."""

    scene: Scene
    truth: Mapping[str, float]
    runs: Sequence[Episode]
    held_out: Sequence[Episode]
    scale: float
    """Size of the motion."""


def robot_files(folder: Path = MODELS) -> list[Arm]:
    """The arms among robot files; files with a free body (legged robots, loose objects) and frames are no arms."""
    found: list[Arm] = []
    for path in sorted(folder.glob("*/*.xml")):
        if "<include" in path.read_text(encoding="utf-8"):
            continue
        model = Scene.load(path).model
        if not (model.jnt_type == _FREE).any():
            found.append(Arm(path.stem, str(path)))
    return found


def shipped_arms() -> list[Arm]:
    """The arms among shipped scenes: four driven joints or more on a base that is fixed."""
    return [Arm(f"{name} (shipped)", name) for name in shipped() if _is_arm(Scene.load(name).model)]


def _is_arm(model: mujoco.MjModel) -> bool:
    driven = [int(model.actuator_trnid[a, 0]) for a in range(model.nu) if model.actuator_trntype[a] == _ON_JOINT]
    free = {int(model.jnt_bodyid[j]) for j in range(model.njnt) if model.jnt_type[j] == _FREE}
    return len(driven) >= 4 and not any(free & _ancestors(model, int(model.jnt_bodyid[j])) for j in driven)


def _ancestors(model: mujoco.MjModel, body: int) -> set[int]:
    found = {body}
    while body:
        body = int(model.body_parentid[body])
        found.add(body)
    return found


def random_arm(seed: int, folder: Path) -> Arm:
    """An arm of 4 to 7 joints made of a seed, with position servos (even seeds) or motors, written as an MJCF file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"arm_{seed}.xml"
    path.write_text(random_arm_xml(seed), encoding="utf-8")
    return Arm(f"random {seed} ({'torque' if seed % 2 else 'position'})", str(path))


def random_arm_xml(seed: int) -> str:
    """The MJCF text of a random arm: link lengths, masses, joint axes, gains and limits by seed."""
    rng = np.random.default_rng((seed, 0xA23))
    torque, joints = bool(seed % 2), int(rng.integers(4, 8))
    size = rng.uniform(0.6, 1.6)
    lengths = size * rng.uniform(0.12, 0.4, joints) * np.linspace(1.0, 0.6, joints)
    masses = size**2 * rng.uniform(0.8, 4.0, joints) * np.linspace(1.0, 0.25, joints)
    kinds = [0, 1, *rng.integers(0, 4, joints - 2)]
    axes = [("0 0 1", "0 1 0", "0 1 0", "1 0 0")[int(k)] for k in kinds]
    home = rng.uniform(-0.4, 0.4, joints) if torque else rng.uniform(-0.9, 0.9, joints)
    # Motors move a hanging arm, or one whose weight is carried: upright, any replay of torques would let it fall.
    links = _Links(lengths, masses, axes, -1 if torque else 1, torque and bool(rng.uniform() < 0.5), home)
    inertia, weight = _load(mujoco.MjModel.from_xml_string(links.mjcf([""] * joints, "")))
    rotor = inertia * rng.uniform(0.1, 0.8, joints)
    limit = np.maximum(rng.uniform(2.5, 5.0, joints) * weight, 40.0 * (inertia + rotor))
    damping = (inertia + rotor) * (rng.uniform(3.0, 8.0, joints) if torque else rng.uniform(0.5, 2.0, joints))
    kp = (inertia + rotor) * rng.uniform(15.0, 40.0, joints) ** 2
    kv = 2 * rng.uniform(0.5, 1.1, joints) * np.sqrt(kp * (inertia + rotor))
    actuators = ""
    for j in range(joints):
        force = f"{-limit[j]:.5g} {limit[j]:.5g}"
        servo = f'kp="{kp[j]:.5g}" kv="{kv[j]:.5g}" ctrlrange="-2.6 2.6" forcerange="{force}"'
        actuators += f'<motor name="m{j}" joint="j{j}" ctrlrange="{force}"/>\n' if torque else (
            f'<position name="m{j}" joint="j{j}" {servo}/>\n'
        )  # fmt: skip
    return links.mjcf([f'damping="{d:.5g}" armature="{a:.5g}"' for d, a in zip(damping, rotor, strict=True)], actuators)


@dataclass(frozen=True, slots=True, eq=False)
class _Links:
    """The shape of a random arm."""

    lengths: Array
    masses: Array
    axes: Sequence[str]
    up: int
    """1 where the arm stands, -1 where it hangs."""
    carried: bool
    """Whether its weight is compensated."""
    home: Array

    def mjcf(self, joint_words: Sequence[str], actuators: str) -> str:
        """The model, with further attributes of each joint, and its actuators."""
        bodies, above = "", 0.0
        for j, (length, mass, axis) in enumerate(zip(self.lengths, self.masses, self.axes, strict=True)):
            bodies += (
                f'<body name="link{j}" pos="0 0 {above:.5g}" gravcomp="{int(self.carried)}">\n'
                f'<joint name="j{j}" axis="{axis}" range="-2.6 2.6" {joint_words[j]}/>\n'
                f'<geom type="capsule" fromto="0 0 0 0.02 0 {self.up * length:.5g}" size="{0.18 * length:.5g}" '
                f'mass="{mass:.5g}"/>\n'
            )
            above = self.up * length
        pose = " ".join(f"{x:.5g}" for x in self.home)
        control = f' ctrl="{pose}"' if "<position" in actuators else ""
        return (
            '<mujoco>\n<compiler angle="radian" autolimits="true"/>\n'
            '<option timestep="0.002" integrator="implicitfast"/>\n'
            f"<worldbody>\n{bodies}{'</body>' * len(self.lengths)}\n</worldbody>\n<actuator>\n{actuators}</actuator>\n"
            f'<keyframe><key name="home" qpos="{pose}"{control}/></keyframe>\n</mujoco>\n'
        )


def _load(model: mujoco.MjModel, q: Array | None = None) -> tuple[Array, Array]:
    """Inertia at each joint [kg m2] and the torque of gravity about it [Nm], in a pose or the first keyframe."""
    data = mujoco.MjData(model)
    data.qpos[:] = model.key_qpos[0] if q is None else q
    mujoco.mj_forward(model, data)
    full = np.zeros((model.nv, model.nv))
    mujoco.mj_fullM(model, data, full)
    reach = [_weight(model, data, j) for j in range(model.nv)]
    return np.diag(full).copy(), np.array(reach)


def _weight(model: mujoco.MjModel, data: mujoco.MjData, dof: int) -> float:
    body = int(model.dof_bodyid[dof])
    lever = float(np.linalg.norm(data.subtree_com[body] - data.xpos[body]))
    across = float(np.linalg.norm(np.cross(data.xaxis[model.dof_jntid[dof]], (0, 0, 1))))
    return 9.81 * float(model.body_subtreemass[body]) * lever * across


def plant(scene: Scene, seed: int) -> dict[str, float]:
    """Parameters of the arm that a scene stands for: gains, damping, dry friction, armature and delay."""
    model, rng = scene.model, np.random.default_rng((seed, 0x91A))
    q, _ = scene.start(0)
    inertia, _ = _load(model, q)
    # Joints that an equality ties to another one.
    tied = model.eq_type == int(mujoco.mjtEq.mjEQ_JOINT)
    coupled = {
        int(j) for pair in zip(model.eq_obj1id[tied], model.eq_obj2id[tied], strict=True) for j in pair if j >= 0
    }
    truth: dict[str, float] = {}
    for a in range(model.nu):
        gain, damping, armature = 1 + 0.3 * rng.uniform(-1, 1), *2 ** rng.uniform(-1, 1, 2)
        friction, small = rng.uniform(0.005, 0.03), rng.uniform(0.01, 0.05)
        own = address.read(model, [f"actuator.{model.actuator(a).name}.*"])
        for name, value in own.items():
            field = Address.parse(name).field
            if field in ("kp", "gain") or (field == "kv" and value > 0):
                truth[name] = value * (damping if field == "kv" else gain)
        if model.actuator_trntype[a] != _ON_JOINT or int(model.actuator_trnid[a, 0]) in coupled:
            continue
        joint = int(model.actuator_trnid[a, 0])
        dof, name = int(model.jnt_dofadr[joint]), model.joint(joint).name
        if model.dof_damping[dof] > 0:
            truth[f"joint.{name}.damping"] = float(model.dof_damping[dof]) * damping
        truth[f"joint.{name}.frictionloss"] = friction * force_range(model, a)
        given = float(model.dof_armature[dof])
        truth[f"joint.{name}.armature"] = given * armature if given > 0 else small * float(inertia[dof])
    return {**truth, address.DELAY: rng.uniform(0.005, 0.04)}


def force_range(model: mujoco.MjModel, actuator: int) -> float:
    """The largest torque or force of an actuator at its joint [Nm or N]; a fifth of its gain where it has no limit."""
    joint, gear = int(model.actuator_trnid[actuator, 0]), abs(float(model.actuator_gear[actuator, 0]))
    gain = abs(float(model.actuator_gainprm[actuator, 0]))
    if model.actuator_forcelimited[actuator]:
        return gear * float(np.abs(model.actuator_forcerange[actuator]).max())
    if model.jnt_actfrclimited[joint]:
        return float(np.abs(model.jnt_actfrcrange[joint]).max())
    if not _is_servo(model, actuator) and model.actuator_ctrllimited[actuator]:
        return gear * gain * float(np.abs(model.actuator_ctrlrange[actuator]).max())
    return 0.2 * gear * gain


def _is_servo(model: mujoco.MjModel, actuator: int) -> bool:
    return bool(model.actuator_biasprm[actuator, 1] != 0)


def motion(scene: Scene, seed: int, scale: float = 1.0, seconds: float = SECONDS) -> Array:
    """A smooth sum of sines per actuator that begins at rest: its command, or the position of a motor's joint."""
    model, rng = scene.model, np.random.default_rng((seed, 0x307))
    t = np.arange(round(seconds / scene.dt)) * scene.dt
    share = np.minimum(t / 1.5, 1.0)
    blend = share**2 * (3 - 2 * share)
    q, rest = begin_pose(scene)
    out = np.empty((len(t), model.nu))
    for a in range(model.nu):
        low, high, begin = _reach(model, a, q, float(rest[a]))
        tones = rng.uniform([0.3, 0.1, 0.0], [1.0, 1.2, 2 * math.pi], (5, 3))
        wave = np.sum([w / (1 + f) * np.sin(2 * math.pi * f * t + p) for w, f, p in tones], axis=0)
        size = scale * 0.25 * (high - low)
        if model.actuator_trntype[a] == _ON_JOINT:
            size = min(size, 0.5 * scale)
        centre = min(max(begin, low + 1.1 * size), high - 1.1 * size)
        out[:, a] = begin + blend * (centre - begin + size * wave / np.abs(wave).max())
    return out


def begin_pose(scene: Scene) -> tuple[Array, Array]:
    """Positions and command from which motions begin: the scene's, or where a robot that is folded touches nothing.

    From a start at which its links touch each other, it is unfolded towards the middle of the ranges of its joints.
    """
    model = scene.model
    q, rest = scene.start(0)[0], scene.rest_action()
    joints = [int(j) for j in np.flatnonzero(model.jnt_type != _FREE)]
    for share in UNFOLDED:
        pose, command = q.copy(), rest.copy()
        for a in np.flatnonzero(model.actuator_trntype == _ON_JOINT):
            joint = int(model.actuator_trnid[a, 0])
            if model.jnt_limited[joint] and _is_servo(model, int(a)):
                at = int(model.jnt_qposadr[joint])
                pose[at] += share * (float(model.jnt_range[joint].mean()) - pose[at])
                command[a] = float(model.actuator_gear[a, 0]) * pose[at]
        if share == 0:
            pose, command = q, rest
        if not touching(model, pose[None], joints).any():
            return pose, command
    return q, rest


def _reach(model: mujoco.MjModel, a: int, q: Array, rest: float) -> tuple[float, float, float]:
    """Lowest and highest value of a motion, and where it begins."""
    joint = int(model.actuator_trnid[a, 0])
    if model.actuator_trntype[a] != _ON_JOINT:
        low, high = model.actuator_ctrlrange[a] if model.actuator_ctrllimited[a] else (rest - 0.5, rest + 0.5)
        return float(low), float(high), rest
    gear = float(model.actuator_gear[a, 0]) if _is_servo(model, a) else 1.0
    begin = rest if _is_servo(model, a) else float(q[model.jnt_qposadr[joint]])
    low, high = sorted(gear * model.jnt_range[joint]) if model.jnt_limited[joint] else (begin - 2, begin + 2)
    if _is_servo(model, a) and model.actuator_ctrllimited[a]:
        low, high = max(low, model.actuator_ctrlrange[a, 0]), min(high, model.actuator_ctrlrange[a, 1])
    return float(low), float(high), begin


@dataclass(frozen=True, slots=True, eq=False)
class _Tracking:
    """Commands that make an arm follow a motion: the motion for servos, the torque of a controller for motors."""

    scene: Scene
    motions: Array
    """Per run and row, what each actuator follows [runs, rows, nu]."""

    def actions(self, row: int, state: State) -> Array:
        """The command of each run [runs, nu]."""
        model, wanted = self.scene.model, self.motions[:, row]
        out = wanted.copy()
        motors = np.flatnonzero(model.actuator_biasprm[:, 1] == 0)
        if not motors.size:
            return out
        joints = model.actuator_trnid[motors, 0]
        dofs = model.jnt_dofadr[joints]
        data = mujoco.MjData(model)
        full = np.zeros((model.nv, model.nv))
        for run in range(len(out)):
            data.qpos[:], data.qvel[:] = state.q[run], 0.0
            mujoco.mj_forward(model, data)
            mujoco.mj_fullM(model, data, full)
            behind = wanted[run, motors] - state.q[run, model.jnt_qposadr[joints]]
            speed = (wanted[run, motors] - self.motions[run, max(row - 1, 0), motors]) / self.scene.dt
            asked = BANDWIDTH**2 * behind + 2 * BANDWIDTH * (speed - state.v[run, dofs])
            torque = full[np.ix_(dofs, dofs)] @ asked + model.dof_damping[dofs] * speed
            torque += data.qfrc_bias[dofs] - data.qfrc_passive[dofs]
            out[run, motors] = torque / (model.actuator_gear[motors, 0] * model.actuator_gainprm[motors, 0])
        limited = model.actuator_ctrllimited.astype(bool)
        out[:, limited] = np.clip(out[:, limited], *model.actuator_ctrlrange[limited].T)
        return out


def record(
    scene: Scene, real: Simulator, seeds: Sequence[int], scale: float = 1.0, seconds: float = SECONDS
) -> tuple[Array, Array]:
    """Positions [runs, rows, nq] and commands of runs that begin at rest, one per seed; raises `Diverged`."""
    motions = np.stack([motion(scene, seed, scale, seconds) for seed in seeds])
    begin, start = begin_pose(scene)[0], real.reset(0)
    state = real.place(np.tile(begin, (len(seeds), 1)), np.tile(start.v, (len(seeds), 1)))
    still = _Tracking(scene, motions[:, :1])
    for _ in range(round(2.0 / scene.dt)):
        state = real.step(state, still.actions(0, state))
    moved = _Tracking(scene, motions)
    q, actions = [], []
    for row in range(motions.shape[1]):
        actions.append(moved.actions(row, state))
        q.append(state.q)
        state = real.step(state, actions[-1])
    return np.stack(q, axis=1), np.stack(actions, axis=1)


def planted_arm(arm: Arm, seed: int, engine: Engine = "mujoco", *, chatter: bool = False) -> PlantedArm:
    """Plant parameters in an arm and record it, in the largest motion that is predictable and in which nothing touches.

    Nor may motors jump from one limit to the other between physics steps, as those of no robot do, unless `chatter`
    asks for the largest motion in which they do. Raises `BadInput` where there is no such motion.
    """
    scene = Scene.load(arm.scene)
    truth = plant(scene, seed)
    seeds = [100 * seed + run for run in range(RUNS + HELD_OUT)]
    known = open_world(scene).tuned(truth)
    for scale in SCALES:
        found = _recorded(scene, known, seeds, scale)
        if found is None or _touches(scene, found[0]):
            continue
        made = _planted(scene, truth, seeds, found, scale)
        if open_loop_error(known, made.held_out) > MAX_TRUTH_ERROR or chatter != bool(chattering(known, made.runs)):
            continue
        if engine != "mujoco":
            found = _recorded(scene, open_world(scene, engine).tuned(truth), seeds, scale)
            if found is None:
                continue
            made = _planted(scene, truth, seeds, found, scale)
        return made
    also = "makes its motors chatter" if chatter else "keeps its motors within their limits"
    raise BadInput(f"No motion of {arm.name!r} is free of contact, predictable and {also}, so that it is no case.")


def _recorded(scene: Scene, real: Simulator, seeds: Sequence[int], scale: float) -> tuple[Array, Array] | None:
    try:
        return record(scene, real, seeds, scale)
    except Diverged:
        return None


def _planted(
    scene: Scene, truth: Mapping[str, float], seeds: Sequence[int], found: tuple[Array, Array], scale: float
) -> PlantedArm:
    episodes = [measured_episode(scene, q, actions, seed) for q, actions, seed in zip(*found, seeds, strict=True)]
    return PlantedArm(scene, truth, episodes[:RUNS], episodes[RUNS:], scale)


def _touches(scene: Scene, q: Array) -> bool:
    """Whether bodies touch in some row that do not touch at rest."""
    model, data = scene.model, mujoco.MjData(scene.model)

    def pairs(row: Array) -> set[tuple[int, int]]:
        data.qpos[:] = row
        mujoco.mj_fwdPosition(model, data)
        touching = data.contact.dist[: data.ncon] < 0
        return {(int(a), int(b)) for a, b in data.contact.geom[: data.ncon][touching]}

    allowed = set().union(*(pairs(row) for row in q[:, 0]))
    return any(pairs(row) - allowed for run in q for row in run[::5])


def measured_episode(scene: Scene, q: Array, actions: Array, seed: int) -> Episode:
    """The recording that a user has of a run: noisy positions and commands."""
    spec, rng = scene.spec, np.random.default_rng((seed, 0x401))
    measured = spec.observation["observation.state"]
    noise = np.array([NOISE[unit] for unit in measured.units])
    seen = q[:, scene.reader.robot_q]
    seen = seen + noise * rng.standard_normal(seen.shape)
    own = replace(spec, q=measured, v=spec.observation["observation.velocity"], observation={})
    columns = {"timestamp": np.arange(len(seen)) * scene.dt, "q": seen, "action": actions}
    return Episode(own, columns, {"name": f"run {seed}"})


def open_loop_error(sim: Simulator, episodes: Sequence[Episode]) -> float:
    """RMS error of the joints over whole runs replayed open loop [mrad; 0.1 mm of a slide]; infinite if it diverges."""
    runs = [aligned(episode, sim) for episode in episodes]
    total: list[Array] = []
    for run, (q, _) in zip(runs, replay_all(sim, runs), strict=True):
        units = [unit for unit, seen in zip(sim.spec.q.units, run.seen[0], strict=True) if seen]
        noise = np.array([NOISE[unit] for unit in units])
        total.append(np.square((q - run.q)[:, run.seen[0]] / noise).mean())
    error = 1e3 * NOISE["rad"] * math.sqrt(float(np.mean(total)))
    return error if math.isfinite(error) else math.inf
