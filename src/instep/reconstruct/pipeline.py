"""From posed images to a scene that simulates: capture, segment, cameras, shape, parts, appearance, scene.

Each stage keeps its output below `stages/`, and `build.json` holds where everything came from and what was decided.

The stage of a build that segments: masks of all objects that prompts name, in all views that show them.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from instep import __version__
from instep.core.errors import BadInput, UnknownName
from instep.core.world import Array, array_dataclass, options_dataclass
from instep.scene.camera import Camera
from instep.scene.camera_files import Calibration
from instep.scene.folder import Scene
from instep.splat.capture import Capture
from instep.splat.fitting import GaussianFitOptions, focus_point
from instep.splat.image import WeightedImage, to_bytes
from instep.splat.io import save_gaussians
from instep.splat.plane_alignment import Plane, align_on_plane
from instep.splat.rendering import save_png

from .appearance.gaussian_fits import WORLD, fit_object, fit_world, gaussians_on, median_colour, object_psnr
from .appearance.mesh_texture import MeshTexture, bake_texture
from .capture.posed_views import PosedView, check_views, seen_on_table, table_of, views_of
from .capture.robot_views import has_robot, robot_views, scene_cameras
from .masks.box_masks import masks_by_boxes, propagated
from .masks.object_mask import ObjectMask
from .masks.prompted_masks import background_without, prompted_masks
from .masks.prompts import ObjectPrompt, check_cameras, open_segmenter, prompt_words
from .masks.table_masks import split_objects
from .scene_writing import BuiltObject, BuiltTable, friction_of, mass_of, physical_words, write_scene
from .shape.convex_parts import convex_parts, with_flat_base
from .shape.generated_shape import GeneratedOptions, ShapeGenerator, generated_shape
from .shape.object_shape import ShapeKind, check_single, is_hull, object_shape
from .shape.outline_fit import Refinement, SeenObject, refine_cameras, seen_object
from .shape.outlines import coarse_extrusion, outline_of
from .shape.triangle_mesh import TriangleMesh
from .stages import FOLDER, PartReport, Stage, StageOutput, StageReport, StageStore

BUILD_FILE = "build.json"
MaskedViews = Sequence[tuple[PosedView, ObjectMask]]
"""The views that show an object, with its masks."""
_HELD_OUT_EVERY = 6
"""One view in so many is kept back to score the appearance on, where there are enough."""


@options_dataclass
class BuildOptions:
    """Options of a build."""

    time: float | None = None
    """Time [s] of the frames of videos; the first that all cameras have where None."""
    table: Array | None = None
    """The table as nx, ny, nz, d with n . x + d = 0; that of the capture where None."""
    align: bool = True
    """Whether cameras that disagree about the table or about silhouettes are moved until they agree."""
    shape: ShapeKind = "auto"
    height: float | None = None
    """Height of the objects [m] where it is known; only of an extruded outline."""
    generator: ShapeGenerator | None = None
    """A program or server whose shapes are taken where they fit the masks about as well as silhouettes alone give."""
    weighed: Mapping[str, float] = field(default_factory=dict[str, float])
    """Masses by object [kg]."""
    materials: Mapping[str, str] = field(default_factory=dict[str, str])
    friction: Mapping[str, float] = field(default_factory=dict[str, float])
    gaussians: int = 6000
    """Gaussians of each object."""
    background: int = 4000
    """Gaussians of the static world behind the objects; 0 for none."""
    steps: int = 600
    """Steps that those of each object are fitted for, the background for a third; 0 leaves them as they start."""
    seed: int = 0
    robot: Scene | None = None
    """A scene whose robot is put beside the objects; its world frame is that of the camera poses."""
    weights: Path | None = None
    """Folder with a network that takes clicks and boxes (`instep build weights`); a graph cut where None."""
    redo: Stage = "capture"
    """The first stage that is computed; those before are read from the folder."""
    finish: Callable[[BuiltScene], object] | None = None
    """Called with the scene before its folder is put in its place, to add to it; where it fails nothing is written."""


@array_dataclass
class BuiltScene:
    """A built scene folder and what was found."""

    folder: Path
    objects: tuple[BuiltObject, ...]
    record: Mapping[str, Any]
    """The content of build.json."""


def build_scene(
    capture: Capture,
    prompts: Sequence[ObjectPrompt],
    out: Path,
    options: BuildOptions | None = None,
    report: StageReport | None = None,
) -> BuiltScene:
    """Build a scene folder from posed images; it is written whole or not at all."""
    options = BuildOptions() if options is None else options
    _check(prompts, options)
    check_cameras(prompts, [recording.camera.name for recording in capture.recordings])
    work = out.with_name(out.name + ".part")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        if options.redo != "capture":
            if not (out / FOLDER).is_dir():
                raise BadInput(f"{str(out)!r} holds no stages of a build to go on from; build it without --redo first.")
            shutil.copytree(out / FOLDER, work / FOLDER)
        store = StageStore(work / FOLDER, options.redo, report or _unreported)
        found = _build(capture, prompts, options, store, work)
        record = _record(prompts, options, store, found)
        (work / BUILD_FILE).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        if options.finish is not None:
            options.finish(BuiltScene(work, found, record))
        shutil.rmtree(out, ignore_errors=True)
        work.rename(out)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return BuiltScene(out, found, record)


def _unreported(stage: str, share: float, words: str) -> None:
    pass


def _check(prompts: Sequence[ObjectPrompt], options: BuildOptions) -> None:
    names = [prompt.name for prompt in prompts]
    if not names:
        raise BadInput("Nothing says what to build; give at least one --prompt, such as tee=click:CAMERA:X,Y.")
    tables = [prompt.name for prompt in prompts if prompt.table]
    if len(tables) > 1:
        raise BadInput(f"{tables[0]!r} and {tables[1]!r} are both everything on the table; give one of them.")
    for name in (name for given in _given(options) for name in given):
        if name not in names and not any(re.fullmatch(rf"{re.escape(one)}_[1-9]\d*", name) for one in tables):
            raise UnknownName("object of the prompts", name, names)


def _given(options: BuildOptions) -> tuple[Mapping[str, Any], ...]:
    return options.weighed, options.materials, options.friction


def _check_found(segmented: StageOutput, taken: StageOutput, options: BuildOptions) -> None:
    """Refuse values of objects that were not found on the table, and objects that too few views show."""
    names, views = list(segmented.info["objects"]), len(taken.info["views"])
    for name, masks in segmented.info["objects"].items():
        if len(masks) < 2:
            what = f"{name!r} ({len(masks)} of {views} images show it)"
            check_single(what, len(masks), height=options.height, generated=options.generator is not None)
    for name in (name for given in _given(options) for name in given):
        if name not in names:
            raise UnknownName("object that was found", name, names)


def _build(
    capture: Capture, prompts: Sequence[ObjectPrompt], options: BuildOptions, store: StageStore, work: Path
) -> tuple[BuiltObject, ...]:
    taken = store.run("capture", lambda report: _capture(capture, options, report))
    views, plane = _views(taken), taken.arrays["plane"]
    segmented = store.run(
        "segment", lambda report: segment_objects(views, prompts, plane, work, options.weights, report)
    )
    _check_found(segmented, taken, options)
    found = store.run("cameras", lambda report: _cameras(views, segmented, taken, options, report))
    cameras = [
        replace(view.camera, body_from_camera=pose, focal=(float(fx), float(fy)))
        for view, pose, (fx, fy) in zip(views, found.arrays["poses"], found.arrays["focal"], strict=True)
    ]
    views = [replace(view, camera=camera) for view, camera in zip(views, cameras, strict=True)]
    seen = {name: _masks(views, segmented, name) for name in segmented.info["objects"]}
    shapes = store.run("shape", lambda report: _shapes(seen, plane, options, work, report))
    meshes = {name: _mesh(shapes.arrays, name) for name in seen}
    parts = store.run("parts", lambda report: _parts(meshes, plane, options, report))
    behind = Plane(plane, *(_pair(row) for row in taken.arrays["bounds"]))
    looks = store.run("appearance", lambda report: _looks(meshes, seen, views, behind, options, work, report))
    objects = [_object(name, meshes[name], parts, looks, options) for name in seen]
    lenses = scene_cameras(cameras, taken.info.get("robot"))
    store.run("scene", lambda _: _scene(objects, BuiltViews(plane, taken.arrays["bounds"], lenses), work, options))
    return tuple(objects)


def _capture(capture: Capture, options: BuildOptions, report: PartReport) -> StageOutput:
    aligned: dict[str, Any] = {}
    if has_robot(capture) and options.robot is not None:
        views, aligned["robot"] = robot_views(capture, options.robot, options.align, report)
    else:
        views = views_of(capture, options.time)
    plane = table_of(capture, options.table)
    check_views(views, plane)
    if len(views) == 1:
        check_single("the table", 1, height=options.height, generated=options.generator is not None)
    arrays: dict[str, Array] = {"plane": plane, "bounds": _bounds(capture, views, plane)}
    for view in views:
        arrays[f"image:{view.name}"] = to_bytes(view.image)
        arrays[f"pose:{view.name}"] = view.camera.body_from_camera
        arrays[f"lens:{view.name}"] = np.array([*view.camera.focal, *view.camera.centre, *view.camera.distortion])
        for kind, value in (("frames", view.frames), ("hidden", view.hidden)):
            if value is not None:
                arrays[f"{kind}:{view.name}"] = value
    source = "given" if options.table is not None else "ground_plane.json"
    names = [view.name for view in views]
    return StageOutput(arrays, {"views": names, "table": list(map(float, plane)), "from": source, **aligned})


def _bounds(capture: Capture, views: Sequence[PosedView], plane: Array) -> Array:
    """Smallest and largest x and y of the table [2, 2] [m]: as captured, else around what the cameras look at."""
    if capture.plane is not None:
        return np.array([capture.plane.low, capture.plane.high])
    focus = focus_point([view.camera for view in views])
    middle = seen_on_table(views[0].camera, plane) if focus is None else focus
    return np.array([middle[:2] - 0.5, middle[:2] + 0.5])


def _views(taken: StageOutput) -> list[PosedView]:
    out: list[PosedView] = []
    for name in taken.info["views"]:
        image, lens = taken.arrays[f"image:{name}"], taken.arrays[f"lens:{name}"].tolist()
        (fx, fy, cx, cy), distortion = lens[:4], tuple(lens[4:])
        camera = Camera(
            name, image.shape[1], image.shape[0], (fx, fy), (cx, cy), "world", taken.arrays[f"pose:{name}"], distortion
        )
        frames, hidden = (taken.arrays.get(f"{kind}:{name}") for kind in ("frames", "hidden"))
        out.append(PosedView(camera, image.astype(np.float32) / 255, frames, hidden))
    return out


def _masks(views: Sequence[PosedView], segmented: StageOutput, name: str) -> MaskedViews:
    out: list[tuple[PosedView, ObjectMask]] = []
    for view in views:
        alpha = segmented.arrays.get(f"alpha:{name}:{view.name}")
        if alpha is not None:
            known = segmented.arrays[f"known:{name}:{view.name}"]
            out.append((view, ObjectMask(view.camera, alpha.astype(np.float32) / 255, known)))
    return out


def _cameras(
    views: Sequence[PosedView], segmented: StageOutput, taken: StageOutput, options: BuildOptions, report: PartReport
) -> StageOutput:
    """Cameras aligned on the table by what does not move in front of them, then refined on the silhouettes."""
    if not options.align:
        return _camera_output([view.camera for view in views], {"aligned": False, "because": "--no-align"})
    if "robot" in taken.info:
        because = "they were aligned to the robot when the images were read"
        return _camera_output([view.camera for view in views], {"aligned": False, "because": because})
    report(0.0, "alignment on the table")
    cameras, info = _aligned(views, segmented, taken)
    refined = _refined(cameras, views, segmented, taken.arrays["plane"], options, report)
    return _camera_output(refined.cameras, info | {"silhouettes": refined.info})


def _camera_output(cameras: Sequence[Camera], info: dict[str, Any]) -> StageOutput:
    poses, focal = [camera.body_from_camera for camera in cameras], [camera.focal for camera in cameras]
    return StageOutput({"poses": np.stack(poses), "focal": np.array(focal)}, info)


def _aligned(
    views: Sequence[PosedView], segmented: StageOutput, taken: StageOutput
) -> tuple[Sequence[Camera], dict[str, Any]]:
    """Fixed cameras aligned on the table; others as they are."""
    cameras = [view.camera for view in views]
    if len(views) < 2 or any(view.frames is None for view in views):
        return cameras, {"aligned": False, "because": "only fixed cameras with videos are aligned on the table"}
    images: list[WeightedImage] = []
    for view in views:
        names = [name for name in segmented.info["objects"] if f"alpha:{name}:{view.name}" in segmented.arrays]
        inside = [segmented.arrays[f"alpha:{name}:{view.name}"] > 127 for name in names]
        found = background_without(view, np.any(inside, axis=0)) if inside else None
        if found is None:
            return cameras, {"aligned": False, "because": f"{view.name} shows no object"}
        images.append(WeightedImage(view.camera, found.image, (found.share > 0.8).astype(np.float32)))
    (x0, y0), (x1, y1) = taken.arrays["bounds"].tolist()
    done = align_on_plane(images, Plane(taken.arrays["plane"], (x0, y0), (x1, y1)))
    moved = {v.name: float(np.linalg.norm(s)) for v, s in zip(views, done.shifts, strict=True)}
    turned = {v.name: float(np.degrees(np.linalg.norm(t))) for v, t in zip(views, done.turns, strict=True)}
    info = {"aligned": True, "shift_m": moved, "turn_deg": turned, "correlation": [done.before, done.after]}
    return done.cameras, info


def _refined(
    cameras: Sequence[Camera],
    views: Sequence[PosedView],
    segmented: StageOutput,
    plane: Array,
    options: BuildOptions,
    report: PartReport,
) -> Refinement:
    """Cameras refined on the silhouettes of all objects, with how far each was moved."""
    placed = [replace(view, camera=camera) for view, camera in zip(views, cameras, strict=True)]
    place, objects = {view.name: i for i, view in enumerate(views)}, list[SeenObject]()
    for name in segmented.info["objects"]:
        masks = [mask for _, mask in _masks(placed, segmented, name)]
        if len(masks) < 2:
            return _unrefined(cameras, f"one view of {name} agrees with any camera")
        if is_hull(masks, options.shape, options.height):
            return _unrefined(cameras, f"cameras are refined on upright outlines, and {name} is a visual hull")
        try:
            outline = outline_of(coarse_extrusion(masks, plane, height=options.height))
        except BadInput:
            if options.generator is None:
                raise
            return _unrefined(cameras, f"cameras are refined on upright outlines, and {name} has none")
        objects.append(seen_object(masks, [place[mask.camera.name] for mask in masks], plane, outline))
    done = refine_cameras(cameras, objects, report)
    if not done.info["refined"]:
        return done
    moved = {
        camera.name: {
            "shift_m": float(np.linalg.norm(motion[:3])),
            "turn_deg": float(np.degrees(np.linalg.norm(motion[3:6]))),
            "focal": float(np.exp(motion[6])),
        }
        for camera, motion in zip(cameras, done.motions, strict=True)
    }
    return replace(done, info={**done.info, "moved": moved})


def _unrefined(cameras: Sequence[Camera], because: str) -> Refinement:
    return Refinement(tuple(cameras), np.zeros((len(cameras), 7)), {"refined": False, "because": because})


def _shapes(
    seen: Mapping[str, MaskedViews], plane: Array, options: BuildOptions, work: Path, report: PartReport
) -> StageOutput:
    arrays: dict[str, Array] = {}
    info: dict[str, Any] = {}
    for i, (name, pairs) in enumerate(seen.items()):
        report(i / len(seen), name)
        masks = [mask for _, mask in pairs]
        part: PartReport = lambda s, words, i=i: report((i + s) / len(seen), words)  # noqa: E731
        images = [view for view, _ in pairs]
        by_silhouettes = partial(object_shape, name, masks, plane, options.shape, options.height, images, part)
        if options.generator is None:
            found = by_silhouettes()
        else:
            how = GeneratedOptions(options.generator, by_silhouettes, work / FOLDER / "generated", options.seed)
            found = generated_shape(name, pairs, plane, how, part)
        arrays |= {f"vertices:{name}": found.mesh.vertices, f"faces:{name}": found.mesh.faces}
        box = np.ptp(found.mesh.vertices, axis=0).tolist()
        info[name] = {**found.info, "volume_m3": found.mesh.volume, "box_m": box}
    return StageOutput(arrays, {"objects": info})


def _mesh(arrays: Mapping[str, Array], name: str) -> TriangleMesh:
    return TriangleMesh(arrays[f"vertices:{name}"], arrays[f"faces:{name}"])


def _parts(meshes: Mapping[str, TriangleMesh], plane: Array, options: BuildOptions, report: PartReport) -> StageOutput:
    arrays: dict[str, Array] = {}
    info: dict[str, Any] = {}
    for i, (name, mesh) in enumerate(meshes.items()):
        report(i / len(meshes), name)
        found = convex_parts(mesh, seed=options.seed)
        for k, part in enumerate(with_flat_base(found.meshes, plane)):
            arrays |= {f"vertices:{name}:{k}": part.vertices, f"faces:{name}:{k}": part.faces}
        info[name] = {"parts": len(found.meshes), "volume_ratio": found.volume_ratio, "concavity_m": found.concavity_m}
    return StageOutput(arrays, {"objects": info})


def _looks(
    meshes: Mapping[str, TriangleMesh], seen: Mapping[str, MaskedViews], views: Sequence[PosedView], table: Plane,
    options: BuildOptions, work: Path, report: PartReport,
) -> StageOutput:  # fmt: skip
    """Textures and Gaussians of the objects, and Gaussians of what is behind them."""
    share = 0.7 if options.background else 1.0
    found = _appearance(meshes, seen, options, work, lambda s, words: report(share * s, words))
    if not options.background:
        return found
    fit = GaussianFitOptions(
        steps=options.steps // 3, max_count=2 * options.background, degree=0, seed=options.seed, densify_every=30
    )
    begin = time.perf_counter()
    world = fit_world(
        views, seen, table, options.background, fit, _HELD_OUT_EVERY, lambda s, words: report(share + 0.3 * s, words)
    )
    save_gaussians(work / FOLDER / "splats" / f"{WORLD}.ply", world.gaussians)
    facts = {"gaussians": len(world.gaussians), "psnr_db": world.psnr.as_dict(), "held_out": world.held_out}
    seconds = round(time.perf_counter() - begin, 2)
    return StageOutput(found.arrays, {**found.info, "background": {**facts, "seconds": seconds}})


def _pair(row: Array) -> tuple[float, float]:
    return float(row[0]), float(row[1])


def _appearance(
    meshes: Mapping[str, TriangleMesh],
    seen: Mapping[str, MaskedViews],
    options: BuildOptions,
    work: Path,
    report: PartReport,
) -> StageOutput:
    arrays: dict[str, Array] = {}
    info: dict[str, Any] = {}
    (work / FOLDER / "splats").mkdir(parents=True, exist_ok=True)
    for i, (name, mesh) in enumerate(meshes.items()):
        held = _HELD_OUT_EVERY if len(seen[name]) >= 2 * _HELD_OUT_EVERY else len(seen[name]) + 1
        kept = [pair for k, pair in enumerate(seen[name]) if (k + 1) % held]
        back = [pair for k, pair in enumerate(seen[name]) if not (k + 1) % held]
        views, masks = [view for view, _ in kept], [mask for _, mask in kept]
        texture = bake_texture(mesh, views, masks)
        gaussians = gaussians_on(mesh, views, masks, options.gaussians, options.seed)
        if options.steps:
            fit = GaussianFitOptions(
                steps=options.steps, max_count=2 * options.gaussians, degree=1 if len(kept) > 6 else 0,
                seed=options.seed, means_rate=2e-4, densify_every=60, densify_share=0.2,
            )  # fmt: skip
            gaussians = fit_object(
                gaussians, views, masks, fit, lambda s, words, i=i: report((i + s) / len(meshes), words)
            )
        colour = median_colour(views, masks)
        arrays |= {f"image:{name}": texture.image, f"texels:{name}": texture.texels, f"colour:{name}": colour}
        info[name] = {"gaussians": len(gaussians), "texture_seen": texture.seen}
        if back:
            info[name]["held_out"] = [view.name for view, _ in back]
            info[name]["psnr_db"] = object_psnr(gaussians, [v for v, _ in back], [m for _, m in back]).as_dict()
        body_from_world = np.eye(4)
        body_from_world[:3, 3] = -mesh.centroid
        save_gaussians(work / FOLDER / "splats" / f"{name}.ply", gaussians.moved(body_from_world).attached_to(name))
    return StageOutput(arrays, {"objects": info})


def _object(
    name: str, mesh: TriangleMesh, parts: StageOutput, looks: StageOutput, options: BuildOptions
) -> BuiltObject:
    texture = MeshTexture(
        looks.arrays[f"image:{name}"], looks.arrays[f"texels:{name}"], looks.info["objects"][name]["texture_seen"]
    )
    found = tuple(_mesh(parts.arrays, f"{name}:{k}") for k in range(parts.info["objects"][name]["parts"]))
    mass = mass_of(mesh.volume, options.weighed.get(name), options.materials.get(name, "unknown"))
    friction = friction_of(options.friction.get(name))
    return BuiltObject(name, mesh, found, texture, looks.arrays[f"colour:{name}"], mass, friction)


@array_dataclass
class BuiltViews:
    """The table and the cameras of a build."""

    plane: Array
    bounds: Array
    """Smallest and largest x and y of the table [2, 2] [m]."""
    cameras: Sequence[Camera]


def _scene(objects: Sequence[BuiltObject], views: BuiltViews, work: Path, options: BuildOptions) -> StageOutput:
    (low, high), plane, cameras = views.bounds, views.plane, views.cameras
    middle = (low + high) / 2
    centre = np.append(middle, -(plane[3] + plane[:2] @ middle) / plane[2])
    half = (float(high[0] - low[0]) / 2, float(high[1] - low[1]) / 2)
    about = f"{', '.join(built.name for built in objects)} on a table, built from {len(cameras)} views."
    write_scene(work, objects, BuiltTable(plane, centre, half), cameras, about, options.robot)
    Calibration({camera.name: camera for camera in cameras}, about="of instep build").save(work / "cameras.json")
    shutil.copytree(work / FOLDER / "splats", work / "splats")
    return StageOutput({}, {"objects": {built.name: physical_words(built) for built in objects}})


def _record(
    prompts: Sequence[ObjectPrompt], options: BuildOptions, store: StageStore, objects: Sequence[BuiltObject]
) -> dict[str, Any]:
    plain = {
        "time": options.time, "align": options.align, "shape": options.shape, "height": options.height,
        "generator": None if options.generator is None else options.generator.words,
        "gaussians": options.gaussians, "background": options.background,
        "steps": options.steps, "seed": options.seed, "redo": options.redo,
        "robot": None if options.robot is None else options.robot.name,
    }  # fmt: skip
    return {
        "version": __version__,
        "prompts": prompt_words(prompts),
        "options": plain,
        "stages": store.done,
        "objects": {built.name: {"volume_m3": built.mesh.volume, **physical_words(built)} for built in objects},
    }


def segment_objects(
    views: Sequence[PosedView], prompts: Sequence[ObjectPrompt], plane: Array, work: Path, weights: Path | None,
    report: PartReport,
) -> StageOutput:  # fmt: skip
    """The masks of all objects as arrays alpha:NAME:CAMERA and known:NAME:CAMERA, with images of them for people.

    `weights` is the folder of a network that takes clicks and boxes; a graph cut is used where it is None.
    """
    arrays, info, found = dict[str, Array](), dict[str, Any](), dict[str, Any]()
    segmenter = None if weights is None else open_segmenter(weights)
    boxed = segmenter is None and propagated(prompts, views)
    together = masks_by_boxes(views, prompts, plane, report) if boxed else None
    objects: dict[str, Sequence[ObjectMask]] = {}
    for i, prompt in enumerate(sorted(prompts, key=lambda one: one.table)):  # what is left on the table comes last
        if together is not None:
            masks, found[prompt.name] = together[prompt.name], {"by": "boxes, carried over to all views"}
        else:
            part: PartReport = lambda s, words, i=i: report((i + s) / len(prompts), words)  # noqa: E731
            chosen = prompted_masks(views, prompt, plane, segmenter, part)
            masks, found[prompt.name] = chosen.masks, dict(chosen.info)
        masks = [_beside_robot(mask, views) for mask in masks]
        if prompt.table:
            split = split_objects(prompt.name, views, masks, plane, objects)
            found[prompt.name] |= {"objects": split.info}
            new = split.masks
        else:
            new = {prompt.name: masks}
        for name in new:
            if name in objects:
                raise BadInput(f"{name!r} is an object of {prompt.name!r} and of another prompt; name one otherwise.")
        objects |= new
    for name, masks in objects.items():
        for mask in masks:
            arrays[f"alpha:{name}:{mask.camera.name}"] = (255 * mask.alpha + 0.5).astype(np.uint8)
            arrays[f"known:{name}:{mask.camera.name}"] = mask.known
        info[name] = {
            m.camera.name: {"pixels": int(m.inside.sum()), "unknown": float((~m.known).mean()), "cut": bool(m.cut)}
            for m in masks
        }
        _save_overlays(work / FOLDER / "masks" / name, views, masks)
    return StageOutput(arrays, {"objects": info, "found": found})


def _beside_robot(mask: ObjectMask, views: Sequence[PosedView]) -> ObjectMask:
    """The mask, unknown where the robot may be in front."""
    hidden = next(view.hidden for view in views if view.name == mask.camera.name)
    return mask if hidden is None else replace(mask, known=mask.known & ~hidden)


def _save_overlays(folder: Path, views: Sequence[PosedView], masks: Sequence[ObjectMask]) -> None:
    """Write the views that show an object, one PNG each: the object green, what is unknown blue."""
    folder.mkdir(parents=True, exist_ok=True)
    images = {view.name: view.image for view in views}
    for mask in masks:
        image = 0.6 * images[mask.camera.name]
        image[..., 1] += 0.4 * mask.alpha
        image[..., 2] += 0.4 * ~mask.known
        save_png(folder / f"{mask.camera.name}.png", to_bytes(image))
