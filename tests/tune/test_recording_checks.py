"""Recordings that do not belong to a scene as they are: each is refused with its cause."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from instep import Episode, MujocoWorld, Script, rollout
from instep.core.errors import BadInput
from instep.tune import TuneOptions, identify
from instep.tune.recording_checks import recording_problems, recording_warnings, scene_problems
from small_models import arm_model, write_scene

QUICK = TuneOptions(window=0.5, windows=12, seeds=3, draws=2)
DEGREES = 180 / np.pi


@pytest.fixture(scope="module")
def arm(tmp_path_factory) -> MujocoWorld:
    model = arm_model('damping="0.3" range="-150 150"', 'damping="0.1" range="-150 150"')
    return MujocoWorld(write_scene(tmp_path_factory.mktemp("arm") / "arm", model, ["shoulder", "elbow"]))


@pytest.fixture(scope="module")
def runs(arm) -> list[Episode]:
    """Two runs with a motion of its own for each joint, and noise of 0.1 mrad."""
    found = []
    for seed in range(2):
        rng, t = np.random.default_rng(seed), np.arange(150)[:, None] * 0.02
        waves = [a * np.sin(2 * np.pi * f * t + p) for a, f, p in rng.uniform([0.1, 0.2, 0], [0.3, 1.0, 6], (4, 2, 3)
                 ).transpose(0, 2, 1)]  # fmt: skip
        run = rollout(arm, Script(np.sum(waves, axis=0)), steps=150)
        q = run.q + 1e-4 * rng.standard_normal(run.q.shape)
        found.append(Episode(run.spec, {"timestamp": run.t, "q": q, "action": run.action}, {"name": f"run {seed}"}))
    return found


def changed(runs: list[Episode], **columns) -> list[Episode]:
    """The runs with columns computed from each."""
    return [run.with_columns({name: make(run) for name, make in columns.items()}) for run in runs]


def test_sound_recordings_have_no_problems(arm, runs):
    assert scene_problems(arm.scene, runs) == [] and recording_problems(runs) == [] and recording_warnings(runs) == []


@pytest.mark.parametrize(
    ("columns", "cause"),
    [
        ({"q": lambda run: run.q[:, ::-1].copy()}, "answered by 'elbow' rather than by 'shoulder'"),
        ({"q": lambda run: DEGREES * run.q}, "positions of 'shoulder' look like degrees"),
        ({"action": lambda run: DEGREES * run.action}, "commands of 'shoulder' look like degrees"),
        ({"q": lambda run: DEGREES * (run.q + 0.5), "action": lambda run: DEGREES * (run.action + 0.5)}, "in degrees"),
        ({"q": lambda run: -run.q}, "moves against its command"),
        ({"q": lambda run: 1e-3 * np.random.default_rng(1).standard_normal(run.q.shape)}, "noise alone"),
        ({"q": lambda run: np.zeros_like(run.q)}, "No joint moves"),
    ],
    ids=["swapped", "positions in degrees", "commands in degrees", "all in degrees", "sign", "noise", "still"],
)
def test_recordings_that_do_not_belong_are_refused_with_their_cause(arm, runs, columns, cause):
    with pytest.raises(BadInput, match=cause):
        identify(arm.scene, changed(runs, **columns), options=QUICK)


def test_recordings_of_another_robot_are_refused(arm, runs):
    def renamed(run):
        spec = replace(
            run.spec,
            q=replace(run.spec.q, labels=("hip", "knee")),
            v=replace(run.spec.v, labels=("hip", "knee")),
            action=replace(run.spec.action, labels=("hip", "knee")),
        )
        return Episode(spec, run.columns, run.meta)

    with pytest.raises(BadInput, match="another robot"):
        identify(arm.scene, [renamed(run) for run in runs], options=QUICK)
    with pytest.raises(BadInput, match="'shoulder'"):
        identify(arm.scene, [renamed(run) for run in runs], ["joint.*.damping"], QUICK)


def test_a_joint_that_only_rattles_is_named(runs):
    def still_elbow(run):
        rng = np.random.default_rng(3)
        return np.stack([run.q[:, 0], 1e-3 * rng.standard_normal(len(run.q))], axis=1)

    quiet = changed(runs, q=still_elbow)
    assert recording_problems(quiet) == []
    assert recording_warnings(quiet) == ["elbow never moved, so their parameters are not identifiable."]
