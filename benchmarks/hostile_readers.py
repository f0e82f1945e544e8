"""Readers of policies, messages, rules and results, and the list of all readers of anything from outside."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from hostile_data import data_targets
from hostile_scenes import JOINTS, Target, episode, gaussian_targets, image_targets, scene_targets, writer
from instep.core.reading import read_file
from instep.core.world import Spec, vector


def targets() -> dict[str, Target]:
    """All readers by name."""
    found = [
        *scene_targets(), *gaussian_targets(), *image_targets(), *data_targets(), *policy_targets(), *rule_targets(),
    ]  # fmt: skip
    return {target.name: target for target in found}


def policy_spec() -> Spec:
    return Spec(
        0.02,
        vector(JOINTS, "rad"),
        vector(JOINTS, "rad/s"),
        vector(JOINTS, "rad"),
        {"observation.state": vector(JOINTS, "rad")},
    )


def write_flow_policy(folder: Path) -> None:
    from instep.policy.flow_policy import TIME_FREQUENCIES, PolicyDescription, PolicyInputs, save_policy

    inputs = PolicyInputs({"observation.state": tuple(JOINTS)})
    description = PolicyDescription(inputs, tuple(JOINTS), (False, False), 4, 2, 3, 0.02)
    wide, size, rng = 6, 8, np.random.default_rng(0)

    def weights(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    taken = inputs.size + size + 2 * TIME_FREQUENCIES
    tensors: Mapping[str, np.ndarray] = {
        "scale.feature_mean": weights(inputs.size), "scale.feature_size": np.ones(inputs.size, np.float32),
        "scale.action_mean": weights(size), "scale.action_size": np.ones(size, np.float32),
        "net.input.weight": weights(wide, taken), "net.input.bias": weights(wide),
        "net.block0.norm.weight": weights(wide), "net.block0.norm.bias": weights(wide),
        "net.block0.up.weight": weights(wide, wide), "net.block0.up.bias": weights(wide),
        "net.block0.down.weight": weights(wide, wide), "net.block0.down.bias": weights(wide),
        "net.norm.weight": weights(wide), "net.norm.bias": weights(wide),
        "net.output.weight": weights(size, wide), "net.output.bias": weights(size),
    }  # fmt: skip
    save_policy(folder / "policy", description, tensors)


def read_flow_policy(folder: Path) -> None:
    from instep.policy.flow_policy import load_policy

    policy = load_policy(folder / "policy", policy_spec())
    policy.reset()
    policy.act({"observation.state": np.zeros(2)})


POLICY_MAP = """prompt = "wave"
execute = 2

[[state]]
key = "state"
joints = ["shoulder", "elbow"]
scale = [1.0, 2.0]

[[action]]
key = "actions"
joints = ["shoulder", "elbow"]
kind = "absolute"
"""


def read_policy_map(folder: Path) -> None:
    from instep.policy.policy_map import checked_map, read_map

    checked_map(read_map(folder / "map.toml"), policy_spec())


def write_checkpoint(folder: Path) -> None:
    (folder / "checkpoint").mkdir()
    features = {"observation.state": {"type": "STATE", "shape": [2]}}
    config = {
        "type": "act",
        "input_features": features,
        "output_features": {"action": {"type": "ACTION", "shape": [2]}},
    }
    (folder / "checkpoint/config.json").write_text(json.dumps(config))
    (folder / "checkpoint/model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")


def read_checkpoint(folder: Path) -> object:
    from instep.core.errors import MissingExtra
    from instep.policy.policy_specs import lerobot_policy

    try:
        return lerobot_policy(str(folder / "checkpoint"), policy_spec())
    except MissingExtra:
        return None  # all that is ours has read it


def write_stable_baselines(folder: Path) -> None:
    import zipfile

    with zipfile.ZipFile(folder / "model.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data", json.dumps({"action_space": {":type:": "Box", "low": "[-1. -1.]", "high": "[1. 1.]"}}))
        archive.writestr("policy.pth", b"no weights")


def read_stable_baselines_zip(folder: Path) -> object:
    from instep.policy.model_files import read_stable_baselines

    return read_stable_baselines(folder / "model.zip")


def read_model(name: str, opener: str) -> Callable[[Path], object]:
    def read(folder: Path) -> object:
        from instep.policy import model_files

        return getattr(model_files, opener)(folder / name, policy_spec())

    return read


def write_policy_message(folder: Path) -> None:
    from instep.policy.openpi import pack

    (folder / "message.bin").write_bytes(pack({"actions": np.zeros((4, 2), np.float32), "state": np.ones(2)}))


def read_policy_message(folder: Path) -> object:
    from instep.policy.openpi import unpack

    return unpack(read_file(folder / "message.bin"))


def write_link_message(folder: Path) -> None:
    from instep.robot.wire import Command, pack

    (folder / "message.bin").write_bytes(pack(Command("c", 3, 5, np.zeros(2))))


def read_link_message(folder: Path) -> object:
    from instep.robot.wire import unpack

    return unpack(read_file(folder / "message.bin"))


def policy_targets() -> list[Target]:
    return [
        Target(
            "policy folder", write_flow_policy, read_flow_policy, ("policy/policy.json", "policy/weights.safetensors")
        ),
        Target("policy map", writer("map.toml", POLICY_MAP), read_policy_map, ("map.toml",)),
        Target("LeRobot checkpoint", write_checkpoint, read_checkpoint, ("checkpoint/config.json",)),
        Target(
            "Stable-Baselines3 zip", write_stable_baselines, read_stable_baselines_zip, ("model.zip",), needs="torch"
        ),
        Target(
            "TorchScript",
            writer("model.pt", b"no network"),
            read_model("model.pt", "torchscript_policy"),
            ("model.pt",),
            needs="torch",
        ),
        Target(
            "ONNX",
            writer("model.onnx", b"no network"),
            read_model("model.onnx", "onnx_policy"),
            ("model.onnx",),
            needs="onnxruntime",
        ),
        Target("message of a policy server", write_policy_message, read_policy_message, ("message.bin",)),
        Target("message of a robot", write_link_message, read_link_message, ("message.bin",)),
    ]


GATE = """scene = "pusht"
worlds = ["mujoco"]
seeds = 4
first = 10000

[parity]
one_step = 0.5

[variations.nominal]

[variations.late]
latency = 2
randomize = ["geom.*.friction=0.3..0.5"]

[[rule]]
measure = "success"
at_least = 0.7

[[rule]]
measure = "gap"
at_most = 0.15
by = "value"
"""
EVENTS = """[[event]]
name = "lifted"
signal = "shoulder"
above = 0.5
leave = 0.4
dwell = 0.1
from_start = true
"""
RATES = "task,policy,real,sim,n_real_trials,n_sim_trials\n" + "".join(
    f"push,p{k},{0.1 * k + 0.1:.2f},{0.1 * k + 0.2:.2f},20,100\n" for k in range(5)
)


def read_gate(folder: Path) -> object:
    from instep.evaluate.policy_gate import read_gate_rules

    return read_gate_rules(folder / "rules.toml")


def read_events(folder: Path) -> object:
    from instep.gap.events import find_events, read_event_rules

    rules = read_event_rules(folder / "events.toml")
    return find_events(episode(cameras=False), rules)


def read_agreement(folder: Path) -> object:
    from instep.evaluate.agreement import rank_agreements, read_rates

    return rank_agreements(read_rates(folder / "rates.csv"))


def rule_targets() -> list[Target]:
    """Tables that users write: rules and rates."""
    return [
        Target(
            "gate rules",
            writer("rules.toml", GATE),
            read_gate,
            ("rules.toml",),
            ("gate", "expert", "{folder}/rules.toml"),
        ),
        Target("event rules", writer("events.toml", EVENTS), read_events, ("events.toml",)),
        Target("success rates", writer("rates.csv", RATES), read_agreement, ("rates.csv",)),
    ]
