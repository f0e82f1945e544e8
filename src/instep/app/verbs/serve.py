"""The verb serve: serve a policy over openpi's or GR00T's protocol."""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import Literal

from rich.console import Console

from instep.app.arguments import Expert, Options, PolicyArg, SceneArg, kept_token
from instep.app.world_specs import CameraOptions
from instep.core.errors import BadInput
from instep.core.websocket import ALL_INTERFACES, LOOPBACK, Certificate, ListenOptions
from instep.core.world import options_dataclass
from instep.policy.groot import GrootServer
from instep.policy.openpi import PolicyServer
from instep.policy.policy_map import checked_map, read_map
from instep.policy.policy_specs import policy_from_spec
from instep.scene.folder import Scene
from instep.scene.tasks import task_of
from instep.scene.tasks.task import Tasked

MIN_TOKEN = 16
"""Least length of a token that a user chooses."""


@options_dataclass
class ServeArgs:
    """Options of `instep serve`."""

    protocol: Literal["openpi", "groot"] = "openpi"
    """what clients speak: openpi (websocket) or groot (GR00T's ZMQ protocol, releases N1.5 to N1.7)."""
    task: str = ""
    """which task of the scene; its first where not given."""
    cameras: tuple[str, ...] = ()
    """cameras whose images clients send: names, 'all', or a calibration FILE.json."""
    virtual: Expert[Path | None] = None
    """a file of virtual cameras (TOML) whose images clients send."""
    host: Expert[str] = "127.0.0.1"
    """address to listen on; beyond this machine it takes --certificate and --key, or --plain behind a tunnel."""
    certificate: Expert[Path | None] = None
    """PEM file of a TLS certificate; clients then connect to wss://."""
    key: Expert[Path | None] = None
    """PEM file of the certificate's private key."""
    plain: Expert[bool] = False
    """allow unencrypted connections beyond this machine, where a tunnel encrypts them."""
    port: int = 8000
    """port to listen on; 0 takes a free one."""
    token: Path | None = None
    """file with the token clients must send; a fresh one is written to it where there is no such file, and one is made
    and shown where none is given."""
    public: Expert[bool] = False
    """allow 0.0.0.0, that is every network this machine is in."""
    map: Path | None = None
    """a TOML file with the clients' names of observations and actions."""
    seconds: Expert[float] = 0.0
    """stop after so many seconds; 0 runs until Ctrl-C."""


def serve(
    policy: PolicyArg,
    scene: SceneArg,
    /,
    args: Options[ServeArgs] = ServeArgs(),
) -> int:
    """Serve a policy to clients that speak openpi or GR00T, until Ctrl-C. A token is always needed.

    Args:
        policy: what instep eval takes: expert, a trained folder, FILE.py:NAME, FILE.pt, FILE.onnx, ...
        scene: the scene whose observations it gets.

    """
    if args.host in ALL_INTERFACES and not args.public:
        raise BadInput(f"{args.host} would serve every network this machine is in; say --public to allow that.")
    if (args.certificate is None) != (args.key is None):
        raise BadInput("--certificate and --key belong together; give both, or neither.")
    certificate = Certificate(args.certificate, args.key) if args.certificate and args.key else None
    listen = ListenOptions(args.host, args.port, certificate, args.plain)
    loaded, console = Scene.load(scene), Console(stderr=True)
    world = Tasked(CameraOptions(args.virtual, args.cameras).open("mujoco", scene), task_of(loaded, args.task))
    decider = policy_from_spec(policy, world)
    secret = kept_token(args.token) if args.token else secrets.token_urlsafe(32)
    if len(secret) < MIN_TOKEN:
        raise BadInput(f"A token of {len(secret)} characters can be guessed; give one of at least {MIN_TOKEN}.")
    mapped = checked_map(read_map(args.map), world.spec) if args.map else None
    kind = GrootServer if args.protocol == "groot" else PolicyServer
    with kind(decider, world.spec, token=secret, mapped=mapped, listen=listen) as server:
        if args.host not in LOOPBACK and listen.certificate is None:
            console.print("[yellow]Beyond this machine nothing here is encrypted; prefer an SSH tunnel.[/]")
        if args.token is None:
            console.print(f"token {secret}", highlight=False, markup=False)
        print(server.address, flush=True)
        end = time.monotonic() + args.seconds if args.seconds else float("inf")
        while time.monotonic() < end:
            time.sleep(min(0.5, max(0.0, end - time.monotonic())))
    return 0
