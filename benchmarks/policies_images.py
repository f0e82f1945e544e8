"""Policies from images: what demonstrations from failure states are worth where no pose of the T is observed.

The study of `policies` with a virtual camera in place of object poses: a static one, and one mounted on the stick.
Images of 96 x 96 are rendered from Gaussians at what the simulated robot's sensors report, late and noisy. The policy
observes the joints of the stick and one image; its image encoder is trained on the poses of the T in the
demonstrations, which are absent when it acts. Finished parts are kept, so that a stopped study continues.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import policies
from harness import row
from instep.core.world import options_dataclass
from policies import FRAME, JUDGED, MINED, SCENE, SHOWN, Book, Training, learning_rows

FILE = Path(__file__).resolve().parents[1] / "examples/virtual/pusht.toml"
CAMERAS = ("static", "gripper")
WHOLE = "end to end"
"""The name of a policy whose images go into the net as they are, for comparison: no pose teaches it anything."""
CHANNELS = ("observation.state", "observation.velocity", "observation.goal")
"""What a policy observes besides images: all but the poses of bodies."""


@options_dataclass
class Plan(policies.Effort):
    """How much is done, with each camera."""

    images: int
    """Images per step of training."""


FULL = Plan(demos=30, seeds=3, starts=200, steps=5000, width=256, images=64, tries=256)
QUICK = Plan(demos=3, seeds=1, starts=4, steps=60, width=32, images=8, tries=4)


def run(out: Path, quick: bool = False, cameras: Sequence[str] = CAMERAS) -> list[dict[str, Any]]:
    """Do the studies and return one row per number."""
    plan = QUICK if quick else FULL
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # read by the processes when they load NumPy: one each, or they fight
    with tempfile.TemporaryDirectory() as scratch, _pool() as pool:
        for camera in cameras:
            study(pool, camera, out / camera, Path(scratch), plan)
            note_minutes(camera, out, plan)
    return rows_of(out, plan, cameras)


def rows_of(out: Path, plan: Plan, cameras: Sequence[str] = CAMERAS) -> list[dict[str, Any]]:
    """The table of studies that were kept."""
    from instep.core.statistics import wilson

    rows: list[dict[str, Any]] = []
    for camera in cameras:
        record = json.loads((out / camera / "study.json").read_text(encoding="utf-8"))
        judged, starts = _known({name: own for name, own in record["parts"].items() if not _whole(name)})
        known = learning_rows(judged, replace(policies.FULL, demos=plan.demos, seeds=plan.seeds))
        rows += [row(f"{camera} camera: starts on the simulated robot, for each training seed", starts, "")]
        rows += [{**row, "name": _said(row["name"], camera)} for row in known]
        for name, own in record["parts"].items():
            if _whole(name):
                done = list(chain.from_iterable(own.values()))
                words = (
                    f"{camera} camera: success, {2 * plan.demos} demonstrations, {WHOLE} without poses, one training"
                )
                rows.append(row(words, wilson(sum(done), len(done))))
        rows += [
            row(f"{camera} camera, image encoder error on unseen starts, {what}", record["eyes"][what], unit)
            for what, unit in (("median position", "mm"), ("90 % position", "mm"), ("median heading", "deg"))
        ]
        rows += _paced(record, camera, plan)
        rows += [row(f"{camera} camera, time: {what}", took, "s") for what, took in record["seconds"].items()]
    return rows


def _paced(record: dict[str, Any], camera: str, plan: Plan) -> list[dict[str, Any]]:
    """How long a training takes on two cores, where that was measured."""
    if "minutes" not in record:
        return []
    words = f"{camera} camera: training on 2 cores ({record['processor']}), {plan.steps} steps at the pace of 100"
    return [row(words, record["minutes"], "min", at_most=15.0)]


def _whole(name: str) -> bool:
    return WHOLE.replace(" ", "-") in name


def _known(parts: dict[str, dict[str, list[bool]]]) -> tuple[dict[str, Any], int]:
    """Successes on the starts on which every policy was judged, and how many starts those are."""
    common = sorted(set[str].intersection(*(set(own) for own in parts.values())), key=int)
    lists = {name: list(chain.from_iterable(own[first] for first in common)) for name, own in parts.items()}
    return {"simulated robot": lists}, min(map(len, lists.values()))


def _said(name: str, camera: str) -> str:
    return f"  {name.strip()}" if name.startswith(" ") else f"{camera} camera: {name}"


def study(pool: Any, camera: str, out: Path, scratch: Path, plan: Plan) -> None:
    """Demonstrations, trainings and judging with one camera; what is in `out` already is not done again.

    The first policies are judged while failures are mined and the others are trained.
    """
    out.mkdir(parents=True, exist_ok=True)
    book, n, kinds = _opened(out / "study.json"), plan.demos, range(plan.seeds)
    arms = {arm: [out / f"{arm}-{k}" for k in kinds] for arm in (f"{n}", f"{n}+{n}", f"{2 * n}")}
    first, second = [*arms[f"{n}"], *arms[f"{2 * n}"]], arms[f"{n}+{n}"]
    court = Court(pool, camera, plan, book)
    if not all(_trained(folder, plan) for folder in (*first, *second)):
        with _pool(2 * plan.seeds + 1) as crew:
            taken, tuning = _shown(pool, camera, scratch, plan, book)
            asked = [Training(f"{m}", k, plan.steps) for m in (n, 2 * n) for k in kinds]
            asked.append(Training(f"{2 * n} {WHOLE}", 0, plan.steps))
            list(crew.map(train, [(a, taken[: int(a.name.split()[0])], out, camera, plan) for a in asked]))
            tuned, eyes = tuning.result(), crew.submit(eyes_error, out / f"{n}-0", camera, plan).result()
            book("first training and tuning", tuned=tuned, eyes=eyes)
            lessons = [crew.submit(teach, (out / f"{n}-{k}", tuned, k, camera, scratch, plan)) for k in kinds]
            court.ask(first, 0)
            more = [Training(f"{n}+{n}", k, plan.steps) for k in kinds]
            mined = [found.result() for found in lessons]
            book("failures mined", mined=[len(found) for found in mined])
            both = zip(more, mined, strict=True)
            list(crew.map(train, [(a, [*taken[:n], *extra], out, camera, plan) for a, extra in both]))
            book("second training")
    court.ask([*second, *first], 0)
    court.ask([out / Training(f"{2 * n} {WHOLE}", 0, plan.steps).folder], 0)
    court.ask([*second, *first], 1)
    court.close()


def _shown(pool: Any, camera: str, scratch: Path, plan: Plan, book: Book) -> tuple[list[Path], Any]:
    """Demonstrations on the simulated robot with their images, and a future of the simulator tuned to half of them."""
    n = plan.demos
    shown = list(chain.from_iterable(pool.map(policies.collect, _few(range(SHOWN, SHOWN + 2 * n + 6), 3))))[: 2 * n]
    tuning = pool.submit(policies.tune, shown[:n], plan == QUICK)
    taken = list(pool.map(develop, [(camera, e, scratch / f"{camera}-{i}") for i, e in enumerate(shown)]))
    book("demonstrations and their images", demonstrations=len(shown), images=sum(map(len, shown)))
    return taken, tuning


def _opened(path: Path) -> Book:
    book = Book(path)
    if path.is_file():
        book.record |= json.loads(path.read_text(encoding="utf-8"))
    return book


def _trained(folder: Path, plan: Plan) -> bool:
    note = folder / "training.json"
    return note.is_file() and json.loads(note.read_text(encoding="utf-8"))["step"] >= plan.steps


@lru_cache(maxsize=4)
def rendered_cameras(camera: str) -> Any:
    """A virtual camera of the scene, rendered by one thread."""
    from instep.scene.folder import Scene
    from instep.splat.rendered_world import load_rendered_cameras

    return load_rendered_cameras(FILE, Scene.load(SCENE), (camera,), threads=1)


def seen(name: str, settings: dict[str, float], camera: str, threads: int = 1) -> tuple[Any, Any]:
    """A world as the expert needs it, and the same with the camera."""
    from instep.scene.tasks.task import Tasked

    bare = policies.worlds(name, settings, threads)
    return bare, Tasked(rendered_cameras(camera).on(bare.world), bare.task)


def develop(job: tuple[str, Any, Path]) -> Path:
    """Images of an episode, and the episode with them kept in a folder of plain arrays."""
    camera, episode, folder = job
    folder.mkdir(parents=True, exist_ok=True)
    for name, column in rendered_cameras(camera).add_images(episode).columns.items():
        np.save(folder / f"{name}.npy", column)
    return folder


def _loaded(folder: Path, camera: str) -> Any:
    """An episode from its folder."""
    from instep.core.episode import Episode

    _, world = seen("simulated robot", {}, camera)
    return Episode(world.spec, {path.stem: np.load(path) for path in sorted(folder.glob("*.npy"))})


def train(job: tuple[Training, list[Path], Path, str, Plan]) -> str:
    """Train one policy, on a GPU where there is one, and return its folder."""
    import torch

    from instep.policy.training import TrainOptions
    from instep.policy.training import train as learn

    asked, folders, out, camera, plan = job
    if not _trained(out / asked.folder, plan):
        options = TrainOptions(
            steps=asked.steps, checkpoint_every=asked.steps, width=plan.width, seed=asked.seed, threads=1,
            frame=None if WHOLE in asked.name else FRAME,
            cameras=(camera,), channels=CHANNELS, images_per_step=plan.images,
            device="cuda" if torch.cuda.is_available() else "cpu",
        )  # fmt: skip
        learn([_loaded(folder, camera) for folder in folders], out / asked.folder, options)
    return str(out / asked.folder)


def teach(job: tuple[Path, dict[str, float], int, str, Path, Plan]) -> list[Path]:
    """Demonstrations in the tuned simulator from where a policy with cameras fails there."""
    from instep.evaluate.failure_mining import corrective_demos

    folder, settings, seed, camera, scratch, plan = job
    bare, world = seen("tuned", settings, camera, threads=max(1, (os.cpu_count() or 2) // plan.seeds))
    first = MINED + 1000 * seed
    found = corrective_demos(
        world, _policy(folder, world), policies.expert(), range(first, first + plan.tries), wanted=plan.demos,
        shown_in=bare,
    ).episodes  # fmt: skip
    return [develop((camera, e, scratch / f"{camera}-mined-{seed}-{i}")) for i, e in enumerate(found)]


def judge(job: tuple[Path, str, Sequence[int]]) -> list[bool]:
    """From which starts a policy does the task on the simulated robot."""
    from instep.evaluate.episode_batch import run_batch

    folder, camera, seeds = job
    _, world = seen("simulated robot", {}, camera)
    return [row.success for row in run_batch(world, _policy(folder, world), seeds).episodes]


def note_minutes(camera: str, out: Path, plan: Plan) -> None:
    """Keep how long a training takes on two cores without a GPU [min], from a hundred steps of it."""
    import platform

    from instep.policy.training import TrainOptions
    from instep.policy.training import train as learn

    episodes, reports = [rendered_cameras(camera).add_images(e) for e in policies.collect([SHOWN])], list[Any]()
    options = TrainOptions(
        steps=200, checkpoint_every=100, width=plan.width, frame=FRAME, threads=2, cameras=(camera,), channels=CHANNELS,
        images_per_step=plan.images,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        learn(episodes, Path(folder), options, progress=reports.append)
    book = _opened(out / camera / "study.json")
    book.record["minutes"] = (reports[1].seconds - reports[0].seconds) / 100 * plan.steps / 60
    book.record["processor"] = f"{platform.machine()}, {os.cpu_count()} cores"
    book.save()


def eyes_error(folder: Path, camera: str, plan: Plan) -> dict[str, float]:
    """How far off the eyes of a policy are on demonstrations that nothing was trained on."""
    from instep.scene.tasks.manipulation_tasks import heading

    episodes = policies.collect(range(MINED - 1000, MINED - 1000 + (2 if plan == QUICK else 8)))
    _, world = seen("simulated robot", {}, camera)
    pose_estimator = _policy(folder, world).policy.pose_estimator
    off, angles = [], []
    for episode in map(rendered_cameras(camera).add_images, episodes):
        said, true = pose_estimator(episode.columns, (len(episode),)), episode["observation.environment_state"]
        off.append(np.hypot(*(said - true)[:, :2].T) * 1e3)
        angle = heading(said[:, 3:]) - heading(true[:, 3:])
        angles.append(np.degrees(np.abs((angle + np.pi) % (2 * np.pi) - np.pi)))
    place, angle = np.concatenate(off), np.concatenate(angles)
    return {
        "median position": float(np.median(place)),
        "90 % position": float(np.quantile(place, 0.9)),
        "median heading": float(np.median(angle)),
    }


def _policy(folder: Path, world: Any) -> Any:
    import torch

    from instep.policy.flow_policy import load_policy

    torch.set_num_threads(1)
    return load_policy(folder, world.spec)


class Court:
    """Judges policies start by start, the first half of the starts of all of them before the second half of any."""

    def __init__(self, pool: Any, camera: str, plan: Plan, book: Book):
        self._pool, self._camera, self._book = pool, camera, book
        chunks = _few(range(JUDGED, JUDGED + plan.starts), min(10, plan.starts // 2))
        self._halves = chunks[: (len(chunks) + 1) // 2], chunks[(len(chunks) + 1) // 2 :]
        self._parts: dict[str, dict[str, list[bool]]] = book.record.setdefault("parts", {})
        self._waiting: list[tuple[str, str, Any]] = []
        self._asked: set[tuple[str, str]] = set()

    def ask(self, folders: list[Path], half: int) -> None:
        """Let policies be judged on one half of the starts; what is known or under way is not asked again."""
        for chunk in self._halves[half]:
            for folder in folders:
                key = (folder.name, str(chunk[0]))
                if key not in self._asked and key[1] not in self._parts.get(key[0], {}):
                    self._asked.add(key)
                    self._waiting.append((*key, self._pool.submit(judge, (folder, self._camera, chunk))))

    def close(self) -> None:
        """Wait for all that was asked; each verdict is kept when it is known."""
        for name, first, verdict in self._waiting:
            self._parts.setdefault(name, {})[first] = verdict.result()
            self._book.save()
        if self._waiting:
            self._book("judging")


def _pool(count: int = 0) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(count or os.cpu_count() or 2, mp_context=get_context("spawn"))


def _few(seeds: range, count: int) -> list[list[int]]:
    return [list(seeds[i : i + count]) for i in range(0, len(seeds), count)]


def keep(out: Path, note: str) -> None:
    """Keep the results of studies that were done elsewhere, with a note that says where."""
    from harness import keep_results

    name = Path(__file__).stem
    path = Path(__file__).parent / "results" / f"{name}.json"
    keep_results(path, rows_of(out, FULL), benchmark=name, command=f"python -m benchmarks {name}", note=note)


if __name__ == "__main__":
    where, asked = Path(sys.argv[1]), [word for word in sys.argv[2:] if word in CAMERAS] or list(CAMERAS)
    if "--minutes" in sys.argv:
        note_minutes(asked[0], where, FULL)
    elif "--keep" in sys.argv:
        keep(where, sys.argv[-1])
    else:
        found = run(where, quick="--quick" in sys.argv, cameras=asked)
        (where / f"rows-{'-'.join(asked)}.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
