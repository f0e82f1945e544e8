"""Adaptation of a policy to a robot's images: the adapter is saved, no labels are needed, few are used."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from instep import BadInput, Episode, UnknownName
from instep.policy.flow_policy import load_policy, read_policy
from instep.policy.image_adaptation import fit_adapter, restyled
from instep.policy.policy_inputs import read_weights, write_weights
from instep.policy.training import AdaptOptions, adapt_policy, fine_tune, is_fixed, some_images
from small_specs import joints_spec

SIZE = 64
SPEC = joints_spec(["x"], "m", top=(SIZE, SIZE))
METHODS = ["colour", "background", "translator", "normalize", "auto"]


TEXTURE = np.exp(0.5 * np.kron(np.random.default_rng(7).standard_normal((4, 4, 3)), np.ones((4, 4, 1))))[:14, :14]


def episode(seed: int, robot: bool = False, rows: int = 12, worn: bool = False) -> Episode:
    """The action is where the red square is; a robot sees it in dim blue light, beside a red spot that is no square.
    Worn, the square is textured, and the camera noisy."""
    rng = np.random.default_rng(seed)
    images = np.full((rows, SIZE, SIZE, 3), (150, 140, 120), float)
    images += rng.normal(0, 2, images.shape)
    place = rng.uniform(-1, 1, rows)
    for image, x in zip(images, place, strict=True):
        column, line = round(25 + 22 * x), int(rng.integers(2, SIZE - 16))
        image[line : line + 14, column : column + 14] = (210, 50, 40)
        image[line : line + 14, column : column + 14] *= TEXTURE if worn else 1.0
    if robot:
        images[:, 46:62, 4:20] = (240, 60, 40)
        images = images * np.array([0.5, 0.6, 0.8])
    if worn:
        images += rng.normal(0, 8, images.shape)
    state = np.zeros((rows, 1))
    columns = {"observation.state": state, "action": place[:, None]}
    return Episode(SPEC, {**columns, "observation.images.top": np.clip(images, 0, 255).astype(np.uint8)})


RENDERED = [episode(k) for k in range(24)]
REAL = [episode(100 + k, robot=True) for k in range(12)]


@pytest.fixture(scope="module")
def base(tmp_path_factory, torch) -> Path:
    from instep.policy.training import TrainOptions, train

    options = TrainOptions(
        steps=300, checkpoint_every=300, cameras=("top",), image_size=SIZE, width=32, batch=32, horizon=1, execute=1,
        threads=1,
    )  # fmt: skip
    return train(RENDERED, tmp_path_factory.mktemp("policy"), options)


def error(folder: Path, robot: bool, worn: bool = False) -> float:
    """Mean error of the actions on images that nothing was fitted to."""
    fresh = [episode(200 + k, robot, worn=worn) for k in range(6)]
    policy = load_policy(folder, SPEC)
    policy.reset(0)
    off = []
    for one in fresh:
        seen = {name: one[name] for name in SPEC.observation}
        off.append(np.abs(policy.policy.infer(seen)[:, 0, 0] - one.action[:, 0]))
    return float(np.mean(off))


def test_a_policy_that_another_light_broke_works_again_without_labels(base, tmp_path):
    clean, lost = error(base, False), error(base, True)
    assert lost > 2 * clean, "the light must cost something, or nothing is tested"
    for method in ("background", "auto"):
        adapt_policy(base, RENDERED, REAL, tmp_path / method, AdaptOptions(by=method, steps=60))
        assert error(tmp_path / method, True) < lost - 0.6 * (lost - clean), method


def test_training_on_restyled_images_changes_the_image_network_alone_and_leaves_no_less_success(base, tmp_path):
    worn = [episode(100 + k, robot=True, worn=True) for k in range(12)]
    for method in ("background", "auto"):
        adapt_policy(base, RENDERED, worn, tmp_path / method, AdaptOptions(by=method, steps=40))
    alone, trained = (error(tmp_path / method, True, worn=True) for method in ("background", "auto"))
    assert trained < 1.1 * alone
    before, after = (read_policy(folder)[1] for folder in (base, tmp_path / "auto"))
    assert all(np.array_equal(before[name], after[name]) for name in before if name.startswith(("net.", "scale.")))
    assert any(not np.array_equal(before[name], after[name]) for name in before if name.startswith("encoder."))


@pytest.mark.parametrize("method", METHODS)
def test_what_was_adapted_is_loaded_like_any_policy(base, tmp_path, method):
    from instep.lab.image_baselines import BASELINES, adapt_by_baseline

    adapt = adapt_by_baseline if method in BASELINES else adapt_policy
    found = adapt(base, RENDERED, REAL, tmp_path / "out", AdaptOptions(by=method, steps=3))
    description, _ = read_policy(tmp_path / "out")
    pixels = method != "normalize"
    assert description.adapters == ({"top": "background" if method == "auto" else method} if pixels else {})
    assert json.loads((tmp_path / "out/policy.json").read_text())["version"] == (3 if pixels else 2)
    assert np.array_equal(found.adapted["top"], found.images["top"].real) == (not pixels)
    assert np.isfinite(error(tmp_path / "out", True))


def test_labels_of_the_robot_are_not_read(base, tmp_path):
    wrong = [replace(one, columns={**one.columns, "action": 7 + one.action}) for one in REAL]
    for name, given in (("a", REAL), ("b", wrong)):
        adapt_policy(base, RENDERED, given, tmp_path / name, AdaptOptions(steps=3))
    a, b = (read_weights(tmp_path / name / "weights.safetensors") for name in "ab")
    assert all(np.array_equal(a[name], b[name]) for name in a)


def test_a_few_demonstrations_help_and_the_adapter_is_fixed(base, tmp_path):
    from instep.policy.training import TrainOptions

    adapt_policy(base, RENDERED, REAL, tmp_path / "adapted", AdaptOptions(by="colour"))
    before = error(tmp_path / "adapted", True)
    how = TrainOptions(steps=150, learning_rate=1e-3, batch=64)
    steps: list[int] = []
    out = fine_tune(
        tmp_path / "adapted", REAL[:5], RENDERED, tmp_path / "finer", how, progress=lambda step, _: steps.append(step)
    )
    assert error(out, True) < before
    assert read_policy(out)[0].adapters == {"top": "colour"}
    assert steps == [50, 150]


def test_the_background_behind_what_often_hides_it_is_found():
    rng = np.random.default_rng(0)

    def table(colour: tuple[int, int, int], count: int = 60) -> Any:
        images = np.full((count, SIZE, SIZE, 3), colour, float) + rng.normal(0, 2, (count, SIZE, SIZE, 3))
        for k, image in enumerate(images):
            y, x = (12, 12) if k % 5 < 3 else rng.integers(0, SIZE - 8, 2)  # three times of five in the middle
            image[y : y + 8, x : x + 8] = (220, 60, 40)
        return images.clip(0, 255).astype(np.uint8)

    adapter = fit_adapter("background", table((90, 90, 140)), table((150, 140, 120)))
    assert adapter.backgrounds is not None
    assert np.abs(255 * adapter.backgrounds[0][16, 16] - (90, 90, 140)).max() < 6


def test_cameras_that_move_are_told_from_those_that_stay(torch):
    assert is_fixed(some_images(REAL, "top", SIZE))
    table = np.random.default_rng(0).integers(0, 255, (SIZE, SIZE, 3)).astype(np.uint8)
    assert not is_fixed(np.stack([np.roll(table, 5 * k, axis=1) for k in range(20)]))


def test_what_does_not_fit_is_refused(base, tmp_path):
    bare = [replace(REAL[0], columns={"action": REAL[0].action, "observation.state": REAL[0]["observation.state"]})]
    with pytest.raises(UnknownName, match="camera"):
        adapt_policy(base, RENDERED, bare, tmp_path / "a")
    adapt_policy(base, RENDERED, REAL, tmp_path / "b", AdaptOptions(by="colour"))
    with pytest.raises(BadInput, match="adapted already"):
        adapt_policy(tmp_path / "b", RENDERED, REAL, tmp_path / "c")
    blind = [replace(one, columns={k: v for k, v in one.columns.items() if k != "observation.state"}) for one in REAL]
    with pytest.raises(BadInput, match="recordings that hold 'x'"):
        adapt_policy(base, blind, REAL, tmp_path / "e")
    with pytest.raises(BadInput, match="there are none"):
        fine_tune(base, [], RENDERED, tmp_path / "d")


def test_adapters_of_a_forged_policy_are_refused(base, tmp_path):
    folder = tmp_path / "forged"
    adapt_policy(base, RENDERED, REAL, folder, AdaptOptions(by="background"))
    tensors = read_weights(folder / "weights.safetensors")
    whole = tensors["adapter.top.backgrounds"]
    for wrong, words in ((whole[:1], "shape"), (np.zeros((3, 8, 8, 3), np.float32), "pixels")):
        write_weights(folder / "weights.safetensors", {**tensors, "adapter.top.backgrounds": wrong})
        with pytest.raises(BadInput, match=words):
            error(folder, True)
    del tensors["adapter.top.mix"]
    write_weights(folder / "weights.safetensors", tensors)
    with pytest.raises(BadInput, match="has mix of the shape"):
        load_policy(folder, SPEC)
    table = json.loads((folder / "policy.json").read_text())
    (folder / "policy.json").write_text(json.dumps({**table, "adapters": {"side": "colour"}}))
    with pytest.raises(UnknownName, match="camera"):
        load_policy(folder, SPEC)


BLOCK_SIZE = 48


def blocks(seed: int, light: tuple[float, float, float] = (1.0, 1.0, 1.0), noise: float = 0.0, count: int = 80):
    """A red block somewhere on a table with a blue mark, in a light, with the noise of a camera [grey levels]."""
    rng = np.random.default_rng(seed)
    out = np.full((count, BLOCK_SIZE, BLOCK_SIZE, 3), (150, 140, 120), float)
    out[:, 20:28, 4:12] = (60, 90, 190)
    for image in out:
        y, x = rng.integers(0, BLOCK_SIZE - 12, 2)
        image[y : y + 12, x : x + 12] = (210, 60, 40)
    dimmed = out * np.array(light) + noise * np.random.default_rng((seed, 1)).standard_normal(out.shape)
    return np.clip(dimmed, 0, 255).astype(np.uint8)


LIGHT = (0.5, 0.6, 0.8)


@pytest.mark.parametrize("method", ["colour", "background"])
def test_the_inverse_of_an_adapter_shows_rendered_images_in_the_light_of_the_robot(method):
    adapter = fit_adapter(method, blocks(0, LIGHT), blocks(1))
    clean, wanted = blocks(2), blocks(2, LIGHT)
    before = np.abs(clean.astype(float) - wanted).mean()
    assert np.abs(adapter.inverse(clean).astype(float) - wanted).mean() < 0.1 * before


def test_the_noise_of_the_camera_is_measured_where_nothing_moves():
    noise = 255 * fit_adapter("background", blocks(0, LIGHT, noise=6.0), blocks(1)).noise
    assert noise == pytest.approx(6.0, rel=0.15)


def test_restyled_images_keep_the_block_and_the_background_and_vary_in_texture():
    adapter = fit_adapter("background", blocks(0, LIGHT, noise=4.0), blocks(1))
    clean = blocks(2)
    made = restyled(clean, adapter).astype(float)
    block = clean[..., 0] == 210
    assert np.abs(made - clean)[~block].mean() < 6, "the table is that of rendered images again"
    assert ((made[..., 0] - made[..., 1] > 60) == block).mean() > 0.98, "the block lies where its label says"
    levels = [image[own][:, 0].mean() for image, own in zip(made, block, strict=True)]
    assert np.std(levels) > 3, "one block differs from the next"
    assert np.array_equal(restyled(clean, adapter), made.astype(np.uint8)), "the same seed gives the same images"
