"""The verb run: one policy, one world."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.table import Table

from instep.app.arguments import Options, OutFolder, PolicyArg, TokenFile, WorldArg, link_token
from instep.app.output import Output, new_output
from instep.app.recorded_run import RecordedRun, record_run, scene_task
from instep.app.reidentified_run import LiveReidentification, live_facts, live_numbers, live_sections
from instep.app.robot_events import EventCounter, OperatorConsole, RobotEvents
from instep.app.shadow import Shadow, ShadowAnswers, summarize_shadow
from instep.app.viewer.live_view import live_view
from instep.app.world_specs import CameraOptions, in_scene, recorded, world_from_spec
from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.world import Policy, Spec, Watcher, World, inner_with, options_dataclass
from instep.policy import AsyncChunked
from instep.policy.policy_specs import policy_from_spec
from instep.report.run_pages import (
    announce_run,
    summarize_run,
    tracking_page,
    twin_numbers,
    twin_problems,
    twin_sections,
)
from instep.robot import realtime_priority
from instep.scene.camera_files import Calibration, calibration_among
from instep.scene.folder import Scene
from instep.scene.model_limits import bounds_of
from instep.scene.tasks.task import Tasked

from .twin_run import (
    TwinStatus,
    budget_facts,
    chosen_trust,
    status_bar,
    trust_facts,
    trust_scores,
    twin_of,
    write_tracking,
)

if TYPE_CHECKING:
    from instep.twin import Trust, TwinOptions


@options_dataclass
class RunArgs:
    """Options of `instep run`."""

    steps: int = 300
    """control steps to run."""
    seed: int = 0
    """seed of the start."""
    scene: str = ""
    """scene of a robot or a recording: its task is judged, its geometry given to the expert, its view rendered."""
    cameras: tuple[str, ...] = ()
    """cameras of a simulated scene that the policy sees and that are recorded: names, 'all', or a calibration FILE.json
    whose cameras take the place of the scene's. A twin takes a calibration, and refines no cameras then."""
    image_every: int = 1
    """control steps from one image of --cameras to the next."""
    virtual: Path | None = None
    """a file of virtual cameras (TOML), rendered from Gaussians, that the policy sees; --cameras chooses among them."""
    limits: bool = False
    """keep commands in a simulator inside the limits of the scene's robot, as a robot's server always does."""
    adapt: bool = False
    """adaptive control: add to the commands what the position servos need to follow the scene (--scene for a robot)."""
    token: TokenFile = None
    real: str = ""
    """the real world of a twin: robot:ADDRESS or recording:DATA."""
    correct: str = "pose"
    """correction of a twin: pose (filter), forces (visual forces), none (physics only), or an extension."""
    residual: Literal["auto", "mask", "learned"] = "auto"
    """segmentation of bodies by a pose filter: by the colour of the scene (mask), or by learned colours and texture
    (learned). auto is mask if the first images show the only body in its colour, and learned otherwise."""
    budget: float | None = None
    """time from one measurement to the next command [s] that a twin's correction keeps to: it leaves out what does not
    fit, and says what. By default the period of a robot whose own clock sets the pace, else none; 0 for none."""
    start: Path | None = None
    """file of where bodies are in the first images of a twin (JSON): poses, or points and the pixels that show them."""
    hold_camera: tuple[str, ...] = ()
    """held-out cameras: not used by the correction, to score it by."""
    images: bool = False
    """record the real images that a twin was corrected by."""
    background: bool = False
    """infer in a background thread while the last chunk is executed, so that a slow policy never makes a robot wait;
    for policies that infer chunks of actions."""
    reidentify: tuple[str, ...] = ()
    """parameters to estimate again while a twin or a robot (--scene) runs, as addresses with * for any part, or auto:
    carried mass and friction. A twin takes better values once they pass a gate; of a robot they are only shown."""
    shadow: str = ""
    """a second policy that sees the same observations in a process of its own: what it would have done is compared
    with what was done, and never sent."""
    nominal: Path | None = None
    """dataset of nominal runs of this twin, which calibrate trust in this run in place of the shipped calibration."""
    view: bool = False
    """show the run in the browser while it runs; a simulation is then held to real time."""
    out: OutFolder = None


def run(
    policy: PolicyArg,
    world: WorldArg,
    /,
    args: Options[RunArgs] = RunArgs(),
) -> int:
    """Run a policy in a world and keep the episode; the same policy runs in a simulator and on a robot.

    However the run ends, by its steps, Ctrl-C, a lost link or an error, its rows are kept. OUT/report.html shows a
    video, whether the task was done, and what was measured.

    Args:
        policy: what instep eval takes: expert, a trained folder, FILE.py:NAME, FILE.onnx, hold, replay:DATA, ...;
            replay alone in a recorded twin.
        world: sim:SCENE, sim:SCENE@rapier, robot:ws://127.0.0.1:PORT, recording:DATA or twin:SCENE.

    """
    from instep.twin import TwinOptions

    trust, operator = chosen_trust(args.nominal) if world.startswith("twin:") else None, OperatorConsole()
    options = TwinOptions(
        correct=args.correct, residual=args.residual, held_out=args.hold_camera, start=args.start,
        calibration=_twin_calibration(world, args.cameras), trust=trust, operator=operator.resumes,
        budget=_budget(args.budget),
    )  # fmt: skip
    if world.startswith("twin:") and (recording := recorded(args.real)) is not None and policy == "replay":
        if args.reidentify:
            raise BadInput(
                "--reidentify is for a robot that runs; replay a recording with instep reidentify DATA SCENE."
            )
        return _replay(world.removeprefix("twin:"), recording, options, args)
    secret = link_token(args.token)
    output = _checked_output(args.out, args.seed)
    with ExitStack() as stack:
        opened, scene = stack.enter_context(_opened(world, args, secret, options)), _scene(args.scene)
        opened = _prepared(opened, world, args)
        live_params = _reidentified(opened, world, args, stack)
        opened = opened.reidentified(live_params) if live_params and world.startswith("twin:") else opened
        decider = policy_from_spec(policy, in_scene(opened, scene) if policy == "expert" else opened)
        scene = scene or getattr(inner_with(opened, "scene"), "scene", None)
        if args.background:
            decider = stack.enter_context(closing(AsyncChunked.of(decider, opened.spec)))
        if policy == "expert" and world.startswith("twin:"):
            # An expert computes its tables at its first action; a robot that waits for that would stop.
            decider.act(opened.sim.observe(opened.sim.reset(args.seed)))
        opened = _with_goal(opened, scene)
        shadow = stack.enter_context(Shadow(args.shadow, opened, seed=args.seed)) if args.shadow else None
        counter, title = EventCounter(opened), f"{policy} in {world}"
        live = stack.enter_context(
            live_view(args.view, scene, opened.spec, title, paced=world.startswith(("sim:", "recording:")))
        )
        beside: list[Watcher] = [shadow] if shadow else []
        beside += [live_params] if live_params and world.startswith("robot:") else []
        found = _ran(opened, decider, title, args, (output, trust, [operator, *beside, *live]))
        events = counter.events()
    watched = trust, shadow.answers() if shadow else None, events, live_params
    return _finish(output, found, scene, f"{policy} in {world}", args, watched)


def _checked_output(out: Path | None, seed: int) -> Output:
    """The folder of the run, checked before anything moves: it can be written, and holds no earlier run."""
    if out is not None and (out / "data").exists():
        raise BadInput(f"The folder {str(out)!r} holds the data of an earlier run; give another --out.")
    return new_output("run", out, seed=seed)


def _scene(name: str) -> Scene | None:
    return Scene.load(name) if name else None


def _opened(world: str, args: RunArgs, token: str, options: TwinOptions) -> Any:
    if not world.startswith("twin:"):
        return world_from_spec(world, token=token)
    if not args.real:
        raise BadInput(f"{world!r} needs its real robot; give --real robot:ADDRESS or --real recording:DATA.")
    real = world_from_spec(args.real, token=token)
    in_time = args.budget is None
    return twin_of(world.removeprefix("twin:"), real, options, images=args.images, in_time=in_time)


def _budget(given: float | None) -> float | None:
    """The time budget of a correction that was asked for [s]; None for none."""
    if given is not None and not (0.0 <= given < math.inf):
        raise BadInput(f"--budget is a time in seconds, 0 for none, and {given:g} is not.")
    return given or None


def _twin_calibration(world: str, words: tuple[str, ...]) -> Calibration | None:
    """The calibration of a twin's cameras; their names are those of its robot."""
    if not world.startswith("twin:"):
        return None
    calibration, names = calibration_among(words)
    if names:
        raise BadInput(f"--cameras of a twin takes a calibration FILE.json, not {' '.join(names)}.")
    return calibration


def _prepared(opened: Any, world: str, args: RunArgs) -> Any:
    """The world with the cameras and the limits that were asked for."""
    if not world.startswith("twin:"):
        opened = CameraOptions(args.virtual, args.cameras, args.image_every).on(opened)
    elif args.virtual is not None:
        raise BadInput("--virtual renders sim:SCENE; the policy of a twin sees the images of its robot.")
    if args.limits:
        from instep.robot import Guarded, scene_limits

        if not world.startswith("sim:"):
            raise BadInput(f"--limits is for sim:SCENE; {world!r} has the limits of its robot.")
        opened = Guarded(opened, scene_limits(inner_with(opened, "scene").scene))
    if not args.adapt:
        return opened
    if not world.startswith(("sim:", "robot:")):
        raise BadInput(f"--adapt is for sim:SCENE and robot:ADDRESS, not for {world!r}.")
    return _with_adaptation(opened, _scene(args.scene))


def _with_adaptation(world: World, scene: Scene | None) -> World:
    """The world whose position servos follow its scene in MuJoCo, without the bodies that move freely.

    A simulator gets the limits of the scene's robot; the server of a robot has them.
    """
    from instep.physics.engines import open_world
    from instep.policy import Adaptive
    from instep.robot import Guarded, scene_limits
    from instep.robot.driver import SENT
    from instep.scene.robot_structure import without_free_bodies

    scene = scene or getattr(inner_with(world, "scene"), "scene", None)
    if scene is None:
        raise BadInput("--adapt needs the scene of the robot as its reference model; give --scene SCENE.")
    limited: World = world if SENT in world.spec.observation else Guarded(world, scene_limits(scene))
    return Adaptive.around(limited, open_world(without_free_bodies(scene) or scene, threads=1))


def _reidentified(opened: Any, world: str, args: RunArgs, stack: ExitStack) -> LiveReidentification | None:
    """What estimates parameters beside the run, begun; None where it was not asked for."""
    if not args.reidentify:
        return None
    if world.startswith("twin:"):
        scene, source = world.removeprefix("twin:"), opened.real.spec
    elif world.startswith("robot:"):
        if not args.scene:
            raise BadInput(
                "--reidentify of a robot needs the scene whose parameters are estimated; give --scene SCENE."
            )
        scene, source = args.scene, opened.spec
    else:
        raise BadInput(f"--reidentify is for twin:SCENE and robot:ADDRESS, not for {world!r}.")
    return stack.enter_context(LiveReidentification(scene, source, args.reidentify))


def _with_goal(opened: Any, scene: Scene | None) -> Any:
    """The world with the goal of its task among the observations, where the task has one that can be told."""
    task = scene_task(scene)
    if task is None or scene is None or not task.goal_channel.labels or opened.spec.q.labels != scene.spec.q.labels:
        return opened
    return Tasked(opened, task)


def _ran(
    opened: Any, decider: Policy, title: str, args: RunArgs, into: tuple[Output, Trust | None, Sequence[Watcher]]
) -> RecordedRun:
    """Run through the recorder until the end, Ctrl-C or an error; the rows until then are kept."""
    from instep.data import Recorder

    output, trust, watchers = into
    world = title.rpartition(" in ")[2]
    data = output.folder / "data"
    output.kept = f"the rows are kept in {data}, from which any command that reads data recovers them"
    recorder = Recorder(data, opened.spec, meta={"task": title, "world": world})
    urgent = realtime_priority() if world.startswith(("twin:", "robot:")) else nullcontext()
    with status_bar() as progress, urgent:
        shown = progress.add_task(title, total=args.steps, state="")
        watch: list[Watcher] = [TwinStatus(progress, shown, opened.spec, trust), *watchers]
        if (bounds := bounds_of(opened)) is not None:
            watch.append(bounds)
        return record_run(opened, decider, recorder, seeds=[args.seed], steps=args.steps, watch=watch)


def _finish(
    output: Output,
    found: RecordedRun,
    scene: Scene | None,
    title: str,
    args: RunArgs,
    watched: tuple[Trust | None, ShadowAnswers | None, RobotEvents, LiveReidentification | None],
) -> int:
    """Write the result and the page, say what came out, and raise what ended the run."""
    [episode], (trust, answers, events, live_params) = found.episodes, watched
    doubts = [*twin_problems(episode, args.hold_camera), *events.doubts]
    summary = summarize_run(found, scene, title=title, folder=output.folder, doubts=doubts)
    scores = dict(summary.scores)
    if trust is not None and "twin.correction" in episode:
        scores |= trust_scores(episode, trust)
        if "trust" in scores:
            Console(stderr=True).print(f"trust {scores['trust'].value:.2f}", highlight=False)
    if args.nominal is not None:
        output.read(args.nominal)
    beside = None if answers is None else summarize_shadow(answers, found, output.folder)
    report = replace(
        summary.report,
        numbers=[*summary.report.numbers, *twin_numbers(episode, scores), *live_numbers(live_params)],
        sections=[
            *summary.report.sections,
            *twin_sections(episode, trust),
            *live_sections(live_params),
            *(beside.sections if beside else ()),
            *events.sections,
        ],
    )
    if beside is not None:
        scores |= beside.scores
        Console(stderr=True).print(beside.words, highlight=False, markup=False)
    facts = {**summary.facts, **(beside.facts if beside else {}), **events.facts, **trust_facts(episode)}
    facts |= budget_facts(episode)
    facts |= live_facts(live_params, output.folder)
    output.write(scores, rows=found.rows, ended=found.ended, **facts)
    return announce_run(found, report, output.page(report))


def _replay(scene: str, recording: Episode, options: TwinOptions, args: RunArgs) -> int:
    """Track a recording with a twin, score it by the recorded images, and write the results."""
    from instep.twin import shipped_trust, track_recording

    output = new_output("run", args.out)
    output.read(Path(args.real.partition(":")[2].partition("#")[0]))
    for file in args.cameras:
        output.read(Path(file))
    with status_bar() as progress:
        words = "refine camera poses from the recording" if options.calibration is None else f"twin:{scene}"
        task = progress.add_task(words, total=len(recording), state="")

        def watching(spec: Spec) -> list[Watcher]:
            progress.update(task, description=f"twin:{scene}")
            return [TwinStatus(progress, task, spec, options.trust or shipped_trust())]

        tracked = track_recording(Scene.load(scene), recording, options, watch=watching)
        progress.update(task, description="scoring by the images", completed=0, total=None, state="")
        scores = write_tracking(tracked, output)
        if "twin.correction" in tracked.run:
            scores |= trust_scores(tracked.run, options.trust or shipped_trust())
    names = tracked.run.spec.observation["twin.counts"].labels
    counts = dict(zip(names, map(float, tracked.run["twin.counts"][-1]), strict=True))
    chosen = {"correct": options.correct, "residual": tracked.options.residual, "held cameras": list(options.held_out)}
    refined = tracked.cameras.refined
    moved = {name: {"m": refined.shift[name], "rad": refined.turn[name]} for name in refined.cameras}
    output.write(
        scores, rows=len(tracked.run), **chosen, counts=counts, size=refined.size.tolist(), cameras_moved=moved,
        **trust_facts(tracked.run), **budget_facts(tracked.run),
    )  # fmt: skip
    table = Table("what", "value")
    for name, estimate in scores.items():
        table.add_row(name, str(estimate))
    Console(stderr=True).print(table)
    report = tracking_page(f"replay in twin:{scene}", tracked, scores, output.folder)
    if report.verdict.status == "bad":
        Console(stderr=True).print(report.verdict.because, style="red", highlight=False, markup=False)
    print(output.page(report))
    return 0
