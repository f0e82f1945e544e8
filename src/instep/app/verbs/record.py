"""The verb record: run worlds into a dataset that no crash can take."""

from __future__ import annotations

from rich.console import Console

from instep.app.arguments import DataArg, Options, TokenFile, WorldArg, link_token
from instep.app.output import progress_bar
from instep.app.world_specs import policy_from_spec, with_cameras, world_from_spec
from instep.core.records import options_dataclass
from instep.core.world import Array, Observation, State
from instep.data import Recorder, record_episodes


@options_dataclass
class RecordArgs:
    """Options of `instep record`."""

    policy: str = "random"
    """hold, random, constant:0.1,0.2 or replay:DATA."""
    episodes: int = 1
    """how many."""
    steps: int = 300
    """control steps of each."""
    seed: int = 0
    """seed of the first start; the next one counts up."""
    cameras: tuple[str, ...] = ()
    """cameras of the scene to record, 'all' for all of them; a robot brings its own."""
    image_every: int = 1
    """control steps from one image to the next."""
    task: str = ""
    """what the episodes show, in words."""
    token: TokenFile = None


def record(
    world: WorldArg,
    data: DataArg,
    /,
    args: Options[RecordArgs] = RecordArgs(),
) -> int:
    """Record a policy in a world into a LeRobot dataset; stopped or killed, what was recorded is kept.

    Args:
        world: sim:SCENE, robot:ws://127.0.0.1:PORT or recording:DATA.
        data: dataset folder, made or added to.

    """
    secret = link_token(args.token)
    console = Console(stderr=True)
    with world_from_spec(world, token=secret) as plain:
        opened = with_cameras(plain, args.cameras, args.image_every)
        decider = policy_from_spec(args.policy, opened)
        meta = {"task": args.task or f"{args.policy} in {world}", "world": world}
        seeds = range(args.seed, args.seed + args.episodes)
        with progress_bar() as progress:
            bar = progress.add_task(f"{args.policy} in {world}", total=args.episodes * args.steps)

            def tick(state: State, observation: Observation, action: Array) -> None:
                progress.advance(bar)

            recorder = Recorder(data, opened.spec, meta=meta)
            record_episodes(opened, decider, recorder, seeds=seeds, steps=args.steps, watch=[tick])
    status = recorder.status()
    lost = f", {status.dropped} dropped" if status.dropped else ""
    console.print(f"{status.episodes} episodes, {status.written} rows{lost}.")
    print(data)
    return 0
