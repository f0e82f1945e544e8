"""Identify what matters to a robot that walks from what its own sensors show: joints and an IMU, no outside camera.

The motion of the base is estimated by the filter that the controller uses; its height follows from the lowest foot,
which is on the ground. Recordings so completed are fitted by an ensemble over short windows.

Posterior from ranges and a short recording by ensemble Kalman inversion: no fit first, no gradients.

Members are sampled from the ranges, run through all windows in one batch, and moved by a Kalman step several times. The
noise is what the best member leaves, times its correlation time. The share of it that is correlated in time is no
noise of sensors but an error of the model, which is the same in every window: it counts once, not once per window, so
that the errors of another engine widen the posterior instead of biasing a narrow one. `infer` is the careful way for a
robot of yours; this one takes seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.signal import savgol_filter

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.param import Param
from instep.core.poses import quat_from_matrix
from instep.core.world import Array
from instep.lab.base_estimation import IMU, BaseFilter, foot_contacts
from instep.lab.ensemble_part import EnsembleOptions, ensemble_posterior
from instep.lab.gait import GaitBody
from instep.scene.folder import SceneSimulator
from instep.tune.posterior.beliefs import SampleBelief

from .factor_world import FactorWorld, walk_ranges

WINDOW_S = 0.3
"""Length of a window [s]: a robot on its legs soon depends on small errors of its start."""
WINDOWS = 12
SMOOTHED_ROWS = 7
"""Rows over which joint positions and velocities are smoothed."""


def estimated_motion(episode: Episode, body: GaitBody, stance: Array) -> Episode:
    """A recording whose positions and velocities are those that its sensors show.

    `stance` [rows, legs] says which feet were commanded to be on the ground.
    """
    for channel in (IMU, "observation.state", "observation.velocity"):
        if channel not in episode:
            raise BadInput(f"A recording of a robot with legs needs {channel!r}; record IMU, joints and their rates.")
    rows = len(episode)
    if rows <= SMOOTHED_ROWS:
        raise BadInput(f"A recording of {rows} rows is too short; more than {SMOOTHED_ROWS} are needed.")
    joints, rates = (
        np.asarray(savgol_filter(episode[name], SMOOTHED_ROWS, 2, axis=0))
        for name in ("observation.state", "observation.velocity")
    )
    imu, spec = np.asarray(episode[IMU], float), episode.spec
    q, v = np.zeros((rows, len(spec.q.labels))), np.zeros((rows, len(spec.v.labels)))
    names = spec.observation["observation.state"].labels
    q[:, [spec.q.labels.index(name) for name in names]] = joints
    v[:, [spec.v.labels.index(name) for name in names]] = rates
    estimate, place = BaseFilter(spec.dt), np.zeros(2)
    estimate.begin(imu[0])
    for row in range(rows):
        if row:
            estimate.predict(imu[row])
            place = place + spec.dt * estimate.velocity[:2]
        points, moved = foot_contacts(body.legs, joints[row], rates[row], estimate.turn)
        for leg in range(body.legs.count):
            estimate.correct(imu[row, :3], points[leg], moved[leg], np.asarray(stance[row, leg]))
        low = float((points @ estimate.turn[2]).min())
        quat = quat_from_matrix(estimate.turn)
        q[row, body.at_q : body.at_q + 7] = [*place, -low, *quat]
        v[row, body.at_v : body.at_v + 6] = [*estimate.velocity, *(imu[row, :3] - estimate.gyro_bias)]
    return replace(episode, columns={"timestamp": episode.t, "q": q, "v": v, "action": episode.action})


def identify_walker(
    sim: SceneSimulator, recordings: Sequence[Episode], *, params: Sequence[Param] = (), seed: int = 0
) -> SampleBelief:
    """Posterior over delay, servos, masses and friction, as factors, from recordings with estimated motion."""
    options = EnsembleOptions(members=40, steps=4, window_s=WINDOW_S, windows=WINDOWS, seed=seed)
    return ensemble_posterior(FactorWorld(sim), recordings, list(params) or walk_ranges(sim.scene), options)






