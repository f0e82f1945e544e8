"""Drawers, doors and lids in rendered images: errors of joints that no sensor measures, searched and followed.

Cabinets of random sizes, colours, light and cameras; noise and late images as elsewhere. They are not the hardest ones:
what moves differs in colour from the cabinet, the light is soft, a lid does not fall by itself, and joints take some
seconds to open. Seeds below 100 are for development; what is reported comes from others.
"""

from __future__ import annotations

import tempfile
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import numpy as np

from harness import Row, row
from instep.core.episode import Episode
from instep.core.rollout import Script, rollout
from instep.core.world import Array
from instep.data.frames import encode_png
from instep.physics.engines import open_world
from instep.physics.mujoco_cameras import ImageEffects
from instep.robot import Recording
from instep.scene.camera import Camera, look_at, pinhole
from instep.scene.camera_files import camera_element
from instep.scene.folder import Scene
from instep.twin import Twin, TwinOptions, correction_log
from instep.twin.tracking import block_median, correction_of
from rendered_recordings import RenderOptions, render_recording
from tracking_rendered import clutter

HELD_OUT, QUICK = tuple(range(100, 112)), (100, 101, 102)
RATE, ROWS, BEGIN = 30.0, 90, 5
SIZE = (640, 480)
LOST_MM, LOST_DEG = 20.0, 15.0
"""Errors from which a joint counts as lost."""
APART = 0.3
"""Least distance of the colours of what moves from that of the cabinet, each channel from 0 to 1."""
XML = """
<mujoco><compiler angle="radian"/><option timestep="0.0033333333"/>
  <visual>
    <global offwidth="640" offheight="480"/><headlight ambient="{ambient} {ambient} {ambient}" specular="0 0 0"/>
  </visual>
  <asset>
    <texture name="floor" type="2d" file="floor.png"/><material name="floor" texture="floor" texrepeat="2 2"/>
  </asset>
  <worldbody>
    <light pos="{light}" dir="{along}" diffuse="0.4 0.4 0.4"/>
    <geom type="plane" size="1.5 1.5 0.1" material="floor"/>{cameras}
    <body name="cabinet" pos="0 0 {h}">
      <geom type="box" size="{d} {w} 0.01" pos="0 0 {top}" rgba="{cabinet}"/>
      <geom type="box" size="{d} {w} 0.01" pos="0 0 -{top}" rgba="{cabinet}"/>
      <geom type="box" size="{d} 0.01 {h}" pos="0 {side} 0" rgba="{cabinet}"/>
      <geom type="box" size="{d} 0.01 {h}" pos="0 -{side} 0" rgba="{cabinet}"/>
      <geom type="box" size="0.01 {w} {h}" pos="-{back} 0 0" rgba="{cabinet}"/>
      <body name="drawer" pos="0.02 0 {upper}">
        <joint name="drawer" type="slide" axis="1 0 0" range="0 {d}" damping="5"/>
        <geom type="box" size="0.01 {front} {half}" pos="{d} 0 0" rgba="{panel}" mass="0.5"/>
        <geom type="box" size="{inner} {narrow} {low}" rgba="{tray}" mass="1"/>
      </body>
      <body name="door" pos="{d} -{front} -{upper}">
        <joint name="door" type="hinge" axis="0 0 1" range="-1.5 0" damping="0.5"/>
        <geom type="box" size="0.008 {front} {half}" pos="0.01 {front} 0" rgba="{leaf}" mass="0.8"/>
      </body>
      <body name="lid" pos="-{back} 0 {over}" gravcomp="1">
        <joint name="lid" type="hinge" axis="0 -1 0" range="0 1.6" damping="0.5"/>
        <geom type="box" size="{d} {w} 0.008" pos="{d} 0 0" rgba="{cover}" mass="0.8"/>
      </body>
    </body>
  </worldbody>
</mujoco>
"""


def jointed_rows(quick: bool) -> list[Row]:
    """The rows of the held-out cabinets."""
    with tempfile.TemporaryDirectory() as place:
        found = [tracked(Path(place) / str(seed), seed) for seed in (QUICK if quick else HELD_OUT)]
    slid, turned = (np.concatenate([one[i] for one in found]) for i in (0, 1))
    lost = np.concatenate([slid > LOST_MM, turned > LOST_DEG])
    work = np.concatenate([one[2] for one in found])
    return [
        row("drawers: median error", block_median(slid, "mm"), at_most=1.5),
        row("drawers: 95 % of errors within", float(np.quantile(slid, 0.95)), "mm", at_most=6.0),
        row("doors and lids: median error", block_median(turned, "deg"), at_most=0.7),
        row("doors and lids: 95 % of errors within", float(np.quantile(turned, 0.95)), "deg", at_most=3.0),
        row("drawers, doors and lids: lost", 100 * float(lost.mean()), "% of frames", at_most=1.0),
        row("drawers, doors and lids: median work per frame", block_median(work, "ms")),
    ]


def tracked(folder: Path, seed: int) -> tuple[Array, Array, Array]:
    """Errors of the drawer [mm], of door and lid [degrees] and the work per frame [ms] by the twin at its defaults."""
    scene, episode = cabinet(folder, seed)
    options, cameras = TwinOptions(), tuple(scene.cameras.values())
    correct = correction_of(scene, options.rig(scene, cameras), options)
    run = rollout(Twin(open_world(scene), Recording(episode), correct), Script(episode.action), steps=len(episode))
    away = np.abs(run.q - episode.q)[BEGIN:]
    assert set(correction_log(run)) >= {f"{name}.nis" for name in scene.jointed}
    return 1e3 * away[:, 0], np.degrees(away[:, 1:]).ravel(), 1e3 * run["twin.stages"][BEGIN:].sum(axis=1)


def cabinet(folder: Path, seed: int) -> tuple[Scene, Episode]:
    """A cabinet by its seed, and a recording in which its drawer, door and lid move."""
    rng = np.random.default_rng((seed, 0xCAB))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "floor.png").write_bytes(encode_png(clutter(rng)))
    d, w, h = rng.uniform([0.15, 0.15, 0.2], [0.22, 0.22, 0.28])
    plain = rng.uniform(0.2, 0.9, 3)
    colours = {name: _words(np.append(_other(plain, rng), 1.0)) for name in ("panel", "tray", "leaf", "cover")}
    colours["cabinet"] = _words(np.append(plain, 1.0))
    light = rng.uniform([0.2, -1, 1.5], [1.5, 1, 2.2])
    views = [_camera(i, float(h), rng) for i in range(1 + seed % 2)]
    sizes = {
        "d": d, "w": w, "h": h, "top": h - 0.01, "side": w - 0.01, "back": d - 0.01, "upper": h / 2, "front": w - 0.02,
        "half": h / 2 - 0.02, "inner": d - 0.02, "narrow": w - 0.04, "low": h / 2 - 0.05, "over": h + 0.01,
    }  # fmt: skip
    xml = XML.format(
        ambient=round(float(rng.uniform(0.4, 0.5)), 2), light=_words(light), along=_words(-light),
        cameras="".join(ET.tostring(camera_element(view), encoding="unicode") for view in views), **colours,
        **{name: f"{value:.4f}" for name, value in sizes.items()},
    )  # fmt: skip
    (folder / "scene.xml").write_text(xml)
    named = "".join(f"[cameras.{view.name}]\n" for view in views)
    (folder / "scene.toml").write_text(
        f'model = "scene.xml"\nrate = {RATE}\n[objects]\njointed = ["drawer", "door", "lid"]\n{named}'
    )
    scene = Scene.load(folder)
    effects = ImageEffects(float(rng.uniform(0.85, 1.05)), tuple(rng.uniform(0.94, 1.06, 3).tolist()), 3.0)
    episode = _moved(scene, rng)
    return scene, render_recording(scene, episode, RenderOptions(effects=effects, latency_rows=1, seed=seed))


def _moved(scene: Scene, rng: np.random.Generator) -> Episode:
    """Joints that open and close within most of their range, and rest at times."""
    t, limits = np.arange(ROWS) / RATE, scene.model.jnt_range
    q = np.empty((ROWS, len(limits)))
    for j, (low, high) in enumerate(limits):
        period, phase = rng.uniform(5.0, 9.0), rng.uniform(0, 2 * np.pi)
        share = np.clip(0.5 + 0.6 * np.sin(2 * np.pi * t / period + phase), 0.0, 0.9)
        q[:, j] = low + (high - low) * (share if high > 0 and low == 0 else 1 - share)
    spec = scene.spec
    columns = {"q": q, "v": np.gradient(q, 1 / RATE, axis=0), "action": np.zeros((ROWS, 0)), "timestamp": t}
    return Episode(spec, columns, {"name": "cabinet"})


def _camera(number: int, height: float, rng: np.random.Generator) -> Camera:
    angle = rng.uniform(0.3, 0.9) * (1 if number else -1)
    away = rng.uniform(1.2, 1.6)
    eye = np.array([away * np.cos(angle), away * np.sin(angle), height + rng.uniform(0.5, 0.8)])
    place = look_at(eye, np.array([0.1, 0.0, height]))
    return replace(pinhole(f"view{number}", SIZE, 50.0), body_from_camera=place)


def _other(plain: Array, rng: np.random.Generator) -> Array:
    """A colour that differs from the cabinet's."""
    while True:
        found = rng.uniform(0.2, 0.9, 3)
        if np.linalg.norm(found - plain) > APART:
            return found


def _words(values: Array) -> str:
    return " ".join(f"{value:.3f}" for value in values)
