"""Two studies of policies on a simulated robot: what demonstrations from failure states are worth, and agreement.

The robot is simulated by another engine with hidden parameters and noisy, late sensors. (a) PushT from 30
demonstrations on the robot, from 30 and 30 virtual ones that begin where the policy fails, and from 60 on the robot.
(b) Checkpoints from poor to good: their virtual success against that on the robot, with the simulator as it is and
tuned.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from harness import row
from instep.core.world import frozen_dataclass, options_dataclass

SCENE, SIMULATED_ROBOT = "pusht", 1
FRAME = ("pusher_x", "pusher_y", "tee")
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
class Effort:
    """How much is done in a study of policies that learn from demonstrations and from their failures."""

    demos: int
    seeds: int
    """Training seeds."""
    starts: int
    """Starts on which each policy is judged, in each world."""
    steps: int
    width: int
    tries: int
    """Starts from which failures are mined at most, for each policy."""


@options_dataclass
class Plan(Effort):
    """How much is done."""

    virtual: int
    """Starts on which each policy is judged in each of the two simulators."""
    early: tuple[tuple[int, int], ...]
    """Poorer policies for the comparison of worlds: demonstrations and training steps."""


EARLY = ((6, 2500), (12, 2500), (18, 2500))
FULL = Plan(demos=30, seeds=3, starts=200, virtual=100, steps=5000, width=256, early=EARLY, tries=256)
QUICK = Plan(demos=3, seeds=1, starts=4, virtual=4, steps=60, width=32, early=((1, 20), (2, 40), (4, 60)), tries=4)


def run(out: Path, quick: bool = False) -> list[dict[str, Any]]:
    """Do the study and return one row per number; everything that was counted is kept in study.json as it comes."""
    plan, book = QUICK if quick else FULL, Book(out / "study.json")
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # read by the processes when they load NumPy: one each, or they fight
    n, kinds = plan.demos, range(plan.seeds)
    with ProcessPoolExecutor(os.cpu_count() or 2, mp_context=get_context("spawn")) as pool:
        shown = list(chain.from_iterable(pool.map(collect, _few(range(SHOWN, SHOWN + 2 * n + 6), 3))))[: 2 * n]
        book("demonstrations on the simulated robot", demonstrations=len(shown))
        settings = pool.submit(tune, shown[:n], quick)
        asked = [Training(f"{m}", k, plan.steps) for m in (n, 2 * n) for k in kinds]
        asked += [Training(f"{m} early", m, steps) for m, steps in plan.early]
        folders = list(pool.map(train, [(a, shown[: int(a.name.split()[0])], out, plan) for a in asked]))
        tuned = settings.result()
        book("first training and tuning", tuned=tuned)
        lessons = list(pool.map(teach, [(out / f"{n}-{k}", tuned, MINED + 1000 * k, plan) for k in kinds]))
        book("failures mined", mined=[len(found) for found in lessons])
        more = [Training(f"{n}+{n}", k, plan.steps) for k in kinds]
        jobs = [(a, [*shown[:n], *extra], out, plan) for a, extra in zip(more, lessons, strict=True)]
        folders = [*pool.map(train, jobs), *folders]
        book("second training")
        _judge_all(pool, folders, tuned, plan, book)
    return rows_of(book.record, plan)


def rows_of(record: dict[str, Any], plan: Plan) -> list[dict[str, Any]]:
    """The table of a study that was kept."""
    took = [row(f"time: {what}", seconds, "s") for what, seconds in record["seconds"].items()]
    return [*learning_rows(record["success"], plan), *agreement_rows(record["success"], plan), *took]


class Book:
    """What is known so far, on disk at every moment: a study that is stopped keeps what was counted."""

    def __init__(self, path: Path):
        self.record: dict[str, Any] = {"seconds": {}, "success": {}}
        self._path, self._last = path, time.perf_counter()

    def __call__(self, what: str, **more: Any) -> None:
        """Note how long a part took, and what it found."""
        now = time.perf_counter()
        self.record["seconds"][what], self._last = now - self._last, now
        self.record |= more
        print(f"{what}: {self.record['seconds'][what]:.0f} s", flush=True)
        self.save()

    def save(self) -> None:
        """Write everything."""
        self._path.write_text(json.dumps(self.record, indent=1) + "\n", encoding="utf-8")


@frozen_dataclass
class Training:
    """One training: what it is trained on, by name, its seed, and how long."""

    name: str
    seed: int
    steps: int

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return f"{self.name.replace(' ', '-')}-{self.seed}"


def worlds(name: str, settings: dict[str, float], threads: int = 1) -> Any:
    """The simulated robot, or MuJoCo with some settings, with the task; few threads, since processes share the
    cores."""
    from instep import open_world
    from instep.evaluate.perturbed_robot import Perturbation, simulate_robot
    from instep.scene.folder import Scene
    from instep.scene.tasks import task_of
    from instep.scene.tasks.task import Tasked

    scene = Scene.load(SCENE)
    if name == "simulated robot":
        return Tasked(simulate_robot(scene, Perturbation(hidden=SIMULATED_ROBOT)).world, task_of(scene))
    sim = open_world(scene, threads=threads)
    return Tasked(sim.tuned(settings) if settings else sim, task_of(scene))


def expert() -> Any:
    """The scripted expert."""
    from instep.policy.task_experts import expert_of
    from instep.scene.folder import Scene
    from instep.scene.tasks import task_of

    scene = Scene.load(SCENE)
    return expert_of(task_of(scene), scene)


def collect(seeds: Sequence[int]) -> list[Any]:
    """Demonstrations on the simulated robot; positions and velocities are what its sensors said, not what it knows."""
    from instep.evaluate.failure_mining import demonstrate

    return [sensed(episode) for episode in demonstrate(worlds("simulated robot", {}), expert(), seeds)]


def sensed(episode: Any) -> Any:
    """The episode with the positions and velocities that sensors measured: those of the block by differences."""
    from instep.scene.tasks.manipulation_tasks import heading

    pose, dt = episode["observation.environment_state"], episode.spec.dt
    turn = np.gradient(np.unwrap(heading(pose[:, 3:])), dt)[:, None]
    still = np.zeros((len(pose), 2))
    v = np.concatenate([episode["observation.velocity"], np.gradient(pose[:, :3], dt, axis=0), still, turn], axis=1)
    return episode.with_columns({"q": np.concatenate([episode["observation.state"], pose], axis=1), "v": v})


def tune(episodes: Sequence[Any], quick: bool) -> dict[str, float]:
    """The parameters with which MuJoCo best predicts demonstrations, by CMA-ES: contacts leave no gradient."""
    from instep import Param, open_world
    from instep.scene.folder import Scene
    from instep.tune.fit.contact_search import CmaOptions, cma_search

    params = [Param(address, low, high, log=True) for address, (low, high) in PARAMS.items()]
    params.append(Param("action.delay", 0.0, 0.12))
    options = CmaOptions(window=0.5, limit=8 if quick else 48, generations=2 if quick else 24)
    plain = [replace(e, columns={k: e.columns[k] for k in ("timestamp", "q", "v", "action")}) for e in episodes]
    return cma_search(open_world(Scene.load(SCENE), threads=2), plain, params, options).settings


def train(job: tuple[Training, list[Any], Path, Plan]) -> str:
    """Train one policy on one core and return its folder."""
    from instep.policy.training import TrainOptions
    from instep.policy.training import train as learn

    asked, episodes, out, plan = job
    options = TrainOptions(
        steps=asked.steps,
        checkpoint_every=asked.steps,
        width=plan.width,
        frame=FRAME,
        seed=asked.seed,
        threads=1,
    )
    return str(learn(episodes, out / asked.folder, options))


def teach(job: tuple[Path, dict[str, float], int, Plan]) -> list[Any]:
    """Demonstrations in the tuned simulator from where a policy fails there."""
    from instep.evaluate.failure_mining import corrective_demos
    from instep.policy.flow_policy import load_policy

    folder, settings, first, plan = job
    world = worlds("tuned", settings, threads=max(1, (os.cpu_count() or 2) // plan.seeds))
    seeds = range(first, first + plan.tries)
    found = corrective_demos(world, load_policy(folder, world.spec), expert(), seeds, wanted=plan.demos)
    return list(found.episodes)


def judge(job: tuple[str, str, dict[str, float], Sequence[int]]) -> list[bool]:
    """From which starts a policy does the task in a world."""
    from instep.evaluate.episode_batch import run_batch
    from instep.policy.flow_policy import load_policy

    folder, name, settings, seeds = job
    world = worlds(name, settings)
    return [row.success for row in run_batch(world, load_policy(Path(folder), world.spec), seeds).episodes]


def _judge_all(pool: Any, folders: list[str], tuned: dict[str, float], plan: Plan, book: Book) -> None:
    """Successes start by start: world -> policy -> list; the simulated robot first, since it matters most."""
    sides = (("simulated robot", {}, plan.starts), ("tuned", tuned, plan.virtual), ("as it is", {}, plan.virtual))
    waiting = []
    for name, settings, starts in sides:
        chunks = _few(range(JUDGED, JUDGED + starts), 10)
        for folder in folders:
            jobs = [pool.submit(judge, (folder, name, settings, chunk)) for chunk in chunks]
            waiting.append((name, Path(folder).name, jobs))
    for name, policy, jobs in waiting:
        done = list(chain.from_iterable(job.result() for job in jobs))
        book.record["success"].setdefault(name, {})[policy] = done
        book.save()
    book("judging")


def learning_rows(judged: dict[str, Any], plan: Plan) -> list[dict[str, Any]]:
    """Success of the three kinds of training on the simulated robot, and their differences start by start."""
    from instep.core.statistics import paired_difference, wilson

    n, found = plan.demos, judged["simulated robot"]
    arms = {
        f"{n} demonstrations": f"{n}",
        f"{n} and {n} virtual ones from failure states": f"{n}+{n}",
        f"{2 * n} demonstrations": f"{2 * n}",
    }
    rows: list[dict[str, Any]] = []
    flat: dict[str, list[bool]] = {}
    for words, name in arms.items():
        own = [found[f"{name}-{k}"] for k in range(plan.seeds)]
        flat[name] = list(chain.from_iterable(own))
        rows.append(
            row(
                f"success on the simulated robot, {words}, {plan.seeds} training seeds",
                wilson(sum(flat[name]), len(flat[name])),
            )
        )
        for k, one in enumerate(own):
            rows.append(row(f"  training seed {k}", wilson(sum(one), len(one))))
    for first, second in ((f"{n}+{n}", f"{n}"), (f"{n}+{n}", f"{2 * n}")):
        a, b = np.array(flat[first]), np.array(flat[second])
        gain = paired_difference(int((a & ~b).sum()), int((b & ~a).sum()), len(a))
        ok = gain.low > 0 if second == f"{n}" else None
        rows.append(row(f"{first} less {second}, start by start", gain, at_least=None if ok is None else 0.0, ok=ok))
    return rows


def agreement_rows(judged: dict[str, Any], plan: Plan) -> list[dict[str, Any]]:
    """How well virtual success predicts success on the simulated robot, with the simulator as it is and tuned."""
    from instep.core.statistics import mmrv_interval, pearson, spearman

    names = list(judged["simulated robot"])
    trials, virtual = np.full(len(names), plan.starts), np.full(len(names), plan.virtual)
    real = np.array([np.mean(judged["simulated robot"][name]) for name in names])
    rows = [row("policies compared", len(names), ""), row("lowest success on the simulated robot", real.min(), ""),
            row("highest success on the simulated robot", real.max(), "")]  # fmt: skip
    for side, goals in (("as it is", (None, None)), ("tuned", (0.95, 0.05))):
        sim = np.array([np.mean(judged[side][name]) for name in names])
        r, rho = pearson(sim, real), spearman(sim, real)
        violation = mmrv_interval((sim, virtual), (real, trials))
        rows.append(row(f"r, simulator {side}", r, at_least=goals[0]))
        rows.append(row(f"Spearman, simulator {side}", rho))
        ok = None if goals[1] is None else violation.value <= goals[1]
        rows.append(row(f"MMRV, simulator {side}", violation, at_most=goals[1], ok=ok))
        rows.append(row(f"mean absolute difference of success, simulator {side}", float(np.abs(sim - real).mean()), ""))
    return rows


def _few(seeds: range, count: int) -> list[list[int]]:
    return [list(seeds[i : i + count]) for i in range(0, len(seeds), count)]


if __name__ == "__main__":
    where = Path(sys.argv[1])
    (where / "rows.json").write_text(json.dumps(run(where, quick="--quick" in sys.argv), indent=1), encoding="utf-8")
