"""A scene with stairs: steps up from the floor, then a landing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import mujoco
import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array
from instep.scene import address

from .folder import Scene
from .model import compile_model, named_spec, observation_reader
from .model_source import ModelSource

Ground = Callable[[Array], Array]
"""Height of the ground [...] at points [..., 2]."""
FIRST_M = 0.8
"""Where the first step begins, forward of the start [m]."""
DEPTH_M = 0.35
"""Depth of a step [m]."""
COUNT = 4
"""Steps up, the landing among them."""
WIDTH_M, LANDING_M = 2.4, 12.0
MAX_RISE_M = 0.4


def with_stairs(scene: Scene, rise: float) -> Scene:
    """The scene with stairs whose steps rise by so much [m], ahead of where the robot starts, across x."""
    if not 0 < rise <= MAX_RISE_M:
        raise BadInput(f"Steps of stairs rise by more than 0 and at most {MAX_RISE_M:g} m, not {rise:g} m.")
    spec = named_spec(scene.source)
    for number in range(COUNT):
        begin = FIRST_M + number * DEPTH_M
        half = (LANDING_M if number == COUNT - 1 else DEPTH_M) / 2
        height = rise * (number + 1)
        shade = 0.5 + 0.06 * number
        spec.worldbody.add_geom(
            name=f"step{number + 1}", type=mujoco.mjtGeom.mjGEOM_BOX, size=[half, WIDTH_M / 2, height / 2],
            pos=[begin + half, 0.0, height / 2], rgba=[shade, shade, shade + 0.05, 1.0],
        )  # fmt: skip
    spec.compile()
    source = ModelSource(scene.source.path, str(spec.to_xml()), scene.source.files)
    model = compile_model(source)
    known = set(address.addresses(model))
    settings = {name: value for name, value in scene.settings.items() if name in known}
    model = address.write(model, settings) if settings else model
    read = observation_reader(model, scene.dt, scene.robot, scene.objects)
    read = replace(read, spec=replace(read.spec, action=scene.spec.action))
    return replace(scene, model=model, reader=read, source=source, settings=settings)


def ground_of(model: mujoco.MjModel) -> Ground | None:
    """Height of the ground at points [..., 2]: tops of level boxes that are fixed to the world; None without any."""
    boxes = [
        g for g in range(model.ngeom)
        if model.geom_type[g] == int(mujoco.mjtGeom.mjGEOM_BOX) and model.geom_bodyid[g] == 0
        and abs(model.geom_quat[g, 0]) > 1 - 1e-6 and model.geom_contype[g] and model.geom_pos[g, 2] > 0
    ]  # fmt: skip
    if not boxes:
        return None
    centre, half = model.geom_pos[boxes].copy(), model.geom_size[boxes].copy()

    def heights(points: Array) -> Array:
        off = np.abs(points[..., None, :] - centre[:, :2])
        return np.where((off <= half[:, :2]).all(axis=-1), centre[:, 2] + half[:, 2], 0.0).max(axis=-1)

    return heights


def landing_m() -> float:
    """Where the last step begins, forward of the start [m]."""
    return FIRST_M + (COUNT - 1) * DEPTH_M
