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

from .scene_formats import ExportedShape, exported_shapes, placed
from .shape.cavities import cavity_words
from .shape.triangle_mesh import hull_mesh, joined, welded

CheckState = Literal["green", "amber", "red", "unknown"]
ORDER: tuple[CheckState, ...] = ("unknown", "green", "amber", "red")
"""From the best to the worst."""
SECONDS = 2.0
"""Simulated time of the rest check [s]."""


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
    data, findings, shapes = mujoco.MjData(scene.model), list[Finding](), exported_shapes(scene)
    data.qpos[:] = scene.start(0)[0]
    mujoco.mj_forward(scene.model, data)
    for name in scene.objects:
        body = int(scene.model.body(name).id)
        findings += _object_findings(scene.model, data, name, [shape for shape in shapes if shape.body == body])
    findings += _penetrations(scene, data)
    for engine in engines:
        findings += _settling(scene, engine)
    findings += _record_findings(scene)
    return tuple(findings)


def worst_state(findings: Sequence[Finding]) -> CheckState:
    """The worst state among some findings."""
    return ORDER[max((ORDER.index(finding.state) for finding in findings), default=0)]


def _finding(check: str, subject: str, state: CheckState, value: str, good: str, bad: str) -> Finding:
    """A finding with one of two messages."""
    return Finding(check, subject, state, value, good if state == "green" else bad)


def _object_findings(model: Any, data: mujoco.MjData, name: str, shapes: Sequence[ExportedShape]) -> list[Finding]:
    """Inertia, size, surface, parts and cavity of an object."""
    body = int(model.body(name).id)
    mass, principal = float(model.body_mass[body]), np.sort(np.asarray(model.body_inertia[body], float))
    possible = mass > 0 and principal[0] > 0 and principal[2] <= principal[:2].sum() * (1 + 1e-6)
    touching, surfaces = ([shape for shape in shapes if shape.collides == collides] for collides in (True, False))
    size = joined([shape.mesh for shape in touching or surfaces]).diagonal if shapes else 0.0
    state: CheckState = "green" if 0.01 <= size <= 1.5 else "amber" if 0.002 <= size <= 5 else "red"
    found = [
        _finding("inertia", name, "green" if possible else "red", f"{mass:.3g} kg", "Possible for a rigid body.",
                 "Impossible for a rigid body; give its mesh a density."),
        _finding("scale", name, state, f"{1e3 * size:.0f} mm across", "A plausible size.",
                 "Are its lengths in metres? Scale it, or its images' poses."),
    ]  # fmt: skip
    if not touching:
        return [
            *found,
            Finding("contacts", name, "red", "0 parts", "Nothing of it touches anything; add convex parts."),
        ]
    meshes = [welded(shape.mesh) for shape in surfaces or touching]
    closed = [mesh.watertight and mesh.volume > 0 for mesh in meshes]
    state = "green" if all(closed) else "red"
    value = f"{sum(closed)} of {len(closed)} meshes"
    bad = "A mesh has holes, so it has no volume; close it."
    found.append(_finding("watertight", name, state, value, "Every edge has two faces.", bad))
    if surfaces and all(closed):
        whole = joined(meshes)
        ratio = sum(hull_mesh(shape.mesh.vertices).volume for shape in touching) / whole.volume
        bad = "The convex parts and the mesh differ: too few parts, or a container with a filled inside."
        state = _graded(abs(ratio - 1), 0.25, 0.5)
        found.append(
            _finding("parts", name, state, f"{ratio:.2f} of the mesh's volume", "The parts fill the mesh.", bad)
        )
        cavity = cavity_words(whole.moved(placed(data.xpos[body], data.xquat[body])), np.array([0.0, 0.0, 1.0, 0.0]))
        state, value = "amber" if cavity["container"] else "green", f"holds {1e6 * cavity['cavity_m3']:.0f} cm³"
        bad = "A container: unseen parts of its inside are filled, so weigh it, and check its depth."
        found.append(_finding("container", name, state, value, "It holds no water.", bad))
    return found


def _penetrations(scene: Scene, data: mujoco.MjData) -> list[Finding]:
    """How deep objects are inside others where the scene starts."""
    deepest = dict.fromkeys(scene.objects, 0.0)
    for contact in (data.contact[i] for i in range(data.ncon)):
        for geom in contact.geom:
            name = scene.model.body(int(scene.model.geom_bodyid[geom])).name
            if name in deepest:
                deepest[name] = max(deepest[name], -float(contact.dist))
    bad = "It starts inside something; move it, or align it again."
    return [
        _finding("penetration", name, _graded(d, 1e-3, 3e-3), f"{1e3 * d:.2f} mm", "It is inside nothing.", bad)
        for name, d in deepest.items()
    ]


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
        bad = "It moves by itself: it floats, tips over, or rests on something that is not flat."
        value = f"{1e3 * moved:.1f} mm, {turned:.1f} deg in {SECONDS:g} s"
        found.append(_finding(check, name, state_of, value, "It stays in place.", bad))
    return found


def _record_findings(scene: Scene) -> list[Finding]:
    """Views and appearance by the record of a reconstruction; unknown without one."""
    path = scene.root / "build.json"
    if not path.is_file():
        return [Finding("views", scene.name, "unknown", "no build.json", "It was not reconstructed from images.")]
    stages: Mapping[str, Any] = read_json_table(path).get("stages", {})
    found: list[Finding] = []
    for name, shape in stages.get("shape", {}).get("objects", {}).items():
        worst, span, views = min(shape["overlap"].values()), float(shape["span_deg"]), f"{shape['views']} views"
        if shape["views"] < 2:
            words = "One view agrees with many shapes; add views from other directions."
            more = "One view does not show the far side, nor anything that is not upright."
            found += [Finding("silhouettes", name, "unknown", "1 view", words)]
            found += [Finding("views", name, "unknown", "1 view", more)]
            continue
        bad = "Its silhouettes and the masks differ: cameras disagree, or a mask is wrong; see stages/masks."
        value, good = f"worst overlap {worst:.3f} of {views}", "Its silhouettes agree with the masks."
        found.append(_finding("silhouettes", name, _graded(1 - worst, 0.08, 0.2), value, good, bad))
        extruded = shape["method"] == "extrusion"
        state = "amber" if extruded else _graded(-span, -300.0, -200.0)
        bad = "Its outline was extruded: parts that are not upright are unknown." if extruded else (
            "Views from one side only; the other sides are unknown."
        )  # fmt: skip
        found.append(_finding("views", name, state, f"{views} over {span:.0f} deg", "Views surround it.", bad))
    for name, look in stages.get("appearance", {}).get("objects", {}).items():
        seen = float(look["texture_seen"])
        value, bad = f"{100 * seen:.0f} % of the surface", "Much of its surface was seen by no view."
        state = _graded(1 - seen, 0.35, 0.6)
        found.append(_finding("coverage", name, state, value, "Most of its surface was seen.", bad))
        if "psnr_db" in look:
            psnr, good = float(look["psnr_db"]["value"]), "It looks like its held-out images."
            state, value = _graded(-psnr, -27.0, -20.0), f"PSNR {psnr:.1f} dB"
            found.append(_finding("held-out views", name, state, value, good, "It does not look like held-out images."))
    return found


def _graded(value: float, green: float, amber: float) -> CheckState:
    """The state of a value that should be small."""
    return "green" if value <= green else "amber" if value <= amber else "red"
