"""The verb run: one policy, one world."""

from __future__ import annotations

from contextlib import ExitStack, closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.table import Table

from instep.app.arguments import Options, OutFolder, PolicyArg, TokenFile, WorldArg, link_token
from instep.app.output import new_output
from instep.app.twin_page import write_page
from instep.app.twin_run import TwinStatus, calibrated_on, status_bar, trust_scores, twin_of, write_tracking
from instep.app.world_specs import policy_from_spec, recorded, world_from_spec
from instep.core.episode import Episode, Log
from instep.core.errors import BadInput
from instep.core.records import options_dataclass
from instep.core.rollout import rollout
from instep.core.statistics import Estimate
from instep.core.world import Policy, Spec, Watcher
from instep.policy import AsyncChunked
from instep.robot import realtime_priority
from instep.scene.folder import Scene

if TYPE_CHECKING:
    from instep.twin import Trust, TwinOptions


@options_dataclass
class RunArgs:
    """Options of `instep run`."""

    steps: int = 300
    """control steps to run."""
    seed: int = 0
    """seed of the start."""
    limits: bool = False
    """keep commands in a simulator inside the limits of the scene's robot, as a robot's server always does."""
    token: TokenFile = None
    real: str = ""
    """the real world of a twin: robot:ADDRESS or recording:DATA."""
    correct: Literal["pose", "forces", "none"] = "pose"
    """how a twin is corrected: pose (filter), forces (visual forces) or none (physics only)."""
    residual: Literal["mask", "photo", "both"] = "mask"
    """what a pose filter compares: silhouettes (mask), colours of pixels (photo), or both (slower)."""
    scan: Path | None = None
    """folder of Gaussians, one file per body (instep scene splat), for colours; else Gaussians on its surface."""
    hold_camera: tuple[str, ...] = ()
    """held-out cameras: not used by the correction, to score it by."""
    images: bool = False
    """record the real images that a twin was corrected by."""
    background: bool = False
    """infer in a background thread while the last chunk is executed, so that a slow policy never makes a robot wait;
    for policies that infer chunks of actions."""
    nominal: Path | None = None
    """dataset of nominal runs of this twin, on which trust in this run is calibrated."""
    out: OutFolder = None


def run(
    policy: PolicyArg,
    world: WorldArg,
    /,
    args: Options[RunArgs] = RunArgs(),
) -> int:
    """Run a policy in a world and keep the episode; the same policy runs in a simulator and on a robot.

    Args:
        policy: expert, a trained folder, hold, random, constant:0.1,0.2, replay:DATA; replay alone in a recorded twin.
        world: sim:SCENE, sim:SCENE@rapier, robot:ws://127.0.0.1:PORT, recording:DATA or twin:SCENE.

    """
    from instep.twin import TwinOptions

    options = TwinOptions(correct=args.correct, residual=args.residual, held_out=args.hold_camera, scan=args.scan)
    if world.startswith("twin:") and (recording := recorded(args.real)) is not None and policy == "replay":
        return _replay(world.removeprefix("twin:"), args.real, recording, options, args.out)
    from instep.data import write_dataset

    secret = link_token(args.token)
    trust = None if args.nominal is None else calibrated_on(args.nominal)
    with ExitStack() as stack:
        opened = stack.enter_context(_opened(world, args.real, secret, options, args.images))
        opened = _guarded(opened, world) if args.limits else opened
        decider = policy_from_spec(policy, opened)
        if args.background:
            decider = stack.enter_context(closing(AsyncChunked.of(decider, opened.spec)))
        if policy == "expert" and world.startswith("twin:"):
            # An expert computes its tables at its first action; a robot that waits for that would stop.
            decider.act(opened.sim.observe(opened.sim.reset(args.seed)))
        episode = _ran(opened, decider, (args.steps, args.seed, f"{policy} in {world}"), trust)
    output = new_output("run", args.out, seed=args.seed)
    write_dataset([episode.with_columns({}, task=f"{policy} in {world}")], output.folder / "data")
    scores: dict[str, Estimate] = {}
    if trust is not None and args.nominal is not None:
        output.read(args.nominal)
        scores = trust_scores(episode, trust)
        Console(stderr=True).print(f"trust {scores['trust'].value:.2f}", highlight=False)
    output.write(scores, rows=len(episode), ended=episode.meta["ended"])
    write_page(output.folder, f"{policy} in {world}", episode, scores, trust)
    print(output.folder)
    return 0


def _ran(opened: Any, decider: Policy, run: tuple[int, int, str], trust: Trust | None) -> Episode:
    """Run until the end, or until Ctrl-C: the rows until then are kept."""
    steps, seed, title = run
    log = Log(opened.spec, {"seed": str(seed), "ended": "interrupted"})
    urgent = realtime_priority() if title.rpartition(" in ")[2].startswith(("twin:", "robot:")) else nullcontext()
    with status_bar() as progress, urgent:
        task = progress.add_task(title, total=steps, state="")
        try:
            return rollout(
                opened, decider, steps=steps, seed=seed, watch=[log, TwinStatus(progress, task, opened.spec, trust)]
            )
        except KeyboardInterrupt:
            if not len(log.episode()):
                raise
            return log.episode()


def _opened(world: str, real: str, token: str, options: TwinOptions, images: bool) -> Any:
    if not world.startswith("twin:"):
        return world_from_spec(world, token=token)
    if not real:
        raise BadInput(f"{world!r} needs its real robot; give --real robot:ADDRESS or --real recording:DATA.")
    return twin_of(world.removeprefix("twin:"), world_from_spec(real, token=token), options, images=images)


def _guarded(opened: Any, world: str) -> Any:
    """A simulated world whose commands keep the limits of the scene's robot."""
    from instep.robot import Guarded, scene_limits

    if not world.startswith("sim:"):
        raise BadInput(f"--limits is for sim:SCENE; {world!r} has the limits of its robot.")
    return Guarded(opened, scene_limits(opened.scene))


def _replay(scene: str, words: str, recording: Episode, options: TwinOptions, out: Path | None) -> int:
    """Track a recording with a twin, score it by the recorded images, and write the results."""
    from instep.twin import track_recording

    output = new_output("run", out)
    output.read(Path(words.partition(":")[2].partition("#")[0]))
    with status_bar() as progress:
        task = progress.add_task("refine camera poses from the recording", total=len(recording), state="")

        def watching(spec: Spec) -> list[Watcher]:
            progress.update(task, description=f"twin:{scene}")
            return [TwinStatus(progress, task, spec)]

        tracked = track_recording(Scene.load(scene), recording, options, watch=watching)
        progress.update(task, description="scoring by the images", completed=0, total=None, state="")
        scores = write_tracking(tracked, output)
    names = tracked.run.spec.observation["twin.counts"].labels
    counts = dict(zip(names, map(float, tracked.run["twin.counts"][-1]), strict=True))
    chosen = {"correct": options.correct, "residual": options.residual, "held cameras": list(options.held_out)}
    size = tracked.cameras.refined.size.tolist()
    output.write(scores, rows=len(tracked.run), **chosen, counts=counts, size=size)
    write_page(output.folder, f"replay in twin:{scene}", tracked.run, scores)
    table = Table("what", "value")
    for name, estimate in scores.items():
        table.add_row(name, str(estimate))
    Console(stderr=True).print(table)
    print(output.folder)
    return 0
