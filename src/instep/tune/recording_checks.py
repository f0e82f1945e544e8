"""The recordings of a fit: problems that refuse them, coordinates without weight, and stretches free of contact."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import numpy as np
from scipy.ndimage import binary_dilation

from instep.core.episode import Episode
from instep.core.errors import BadInput, UnknownName
from instep.core.param import Param
from instep.core.world import Array, Simulator, Spec, array_dataclass
from instep.physics.actuators import ActuatedWorld
from instep.physics.engine_model import touching_rows
from instep.physics.mujoco_world import MujocoWorld
from instep.scene import address
from instep.scene.folder import Scene
from instep.scene.robot_structure import driven_joints, passive_bodies, without_free_bodies

from .fit.least_squares import NO_WEIGHT
from .fit.windows import difference_noise

Pairs = Sequence[tuple[int, int]]
"""Columns of a position command and of the joint it drives."""
LAG_ROWS = (1, 2, 4, 8, 16)
"""Rows by which a joint may follow its command."""
FOREIGN_SHARE = 0.3
"""By how much another joint's correlation with a command must exceed that of its own joint to be taken for it."""
DEGREES = 180 / np.pi
MAX_NOISE_SHARE = 0.7
"""Noise, as a share of the spread of a position, above which it did not move."""
OF_ROBOT = frozenset({"joint", "actuator", "action", "tendon", "body"})
"""Kinds of parameters that act on the robot itself, unless they are of a passive body."""
CONTACT_MARGIN_S = 0.1
"""Time before and after a contact that is left out too [s]."""
SHORTEST_STRETCH_S = 2.5
"""Shorter stretches between contacts are left out [s]."""
LEAST_FREE_SHARE = 0.5
"""Share of the recordings that must be free of contact for the rest to be left out of the search."""


def scene_problems(scene: Scene, episodes: Sequence[Episode]) -> list[str]:
    """What shows that recordings do not belong to a scene as they are, one sentence each."""
    pairs, powered = servo_pairs(scene, episodes[0]), _powered(episodes)
    return [*_wrong_units(powered, pairs), *_out_of_range(scene, episodes), *_wrong_joints(powered, pairs)]


def refuse(problems: Sequence[str]) -> None:
    """Raise the first of some problems, and say how many there are; nothing where there are none."""
    if problems:
        rest = len(problems) - 1
        more = f" {rest} more such problem{'s' if rest > 1 else ''}." if rest else ""
        raise BadInput(f"{problems[0]}{more}")


def recording_problems(episodes: Sequence[Episode]) -> list[str]:
    """What makes a fit meaningless, one sentence each; empty where nothing is wrong."""
    found = [sentence for i, episode in enumerate(episodes) for sentence in _problems(episode, i)]
    if found:
        return found
    spec, noisy, moving = episodes[0].spec, _noisy(episodes), _moving(episodes)
    if moving and noisy == moving:
        return [
            f"The positions hold noise alone ({', '.join(noisy[:4])} never move by more than it), so no parameter is "
            "identifiable; record a motion first, for example one designed by: instep excite SCENE"
        ]
    named = [(a, spec.q.labels.index(label)) for a, label in enumerate(spec.action.labels) if label in spec.q.labels]
    return _wrong_joints(_powered(episodes), [(a, q) for a, q in named if spec.action.units[a] == spec.q.units[q]])


def recording_warnings(episodes: Sequence[Episode]) -> list[str]:
    """What a reader should know before trusting a fit, one sentence each."""
    found: list[str] = []
    steps = [s for e in episodes if len(s := np.diff(e.t)) and np.median(s) > 0]
    gaps = [gap for s in steps if (gap := float(s.max() / np.median(s))) > 1.5]
    if gaps:
        found.append(f"{len(gaps)} recordings have gaps of up to {max(gaps):.1f} periods in their clock.")
    labels, moving = episodes[0].spec.q.labels, _moving(episodes)
    motionless = [label for label in labels if label not in moving] + _noisy(episodes)
    if motionless:
        found.append(f"{', '.join(motionless)} never moved, so their parameters are not identifiable.")
    return found


def _powered(episodes: Sequence[Episode]) -> list[Episode]:
    """Stretches in which commands have an effect: no motor is switched off."""
    return [part for episode in episodes if len(part := episode.powered_stretch()) > 2]


def _problems(episode: Episode, number: int) -> list[str]:
    name = episode.meta.get("name", f"episode {number}")
    found: list[str] = []
    for column in ("q", "action"):
        values = episode[column][: len(episode) - (column == "action")]
        if not np.isfinite(values).all():
            row = int(np.argwhere(~np.isfinite(values))[0, 0])
            found.append(f"{name}: row {row} of {column!r} is not a finite number.")
    steps = np.diff(episode.t)
    if len(steps) and not (steps > 0).all():
        found.append(f"{name}: the clock runs backwards or stands still at row {int(np.argmin(steps > 0)) + 1}.")
    return found


def _moving(episodes: Sequence[Episode]) -> list[str]:
    """Positions that change at all."""
    labels = episodes[0].spec.q.labels
    moved = np.max([np.ptp(e.q, axis=0) for e in episodes], axis=0)
    return [label for label, m in zip(labels, moved, strict=True) if m >= 1e-9]


def _noisy(episodes: Sequence[Episode]) -> list[str]:
    """Positions that change, but by no more than white noise does."""
    long = [e for e in episodes if len(e) >= 8]
    if not long:
        return []
    noise = np.median([difference_noise(e.q) for e in long], axis=0)
    spread = np.max([e.q.std(axis=0) for e in long], axis=0)
    labels = long[0].spec.q.labels
    return [n for n, a, b in zip(labels, noise, spread, strict=True) if b > 1e-9 and a > MAX_NOISE_SHARE * b]


def servo_pairs(scene: Scene, episode: Episode) -> list[tuple[int, int]]:
    """Columns of position commands and of the joints they drive."""
    commands, joints, known = episode.spec.action.labels, episode.spec.q.labels, set(address.addresses(scene.model))
    pairs: list[tuple[int, int]] = []
    for a, name in enumerate(commands):
        if f"actuator.{name}.kp" in known:
            driven = driven_joints(scene.model, name)
            pairs += [(a, joints.index(driven[0]))] if len(driven) == 1 and driven[0] in joints else []
    return pairs


def _wrong_units(episodes: Sequence[Episode], pairs: Pairs) -> list[str]:
    """Joints that follow their command with a factor of degrees per radian, or its inverse."""
    found: list[str] = []
    for a, q in pairs if episodes else ():
        spec = episodes[0].spec
        u, x = (
            np.concatenate(part)
            for part in zip(*((_centred(e.action[:-1, a]), _centred(e.q[1:, q])) for e in episodes), strict=True)
        )
        size = float(np.linalg.norm(u) * np.linalg.norm(x))
        if size == 0 or float(u @ x) < 0.8 * size:
            continue
        gain = float(u @ x) / float(u @ u)
        for factor, which in ((gain, "positions"), (1 / gain, "commands")):
            if 0.7 * DEGREES < factor < 1.3 * DEGREES:
                found.append(
                    f"The {which} of {spec.q.labels[q]!r} look like degrees ({factor:.0f} times those of the other); "
                    'radians were expected: give their unit in a mapping (from_unit = "deg", --map FILE.toml).'
                )
    return found


def _out_of_range(scene: Scene, episodes: Sequence[Episode]) -> list[str]:
    """Joints that spend most of their time many times beyond their range, as angles in degrees do."""
    labels, found = episodes[0].spec.q.labels, list[str]()
    for name in scene.robot:
        joint = scene.model.joint(name)
        if name not in labels or not joint.limited[0]:
            continue
        reach = float(np.quantile(np.abs(np.concatenate([e.q[:, labels.index(name)] for e in episodes])), 0.8))
        limit = float(np.abs(joint.range).max())
        if reach > max(3 * limit, 2 * np.pi):
            found.append(
                f"{name!r} is at {reach:.3g} most of the time and its range ends at {limit:.3g} rad: if the recordings "
                'are in degrees, give their unit in a mapping (from_unit = "deg", --map FILE.toml).'
            )
    return found


def _wrong_joints(episodes: Sequence[Episode], pairs: Pairs) -> list[str]:
    """Position commands whose response appears in another joint, or with the other sign."""
    if not pairs or not episodes:
        return []
    spec, alike = episodes[0].spec, _correlations(episodes, pairs)
    found: list[str] = []
    for row, (a, q) in enumerate(pairs):
        label, size = spec.action.labels[a], np.abs(alike[row])
        best = int(np.argmax(size))
        if best != row and size[best] > 0.8 and size[row] < size[best] - FOREIGN_SHARE:
            other = spec.q.labels[pairs[best][1]]
            found.append(
                f"The command of {label!r} is answered by {other!r} rather than by {spec.q.labels[q]!r}: the order of "
                "the joints differs; name the columns in a mapping (--map FILE.toml)."
            )
        elif alike[row, row] < -0.5:
            found.append(f"{label!r} moves against its command: its sign differs; give its sign in a mapping.")
    return found


def _correlations(episodes: Sequence[Episode], pairs: Pairs) -> Array:
    """Correlation of each command with each joint at the lag where it is largest [commands, joints]."""
    best = np.zeros((len(pairs), len(pairs)))
    for lag in LAG_ROWS:
        long = [e for e in episodes if len(e) > lag + 2]
        if not long:
            break
        commands = np.concatenate([_centred(e.action[: len(e) - lag, [a for a, _ in pairs]]) for e in long])
        answers = np.concatenate([_centred(e.q[lag:, [q for _, q in pairs]]) for e in long])
        size = np.linalg.norm(commands, axis=0)[:, None] * np.linalg.norm(answers, axis=0)[None]
        alike = commands.T @ answers / np.where(size > 0, size, np.inf)
        best = np.where(np.abs(alike) > np.abs(best), alike, best)
    return best


def _centred(values: Array) -> Array:
    return values - values.mean(axis=0)


def ignored_coordinates(patterns: Sequence[str], labels: Sequence[str]) -> list[str]:
    """The measured coordinates that match any pattern; a pattern without one is an error."""
    for pattern in patterns:
        if not any(fnmatchcase(label, pattern) for label in labels):
            raise UnknownName("measured coordinate", pattern, labels)
    return [label for label in labels if any(fnmatchcase(label, pattern) for pattern in patterns)]


def pushed_bodies(scene: Scene, params: Sequence[Param], measured: Sequence[str]) -> list[str]:
    """The measured objects whose motion says little about the parameters, since those are all of the robot.

    An object that is pushed slips and tips: its motion jumps with the smallest change of a gain and depends on contact
    that was not identified, while the joints of the robot show the same gain smoothly. None where a parameter is of an
    object, of a contact or of the world, or where nothing but objects moves.
    """
    passive = passive_bodies(scene.model)
    owned = {*passive, *passive.values()}
    if not all(p.parts.kind in OF_ROBOT and p.parts.name not in owned for p in params):
        return []
    moved = {label.rpartition(".")[0] for label in measured} & set(passive)
    own = [label for label in measured if label.rpartition(".")[0] not in moved]
    return sorted(moved) if own else []


def measured_coordinates(spec: Spec, episodes: Sequence[Episode]) -> list[str]:
    """The coordinates of a scene that all recordings measure: joints by name, bodies by their pose."""
    joints = {label for label in spec.v.labels if label in spec.q.labels}
    known = [{*e.spec.q.labels} for e in episodes]
    bodies = [{label.rpartition(".")[0] for label in names - joints} for names in known]
    measured = {x for x in joints if all(x in names for names in known)}
    measured |= {x for x in spec.v.labels if x not in joints and all(x.rpartition(".")[0] in b for b in bodies)}
    return [x for x in spec.v.labels if x in measured]


def scales(ignored: Sequence[str], pushed: Sequence[str], measured: Sequence[str]) -> dict[str, float]:
    """The scales of the residuals that have no weight, by coordinate that was measured."""
    return {x: NO_WEIGHT for x in measured if x in ignored or x.rpartition(".")[0] in pushed}


def pushed_note(pushed: Sequence[str]) -> str:
    """What a result says about objects without weight."""
    return (
        f"The motion of {', '.join(pushed)} has no weight in the search: all parameters are of the robot, and its own "
        "joints show them better. Held-out errors count it."
    )


@array_dataclass
class Searched:
    """The world to search in, and the recordings to fit."""

    sim: MujocoWorld
    fitted: Sequence[Episode]

    def left_out(self, given: Sequence[Episode]) -> list[str]:
        """A sentence that says how much of the recordings is in contact and left out; none where nothing is."""
        rows, all_rows = (sum(len(episode) for episode in some) for some in (self.fitted, given))
        if rows == all_rows:
            return []
        seconds = (all_rows - rows) * self.sim.spec.dt
        return [f"The robot touches something for {seconds:.1f} s of the fitted recordings, which the search left out."]


def plain_world(sim: Simulator) -> MujocoWorld | None:
    """The MuJoCo world that a simulator moves like; None for another engine, or actuator models that have an effect."""
    if isinstance(sim, MujocoWorld):
        return sim
    return sim.world if isinstance(sim, ActuatedWorld) and sim.is_plain else None


def searched(sim: MujocoWorld, fitted: Sequence[Episode], params: Sequence[Param]) -> Searched:
    """The world without contacts, and the stretches of recordings in which the robot touches nothing, itself included.

    Free bodies that were not recorded, and that it does not touch, are left out too. In these stretches the motion is
    the same, and several times as fast to simulate. Where it touches something most of the time, nothing is left out.
    """
    free = _free_stretches(sim, fitted)
    if free is None:
        return Searched(sim, fitted)
    alone = without_free_bodies(sim.scene)
    if alone is sim.scene:
        return Searched(sim.without_contacts(), free)
    if alone is None or any(set(e.spec.q.labels) - set(alone.spec.q.labels) for e in fitted):
        return Searched(sim, fitted)
    known = set(address.addresses(alone.model))
    if any(name not in known for name in (*sim.settings, *(param.address for param in params))):
        return Searched(sim, fitted)
    world = MujocoWorld(alone, threads=sim.threads, settings=sim.settings, ignore_contacts=True)
    return Searched(world, free)


def _free_stretches(sim: MujocoWorld, episodes: Sequence[Episode]) -> list[Episode] | None:
    """The recordings without what is in contact; None where little is left."""
    parts: list[Episode] = []
    margin, shortest = round(CONTACT_MARGIN_S / sim.spec.dt), round(SHORTEST_STRETCH_S / sim.spec.dt)
    for episode in episodes:
        touching = touching_rows(sim, episode)
        if not touching.any():
            parts.append(episode)
            continue
        flags = ~binary_dilation(touching, iterations=max(1, margin))
        edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(int))).tolist()
        for begin, end in zip(edges[::2], edges[1::2], strict=True):
            if end - begin >= shortest:
                parts.append(episode.rows(begin, end))
    free = sum(len(part) for part in parts)
    return parts if free >= LEAST_FREE_SHARE * sum(len(episode) for episode in episodes) else None
