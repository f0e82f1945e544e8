"""Studies of policies on a simulated robot: demonstrations from failure states, and agreement of success rates.

The robot is simulated by another engine with hidden parameters and noisy, late sensors. (a) PushT from 30
demonstrations on the robot, from 30 and 30 virtual ones that begin where the policy fails, and from 60 on the robot.
(b) Checkpoints from poor to good: their virtual success against that on the robot, with the simulator as it is and
tuned. `policies_images` does (a) with a virtual camera in place of the pose of the T.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from harness import Row, row
from instep.core.world import frozen_dataclass, options_dataclass

SCENE, SIMULATED_ROBOT = "pusht", 1
FRAME = ("pusher_x", "pusher_y", "tee")
CAMERA_FILE = Path(__file__).resolve().parents[1] / "examples/virtual/pusht.toml"
SEEING = ("observation.state", "observation.velocity", "observation.goal")
"""Channels of a policy that sees images in place of the poses of bodies."""
WHOLE = "end to end"
"""A policy whose images go into the network as they are, without poses."""
SHOWN, MINED, JUDGED = 10_000, 400_000, 500_000
"""First seeds of demonstrations, of starts from which failures are mined, of starts on which policies are judged."""
PARAMS = {
    "actuator.*.kp": (250.0, 1000.0),
    "actuator.*.kv": (15.0, 60.0),
    "geom.*.friction": (0.15, 0.8),
    "body.tee.mass": (0.2, 0.8),
    "body.pusher.mass": (0.25, 1.0),
}
"""What is tuned to the demonstrations, besides the delay of commands."""


@options_dataclass
class Plan:
    """How much is done."""

    demos: int = 30
    seeds: int = 3
    """Training seeds."""
    starts: int = 200
    """Starts on which each policy is judged on the simulated robot."""
    virtual: int = 100
    """The same in each of the two simulators; 0 compares no simulators."""
    steps: int = 5000
    width: int = 256
    tries: int = 256
    """Starts from which failures are mined at most, for each policy."""
    early: tuple[tuple[int, int], ...] = ((6, 2500), (12, 2500), (18, 2500))
    """Poorer policies for the comparison of worlds: demonstrations and training steps."""
    camera: str = ""
    """Camera that policies see in place of the pose of the T."""


QUICK = Plan(demos=3, seeds=1, starts=4, virtual=4, steps=60, width=32, early=((1, 20), (2, 40), (4, 60)), tries=4)


@frozen_dataclass
class Training:
    """One training: its data by name, its seed, and its length."""

    name: str
    seed: int
    steps: int

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return f"{self.name.replace(' ', '-')}-{self.seed}"


def run(out: Path, quick: bool = False) -> list[Row]:
    """Do the study; what was counted is kept in study.json."""
    return study(out, QUICK if quick else Plan())


def study(out: Path, plan: Plan) -> list[Row]:
    """The rows of a study with one kind of observation; counted parts are kept in `out`."""
    out.mkdir(parents=True, exist_ok=True)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # read by the processes when they load NumPy: one each, or they fight
    n, kinds, record, began = plan.demos, range(plan.seeds), dict[str, Any](), time.perf_counter()
    with ProcessPoolExecutor(os.cpu_count() or 2, mp_context=get_context("spawn")) as pool:
        shown = list(chain.from_iterable(pool.map(collect, _few(range(SHOWN, SHOWN + 2 * n + 6), 3))))[: 2 * n]
        settings = pool.submit(tune, shown[:n], plan.steps < 1000)
        asked = [Training(f"{m}", k, plan.steps) for m in (n, 2 * n) for k in kinds]
        asked += [Training(f"{m} early", m, steps) for m, steps in (plan.early if plan.virtual else ())]
        asked += [Training(f"{2 * n} {WHOLE}", 0, plan.steps)] if plan.camera else []
        folders = list(pool.map(train, [(a, shown[: int(a.name.split()[0])], out, plan) for a in asked]))
        tuned = settings.result()
        lessons = list(pool.map(teach, [(out / f"{n}-{k}", tuned, MINED + 1000 * k, plan) for k in kinds]))
        more = [Training(f"{n}+{n}", k, plan.steps) for k in kinds]
        folders += pool.map(train, [(a, [*shown[:n], *e], out, plan) for a, e in zip(more, lessons, strict=True)])
        success = record["success"] = judged(pool, folders, tuned, plan)
        if plan.camera:
            record["errors"] = pool.submit(pose_errors, out / f"{n}-0", plan).result()
    record["seconds"] = time.perf_counter() - began
    (out / "study.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    rows = [*learning_rows(success, plan), *(agreement_rows(success, plan) if plan.virtual else [])]
    rows += [
        row(f"pose estimator, error on unseen starts, {name}", value)
        for name, value in record.get("errors", {}).items()
    ]
    return [*rows, row("time of the study", record["seconds"], "s")]


def worlds(name: str, settings: dict[str, float], camera: str = "") -> tuple[Any, Any]:
    """The simulated robot, or MuJoCo with some settings, with the task; then the same as policies see it."""
    from instep import open_world
    from instep.evaluate.perturbed_robot import Perturbation, simulate_robot
    from instep.scene.folder import Scene
    from instep.scene.tasks import task_of
    from instep.scene.tasks.task import Tasked

    scene = Scene.load(SCENE)
    if name == "simulated robot":
        bare = Tasked(simulate_robot(scene, Perturbation(hidden=SIMULATED_ROBOT)).world, task_of(scene))
    else:
        sim = open_world(scene, threads=1)
        bare = Tasked(sim.tuned(settings) if settings else sim, task_of(scene))
    return bare, Tasked(rendered(camera).on(bare.world), bare.task) if camera else bare


@lru_cache(maxsize=2)
def rendered(camera: str) -> Any:
    """A virtual camera of the scene, rendered by one thread."""
    from instep.scene.folder import Scene
    from instep.splat.rendered_world import load_rendered_cameras

    return load_rendered_cameras(CAMERA_FILE, Scene.load(SCENE), (camera,), threads=1)


def expert() -> Any:
    """The scripted expert."""
    from instep.policy import expert_of
    from instep.scene.folder import Scene
    from instep.scene.tasks import task_of

    scene = Scene.load(SCENE)
    return expert_of(task_of(scene), scene)


def collect(seeds: Sequence[int]) -> list[Any]:
    """Demonstrations on the simulated robot; positions and velocities are what its sensors said."""
    from instep.evaluate import demonstrate
    from instep.scene.tasks.manipulation_tasks import heading

    found: list[Any] = []
    for episode in demonstrate(worlds("simulated robot", {})[0], expert(), seeds):
        pose, dt = episode["observation.environment_state"], episode.spec.dt
        turn = np.gradient(np.unwrap(heading(pose[:, 3:])), dt)[:, None]
        moved = [np.gradient(pose[:, :3], dt, axis=0), np.zeros((len(pose), 2)), turn]
        q = np.concatenate([episode["observation.state"], pose], axis=1)
        v = np.concatenate([episode["observation.velocity"], *moved], axis=1)
        found.append(episode.with_columns({"q": q, "v": v}))
    return found


def tune(episodes: Sequence[Any], quick: bool) -> dict[str, float]:
    """The parameters with which MuJoCo best predicts demonstrations, by CMA-ES: contacts leave no gradient."""
    from instep import Param, open_world
    from instep.scene.folder import Scene
    from instep.tune.fit.searches import contact_search
    from instep.tune.fit.shooting import ShootingOptions

    params = [Param(address, low, high, log=True) for address, (low, high) in PARAMS.items()]
    params.append(Param("action.delay", 0.0, 0.12))
    options = ShootingOptions(window=0.5, limit=8 if quick else 48)
    plain = [replace(e, columns={k: e.columns[k] for k in ("timestamp", "q", "v", "action")}) for e in episodes]
    sim = open_world(Scene.load(SCENE), threads=2)
    return contact_search(sim, plain, params, options, generations=2 if quick else 24)[0]


def train(job: tuple[Training, list[Any], Path, Plan]) -> str:
    """Train one policy on one core and return its folder; a finished one is kept."""
    from instep.policy.training import TrainOptions
    from instep.policy.training import train as learn

    asked, episodes, out, plan = job
    options = TrainOptions(
        steps=asked.steps, checkpoint_every=asked.steps, width=plan.width, seed=asked.seed, threads=1,
        frame=None if WHOLE in asked.name else FRAME,
    )  # fmt: skip
    if plan.camera:
        options = replace(options, cameras=(plan.camera,), channels=SEEING)
        episodes = [rendered(plan.camera).add_images(episode) for episode in episodes]
    return str(learn(episodes, out / asked.folder, options))


def teach(job: tuple[Path, dict[str, float], int, Plan]) -> list[Any]:
    """Demonstrations in the tuned simulator from where a policy fails there."""
    from instep.evaluate import corrective_demos
    from instep.policy import load_policy

    folder, settings, first, plan = job
    bare, seen = worlds("tuned", settings, plan.camera)
    policy, starts = load_policy(folder, seen.spec), range(first, first + plan.tries)
    return list(corrective_demos(seen, policy, expert(), starts, wanted=plan.demos, shown_in=bare).episodes)


def judged(pool: Any, folders: Sequence[str], tuned: dict[str, float], plan: Plan) -> dict[str, dict[str, list[bool]]]:
    """Successes start by start: world -> policy -> list."""
    sides = (("simulated robot", {}, plan.starts), ("tuned", tuned, plan.virtual), ("as it is", {}, plan.virtual))
    waiting = [
        (name, Path(folder).name, pool.submit(judge, folder, name, settings, chunk, plan.camera))
        for name, settings, starts in sides
        for folder in folders
        for chunk in _few(range(JUDGED, JUDGED + starts), 10)
    ]
    found: dict[str, dict[str, list[bool]]] = {}
    for name, policy, job in waiting:
        found.setdefault(name, {}).setdefault(policy, []).extend(job.result())
    return found


def judge(folder: str, name: str, settings: dict[str, float], seeds: Sequence[int], camera: str) -> list[bool]:
    """From which starts a policy does the task in a world."""
    from instep.evaluate import run_batch
    from instep.policy import load_policy

    world = worlds(name, settings, camera)[1]
    return [one.success for one in run_batch(world, load_policy(Path(folder), world.spec), seeds).episodes]


def pose_errors(folder: Path, plan: Plan) -> dict[str, float]:
    """Errors of the pose estimator of a policy on demonstrations that nothing was trained on."""
    from instep.policy import load_policy
    from instep.scene.tasks.manipulation_tasks import heading, wrapped

    estimator: Any = load_policy(folder, worlds("simulated robot", {}, plan.camera)[1].spec).policy
    off, angles = [], []
    for episode in collect(range(MINED - 1000, MINED - 1000 + min(8, plan.demos))):
        seen = rendered(plan.camera).add_images(episode)
        said, true = estimator.pose_estimator(seen.columns, (len(seen),)), seen["observation.environment_state"]
        off.append(np.hypot(*(said - true)[:, :2].T) * 1e3)
        angles.append(np.degrees(np.abs(wrapped(heading(said[:, 3:]) - heading(true[:, 3:])))))
    place, angle = np.concatenate(off), np.concatenate(angles)
    return {
        "median position [mm]": float(np.median(place)),
        "90 % position [mm]": float(np.quantile(place, 0.9)),
        "median heading [deg]": float(np.median(angle)),
    }


def learning_rows(judged: dict[str, dict[str, list[bool]]], plan: Plan) -> list[Row]:
    """Success of the kinds of training on the simulated robot, and their differences start by start."""
    from instep.core.statistics import paired_difference, wilson

    n, found = plan.demos, judged["simulated robot"]
    arms = {
        f"{n}": f"{n} demonstrations",
        f"{n}+{n}": f"{n} and {n} virtual ones from failure states",
        f"{2 * n}": f"{2 * n} demonstrations",
    }
    rows, flat = list[Row](), dict[str, list[bool]]()
    for name, words in arms.items():
        own = [found[f"{name}-{k}"] for k in range(plan.seeds)]
        flat[name] = list(chain.from_iterable(own))
        rate = wilson(sum(flat[name]), len(flat[name]))
        rows.append(row(f"success on the simulated robot, {words}, {plan.seeds} training seeds", rate))
        rows += [row(f"  training seed {k}", wilson(sum(one), len(one))) for k, one in enumerate(own)]
    for first, second in ((f"{n}+{n}", f"{n}"), (f"{n}+{n}", f"{2 * n}")):
        a, b = np.array(flat[first]), np.array(flat[second])
        gain = paired_difference(int((a & ~b).sum()), int((b & ~a).sum()), len(a))
        ok = gain.low > 0 if second == f"{n}" else None
        rows.append(row(f"{first} less {second}, start by start", gain, at_least=None if ok is None else 0.0, ok=ok))
    for name in (name for name in found if WHOLE.replace(" ", "-") in name):
        words = f"success, {2 * n} demonstrations, {WHOLE} without poses, one training"
        rows.append(row(words, wilson(sum(found[name]), len(found[name]))))
    return rows


def agreement_rows(judged: dict[str, dict[str, list[bool]]], plan: Plan) -> list[Row]:
    """How well virtual success predicts success on the simulated robot, with the simulator as it is and tuned."""
    from instep.core.statistics import mmrv_interval, pearson, spearman

    names = list(judged["simulated robot"])
    trials, virtual = np.full(len(names), plan.starts), np.full(len(names), plan.virtual)
    real = np.array([np.mean(judged["simulated robot"][name]) for name in names])
    rows = [row("policies compared", len(names), ""), row("lowest success on the simulated robot", real.min(), ""),
            row("highest success on the simulated robot", real.max(), "")]  # fmt: skip
    for side, goals in (("as it is", (None, None)), ("tuned", (0.95, 0.05))):
        sim = np.array([np.mean(judged[side][name]) for name in names])
        violation = mmrv_interval((sim, virtual), (real, trials))
        rows.append(row(f"r, simulator {side}", pearson(sim, real), at_least=goals[0]))
        rows.append(row(f"Spearman, simulator {side}", spearman(sim, real)))
        ok = None if goals[1] is None else violation.value <= goals[1]
        rows.append(row(f"MMRV, simulator {side}", violation, at_most=goals[1], ok=ok))
        rows.append(row(f"mean absolute difference of success, simulator {side}", float(np.abs(sim - real).mean()), ""))
    return rows


def _few(seeds: range, count: int) -> list[list[int]]:
    return [list(seeds[i : i + count]) for i in range(0, len(seeds), count)]
