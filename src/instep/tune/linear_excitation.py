"""Excitation by superposition: around a pose the response of an arm to small commands is linear, tone by tone.

With s_0 the derivative of the pose by the parameters and s_b that of the response to a small sine b,

    s(c) = s_0 + sum_b c_b s_b,    F(c) = s(c)^T s(c),

so the coefficients c of the best motion of a given energy are found without simulation. The responses are those of the
linearised model without dry friction, which a small sine would not overcome and a large motion does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import mujoco
import numpy as np
from scipy.optimize import minimize

from instep.core.param import Param
from instep.core.records import array_dataclass
from instep.core.world import Array
from instep.scene import address

from .excitation_limits import ExcitationLimits

SETTLING_S = 3.0
"""Time until the arm rests where its servos hold it [s]."""
POWERS = (1.0, 3.0, 8.0)
"""Orders of the power means that approximate the smallest eigenvalue and are differentiable."""


@array_dataclass
class Basis:
    """Small motions around rest, and their derivatives by the parameters."""

    rest: Array
    """Commands at rest [steps, nu]."""
    waves: Array
    """What each motion adds to them [motions, steps, nu]."""
    still: Array
    """Derivatives at rest [parameters, rows]."""
    jacobian: Array
    """What each motion adds to those [parameters, motions, rows]."""

    def actions(self, c: Array) -> Array:
        """The commands of a superposition [steps, nu]."""
        return self.rest + np.einsum("b,btu->tu", c, self.waves)


def frequency_responses(
    limits: ExcitationLimits, params: Sequence[Param], values: Sequence[float], cycles: Sequence[int], steps: int
) -> Any:
    """Derivatives by each parameter of the pose [params, joints] and of the frequency response.

    The second is complex [params, tones, joints, joints]: the response of joint a to a sine of the command of joint b.
    """
    step = 0.01
    still: list[Array] = []
    swings: list[Array] = []
    hertz = np.array(cycles) / (steps * limits.scene.dt)
    for param, value in zip(params, values, strict=True):
        x = float(param.to_unit(value))
        ends = [_linear(limits, {param.address: float(param.from_unit(x + side * step))}, hertz) for side in (1, -1)]
        still.append((ends[0][0] - ends[1][0]) / (2 * step))
        swings.append((ends[0][1] - ends[1][1]) / (2 * step))
    return np.array(still), np.array(swings)


def _linear(limits: ExcitationLimits, settings: dict[str, float], hertz: Array) -> tuple[Array, Array]:
    """The rest pose [joints], and the frequency response around it [tones, joints, joints]."""
    model = address.write(limits.scene.model, settings)
    model.dof_frictionloss[:] = 0.0
    data = mujoco.MjData(model)
    data.qpos[:], data.ctrl[:] = limits.scene.start(0)[0], limits.rest[: limits.scene.model.nu]
    for _ in range(round(SETTLING_S / model.opt.timestep)):
        mujoco.mj_step(model, data)
    size = 2 * model.nv
    a, b = np.zeros((size, size)), np.zeros((size, model.nu))
    mujoco.mjd_transitionFD(model, data, 1e-6, True, a, b, None, None)
    own = np.concatenate([limits.dofs, model.nv + limits.dofs])
    a, b, joints = a[np.ix_(own, own)], b[np.ix_(own, limits.actuators)], len(limits.dofs)
    phases = np.exp(2j * np.pi * hertz * model.opt.timestep)
    systems: Array = phases[:, None, None] * np.eye(2 * joints) - a
    found = cast(Array, np.linalg.solve(systems, np.broadcast_to(b, (len(systems), *b.shape))))
    return data.qpos[limits.at].copy(), found[:, :joints]


def basis(rest: Array, waves: Array, responses: Any, places: Array, noise: float, share: float) -> Basis:
    """Small motions and their derivatives: `places` holds tone, joint and phase (0 sine, 1 cosine) of each [motions,
    3].

    `share` is the share of a sine's energy that is left by fading in and out.
    """
    still, swings = responses
    params, tones, joints, _ = swings.shape
    jacobian = np.zeros((params, len(waves), tones, 2, joints))
    for number, (tone, joint, phase) in enumerate(places):
        size = np.abs(waves[number]).max()
        seen = size * swings[:, tone, :, joint] * (1.0 if phase else -1j)
        jacobian[:, number, tone, 0], jacobian[:, number, tone, 1] = seen.real, seen.imag
    jacobian = jacobian.reshape(params, len(waves), -1) * np.sqrt(share * len(rest) / 2) / noise
    pose = np.zeros((params, jacobian.shape[-1] + joints))
    pose[:, -joints:] = still * np.sqrt(len(rest)) / noise
    return Basis(rest, waves, pose, np.concatenate([jacobian, np.zeros((params, len(waves), joints))], axis=-1))


def best_superposition(given: Basis, energy: float, rng: np.random.Generator, *, tries: int = 4) -> Array:
    """Coefficients of the motion of a given energy that maximises the smallest eigenvalue [motions]."""
    params, size, _ = given.jacobian.shape
    flat = given.jacobian.reshape(params * size, -1)
    inner = (flat @ flat.T).reshape(params, size, params, size)
    cross = np.einsum("ir,kbr->ikb", given.still, given.jacobian)
    still = given.still @ given.still.T
    away = (given.waves - given.waves.mean(axis=1, keepdims=True)).reshape(size, -1)
    gram = away @ away.T
    best: Array = np.zeros(len(away))
    top = -np.inf
    for _ in range(tries):
        c: Array = rng.standard_normal(len(away))
        for power in POWERS:
            c = minimize(_loss, c, (power, energy, gram, (inner, cross, still)), jac=True, method="L-BFGS-B",
                         options={"maxiter": 100}).x  # fmt: skip
        c = c * np.sqrt(energy / (c @ gram @ c))
        floor = float(np.linalg.eigvalsh(_information(c, (inner, cross, still)))[0])
        best, top = (c, floor) if floor > top else (best, top)
    return best


def _information(c: Array, parts: tuple[Array, Array, Array]) -> Array:
    inner, cross, still = parts
    mixed = cross @ c
    return still + mixed + mixed.T + np.einsum("b,ibkd,d->ik", c, inner, c, optimize=True)


def _loss(x: Array, power: float, energy: float, gram: Array, parts: tuple[Array, Array, Array]) -> tuple[float, Array]:
    """Negative logarithm of a power mean of the eigenvalues, and its gradient by x.

    The length of x does not matter: c = x sqrt(energy / x^T gram x).
    """
    spent = float(x @ gram @ x)
    stretch = np.sqrt(energy / spent)
    c = stretch * x
    inner, cross, _ = parts
    values, vectors = np.linalg.eigh(_information(c, parts))
    values = np.maximum(values, 1e-12 * max(float(values[-1]), 1e-300))
    shares = (values / values[0]) ** -power
    loss = -float(np.log(values[0]) - np.log(shares.sum()) / power)
    weight = (vectors * (shares / shares.sum() / values)) @ vectors.T
    by_c = 2 * np.einsum("ik,ikb->b", weight, cross) + 2 * np.einsum("ik,ibkd,d->b", weight, inner, c, optimize=True)
    by_x = stretch * (by_c - (gram @ x) * float(by_c @ x) / spent)
    return loss, -by_x


def tones(top: int) -> list[int]:
    """Cycles over the motion: a few per octave, for gravity and resonances, and the fastest ones, for inertia."""
    spread = np.round(np.geomspace(1, top, 7)).astype(int)
    return sorted({int(n) for n in [*spread, top - 1, top - 2] if n >= 1})
