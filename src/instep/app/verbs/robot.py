"""The verb robot: a stand-in robot in its own process, behind the link a real robot uses."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from instep.app.standin import Disguise, Engine, SensedDriver, stand_in
from instep.core.errors import BadInput, UnknownName
from instep.real.server import serve
from instep.scene.folder import Scene


def robot(
    scene: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="SCENE")]],
    /,
    *,
    engine: Engine = "rapier",
    hidden: int = 1,
    port: int = 0,
    pace: Literal["real", "step"] = "real",
    cameras: tuple[str, ...] = (),
    noise: float = 2e-4,
    late: int = 1,
    ready: Path | None = None,
    reveal: Path | None = None,
) -> int:
    """Run a stand-in robot: another process and engine, hidden knobs, noise, delay, limits, cameras, its own clock.

    Connect with: INSTEP_TOKEN=... instep run POLICY robot:ws://127.0.0.1:PORT

    Args:
        scene: name of a shipped scene or a scene folder.
        engine: physics of the stand-in; another than the simulator's, so that the gap is real.
        hidden: seed of the hidden knobs; 0 hides nothing.
        port: port on this machine; a free one where 0.
        pace: real time, or one control step per command (as fast as it goes, repeatable).
        cameras: cameras to film with; 'all' for all of the scene's.
        noise: standard deviation of position sensors [rad or m].
        late: control steps by which sensors are late.
        ready: file to write the address and token to once it listens (readable by you alone).
        reveal: file to write the hidden knobs to, for judging an identification afterwards.

    """
    loaded = Scene.load(scene)
    chosen = tuple(loaded.cameras) if cameras == ("all",) else cameras
    for name in chosen:
        if name not in loaded.cameras:
            raise UnknownName("camera", name, loaded.cameras)
    if not loaded.model.nu:
        raise BadInput(f"Scene {loaded.name!r} has no actuators, so it cannot stand in for a robot.")
    standing = stand_in(loaded, Disguise(engine=engine, hidden=hidden, noise=noise, late=late, cameras=chosen))
    if reveal is not None:
        reveal.write_text(json.dumps(standing.truth, indent=2) + "\n", encoding="utf-8")

    def announce(address: str, token: str) -> None:
        if ready is not None:
            _write_secret(ready, json.dumps({"address": address, "token": token}))
        console = Console(stderr=True, highlight=False)
        console.print(f"A stand-in for {loaded.name!r} in {engine} listens at [bold]{address}[/] ({pace} pace).")
        console.print(f"INSTEP_TOKEN={token}", soft_wrap=True)
        console.print("[dim]Stop it with Ctrl-C.[/]")

    serve(SensedDriver(standing.world), port=port, token=secrets.token_hex(32), pace=pace, ready=announce)
    return 0


def _write_secret(path: Path, text: str) -> None:
    """Write whole, readable by its owner alone; a reader never sees half of it."""
    temporary = path.with_suffix(".part")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as stream:
        stream.write(text)
    temporary.replace(path)
