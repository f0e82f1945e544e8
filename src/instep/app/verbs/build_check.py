"""The verb build check: shapes, inertia, contacts and rest of a scene, with a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from instep.app.arguments import Options, OutFolder, SceneArg
from instep.core.records import options_dataclass

if TYPE_CHECKING:
    from instep.build.scene_checks import Finding
    from instep.core.world import Array
    from instep.report.page import HtmlReport
    from instep.scene.folder import Scene

_COLOURS = {"green": "green", "amber": "yellow", "red": "red", "unknown": "dim"}


@options_dataclass
class BuildCheckArgs:
    """Options of `instep build check`."""

    out: OutFolder = None


def check(scene: SceneArg, /, args: Options[BuildCheckArgs] = BuildCheckArgs()) -> int:
    """Check a scene before it is simulated in earnest; exit 1 where something is red.

    Closed meshes, possible inertia, parts against meshes, penetration, whether objects rest in two engines, scale; and
    of a scene that was built from images its silhouettes, views and held-out images.

    Args:
        scene: a scene that was built, or any other: a shipped name, a folder, an MJCF or URDF file.

    """
    from instep.app.output import new_output
    from instep.build.scene_checks import check_scene, worst_state
    from instep.scene.folder import Scene

    loaded = Scene.load(scene)
    findings = check_scene(loaded)
    output = new_output("build-check", args.out)
    output.read_scene(loaded)
    worst = worst_state(findings)
    output.write({}, state=worst, findings=[_plain(finding) for finding in findings])
    table = Table("check", "of", "", "found", "meaning", box=None, padding=(0, 2))
    for found in findings:
        table.add_row(
            found.check, found.subject, f"[{_COLOURS[found.state]}]{found.state}[/]", found.value, found.message
        )
    Console(stderr=True, highlight=False).print(table)
    print(output.page(_page(loaded, findings)))
    return 1 if worst == "red" else 0


def _plain(finding: Finding) -> dict[str, str]:
    return {key: getattr(finding, key) for key in ("check", "subject", "state", "value", "message")}


def _page(scene: Scene, findings: Sequence[Finding]) -> HtmlReport:
    from instep.build.scene_checks import worst_state
    from instep.data.frames import encode_png
    from instep.report.page import Headline, HtmlReport, Number, ReportImage, Section
    from instep.report.page import Table as PageTable

    worst, counts = worst_state(findings), [finding.state for finding in findings]
    words = {"red": "not fit to simulate", "amber": "fit to simulate, with doubts"}.get(worst, "fit to simulate")
    bad = [finding for finding in findings if finding.state in ("red", "amber")]
    because = "; ".join(f"{one.subject}, {one.check}: {one.value}" for one in bad[:3])
    status = "bad" if worst == "red" else "plain" if worst == "amber" else "good"
    rows = [(one.check, one.subject, one.state, one.value, one.message) for one in findings]
    return HtmlReport(
        f"Check of {scene.name}", scene.about or str(scene.source.path.name), Headline(status, words, because),
        [Number(name, str(counts.count(name))) for name in ("green", "amber", "red", "unknown")],
        [
            Section("Checks", blocks=[PageTable(("check", "of", "state", "found", "meaning"), rows)]),
            Section("The scene as it starts", blocks=[[ReportImage(encode_png(_image(scene)), "3D Gaussians")]]),
        ],
    )  # fmt: skip


def _image(scene: Scene) -> Array:
    """The scene as it starts, by the Gaussians that were built with it where it has some."""
    from instep.splat.gaussians_from_geoms import scene_gaussians, scene_poses
    from instep.splat.rendering import render

    splats = scene.root / "splats"
    found = scene_gaussians(scene, splats if splats.is_dir() else None)
    return render(found, poses=scene_poses(scene, found.names, scene.start(0)[0])).images[0]
