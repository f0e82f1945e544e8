"""The normalised joint error and forward kinematics against published vectors."""

from __future__ import annotations

import numpy as np
import pytest

from instep import BadInput, Episode, MujocoWorld, Scene, Script, rollout
from instep.core.poses import transform
from instep.core.statistics import Estimate
from instep.gap.joint_error import Arm, arms_of, joint_error_profile, mse_norm, profile_scores, tip_poses
from instep.gap.paired_runs import compare_runs

JOINTS = tuple(f"j{i}" for i in range(6))
RANGES = {**{j: 2.0 + i for i, j in enumerate(JOINTS)}, "grip": 0.044}
ARM = Arm("left", JOINTS, "grip", RANGES)
WIDTH = np.array([RANGES[label] for label in ARM.labels])

# WXAI: tip in the frame of the arm's base, from the joint table of its description.
GOLDEN = [
    ([0, 0, 0, 0, 0, 0], [0.253762, 0, 0.163500], np.eye(3)),
    (
        [0, np.pi / 3, np.pi / 6, np.pi / 5, 0, 0],
        [0.381554, 0, 0.288013],
        [[0.994522, 0, -0.104528], [0, 1, 0], [0.104528, 0, 0.994522]],
    ),
    (
        [0.3, 1.0, 0.8, -0.4, 0.5, -0.6],
        [0.331268, 0.009627, 0.205847],
        [[0.83363, -0.206638, 0.512212], [-0.243967, 0.694242, 0.677133], [-0.49552, -0.689441, 0.528328]],
    ),
]


def test_every_channel_off_by_a_tenth_of_its_range():
    sim, real = 0.1 * WIDTH[None], np.zeros((1, 7))
    assert np.sqrt(mse_norm(sim, real, ARM))[0] == pytest.approx(0.1)


def test_only_continuous_joints_are_wrapped():
    turned = np.array([[5.0] * 6 + [0.0]])
    limited = mse_norm(turned, -turned, ARM)
    free = mse_norm(turned, -turned, Arm("left", JOINTS, "grip", RANGES, wrapping=JOINTS))
    assert limited[0] > free[0]


def test_a_range_that_is_not_known_is_asked_for():
    with pytest.raises(BadInput, match="range of 'grip'"):
        Arm("left", JOINTS, "grip", {**RANGES, "grip": 0.0})


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("q", "position", "rotation"), GOLDEN)
def test_the_tip_of_the_trossen_arm_is_where_its_description_puts_it(side, q, position, rotation):
    scene = Scene.load("mobile_ai")
    arm = next(a for a in arms_of(scene) if a.name == side)
    labels = scene.spec.q.labels
    row = np.tile(scene.model.qpos0, (2, 1))
    row[:, [labels.index(joint) for joint in arm.joints]] = [[0.0] * 6, q]
    rest, made = transform(tip_poses(scene, Episode(scene.spec, {"q": row}), [arm])[:, 0])
    # The description gives poses in the frame of the arm's base; the first pose says where that stands.
    base = rest @ np.linalg.inv(_pose(GOLDEN[0]))
    np.testing.assert_allclose(np.linalg.inv(base) @ made, _pose((q, position, rotation)), atol=1e-5)


def _pose(golden):
    matrix = np.eye(4)
    matrix[:3, 3], matrix[:3, :3] = golden[1], golden[2]
    return matrix


def test_a_bimanual_run_in_two_engines_gives_the_four_panels():
    from instep import RapierWorld

    scene = Scene.load("mobile_ai")
    sims = [MujocoWorld(scene), RapierWorld(scene)]
    t = np.arange(90) / 60
    commanded = np.tile(scene.rest_action(), (90, 1))
    commanded[:, 0] += 0.4 * np.sin(3 * t)
    commanded[:, 8] += 0.3 * np.sin(2 * t)
    runs = [rollout(sim, Script(commanded), steps=90, seed=3) for sim in sims]
    gap = compare_runs([runs[0]], [runs[1]])
    shown = joint_error_profile(gap.pairs[0], arms_of(scene), scene)
    assert set(shown.rmse) == {"left", "right"} == set(shown.position) == set(shown.orientation)
    assert len(shown.overall) == 90 and np.isfinite(shown.overall).all() and shown.overall.max() > 0
    np.testing.assert_allclose(shown.overall**2, (shown.rmse["left"] ** 2 + shown.rmse["right"] ** 2) / 2)
    assert sum(v for k, v in shown.shares.items() if k.startswith("left")) == pytest.approx(1.0)
    scores = profile_scores([shown])
    assert isinstance(scores["RMSE_norm"], Estimate) and scores["tip position left"].unit == "m"
