"""Policies from images: demonstrations from failure states, without the pose of the T.

The study of `policies` with a virtual camera in place of object poses: a static one, and one mounted on the stick.
Images of 96 x 96 are rendered from Gaussians at what the simulated robot's sensors report, late and noisy. The policy
observes the joints of the stick and one image; its pose estimator is trained on the poses in the demonstrations.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import policies
from harness import Row

CAMERAS = ("static", "gripper")


def run(out: Path, quick: bool = False) -> list[Row]:
    """Do the study with each camera."""
    plan = policies.QUICK if quick else policies.Plan()
    rows: list[Row] = []
    for camera in CAMERAS:
        for one in policies.study(out / camera, replace(plan, camera=camera, virtual=0)):
            name = str(one["name"])
            rows.append({**one, "name": name if name.startswith(" ") else f"{camera} camera: {name}"})
    return rows
