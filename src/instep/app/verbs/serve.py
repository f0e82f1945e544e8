"""The verb serve: serve a policy over openpi's protocol."""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from instep.app.world_specs import CameraOptions, policy_from_spec
from instep.core.errors import BadInput
from instep.core.websocket import ALL_INTERFACES, LOOPBACK
from instep.policy.openpi import PolicyServer
from instep.policy.policy_map import read_map
from instep.scene.folder import Scene
from instep.scene.tasks import task_of
from instep.scene.tasks.task import Tasked

Positional = tyro.conf.Positional


def serve(
    policy: Positional[Annotated[str, tyro.conf.arg(metavar="POLICY")]],
    scene: Positional[Annotated[str, tyro.conf.arg(metavar="SCENE")]],
    /,
    *,
    task: str = "",
    cameras: tuple[str, ...] = (),
    virtual: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: Path | None = None,
    public: bool = False,
    map: Path | None = None,
    seconds: float = 0.0,
) -> int:
    """Serve a policy to clients that speak openpi, until Ctrl-C. A token is always needed.

    Args:
        policy: what instep eval takes: expert, a trained folder, python:FILE.py:NAME, ...
        scene: the scene whose observations it gets.
        task: which task of the scene; its first where not given.
        cameras: cameras of the scene whose images clients send.
        virtual: a file of virtual cameras (TOML) whose images clients send.
        host: address to listen on; beyond this machine tokens and observations travel unencrypted, so use a tunnel.
        port: port to listen on; 0 takes a free one.
        token: file with the token clients must send; a fresh one is made and shown where not given.
        public: allow 0.0.0.0, that is every network this machine is in.
        map: a TOML file with the clients' names of observations and actions.
        seconds: stop after so many seconds; 0 runs until Ctrl-C.

    """
    if host in ALL_INTERFACES and not public:
        raise BadInput(f"{host} would serve every network this machine is in; say --public to allow that.")
    loaded, console = Scene.load(scene), Console(stderr=True)
    world = Tasked(CameraOptions(virtual, cameras).open("mujoco", scene), task_of(loaded, task))
    decider = policy_from_spec(policy, world)
    secret = token.read_text(encoding="utf-8").strip() if token else secrets.token_urlsafe(32)
    if not secret:
        raise BadInput(f"The file {str(token)!r} holds no token.")
    mapped = read_map(map) if map else None
    with PolicyServer(decider, world.spec, token=secret, mapped=mapped, host=host, port=port) as server:
        if host not in LOOPBACK:
            console.print("[yellow]Beyond this machine nothing here is encrypted; prefer an SSH tunnel.[/]")
        if token is None:
            console.print(f"token {secret}", highlight=False, markup=False)
        print(server.address, flush=True)
        end = time.monotonic() + seconds if seconds else float("inf")
        while time.monotonic() < end:
            time.sleep(min(0.5, max(0.0, end - time.monotonic())))
    return 0
