"""The verb check: a policy's actions on recorded observations, beside the recorded actions."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console

from instep.app.arguments import DataArg, Expert, Options, OutFolder, PolicyArg
from instep.app.data_args import DataArgs, located, read_runs, spread_runs
from instep.app.output import new_output, progress_bar
from instep.core.world import options_dataclass
from instep.evaluate.action_check import ActionCheck, CheckOptions, check_policy
from instep.policy.policy_specs import policy_fingerprint, policy_from_spec
from instep.report.eval_pages import check_page
from instep.robot.driver import Recording


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


def check(
    policy: PolicyArg,
    data: DataArg,
    /,
    args: Options[CheckArgs] = CheckArgs(),
) -> int:
    """Compare a policy's actions on recorded observations with the recorded actions; exit 1 if a baseline is better.

    The first check of a policy before anything moves: wrong units, orders, signs and cameras show here.

    Args:
        policy: what instep eval takes: a trained folder, FILE.pt, FILE.onnx, FILE.py:NAME, openpi:ws://HOST:PORT, ...
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
    result = {"policy": policy, "policy_fingerprint": policy_fingerprint(policy), **check_result(found)}
    output.write(found.scores, **result)
    page = check_page(found, title=f"Check of {policy}", subtitle=f"{len(found.episodes)} episodes of {data}")
    facts = {**{f"input {k}": v for k, v in output.inputs.items()}, "policy": policy, "seed": str(args.seed)}
    written = output.page(replace(page, facts=facts))
    console = Console(stderr=True)
    for sentence in (found.words, *found.mismatches):
        console.print(sentence, highlight=False, markup=False)
    print(written)
    return 0 if found.passed else 1


def check_result(found: ActionCheck) -> dict[str, object]:
    """What result.json says of a check beside its scores."""
    steps = {name: [e.as_dict() for e in estimates] for name, estimates in found.steps.items()}
    return {"passed": found.passed, "verdict": found.words, "mismatches": list(found.mismatches), "steps": steps}
