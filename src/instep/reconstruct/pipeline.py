"""From posed images to a scene that simulates: capture, segment, cameras, shape, parts, appearance, scene.

Each stage keeps its record below `stages/`; `build.json` holds prompts, options and the decisions of each stage.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from instep import __version__
from instep.core.errors import BadInput, UnknownName
from instep.core.world import Array, array_dataclass, options_dataclass
from instep.scene.camera import Camera
from instep.scene.camera_files import Calibration
from instep.scene.folder import Scene
from instep.splat.capture import Capture, Plane, align_on_plane
from instep.splat.fitting import GaussianFitOptions, Progress, focus_point
from instep.splat.gaussian_files import save_gaussians
from instep.splat.image import WeightedImage, to_bytes
from instep.splat.rendering import save_png

from .capture.posed_views import PosedView, check_views, seen_on_table, table_of, views_of
from .capture.robot_views import has_robot, robot_views, scene_cameras
from .masks.object_mask import ObjectMask
from .masks.prompted_masks import background_without, prompted_masks
from .masks.prompts import ObjectPrompt, check_cameras, open_segmenter, prompt_words
from .masks.table_masks import masks_by_boxes, propagated, split_objects
from .object_appearance import (
    HELD_OUT_EVERY,
    WORLD,
    MeshTexture,
    bake_texture,
    fit_object,
    fit_world,
    gaussians_on,
    median_colour,
    object_psnr,
)
from .scene_writing import BuiltObject, BuiltTable, friction_of, mass_of, write_scene
from .shape.convex_parts import convex_parts, with_flat_base
from .shape.object_shape import ShapeKind, ShapeOptions, check_single, is_hull, object_shape
from .shape.outline_fit import SeenObject, refine_cameras, seen_object
from .shape.outlines import coarse_extrusion, outline_of
from .shape.triangle_mesh import TriangleMesh
from .stages import (
    FOLDER,
    AlignedCameras,
    CapturedViews,
    ObjectLooks,
    ObjectMeshes,
    ObjectParts,
    SegmentedObjects,
    Stage,
    StageReport,
    StageStore,
    WrittenScene,
)

BUILD_FILE = "build.json"
Seen: TypeAlias = Mapping[str, Sequence[tuple[PosedView, ObjectMask]]]
"""The views that show each object, with its masks."""


@options_dataclass
class ReconstructOptions:
    """Options of a build."""

    time: float | None = None
    """Time of the frames of videos [s]; the first that all cameras have if None."""
    table: Array | None = None
    """Table as nx, ny, nz, d with n . x + d = 0; that of the capture if None."""
    align: bool = True
    """Correct cameras that disagree about the table or about silhouettes."""
    shape: ShapeKind = "auto"
    height: float | None = None
    """Known height of the objects [m], for extruded outlines only."""
    weighed: Mapping[str, float] = field(default_factory=dict[str, float])
    """Masses by object [kg]."""
    materials: Mapping[str, str] = field(default_factory=dict[str, str])
    friction: Mapping[str, float] = field(default_factory=dict[str, float])
    gaussians: int = 6000
    """Gaussians of each object."""
    background: int = 4000
    """Gaussians of the static world behind the objects; 0 for none."""
    steps: int = 600
    """Fit steps of the Gaussians of each object, a third for the background; 0 for no fit."""
    seed: int = 0
    robot: Scene | None = None
    """Scene whose robot is added; its world frame is that of the camera poses."""
    weights: Path | None = None
    """Folder of a segmentation network for clicks and boxes (`instep reconstruct weights`); a graph cut if None."""
    redo: Stage = "capture"
    """First stage to compute; earlier ones are read from the folder."""
    finish: Callable[[ReconstructedScene], object] | None = None
    """Called with the scene before its folder is moved into place; if it fails, nothing is written."""


@array_dataclass
class ReconstructedScene:
    """A built scene folder and its record."""

    folder: Path
    objects: tuple[BuiltObject, ...]
    record: Mapping[str, Any]
    """Content of build.json."""


def reconstruct_scene(
    capture: Capture,
    prompts: Sequence[ObjectPrompt],
    out: Path,
    options: ReconstructOptions | None = None,
    report: StageReport | None = None,
) -> ReconstructedScene:
    """Build a scene folder from posed images; it is written whole or not at all."""
    options = ReconstructOptions() if options is None else options
    _check(prompts, options)
    check_cameras(prompts, [recording.camera.name for recording in capture.recordings])
    tables = [prompt.name for prompt in prompts if prompt.table]
    if capture.turntable and tables:
        raise BadInput(
            f"The prompt '{tables[0]}=table' needs a table at rest, and these images are of a turntable; mark each "
            "object with clicks or boxes instead (NAME=click:CAMERA:X,Y or NAME=box:CAMERA:LEFT,TOP,RIGHT,BOTTOM)."
        )
    work = out.with_name(out.name + ".part")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        if options.redo != "capture":
            if not (out / FOLDER).is_dir():
                raise BadInput(f"{str(out)!r} holds no stages of a build; run it without --redo first.")
            shutil.copytree(out / FOLDER, work / FOLDER)
        store = StageStore(work / FOLDER, options.redo, report or (lambda stage, share, words: None))
        found = _build(capture, prompts, options, store, work)
        record = _record(prompts, options, store, found)
        (work / BUILD_FILE).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        if options.finish is not None:
            options.finish(ReconstructedScene(work, found, record))
        shutil.rmtree(out, ignore_errors=True)
        work.rename(out)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return ReconstructedScene(out, found, record)


def _check(prompts: Sequence[ObjectPrompt], options: ReconstructOptions) -> None:
    names = [prompt.name for prompt in prompts]
    if not names:
        raise BadInput("No prompt was given; add at least one --prompt, such as tee=click:CAMERA:X,Y.")
    tables = [prompt.name for prompt in prompts if prompt.table]
    if len(tables) > 1:
        raise BadInput(f"{tables[0]!r} and {tables[1]!r} are both everything on the table; give one of them.")
    for name in _named(options):
        if name not in names and not any(re.fullmatch(rf"{re.escape(one)}_[1-9]\d*", name) for one in tables):
            raise UnknownName("object of the prompts", name, names)


def _named(options: ReconstructOptions) -> list[str]:
    """Objects that masses, materials and friction are given for."""
    return [*options.weighed, *options.materials, *options.friction]


def _build(
    capture: Capture, prompts: Sequence[ObjectPrompt], options: ReconstructOptions, store: StageStore, work: Path
) -> tuple[BuiltObject, ...]:
    taken = store.run("capture", CapturedViews, lambda report: _captured(capture, options, report))
    found = store.run(
        "segment", SegmentedObjects, lambda report: _segmented(taken, prompts, options.weights, work, report)
    )
    _check_found(found, taken, options)
    aligned = store.run("cameras", AlignedCameras, lambda report: _aligned(taken, found, options, report))
    views = [replace(view, camera=camera) for view, camera in zip(taken.views, aligned.cameras, strict=True)]
    seen = {name: _pairs(views, masks) for name, masks in found.masks.items()}
    shapes = store.run("shape", ObjectMeshes, lambda report: _meshes(seen, taken.plane, options, report))
    parts = store.run("parts", ObjectParts, lambda report: _parts(shapes, taken.plane, options.seed, report))
    placed = replace(taken, views=tuple(views))
    looks = store.run("appearance", ObjectLooks, lambda report: _looks(shapes, seen, placed, options, work, report))
    objects = [
        BuiltObject(
            name, mesh, parts.parts[name], looks.textures[name], looks.colours[name],
            mass_of(mesh.volume, options.weighed.get(name), options.materials.get(name, "unknown")),
            friction_of(options.friction.get(name)),
        )
        for name, mesh in shapes.meshes.items()
    ]  # fmt: skip
    lenses = scene_cameras(aligned.cameras, taken.info.get("robot"))
    store.run("scene", WrittenScene, lambda _: _written(objects, taken, lenses, work, options.robot))
    return tuple(objects)


def _check_found(found: SegmentedObjects, taken: CapturedViews, options: ReconstructOptions) -> None:
    """Refuse values of objects that were not found, and objects that too few views show."""
    for name, masks in found.masks.items():
        if len(masks) < 2:
            what = f"{name!r} ({len(masks)} of {len(taken.views)} images show it)"
            check_single(what, len(masks), options.height)
    for name in _named(options):
        if name not in found.masks:
            raise UnknownName("object that was found", name, list(found.masks))


def _pairs(views: Sequence[PosedView], masks: Sequence[ObjectMask]) -> list[tuple[PosedView, ObjectMask]]:
    """The views that masks are of, with the masks; both with the camera of the view."""
    by_name = {view.name: view for view in views}
    return [(by_name[m.camera.name], replace(m, camera=by_name[m.camera.name].camera)) for m in masks]


def _captured(capture: Capture, options: ReconstructOptions, report: Progress) -> CapturedViews:
    aligned: dict[str, Any] = {}
    if has_robot(capture) and options.robot is not None:
        views, aligned["robot"] = robot_views(capture, options.robot, options.align, report)
    else:
        views = views_of(capture, options.time)
    plane = table_of(capture, options.table)
    check_views(views, plane)
    if len(views) == 1:
        check_single("the table", 1, options.height)
    if capture.plane is not None:
        bounds = np.array([capture.plane.low, capture.plane.high])
    else:
        focus = focus_point([view.camera for view in views])
        middle = seen_on_table(views[0].camera, plane) if focus is None else focus
        bounds = np.array([middle[:2] - 0.5, middle[:2] + 0.5])
    source = "given" if options.table is not None else "ground_plane.json"
    info = {"views": [view.name for view in views], "table": list(map(float, plane)), "from": source, **aligned}
    # Images are rounded as their file rounds them, so that a redone stage sees the same ones.
    kept = tuple(replace(view, image=to_bytes(view.image).astype(np.float32) / 255) for view in views)
    return CapturedViews(kept, plane, bounds, info)


def _segmented(
    taken: CapturedViews, prompts: Sequence[ObjectPrompt], weights: Path | None, work: Path, report: Progress
) -> SegmentedObjects:
    """Masks of all objects, with overlays of them as PNG files."""
    views, plane, visible = taken.views, taken.plane, {view.name: view.visible for view in taken.views}
    segmenter = None if weights is None else open_segmenter(weights)
    boxed = segmenter is None and propagated(prompts, views)
    together = masks_by_boxes(views, prompts, plane, report) if boxed else None
    objects, found = dict[str, tuple[ObjectMask, ...]](), dict[str, Any]()
    for i, prompt in enumerate(sorted(prompts, key=lambda one: one.table)):  # the rest of the table comes last
        if together is not None:
            masks, found[prompt.name] = together[prompt.name], {"by": "boxes, carried over to all views"}
        else:
            part: Progress = lambda s, words, i=i: report((i + s) / len(prompts), words)  # noqa: E731
            chosen = prompted_masks(views, prompt, plane, segmenter, part)
            masks, found[prompt.name] = chosen.masks, dict(chosen.info)
        # Rounded as their file rounds them, and unknown where the robot may be in front.
        masks = tuple(
            ObjectMask(m.camera, to_bytes(m.alpha).astype(np.float32) / 255, m.known & visible[m.camera.name])
            for m in masks
        )
        new: Mapping[str, tuple[ObjectMask, ...]] = {prompt.name: masks}
        if prompt.table:
            split = split_objects(prompt.name, masks, plane, objects)
            new, found[prompt.name]["objects"] = split.masks, split.info
        for name in new:
            if name in objects:
                raise BadInput(f"{name!r} is an object of {prompt.name!r} and of another prompt; rename one.")
        objects |= new
    for name, masks in objects.items():
        _save_overlays(work / FOLDER / "masks" / name, views, masks)
    info = {
        name: {
            m.camera.name: {"pixels": int(m.inside.sum()), "unknown": float((~m.known).mean()), "cut": bool(m.cut)}
            for m in masks
        }
        for name, masks in objects.items()
    }
    return SegmentedObjects(objects, {"objects": info, "found": found})


def _save_overlays(folder: Path, views: Sequence[PosedView], masks: Sequence[ObjectMask]) -> None:
    """Write the views that show an object as PNG files: the object green, unknown pixels blue."""
    folder.mkdir(parents=True, exist_ok=True)
    images = {view.name: view.image for view in views}
    for mask in masks:
        image = 0.6 * images[mask.camera.name]
        image[..., 1] += 0.4 * mask.alpha
        image[..., 2] += 0.4 * ~mask.known
        save_png(folder / f"{mask.camera.name}.png", to_bytes(image))


def _aligned(
    taken: CapturedViews, found: SegmentedObjects, options: ReconstructOptions, report: Progress
) -> AlignedCameras:
    """Cameras aligned on the table by the static background, then refined on the silhouettes."""
    cameras = tuple(view.camera for view in taken.views)
    if not options.align:
        return AlignedCameras(cameras, {"aligned": False, "because": "--no-align"})
    if "robot" in taken.info:
        because = "they were aligned to the robot in the stage capture"
        return AlignedCameras(cameras, {"aligned": False, "because": because})
    report(0.0, "alignment on the table")
    images = _backgrounds(taken, found)
    if isinstance(images, str):
        info = dict[str, Any](aligned=False, because=images)
    else:
        done = align_on_plane(images, _table(taken))
        moves = [
            {"shift_m": float(np.linalg.norm(shift)), "turn_deg": float(np.degrees(np.linalg.norm(turn)))}
            for shift, turn in zip(done.shifts, done.turns, strict=True)
        ]
        named = {camera.name: move for camera, move in zip(cameras, moves, strict=True)}
        info = dict[str, Any](aligned=True, moved=named, correlation=[done.before, done.after])
        cameras = tuple(done.cameras)
    objects = _seen_outlines(cameras, taken, found, options)
    if isinstance(objects, str):
        return AlignedCameras(cameras, info | {"silhouettes": {"refined": False, "because": objects}})
    refined = refine_cameras(cameras, objects, report)
    return AlignedCameras(refined.cameras, info | {"silhouettes": refined.info})


def _backgrounds(taken: CapturedViews, found: SegmentedObjects) -> list[WeightedImage] | str:
    """The static background of each view, or why cameras are not aligned on the table."""
    if len(taken.views) < 2 or any(view.frames is None for view in taken.views):
        return "only fixed cameras with videos are aligned on the table"
    images: list[WeightedImage] = []
    for view in taken.views:
        own = [m.alpha > 0.5 for masks in found.masks.values() for m in masks if m.camera.name == view.name]
        still = background_without(view, np.any(own, axis=0)) if own else None
        if still is None:
            return f"{view.name} shows no object"
        images.append(WeightedImage(view.camera, still.image, (still.share > 0.8).astype(np.float32)))
    return images


def _seen_outlines(
    cameras: Sequence[Camera], taken: CapturedViews, found: SegmentedObjects, options: ReconstructOptions
) -> list[SeenObject] | str:
    """The upright outlines of all objects, or why cameras are not refined on them."""
    by_name, objects = {camera.name: i for i, camera in enumerate(cameras)}, list[SeenObject]()
    for name, given in found.masks.items():
        masks = [replace(mask, camera=cameras[by_name[mask.camera.name]]) for mask in given]
        if len(masks) < 2:
            return f"one view of {name} agrees with any camera"
        if is_hull(masks, options.shape, options.height):
            return f"cameras are refined on upright outlines, and {name} is a visual hull"
        outline = outline_of(coarse_extrusion(masks, taken.plane, height=options.height))
        objects.append(seen_object(masks, [by_name[mask.camera.name] for mask in masks], taken.plane, outline))
    return objects


def _table(taken: CapturedViews) -> Plane:
    (x0, y0), (x1, y1) = taken.bounds.tolist()
    return Plane(taken.plane, (x0, y0), (x1, y1))


def _meshes(seen: Seen, plane: Array, options: ReconstructOptions, report: Progress) -> ObjectMeshes:
    meshes, info = dict[str, TriangleMesh](), dict[str, Any]()
    for i, (name, pairs) in enumerate(seen.items()):
        report(i / len(seen), name)
        part: Progress = lambda s, words, i=i: report((i + s) / len(seen), words)  # noqa: E731
        views, masks = [view for view, _ in pairs], [mask for _, mask in pairs]
        shape = ShapeOptions(options.shape, options.height)
        found = object_shape(name, masks, plane, shape, views, part)
        meshes[name], box = found.mesh, np.ptp(found.mesh.vertices, axis=0).tolist()
        info[name] = {**found.info, "volume_m3": found.mesh.volume, "box_m": box}
    return ObjectMeshes(meshes, {"objects": info})


def _parts(shapes: ObjectMeshes, plane: Array, seed: int, report: Progress) -> ObjectParts:
    parts, info = dict[str, tuple[TriangleMesh, ...]](), dict[str, Any]()
    for i, (name, mesh) in enumerate(shapes.meshes.items()):
        report(i / len(shapes.meshes), name)
        found = convex_parts(mesh, seed=seed)
        parts[name] = with_flat_base(found.meshes, plane)
        info[name] = {"parts": len(found.meshes), "volume_ratio": found.volume_ratio, "concavity_m": found.concavity_m}
    return ObjectParts(parts, {"objects": info})


def _looks(
    shapes: ObjectMeshes, seen: Seen, taken: CapturedViews, options: ReconstructOptions, work: Path, report: Progress
) -> ObjectLooks:
    """Textures and Gaussians of the objects, and Gaussians of the background."""
    (work / FOLDER / "splats").mkdir(parents=True, exist_ok=True)
    share = 0.7 if options.background else 1.0
    textures, colours, info = dict[str, MeshTexture](), dict[str, Array](), dict[str, Any]()
    for i, (name, mesh) in enumerate(shapes.meshes.items()):
        part: Progress = lambda s, words, i=i: report(share * (i + s) / len(shapes.meshes), words)  # noqa: E731
        held = HELD_OUT_EVERY if len(seen[name]) >= 2 * HELD_OUT_EVERY else len(seen[name]) + 1
        kept = [pair for k, pair in enumerate(seen[name]) if (k + 1) % held]
        back = [pair for k, pair in enumerate(seen[name]) if not (k + 1) % held]
        views, masks = [view for view, _ in kept], [mask for _, mask in kept]
        textures[name], colours[name] = bake_texture(mesh, views, masks), median_colour(views, masks)
        gaussians = gaussians_on(mesh, views, masks, options.gaussians, options.seed)
        if options.steps:
            fit = GaussianFitOptions(
                steps=options.steps, max_count=2 * options.gaussians, degree=1 if len(kept) > 6 else 0,
                seed=options.seed, means_rate=2e-4, densify_every=60, densify_share=0.2,
            )  # fmt: skip
            gaussians = fit_object(gaussians, views, masks, fit, part)
        info[name] = {"gaussians": len(gaussians), "texture_seen": textures[name].seen}
        if back:
            info[name]["held_out"] = [view.name for view, _ in back]
            info[name]["psnr_db"] = object_psnr(gaussians, [v for v, _ in back], [m for _, m in back]).as_dict()
        body_from_world = np.eye(4)
        body_from_world[:3, 3] = -mesh.centroid
        save_gaussians(work / FOLDER / "splats" / f"{name}.ply", gaussians.moved(body_from_world).attached_to(name))
    behind = dict[str, Any]()
    if options.background:
        behind["background"] = _background(seen, taken, options, work, lambda s, words: report(share + 0.3 * s, words))
    return ObjectLooks(textures, colours, {"objects": info, **behind})


def _background(
    seen: Seen, taken: CapturedViews, options: ReconstructOptions, work: Path, report: Progress
) -> dict[str, Any]:
    """Fit and write the Gaussians of the static world; their number and PSNR."""
    begin = time.perf_counter()
    fit = GaussianFitOptions(
        steps=options.steps // 3, max_count=2 * options.background, degree=0, seed=options.seed, densify_every=30
    )
    world = fit_world(taken.views, seen, _table(taken), options.background, fit, report)
    save_gaussians(work / FOLDER / "splats" / f"{WORLD}.ply", world.gaussians)
    facts = {"gaussians": len(world.gaussians), "psnr_db": world.psnr.as_dict(), "held_out": world.held_out}
    return {**facts, "seconds": round(time.perf_counter() - begin, 2)}


def _written(
    objects: Sequence[BuiltObject], taken: CapturedViews, cameras: Sequence[Camera], work: Path, robot: Scene | None
) -> WrittenScene:
    (low, high), plane = taken.bounds, taken.plane
    middle = (low + high) / 2
    centre = np.append(middle, -(plane[3] + plane[:2] @ middle) / plane[2])
    half = (float(high[0] - low[0]) / 2, float(high[1] - low[1]) / 2)
    about = f"{', '.join(one.name for one in objects)} on a table, reconstructed from {len(cameras)} views."
    write_scene(work, objects, BuiltTable(plane, centre, half), cameras, about, robot)
    Calibration({camera.name: camera for camera in cameras}, about="of instep reconstruct").save(work / "cameras.json")
    shutil.copytree(work / FOLDER / "splats", work / "splats")
    return WrittenScene({"objects": {one.name: one.physics() for one in objects}})


def _record(
    prompts: Sequence[ObjectPrompt], options: ReconstructOptions, store: StageStore, objects: Sequence[BuiltObject]
) -> dict[str, Any]:
    plain = {
        "time": options.time, "align": options.align, "shape": options.shape, "height": options.height,
        "gaussians": options.gaussians, "background": options.background,
        "steps": options.steps, "seed": options.seed, "redo": options.redo,
        "robot": None if options.robot is None else options.robot.name,
    }  # fmt: skip
    return {
        "version": __version__,
        "prompts": prompt_words(prompts),
        "options": plain,
        "stages": store.done,
        "objects": {one.name: {"volume_m3": one.mesh.volume, **one.physics()} for one in objects},
    }
