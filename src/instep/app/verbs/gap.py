"""The verb gap: how far a simulator is from recordings, or two sets of recordings from each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

Positional = tyro.conf.Positional


def gap(
    data: Positional[Annotated[str, tyro.conf.arg(metavar="DATA")]] = "",
    against: Positional[Annotated[str, tyro.conf.arg(metavar="SCENE|DATA")]] = "",
    /,
    *,
    mapping: str = "",
    runs: int = 0,
    every: float = 0.5,
    allow: tuple[str, ...] = (),
    max_rmse: float | None = None,
    at: str = "full",
    limit: tuple[str, ...] = (),
    scene: str = "",
    events: Path | None = None,
    causes: str = "",
    policy: str = "",
    plain: bool = False,
    agreement: Path | None = None,
    seed: int = 0,
    out: Path | None = None,
) -> int:
    """Measure how far a simulator is from recordings, or two sets of recordings from each other.

    With a scene, its simulator is placed where the robot was and given the recorded commands: the error one step, some
    steps and a whole run ahead. With a second dataset, runs are compared in pairs. With one dataset alone, positions
    are compared with their commands, or the clocks of its streams with each other. Writes report.html, result.json
    and parquet files of all curves; exits 1 when a limit is broken.

    Args:
        data: recordings: a LeRobot folder, or a folder that a mapping of instep reads.
        against: a scene (name, folder, MJCF, SCENE@rapier for another engine) or a second dataset.
        mapping: mapping of DATA: a file (.toml), or the name of a shipped one where the folder's name does not say it.
        runs: measure only so many runs, spread over all; 0 is all.
        every: distance between the recorded states at which the simulator is placed [s].
        allow: checks that may fail: finite stamps rate units frozen gain order offset.
        max_rmse: largest error allowed for the headline curve, in its unit.
        at: horizon of --max-rmse: '1 step', '0.5 s' or full.
        limit: further limits on scores, as 'elbow@0.5 s=0.02'.
        scene: scene of two datasets, for the errors of arms, tips and events that need a model.
        events: a TOML file of [[event]] rules; defaults for grippers, bodies and the start where not given.
        causes: a fitted scene; the gap is shared among the components that it changes.
        policy: the policy that was recorded, as instep eval takes it. With a scene it is run in closed loop from the
            recorded starts; with a second dataset its actions on the images of both worlds are compared.
        plain: measure only, without a search for causes.
        agreement: a table of success rates (task, policy, real, sim, n_real_trials): does simulation rank as reality?
        seed: seed of the intervals that need one.
        out: folder to write; a new one under runs/ where not given.

    """
    from instep.app.gap_run import GapArgs, judge_agreement, run

    if agreement is not None:
        return judge_agreement(agreement, out, seed)
    return run(
        GapArgs(
            data=data, against=against, mapping=mapping, runs=runs, every=every, allow=allow,
            limits=dict(_limit(words) for words in limit), max_rmse=None if max_rmse is None else (at, max_rmse),
            scene=scene, events=events, causes=causes, policy=policy, plain=plain, seed=seed, out=out,
        )
    )  # fmt: skip


def _limit(words: str) -> tuple[str, float]:
    from instep.core.errors import BadInput

    name, _, number = words.rpartition("=")
    try:
        return name.strip(), float(number)
    except ValueError:
        raise BadInput(f"A limit reads 'elbow@0.5 s=0.02', not {words!r}.") from None
