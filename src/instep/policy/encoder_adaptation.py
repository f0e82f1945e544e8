"""Adaptation of the image networks of a trained policy to a robot's images, without labels.

    normalize     the mean and spread of every channel of every layer become those of rendered images (test-time
                  normalization, as AdaBN, Li 2016): no training at all
    coral         the network is trained to keep the features that rendered images gave, in other light, texture and
                  noise too, while the covariance of features of the robot's images is drawn to theirs (Deep CORAL,
                  Sun 2016)
    adversarial   the same with a judge that tells features of both kinds apart, and whose gradient is reversed
                  (Ganin 2016)

What was learned from labels is kept by keeping the features of rendered images, so that neither actions nor poses are
needed, and the rest of the policy stays as it is. What comes out is a set of weights like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from instep.core.world import Array, options_dataclass

from .flow_policy import PolicyDescription
from .networks import EncoderNet, PoseNet, load_weights

Alignment = Literal["normalize", "coral", "adversarial"]
ALIGNMENTS: tuple[Alignment, ...] = ("normalize", "coral", "adversarial")
BATCH = 32
"""Images of each kind per step."""
LIGHT, GREY = 0.15, 8.0
"""Random changes of brightness, colours and texture of images that the network is trained on, as a share, and the
largest noise [grey levels]: none of them may change its features."""
LIMIT = 1e-3
"""Least spread of a feature."""


@options_dataclass
class EncoderOptions:
    """How image networks are adapted."""

    steps: int = 400
    """Steps of training."""
    learning_rate: float = 1e-3
    weight: float = 0.02
    """Weight of the alignment, beside that of the features that are kept."""
    seed: int = 0


def adapt_networks(
    description: PolicyDescription,
    tensors: Mapping[str, Array],
    kind: Alignment,
    images: Mapping[str, tuple[Array, Array]],
    options: EncoderOptions | None = None,
) -> dict[str, Array]:
    """The weights of a policy with image networks adapted; `images` are rendered ones and the robot's, by camera.

    Images are uint8 [n, size, size, 3], of the size that the policy uses, and unpaired.
    """
    part, nets = _networks(description, tensors)
    for camera, net in zip(description.inputs.cameras, nets.nets, strict=True):
        rendered, real = (torch.from_numpy(np.ascontiguousarray(some)) for some in images[camera])
        if kind == "normalize":
            _normalize(net, rendered, real)
        else:
            _train(net, kind, (rendered, real), options or EncoderOptions())
    own = {f"{part}.{name}": value.detach().numpy().copy() for name, value in nets.state_dict().items()}
    return {**tensors, **own}


def _networks(description: PolicyDescription, tensors: Mapping[str, Array]) -> tuple[str, Any]:
    """The image networks of a policy, and the name of that part of its weights."""
    cameras = len(description.inputs.cameras)
    if description.inputs.estimated_body:
        part, nets = "pose", PoseNet(cameras, len(tensors["scale.joint_mean"]))
    else:
        part, nets = "encoder", EncoderNet(cameras)
    load_weights(nets, part, tensors)
    return part, nets


def _normalize(net: Any, rendered: torch.Tensor, real: torch.Tensor) -> None:
    """Give each channel behind every normalisation the statistics it has for rendered images, layer by layer."""
    with torch.no_grad():
        x, y = (_normalized(images) for images in (rendered, real))
        for layer in net.conv:
            x, y = layer(x), layer(y)
            if isinstance(layer, nn.GroupNorm):
                (wanted, size), (given, spread) = ((v.mean((0, 2, 3)), v.std((0, 2, 3))) for v in (x, y))
                factor = size / spread.clamp_min(LIMIT)
                offset = wanted - factor * given
                layer.weight.copy_(layer.weight * factor)
                layer.bias.copy_(layer.bias * factor + offset)
                y = y * factor[:, None, None] + offset[:, None, None]


def _train(net: nn.Module, kind: Alignment, images: Sequence[torch.Tensor], options: EncoderOptions) -> None:
    """Train a network to keep its features while those of a robot's images are drawn to them."""
    rendered, real = images
    generator = torch.Generator().manual_seed(options.seed)
    with torch.no_grad():
        kept = torch.cat([net(_normalized(part)) for part in rendered.split(64)])
    centre, size = kept.mean(0), kept.std(0).clamp_min(LIMIT)
    with torch.random.fork_rng():
        torch.manual_seed(options.seed)
        judge = nn.Sequential(nn.Linear(kept.shape[1], 64), nn.SiLU(), nn.Linear(64, 1))
    parts = [*net.parameters(), *(judge.parameters() if kind == "adversarial" else ())]
    optimizer = torch.optim.AdamW(parts, lr=options.learning_rate, weight_decay=1e-5)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
    net.train()
    for step in range(options.steps):
        rows, others = (torch.randint(len(some), (BATCH,), generator=generator) for some in (rendered, real))
        features = (net(varied(_normalized(rendered[rows]), generator)) - centre) / size
        loss = ((features - (kept[rows] - centre) / size) ** 2).clamp_max(9.0).mean()
        theirs = (net(varied(_normalized(real[others]), generator)) - centre) / size
        if kind == "coral":
            # Distance of means and covariances of features [n, k].
            wanted = features.detach()
            means = (theirs.mean(0) - wanted.mean(0)) ** 2
            apart = means.mean() + ((torch.cov(theirs.T) - torch.cov(wanted.T)) ** 2).mean()
        else:
            apart = _confusion(judge, features, theirs, step / options.steps)
        optimizer.zero_grad(set_to_none=True)
        (loss + options.weight * apart).backward()
        nn.utils.clip_grad_norm_(parts, 1.0)
        optimizer.step()
        schedule.step()
    net.eval()


def varied(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Images [n, 3, height, width] from -1 to 1 in another light, with another texture and noise, at random."""
    n, _, height, width = x.shape
    light = 1 + LIGHT * torch.randn((n, 3, 1, 1), generator=generator)
    coarse = torch.randn((n, 3, height // 6, width // 6), generator=generator)
    texture = nn.functional.interpolate(coarse, (height, width), mode="bilinear", align_corners=False)
    amount = 2 * LIGHT * torch.rand((n, 1, 1, 1), generator=generator)
    noise = GREY / 127.5 * torch.rand((n, 1, 1, 1), generator=generator) * torch.randn(x.shape, generator=generator)
    return ((x + 1) * light * (1 + amount * texture) - 1 + noise).clamp(-1, 1)


def _confusion(judge: nn.Module, ours: torch.Tensor, theirs: torch.Tensor, progress: float) -> torch.Tensor:
    """How well a judge tells features apart; its gradient reaches the network reversed, ever more strongly."""
    strength = 2 / (1 + float(np.exp(-5 * progress))) - 1
    both = torch.cat([ours, theirs])
    # The value of x, and minus the strength times its gradient.
    reversed_both = both.detach() * (1 + strength) - strength * both
    said = judge(reversed_both)[:, 0]
    true = torch.cat([torch.ones(len(ours)), torch.zeros(len(theirs))])
    return nn.functional.binary_cross_entropy_with_logits(said, true)


def _normalized(images: torch.Tensor) -> torch.Tensor:
    return images.permute(0, 3, 1, 2).float() / 127.5 - 1
