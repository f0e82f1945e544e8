"""The pose estimator of an image policy: it finds a body, and the policy acts on the estimate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from instep import BadInput, Episode, UnknownName
from instep.core.world import vector
from instep.policy.policy_inputs import POSES
from instep.scene.tasks.manipulation_tasks import heading
from small_specs import joints_spec

POSE = [f"block.{part}" for part in ("x", "y", "z", "qw", "qx", "qy", "qz")]
SPEC = joints_spec(["x", "y"], "m", top=(32, 32), environment_state=vector(["lid.angle", *POSE]))
BLIND = replace(SPEC, observation={k: v for k, v in SPEC.observation.items() if k != POSES})


def image(place: np.ndarray, angle: float) -> np.ndarray:
    """A bright block with a red head, from 1.6 m wide above."""
    v, u = np.mgrid[:32, :32]
    across, along = (u + 0.5) / 20 - 0.8 - place[0], 0.8 - (v + 0.5) / 20 - place[1]
    front = np.cos(angle) * across + np.sin(angle) * along
    side = np.cos(angle) * along - np.sin(angle) * across
    body = np.clip(4 - 20 * np.maximum(np.abs(front) - 0.3, np.abs(side) - 0.15), 0, 4) / 4
    out = np.zeros((32, 32, 3))
    out[..., 0] = 255 * body
    out[..., 1] = 255 * body * (front < 0)
    return out.astype(np.uint8)


def pushed(seed: int, rows: int = 12) -> Episode:
    """A block that lies anywhere; the stick is sent 0.1 m along the block's own x from where it stands."""
    rng = np.random.default_rng(seed)
    place, angle = rng.uniform(-0.4, 0.4, (rows, 2)), rng.uniform(-1.2, 1.2, rows)
    stick = rng.uniform(-0.4, 0.4, (rows, 2))
    pose = np.column_stack([place, np.zeros(rows), np.cos(angle / 2), np.zeros((rows, 2)), np.sin(angle / 2)])
    columns = {
        "observation.state": stick,
        POSES: np.column_stack([np.full(rows, 9.0), pose]),
        "observation.images.top": np.stack([image(p, a) for p, a in zip(place, angle, strict=True)]),
        "action": stick + 0.1 * np.column_stack([np.cos(angle), np.sin(angle)]),
    }
    return Episode(SPEC, columns)


@pytest.fixture(scope="module")
def options(torch):
    from instep.policy.training import TrainOptions

    return TrainOptions(
        steps=200, checkpoint_every=200, batch=32, width=32, blocks=1, horizon=1, execute=1, threads=1,
        learning_rate=8e-3,
        image_size=32, ema_decay=0.95, images_per_step=32, frame=("x", "y", "block"), cameras=("top",),
        channels=("observation.state",),
    )  # fmt: skip


@pytest.fixture(scope="module")
def learned(tmp_path_factory, options) -> Path:
    from instep.policy.training import train

    return train([pushed(seed) for seed in range(50)], tmp_path_factory.mktemp("spot"), options)


def test_a_block_is_found_at_poses_that_are_not_in_the_data(learned):
    from instep.policy.flow_policy import load_policy

    pose_estimator, unseen = load_policy(learned, BLIND).policy.pose_estimator, pushed(999, 40)
    said = pose_estimator(unseen.columns, (40,))
    true = unseen[POSES][:, 1:]
    assert np.median(np.hypot(*(said - true)[:, :2].T)) < 0.06, "the block may lie anywhere within 0.8 m"
    angle = (heading(said[:, 3:]) - heading(true[:, 3:]) + np.pi) % (2 * np.pi) - np.pi
    assert np.median(np.abs(angle)) < 0.4
    assert pose_estimator({k: v[0] for k, v in unseen.columns.items()}, ()).shape == (7,)


def test_a_policy_acts_on_the_estimated_pose(learned):
    from instep.policy.flow_policy import load_policy

    policy, unseen = load_policy(learned, BLIND), pushed(998, 40)
    policy.reset()
    given = {name: unseen[name] for name in BLIND.observation}
    step, wanted = policy.act(given) - unseen["observation.state"], unseen.action - unseen["observation.state"]
    cosine = (step * wanted).sum(axis=1) / np.linalg.norm(step, axis=1) / np.linalg.norm(wanted, axis=1)
    assert np.median(cosine) > 0.85
    lying = {**given, POSES: np.zeros((40, 8))}
    policy.reset()
    assert np.array_equal(policy.act(lying) - unseen["observation.state"], step), "a pose is not used"


@pytest.mark.parametrize("lost", ["pose.nets.0.conv.0.weight", "scale.pose_mean"])
def test_weights_of_another_policy_are_refused(learned, tmp_path, lost):
    from instep.policy.flow_policy import load_policy, read_policy, save_policy

    description, tensors = read_policy(learned)
    save_policy(tmp_path, description, {name: value for name, value in tensors.items() if name != lost})
    with pytest.raises(BadInput, match="they are not of this policy"):
        load_policy(tmp_path, BLIND)


def test_the_network_learns_from_poses_with_noise(options):
    from instep.policy.training import describe_policy, training_data

    episodes = [pushed(seed) for seed in range(20)]
    description = describe_policy(episodes, options)
    sure, doubtful = training_data(episodes, description), training_data(episodes, description, (0.02, 0.1))
    assert np.allclose(sure.chunks, np.tile([0.1, 0.0], (len(sure.chunks), 1)), atol=1e-6)
    turn = np.arctan2(doubtful.chunks[:, 1], doubtful.chunks[:, 0])
    assert 0.08 < turn.std() < 0.12
    assert np.array_equal(sure.poses, doubtful.poses), "targets are without noise"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"frame": ("x", "y", "brick")}, "no body named 'brick'"),
        ({"channels": ("observation.goal",)}, "needs observation.state"),
    ],
)
def test_estimating_what_is_not_in_the_data_is_refused(options, change, words):
    from instep.policy.training import describe_policy

    with pytest.raises((UnknownName, BadInput), match=words):
        describe_policy([pushed(0)], replace(options, **change))
