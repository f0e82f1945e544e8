"""Legs of a robot with a free base: their joints and lengths, foot positions, and joint angles for foot positions.

A leg is a chain of hinges from the base to a foot: hip roll (axis x), hip pitch and knee (axis y), with an optional
hip yaw (axis z, held) and ankle (axis y). All positions are in the frame of the base, x forward and z up.

Make a scene of a robot with legs: position servos in place of motors, a floor, and a pose to stand in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mujoco
import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array, array_dataclass

from .folder import Scene
from .model import scalar_joints

FOOT_BAND_M = 0.12
"""Height above the lowest point of a robot within which the end of a leg lies, joints at zero [m]."""
MIN_UPRIGHT = 0.6
"""Cosine of the tilt below which a robot has fallen."""
MIN_HEIGHT = 0.6
"""Height of the base below which a robot has fallen, as a share of its standing height."""
MIN_AXIS = 0.9
"""Minimum cosine between an axis and that of the base."""
_HINGE = int(mujoco.mjtJoint.mjJNT_HINGE)


@array_dataclass
class Legs:
    """The legs of a robot; arrays have one row per leg, hip roll, hip pitch and knee in this order."""

    base: str
    """Body that moves freely."""
    names: tuple[str, ...]
    """Bodies of the feet."""
    joints: Array
    """Indices among the joints of the robot, in the order of `observation.state` [legs, 3]."""
    ankles: Array
    """The same of the ankles; -1 where a leg has none [legs]."""
    signs: Array
    """1 where the axis of a joint points along that of the base, -1 where against it; the ankle last [legs, 4]."""
    hip: Array
    """Where the axis of the hip roll is [legs, 3]."""
    links: Array
    """From roll to pitch, from pitch to knee, from knee to ankle or foot, joints at zero [legs, 3, 3]."""
    sole: Array
    """How far the ground is below the ankle or the centre of the foot [legs]."""
    bend: Array
    """Sign of the angle by which a knee bends [legs]."""

    @property
    def count(self) -> int:
        """How many legs there are."""
        return len(self.names)

    @property
    def length(self) -> float:
        """Length of a straight leg from the hip pitch to the ankle or foot, of the shortest [m]."""
        planar = np.hypot(self.links[:, 1:, 0], self.links[:, 1:, 2])
        return float(planar.sum(axis=1).min())

    @property
    def sides(self) -> Array:
        """1 for legs on the left, -1 for those on the right [legs]."""
        return np.where(self.hip[:, 1] + self.links[:, :, 1].sum(axis=1) >= 0, 1.0, -1.0)

    def angles(self, state: Array) -> Array:
        """Angles about the axes of the base of roll, pitch, knee and ankle [..., legs, 4], from joint positions."""
        ankle = np.where(self.ankles >= 0, state[..., self.ankles], 0.0)
        return self.signs * np.concatenate([state[..., self.joints], ankle[..., None]], axis=-1)

    def joint_targets(self, angles: Array, rest: Array) -> Array:
        """Positions of all joints of the robot for angles [..., legs, 4]; other joints stay at `rest` [joints]."""
        out = np.broadcast_to(rest, (*angles.shape[:-2], len(rest))).copy()
        given = self.signs * angles
        out[..., self.joints] = given[..., :3]
        has = self.ankles >= 0
        out[..., self.ankles[has]] = given[..., has, 3]
        return out

    def feet(self, angles: Array) -> Array:
        """Positions of the feet (of the ankles, where there are any) [..., legs, 3]."""
        return self._points(angles)[0]

    def foot_velocities(self, angles: Array, rates: Array) -> Array:
        """Velocities of the feet in the frame of the base [..., legs, 3], from rates of the same joints."""
        foot, pitch_at, knee_at = self._points(angles)
        roll = angles[..., 0]
        lateral = np.stack([np.zeros_like(roll), np.cos(roll), np.sin(roll)], axis=-1)
        forward = np.broadcast_to([1.0, 0.0, 0.0], foot.shape)
        moved = np.cross(forward, foot - self.hip) * rates[..., 0, None]
        moved += np.cross(lateral, foot - pitch_at) * rates[..., 1, None]
        return moved + np.cross(lateral, foot - knee_at) * rates[..., 2, None]

    def inverse(self, feet: Array, pitch: Array | float = 0.0) -> Array:
        """Angles [..., legs, 4] that bring the feet to positions [..., legs, 3], or as near as the legs reach.

        Ankles keep the soles level for a base that is pitched by so much [..., 1] or [].
        """
        reach, lateral = feet - self.hip, self.links[:, :, 1].sum(axis=1)
        below = -np.sqrt(np.maximum(reach[..., 1] ** 2 + reach[..., 2] ** 2 - lateral**2, 1e-6))
        roll = np.arctan2(reach[..., 2], reach[..., 1]) - np.arctan2(below, lateral)
        roll = (roll + np.pi) % (2 * np.pi) - np.pi
        x, z = reach[..., 0] - self.links[:, 0, 0], below - self.links[:, 0, 2]
        upper, lower = (np.hypot(self.links[:, k, 0], self.links[:, k, 2]) for k in (1, 2))
        first, second = (np.arctan2(self.links[:, k, 0], -self.links[:, k, 2]) for k in (1, 2))
        bent = (x**2 + z**2 - upper**2 - lower**2) / (2 * upper * lower)
        turn = self.bend * np.arccos(np.clip(bent, -0.98, 0.9995))
        hip = first - np.arctan2(x, -z) + np.arctan2(lower * np.sin(-turn), upper + lower * np.cos(turn))
        knee = turn - first + second
        return np.stack([roll, hip, knee, -(hip + knee) - pitch], axis=-1)

    def _points(self, angles: Array) -> tuple[Array, Array, Array]:
        """Feet, and where the axes of pitch and knee are [..., legs, 3]."""
        roll, hip, knee = angles[..., 0], angles[..., 1], angles[..., 2]
        upper = _about_y(hip, np.broadcast_to(self.links[:, 1], (*roll.shape, 3)))
        lower = _about_y(hip + knee, np.broadcast_to(self.links[:, 2], (*roll.shape, 3)))
        first = _about_x(roll, np.broadcast_to(self.links[:, 0], (*roll.shape, 3)))
        pitch_at = self.hip + first
        knee_at = pitch_at + _about_x(roll, upper)
        return knee_at + _about_x(roll, lower), pitch_at, knee_at


def legs_of(scene: Scene) -> Legs:
    """The legs of a scene's robot; raises `BadInput` where it has fewer than two."""
    return find_legs(scene.model, scene.robot)


def find_legs(model: mujoco.MjModel, robot: Sequence[str]) -> Legs:
    """The legs in a model, whose joints are counted in the order of `robot`."""
    base, data = free_base(model), mujoco.MjData(model)
    data.qpos[:] = model.qpos0
    for j in np.flatnonzero(model.jnt_type == _HINGE):
        data.qpos[model.jnt_qposadr[j]] = 0.0
    mujoco.mj_kinematics(model, data)
    inside = [b for b in range(model.nbody) if b != base and model.body_rootid[b] == model.body_rootid[base]]
    leaves = [b for b in inside if b not in model.body_parentid[inside]]
    chains = [chain for body in leaves if (chain := _chain(model, data, base, body)) is not None]
    ground = min((chain.low for chain in chains), default=0.0)
    chains = [chain for chain in chains if chain.low - ground < FOOT_BAND_M]
    if len(chains) < 2:
        raise BadInput(
            "No legs were found: expected at least two chains of hinges (hip roll about x, hip pitch "
            "and knee about y) from a free base to the ground."
        )
    index = {name: k for k, name in enumerate(robot)}
    named = [[index[model.joint(j).name] for j in chain.joints] for chain in chains]
    return Legs(
        base=model.body(base).name,
        names=tuple(model.body(chain.foot).name for chain in chains),
        joints=np.array([row[:3] for row in named]),
        ankles=np.array([row[3] if len(row) > 3 else -1 for row in named]),
        signs=np.array([[*chain.signs, 1.0][:4] for chain in chains]),
        hip=np.array([chain.points[0] for chain in chains]),
        links=np.array([np.diff(chain.points[:4], axis=0) for chain in chains]),
        sole=np.array([chain.points[3][2] - chain.low for chain in chains]),
        bend=np.array([chain.bend for chain in chains]),
    )


def free_base(model: mujoco.MjModel) -> int:
    """The body with a free joint and most mass; raises `BadInput` where there is none."""
    free = [int(model.jnt_bodyid[j]) for j in range(model.njnt) if model.jnt_type[j] == int(mujoco.mjtJoint.mjJNT_FREE)]
    if not free:
        raise BadInput("A robot with legs has a base with a free joint, and this model has none.")
    return max(free, key=lambda body: float(model.body_subtreemass[body]))


@array_dataclass
class _Chain:
    joints: list[int]
    signs: list[float]
    points: list[Array]
    """Where the axes are, then the foot where there is no ankle, in the frame of the base."""
    foot: int
    low: float
    """Height of its lowest point in the frame of the base [m]."""
    bend: float


def _chain(model: mujoco.MjModel, data: mujoco.MjData, base: int, leaf: int) -> _Chain | None:
    """A chain from the base to a leaf that can be a leg; None where it cannot."""
    turn, origin = data.xmat[base].reshape(3, 3).T, data.xpos[base]
    joints, signs, points = list[int](), list[float](), list[Array]()
    for j in _hinges(model, base, leaf):
        axis = turn @ data.xaxis[j]
        along = 0 if not joints else 1
        if len(joints) < 4 and abs(axis[along]) > MIN_AXIS:
            joints.append(j)
            signs.append(float(np.sign(axis[along])))
            points.append(turn @ (data.xanchor[j] - origin))
    low = _lowest(model, data, leaf)
    if len(joints) < 3 or low is None:
        return None
    foot = turn @ (low[0] - origin)
    if len(joints) == 3:
        points.append(foot)
    middle = signs[2] * float(model.jnt_range[joints[2]].mean()) if model.jnt_limited[joints[2]] else 1.0
    return _Chain(joints, signs, points, leaf, float(foot[2]) - low[1], 1.0 if middle >= 0 else -1.0)


def _hinges(model: mujoco.MjModel, base: int, leaf: int) -> list[int]:
    """Hinges from the base down to a body, in this order."""
    found, body = list[int](), leaf
    while body != base:
        start, count = int(model.body_jntadr[body]), int(model.body_jntnum[body])
        found[:0] = [j for j in range(start, start + count) if model.jnt_type[j] == _HINGE]
        body = int(model.body_parentid[body])
    return found


def _lowest(model: mujoco.MjModel, data: mujoco.MjData, body: int) -> tuple[Array, float] | None:
    """Centre of the lowest geom of a body, and how far below it the body reaches."""
    best: tuple[float, Array, float] | None = None
    for g in range(int(model.body_geomadr[body]), int(model.body_geomadr[body]) + int(model.body_geomnum[body])):
        if not (model.geom_contype[g] or model.geom_conaffinity[g]):
            continue
        axes = np.abs(data.geom_xmat[g].reshape(3, 3)[2])
        size, kind = model.geom_size[g], int(model.geom_type[g])
        reach = {
            int(mujoco.mjtGeom.mjGEOM_SPHERE): float(size[0]),
            int(mujoco.mjtGeom.mjGEOM_CAPSULE): float(size[0] + axes[2] * size[1]),
            int(mujoco.mjtGeom.mjGEOM_BOX): float(axes @ size),
        }.get(kind, float(model.geom_rbound[g]))
        low = float(data.geom_xpos[g][2]) - reach
        if best is None or low < best[0]:
            best = low, data.geom_xpos[g].copy(), reach
    return None if best is None else (best[1], best[2])


def _about_x(angle: Array, v: Array) -> Array:
    c, s = np.cos(angle), np.sin(angle)
    return np.stack([v[..., 0], c * v[..., 1] - s * v[..., 2], s * v[..., 1] + c * v[..., 2]], axis=-1)


def _about_y(angle: Array, v: Array) -> Array:
    c, s = np.cos(angle), np.sin(angle)
    return np.stack([c * v[..., 0] + s * v[..., 2], v[..., 1], c * v[..., 2] - s * v[..., 0]], axis=-1)


LEG_STIFFNESS = 2.5
"""Stiffness of a servo as a share of the torque limit of its motor per radian [1/rad]."""
LEG_DAMPING_S = 0.04
"""Damping of a servo over its stiffness [s]."""
DEFAULT_LIMIT = 40.0
"""Torque limit where a motor has none [Nm]."""
STAND_SHARE = 0.88
"""Length of a leg that stands, as a share of its length when straight."""
STAND = "stand"
"""Keyframe in which the robot stands."""
FLOOR = "floor"
_FLAT = int(getattr(mujoco, "mjtTexture").mjTEXTURE_2D)  # noqa: B009 - the type stubs lack it
_CHECKER = int(getattr(mujoco, "mjtBuiltin").mjBUILTIN_CHECKER)  # noqa: B009 - the type stubs lack it
_RGB = int(getattr(mujoco, "mjtTextureRole").mjTEXROLE_RGB)  # noqa: B009 - the type stubs lack it


def stand_on_legs(spec: Any) -> int:
    """Give a robot with legs position servos, a floor where it has none, and the keyframe `stand`; how many servos."""
    motors = _servos(spec, spec.compile())
    if not any(geom.type == mujoco.mjtGeom.mjGEOM_PLANE for geom in spec.geoms):
        _add_floor(spec)
    for key in list(spec.keys):
        spec.delete(key)
    model = spec.compile()
    q = standing(model, find_legs(model, scalar_joints(model)))
    spec.add_key(name=STAND, qpos=q, ctrl=q[model.jnt_qposadr[model.actuator_trnid[:, 0]]])
    return motors


def _add_floor(spec: Any) -> None:
    """A floor of light squares with sides of 0.5 m, on which a film shows how far a robot walks."""
    squares = spec.add_texture(
        name=FLOOR, type=_FLAT, builtin=_CHECKER,
        rgb1=[0.62, 0.65, 0.68], rgb2=[0.54, 0.57, 0.6], width=128, height=128,
    )  # fmt: skip
    material = spec.add_material(name=FLOOR, texrepeat=[1, 1], texuniform=True)
    material.textures[_RGB] = squares.name
    spec.worldbody.add_geom(name=FLOOR, type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0, 0, 0.05], material=FLOOR)


def standing(model: mujoco.MjModel, legs: Legs) -> Array:
    """Positions in which a robot stands on bent legs, feet below its hips and soles on the floor."""
    q = model.qpos0.copy()
    joints = scalar_joints(model)
    at = np.array([int(model.joint(name).qposadr[0]) for name in joints])
    q[at] = np.clip(0.0, *model.jnt_range[[model.joint(name).id for name in joints]].T)
    feet = legs.hip + legs.links[:, 0] + [0.0, 0.0, -STAND_SHARE * legs.length]
    feet[:, 1] = (legs.hip + legs.links.sum(axis=1))[:, 1]
    q[at] = legs.joint_targets(legs.inverse(feet), q[at])
    base = int(model.jnt_qposadr[model.body_jntadr[free_base(model)]])
    q[base : base + 7] = (0.0, 0.0, float((legs.sole - feet[:, 2]).max()), 1.0, 0.0, 0.0, 0.0)
    return q


def _servos(spec: Any, model: mujoco.MjModel) -> int:
    """Turn each motor on a joint into a position servo whose torque is limited as that of the motor."""
    count = 0
    for a, actuator in enumerate(spec.actuators):
        on_joint = model.actuator_trntype[a] == int(mujoco.mjtTrn.mjTRN_JOINT)
        if not on_joint or model.actuator_biastype[a] != int(mujoco.mjtBias.mjBIAS_NONE):
            continue
        joint, limit = int(model.actuator_trnid[a, 0]), DEFAULT_LIMIT
        if model.actuator_forcelimited[a]:
            limit = float(model.actuator_forcerange[a, 1])
        elif model.actuator_ctrllimited[a]:
            limit = float(model.actuator_ctrlrange[a, 1] * abs(model.actuator_gainprm[a, 0]))
        actuator.set_to_position(kp=LEG_STIFFNESS * limit, kv=LEG_STIFFNESS * LEG_DAMPING_S * limit)
        actuator.forcerange, actuator.forcelimited = [-limit, limit], True
        if model.jnt_limited[joint]:
            actuator.ctrlrange, actuator.ctrllimited = list(model.jnt_range[joint]), True
        else:
            actuator.ctrllimited = False
        count += 1
    if count:
        # Damping of servos is integrated implicitly: explicitly, light joints chatter at common time steps.
        spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    return count
