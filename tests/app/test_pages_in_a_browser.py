"""Pages of every kind in a real browser: no text over text on a desk, a phone and paper, no request, videos play."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from browser import check_page
from instep.app.cli import main
from instep.app.twin_page import twin_sections
from instep.core.episode import Episode
from instep.core.world import vector
from instep.data import load_episodes
from instep.report.page import Headline, HtmlReport, write_report

pytestmark = pytest.mark.slow


def ran(folder: Path) -> Path:
    assert main(["run", "expert", "sim:pusht", "--steps", "240", "--out", str(folder)]) == 0
    return folder / "report.html"


def recorded(folder: Path) -> Path:
    words = ["record", "sim:so101", str(folder / "data"), "--episodes", "2", "--steps", "90"]
    assert main([*words, "--out", str(folder)]) == 0
    return folder / "report.html"


def evaluated(folder: Path) -> Path:
    words = ["eval", "expert", "hold", "pusht", "--seeds", "3", "--videos", "1", "--worlds", "mujoco", "rapier"]
    assert main([*words, "--out", str(folder)]) == 0
    return folder / "report.html"


def measured(folder: Path) -> Path:
    words = ["record", "sim:so101@rapier", str(folder / "data"), "--episodes", "3", "--steps", "120"]
    assert main([*words, "--out", str(folder / "recorded")]) == 0
    assert main(["gap", str(folder / "data"), "so101", "--plain", "--out", str(folder / "gap")]) == 0
    return folder / "gap" / "report.html"


def twinned(folder: Path) -> Path:
    """The page of a twin with three cameras and names as long as real ones, without waiting for a twin."""
    assert main(["run", "hold", "sim:pusht", "--steps", "120", "--out", str(folder / "run")]) == 0
    [run] = load_episodes(folder / "run" / "data")
    cameras = [f"cam_22042230229{i}" for i in range(3)]
    names = ["tee.nis", "tee.residual", "tee.colour_residual", "tee.sigma", "tee.weakest_sigma"]
    names += [f"{camera}.{word}" for camera in cameras for word in ("overlap", "latency")]
    stages = ("predict", "follow", "observe", "blend", "correct")
    told = {"twin.correction": vector(names), "twin.stages": vector(stages), "twin.joint_error": vector(["x", "y"])}
    rng = np.random.default_rng(0)
    columns = {name: rng.uniform(0, 0.1, (len(run), len(channel.labels))) for name, channel in told.items()}
    twin = Episode(run.spec.with_observations(told), {**run.columns, **columns}, run.meta)
    report = HtmlReport("expert in twin:pusht", "", Headline("good", "Fine."), (), twin_sections(twin))
    return write_report(folder, report)


KINDS: dict[str, Callable[[Path], Path]] = {
    "run": ran, "record": recorded, "eval": evaluated, "gap": measured, "twin": twinned,
}  # fmt: skip
WITH_VIDEO = ("run", "record", "eval")


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_is_readable_on_a_desk_on_a_phone_and_on_paper(kind, tmp_path, opengl) -> None:
    check_page(KINDS[kind](tmp_path), tmp_path / "profile", videos=int(kind in WITH_VIDEO))
