"""Verbs about scenes: list them, list their knobs, make one, picture one."""

from __future__ import annotations

from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from instep.scene import address
from instep.scene.folder import LIBRARY, Scene, shipped

Positional = tyro.conf.Positional


def list_scenes() -> None:
    """List the scenes that come with instep."""
    table = Table("scene", "rate", "robot", "objects", "what it is", box=None, padding=(0, 2))
    for name in shipped():
        scene = Scene.load(name)
        table.add_row(name, f"{1 / scene.dt:g} Hz", str(len(scene.robot)), ", ".join(scene.objects), scene.about)
    console = Console()
    console.print(table)
    console.print(f"[dim]{LIBRARY}[/]", soft_wrap=True)


def knobs(
    scene: Positional[Annotated[str, tyro.conf.arg(metavar="SCENE")]],
    patterns: Positional[tuple[Annotated[str, tyro.conf.arg(metavar="PATTERN")], ...]] = (),
    /,
) -> None:
    """List what can be turned in a scene, with units, values and the range worth searching.

    Args:
        scene: name of a shipped scene, a scene folder, or an MJCF or URDF file.
        patterns: addresses to list, with * for any part: 'joint.*.damping' 'action.delay'.

    """
    loaded = Scene.load(scene)
    table = Table("knob", "value", "low", "high", "unit", "scale", box=None, padding=(0, 2))
    for column in (1, 2, 3):
        table.columns[column].justify = "right"
    listed = loaded.knobs(*patterns)
    values = address.read(loaded.model, [knob.address for knob in listed])
    for knob in listed:
        row = (knob.address, f"{values[knob.address]:.5g}", f"{knob.low:.4g}", f"{knob.high:.4g}", knob.unit)
        table.add_row(*row, "log" if knob.log else "")
    Console().print(table)
