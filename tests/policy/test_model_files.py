"""Policies in files of other tools: TorchScript, ONNX, Stable-Baselines3, LeRobot checkpoints."""

from __future__ import annotations

import base64
import io
import json
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from instep import BadInput
from instep.core.errors import MissingExtra
from instep.core.world import vector
from instep.policy.chunking import Chunked
from instep.policy.model_files import (
    NetworkClient,
    NetworkInput,
    lerobot_client,
    lerobot_map,
    lerobot_policy,
    matched_inputs,
    onnx_policy,
    read_stable_baselines,
    stable_baselines_policy,
    torchscript_policy,
)
from instep.policy.policy_map import MappedPolicy, PolicyMap, VectorEntry, default_map
from instep.policy.policy_specs import policy_kind
from onnx_files import write_onnx
from small_specs import joints_spec

SPEC, IMAGES = joints_spec(), joints_spec(top=(4, 6))
WIDE = joints_spec(top=(4, 6), velocity=vector(["a", "b"], "rad/s"))
SEEN = {"observation.state": np.array([0.5, -0.25])}
MAP = """
[[state]]
key = "{key}"
joints = ["b", "a"]
unit = "deg"
[[action]]
key = "action"
joints = ["a", "b"]
unit = "deg"
"""


def mapped(folder: Path, key: str = "state") -> Path:
    path = folder / "map.toml"
    path.write_text(MAP.format(key=key))
    return path


def test_a_torchscript_network_is_a_policy(torch, tmp_path):
    from scripted_networks import Turned

    torch.jit.script(Turned()).save(str(tmp_path / "policy.pt"))
    policy = torchscript_policy(tmp_path / "policy.pt", SPEC)
    policy.reset()
    assert np.allclose(policy.act(SEEN), [-0.5, 1.0])
    batch = {"observation.state": np.stack([SEEN["observation.state"]] * 3)}
    policy.reset()
    assert policy.act(batch).shape == (3, 2)
    policy = torchscript_policy(tmp_path / "policy.pt", SPEC, mapped(tmp_path))
    assert np.allclose(policy.act(SEEN), [1.0, -0.5]), "the map gives b and a in degrees, and takes degrees back"


def test_a_torchscript_network_with_chunks_and_a_camera(torch, tmp_path):
    from scripted_networks import ImageFirst, Seeing

    torch.jit.script(Seeing()).save(str(tmp_path / "policy.pt"))
    policy = torchscript_policy(tmp_path / "policy.pt", WIDE)
    assert isinstance(policy, Chunked)
    seen = {**SEEN, "observation.velocity": np.zeros(2), "observation.images.top": np.full((4, 6, 3), 255, np.uint8)}
    assert np.allclose(policy.act(seen), [1.5, 0.75]) and np.allclose(policy.act(seen), [-0.5, -1.25])
    # A map gives vectors before images: arguments of another order are refused by the trial, not on the robot.
    torch.jit.script(ImageFirst()).save(str(tmp_path / "policy.pt"))
    with pytest.raises(BadInput, match=r"cannot be run on state \[1, 2\], top \[1, 3, 4, 6\]"):
        torchscript_policy(tmp_path / "policy.pt", WIDE)


def test_what_is_not_torchscript_is_refused(torch, tmp_path):
    torch.save({"weight": torch.zeros(2)}, tmp_path / "weights.pt")
    with pytest.raises(BadInput, match="is not a TorchScript file"):
        torchscript_policy(tmp_path / "weights.pt", SPEC)
    with pytest.raises(BadInput, match="There is no file"):
        torchscript_policy(tmp_path / "none.pt", SPEC)


def onnx_file(path: Path, weight: np.ndarray, batch: int | str = "n") -> Path:
    """An ONNX file with action = state @ weight."""
    taken, given = {"state": (batch, weight.shape[0])}, {"action": (batch, weight.shape[1])}
    return write_onnx(path, [("MatMul", ["state", "w"], "action")], taken, given, {"w": weight})


@pytest.mark.parametrize("batch", ["n", 1])
def test_an_onnx_network_is_a_policy(onnxruntime, tmp_path, batch):
    weight = np.array([[0.0, 2.0], [1.0, 0.0]])
    file = onnx_file(tmp_path / "policy.onnx", weight, batch)
    policy = onnx_policy(file, SPEC)
    assert np.allclose(policy.act(SEEN), SEEN["observation.state"] @ weight, atol=1e-6)
    policy.reset()
    several = {"observation.state": np.arange(6.0).reshape(3, 2)}
    assert np.allclose(policy.act(several), several["observation.state"] @ weight, atol=1e-6)
    policy = onnx_policy(file, SPEC, mapped(tmp_path))
    assert np.allclose(policy.act(SEEN), [0.5, -0.5], atol=1e-6)


def test_an_onnx_network_of_another_size_or_with_another_name_is_refused(onnxruntime, tmp_path):
    file = onnx_file(tmp_path / "policy.onnx", np.zeros((5, 2)))
    with pytest.raises(BadInput, match=r"takes 5 numbers as 'state', but this world has 2 in observation\.state"):
        onnx_policy(file, SPEC)
    file = onnx_file(tmp_path / "policy.onnx", np.zeros((2, 3)))
    with pytest.raises(BadInput, match="2 joints are mapped"):
        onnx_policy(file, SPEC)
    file = onnx_file(tmp_path / "policy.onnx", np.zeros((2, 2)))
    with pytest.raises(BadInput, match="no input named 'joints'; its inputs are state"):
        onnx_policy(file, SPEC, mapped(tmp_path, "joints"))
    (tmp_path / "text.onnx").write_text("hello")
    with pytest.raises(BadInput, match="is not an ONNX network"):
        onnx_policy(tmp_path / "text.onnx", SPEC)


def test_inputs_are_matched_by_name_and_size():
    found = matched_inputs("f", [NetworkInput("obs", (4,)), NetworkInput("top", (3, 8, 8))], WIDE)
    assert [entry.joints for entry in found.state] == [
        ("observation.state/a", "observation.state/b", "observation.velocity/a", "observation.velocity/b")
    ]
    assert found.image[0].layout == "CHW" and found.image[0].size == (8, 8)
    assert matched_inputs("f", [NetworkInput("obs", (2,))], WIDE).state[0].joints[0] == "observation.state/a"
    found = matched_inputs("f", [NetworkInput("observation_velocity"), NetworkInput("state")], WIDE)
    assert [entry.joints[0] for entry in found.state] == ["observation.velocity/a", "observation.state/a"]
    with pytest.raises(BadInput, match="takes 'x', which is no observation of this world"):
        matched_inputs("f", [NetworkInput("x"), NetworkInput("y")], WIDE)


def test_a_network_that_fails_or_answers_too_little_is_said():
    def broken(inputs):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied\n")

    entries = (VectorEntry("left", ("a",)), VectorEntry("right", ("b",)))
    request = {"state": np.zeros(2)}
    given = (VectorEntry("state", ("a", "b")),)
    with pytest.raises(BadInput, match=r"policy\.pt cannot be run on state \[1, 2\]: mat1 and mat2"):
        NetworkClient("policy.pt", PolicyMap(given, entries), broken).infer([request])
    with pytest.raises(BadInput, match="has 1 outputs, but its map has 2"):
        NetworkClient("policy.pt", PolicyMap(given, entries), lambda x: [np.zeros((1, 1))]).infer([request])
    with pytest.raises(BadInput, match=r"answered with shape \[3, 1\] to 1 worlds"):
        NetworkClient("policy.pt", PolicyMap(given, entries[:1]), lambda x: [np.zeros((3, 1))]).infer([request])


class Evil:
    """A pickle that would write a file when it is loaded."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.write_text, (self.path, "run")


def saved(torch, path: Path, weights: dict, evil: Path, **more) -> Path:
    """A zip as Stable-Baselines3 writes it; what JSON cannot hold is a pickle, here one that must not be loaded."""
    pickled = base64.b64encode(pickle.dumps(Evil(evil))).decode()
    space = {":type:": "<class 'gymnasium.spaces.box.Box'>", ":serialized:": pickled}
    data = {
        "policy_class": {":type:": "<class 'abc.ABCMeta'>", ":serialized:": pickled},
        "policy_kwargs": {},
        "use_sde": False,
        "action_space": {**space, "low": "[-2. -1.]", "high": "[2.e+00 1.e+00]"},
        **more,
    }
    stored = io.BytesIO()
    torch.save({name: torch.tensor(value, dtype=torch.float32) for name, value in weights.items()}, stored)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", json.dumps(data))
        archive.writestr("policy.pth", stored.getvalue())
    return path


def linear(rng, out: int, into: int, name: str) -> dict:
    return {f"{name}.weight": rng.normal(size=(out, into)), f"{name}.bias": rng.normal(size=out)}


def test_a_ppo_of_stable_baselines_is_read_without_running_its_code(torch, tmp_path):
    rng, evil = np.random.default_rng(0), tmp_path / "evil"
    weights = linear(rng, 8, 2, "mlp_extractor.policy_net.0") | linear(rng, 8, 8, "mlp_extractor.policy_net.2")
    weights |= linear(rng, 2, 8, "action_net") | linear(rng, 1, 8, "value_net") | {"log_std": np.zeros(2)}
    policy = stable_baselines_policy(saved(torch, tmp_path / "ppo.zip", weights, evil), SPEC)
    x = np.array([0.5, -0.25])
    for name in ("mlp_extractor.policy_net.0", "mlp_extractor.policy_net.2"):
        x = np.tanh(weights[f"{name}.weight"] @ x + weights[f"{name}.bias"])
    expected = np.clip(weights["action_net.weight"] @ x + weights["action_net.bias"], [-2, -1], [2, 1])
    assert np.allclose(policy.act(SEEN), expected, atol=1e-5)
    assert not evil.exists()


@pytest.mark.parametrize("algorithm", ["sac", "td3"])
def test_squashed_actions_span_their_bounds(torch, tmp_path, algorithm):
    rng = np.random.default_rng(1)
    first, last = ("actor.latent_pi.0", "actor.mu") if algorithm == "sac" else ("actor.mu.0", "actor.mu.2")
    weights = linear(rng, 6, 2, first) | linear(rng, 2, 6, last) | linear(rng, 1, 4, "critic.qf0.0")
    kwargs = {"activation_fn": "<class 'torch.nn.modules.activation.Tanh'>"}
    network = read_stable_baselines(saved(torch, tmp_path / "x.zip", weights, tmp_path / "e", policy_kwargs=kwargs))
    x = np.array([[0.5, -0.25]])
    hidden = np.tanh(x @ weights[f"{first}.weight"].T + weights[f"{first}.bias"])
    mean = hidden @ weights[f"{last}.weight"].T + weights[f"{last}.bias"]
    assert np.allclose(network(x), np.tanh(mean) * [2, 1], atol=1e-5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"action_space": {":type:": "<class 'gymnasium.spaces.discrete.Discrete'>"}}, "continuous actions"),
        ({"policy_kwargs": {"activation_fn": "<class 'my.Own'>"}}, "activation Own, which is not known"),
        ({"action_space": {":type:": "Box", "low": "[-1. ... -1.]", "high": "[1.]"}}, "does not say the low bounds"),
    ],
)
def test_what_stable_baselines_saved_but_cannot_be_read_is_said(torch, tmp_path, change, words):
    rng = np.random.default_rng(0)
    weights = linear(rng, 2, 2, "action_net")
    with pytest.raises(BadInput, match=words):
        read_stable_baselines(saved(torch, tmp_path / "x.zip", weights, tmp_path / "e", **change))


def test_weights_that_are_code_are_not_loaded(torch, tmp_path):
    evil = tmp_path / "evil"
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("data", "{}")
        archive.writestr("policy.pth", pickle.dumps({"action_net.weight": Evil(evil)}))
    with pytest.raises(BadInput, match="is not plain weights, so it is not loaded"):
        read_stable_baselines(tmp_path / "x.zip")
    assert not evil.exists()
    with zipfile.ZipFile(tmp_path / "y.zip", "w") as archive:
        archive.writestr("data", "{}")
    with pytest.raises(BadInput, match=r"has no 'policy\.pth'"):
        read_stable_baselines(tmp_path / "y.zip")
    (tmp_path / "z.zip").write_text("no zip")
    with pytest.raises(BadInput, match="cannot be read as a zip"):
        read_stable_baselines(tmp_path / "z.zip")


def checkpoint(folder: Path, inputs: dict, actions: int = 2) -> Path:
    folder.mkdir(parents=True)
    features = {"input_features": inputs, "output_features": {"action": {"type": "ACTION", "shape": [actions]}}}
    (folder / "config.json").write_text(json.dumps({"type": "act", "chunk_size": 10, **features}))
    (folder / "model.safetensors").write_bytes(b"")
    return folder


STATE_2 = {"observation.state": {"type": "STATE", "shape": [2]}}


@pytest.mark.parametrize(
    ("inputs", "actions", "words"),
    [
        ({"observation.state": {"type": "STATE", "shape": [6]}}, 2, "takes 6 numbers as 'observation.state', but 2"),
        (STATE_2, 7, "has 7 actions, but this world takes 2"),
        (
            {**STATE_2, "observation.images.front": {"type": "VISUAL", "shape": [3, 4, 6]}},
            2,
            "takes 'observation.images.front', and nothing of this world is given as that",
        ),
    ],
)
def test_a_lerobot_checkpoint_of_another_robot_is_refused_before_lerobot_is_loaded(tmp_path, inputs, actions, words):
    folder = checkpoint(tmp_path / "pretrained_model", inputs, actions)
    with pytest.raises(BadInput, match=words):
        lerobot_policy(str(folder), WIDE)
    with pytest.raises(BadInput, match=words):
        lerobot_policy(str(tmp_path), WIDE)


def test_a_lerobot_checkpoint_needs_lerobot(tmp_path, monkeypatch):
    import sys

    folder = checkpoint(tmp_path / "checkpoint", STATE_2)
    assert policy_kind(str(folder))[0] == "lerobot" and not policy_kind(str(tmp_path))[0]
    monkeypatch.setitem(sys.modules, "lerobot.configs.policies", None)
    with pytest.raises(MissingExtra, match="LeRobot is not installed, and this needs it"):
        lerobot_policy(str(folder), SPEC)
    (folder / "config.json").write_text("{")
    with pytest.raises(BadInput, match=r"config\.json' is not valid JSON"):
        lerobot_policy(str(folder), SPEC)


def test_a_policy_with_lerobot_s_contract_is_a_policy(torch):
    class Contract(torch.nn.Module):
        def reset(self) -> None:
            self.calls = 0

        def select_action(self, batch):
            assert batch["observation.images.top"].shape[1:] == (3, 4, 6)
            assert float(batch["observation.images.top"].max()) == 1.0
            return batch["observation.state"] + 1

    mapped = lerobot_map(IMAGES, default_map(IMAGES, "go"))
    policy = Chunked(MappedPolicy(lerobot_client(Contract(), mapped), mapped, IMAGES))
    policy.reset()
    seen = {**SEEN, "observation.images.top": np.full((4, 6, 3), 255, np.uint8)}
    assert np.allclose(policy.act(seen), [1.5, 0.75], atol=1e-6)
    policy.reset()
    assert policy.act({name: np.stack([value] * 2) for name, value in seen.items()}).shape == (2, 2)
