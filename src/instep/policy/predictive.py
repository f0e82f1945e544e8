"""A controller that predicts: it rolls out changes of a gait in a batched simulator and takes their weighted mean.

In every planning interval the simulator is placed at the estimated state, and copies of the gait walk on from there,
each with another shift of its footholds, another width and another speed (model predictive path integral control). All
copies take a control period in one native call. The first copy is the gait as it is, the second the last choice.
"""

from __future__ import annotations

import numpy as np

from instep.core.errors import BadInput, Diverged
from instep.core.poses import quat_from_matrix
from instep.core.world import Array, Observation, Simulator, State, options_dataclass, put, take
from instep.scene.folder import SceneSimulator

from .base_estimation import BaseFilterOptions, LeggedEstimate, foot_contacts
from .gait import BASE, Gait, base_motion, fallen

MEMORY_S = 0.1
"""How long past actions are kept for the placed simulator, which may delay them [s]."""


@options_dataclass
class PredictiveOptions:
    """How many futures a predictive controller compares, and how far it looks."""

    samples: int = 24
    """rolled out changes of the gait, the gait as it is among them."""
    horizon_s: float = 0.6
    """time that is predicted [s]."""
    every_s: float = 0.1
    """time between two plans [s]."""
    spread: tuple[float, float, float, float] = (0.06, 0.06, 0.15, 0.15)
    """standard deviations of the shift of footholds forward and to the left, as shares of the length of a leg, of the
    width (a factor) and of the speed [m/s]."""
    temperature: float = 0.3
    """cost over that of the best, in standard deviations over samples, at which a sample counts 1/e."""
    fall: float = 3.0
    """cost of a fallen robot, per control period."""
    last: float = 20.0
    """weight of the last control period of the horizon."""
    seed: int = 0


class PredictiveGait(LeggedEstimate):
    """A gait with a filter before it whose footholds, width and speed are planned; a batch of robots is one call."""

    def __init__(
        self,
        gait: Gait,
        sim: SceneSimulator,
        options: PredictiveOptions | None = None,
        filtering: BaseFilterOptions | None = None,
    ):
        super().__init__(gait, filtering)
        self.plan = options or PredictiveOptions()
        if self.plan.samples < 2 or self.plan.horizon_s <= 0 or self.plan.every_s <= 0:
            raise BadInput("A predictive controller compares at least 2 samples over a horizon above 0 s.")
        if gait.body.ground is not None:
            raise BadInput("The predictive controller predicts on level ground; walk stairs with --controller gait.")
        self.sim, self._over = sim, fallen(sim.scene, gait.body)
        self._every = max(1, round(self.plan.every_s / gait.body.dt))
        length = gait.body.legs.length
        self._spread = np.array(self.plan.spread) * [length, length, 1.0, 1.0]
        self._labels = sim.spec.q.labels, sim.spec.v.labels, sim.spec.observation["observation.state"].labels
        self.reset()

    def reset(self, seed: int = 0) -> None:
        """Start anew, standing; the seed is that of the samples."""
        super().reset(seed)
        self.gait.adjust = np.zeros(4)
        self._row, self._rng = 0, np.random.default_rng((seed, self.plan.seed, 0x9A7))
        self._past: list[Array] = []

    def act(self, observation: Observation) -> Array:
        """Positions of the servos, after a new plan where one is due."""
        self.sense(observation)
        if self._row % self._every == 0 and self._past:
            self.gait.adjust = self._planned(observation)
        self._row += 1
        action = self.gait.act({**observation, BASE: self.estimate})
        self._past = [*self._past, action][-max(1, round(MEMORY_S / self.gait.body.dt)) :]
        return action

    def _planned(self, observation: Observation) -> Array:
        """The change of the gait to walk on with [..., 4]."""
        count, last = self.plan.samples, self.gait.adjust
        batch = np.shape(observation["observation.state"])[:-1]
        last = np.broadcast_to(last, (*batch, 4))
        # Robots of a batch meet the same samples, so that none depends on the others.
        noise = self._rng.standard_normal((count, 4)) * self._spread
        noise[:2] = 0.0
        keep = np.where(np.arange(count) == 0, 0.0, np.where(np.arange(count) == 1, 1.0, 0.7))
        tried = keep[:, None] * last[..., None, :] + noise
        cost = self._costs(self._placed(observation, count), tried)
        above = cost - cost.min(axis=-1, keepdims=True)
        scale = self.plan.temperature * np.maximum(above.std(axis=-1, keepdims=True), 1e-9)
        weights = np.exp(-above / scale)
        weights /= weights.sum(axis=-1, keepdims=True)
        return np.einsum("...n,...nk->...k", weights, tried)

    def _placed(self, observation: Observation, count: int) -> State:
        """The simulator at the estimated state of each robot, so many times, in one row [robots x count]."""
        body, turn = self.gait.body, self.filter.turn
        joints, rates = (np.asarray(observation[f"observation.{name}"], float) for name in ("state", "velocity"))
        batch = joints.shape[:-1]
        names_q, names_v, robot = self._labels
        q, v = np.zeros((*batch, len(names_q))), np.zeros((*batch, len(names_v)))
        q[..., [names_q.index(name) for name in robot]] = joints
        v[..., [names_v.index(name) for name in robot]] = rates
        q[..., body.at_q + 2] = base_height(foot_contacts(body.legs, joints, rates, turn)[0], turn)
        q[..., body.at_q + 3 : body.at_q + 7] = quat_from_matrix(turn)
        v[..., body.at_v : body.at_v + 3] = self.filter.velocity
        v[..., body.at_v + 3 : body.at_v + 6] = self.estimate[..., 3:6]
        past = np.stack(self._past, axis=-2)
        each = [x.reshape(-1, *x.shape[len(batch) :]).repeat(count, axis=0) for x in (q, v, past)]
        return self.sim.place(each[0], each[1], past=each[2])

    def _costs(self, state: State, tried: Array) -> Array:
        """Cost of each change of the gait over the horizon [..., samples]."""
        body, robot_q = self.gait.body, self.sim.scene.reader.robot_q
        copies = self.gait.branched(self.plan.samples)
        copies.adjust = tried
        shape = tried.shape[:-1]
        cost, alive, now = np.zeros(shape), np.ones(shape, bool), np.zeros(shape)
        for _ in range(max(1, round(self.plan.horizon_s / body.dt))):
            motion = base_motion(state.q, state.v, body.at_q, body.at_v).reshape(*shape, -1)
            seen = {BASE: motion, "observation.state": state.q[:, robot_q].reshape(*shape, -1)}
            action = np.nan_to_num(copies.act(seen)).reshape(len(state.q), -1)
            state, lost = stepped_batch(self.sim, state, action)
            alive &= ~(lost | self._over(state)).reshape(shape)
            # What a motion of the base costs per control period: another speed, tilt, and turning rates.
            tilt = 1 + motion[..., 2]
            walking = self.gait.speed * min(1.0, max(0.0, self._row * self.gait.body.dt - 1.0))
            miss = np.abs(motion[..., 6] - walking) + np.abs(motion[..., 7])
            now = 0.15 * miss + 2.0 * tilt + 0.02 * np.abs(motion[..., 3:6]).sum(axis=-1)
            cost += np.where(alive, now, self.plan.fall)
        return cost + self.plan.last * np.where(alive, now, self.plan.fall)


def base_height(points: Array, turn: Array) -> Array:
    """Height of the base [...] where the lowest of the feet [..., legs, 3] is on level ground."""
    return -np.einsum("...ki,...i->...k", points, turn[..., 2, :]).min(axis=-1)


def stepped_batch(world: Simulator, state: State, action: Array) -> tuple[State, Array]:
    """A batch a step later, and which worlds diverged [worlds]; these stay where they were."""
    lost = np.zeros(state.batch, bool)
    try:
        return world.step(state, action), lost
    except Diverged as error:
        lost[np.asarray(error.worlds)] = True
        where = np.flatnonzero(lost)
        return put(error.state, where, take(state, where)), lost
