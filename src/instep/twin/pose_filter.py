"""The pose filter: each body's pose, predicted by physics, corrected by what all cameras show, with its covariance.

A picture is older than the state it corrects. The filter remembers where it believed each body to be, finds the motion
that makes that belief fit the picture at its stamp, and applies the same motion to all that was believed since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from instep.core.poses import quat_from_matrix, quat_log
from instep.core.world import Array, Observation, State
from instep.scene.folder import Scene
from instep.splat.gaussians import Gaussians

from .camera_rig import AROUND, Eyes, Frame
from .global_search import acquire
from .initialization import colour_of
from .occlusion import Hider
from .photometric import Photo, colours_of, joined, kept, repainted
from .pose_solver import Sharpness, Shot, Solution, View, look, moved, planar_basis, solve
from .projection import Outline, Place, glances, model_of, outline, place_of
from .segmentation import first_strength
from .support import Support, keep_apart, rested, support_of
from .surface_gaussians import Skin, skin_of
from .twin import Corrected

NEAR = 14
"""Pixels around a prediction that is sure."""
WIDER = 2000.0
"""Further pixels per standard deviation [1/m]: a camera half a metre away shows 500 pixels per metre."""
LEAP = 0.01
"""A correction beyond this is not a motion of the body but a mistake about where it is [m]."""
PATIENCE = 0.25
"""How long after the last picture the next one is not yet missed [s]."""
SLOW = 0.02
"""Speed below which a body says little about the age of pictures [m/s]."""
LEARN = 0.8
"""Overlap in every camera from which a body's colours are learned."""
MEMORY = 32
"""How many past beliefs are kept: half a second at 60 Hz, more than the latency of any camera that is of use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterOptions:
    """How much the filter trusts physics and pictures."""

    residual: Literal["mask", "photo", "both"] = "mask"
    """What is compared: silhouettes, colours of pixels, or both. Bodies are found by their silhouettes in any case."""
    iterations: int = 3
    """Steps by silhouettes; one more follows by colours, two without silhouettes."""
    sharpness: Sharpness = field(default_factory=Sharpness)
    spread: tuple[float, float] = (1e-4, 6e-3)
    """Least and most standard deviation of a predicted position [m]; between them the last innovations decide."""
    turn: tuple[float, float] = (7e-4, 6e-2)
    """The same for an orientation [rad]."""
    visible: float = 0.15
    """Share of the silhouette a camera must be able to see for its pixels to count."""
    shown: float = 0.3
    """Share of that which must show the body's colour; below, something hides it that is not known."""
    inertia: float = 0.2
    """Share of a correction that is taken for a change of velocity."""
    lost_after: int = 12
    """Frames without any sight of a body, while nothing is known to hide it, after which it is looked for anew."""
    astray: float = 0.65
    """Overlap with all cameras, by how much each sees, below which the filter holds on to a wrong place."""
    astray_after: int = 4
    """Frames of such a fit after which the body is looked for anew."""
    bias: float = 6e-4
    """What silhouettes are off by however long one looks [m]: shading, shape, lens. Part of the reported spread."""
    doubt: float = 0.004
    """A camera that keeps disagreeing with the others by this much is frozen [m]."""
    freeze_after: int = 8
    """Frames of such disagreement."""
    hold: tuple[str, ...] = ()
    """Cameras that are only looked at, to judge by: the correction does not see them."""
    touching: bool = True
    """Whether the robot is where the twin has it: corrections keep bodies out of it, and pixels it hides do not count.
    Not where the robot's joints are unknown."""


class PoseFilter:
    """A Correction that keeps every object of a scene where the cameras see it."""

    def __init__(
        self,
        scene: Scene,
        eyes: Eyes,
        options: FilterOptions | None = None,
        *,
        shapes: Mapping[str, Outline] | None = None,
        scans: Mapping[str, Gaussians] | None = None,
    ):
        self.scene, self.eyes, self.options = scene, eyes, options or FilterOptions()
        self._places: tuple[Place, ...] = tuple(place_of(scene.spec, name) for name in scene.objects)
        given = shapes or {}
        self._outlines: tuple[Outline, ...] = tuple(given.get(n) or outline(model_of(scene), n) for n in scene.objects)
        self._solids: tuple[Outline, ...] = tuple(outline(model_of(scene), n) for n in scene.objects)
        self._support: Support | None = support_of(model_of(scene))
        self._hider = Hider(scene)
        self._photos: tuple[Photo, ...] = tuple(self._photo(shape, scans or {}) for shape in self._outlines)
        self._held = np.array([camera.name in self.options.hold for camera in eyes.cameras])

    @property
    def logged(self) -> tuple[str, ...]:
        """Per body: innovation, consistency, residual, how well seen; per camera: overlap, latency, state."""
        per_body = (
            "nis", "shift", "turn", "residual", "photo", "sigma", "weakest", "visible", "behind", "lost", "cut",
            "found",
        )  # fmt: skip
        per_camera = ("overlap", "seen", "latency", "doubt", "frozen")
        bodies = [f"{name}.{word}" for name in self.scene.objects for word in per_body]
        return tuple(bodies + [f"{camera.name}.{word}" for camera in self.eyes.cameras for word in per_camera])

    def shape(self, body: str) -> Outline:
        """The shape that is looked for."""
        return self._outlines[self.scene.objects.index(body)]

    def held(self, c: int) -> bool:
        """Whether a camera is only looked at."""
        return bool(self._held[c])

    def begin(self, state: State, seen: Observation) -> Corrected:
        """Look for every body: near where the scene begins, else anywhere on the table."""
        frames = self.eyes.frames(seen, state.t)
        cameras, bodies = len(self.eyes.cameras), len(self._places)
        memory: dict[str, Any] = {
            "t": np.full(MEMORY, state.t),
            "poses": np.stack([np.tile(state.q[p.q : p.q + 7], (MEMORY, 1)) for p in self._places], axis=1),
            "spread": np.tile([self.options.spread[1], self.options.turn[1]], (bodies, 1)),
            "covariance": np.tile(self._unsure(), (bodies, 1, 1)),
            "joints": np.tile(state.q, (MEMORY, 1)),
            "blind": np.zeros(bodies, int),
            "astray": np.zeros(bodies, int),
            "stamp": np.full(cameras, -np.inf),
            "print": np.zeros(cameras),
            "same": np.zeros(cameras, int),
            "drag": np.zeros((bodies, 2)),
            "age": np.zeros(()),
            "strength": np.array([first_strength(self.eyes.mask, f.pixels) if f else 100.0 for f in frames]),
            "doubt": np.zeros(cameras),
            "doubted": np.zeros(cameras, int),
            "frozen": np.zeros(cameras, bool),
        }
        for name, photo in zip(self.scene.objects, self._photos, strict=True):
            memory |= kept(name, photo.unknown(cameras))
        q = state.q.copy()
        watched = [None if held else frame for held, frame in zip(self._held, frames, strict=True)]
        for b, place in enumerate(self._places):
            found = self._acquired(b, place.transform(q), watched, memory["strength"])
            if found is not None:
                q = place.put(q, found)
        memory["poses"] = np.stack([np.tile(q[p.q : p.q + 7], (MEMORY, 1)) for p in self._places], axis=1)
        return Corrected(q, state.v, memory, dict.fromkeys(self.logged, 0.0))

    def __call__(self, memory: Mapping[str, Any], predicted: State, seen: Observation, t: float) -> Corrected:
        """Correct every body by the pictures that are new."""
        frames, memory = self._fresh(memory, seen, t)
        q, v = predicted.q.copy(), predicted.v.copy()
        log = dict.fromkeys(self.logged, 0.0)
        times = np.append(memory["t"][1:], t)
        poses = np.concatenate([memory["poses"][1:], [[q[p.q : p.q + 7] for p in self._places]]])
        joints = np.concatenate([memory["joints"][1:], [q]])
        for c, camera in enumerate(self.eyes.cameras):
            log[f"{camera.name}.frozen"] = float(memory["frozen"][c])
            log[f"{camera.name}.latency"] = t - float(memory["stamp"][c]) if np.isfinite(memory["stamp"][c]) else np.nan
        for b, (place, shape) in enumerate(zip(self._places, self._outlines, strict=True)):
            past = np.ascontiguousarray(poses[:, b])
            around = self._around(memory["covariance"][b])
            shots = [
                None if f is None or f.stamp < times[0]
                else self.eyes.shot(f, shape, glances.believed(times, past, f.stamp), memory["strength"][c], around)
                for c, f in enumerate(frames)
            ]  # fmt: skip
            self._hide(shots, frames, times, joints)
            xi, touching = self._correct(b, shape, place, q, shots, frames, memory, log)
            if xi is None:
                continue
            log[f"{place.name}.behind"] = _behind(memory["drag"][b], xi, past, times)
            q = place.moved(q, xi)
            if touching:
                apart, log[f"{place.name}.cut"] = keep_apart(self.scene, q, place)
                xi = np.concatenate([xi[:3] + (apart - q)[place.q : place.q + 3], xi[3:]])
                q = apart
            poses[:, b] = glances.shifted(past, xi)
            v = place.add_twist(q, v, self._twist(xi, log[f"{place.name}.shift"]))
        memory = {**memory, "t": times, "poses": poses, "joints": joints}
        return Corrected(q, v, memory, log)

    def _hide(self, shots: Sequence[Shot | None], frames: Sequence[Frame | None], times: Array, joints: Array) -> None:
        """Leave out the pixels that the robot hid when each picture was taken."""
        if not (self._hider and self.options.touching):
            return
        for shot, frame in zip(shots, frames, strict=True):
            if shot is not None and frame is not None:
                row = min(int(np.searchsorted(times, frame.stamp)), len(times) - 1)
                self._hider.hide(shot, joints[row])

    def _twist(self, xi: Array, shift: float) -> Array:
        # A leap is a correction of where the body is, not news of how it moves.
        return np.zeros(6) if shift > LEAP else self.options.inertia * xi / self.scene.dt

    def _correct(
        self, b: int, shape: Outline, place: Place, q: Array, shots: Sequence[Shot | None],
        frames: Sequence[Frame | None], memory: dict[str, Any], log: dict[str, float],
    ) -> tuple[Array | None, bool]:  # fmt: skip
        """The motion that fits one body to its pictures (None to coast), and whether to keep it out of others."""
        options, name = self.options, place.name
        T = place.transform(q)
        basis = self._basis(self._solids[b], T)
        spread, turn = memory["spread"][b]
        prior = memory["covariance"][b] + np.diag([spread**2] * 3 + [turn**2] * 3)
        usable = [c for c, shot in enumerate(shots) if shot is not None and self._open(c, memory)]
        picked = [shot for c in usable if (shot := shots[c]) is not None]
        found = solve(shape, picked, prior, basis, options.sharpness, options.iterations) if picked else None
        good = [i for i, view in enumerate(found.views) if self._sees(view.visible, view.shown)] if found else []
        if found is not None and good and len(good) < len(picked):
            picked, usable = [picked[i] for i in good], [usable[i] for i in good]
            found = solve(shape, picked, prior, basis, options.sharpness, options.iterations)
        if found is not None and good:
            found = self._coloured(b, found, (picked, usable, frames), (prior, basis), (memory, log))
        self._report(name, found if good else None, prior, basis, log)
        known = dict(zip(usable, found.views, strict=True)) if found is not None and good else {}
        self._judge(shape, shots, found.xi if found is not None and good else np.zeros(6), known, log)
        searched = any(shot is not None for shot in shots)
        if found is None or not good:
            return self._blind(b, shape, T, frames, memory, log, searched), False
        memory["blind"][b] = 0
        if (away := self._astray(b, T, found, frames, memory)) is not None:
            log[f"{name}.found"] = 1.0
            return away, False
        self._doubt(found, usable, basis, memory, log)
        memory["covariance"][b] = found.covariance
        memory["spread"][b] = _learned(memory["spread"][b], found.xi, options)
        self._brighten(picked, usable, memory)
        return found.xi, self.options.touching

    def _photo(self, shape: Outline, scans: Mapping[str, Gaussians]) -> Photo:
        """Gaussians to compare: those of a scan, else a skin of the body's shape."""
        if shape.name in scans:
            scan = scans[shape.name].on(shape.name)
            return Photo(Skin(scan, np.zeros((len(scan), 3))))
        return Photo(skin_of(shape, colour_of(self.scene, shape.name)))

    def _coloured(
        self, b: int, found: Solution, seen: tuple[Sequence[Shot], Sequence[int], Sequence[Frame | None]],
        known: tuple[Array, Array], notes: tuple[dict[str, Any], dict[str, float]],
    ) -> Solution:  # fmt: skip
        """The motion that fits the colours of the body's pixels too, where that is asked for; and learn them."""
        (picked, usable, frames), (prior, basis), (memory, log) = seen, known, notes
        photo, name, how = self._photos[b], self._places[b].name, self.options.residual
        pictures = [frame for c in usable if (frame := frames[c]) is not None]
        colours = colours_of(memory, name)
        painted = bool(np.isfinite(colours.used).all())
        if not painted:
            colours = replace(colours, light=memory["strength"].copy())
        gains = [float(memory["strength"][c] / colours.light[c]) for c in usable]
        for _ in range(0 if how == "mask" or not painted else 1 if how == "both" else 2):
            equations = photo.equations(picked, pictures, gains, found.xi, colours)
            found = joined(found, equations, photo.exposure, prior, basis, how == "both")
        here = [replace(shot, world_from_body=moved(shot.world_from_body, found.xi)) for shot in picked]
        log[f"{name}.photo"], fresh = photo.compared(here, pictures, gains, colours)
        if all(view.overlap > LEARN for view in found.views):
            colours = repainted(colours, fresh)
        memory |= kept(name, colours)
        return found

    def _open(self, c: int, memory: Mapping[str, Any]) -> bool:
        return not memory["frozen"][c] and not self._held[c]

    def _sees(self, visible: float, shown: float) -> bool:
        return visible > self.options.visible and shown > self.options.shown

    def _basis(self, shape: Outline, T: Array) -> Array:
        """Three motions while the body rests on its support, else all six."""
        if self._support is not None and self._support.carries(shape, T):
            return planar_basis(self._support.normal)
        return np.eye(6)

    def _blind(
        self, b: int, shape: Outline, T: Array, frames: Sequence[Frame | None], memory: dict[str, Any],
        log: dict[str, float], searched: bool,
    ) -> Array | None:  # fmt: skip
        """Coast on physics with a growing covariance; after a while look for the body anew.

        Between two pictures of a slow camera it does not grow: the spread of predictions covers the time between them.
        """
        name, options = self._places[b].name, self.options
        memory["blind"][b] += int(searched)
        if searched or memory["age"] > PATIENCE:
            ceiling = np.diag([0.05**2] * 3 + [0.5**2] * 3)
            memory["covariance"][b] = np.minimum(memory["covariance"][b] + 0.01 * ceiling, ceiling)
        log[f"{name}.lost"] = float(memory["blind"][b])
        log[f"{name}.sigma"] = float(np.sqrt(np.trace(memory["covariance"][b][:3, :3]) + options.bias**2))
        if memory["blind"][b] < options.lost_after or memory["blind"][b] % 6:
            return None
        usable = [frame if self._open(c, memory) else None for c, frame in enumerate(frames)]
        found = self._acquired(b, T, usable, memory["strength"])
        if found is None:
            return None
        memory["blind"][b] = 0
        memory["covariance"][b] = self._unsure()
        log[f"{name}.found"] = 1.0
        return _between(T, found)

    def _astray(
        self, b: int, T: Array, found: Solution, frames: Sequence[Frame | None], memory: dict[str, Any]
    ) -> Array | None:
        """Where a body is that fits badly for a while, if it is found elsewhere: somebody moved it."""
        seen = sum(view.visible for view in found.views)
        fit = sum(view.overlap * view.visible for view in found.views) / max(seen, 1e-9)
        memory["astray"][b] = memory["astray"][b] + 1 if fit < self.options.astray else 0
        late = int(memory["astray"][b]) - self.options.astray_after
        if late < 0 or late % 6:
            return None
        usable = [frame if self._open(c, memory) else None for c, frame in enumerate(frames)]
        at = self._acquired(b, T, usable, memory["strength"])
        if at is None:
            return None
        xi = _between(T, at)
        if np.linalg.norm(xi[:3]) < LEAP and np.linalg.norm(xi[3:]) < 10 * LEAP:
            return None
        memory["astray"][b] = 0
        memory["doubt"][:], memory["doubted"][:] = 0.0, 0
        memory["covariance"][b] = self._unsure()
        return xi

    def _unsure(self) -> Array:
        return np.diag([self.options.spread[1] ** 2] * 3 + [self.options.turn[1] ** 2] * 3)

    def _acquired(self, b: int, T: Array, frames: Sequence[Frame | None], strength: Array) -> Array | None:
        near, normal = T, np.array([0.0, 0.0, 1.0])
        if self._support is not None:
            near, normal = rested(self._support, self._solids[b], T), self._support.normal
        pairs = [(frame, float(s)) for frame, s in zip(frames, strength, strict=True) if frame]
        return acquire(self.eyes, self._outlines[b], near, normal, pairs)

    def _fresh(
        self, memory: Mapping[str, Any], seen: Observation, t: float
    ) -> tuple[list[Frame | None], dict[str, Any]]:
        """Frames that are newer than the last of their camera; old, repeated and future ones are not used."""
        kept = {k: np.array(value) for k, value in memory.items()}
        frames: list[Frame | None] = []
        for c, frame in enumerate(self.eyes.frames(seen, t)):
            if frame is None or frame.stamp <= kept["stamp"][c] or frame.stamp > t + self.scene.dt:
                frames.append(None)
                continue
            kept["same"][c] = kept["same"][c] + 1 if frame.fingerprint == kept["print"][c] else 0
            kept["stamp"][c], kept["print"][c] = frame.stamp, frame.fingerprint
            # A picture that repeats to the last bit under new stamps comes from a camera that hangs.
            frames.append(frame if kept["same"][c] < 2 else None)
        kept["age"] = np.asarray(t - kept["stamp"].max())
        return frames, kept

    def _around(self, covariance: Array) -> int:
        """How many pixels around the prediction are made ready: more, the less is known of the body."""
        sigma = float(np.sqrt(np.max(np.diag(covariance)[:3])))
        return min(max(round(NEAR + WIDER * sigma), NEAR), AROUND)

    def _report(
        self,
        name: str,
        found: Solution | None,
        prior: Array,
        basis: Array,
        log: dict[str, float],
    ) -> None:
        if found is None:
            log |= {f"{name}.{word}": np.nan for word in ("nis", "residual", "photo", "weakest")}
            return
        M, inside = found.information, np.linalg.inv(basis.T @ prior @ basis)
        eta = basis.T @ found.xi
        pull = (M + inside) @ eta
        log[f"{name}.nis"] = float(pull @ (np.linalg.pinv(M) - np.linalg.inv(M + inside)) @ pull)
        log[f"{name}.shift"] = float(np.linalg.norm(found.xi[:3]))
        log[f"{name}.turn"] = float(np.linalg.norm(found.xi[3:]))
        log[f"{name}.residual"] = float(np.mean([view.residual for view in found.views]))
        log[f"{name}.sigma"] = float(np.sqrt(np.trace(found.covariance[:3, :3]) + self.options.bias**2))
        # Lengths of 0.1 m make turns and shifts comparable; the weakest direction is how much is not observed.
        scale = np.diag([1.0, 1.0, 10.0] if basis.shape[1] == 3 else [1.0] * 3 + [10.0] * 3)
        log[f"{name}.weakest"] = float(np.linalg.eigvalsh(scale @ M @ scale)[0] ** -0.5) if M.any() else np.inf
        log[f"{name}.visible"] = max(view.visible for view in found.views)

    def _judge(
        self, shape: Outline, shots: Sequence[Shot | None], xi: Array, known: Mapping[int, View], log: dict[str, float]
    ) -> None:
        """How well the corrected pose fits every camera, those that were left out as well."""
        soft = self.options.sharpness.softness
        for c, (camera, shot) in enumerate(zip(self.eyes.cameras, shots, strict=True)):
            if shot is not None:
                view = known[c] if c in known else look(shape, shot, xi, self.options.sharpness, soft)
                log[f"{camera.name}.overlap"], log[f"{camera.name}.seen"] = view.overlap, view.visible

    def _doubt(
        self, found: Solution, usable: Sequence[int], basis: Array, memory: dict[str, Any], log: dict[str, float]
    ) -> None:
        """Freeze a camera that keeps wanting the body elsewhere than the others agree on."""
        if len(usable) < 3:
            return
        M: list[Array] = [v.information for v in found.views]
        g: list[Array] = [v.pull for v in found.views]
        small = 1e-3 * np.eye(basis.shape[1]) * max(np.trace(m) for m in M)
        wishes: list[Array] = [-np.linalg.solve(m + small, p) for m, p in zip(M, g, strict=True)]
        away: list[float] = []
        for i in range(len(usable)):
            others = [j for j in range(len(usable)) if j != i]
            agreed = -np.linalg.solve(
                sum((M[j] for j in others), small), sum((g[j] for j in others), np.zeros(len(g[0])))
            )
            apart = max(float(np.linalg.norm((wishes[j] - agreed)[:2])) for j in others)
            away.append(float(np.linalg.norm((wishes[i] - agreed)[:2])) - apart)
        for i, c in enumerate(usable):
            memory["doubt"][c] += 0.2 * (away[i] - memory["doubt"][c])
            log[f"{self.eyes.cameras[c].name}.doubt"] = float(memory["doubt"][c])
            memory["doubted"][c] = memory["doubted"][c] + 1 if memory["doubt"][c] > self.options.doubt else 0
        worst = max(usable, key=lambda c: float(memory["doubt"][c]))
        if memory["doubted"][worst] >= self.options.freeze_after:
            memory["frozen"][worst] = True

    def _brighten(self, shots: Sequence[Shot], usable: Sequence[int], memory: dict[str, Any]) -> None:
        """Follow the light: the body's chroma is the median of the pixels that clearly show it."""
        for shot, c in zip(shots, usable, strict=True):
            memory["strength"][c] += 0.2 * (shot.chroma - memory["strength"][c])


def _behind(drag: Array, xi: Array, past: Array, times: Array) -> float:
    """How old pictures look beyond what they say [s]: the mean correction against the body's motion, over its speed.

    Pictures that are late by d without saying so pull a body that moves at v back by d v. `drag` [2] holds the means of
    both over the last ten frames or so; a body that lies still says nothing, and counts as nought.
    """
    v = (past[-1, :3] - past[-7, :3]) / max(float(times[-1] - times[-7]), 1e-9)
    drag += 0.1 * (np.array([-xi[:3] @ v, v @ v]) - drag)
    return float(drag[0] / (drag[1] + SLOW**2))


def _learned(spread: Array, xi: Array, options: FilterOptions) -> Array:
    """Standard deviations of predictions, followed by those of the last innovations."""
    new = np.sqrt(0.9 * spread**2 + 0.1 * np.array([np.sum(xi[:3] ** 2) / 2, np.sum(xi[3:] ** 2)]))
    return np.clip(new, [options.spread[0], options.turn[0]], [options.spread[1], options.turn[1]])


def _between(before: Array, after: Array) -> Array:
    turn = quat_log(quat_from_matrix(after[:3, :3] @ before[:3, :3].T))
    return np.concatenate([after[:3, 3] - before[:3, 3], turn])
