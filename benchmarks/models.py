"""Robot files and shipped scenes in both engines: each loads and holds its pose, or is refused.

Each file runs in a process of its own, so that a crash of an engine is counted. Servos hold their commands, with the
sag under load; joints with motors get the torques of a controller, computed from MuJoCo's model for both engines.
Robots with a free base hold with their base fixed, and fall with it free. Other joints only have to stay finite.
`OUT/cases.json` holds every file and engine; single ones: `python -m benchmarks models --only ur5e "so101 (shipped)"`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from harness import Case, KeptCases, Row, median, percent, row
from instep import Scene, open_world
from instep.core.errors import Diverged, InstepError
from instep.core.rollout import rest_action
from instep.core.statistics import wilson
from instep.core.world import Array, Simulator
from instep.physics.engines import Engine
from instep.scene.folder import shipped
from instep.scene.model import named_spec
from tuning.planted_arms import MODELS

ENGINES: tuple[Engine, ...] = ("mujoco", "rapier")
QUICK = ("gen3", "ur5e", "panda", "go2", "so101 (shipped)", "pusht (shipped)", "cartpole (shipped)")
HOLD_S = 5.0
"""Time for which the pose is held [s]."""
MAX_OFFSET, MAX_SPEED = {"rad": 0.15, "m": 0.01}, {"rad": 0.5, "m": 0.05}
"""Furthest from its command, and fastest, that a held joint may be at the end: servos sag, but do not chatter."""
BANDWIDTH = 10.0
"""Natural frequency of the controller of joints with motors [rad/s]."""
STICKING = 0.02
"""Distance from its goal at which the controller overcomes most of a joint's dry friction [rad]."""
LIMIT_S = 1200.0
"""Time after which a file is ended and counts as crashed [s]."""


def run(out: Path, quick: bool = False, only: Sequence[str] = ()) -> list[Row]:
    """Every robot file and shipped scene, in both engines; `only` gives names of files."""
    chosen = {name: path for name, path in files().items() if name in (only or (QUICK if quick else files()))}
    tasks = {name: partial(measured, name, path) for name, path in chosen.items()}
    kept = KeptCases(out).measured_in_turn(tasks, lambda found: "; ".join(map(_line, found["cases"])))
    return summary([case for found in kept for case in found["cases"]])


def files() -> dict[str, str]:
    """Robot files and shipped scenes by name: what to give to `Scene.load`."""
    if not MODELS.is_dir():
        print(f"no robot files: {MODELS} is not there", file=sys.stderr)
    paths = sorted(MODELS.glob("*/*.xml"))
    names = [path.stem if path.stem != "scene" else f"{path.parent.name} scene" for path in paths]
    robots = {name: str(path) for name, path in zip(names, paths, strict=True)}
    return robots | {f"{name} (shipped)": name for name in shipped()}


def measured(name: str, path: str) -> Case:
    """What one file does in each engine, measured in a process of its own."""
    command = [sys.executable, __file__, name, path]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        crash = f"not done after {LIMIT_S:g} s"
        return {"cases": [{"name": name, "engine": engine, "crash": crash} for engine in ENGINES]}
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    missing = [engine for engine in ENGINES if engine not in {line["engine"] for line in lines}]
    crash = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
    lines += [{"name": name, "engine": engine, "crash": crash} for engine in missing]
    # A panic that became a sentence is still one.
    panics = [line for line in done.stderr.splitlines() if "panicked at" in line]
    return {"cases": [line | ({"panics": panics} if panics and line["engine"] != "mujoco" else {}) for line in lines]}


def summary(found: Sequence[dict[str, Any]]) -> list[Row]:
    """Shares with their intervals over files, by engine; what is refused in one sentence is counted apart."""
    rows = [row("robot files and shipped scenes", len({case["name"] for case in found}))]
    for engine in ENGINES:
        cases = [case for case in found if case["engine"] == engine]
        run_here = [case for case in cases if "refused" not in case]
        refused = len(cases) - len(run_here)
        rows.append(row(f"refused in one sentence, {engine}", refused, at_most=0 if engine == "mujoco" else None))
        for what in ("finite", "holds"):
            judged = [bool(case[what]) for case in run_here if case.get(what) is not None]
            judged += [False for case in run_here if "crash" in case]
            rows.append(row(f"{what}, {engine}", percent(wilson(sum(judged), len(judged))), at_least=100.0))
        seconds = [case["seconds"] for case in run_here if "seconds" in case]
        rows.append(row(f"processor time to load and hold, {engine}", median(seconds, "s")))
    crashes = sum("crash" in case or "panics" in case for case in found)
    return [*rows, row("crashes, tracebacks and panics", crashes, at_most=0)]


@dataclass(frozen=True, slots=True, eq=False)
class Drives:
    """The joints of a scene that hold a pose, and how."""

    scene: Scene
    joints: Array
    """Their indices in q."""
    dofs: Array
    """Their indices in v."""
    actuators: Array
    motors: bool
    """Whether they are commanded torques instead of positions."""

    @classmethod
    def of(cls, scene: Scene) -> Drives:
        """The servos of a scene; its motors where it has none and they drive every joint that is not free."""
        model, units = scene.model, scene.spec.action.units
        on_joint = model.actuator_trntype == int(mujoco.mjtTrn.mjTRN_JOINT)
        servos = [a for a in range(model.nu) if on_joint[a] and units[a] in MAX_OFFSET]
        motors = [a for a in range(model.nu) if on_joint[a] and units[a] in ("Nm", "N")]
        passive = (model.jnt_type >= int(mujoco.mjtJoint.mjJNT_SLIDE)).sum() - len(motors)
        chosen = np.array(servos or (motors if not passive else []), int)
        ids = model.actuator_trnid[chosen, 0].astype(int)
        return cls(scene, model.jnt_qposadr[ids].astype(int), model.jnt_dofadr[ids].astype(int), chosen, not servos)

    def per_joint(self, by_unit: dict[str, float]) -> Array:
        """A number for each joint by its unit."""
        return np.array([by_unit[self.scene.spec.q.units[int(j)]] for j in self.joints])

    def action(self, rest: Array, q: Array, v: Array, goal: Array) -> Array:
        """The commands of servos, or the torques with which motors approach the goal, by inverse dynamics."""
        model, out = self.scene.model, rest.copy()
        if not self.motors or not len(self.actuators):
            out[self.actuators] = goal
            return out
        data, mass = mujoco.MjData(model), np.empty((model.nv, model.nv))
        data.qpos[:], data.qvel[:] = q, v
        mujoco.mj_forward(model, data)
        mujoco.mj_fullM(model, data, mass)
        wanted, off = np.zeros(model.nv), goal - q[self.joints]
        wanted[self.dofs] = BANDWIDTH**2 * off - 2 * BANDWIDTH * v[self.dofs]
        torque = (mass @ wanted + data.qfrc_bias - data.qfrc_passive)[self.dofs]
        # Light legs with gears stick: without the torque that overcomes it, dry friction alone would hold them.
        torque += model.dof_frictionloss[self.dofs] * np.tanh(off / STICKING)
        out[self.actuators] = torque / model.actuator_gear[self.actuators, 0]
        return out


def measured_case(name: str, path: str, engine: Engine) -> dict[str, Any]:
    """Load and hold; a refusal or a divergence is recorded with its sentence."""
    facts: dict[str, Any] = {"name": name, "engine": engine}
    began = time.process_time()
    try:
        scene = Scene.load(Path(path) if path.endswith(".xml") else path)
        if _floats(scene):
            # Two seconds without control; raises where the simulation diverges.
            sim = open_world(scene, engine)
            state = sim.reset(0)
            for _ in range(round(2.0 / sim.spec.dt)):
                state = sim.step(state, rest_action(sim))
            with tempfile.TemporaryDirectory() as folder:
                fixed = _fixed_base(scene, Path(folder) / "fixed")
                facts |= _moved(fixed, open_world(fixed, engine))
        else:
            facts |= _moved(scene, open_world(scene, engine))
    except Diverged as error:
        facts |= {"finite": False, "message": str(error)}
    except InstepError as error:
        facts["refused"] = str(error)
    return facts | {"seconds": time.process_time() - began}


def _floats(scene: Scene) -> bool:
    """Whether driven joints are on a body that moves freely."""
    model = scene.model
    roots = {int(model.body_rootid[model.jnt_bodyid[j]]) for j in model.actuator_trnid[:, 0] if 0 <= j < model.njnt}
    free = model.jnt_type == int(mujoco.mjtJoint.mjJNT_FREE)
    return bool(roots & {int(body) for body in model.jnt_bodyid[free]})


def _fixed_base(scene: Scene, folder: Path) -> Scene:
    """The scene with its free joints removed and their bodies raised by a metre, in a folder of its own."""
    spec: Any = named_spec(scene.source)
    for joint in [joint for joint in spec.joints if joint.type == mujoco.mjtJoint.mjJNT_FREE]:
        joint.parent.pos = joint.parent.pos + np.array([0.0, 0.0, 1.0])
        spec.delete(joint)
    for key in list(spec.keys):
        spec.delete(key)
    spec.compile()
    folder.mkdir()
    for name, content in scene.source.files.items():
        (folder / name).write_bytes(content)
    (folder / "fixed.xml").write_text(spec.to_xml(), encoding="utf-8")
    return Scene.load(folder / "fixed.xml")


def _moved(scene: Scene, sim: Simulator) -> dict[str, Any]:
    """Hold the pose; motors hold that of the start, inside the limits of the joints."""
    model, drives, state, rest = scene.model, Drives.of(scene), sim.reset(0), np.array(rest_action(sim), float)
    goal = scene.rest_action()[drives.actuators]
    if drives.motors:
        joints = [int(np.flatnonzero(model.jnt_qposadr == at)[0]) for at in drives.joints]
        low, high = model.jnt_range[joints].T
        room, goal = 0.2 * (high - low), state.q[drives.joints]
        goal = np.where(model.jnt_limited[joints] > 0, np.clip(goal, low + room, high - room), goal)
    for _ in range(round(HOLD_S / sim.spec.dt)):
        state = sim.step(state, drives.action(rest, state.q, state.v, goal))
    if not len(drives.joints):
        return {"finite": True, "holds": None}
    offset, speed = np.abs(state.q[drives.joints] - goal), np.abs(state.v[drives.dofs])
    holds = (offset <= drives.per_joint(MAX_OFFSET)) & (speed <= drives.per_joint(MAX_SPEED))
    bad = [str(label) for label in np.array(scene.spec.q.labels)[drives.joints][~holds]]
    found = {"offset": float(offset.max()), "speed": float(speed.max()), "bad": bad}
    return {"finite": True, "holds": bool(holds.all()), **found}


def _line(case: dict[str, Any]) -> str:
    facts = {k: v for k, v in case.items() if k not in ("name", "engine", "seconds") and v not in (None, [])}
    return f"{case['name']}, {case['engine']}: {', '.join(f'{k} {v}' for k, v in facts.items())}"


if __name__ == "__main__":
    for each in ENGINES:
        print(json.dumps(measured_case(sys.argv[1], sys.argv[2], each)), flush=True)
