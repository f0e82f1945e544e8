"""The verb run: one policy, one world."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from instep.app.output import new_output
from instep.app.twin_page import write_page
from instep.app.twin_run import How, Watch, bar, calibrated_on, open_twin, report, track, trusted
from instep.app.world_specs import policy_from_spec, recorded, world_from_spec
from instep.core.episode import Episode, Log
from instep.core.errors import BadInput
from instep.core.rollout import rollout
from instep.core.statistics import Estimate
from instep.core.world import Policy, Spec, Watcher
from instep.robot.realtime import realtime_priority

Positional = tyro.conf.Positional


def run(
    policy: Positional[Annotated[str, tyro.conf.arg(metavar="POLICY")]],
    world: Positional[Annotated[str, tyro.conf.arg(metavar="WORLD")]],
    /,
    *,
    steps: int = 300,
    seed: int = 0,
    token: Path | None = None,
    real: str = "",
    correct: Literal["pose", "forces", "none"] = "pose",
    residual: Literal["mask", "photo", "both"] = "mask",
    scan: Path | None = None,
    hold_camera: tuple[str, ...] = (),
    images: bool = False,
    nominal: Path | None = None,
    out: Path | None = None,
) -> int:
    """Run a policy in a world and keep the episode; the same policy runs in a simulator and on a robot.

    Args:
        policy: expert, a trained folder, hold, random, constant:0.1,0.2, replay:DATA; replay alone in a recorded twin.
        world: sim:SCENE, sim:SCENE@rapier, robot:ws://127.0.0.1:PORT, recording:DATA or twin:SCENE.
        steps: control steps to run.
        seed: seed of the start.
        token: file with the token of the robot's link; INSTEP_TOKEN where not given.
        real: what a twin is kept in step with: robot:ADDRESS or recording:DATA.
        correct: how a twin is corrected: pose (filter), forces (visual forces) or none (physics only).
        residual: what a pose filter compares: silhouettes (mask), colours of pixels (photo), or both (takes longer).
        scan: folder of Gaussians, one file per body (instep scene splat), for colours; else a plain skin.
        hold_camera: cameras that the correction does not see, to judge it by.
        images: keep the real pictures that a twin saw, beside its states.
        nominal: dataset of runs of this twin in which all was well; says how far this run can be trusted.
        out: folder to write; a new one under runs/ where not given.

    """
    how = How(correct, residual, hold_camera, scan)
    if world.startswith("twin:") and (recording := recorded(real)) is not None and policy == "replay":
        return _replay(world.removeprefix("twin:"), real, recording, how, out)
    from instep.data import write_dataset

    secret = token.read_text(encoding="utf-8").strip() if token else os.environ.get("INSTEP_TOKEN", "")
    trust = None if nominal is None else calibrated_on(nominal)
    with _opened(world, real, secret, how, images) as opened:
        decider = policy_from_spec(policy, opened)
        if policy == "expert" and world.startswith("twin:"):
            # Experts make their tables when they are first asked; a robot that waits for that would stop.
            decider.act(opened.sim.observe(opened.sim.reset(seed)))
        episode = _ran(opened, decider, (steps, seed, f"{policy} in {world}"), trust)
    output = new_output("run", out, seed=seed)
    write_dataset([episode.with_columns({}, task=f"{policy} in {world}")], output.folder / "data")
    scores: dict[str, Estimate] = {}
    if trust is not None and nominal is not None:
        output.read(nominal)
        scores = trusted(episode, trust)
        Console(stderr=True).print(f"trust {scores['trust'].value:.2f}", highlight=False)
    output.write(scores, rows=len(episode), ended=episode.meta["ended"])
    write_page(output.folder, f"{policy} in {world}", episode, scores, trust)
    print(output.folder)
    return 0


def _ran(opened: Any, decider: Policy, how_long: tuple[int, int, str], trust: Any) -> Episode:
    """Run until the end, or until Ctrl-C: what was done by then is kept."""
    steps, seed, title = how_long
    log = Log(opened.spec, {"seed": str(seed), "ended": "interrupted"})
    urgent = realtime_priority() if title.rpartition(" in ")[2].startswith(("twin:", "robot:")) else nullcontext()
    with bar() as progress, urgent:
        task = progress.add_task(title, total=steps, state="")
        try:
            return rollout(
                opened, decider, steps=steps, seed=seed, watch=[log, Watch(progress, task, opened.spec, trust)]
            )
        except KeyboardInterrupt:
            if not len(log.episode()):
                raise
            return log.episode()


def _opened(world: str, real: str, token: str, how: How, images: bool) -> Any:
    if not world.startswith("twin:"):
        return world_from_spec(world, token=token)
    if not real:
        raise BadInput(f"{world!r} needs to know its real robot; give --real robot:ADDRESS or --real recording:DATA.")
    return open_twin(world.removeprefix("twin:"), world_from_spec(real, token=token), how, images=images)


def _replay(scene: str, words: str, recording: Episode, how: How, out: Path | None) -> int:
    """Run a twin through a recording, judge it by the pictures, and write what was found."""
    output = new_output("run", out)
    output.read(Path(words.partition(":")[2].partition("#")[0]))
    with bar() as progress:
        task = progress.add_task("camera poses from the recording itself", total=len(recording), state="")

        def watching(spec: Spec) -> list[Watcher]:
            progress.update(task, description=f"twin:{scene}")
            return [Watch(progress, task, spec)]

        tracked = track(scene, recording, how, watching)
        progress.update(task, description="judging by the pictures", completed=0, total=None, state="")
        scores = report(tracked, output)
    names = tracked.run.spec.observation["twin.counts"].labels
    counts = dict(zip(names, map(float, tracked.run["twin.counts"][-1]), strict=True))
    more = {"rows": len(tracked.run), "correct": how.correct, "residual": how.residual, "held cameras": list(how.hold)}
    output.write(scores, **more, counts=counts, size=tracked.prepared.refined.size.tolist())
    write_page(output.folder, f"replay in twin:{scene}", tracked.run, scores)
    table = Table("what", "value")
    for name, estimate in scores.items():
        table.add_row(name, str(estimate))
    Console(stderr=True).print(table)
    print(output.folder)
    return 0
