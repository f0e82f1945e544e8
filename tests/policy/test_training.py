"""Cloning: a planted behaviour is learned, a training goes on where it stopped, and weights are never trusted."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from instep import BadInput, Episode, UnknownName
from instep.core.world import Channel, vector
from instep.policy.flow_policy import FlowPolicy, load_policy, read_policy
from instep.policy.policy_inputs import FlowNet, PolicyInputs, read_weights, time_features, write_weights
from small_specs import joints_spec

SPEC = joints_spec(["x", "y"], "m", goal=vector(["gx", "gy"], "m"))


def towards(seed: int, rows: int = 40) -> Episode:
    """Walks a twentieth of the way to the goal at each step; the action is where to go next."""
    rng = np.random.default_rng(seed)
    x, goal = rng.uniform(-1, 1, 2), rng.uniform(-1, 1, 2)
    states, actions = [], []
    for _ in range(rows):
        action = x + 0.05 * (goal - x)
        states.append(x)
        actions.append(action)
        x = action
    columns = {
        "observation.state": np.array(states),
        "observation.goal": np.tile(goal, (rows, 1)),
        "action": np.array(actions),
    }
    return Episode(SPEC, columns)


@pytest.fixture(scope="module")
def learned(tmp_path_factory, torch) -> Path:
    from instep.policy.training import TrainOptions, train

    folder = tmp_path_factory.mktemp("policy")
    options = TrainOptions(
        steps=500, checkpoint_every=250, batch=64, width=64, blocks=2, horizon=8, execute=4, threads=1
    )
    return train([towards(seed) for seed in range(60)], folder, options)


def walk(policy, steps: int = 80) -> np.ndarray:
    """How far the goal is in the end, of a batch of walks the policy never saw."""
    rng = np.random.default_rng(999)
    x, goal = rng.uniform(-1, 1, (16, 2)), rng.uniform(-1, 1, (16, 2))
    begin = np.linalg.norm(goal - x, axis=1)
    policy.reset()
    for _ in range(steps):
        x = policy.act({"observation.state": x, "observation.goal": goal})
    return np.linalg.norm(goal - x, axis=1) / begin


def test_a_planted_behaviour_is_learned(learned):
    assert np.median(walk(load_policy(learned, SPEC))) < 0.25


def test_a_policy_without_cameras_runs_without_torch(learned):
    program = (
        "import sys; sys.modules['torch'] = None; import json, numpy as np; from pathlib import Path\n"
        "from instep.policy.flow_policy import read_policy, FlowPolicy\n"
        f"p = FlowPolicy(*read_policy(Path({str(learned)!r})))\n"
        "o = {'observation.state': np.zeros((2, 2)), 'observation.goal': np.ones((2, 2))}\n"
        "print(json.dumps(p.infer(o).tolist()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    here = FlowPolicy(*read_policy(learned)).infer(
        {"observation.state": np.zeros((2, 2)), "observation.goal": np.ones((2, 2))}
    )
    assert np.allclose(json.loads(done.stdout), here, atol=1e-6)


def test_the_net_in_numpy_is_the_net_that_was_trained(learned, torch):
    from instep.policy.networks import TorchFlowNet

    _, tensors = read_policy(learned)
    own = {k.removeprefix("net."): v for k, v in tensors.items() if k.startswith("net.")}
    net = TorchFlowNet(4, 16, 64, 2)
    net.load_state_dict({k: torch.from_numpy(v) for k, v in own.items()})
    rng = np.random.default_rng(0)
    seen, x = rng.normal(size=(5, 4)).astype("f4"), rng.normal(size=(5, 16)).astype("f4")
    with torch.no_grad():
        expected = net(torch.from_numpy(seen), torch.from_numpy(x), torch.full((5, 1), 0.3)).numpy()
    assert np.allclose(FlowNet(own)(seen, x, 0.3), expected, atol=1e-4)


def test_the_flow_carries_noise_to_where_a_known_field_ends():
    class Still(FlowNet):
        __slots__ = ()

        def __call__(self, seen, x, t):
            return (seen - x) / max(1e-3, 1 - t)  # the field whose straight lines all end at `seen`

    end = Still({}).flow(np.full((3, 2), 2.0, "f4"), np.random.default_rng(0).normal(size=(3, 2)), 50)
    assert np.allclose(end, 2.0, atol=0.05)
    assert time_features(np.float32(0.0)).tolist() == [0.0] * 8 + [1.0] * 8


def test_the_same_seed_gives_the_same_chunk_and_another_gives_another(learned):
    policy = FlowPolicy(*read_policy(learned))
    seen = {"observation.state": np.zeros((3, 2)), "observation.goal": np.ones((3, 2))}
    policy.reset(5)
    first, second = policy.infer(seen), policy.infer(seen)
    assert not np.array_equal(first, second) and not np.array_equal(first[0], first[1])
    policy.reset(5)
    assert np.array_equal(policy.infer(seen), first)
    policy.reset(6)
    assert not np.array_equal(policy.infer(seen), first)


def test_a_training_goes_on_where_it_stopped_as_if_it_had_not(tmp_path, torch):
    from instep.policy.training import TrainOptions, train

    episodes = [towards(seed, 20) for seed in range(6)]
    options = TrainOptions(steps=60, checkpoint_every=20, batch=16, width=16, blocks=1, horizon=4, execute=2, threads=1)
    whole = read_weights(train(episodes, tmp_path / "whole", options) / "weights.safetensors")

    class Stop(Exception):
        pass

    def stop(now):
        if now.step == 40:
            raise Stop

    with pytest.raises(Stop):
        train(episodes, tmp_path / "parts", options, progress=stop)
    seen = []
    train(episodes, tmp_path / "parts", options, progress=lambda now: seen.append(now.step))
    assert seen == [60]
    parts = read_weights(tmp_path / "parts/weights.safetensors")
    assert all(np.array_equal(whole[name], parts[name]) for name in whole)
    with pytest.raises(BadInput, match="other options"):
        train(episodes, tmp_path / "parts", replace(options, learning_rate=1e-4))


def test_a_policy_learns_from_images_where_things_are(tmp_path, torch):
    torch.set_num_threads(1)
    from instep.policy.flow_policy import load_policy
    from instep.policy.training import TrainOptions, train

    spec = replace(
        SPEC,
        observation={
            "observation.state": vector(["x", "y"], "m"),
            "observation.images.top": Channel(("height", "width", "channels"), "", (48, 64, 3), "uint8"),
        },
    )

    def seen(goal: np.ndarray) -> np.ndarray:
        image = np.zeros((48, 64, 3), np.uint8)
        row, column = int(24 - 16 * goal[1]), int(32 + 16 * goal[0])
        image[row - 3 : row + 3, column - 3 : column + 3] = 255, 80, 0
        return image

    rng = np.random.default_rng(0)
    episodes = []
    for _ in range(40):
        goal = rng.uniform(-1, 1, 2)
        columns = {
            "observation.state": np.zeros((4, 2)),
            "observation.images.top": np.repeat(seen(goal)[None], 4, axis=0),
            "action": np.tile(goal, (4, 1)),
        }
        episodes.append(Episode(spec, columns))
    options = TrainOptions(
        steps=220, checkpoint_every=220, batch=32, width=48, blocks=1, horizon=2, execute=1, threads=1,
        cameras=("top",), image_size=32, learning_rate=3e-3,
    )  # fmt: skip
    policy = load_policy(train(episodes, tmp_path, options), spec)
    goals = rng.uniform(-1, 1, (40, 2))
    policy.reset()
    said = policy.act(
        {"observation.state": np.zeros((40, 2)), "observation.images.top": np.stack([seen(g) for g in goals])}
    )
    assert np.corrcoef(said[:, 0], goals[:, 0])[0, 1] > 0.8
    assert np.corrcoef(said[:, 1], goals[:, 1])[0, 1] > 0.8


def test_poses_become_places_and_axes():
    labels = ["tee.x", "tee.y", "tee.z", "tee.qw", "tee.qx", "tee.qy", "tee.qz"]
    spec = replace(SPEC, observation={"observation.environment_state": vector(["extra", *labels])})
    inputs = PolicyInputs.of(spec)
    half = np.sqrt(0.5)
    features = inputs.features({"observation.environment_state": np.array([7, 1, 2, 3, half, 0, 0, half])})
    assert np.allclose(features, [7, 1, 2, 3, 0, 1, 0, -1, 0, 0])
    flipped = inputs.features({"observation.environment_state": np.array([7, 1, 2, 3, -half, 0, 0, -half])})
    assert np.allclose(features, flipped), "a quaternion and its negative are one orientation"


POSE = ["tee.x", "tee.y", "tee.z", "tee.qw", "tee.qx", "tee.qy", "tee.qz"]
PLANE = replace(
    SPEC,
    observation={
        "observation.state": vector(["x", "y"], "m"),
        "observation.velocity": vector(["x", "y"], "m/s"),
        "observation.environment_state": vector(POSE),
    },
)


def lying(angle: float, place: np.ndarray, point: np.ndarray, rows: int = 6) -> Episode:
    """A stick at a point of a block's frame that is always sent 0.1 along the block's own x."""
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    pose = np.array([*place, 0.0, np.cos(angle / 2), 0.0, 0.0, np.sin(angle / 2)])
    stick = place + turn @ point
    columns = {
        "observation.state": np.tile(stick, (rows, 1)),
        "observation.velocity": np.tile(turn @ [0.3, 0.0], (rows, 1)),
        "observation.environment_state": np.tile(pose, (rows, 1)),
        "action": np.tile(stick + turn @ [0.1, 0.0], (rows, 1)),
    }
    return Episode(PLANE, columns)


def test_in_the_frame_of_a_block_a_push_is_one_push_however_it_lies():
    from instep.policy.training import TrainOptions, describe_policy, training_data

    rng = np.random.default_rng(3)
    episodes = [lying(angle, rng.uniform(-1, 1, 2), np.array([-0.1, 0.02])) for angle in rng.uniform(-3, 3, 7)]
    description = describe_policy(episodes, TrainOptions(frame=("x", "y", "tee"), horizon=4, execute=2))
    data = training_data(episodes, description)
    assert np.allclose(data.chunks, np.tile([0.1, 0.0], 4), atol=1e-6)
    assert np.allclose(data.features[:, 7:9], [-0.1, 0.02], atol=1e-6), "where the stick is"
    assert np.allclose(data.features[:, -2:], [0.3, 0.0], atol=1e-6), "how it moves"
    assert data.features.shape[1] == 27, "nothing of the world's frame is left"
    plain = describe_policy(episodes, TrainOptions(horizon=4, execute=2))
    assert np.ptp(training_data(episodes, plain).chunks, axis=0).max() > 0.1
    again = PolicyInputs.from_json(json.loads(json.dumps(asdict(description.inputs))))
    assert again == description.inputs


def test_what_is_said_in_the_frame_of_a_block_is_done_in_the_world():
    from instep.policy.training import TrainOptions, describe_policy

    episodes = [lying(1.1, np.array([0.2, -0.4]), np.array([0.05, 0.0]))]
    description = describe_policy(episodes, TrainOptions(frame=("x", "y", "tee"), horizon=3, execute=2))
    seen = {name: episodes[0][name] for name in description.inputs.channels}
    steps = np.random.default_rng(0).normal(size=(6, 3, 2))
    there = description.rotated(seen, steps, into="body")
    assert not np.allclose(there, steps)
    assert np.allclose(description.rotated(seen, there, into="world"), steps)
    one = {name: value[0] for name, value in seen.items()}
    assert np.allclose(description.rotated(one, steps[0], into="body"), there[0]), "one world is a batch of one"


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (("x", "z", "tee"), "no joint named 'z'"),
        (("x", "y", "block"), "no body named 'block'"),
    ],
)
def test_a_frame_of_things_that_are_not_there_is_refused(frame, words):
    from instep.policy.training import TrainOptions, describe_policy

    with pytest.raises(UnknownName, match=words):
        describe_policy([lying(0.0, np.zeros(2), np.zeros(2))], TrainOptions(frame=frame))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"action": vector(["y", "x"], "m")}, BadInput, "was trained for another robot or order"),
        ({"dt": 0.01}, BadInput, "trained at 50 Hz, and this world runs at 100 Hz"),
        ({"observation": {"observation.state": vector(["x", "y"], "m")}}, UnknownName, "no observation named"),
        (
            {"observation": {**SPEC.observation, "observation.goal": vector(["gy", "gx"], "m")}},
            BadInput,
            "the first that differs is 'gx'",
        ),
    ],
)
def test_a_policy_is_not_run_in_a_world_it_was_not_trained_for(learned, change, error, words):
    with pytest.raises(error, match=words):
        load_policy(learned, replace(SPEC, **change))


def test_weights_that_are_not_finite_are_refused(learned, tmp_path):
    tensors = read_weights(learned / "weights.safetensors")
    tensors["net.output.bias"][0] = np.nan
    (tmp_path / "policy.json").write_bytes((learned / "policy.json").read_bytes())
    write_weights(tmp_path / "weights.safetensors", tensors)
    with pytest.raises(BadInput, match=r"'net.output.bias' of weights.safetensors is not finite"):
        load_policy(tmp_path, SPEC)


def forged(header: object, data: bytes = b"", size: int | None = None) -> bytes:
    head = json.dumps(header).encode() if not isinstance(header, bytes) else header
    return struct.pack("<Q", len(head) if size is None else size) + head + data


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"1234",
        forged({}, size=2**60),
        forged(b"{not json"),
        forged([1, 2]),
        forged({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}),
        forged({"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 4]}}, b"\0" * 4),
        forged({"a": {"dtype": "O", "shape": [1], "data_offsets": [0, 8]}}, b"\0" * 8),
        forged({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, b"\0" * 4),
        forged({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}, b"\0" * 4),
        forged({"a": 3}),
        forged({f"t{i}": {} for i in range(10_001)}),
    ],
)
def test_forged_weights_are_refused(tmp_path, raw):
    (tmp_path / "w.safetensors").write_bytes(raw)
    with pytest.raises(BadInput):
        read_weights(tmp_path / "w.safetensors")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kind": "flow", "version": 1}', '{"kind": "other", "version": 1}'])
def test_a_description_that_cannot_be_read_is_refused(tmp_path, text):
    (tmp_path / "policy.json").write_text(text)
    with pytest.raises(BadInput):
        read_policy(tmp_path)


def test_what_cannot_be_trained_on_is_said(tmp_path, torch):
    from instep.policy.training import TrainOptions, train

    with pytest.raises(BadInput, match="there are none"):
        train([], tmp_path)
    with pytest.raises(UnknownName, match="no camera named 'front'"):
        train([towards(0)], tmp_path, TrainOptions(cameras=("front",)))
    with pytest.raises(BadInput, match="not on 'abacus'"):
        train([towards(0)], tmp_path, TrainOptions(device="abacus"))
    other = replace(towards(1), spec=replace(SPEC, action=vector(["a", "b"], "m")))
    with pytest.raises(BadInput, match="different actions"):
        train([towards(0), other], tmp_path)
