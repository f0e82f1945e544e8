"""Scenes from images: the T of a real recording by one click per view, scanned objects from rendered views with and
without poses, and tables with four scans and a robot.

The scans are rendered by MuJoCo on a table, with masks by `NAME=table`. Masks by clicks are measured on real frames,
with SAM 2 if its weights are installed. On the tables with a robot, masks come from boxes in the static views, with
cameras 10 mm and 1 degree off. The shape stage was developed on the five scans; tables, photographs and clicks are held
out.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.ndimage import binary_dilation, binary_erosion, binary_opening, distance_transform_edt, label
from scipy.spatial import ConvexHull

import reconstruct_table
from harness import ROOT, Case, KeptCases, Row, Task, median, row, with_progress
from instep.core.world import Array
from instep.data import load_episodes
from instep.reconstruct.capture.posed_views import PosedView, views_of
from instep.reconstruct.checks import check_scene, worst_state
from instep.reconstruct.masks.prompted_masks import mask_by_prompt
from instep.reconstruct.masks.prompts import (
    FILES,
    ImageMarks,
    ObjectPrompt,
    PromptNetwork,
    default_weights_folder,
    open_segmenter,
    parse_prompts,
)
from instep.reconstruct.pipeline import ReconstructedScene, ReconstructOptions, reconstruct_scene
from instep.reconstruct.shape.triangle_mesh import TriangleMesh
from instep.reconstruct.shape.visual_hull import depth_image
from instep.reconstruct.stages import SegmentedObjects, read_stage
from instep.scene.folder import Scene
from instep.splat.capture import load_capture
from instep.twin.tracking import track_recording
from reconstruct_photos import photo_rows, photo_sets
from reconstruct_scans import cameras_around, render_scan, scan_mesh, surface_distances, write_views

DATA = (ROOT / "recordings", ROOT.parent / "shared" / "data")
"""Folders with the recording `pusht` and the scans `scanned_objects`."""
VIEWS = {24: 1.0, 8: 2.0}
"""Numbers of views of scans, and factors of the goals of shape."""
QUICK = {"Dino_4": (8,), "Cole_Hardware_Deep_Bowl_Good_Earth_1075": (8,)}
"""Scans of a quick run, and numbers of views."""
CONTAINERS = ("ACE_Coffee_Mug_Kristen_16_oz_cup", "Cole_Hardware_Deep_Bowl_Good_Earth_1075")
TABLES = (1000, 1001, 1002)
"""Seeds of the tables with a robot; a quick run has the first."""
CLICKS = ("tee=click:220422302296:230,100", "tee=click:234222302164:200,105", "tee=click:234222303707:200,75")
SLICES = 800
"""Slices of a T for its widths."""


def run(out: Path, quick: bool = False) -> list[Row]:
    """Reconstruct each scene, compare it with the truth, and return one row per number."""
    tasks: dict[str, Task] = {}
    pusht, scans = (
        next((place / name for place in DATA if (place / name).is_dir()), None) for name in ("pusht", "scanned_objects")
    )
    if pusht is None or scans is None:
        print("no recording of PushT, or no scans: their rows are not measured")
    if scans is not None:
        for seed in TABLES[:1] if quick else TABLES:
            tasks[f"table {seed}"] = (_case, (table_rows, scans, out / f"table_{seed}", seed))
        for scan in sorted(path for path in scans.iterdir() if path.is_dir()):
            for views in QUICK.get(scan.name, ()) if quick else VIEWS:
                tasks[f"{scan.name}, {views} views"] = (_case, (scan_rows, scan, out / f"{scan.name}_{views}", views))
        for chosen in photo_sets(quick):
            name = f"photographs_{'_'.join(map(str, chosen))}"
            tasks[name] = (_case, (photo_rows, scans, out / name, chosen, quick))
    if pusht is not None:
        tasks["T"] = (_case, (tee_rows, pusht, out / "tee"))
        tasks["masks"] = (_case, (mask_rows, pusht, quick))
    cases = KeptCases(out).measured_in_processes("cases", tasks)
    return [row for case in cases for row in case["rows"]]


def _found(name: str) -> Path | None:
    return next((place / name for place in DATA if (place / name).is_dir()), None)


def _case(measure: object, *arguments: object) -> Case:
    assert callable(measure)
    return {"rows": measure(*arguments)}


def tee_rows(folder: Path, out: Path) -> list[Row]:
    """The T: 200 x 200 mm, bars 50 mm wide, 40 mm high, 700 cm^3; and the twin of its scene at its defaults."""
    begin = time.perf_counter()
    built = reconstruct_scene(load_capture(folder), parse_prompts(CLICKS), out, ReconstructOptions(steps=0))
    seconds = time.perf_counter() - begin
    mesh, shape = built.objects[0].mesh, built.record["stages"]["shape"]["objects"]["tee"]
    sides, widths = tee_sizes(mesh)
    tracked = track_recording(Scene.load(built.folder), load_episodes(folder)[0])
    found, keys = tracked.overlaps(), tracked.cameras.key_rows
    # Least median overlaps of silhouettes of the twin of the T, camera by camera.
    return [
        row("T: largest error of the box", 100 * np.abs(sides / 0.2 - 1).max(), "%", at_most=3.0),
        row("T: largest error of the widths", 100 * np.abs(widths / 0.05 - 1).max(), "%", at_most=6.0),
        row("T: error of the height", 1e3 * abs(shape["height_m"] - 0.04), "mm", at_most=3.0),
        row("T: error of the volume", 100 * abs(mesh.volume / 700e-6 - 1), "%", at_most=8.0),
        row("T: least overlap of silhouettes", min(shape["overlap"].values())),
        _simulated("T", built),
        row("T: time of the build", seconds, "s"),
        *(
            row(f"T: overlap of the twin of the built scene, {name}", found.score(name, keys), at_least=goal)
            for name, goal in zip(found.cameras, (0.92, 0.92, 0.88), strict=True)
        ),
    ]


def tee_sizes(mesh: TriangleMesh) -> tuple[Array, Array]:
    """Sides of the smallest box around a T, and the widths of its bar and stem [m]; exact to 0.3 mm."""
    points, _ = mesh.sampled(400_000, np.random.default_rng(0))
    points = np.concatenate([points, mesh.vertices])
    hull = points[ConvexHull(points[:, :2]).vertices, :2]
    turns = [np.array([[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]]) for a in np.radians(np.arange(0, 90, 0.05))]
    best = points[:, :2] @ min(turns, key=lambda turn: float(np.ptp(hull @ turn, axis=0).prod()))
    extents: list[Array] = []
    for axis in (0, 1):
        edges = np.asarray(np.linspace(best[:, axis].min(), best[:, axis].max(), SLICES + 1), float)
        bins = np.digitize(best[:, axis], edges[1:-1])
        order = np.argsort(bins, kind="stable")
        across = np.split(best[order, 1 - axis], np.searchsorted(bins[order], np.arange(1, SLICES)))
        extents.append(np.array([np.ptp(some) if len(some) > 3 else 0.0 for some in across]))
    sides = np.ptp(best, axis=0)
    # Along the stem, extents are those of the bar or of the stem; across it they are all in between.
    axis = int(np.argmax([np.std(e) for e in extents]))
    wide = extents[axis] > 0.6 * extents[axis].max()
    return sides, np.array([float(wide.mean() * sides[axis]), float(np.median(extents[axis][~wide]))])


def scan_rows(scan: Path, out: Path, views: int) -> list[Row]:
    """A scan from some views; with fewer than 12 none is held out for a PSNR."""
    truth, name, wider = scan_mesh(scan), f"{scan.name.split('_')[0]}, {views} views", VIEWS[views]
    cameras = cameras_around(truth, views)
    images = write_views(out / "views", cameras, render_scan(scan, cameras, out / "model"))
    begin = time.perf_counter()
    built = reconstruct_scene(load_capture(images), parse_prompts(["scan=table"]), out / "scene")
    seconds, mesh, stages = time.perf_counter() - begin, built.objects[0].mesh, built.record["stages"]
    volume, container = 100 * abs(mesh.volume / truth.volume - 1), scan.name in CONTAINERS
    flagged = bool(stages["shape"]["objects"]["scan"]["container"])
    look = stages["appearance"]["objects"]["scan"].get("psnr_db")
    wrong = f"{name}: a container whose volume is more than 30 % off and that is not flagged"
    return [
        row(f"{name}: Chamfer distance of the diagonal", _chamfer(mesh, truth), "%", at_most=0.6 * wider),
        row(f"{name}: error of the volume", volume, "%", at_most=None if container else 10.0 * wider),
        *([row(wrong, volume > 30.0 and not flagged, "", at_most=0)] if container else []),
        row(f"{name}: flagged as a container, and is none or the reverse", flagged != container),
        row(f"{name}: least overlap of the masks with the truth", _mask_overlap(built, truth)),
        *([] if look is None else [row(f"{name}: PSNR of held-out views", look["value"], "dB", at_least=30.0)]),
        row(f"{name}: parts over mesh", stages["parts"]["objects"]["scan"]["volume_ratio"], "", at_most=1.25),
        _simulated(name, built),
        row(f"{name}: time of the build", seconds, "s", at_most=300.0),
    ]


def _chamfer(mesh: TriangleMesh, truth: TriangleMesh) -> float:
    return 100 * float(np.mean(surface_distances(mesh, truth))) / truth.diagonal


def table_rows(scans: Path, out: Path, seed: int) -> list[Row]:
    """A table with four scans and a robot: the worst camera, the worst object, and motion in 10 s."""
    name, capture = f"table {seed}", reconstruct_table.render_table(scans, out, seed)
    prompts = parse_prompts(reconstruct_table.box_prompts(capture, seed))
    begin = time.perf_counter()
    options = ReconstructOptions(robot=Scene.load(capture.robot), steps=0)
    built = reconstruct_scene(load_capture(capture.images), prompts, out / "scene", options)
    seconds, scene = time.perf_counter() - begin, Scene.load(built.folder)
    cameras = [reconstruct_table.camera_offset(scene.cameras[key], camera) for key, camera in capture.cameras.items()]
    poses = [reconstruct_table.pose_offset(one.mesh, capture.scans[one.name]) for one in built.objects]
    moved = reconstruct_table.largest_motion(scene, 10.0)
    return [
        row(f"{name}: largest error of a camera's position", 1e3 * max(s for s, _ in cameras), "mm", at_most=3.0),
        row(f"{name}: largest error of a camera's orientation", max(t for _, t in cameras), "deg", at_most=0.3),
        row(f"{name}: largest error of an object's position", 1e3 * max(s for s, _ in poses), "mm", at_most=3.0),
        row(f"{name}: largest error of an object's orientation", max(t for _, t in poses), "deg", at_most=2.0),
        row(f"{name}: largest motion of an object in 10 s", 1e3 * max(moved.values()), "mm", at_most=2.0),
        row(f"{name}: time of the build", seconds, "s"),
    ]


def _mask_overlap(built: ReconstructedScene, truth: TriangleMesh) -> float:
    """Least overlap of the masks of a scan with the truth."""
    kept = read_stage(built.folder / "stages", "segment", SegmentedObjects)
    overlaps: list[float] = []
    for mask in kept.masks["scan"]:
        found, true = mask.alpha > 0.5, depth_image(truth, mask.camera).mask
        overlaps.append(float((found & true).sum() / (found | true).sum()))
    return min(overlaps)


def _simulated(name: str, built: ReconstructedScene) -> Row:
    """The checks of penetration and rest in two engines."""
    findings = [f for f in check_scene(Scene.load(built.folder)) if f.check == "penetration" or "rest" in f.check]
    bad: Sequence[str] = [f"{f.check}: {f.state}, {f.value}" for f in findings if worst_state([f]) != "green"]
    print(f"{name}: {'; '.join(bad) or 'all checks are green'}")
    return row(f"{name}: checks of contacts and rest that are not green", len(bad), "", at_most=0)


TIMES = np.linspace(0.05, 9.2, 14)[1::2]
"""Moments of the recording [s]."""
HUE_DEG, HUE_RANGE_DEG = 10.0, 18.0
"""Hue of the block and its range [deg]."""
MIN_PIXELS = 30
"""Fewest pixels of a part of the block, and of the block in a view that counts."""


def mask_rows(folder: Path, quick: bool = False) -> list[Row]:
    """Overlaps of masks by one click per view with the hue masks of real frames."""
    weights = default_weights_folder()
    network = open_segmenter(weights) if all(file.state(weights) == "whole" for file in FILES) else None
    capture, times = load_capture(folder), TIMES[:2] if quick else TIMES
    cut, answered = list[float](), list[float]()
    for moment in with_progress("masks of real frames", len(times), times):
        for view in views_of(capture, float(moment)):
            truth = hue_mask(view.image)
            if truth.sum() >= MIN_PIXELS:
                cut.append(_overlap(view, truth, None))
                if network is not None:
                    answered.append(_overlap(view, truth, network))
    rows = _rows("masks by one click per view, without weights", cut, 0.85)
    return rows + (_rows("masks by one click per view, SAM 2", answered, None) if network is not None else [])


def hue_mask(image: Array) -> Array:
    """The pixels of the block [height, width]: of its hue, and at least half as colourful as it is, compared with what
    is around it, so that colours that the video spreads over its edge do not count."""
    high, low = image.max(axis=-1), image.min(axis=-1)
    span = np.maximum(high - low, 1e-6)
    red, green, blue = np.moveaxis(image, -1, 0)
    hue = np.where(high == red, (green - blue) / span, np.where(high == green, (blue - red) / span + 2, 4.0))
    alike = np.abs(60 * hue - HUE_DEG) < HUE_RANGE_DEG
    first = _parts(binary_opening(alike & (span > 0.55 * high) & (high > 0.35)))
    inner = binary_erosion(first, iterations=2)
    around = binary_dilation(first, iterations=6) & ~binary_dilation(first, iterations=3)
    if inner.sum() < 10:
        return first
    half = 0.5 * (np.median(span[inner]) + np.median(span[around]))
    return _parts(binary_opening(alike & (span > half)))


def _parts(mask: Array) -> Array:
    """The largest part of a mask, and others near it that are not tiny."""
    parts, count = label(mask, np.ones((3, 3)))
    if not count:
        return mask
    sizes = np.bincount(parts.ravel())
    sizes[0] = 0
    away = distance_transform_edt(parts != sizes.argmax())
    # Distance from the largest part within which others belong to the block [pixels].
    kept = [k for k in range(1, count + 1) if sizes[k] >= MIN_PIXELS and away[parts == k].min() < 60.0]
    return np.isin(parts, kept)


def _overlap(view: PosedView, truth: Array, network: PromptNetwork | None) -> float:
    """Overlap of the mask by a click on the pixel deepest inside the block."""
    y, x = np.unravel_index(int(distance_transform_edt(truth).argmax()), truth.shape)
    prompt = ObjectPrompt("tee", {view.name: ImageMarks(((float(x) + 0.5, float(y) + 0.5),))})
    mask = mask_by_prompt(view, prompt, network)
    found = np.zeros(truth.shape, bool) if mask is None else mask.alpha > 0.5
    return float((found & truth).sum() / max((found | truth).sum(), 1))


def _rows(name: str, overlaps: Sequence[float], goal: float | None) -> list[Row]:
    print(f"{name}: {', '.join(f'{value:.3f}' for value in overlaps)}")
    return [
        row(f"{name}: median overlap, {len(overlaps)} views", median(overlaps), at_least=goal),
        row(f"{name}: worst overlap", min(overlaps)),
    ]
