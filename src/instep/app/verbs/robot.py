"""The verb robot: a simulated robot in its own process, behind the link a real robot uses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

from rich.console import Console

from instep.app.arguments import Expert, Options, SceneArg, kept_token, write_secret
from instep.app.simulated_cameras import CameraDriver, RenderJob
from instep.app.simulated_robot import SensorDriver
from instep.app.viewer.live_view import Viewed, live_view
from instep.core.errors import BadInput, UnknownName
from instep.core.world import options_dataclass
from instep.evaluate.perturbed_robot import Perturbation, hidden_appearance, simulate_robot
from instep.physics.engines import Engine
from instep.robot import (
    Driver,
    Limits,
    ObstacleChecks,
    SafetyOptions,
    ServerOptions,
    WorldDriver,
    scene_limits,
    serve,
)
from instep.scene.camera_files import calibrated_scene
from instep.scene.folder import Scene


@options_dataclass
class RobotArgs:
    """Options of `instep robot`."""

    engine: Engine = "rapier"
    """physics of the simulated robot; another than the simulator's, so that the gap is real."""
    hidden: int = 1
    """seed of the hidden parameters; 0 hides nothing."""
    port: int = 0
    """port on this machine; a free one where 0."""
    pace: Expert[Literal["real", "step"]] = "real"
    """real time, or one control step per command (as fast as it goes, repeatable)."""
    cameras: tuple[str, ...] = ()
    """cameras to render: names, 'all', or a calibration FILE.json whose cameras take the place of the scene's."""
    camera_rate: Expert[float] = 10.0
    """images per second of each camera; in real time fewer where the machine renders fewer."""
    noise: Expert[float] = 2e-4
    """standard deviation of position sensors [rad or m]."""
    late: Expert[int] = 1
    """control steps by which sensors are late."""
    token: Path | None = None
    """file with the token of the link; a fresh one is written to it where there is no such file."""
    ready: Expert[Path | None] = None
    """file to write the address and token to once it listens (readable by you alone)."""
    reveal: Expert[Path | None] = None
    """file to write the hidden parameters to, for judging an identification afterwards."""
    wiggle: Expert[bool] = False
    """test each joint by a small motion after a reset, before any command: order, sign and unit must be right."""
    view: bool = False
    """show the robot in the browser, as it truly is, without the noise and delay of its sensors."""


def robot(
    scene: SceneArg,
    /,
    args: Options[RobotArgs] = RobotArgs(),
) -> int:
    """Run a simulated robot: another process and engine, hidden params, noise, delay, limits, cameras, its own clock.

    Connect with: instep run POLICY robot:ws://127.0.0.1:PORT --token FILE

    Args:
        scene: name of a shipped scene or a scene folder.

    """
    loaded, names = calibrated_scene(Scene.load(scene), args.cameras)
    chosen = _chosen(loaded, names, args.camera_rate)
    if not loaded.model.nu:
        raise BadInput(f"Scene {loaded.name!r} has no actuators, so it cannot simulate a robot.")
    inside = () if args.pace == "real" else chosen  # in real time rendering must not hold up the control loop
    every = max(1, round(1 / (args.camera_rate * loaded.dt)))
    perturbation = Perturbation(
        engine=args.engine,
        hidden=args.hidden,
        noise=args.noise,
        late=args.late,
        cameras=inside,
        image_every=every,
    )
    simulated, limits = simulate_robot(loaded, perturbation), scene_limits(loaded)
    if args.reveal is not None:
        args.reveal.write_text(json.dumps(simulated.truth, indent=2) + "\n", encoding="utf-8")

    def announce(address: str, token: str) -> None:
        if args.ready is not None:
            write_secret(args.ready, json.dumps({"address": address, "token": token}))
        where = f"[bold]{address}[/] ({args.pace} pace)"
        _say_limits(limits)
        _say(f"A simulated robot for {loaded.name!r} in {args.engine} listens at {where}.", token)

    with ExitStack() as stack:
        title = f"simulated robot {loaded.name}"
        live = stack.enter_context(live_view(args.view, loaded, simulated.world.spec, title))
        driver: Driver = WorldDriver(Viewed(simulated.world, live) if live else simulated.world)
        if args.pace == "real" and chosen:
            effects, distortion = hidden_appearance(args.hidden)
            job = RenderJob(
                scene=scene, words=args.cameras, cameras=chosen, effects=effects, distortion=distortion,
                rate=args.camera_rate,
            )  # fmt: skip
            driver = stack.enter_context(CameraDriver(driver, job, loaded.cameras))
        safety = SafetyOptions(limits=limits, obstacles=ObstacleChecks(loaded), wiggle=args.wiggle)
        options = ServerOptions(safety=safety)
        token = None if args.token is None else kept_token(args.token)
        serve(SensorDriver(driver), port=args.port, token=token, pace=args.pace, ready=announce, options=options)
    return 0


def _chosen(scene: Scene, cameras: Sequence[str], rate: float) -> tuple[str, ...]:
    """The cameras that are asked for, checked."""
    for name in cameras:
        if name not in scene.cameras:
            raise UnknownName("camera", name, scene.cameras)
    if not 0 < rate <= 1 / scene.dt + 1e-9:
        raise BadInput(f"Cameras take up to {1 / scene.dt:g} images per second here, not {rate:g}.")
    return tuple(cameras)


def _say_limits(limits: Limits) -> None:
    """Print the limits inside which commands are kept; the server says which of them nobody stated."""
    Console(stderr=True, highlight=False).print(f"Limits: {limits}.", markup=False)


def _say(sentence: str, token: str) -> None:
    console = Console(stderr=True, highlight=False)
    console.print(sentence)
    console.print(f"INSTEP_TOKEN={token}", soft_wrap=True)
    console.print("[dim]Stop it with Ctrl-C.[/]")
