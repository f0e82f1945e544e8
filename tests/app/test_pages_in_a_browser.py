"""Pages of every kind in a real browser: no text over text on a desk, a phone and paper, no request, videos play."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from browser import Page, check_page
from instep.app.cli import VERBS, main
from instep.app.verbs.twin_run import twin_log
from instep.core.episode import Episode
from instep.core.world import vector
from instep.data import load_episodes
from instep.report.page import Headline, HtmlReport, write_html
from instep.report.run_pages import twin_sections
from page_kinds import KINDS, NIGHTLY, PAGE_FREE

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory, opengl) -> Path:
    """Where pages are made; recordings that several kinds read are made once."""
    return tmp_path_factory.mktemp("pages")


@pytest.mark.parametrize("kind", [pytest.param(k, marks=pytest.mark.nightly if k in NIGHTLY else ()) for k in KINDS])
def test_a_page_is_readable_on_a_desk_on_a_phone_and_on_paper(kind, folder: Path, page: Page) -> None:
    check_page(page, KINDS[kind].make(kind, folder), videos=KINDS[kind].videos)


def test_the_page_of_a_twin_with_many_cameras_is_readable(folder: Path, page: Page) -> None:
    """Three cameras and names as long as real ones, without waiting for a twin."""
    assert main(["run", "hold", "sim:pusht", "--steps", "120", "--out", str(folder / "held")]) == 0
    [run] = load_episodes(folder / "held" / "data")
    cameras = [f"cam_22042230229{i}" for i in range(3)]
    names = ["tee.nis", "tee.residual", "tee.colour_residual", "tee.sigma", "tee.weakest_sigma"]
    names += [f"{camera}.{word}" for camera in cameras for word in ("overlap", "latency")]
    stages = ("predict", "follow", "observe", "blend", "correct")
    told = {"twin.correction": vector(names), "twin.stages": vector(stages), "twin.joint_error": vector(["x", "y"])}
    rng = np.random.default_rng(0)
    columns = {name: rng.uniform(0, 0.1, (len(run), len(channel.labels))) for name, channel in told.items()}
    twin = Episode(run.spec.with_observations(told), {**run.columns, **columns}, run.meta)
    report = HtmlReport("expert in twin:pusht", "", Headline("good", "Fine."), (), twin_sections(twin_log(twin)))
    check_page(page, write_html(folder / "report.html", report), videos=0)


def test_every_verb_that_writes_a_page_has_a_kind_here() -> None:
    shown = {kind.words.split()[0] for kind in KINDS.values()}
    assert shown | PAGE_FREE == {verb.split()[0] for verb in VERBS}
