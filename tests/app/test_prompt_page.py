"""The page on which objects are marked in images, in a real browser: a click gives a mask, and the file is written."""

from __future__ import annotations

import json

import numpy as np
import pytest

from build_scenes import rendered, ring, tee
from instep.app.cli import main
from instep.app.viewer.showing import PromptContent
from instep.app.viewer.view_server import PROMPTS, ViewServer, absence
from instep.core.errors import BadInput, UnknownName
from instep.reconstruct.capture.posed_views import PosedView
from instep.reconstruct.masks.prompts import load_prompts, open_segmenter, parse_prompts
from instep.reconstruct.shape.visual_hull import coverage
from onnx_files import write_segmenter

PLANE = np.array([0.0, 0.0, 1.0, 0.0])
CAMERAS = ring(3)
SETTLED = """
(async () => {
  const ready = () => window.instepViewers?.[0]?.state().ready;
  for (let i = 0; i < 2400 && !ready(); i++) await new Promise((done) => setTimeout(done, 25));
  return [...window.instepViewers[0].images.keys()];
})()
"""


@pytest.fixture
def views():
    return [PosedView(camera, rendered(tee(), camera).astype(np.float32)) for camera in CAMERAS]


def middle(camera) -> tuple[float, float]:
    """The pixel of a point on top of the block."""
    place = np.linalg.inv(camera.body_from_camera)
    x, y = camera.project(place[:3, :3] @ np.array([0.0, 0.015, 0.04]) + place[:3, 3])
    return float(x), float(y)


def test_marks_are_written_and_refused_in_a_sentence(views, tmp_path):
    content = PromptContent(views, tmp_path / "prompts.json")
    x, y = middle(CAMERAS[0])
    marks = {"object": "tee", "camera": "v00", "clicks": [[x, y]], "others": [[2.0, 3.0]], "box": None}
    assert len(content.answer({"marks": marks})) == 4
    assert load_prompts(tmp_path / "prompts.json") == parse_prompts([f"tee=click:v00:{x:g},{y:g}", "tee=not:v00:2,3"])
    for wrong, error in (
        ({"camera": "v09"}, UnknownName), ({"clicks": [[900.0, 3.0]]}, BadInput), ({"clicks": [["x", 3.0]]}, BadInput),
        ({"box": [5, 5, 5, 9]}, BadInput), ({"object": "a b"}, BadInput), ({"clicks": None}, BadInput),
        ({"clicks": [[float("nan"), 1.0]]}, BadInput),
    ):  # fmt: skip
        before = (tmp_path / "prompts.json").read_text()
        with pytest.raises(error):
            content.answer({"marks": {**marks, **wrong}})
        assert (tmp_path / "prompts.json").read_text() == before
    # A file that is there is continued, with prompts that the page does not show.
    (tmp_path / "more.json").write_text('{"objects": {"cup": ["colour:#ff8000", "box:v01:1,2,30,40"]}}')
    again = PromptContent(views, tmp_path / "more.json")
    again.answer({"marks": {**marks, "object": "cup", "camera": "v01", "box": None, "clicks": [], "others": []}})
    assert json.loads((tmp_path / "more.json").read_text()) == {"objects": {"cup": ["colour:#ff8000"]}}
    again.answer({"remove": "cup"})
    assert json.loads((tmp_path / "more.json").read_text()) == {"objects": {}}


def test_images_that_are_not_there_and_files_that_cannot_be_written_are_refused(tmp_path, capsys):
    assert main(["reconstruct", "prompt", str(tmp_path), str(tmp_path / "none" / "prompts.json")]) == 2
    assert "name a file in an existing folder" in " ".join(capsys.readouterr().err.split())
    assert main(["reconstruct", "prompt", str(tmp_path), str(tmp_path / "prompts.json")]) == 2
    assert not (tmp_path / "prompts.json").exists()


@pytest.mark.slow
@pytest.mark.skipif(bool(absence()), reason=f"needs the web viewer: {absence() or 'built'}")
@pytest.mark.parametrize("network", [False, True])
def test_a_click_gives_a_mask_and_is_written(views, tmp_path, network, request, page):
    segmenter = None
    if network:
        request.getfixturevalue("onnxruntime")
        segmenter = open_segmenter(write_segmenter(tmp_path / "weights", [0.004, 0.45, 20.0], [0.95, 0.6, 0.9]))
    file = tmp_path / "prompts.json"
    server = ViewServer(PromptContent(views, file, segmenter), script=PROMPTS)
    page.errors.clear()
    try:
        page.open(server.start(), width=1000, height=700)
        assert page.evaluate(SETTLED) == [one.name for one in CAMERAS]
        for camera in CAMERAS:
            press(page, camera, middle(camera))
        for camera in CAMERAS:
            assert pixels(page, camera) == pytest.approx((coverage(tee(), camera) > 0.5).sum(), rel=0.12)
        marks = load_prompts(file)[0].marks
        assert all(np.allclose(marks[c.name].clicks[0], middle(c), atol=0.6) for c in CAMERAS)
        press(page, CAMERAS[1], (5, 5), button="right", buttons=2)
        press(page, CAMERAS[2], (9, 9), modifiers=8)
        press(page, CAMERAS[0], (20, 15), (140, 110))
        [prompt] = load_prompts(file)
        assert {name for name, own in prompt.marks.items() if own.others} == {"v01", "v02"}
        assert np.allclose(prompt.marks["v00"].box, (20, 15, 140, 110), atol=1)
        # A second object, and a mark that is removed by clicking on it.
        page.evaluate(SECOND)
        press(page, CAMERAS[0], (30, 100))
        assert [one.name for one in load_prompts(file)] == ["object", "other"]
        press(page, CAMERAS[0], (30, 100))
        assert pixels(page, CAMERAS[0], "other") == 0
        assert json.loads(file.read_text())["objects"]["other"] == [] and page.errors == []
    finally:
        page.open("about:blank")
        server.close()


SECOND = """
(() => {
  const form = document.querySelector("form");
  form.querySelector("input").value = "other";
  form.requestSubmit();
})()
"""
BOX = """
(() => {
  const canvas = window.instepViewers[0].images.get('CAMERA').element.querySelector('canvas');
  canvas.scrollIntoView({ block: 'center' });
  const r = canvas.getBoundingClientRect();
  return [r.left, r.top, r.width, r.height];
})()
"""


def press(page, camera, begin, end=None, **keys):
    """Press the mouse at a pixel of an image, and drag it to another where one is given."""
    left, top, width, height = page.evaluate(BOX.replace("CAMERA", camera.name))
    at = [(left + u / camera.width * width, top + v / camera.height * height) for u, v in (begin, end or begin)]
    keys = {"button": "left", "buttons": 1, "clickCount": 1, "modifiers": 0, **keys}
    moved = [("mouseMoved", at[1])] if end else []
    for kind, (x, y) in [("mousePressed", at[0]), *moved, ("mouseReleased", at[1])]:
        page.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, **keys)
    assert page.evaluate(SETTLED) == [one.name for one in CAMERAS]


def pixels(page, camera, name="object"):
    """Pixels of a mask in an image."""
    return page.evaluate(f"window.instepViewers[0].images.get('{camera.name}').pixels('{name}')")
