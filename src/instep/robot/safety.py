"""Safety options of a served robot, and collisions predicted before they happen.

Distances are those of the scene's collision shapes. A command is allowed only where the robot could still stop before
it is nearer than `stop_m`; on the way there its speed falls in proportion to the distance. Objects that are meant to be
touched, links that are joined, and shapes that touch each other in the scene's start are left out.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array, frozen_dataclass, options_dataclass

from .limits import LimitedCommand, Limits
from .realtime import Clock

if TYPE_CHECKING:
    from instep.scene.folder import Scene


@options_dataclass
class SafetyOptions:
    """How a robot is kept safe while its commands come over a link."""

    limits: Limits | None = None
    """Limits of its commands: position, velocity, acceleration and jerk; where None, conservative ones by unit
    (`default_limits`)."""
    hold_after: float = 0.1
    """Without a command or a valid reading for this long, the robot holds [s]."""
    stop_after: float = 0.5
    """Without one for this long it stops, until a reset [s]."""
    action_age: float | None = None
    """An action for a state that is older than this is refused while the robot moves [s]; 2.5 `hold_after` where
    None."""
    clock: Clock = field(default_factory=Clock)
    """The robot's clock."""
    obstacles: ObstacleChecks | None = None
    """Where given, commands that would lead to a collision are slowed down and stopped before it."""
    wiggle: bool = False
    """Whether each joint makes a small test motion after a reset, before any command is taken: order, sign and unit of
    the joints are known before the robot moves. Without it they are checked in its first motion."""

    def __post_init__(self) -> None:
        if not 0 < self.hold_after <= self.stop_after < np.inf:
            raise BadInput(
                f"A robot must hold before it stops, not hold after {self.hold_after:g} s and stop after "
                f"{self.stop_after:g} s."
            )
        if self.action_age is None:
            object.__setattr__(self, "action_age", 2.5 * self.hold_after)
        elif not 0 < self.action_age < np.inf:
            raise BadInput(f"The oldest state an action may be for is some time above 0 s, not {self.action_age:g} s.")


SLOW_M, STOP_M = 0.06, 0.01
"""Distance from which a robot is slowed down, and at which it stands [m]."""
LEAST_SPEED = 0.1
"""Share of the velocity limits that is left just before it stands."""


@frozen_dataclass
class Nearest:
    """The smallest distance of a configuration, and between which shapes."""

    distance: float
    """At most `SLOW_M` [m]."""
    pair: tuple[str, str] = ("", "")

    @property
    def words(self) -> str:
        """The pair in words."""
        return f"{self.pair[0]} is {1e3 * self.distance:.0f} mm from {self.pair[1]}"


class ObstacleChecks:
    """Distances of a scene's robot from itself and from what is fixed around it."""

    def __init__(self, scene: Scene, *, slow_m: float = SLOW_M, stop_m: float = STOP_M):
        import mujoco

        self.slow_m, self.stop_m = slow_m, stop_m
        self._scene, self._model, self._data = scene, scene.model, mujoco.MjData(scene.model)
        self._home = scene.start(0)[0]
        model = scene.model
        self._places = [int(model.jnt_qposadr[model.joint(name).id]) for name in scene.robot if _has_joint(model, name)]
        self._labels = [name for name in scene.robot if _has_joint(model, name)]
        self._pairs: Array = np.array(self._candidates(), int).reshape(-1, 2)
        near = {tuple(pair) for pair, found in self._distances(self._home, self._pairs) if found < stop_m}
        self._pairs = np.array([pair for pair in self._pairs if tuple(pair) not in near], int).reshape(-1, 2)

    def __bool__(self) -> bool:
        return len(self._pairs) > 0

    def nearest(self, joints: Array) -> Nearest:
        """The smallest distance where the robot's joints are so [robot joints]."""
        q = self._home.copy()
        q[self._places] = joints
        found = min(self._distances(q, self._pairs), key=lambda each: each[1], default=None)
        if found is None or found[1] >= self.slow_m:
            return Nearest(self.slow_m)
        names = [self._name(int(geom)) for geom in found[0]]
        return Nearest(float(found[1]), (names[0], names[1]))

    def towards(self, limits: Limits, last: LimitedCommand, wanted: Array, dt: float) -> tuple[LimitedCommand, str]:
        """The next command that can still stop in time, and why it is slower than asked; empty where it is not.

        The command before could stop in time too, so that braking is always left.
        """
        here = self.nearest(self._joints(limits, last.q))
        share = float(np.clip((here.distance - self.stop_m) / (self.slow_m - self.stop_m), LEAST_SPEED, 1.0))
        after = (limits.slowed(share) if share < 1.0 else limits).towards(last, wanted, dt)
        way = _way_to_rest(limits, after, dt)
        ahead = [self.nearest(self._joints(limits, q)) for q in (*way[:-1:4], way[-1])]
        there = min(ahead, key=lambda each: each.distance)
        if there.distance < self.stop_m and there.distance < here.distance:
            return limits.brake(last, dt), f"A collision is predicted: {there.words}."
        return after, f"An obstacle is near: {here.words}." if share < 1.0 else ""

    def _joints(self, limits: Limits, q: Array) -> Array:
        names = limits.joints or limits.labels
        known = {name: q[i] for i, name in enumerate(names) if np.asarray(limits.position_targets)[i]}
        return np.array(
            [known.get(name, self._home[place]) for name, place in zip(self._labels, self._places, strict=True)]
        )

    def _candidates(self) -> list[tuple[int, int]]:
        """Pairs of shapes that can collide, one of them on a moving link of the robot."""
        model = self._model
        moving = {int(model.jnt_bodyid[model.joint(name).id]) for name in self._labels}
        robot = {b for b in range(model.nbody) if _above(model, b) & moving}
        objects = {model.body(name).id for name in self._scene.objects}
        solid = [g for g in range(model.ngeom) if model.geom_contype[g] or model.geom_conaffinity[g]]
        found: list[tuple[int, int]] = []
        for i, first in enumerate(solid):
            for second in solid[i + 1 :]:
                a, b = int(model.geom_bodyid[first]), int(model.geom_bodyid[second])
                if not ({a, b} & robot) or (_above(model, a) | _above(model, b)) & objects:
                    continue
                joined = model.body_weldid[a] == model.body_weldid[b] or _parent(model, a, b) or _parent(model, b, a)
                if not joined and _collide(model, first, second):
                    found.append((first, second))
        return found

    def _distances(self, q: Array, pairs: Array) -> list[tuple[Array, float]]:
        """The distance of each pair that is near, by bounding spheres, at positions q [nq]."""
        import mujoco

        model, data = self._model, self._data
        data.qpos[:] = q
        mujoco.mj_kinematics(model, data)
        at, size = data.geom_xpos, np.where(model.geom_rbound > 0, model.geom_rbound, np.inf)
        apart = np.linalg.norm(at[pairs[:, 0]] - at[pairs[:, 1]], axis=1) - size[pairs[:, 0]] - size[pairs[:, 1]]
        near, distance = pairs[apart < self.slow_m], getattr(mujoco, "mj_geomDistance")  # noqa: B009 - not in its types
        return [(pair, float(distance(model, data, pair[0], pair[1], self.slow_m, None))) for pair in near]

    def _name(self, geom: int) -> str:
        body = self._model.body(int(self._model.geom_bodyid[geom])).name
        return self._model.geom(geom).name or body or "the world"


def _way_to_rest(limits: Limits, command: LimitedCommand, dt: float) -> list[Array]:
    """The commands from here to rest."""
    way = [command.q]
    for _ in range(round(limits.stop_time / dt) + 2):
        if not np.any(np.abs(command.v) > 1e-9):
            break
        command = limits.brake(command, dt)
        way.append(command.q)
    return way


def _has_joint(model: Any, name: str) -> bool:
    return any(model.joint(i).name == name for i in range(model.njnt))


def _above(model: Any, body: int) -> set[int]:
    """A body and all that carry it."""
    found = set[int]()
    while body:
        found.add(body)
        body = int(model.body_parentid[body])
    return found


def _parent(model: Any, child: int, parent: int) -> bool:
    weld = model.body_weldid
    return bool(weld[model.body_parentid[weld[child]]] == weld[parent]) and bool(weld[parent])


def _collide(model: Any, first: int, second: int) -> bool:
    types, affinities = model.geom_contype, model.geom_conaffinity
    return bool((types[first] & affinities[second]) or (types[second] & affinities[first]))
