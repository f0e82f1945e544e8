"""The verb twin: a simulated twin in step with a robot or a recording."""

from __future__ import annotations

import math
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.progress import Progress, TextColumn

from instep.app.arguments import Expert, Options, SceneArg, link_token
from instep.app.output import new_output, progress_bar, say, show_table
from instep.app.recorded_run import (
    BesideArgs,
    LoopArgs,
    PreparedRun,
    finish_run,
    new_run_output,
    run_beside,
    stale_images,
    with_goal,
)
from instep.app.reidentified_run import LiveReidentification
from instep.app.side_process import RunPart
from instep.app.viewer.replay_view import report_viewer
from instep.app.world_specs import recorded, world_from_spec
from instep.core.episode import Episode
from instep.core.errors import BadInput, InstepError
from instep.core.statistics import Estimate
from instep.core.world import Array, Observation, Spec, State, Watcher, options_dataclass
from instep.data import load_episodes
from instep.data.video import VideoWriter
from instep.physics.mujoco_cameras import playback, write_small_video
from instep.policy.policy_specs import policy_from_spec
from instep.report.page import ReportVideo
from instep.report.run_pages import TwinLog, tracking_page, twin_numbers, twin_sections
from instep.scene.camera_files import calibration_among
from instep.scene.folder import Scene
from instep.twin import (
    ImageFault,
    TrackedRecording,
    Trust,
    TwinOptions,
    calibrate_trust,
    correction_log,
    open_twin,
    track_recording,
)
from instep.twin.camera_frames import FAULT_WORDS, LEFT_OUT, left_out
from instep.twin.trust import shipped_trust
from instep.twin.trust_stages import (
    CAUSE_WORDS,
    CHANNEL,
    LABELS,
    STAGE_WORDS,
    TrustCause,
    TrustStage,
    stage_seconds,
    trust_events,
)

STATUS_EVERY = 6
"""Rows from one status line to the next: ten a second at 60 Hz, at little cost for the loop."""
STATUS_ROWS = 24
"""Rows that a status line summarises."""
MAX_INVALID_SHARE, MAX_LOST_SHARE, MAX_FAULT_SHARE = 0.1, 0.01, 0.01
"""Largest shares of rows without a valid joint reading, without a view of the body, and with a fault of a camera."""
RESUME = "resume"
"""The word by which an operator resumes a run."""


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


def twin(
    scene: SceneArg,
    /,
    loop: Options[LoopArgs] = LoopArgs(),
    beside: Options[BesideArgs] = BesideArgs(),
    args: Options[TwinArgs] = TwinArgs(),
) -> int:
    """Keep a simulated twin in step with a robot or a recording, by joints and images.

    The policy acts on the twin, and the robot follows its joints. A recording is tracked with its own actions unless
    --policy is given. However the run ends, its rows are kept. OUT/report.html shows how far the twin can be trusted.
    """
    if not args.real:
        raise BadInput(f"A twin of {scene!r} needs its robot; give --real robot:ADDRESS or --real recording:DATA.")
    if args.budget is not None and not (0.0 <= args.budget < math.inf):
        raise BadInput(f"--budget is a time in seconds, 0 for none, and {args.budget:g} is not.")
    calibration, names = calibration_among(args.cameras)
    if names:
        raise BadInput(f"--cameras of a twin takes a calibration FILE.json, not {' '.join(names)}.")
    trust, operator = shipped_trust() if args.nominal is None else calibrated_on(args.nominal), OperatorConsole()
    options = TwinOptions(
        correct=args.correct, residual=args.residual, held_out=args.hold_camera, start=args.start,
        calibration=calibration, trust=trust, operator=operator.resumes, budget=args.budget or None,
    )  # fmt: skip
    if args.policy != "replay":
        return _run(scene, options, operator, args, (loop, beside))
    recording = recorded(args.real)
    if recording is None:
        raise BadInput(f"{args.real!r} has no actions to replay; give --policy POLICY.")
    if beside.reidentify:
        raise BadInput("--reidentify is for a robot that runs; for recordings: instep reidentify DATA SCENE.")
    return _track(scene, recording, options, args, loop)


def _run(
    scene: str, options: TwinOptions, operator: OperatorConsole, args: TwinArgs, asked: tuple[LoopArgs, BesideArgs]
) -> int:
    """Run a policy through the twin of a robot."""
    (loop, beside), trust, loaded = asked, options.trust or shipped_trust(), Scene.load(scene)
    output, estimated = new_run_output("twin", loop.out, loop.seed), None
    if args.nominal is not None:
        output.read(args.nominal)
    with ExitStack() as stack:
        real = stack.enter_context(world_from_spec(args.real, token=link_token(loop.token)))
        # A robot that waits for each command, and a recording, set no time: their runs are repeatable.
        if args.budget is None and getattr(real, "pace", "step") == "real":
            options = replace(options, budget=real.spec.dt)
        opened: Any = open_twin(scene, real, options, images=args.images)
        if beside.reidentify:
            estimated = stack.enter_context(LiveReidentification(scene, opened.real.spec, beside.reidentify))
            opened = opened.reidentified(estimated)
        decider = policy_from_spec(args.policy, opened)
        if args.policy == "expert":
            # An expert computes its tables at its first action; a robot that waits for that would stop.
            decider.act(opened.sim.observe(opened.sim.reset(loop.seed)))
        world = with_goal(opened, loaded)
        prepared = PreparedRun(
            world, decider, f"{args.policy} in twin:{scene}", loaded, loop, beside, operator=operator,
            watch=lambda bar, task: TwinStatus(bar, task, world.spec, trust), reidentified=estimated,
            judge=lambda episode: twin_part(episode, trust, args.hold_camera),
        )  # fmt: skip
        found, parts = run_beside(prepared, output)
    return finish_run(prepared, found, parts, output)


def _track(scene: str, recording: Episode, options: TwinOptions, args: TwinArgs, loop: LoopArgs) -> int:
    """Track a recording with a twin, score it by the recorded images, and write the results."""
    output, trust = new_output("twin", loop.out), options.trust or shipped_trust()
    for file in (args.real.partition(":")[2].partition("#")[0], *args.cameras):
        output.read(Path(file))
    with progress_bar(TextColumn("{task.fields[state]}")) as progress:
        words = "refine camera poses from the recording" if options.calibration is None else f"twin:{scene}"
        task = progress.add_task(words, total=len(recording), state="")

        def watching(spec: Spec) -> list[Watcher]:
            progress.update(task, description=f"twin:{scene}")
            return [TwinStatus(progress, task, spec, trust)]

        tracked = track_recording(Scene.load(scene), recording, options, watch=watching)
        progress.update(task, description="scoring by the images", completed=0, total=None, state="")
        scores = _write_tracking(tracked, output.folder)
    run, part = tracked.run, twin_part(tracked.run, trust, options.held_out)
    scores |= part.scores
    counts = dict(zip(run.spec.observation["twin.counts"].labels, map(float, run["twin.counts"][-1]), strict=True))
    refined = tracked.cameras
    moved = {name: {"m": shift, "rad": turn} for name, (shift, turn) in refined.motions.items()}
    chosen = {"correct": options.correct, "residual": tracked.options.residual, "held cameras": list(options.held_out)}
    output.write(
        scores, rows=len(run), **chosen, counts=counts, size=refined.size.tolist(), cameras_moved=moved, **part.facts
    )
    show_table(("what", "value"), [(name, str(estimate)) for name, estimate in scores.items()], error=True)
    title, shown, film = f"replay in twin:{scene}", playback(run.t), output.folder / "video.mp4"
    write_small_video(film, (tracked.overlay(int(row)) for row in shown.rows))
    caption = f"The recorded images with the outline of the twin's body, {shown.words}."
    pair = ReportVideo(film.read_bytes(), caption), report_viewer(tracked.scene, run, title)
    report = tracking_page(title, twin_log(run, trust), part.doubts, scores, pair)
    if report.verdict.status == "bad":
        say(report.verdict.because, style="red")
    print(output.page(report))
    return 0


def _write_tracking(tracked: TrackedRecording, folder: Path) -> dict[str, Estimate]:
    """Write poses, cameras and a video of all cameras with the twin's silhouette, and return the scores of a run."""
    found = tracked.overlaps()
    columns = {name: np.asarray(values) for name, values in tracked.columns(found).items()}
    pq.write_table(pa.table(columns), folder / "poses.parquet")
    tracked.calibration.save(folder / "cameras.json")
    with VideoWriter(folder / "overlay.mp4", round(1 / tracked.episode.spec.dt)) as video:
        for row in range(len(tracked.run)):
            video.add(tracked.overlay(row))
    return tracked.scores(found)


def twin_part(episode: Episode, trust: Trust, held_out: Sequence[str] = ()) -> RunPart:
    """What a twin adds to a run: scores, facts, sections, and what makes it doubtful."""
    facts = trust_facts(episode)
    if "twin.correction" not in episode:
        return RunPart(facts=facts)
    scores, log = trust_scores(episode, trust), twin_log(episode, trust)
    if found := left_out(correction_log(episode)):
        facts["left out"] = found
    words = f"trust {scores['trust'].value:.2f}" if "trust" in scores else ""
    doubts = twin_problems(episode, held_out)
    return RunPart(scores, facts, twin_numbers(log, scores), twin_sections(log), doubts, words)


def twin_log(episode: Episode, trust: Trust | None = None) -> TwinLog:
    """The log of a twin for its page."""
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


def _left_out_words(episode: Episode) -> str:
    """What the correction left out to be in time; empty where it had all the time that it wanted."""
    found = left_out(correction_log(episode))
    if not found:
        return ""
    begin = f"The correction kept to a deadline, {1e3 * found['given']:.1f} ms after a measurement in the median."
    parts = ", ".join(f"{word} {found[word]:.0f}" for word in LEFT_OUT if found[word])
    if not found["frames"]:
        return f"{begin} Nothing was left out."
    return f"{begin} In {found['frames']:.0f} of {len(episode)} rows something was left out: {parts}."


def twin_problems(episode: Episode, held_out: Sequence[str] = ()) -> list[str]:
    """What makes a twin doubtful, each in one sentence; cameras in `held_out` are not used on purpose."""
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


def calibrated_on(nominal: Path) -> Trust:
    """Trust, calibrated on a dataset of nominal runs of this twin."""
    return calibrate_trust([correction_log(one) for one in load_episodes(nominal)])


def trust_facts(episode: Episode) -> dict[str, Any]:
    """What result.json keeps of trust: every change of stage, and how long each stage lasted [s]."""
    if CHANNEL not in episode:
        return {}
    seconds = {STAGE_WORDS[stage]: round(took, 3) for stage, took in stage_seconds(episode).items() if took}
    return {"trust stages": seconds, "trust events": [event.words for event in trust_events(episode)]}


def trust_scores(episode: Episode, trust: Trust) -> dict[str, Estimate]:
    """The lowest and the last trust of a run; none where it ended before trust is judged."""
    levels = np.asarray(trust.of(trust.frames(correction_log(episode))[trust.skip :]), float)
    if not len(levels):
        return {}
    low, last, n = float(levels.min()), float(levels[-1]), len(trust.scores)
    return {"trust": Estimate(low, low, low, n), "trust at the end": Estimate(last, last, last, n)}


class TwinStatus:
    """A watcher that keeps the last rows of a twin's log and shows them as a status line."""

    def __init__(self, progress: Progress, task: Any, spec: Spec, trust: Trust | None = None):
        self._progress, self._task, self._trust, self._spec = progress, task, trust, spec.observation
        self._rows: deque[Array] = deque(maxlen=STATUS_ROWS)
        self._errors: deque[float] = deque(maxlen=STATUS_ROWS)
        self._count = 0

    def __call__(self, state: State, observation: Observation, action: Array) -> None:
        """Take one row; every few rows the line is renewed."""
        self._count += 1
        if "twin.correction" in self._spec:
            self._rows.append(np.asarray(observation["twin.correction"], float))
            error = np.asarray(observation.get("twin.joint_error", np.zeros(1)), float)
            self._errors.append(float(np.abs(error).max(initial=0.0)))
        if self._count % STATUS_EVERY == 0:
            self._progress.update(self._task, advance=STATUS_EVERY, state=self._line(observation))

    def log(self) -> Mapping[str, Array]:
        """The last rows by name, as `correction_log` gives those of a whole run."""
        rows, labels = np.stack(self._rows), self._spec["twin.correction"].labels
        return {**{n: rows[:, i] for i, n in enumerate(labels)}, "joints.error": np.array(self._errors)}

    def _line(self, observation: Observation) -> str:
        if not self._rows:
            return ""
        log, words = self.log(), list[str]()
        if self._trust is not None:
            words.append(f"trust {float(self._trust.of(self._trust.frames(log))[-1]):.2f}")
        if CHANNEL in observation and (stage := TrustStage(int(_trust_row(observation)["stage"]))):
            words.append(f"[red]{STAGE_WORDS[stage]}[/]")
        words.append(status_line(log))
        if "twin.stages" in self._spec:
            stages = np.asarray(observation["twin.stages"], float)
            work = stages.sum() - stages[self._spec["twin.stages"].labels.index("follow")]
            overruns = observation["twin.counts"][self._spec["twin.counts"].labels.index("overruns")]
            words += [f"work {1e3 * work:.1f} ms", f"overruns {int(overruns)}"]
        return "  ".join(words)


def _trust_row(observation: Observation) -> dict[str, float]:
    return dict(zip(LABELS, map(float, np.asarray(observation[CHANNEL])), strict=True))


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


class HandedOver(InstepError):
    """A run that ended because its twin could not be trusted and nobody resumed it."""


class OperatorConsole:
    """A watcher of a run that asks the operator where the twin was handed over, and ends the run where nobody is."""

    def __init__(self, *, interactive: bool | None = None):
        self._interactive = sys.stdin.isatty() if interactive is None else interactive
        self._resumed = threading.Event()
        self._asking: threading.Thread | None = None

    def resumes(self) -> bool:
        """Whether the operator has resumed since this was last asked."""
        if not self._resumed.is_set():
            return False
        self._resumed.clear()
        return True

    def __call__(self, state: State, observation: Observation, action: Array) -> None:
        """Take one row; a twin that was handed over is named."""
        if CHANNEL not in observation:
            return
        row = _trust_row(observation)
        if int(row["stage"]) != TrustStage.HANDED_OVER:
            self._asking = None
            return
        why = CAUSE_WORDS[TrustCause(int(row["cause"]))]
        if not self._interactive:
            raise HandedOver(
                f"The twin was handed over to the operator, since {why}, and no terminal is there to resume it; the "
                "robot holds. See to the cause, then run again."
            )
        if self._asking is None:
            say(
                f"The twin was handed over to the operator, since {why}; the robot holds. Type {RESUME!r} and press "
                "Enter to go on, or Ctrl-C to end the run.",
                style="red",
            )
            self._asking = threading.Thread(target=self._ask, name="instep-operator", daemon=True)
            self._asking.start()

    def _ask(self) -> None:
        with suppress(OSError, ValueError):  # the terminal was closed; the robot goes on holding
            for line in sys.stdin:
                if line.strip().lower() == RESUME:
                    self._resumed.set()
                    return
