"""The verb gap: how far a simulator is from recordings, or two sets of recordings from each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from instep.app.arguments import Options
from instep.app.data_args import DataArgs
from instep.core.world import options_dataclass

Positional = tyro.conf.Positional


@options_dataclass
class GapArgs:
    """Options of `instep gap`."""

    source: Options[DataArgs] = DataArgs()
    runs: int = 0
    """measure only so many runs, spread over all; 0 is all."""
    every: float = 0.5
    """distance between the recorded states at which the simulator is placed [s]."""
    allow: tuple[str, ...] = ()
    """checks that may fail: finite stamps rate units frozen gain order offset."""
    max_rmse: float | None = None
    """largest error allowed for the headline curve, in its unit."""
    at: str = "full"
    """horizon of --max-rmse: '1 step', '0.5 s' or full."""
    limit: tuple[str, ...] = ()
    """further limits on scores, as 'elbow@0.5 s=0.02'."""
    scene: str = ""
    """scene of two datasets, for the errors of arms, tips and events that need a model."""
    events: Path | None = None
    """a TOML file of [[event]] rules; defaults for grippers, bodies and the start where not given."""
    causes: str = ""
    """a fitted scene; the gap is shared among the components that it changes."""
    policy: str = ""
    """the policy that was recorded, as instep eval takes it. With a scene it is run in closed loop from the recorded
    starts; with a second dataset its actions on the images of both worlds are compared."""
    plain: bool = False
    """measure only, without a search for causes."""
    torque: bool = False
    """compare measured joint torques with the scene's inverse dynamics along the recorded motion, in place of
    positions."""
    cutoff: float = 0.0
    """cut-off of the low-pass of --torque [Hz]; 0 finds it from the motion."""
    agreement: Path | None = None
    """a table of success rates (task, policy, real, sim, n_real_trials): does simulation rank as reality?"""
    seed: int = 0
    """seed of the intervals that need one."""
    out: Path | None = None
    """folder to write; a new one under runs/ where not given."""


def gap(
    data: Positional[Annotated[str, tyro.conf.arg(metavar="DATA")]] = "",
    against: Positional[Annotated[str, tyro.conf.arg(metavar="SCENE|DATA")]] = "",
    /,
    args: Annotated[GapArgs, tyro.conf.arg(name="")] = GapArgs(),
) -> int:
    """Measure how far a simulator is from recordings, or two sets of recordings from each other.

    With a scene, its simulator is placed where the robot was and given the recorded commands: the error one step, some
    steps and a whole run ahead. With a second dataset, runs are compared in pairs. With one dataset alone, positions
    are compared with their commands, or the clocks of its streams with each other. Writes report.html, result.json
    and parquet files of all curves; exits 1 when a limit is broken.

    Args:
        data: recordings: a LeRobot folder, or a folder that a mapping of instep reads.
        against: a scene (name, folder, MJCF, SCENE@rapier for another engine) or a second dataset.

    """
    from instep.app.gap_run import GapRequest, judge_agreement, run

    if args.torque:
        from .torque import TorqueGapRequest, run_torque_gap

        limits = dict(_limit(words) for words in args.limit)
        return run_torque_gap(TorqueGapRequest(data, against, args.source, args.cutoff, limits, args.out))
    if args.agreement is not None:
        return judge_agreement(args.agreement, args.out, args.seed)
    return run(
        GapRequest(
            data=data,
            against=against,
            source=args.source,
            runs=args.runs,
            every=args.every,
            allow=args.allow,
            limits=dict(_limit(words) for words in args.limit),
            max_rmse=None if args.max_rmse is None else (args.at, args.max_rmse),
            scene=args.scene,
            events=args.events,
            causes=args.causes,
            policy=args.policy,
            plain=args.plain,
            seed=args.seed,
            out=args.out,
        )
    )


def _limit(words: str) -> tuple[str, float]:
    from instep.core.errors import BadInput

    name, _, number = words.rpartition("=")
    try:
        return name.strip(), float(number)
    except ValueError:
        raise BadInput(f"A limit reads 'elbow@0.5 s=0.02', not {words!r}.") from None
