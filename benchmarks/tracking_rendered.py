"""Rendered truth for tracking: errors of poses, lost frames and NIS.

Seeds below 100 are for development; what is reported comes from others.
"""

from __future__ import annotations

import json
import tempfile
import xml.etree.ElementTree as ET
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from harness import Row, mean, row
from instep.core.episode import Episode
from instep.core.poses import angle_between, matrix_from_quat, pose, quat_exp, quat_mul, transform
from instep.core.rollout import Script, rollout
from instep.core.world import Array
from instep.data.frames import encode_png
from instep.physics.engines import open_world
from instep.physics.mujoco_cameras import ImageEffects, MujocoRenderer
from instep.robot import Recording
from instep.scene.camera import Camera, look_at, pinhole
from instep.scene.camera_files import camera_element
from instep.scene.folder import Scene
from instep.twin import Twin, TwinOptions, correction_log
from instep.twin.tracking import block_median, correction_of
from rendered_recordings import RenderOptions, with_images

HELD_OUT = tuple(range(100, 112))
QUICK = (100, 101, 102, 103)
LOST_MM, LOST_DEG = 20.0, 15.0
"""Errors from which a body counts as lost."""
BEGIN = 5
"""Rows that are not scored."""


@dataclass(frozen=True)
class Scored:
    """Errors of one tracker on one body: millimetres and degrees [rows]."""

    body: str
    cameras: int
    far: Array
    turned: Array

    @property
    def lost(self) -> Array:
        return (self.far > LOST_MM) | (self.turned > LOST_DEG)


@dataclass(frozen=True)
class Tracked:
    """One scene: errors of the twin, and NIS."""

    twin: list[Scored]
    nis: Array
    covered: Array
    """Whether the error of a position is within two of the standard deviations that the twin reports [rows]."""
    work_ms: Array


def rendered_rows(scans: Path | None, quick: bool) -> list[Row]:
    """The rows of the held-out scenes."""
    with tempfile.TemporaryDirectory() as place:
        found = [tracked(render_scene(Path(place) / str(seed), scans, seed)) for seed in (QUICK if quick else HELD_OUT)]
    several = [s for one in found for s in one.twin if s.cameras > 1]
    single = [s for one in found for s in one.twin if s.cameras == 1]
    out = _errors("rendered, two or three cameras", several, (1.5, 0.7, 6.0, 3.0, 1.0))
    out += _errors("rendered, one camera", single, (4.0, 1.5, None, None, None))
    nis = np.concatenate([one.nis for one in found])
    out.append(row("rendered: mean NIS over its expectation", mean(nis / 3)))
    out.append(row("rendered: NIS, distance of that from 1", abs(float(nis.mean()) / 3 - 1), at_most=0.2))
    covered = np.concatenate([one.covered for one in found])
    out.append(row("rendered: errors within two standard deviations", mean(100.0 * covered, "%")))
    work = np.concatenate([one.work_ms for one in found])
    out.append(row("rendered: median work per frame, all bodies", block_median(work, "ms")))
    return out


def _errors(what: str, scored: list[Scored], goals: tuple[float | None, ...]) -> list[Row]:
    if not scored:
        return []
    far, turned = (np.concatenate([getattr(s, name) for s in scored]) for name in ("far", "turned"))
    lost = np.concatenate([s.lost for s in scored])
    middle, angle, worst, worst_angle, most = goals
    high, high_angle = float(np.quantile(far, 0.95)), float(np.quantile(turned, 0.95))
    return [
        row(f"{what}: median error", block_median(far, "mm"), at_most=middle),
        row(f"{what}: median error, orientation", block_median(turned, "deg"), at_most=angle),
        row(f"{what}: 95 % of errors within", high, "mm", at_most=worst),
        row(f"{what}: 95 % of errors within, orientation", high_angle, "deg", at_most=worst_angle),
        row(f"{what}: lost", 100 * float(lost.mean()), "% of frames", at_most=most),
    ]


def tracked(given: RenderedScene) -> Tracked:
    """Track one scene by the twin at its defaults."""
    scene, episode = given.scene, given.episode
    options, cameras = TwinOptions(start=given.starts), tuple(scene.cameras.values())
    correct = correction_of(scene, options.rig(scene, cameras), options)
    twin = Twin(open_world(scene), Recording(episode), correct)
    run = rollout(twin, Script(episode.action), steps=len(episode))
    log = correction_log(run)
    own = [
        _scored(given, body, run.q[:, i : i + 7]) for body in scene.objects
        for i in [scene.spec.q.labels.index(f"{body}.x")]
    ]  # fmt: skip
    nis = np.concatenate([log[f"{body}.nis"][BEGIN:] for body in scene.objects])
    sigmas = [1e3 * log[f"{body}.sigma"][BEGIN:] for body in scene.objects]
    covered = np.concatenate([one.far <= 2 * sigma for one, sigma in zip(own, sigmas, strict=True)])
    stages = run["twin.stages"][BEGIN:]
    return Tracked(own, nis[np.isfinite(nis)], covered, 1e3 * stages.sum(axis=1))


def _scored(given: RenderedScene, body: str, poses: Array) -> Scored:
    true = given.truth(body)
    far = 1e3 * np.linalg.norm(poses[:, :3] - true[:, :3], axis=1)
    turned = np.degrees(angle_between(poses[:, 3:], true[:, 3:]))
    if given.shapes[body] in ROUND:
        axes = np.sum(matrix_from_quat(poses[:, 3:])[..., 2] * matrix_from_quat(true[:, 3:])[..., 2], axis=-1)
        turned = np.degrees(np.arccos(np.clip(axes, -1, 1)))
    return Scored(body, len(given.scene.cameras), far[BEGIN:], turned[BEGIN:])


RATE = 30.0
SIZE = (480, 360)
LENS = (-0.06, 0.02, 0.0, 0.0, 0.0)
"""Distortion of the lenses, which the twin knows."""
ARM_SHARE = 0.4
"""Share of the frames in which the arm stands in front of a body."""
SCANS = (
    "Crayola_Crayons_Washable_24_crayons", "FIRE_TRUCK", "Dino_4", "ACE_Coffee_Mug_Kristen_16_oz_cup",
    "Cole_Hardware_Deep_Bowl_Good_Earth_1075",
)  # fmt: skip
ROUND = ("Cole_Hardware_Deep_Bowl_Good_Earth_1075", "cylinder")
"""Bodies whose heading no image shows."""
GREY = {
    "box": '<geom type="box" size="0.05 0.035 0.025" pos="0 0 0.025" rgba="{0} {0} {0} 1"/>',
    "cylinder": '<geom type="cylinder" size="0.035 0.04" pos="0 0 0.04" rgba="{0} {0} {0} 1"/>',
    "angle": '<geom type="box" size="0.06 0.02 0.02" pos="0 0.04 0.02" rgba="{0} {0} {0} 1"/>'
    '<geom type="box" size="0.02 0.04 0.02" pos="0.04 -0.02 0.02" rgba="{0} {0} {0} 1"/>',
}
"""Grey shapes, standing on their origin, by name; the grey level is filled in."""
XML = """
<mujoco>
  <option timestep="0.00333333333"/>
  <visual><headlight ambient="{ambient} {ambient} {ambient}" diffuse="0.1 0.1 0.1" specular="0 0 0"/>
    <quality shadowsize="2048" offsamples="4"/><global offwidth="480" offheight="360"/><map znear="0.01" zfar="20"/>
  </visual>
  <asset>{assets}<texture name="table" type="2d" file="table.png"/>
    <material name="table" texture="table" texrepeat="1 1" texuniform="true" specular="0.1"/></asset>
  <worldbody>
    <light pos="{light}" dir="{along}" diffuse="0.6 0.57 0.52" specular="0.3 0.3 0.3" castshadow="true"/>
    <geom type="plane" size="3 3 .1" material="table" friction="0.5"/>
    <body name="carriage" pos="0 0 0"><joint name="arm_x" type="slide" axis="1 0 0" range="-3 3" damping="1"/>
      <geom type="sphere" size="0.01" pos="0 0 0.5" mass="0.5" contype="0" conaffinity="0" rgba="0.3 0.3 0.32 1"/>
      <body name="arm"><joint name="arm_y" type="slide" axis="0 1 0" range="-3 3" damping="1"/>
        <geom type="capsule" fromto="0 0 0.04 0 0 0.4" size="0.022" mass="0.5" contype="0" conaffinity="0"
              rgba="0.75 0.75 0.78 1"/>
        <geom type="capsule" fromto="0 0 0.4 0.25 0 0.5" size="0.03" mass="0.5" contype="0" conaffinity="0"
              rgba="0.2 0.2 0.22 1"/></body></body>
    {bodies}{cameras}
  </worldbody>
  <actuator><position name="arm_x" joint="arm_x" kp="2000" kv="200"/>
    <position name="arm_y" joint="arm_y" kp="2000" kv="200"/></actuator>
</mujoco>
"""


@dataclass(frozen=True)
class RenderedScene:
    """A scene, what its cameras recorded, and the truth."""

    scene: Scene
    episode: Episode
    starts: Path
    """Where bodies are in the first images, as a user would give it: off by about a millimetre and half a degree."""
    shapes: dict[str, str]
    """What each body is: a scan or a grey shape."""

    def truth(self, body: str) -> Array:
        """Poses of a body [rows, 7]."""
        at = self.scene.spec.q.labels.index(f"{body}.x")
        return self.episode.q[:, at : at + 7]


def render_scene(folder: Path, scans: Path | None, seed: int, rows: int = 60) -> RenderedScene:
    """A scene of 1 to 4 bodies and 1 to 3 cameras, by its seed, with its recording."""
    rng = np.random.default_rng((seed, 0x7AC))
    count, views = 1 + seed % 4, 1 + (seed // 2) % 3
    known = [*(SCANS if scans is not None else ()), *GREY]
    picked = [str(name) for name in rng.permutation(known)[:count]]
    folder.mkdir(parents=True, exist_ok=True)
    scene = _written(folder, scans, picked, views, rng)
    episode = _moved(scene, rows, rng)
    renderer = MujocoRenderer(scene)
    effects = ImageEffects(float(rng.uniform(0.85, 1.05)), tuple(rng.uniform(0.94, 1.06, 3).tolist()), 3.0)
    shown = with_images(
        scene, episode, lambda name, row: renderer.render(episode.q[row], scene.cameras[name]),
        RenderOptions(effects=effects, latency_rows=1, seed=seed),
    )  # fmt: skip
    renderer.close()
    starts = folder / "start.json"
    at = {body: _clicked(shown.q[0], scene, body, rng) for body in scene.objects}
    starts.write_text(json.dumps({body: {"pose": list(map(float, given))} for body, given in at.items()}))
    shapes = {f"b{i}": shape for i, shape in enumerate(picked)}
    return RenderedScene(scene, shown, starts, shapes)


def _written(folder: Path, scans: Path | None, picked: list[str], views: int, rng: np.random.Generator) -> Scene:
    assets, bodies = "", ""
    for i, name in enumerate(picked):
        geom = GREY.get(name, "").format(round(float(rng.uniform(0.3, 0.7)), 2))
        if name in SCANS and scans is not None:
            for kind in ("model.obj", "texture.png"):
                (folder / f"b{i}_{kind}").write_bytes((scans / name / kind).read_bytes())
            assets += (
                f'<mesh name="b{i}" file="b{i}_model.obj"/><texture name="b{i}" type="2d" file="b{i}_texture.png"/>'
            )
            assets += f'<material name="b{i}" texture="b{i}" specular="0.1"/>'
            geom = f'<geom type="mesh" mesh="b{i}" material="b{i}"/>'
        angle = 2 * np.pi * i / len(picked) + float(rng.uniform(0, 1))
        out = (0.0, 0.1, 0.13, 0.14)[len(picked) - 1]
        x, y = out * np.cos(angle), out * np.sin(angle)
        place = f'pos="{x:.4f} {y:.4f} 0" euler="0 0 {rng.uniform(0, 360):.1f}"'
        bodies += f'<body name="b{i}" {place}><freejoint name="b{i}"/>{geom}</body>'
    (folder / "table.png").write_bytes(encode_png(clutter(rng)))
    placed = "".join(ET.tostring(camera_element(c), encoding="unicode") for c in _cameras(views, rng))
    light = rng.uniform([-1, -1, 1.5], [1, 1, 2])
    xml = XML.format(
        ambient=round(float(rng.uniform(0.25, 0.4)), 2), assets=assets, bodies=bodies, cameras=placed,
        light=" ".join(f"{v:.2f}" for v in light), along=" ".join(f"{-v:.2f}" for v in light),
    )  # fmt: skip
    (folder / "scene.xml").write_text(xml)
    lens = "".join(f"[cameras.view{i}]\ndistortion = {list(LENS)}\n" for i in range(views))
    names = ", ".join(f'"b{i}"' for i in range(len(picked)))
    (folder / "scene.toml").write_text(
        f'model = "scene.xml"\nrate = {RATE}\n[robot]\njoints = ["arm_x", "arm_y"]\n'
        f"[objects]\nbodies = [{names}]\n{lens}"
    )
    return Scene.load(folder)


def _cameras(views: int, rng: np.random.Generator) -> list[Camera]:
    plain = pinhole("view", SIZE, 50.0)
    turn = float(rng.uniform(0, 2 * np.pi))
    found: list[Camera] = []
    for i in range(views):
        angle = turn + i * float(rng.uniform(1.4, 2.2))
        eye = np.array([0.55 * np.cos(angle), 0.55 * np.sin(angle), float(rng.uniform(0.38, 0.55))])
        aim = np.array([*rng.uniform(-0.02, 0.02, 2), 0.03])
        found.append(replace(plain, name=f"view{i}", body_from_camera=look_at(eye, aim)))
    return found


def clutter(rng: np.random.Generator, size: int = 1024) -> Array:
    """A table top of a metre: streaks, and papers and stains of all colours."""
    from scipy.ndimage import gaussian_filter

    streaks = gaussian_filter(rng.normal(size=(size, size)), (30, 3), mode="wrap")
    fine = gaussian_filter(rng.normal(size=(size, size)), 2.0, mode="wrap")
    image = (0.55 + 0.07 * streaks / streaks.std() + 0.04 * fine / fine.std())[..., None] * rng.uniform(0.7, 1.0, 3)
    for _ in range(40):
        x, y = rng.integers(0, size, 2)
        w, h = rng.integers(20, 160, 2)
        image[y : y + h, x : x + w] = 0.6 * image[y : y + h, x : x + w] + 0.4 * rng.uniform(0, 1, 3)
    return (255 * np.clip(image, 0, 1)).astype(np.uint8)


def _moved(scene: Scene, rows: int, rng: np.random.Generator) -> Episode:
    """Bodies that slide and turn, one after the other and together, and an arm that stands in front of them."""
    q0 = _settled(scene)
    q, t = np.tile(q0, (rows, 1)), np.arange(rows) / RATE
    labels = scene.spec.q.labels
    for body in scene.objects:
        at = labels.index(f"{body}.x")
        begin, end = float(rng.uniform(0.2, 0.8)), float(rng.uniform(1.2, 1.9))
        share = np.clip((t - begin) / (end - begin), 0, 1)
        share = share * share * (3 - 2 * share)
        # Away from the others: a real body does not pass through another one.
        outwards = float(np.arctan2(q0[at + 1], q0[at])) if len(scene.objects) > 1 else float(rng.uniform(0, 2 * np.pi))
        angle = outwards + float(rng.uniform(-0.6, 0.6))
        away = float(rng.uniform(0.03, 0.08)) * np.array([np.cos(angle), np.sin(angle)])
        turn = float(rng.uniform(-0.8, 0.8))
        q[:, at : at + 2] += share[:, None] * away
        for k in range(rows):
            q[k, at + 3 : at + 7] = quat_mul(quat_exp(np.array([0, 0, turn * share[k]])), q0[at + 3 : at + 7])
    x, y = labels.index("arm_x"), labels.index("arm_y")
    q[:, [x, y]] = _arm(scene, q, rows, rng)
    columns = {"timestamp": t, "q": q, "v": np.zeros((rows, len(scene.spec.v.labels))), "action": q[:, [x, y]]}
    return Episode(open_world(scene).spec, columns)


def _settled(scene: Scene) -> Array:
    """The start after a second at rest: a body stands on its own foot, which scans do not have quite even."""
    world = open_world(scene)
    q, v = scene.start(0)
    state = world.place(q, v)
    for _ in range(round(1 / scene.dt)):
        state = world.step(state, q[[scene.spec.q.labels.index(name) for name in ("arm_x", "arm_y")]])
    return np.asarray(state.q)


def _arm(scene: Scene, q: Array, rows: int, rng: np.random.Generator) -> Array:
    """Positions of the arm [rows, 2]: away, then on the line from a camera to a body, with a smooth way between."""
    from scipy.ndimage import uniform_filter1d

    body, camera = str(rng.choice(scene.objects)), scene.cameras[str(rng.choice(list(scene.cameras)))]
    at = scene.spec.q.labels.index(f"{body}.x")
    away = np.array([1.2, 1.2])
    first = int(rng.integers(rows // 6, rows // 2))
    front = (np.arange(rows) >= first) & (np.arange(rows) < first + round(ARM_SHARE * rows))
    between = q[:, at : at + 2] + 0.22 * (camera.body_from_camera[:2, 3] - q[:, at : at + 2])
    side = 0.06 * np.sin(np.arange(rows) / 6.0)[:, None] * np.array([1.0, -1.0])
    return uniform_filter1d(np.where(front[:, None], between + side, away), 5, axis=0, mode="nearest")


def _clicked(q: Array, scene: Scene, body: str, rng: np.random.Generator) -> Array:
    at = scene.spec.q.labels.index(f"{body}.x")
    T = transform(q[at : at + 7])
    T[:2, 3] += rng.normal(0, 1e-3, 2)
    turned = transform(np.concatenate([np.zeros(3), quat_exp(np.array([0, 0, np.radians(0.5) * rng.normal()]))]))
    T[:3, :3] = turned[:3, :3] @ T[:3, :3]
    return pose(T)
