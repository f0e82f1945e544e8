"""Views of a capture with a robot in it: cameras aligned to the robot, and images without it.

Fixed cameras are aligned by the robot's silhouette at known joint positions, cameras on the robot by its kinematics and
features, all together in one bundle adjustment. The background behind the robot is put together from the images.

Across a predicted contour, the difference of an image from the background has a step from the robot to nothing. The
distance of that step along the contour's normal is a residual of Gauss-Newton on the pose of the camera, with a robust
loss and a Gaussian prior at the given pose.

SIFT features are matched between all pairs of images and joined to tracks. Unknown are the pose of every camera (one
for all images of a camera on the robot: where it is on its body) and the point of every track. Gauss-Newton on
reprojection errors [pixels] with an ever narrower robust loss; points are eliminated by their Schur complement:

    r = project(camera_from_body @ body_from_world(q) @ point) - pixel
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import mujoco
import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.imports import optional_library
from instep.core.world import Array, array_dataclass
from instep.reconstruct.scene_formats import ExportedShape, exported_shapes
from instep.reconstruct.shape.triangle_mesh import TriangleMesh, joined
from instep.reconstruct.shape.visual_hull import contour_points, depth_image, projected
from instep.scene.camera import Camera
from instep.scene.folder import Scene
from instep.splat.capture import CameraRecording, Capture, moved_camera, pixel_jacobian, relative_pose
from instep.splat.fitting import Progress, pixel_rays

from .posed_views import PosedView, limited

_FEATURES = 1500
"""Most features of an image."""
_SCALES_PX = (20.0, 20.0, 12.0, 12.0, 6.0, 6.0, 3.0, 3.0, 1.5, 1.5, 1.5, 1.5)
"""Scale of the robust loss in each round [pixels]."""
MIN_CONTOUR_POINTS = 60
"""Fewest points of the robot's contour near an edge for aligning a fixed camera."""
MIN_SIGHTINGS = 40
"""Fewest features in agreement for a camera on the robot."""
_HIDDEN_MARGIN_PX, _MATCHED_MARGIN_PX = 3, 12
"""Pixels around the robot that may show it, after and before cameras are aligned."""
SHIFT_SIGMA_M = 0.02
"""Standard deviation of the given position of a camera [m]."""
TURN_SIGMA = np.radians(2.0)
"""Standard deviation of its given orientation [rad]."""
MIN_FRAMES = 3
"""Fewest images, with the robot at different places, for aligning a camera."""
MAX_FRAMES = 10
"""Most images for aligning a camera."""
SYSTEMATIC = (0.002, np.radians(0.15))
"""Standard deviations of common errors of a robot's contour [m, rad]: its shape, lens and shadows."""
_REACHES_PX = (26, 14, 7, 4)
"""Reach of the search of edges beside a predicted contour, in each round [pixels]."""
_STEPS = 4
_CORRELATED = 4.0
"""Neighbouring points of a contour with about the same error."""
_SIDE_PX = 3
"""Pixels of the means on both sides of an edge."""


def has_robot(capture: Capture) -> bool:
    """Whether a capture has joint positions of a robot for some images."""
    return any(recording.joints for recording in capture.recordings)


def robot_views(
    capture: Capture, scene: Scene, align: bool, report: Progress
) -> tuple[list[PosedView], dict[str, Any]]:
    """The views of a capture with a robot, and the corrections of its cameras."""
    robot, estimates, info = robot_shapes(scene), list[CameraEstimate](), dict[str, Any]()
    fixed = [_fixed(recording, robot) for recording in capture.recordings if recording.camera.in_world]
    carried = [_carried(recording, robot) for recording in capture.recordings if not recording.camera.in_world]
    for k, frames in enumerate(fixed):
        report(0.7 * k / len(fixed), f"{frames.camera.name} on the robot's silhouette")
        estimates.append(_estimate(frames, robot, align))
    report(0.7, "features")
    mounts = {one.device: one.camera for one in reversed(carried)}
    devices = [*(frames.camera.name for frames in fixed), *mounts]
    given, cameras = [*(f.camera for f in fixed), *mounts.values()], [*(e.camera for e in estimates), *mounts.values()]
    if align:
        prior = np.diag([SHIFT_SIGMA_M**-2] * 3 + [TURN_SIGMA**-2] * 3)
        information = [*(e.information for e in estimates), *(prior for _ in mounts)]
        seen = _feature_views(fixed, carried, cameras, devices, robot)
        found = adjust_cameras(cameras, information, seen, feature_tracks(seen))
        for device, agreed in zip(devices[len(fixed) :], found.agreed[len(fixed) :], strict=True):
            if agreed < MIN_SIGHTINGS:
                raise BadInput(
                    f"The images of camera {device!r} on the robot have {int(agreed)} features in common, and "
                    f"{MIN_SIGHTINGS} are needed to find its mount; take more of them, nearer to each other, or "
                    "give its calibrated pose and --no-align."
                )
        cameras = list(found.cameras)
        sightings = dict(zip(devices, found.agreed.tolist(), strict=True))
        info["features"] = {"sightings": sightings, "residual_px": found.residual_px}
    info["cameras"] = dict[str, Any]()
    for k, device in enumerate(devices):
        shift, turn = relative_pose(given[k], cameras[k])
        own = {"shift_m": float(np.linalg.norm(shift)), "turn_deg": float(np.degrees(np.linalg.norm(turn)))}
        if k < len(fixed):
            info["cameras"][device] = {
                **own, "contour_px": estimates[k].residual_px, "contour_points": estimates[k].points
            }  # fmt: skip
        else:
            names, place = [one.camera.name for one in carried if one.device == device], cameras[k].body_from_camera
            body = {"body": cameras[k].body, "body_from_camera": place.tolist(), "images": names}
            info["cameras"][device] = {**own, **body}
    views: list[PosedView] = []
    for frames, camera in zip(fixed, cameras, strict=False):
        image = background_behind(frames, camera, robot, _HIDDEN_MARGIN_PX)
        hidden = np.isnan(image[..., 0])
        views.append(PosedView(camera, np.where(hidden[..., None], 0.5, image).astype(np.float32), None, hidden))
    for one in carried:
        placed = replace(cameras[devices.index(one.device)], name=one.camera.name).carried(one.world_from_body)
        views.append(PosedView(placed, one.image, None, robot.pixels(placed, one.q, _HIDDEN_MARGIN_PX)))
    return views, info


def _feature_views(
    fixed: Sequence[FixedFrames], carried: Sequence[_CarriedImage], cameras: Sequence[Camera], devices: Sequence[str],
    robot: RobotShapes,
) -> list[FeatureView]:  # fmt: skip
    """All images for the matching of features, without the pixels of the robot."""
    views: list[FeatureView] = []
    for k, frames in enumerate(fixed):
        image = background_behind(frames, cameras[k], robot, _HIDDEN_MARGIN_PX)
        views.append(FeatureView(k, np.eye(4), image, np.isnan(image[..., 0])))
    for one in carried:
        hidden = robot.pixels(one.camera.carried(one.world_from_body), one.q, _MATCHED_MARGIN_PX)
        views.append(FeatureView(devices.index(one.device), one.world_from_body, one.image, hidden))
    return views


def scene_cameras(cameras: Sequence[Camera], robot: Mapping[str, Any] | None) -> list[Camera]:
    """The cameras of a scene: those of the views; the images of a camera on the robot have one on its body."""
    if robot is None:
        return list(cameras)
    out: list[Camera] = [camera for camera in cameras if camera.name in robot["cameras"]]
    for name, found in robot["cameras"].items():
        if "body" in found:
            own = next(camera for camera in cameras if camera.name in found["images"])
            place = np.array(found["body_from_camera"])
            out.append(replace(own, name=name, body=found["body"], body_from_camera=place))
    return out


def _fixed(recording: CameraRecording, robot: RobotShapes) -> FixedFrames:
    if not recording.joints:
        words = "give 'joints' in every frame of transforms.json, or in none."
        raise BadInput(f"The image of camera {recording.camera.name!r} has no joint positions; {words}")
    images = np.asarray(recording.images)
    view = limited(PosedView(recording.camera, images[0], images))
    positions = np.array([robot.positions(joints) for joints in recording.joints])
    return FixedFrames(view.camera, np.asarray(view.frames, np.float32) / 255, positions)


@array_dataclass
class _CarriedImage:
    """An image of a camera on the robot."""

    device: str  # Name of the camera
    camera: Camera
    image: Array
    q: Array  # Positions of the robot's scene
    world_from_body: Array  # Pose of the body that carries the camera


def _carried(recording: CameraRecording, robot: RobotShapes) -> _CarriedImage:
    camera, model = recording.camera, robot.scene.model
    if not recording.joints or not recording.device:
        words = "'joints' and the name of the 'camera' were expected in its frame of transforms.json."
        raise BadInput(f"Image {camera.name!r} is of a camera on {camera.body!r}; {words}")
    bodies = [model.body(b).name for b in range(model.nbody)]
    if camera.body not in bodies:
        raise UnknownName(f"body of the robot (that carries the camera of {camera.name!r})", camera.body, bodies)
    view = limited(PosedView(camera, np.asarray(recording.images[0], np.float32) / 255))
    q = robot.positions(recording.joints[0])
    return _CarriedImage(recording.device, view.camera, view.image, q, robot.transforms(q)[bodies.index(camera.body)])


def _estimate(frames: FixedFrames, robot: RobotShapes, align: bool) -> CameraEstimate:
    if not align:
        return CameraEstimate(frames.camera, np.eye(6), 0.0, 0)
    if len(frames.images) < MIN_FRAMES:
        words = f"{MIN_FRAMES} with the robot at different places are needed. --no-align keeps a calibrated pose."
        raise BadInput(f"Camera {frames.camera.name!r} has {len(frames.images)} images with the robot; {words}")
    found = align_to_robot(frames, robot)
    if found.points < MIN_CONTOUR_POINTS:
        raise BadInput(
            f"Camera {frames.camera.name!r} shows too little of the robot to be aligned to it ({found.points} points "
            f"of its contour, {MIN_CONTOUR_POINTS} are needed). Is its pose off by more than 20 mm or 2 degrees, or "
            "are the joint positions of other images? --no-align keeps its pose."
        )
    return found


@array_dataclass
class FixedFrames:
    """Images of a fixed camera with the robot at several places."""

    camera: Camera
    images: Array
    """[frames, height, width, 3], 0 to 1."""
    positions: Array
    """Positions of the robot's scene at each [frames, nq]."""


@array_dataclass
class CameraEstimate:
    """A camera and its information."""

    camera: Camera
    information: Array
    """Inverse covariance of its pose [6, 6], as motions of `moved_camera`."""
    residual_px: float
    """Median distance of the robot's contour from edges [pixels]."""
    points: int
    """Points of contours near an edge."""


def align_to_robot(frames: FixedFrames, robot: RobotShapes) -> CameraEstimate:
    """The camera, moved until the robot's silhouette meets the edges of its images."""
    picked = np.unique(np.linspace(0, len(frames.images) - 1, min(MAX_FRAMES, len(frames.images))).astype(int))
    meshes = [robot.moving_mesh(frames.positions[k]) for k in picked]
    given = camera = frames.camera
    prior = np.diag([SHIFT_SIGMA_M**-2] * 3 + [TURN_SIGMA**-2] * 3)
    information, rest = prior, np.zeros(0)
    for reach in _REACHES_PX:
        behind = background_behind(frames, camera, robot, reach)
        for _ in range(_STEPS):
            shift, turn = relative_pose(given, camera)
            information, g, found = prior.copy(), prior @ np.concatenate([shift, turn]), list[Array]()
            for k, mesh in zip(picked, meshes, strict=True):
                r, J = _edges(frames.images[k] - behind, camera, mesh, reach)
                found.append(r)
                scale = max(1.5, reach / 6)
                weight = 1 / (_CORRELATED * 0.7**2 * (1 + (r / scale) ** 2))  # standard deviation of an edge [pixels]
                information += (J * weight[:, None]).T @ J
                g += J.T @ (weight * r)
            step = -np.linalg.solve(information, g)
            camera, rest = moved_camera(camera, step), np.concatenate(found)
            if np.abs(step).max() < 1e-4:
                break
    near = rest[np.abs(rest) < 3.0]
    shared = np.diag([SYSTEMATIC[0] ** 2] * 3 + [SYSTEMATIC[1] ** 2] * 3)
    known = np.linalg.inv(np.linalg.inv(information) + shared)
    return CameraEstimate(camera, known, float(np.median(np.abs(near))) if len(near) else np.inf, len(near))


def background_behind(frames: FixedFrames, camera: Camera, robot: RobotShapes, margin: int) -> Array:
    """The background behind the robot [height, width, 3]; NaN where fewer than two images show it."""
    samples = frames.images.copy()
    for image, q in zip(samples, frames.positions, strict=True):
        image[robot.pixels(camera, q, margin)] = np.nan
    count = np.isfinite(samples[..., 0]).sum(axis=0)
    with np.errstate(all="ignore"):
        ordered = np.sort(samples, axis=0)  # NaN goes to the end
        # Of images in the shadow of the robot and others, the brighter half shows the background in full light.
        middle = np.maximum((count - 1) * 2 // 3, 0)[None, ..., None]
        out = np.take_along_axis(ordered, middle, axis=0)[0]
    out[count < 2] = np.nan
    return out


def _edges(difference: Array, camera: Camera, mesh: TriangleMesh, reach: int) -> tuple[Array, Array]:
    """Distances from contour points to the edges of a difference image [n] [pixels], and derivatives [n, 6]."""
    found = contour_points(mesh, camera)
    if not len(found.pixels):
        return np.zeros(0), np.zeros((0, 6))
    ends, _ = projected(camera, mesh.vertices[found.ends])
    along = ends[:, 1] - ends[:, 0]
    along /= np.maximum(np.linalg.norm(along, axis=1, keepdims=True), 1e-9)
    # Faces that look at the camera are anticlockwise in the image, so they are on the left of their rim.
    normal = np.stack([-along[:, 1], along[:, 0]], axis=1)
    offset, strength = _steps(difference, found.pixels, normal, reach)
    kept = strength > 0.06  # least difference across an edge [0 to 1]
    J = np.einsum("ni,nij->nj", normal, pixel_jacobian(camera, found.points))
    return -offset[kept], J[kept]


def _steps(difference: Array, pixels: Array, normal: Array, reach: int) -> tuple[Array, Array]:
    """The offset along each normal (outwards) of the strongest step from the robot to nothing, and its strength."""
    from scipy.ndimage import map_coordinates

    offsets = np.arange(-reach - _SIDE_PX, reach + _SIDE_PX + 0.5, 1.0)
    at = pixels[:, None] + offsets[:, None] * normal[:, None]
    where = [at[..., 1] - 0.5, at[..., 0] - 0.5]
    profile = np.stack(
        [map_coordinates(difference[..., c], where, order=1, cval=np.nan) for c in range(3)], axis=-1
    )  # [n, offsets, 3]
    mean = np.lib.stride_tricks.sliding_window_view(profile, _SIDE_PX, axis=1).mean(axis=-1)
    inner, outer = mean[:, : -_SIDE_PX - 1], mean[:, _SIDE_PX + 1 :]
    score = np.linalg.norm(inner - outer, axis=-1) - 0.7 * np.linalg.norm(outer, axis=-1)
    score = np.nan_to_num(score, nan=-1.0)
    best = score.argmax(axis=1)
    rows, inside = np.arange(len(score)), np.asarray(np.clip(best, 1, score.shape[1] - 2), int)
    a, b, c = score[rows, inside - 1], score[rows, inside], score[rows, inside + 1]
    bend = 0.5 * (a - c) / np.where(np.abs(a - 2 * b + c) > 1e-9, a - 2 * b + c, -1.0)
    place: Array = np.where(best == inside, inside + np.clip(np.asarray(bend, float), -0.5, 0.5), best)
    strength = np.where(best == inside, score[rows, best], -1.0)  # at the end of the search it is no edge
    return offsets[_SIDE_PX] + place, strength


@array_dataclass
class RobotShapes:
    """The robot's geometry on its bodies, without the table and free objects."""

    scene: Scene
    moving: Sequence[ExportedShape]
    """Shapes moved by joints."""
    fixed: Sequence[ExportedShape]
    """Other shapes of the robot."""

    def positions(self, joints: Mapping[str, float]) -> Array:
        """Positions [nq] of the scene with joints at measured values."""
        model, q = self.scene.model, self.scene.start(0)[0]
        names = [model.joint(j).name for j in range(model.njnt)]
        for name, value in joints.items():
            if name not in names:
                raise UnknownName("joint of the robot", name, names)
            q[int(model.jnt_qposadr[names.index(name)])] = value
        missing = [name for name in self.scene.robot if name not in joints]
        if missing:
            every = ", ".join(self.scene.robot)
            raise BadInput(f"An image has no position of joint {missing[0]!r}; 'joints' must have all of {every}.")
        return q

    def transforms(self, q: Array) -> Array:
        """world_from_body of every body at positions q [bodies, 4, 4]."""
        data = mujoco.MjData(self.scene.model)
        data.qpos[:] = q
        mujoco.mj_kinematics(self.scene.model, data)
        out = np.tile(np.eye(4), (self.scene.model.nbody, 1, 1))
        out[:, :3, :3], out[:, :3, 3] = data.xmat.reshape(-1, 3, 3), data.xpos
        return out

    def moving_mesh(self, q: Array) -> TriangleMesh:
        """The moving shapes at positions q."""
        return self._placed(self.moving, q)

    def mesh(self, q: Array) -> TriangleMesh:
        """The whole robot at positions q."""
        return self._placed([*self.moving, *self.fixed], q)

    def pixels(self, camera: Camera, q: Array, margin: int) -> Array:
        """The pixels of a camera in the world that show the robot at q, with a margin [height, width]."""
        from scipy.ndimage import binary_dilation

        shown = depth_image(self.mesh(q), camera).mask
        return np.asarray(binary_dilation(shown, iterations=margin), bool) if margin and shown.any() else shown

    def _placed(self, shapes: Sequence[ExportedShape], q: Array) -> TriangleMesh:
        placed = self.transforms(q)
        return joined([shape.mesh.moved(placed[shape.body]) for shape in shapes])


def robot_shapes(scene: Scene) -> RobotShapes:
    """The shapes of the robot of a scene."""
    model = scene.model
    free = {int(model.body(name).id) for name in scene.objects}
    shapes = [s for s in exported_shapes(scene) if s.shown and s.body != 0 and s.body not in free]
    moving = [s for s in shapes if model.body_weldid[s.body] != 0]
    if not moving or not scene.robot:
        raise BadInput(f"Scene {scene.name!r} has no robot with moving shapes; give the scene of the robot as --robot.")
    return RobotShapes(scene, moving, [s for s in shapes if model.body_weldid[s.body] == 0])


@array_dataclass
class FeatureView:
    """An image whose features are matched."""

    device: int
    """Index of its camera among all cameras."""
    world_from_body: Array
    """Pose of the body that carries its camera, 4 x 4; the identity for a fixed camera."""
    image: Array
    """[height, width, 3], 0 to 1."""
    hidden: Array
    """Pixels that show the robot [height, width]."""


@array_dataclass
class FeatureTracks:
    """Points that several images show."""

    view: Array
    """Number of the image of each sighting [sightings]."""
    track: Array
    """Number of the point of each sighting [sightings]."""
    pixels: Array
    """[sightings, 2]."""


@array_dataclass
class AdjustedCameras:
    """Cameras on their bodies, after the adjustment."""

    cameras: tuple[Camera, ...]
    agreed: Array
    """Sightings of each camera that agree within some pixels [cameras]."""
    residual_px: float
    """Median error of those [pixels]."""


def feature_tracks(views: Sequence[FeatureView]) -> FeatureTracks:
    """Features of images beside the robot, matched in pairs and joined."""
    cv2: Any = optional_library("cv2", "build", "opencv-python-headless")
    # A table has few strong features, so the least contrast is low.
    sift, pixels, words = cv2.SIFT_create(_FEATURES, contrastThreshold=0.012), list[Array](), list[Array]()
    for view in views:
        grey = np.clip(255 * np.nan_to_num(view.image).mean(axis=-1), 0, 255).astype(np.uint8)
        points, found = sift.detectAndCompute(grey, (~view.hidden).astype(np.uint8))
        pixels.append(np.array([point.pt for point in points]).reshape(-1, 2) + 0.5)
        roots = np.zeros((0, 128), np.float32) if found is None else np.sqrt(found)
        words.append(roots / np.maximum(np.linalg.norm(roots, axis=1, keepdims=True), 1e-9))
    starts, pairs = np.cumsum([0, *map(len, pixels)]), list[Array]()
    for a, b in combinations(range(len(views)), 2):
        pairs.append(_matches(words[a], words[b]) + starts[[a, b]])
    return _tracks_of(np.concatenate(pairs), starts, np.concatenate(pixels))


def adjust_cameras(
    cameras: Sequence[Camera], information: Sequence[Array], views: Sequence[FeatureView], tracks: FeatureTracks
) -> AdjustedCameras:
    """Cameras corrected on their bodies until images agree; `information` [6, 6] of each is the prior at its pose."""
    given, moved = list(cameras), list(cameras)
    points = _triangulated(placed_cameras(moved, views), tracks)
    for scale in _SCALES_PX:
        motions = [np.concatenate(relative_pose(a, b)) for a, b in zip(given, moved, strict=True)]
        step, points = _newton_step(moved, views, tracks, points, (scale, information, motions))
        moved = [moved_camera(camera, motion) for camera, motion in zip(moved, step, strict=True)]
    error = np.linalg.norm(_residuals(placed_cameras(moved, views), tracks, points)[0], axis=1)
    device = np.array([view.device for view in views])[tracks.view]
    good = error < 2.5  # error up to which a feature agrees with the cameras [pixels]
    agreed = np.bincount(device[good], minlength=len(cameras))
    return AdjustedCameras(tuple(moved), agreed, float(np.median(error[good])) if good.any() else np.inf)


def _matches(a: Array, b: Array) -> Array:
    """Pairs of features [n, 2] that are each other's best match, clearly better than the next."""
    if len(a) < 2 or len(b) < 2:
        return np.zeros((0, 2), int)
    alike = a @ b.T
    best, back = alike.argmax(axis=1), alike.argmax(axis=0)
    rows = np.arange(len(a))
    top = np.partition(alike, -2, axis=1)[:, -2:]
    near, next_ = np.sqrt(np.maximum(1 - top[:, 1], 0)), np.sqrt(np.maximum(1 - top[:, 0], 1e-12))
    # Largest ratio of the distances of the best and the second best match.
    # Least product of the descriptors of a match.
    kept = (back[best] == rows) & (near < 0.8 * next_) & (top[:, 1] > 0.75)
    return np.stack([rows[kept], best[kept]], axis=1)


def _tracks_of(pairs: Array, starts: Array, pixels: Array) -> FeatureTracks:
    """Tracks of matched features, without those that hold two features of one image."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    n = int(starts[-1])
    graph = coo_matrix((np.ones(len(pairs), bool), (pairs[:, 0], pairs[:, 1])), shape=(n, n))
    _, label = connected_components(graph, directed=False)
    view = np.searchsorted(starts, np.arange(n), side="right") - 1
    size = np.bincount(label)
    different = np.bincount(np.unique(np.stack([label, view], axis=1), axis=0)[:, 0], minlength=len(size))
    kept = ((size >= 3) & (different == size))[label]  # fewest images of a track
    _, track = np.unique(label[kept], return_inverse=True)
    return FeatureTracks(view[kept], track, pixels[kept])


def placed_cameras(cameras: Sequence[Camera], views: Sequence[FeatureView]) -> list[Camera]:
    """The camera of each image in the world."""
    return [replace(cameras[view.device], body="world").carried(view.world_from_body) for view in views]


def _triangulated(placed: Sequence[Camera], tracks: FeatureTracks) -> Array:
    """The point nearest to the rays of each track [tracks, 3]."""
    n = int(tracks.track.max()) + 1 if len(tracks.track) else 0
    A, b = np.tile(1e-9 * np.eye(3), (n, 1, 1)), np.zeros((n, 3))
    for k, camera in enumerate(placed):
        own = tracks.view == k
        rays = pixel_rays(camera, tracks.pixels[own])
        rays = rays / np.linalg.norm(rays, axis=1, keepdims=True)
        across = np.eye(3) - rays[:, :, None] * rays[:, None, :]
        np.add.at(A, tracks.track[own], across)
        np.add.at(b, tracks.track[own], across @ camera.body_from_camera[:3, 3])
    return np.linalg.solve(A, b[..., None])[..., 0]


def _residuals(placed: Sequence[Camera], tracks: FeatureTracks, points: Array) -> tuple[Array, Array]:
    """Reprojection errors [sightings, 2] and derivatives by a motion of the camera in the world [sightings, 2, 6]."""
    r, J = np.zeros((len(tracks.view), 2)), np.zeros((len(tracks.view), 2, 6))
    for k, camera in enumerate(placed):
        own = np.flatnonzero(tracks.view == k)
        seen = points[tracks.track[own]]
        pixels, depth = projected(camera, seen)
        ahead = depth[:, None] > 0.02
        r[own] = np.where(ahead, pixels - tracks.pixels[own], 1e4)
        J[own] = np.where(ahead[..., None], pixel_jacobian(camera, seen), 0.0)
    return r, J


def _newton_step(
    cameras: Sequence[Camera], views: Sequence[FeatureView], tracks: FeatureTracks, points: Array,
    held: tuple[float, Sequence[Array], Sequence[Array]],
) -> tuple[Array, Array]:  # fmt: skip
    """A Gauss-Newton step of all cameras [cameras, 6], and the points after it."""
    scale, information, motions = held
    n, total = len(cameras), len(points)
    r, by_world = _residuals(placed_cameras(cameras, views), tracks, points)
    by_point = -by_world[..., :3]  # moving the camera is the opposite of moving the point
    turns = np.array([view.world_from_body[:3, :3] for view in views])[tracks.view]
    by_camera = np.concatenate([by_world[..., :3] @ turns, by_world[..., 3:] @ turns], axis=-1)
    weight = 1 / (0.7**2 * (1 + (r**2).sum(axis=1) / scale**2))  # standard deviation of a feature [pixels]
    device = np.array([view.device for view in views])[tracks.view]
    H_pp, g_p = np.tile(1e-2 * np.eye(3), (total, 1, 1)), np.zeros((total, 3))
    np.add.at(H_pp, tracks.track, np.einsum("n,nki,nkj->nij", weight, by_point, by_point))
    np.add.at(g_p, tracks.track, np.einsum("n,nki,nk->ni", weight, by_point, r))
    H_cp, H_cc, g_c = np.zeros((n, total, 6, 3)), np.zeros((n, 6, 6)), np.zeros((n, 6))
    np.add.at(H_cp, (device, tracks.track), np.einsum("n,nki,nkj->nij", weight, by_camera, by_point))
    np.add.at(H_cc, device, np.einsum("n,nki,nkj->nij", weight, by_camera, by_camera))
    np.add.at(g_c, device, np.einsum("n,nki,nk->ni", weight, by_camera, r))
    inverse = np.linalg.inv(H_pp)
    carried = np.einsum("apik,pkl->apil", H_cp, inverse)
    S: Array = -np.einsum("apil,bpjl->aibj", carried, H_cp).reshape(6 * n, 6 * n)
    g: Array = (g_c - np.einsum("apil,pl->ai", carried, g_p)).ravel()
    for c in range(n):
        own = slice(6 * c, 6 * c + 6)
        S[own, own] += H_cc[c] + information[c]
        g[own] += information[c] @ motions[c]
    step = -np.linalg.solve(S, g).reshape(n, 6)
    back = g_p + np.einsum("apij,ai->pj", H_cp, step)
    return step, points - np.einsum("pij,pj->pi", inverse, back)
