"""The verb twin: a simulated twin in step with a robot or a recording."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from rich.console import Console
from rich.progress import Progress, TextColumn
from rich.table import Table

from instep.app.arguments import Expert, Options, SceneArg, link_token
from instep.app.output import Output, new_output, progress_bar
from instep.app.recorded_run import (
    LoopArgs,
    PreparedRun,
    RunPart,
    finish_run,
    new_run_output,
    run_beside,
    stale_images,
    summarize_run,
)
from instep.app.reidentified_run import LiveReidentification
from instep.app.robot_events import OperatorConsole
from instep.app.viewer.replay_view import report_viewer
from instep.app.world_specs import recorded, world_from_spec
from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.statistics import Estimate
from instep.core.world import Array, Observation, Spec, State, Watcher, options_dataclass
from instep.physics.mujoco_cameras import playback, write_small_video
from instep.policy.policy_specs import policy_from_spec
from instep.report.page import ReportVideo
from instep.report.run_pages import TwinLog, tracking_page, twin_numbers, twin_sections
from instep.scene.camera_files import calibration_among
from instep.scene.folder import Scene

from .run import with_goal

if TYPE_CHECKING:
    from instep.twin import TrackedRecording, Trust, Twin, TwinOptions

STATUS_EVERY = 6
"""Rows from one status line to the next: ten a second at 60 Hz, at little cost for the loop."""
STATUS_ROWS = 24
"""Rows that a status line summarises."""
MAX_INVALID_SHARE, MAX_LOST_SHARE, MAX_FAULT_SHARE = 0.1, 0.01, 0.01
"""Largest shares of rows without a valid joint reading, without a view of the body, and with a fault of a camera."""


@options_dataclass
class TwinArgs:
    """Options of `instep twin`."""

    real: str = ""
    """the real world: robot:ADDRESS or recording:DATA (needed)."""
    policy: str = "replay"
    """what acts: a policy as instep run takes it; replay tracks a recording with its own actions."""
    cameras: tuple[str, ...] = ()
    """a calibration FILE.json of the robot's cameras; their poses are then not refined."""
    correct: str = "pose"
    """correction by images: pose (filter), forces (visual forces), none (physics only), or an extension."""
    start: Path | None = None
    """file of the bodies' poses in the first images (JSON): poses, or points and the pixels that show them."""
    hold_camera: Expert[tuple[str, ...]] = ()
    """held-out cameras: not used by the correction, to score it by."""
    images: Expert[bool] = False
    """record the real images that the twin was corrected by."""
    residual: Expert[Literal["auto", "mask", "learned"]] = "auto"
    """segmentation of bodies by a pose filter: by the colour of the scene (mask), or by learned colours and texture
    (learned). auto is mask if the first images show the only body in its colour, and learned otherwise."""
    budget: Expert[float | None] = None
    """time from one measurement to the next command [s] that the correction keeps to, 0 for none (default: the period
    of a robot whose own clock sets the pace)."""
    nominal: Expert[Path | None] = None
    """dataset of nominal runs of this twin, which calibrate trust in place of the shipped calibration."""


def twin(scene: SceneArg, /, loop: Options[LoopArgs] = LoopArgs(), args: Options[TwinArgs] = TwinArgs()) -> int:
    """Keep a simulated twin in step with a robot or a recording, by joints and images.

    The policy acts on the twin, and the robot follows its joints. A recording is tracked with its own actions unless
    --policy is given. However the run ends, its rows are kept. OUT/report.html shows how far the twin can be trusted.

    Args:
        scene: the scene of the robot.

    """
    from instep.twin import TwinOptions

    if not args.real:
        raise BadInput(f"A twin of {scene!r} needs its robot; give --real robot:ADDRESS or --real recording:DATA.")
    if args.budget is not None and not (0.0 <= args.budget < math.inf):
        raise BadInput(f"--budget is a time in seconds, 0 for none, and {args.budget:g} is not.")
    calibration, names = calibration_among(args.cameras)
    if names:
        raise BadInput(f"--cameras of a twin takes a calibration FILE.json, not {' '.join(names)}.")
    trust, operator = chosen_trust(args.nominal), OperatorConsole()
    options = TwinOptions(
        correct=args.correct, residual=args.residual, held_out=args.hold_camera, start=args.start,
        calibration=calibration, trust=trust, operator=operator.resumes, budget=args.budget or None,
    )  # fmt: skip
    recording = recorded(args.real)
    if args.policy == "replay":
        if recording is None:
            raise BadInput(f"{args.real!r} has no actions to replay; give --policy POLICY.")
        if loop.reidentify:
            raise BadInput("--reidentify is for a robot that runs; for recordings: instep reidentify DATA SCENE.")
        return _track(scene, recording, options, args, loop)
    return _run(scene, options, args, loop, trust, operator)


def _run(
    scene: str, options: TwinOptions, args: TwinArgs, loop: LoopArgs, trust: Trust, operator: OperatorConsole
) -> int:
    """Run a policy through the twin of a robot."""
    output, title = new_run_output("twin", loop.out, loop.seed), f"{args.policy} in twin:{scene}"
    if args.nominal is not None:
        output.read(args.nominal)
    with ExitStack() as stack:
        real = world_from_spec(args.real, token=link_token(loop.token))
        opened: Any = stack.enter_context(
            twin_of(scene, real, options, images=args.images, in_time=args.budget is None)
        )
        estimated = None
        if loop.reidentify:
            estimated = stack.enter_context(LiveReidentification(scene, opened.real.spec, loop.reidentify))
            opened = opened.reidentified(estimated)
        decider, loaded = policy_from_spec(args.policy, opened), Scene.load(scene)
        if args.policy == "expert":
            # An expert computes its tables at its first action; a robot that waits for that would stop.
            decider.act(opened.sim.observe(opened.sim.reset(loop.seed)))
        world = with_goal(opened, loaded)
        prepared = PreparedRun(
            world, decider, title, loaded, lambda bar, task: [TwinStatus(bar, task, world.spec, trust), operator],
            estimated,
        )  # fmt: skip
        found, parts = run_beside(prepared, output, loop)
    parts.insert(0, twin_part(found.episodes[0], trust, args.hold_camera))
    return finish_run(summarize_run(found, loaded, parts), loaded, title, output)


def _track(scene: str, recording: Episode, options: TwinOptions, args: TwinArgs, loop: LoopArgs) -> int:
    """Track a recording with a twin, score it by the recorded images, and write the results."""
    from instep.twin import track_recording
    from instep.twin.trust import shipped_trust

    output = new_output("twin", loop.out)
    for file in (args.real.partition(":")[2].partition("#")[0], *args.cameras):
        output.read(Path(file))
    trust = options.trust or shipped_trust()
    with progress_bar(TextColumn("{task.fields[state]}")) as progress:
        words = "refine camera poses from the recording" if options.calibration is None else f"twin:{scene}"
        task = progress.add_task(words, total=len(recording), state="")

        def watching(spec: Spec) -> list[Watcher]:
            progress.update(task, description=f"twin:{scene}")
            return [TwinStatus(progress, task, spec, trust)]

        tracked = track_recording(Scene.load(scene), recording, options, watch=watching)
        progress.update(task, description="scoring by the images", completed=0, total=None, state="")
        scores = write_tracking(tracked, output)
    part = twin_part(tracked.run, trust, options.held_out)
    names = tracked.run.spec.observation["twin.counts"].labels
    counts = dict(zip(names, map(float, tracked.run["twin.counts"][-1]), strict=True))
    chosen = {"correct": options.correct, "residual": tracked.options.residual, "held cameras": list(options.held_out)}
    refined = tracked.cameras
    moved = {name: {"m": shift, "rad": turn} for name, (shift, turn) in refined.motions.items()}
    scores |= part.scores
    output.write(
        scores, rows=len(tracked.run), **chosen, counts=counts, size=refined.size.tolist(), cameras_moved=moved,
        **part.facts,
    )  # fmt: skip
    table = Table("what", "value")
    for name, estimate in scores.items():
        table.add_row(name, str(estimate))
    console = Console(stderr=True)
    console.print(table)
    title, shown = f"replay in twin:{scene}", playback(tracked.run.t)
    write_small_video(output.folder / "video.mp4", (tracked.overlay(int(row)) for row in shown.rows))
    caption = f"The recorded images with the outline of the twin's body, {shown.words}."
    video = ReportVideo((output.folder / "video.mp4").read_bytes(), caption)
    pair = video, report_viewer(tracked.scene, tracked.run, title)
    report = tracking_page(title, twin_log(tracked.run, trust), part.doubts, scores, pair)
    if report.verdict.status == "bad":
        console.print(report.verdict.because, style="red", highlight=False, markup=False)
    print(output.page(report))
    return 0


def twin_part(episode: Episode, trust: Trust, held_out: Sequence[str] = ()) -> RunPart:
    """What a twin adds to a run: scores, sections, and what makes it doubtful."""
    facts = {**trust_facts(episode), **budget_facts(episode)}
    if "twin.correction" not in episode:
        return RunPart(facts=facts)
    scores, log = trust_scores(episode, trust), twin_log(episode, trust)
    words = f"trust {scores['trust'].value:.2f}" if "trust" in scores else ""
    doubts = twin_problems(episode, held_out)
    return RunPart(scores, facts, twin_numbers(log, scores), twin_sections(log), doubts, words)


def twin_log(episode: Episode, trust: Trust | None = None) -> TwinLog:
    """The log of a twin for its page."""
    from instep.twin import correction_log
    from instep.twin.trust_stages import CHANNEL, LABELS, trust_events

    if "twin.correction" not in episode:
        return TwinLog(episode, {})
    log = correction_log(episode)
    shown = None if trust is None else np.asarray(trust.of(trust.frames(log)), float)
    if CHANNEL not in episode:
        return TwinLog(episode, log, shown, left_out=_left_out_words(episode))
    rows = np.asarray(episode[CHANNEL], float)
    levels = {name: rows[:, LABELS.index(name)] for name in ("level", "stage")}
    events = [event.words for event in trust_events(episode)]
    return TwinLog(episode, log, shown, levels, events, _left_out_words(episode))


def twin_problems(episode: Episode, held_out: Sequence[str] = ()) -> list[str]:
    """What makes a twin doubtful, each in one sentence; cameras in `held_out` are not used on purpose."""
    from instep.twin import ImageFault
    from instep.twin.camera_frames import FAULT_WORDS
    from instep.twin.trust_stages import TrustStage, trust_events

    if "twin.correction" not in episode:
        return []
    twin, problems, rows = twin_log(episode), list[str](), len(episode)
    for camera, codes in twin.ending("fault").items():
        for fault in ImageFault:
            count = int(np.sum(codes == fault)) if fault else 0
            if count > MAX_FAULT_SHARE * rows and camera not in held_out:
                problems.append(f"{camera} gave {FAULT_WORDS[fault]} in {count} of {rows} rows.")
    if twin.lost > MAX_LOST_SHARE * rows:
        problems.append(f"In {twin.lost} of {rows} rows no camera showed the body.")
    excluded = [name for name, values in twin.ending("excluded").items() if values[-1] > 0]
    if excluded:
        problems.append(f"Excluded for disagreeing with the others: {', '.join(excluded)}.")
    latency = twin.ending("latency")
    problems += stale_images({n: float(np.nanmedian(v)) for n, v in latency.items() if np.isfinite(v).any()})
    absent = [n for n, values in latency.items() if n not in held_out and not np.isfinite(values).any()]
    problems += [f"No image of {camera} came." for camera in absent]
    problems += [event.words for event in trust_events(episode) if event.stage >= TrustStage.HOLD]
    invalid = twin.count("dropouts")
    if invalid > MAX_INVALID_SHARE * rows:
        problems.append(f"{invalid} of {rows} rows had no valid joint reading.")
    return problems


class TwinStatus:
    """A watcher that keeps the last rows of a twin's log and shows them as a status line."""

    def __init__(self, progress: Progress, task: Any, spec: Spec, trust: Trust | None = None):
        self._progress, self._task, self._trust = progress, task, trust
        logged = spec.observation.get("twin.correction")
        self._labels = logged.labels if logged is not None else ()
        counts, stages = spec.observation.get("twin.counts"), spec.observation.get("twin.stages")
        self._overruns = counts.labels.index("overruns") if counts is not None else -1
        self._follow = stages.labels.index("follow") if stages is not None else -1
        self._rows: deque[Array] = deque(maxlen=STATUS_ROWS)
        self._errors: deque[float] = deque(maxlen=STATUS_ROWS)
        self._count = 0

    def __call__(self, state: State, observation: Observation, action: Array) -> None:
        """Take one row; every few rows the line is renewed."""
        self._count += 1
        if self._labels:
            self._rows.append(np.asarray(observation["twin.correction"], float))
            error = np.asarray(observation.get("twin.joint_error", np.zeros(1)), float)
            self._errors.append(float(np.abs(error).max(initial=0.0)))
        if self._count % STATUS_EVERY == 0:
            self._progress.update(self._task, advance=STATUS_EVERY, state=self._line(observation))

    def log(self) -> Mapping[str, Array]:
        """The last rows by name, as `correction_log` gives those of a whole run."""
        rows = np.stack(self._rows)
        return {**{n: rows[:, i] for i, n in enumerate(self._labels)}, "joints.error": np.array(self._errors)}

    def _line(self, observation: Observation) -> str:
        if not self._rows:
            return ""
        log = self.log()
        words = [] if self._trust is None else [f"trust {float(self._trust.of(self._trust.frames(log))[-1]):.2f}"]
        words += [_stage_words(observation), status_line(log)]
        if self._follow >= 0:
            stages = np.asarray(observation["twin.stages"], float)
            words.append(f"work {1e3 * (stages.sum() - stages[self._follow]):.1f} ms")
            words.append(f"overruns {int(observation['twin.counts'][self._overruns])}")
        return "  ".join(filter(None, words))


def _stage_words(observation: Observation) -> str:
    """The stage of a twin that is not trusted; empty where it is."""
    from instep.twin.trust_stages import CHANNEL, LABELS, STAGE_WORDS, TrustStage

    if CHANNEL not in observation:
        return ""
    stage = TrustStage(int(np.asarray(observation[CHANNEL])[LABELS.index("stage")]))
    return f"[red]{STAGE_WORDS[stage]}[/]" if stage else ""


def status_line(log: Mapping[str, Array]) -> str:
    """The last numbers of a log, those of the last image where rows come between images."""

    def last(ending: str) -> float:
        rows = [v[np.isfinite(v)] for n, v in log.items() if n.endswith("." + ending)]
        return max((float(v[-1]) for v in rows if len(v)), default=float("nan"))

    words = ["[red]lost[/]"] if last("frames_lost") > 0 else []
    words.append(f"NIS {last('nis'):.1f}")
    words.append(f"residual {last('residual'):.2f}")
    words.append(f"sigma {1e3 * last('sigma'):.1f} mm")
    words.append(f"weakest {1e3 * last('weakest_sigma'):.1f} mm")
    words.append(f"latency {1e3 * last('latency'):.0f} ms")
    excluded = sum(float(v[-1]) > 0 for n, v in log.items() if n.endswith(".excluded"))
    return "  ".join([*words, *([f"[red]{excluded} excluded[/]"] if excluded else [])])


@contextmanager
def twin_of(
    scene: str, real: AbstractContextManager[Any], options: TwinOptions, *, images: bool = False, in_time: bool = False
) -> Generator[Twin]:
    """A twin of a real world, which is closed on leaving; `in_time` keeps it to the period of a robot's own clock.

    A robot that waits for each command, and a recording, set no time: their runs are repeatable.
    """
    from instep.twin import open_twin

    with real as world:
        if in_time and getattr(world, "pace", "step") == "real":
            options = replace(options, budget=world.spec.dt)
        yield open_twin(scene, world, options, images=images)


def write_tracking(tracked: TrackedRecording, output: Output) -> dict[str, Estimate]:
    """Write poses, cameras and the overlay, and return the scores of a run."""
    found = tracked.overlaps()
    _write_parquet(output.folder / "poses.parquet", tracked.columns(found))
    tracked.calibration.save(output.folder / "cameras.json")
    # A video of all cameras side by side with the twin's silhouette.
    path = output.folder / "overlay.mp4"
    from instep.data.video import VideoWriter

    with VideoWriter(path, round(1 / tracked.episode.spec.dt)) as video:
        for row in range(len(tracked.run)):
            video.add(tracked.overlay(row))
    return tracked.scores(found)


def calibrated_on(nominal: Path) -> Trust:
    """Trust, calibrated on a dataset of nominal runs of this twin."""
    from instep.data import load_episodes
    from instep.twin import calibrate_trust, correction_log

    return calibrate_trust([correction_log(one) for one in load_episodes(nominal)])


def chosen_trust(nominal: Path | None) -> Trust:
    """Trust by the shipped calibration, or by nominal runs where there are some."""
    from instep.twin.trust import shipped_trust

    return shipped_trust() if nominal is None else calibrated_on(nominal)


def trust_facts(episode: Episode) -> dict[str, Any]:
    """What result.json keeps of trust: every change of stage, and how long each stage lasted [s]."""
    from instep.twin.trust_stages import CHANNEL, STAGE_WORDS, stage_seconds, trust_events

    if CHANNEL not in episode:
        return {}
    seconds = {STAGE_WORDS[stage]: round(took, 3) for stage, took in stage_seconds(episode).items() if took}
    return {"trust stages": seconds, "trust events": [event.words for event in trust_events(episode)]}


def budget_facts(episode: Episode) -> dict[str, Any]:
    """What result.json keeps of the time budget of a correction: what was given, and what was left out of how many."""
    from instep.twin import correction_log
    from instep.twin.camera_frames import left_out

    found = left_out(correction_log(episode)) if "twin.correction" in episode else {}
    return {"left out": found} if found else {}


def trust_scores(episode: Episode, trust: Trust) -> dict[str, Estimate]:
    """The lowest and the last trust of a run; none where it ended before trust is judged."""
    from instep.twin import correction_log

    frames = trust.frames(correction_log(episode))[trust.skip :]
    if not len(frames):
        return {}
    levels = trust.of(frames)
    low, last, n = float(np.min(levels)), float(levels[-1]), len(trust.scores)
    return {"trust": Estimate(low, low, low, n), "trust at the end": Estimate(last, last, last, n)}


def _write_parquet(path: Path, columns: dict[str, Array]) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({name: np.asarray(c) for name, c in columns.items()}), path)


def _left_out_words(episode: Episode) -> str:
    """What the correction left out to be in time; empty where it had all the time that it wanted."""
    from instep.twin import correction_log
    from instep.twin.camera_frames import LEFT_OUT, left_out

    found = left_out(correction_log(episode))
    if not found:
        return ""
    begin = f"The correction kept to a deadline, {1e3 * found['given']:.1f} ms after a measurement in the median."
    if not found["frames"]:
        return f"{begin} Nothing was left out."
    parts = ", ".join(f"{word} {found[word]:.0f}" for word in LEFT_OUT if found[word])
    return f"{begin} In {found['frames']:.0f} of {len(episode)} rows something was left out: {parts}."
