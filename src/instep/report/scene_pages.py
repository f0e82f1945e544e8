"""Pages of scenes: from logs to a twin, from images to a scene, and the checks of a scene."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from instep.core.episode import Episode

from .figures import Lines, panels_figure, series_color
from .page import Figure, Headline, HtmlReport, Number, ReportImage, Section, Table

if TYPE_CHECKING:
    from instep.app.verbs.start import StartResult
    from instep.reconstruct.checks import Finding
    from instep.reconstruct.pipeline import ReconstructedScene

SHOWN_S = 8.0
"""Length of the first run that is plotted [s]."""
MAX_JOINTS = 16
"""Most joints of the plot."""
_SHAPE = ("object", "shape", "box [mm]", "volume [cm³]", "convex parts", "worst overlap")
_PHYSICS = ("object", "mass [kg]", "mass from", "friction")


def first_seconds(episode: Episode) -> Figure:
    """Positions and commands of the first seconds, one panel per joint; commands have the labels of joints."""
    rows = max(2, int(np.searchsorted(episode.t, SHOWN_S)))
    t, panels = episode.t[:rows], dict[str, Lines]()
    for k, label in enumerate(episode.spec.q.labels[:MAX_JOINTS]):
        lines = {"measured": (t, episode.q[:rows, k])}
        if label in episode.spec.action.labels:
            lines["command"] = (t, episode.action[:rows, episode.spec.action.labels.index(label)])
        panels[f"{label} [{episode.spec.q.units[k]}]"] = lines
    styles = ({"color": series_color(0), "width": 1.6}, {"color": series_color(1), "width": 1.6})
    return panels_figure(panels, title="First seconds of the first run, as read", styles=styles)


def start_page(result: StartResult, robot: bytes) -> HtmlReport:
    """The page of `instep start`; `robot` is an image of the robot at its start as PNG, empty without one."""
    sections = [
        Section("Next", "The next three commands.", [Table(("command",), [[c] for c in result.commands])]),
        _mapping_section(result),
        _parts_section(result),
    ]
    if robot:
        shown = ReportImage(robot, f"{result.scene.name} at its start in the simulator.")
        sections.append(Section("The robot", "A wrong pose or shape here spoils everything else.", [shown]))
    elif not result.scene.model.ngeom:
        words = "The robot file has no shapes, so there is nothing to show; joints and masses are simulated."
        sections.append(Section("The robot", words))
    scene = result.made.scene if result.made else result.scene
    facts = {f"sha256 of {path}": digest for path, digest in result.output.inputs.items()}
    motors = f"{len(scene.robot)} joints, {scene.model.nu} actuators, {1 / scene.dt:.4g} Hz"
    subtitle, title = f"{motors}, in {result.output.folder}", f"{result.scene.name}: from logs to a twin"
    doubts = len(result.guess.doubts) if result.guess else 0
    checked = f"{doubts} parts of how the logs were read are guesses: check the table below." if doubts else ""
    tuned = str(result.result("tune").get("headline", "")) or "Identified."
    verdict = Headline("good" if result.passed and not doubts else "plain", tuned, checked)
    for part, why in [*result.failures.items()][:1]:
        verdict = Headline("bad", f"The {part} could not be done: {why}", checked)
    return HtmlReport(title, subtitle, verdict, _numbers(result), sections, facts)


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


def _mapping_section(result: StartResult) -> Section:
    plot: list[Any] = [] if result.first is None else [first_seconds(result.first)]
    if result.guess is None:
        return Section("How the logs were read", "By the given mapping.", plot)
    rows = [[row.what, row.source, row.reading, row.confidence] for row in result.guess.rows]
    caption = "Uncertain rows say why. Correct them in map.toml, where they are marked CHECK."
    table = Table(("what", "from", "read as", "confidence"), rows, caption)
    lead = "If a measured curve does not follow its command, a column, a unit or an order is wrong."
    return Section("How the logs were read", lead, [*plot, table])


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


def reconstruction_page(
    built: ReconstructedScene, name: str, masks: Sequence[Sequence[ReportImage]], views: Sequence[Any]
) -> HtmlReport:
    """The page of a reconstruction: its objects, their masks, views against renders, and decisions of every stage."""
    stages = built.record["stages"]
    seconds = sum(float(stage.get("seconds", 0.0)) for stage in stages.values())
    names = [one.name for one in built.objects]
    worst = min(min(shape["overlap"].values()) for shape in stages["shape"]["objects"].values())
    background = stages["appearance"].get("background")
    decisions = [(stage, what, found) for stage, facts in stages.items() for what, found in _flat(facts) if found]
    physics: list[tuple[str, ...]] = []
    for one in built.objects:
        mass, friction = (f"{v.value:.3g} [{v.low:.3g}, {v.high:.3g}]" for v in (one.mass, one.friction))
        physics.append((one.name, mass, one.mass.source, friction))
    numbers = [
        Number("objects", str(len(names)), ", ".join(names)),
        Number("views", str(len(stages["capture"]["views"]))),
        Number("worst overlap", f"{worst:.3f}", "of a silhouette and its mask"),
        Number("time", f"{seconds:.0f} s"),
    ]
    if background is not None:
        held = "held-out views" if background["held_out"] else "the fitted views"
        numbers.append(Number("background", f"{background['psnr_db']['value']:.1f} dB", f"PSNR over {held}"))
    sections = [
        Section("Objects", blocks=[Table(_SHAPE, _shape_rows(built)), Table(_PHYSICS, physics)]),
        Section("Masks", "Green is the object; blue is unknown because of a possible occlusion.", masks),
        Section("Views against renders", "Image, Gaussians, and four times the difference.", views),
        Section("Decisions", blocks=[Table(("stage", "what", "found"), decisions)], folded=True),
    ]
    facts = {"version": str(built.record["version"]), "seed": str(built.record["options"]["seed"])}
    verdict = Headline("plain", f"{len(names)} objects reconstructed", "check them by instep scene check")
    return HtmlReport(f"Reconstruction of {name}", ", ".join(names), verdict, numbers, sections, facts)


def scene_check_page(title: str, about: str, findings: Sequence[Finding], image: ReportImage) -> HtmlReport:
    """The page of the checks of a scene."""
    states = [one.state for one in findings]
    worst = next((state for state in ("red", "amber") if state in states), "green")
    words = {"red": "not fit to simulate", "amber": "fit to simulate, with doubts"}.get(worst, "fit to simulate")
    bad = [one for one in findings if one.state in ("red", "amber")]
    because = "; ".join(f"{one.subject}, {one.check}: {one.value}" for one in bad[:3])
    status = "bad" if worst == "red" else "plain" if worst == "amber" else "good"
    rows = [(one.check, one.subject, one.state, one.value, one.message) for one in findings]
    numbers = [Number(name, str(states.count(name))) for name in ("green", "amber", "red", "unknown")]
    sections = [
        Section("Checks", blocks=[Table(("check", "of", "state", "found", "meaning"), rows)]),
        Section("The scene at its start", blocks=[[image]]),
    ]
    return HtmlReport(title, about, Headline(status, words, because), numbers, sections)


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
