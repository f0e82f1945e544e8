"""Scripted experts of pushing: an object to a point, a flat block onto its outline, by sliders or an arm.

The push is quasi-static, by a round stick. While it sticks to its contact, the block turns with a constant twist of its
own frame. With the friction of the table as an ellipsoid (force f, moment m, ratio `friction_radius_m` = m_max / f_max)
the twist is v = f, w = m / friction_radius_m^2. So each contact is one helix through the plane, and a push of any
length has a closed form. The shortest path of the stick around the block to each contact is tabulated.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import mujoco
import numpy as np

from instep.core.poses import matrix_from_quat, quat_from_matrix, quat_log
from instep.core.world import Array, Observation, Stateless, array_dataclass, frozen_dataclass
from instep.scene.folder import Scene
from instep.scene.model import site_poses
from instep.scene.tasks.manipulation_tasks import PushOnto, heading, wrapped

DAMPING = 0.03
"""Damping of the least squares near singularities [m or rad per rad]."""


@array_dataclass
class EndEffector:
    """One end effector and the joints that move it."""

    model: mujoco.MjModel
    data: mujoco.MjData
    """Simulation data to work in: an EndEffector belongs to one thread."""
    site: int
    joints: Array
    """Indices of the joints in q [n]."""
    dofs: Array
    """Indices of the joints in v [n]."""
    low: Array
    high: Array
    """Limits of the joints [n]."""

    @classmethod
    def of(cls, scene: Scene, site: str, joints: tuple[str, ...]) -> EndEffector:
        """The end effector at a site of a scene, moved by some of its joints."""
        model = scene.model
        ids = np.array([model.joint(name).id for name in joints])
        low, high = model.jnt_range[ids].T
        free = model.jnt_limited[ids] == 0
        low, high = np.where(free, -np.inf, low), np.where(free, np.inf, high)
        where = (model.jnt_qposadr[ids].astype(int), model.jnt_dofadr[ids].astype(int))
        return cls(model, mujoco.MjData(model), model.site(site).id, *where, low, high)

    def kinematics(self, q: Array) -> tuple[Array, Array, Array]:
        """Position [..., 3], orientation [..., 3, 3] and Jacobian [..., 6, joints] at positions q."""
        batch = q.shape[:-1]
        place, turn = np.empty((*batch, 3)), np.empty((*batch, 3, 3))
        jacobian = np.empty((*batch, 6, len(self.joints)))
        full = np.empty((6, self.model.nv))
        for index in np.ndindex(*batch):
            self.data.qpos[:] = q[index]
            mujoco.mj_kinematics(self.model, self.data)
            mujoco.mj_comPos(self.model, self.data)
            mujoco.mj_jacSite(self.model, self.data, full[:3], full[3:], self.site)
            place[index], turn[index] = self.data.site_xpos[self.site], self.data.site_xmat[self.site].reshape(3, 3)
            jacobian[index] = full[:, self.dofs]
        return place, turn, jacobian

    def kinematics_at(self, joints: Array, rest: Array) -> tuple[Array, Array, Array]:
        """The same with these joint positions [..., joints] and all else as in `rest` [nq]."""
        q = np.broadcast_to(rest, (*joints.shape[:-1], rest.size)).copy()
        q[..., self.joints] = joints
        return self.kinematics(q)

    def step(self, jacobian: Array, move: Array, turn: Array, *, settle: Array | None = None) -> Array:
        """The joint step [..., joints] that moves the end effector by `move` [m] and `turn` [rad], by damped least
        squares.

        The part of the joint step `settle` that does not move the end effector is added.
        """
        twist = np.concatenate([move, turn], axis=-1)[..., None]
        inverse = np.swapaxes(jacobian, -1, -2) @ np.linalg.inv(
            jacobian @ np.swapaxes(jacobian, -1, -2) + DAMPING**2 * np.eye(jacobian.shape[-2])
        )
        step = (inverse @ twist)[..., 0]
        if settle is not None:
            step = step + settle - (inverse @ (jacobian @ settle[..., None]))[..., 0]
        return step

    def solve(self, q: Array, place: Array, frame: Array, *, steps: int = 60) -> Array:
        """Inverse kinematics: positions q with the end effector at a position and orientation [..., 3, 3]."""
        q = np.array(q, float)
        for _ in range(steps):
            at, now, jacobian = self.kinematics(q)
            turn = rotation_between(now, frame)
            step = np.clip(self.step(jacobian, place - at, turn), -0.3, 0.3)
            q[..., self.joints] = np.clip(q[..., self.joints] + step, self.low, self.high)
        return q


def rotation_between(now: Array, target: Array) -> Array:
    """The rotation vector [rad] from orientations `now` [..., 3, 3] to `target`, in the world's frame."""
    return quat_log(quat_from_matrix(target @ np.swapaxes(now, -1, -2)))


FRICTION = 0.2
"""Largest ratio of tangential to normal force of a push; below the friction of the stick, for safety."""
LENGTHS = np.array([0.002, 0.004, 0.008, 0.014, 0.022, 0.033, 0.048, 0.068, 0.095, 0.13, 0.175])
"""Lengths of pushes that are compared [m]."""


@array_dataclass
class PushContacts:
    """Contacts at which a block can be pushed, in its own frame."""

    stick: Array
    """Centre of the stick [n, 2] [m]."""
    normal: Array
    """Outward normal of the block [n, 2]."""
    direction: Array
    """Unit direction in which the stick moves [n, 2]."""
    twist: Array
    """Velocity x, y and yaw rate of the block per metre that the stick moves [n, 3]."""
    moved: Array
    """Pose of the block after each length of push, in its frame before [n, lengths, 3]."""


def push_contacts(shape: Array, radius: float, friction_radius_m: float, spacing: float = 0.012) -> PushContacts:
    """The ways to push a block made of rectangles [n, 4] (left, bottom, right, top) by a stick of a radius."""
    points, normals = _boundary(shape, spacing)
    free = outside(points + radius * normals, shape) > radius - 1e-6
    points, normals = points[free], normals[free]
    lean = np.array([-FRICTION, 0.0, FRICTION])
    side = np.stack([-normals[:, 1], normals[:, 0]], axis=-1)
    force = (-normals[:, None] + lean[:, None] * side[:, None]).reshape(-1, 2)
    force /= np.linalg.norm(force, axis=-1, keepdims=True)
    point, normal = np.repeat(points, 3, axis=0), np.repeat(normals, 3, axis=0)
    turning = (point[:, 0] * force[:, 1] - point[:, 1] * force[:, 0]) / friction_radius_m**2
    at_contact = force + turning[:, None] * np.stack([-point[:, 1], point[:, 0]], axis=-1)
    speed = np.linalg.norm(at_contact, axis=-1, keepdims=True)
    twist = np.concatenate([force, turning[:, None]], axis=-1) / speed
    moved = helix(twist[:, None], LENGTHS)
    return PushContacts(point + radius * normal, normal, at_contact / speed, twist, moved)


def helix(twist: Array, length: Array) -> Array:
    """The pose x, y, heading reached by a constant twist after some length."""
    turn = twist[..., 2] * length
    # sin(a)/a and (1-cos(a))/a, sound at a = 0.
    s, c = np.sinc(turn / np.pi), 0.5 * turn * np.sinc(turn / (2 * np.pi)) ** 2
    x = (twist[..., 0] * s - twist[..., 1] * c) * length
    y = (twist[..., 0] * c + twist[..., 1] * s) * length
    return np.stack([x, y, turn], axis=-1)


def friction_radius(shape: Array) -> float:
    """Ratio of the largest moment to the largest force of friction, under uniform pressure [m]."""
    parts: list[Array] = []
    for left, bottom, right, top in shape:
        x, y = np.arange(left + 0.001, right, 0.002), np.arange(bottom + 0.001, top, 0.002)
        parts.append(np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2))
    points = np.concatenate(parts)
    return float(np.linalg.norm(points - points.mean(axis=0), axis=-1).mean())


def _boundary(shape: Array, spacing: float) -> tuple[Array, Array]:
    """Points on the outline of the union of rectangles, and the normals there."""
    points: list[Array] = []
    normals: list[Array] = []
    for left, bottom, right, top in shape:
        corners = np.array([[left, bottom], [right, bottom], [right, top], [left, top]])
        for start, end in zip(corners, np.roll(corners, -1, axis=0), strict=True):
            length = float(np.linalg.norm(end - start))
            share = (np.arange(n := max(1, round(length / spacing))) + 0.5) / n
            points.append(start + share[:, None] * (end - start))
            normals.append(np.tile([(end - start)[1] / length, -(end - start)[0] / length], (n, 1)))
    point, normal = np.concatenate(points), np.concatenate(normals)
    bare = outside(point + 1e-4 * normal, shape) > 0.5e-4
    return point[bare], normal[bare]


def outside(points: Array, shape: Array) -> Array:
    """Distance of points [..., 2] to the nearest rectangle [m]; 0 inside."""
    apart: list[Array] = []
    for left, bottom, right, top in shape:
        dx = np.maximum(np.maximum(left - points[..., 0], points[..., 0] - right), 0)
        dy = np.maximum(np.maximum(bottom - points[..., 1], points[..., 1] - top), 0)
        apart.append(np.hypot(dx, dy))
    return np.min(apart, axis=0)


CELL_M = 0.01
"""Side of a cell of the grid [m]."""
HALF_WIDTH_M = 0.34
"""Half the width of the grid around the centre of the block [m]."""
LOOKAHEAD_CELLS = 3
"""Cells by which a path is followed ahead."""


@array_dataclass
class ShortestPaths:
    """Shortest paths in the frame of the block to points outside it."""

    distance: Array
    """Length of the path from each cell [places, cells, cells] [m]."""
    ahead: Array
    """The point a few cells further on [places, cells, cells, 2] [m]."""

    def path(self, place: Array, point: Array) -> tuple[Array, Array]:
        """The length of the path from a point [..., 2] to a place [...], and the next point on it."""
        i, j, beyond = _cell(point)
        return self.distance[place, i, j] + beyond, self.ahead[place, i, j]

    def lengths(self, point: Array) -> Array:
        """The length of the path from points [..., 2] to every place [..., places]."""
        i, j, beyond = _cell(point)
        return np.moveaxis(self.distance[:, i, j], 0, -1) + beyond[..., None]


def _cell(point: Array) -> tuple[Array, Array, Array]:
    """The cell of points, and how far they lie outside the grid [m]."""
    edge = HALF_WIDTH_M - CELL_M
    near = np.clip(point, -edge, edge)
    i, j = np.moveaxis(np.rint((near + HALF_WIDTH_M) / CELL_M).astype(int), -1, 0)
    return i, j, np.linalg.norm(point - near, axis=-1)


def shortest_paths(places: Array, shape: Array, clearance: float) -> ShortestPaths:
    """The shortest paths to places [n, 2] that keep a clearance from a block made of rectangles."""
    from scipy.sparse.csgraph import dijkstra

    n = round(2 * HALF_WIDTH_M / CELL_M) + 1
    axis = np.arange(n) * CELL_M - HALF_WIDTH_M
    cells = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1)
    gap = outside(cells, shape)
    # Cells too near the block are costly, not forbidden: a stick in contact could never leave otherwise.
    cost_per_metre = np.where(gap >= clearance, 1.0, 4.0 + 400.0 * (clearance - gap))
    goals = np.rint((places + HALF_WIDTH_M) / CELL_M).astype(int)
    numbers = goals[:, 0] * n + goals[:, 1]
    length, before = dijkstra(_graph(cost_per_metre, n), indices=numbers, return_predecessors=True)
    step = np.where(before < 0, np.arange(n * n), before)
    ahead = step
    for _ in range(LOOKAHEAD_CELLS - 1):
        ahead = np.take_along_axis(step, ahead, axis=1)
    flat = cells.reshape(-1, 2)
    return ShortestPaths(length.reshape(-1, n, n), flat[ahead].reshape(-1, n, n, 2))


def _graph(cost_per_metre: Array, n: int) -> object:
    """Neighbouring cells, eight each and eight knight's moves, joined by length of the step times cost."""
    from scipy.sparse import coo_matrix

    number = np.arange(n * n).reshape(n, n)
    cost, rows, columns, weights = cost_per_metre.reshape(-1), list[Array](), list[Array](), list[Array]()
    for di, dj in ((0, 1), (1, 0), (1, 1), (1, -1), (1, 2), (2, 1), (1, -2), (2, -1)):
        a = number[: n - di, max(0, -dj) : n - max(0, dj)].reshape(-1)
        b = number[di:, max(0, dj) : n + min(0, dj)].reshape(-1)
        rows += [a, b]
        columns += [b, a]
        weights += [0.5 * (cost[a] + cost[b]) * CELL_M * np.hypot(di, dj)] * 2
    return coo_matrix((np.concatenate(weights), (np.concatenate(rows), np.concatenate(columns)))).tocsr()


@frozen_dataclass
class PushTo(Stateless):
    """Move around an object to the side away from the goal, then push it there.

    Observes the pusher's x and y in `observation.state` and the pose of the object in `observation.environment_state`;
    its actions are x and y of the pusher. It has no state, so a batch of worlds is one call.
    """

    goal: tuple[float, float]
    """Where the object should go, x and y [m]."""
    reach: float = 0.17
    """Distance from the object's centre at which the pusher moves around it [m]."""
    speed: float = 0.3
    """Commanded speed of the pusher [m/s]."""
    tolerance: float = 0.015
    """Distance from the goal that ends the push [m]."""
    lead: float = 0.1
    """Time by which the command runs ahead [s]."""

    def act(self, observation: Observation) -> Array:
        """The target of the pusher [..., 2]."""
        pusher = np.asarray(observation["observation.state"], float)[..., :2]
        thing = np.asarray(observation["observation.environment_state"], float)[..., :2]
        way = np.asarray(self.goal) - thing
        distance = np.linalg.norm(way, axis=-1, keepdims=True)
        ahead = way / np.maximum(distance, 1e-9)
        side = np.stack([-ahead[..., 1], ahead[..., 0]], axis=-1)
        offset = pusher - thing
        along = np.sum(offset * ahead, axis=-1, keepdims=True)
        across = np.sum(offset * side, axis=-1, keepdims=True)
        behind = (along < -0.3 * self.reach) & (np.abs(across) < 0.035)
        # The next waypoint around the object: first beside it, then behind it, then in line.
        hand = np.where(across < 0, -1.0, 1.0)
        beside: Array = thing + side * hand * self.reach - ahead * self.reach
        out: Array = thing + ahead * along + side * hand * self.reach
        clear = (np.abs(across) > 0.8 * self.reach) | (along < -0.8 * self.reach)
        in_line = along < -0.7 * self.reach
        walk: Array = np.where(in_line, thing - ahead * self.reach, np.where(clear, beside, out))
        target = np.where(behind, thing + 0.05 * ahead, walk)
        target = np.where(distance < self.tolerance, thing - self.reach * ahead, target)
        step = target - pusher
        length = np.linalg.norm(step, axis=-1, keepdims=True)
        return pusher + step * np.minimum(1.0, self.speed * self.lead / np.maximum(length, 1e-9))


CONTACT_TOLERANCE_M = 0.006
"""Distance of the stick from its contact at which a push begins [m]."""
VELOCITY_GAIN_S = 0.05
"""Further lead of the command per missing speed [s]."""


@dataclass(frozen=True, eq=False)
class PushPlan:
    """The next target of a stick that pushes a block onto its outline. It has no state, so a batch is one call.

    Each contact is rated by the time it takes: the path around the block to it, the push, and what is left after the
    push. A path that was begun grows shorter with each step, so the plan keeps to it.
    """

    shape: Array
    """The block as rectangles: left, bottom, right, top [m]."""
    target: tuple[float, float, float]
    """Its goal: x [m], y [m], heading [rad]."""
    radius: float = 0.0125
    """Radius of the stick [m]."""
    walk: float = 0.35
    """Speed around the block [m/s]."""
    push: float = 0.12
    """Speed while pushing [m/s]."""
    lead: float = 0.1
    """Time by which the command runs ahead [s]."""
    lever: float = 0.07
    """Distance that counts as much as one radian [m]."""
    fine: float = 0.003
    """Error that is left as it is [m]."""
    creep: float = 0.06
    """Least commanded speed while pushing [m/s]."""
    late: float = 0.04
    """Latency of a command [s]."""

    @cached_property
    def contacts(self) -> PushContacts:
        """The contacts at which the block can be pushed."""
        return push_contacts(self.shape, self.radius, 1.25 * friction_radius(self.shape))

    @cached_property
    def paths(self) -> ShortestPaths:
        """The paths to the contacts; three directions of push share a contact."""
        return shortest_paths(self.contacts.stick[::3], self.shape, self.radius + 0.012)

    def next(self, stick: Array, block: Array, velocity: Array) -> Array:
        """The target of the stick [..., 2], given its position and velocity [..., 2] and the block's pose [..., 3]."""
        own, speed_now = _in_block(block, stick), _rotated(-block[..., 2], velocity)
        goal = _in_block(block, np.array(self.target[:2])[(None,) * (block.ndim - 1)])
        turn = wrapped(self.target[2] - block[..., 2])
        best, length = self._best_contact(own, goal, turn)
        error = np.sqrt((goal**2).sum(axis=-1) + (self.lever * turn) ** 2)
        walk, ahead = self.paths.path(best // 3, own)
        way, place = self.contacts.direction[best], self.contacts.stick[best]
        touching = (np.linalg.norm(own - place, axis=-1) < CONTACT_TOLERANCE_M) | (walk < CONTACT_TOLERANCE_M)
        aim = np.where((walk < 0.03)[..., None], place, ahead) - own
        far = np.linalg.norm(aim, axis=-1)
        go: Array = aim * np.minimum(1.0, self.walk * self.lead / np.maximum(far, 1e-9))[..., None]
        # A servo needs some error to overcome friction: the command leads further while the stick is slow. The distance
        # already under way is subtracted.
        left = length - self.late * np.maximum((speed_now * way).sum(axis=-1), 0.0)
        wanted = np.clip(2.5 * left, self.creep, self.push)[..., None] * way
        onto: Array = 0.5 * (place - own) + wanted * self.lead + VELOCITY_GAIN_S * (wanted - speed_now)
        step = np.where(touching[..., None], onto, go)
        return np.where((error < self.fine)[..., None], stick, stick + _rotated(block[..., 2], step))

    def _best_contact(self, own: Array, goal: Array, turn: Array) -> tuple[Array, Array]:
        """The best contact, and how far to push there [m]."""
        moved = self.contacts.moved  # [ways, lengths, 3]
        dx, dy = goal[..., 0, None, None] - moved[..., 0], goal[..., 1, None, None] - moved[..., 1]
        after = self._time_left(dx, dy, wrapped(turn[..., None, None] - moved[..., 2]))
        total = after + LENGTHS / self.push
        pick = np.argmin(total, axis=-1)
        total = np.take_along_axis(total, pick[..., None], axis=-1)[..., 0]
        best = np.argmin(total + np.repeat(self.paths.lengths(own), 3, axis=-1) / self.walk, axis=-1)
        return best, LENGTHS[np.take_along_axis(pick, best[..., None], axis=-1)[..., 0]]

    def _time_left(self, dx: Array, dy: Array, turn: Array) -> Array:
        """Estimated time to remove an error [s]: each push removes a share of it."""
        error = np.sqrt(dx**2 + dy**2 + (self.lever * turn) ** 2)
        return 2.0 * np.log1p(np.maximum(error - self.fine, 0.0) / self.fine) + 3 * error / self.push


@array_dataclass
class PushExpert(Stateless):
    """The push plan as a policy of a stick on two sliders, whose positions are the actions."""

    plan: PushPlan

    @classmethod
    def of(cls, task: PushOnto) -> PushExpert:
        """The expert of a task."""
        return cls(PushPlan(np.array(task.shape), task.target))

    def act(self, observation: Observation) -> Array:
        """Position targets of the stick [..., 2]."""
        stick, velocity = (
            np.asarray(observation[name], float)[..., :2] for name in ("observation.state", "observation.velocity")
        )
        return self.plan.next(stick, _block_pose(observation), velocity)


def _block_pose(observation: Observation) -> Array:
    """x [m], y [m] and heading [rad] of the block [..., 3]."""
    pose = np.asarray(observation["observation.environment_state"], float)
    return np.concatenate([pose[..., :2], heading(pose[..., 3:7])[..., None]], axis=-1)


def _in_block(block: Array, point: Array) -> Array:
    """Points of the world in the frame of the block."""
    return _rotated(-block[..., 2], point - block[..., :2])


def _rotated(angle: Array, vector: Array) -> Array:
    """Vectors rotated by angles [rad]."""
    c, s = np.cos(angle), np.sin(angle)
    return np.stack([c * vector[..., 0] - s * vector[..., 1], s * vector[..., 0] + c * vector[..., 1]], axis=-1)


@array_dataclass
class ArmPushExpert(Stateless):
    """The push plan executed by an arm that keeps the stick upright and at its height."""

    plan: PushPlan
    effector: EndEffector
    rest: Array
    """Positions q of the scene at rest; those of the joints are replaced."""
    up: Array
    """The normal of the table [3]."""
    height: float
    """Height of the stick's end over the table's origin, along the normal [m]."""
    frame: Array
    """Orientation of the stick [3, 3]."""

    @classmethod
    def of(cls, task: PushOnto, scene: Scene) -> ArmPushExpert:
        """The expert of a task in a scene whose robot is an arm with a stick."""
        rest = scene.start(0)[0]
        effector = EndEffector.of(scene, scene.tips[0], scene.robot)
        table = scene.model.geom("table")
        up = matrix_from_quat(table.quat)[:, 2]
        place = site_poses(scene.model, rest, scene.tips)[0, :3]
        _, frame, _ = effector.kinematics(rest)
        return cls(PushPlan(np.array(task.shape), task.target), effector, rest, up, float(up @ place), frame)

    def act(self, observation: Observation) -> Array:
        """Joint position targets [..., joints]."""
        joints = np.asarray(observation["observation.state"], float)
        speed = np.asarray(observation["observation.velocity"], float)
        place, frame, jacobian = self.effector.kinematics_at(joints, self.rest)
        velocity = (jacobian[..., :2, :] @ speed[..., None])[..., 0]
        across = self.plan.next(place[..., :2], _block_pose(observation), velocity) - place[..., :2]
        lift = self.height - place @ self.up
        move = np.concatenate([across, (lift - across @ self.up[:2])[..., None]], axis=-1)
        settle = 0.1 * (self.rest[self.effector.joints] - joints)
        step = self.effector.step(jacobian, move, rotation_between(frame, self.frame), settle=settle)
        return np.clip(joints + step, self.effector.low, self.effector.high)
