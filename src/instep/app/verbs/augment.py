"""The verb augment: teach a policy where it fails."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from instep.app.arguments import Expert, Options, PolicyArg, Positional, SceneArg
from instep.app.cluster import open_map
from instep.app.output import Output, new_output, progress_bar
from instep.app.world_specs import CameraOptions
from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.reading import COUNT, TABLE, content_hash, is_list, is_number, read_entries, shown
from instep.core.world import Policy, options_dataclass
from instep.evaluate.evaluation import EvalOptions, Evaluation, PolicySpec, WorldSpec, action_bounds, evaluate_policies
from instep.evaluate.failure_mining import CorrectiveDemos, corrective_demos, demonstrate
from instep.policy.flow_policy import load_policy
from instep.policy.policy_specs import policy_fingerprint, policy_from_spec
from instep.policy.task_experts import expert_of
from instep.policy.training import TrainOptions
from instep.policy.training import train as train_policy
from instep.report.eval_pages import eval_page
from instep.scene.folder import Scene
from instep.scene.tasks import task_of
from instep.scene.tasks.task import Tasked

from .evaluate import print_evaluation
from .train import HELD_OUT

DEMOS, FAILURES = 100_000, 400_000
"""Seeds of the first starts of demonstrations, and of those tried to find failures; policies are evaluated on
others."""


@options_dataclass
class AugmentArgs:
    """Options of `instep lab augment`."""

    demos: int = 30
    """how many demonstrations to collect."""
    tries: Expert[int] = 1000
    """most starts that are tried to find failures."""
    task: str = ""
    """task of the scene; its first where not given."""
    world: Expert[str] = "mujoco"
    """engine to find failures in."""
    eval_worlds: Expert[tuple[str, ...]] = ()
    """worlds to compare the policies in (mujoco rapier perturbed:SEED); that of --world where not given."""
    seeds: int = 200
    """held-out starts of the comparison."""
    views: Options[CameraOptions] = CameraOptions()
    steps: int | None = None
    """steps of training, where they should differ from those of the policy."""
    on: str = ""
    """where the comparison runs: ray, ray://HOST:PORT, processes:N or threads:N."""
    out: Path | None = None
    """folder to write, or to continue; a new one under runs/ where not given."""


def augment(
    policy: PolicyArg,
    scene: SceneArg,
    data: Positional[tuple[Annotated[Path, tyro.conf.arg(metavar="DATA...")], ...]],
    /,
    args: Options[AugmentArgs] = AugmentArgs(),
) -> int:
    """Find states in which a policy fails in simulation, collect expert demonstrations there, retrain and re-evaluate.

    The folder holds demonstrations/ (a LeRobot dataset), policy/ (trained on DATA and them), and a report that
    compares the policies start by start. The same command with the same --out continues an interrupted run. With
    'expert' for the policy, demonstrations are collected from ordinary starts, and nothing is trained.

    Args:
        policy: a folder that instep train wrote, or expert.
        scene: the scene to find failures in.
        data: the datasets that the policy was trained on.

    """
    loaded, console = Scene.load(scene), Console(stderr=True)
    goal = task_of(loaded, args.task)
    views = args.views
    plain = Tasked((CameraOptions() if views.virtual else views).open(args.world, scene), goal)
    add_images = _unchanged
    if views.virtual:
        from instep.splat.rendered_world import load_rendered_cameras

        add_images = load_rendered_cameras(views.virtual, loaded, views.cameras, device=views.device).add_images
    if policy == "expert":
        return _demonstrated(
            new_output("augment", args.out), plain, expert_of(goal, loaded), (args.demos, add_images), console
        )
    tasked = Tasked(views.open(args.world, scene), goal)
    if not data:
        raise BadInput("instep lab augment takes a policy, a scene and the data that the policy was trained on.")
    options, before = trained_with(Path(policy), args.steps, views.device), load_policy(Path(policy), tasked.spec)
    output = new_output("augment", args.out)
    output.kept = f"the demonstrations are kept; the same command with --out {output.folder} goes on from them"
    for source in (Path(policy), *data):
        output.read(source)
    with console.status("find failures, and demonstrate the task there"):
        first = range(FAILURES, FAILURES + args.tries)
        show = partial(
            corrective_demos, tasked, before, expert_of(goal, loaded), first, wanted=args.demos, shown_in=plain
        )
        found = _collected(output.folder, show, add_images)
    console.print(_summary(found, args.demos), highlight=False)
    # Images from files were compressed; a policy that runs gets them as they are rendered.
    episodes = [add_images(episode) for episode in (*_loaded(data), *found.episodes)]
    after = _trained(episodes, output.folder / "policy", options)
    done = _compared(
        output, (policy, str(after)), tasked, (scene, args.eval_worlds or (args.world,), args.seeds, args.on), views
    )
    return _write(output, done, found, console)


def _loaded(data: Sequence[Path]) -> list[Episode]:
    from instep.data import load_episodes

    return [episode for source in data for episode in load_episodes(source)]


def _unchanged(episode: Episode) -> Episode:
    return episode


def _demonstrated(
    output: Output,
    tasked: Tasked[Any],
    expert: Policy,
    wanted: tuple[int, Callable[[Episode], Episode]],
    console: Console,
) -> int:
    """Write successful demonstrations of the expert from ordinary starts."""
    from instep.data import write_dataset

    (count, add_images), kept, tried = wanted, list[Episode](), 0
    images = any(name.startswith("observation.images.") for name in tasked.spec.observation)
    batch = 1 if images else max(2, min(16, count))
    with console.status("demonstrations of the expert"):
        while len(kept) < count and tried < 4 * count + batch:
            kept += demonstrate(tasked, expert, range(DEMOS + tried, DEMOS + tried + batch))
            tried += batch
    if len(kept) < count:
        raise BadInput(f"The expert succeeded from {len(kept)} of {tried} starts only; --demos was {count}.")
    write_dataset([add_images(episode) for episode in kept[:count]], output.folder / "demonstrations")
    output.write({}, demonstrations=count, tried=tried)
    print(output.folder / "demonstrations")
    return 0


def trained_with(policy: Path, steps: int | None, device: str) -> TrainOptions:
    """The options a policy was trained with."""
    note = policy / "training.json"
    if not (policy / "policy.json").is_file():
        raise BadInput(f"{str(policy)!r} is not a policy that instep train wrote; only those can be trained further.")
    table: dict[str, Any] = read_entries(note, {"options": TABLE})["options"]
    given: dict[str, Any] = {name: tuple(value) if is_list(value) else value for name, value in table.items()}
    usual = TrainOptions()
    try:
        options = TrainOptions(**given)
        wrong = [name for name, value in given.items() if not _alike(value, getattr(usual, name))]
        if wrong:
            raise TypeError(f"{wrong[0]} = {shown(given[wrong[0]])}")
    except (ValueError, TypeError) as error:
        raise BadInput(f"{str(note)!r} does not hold the options of the training: {error}.") from None
    return replace(options, steps=steps or options.steps, device=device)


def _alike(value: object, usual: object) -> bool:
    """Whether a value is of the kind of another; what is None else may be anything that JSON holds."""
    if isinstance(usual, float):
        return is_number(value)
    return usual is None or type(value) is type(usual)


def _collected(
    folder: Path, collect: Callable[[], CorrectiveDemos], add_images: Callable[[Episode], Episode]
) -> CorrectiveDemos:
    """The demonstrations of this folder: those of an interrupted run, or new ones."""
    from instep.data import load_episodes, write_dataset

    where, note = folder / "demonstrations", folder / "demonstrations.json"
    if note.is_file() and where.is_dir():
        counts = read_entries(note, {"tried": COUNT, "failed": COUNT})
        return CorrectiveDemos(tuple(load_episodes(where)), counts["tried"], counts["failed"])
    found = collect()
    if not found.episodes:
        raise BadInput(
            f"The policy failed {found.failed} times in {found.tried} starts, and from none of those states the expert "
            "did the task; nothing can be learned. Try more --tries, or another --world."
        )
    found = replace(found, episodes=tuple(add_images(episode) for episode in found.episodes))
    write_dataset(found.episodes, where)
    note.write_text(json.dumps({"tried": found.tried, "failed": found.failed}), encoding="utf-8")
    return found


def _summary(found: CorrectiveDemos, wanted: int) -> str:
    words = f"{found.failed} of {found.tried} starts failed; {len(found.episodes)} demonstrations from there"
    return words + ("." if len(found.episodes) >= wanted else f", fewer than the {wanted} requested.")


def _trained(episodes: Sequence[Episode], folder: Path, options: TrainOptions) -> Path:
    with progress_bar() as progress:
        bar = progress.add_task(f"train on {len(episodes)} episodes", total=options.steps)
        train_policy(episodes, folder, options, progress=lambda now: progress.update(bar, completed=now.step))
    return folder


def _compared(
    output: Output, policies: tuple[str, str], tasked: Tasked[Any], where: tuple[str, Sequence[str], int, str],
    cameras: CameraOptions,
) -> Evaluation:  # fmt: skip
    """Both policies from the same held-out starts, in every world."""
    scene, worlds, seeds, on = where
    mark = content_hash(Scene.load(scene).root) + cameras.hash()
    candidates = [
        PolicySpec(name, partial(policy_from_spec, words), policy_fingerprint(words))
        for name, words in zip(("before", "after"), policies, strict=True)
    ]
    places = [WorldSpec(name, partial(cameras.open, name, scene), f"{mark}/{name}") for name in worlds]
    with open_map(on, gpu=cameras.device == "cuda") as mapped:
        options = EvalOptions(bounds=action_bounds(Scene.load(scene)), folder=output.folder / "episodes")
        starts = range(HELD_OUT, HELD_OUT + seeds)
        return evaluate_policies(candidates, places, tasked.task, starts, options=options, map=mapped)


def _write(output: Output, done: Evaluation, found: CorrectiveDemos, console: Console) -> int:
    pairs = print_evaluation(done, console)
    output.write(
        done.scores(), compared=pairs, tried=found.tried, failed=found.failed, demonstrations=len(found.episodes)
    )
    facts = {"failures found": f"{found.failed} of {found.tried}", "demonstrations": str(len(found.episodes))}
    print(output.page(eval_page(done, facts)))
    return 0
