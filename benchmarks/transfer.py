"""Ways to learn across the gap, on hidden perturbations in another engine, and how well success is foretold.

Robots are simulated by rapier with hidden parameters, delay and noise, none of which any technique knows. (a) Training
over the posterior against hand ranges and no randomization, and fine-tuning through a delta action against the
untouched policy: the arm follows a moving point, reaches points, the wheeled robot drives a course, and the quadruped
walks while it is pushed. (b) The whole
experiment closing on PushT with every technique: its time on two cores, and its returns on Ray. (c) The transfer score:
policies of every quality in the simulator and on robots. (d) Features of real and rendered images. Nothing was tuned on
these robots or starts; the objective of training and the width of posteriors were chosen on robots 1 to 4 and 101 to
104, the sines in recordings on robots 101 to 116. Each robot that is done is kept, so that a stopped benchmark
continues. `--only` takes parts, such as "so101 reach" or "images".
"""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from harness import row
from instep.app.cluster import open_map
from instep.core.errors import UnknownName
from instep.core.processes import usable_cores
from instep.core.world import options_dataclass
from instep.lab.closing_study import ClosingPlan, ClosingStudy, run_closing
from instep.lab.closing_trial import USUAL, ClosingBudget
from instep.scene.new_scene import make_scene

TASKS = (("so101", "track"), ("so101", "reach"), ("diff_drive", "course"), ("quadruped", "walk"))
QUADRUPED = Path(__file__).resolve().parents[1] / "examples/quadruped/quadruped.xml"
PUSHT = ("pusht", "pusht")
COMPARED = ("untouched", "nominal training", "hand ranges", "posterior", "delta action")
PAIRS = (
    ("posterior", "hand ranges"), ("posterior", "nominal training"), ("posterior", "untouched"),
    ("delta action", "untouched"), ("delta action", "nominal training"), ("delta action", "posterior"),
)  # fmt: skip
"""Techniques whose returns are compared robot by robot, where both were run."""
PAIRED = ", robot by robot"
"""End of the name of a row with a paired difference."""
FIRST_ROBOT = 201
"""Seed of the first hidden perturbation; the code was developed on seeds below 10 and 101 to 103."""
RAY_ROBOTS = 2
"""Robots of PushT that are run a second time, on Ray."""
VIDEOS = Path(__file__).resolve().parents[2] / "shared/data/pusht/videos"
TABLE = Path(__file__).resolve().parents[2] / "shared/data/policy_tables/simpler_real_vs_sim.csv"


@options_dataclass
class Effort:
    """Length of the episodes of a task [s], and the width of each half of a training."""

    seconds: float
    generations: int
    population: int
    samples: int


@options_dataclass
class Plan:
    """How much is done."""

    robots: int
    tasks: tuple[tuple[str, str], ...]
    efforts: Mapping[str, Effort]
    """By scene; that of "" for the others."""
    starts: int
    foretold: int
    """Policies of the transfer score."""
    trials: int
    """Trials of each in the simulator and on a robot."""
    every: tuple[str, ...]
    """Techniques on PushT."""
    shootout_min: float
    """Longest time of the experiment on PushT [min]."""
    on: str = f"processes:{usable_cores()}"
    """Where robots run."""


FULL = Plan(
    robots=20, tasks=TASKS, starts=6, foretold=200, trials=20, every=USUAL, shootout_min=120.0,
    efforts={
        "": Effort(seconds=6.0, generations=10, population=10, samples=6),
        # Episodes on PushT are longer and cost more.
        "pusht": Effort(seconds=10.0, generations=5, population=8, samples=4),
        "quadruped": Effort(seconds=6.0, generations=4, population=10, samples=3),
    },
)  # fmt: skip
QUICK = Plan(
    robots=3, tasks=TASKS[1:2], starts=2, foretold=14, trials=4, every=COMPARED, shootout_min=10.0,
    efforts={"": Effort(seconds=1.5, generations=3, population=6, samples=4)},
)  # fmt: skip


def run(out: Path, quick: bool = False, only: Sequence[str] = ()) -> list[dict[str, Any]]:
    """All rows, or those of some parts."""
    plan = QUICK if quick else FULL
    every: dict[str, Callable[[], list[dict[str, Any]]]] = {
        " ".join(task): partial(closing_rows, out, *task, plan) for task in TASKS
    }
    every |= {
        "pusht": lambda: closing_rows(out, *PUSHT, plan, plan.every),
        "ray": lambda: ray_rows(out, plan),
        "score": lambda: [*foretold_rows(out, plan), *published_rows()],
        "images": lambda: image_rows(quick),
        "pictures": lambda: picture_rows(out, quick, plan),
    }
    unknown = [part for part in only if part not in every]
    if unknown:
        raise UnknownName("part of the benchmark", unknown[0], every)
    left_out = {" ".join(task) for task in TASKS if task not in plan.tasks}
    rows = [one for name, make in every.items() if (name in only if only else name not in left_out) for one in make()]
    return [*rows, *goal_rows(rows)]


def goal_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The goals that ask for two tasks or two robots, from the paired differences among the rows."""
    sure: dict[tuple[str, str], dict[str, bool]] = {}
    for one in rows:
        name, mark, words = str(one["name"]).partition(PAIRED)[0].partition(": ")
        technique, less, other = words.partition(" less ")
        if mark and less and PAIRED in one["name"]:
            sure.setdefault((technique, other), {})[name] = one["low"] > 0
    tasks = _all_sure(sure, [("posterior", "hand ranges"), ("posterior", "nominal training")])
    robots: dict[str, bool] = {}
    for name, won in sure.get(("delta action", "untouched"), {}).items():
        scene = name.partition(" ")[0]
        robots[scene] = robots.get(scene, False) or won
    return [
        *_goal_of_two("tasks", "where the posterior surely beats hand ranges and no randomization", tasks),
        *_goal_of_two("robots", "on which the delta action surely beats the untouched policy, at any task", robots),
    ]


def _all_sure(sure: Mapping[tuple[str, str], Mapping[str, bool]], pairs: Sequence[tuple[str, str]]) -> dict[str, bool]:
    """By task, whether every one of these differences is surely above 0."""
    found = [sure.get(pair, {}) for pair in pairs]
    return {name: all(one[name] for one in found) for name in found[0] if all(name in one for one in found)}


def _goal_of_two(what: str, words: str, met: Mapping[str, bool]) -> list[dict[str, Any]]:
    """No verdict where fewer than two were run."""
    compared = row(f"{what} that were compared to find those {words}", len(met), "")
    return [compared, row(f"{what} {words}", sum(met.values()), "", at_least=2.0 if len(met) > 1 else None)]


def absent(part: str, library: str, extra: str) -> dict[str, Any]:
    """The row of a part that needs a library which is not installed: what was not run has not passed."""
    return row(f"{part}: not run, {library} is absent (pip install 'instep[{extra}]')", 1.0, "", at_most=0.0)


def closing_rows(
    out: Path, scene: str, task: str, plan: Plan, techniques: tuple[str, ...] = COMPARED
) -> list[dict[str, Any]]:
    """Returns of each technique at one task, and paired differences."""
    name = scene if scene == task else f"{scene} {task}"
    spent = out / f"{scene}_{task}" / "minutes.json"
    before = json.loads(spent.read_text(encoding="utf-8")) if spent.is_file() else 0.0
    began = time.perf_counter()
    study = closing_study(out, scene, task, plan, techniques)
    minutes = before + (time.perf_counter() - began) / 60
    spent.write_text(json.dumps(minutes), encoding="utf-8")
    rows = [row(f"{name}: return, {one}", study.score(one)) for one in study.techniques]
    rows += [row(f"{name}: success, {one}", study.success(one)) for one in study.techniques]
    errors = {one: off for one in study.techniques if (off := study.error(one)) is not None}
    rows += [row(f"{name}: tracking error, {one}", off, study.error_unit) for one, off in errors.items()]
    gains = {pair: study.gain(*pair) for pair in PAIRS if {*pair} <= {*study.techniques}}
    rows += [row(f"{name}: {a} less {b}{PAIRED}", gain) for (a, b), gain in gains.items()]
    for one in study.techniques:
        rows.append(row(f"{name}: minutes on the robot, {one}", study.robot_minutes(one), "min"))
        rows.append(row(f"{name}: minutes of one core, {one}", study.computer_minutes(one), "min"))
    most = plan.shootout_min if scene == PUSHT[0] else None
    words = f"{name}: time of the experiment, {len(study.techniques)} techniques on {len(study.robots)} robots"
    return [*rows, row(words, minutes, "min", at_most=most)]


def closing_study(
    out: Path, scene: str, task: str, plan: Plan, techniques: tuple[str, ...], on: str = "", robots: int = 0
) -> ClosingStudy:
    """The experiment closing on hidden robots, kept in a folder of its own."""
    on, effort = on or plan.on, plan.efforts.get(scene, plan.efforts[""])
    budget = ClosingBudget(
        starts=plan.starts, seconds=effort.seconds, generations=effort.generations, population=effort.population,
        samples=effort.samples, recordings=min(4, plan.starts),
    )  # fmt: skip
    seeds = tuple(range(FIRST_ROBOT, FIRST_ROBOT + (robots or plan.robots)))
    folder = out / (f"{scene}_{task}" if on == plan.on else f"{scene}_{task}_{on}")
    folder.mkdir(parents=True, exist_ok=True)
    with open_map(on, deadline=7200.0) as mapped:
        return run_closing(
            ClosingPlan(scene_words(out, scene), task, "expert", techniques, seeds, budget), folder, map=mapped
        )


def scene_words(out: Path, scene: str) -> str:
    """A shipped scene by its name; that of the quadruped is made of the example first."""
    if scene != "quadruped":
        return scene
    folder = out / "scenes" / scene
    if not folder.is_dir():
        make_scene(QUADRUPED, folder, rate=100, legs=True)
    return str(folder)


def ray_rows(out: Path, plan: Plan) -> list[dict[str, Any]]:
    """Whether Ray gives the same returns on PushT bit by bit."""
    if importlib.util.find_spec("ray") is None:
        return [absent("pusht: returns on Ray", "ray", "cluster")]
    here = closing_study(out, *PUSHT, plan, plan.every, robots=RAY_ROBOTS)
    there = closing_study(out, *PUSHT, plan, plan.every, "ray", RAY_ROBOTS)
    words = f"pusht: returns on Ray that differ in any bit, {RAY_ROBOTS} robots"
    pairs = [(a.scores, there.robots[k][name].scores) for k, own in here.robots.items() for name, a in own.items()]
    differ = sum(x != y for a, b in pairs for x, y in zip(a, b, strict=True))
    count = sum(len(a) for a, _ in pairs)
    return [row("pusht: returns compared with Ray", count, ""), row(words, differ, "", at_most=0.0)]


def foretold_rows(out: Path, plan: Plan) -> list[dict[str, Any]]:
    """Coverage of the transfer score: policies with random residuals, each on a robot of its own."""
    from instep.evaluate.agreement import SuccessRates, score_coverage

    file = out / "foretold.json"
    pairs: list[list[float]] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
    missing = range(len(pairs), plan.foretold)
    with open_map(plan.on, deadline=3600.0) as mapped:
        for pair in mapped(partial(foretold, trials=plan.trials), missing):
            pairs.append(list(pair))
            file.write_text(json.dumps(pairs), encoding="utf-8")
    n = plan.trials
    known = [SuccessRates("reach", str(i), real, sim, n, n) for i, (sim, real) in enumerate(pairs)]
    real = np.array([r.real for r in known])
    return [
        row("transfer score: policies", len(known), ""),
        row("transfer score: lowest and highest real success, their distance", float(real.max() - real.min()), ""),
        _coverage("transfer score: coverage of the 90 % interval, each policy left out", score_coverage(known)),
    ]


def foretold(number: int, trials: int) -> tuple[float, float]:
    """Success of a policy with random weights in the simulator, and on a perturbed robot."""
    from instep.evaluate.episode_batch import episode_returns, start_states
    from instep.evaluate.perturbed_robot import Perturbation, simulate_robot
    from instep.lab.simulation_training import TrainingSetup
    from instep.scene.folder import Scene
    from instep.scene.tasks.task import Tasked

    scene = Scene.load("so101")
    setup = TrainingSetup.of(scene, "reach", "expert")
    rng = np.random.default_rng((number, 0xF0E))
    # From slow to restless; wider ranges fail on every robot with a delay, and say nothing about a score.
    weights = rng.uniform([-0.6, -0.3, -0.4, -0.3], [0.6, 0.3, 0.4, 1.2])
    policy = setup.trained.policy(np.tile(weights, (len(setup.trained.weights), 1)))
    real = Tasked(simulate_robot(scene, Perturbation(hidden=FIRST_ROBOT + number)).world, setup.world.task)
    rates = list[float]()
    for world in (setup.world, real):
        found = episode_returns(world, policy, start_states(world, range(trials)), steps=round(3.0 / world.spec.dt))
        rates.append(float(found.success.mean()))
    return rates[0], rates[1]


def image_rows(quick: bool) -> list[dict[str, Any]]:
    """Distance of encoder features between real frames of PushT and rendered ones, before and after adaptation.

    Adapters and alignments are fitted on every other image and judged on the rest. The encoder has random weights.
    """
    if importlib.util.find_spec("torch") is None:
        return [absent("images", "torch", "learn")]
    if not VIDEOS.is_dir():
        return [row(f"images: not run, the recordings of PushT are absent ({VIDEOS.parent.name})", 1.0, at_most=0.0)]
    from instep.physics.mujoco_cameras import MujocoRenderer
    from instep.policy.image_adaptation import METHODS, align_features, feature_distance, fit_adapter
    from instep.policy.networks import encoder_features, resized
    from instep.scene.folder import Scene

    scene = Scene.load("pusht")
    rows: list[dict[str, Any]] = []
    falls: list[float] = []
    renderer = MujocoRenderer(scene)
    for name, camera in list(scene.cameras.items())[: 1 if quick else None]:
        real = resized(_frames(VIDEOS / f"{name.removeprefix('cam_')}.mp4"), 96)
        rendered = resized(np.stack([renderer.render(scene.start(k)[0], camera) for k in range(40)]), 96)
        (fit_real, real), (fit_rendered, rendered) = (real[::2], real[1::2]), (rendered[::2], rendered[1::2])
        wanted = encoder_features(rendered)
        before = feature_distance(encoder_features(real), wanted)
        for method in METHODS:
            seen = encoder_features(fit_adapter(method, fit_real, fit_rendered)(real))
            fall = 1 - feature_distance(seen, wanted) / before
            rows.append(row(f"images, {name}: fall of the feature distance by {method}", fall))
        aligned = align_features(encoder_features(real), encoder_features(fit_real), encoder_features(fit_rendered))
        falls.append(1 - feature_distance(aligned, wanted) / before)
        rows.append(row(f"images, {name}: fall of the feature distance by alignment (CORAL)", falls[-1]))
    renderer.close()
    words = "images: fall of the distance of encoder features, real to rendered, smallest of the cameras"
    return [*rows, row(words, min(falls), at_least=0.5)]


def _frames(path: Path) -> Any:
    import av

    with av.open(str(path)) as container:
        return np.stack([f.to_ndarray(format="rgb24") for i, f in enumerate(container.decode(video=0)) if i % 8 == 0])


def picture_rows(out: Path, quick: bool, plan: Plan) -> list[dict[str, Any]]:
    """Success from images that is lost under another light, lens and texture, and what adaptation regains."""
    if importlib.util.find_spec("torch") is None:
        return [absent("pictures", "torch", "learn")]
    import transfer_images

    chosen = transfer_images.QUICK if quick else transfer_images.FULL
    return transfer_images.regained_rows(out, chosen, plan.on)


def published_rows() -> list[dict[str, Any]]:
    """The same on published success rates of real robots, where the table is there."""
    from instep.evaluate import read_rates
    from instep.evaluate.agreement import score_coverage

    if not TABLE.is_file():
        return [row("transfer score, published policies: not run, their table is absent", 1.0, at_most=0.0)]
    rates = read_rates(TABLE)
    words = f"transfer score: coverage over {len(rates)} published policies and tasks, each left out"
    return [_coverage(words, score_coverage(rates))]


def _coverage(words: str, found: Any) -> dict[str, Any]:
    return row(words, found, at_least=0.85, ok=0.85 <= found.value <= 0.95)
