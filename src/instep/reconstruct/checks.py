"""Checks of a scene: shapes, inertia, contacts, rest in two engines, and the views of a reconstruction.

They work on any scene; views and held-out images are read from build.json if it is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import mujoco
import numpy as np

from instep.core.errors import BadInput, Diverged, Unsupported
from instep.core.poses import angle_between
from instep.core.reading import read_json_table
from instep.core.rollout import rest_action
from instep.core.world import frozen_dataclass
from instep.physics.engines import Engine, open_world
from instep.scene.folder import Scene

from .scene_formats import mesh_triangles
from .shape.cavities import cavity_words
from .shape.triangle_mesh import TriangleMesh, hull_mesh, joined, welded

CheckState = Literal["green", "amber", "red", "unknown"]
ORDER: tuple[CheckState, ...] = ("unknown", "green", "amber", "red")
"""From the best to the worst."""
SECONDS = 2.0
"""Simulated time of the rest check [s]."""
_CONTAINER = "A container: unseen parts of its inside are filled, so weigh it, and check its depth."
_ONE_VIEW = "One view does not show the far side, nor anything that is not upright."


@frozen_dataclass
class Finding:
    """One check of one thing."""

    check: str
    subject: str
    """The object, or the scene."""
    state: CheckState
    value: str
    """The measured value, with its unit."""
    message: str
    """Meaning, and what to do if it is not green."""


def check_scene(scene: Scene, engines: Sequence[Engine] = ("mujoco", "rapier")) -> tuple[Finding, ...]:
    """Check a scene: every object, then the scene at rest in each engine, then the record of its reconstruction."""
    if not scene.objects:
        raise BadInput(f"Scene {scene.name!r} has no objects that move freely, so there is nothing to check.")
    findings: list[Finding] = []
    for name in scene.objects:
        findings += _object_findings(scene.model, name)
    data = mujoco.MjData(scene.model)
    data.qpos[:] = scene.start(0)[0]
    mujoco.mj_forward(scene.model, data)
    findings += _cavities(scene, data)
    findings += _penetrations(scene, data)
    for engine in engines:
        findings += _settling(scene, engine)
    findings += _record_findings(scene)
    return tuple(findings)


def worst_state(findings: Sequence[Finding]) -> CheckState:
    """The worst state among some findings."""
    return ORDER[max((ORDER.index(finding.state) for finding in findings), default=0)]


def _object_findings(model: Any, name: str) -> list[Finding]:
    body = int(model.body(name).id)
    geoms = [g for g in range(model.ngeom) if model.geom_bodyid[g] == body]
    touching = [g for g in geoms if model.geom_contype[g] or model.geom_conaffinity[g]]
    surfaces = [g for g in geoms if g not in touching and model.geom_dataid[g] >= 0]
    found = [_inertia(model, body, name), _size(model, touching or geoms, name)]
    if not touching:
        return [
            *found,
            Finding("contacts", name, "red", "0 parts", "Nothing of it touches anything; add convex parts."),
        ]
    meshes = [_geom_mesh(model, g) for g in surfaces or [g for g in touching if model.geom_dataid[g] >= 0]]
    if not meshes:
        return found
    closed = [mesh.watertight and mesh.volume > 0 for mesh in meshes]
    found.append(
        Finding("watertight", name, "green" if all(closed) else "red", f"{sum(closed)} of {len(closed)} meshes",
                "Every edge has two faces." if all(closed) else "A mesh has holes, so it has no volume; close it.")
    )  # fmt: skip
    if surfaces and all(closed):
        found.append(_parts_volume(model, touching, meshes, name))
    return found


def _cavities(scene: Scene, data: mujoco.MjData) -> list[Finding]:
    """Whether objects with a closed surface hold water as they stand at the start."""
    model = scene.model
    found: list[Finding] = []
    for name in scene.objects:
        body = int(model.body(name).id)
        geoms = [g for g in range(model.ngeom) if model.geom_bodyid[g] == body and model.geom_dataid[g] >= 0]
        drawn = [g for g in geoms if not (model.geom_contype[g] or model.geom_conaffinity[g])]
        meshes: list[TriangleMesh] = []
        for g in drawn:
            place = np.eye(4)
            place[:3, :3], place[:3, 3] = data.geom_xmat[g].reshape(3, 3), data.geom_xpos[g]
            meshes.append(_geom_mesh(model, g).moved(place))
        if not meshes or not all(mesh.watertight and mesh.volume > 0 for mesh in meshes):
            continue
        cavity = cavity_words(joined(meshes), np.array([0.0, 0.0, 1.0, 0.0]))
        holds = bool(cavity["container"])
        words = _CONTAINER if holds else "It holds no water."
        found.append(
            Finding(
                "container", name, "amber" if holds else "green", f"holds {1e6 * cavity['cavity_m3']:.0f} cm³", words
            )
        )
    return found


def _inertia(model: Any, body: int, name: str) -> Finding:
    mass, principal = float(model.body_mass[body]), np.sort(np.asarray(model.body_inertia[body], float))
    possible = mass > 0 and principal[0] > 0 and principal[2] <= principal[:2].sum() * (1 + 1e-6)
    message = "Possible for a rigid body." if possible else "Impossible for a rigid body; give its mesh a density."
    return Finding("inertia", name, "green" if possible else "red", f"{mass:.3g} kg", message)


def _size(model: Any, geoms: Sequence[int], name: str) -> Finding:
    size = 2 * max((float(model.geom_rbound[g]) for g in geoms), default=0.0)
    state: CheckState = "green" if 0.01 <= size <= 1.5 else "amber" if 0.002 <= size <= 5 else "red"
    message = "A plausible size." if state == "green" else "Are its lengths in metres? Scale it, or its images' poses."
    return Finding("scale", name, state, f"{1e3 * size:.0f} mm across", message)


def _parts_volume(model: Any, touching: Sequence[int], meshes: Sequence[TriangleMesh], name: str) -> Finding:
    volume = sum(_part_volume(model, g) for g in touching)
    ratio = volume / sum(mesh.volume for mesh in meshes)
    state = _graded(abs(ratio - 1), 0.25, 0.5)
    message = "The parts fill the mesh." if state == "green" else (
        "The convex parts and the mesh differ: too few parts, or a container with a filled inside."
    )  # fmt: skip
    return Finding("parts", name, state, f"{ratio:.2f} of the mesh's volume", message)


def _part_volume(model: Any, geom: int) -> float:
    if model.geom_dataid[geom] >= 0:
        return hull_mesh(_geom_mesh(model, geom).vertices).volume
    size, kind = np.asarray(model.geom_size[geom], float), int(model.geom_type[geom])
    formulas = {
        int(mujoco.mjtGeom.mjGEOM_BOX): 8 * size.prod(),
        int(mujoco.mjtGeom.mjGEOM_SPHERE): 4 / 3 * np.pi * size[0] ** 3,
        int(mujoco.mjtGeom.mjGEOM_CYLINDER): 2 * np.pi * size[0] ** 2 * size[1],
        int(mujoco.mjtGeom.mjGEOM_CAPSULE): np.pi * size[0] ** 2 * (2 * size[1] + 4 / 3 * size[0]),
        int(mujoco.mjtGeom.mjGEOM_ELLIPSOID): 4 / 3 * np.pi * size.prod(),
    }
    return float(formulas.get(kind, 0.0))


def _penetrations(scene: Scene, data: mujoco.MjData) -> list[Finding]:
    """How deep objects are inside others where the scene starts."""
    model = scene.model
    deepest = dict.fromkeys(scene.objects, 0.0)
    for i in range(data.ncon):
        contact = data.contact[i]
        for geom in contact.geom:
            name = model.body(int(model.geom_bodyid[geom])).name
            if name in deepest:
                deepest[name] = max(deepest[name], -float(contact.dist))
    found: list[Finding] = []
    for name, depth in deepest.items():
        state = _graded(depth, 1e-3, 3e-3)
        message = (
            "It is inside nothing." if state == "green" else "It starts inside something; move it, or align it again."
        )
        found.append(Finding("penetration", name, state, f"{1e3 * depth:.2f} mm", message))
    return found


def _settling(scene: Scene, engine: Engine) -> list[Finding]:
    """Motion of objects by themselves within some seconds."""
    check = f"rest in {engine}"
    try:
        sim = open_world(scene, engine)
        state, action = sim.reset(0), rest_action(sim)
        begin = np.array(state.q, float)
        for _ in range(max(1, round(SECONDS / scene.dt))):
            state = sim.step(state, action)
    except Unsupported as error:
        return [Finding(check, scene.name, "unknown", "not run", str(error))]
    except Diverged as error:
        return [Finding(check, scene.name, "red", "diverged", str(error))]
    found: list[Finding] = []
    for name in scene.objects:
        at = scene.spec.q.labels.index(f"{name}.x")
        moved = float(np.linalg.norm(state.q[at : at + 3] - begin[at : at + 3]))
        turned = float(np.degrees(angle_between(begin[at + 3 : at + 7], state.q[at + 3 : at + 7])))
        state_of = ORDER[max(ORDER.index(_graded(moved, 3e-3, 1e-2)), ORDER.index(_graded(turned, 3.0, 10.0)))]
        message = "It stays in place." if state_of == "green" else (
            "It moves by itself: it floats, tips over, or rests on something that is not flat."
        )  # fmt: skip
        found.append(
            Finding(check, name, state_of, f"{1e3 * moved:.1f} mm, {turned:.1f} deg in {SECONDS:g} s", message)
        )
    return found


def _record_findings(scene: Scene) -> list[Finding]:
    """Views and appearance by the record of a reconstruction; unknown without one."""
    path = scene.root / "build.json"
    if not path.is_file():
        return [Finding("views", scene.name, "unknown", "no build.json", "It was not reconstructed from images.")]
    stages: Mapping[str, Any] = read_json_table(path).get("stages", {})
    found: list[Finding] = []
    for name, shape in stages.get("shape", {}).get("objects", {}).items():
        worst = min(shape["overlap"].values())
        if shape["views"] < 2:
            words = "One view agrees with many shapes; add views from other directions."
            found += [
                Finding(check, name, "unknown", "1 view", words if check == "silhouettes" else _ONE_VIEW)
                for check in ("silhouettes", "views")
            ]
            continue
        state = _graded(1 - worst, 0.08, 0.2)
        message = "Its silhouettes agree with the masks." if state == "green" else (
            "Its silhouettes and the masks differ: cameras disagree, or a mask is wrong; see stages/masks."
        )  # fmt: skip
        found.append(
            Finding("silhouettes", name, state, f"worst overlap {worst:.3f} of {shape['views']} views", message)
        )
        found.append(_span(name, shape))
    for name, look in stages.get("appearance", {}).get("objects", {}).items():
        seen = float(look["texture_seen"])
        state = _graded(1 - seen, 0.35, 0.6)
        words = "Most of its surface was seen." if state == "green" else "Much of its surface was seen by no view."
        found.append(Finding("coverage", name, state, f"{100 * seen:.0f} % of the surface", words))
        if "psnr_db" in look:
            psnr = float(look["psnr_db"]["value"])
            state = _graded(-psnr, -27.0, -20.0)
            words = (
                "It looks like its held-out images." if state == "green" else "It does not look like held-out images."
            )
            found.append(Finding("held-out views", name, state, f"PSNR {psnr:.1f} dB", words))
    return found


def _span(name: str, shape: Mapping[str, Any]) -> Finding:
    span, method = float(shape["span_deg"]), shape["method"]
    if method == "extrusion":
        words = "Its outline was extruded: parts that are not upright are unknown."
        return Finding("views", name, "amber", f"{shape['views']} views over {span:.0f} deg", words)
    state = _graded(-span, -300.0, -200.0)  # least range of directions of views that surround an object [deg]
    words = "Views surround it." if state == "green" else "Views from one side only; the other sides are unknown."
    return Finding("views", name, state, f"{shape['views']} views over {span:.0f} deg", words)


def _geom_mesh(model: Any, geom: int) -> TriangleMesh:
    """The mesh of a geom in the mesh's own frame, with equal vertices made one."""
    return welded(mesh_triangles(model, int(model.geom_dataid[geom])))


def _graded(value: float, green: float, amber: float) -> CheckState:
    """The state of a value that should be small."""
    return "green" if value <= green else "amber" if value <= amber else "red"
