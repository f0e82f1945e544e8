"""How a twin is doing, as one line while it runs: trust, innovation, residuals, what is observed, latency, work.

The twin on the command line: the parts put together, and a run through a recording judged by its pictures.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.rollout import Constant, rollout
from instep.core.statistics import Estimate, bootstrap
from instep.core.world import Array, Observation, Spec, State, Watcher
from instep.scene.folder import Scene

from .output import Output, write_json

SHOWN_EVERY = 6
"""Rows from one line to the next: ten a second at 60 Hz, so that looking costs the loop little."""


def bar() -> Progress:
    """A bar with room for a line below it."""
    columns = (TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    state = TextColumn("{task.fields[state]}")
    return Progress(*columns, state, console=Console(stderr=True), transient=True, refresh_per_second=5)


class Watch:
    """A watcher that keeps the last rows of a twin's log and shows them in a line."""

    def __init__(self, progress: Progress, task: Any, spec: Spec, trust: Any = None):
        self._progress, self._task, self._trust = progress, task, trust
        told = spec.observation.get("twin.correction")
        self._labels = told.labels if told is not None else ()
        counts, stages = spec.observation.get("twin.counts"), spec.observation.get("twin.stages")
        self._overruns = counts.labels.index("overruns") if counts is not None else -1
        self._follow = stages.labels.index("follow") if stages is not None else -1
        self._rows: deque[Array] = deque(maxlen=24)
        self._errors: deque[float] = deque(maxlen=24)
        self._seen = 0

    def __call__(self, state: State, observation: Observation, action: Array) -> None:
        """Take one row; every few rows the line is renewed."""
        self._seen += 1
        if self._labels:
            self._rows.append(np.asarray(observation["twin.correction"], float))
            error = np.asarray(observation.get("twin.joint_error", np.zeros(1)), float)
            self._errors.append(float(np.abs(error).max(initial=0.0)))
        if self._seen % SHOWN_EVERY == 0:
            self._progress.update(self._task, advance=SHOWN_EVERY, state=self._line(observation))

    def log(self) -> Mapping[str, Array]:
        """The last rows by name, as `log_of` gives those of a whole run."""
        rows = np.stack(self._rows)
        return {**{n: rows[:, i] for i, n in enumerate(self._labels)}, "joints.error": np.array(self._errors)}

    def _line(self, observation: Observation) -> str:
        if not self._rows:
            return ""
        log = self.log()
        words = [] if self._trust is None else [f"trust {float(self._trust.of(self._trust.frames(log))[-1]):.2f}"]
        words += [said(log)]
        if self._follow >= 0:
            stages = np.asarray(observation["twin.stages"], float)
            words.append(f"work {1e3 * (stages.sum() - stages[self._follow]):.1f} ms")
            words.append(f"overruns {int(observation['twin.counts'][self._overruns])}")
        return "  ".join(words)


def said(log: Mapping[str, Array]) -> str:
    """A log's last numbers in words; those of the last picture, where rows come between pictures."""

    def last(ending: str) -> float:
        rows = [v[np.isfinite(v)] for n, v in log.items() if n.endswith("." + ending)]
        return max((float(v[-1]) for v in rows if len(v)), default=float("nan"))

    lost = last("lost")
    words = ["[red]lost[/]"] if lost > 0 else []
    words.append(f"NIS {last('nis'):.1f}")
    words.append(f"residual {last('residual'):.2f}")
    words.append(f"colour {last('photo'):.2f}")
    words.append(f"sigma {1e3 * last('sigma'):.1f} mm")
    words.append(f"weakest {1e3 * last('weakest'):.1f} mm")
    words.append(f"latency {1e3 * last('latency'):.0f} ms")
    frozen = sum(float(v[-1]) > 0 for n, v in log.items() if n.endswith(".frozen"))
    return "  ".join([*words, *([f"[red]{frozen} frozen[/]"] if frozen else [])])


Corrects = Literal["pose", "forces", "none"]
Residual = Literal["mask", "photo", "both"]


@dataclass(frozen=True, slots=True)
class How:
    """How a twin is corrected."""

    correct: Corrects = "pose"
    residual: Residual = "mask"
    """What a pose filter compares."""
    hold: tuple[str, ...] = ()
    """Cameras that it does not see."""
    scan: Path | None = None
    """Folder of Gaussians, one file per body, for the colours; a plain skin where there is none."""

    def scans(self) -> dict[str, Any]:
        """Gaussians by body."""
        if self.scan is None:
            return {}
        from instep.splat.io import load_folder

        found = load_folder(self.scan)
        return {name: found.on(name) for name in found.names}


@dataclass(frozen=True, slots=True, eq=False)
class Tracked:
    """A run of the twin through a recording."""

    scene: Scene
    episode: Episode
    """The recording."""
    run: Episode
    """What the twin did."""
    prepared: Any
    how: How

    @property
    def poses(self) -> Array:
        """Pose of the body, xyz + wxyz, row by row."""
        at = self.scene.spec.q.labels.index(f"{self.scene.objects[0]}.x")
        return self.run.q[:, at : at + 7]


def track(scene_name: str, recording: Episode, how: How, watch: Callable[[Spec], Sequence[Watcher]]) -> Tracked:
    """Run the twin through a recording whose robot is not known: it is parked out of the way and masked in pictures."""
    from instep.physics.open_world import open_world, rest_action
    from instep.robot.recorded_world import Recording
    from instep.twin.initialization import on_one_clock, prepare
    from instep.twin.twin import Twin

    scene, episode = Scene.load(scene_name), on_one_clock(recording)
    prepared = prepare(scene, episode, hold=how.hold)
    parked = parked_joints(scene)
    sim = open_world(scene)
    twin = Twin(sim, Recording(episode), correction(scene, prepared, how), park=parked)
    action = rest_action(sim)
    for i, label in enumerate(sim.spec.action.labels):
        action[i] = parked.get(label, action[i])
    run = rollout(twin, Constant(action), steps=len(episode), watch=watch(twin.spec))
    return Tracked(scene, episode, run, prepared, how)


def correction(scene: Scene, prepared: Any, how: How) -> Any:
    """A correction by its name, for eyes that are ready."""
    from instep.twin.pose_filter import FilterOptions, PoseFilter
    from instep.twin.twin import Uncorrected

    shapes = {scene.objects[0]: prepared.refined.outline}
    options = FilterOptions(touching=False, hold=how.hold, residual=how.residual)
    if how.correct == "pose":
        return PoseFilter(scene, prepared.eyes, options, shapes=shapes, scans=how.scans())
    if how.correct == "forces":
        from instep.twin.visual_forces import VisualForces

        return VisualForces(PoseFilter(scene, prepared.eyes, options, shapes=shapes))
    return Begun(PoseFilter(scene, prepared.eyes, options, shapes=shapes), Uncorrected())


@dataclass(frozen=True, slots=True)
class Begun:
    """A correction that finds the bodies as one does and then corrects as another."""

    finder: Any
    then: Any

    @property
    def logged(self) -> tuple[str, ...]:
        """The numbers of the second."""
        return self.then.logged

    def begin(self, state: Any, seen: Any) -> Any:
        """Find the bodies."""
        return replace(self.finder.begin(state, seen), memory={})

    def __call__(self, memory: Any, predicted: Any, seen: Any, t: float) -> Any:
        """Correct as the second does."""
        return self.then(memory, predicted, seen, t)


def parked_joints(scene: Scene) -> dict[str, float]:
    """Where a robot of a few joints is out of the way: the corner of its range farthest from where objects begin."""
    import itertools

    from instep.scene.model import body_poses

    model = scene.model
    joints = [model.joint(name) for name in scene.robot]
    if not 0 < len(joints) <= 4 or not scene.objects:
        return {}
    q, _ = scene.start(0)
    objects = [model.body(name).id - 1 for name in scene.objects]
    moving = [
        b - 1
        for b in range(1, model.nbody)
        if model.body_rootid[b] in {int(model.body_rootid[j.bodyid[0]]) for j in joints}
    ]
    best, far = {}, -1.0
    for ends in itertools.product(*[tuple(model.jnt_range[j.id]) for j in joints]):
        tried = q.copy()
        for joint, end in zip(joints, ends, strict=True):
            tried[model.jnt_qposadr[joint.id]] = end
        poses = body_poses(model, tried)
        apart = min(float(np.linalg.norm(poses[a, :3] - poses[b, :3])) for a in objects for b in moving)
        if apart > far:
            best, far = dict(zip(scene.robot, map(float, ends), strict=True)), apart
    return best


def report(tracked: Tracked, output: Output) -> dict[str, Estimate]:
    """Write poses, cameras and the overlay, and return the scores of a run."""
    from instep.twin.tracking_scores import jitter, overlaps, pose_columns

    prepared, rows = tracked.prepared, len(tracked.run)
    shape = prepared.refined.outline
    found = overlaps(prepared.eyes, shape, tracked.episode, tracked.run.t, tracked.poses)
    more = {f"{name}.overlap": found.overlap[:, c] for c, name in enumerate(found.cameras)}
    more |= {f"{name}.visible": found.visible[:, c] for c, name in enumerate(found.cameras)}
    if "twin.correction" in tracked.run.columns:
        labels = tracked.run.spec.observation["twin.correction"].labels
        more |= {f"twin.{n}": tracked.run["twin.correction"][:, i] for i, n in enumerate(labels)}
    write_parquet(output.folder / "poses.parquet", pose_columns(tracked.run.t, tracked.poses, more))
    write_json(output.folder / "cameras.json", _cameras(prepared))
    write_overlay(output.folder / "overlay.mp4", tracked)
    scores = {f"overlap {name}": found.score(name, prepared.keys) for name in found.cameras}
    scores |= _as_shipped(tracked, shape)
    scores |= {f"rows with too little of the body {n}": _count(found.excluded(n), rows) for n in found.cameras}
    trembling, turning = jitter(tracked.poses)
    stages = tracked.run["twin.stages"]
    scores |= {"jitter at rest": trembling, "jitter at rest, turn": turning}
    scores["time per frame"] = bootstrap(stages[1:].sum(axis=1) - stages[1:, 1] - stages[1:, 2], unit="s")
    for c, name in enumerate(prepared.refined.cameras):
        scores[f"overlap before refining {name}"] = bootstrap(_finite(prepared.refined.before[:, c]))
    return scores


def _as_shipped(tracked: Tracked, shape: Any) -> dict[str, Estimate]:
    """The scores of cameras that were held, had they not been aligned either."""
    from instep.twin.tracking_scores import overlaps

    if not tracked.how.hold:
        return {}
    prepared = tracked.prepared
    found = overlaps(prepared.shipped, shape, tracked.episode, tracked.run.t, tracked.poses)
    return {f"overlap {name}, pose as shipped": found.score(name, prepared.keys) for name in tracked.how.hold}


def write_overlay(path: Path, tracked: Tracked, scale: int = 1) -> None:
    """A video of all cameras side by side with the twin's silhouette."""
    from instep.data import VideoWriter
    from instep.twin.initialization import frames_of
    from instep.twin.overlay import drawn
    from instep.twin.projection import interpolated

    shape = tracked.prepared.refined.outline
    with VideoWriter(path, round(1 / tracked.episode.spec.dt)) as video:
        for row in range(len(tracked.run)):
            frames = frames_of(tracked.prepared.eyes, tracked.episode, row)
            images = [
                drawn(f.pixels, f.camera, shape, interpolated(tracked.run.t, tracked.poses, f.stamp)) for f in frames
            ]
            video.add(np.concatenate(images, axis=1)[::scale, ::scale])


def write_parquet(path: Path, columns: dict[str, Array]) -> None:
    """Columns of equal length as a parquet file."""
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({name: np.asarray(c) for name, c in columns.items()}), path)


@contextmanager
def open_twin(scene_name: str, real: AbstractContextManager[Any], how: How, *, images: bool = False) -> Any:
    """A twin of a live robot or simulated robot, whose cameras are those of the scene; `images` keeps the real
    pictures."""
    from instep.physics.open_world import open_world
    from instep.twin.camera_rig import IMAGES, Eyes
    from instep.twin.initialization import colour_of
    from instep.twin.pose_filter import FilterOptions, PoseFilter
    from instep.twin.segmentation import colour_mask
    from instep.twin.twin import Twin, Uncorrected
    from instep.twin.warmup import warm

    scene = Scene.load(scene_name)
    with ExitStack() as stack:
        world = stack.enter_context(real)
        cameras = tuple(c for n, c in scene.cameras.items() if IMAGES + n in world.spec.observation)
        correct: Any = Uncorrected()
        if how.correct != "none":
            if not cameras or not scene.objects:
                raise BadInput(
                    "A twin is corrected by cameras, and this robot shows none of the scene's "
                    f"({', '.join(scene.cameras)}); start it with --cameras, or use --correct none."
                )
            eyes = Eyes(cameras, colour_mask(colour_of(scene, scene.objects[0])))
            options = FilterOptions(hold=how.hold, residual=how.residual)
            correct = PoseFilter(scene, eyes, options, scans=how.scans())
            if how.correct == "forces":
                from instep.twin.visual_forces import VisualForces

                correct = VisualForces(correct)
        sim = open_world(scene)
        if how.correct != "none":
            warm(scene, sim, correct)
        yield Twin(sim, world, correct, images=images)


def calibrated_on(nominal: Path) -> Any:
    """Trust, calibrated on runs of this twin in which all was well."""
    from instep.data import load_episodes
    from instep.twin.trust import calibrated
    from instep.twin.twin import log_of

    return calibrated([log_of(one) for one in load_episodes(nominal)])


def trusted(episode: Episode, trust: Any) -> dict[str, Estimate]:
    """How far a run can be trusted, against runs of the same twin in which all was well: its lowest trust."""
    from instep.twin.twin import log_of

    levels = trust.of(trust.frames(log_of(episode))[trust.skip :])
    low, last, n = float(np.min(levels)), float(levels[-1]), len(trust.scores)
    return {"trust": Estimate(low, low, low, n), "trust at the end": Estimate(last, last, last, n)}


def _cameras(prepared: Any) -> dict[str, Any]:
    refined = prepared.refined
    return {
        name: {
            "K": camera.K.tolist(),
            "world_from_camera": camera.body_from_camera.tolist(),
            "moved [m]": refined.shift[name],
            "turned [rad]": refined.turn[name],
        }
        for name, camera in refined.cameras.items()
    }


def _count(n: int, rows: int) -> Estimate:
    return Estimate(float(n), float(n), float(n), rows, "rows")


def _finite(values: Array) -> Array:
    kept = values[np.isfinite(values)]
    return kept if len(kept) else np.zeros(1)
