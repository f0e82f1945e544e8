"""The page of a build: what was built, the masks, views against renders, and what every stage decided."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from instep.report.page import Headline, HtmlReport, Number, ReportImage, Section, Table

if TYPE_CHECKING:
    from instep.build.physical_values import PhysicalValue
    from instep.build.pipeline import BuiltScene

_IMAGES = 6
"""Most images of one kind."""
_SHAPE = ("object", "shape", "box [mm]", "volume [cm³]", "convex parts", "worst overlap")
_PHYSICS = ("object", "mass [kg]", "mass from", "friction")


def build_page(built: BuiltScene, name: str) -> HtmlReport:
    """The page of a scene that was built, from its folder, which may not be in its place yet, and its record."""
    stages = built.record["stages"]
    seconds = sum(float(stage.get("seconds", 0.0)) for stage in stages.values())
    names = [one.name for one in built.objects]
    worst = min(min(shape["overlap"].values()) for shape in stages["shape"]["objects"].values())
    background = stages["appearance"].get("background")
    numbers = [
        Number("objects", str(len(names)), ", ".join(names)),
        Number("views", str(len(stages["capture"]["views"]))),
        Number("worst overlap", f"{worst:.3f}", "of a silhouette and its mask"),
        Number("time", f"{seconds:.0f} s"),
    ]
    if background is not None:
        held = "views kept back" if background["held_out"] else "the views that it was fitted to"
        numbers.append(Number("background", f"{background['psnr_db']['value']:.1f} dB", f"PSNR over {held}"))
    return HtmlReport(
        f"Build of {name}", ", ".join(names),
        Headline("plain", f"{len(names)} object{'s' * (len(names) != 1)} built", "instep build check judges them"),
        numbers,
        [
            Section("Objects", blocks=[Table(_SHAPE, _shape_rows(built)), Table(_PHYSICS, _physics_rows(built))]),
            Section("Masks", "Green is the object; blue is unknown, as something may hide it there.", _masks(built)),
            Section("Views against renders", "Image, Gaussians, and four times the difference.", _comparison(built)),
            Section("Decisions", blocks=[Table(("stage", "what", "found"), _decisions(stages))], folded=True),
        ],
        {"version": str(built.record["version"]), "seed": str(built.record["options"]["seed"])},
    )  # fmt: skip


def _shape_rows(built: BuiltScene) -> list[tuple[str, ...]]:
    shapes, parts = built.record["stages"]["shape"]["objects"], built.record["stages"]["parts"]["objects"]
    rows: list[tuple[str, ...]] = []
    for one in built.objects:
        shape = shapes[one.name]
        rows.append((
            one.name, f"{shape['method']}{', a container' if shape.get('container') else ''}",
            " x ".join(f"{1e3 * side:.0f}" for side in shape["box_m"]), f"{1e6 * one.mesh.volume:.1f}",
            str(parts[one.name]["parts"]), f"{min(shape['overlap'].values()):.3f}",
        ))  # fmt: skip
    return rows


def _physics_rows(built: BuiltScene) -> list[tuple[str, ...]]:
    return [(one.name, _interval(one.mass), one.mass.source, _interval(one.friction)) for one in built.objects]


def _interval(known: PhysicalValue) -> str:
    return f"{known.value:.3g} [{known.low:.3g}, {known.high:.3g}]"


def _masks(built: BuiltScene) -> list[list[ReportImage]]:
    from instep.build.stage_store import FOLDER

    rows: list[list[ReportImage]] = []
    for one in built.objects:
        files = sorted((built.folder / FOLDER / "masks" / one.name).glob("*.png"))
        some = files[:: max(1, -(-len(files) // _IMAGES))]
        rows.append([ReportImage(file.read_bytes(), f"{one.name} in {file.stem}") for file in some])
    return [row for row in rows if row]


def _comparison(built: BuiltScene) -> list[Any]:
    from instep.build.stage_store import FOLDER
    from instep.data.files import read_npz
    from instep.data.frames import encode_png
    from instep.scene.folder import Scene
    from instep.splat.gaussians_from_geoms import scene_gaussians, scene_poses
    from instep.splat.rendering import render, side_by_side

    scene = Scene.load(built.folder)
    images = read_npz(built.folder / FOLDER / "capture.npz")
    shown = [one for one in scene.cameras.values() if one.in_world and f"image:{one.name}" in images]
    shown = shown[:: max(1, -(-len(shown) // _IMAGES))]
    if not shown:
        return ["No camera of the build stands fixed in the world."]
    found = scene_gaussians(scene, built.folder / "splats")
    poses = scene_poses(scene, found.names, scene.start(0)[0])
    rendered = render(found, shown, poses=poses).images
    return [
        ReportImage(encode_png(side_by_side([(images[f"image:{camera.name}"], image)])), camera.name)
        for camera, image in zip(shown, rendered, strict=True)
    ]


def _decisions(stages: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    rows: list[tuple[str, str, str]] = []
    for stage, facts in stages.items():
        rows += [(stage, what, found) for what, found in _flat(facts) if found]
    return rows


def _flat(value: Any, path: str = "") -> list[tuple[str, str]]:
    """Plain values of a nested table with their paths; long lists and deep tables as one text."""
    if isinstance(value, Mapping) and path.count(".") < 3:
        found: list[tuple[str, str]] = []
        for key, part in value.items():  # pyright: ignore[reportUnknownVariableType]
            found += _flat(part, f"{path}.{key}" if path else str(key))  # pyright: ignore[reportUnknownArgumentType]
        return found
    return [(path, _text(value))]


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(_text(one) for one in value)  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(one)}" for key, one in value.items())  # pyright: ignore[reportUnknownVariableType]
    return str(value)
