"""The verbs check and serve: a policy on recorded observations, and behind a server."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from pathlib import Path
from typing import Literal

from instep.app.arguments import DataArg, Expert, Options, OutFolder, PolicyArg, SceneArg, kept_token
from instep.app.output import new_output, progress_bar, say
from instep.app.world_specs import CameraOptions
from instep.core.errors import BadInput
from instep.core.websocket import ALL_INTERFACES, LOOPBACK, Certificate, ListenOptions
from instep.core.world import options_dataclass
from instep.evaluate.action_check import CheckOptions, check_policy
from instep.policy.groot import GrootServer
from instep.policy.openpi import PolicyServer
from instep.policy.policy_map import checked_map, read_map
from instep.policy.policy_specs import policy_fingerprint, policy_from_spec
from instep.report.eval_pages import check_page
from instep.robot.driver import Recording
from instep.scene.folder import Scene
from instep.scene.tasks import task_of
from instep.scene.tasks.task import Tasked

from .data import DataArgs, located, read_runs, spread_runs

MIN_TOKEN = 16
"""Least length of a token that a user chooses."""


@options_dataclass
class CheckArgs:
    """Options of `instep check`."""

    source: Options[DataArgs] = DataArgs()
    runs: Expert[int] = 0
    """check only so many episodes, spread over all; 0 is all."""
    every: Expert[int] = 0
    """rows from one inference of a chunk to the next; 0 spreads about 2000 inferences over all episodes."""
    seed: Expert[int] = 0
    """seed that the policy is reset with."""
    out: OutFolder = None


def check(policy: PolicyArg, data: DataArg, /, args: Options[CheckArgs] = CheckArgs()) -> int:
    """Compare a policy's actions on recorded observations with the recorded actions; exit 1 if a baseline is better.

    The first check of a policy before anything moves: wrong units, orders, signs and cameras show here.

    Args:
        data: dataset or recordings of the robot that the policy is for.

    """
    episodes = spread_runs(read_runs(str(data), args.source), args.runs)
    decider = policy_from_spec(policy, Recording(episodes[0]))
    options = CheckOptions(every=args.every, seed=args.seed)
    with progress_bar() as progress:
        bar = progress.add_task(f"{policy} on {data}", total=sum(len(episode) for episode in episodes))
        found = check_policy(decider, episodes, options=options, watch=lambda rows: progress.advance(bar, rows))
    output = new_output("check", args.out, seed=args.seed)
    output.read(located(str(data)))
    steps = {name: [e.as_dict() for e in estimates] for name, estimates in found.steps.items()}
    output.write(
        found.scores, policy=policy, policy_fingerprint=policy_fingerprint(policy), passed=found.passed,
        verdict=found.words, mismatches=list(found.mismatches), steps=steps,
    )  # fmt: skip
    page = check_page(found, title=f"Check of {policy}", subtitle=f"{len(found.episodes)} episodes of {data}")
    written = output.page(replace(page, facts={**output.hashes, "policy": policy, "seed": str(args.seed)}))
    say(found.words, *found.mismatches)
    print(written)
    return 0 if found.passed else 1


@options_dataclass
class ServeArgs:
    """Options of `instep serve`."""

    protocol: Literal["openpi", "groot"] = "openpi"
    """what clients speak: openpi (websocket) or groot (GR00T's ZMQ protocol, releases N1.6 and N1.7)."""
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


def serve(policy: PolicyArg, scene: SceneArg, /, args: Options[ServeArgs] = ServeArgs()) -> int:
    """Serve a policy to clients that speak openpi or GR00T, until Ctrl-C. A token is always needed."""
    if args.host in ALL_INTERFACES and not args.public:
        raise BadInput(f"{args.host} would serve every network this machine is in; say --public to allow that.")
    if (args.certificate is None) != (args.key is None):
        raise BadInput("--certificate and --key belong together; give both, or neither.")
    certificate = Certificate(args.certificate, args.key) if args.certificate and args.key else None
    listen = ListenOptions(args.host, args.port, certificate, args.plain)
    loaded = Scene.load(scene)
    world = Tasked(CameraOptions(args.virtual, args.cameras).open("mujoco", scene), task_of(loaded, args.task))
    decider = policy_from_spec(policy, world)
    secret = kept_token(args.token) if args.token else secrets.token_urlsafe(32)
    if len(secret) < MIN_TOKEN:
        raise BadInput(f"A token of {len(secret)} characters can be guessed; give one of at least {MIN_TOKEN}.")
    mapped = checked_map(read_map(args.map), world.spec) if args.map else None
    kind = GrootServer if args.protocol == "groot" else PolicyServer
    with kind(decider, world.spec, token=secret, mapped=mapped, listen=listen) as server:
        if args.host not in LOOPBACK and listen.certificate is None:
            say("Beyond this machine nothing here is encrypted; prefer an SSH tunnel.", style="yellow")
        if args.token is None:
            say(f"token {secret}")
        print(server.address, flush=True)
        end = time.monotonic() + args.seconds if args.seconds else float("inf")
        while time.monotonic() < end:
            time.sleep(min(0.5, max(0.0, end - time.monotonic())))
    return 0
