"""Peers of `python -m benchmarks tune`: bare simulations, mujoco.sysid."""

from __future__ import annotations

import os
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mujoco
import numpy as np
from mujoco import rollout as native

from harness import row
from instep import BadInput, Episode, Scene, Script, open_world, rollout
from instep.core.param import Param
from instep.core.statistics import Estimate
from instep.scene.folder import SceneSimulator
from instep.tune.fit.shooting import ShootingOptions, fit

from .known_worlds import arm7

JOINTS, NOISE = 5, 1e-5
"""Links of the arm that is timed, and noise of its encoders [rad]."""
CORES = 2
"""Cores for each party in what is timed: what a laptop spares, and the same whatever the machine has."""
RUNS = 8
"""Rollouts over which the bare speed is taken, about as many as fill the time of a fit."""


def raw_rate(sim: SceneSimulator, worlds: int, span: int) -> float:
    """Physics steps a second of MuJoCo's own threaded rollout of that many worlds."""
    model = sim.model
    datas = [mujoco.MjData(model) for _ in range(CORES)]
    kind = mujoco.mjtState.mjSTATE_FULLPHYSICS
    data = datas[0]
    data.qpos[:] = sim.reset(0).q
    data.ctrl[:] = sim.scene.rest_action()
    mujoco.mj_forward(model, data)
    state = np.zeros(mujoco.mj_stateSize(model, kind))
    mujoco.mj_getState(model, data, state, kind)
    steps = span * sim.substeps
    control = np.tile(sim.scene.rest_action(), (worlds, steps, 1))
    began = time.perf_counter()
    for _ in range(RUNS):
        native.rollout([model] * worlds, datas, np.tile(state, (worlds, 1)), control)
    return RUNS * worlds * steps / (time.perf_counter() - began)


def meshed_arm(folder: Path, meshes: bool) -> SceneSimulator:
    """An arm of five links, of capsules or of meshes with three hundred corners each, driven by position servos."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    assets, body, closing = "", "", ""
    for i in range(1, JOINTS + 1):
        if meshes:
            corners = rng.standard_normal((300, 3))
            corners = corners / np.linalg.norm(corners, axis=1, keepdims=True) * [0.04, 0.04, 0.1] + [0, 0, 0.1]
            numbers = " ".join(f"{x:.5f}" for x in corners.ravel())
            assets += f'<mesh name="m{i}" vertex="{numbers}"/>'
            geom = f'<geom type="mesh" mesh="m{i}" mass="{1.2 - 0.2 * i}" contype="0" conaffinity="0"/>'
        else:
            shape = 'type="capsule" fromto="0 0 0 0 0 0.2" size="0.03"'
            geom = f'<geom {shape} mass="{1.2 - 0.2 * i}" contype="0" conaffinity="0"/>'
        axis = "0 0 1" if i in (1, 4) else "0 1 0"
        joint = f'<joint name="j{i}" axis="{axis}" damping="1" armature="0.1"/>'
        body += f'<body name="l{i}" pos="0 0 {0.2 if i > 1 else 0.1}">{joint}{geom}'
        closing += "</body>"
    servos = "".join(f'<position name="j{i}" joint="j{i}" kp="60" kv="2"/>' for i in range(1, JOINTS + 1))
    sensors = "".join(f'<jointpos name="p{i}" joint="j{i}"/>' for i in range(1, JOINTS + 1))
    text = (
        f'<mujoco><option timestep="0.004" integrator="implicitfast"/><asset>{assets}</asset><worldbody>{body}{closing}'
        f"</worldbody><actuator>{servos}</actuator><sensor>{sensors}</sensor></mujoco>"
    )
    (folder / "scene.xml").write_text(text)
    names = ", ".join(f'"j{i}"' for i in range(1, JOINTS + 1))
    (folder / "scene.toml").write_text(f'model = "scene.xml"\nrate = 50.0\n[robot]\njoints = [{names}]\n')
    return open_world(Scene.load(folder))


def against_sysid(label: str, sim: SceneSimulator, repeats: int) -> list[dict[str, Any]]:
    """Ten parameters from four runs of one second, exact starts and little noise, each by its own rule of stopping."""
    truth = {
        f"joint.j{i}.{word}": value
        for i in range(1, JOINTS + 1)
        for word, value in (("damping", 0.6 + 0.2 * i), ("armature", 0.05 + 0.03 * i))
    }
    runs = [_run(sim.tuned(truth), seed) for seed in range(4)]
    ours: list[float] = []
    theirs: list[float] = []
    errors = [0.0, 0.0]
    for _ in range(repeats):
        began = time.perf_counter()
        found = _ours(sim, runs, truth)
        ours.append(time.perf_counter() - began)
        errors[0] = max(abs(found[n] / v - 1) for n, v in truth.items())
        params, sequences = _prepared(sim, runs, truth)
        began = time.perf_counter()
        other = _theirs(params, sequences)
        theirs.append(time.perf_counter() - began)
        errors[1] = max(abs(other[n] / v - 1) for n, v in truth.items())
    ratios = np.array(ours) / np.array(theirs)
    ratio, known = float(np.median(ratios)), max(errors) < 0.01
    span = Estimate(ratio, float(ratios.min()), float(ratios.max()), repeats, "x")
    return [
        row(f"{label}: wall time over mujoco.sysid, both to 1 %", span, at_most=0.7, ok=ratio <= 0.7 and known),
        row(f"{label}: largest error of ours, of mujoco.sysid's {errors[1]:.1e}", errors[0], at_most=0.01, ok=known),
    ]


def _run(sim: SceneSimulator, seed: int) -> Episode:
    rng = np.random.default_rng(seed)
    t = np.arange(51)[:, None] * sim.spec.dt
    size, tone, phase = (
        rng.uniform([[0.3]], [[0.8]], (1, JOINTS)),
        rng.uniform(0.5, 2.5, JOINTS),
        rng.uniform(0, 6, JOINTS),
    )
    run = rollout(sim, Script(size * np.sin(2 * np.pi * tone * t + phase)), steps=51)
    q = run.q + NOISE * rng.standard_normal(run.q.shape)
    return run.with_columns({"q": np.concatenate([run.q[:1], q[1:]])})


def _ours(sim: SceneSimulator, runs: list[Episode], truth: dict[str, float]) -> dict[str, float]:
    params = [Param(n, 0.01 if "armature" in n else 0.1, 1.0 if "armature" in n else 10.0, True) for n in truth]
    start = {n: 0.1 if "armature" in n else 1.0 for n in truth}
    options = ShootingOptions(
        window=1.0, guesses=1, fixed_start=True, robust=0.0, initial=start, iterations=40, tolerance=1e-3
    )
    return fit(sim, runs, params, options).settings


def _sysid() -> Any:
    from mujoco import sysid

    if not hasattr(sysid, "ParameterDict"):  # it imports as an empty module where its own requirements are missing
        raise BadInput("The peer mujoco.sysid lacks its requirements; install them: pip install 'mujoco[sysid]'.")
    return sysid


def _theirs(params: Any, sequences: Any) -> dict[str, float]:
    sysid = _sysid()
    residual = sysid.build_residual_fn(models_sequences=sequences, n_threads=CORES)
    with redirect_stdout(StringIO()):
        best, _ = sysid.optimize(initial_params=params, residual_fn=residual, optimizer="mujoco", verbose=False)
    return {name: float(best[name].value[0]) for name in params.parameters}


def _prepared(sim: SceneSimulator, runs: list[Episode], truth: dict[str, float]) -> tuple[Any, Any]:
    """The same runs in the words of mujoco.sysid, which wants sensors at every physics step."""
    sysid = _sysid()
    spec = mujoco.MjSpec.from_string(sim.scene.source.xml)
    model, dt = sim.model, sim.model.opt.timestep
    params = sysid.ParameterDict()
    for name in truth:
        _, joint, word = name.split(".")
        low, high, begin = (0.01, 1.0, 0.1) if word == "armature" else (0.1, 10.0, 1.0)
        params.add(sysid.Parameter(name, nominal=begin, min_value=low, max_value=high, modifier=_writer(joint, word)))
        params[name].value[:] = begin
    sequences: list[Any] = []
    for number, run in enumerate(runs):
        control = np.repeat(run.action[:-1], sim.substeps, axis=0)
        times = np.arange(len(control)) * dt
        data = mujoco.MjData(model)
        begin = sysid.create_initial_state(model, run.q[0], run.v[0], data.act)
        truth_model = sim.tuned(truth).model
        states, sensed = native.rollout(truth_model, mujoco.MjData(truth_model), begin, control[:-1])
        noise = NOISE * np.random.default_rng(number).standard_normal(np.squeeze(sensed, 0).shape)
        measured = np.squeeze(sensed, 0) + noise
        sensors = sysid.TimeSeries.from_names(np.squeeze(states, 0)[:, 0], measured, truth_model)
        sequences.append(
            sysid.ModelSequences("arm", spec, f"run{number}", begin, sysid.TimeSeries(times, control), sensors)
        )
    return params, sequences


def _writer(joint: str, word: str) -> Any:
    def write(spec: Any, parameter: Any) -> None:
        value: Any = parameter.value[0]
        part = spec.joint(joint)
        try:
            setattr(part, word, value)
        except TypeError:
            # Damping is a polynomial since MuJoCo 4, its first coefficient the usual one.
            values = np.array(getattr(part, word))
            values[0] = value
            setattr(part, word, values)

    return write


def timed(quick: bool) -> list[dict[str, Any]]:
    """The rows of `speed`, from a process pinned to two cores."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as worker:
        return worker.submit(speed, quick).result()


def speed(quick: bool) -> list[dict[str, Any]]:
    """A fit's wall time over that of its bare simulations, and over mujoco.sysid's to the same tolerance."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    place = arm7()
    sim = place.sim
    episodes = place.record(place.truth(0), range(2 if quick else 6))
    ratios: list[float] = []
    for _ in range(1 if quick else 7):
        found = fit(sim, episodes, place.params, replace(place.options, limit=None))
        span = found.windows.action.shape[1]
        steps = found.worlds * span * sim.substeps
        ratios.append(found.seconds / (steps / raw_rate(sim, 4 * len(found.windows), span)))
    ratio = float(np.median(ratios))
    span = Estimate(ratio, min(ratios), max(ratios), len(ratios), "x")
    rows = [row("arm7: wall time of a fit over its simulations alone", span, at_most=1.3)]
    with TemporaryDirectory() as folder:
        for label, meshes in (("plain arm", False), ("arm with meshes", True)):
            arm = meshed_arm(Path(folder) / label.replace(" ", "_"), meshes)
            rows += against_sysid(label, arm, repeats=1 if quick else 7)
    return rows
