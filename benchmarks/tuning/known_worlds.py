"""Worlds with planted truths for `python -m benchmarks tune`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from instep import Episode, Scene, Script, open_world, rollout
from instep.core.param import Param
from instep.core.world import Array, Simulator, Spec, vector
from instep.scene import address
from instep.scene.folder import SceneSimulator
from instep.tune.fit.shooting import ShootingOptions
from instep.tune.fit.windows import tangent
from small_models import servo_model, write_scene


@dataclass(frozen=True, slots=True, eq=False)
class Bed:
    """A simulator, what is sought in it, what moves it, and how it is measured."""

    name: str
    sim: SceneSimulator
    params: tuple[Param, ...]
    start: Mapping[str, float]
    commands: Callable[[int], Array]
    """Actions [steps, nu] by seed."""
    noise: float
    """Of measured positions [rad or m]."""
    joints: tuple[str, ...]
    """Coordinates that are measured; all where empty."""
    options: ShootingOptions

    def record(self, truth: Mapping[str, float], seeds: Sequence[int], real: Simulator | None = None) -> list[Episode]:
        """Recordings with planted parameters and noisy sensors, of the bed's own simulator or of another one."""
        return [self._one((real or self.sim).tuned(dict(truth)), seed) for seed in seeds]

    def _one(self, real: Simulator, seed: int) -> Episode:
        actions = self.commands(seed)
        run = rollout(real, Script(actions), steps=len(actions))
        rng = np.random.default_rng((seed, 0xBED))
        form = tangent(run.spec, run.spec)
        q = form.plus(run.q, self.noise * rng.standard_normal(run.v.shape))
        v = run.v + 10 * self.noise * rng.standard_normal(run.v.shape)
        spec, columns = run.spec, {"timestamp": run.t, "q": q, "v": v, "action": run.action}
        if self.joints:
            at = [spec.q.labels.index(name) for name in self.joints]
            spec = _seen(spec, self.joints)
            columns |= {"q": q[:, at], "v": v[:, at]}
        return Episode(spec, columns, {"name": f"{self.name} {seed}"})

    def truth(self, seed: int) -> dict[str, float]:
        """Parameters somewhere in the middle half of their ranges."""
        rng = np.random.default_rng((seed, 0x712))
        return {
            k.address: float(k.from_unit(x))
            for k, x in zip(self.params, rng.uniform(0.25, 0.75, len(self.params)), strict=True)
        }


def bed(name: str, folder: Path) -> Bed:
    """A bed by its name, stepped on one thread, since the benchmark runs one process per core."""
    made = {"pendulum": lambda: pendulum(folder), "arm7": arm7, "pusht": pusht}[name]()
    return replace(made, sim=open_world(made.sim.scene, threads=1))


def servo(folder: Path, *, weightless: bool = False) -> SceneSimulator:
    """A position servo that lifts a rod, and a second rod that nothing drives."""
    model = servo_model(bystander=True, gravcomp=float(weightless), mass=1e-3 if weightless else 0.4)
    return open_world(Scene.load(write_scene(folder, model, ("hinge",))))


def pendulum(folder: Path) -> Bed:
    """Damping, armature and stiffness of a servo that swings a rod."""
    sim = servo(folder)
    return _bed("pendulum", sim, ("joint.hinge.damping", "joint.hinge.armature", "actuator.hinge.kp"), 1e-3, 0.5, 100)


def arm7() -> Bed:
    """Stiffness of the seven servos of an arm."""
    names = [f"actuator.joint_{i}.kp" for i in range(1, 8)]
    bed = _bed("arm7", open_world("arm7"), names, 1e-4, 0.12, 60)
    joints = tuple(f"joint_{i}" for i in range(1, 8))
    return replace(bed, joints=joints, options=replace(bed.options, local=True, window=0.4))


def pusht() -> Bed:
    """Friction of a pushed block, and the stiffness of what pushes it."""
    sim = open_world("pusht")
    bed = _bed("pusht", sim, ("geom.tee_bar.friction", "actuator.pusher_x.kp", "actuator.pusher_x.kv"), 1e-4, 0.0, 90)
    # One value for all parts: the friction of a pair is that of its rougher side.
    names = {"geom.tee_bar.friction": "geom.*.friction"} | {
        f"actuator.pusher_x.{w}": f"actuator.*.{w}" for w in ("kp", "kv")
    }
    params = tuple(replace(param, address=names[param.address]) for param in bed.params)
    start = {names[name]: value for name, value in bed.start.items()}
    q, _ = sim.scene.start(0)

    def push(seed: int) -> Array:
        rng = np.random.default_rng((seed, 0x9A5))
        share = np.minimum(np.arange(90) / 75, 1.0)[:, None]
        goal = q[2:4] + np.array([rng.uniform(0.06, 0.1), rng.uniform(-0.02, 0.02)])
        return q[:2] + share * (goal - q[:2])

    # What a block does not do on a table, lift and tilt, is rattle of the contact solver, and counts for nothing.
    flat = {"tee.vz": 1.0, "tee.wx": 1.0, "tee.wy": 1.0}
    options = replace(bed.options, initial=start, scale=flat, iterations=30)
    return replace(bed, params=params, start=start, commands=push, options=options)


def _bed(name: str, sim: SceneSimulator, names: Sequence[str], noise: float, reach: float, steps: int) -> Bed:
    scene = sim.scene
    values = address.read(scene.model, list(names))
    units = {k.address: k.unit for k in scene.params(*names)}
    params = tuple(Param(n, values[n] / 4, values[n] * 4, True, units[n]) for n in names)
    rest = scene.rest_action()

    def swing(seed: int) -> Array:
        rng = np.random.default_rng((seed, 0x5E1))
        t = np.arange(steps)[:, None] * scene.dt
        tones = rng.uniform([0.3, 0.3, 0.0], [1.0, 2.5, 6.0], (3, len(rest), 3))
        waves = [reach * a * (np.sin(2 * np.pi * f * t + p) - np.sin(p)) for a, f, p in tones.transpose(0, 2, 1)]
        return rest + np.sum(waves, axis=0)

    options = ShootingOptions(window=0.5, guesses=1, iterations=15, initial={n: values[n] for n in names})
    return Bed(name, sim, params, {n: values[n] for n in names}, swing, noise, (), options)


def _seen(spec: Spec, joints: Sequence[str]) -> Spec:
    units = dict(zip(spec.q.labels, spec.q.units, strict=True))
    per_second = dict(zip(spec.v.labels, spec.v.units, strict=True))
    return replace(
        spec, q=vector(joints, [units[j] for j in joints]), v=vector(joints, [per_second[j] for j in joints])
    )
