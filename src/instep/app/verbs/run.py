"""The verb run: one policy, one world."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from instep.app.arguments import Options, PolicyArg, WorldArg, link_token
from instep.app.recorded_run import (
    LoopArgs,
    PreparedRun,
    finish_run,
    new_run_output,
    run_beside,
    scene_task,
    summarize_run,
)
from instep.app.reidentified_run import LiveReidentification
from instep.app.world_specs import CameraOptions, in_scene, world_from_spec
from instep.core.errors import BadInput
from instep.core.world import World, inner_with, options_dataclass
from instep.policy.policy_specs import policy_from_spec
from instep.scene.folder import Scene
from instep.scene.tasks.task import Tasked


@options_dataclass
class RunArgs:
    """Options of `instep run`."""

    scene: str = ""
    """scene of a robot or a recording, for the task, the expert, --adapt and the view."""
    limits: bool = False
    """keep commands in a simulator inside the limits of the scene's robot; a robot's server always does."""
    adapt: bool = False
    """adaptive control: add to the commands what the position servos need to follow the scene (--scene for a robot)."""


def run(
    policy: PolicyArg,
    world: WorldArg,
    /,
    loop: Options[LoopArgs] = LoopArgs(),
    args: Options[RunArgs] = RunArgs(),
    seen: Options[CameraOptions] = CameraOptions(),
) -> int:
    """Run a policy in a world and keep the episode; the same policy runs in a simulator and on a robot.

    However the run ends, by its steps, Ctrl-C, a lost link or an error, its rows are kept. OUT/report.html shows a
    video, the outcome of the task, and what was measured. A twin of a robot runs by instep twin.

    Args:
        policy: what instep eval takes: expert, a trained folder, FILE.py:NAME, FILE.onnx, hold, replay:DATA, ...
        world: sim:SCENE, sim:SCENE@rapier, robot:ws://127.0.0.1:PORT or recording:DATA.

    """
    output, title = new_run_output("run", loop.out, loop.seed), f"{policy} in {world}"
    with ExitStack() as stack:
        opened = stack.enter_context(world_from_spec(world, token=link_token(loop.token)))
        given = Scene.load(args.scene) if args.scene else None
        opened = _prepared(seen.on(opened), world, args, given)
        estimated = _reidentified(opened, world, args, loop, stack)
        decider = policy_from_spec(policy, in_scene(opened, given) if policy == "expert" else opened)
        scene = given or getattr(inner_with(opened, "scene"), "scene", None)
        prepared = PreparedRun(
            with_goal(opened, scene), decider, title, scene, lambda bar, task: [_advance(bar, task)], estimated
        )
        found, parts = run_beside(prepared, output, loop)
    return finish_run(summarize_run(found, scene, parts), scene, title, output)


def with_goal(opened: Any, scene: Scene | None) -> Any:
    """The world with the goal of its task among the observations, if the task has one."""
    task = scene_task(scene)
    if task is None or scene is None or not task.goal_channel.labels or opened.spec.q.labels != scene.spec.q.labels:
        return opened
    return Tasked(opened, task)


def _advance(bar: Any, task: Any) -> Any:
    def watch(*_: Any) -> None:
        bar.advance(task)

    return watch


def _prepared(opened: Any, world: str, args: RunArgs, scene: Scene | None) -> Any:
    """The world with limits and adaptive control as given."""
    from instep.robot import Guarded, scene_limits

    if args.limits:
        if not world.startswith("sim:"):
            raise BadInput(f"--limits is for sim:SCENE; {world!r} has the limits of its robot.")
        opened = Guarded(opened, scene_limits(inner_with(opened, "scene").scene))
    if not args.adapt:
        return opened
    if not world.startswith(("sim:", "robot:")):
        raise BadInput(f"--adapt is for sim:SCENE and robot:ADDRESS, not for {world!r}.")
    return _with_adaptation(opened, scene)


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
    return Adaptive[World].around(limited, open_world(without_free_bodies(scene) or scene, threads=1))


def _reidentified(
    opened: Any, world: str, args: RunArgs, loop: LoopArgs, stack: ExitStack
) -> LiveReidentification | None:
    """The process that estimates parameters during the run, started; None without --reidentify."""
    if not loop.reidentify:
        return None
    if not world.startswith("robot:"):
        raise BadInput(f"--reidentify is for robot:ADDRESS and for instep twin, not for {world!r}.")
    if not args.scene:
        raise BadInput("--reidentify of a robot needs the scene whose parameters are estimated; give --scene SCENE.")
    return stack.enter_context(LiveReidentification(args.scene, opened.spec, loop.reidentify))
