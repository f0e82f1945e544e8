"""Get ready to look at a recording: what stands behind everything, how strong the light is, where the cameras are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput, UnknownName
from instep.core.world import Array
from instep.scene.folder import Scene

from .camera_refinement import Refined, RefineOptions, aligned, anchored, refine
from .camera_rig import IMAGES, Eyes, Frame
from .global_search import acquire
from .pose_solver import Sharpness, Shot, moved, planar_basis, solve
from .projection import Outline, model_of, outline, place_of
from .segmentation import ColourMask, backdrop_of, colour_mask, first_strength
from .support import Support, rested, support_of

SAMPLES = 48
"""Frames per camera from which the backdrop is made."""
KEYS = 24
"""Frames from which cameras are refined."""


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """Eyes for a recording, and how the cameras had to be moved."""

    eyes: Eyes
    refined: Refined
    keys: Array
    """Rows of the recording that the cameras were refined on; scores leave them out."""
    shipped: Eyes
    """The same with the cameras as they came."""


def colour_of(scene: Scene, body: str) -> Array:
    """The colour of a body: that of its first visible geom."""
    model = model_of(scene)
    b = model.body(body).id
    for g in range(model.ngeom):
        if model.geom_bodyid[g] == b and model.geom_rgba[g, 3] > 0:
            material = int(model.geom_matid[g])
            return np.array(model.mat_rgba[material] if material >= 0 else model.geom_rgba[g], float)
    raise BadInput(f"The body {body!r} has no visible geom, so it has no colour to look for.")


def eyes_of(scene: Scene, episode: Episode) -> Eyes:
    """The cameras of a scene that a recording holds, each with its backdrop."""
    cameras = tuple(camera for name, camera in scene.cameras.items() if IMAGES + name in episode.columns)
    if not cameras:
        shown = [c.removeprefix(IMAGES) for c in episode.columns if c.startswith(IMAGES)]
        raise UnknownName("camera of the scene", shown[0] if shown else "any", scene.cameras)
    if len(scene.objects) != 1:
        raise BadInput(f"The twin looks for one coloured body, and scene {scene.name!r} has {len(scene.objects)}.")
    mask = colour_mask(colour_of(scene, scene.objects[0]))
    rows = np.unique(np.linspace(0, len(episode) - 1, min(SAMPLES, len(episode))).astype(int))
    backdrops: dict[str, Array] = {}
    for camera in cameras:
        images = np.asarray(episode[IMAGES + camera.name][rows])
        backdrops[camera.name] = backdrop_of(images, mask, strength_of(mask, images))
    return Eyes(cameras, mask, backdrops)


def prepare(
    scene: Scene, episode: Episode, options: RefineOptions | None = None, *, hold: Sequence[str] = ()
) -> Prepared:
    """Eyes for a recording, with cameras refined from the recording itself.

    Cameras that are held have no say in where the others are, nor in where the body is or how large; each is then
    aligned by itself to what the others found in the same key frames.
    """
    eyes = eyes_of(scene, episode)
    names = [camera.name for camera in eyes.cameras]
    for name in hold:
        if name not in names:
            raise UnknownName("camera", name, names)
    if len(set(hold)) == len(names):
        raise BadInput("All cameras are held, so there is none to correct the twin by; hold fewer.")
    support = support_of(model_of(scene))
    if support is None:
        raise BadInput(f"Cameras are refined from a body on a table, and scene {scene.name!r} has no plane.")
    solid, basis = outline(model_of(scene), scene.objects[0]), planar_basis(support.normal)
    stride = max(1, min(5, len(episode) // (2 * KEYS)))
    rows = np.arange(0, len(episode), stride)
    shots = _followed(scene, eyes, episode, rows, (solid, support), hold)
    open_eyes = len(names) - len(set(hold))
    whole = [i for i, row in enumerate(shots) if sum(shot.camera.name not in hold for shot in row) == open_eyes]
    spread = np.unique(np.linspace(0, len(whole) - 1, min(KEYS, len(whole))).astype(int))
    picked = [whole[int(i)] for i in spread]
    seeing = [[shot for shot in shots[i] if shot.camera.name not in hold] for i in picked]
    refined = refine(solid, seeing, basis, options)
    for name in dict.fromkeys(hold):
        own = [next((shot for shot in shots[i] if shot.camera.name == name), None) for i in picked]
        refined = aligned(refined, own, basis, options)
    if hold:
        refined = anchored(refined, eyes.cameras, basis, options)
    cameras = tuple(refined.cameras[name] for name in names)
    return Prepared(replace(eyes, cameras=cameras), refined, rows[picked], eyes)


def _followed(
    scene: Scene, eyes: Eyes, episode: Episode, rows: Array, body: tuple[Outline, Support], hold: Sequence[str]
) -> list[list[Shot]]:
    """What each camera shows of the body in some rows, where those that are not held see it."""
    solid, support = body
    start = rested(support, solid, place_of(scene.spec, solid.name).transform(scene.start(0)[0]))
    frames = [frames_of(eyes, episode, int(row)) for row in rows]
    strength = {c.name: first_strength(eyes.mask, f.pixels) for c, f in zip(eyes.cameras, frames[0], strict=True)}
    pairs = [[(frame, strength[frame.camera.name]) for frame in some] for some in frames]
    seeing = [[pair for pair in some if pair[0].camera.name not in hold] for some in pairs]
    pose = next((T for some in seeing if (T := acquire(eyes, solid, start, support.normal, some)) is not None), None)
    if pose is None:
        raise BadInput(f"No camera shows anything in the colour of {solid.name!r}; is this a recording of this scene?")
    prior, basis = np.diag([0.01**2] * 3 + [0.1**2] * 3), planar_basis(support.normal)
    shots: list[list[Shot]] = []
    for some in pairs:
        shown = [shot for frame, s in some if (shot := eyes.shot(frame, solid, pose, s)) is not None]
        judged = [shot for shot in shown if shot.camera.name not in hold]
        if judged:
            pose = moved(pose, solve(solid, judged, prior, basis, Sharpness(), 5).xi)
        shots.append([replace(shot, world_from_body=pose) for shot in shown])
    return shots


def on_one_clock(episode: Episode) -> Episode:
    """The episode with its stamps on the clock of its rows.

    Rows are counted from the start of the episode, stamps of some recordings from the start of their clock; where the
    stamps lie nearer to the rows after the start is taken off, it is taken off.
    """
    start, columns = float(episode.meta.get("start", 0.0)), dict[str, Array]()
    for name in episode.columns:
        if name.endswith(".stamp"):
            stamps = np.asarray(episode[name], float)
            ahead = float(np.median(stamps - episode.t))
            columns[name] = stamps - start if abs(ahead - start) < abs(ahead) else stamps
    return episode.with_columns(columns)


def frames_of(eyes: Eyes, episode: Episode, row: int) -> list[Frame]:
    """The pictures of one row of a recording."""
    out: list[Frame] = []
    for camera in eyes.cameras:
        name = IMAGES + camera.name
        stamp = float(episode[name + ".stamp"][row]) if name + ".stamp" in episode else float(episode.t[row])
        out.append(Frame(camera, np.asarray(episode[name][row]), stamp, 0.0))
    return out


def strength_of(mask: ColourMask, images: Any) -> float:
    """The chroma of the body in this light: the median over five pictures."""
    rows = np.linspace(0, len(images) - 1, 5).astype(int)
    return float(np.median([first_strength(mask, np.asarray(images[int(row)])) for row in rows]))
