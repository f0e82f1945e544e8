"""Identify inertias, friction and payloads from measured joint torques, and write them into a new scene folder."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput, UnknownName
from instep.core.param import Address
from instep.core.statistics import Z95, Estimate
from instep.core.world import Array, array_dataclass, frozen_dataclass, options_dataclass
from instep.gap.torque_gap import (
    OFFSETS_FILE,
    OPPOSED,
    TorqueOptions,
    TorqueRun,
    check_same_joints,
    payload_of,
    scene_torques,
    torque_runs,
    torque_scores,
)
from instep.physics.actuators import write_actuators
from instep.physics.inverse_dynamics import body_inertia, inertial_parameters, rigid_groups, with_inertial_parameters
from instep.scene import address
from instep.scene.folder import SCENE_FILE, Scene, read_table, write_settings
from instep.scene.model import exclude_overlaps, named_spec
from instep.tune.fit.least_squares import FitStatus
from instep.tune.gated_fit import split
from instep.tune.gates import GateResult
from instep.tune.param_export import copy_scene, write_record

from .torque_fit import TorqueLayout, TorqueSolution, TorqueTerm, all_terms, choose_terms, fit_torques, torque_problem
from .torque_gates import BaseParameter, TorqueEvidence, base_combinations, base_parameters, calibrated, torque_gates


@options_dataclass
class IdentifyTorqueOptions:
    """Options of an identification from torques."""

    held_out: float = 1 / 3
    """Share of the recordings that is held out."""
    hold_out: tuple[str, ...] = ()
    """Names of the recordings that are held out, in place of a share."""
    cutoff: float = 0.0
    """Cut-off of the low-pass [Hz]; 0 finds it from the motion."""
    payload_only: bool = False
    """Whether all recordings carry one payload, which alone is identified; the robot stays as in the scene."""
    draws: int = 10
    """Planted parameter sets in the recovery gate; with 0 the gate is not run, and nothing is promoted."""
    seed: int = 0
    """Seed of planted values and of further searches."""

    def __post_init__(self) -> None:
        if self.draws < 0:
            raise BadInput(f"--draws must be at least 0, not {self.draws}.")


@frozen_dataclass
class PayloadEstimate:
    """A payload on the last link: mass [kg], centre of mass [m] and moments about it [kg m2], in the link's frame."""

    body: str
    mass: Estimate
    centre: tuple[Estimate, Estimate, Estimate]
    moments: tuple[float, float, float]
    """Principal moments; the recordings often say little about them."""


@array_dataclass
class BodyInertia:
    """The inertia of a rigid body."""

    mass: float
    """[kg]"""
    centre: Array
    """Centre of mass in the frame of the body [m]."""
    inertia: Array
    """About the centre of mass [kg m2]."""

    @property
    def moments(self) -> Array:
        """Principal moments [kg m2]."""
        return np.linalg.eigvalsh(self.inertia)


@array_dataclass
class TorqueIdentification:
    """Inertias, friction and payloads identified from torques, with gates and the error on held-out recordings."""

    scene: Scene
    solution: TorqueSolution
    base: tuple[BaseParameter, ...]
    """The combinations of inertial parameters that torques determine."""
    values: Mapping[str, Estimate]
    """Friction, rotor inertia, gravity and sensor offsets by name, with 95 % intervals if the fit converged."""
    given: Mapping[str, float]
    """The same in the scene."""
    payloads: Mapping[str, PayloadEstimate]
    gains: Mapping[str, float]
    """How much each further term lowered the error on left-out stretches of the fitted runs."""
    fitted: tuple[TorqueRun, ...]
    held_out: tuple[TorqueRun, ...]
    predicted: Mapping[str, tuple[Array, ...]]
    """Torques of the held-out runs, `before` (the scene as given) and `after`."""
    before: Mapping[str, Estimate]
    """Scores of the scene as given on the held-out runs."""
    after: Mapping[str, Estimate]
    gates: tuple[GateResult, ...] = ()
    carrier: int = 0
    """The body that holds payloads."""
    seed: int = 0

    @property
    def status(self) -> FitStatus:
        """How the fit ended."""
        return self.solution.status

    @property
    def passed(self) -> bool:
        """Whether all required gates were run and passed."""
        return bool(self.gates) and all(gate.passed for gate in self.gates if gate.required)

    @property
    def terms(self) -> tuple[TorqueTerm, ...]:
        """The terms beside rigid bodies that were fitted."""
        return self.solution.problem.terms

    def save(self, folder: str | Path, *, payload: str = "", provenance: Mapping[str, Any] | None = None) -> Path:
        """Write a copy of the scene with the identified values into a new folder; check `passed` first."""
        if payload and payload not in self.payloads:
            raise UnknownName("payload", payload, self.payloads)
        facts = {**(provenance or {}), "seed": self.seed, **self.as_dict()}
        write_torque_scene(self, payload, Path(folder), facts)
        return Path(folder)

    def inertias(self) -> dict[str, tuple[BodyInertia, BodyInertia]]:
        """The inertia of each fitted body, in the scene and identified."""
        problem, found = self.solution.problem, dict[str, tuple[BodyInertia, BodyInertia]]()
        for body, given, pi in zip(problem.bodies, problem.given, self.solution.inertial, strict=False):
            sides = BodyInertia(*body_inertia(given)), BodyInertia(*body_inertia(pi))
            found[self.scene.model.body(body).name] = sides
        return found

    def as_dict(self) -> dict[str, Any]:
        """What `result.json` and `tuned.json` hold of it, beside the scores."""
        bodies = {
            name: {"mass": body.mass, "com": body.centre.tolist(), "inertia": body.inertia.tolist()}
            for name, (_, body) in self.inertias().items()
        }
        return {
            "passed": self.passed,
            "status": str(self.status),
            "gates": [gate.as_dict() for gate in self.gates],
            "terms": [term.name for term in self.terms],
            "gains": dict(self.gains),
            "base": [
                {"name": b.name, "given": b.given, "identified": b.identified, **b.value.as_dict()} for b in self.base
            ],
            "values": {name: estimate.as_dict() for name, estimate in self.values.items()},
            "bodies": bodies,
            "payloads": {
                name: {"body": p.body, "mass": p.mass.as_dict(), "com": [c.as_dict() for c in p.centre]}
                | {"moments": p.moments}
                for name, p in self.payloads.items()
            },
            "fitted": [run.name for run in self.fitted],
            "held_out": [run.name for run in self.held_out],
        }  # fmt: skip


OFFSET = "torque offset of "
"""Begin of the names of sensor offsets."""


def identify_torque(
    scene: Scene | str | Path, episodes: Sequence[Episode], options: IdentifyTorqueOptions | None = None
) -> TorqueIdentification:
    """Identify inertias, friction and payloads from measured joint torques, and check them on recordings held out.

    Recordings whose metadata has a `payload` share the robot's parameters with the others and carry one more body on
    the last link, whose mass, centre of mass and inertia are identified.
    """
    options = options or IdentifyTorqueOptions()
    scene = scene if isinstance(scene, Scene) else Scene.load(scene)
    reading = TorqueOptions(cutoff=options.cutoff, payload="payload" if options.payload_only else "")
    some, rest = _split(episodes, options)
    fitted, held_out = torque_runs(scene, some, reading), torque_runs(scene, rest, reading)
    check_same_joints([*fitted, *held_out])
    known = {run.payload for run in fitted}
    held_out = [run for run in held_out if run.payload in known]
    if not held_out:
        raise BadInput("No recording is left to check the result: those held out carry payloads that were not fitted.")
    carrier = _last_link(scene, fitted[0])
    bodies = () if options.payload_only else tuple(rigid_groups(scene.model))
    solution, gains, layout = _solve(scene, fitted, TorqueLayout(bodies, all_terms(fitted[0].joints), carrier), options)
    before = tuple(scene_torques(scene, run) for run in held_out)
    problem = torque_problem(scene.model, held_out, layout, like=solution.problem)
    lengths = np.cumsum([len(run) for run in held_out])[:-1]
    after = tuple(np.split(solution.predict(problem) + _torque(held_out) - problem.left, lengths))
    scores = [_scores(held_out, side) for side in (before, after)]
    combined = base_combinations(scene.model, bodies, fitted[0].dofs, options.seed) if bodies else None
    matrix = combined.matrix if combined else np.zeros((0, 0))
    solution = calibrated(solution, matrix, options.draws, options.seed)
    base = base_parameters(solution, combined) if combined else ()
    values, given = _values(solution)
    found = TorqueIdentification(
        scene, solution, base, values, given, _payloads(scene, solution, carrier), gains, tuple(fitted),
        tuple(held_out), {"before": before, "after": after}, scores[0], scores[1], (), carrier, options.seed,
    )  # fmt: skip
    return replace(found, gates=torque_gates(found, _evidence(found, options, matrix)))


def _split(episodes: Sequence[Episode], options: IdentifyTorqueOptions) -> tuple[list[Episode], list[Episode]]:
    """Recordings to fit and to hold out; each payload is in both if it has several recordings or a long one."""
    if options.hold_out:
        names = [e.meta.get("name") or e.meta.get("source") or f"episode {i}" for i, e in enumerate(episodes)]
        for wanted in options.hold_out:
            if wanted not in names:
                raise UnknownName("recording", wanted, names)
        out = [e for e, name in zip(episodes, names, strict=True) if name in options.hold_out]
        kept = [e for e, name in zip(episodes, names, strict=True) if name not in options.hold_out]
        if not kept:
            raise BadInput("All recordings are held out, so none is left to fit; name fewer with --hold-out.")
        return kept, out
    fitted: list[Episode] = []
    held_out: list[Episode] = []
    for payload in sorted({payload_of(e) for e in episodes}):
        some, rest = split([e for e in episodes if payload_of(e) == payload], options.held_out)
        fitted += some
        held_out += rest
    return fitted, held_out


def _solve(
    scene: Scene, runs: Sequence[TorqueRun], layout: TorqueLayout, options: IdentifyTorqueOptions
) -> tuple[TorqueSolution, dict[str, float], TorqueLayout]:
    """The fit with the terms that pay; loads of load-dependent friction are those of the fitted bodies."""
    if options.payload_only:
        layout = replace(layout, terms=(TorqueTerm("offset"),))
        return fit_torques(torque_problem(scene.model, runs, layout)), {}, layout
    whole = torque_problem(scene.model, runs, layout)
    terms, gains = choose_terms(whole)
    layout = replace(layout, terms=terms)
    problem = whole.with_terms(terms)
    solution = fit_torques(problem)
    if any(term.kind == "load" for term in terms):
        moved = with_inertial_parameters(scene.model, layout.bodies, solution.inertial[: len(layout.bodies)])
        layout = replace(layout, loads=moved)
        problem = torque_problem(scene.model, runs, layout, like=problem)
        solution = fit_torques(problem, start=solution.x)
    return solution, gains, layout


def _values(solution: TorqueSolution) -> tuple[dict[str, Estimate], dict[str, float]]:
    """Parameters of the terms with intervals, and their values in the scene."""
    problem = solution.problem
    deviation = np.sqrt(np.maximum(np.diag(solution.covariance()), 0.0))[problem.inertial :]
    sure = solution.status == FitStatus.CONVERGED
    names = [name for columns in problem.columns for name in columns.names]
    units = [unit for columns in problem.columns for unit in columns.units]
    given = np.concatenate([np.zeros(0), *(columns.given for columns in problem.columns)])
    low = np.concatenate([np.zeros(0), *(columns.low for columns in problem.columns)])
    values: dict[str, Estimate] = {}
    for k, (name, unit) in enumerate(zip(names, units, strict=True)):
        value, half = float(given[k] + solution.linear[k]), Z95 * float(deviation[k]) if sure else float("nan")
        bottom = max(value - half, float(given[k] + low[k])) if sure else float("nan")
        values[name] = Estimate(value, bottom, value + half, len(solution.residual), unit)
    return values, dict(zip(names, given.tolist(), strict=True))


def _payloads(scene: Scene, solution: TorqueSolution, carrier: int) -> dict[str, PayloadEstimate]:
    problem, covariance, out = solution.problem, solution.covariance(), dict[str, PayloadEstimate]()
    for k, name in enumerate(problem.payloads):
        place = len(problem.bodies) + k
        pi, block = solution.inertial[place], slice(10 * place, 10 * place + 4)
        mass, centre, inertia = body_inertia(pi)
        # c = h / m, so dc = (dh - c dm) / m.
        spread = np.sqrt(np.diag(covariance[block, block]))
        jacobian = np.concatenate([-centre[:, None], np.eye(3)], axis=1) / mass
        moved = np.sqrt(np.diag(jacobian @ covariance[block, block] @ jacobian.T))
        rows = len(solution.residual)
        ends = [
            Estimate(float(v), float(v - Z95 * s), float(v + Z95 * s), rows, unit)
            for v, s, unit in zip([mass, *centre], [spread[0], *moved], ["kg", "m", "m", "m"], strict=True)
        ]
        moments = np.linalg.eigvalsh(inertia)
        out[name] = PayloadEstimate(
            scene.model.body(carrier).name, ends[0], (ends[1], ends[2], ends[3]),
            (float(moments[0]), float(moments[1]), float(moments[2])),
        )  # fmt: skip
    return out


def _last_link(scene: Scene, run: TorqueRun) -> int:
    """The body that moves with most of the measured joints; the first such, so that fixed tools are not it."""
    model, depth = scene.model, np.zeros(scene.model.nbody, int)
    measured = {int(model.dof_jntid[dof]) for dof in run.dofs}
    for body in range(1, model.nbody):
        first, count = int(model.body_jntadr[body]), int(model.body_jntnum[body])
        own = sum(joint in measured for joint in range(first, first + count)) if count else 0
        depth[body] = depth[int(model.body_parentid[body])] + own
    return int(np.argmax(depth))


def _scores(runs: Sequence[TorqueRun], torques: Sequence[Array]) -> dict[str, Estimate]:
    errors = [run.torque - torque for run, torque in zip(runs, torques, strict=True)]
    return torque_scores(errors, [run.torque for run in runs], runs[0].joints)


def _evidence(found: TorqueIdentification, options: IdentifyTorqueOptions, base: Array) -> TorqueEvidence:
    """What the gates need beyond the result: the error of the scene as it was written and opened again."""
    payload = found.held_out[0].payload
    with TemporaryDirectory() as folder:
        written = Scene.load(found.save(Path(folder) / "scene", payload=payload))
        pairs = zip(found.held_out, found.predicted["after"], strict=True)
        fitted = [(run, torque) for run, torque in pairs if run.payload == payload]
        opened = [scene_torques(written, run) for run, _ in fitted]
    same = [run for run, _ in fitted]
    difference = np.concatenate([a - b for a, (_, b) in zip(opened, fitted, strict=True)])
    apart = float(np.linalg.norm(difference) / np.linalg.norm(_torque(same)))
    return TorqueEvidence(options.draws, options.seed, base, _scores(same, opened), apart)


def _torque(runs: Sequence[TorqueRun]) -> Array:
    return np.concatenate([run.torque for run in runs])


INERTIAL_FIELDS = ("mass", "com_x", "com_y", "com_z", "inertia_x", "inertia_y", "inertia_z")
"""Settings of bodies that the model file now holds."""

NOT_KEPT = (
    "meshdir", "texturedir", "assetdir", "boundmass", "boundinertia", "settotalmass", "balanceinertia",
    "inertiafromgeom",
)  # fmt: skip
"""Settings of the compiler that would change inertias, or look for files elsewhere."""


def write_torque_scene(found: TorqueIdentification, payload: str, out: Path, provenance: Mapping[str, Any]) -> Scene:
    """Write a copy of the scene with the identified values, and return it as opened again from disk.

    Masses, centres of mass and full inertias are written into the model file, friction, damping and rotor inertia into
    `[settings]`, load-dependent friction into `[actuators]`, and sensor offsets into `torque_sensors.toml`, which
    `instep torque --compare` reads.
    """
    scene = found.scene
    offsets = {n.removeprefix(OFFSET): e.value for n, e in found.values.items() if n.startswith(OFFSET)}
    settings = {n: e.value for n, e in found.values.items() if not n.startswith(OFFSET)}
    settings = {n: v / OPPOSED if n.endswith(".load") else v for n, v in settings.items()}
    copy_scene(scene, out)
    name = str(read_table(out / SCENE_FILE).get("model", "scene.xml"))
    (out / name).write_text(_description(found, payload, settings), encoding="utf-8")
    for file, content in scene.source.files.items():
        (out / file).parent.mkdir(parents=True, exist_ok=True)
        (out / file).write_bytes(content)
    # Patterns are resolved, since a new value may belong to one of their joints only.
    kept = {k: float(v) for k, v in address.ordered(scene.model, scene.settings).items()}  # type: ignore[arg-type]
    parsed = {k: Address.parse(k) for k in kept}
    kept = {k: v for k, v in kept.items() if not (parsed[k].kind == "body" and parsed[k].field in INERTIAL_FIELDS)}
    loads = {k: v for k, v in settings.items() if Address.parse(k).field == "load"}
    plain = {k: v for k, v in settings.items() if k not in loads and not k.startswith("option.gravity_")}
    write_settings(out / SCENE_FILE, {**kept, **plain})
    if loads:
        write_actuators(out / SCENE_FILE, scene, loads)
    write_settings(out / OFFSETS_FILE, offsets)
    write_record(out, scene, settings, {"torque_offsets": offsets, **provenance})
    return Scene.load(out)


def _description(found: TorqueIdentification, payload: str, settings: Mapping[str, float]) -> str:
    """The scene's MJCF with new inertias, gravity, couplings and payload."""
    problem, inertial, model = found.solution.problem, found.solution.inertial, found.scene.model
    identified = dict(zip(problem.bodies, inertial, strict=False))
    spec = named_spec(found.scene.source)
    exclude_overlaps(spec, spec.compile())
    spec.compile()
    tree = ET.fromstring(spec.to_xml())  # noqa: S314 - written by MuJoCo
    for compiler in tree.findall("compiler"):
        for word in NOT_KEPT:
            compiler.attrib.pop(word, None)
    for body in list(tree.iter("body")):
        number = int(model.body(body.get("name", "")).id)
        if model.body_mass[number] > 0:
            pi = identified[number] if number in identified else inertial_parameters(model, [number])[0]
            for old in body.findall("inertial"):
                body.remove(old)
            body.insert(0, _inertial_element(pi))
        if payload and found.carrier == number:
            carried = ET.SubElement(body, "body", name="payload")
            carried.append(_inertial_element(inertial[len(problem.bodies) + problem.payloads.index(payload)]))
    if "option.gravity_x" in settings:
        options = tree.find("option")
        if options is None:
            options = ET.Element("option")
            tree.insert(0, options)
        down = [settings["option.gravity_x"], settings["option.gravity_y"], float(model.opt.gravity[2])]
        options.set("gravity", _digits(down))
    for coupling in (term for term in found.terms if term.kind == "coupling"):
        tendons = tree.find("tendon")
        tendons = ET.SubElement(tree, "tendon") if tendons is None else tendons
        fixed = ET.SubElement(tendons, "fixed", name=coupling.tendon)
        for joint, share in zip(coupling.joints, (1, coupling.sign), strict=True):
            ET.SubElement(fixed, "joint", joint=joint, coef=str(share))
    ET.indent(tree)
    return ET.tostring(tree, encoding="unicode") + "\n"


def _inertial_element(pi: Array) -> ET.Element:
    mass, centre, inertia = body_inertia(pi)
    order = [inertia[i, j] for i, j in ((0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2))]
    return ET.Element("inertial", pos=_digits(centre), mass=_digits([mass]), fullinertia=_digits(order))


def _digits(values: Sequence[float] | Array) -> str:
    return " ".join(f"{float(value):.12g}" for value in np.asarray(values))
