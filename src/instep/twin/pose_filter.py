"""The pose filter: poses of bodies, predicted by physics and corrected by camera images, with covariance.

An image is older than the state it corrects. The filter keeps past estimates, finds the motion that fits the estimate
at the image's stamp to the image, and applies the same motion to all estimates since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, TypeAlias

import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array, Observation, State, options_dataclass
from instep.scene.folder import Scene

from .body_appearance import PHASES, BodyTexture, LearnedAppearance, RegionColours
from .body_outlines import Outline, body_faces, fitted_outline, outline_of, silhouette_kernels
from .body_search import (
    FOUND_OVERLAP,
    find_body,
    find_by_regions,
    find_on_joint,
    learned_crops,
    refined_start,
)
from .camera_frames import (
    BUDGET_LOG,
    MAX_FRAME_GAP_S,
    Deadline,
    FrameBudget,
    ImageState,
    WorkState,
    copied,
    healthy_frame,
    new_frames,
)
from .camera_rig import CameraFrame, CameraRig, MaskCrop, Shown, segmented_margin
from .pose_solver import (
    MASK_NOISE,
    TEXTURE_POINTS,
    PixelNoise,
    PoseSolution,
    SilhouetteFit,
    SolveOptions,
    camera_excess,
    compare_silhouette,
    grown_covariance,
    image_delay,
    innovation_numbers,
    mean_overlap,
    motion_between,
    moved,
    planar_basis,
    solve_pose,
    systematic_spread,
)
from .scene_bodies import (
    CameraMounts,
    FreeBody,
    JointedBody,
    Occluders,
    StartPose,
    SupportPlane,
    resolve_penetration,
    support_plane,
    tracked_bodies,
)
from .twin import CorrectedState

Residual: TypeAlias = Literal["auto", "mask", "learned"]
"""Segmentation of bodies: by the colour of the scene (mask), by learned colours and texture (learned), or auto."""
HISTORY = 32
"""Past estimates: half a second at 60 Hz, more than the latency of any useful camera."""
SMOOTHING = 0.2
"""Gain of the running means of chroma and of camera disagreement."""
MAX_MOTION_M = 0.01
"""Largest correction that counts as a motion of the body; a larger one corrects the estimate alone [m]."""
COLOUR_LEARNING_OVERLAP = 0.8
"""Overlap in a camera from which colours are learned."""
BETTER_OVERLAP = 0.1
"""Margin of overlap by which another pose must be better to move a misfitting body there."""
RETRY_FRAMES = 6
"""Frames between global searches."""
PER_BODY = (
    "nis", "shift", "turn", "residual", "sigma", "weakest_sigma", "visible", "image_delay", "frames_lost",
    "penetration", "relocalized", "learned", "ambiguous",
)  # fmt: skip
"""Log per body: innovation, residual, standard deviations, visibility, image delay, frames without sight, resolved
penetration, relocalization, whether its colours are learned, and orientations that fit the first image as well."""
PER_CAMERA = ("overlap", "visible_share", "latency", "disagreement", "excluded", "fault")
"""Log per camera: overlap of silhouettes, visible share, latency, disagreement, exclusion, `ImageFault`."""


@options_dataclass
class FilterOptions:
    """Options of the pose filter."""

    residual: Residual = "auto"
    """Auto is mask if the first images show the only body in its colour, and learned otherwise."""
    iterations: int = 3
    """Gauss-Newton steps."""
    mask_noise: PixelNoise = MASK_NOISE
    position_sigma: tuple[float, float] = (1e-4, 6e-3)
    """Least and largest standard deviation of a predicted position [m]; recent innovations choose between them."""
    orientation_sigma: tuple[float, float] = (7e-4, 6e-2)
    """The same for an orientation [rad]."""
    min_visible: float = 0.15
    """Least unoccluded share of the silhouette in a camera that is used."""
    min_shown: float = 0.3
    """Least share of that in the body's colour; below, something unknown occludes it."""
    inertia: float = 0.2
    """Share of a correction that changes the velocity."""
    lost_after: int = 12
    """Frames without sight of an unoccluded body after which a global search starts."""
    min_overlap: float = 0.65
    """Overlap over all cameras, weighted by visibility, below which the estimate is doubtful."""
    misfit_after: int = 4
    """Doubtful frames after which a global search starts."""
    bias: float = 6e-4
    """Systematic error of silhouettes by shading, shape and lens, part of the reported standard deviation [m]."""
    max_disagreement: float = 0.004
    """Disagreement with the other cameras from which a camera is excluded [m]."""
    exclude_after: int = 8
    """Frames of such disagreement."""
    starts: Mapping[str, StartPose] = field(default_factory=dict[str, StartPose])
    """Where bodies start; the others are searched."""
    held_out: tuple[str, ...] = ()
    """Held-out cameras: scored, but not used by the correction."""
    joints_known: bool = True
    """Whether the robot's joints are known: bodies are moved out of the robot, and pixels it occludes do not count."""


@dataclass(slots=True)
class FilterState:
    """State of the pose filter from frame to frame."""

    t: Array
    """Times of the past estimates [HISTORY]."""
    poses: Array
    """Past estimates, xyz + wxyz [HISTORY, bodies, 7]."""
    joints: Array
    """Past positions of the world [HISTORY, nq]."""
    spread: Array
    """Standard deviations of predicted position [m] and orientation [rad] [bodies, 2]."""
    covariance: Array
    """Of each pose [bodies, 6, 6]."""
    frames_lost: Array
    """Frames in a row without sight of a body [bodies]."""
    misfits: Array
    """Doubtful frames in a row [bodies]."""
    drag: Array
    """Running means of the image delay estimate [bodies, 2]."""
    ambiguous: Array
    """Other orientations that fit the first image as well [bodies]."""
    strength: Array
    """Chroma of the body in each camera [grey levels] [cameras]."""
    disagreement: Array
    """Running mean of the disagreement of each camera [m] [cameras]."""
    disagreeing: Array
    """Frames in a row above the limit [cameras]."""
    excluded: Array
    """Excluded cameras [cameras]."""
    images: ImageState
    work: WorkState
    learned: LearnedAppearance | None = None
    """None if bodies are segmented by the colour of the scene."""

    @classmethod
    def unknown(cls, state: State, bodies: int, cameras: int, options: FilterOptions) -> FilterState:
        """The state before the first image."""
        # The geometric mean of the bounds: the unknown start is in the covariance, not in the prediction error.
        spread = np.sqrt([np.prod(options.position_sigma), np.prod(options.orientation_sigma)])
        return cls(
            t=np.full(HISTORY, state.t), poses=np.zeros((HISTORY, bodies, 7)), joints=np.tile(state.q, (HISTORY, 1)),
            spread=np.tile(spread, (bodies, 1)), covariance=np.tile(widest_covariance(options), (bodies, 1, 1)),
            frames_lost=np.zeros(bodies, int), misfits=np.zeros(bodies, int), drag=np.zeros((bodies, 2)),
            ambiguous=np.zeros(bodies, int), strength=np.full(cameras, 100.0), disagreement=np.zeros(cameras),
            disagreeing=np.zeros(cameras, int), excluded=np.zeros(cameras, bool),
            images=ImageState.unknown(cameras, state.t), work=WorkState.unknown(bodies, cameras),
        )  # fmt: skip


@dataclass(slots=True)
class _Frame:
    """The correction of one frame."""

    images: Sequence[CameraFrame | None]
    state: FilterState
    budget: FrameBudget
    log: dict[str, float]


class PoseFilter:
    """A Correction that estimates the pose of every object of a scene from camera images."""

    def __init__(
        self, scene: Scene, rig: CameraRig, options: FilterOptions | None = None, *,
        outlines: Mapping[str, Outline] | None = None,
    ):  # fmt: skip
        self.scene, self.rig, self.options = scene, rig, options or FilterOptions()
        given, learns = outlines or {}, self.options.residual != "mask"
        if scene.jointed and not learns:
            raise BadInput(f"Body {scene.jointed[0]!r} is on a joint and needs learned colours: use --residual auto.")
        self._bodies = tracked_bodies(scene)
        self._names = tuple(body.name for body in self._bodies)
        self._solids = tuple(outline_of(scene.model, name) for name in self._names)
        self._outlines = tuple(fitted_outline(given.get(o.name) or o, scene) for o in self._solids)
        self._support: SupportPlane | None = support_plane(scene.model)
        several = self._outlines if learns or len(self._outlines) > 1 else ()
        faces = [body_faces(outline, scene) for outline in several]
        number = range(len(self._bodies) if learns else 0)
        self._regions = tuple(RegionColours(self._outlines[b], rig.cameras, b) for b in number)
        self._textures = tuple(BodyTexture(self._outlines[b], rig.cameras, b, faces=faces[b]) for b in number)
        self._occluders = Occluders(scene, self._bodies, faces, joints_known=self.options.joints_known)
        self.mounts = CameraMounts(scene, rig.cameras)
        if (moving := self.mounts.moving) and not self.options.joints_known:
            raise BadInput(f"Camera {moving[0]!r} moves with the robot, whose joints are unknown here.")

    @property
    def logged(self) -> tuple[str, ...]:
        """`PER_BODY` of every body, `PER_CAMERA` of every camera, and `BUDGET_LOG`."""
        bodies = [f"{name}.{word}" for name in self._names for word in PER_BODY]
        cameras = [f"{camera.name}.{word}" for camera in self.rig.cameras for word in PER_CAMERA]
        return (*bodies, *cameras, *BUDGET_LOG)

    def outline(self, body: str) -> Outline:
        """The outline that is fitted to the images."""
        return self._outlines[self._names.index(body)]

    def usable(self, c: int, state: FilterState) -> bool:
        """Whether a camera is neither excluded nor held out."""
        return not state.excluded[c] and self.rig.cameras[c].name not in self.options.held_out

    def begin(self, state: State, observation: Observation) -> CorrectedState:
        """Find every body: near where the scene begins, else anywhere on the table."""
        memory = FilterState.unknown(state, len(self._bodies), len(self.rig.cameras), self.options)
        given = self.mounts.frames(self.rig.frames(observation, state.t), np.full(2, state.t), np.tile(state.q, (2, 1)))
        images = [healthy_frame(self.rig, c, image, memory.images) for c, image in enumerate(given)]
        frame = _Frame(images, memory, FrameBudget(None, memory.work), dict.fromkeys(self.logged, 0.0))
        for c, image in enumerate(images):
            if image is not None and self.rig.coloured:
                memory.strength[c] = self.rig.mask.initial_strength(image.pixels)
        q, starts = state.q.copy(), self.options.starts
        cameras = {camera.name: camera for camera in self.mounts.cameras(state.q)}
        given_at = {one.name: starts[one.name].transform(cameras, one) for one in self._bodies if one.name in starts}
        if self._regions and not self._shows_colour(q, frame, given_at):
            memory.learned = LearnedAppearance.unknown(self.rig.cameras, len(self._bodies))
            for texture in self._textures:
                texture.reset(memory.learned)
        for b, body in enumerate(self._bodies):
            at = given_at.get(body.name)
            found = self._find(b, body.transform(q), frame) if at is None else self._settle(b, at, frame)
            q = q if found is None else body.put(q, found)
        memory.poses = np.tile(self._poses(q), (HISTORY, 1, 1))
        return CorrectedState(q, state.v, memory, frame.log | frame.budget.log())

    def __call__(
        self, memory: FilterState, predicted: State, observation: Observation, t: float,
        deadline: Deadline | None = None,
    ) -> CorrectedState:  # fmt: skip
        """Correct every body by the new images; with a deadline, by as many of them as there is time for."""
        images, memory = self.new_frames(memory, observation, t)
        q, v = predicted.q.copy(), predicted.v.copy()
        memory.t = np.append(memory.t[1:], t)
        memory.poses = np.concatenate([memory.poses[1:], [self._poses(q)]])
        memory.joints = np.concatenate([memory.joints[1:], [q]])
        images = self.mounts.frames(images, memory.t, memory.joints)
        log = dict.fromkeys(self.logged, 0.0) | memory.images.log(self.rig, t)
        log |= {f"{name}.learned": float(memory.learned is not None) for name in self._names}
        log |= {f"{name}.ambiguous": float(memory.ambiguous[b]) for b, name in enumerate(self._names)}
        log |= {f"{camera.name}.excluded": float(memory.excluded[c]) for c, camera in enumerate(self.rig.cameras)}
        frame = _Frame(images, memory, FrameBudget(deadline, memory.work), log)
        order = frame.budget.body_order()
        for i, b in enumerate(order):
            body, past = self._bodies[b], np.ascontiguousarray(memory.poses[:, b])
            frame.budget.begin_body(b, len(order) - i)
            xi, touching = self._correct(b, q, self._crops(b, past, frame), frame)
            if xi is None:
                continue
            log[f"{body.name}.image_delay"] = image_delay(memory.drag[b], xi, past, memory.t)
            q = body.moved(q, xi)
            if touching and isinstance(body, FreeBody):
                apart, log[f"{body.name}.penetration"] = resolve_penetration(self.scene, q, body)
                xi = np.concatenate([xi[:3] + (apart - q)[body.q : body.q + 3], xi[3:]])
                q = apart
            memory.poses[:, b] = body.moved_poses(past, xi)
            # A jump corrects the position and says nothing about the velocity.
            if log[f"{body.name}.shift"] <= MAX_MOTION_M:
                v = body.add_twist(q, v, self.options.inertia * xi / self.scene.dt)
        if memory.learned is not None:
            memory.learned.phase = (memory.learned.phase + 1) % (1 << 16)
        return CorrectedState(q, v, memory, log | frame.budget.log())

    def coast(self, memory: FilterState, found: CorrectedState, predicted: State) -> FilterState:
        """The state of `found`, with the predicted poses and a growing covariance."""
        kept: FilterState = found.memory
        return replace(
            kept, poses=np.concatenate([memory.poses[1:], [self._poses(predicted.q)]]),
            covariance=grown_covariance(memory.covariance), spread=memory.spread,
        )  # fmt: skip

    def crop(
        self, b: int, c: int, image: CameraFrame, at: Array, memory: FilterState, margin: int | None = None
    ) -> MaskCrop | None:
        """The segmented pixels around a body at a transform, by the colour of the scene or by learned colours."""
        outline, margin = self._outlines[b], margin or segmented_margin(memory.covariance[b])
        if memory.learned is not None:
            return self._regions[b].crop(image, c, at, memory.learned, margin)
        return self.rig.crop(image, outline, at, float(memory.strength[c]), margin)

    def new_frames(
        self, memory: FilterState, observation: Observation, t: float
    ) -> tuple[list[CameraFrame | None], FilterState]:
        """Frames that are newer than the last of their camera and show no fault, and the updated state."""
        memory = copied(memory)
        return new_frames(self.rig, memory.images, observation, t, self.scene.dt), memory

    def _shows_colour(self, q: Array, frame: _Frame, given_at: Mapping[str, Array]) -> bool:
        """Whether the first images show the only body in the colour that the scene gives it."""
        if self.options.residual != "auto" or len(self._bodies) != 1 or not self.rig.coloured:
            return False
        if not any(frame.images):
            return True  # nothing says otherwise
        body, at = self._bodies[0], given_at.get(self._names[0])
        if at is None:
            return self._find(0, body.transform(q), frame) is not None
        crops = [self.crop(0, c, image, at, frame.state) for c, image in enumerate(frame.images) if image is not None]
        fits = [compare_silhouette(self._outlines[0], crop) for crop in crops if crop is not None]
        return bool(fits) and float(np.mean([fit.overlap for fit in fits])) > FOUND_OVERLAP

    def _crops(self, b: int, past: Array, frame: _Frame) -> list[MaskCrop | None]:
        """The segmented pixels around a body in the images that there is time for; None for the others."""
        state, budget = frame.state, frame.budget
        given = [image is not None and image.stamp >= state.t[0] for image in frame.images]
        taken = budget.planned_images(given, [self.usable(c, state) for c in range(len(given))])
        if any(given):
            state.work.waiting[b] = 0 if taken else state.work.waiting[b] + 1
            budget.leave("bodies", float(not taken))
        crops: list[MaskCrop | None] = [None] * len(given)
        for c, image in enumerate(frame.images):
            if c not in taken or image is None:
                continue
            with budget.timed("image"):
                crop = self.crop(b, c, image, silhouette_kernels.transform_at(state.t, past, image.stamp), state)
                if crop is not None:
                    self._occluders.hide(b, crop, image.stamp, (state.t, state.poses, state.joints))
            if crop is not None and state.learned is not None:
                with budget.following() as most:
                    points = self._textures[b].follow(image, c, crop.world_from_body, state.learned, most)
                crop = replace(crop, points=points)
            crops[c] = crop
        return crops

    def _correct(self, b: int, q: Array, crops: Sequence[MaskCrop | None], frame: _Frame) -> tuple[Array | None, bool]:
        """The motion that fits one body to its images (None to coast), and whether to resolve its penetration."""
        options, outline, name, state = self.options, self._outlines[b], self._names[b], frame.state
        T = self._bodies[b].transform(q)
        basis = self._basis(b, T)
        spread, turn = state.spread[b]
        prior = state.covariance[b] + np.diag([spread**2] * 3 + [turn**2] * 3)
        used = [c for c, crop in enumerate(crops) if crop is not None and self.usable(c, state)]
        picked = [crop for c in used if (crop := crops[c]) is not None]
        found = self._solved(b, picked, prior, basis, frame) if picked else None
        fits = found.fits if found else ()
        clear = [fit.visible > options.min_visible and fit.shown > options.min_shown for fit in fits]
        good = [i for i, fit in enumerate(fits) if fit.confirmed or clear[i]]
        if found is not None and good and len(good) < len(picked):
            picked, used = [picked[i] for i in good], [used[i] for i in good]
            found = self._solved(b, picked, prior, basis, frame, found.xi)
        found = found if good else None
        learns = bool(picked and state.learned is not None)
        bias = systematic_spread([crop.camera for crop in picked], T, outline.reach, basis) if learns else options.bias
        numbers = innovation_numbers(found, prior, basis, bias)
        frame.log |= {f"{name}.{word}": value for word, value in numbers.items()}
        by_camera = dict(zip(used, found.fits, strict=True)) if found is not None else {}
        given = dict.fromkeys((c for c, crop in enumerate(crops) if crop), 0.0)
        state.work.compared(b, given | {c: float(np.trace(fit.information)) for c, fit in by_camera.items()})
        self._score_cameras(outline, crops, np.zeros(6) if found is None else found.xi, by_camera, frame)
        if found is None:
            unseen = state.learned is not None and not any(
                self._regions[b].learned(state.learned, c) for c in range(len(crops))
            )
            searched = any(crops) or bool((state.images.fault > 0).all()) or (unseen and any(frame.images))
            return self._coast(b, T, frame, searched), False
        state.frames_lost[b] = 0
        if (away := self._relocalize(b, T, found, frame)) is not None:
            frame.log[f"{name}.relocalized"] = 1.0
            return away, False
        for c, apart in exclude_outlier(found.fits, used, state, options).items():
            frame.log[f"{self.rig.cameras[c].name}.disagreement"] = apart
        state.covariance[b] = found.covariance
        state.spread[b] = adapted_spread(state.spread[b], found.xi, options)
        self._learn(b, found, dict(zip(used, picked, strict=True)), frame)
        return found.xi, options.joints_known

    def _solved(
        self, b: int, picked: Sequence[MaskCrop], prior: Array, basis: Array, frame: _Frame, start: Array | None = None
    ) -> PoseSolution:
        """The motion of a body by some images, in as many steps as there is time for."""
        budget = frame.budget
        begun, rounds = budget.left(), 2

        def more() -> bool:
            nonlocal rounds
            rounds += int(fits := budget.fits(step=len(picked)))
            return fits

        options = SolveOptions(noise=self.options.mask_noise, more=more, start=start)
        found = solve_pose(self._outlines[b], picked, prior, basis, self.options.iterations, options)
        budget.note("step", begun - budget.left(), rounds * len(picked))
        budget.leave("steps", found.left_out)
        return found

    def _learn(self, b: int, found: PoseSolution, crops: Mapping[int, MaskCrop], frame: _Frame) -> None:
        """Learn the appearance of a body in the cameras that show it at the estimated pose."""
        state, budget, used = frame.state, frame.budget, list(crops)
        first = state.learned.phase // PHASES if state.learned is not None else 0
        for i in ((k + first) % len(used) for k in range(len(used))):
            c, crop, image = used[i], crops[used[i]], frame.images[used[i]]
            if state.learned is None:
                state.strength[c] += SMOOTHING * (crop.chroma - state.strength[c])
            elif image is not None and (found.fits[i].overlap > COLOUR_LEARNING_OVERLAP or found.fits[i].confirmed):
                if not budget.fits(learning=1):
                    budget.leave("learning")
                    continue
                with budget.timed("learning"):
                    at = moved(crop.world_from_body, found.xi)
                    self._regions[b].learn(image, c, crop, at, state.learned)
                    self._textures[b].learn(image, c, at, crop, crop.points, state.learned)

    def _basis(self, b: int, T: Array) -> Array:
        """The motion of its joint, three motions on the support plane, or all six."""
        body = self._bodies[b]
        if isinstance(body, JointedBody):
            return body.motion(T)
        if self._support is not None and self._support.carries(self._solids[b], T):
            return planar_basis(self._support.normal)
        return np.eye(6)

    def _poses(self, q: Array) -> Array:
        return np.stack([body.pose(q) for body in self._bodies])

    def _coast(self, b: int, T: Array, frame: _Frame, searched: bool) -> Array | None:
        """Coast on physics with a growing covariance; after a while search globally.

        The covariance does not grow between two images of a slow camera: the prediction error covers that time.
        """
        name, options, state = self._names[b], self.options, frame.state
        state.frames_lost[b] += int(searched)
        if searched or state.t[-1] - state.images.seen.max() > MAX_FRAME_GAP_S:
            state.covariance[b] = grown_covariance(state.covariance[b])
        frame.log[f"{name}.frames_lost"] = float(state.frames_lost[b])
        frame.log[f"{name}.sigma"] = float(np.sqrt(np.trace(state.covariance[b][:3, :3]) + options.bias**2))
        if state.frames_lost[b] < options.lost_after or state.frames_lost[b] % RETRY_FRAMES:
            return None
        if (found := self._find(b, T, frame, FOUND_OVERLAP)) is None:
            return None
        state.frames_lost[b] = 0
        state.covariance[b] = widest_covariance(options)
        frame.log[f"{name}.relocalized"] = 1.0
        return motion_between(T, found)

    def _relocalize(self, b: int, T: Array, found: PoseSolution, frame: _Frame) -> Array | None:
        """The motion to a better pose of a body that has misfitted for a while: somebody moved it."""
        overlap, options, state = mean_overlap(found.fits), self.options, frame.state
        state.misfits[b] = state.misfits[b] + 1 if overlap < options.min_overlap else 0
        overdue = int(state.misfits[b]) - options.misfit_after
        if overdue < 0 or overdue % RETRY_FRAMES:
            return None
        if (at := self._find(b, T, frame, max(options.min_overlap, overlap + BETTER_OVERLAP))) is None:
            return None
        xi = motion_between(T, at)
        if np.linalg.norm(xi[:3]) < MAX_MOTION_M and np.linalg.norm(xi[3:]) < 10 * MAX_MOTION_M:
            return None
        state.misfits[b] = 0
        state.disagreement[:], state.disagreeing[:] = 0.0, 0
        state.covariance[b] = widest_covariance(options)
        return xi

    def _shown(self, frame: _Frame) -> Shown:
        """The images of the cameras in use."""
        return [(c, i) for c, i in enumerate(frame.images) if i is not None and self.usable(c, frame.state)]

    def _find(self, b: int, T: Array, frame: _Frame, above: float = 0.0) -> Array | None:
        """Global search for a body; silhouettes in learned colours must overlap by more than `above`."""
        body, support, state, shown = self._bodies[b], self._support, frame.state, self._shown(frame)
        normal = np.array([0.0, 0.0, 1.0]) if support is None else support.normal
        near = T if support is None else support.rest(self._solids[b], T)
        if state.learned is None:
            pairs = [(image, float(state.strength[c])) for c, image in shown]
            return find_body(self.rig, self._outlines[b], near, normal, pairs) if pairs else None
        if isinstance(body, JointedBody):
            hide = partial(self._occluders.hide_standing, b)
            return find_on_joint(body, self._regions[b], shown, hide, state.learned)
        found = find_by_regions(self._regions[b], near, normal, shown, state.learned, above)
        state.ambiguous[b] = found.ambiguous if found else 0
        return found.world_from_body if found else None

    def _settle(self, b: int, T: Array, frame: _Frame) -> Array:
        """A given start, at which colours and texture are learned; silhouettes refine it for a textured body."""
        learned, shown = frame.state.learned, self._shown(frame)
        if learned is None:
            return T
        colours, hide = self._regions[b], partial(self._occluders.hide_standing, b)
        texture, here, crops = self._textures[b], T, learned_crops(colours, (T, T), shown, hide, learned)
        for refined in (False, True):
            if refined:
                here, crops = refined_start(colours, T, self._basis(b, T), shown, hide, learned)
                texture.reset(learned)
            for c, frame_shown in shown:
                if c in crops:
                    texture.learn(frame_shown, c, here, crops[c], None, learned)
            if texture.known(learned) < TEXTURE_POINTS[0]:
                break  # without texture nothing keeps the error of the start
        return here

    def _score_cameras(
        self, outline: Outline, crops: Sequence[MaskCrop | None], xi: Array, fits: Mapping[int, SilhouetteFit],
        frame: _Frame,
    ) -> None:  # fmt: skip
        """Log how well the corrected pose fits every camera, held-out and excluded ones included."""
        for c, (camera, crop) in enumerate(zip(self.rig.cameras, crops, strict=True)):
            if crop is not None and (c in fits or frame.budget.fits(step=1)):
                fit = fits[c] if c in fits else compare_silhouette(outline, crop, xi)
                frame.log[f"{camera.name}.overlap"] = fit.overlap
                frame.log[f"{camera.name}.visible_share"] = fit.visible


def widest_covariance(options: FilterOptions) -> Array:
    """The covariance [6, 6] of a pose that is only known to be near."""
    return np.diag([options.position_sigma[1] ** 2] * 3 + [options.orientation_sigma[1] ** 2] * 3)


def exclude_outlier(
    fits: Sequence[SilhouetteFit], used: Sequence[int], state: FilterState, options: FilterOptions
) -> dict[int, float]:
    """Exclude a camera that keeps disagreeing with the others; returns the disagreement by camera [m]."""
    if len(used) < 3:
        return {}
    for c, excess in zip(used, camera_excess(fits), strict=True):
        state.disagreement[c] += SMOOTHING * (excess - state.disagreement[c])
        apart = state.disagreement[c] > options.max_disagreement
        state.disagreeing[c] = state.disagreeing[c] + 1 if apart else 0
    worst = max(used, key=lambda c: float(state.disagreement[c]))
    if state.disagreeing[worst] >= options.exclude_after:
        state.excluded[worst] = True
    return {c: float(state.disagreement[c]) for c in used}


def adapted_spread(spread: Array, xi: Array, options: FilterOptions) -> Array:
    """Standard deviations of predictions, adapted to the last innovations within their bounds."""
    new = np.sqrt(0.9 * spread**2 + 0.1 * np.array([np.sum(xi[:3] ** 2) / 2, np.sum(xi[3:] ** 2)]))
    low, high = np.array([options.position_sigma, options.orientation_sigma]).T
    return np.clip(new, low, high)
