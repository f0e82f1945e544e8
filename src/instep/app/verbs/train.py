"""The verb train: behaviour cloning, adaptation to a robot's images, fine-tuning, and training in simulation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import tyro

from instep.app.arguments import Expert, ExpertOptions, Options, Positional
from instep.app.output import Output, new_output, progress_bar, say
from instep.app.world_specs import CameraOptions
from instep.core.errors import BadInput
from instep.core.statistics import Estimate, wilson
from instep.core.world import World, options_dataclass
from instep.data.frames import encode_png
from instep.evaluate.episode_batch import run_batch
from instep.lab.policy_search import SearchOptions
from instep.lab.simulation_training import SimulationTraining, train_in_simulation
from instep.policy.flow_policy import load_policy
from instep.policy.policy_inputs import STATE
from instep.policy.training import TrainOptions, TrainProgress
from instep.policy.training import train as train_policy
from instep.scene.folder import Scene
from instep.scene.tasks import task_of
from instep.scene.tasks.task import Tasked
from instep.tune.posterior.beliefs import belief_addresses, parse_belief

from .data import DataArgs, read_at_rate

if TYPE_CHECKING:
    from instep.core.episode import Episode

HELD_OUT = 200_000
"""Seed of the first held-out start; far from those of demonstrations."""
FURTHER_STEPS = 400
"""Default number of steps of adaptations and of fine-tuning."""
Way = Literal["auto", "background", "colour", "translator", "normalize"]


@options_dataclass
class TrainArgs:
    """Options of `instep train`."""

    source: Options[DataArgs] = DataArgs()
    scene: str = ""
    """scene to train in, or to evaluate checkpoints in with --eval-starts."""
    task: str = ""
    """task of the scene; default: its first."""
    world: str = "mujoco"
    """engine to train in, or to evaluate in; perturbed:SEED to evaluate on a simulated robot."""
    eval_starts: Expert[int] = 0
    """number of held-out starts to evaluate each checkpoint from."""
    cameras: tuple[str, ...] = ()
    """cameras that the policy uses, by name."""
    virtual: Expert[Path | None] = None
    """file of virtual cameras (TOML), with --scene: their images are rendered from the states in the data; --cameras
    chooses among them."""
    randomize: tuple[str, ...] = ()
    """in simulation: what is sampled for each world, a belief of instep tune (its folder, or belief.json), a file of
    ranges, or ranges such as action.delay=0..0.08. From data: the appearance of the images of --virtual for each
    episode, 'appearance', 'views', or ranges (appearance.brightness=0.6..1.4)."""
    adr: tuple[str, ...] = ()
    """in simulation: automatic domain randomization, ranges that grow from the scene's value to the given bounds while
    the policy keeps its return at their ends (action.delay=0..0.1)."""
    base: Expert[str] = "expert"
    """in simulation: the policy to correct, as in instep eval. From data: a trained policy to adapt to --adapt-images,
    or to train further on the data."""
    adapt_images: Expert[tuple[str, ...]] = ()
    """adapt --base, without labels, to the images in these recordings of a robot; the data is what it was trained
    on."""
    adapt_by: Expert[Way] = "auto"
    """method of the adaptation."""
    rehearse: Expert[tuple[str, ...]] = ()
    """earlier data that --base is trained on beside the new."""
    without: Expert[tuple[str, ...]] = ()
    """channels that the policy does not use, such as observation.environment_state."""
    frame: tuple[str, ...] = ()
    """observe and act in the frame of a body on a table: the joints that are the x and y of the contact point, and its
    name, such as pusher_x pusher_y tee."""
    steps: int | None = None
    """training steps (6000 from data, 400 with --base), or generations in simulation (20)."""
    device: Expert[str] = "cpu"
    """device of the training: cpu or cuda."""
    batch: Expert[int] = 256
    """examples per step, from data."""
    learning_rate: Expert[float | None] = None
    """largest learning rate (3e-3 from data, 1e-3 with --base)."""
    width: Expert[int] = 256
    """width of the network."""
    horizon: Expert[int] = 16
    """actions of a chunk."""
    execute: Expert[int] = 4
    """actions of a chunk that are executed."""
    threads: Expert[int] = 0
    """threads of the training; 0 takes one without cameras and all with them."""
    search: ExpertOptions[SearchOptions] = SearchOptions()

    @property
    def seed(self) -> int:
        """Seed of the training."""
        return self.search.seed


def train(
    data: Positional[tuple[Annotated[str, tyro.conf.arg(metavar="DATA... POLICY")], ...]],
    /,
    args: Options[TrainArgs] = TrainArgs(),
) -> int:
    """Train a policy from data by behaviour cloning, or in simulation over randomized worlds.

    With data: chunks of actions are learned from observations by flow matching. The same command continues an
    interrupted training. With data and --base: a policy is adapted to the images of a robot, or trained further.
    Without data and with --scene: a correction of the actions of --base is trained in simulated worlds.

    Args:
        data: one or more datasets (LeRobot folders), then the folder of the policy; that folder alone to train in
            simulation.

    """
    if len(data) == 1 and args.scene:
        return _in_simulation(Path(data[0]), args)
    if len(data) < 2:
        raise BadInput(
            "instep train takes one or more datasets and then the folder of the policy, or the folder alone with "
            "--scene, to train in simulation."
        )
    if args.adr:
        raise BadInput("--adr is for training in simulation: give the folder of the policy alone, and --scene.")
    *sources, folder = data
    if args.base != "expert":
        return _from_policy(sources, Path(folder), args)
    if args.adapt_images or args.rehearse:
        raise BadInput("--adapt-images and --rehearse need --base, the folder of the policy.")
    return _clone(sources, Path(folder), args)


def _in_simulation(folder: Path, args: TrainArgs) -> int:
    """Train a correction of a policy, and write the policy, its weights and the ranges of ADR."""
    search = replace(args.search, generations=args.steps or args.search.generations)
    job = SimulationTraining(args.scene, args.task, args.world, args.base, args.randomize, args.adr, search)
    output = new_output("train", folder, seed=args.seed)
    with progress_bar() as progress:
        bar = progress.add_task(f"train on top of {args.base}", total=job.generations)

        def watch(generation: int, value: float) -> None:
            progress.update(bar, advance=1, description=f"mean return {value:.3f}")

        done = train_in_simulation(job, output.folder, watch)
    output.read(done.scene)
    result = done.result
    say(f"mean return {result.before} before, {result.after} after {result.episodes} episodes")
    output.write(
        {"return before": result.before, "return after": result.after}, weights=done.weights,
        history=list(result.history), episodes=result.episodes, processor_seconds=result.seconds,
    )  # fmt: skip
    print(output.folder)
    return 0


def _clone(sources: Sequence[str], folder: Path, args: TrainArgs) -> int:
    """Clone behaviour from data, with an evaluation of each checkpoint."""
    if args.eval_starts and not args.scene:
        raise BadInput("--eval-starts needs --scene, the scene in which checkpoints are evaluated.")
    if len(args.frame) not in (0, 3):
        raise BadInput(f"--frame takes two joints and a body, not {len(args.frame)} words.")
    output = new_output("train", folder, seed=args.seed)
    episodes, cameras = _read(sources, args, output)
    usual = _train_options(args)
    options = replace(
        usual,
        cameras=cameras,
        channels=tuple(name for name in STATE if name not in args.without),
        checkpoint_every=max(1, min(2000, usual.steps)),
        frame=(args.frame[0], args.frame[1], args.frame[2]) if args.frame else None,
    )
    world = partial(CameraOptions(args.virtual, cameras, device=_device(args)).open, args.world, args.scene)
    evaluate = partial(_success, args=args, world=world) if args.eval_starts else None
    reports: list[TrainProgress] = []
    with progress_bar() as progress:
        bar = progress.add_task(f"{len(episodes)} episodes", total=options.steps)

        def show(now: TrainProgress) -> None:
            reports.append(now)
            output.kept = f"the policy of step {now.step} is kept in {output.folder}"
            success = "" if now.success is None else f", success {100 * now.success:.0f} %"
            progress.print(f"step {now.step}: loss {now.loss:.4f}{success}, {now.seconds:.0f} s", highlight=False)
            progress.update(bar, completed=now.step)

        train_policy(episodes, output.folder, options, evaluate=evaluate, progress=show)
    scores: dict[str, Estimate] = {}
    if reports and (rate := reports[-1].success) is not None:
        scores["success on held-out starts"] = wilson(round(rate * args.eval_starts), args.eval_starts)
    output.write(scores, curve=[asdict(report) for report in reports])
    print(output.folder)
    return 0


def _train_options(args: TrainArgs, steps: int = 6000, rate: float = 3e-3) -> TrainOptions:
    """The options of a training from data, with the usual number of steps and learning rate."""
    return TrainOptions(
        steps=args.steps or steps, batch=args.batch, learning_rate=args.learning_rate or rate, width=args.width,
        horizon=args.horizon, execute=args.execute, threads=args.threads, device=args.device, seed=args.seed,
    )  # fmt: skip


def _device(args: TrainArgs) -> Literal["cpu", "cuda"]:
    return "cuda" if args.device.startswith("cuda") else "cpu"


def _read(sources: Sequence[str], args: TrainArgs, output: Output) -> tuple[list[Episode], tuple[str, ...]]:
    """The episodes of datasets, with the images of --virtual where it is given, and the cameras of the policy."""
    episodes: list[Episode] = []
    for source in sources:
        output.read(Path(source))
        episodes += list(read_at_rate(source, args.source))
    if args.virtual is None:
        if args.randomize:
            raise BadInput("--randomize needs --virtual: the appearance of recorded images stays as it is.")
        return episodes, args.cameras
    if not args.scene:
        raise BadInput("--virtual needs --scene, the scene that virtual cameras see.")
    from instep.splat.rendered_world import Sensor, load_rendered_cameras, randomized_views

    cameras = load_rendered_cameras(args.virtual, Scene.load(args.scene), args.cameras, device=_device(args))
    chosen, belief = tuple(camera.name for camera in cameras.cameras), parse_belief(args.randomize, cameras.scene)
    if belief is None:
        return [cameras.add_images(episode) for episode in episodes], chosen
    names = belief_addresses(belief)
    for name in names:
        if not name.startswith(("appearance.", "view.")):
            raise BadInput(f"Training from data randomizes the appearance of images and views only, not {name!r}.")
    rng, views = np.random.default_rng((args.seed, 0xA99)), any(name.startswith("view.") for name in names)
    shown: list[Episode] = []
    for i, episode in enumerate(episodes):
        amounts = belief.sample(1, rng)
        seen = randomized_views(cameras, amounts, args.seed + i) if views else cameras
        shown.append(seen.add_images(episode, Sensor().adjusted(amounts), i))
    return shown, chosen


def _success(folder: Path, args: TrainArgs, world: Callable[[], World]) -> float:
    """The success rate of the policy in a folder from held-out starts."""
    tasked = Tasked(world(), task_of(Scene.load(args.scene), args.task))
    seeds = range(HELD_OUT, HELD_OUT + args.eval_starts)
    ended = run_batch(tasked, load_policy(folder, tasked.spec), seeds).episodes
    return sum(row.success for row in ended) / args.eval_starts


def _from_policy(sources: Sequence[str], folder: Path, args: TrainArgs) -> int:
    """Adapt a policy to the images of a robot, or train it further."""
    base, robot = Path(args.base), replace(args, virtual=None, randomize=())
    if args.adapt_images and args.rehearse:
        raise BadInput("--rehearse is for training --base further; --adapt-images needs the data alone.")
    output = new_output("train", folder, seed=args.seed)
    output.read(base)
    if not (base / "policy.json").is_file():
        raise BadInput(f"{str(base)!r} is not a policy that instep train wrote; --base takes the folder of one.")
    if output.folder.resolve() == base.resolve():
        raise BadInput("The policy cannot be written over the one of --base; give another folder.")
    if args.adapt_images:
        rendered, real = _read(sources, args, output)[0], _read(args.adapt_images, robot, output)[0]
        _adapt(base, rendered, real, args, output)
    else:
        # The new data is of the robot, with images of its own; --virtual renders those of the earlier data.
        new, earlier = _read(sources, robot, output)[0], _read(args.rehearse, args, output)[0]
        _train_further(base, new, earlier, args, output)
    print(output.folder)
    return 0


def _train_further(
    base: Path, new: Sequence[Episode], earlier: Sequence[Episode], args: TrainArgs, output: Output
) -> None:
    """Train a policy further on new demonstrations, beside earlier ones."""
    from instep.policy.training import fine_tune

    options = _train_options(args, FURTHER_STEPS, 1e-3)
    with progress_bar() as progress:
        bar = progress.add_task(f"{len(new)} episodes", total=options.steps)

        def show(step: int, loss: float) -> None:
            progress.print(f"step {step}: loss {loss:.4f}", highlight=False)
            progress.update(bar, completed=step)

        fine_tune(base, new, earlier, output.folder, options, progress=show)
    output.write({}, episodes=len(new), earlier=len(earlier))


def _adapt(base: Path, rendered: Sequence[Episode], real: Sequence[Episode], args: TrainArgs, output: Output) -> None:
    """Adapt a policy to the images of a robot, and write a sheet of them before and after."""
    from instep.core.imports import optional_library
    from instep.policy.image_adaptation import adaptation_sheet, feature_distance
    from instep.policy.training import AdaptOptions, adapt_policy

    optional_library("torch", "learn")
    from instep.lab.image_baselines import adapt_by_baseline
    from instep.policy.networks import encoder_features

    options = AdaptOptions(by=args.adapt_by, steps=args.steps or FURTHER_STEPS, seed=args.seed)
    adapt = adapt_by_baseline if args.adapt_by in ("translator", "normalize") else adapt_policy
    done = adapt(base, rendered, real, output.folder, options)
    distances: dict[str, list[float]] = {}
    for camera, images in done.images.items():
        adapted, count = done.adapted[camera], min(4, len(images.real), len(images.rendered))
        pick = np.linspace(0, len(images.real) - 1, count).round().astype(int)
        # The rows of the sheet: images of the robot, after each method, as adapted, and rendered.
        sheet = adaptation_sheet(np.concatenate([images.real[pick], images.real]), images.rendered, count=count)
        height = images.real.shape[1]
        rows = [sheet[:-height], np.concatenate(list(adapted[pick]), axis=1), sheet[-height:]]
        path = output.folder / f"adaptation_{camera}.png"
        path.write_bytes(encode_png(np.concatenate(rows)))
        wanted = encoder_features(images.rendered)
        before, after = (feature_distance(encoder_features(some), wanted) for some in (images.real, adapted))
        distances[camera] = [before, after]
        say(f"{camera}: distance of features from rendered images {before:.3g} before, {after:.3g} after; {path}")
    output.write({}, adapted=args.adapt_by, distances=distances)
