"""The verb record: run worlds into a dataset that no crash can take."""

from __future__ import annotations

from dataclasses import replace

from instep.app.arguments import DataArg, Expert, Options, OutFolder, TokenFile, WorldArg, link_token
from instep.app.output import new_output, progress_bar
from instep.app.recorded_run import RunPart, announce_run, page_of_run, record_run, summarize_run
from instep.app.robot_events import EventCounter
from instep.app.viewer.live_view import live_view
from instep.app.world_specs import CameraOptions, world_from_spec
from instep.core.errors import BadInput
from instep.core.world import Array, Observation, State, inner_with, options_dataclass
from instep.data import Recorder
from instep.policy.policy_specs import policy_from_spec
from instep.report.page import Headline
from instep.scene.folder import Scene


@options_dataclass
class RecordArgs:
    """Options of `instep record`."""

    policy: str = "random"
    """what instep eval takes: random, hold, expert, a trained folder, FILE.py:NAME, FILE.onnx, replay:DATA, ..."""
    episodes: int = 1
    """how many."""
    steps: int = 300
    """control steps of each."""
    seed: int = 0
    """seed of the first start; the next one counts up."""
    scene: str = ""
    """scene of a robot or a recording: its task is judged, and its view rendered for the page."""
    task: Expert[str] = ""
    """what the episodes show, in words."""
    token: TokenFile = None
    view: bool = False
    """show the run in the browser while it runs; a simulation is then held to real time."""
    out: OutFolder = None


def record(
    world: WorldArg,
    data: DataArg,
    /,
    args: Options[RecordArgs] = RecordArgs(),
    seen: Options[CameraOptions] = CameraOptions(),
) -> int:
    """Record a policy in a world into a LeRobot dataset; stopped or killed, what was recorded is kept.

    OUT/report.html shows a video of the first episode, whether the task was done, and what was measured.

    Args:
        world: sim:SCENE, robot:ws://127.0.0.1:PORT or recording:DATA.
        data: dataset folder, made or added to.

    """
    if args.episodes < 1:
        raise BadInput(f"--episodes takes a number from 1, not {args.episodes}.")
    secret, title = link_token(args.token), f"{args.policy} in {world}"
    scene = Scene.load(args.scene) if args.scene else None
    output = new_output("record", args.out, seed=args.seed)
    with world_from_spec(world, token=secret) as plain:
        opened = seen.on(plain)
        decider = policy_from_spec(args.policy, opened)
        scene = scene or getattr(inner_with(opened, "scene"), "scene", None)
        seeds = range(args.seed, args.seed + args.episodes)
        paced = world.startswith(("sim:", "recording:"))
        with live_view(args.view, scene, opened.spec, title, paced=paced) as live, progress_bar() as progress:
            bar = progress.add_task(title, total=args.episodes * args.steps)

            def tick(state: State, observation: Observation, action: Array) -> None:
                progress.advance(bar)

            counter = EventCounter(opened)
            recorder = Recorder(data, opened.spec, meta={"task": args.task or title, "world": world})
            found = record_run(opened, decider, recorder, seeds=seeds, steps=args.steps, watch=[tick, *live])
        events = counter.events()
    part = RunPart(facts=events.facts, sections=events.sections, doubts=events.doubts)
    summary = summarize_run(found, scene, [part])
    report = page_of_run(summary, scene, f"record {title}", output.folder)
    if found.error is None and not summary.problems:
        # An episode may fail its task; the recording is still what was asked for.
        whole = f"{found.rows} rows of {found.seconds:.1f} s in {len(found.episodes)} episodes were recorded."
        report = replace(report, verdict=Headline("good", whole, report.verdict.headline))
    output.write(summary.scores, rows=found.rows, data=str(data), episodes=len(found.episodes), **summary.facts)
    return announce_run(found, report, output.page(report))
