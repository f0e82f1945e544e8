"""Published baselines of adaptation to a robot's images without labels, from folder to folder.

translator   two small convolutional networks, one each way, and a judge of patches for each kind of images
(least-squares GAN, Goodfellow 2014, Mao 2017): an image translated there and back is itself again
(CycleGAN, Zhu 2017). The networks start as the plain change of colours.
normalize    mean and spread of every channel of every layer of the image networks become those of rendered images
(AdaBN, Li 2016); nothing is trained
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from instep.core.episode import Episode
from instep.core.errors import UnknownName
from instep.core.world import Array
from instep.policy.image_adaptation import ColourAdapter, fit_adapter
from instep.policy.networks import EncoderNet, PixelTranslator, PoseNet, TranslatorNet, load_weights, pixel_places
from instep.policy.policy_inputs import PolicyDescription
from instep.policy.training import AdaptOptions, PolicyAdaptation, open_adaptation, save_adapted

BASELINES = ("translator", "normalize")
PATCH, BATCH = 32, 12
"""Side of the training patches [pixels], and patches per step."""
CYCLE, KEEP = 8.0, 2.0
"""Weights of the cycle and of staying near the plain change of colours, relative to the judges."""
RATE = 2e-3
"""Learning rate."""
LEAST_SPREAD = 1e-3
"""Smallest spread of a channel."""


def adapt_by_baseline(
    folder: Path, rendered: Sequence[Episode], real: Sequence[Episode], out: Path, options: AdaptOptions
) -> PolicyAdaptation:
    """Adapt the policy in a folder to the images of a robot's recordings by a baseline, and write it to `out`."""
    if options.by not in BASELINES:
        raise UnknownName("adaptation", options.by, BASELINES)
    description, tensors, images = open_adaptation(folder, rendered, real)
    adapters: dict[str, PixelTranslator] = {}
    if options.by == "translator":
        for camera, own in images.items():
            adapters[camera] = fit_translators(own.real, own.rendered, steps=options.steps, seed=options.seed)[0]
    else:
        pairs = {camera: (own.rendered, own.real) for camera, own in images.items()}
        tensors = normalize_networks(description, tensors, pairs)
    return save_adapted(out, description, tensors, images, adapters, options.by)


def normalize_networks(
    description: PolicyDescription, tensors: Mapping[str, Array], images: Mapping[str, tuple[Array, Array]]
) -> dict[str, Array]:
    """The weights of a policy with normalized image networks; `images` are rendered ones and the robot's, by camera.

    Images are uint8 [n, size, size, 3], of the size that the policy uses, and unpaired.
    """
    cameras = len(description.inputs.cameras)
    part, nets = "encoder", EncoderNet(cameras)
    if description.inputs.estimated_body:
        part, nets = "pose", PoseNet(cameras, len(tensors["scale.joint_mean"]))
    load_weights(nets, part, tensors)
    for camera, net in zip(description.inputs.cameras, nets.nets, strict=True):
        rendered, real = (torch.from_numpy(np.ascontiguousarray(some)) for some in images[camera])
        _normalize(net, rendered, real)
    own = {f"{part}.{name}": value.detach().numpy().copy() for name, value in nets.state_dict().items()}
    return {**tensors, **own}


def _normalize(net: Any, rendered: torch.Tensor, real: torch.Tensor) -> None:
    """Give each channel behind every normalisation the statistics it has for rendered images, layer by layer."""
    with torch.no_grad():
        x, y = (images.permute(0, 3, 1, 2).float() / 127.5 - 1 for images in (rendered, real))
        for layer in net.conv:
            x, y = layer(x), layer(y)
            if isinstance(layer, nn.GroupNorm):
                (wanted, size), (given, spread) = ((v.mean((0, 2, 3)), v.std((0, 2, 3))) for v in (x, y))
                factor = size / spread.clamp_min(LEAST_SPREAD)
                offset = wanted - factor * given
                layer.weight.copy_(layer.weight * factor)
                layer.bias.copy_(layer.bias * factor + offset)
                y = y * factor[:, None, None] + offset[:, None, None]


def fit_translators(
    given: Array, wanted: Array, *, steps: int = 400, seed: int = 0
) -> tuple[PixelTranslator, PixelTranslator]:
    """Translators of given images to wanted ones, and back; both uint8 [n, height, width, 3], unpaired."""
    changes = [fit_adapter("colour", *pair) for pair in ((given, wanted), (wanted, given))]
    changes = [change for change in changes if isinstance(change, ColourAdapter)]
    kinds = [
        np.stack([images, change(images)], axis=1) for images, change in zip((given, wanted), changes, strict=True)
    ]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        nets = [TranslatorNet() for _ in range(2)]
        # Each scores every neighbourhood of 15 x 15 for its kind of images.
        judges = [
            nn.Sequential(
                nn.Conv2d(5, 16, 3, stride=2, padding=1), nn.LeakyReLU(0.2), nn.Conv2d(16, 24, 3, stride=2, padding=1),
                nn.LeakyReLU(0.2), nn.Conv2d(24, 1, 3, padding=1),
            )
            for _ in range(2)
        ]  # fmt: skip
    makers = torch.optim.Adam([p for net in nets for p in net.parameters()], lr=RATE, betas=(0.5, 0.99))
    critics = torch.optim.Adam([p for judge in judges for p in judge.parameters()], lr=RATE, betas=(0.5, 0.99))
    rng = np.random.default_rng((seed, 0x7A5))
    for _ in range(steps):
        patches = [_patches(images, rng) for images in kinds]
        loss, verdicts = torch.zeros(()), torch.zeros(())
        for own, (raw, plain, place) in enumerate(patches):
            other, (true, _, its_place) = 1 - own, patches[1 - own]
            made = nets[own](plain, place)
            again = nets[other](_recoloured(changes[other], made), place)
            loss = loss + CYCLE * (again - raw).abs().mean() + KEEP * (made - plain).abs().mean()
            loss = loss + ((judges[own](torch.cat([made, place], 1)) - 1) ** 2).mean()
            verdicts = verdicts + ((judges[own](torch.cat([true, its_place], 1)) - 1) ** 2).mean()
            verdicts = verdicts + (judges[own](torch.cat([made.detach(), place], 1)) ** 2).mean()
        for optimizer, value in ((makers, loss), (critics, verdicts)):
            optimizer.zero_grad(set_to_none=True)
            parts = [p for group in optimizer.param_groups for p in group["params"]]
            for part, gradient in zip(parts, torch.autograd.grad(value, parts), strict=True):
                part.grad = gradient
            optimizer.step()
    weights = [{name: value.numpy().copy() for name, value in net.state_dict().items()} for net in nets]
    return PixelTranslator(changes[0], weights[0]), PixelTranslator(changes[1], weights[1])


def _recoloured(adapter: ColourAdapter, x: torch.Tensor) -> torch.Tensor:
    """The plain change of colours of images [n, 3, height, width], with gradients."""
    shift, mix, offset = (
        torch.from_numpy(np.asarray(part, np.float32)) for part in (adapter.shift, adapter.mix, adapter.offset)
    )
    return ((x.permute(0, 2, 3, 1) - shift) @ mix + offset).permute(0, 3, 1, 2)


def _patches(images: Array, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random patches of images [n, 2, height, width, 3]: as they are, recoloured, and their places."""
    height, width = images.shape[2:4]
    side = min(PATCH, height, width)
    which = rng.integers(0, len(images), BATCH)
    top, left = (rng.integers(0, size - side + 1, BATCH) for size in (height, width))
    cut = np.stack([images[k, :, y : y + side, x : x + side] for k, y, x in zip(which, top, left, strict=True)])
    whole = pixel_places(height, width)[0]
    place = torch.stack([whole[:, y : y + side, x : x + side] for y, x in zip(top, left, strict=True)])
    raw, plain = (torch.from_numpy(np.ascontiguousarray(cut[:, k])).permute(0, 3, 1, 2).float() / 255 for k in (0, 1))
    return raw, plain, place
