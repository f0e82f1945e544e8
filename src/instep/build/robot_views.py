"""Views of a capture with a robot in it: cameras aligned to the robot, and images without it.

Fixed cameras are aligned by the robot's silhouette, cameras on the robot by its kinematics and features, all together
in one bundle adjustment. What a fixed camera sees behind the robot is put together from its images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array
from instep.scene.camera import Camera
from instep.scene.folder import Scene
from instep.splat.capture import CameraRecording, Capture
from instep.splat.plane_alignment import relative_pose

from .feature_adjustment import AdjustedCameras, FeatureView, adjust_cameras, feature_tracks
from .posed_views import MAX_SIDE_PX, PosedView, reduced
from .robot_alignment import (
    MIN_FRAMES,
    SHIFT_SIGMA_M,
    TURN_SIGMA,
    CameraEstimate,
    FixedFrames,
    align_to_robot,
    background_behind,
)
from .robot_shapes import RobotShapes, robot_shapes

MIN_CONTOUR_POINTS = 60
"""Fewest points of the robot's contour near an edge that a fixed camera is aligned by."""
MIN_SIGHTINGS = 40
"""Fewest features that agree about a camera on the robot."""
_HIDDEN_MARGIN_PX = 3
"""Pixels around the robot that may show it."""
_MATCHED_MARGIN_PX = 12
"""The same before cameras are aligned."""
Report = Callable[[float, str], None]


def has_robot(capture: Capture) -> bool:
    """Whether a capture says where the robot was in some images."""
    return any(recording.joints for recording in capture.recordings)


def robot_views(capture: Capture, scene: Scene, align: bool, report: Report) -> tuple[list[PosedView], dict[str, Any]]:
    """The views of a capture with a robot, and what was found of its cameras."""
    robot = robot_shapes(scene)
    fixed = [_fixed(recording, robot) for recording in capture.recordings if recording.camera.in_world]
    carried = _carried(capture.recordings, robot)
    estimates, info = list[CameraEstimate](), dict[str, Any]()
    for k, frames in enumerate(fixed):
        report(0.7 * k / len(fixed), f"{frames.camera.name} on the robot's silhouette")
        estimates.append(_estimate(frames, robot, align))
    report(0.7, "features")
    views: list[FeatureView] = []
    for k, (frames, estimate) in enumerate(zip(fixed, estimates, strict=True)):
        image = background_behind(frames, estimate.camera, robot, _HIDDEN_MARGIN_PX)
        views.append(FeatureView(k, np.eye(4), image, np.isnan(image[..., 0])))
    devices = list(dict.fromkeys(device for device, *_ in carried))
    mounts = [next(camera for name, camera, *_ in carried if name == device) for device in devices]
    for device, camera, image, q in carried:
        placed = robot.transforms(q)[_body(robot, camera)]
        hidden = robot.pixels(camera.carried(placed), q, _MATCHED_MARGIN_PX)
        views.append(FeatureView(len(fixed) + devices.index(device), placed, image, hidden))
    given = [*(frames.camera for frames in fixed), *mounts]
    cameras = [*(e.camera for e in estimates), *mounts]
    if align:
        prior = np.diag([SHIFT_SIGMA_M**-2] * 3 + [TURN_SIGMA**-2] * 3)
        information = [*(e.information for e in estimates), *(prior for _ in mounts)]
        found = adjust_cameras(cameras, information, views, feature_tracks(views))
        _check_mounts(found, len(fixed), devices)
        cameras = list(found.cameras)
        names = [*(frames.camera.name for frames in fixed), *devices]
        sightings = dict(zip(names, found.agreed.tolist(), strict=True))
        info["features"] = {"sightings": sightings, "residual_px": found.residual_px}
    info["cameras"] = _moves(given, cameras, devices, estimates)
    for device in devices:
        info["cameras"][device]["images"] = [camera.name for name, camera, *_ in carried if name == device]
    return _without_robot(fixed, carried, cameras, devices, robot), info


def scene_cameras(cameras: Sequence[Camera], robot: Mapping[str, Any] | None) -> list[Camera]:
    """The cameras of a scene: those of the views, where images of a camera on the robot have one, on its body."""
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
        raise BadInput(
            f"The image of camera {recording.camera.name!r} does not say where the robot was; give 'joints' in every "
            "frame of transforms.json, or in none."
        )
    images = np.asarray(recording.images)
    view = PosedView(recording.camera, images[0], images)
    side = max(recording.camera.width, recording.camera.height)
    view = view if side <= MAX_SIDE_PX else reduced(view, int(np.ceil(side / MAX_SIDE_PX)))
    positions = np.array([robot.positions(joints) for joints in recording.joints])
    return FixedFrames(view.camera, np.asarray(view.frames, np.float32) / 255, positions)


def _carried(recordings: Sequence[CameraRecording], robot: RobotShapes) -> list[tuple[str, Camera, Array, Array]]:
    """Of each image of a camera on the robot: its camera's name, the camera, the image and the robot's positions."""
    out: list[tuple[str, Camera, Array, Array]] = []
    for recording in recordings:
        if recording.camera.in_world:
            continue
        if not recording.joints or not recording.device:
            raise BadInput(
                f"Image {recording.camera.name!r} is of a camera on {recording.camera.body!r}; 'joints' and the name "
                "of the 'camera' were expected in its frame of transforms.json."
            )
        _body(robot, recording.camera)
        view = PosedView(recording.camera, np.asarray(recording.images[0], np.float32) / 255)
        side = max(view.camera.width, view.camera.height)
        view = view if side <= MAX_SIDE_PX else reduced(view, int(np.ceil(side / MAX_SIDE_PX)))
        out.append((recording.device, view.camera, view.image, robot.positions(recording.joints[0])))
    return out


def _body(robot: RobotShapes, camera: Camera) -> int:
    names = [robot.scene.model.body(b).name for b in range(robot.scene.model.nbody)]
    if camera.body not in names:
        raise BadInput(
            f"Image {camera.name!r} is of a camera on {camera.body!r}, and the robot has no such body; its bodies are "
            f"{', '.join(name for name in names if name)}."
        )
    return names.index(camera.body)


def _estimate(frames: FixedFrames, robot: RobotShapes, align: bool) -> CameraEstimate:
    if not align:
        return CameraEstimate(frames.camera, np.eye(6), 0.0, 0)
    if len(frames.images) < MIN_FRAMES:
        raise BadInput(
            f"Camera {frames.camera.name!r} has {len(frames.images)} images with the robot in them; {MIN_FRAMES} or "
            "more with the robot at different places were expected, or --no-align for a camera that is calibrated."
        )
    found = align_to_robot(frames, robot)
    if found.points < MIN_CONTOUR_POINTS:
        raise BadInput(
            f"Camera {frames.camera.name!r} shows too little of the robot to be aligned to it ({found.points} points "
            f"of its contour, {MIN_CONTOUR_POINTS} are needed); is its pose off by more than 20 mm or 2 degrees, or "
            "are the joint positions of other images? --no-align takes it as it is."
        )
    return found


def _check_mounts(found: AdjustedCameras, fixed: int, devices: Sequence[str]) -> None:
    for device, agreed in zip(devices, found.agreed[fixed:], strict=True):
        if agreed < MIN_SIGHTINGS:
            raise BadInput(
                f"The images of camera {device!r} on the robot have {int(agreed)} features in common, and "
                f"{MIN_SIGHTINGS} are needed to find where it is mounted; take more of them, nearer to each other, or "
                "give its calibrated pose and --no-align."
            )


def _moves(
    given: Sequence[Camera], found: Sequence[Camera], devices: Sequence[str], estimates: Sequence[CameraEstimate]
) -> dict[str, Any]:
    """How far each camera was moved, and how well the robot's contour meets the edges."""
    out, fixed = dict[str, Any](), len(estimates)
    for k, (before, after) in enumerate(zip(given, found, strict=True)):
        shift, turn = relative_pose(before, after)
        name = before.name if k < fixed else devices[k - fixed]
        out[name] = {"shift_m": float(np.linalg.norm(shift)), "turn_deg": float(np.degrees(np.linalg.norm(turn)))}
        if k < fixed:
            out[name] |= {"contour_px": estimates[k].residual_px, "contour_points": estimates[k].points}
        else:
            out[name] |= {"body": after.body, "body_from_camera": after.body_from_camera.tolist()}
    return out


def _without_robot(
    fixed: Sequence[FixedFrames], carried: Sequence[tuple[str, Camera, Array, Array]], cameras: Sequence[Camera],
    devices: Sequence[str], robot: RobotShapes,
) -> list[PosedView]:  # fmt: skip
    """The views with their cameras in the world, and which pixels the robot hides."""
    out: list[PosedView] = []
    for frames, camera in zip(fixed, cameras, strict=False):
        image = background_behind(frames, camera, robot, _HIDDEN_MARGIN_PX)
        hidden = np.isnan(image[..., 0])
        out.append(PosedView(camera, np.where(hidden[..., None], 0.5, image).astype(np.float32), None, hidden))
    for device, camera, image, q in carried:
        mounted = replace(cameras[len(fixed) + devices.index(device)], name=camera.name)
        placed = mounted.carried(robot.transforms(q)[_body(robot, camera)])
        out.append(PosedView(placed, image, None, robot.pixels(placed, q, _HIDDEN_MARGIN_PX)))
    return out
