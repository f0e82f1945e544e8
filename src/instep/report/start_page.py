"""The page of the verb start: how the logs were read, the robot, the gap, the identification, and what comes next.

The page of a build: what was built, the masks, views against renders, and what every stage decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from instep.core.episode import Episode
from instep.scene.folder import Scene
from instep.scene.robot_structure import with_joint_labels

from .page import Headline, HtmlReport, Number, ReportImage, Section, Table

if TYPE_CHECKING:
    from instep.app.verbs.start import StartResult
    from instep.reconstruct.pipeline import ReconstructedScene
    from instep.reconstruct.scene_writing import PhysicalValue


SHOWN_S = 8.0
"""How much of the first run is plotted [s]."""
MAX_JOINTS = 16


def plot_first_seconds(episode: Episode, path: Path, scene: Scene) -> Path:
    """Plot positions and commands of the first seconds, one panel per joint."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    [labelled] = with_joint_labels(scene.model, [episode])
    rows = max(2, int(np.searchsorted(episode.t, SHOWN_S)))
    labels, commands = episode.spec.q.labels[:MAX_JOINTS], labelled.spec.action.labels
    across = 2 if len(labels) > 3 else 1
    down = -(-len(labels) // across)
    figure = Figure(figsize=(9.0, 1.35 * down + 0.7), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(down, across, sharex=True, squeeze=False)
    for k, label in enumerate(labels):
        axes = grid[k % down][k // down]
        t, unit = episode.t[:rows], episode.spec.q.units[k]
        if label in commands:
            command = labelled.action[:rows, commands.index(label)]
            axes.plot(t, command, color="#e07b39", lw=1.2, label="command")
        axes.plot(t, episode.q[:rows, k], color="#1f5fa8", lw=1.2, label="measured")
        axes.set_title(f"{label} [{unit}]", fontsize=8, loc="left")
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, lw=0.5)
    for axes in grid.T.ravel()[len(labels) :]:
        axes.set_axis_off()
    for column in range(across):
        grid[-1][column].set_xlabel("time [s]", fontsize=8)
    handles = dict(pair[::-1] for axes in grid.ravel() for pair in zip(*axes.get_legend_handles_labels(), strict=True))
    figure.legend(handles.values(), handles.keys(), fontsize=8, frameon=False, ncols=2, loc="outside upper right")
    figure.savefig(path, dpi=120)
    return path


def start_page(result: StartResult, robot: bytes) -> HtmlReport:
    """The page of a whole run."""
    folder = result.output.folder
    plot = ReportImage((folder / "first_seconds.png").read_bytes(), "First seconds of the first run, as read.")
    sections = [
        Section("Next", "Three commands to go on with.", [Table(("command",), [[c] for c in result.commands])]),
        _mapping_section(result, plot),
        _parts_section(result),
    ]
    if robot:
        shown = ReportImage(robot, f"{result.scene.name} where it starts, as the simulator has it.")
        sections.append(Section("The robot", "A pose or shape that is wrong here is wrong everywhere.", [shown]))
    elif not result.scene.model.ngeom:
        words = "The robot file has no shapes, so that there is nothing to show; joints and masses are simulated."
        sections.append(Section("The robot", words))
    scene = result.made.scene if result.made else result.scene
    facts = {f"sha256 of {path}": digest for path, digest in result.output.inputs.items()}
    subtitle = f"{len(scene.robot)} joints, {scene.model.nu} actuators, {1 / scene.dt:.4g} Hz, in {folder}"
    title = f"{result.scene.name}: from logs to a twin"
    return HtmlReport(title, subtitle, _headline(result), _numbers(result), sections, facts)


def _headline(result: StartResult) -> Headline:
    doubts = len(result.guess.doubts) if result.guess else 0
    checked = f"{doubts} parts of how the logs were read are guesses: check the table below." if doubts else ""
    if result.failures:
        part, why = next(iter(result.failures.items()))
        return Headline("bad", f"The {part} could not be done: {why}", checked)
    tuned = str(result.result("tune").get("headline", ""))
    return Headline("good" if result.passed and not doubts else "plain", tuned or "Identified.", checked)


def _numbers(result: StartResult) -> list[Number]:
    numbers: list[Number] = []
    gained = result.result("tune").get("scores", {}).get("held-out: improvement", {}).get("value")
    if gained is not None:
        words = f"{100 * abs(gained):.1f} % {'lower' if gained >= 0 else 'higher'}"
        numbers.append(Number("error on held-out runs", words, "than in the scene as it was"))
    if result.guess is not None:
        rows = result.guess.rows
        numbers.append(Number("logs read", f"{len(rows) - len(result.guess.doubts)} of {len(rows)} rows sure"))
        numbers.append(Number("rate of the logs", f"{result.guess.rate:.4g} Hz"))
    return numbers


def _mapping_section(result: StartResult, plot: ReportImage) -> Section:
    if result.guess is None:
        return Section("How the logs were read", "By the mapping that was given.", [plot])
    rows = [[row.what, row.source, row.reading, row.confidence] for row in result.guess.rows]
    caption = "Rows that are not sure say why. The same is in map.toml, marked CHECK, to be corrected."
    table = Table(("what", "from", "read as", "confidence"), rows, caption)
    lead = "Where a measured curve does not follow its command, a column, a unit or an order is wrong."
    return Section("How the logs were read", lead, [plot, table])


def _parts_section(result: StartResult) -> Section:
    rows: list[list[str]] = []
    for part, name in (("gap", "gap of the scene as it was"), ("tune", "identification")):
        found = result.result(part)
        failure = result.failures.get("gap" if part == "gap" else "identification", "")
        rows.append([name, failure or str(found.get("headline", "")), f"{part}/report.html" if found else "none"])
    gates = [
        [g.get("name", ""), g.get("state", ""), g.get("message", "")] for g in result.result("tune").get("gates", [])
    ]
    blocks = [Table(("part", "result", "page"), rows)]
    blocks += [Table(("gate", "state", "message"), gates, "Gates of the identification.")] if gates else []
    return Section("Gap and identification", "Pages of both lie beside this one.", blocks)


_IMAGES = 6
"""Most images of one kind."""
_SHAPE = ("object", "shape", "box [mm]", "volume [cm³]", "convex parts", "worst overlap")
_PHYSICS = ("object", "mass [kg]", "mass from", "friction")


def reconstruction_page(built: ReconstructedScene, name: str) -> HtmlReport:
    """The page of a reconstructed scene, from its folder and its record."""
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
        held = "held-out views" if background["held_out"] else "the views of the fit"
        numbers.append(Number("background", f"{background['psnr_db']['value']:.1f} dB", f"PSNR over {held}"))
    return HtmlReport(
        f"Reconstruction of {name}", ", ".join(names),
        Headline("plain", f"{len(names)} objects reconstructed", "check them by instep scene check"),
        numbers,
        [
            Section("Objects", blocks=[Table(_SHAPE, _shape_rows(built)), Table(_PHYSICS, _physics_rows(built))]),
            Section("Masks", "Green is the object; blue is unknown, since something may occlude it.", _masks(built)),
            Section("Views against renders", "Image, Gaussians, and four times the difference.", _comparison(built)),
            Section("Decisions", blocks=[Table(("stage", "what", "found"), _decisions(stages))], folded=True),
        ],
        {"version": str(built.record["version"]), "seed": str(built.record["options"]["seed"])},
    )  # fmt: skip


def _shape_rows(built: ReconstructedScene) -> list[tuple[str, ...]]:
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


def _physics_rows(built: ReconstructedScene) -> list[tuple[str, ...]]:
    return [(one.name, _interval(one.mass), one.mass.source, _interval(one.friction)) for one in built.objects]


def _interval(known: PhysicalValue) -> str:
    return f"{known.value:.3g} [{known.low:.3g}, {known.high:.3g}]"


def _masks(built: ReconstructedScene) -> list[list[ReportImage]]:
    from instep.reconstruct.stages import FOLDER

    rows: list[list[ReportImage]] = []
    for one in built.objects:
        files = sorted((built.folder / FOLDER / "masks" / one.name).glob("*.png"))
        some = files[:: max(1, -(-len(files) // _IMAGES))]
        rows.append([ReportImage(file.read_bytes(), f"{one.name} in {file.stem}") for file in some])
    return [row for row in rows if row]


def _comparison(built: ReconstructedScene) -> list[Any]:
    from instep.data.frames import encode_png
    from instep.reconstruct.stages import FOLDER, CapturedViews, read_stage
    from instep.scene.folder import Scene
    from instep.splat.image import to_bytes
    from instep.splat.rendering import render, scene_gaussians, scene_poses, side_by_side

    scene = Scene.load(built.folder)
    views = read_stage(built.folder / FOLDER, "capture", CapturedViews).views
    images = {view.name: to_bytes(view.image) for view in views}
    shown = [one for one in scene.cameras.values() if one.in_world and one.name in images]
    shown = shown[:: max(1, -(-len(shown) // _IMAGES))]
    if not shown:
        return ["No camera is fixed in the world."]
    found = scene_gaussians(scene, built.folder / "splats")
    poses = scene_poses(scene, found.names, scene.start(0)[0])
    rendered = render(found, shown, poses=poses).images
    return [
        ReportImage(encode_png(side_by_side([(images[camera.name], image)])), camera.name)
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
