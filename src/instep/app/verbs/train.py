"""What instep train does with a policy and data: adapt it to a robot's images, or train it further.

The verb train: clone behaviour from a dataset, or train a residual policy in simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import tyro
from rich.console import Console

from instep.app.arguments import Options, Positional
from instep.app.data_args import DataArgs, read_at_rate
from instep.app.output import Output, new_output, progress_bar
from instep.app.simulation_training import SimulationTraining, train_in_simulation
from instep.app.world_specs import CameraOptions
from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.statistics import Estimate, wilson
from instep.core.world import World, options_dataclass
from instep.data.frames import encode_png
from instep.lab.policy_search import SearchBudget, SearchOptions
from instep.policy.flow_policy import STATE, read_policy
from instep.policy.image_adaptation import adaptation_sheet, feature_distance
from instep.policy.policy_adaptation import AdaptOptions, CameraImages, adapt_policy, fine_tune
from instep.policy.training import CloningOptions, TrainOptions, TrainProgress
from instep.policy.training import train as train_policy

if TYPE_CHECKING:
    from instep.splat.rendered_world import RenderedCameras


SHEET = "adaptation_{}.png"
"""Name of the sheet of a camera: images of the robot, after each way of adapting them, as adapted, and rendered."""


def adapt_to_images(
    base: Path, rendered: Sequence[Episode], real: Sequence[Episode], options: AdaptOptions, output: Output
) -> int:
    """Adapt a policy to the images of a robot, and write a sheet of them before and after."""
    from instep.policy.networks import encoder_features

    _check(base, output)
    console = Console(stderr=True)
    with console.status(f"adapt to {len(real)} recordings by {options.adapt_by}"):
        found = adapt_policy(base, rendered, real, output.folder, options, seed=output.seed)
        distances: dict[str, list[float]] = {}
        for camera, images in found.images.items():
            (output.folder / SHEET.format(camera)).write_bytes(encode_png(_sheet(images, found.adapted[camera])))
            wanted = encoder_features(images.rendered)
            kinds = (images.real, found.adapted[camera])
            distances[camera] = [feature_distance(encoder_features(some), wanted) for some in kinds]
    for camera, (before, after) in distances.items():
        words = f"{camera}: distance of features from rendered images {before:.3g} before, {after:.3g} after"
        console.print(f"{words}; {output.folder / SHEET.format(camera)}", highlight=False)
    output.write({}, adapted=options.adapt_by, distances=distances)
    print(output.folder)
    return 0


def _sheet(images: CameraImages, adapted: np.ndarray) -> np.ndarray:
    count = min(4, len(images.real), len(images.rendered))
    pick = np.linspace(0, len(images.real) - 1, count).round().astype(int)
    shown = np.concatenate([images.real[pick], images.real])
    sheet = adaptation_sheet(shown, images.rendered, count=count)
    final = np.concatenate(list(adapted[pick]), axis=1)
    height = images.real.shape[1]
    return np.concatenate([sheet[:-height], final, sheet[-height:]])


def train_further(
    base: Path, new: Sequence[Episode], earlier: Sequence[Episode], options: TrainOptions, output: Output
) -> int:
    """Train a policy further on new demonstrations, beside earlier ones."""
    _check(base, output)
    with progress_bar() as progress:
        bar = progress.add_task(f"{len(new)} episodes", total=options.steps)

        def show(step: int, loss: float) -> None:
            progress.print(f"step {step}: loss {loss:.4f}", highlight=False)
            progress.update(bar, completed=step)

        fine_tune(base, new, earlier, output.folder, options, progress=show)
    output.write({}, episodes=len(new), earlier=len(earlier))
    print(output.folder)
    return 0


def _check(base: Path, output: Output) -> None:
    if not (base / "policy.json").is_file():
        raise BadInput(f"{str(base)!r} is not a policy that instep train wrote; --base takes the folder of one.")
    if output.folder.resolve() == base.resolve():
        raise BadInput("The policy cannot be written over the one of --base; give another folder.")
    read_policy(base)


HELD_OUT = 200_000
"""Seed of the first held-out start; far from those of demonstrations."""


@options_dataclass
class TrainArgs:
    """Options of `instep train`."""

    source: Options[DataArgs] = DataArgs()
    scene: str = ""
    """scene to evaluate checkpoints in, with --eval-starts."""
    task: str = ""
    """task of the scene; its first where not given."""
    world: str = "mujoco"
    """engine to evaluate in, or perturbed:SEED; engine to train in, in simulation."""
    eval_starts: int = 0
    """evaluate each checkpoint from so many held-out starts."""
    cameras: tuple[str, ...] = ()
    """cameras that the policy uses, by name."""
    virtual: Path | None = None
    """a file of virtual cameras (TOML), with --scene: their images are rendered from the states in the data, so that
    any recording of joints and poses will do; --cameras chooses among them."""
    randomize: tuple[str, ...] = ()
    """in simulation: what is sampled for each world, a belief that instep tune saved (its folder, or belief.json), a
    file of ranges ({"joint.*.damping": [0.3, 1.2]}) or ranges such as action.delay=0..0.08. From data: the appearance
    of the images of --virtual, sampled for each episode, 'appearance' for the usual ranges of light, colour and sensor
    noise, 'views' for place, direction, lens of cameras and texture, or ranges (appearance.brightness=0.6..1.4)."""
    adr: tuple[str, ...] = ()
    """in simulation: automatic domain randomization, ranges that begin at the scene's value and grow between the given
    bounds while the policy keeps its return at their ends (action.delay=0..0.1)."""
    base: str = "expert"
    """in simulation: the policy whose actions are corrected, as in instep eval; that of an earlier training in
    simulation is trained further. From data: a policy that instep train wrote, which is adapted to the images of
    --adapt-images, or else trained further on the data, the convolutions of image networks last."""
    adapt_images: tuple[str, ...] = ()
    """adapt --base, without labels, to the images in these recordings of a robot; the data is what it was trained
    on. The adapters become part of the policy."""
    adaptation: Options[AdaptOptions] = AdaptOptions()
    rehearse: tuple[str, ...] = ()
    """earlier data that --base is trained on beside the new, so that it does not forget it."""
    search: Options[SearchBudget] = SearchBudget()
    without: tuple[str, ...] = ()
    """channels that the policy does not use, such as observation.environment_state."""
    frame: tuple[str, ...] = ()
    """observe and act in the frame of a body on a table: the joints that are the x and y of the contact point, and its
    name, such as pusher_x pusher_y tee. With --cameras and --without observation.environment_state a pose estimator
    is learned from the poses in the data."""
    cloning: Options[CloningOptions] = CloningOptions()


def train(
    data: Positional[tuple[Annotated[str, tyro.conf.arg(metavar="DATA... POLICY")], ...]],
    /,
    args: Options[TrainArgs] = TrainArgs(),
) -> int:
    """Train a policy from data by behaviour cloning, or in simulation over randomized worlds.

    With data: chunks of actions are learned from observations by flow matching, with small networks for two cores. The
    policy is written as weights (safetensors) and a description (JSON), at checkpoints and at the end; the same command
    continues an interrupted training. Policies without cameras run without torch. Without data and with --scene: a
    small correction of the actions of --base is trained in simulated worlds, sampled by --randomize or --adr. With
    data and --base, the folder of a policy: it is adapted to the images of a robot, or trained further.

    Args:
        data: one or more datasets (LeRobot folders), then the folder of the policy; that folder alone to train in
            simulation.

    """
    if len(data) == 1 and args.scene:
        search = SearchOptions(**asdict(args.search), seed=args.cloning.seed)
        job = SimulationTraining(args.scene, args.task, args.world, args.base, args.randomize, args.adr, search)
        return train_in_simulation(new_output("train", Path(data[0]), seed=search.seed), job)
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
    if args.eval_starts and not args.scene:
        raise BadInput("--eval-starts needs --scene, the scene in which checkpoints are evaluated.")
    if len(args.frame) not in (0, 3):
        raise BadInput(f"--frame takes two joints and a body, not {len(args.frame)} words.")
    output = new_output("train", Path(folder), seed=args.cloning.seed)
    episodes, cameras = _read(sources, args, output)
    args, device = replace(args, cameras=cameras), _device(args)
    views = CameraOptions(args.virtual, args.cameras, device=device)
    options = TrainOptions(
        **asdict(args.cloning),
        cameras=args.cameras,
        channels=tuple(name for name in STATE if name not in args.without),
        checkpoint_every=max(1, min(2000, args.cloning.steps)),
        frame=(args.frame[0], args.frame[1], args.frame[2]) if args.frame else None,
    )
    reports: list[TrainProgress] = []
    with progress_bar() as progress:
        bar = progress.add_task(f"{len(episodes)} episodes", total=args.cloning.steps)

        def show(now: TrainProgress) -> None:
            reports.append(now)
            output.kept = f"the policy of step {now.step} is kept in {output.folder}"
            success = "" if now.success is None else f", success {100 * now.success:.0f} %"
            progress.print(f"step {now.step}: loss {now.loss:.4f}{success}, {now.seconds:.0f} s", highlight=False)
            progress.update(bar, completed=now.step)

        def evaluate(where: Path) -> float:
            return _success(where, args.scene, args.task, partial(views.open, args.world, args.scene), args.eval_starts)

        train_policy(episodes, output.folder, options, evaluate=evaluate if args.eval_starts else None, progress=show)
    _write(output, reports, args.eval_starts)
    print(output.folder)
    return 0


def _device(args: TrainArgs) -> Literal["cpu", "cuda"]:
    return "cuda" if args.cloning.device.startswith("cuda") else "cpu"


def _read(sources: Sequence[str], args: TrainArgs, output: Output) -> tuple[list[Episode], tuple[str, ...]]:
    """The episodes of datasets, with the images of --virtual where it is given, and the cameras of the policy."""
    from instep.scene.folder import Scene

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
    from instep.splat.rendered_world import load_rendered_cameras

    rendered = load_rendered_cameras(args.virtual, Scene.load(args.scene), args.cameras, device=_device(args))
    names = tuple(camera.name for camera in rendered.cameras)
    return _rendered(episodes, rendered, args.randomize, args.cloning.seed), names


def _from_policy(sources: Sequence[str], folder: Path, args: TrainArgs) -> int:
    """Adapt a policy to the images of a robot, or train it further."""
    output = new_output("train", folder, seed=args.cloning.seed)
    output.read(Path(args.base))
    base, robot = Path(args.base), replace(args, virtual=None, randomize=())
    if args.adapt_images and args.rehearse:
        raise BadInput("--rehearse is for training --base further; --adapt-images needs the data alone.")
    if args.adapt_images:
        rendered, real = _read(sources, args, output)[0], _read(args.adapt_images, robot, output)[0]
        return adapt_to_images(base, rendered, real, args.adaptation, output)
    # The new data is of the robot, with images of its own; --virtual renders those of the earlier data.
    new, earlier = _read(sources, robot, output)[0], _read(args.rehearse, args, output)[0]
    return train_further(base, new, earlier, TrainOptions(**asdict(args.cloning)), output)


def _rendered(
    episodes: Sequence[Episode], cameras: RenderedCameras, randomize: tuple[str, ...], seed: int
) -> list[Episode]:
    """The episodes with rendered images, each in a sampled appearance."""
    import numpy as np

    from instep.splat.rendered_world import Sensor, randomized_views
    from instep.tune.posterior.beliefs import belief_addresses, parse_belief

    belief = parse_belief(randomize, cameras.scene)
    if belief is None:
        return [cameras.add_images(episode) for episode in episodes]
    names = belief_addresses(belief)
    for name in names:
        if not name.startswith(("appearance.", "view.")):
            raise BadInput(f"Training from data randomizes the appearance of images and views only, not {name!r}.")
    rng = np.random.default_rng((seed, 0xA99))
    sampled = [belief.sample(1, rng) for _ in episodes]
    views = any(name.startswith("view.") for name in names)
    return [
        (randomized_views(cameras, amounts, seed + i) if views else cameras).add_images(
            episode, Sensor().adjusted(amounts), i
        )
        for i, (episode, amounts) in enumerate(zip(episodes, sampled, strict=True))
    ]


def _success(folder: Path, scene: str, task: str, world: Callable[[], World], count: int) -> float:
    """The success rate of the policy in a folder from held-out starts."""
    from instep.evaluate.episode_batch import run_batch
    from instep.policy.flow_policy import load_policy
    from instep.scene.folder import Scene
    from instep.scene.tasks import task_of
    from instep.scene.tasks.task import Tasked

    tasked = Tasked(world(), task_of(Scene.load(scene), task))
    ended = run_batch(tasked, load_policy(folder, tasked.spec), range(HELD_OUT, HELD_OUT + count)).episodes
    return sum(row.success for row in ended) / count


def _write(output: Output, reports: list[TrainProgress], starts: int) -> None:
    scores: dict[str, Estimate] = {}
    if reports and (rate := reports[-1].success) is not None:
        scores["success on held-out starts"] = wilson(round(rate * starts), starts)
    curve = [{"step": r.step, "loss": r.loss, "seconds": r.seconds, "success": r.success} for r in reports]
    output.write(scores, curve=curve)
