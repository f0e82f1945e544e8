"""Checks of a scene before it is simulated in earnest: shapes, inertia, contacts, rest in two engines, and the views.

They work on any scene; what only a build knows (views, held-out images) is read from its build.json.
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

from .shape.cavities import cavity_volume, is_container
from .shape.convex_parts import hull_mesh
from .shape.triangle_mesh import TriangleMesh, joined, without_unused

CheckState = Literal["green", "amber", "red", "unknown"]
ORDER: tuple[CheckState, ...] = ("unknown", "green", "amber", "red")
"""From the best to the worst."""
SECONDS = 2.0
"""How long a scene is simulated to see whether it rests [s]."""
_WELD_M = 1e-7
_SURROUNDED_DEG = 300.0
"""Range of directions from which on views surround an object [deg]."""
_CONTAINER = "A container: what views did not show of its inside is filled, so weigh it, and look at its depth."
_ONE_VIEW = "What one view does not show is not known: its far side, and what is not upright about it."


@frozen_dataclass
class Finding:
    """One check of one thing."""

    check: str
    subject: str
    """The object that was checked, or the scene."""
    state: CheckState
    value: str
    """What was measured, with its unit."""
    message: str
    """What it means, and what to do where it is not green."""


def check_scene(scene: Scene, engines: Sequence[Engine] = ("mujoco", "rapier")) -> tuple[Finding, ...]:
    """Check a scene: every object by itself, then the scene at rest in each engine, then what its build recorded."""
    if not scene.objects:
        raise BadInput(f"Scene {scene.name!r} has no objects that move freely, so there is nothing to check.")
    findings: list[Finding] = []
    for name in scene.objects:
        findings += _object_findings(scene.model, name)
    findings += _cavities(scene)
    findings += _penetrations(scene)
    for engine in engines:
        findings += _settling(scene, engine)
    findings += _record_findings(scene)
    return tuple(findings)


def worst_state(findings: Sequence[Finding]) -> CheckState:
    """The worst state among some findings."""
    return ORDER[max((ORDER.index(finding.state) for finding in findings), default=0)]


def _graded(value: float, green: float, amber: float) -> CheckState:
    """The state of a value that should be small."""
    return "green" if value <= green else "amber" if value <= amber else "red"


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
    meshes = [_mesh_of(model, g) for g in surfaces or [g for g in touching if model.geom_dataid[g] >= 0]]
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


def _cavities(scene: Scene) -> list[Finding]:
    """Whether objects would hold water as they stand at the start; of those whose surface is a closed mesh."""
    model, data = scene.model, mujoco.MjData(scene.model)
    data.qpos[:] = scene.start(0)[0]
    mujoco.mj_forward(model, data)
    found: list[Finding] = []
    for name in scene.objects:
        body = int(model.body(name).id)
        geoms = [g for g in range(model.ngeom) if model.geom_bodyid[g] == body and model.geom_dataid[g] >= 0]
        drawn = [g for g in geoms if not (model.geom_contype[g] or model.geom_conaffinity[g])]
        meshes = [_placed_mesh(model, data, g) for g in drawn]
        if not meshes or not all(mesh.watertight and mesh.volume > 0 for mesh in meshes):
            continue
        whole = joined(meshes)
        cavity = cavity_volume(whole, np.array([0.0, 0.0, 1.0, 0.0]))
        holds = is_container(whole, cavity)
        words = _CONTAINER if holds else "It would hold no water."
        found.append(Finding("container", name, "amber" if holds else "green", f"holds {1e6 * cavity:.0f} cm³", words))
    return found


def _placed_mesh(model: Any, data: Any, geom: int) -> TriangleMesh:
    """The mesh of a geom in the frame of the world."""
    place = np.eye(4)
    place[:3, :3], place[:3, 3] = data.geom_xmat[geom].reshape(3, 3), data.geom_xpos[geom]
    return _mesh_of(model, geom).moved(place)


def _inertia(model: Any, body: int, name: str) -> Finding:
    mass, principal = float(model.body_mass[body]), np.sort(np.asarray(model.body_inertia[body], float))
    possible = mass > 0 and principal[0] > 0 and principal[2] <= principal[:2].sum() * (1 + 1e-6)
    message = "A rigid body can have it." if possible else "No rigid body has this inertia; give its mesh a density."
    return Finding("inertia", name, "green" if possible else "red", f"{mass:.3g} kg", message)


def _size(model: Any, geoms: Sequence[int], name: str) -> Finding:
    size = 2 * max((float(model.geom_rbound[g]) for g in geoms), default=0.0)
    state: CheckState = "green" if 0.01 <= size <= 1.5 else "amber" if 0.002 <= size <= 5 else "red"
    message = "A size to handle." if state == "green" else "Are its lengths in metres? Scale it, or its images' poses."
    return Finding("scale", name, state, f"{1e3 * size:.0f} mm across", message)


def _parts_volume(model: Any, touching: Sequence[int], meshes: Sequence[TriangleMesh], name: str) -> Finding:
    volume = sum(_part_volume(model, g) for g in touching)
    ratio = volume / sum(mesh.volume for mesh in meshes)
    state = _graded(abs(ratio - 1), 0.25, 0.5)
    message = "The parts fill the mesh." if state == "green" else (
        "The convex parts and the mesh differ; decompose it more finely, or it is a container whose inside is filled."
    )  # fmt: skip
    return Finding("parts", name, state, f"{ratio:.2f} of the mesh's volume", message)


def _part_volume(model: Any, geom: int) -> float:
    if model.geom_dataid[geom] >= 0:
        return hull_mesh(_mesh_of(model, geom).vertices).volume
    size, kind = np.asarray(model.geom_size[geom], float), int(model.geom_type[geom])
    formulas = {
        int(mujoco.mjtGeom.mjGEOM_BOX): 8 * size.prod(),
        int(mujoco.mjtGeom.mjGEOM_SPHERE): 4 / 3 * np.pi * size[0] ** 3,
        int(mujoco.mjtGeom.mjGEOM_CYLINDER): 2 * np.pi * size[0] ** 2 * size[1],
        int(mujoco.mjtGeom.mjGEOM_CAPSULE): np.pi * size[0] ** 2 * (2 * size[1] + 4 / 3 * size[0]),
        int(mujoco.mjtGeom.mjGEOM_ELLIPSOID): 4 / 3 * np.pi * size.prod(),
    }
    return float(formulas.get(kind, 0.0))


def _mesh_of(model: Any, geom: int) -> TriangleMesh:
    """The mesh of a geom, in the mesh's own frame, with equal vertices made one."""
    mesh = int(model.geom_dataid[geom])
    first, count = int(model.mesh_vertadr[mesh]), int(model.mesh_vertnum[mesh])
    begin, faces = int(model.mesh_faceadr[mesh]), int(model.mesh_facenum[mesh])
    points = np.asarray(model.mesh_vert[first : first + count], float)
    _, index, same = np.unique(np.round(points / _WELD_M), axis=0, return_index=True, return_inverse=True)
    triangles = same.reshape(-1)[model.mesh_face[begin : begin + faces]]
    kept = (triangles != np.roll(triangles, 1, axis=1)).all(axis=1)
    return without_unused(TriangleMesh(points[index], triangles[kept].astype(np.int32)))


def _penetrations(scene: Scene) -> list[Finding]:
    """How deep objects are inside others where the scene starts."""
    model, data = scene.model, mujoco.MjData(scene.model)
    data.qpos[:] = scene.start(0)[0]
    mujoco.mj_forward(model, data)
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
            "It is inside nothing." if state == "green" else "It starts inside something; move it, or align it anew."
        )
        found.append(Finding("penetration", name, state, f"{1e3 * depth:.2f} mm", message))
    return found


def _settling(scene: Scene, engine: Engine) -> list[Finding]:
    """How far objects move by themselves within some seconds."""
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
        message = "It stays where it is." if state_of == "green" else (
            "It moves by itself: it floats, tips over, or rests on something that is not flat."
        )  # fmt: skip
        found.append(
            Finding(check, name, state_of, f"{1e3 * moved:.1f} mm, {turned:.1f} deg in {SECONDS:g} s", message)
        )
    return found


def _record_findings(scene: Scene) -> list[Finding]:
    """What the build of a scene recorded of its views; nothing of a scene that was not built from images."""
    path = scene.root / "build.json"
    if not path.is_file():
        return [
            Finding("views", scene.name, "unknown", "no build.json", "It was not built from images by instep build.")
        ]
    stages: Mapping[str, Any] = read_json_table(path).get("stages", {})
    found: list[Finding] = []
    for name, shape in stages.get("shape", {}).get("objects", {}).items():
        worst = min(shape["overlap"].values())
        if shape["views"] < 2:
            words = (
                "One view agrees with many shapes, so its silhouette shows nothing; add views from other directions."
            )
            found += [
                Finding(check, name, "unknown", "1 view", words if check == "silhouettes" else _ONE_VIEW)
                for check in ("silhouettes", "views")
            ]
            continue
        state = _graded(1 - worst, 0.08, 0.2)
        message = "Its silhouettes agree with the masks." if state == "green" else (
            "Its silhouettes and the masks differ: cameras disagree, or a mask is wrong; look at stages/masks."
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
        words = "Its outline was extruded: what is not upright about it is not known."
        return Finding("views", name, "amber", f"{shape['views']} views over {span:.0f} deg", words)
    if method == "generated" and span < _SURROUNDED_DEG:
        words = "Its shape was generated: what no view shows is a guess."
        return Finding("views", name, "amber", f"{shape['views']} views over {span:.0f} deg", words)
    state = _graded(-span, -_SURROUNDED_DEG, -200.0)
    words = "Views surround it." if state == "green" else "Views from one side only; what the others hide is not known."
    return Finding("views", name, state, f"{shape['views']} views over {span:.0f} deg", words)
