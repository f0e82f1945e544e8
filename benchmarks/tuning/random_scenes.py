"""Small scenes made at random: pendulums and chains, carts, sliders with springs, servo and motor arms, a box."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from instep.core.world import Array

SHIPPED = ("cartpole", "furuta", "double_pendulum", "chaotic_pendulum", "so101", "cube")
"""Shipped scenes among the problems."""
GRAVITY = 9.81


@dataclass(frozen=True, slots=True)
class RandomScene:
    """A scene by its kind, and where it is: a folder or the name of a shipped scene."""

    kind: str
    where: str


@dataclass(frozen=True, slots=True, eq=False)
class _Chain:
    """Links one below the other [n each]; inertia and weight of all that a joint carries."""

    lengths: Array
    masses: Array

    @property
    def inertia(self) -> Array:
        """Inertia about each joint of what hangs from it, straight down [kg m2]."""
        return np.array([self._moment(j, 2) + self._own(j) for j in range(len(self.lengths))])

    @property
    def weight(self) -> Array:
        """Torque of gravity about each joint with everything held out sideways [Nm]."""
        return np.array([GRAVITY * self._moment(j, 1) for j in range(len(self.lengths))])

    def _moment(self, joint: int, power: int) -> float:
        above = np.concatenate([[0.0], np.cumsum(self.lengths[joint:])[:-1]])
        return float((self.masses[joint:] * (above + self.lengths[joint:] / 2) ** power).sum())

    def _own(self, joint: int) -> float:
        return float((self.masses[joint:] * self.lengths[joint:] ** 2 / 12).sum())


def random_scene(seed: int, folder: Path) -> RandomScene:
    """The scene of a seed, written into a folder where it is none of the shipped ones."""
    rng = np.random.default_rng((seed, 0x5CE))
    kind = KINDS[int(rng.integers(len(KINDS)))]
    if kind == "shipped":
        name = SHIPPED[int(rng.integers(len(SHIPPED)))]
        return RandomScene(name, name)
    model, joints, objects = _MAKERS[kind](rng)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "scene.xml").write_text(model, encoding="utf-8")
    listed = ", ".join(f'"{name}"' for name in joints)
    bodies = f"[objects]\nbodies = [{', '.join(f'{name!r}' for name in objects)}]\n" if objects else ""
    head = f'model = "scene.xml"\nrate = {100.0 if objects else 50.0}\n'
    (folder / "scene.toml").write_text(f"{head}[robot]\njoints = [{listed}]\n{bodies}", encoding="utf-8")
    return RandomScene(kind, str(folder))


def _swinging_chain(rng: np.random.Generator) -> tuple[str, list[str], list[str]]:
    """One to four links that nothing drives."""
    chain = _random_links(rng, int(rng.integers(1, 5)))
    words = [_hinge(rng, i, w) for i, w in zip(chain.inertia, chain.weight, strict=True)]
    return _mjcf(_links(chain, words)), [f"j{k}" for k in range(len(words))], []


def _servo_arm(rng: np.random.Generator) -> tuple[str, list[str], list[str]]:
    """One to four joints with position servos, each with damping of its own or none."""
    chain = _random_links(rng, int(rng.integers(1, 5)))
    inertia = chain.inertia * 1.2
    kp = np.maximum(inertia * rng.uniform(8.0, 25.0, len(inertia)) ** 2, 2.0 * chain.weight)
    kv = 2 * rng.uniform(0.4, 1.2, len(kp)) * np.sqrt(kp * inertia)
    words = [_hinge(rng, i, w) for i, w in zip(chain.inertia, chain.weight, strict=True)]
    motors = "".join(
        f'<position name="j{k}" joint="j{k}" kp="{kp[k]:.5g}" kv="{kv[k]:.5g}" ctrlrange="-2 2" '
        f'forcerange="{-5 * chain.weight[k]:.5g} {5 * chain.weight[k]:.5g}"/>\n'
        for k in range(len(kp))
    )
    return _mjcf(_links(chain, words), motors), [f"j{k}" for k in range(len(kp))], []


def _motor_arm(rng: np.random.Generator) -> tuple[str, list[str], list[str]]:
    """One to three hanging links with torque motors."""
    chain = _random_links(rng, int(rng.integers(1, 4)))
    words = [_hinge(rng, i, w, drag=3.0) for i, w in zip(chain.inertia, chain.weight, strict=True)]
    limit = 0.8 * chain.weight
    motors = "".join(
        f'<motor name="m{k}" joint="j{k}" gear="1" ctrlrange="{-limit[k]:.5g} {limit[k]:.5g}"/>\n'
        for k in range(len(limit))
    )
    return _mjcf(_links(chain, words), motors), [f"j{k}" for k in range(len(limit))], []


def _cart(rng: np.random.Generator) -> tuple[str, list[str], list[str]]:
    """A cart on a rail with one or two links below it, pushed by a motor or held by a servo."""
    chain = _random_links(rng, int(rng.integers(1, 3)))
    mass = float(rng.uniform(0.5, 2.0))
    total = mass + float(chain.masses.sum())
    words = [_hinge(rng, i, w) for i, w in zip(chain.inertia, chain.weight, strict=True)]
    slide = _slide(rng, total)
    push = 3.0 * total
    stiffness = total * float(rng.uniform(5.0, 15.0)) ** 2
    drive = f'<motor name="cart" joint="cart" ctrlrange="{-push:.5g} {push:.5g}"/>'
    if rng.uniform() < 0.5:
        damping = 1.4 * np.sqrt(stiffness * total)
        drive = f'<position name="cart" joint="cart" kp="{stiffness:.5g}" kv="{damping:.5g}" ctrlrange="-0.5 0.5"/>'
    body = (
        f'<body name="cart"><joint name="cart" type="slide" axis="1 0 0" {slide}/>\n'
        f'<geom type="box" size="0.1 0.05 0.03" mass="{mass:.5g}" contype="0" conaffinity="0"/>\n'
        f"{_links(chain, words)}</body>\n"
    )
    return _mjcf(body, drive), ["cart", *(f"j{k}" for k in range(len(words)))], []


def _spring_slider(rng: np.random.Generator) -> tuple[str, list[str], list[str]]:
    """One or two masses on sliders with springs; a motor pushes the first of them, or nothing does."""
    count, bodies = int(rng.integers(1, 3)), ""
    masses = rng.uniform(0.3, 3.0, count)
    for k in range(count):
        stiffness = float(masses[k:].sum()) * float(rng.uniform(2.0, 9.0)) ** 2
        words = f'{_slide(rng, float(masses[k:].sum()))} stiffness="{stiffness:.5g}"'
        bodies += (
            f'<body name="mass{k}"><joint name="j{k}" type="slide" axis="1 0 0" {words}/>\n'
            f'<geom type="box" size="0.05 0.05 0.05" mass="{masses[k]:.5g}" contype="0" conaffinity="0"/>\n'
        )
    push = 4.0 * float(masses.sum())
    drive = f'<motor name="push" joint="j0" ctrlrange="{-push:.5g} {push:.5g}"/>' if rng.uniform() < 0.6 else ""
    return _mjcf(bodies + "</body>" * count, drive), [f"j{k}" for k in range(count)], []


def _box(rng: np.random.Generator) -> tuple[str, list[str], list[str]]:
    """A box that slides or falls on a plane."""
    size = rng.uniform(0.03, 0.08, 3)
    body = (
        '<geom name="table" type="plane" size="5 5 0.1" friction="0.05"/>\n'
        f'<body name="box" pos="0 0 {size[2]:.5g}"><freejoint name="box"/>\n'
        f'<geom name="box" type="box" size="{size[0]:.4g} {size[1]:.4g} {size[2]:.4g}" '
        f'mass="{rng.uniform(0.2, 2.0):.4g}" friction="{rng.uniform(0.15, 0.6):.4g}"/></body>\n'
    )
    return _mjcf(body), [], ["box"]


_MAKERS: dict[str, Callable[[np.random.Generator], tuple[str, list[str], list[str]]]] = {
    "chain": _swinging_chain, "servo arm": _servo_arm, "motor arm": _motor_arm, "cart": _cart,
    "slider": _spring_slider, "box": _box,
}  # fmt: skip
"""What makes a model, its joints and its free bodies."""
KINDS = (*_MAKERS, "servo arm", "motor arm", "shipped")


def _random_links(rng: np.random.Generator, count: int) -> _Chain:
    return _Chain(rng.uniform(0.15, 0.45, count), rng.uniform(0.2, 1.5, count) * np.linspace(1.0, 0.5, count))


def _hinge(rng: np.random.Generator, inertia: float, weight: float, drag: float = 1.0) -> str:
    """Damping, dry friction and armature of a hinge that carries some inertia and weight."""
    damping, armature = drag * inertia * 10 ** rng.uniform(-0.7, 0.4), inertia * rng.uniform(0.03, 0.3)
    return f'damping="{damping:.5g}" frictionloss="{weight * rng.uniform(0.005, 0.04):.5g}" armature="{armature:.5g}"'


def _slide(rng: np.random.Generator, mass: float) -> str:
    damping, friction = mass * 10 ** rng.uniform(-0.5, 0.5), mass * rng.uniform(0.02, 0.2)
    return f'damping="{damping:.5g}" frictionloss="{friction:.5g}" armature="{mass * rng.uniform(0.02, 0.2):.5g}"'


def _links(chain: _Chain, words: list[str]) -> str:
    bodies, above = "", 0.0
    for k, (length, mass) in enumerate(zip(chain.lengths, chain.masses, strict=True)):
        bodies += (
            f'<body name="link{k}" pos="0 0 {above:.5g}"><joint name="j{k}" axis="0 1 0" {words[k]}/>\n'
            f'<geom name="link{k}" type="capsule" fromto="0 0 0 0 0 {-length:.5g}" size="{0.08 * length:.5g}" '
            f'mass="{mass:.5g}" contype="0" conaffinity="0"/>\n'
        )
        above = -length
    return bodies + "</body>" * len(words) + "\n"


def _mjcf(bodies: str, actuators: str = "") -> str:
    """A model whose dry friction holds rather than creeps, as that of machines does."""
    return (
        '<mujoco>\n<compiler angle="radian"/>\n<option timestep="0.0025" integrator="implicitfast"/>\n'
        '<default><joint solimpfriction="0.9999 0.9999 0.001 0.5 2"/></default>\n'
        f"<worldbody>\n{bodies}</worldbody>\n<actuator>\n{actuators}</actuator>\n</mujoco>\n"
    )
