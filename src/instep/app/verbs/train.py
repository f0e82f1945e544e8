"""The verb train: clone behaviour from a dataset."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from instep.app.output import Output, new_output
from instep.core.errors import BadInput
from instep.core.statistics import Estimate, wilson
from instep.core.world import World
from instep.policy.observation_encoding import STATE
from instep.policy.training import Progress as Stand
from instep.policy.training import TrainOptions
from instep.policy.training import train as learn

Positional = tyro.conf.Positional
HELD_OUT = 200_000
"""Seed of the first start on which a training is judged; far from those of demonstrations."""


def train(
    data: Positional[tuple[Annotated[str, tyro.conf.arg(metavar="DATA... POLICY")], ...]],
    /,
    *,
    mapping: str = "",
    scene: str = "",
    task: str = "",
    world: str = "mujoco",
    judge: int = 0,
    cameras: tuple[str, ...] = (),
    virtual: Path | None = None,
    blind: tuple[str, ...] = (),
    frame: tuple[str, ...] = (),
    steps: int = 6000,
    batch: int = 256,
    rate: float = 3e-3,
    width: int = 256,
    horizon: int = 16,
    execute: int = 4,
    threads: int = 0,
    device: str = "cpu",
    seed: int = 0,
) -> int:
    """Clone behaviour: learn chunks of actions from what was seen, by flow matching; small nets for two cores.

    The policy is written as weights (safetensors) and a description (JSON), at checkpoints and at the end; the same
    command goes on with a training that was stopped. Policies without cameras run without torch.

    Args:
        data: one or more datasets (LeRobot folders), then the folder of the policy.
        mapping: mapping of the data: a file (.toml), or the name of a shipped one.
        scene: scene to judge checkpoints in, with --judge.
        task: which task of the scene; its first where not given.
        world: engine to judge in, or perturbed:SEED.
        judge: judge each checkpoint on so many virtual starts that are not in the data.
        cameras: cameras to look at, by name.
        virtual: a file of virtual cameras (TOML), with --scene: their pictures are rendered anew from what the data
            tells, so that any recording of joints and poses will do; --cameras chooses among them.
        blind: channels not to look at, such as observation.environment_state.
        frame: see and act in the frame of a body on a table: the joints that are the x and y of what touches it, and
            its name, such as pusher_x pusher_y tee. With --cameras and --blind observation.environment_state the
            policy is not told where the body is: eyes learn to tell it, from the poses in the data.
        steps: steps of training.
        batch: examples per step.
        rate: largest step size.
        width: width of the net.
        horizon: actions of a chunk.
        execute: actions of a chunk that are played.
        threads: threads of the training; where 0, one without cameras and all with them.
        device: where the net is trained: cpu or cuda.
        seed: seed of the weights and of the order of examples.

    """
    from instep.app.rendered_cameras import open_seen, read_sight
    from instep.data import load_episodes
    from instep.scene.folder import Scene

    if len(data) < 2:
        raise BadInput("instep train takes one or more datasets and then the folder of the policy.")
    *sources, folder = data
    if judge and not scene:
        raise BadInput("--judge needs --scene, the scene in which checkpoints are judged.")
    if len(frame) not in (0, 3):
        raise BadInput(f"--frame takes two joints and a body, not {len(frame)} words.")
    output, console = new_output("train", Path(folder), seed=seed), Console(stderr=True)
    episodes = []
    for source in sources:
        output.read(Path(source))
        episodes += list(load_episodes(source, mapping or None))
    if virtual is not None:
        if not scene:
            raise BadInput("--virtual needs --scene, the scene that virtual cameras see.")
        sight = read_sight(virtual, Scene.load(scene), cameras)
        cameras, episodes = tuple(c.name for c in sight.cameras), [sight.develop(episode) for episode in episodes]
    options = TrainOptions(
        steps=steps, batch=batch, rate=rate, width=width, horizon=horizon, execute=execute, threads=threads, seed=seed,
        cameras=cameras, channels=tuple(name for name in STATE if name not in blind), every=max(1, min(2000, steps)),
        frame=(frame[0], frame[1], frame[2]) if frame else None, device=device,
    )  # fmt: skip
    columns = (TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    stands: list[Stand] = []
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task(f"{len(episodes)} episodes", total=steps)

        def tell(now: Stand) -> None:
            stands.append(now)
            judged = "" if now.success is None else f", success {100 * now.success:.0f} %"
            console.print(f"step {now.step}: loss {now.loss:.4f}{judged}, {now.seconds:.0f} s", highlight=False)
            progress.update(bar, completed=now.step)

        ask = (
            None
            if not judge
            else lambda where: _judged(where, scene, task, partial(open_seen, world, scene, virtual, cameras), judge)
        )
        learn(episodes, output.folder, options, judge=ask, tell=tell)
    _write(output, stands, judge)
    print(output.folder)
    return 0


def _judged(folder: Path, scene: str, task: str, world: Callable[[], World], count: int) -> float:
    """The share of held-out starts from which the policy in a folder does the task."""
    from instep.evaluate.episode_batch import run_batch
    from instep.policy.flow_policy import load_policy
    from instep.scene.folder import Scene
    from instep.scene.tasks import task_of
    from instep.scene.tasks.task import Tasked

    tasked = Tasked(world(), task_of(Scene.load(scene), task))
    ended = run_batch(tasked, load_policy(folder, tasked.spec), range(HELD_OUT, HELD_OUT + count)).ended
    return sum(row.success for row in ended) / count


def _write(output: Output, stands: list[Stand], judge: int) -> None:
    scores: dict[str, Estimate] = {}
    if stands and (share := stands[-1].success) is not None:
        scores["success on held-out starts"] = wilson(round(share * judge), judge)
    curve = [{"step": s.step, "loss": s.loss, "seconds": s.seconds, "success": s.success} for s in stands]
    output.write(scores, curve=curve)
