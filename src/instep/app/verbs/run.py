"""The verb run: one policy, one world."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from instep.app.output import new_output
from instep.app.worlds import open_policy, open_world
from instep.core.rollout import rollout
from instep.core.world import Array, Observation, State

Positional = tyro.conf.Positional


def run(
    policy: Positional[Annotated[str, tyro.conf.arg(metavar="POLICY")]],
    world: Positional[Annotated[str, tyro.conf.arg(metavar="WORLD")]],
    /,
    *,
    steps: int = 300,
    seed: int = 0,
    token: Path | None = None,
    out: Path | None = None,
) -> int:
    """Run a policy in a world and keep the episode; the same policy runs in a simulator and on a robot.

    Args:
        policy: hold, random, constant:0.1,0.2 or replay:DATA.
        world: sim:SCENE, sim:SCENE@rapier, robot:ws://127.0.0.1:PORT or recording:DATA.
        steps: control steps to run.
        seed: seed of the start.
        token: file with the token of the robot's link; INSTEP_TOKEN where not given.
        out: folder to write; a new one under runs/ where not given.

    """
    from instep.data.lerobot3_writer import write

    secret = token.read_text(encoding="utf-8").strip() if token else os.environ.get("INSTEP_TOKEN", "")
    with open_world(world, token=secret) as opened:
        decider = open_policy(policy, opened)
        columns = (TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(f"{policy} in {world}", total=steps)

            def tick(state: State, observation: Observation, action: Array) -> None:
                progress.advance(task)

            episode = rollout(opened, decider, steps=steps, seed=seed, watch=[tick])
    output = new_output("run", out, seed=seed)
    write([episode.with_columns({}, task=f"{policy} in {world}")], output.folder / "data")
    output.write({}, rows=len(episode), ended=episode.meta["ended"])
    print(output.folder)
    return 0
