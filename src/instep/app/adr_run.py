"""Automatic domain randomization of a policy in simulation: the ranges of parameters in which it still succeeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from rich.console import Console
from rich.table import Table

from instep.core.errors import BadInput
from instep.core.world import Array, Simulator, World
from instep.evaluate.episode_batch import run_batch
from instep.evaluate.evaluation import EvalBatch
from instep.policy.chunking import Latency
from instep.scene.folder import Scene
from instep.scene.tasks.task import Tasked
from instep.tune.beliefs import save_belief
from instep.tune.randomize import AdrOptions, AdrResult, AdrRound, expand_ranges, nominal_values, parse_ranges

from .output import Output


def run_adr(job: EvalBatch, words: Sequence[str], scene: Scene, output: Output) -> int:
    """Widen the ranges of `--adr` around the scene's values while the policy succeeds, and write belief.json."""
    options = job.options
    if options.randomize is not None:
        raise BadInput("--adr finds ranges by itself; give --randomize in a later evaluation.")
    params = parse_ranges(words, scene)
    world = cast(Simulator, job.world.make())

    def success(settings: Mapping[str, Array], seeds: Sequence[int]) -> Array:
        won: list[bool] = []
        for i in range(0, len(seeds), options.batch):
            part = slice(i, i + options.batch)
            sampled = world.tuned({name: values[part] for name, values in settings.items()})
            tasked: Tasked[World] = Tasked(sampled, job.task)
            policy = job.policy.make(tasked)
            policy = Latency(policy, options.latency) if options.latency else policy
            ended = run_batch(tasked, policy, seeds[part], bounds=options.bounds).episodes
            won += [row.success for row in ended]
        return np.array(won)

    console = Console(stderr=True)
    adr = AdrOptions(seed=output.seed, episodes=min(len(job.seeds), AdrOptions().episodes))
    with console.status("automatic domain randomization") as status:

        def watch(number: int, round_: AdrRound) -> None:
            rates = [rate.value for pair in round_.rates.values() for rate in pair]
            status.update(
                f"round {number + 1} of {adr.rounds}: success at the ends {min(rates):.0%} to {max(rates):.0%}"
            )

        found = expand_ranges(success, params, nominal_values(params, scene), adr, watch=watch)
    save_belief(found.box, output.folder / "belief.json")
    last: Mapping[str, tuple[Any, Any]] = found.rounds[-1].rates if found.rounds else {}
    ends = {name: {"low": low, "high": high} for name, (low, high) in last.items()}
    scores = {f"{name}, {side} end": rate for name, pair in ends.items() for side, rate in pair.items()}
    ranges = {param.address: [param.low, param.high] for param in found.box.params}
    output.write(scores, ranges=ranges, entropy=found.entropy, rounds=len(found.rounds), stopped=found.stopped)
    _print_ranges(found)
    print(output.folder / "belief.json")
    return 0


def _print_ranges(found: AdrResult) -> None:
    table = Table("parameter", "low", "high", "unit", box=None, padding=(0, 2))
    for param in found.box.params:
        table.add_row(param.address, f"{param.low:.4g}", f"{param.high:.4g}", param.unit)
    Console().print(table)
