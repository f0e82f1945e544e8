"""The verbs scene new, params and set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from instep.app.arguments import Positional, SceneArg
from instep.core.errors import BadInput
from instep.scene import address
from instep.scene.folder import LIBRARY, Scene, shipped
from instep.scene.model import overlapping_links
from instep.scene.new_scene import make_scene


def params(
    scene: Positional[Annotated[str, tyro.conf.arg(metavar="SCENE")]] = "",
    patterns: Positional[tuple[Annotated[str, tyro.conf.arg(metavar="PATTERN")], ...]] = (),
    /,
) -> None:
    """List the parameters of a scene with unit, value and search range; without SCENE, the shipped scenes.

    Args:
        scene: name of a shipped scene, a scene folder, or an MJCF or URDF file.
        patterns: addresses to list, with * for any part: 'joint.*.damping' 'action.delay'.

    """
    if not scene:
        _list_shipped()
        return
    loaded = Scene.load(scene)
    table = Table("param", "value", "low", "high", "unit", "scale", box=None, padding=(0, 2))
    for column in (1, 2, 3):
        table.columns[column].justify = "right"
    listed = loaded.params(*patterns)
    values = address.read(loaded.model, [param.address for param in listed])
    for param in listed:
        row = (param.address, f"{values[param.address]:.5g}", f"{param.low:.4g}", f"{param.high:.4g}", param.unit)
        table.add_row(*row, "log" if param.log else "")
    Console().print(table)


def new(
    robot: Positional[Annotated[Path, tyro.conf.arg(metavar="ROBOT")]],
    folder: Positional[Annotated[Path, tyro.conf.arg(metavar="DIR")]],
    /,
    *,
    rate: float | None = None,
    legs: bool = False,
) -> None:
    """Make a scene folder from a robot: an MJCF or URDF file, with the meshes and textures it uses.

    A robot file without a camera gets one that frames the robot.

    Args:
        robot: MJCF or URDF file; what it includes must lie in its folder, package:// too.
        folder: folder to make.
        rate: control rate [Hz], taken to the nearest whole number of physics steps; about 60 Hz where not given.
        legs: for a robot with legs: position servos in place of motors, a floor, and a pose to stand in.

    """
    made = make_scene(robot, folder, rate=rate, legs=legs)
    scene, console = made.scene, Console()
    console.print(
        f"{len(scene.robot)} joints, {scene.model.nu} actuators, {len(scene.objects)} free bodies, "
        f"{len(scene.cameras)} cameras, {1 / scene.dt:.4g} Hz control."
    )
    if made.servos:
        lacking = "position servos" if legs else "actuators"
        console.print(
            f"The file has no {lacking}, so {made.servos} position servos were added; "
            "their gains are a guess to be tuned (see scene.xml)."
        )
    for near, link in overlapping_links(scene.model):
        console.print(f"{link!r} does not collide with {near!r}: the file says so, or their shapes overlap at rest.")
    print(folder)


def render_images(scene: Scene, cameras: Sequence[str], folder: Path) -> list[Path]:
    """Render a scene where it starts through some of its cameras, one PNG per camera; their paths."""
    from instep.physics.mujoco_cameras import MujocoRenderer
    from instep.report.page import encode_png

    renderer, paths = MujocoRenderer(scene), [folder / f"{name.replace('/', '_')}.png" for name in cameras]
    try:
        for name, path in zip(cameras, paths, strict=True):
            path.write_bytes(encode_png(renderer.render(scene.start(0)[0], scene.cameras[name])))
    finally:
        renderer.close()
    return paths


def set_params(
    scene: SceneArg,
    folder: Positional[Annotated[Path, tyro.conf.arg(metavar="DIR")]],
    settings: Positional[tuple[Annotated[str, tyro.conf.arg(metavar="PARAM=VALUE")], ...]],
    /,
) -> None:
    """Save a scene with other parameter values as a new folder; the old one stays as it is.

    Args:
        scene: name of a shipped scene, a scene folder, or an MJCF or URDF file.
        folder: folder to make.
        settings: what to set: 'joint.*.damping=0.3' action.delay=0.02

    """
    from instep.tune.param_export import promote

    loaded = Scene.load(scene)
    wanted: dict[str, float] = {}
    for word in settings:
        name, _, value = word.partition("=")
        try:
            wanted[name] = float(value)
        except ValueError:
            raise BadInput(f"{word!r} is not a setting; PARAM=VALUE was expected, as in action.delay=0.02.") from None
    if not wanted:
        raise BadInput("No parameter was named; PARAM=VALUE was expected, as in action.delay=0.02.")
    resolved = {name: float(value) for name, value in address.ordered(loaded.model, wanted).items()}
    promote(loaded, resolved, folder, {"by": "instep scene set"})
    print(folder)


def _list_shipped() -> None:
    table = Table("scene", "rate", "robot", "objects", "what it is", box=None, padding=(0, 2))
    for name in shipped():
        scene = Scene.load(name)
        table.add_row(name, f"{1 / scene.dt:g} Hz", str(len(scene.robot)), ", ".join(scene.objects), scene.about)
    console = Console()
    console.print(table)
    console.print(f"[dim]{LIBRARY}[/]", soft_wrap=True)
