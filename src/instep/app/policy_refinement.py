"""What instep train does with a policy and data: adapt it to a robot's images, or train it further."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.data.frames import encode_png
from instep.policy.flow_policy import read_policy
from instep.policy.image_adaptation import adaptation_sheet, feature_distance
from instep.policy.policy_adaptation import AdaptOptions, CameraImages, adapt_policy, fine_tune
from instep.policy.training import TrainOptions

from .output import Output, progress_bar

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
