"""The pose filter: each body's pose, predicted by physics and corrected by the images of all cameras, with covariance.

An image is older than the state it corrects. The filter keeps its past estimates of each body's pose, finds the motion
that fits the estimate of the image's stamp to the image, and applies the same motion to all estimates since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array, Observation, State
from instep.scene.folder import Scene
from instep.splat.gaussians import Gaussians

from .body_appearance import PHASES, BodyTexture, RegionColours
from .body_outlines import Outline, body_faces, fitted_outline, model_of, outline_of, silhouette
from .body_search import FOUND_OVERLAP, find_body, find_by_regions, resting_sides
from .camera_frames import (
    BUDGET_LOG,
    MAX_FRAME_GAP_S,
    SHARED,
    Deadline,
    FrameBudget,
    body_order,
    healthy_frame,
    image_log,
    new_frames,
    note_told,
    planned_images,
    solve_in_time,
    unknown_budget,
    unknown_images,
)
from .camera_rig import CameraFrame, CameraRig, MaskCrop, colour_of, initial_strength, segmented_margin
from .filter_state import (
    HISTORY,
    LEARNED,
    SMOOTHING,
    FilterOptions,
    adapted_spread,
    exclude_outlier,
    grown_covariance,
    image_delay,
    innovation_numbers,
    systematic_spread,
    unknown_estimates,
    widest_covariance,
)
from .photometric import BodyColours, PhotometricResidual, photometric_step
from .pose_solver import (
    TEXTURE_POINTS,
    PoseSolution,
    SilhouetteFit,
    compare_silhouette,
    mean_overlap,
    motion_between,
    moved,
    planar_basis,
)
from .scene_geometry import CameraMounts, Occluders, SupportPlane, resolve_penetration, support_plane
from .start_search import find_on_joint, learn_texture, learned_crops, located_starts, refined_start
from .tracked_body import FreeBody, JointedBody, tracked_bodies, with_joints
from .twin import CorrectedState

MAX_MOTION_M = 0.01
"""A correction beyond this is not a motion of the body but an error of its estimate [m]."""
COLOUR_LEARNING_OVERLAP = 0.8
"""Overlap in every camera from which a body's colours are learned."""
BETTER_OVERLAP = 0.1
"""By how much silhouettes must overlap more where a body that fits badly is moved to."""
RETRY_FRAMES = 6
"""Frames from one global search to the next."""
PER_BODY = (
    "nis", "shift", "turn", "residual", "colour_residual", "sigma", "weakest_sigma", "visible", "image_delay",
    "frames_lost", "penetration", "relocalized", "learned", "ambiguous",
)  # fmt: skip
"""Numbers per body: consistency and size of the innovation, residuals, standard deviations, visibility, image delay,
frames without sight, penetration that was resolved, relocalisations, whether its colours are learned, and orientations
that fitted its first image as well."""
PER_CAMERA = ("overlap", "visible_share", "latency", "disagreement", "excluded", "fault")
"""Numbers per camera: overlap of silhouettes, visible share, latency, disagreement, whether it is excluded, and the
`ImageFault` of its newest image."""


class PoseFilter:
    """A Correction that estimates the pose of every object of a scene from camera images."""

    def __init__(
        self,
        scene: Scene,
        rig: CameraRig,
        options: FilterOptions | None = None,
        *,
        outlines: Mapping[str, Outline] | None = None,
        scans: Mapping[str, Gaussians] | None = None,
    ):
        self.scene, self.rig, self.options = scene, rig, options or FilterOptions()
        model, given = model_of(scene), outlines or {}
        self._bodies = tracked_bodies(scene)
        self._names = tuple(body.name for body in self._bodies)
        self._solids: tuple[Outline, ...] = tuple(outline_of(model, n) for n in self._names)
        self._outlines = tuple(fitted_outline(given.get(o.name) or o, scene) for o in self._solids)
        self._support: SupportPlane | None = support_plane(model)
        known, scans = [(outline, colour_of(scene, outline.name)) for outline in self._outlines], scans or {}
        self._photos = tuple(PhotometricResidual.of(o, colour, scans.get(o.name)) for o, colour in known)
        residual = self.options.residual
        learns = residual in LEARNED or residual == "auto"
        if scene.jointed and not learns:
            raise BadInput(
                f"The body {scene.jointed[0]!r} is on a joint, and followed by learned colours: --residual auto."
            )
        self._regions = tuple(RegionColours(n, rig.cameras) for n in self._names) if learns else ()
        followed = self._outlines if residual in ("auto", "learned") else ()
        several = self._outlines if len(self._outlines) > 1 or followed else ()
        surfaces = [body_faces(outline, scene) for outline in several]
        self._textures = tuple(BodyTexture(o, rig.cameras, faces=s) for o, s in zip(followed, surfaces, strict=False))
        self._occluders = Occluders(scene, self._bodies, surfaces, joints_known=self.options.joints_known)
        learners = (*self._regions, *self._textures)
        self._learned_names = frozenset(name for learner in learners for name in learner.unknown()) - {"phase"}
        self.mounts = CameraMounts(scene, rig.cameras)
        if (moving := self.mounts.moving) and not self.options.joints_known:
            raise BadInput(f"Camera {moving[0]!r} moves with the robot, and its joints are not known here.")
        self._held = np.array([camera.name in self.options.held_out for camera in rig.cameras])

    @property
    def logged(self) -> tuple[str, ...]:
        """`PER_BODY` of every body, `PER_CAMERA` of every camera, and `BUDGET_LOG`."""
        bodies = [f"{name}.{word}" for name in self._names for word in PER_BODY]
        cameras = [f"{camera.name}.{word}" for camera in self.rig.cameras for word in PER_CAMERA]
        return (*bodies, *cameras, *BUDGET_LOG)

    def outline(self, body: str) -> Outline:
        """The outline that is fitted to the images."""
        return self._outlines[self._names.index(body)]

    def held(self, c: int) -> bool:
        """Whether a camera is held out."""
        return bool(self._held[c])

    def begin(self, state: State, observation: Observation) -> CorrectedState:
        """Find every body: near where the scene begins, else anywhere on the table."""
        given = self.mounts.frames(self.rig.frames(observation, state.t), np.full(2, state.t), np.tile(state.q, (2, 1)))
        cameras, bodies = len(self.rig.cameras), len(self._bodies)
        memory = {
            **unknown_estimates(state, bodies, self.options),
            **unknown_images(state, cameras),
            **unknown_budget(bodies, cameras),
        }
        for name, photo in zip(self._names, self._photos, strict=True):
            memory |= photo.unknown(cameras).to_memory(name)
        frames = [healthy_frame(self.rig, c, frame, memory) for c, frame in enumerate(given)]
        for c, frame in enumerate(frames):
            if frame is not None and self.rig.coloured:
                memory["strength"][c] = initial_strength(self.rig.mask, frame.pixels)
        q = state.q.copy()
        starts = with_joints(self.options.starts, self._bodies)
        started = located_starts(starts, self._outlines, self.mounts.cameras(state.q), frames)
        given_at = {name: one.world_from_body for name, one in started.items()}
        memory["ambiguous"] = np.array([started[n].ambiguous if n in started else 0 for n in self._names])
        memory["learns"] = np.asarray(bool(self._regions) and not self._shows_colour(q, frames, memory, given_at))
        for learned in (*self._regions, *self._textures) if memory["learns"] else ():
            memory |= learned.unknown()
        for b, body in enumerate(self._bodies):
            at = body.nearest(given_at.get(body.name, body.transform(q)))
            found = (self._settle if body.name in given_at else self._find)(b, at, frames, memory)
            if found is not None:
                q = body.put(q, found)
        memory["poses"] = np.tile(self._poses(q), (HISTORY, 1, 1))
        log = dict.fromkeys(self.logged, 0.0) | FrameBudget(None, memory["costs"]).log()
        return CorrectedState(q, state.v, memory, log)

    def __call__(
        self, memory: Mapping[str, Any], predicted: State, observation: Observation, t: float,
        deadline: Deadline | None = None,
    ) -> CorrectedState:  # fmt: skip
        """Correct every body by the images that are new; with a deadline, by as much of them as there is time for."""
        frames, memory = self.new_frames(memory, observation, t)
        budget = FrameBudget(deadline, memory["costs"])
        q, v = predicted.q.copy(), predicted.v.copy()
        log = dict.fromkeys(self.logged, 0.0)
        times = np.append(memory["t"][1:], t)
        poses = np.concatenate([memory["poses"][1:], [self._poses(q)]])
        joints = np.concatenate([memory["joints"][1:], [q]])
        frames = self.mounts.frames(frames, times, joints)
        log |= image_log(self.rig, memory, t)
        log |= {f"{name}.learned": float(memory["learns"]) for name in self._names}
        log |= {f"{name}.ambiguous": float(memory["ambiguous"][b]) for b, name in enumerate(self._names)}
        log |= {f"{camera.name}.excluded": float(memory["excluded"][c]) for c, camera in enumerate(self.rig.cameras)}
        order = body_order(budget, memory)
        for i, b in enumerate(order):
            body = self._bodies[b]
            budget.begin_body(b, len(order) - i)
            past = np.ascontiguousarray(poses[:, b])
            crops = self._crops(b, frames, (times, poses, joints), memory, budget)
            xi, touching = self._correct(b, q, crops, frames, memory, log, budget)
            if xi is None:
                continue
            log[f"{body.name}.image_delay"] = image_delay(memory["drag"][b], xi, past, times)
            q = body.moved(q, xi)
            if touching and isinstance(body, FreeBody):
                apart, log[f"{body.name}.penetration"] = resolve_penetration(self.scene, q, body)
                xi = np.concatenate([xi[:3] + (apart - q)[body.q : body.q + 3], xi[3:]])
                q = apart
            poses[:, b] = body.moved_poses(past, xi)
            v = body.add_twist(q, v, self._twist(xi, log[f"{body.name}.shift"]))
        if memory["learns"]:
            memory["phase"] = (memory["phase"] + 1) % (1 << 16)
        memory = {**memory, "t": times, "poses": poses, "joints": joints, "costs": budget.costs}
        memory.pop(SHARED, None)
        return CorrectedState(q, v, memory, log | budget.log())

    def _crops(
        self, b: int, frames: Sequence[CameraFrame | None], history: tuple[Array, Array, Array],
        memory: dict[str, Any], budget: FrameBudget,
    ) -> list[MaskCrop | None]:  # fmt: skip
        """The segmented pixels around a body in the images that there is time for; None for the others."""
        times, poses, _ = history
        given = [frame is not None and frame.stamp >= times[0] for frame in frames]
        usable = [self._usable(c, memory) for c in range(len(frames))]
        crops: list[MaskCrop | None] = [None] * len(frames)
        taken = planned_images(budget, b, given, usable, memory)
        if any(given):
            memory["waiting"][b] = 0 if taken else memory["waiting"][b] + 1
            budget.leave("bodies", float(not taken))
        past = np.ascontiguousarray(poses[:, b])
        for c, frame in enumerate(frames):
            if c in taken and frame is not None:
                with budget.timed("image"):
                    crops[c] = self.crop(b, c, frame, silhouette.transform_at(times, past, frame.stamp), memory)
                    if (crop := crops[c]) is not None:
                        self._occluders.hide(b, crop, frame.stamp, history)
                crops[c] = self._with_points(b, c, frame, crops[c], memory, budget)
        return crops

    def _shows_colour(
        self, q: Array, frames: Sequence[CameraFrame | None], memory: dict[str, Any], given_at: Mapping[str, Array]
    ) -> bool:
        """Whether the only body is shown in the colour that the scene gives it, so that none has to be learned."""
        if self.options.residual != "auto" or len(self._bodies) != 1 or not self.rig.coloured:
            return False
        if not any(frames):
            return True  # nothing says otherwise
        body, at = self._bodies[0], given_at.get(self._bodies[0].name)
        memory["learns"] = np.asarray(False)
        if at is None:
            return self._find(0, body.transform(q), frames, memory) is not None
        crops = [self.crop(0, c, f, at, memory) for c, f in enumerate(frames) if f is not None]
        fits = [compare_silhouette(self._outlines[0], crop) for crop in crops if crop is not None]
        return bool(fits) and sum(fit.overlap for fit in fits) / len(fits) > FOUND_OVERLAP

    def coast(self, memory: Mapping[str, Any], found: CorrectedState, predicted: State) -> Mapping[str, Any]:
        """The images of `found`, with the poses as predicted and a covariance that grows."""
        poses = np.concatenate([memory["poses"][1:], [self._poses(predicted.q)]])
        covariance = [grown_covariance(each) for each in memory["covariance"]]
        return {**found.memory, "poses": poses, "covariance": np.array(covariance), "spread": memory["spread"]}

    def crop(
        self, b: int, c: int, frame: CameraFrame, at: Array, memory: Mapping[str, Any], margin: int | None = None
    ) -> MaskCrop | None:
        """The segmented pixels around a body at a transform, by its own colour or by those that were learned."""
        outline, margin = self._outlines[b], margin or segmented_margin(memory["covariance"][b])
        if memory["learns"]:
            return self._regions[b].crop(frame, c, outline, at, margin, memory)
        return self.rig.crop(frame, outline, at, memory["strength"][c], margin)

    def _with_points(
        self, b: int, c: int, frame: CameraFrame, crop: MaskCrop | None, memory: dict[str, Any], budget: FrameBudget
    ) -> MaskCrop | None:
        """A crop with the points of the body's texture that its image shows, where texture is followed."""
        if crop is None or not self._textures or not memory["learns"]:
            return crop
        with budget.following() as most:
            return replace(crop, points=self._textures[b].follow(frame, c, crop.world_from_body, memory, most))

    def _twist(self, xi: Array, shift: float) -> Array:
        # A jump corrects where the body is and says nothing about how it moves.
        return np.zeros(6) if shift > MAX_MOTION_M else self.options.inertia * xi / self.scene.dt

    def _correct(
        self, b: int, q: Array, crops: Sequence[MaskCrop | None], frames: Sequence[CameraFrame | None],
        memory: dict[str, Any], log: dict[str, float], budget: FrameBudget,
    ) -> tuple[Array | None, bool]:  # fmt: skip
        """The motion that fits one body to its images (None to coast), and whether to resolve its penetration."""
        options, outline, name = self.options, self._outlines[b], self._bodies[b].name
        T = self._bodies[b].transform(q)
        basis = self._basis(b, T)
        spread, turn = memory["spread"][b]
        prior = memory["covariance"][b] + np.diag([spread**2] * 3 + [turn**2] * 3)
        used = [c for c, crop in enumerate(crops) if crop is not None and self._usable(c, memory)]
        picked = [crop for c in used if (crop := crops[c]) is not None]

        def solved(start: Array | None) -> PoseSolution:
            return solve_in_time(budget, outline, picked, (prior, basis), options, start)

        found = solved(None) if picked else None
        good = [i for i, fit in enumerate(found.fits) if self._sees(fit)] if found else []
        if found is not None and good and len(good) < len(picked):
            picked, used = [picked[i] for i in good], [used[i] for i in good]
            found = solved(found.xi)
        if found is not None and good and not memory["learns"]:
            found = self._refine_by_colour(b, found, (picked, used, frames), (prior, basis), (memory, log), budget)
        cameras, learns = [crop.camera for crop in picked], bool(picked and memory["learns"])
        bias = systematic_spread(cameras, T, outline.reach, basis) if learns else options.bias
        numbers = innovation_numbers(found if good else None, prior, basis, bias)
        log |= {f"{name}.{word}": value for word, value in numbers.items()}
        known = dict(zip(used, found.fits, strict=True)) if found is not None and good else {}
        note_told(b, [c for c, crop in enumerate(crops) if crop is not None], known, memory)
        self._score_cameras(outline, crops, found.xi if found is not None and good else np.zeros(6), known, log, budget)
        if found is None or not good:
            unseen = memory["learns"] and not any(self._regions[b].learned(memory, c) for c in range(len(frames)))
            searched = any(crops) or bool((memory["fault"] > 0).all()) or (unseen and any(frames))
            return self._coast(b, T, frames, memory, log, searched), False
        memory["frames_lost"][b] = 0
        if (away := self._relocalize(b, T, found, frames, memory)) is not None:
            log[f"{name}.relocalized"] = 1.0
            return away, False
        for c, apart in exclude_outlier(found.fits, used, memory, options).items():
            log[f"{self.rig.cameras[c].name}.disagreement"] = apart
        memory["covariance"][b] = found.covariance
        memory["spread"][b] = adapted_spread(
            memory["spread"][b], found.xi, options.position_sigma, options.orientation_sigma
        )
        self._learn_colours(b, found, picked, (used, frames), memory, budget)
        return found.xi, options.joints_known

    def _learn_colours(
        self, b: int, found: PoseSolution, picked: Sequence[MaskCrop],
        seen: tuple[Sequence[int], Sequence[CameraFrame | None]], memory: dict[str, Any], budget: FrameBudget,
    ) -> None:  # fmt: skip
        """Learn how the body appears in the cameras that show it at the pose that was found."""
        (used, frames), turn = seen, int(memory["phase"]) // PHASES if memory["learns"] else 0
        for i in ((k + turn) % len(used) for k in range(len(used))):
            crop, c, frame = picked[i], used[i], frames[used[i]]
            if not memory["learns"]:
                memory["strength"][c] += SMOOTHING * (crop.chroma - memory["strength"][c])
            elif frame is not None and (found.fits[i].overlap > COLOUR_LEARNING_OVERLAP or found.fits[i].confirmed):
                if not budget.fits(learning=1):
                    budget.leave("learning")
                    continue
                with budget.timed("learning"):
                    at = moved(crop.world_from_body, found.xi)
                    self._regions[b].learn(frame, c, self._outlines[b], crop, at, memory)
                    for texture in self._textures[b : b + 1]:
                        texture.learn(frame, c, at, crop, crop.points, memory)

    def _refine_by_colour(
        self, b: int, found: PoseSolution,
        seen: tuple[Sequence[MaskCrop], Sequence[int], Sequence[CameraFrame | None]],
        known: tuple[Array, Array], notes: tuple[dict[str, Any], dict[str, float]], budget: FrameBudget,
    ) -> PoseSolution:  # fmt: skip
        """The motion that also fits the colours of the body's pixels, where asked for; the colours are learned."""
        (picked, used, frames), (prior, basis), (memory, log) = seen, known, notes
        photo, name, residual = self._photos[b], self._bodies[b].name, self.options.residual
        images = [frame for c in used if (frame := frames[c]) is not None]
        colours = BodyColours.from_memory(memory, name)
        learned = bool(np.isfinite(colours.used).all())
        if not learned:
            colours = replace(colours, light=memory["strength"].copy())
        gains = [float(memory["strength"][c] / colours.light[c]) for c in used]
        for _ in range(0 if residual in ("mask", "auto") or not learned else 1 if residual == "both" else 2):
            if not budget.fits(colours=len(images)):
                budget.leave("steps")
                break
            with budget.timed("colours", len(images)):
                equations = photo.equations(picked, images, gains, found.xi, colours)
                found = photometric_step(found, equations, prior, basis, residual == "both")
        if not budget.fits(learning=len(images)):
            budget.leave("learning", len(images))
            log[f"{name}.colour_residual"] = np.nan
            return found
        begun = budget.left()
        here = [replace(crop, world_from_body=moved(crop.world_from_body, found.xi)) for crop in picked]
        log[f"{name}.colour_residual"], latest = photo.compare(here, images, gains, colours)
        if all(fit.overlap > COLOUR_LEARNING_OVERLAP for fit in found.fits):
            colours = colours.updated(latest)
        memory |= colours.to_memory(name)
        budget.note("learning", begun - budget.left(), len(images))
        return found

    def _usable(self, c: int, memory: Mapping[str, Any]) -> bool:
        return not memory["excluded"][c] and not self._held[c]

    def _sees(self, fit: SilhouetteFit) -> bool:
        shown = fit.visible > self.options.min_visible and fit.shown > self.options.min_shown
        return shown or fit.confirmed

    def _basis(self, b: int, T: Array) -> Array:
        """That of its joint, three motions while the body rests on its support, else all six."""
        body = self._bodies[b]
        if isinstance(body, JointedBody):
            return body.motion(T)
        if self._support is not None and self._support.carries(self._solids[b], T):
            return planar_basis(self._support.normal)
        return np.eye(6)

    def _poses(self, q: Array) -> Array:
        return np.stack([body.pose(q) for body in self._bodies])

    def _coast(
        self, b: int, T: Array, frames: Sequence[CameraFrame | None], memory: dict[str, Any], log: dict[str, float],
        searched: bool,
    ) -> Array | None:  # fmt: skip
        """Coast on physics with a growing covariance; after a while start a global search.

        Between two images of a slow camera the covariance does not grow: the spread of predictions covers that time.
        """
        name, options = self._bodies[b].name, self.options
        memory["frames_lost"][b] += int(searched)
        if searched or memory["age"] > MAX_FRAME_GAP_S:
            memory["covariance"][b] = grown_covariance(memory["covariance"][b])
        log[f"{name}.frames_lost"] = float(memory["frames_lost"][b])
        log[f"{name}.sigma"] = float(np.sqrt(np.trace(memory["covariance"][b][:3, :3]) + options.bias**2))
        if memory["frames_lost"][b] < options.lost_after or memory["frames_lost"][b] % RETRY_FRAMES:
            return None
        found = self._find(b, T, frames, memory, FOUND_OVERLAP)
        if found is None:
            return None
        memory["frames_lost"][b] = 0
        memory["covariance"][b] = widest_covariance(self.options)
        log[f"{name}.relocalized"] = 1.0
        return motion_between(T, found)

    def _relocalize(
        self, b: int, T: Array, found: PoseSolution, frames: Sequence[CameraFrame | None], memory: dict[str, Any]
    ) -> Array | None:
        """The motion to where a body is found that has fitted badly for a while: somebody moved it."""
        overlap = mean_overlap(found.fits)
        memory["misfits"][b] = memory["misfits"][b] + 1 if overlap < self.options.min_overlap else 0
        overdue = int(memory["misfits"][b]) - self.options.misfit_after
        if overdue < 0 or overdue % RETRY_FRAMES:
            return None
        at = self._find(b, T, frames, memory, max(self.options.min_overlap, overlap + BETTER_OVERLAP))
        if at is None:
            return None
        xi = motion_between(T, at)
        if np.linalg.norm(xi[:3]) < MAX_MOTION_M and np.linalg.norm(xi[3:]) < 10 * MAX_MOTION_M:
            return None
        memory["misfits"][b] = 0
        memory["disagreement"][:], memory["disagreeing"][:] = 0.0, 0
        memory["covariance"][b] = widest_covariance(self.options)
        return xi

    def _find(
        self, b: int, T: Array, frames: Sequence[CameraFrame | None], memory: dict[str, Any], above: float = 0.0
    ) -> Array | None:
        """Global search for a body in the frames of cameras that are used; learned colours must overlap `above` it."""
        body, near, normal = self._bodies[b], T, np.array([0.0, 0.0, 1.0])
        if self._support is not None:
            near, normal = self._support.rest(self._solids[b], T), self._support.normal
        shown = [(c, f) for c, f in enumerate(frames) if f is not None and self._usable(c, memory)]
        if isinstance(body, JointedBody):
            hide = partial(self._occluders.hide_standing, b)
            return find_on_joint(body, self._outlines[b], self._regions[b], shown, hide, memory)
        if not memory["learns"]:
            pairs = [(frame, float(memory["strength"][c])) for c, frame in shown]
            return find_body(self.rig, self._outlines[b], near, normal, pairs) if pairs else None
        nears = [near, *(resting_sides(self._solids[b], near, normal) if self._support else ())]
        found = find_by_regions(self._regions[b], self._outlines[b], nears, normal, shown, memory, above)
        memory["ambiguous"][b] = found.ambiguous if found else 0
        return found.world_from_body if found else None

    def _settle(self, b: int, T: Array, frames: Sequence[CameraFrame | None], memory: dict[str, Any]) -> Array:
        """A given start, where colours and texture are learned; silhouettes refine that of a body with texture."""
        shown = [(c, f) for c, f in enumerate(frames) if f is not None and self._usable(c, memory)]
        if not memory["learns"]:
            return T
        body, hide = (self._outlines[b], self._regions[b]), partial(self._occluders.hide_standing, b)
        crops = learned_crops(body, (T, T), shown, hide, memory)
        if not self._textures or learn_texture(self._textures[b], T, shown, crops, memory) < TEXTURE_POINTS[0]:
            return T  # nothing keeps the error of the start
        given = T, self._basis(b, T)
        here, crops = refined_start(body, given, shown, hide, self.options.mask_noise, memory)
        memory |= self._textures[b].unknown()
        learn_texture(self._textures[b], here, shown, crops, memory)
        return here

    def new_frames(
        self, memory: Mapping[str, Any], observation: Observation, t: float
    ) -> tuple[list[CameraFrame | None], dict[str, Any]]:
        """Frames that are newer than the last of their camera and show no fault, and the memory with what was found."""
        return new_frames(self.rig, self.scene.dt, memory, observation, t, self._learned_names)

    def _score_cameras(
        self, outline: Outline, crops: Sequence[MaskCrop | None], xi: Array, known: Mapping[int, SilhouetteFit],
        log: dict[str, float], budget: FrameBudget,
    ) -> None:  # fmt: skip
        """How well the corrected pose fits every camera, held-out and excluded ones as well."""
        for c, (camera, crop) in enumerate(zip(self.rig.cameras, crops, strict=True)):
            if crop is not None and (c in known or budget.fits(step=1)):
                fit = known[c] if c in known else compare_silhouette(outline, crop, xi, noise=self.options.mask_noise)
                log[f"{camera.name}.overlap"], log[f"{camera.name}.visible_share"] = fit.overlap, fit.visible
