"""The verbs run and record: a policy in a world, kept whatever happens."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from instep.app.arguments import DataArg, Expert, Options, PolicyArg, WorldArg, link_token
from instep.app.output import new_output
from instep.app.recorded_run import BesideArgs, LoopArgs, PreparedRun, finish_run, new_run_output, run_beside, with_goal
from instep.app.reidentified_run import LiveReidentification
from instep.app.world_specs import CameraOptions, in_scene, world_from_spec
from instep.core.errors import BadInput
from instep.core.world import World, inner_with, options_dataclass
from instep.policy.policy_specs import policy_from_spec
from instep.scene.folder import Scene


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
    beside: Options[BesideArgs] = BesideArgs(),
    args: Options[RunArgs] = RunArgs(),
    seen: Options[CameraOptions] = CameraOptions(),
) -> int:
    """Run a policy in a world and keep the episode; the same policy runs in a simulator and on a robot.

    However the run ends, by its steps, Ctrl-C, a lost link or an error, its rows are kept. OUT/report.html shows a
    video, the outcome of the task, and what was measured. A twin of a robot runs by instep twin.
    """
    output = new_run_output("run", loop.out, loop.seed)
    with ExitStack() as stack:
        opened = seen.on(stack.enter_context(world_from_spec(world, token=link_token(loop.token))))
        given = Scene.load(args.scene) if args.scene else None
        opened, estimated = _prepared(opened, world, args, given), None
        if beside.reidentify:
            if not world.startswith("robot:") or not args.scene:
                raise BadInput(
                    f"--reidentify is for instep twin, and for robot:ADDRESS with --scene SCENE, not for {world!r}."
                )
            estimated = stack.enter_context(LiveReidentification(args.scene, opened.spec, beside.reidentify))
        decider = policy_from_spec(policy, in_scene(opened, given) if policy == "expert" else opened)
        scene = given or getattr(inner_with(opened, "scene"), "scene", None)
        title, opened = f"{policy} in {world}", with_goal(opened, scene)
        prepared = PreparedRun(opened, decider, title, scene, loop, beside, reidentified=estimated)
        found, parts = run_beside(prepared, output)
    return finish_run(prepared, found, parts, output)


def _prepared(opened: Any, world: str, args: RunArgs, scene: Scene | None) -> Any:
    """The world with limits and adaptive control as given."""
    from instep.physics.engines import open_world
    from instep.policy import Adaptive
    from instep.robot import Guarded, scene_limits
    from instep.robot.driver import SENT
    from instep.scene.robot_structure import without_free_bodies

    if args.limits:
        if not world.startswith("sim:"):
            raise BadInput(f"--limits is for sim:SCENE; {world!r} has the limits of its robot.")
        opened = Guarded(opened, scene_limits(inner_with(opened, "scene").scene))
    if not args.adapt:
        return opened
    if not world.startswith(("sim:", "robot:")):
        raise BadInput(f"--adapt is for sim:SCENE and robot:ADDRESS, not for {world!r}.")
    scene = scene or getattr(inner_with(opened, "scene"), "scene", None)
    if scene is None:
        raise BadInput("--adapt needs the scene of the robot as its reference model; give --scene SCENE.")
    # The server of a robot has the limits; a simulator gets those of the scene.
    limited: World = opened if SENT in opened.spec.observation else Guarded(opened, scene_limits(scene))
    return Adaptive[World].around(limited, open_world(without_free_bodies(scene) or scene, threads=1))


@options_dataclass
class RecordArgs:
    """Options of `instep record`."""

    policy: str = "random"
    """what instep eval takes: random, hold, expert, a trained folder, FILE.py:NAME, FILE.onnx, replay:DATA, ..."""
    episodes: int = 1
    """how many; each begins with the next seed."""
    scene: str = ""
    """scene of a robot or a recording: its task is judged, and its view rendered for the page."""
    task: Expert[str] = ""
    """what the episodes show, in words."""


def record(
    world: WorldArg,
    data: DataArg,
    /,
    loop: Options[LoopArgs] = LoopArgs(),
    args: Options[RecordArgs] = RecordArgs(),
    seen: Options[CameraOptions] = CameraOptions(),
) -> int:
    """Record a policy in a world into a LeRobot dataset; stopped or killed, what was recorded is kept.

    OUT/report.html shows a video of the first episode, whether the task was done, and what was measured.

    Args:
        data: dataset folder, made or added to.

    """
    if args.episodes < 1:
        raise BadInput(f"--episodes takes a number from 1, not {args.episodes}.")
    scene = Scene.load(args.scene) if args.scene else None
    output = new_output("record", loop.out, seed=loop.seed)
    with world_from_spec(world, token=link_token(loop.token)) as plain:
        opened = seen.on(plain)
        decider = policy_from_spec(args.policy, opened)
        scene = scene or getattr(inner_with(opened, "scene"), "scene", None)
        title = f"{args.policy} in {world}"
        prepared = PreparedRun(opened, decider, title, scene, loop, data=data, task=args.task, episodes=args.episodes)
        found, parts = run_beside(prepared, output)
    return finish_run(prepared, found, parts, output)
