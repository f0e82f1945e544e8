"""The verb record: run worlds into a dataset that no crash can take."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from instep.app.output import progress_bar
from instep.app.world_specs import policy_from_spec, with_cameras, world_from_spec
from instep.core.world import Array, Observation, State
from instep.data import Recorder, record_episodes

Positional = tyro.conf.Positional


def record(
    world: Positional[Annotated[str, tyro.conf.arg(metavar="WORLD")]],
    data: Positional[Annotated[Path, tyro.conf.arg(metavar="DATA")]],
    /,
    *,
    policy: str = "random",
    episodes: int = 1,
    steps: int = 300,
    seed: int = 0,
    cameras: tuple[str, ...] = (),
    image_every: int = 1,
    task: str = "",
    token: Path | None = None,
) -> int:
    """Record a policy in a world into a LeRobot dataset; stopped or killed, what was recorded is kept.

    Args:
        world: sim:SCENE, robot:ws://127.0.0.1:PORT or recording:DATA.
        data: dataset folder, made or added to.
        policy: hold, random, constant:0.1,0.2 or replay:DATA.
        episodes: how many.
        steps: control steps of each.
        seed: seed of the first start; the next one counts up.
        cameras: cameras of the scene to film with, 'all' for all of them; a robot brings its own.
        image_every: control steps from one picture to the next.
        task: what the episodes show, in words.
        token: file with the token of the robot's link; INSTEP_TOKEN where not given.

    """
    secret = token.read_text(encoding="utf-8").strip() if token else os.environ.get("INSTEP_TOKEN", "")
    console = Console(stderr=True)
    with world_from_spec(world, token=secret) as plain:
        opened = with_cameras(plain, cameras, image_every)
        decider = policy_from_spec(policy, opened)
        meta = {"task": task or f"{policy} in {world}", "world": world}
        seeds = range(seed, seed + episodes)
        with progress_bar() as progress:
            bar = progress.add_task(f"{policy} in {world}", total=episodes * steps)

            def tick(state: State, observation: Observation, action: Array) -> None:
                progress.advance(bar)

            recorder = Recorder(data, opened.spec, meta=meta)
            record_episodes(opened, decider, recorder, seeds=seeds, steps=steps, watch=[tick])
    status = recorder.status()
    lost = f", {status.dropped} dropped" if status.dropped else ""
    console.print(f"{status.episodes} episodes, {status.written} rows{lost}.")
    print(data)
    return 0
