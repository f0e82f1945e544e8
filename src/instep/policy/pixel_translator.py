"""A learned translator of pixels between a robot's images and rendered ones, trained on unpaired images of both.

Two small convolutional networks, one each way, and a judge of patches for each kind (least-squares GAN, Goodfellow
2014, Mao 2017): an image translated there and back is the one it was (CycleGAN, Zhu 2017). Networks begin as the plain
change of colours and see a few pixels around each, so that they change surfaces and light but move nothing. Training
takes about half a minute on one core.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from instep.core.errors import BadInput
from instep.core.world import Array, array_dataclass

from .image_adaptation import ImageAdapter, fit_adapter, read_adapter

TRANSLATOR = "translator"
"""Name of the method, beside those of `fit_adapter`."""
WIDTH, PATCH, BATCH = 12, 32, 12
"""Channels of the networks, side of the patches they are trained on [pixels], and patches per step."""
CYCLE, KEEP = 8.0, 2.0
"""Weights of the way there and back, and of staying near the plain change of colours, beside those of the judges."""
RATE = 2e-3
"""Learning rate."""


class TranslatorNet(nn.Module):
    """x + C(x, place): a correction of each pixel from a neighbourhood of 11 x 11."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, dilation in ((5, 1), (WIDTH, 2), (WIDTH, 2)):
            layers += [nn.Conv2d(before, WIDTH, 3, padding=dilation, dilation=dilation), nn.SiLU()]
        last = nn.Conv2d(WIDTH, 3, 1, bias=False)
        nn.init.zeros_(last.weight)
        self.layers = nn.Sequential(*layers, last)

    def forward(self, x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        """Images [n, 3, height, width] from 0 to 1, with the place of each pixel [n, 2, height, width]."""
        return x + self.layers(torch.cat([2 * x - 1, 2 * place], dim=1))


@array_dataclass
class PixelTranslator:
    """A trained translator: the plain change of colours, then the network."""

    colours: ImageAdapter
    weights: Mapping[str, Array]

    method = TRANSLATOR

    def __call__(self, images: Array) -> Array:
        """Images uint8 [..., height, width, 3], translated."""
        flat = self.colours(images).reshape(-1, *np.shape(images)[-3:])
        net = TranslatorNet()
        net.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in self.weights.items()})
        with torch.inference_mode():
            x = _tensor(flat)
            out = net(x, _place(*x.shape[-2:]).expand(len(x), -1, -1, -1))
        return (out.clamp(0, 1) * 255 + 0.5).permute(0, 2, 3, 1).to(torch.uint8).numpy().reshape(np.shape(images))

    def tensors(self) -> dict[str, Array]:
        """Its numbers by name, as a file of weights holds them."""
        own = {f"net.{name}": np.asarray(value, np.float32) for name, value in self.weights.items()}
        return {**own, **{f"colours.{name}": value for name, value in self.colours.tensors().items()}}


def read_translator(tensors: Mapping[str, Array]) -> PixelTranslator:
    """The translator from its numbers by name."""
    parts = {
        part: {name.removeprefix(part): value for name, value in tensors.items() if name.startswith(part)}
        for part in ("net.", "colours.")
    }
    wanted = {name: tuple(value.shape) for name, value in TranslatorNet().state_dict().items()}
    if {name: value.shape for name, value in parts["net."].items()} != wanted:
        raise BadInput("The weights of a pixel translator do not fit; they were cut off or are of another release.")
    return PixelTranslator(read_adapter("colour", parts["colours."]), parts["net."])


def fit_translators(
    given: Array, wanted: Array, *, steps: int = 400, seed: int = 0
) -> tuple[PixelTranslator, PixelTranslator]:
    """Translators of given images to wanted ones, and back; both uint8 [n, height, width, 3], unpaired."""
    changes = fit_adapter("colour", given, wanted), fit_adapter("colour", wanted, given)
    kinds = [
        np.stack([images, change(images)], axis=1) for images, change in zip((given, wanted), changes, strict=True)
    ]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        nets, judges = [TranslatorNet() for _ in range(2)], [_judge() for _ in range(2)]
    makers = torch.optim.Adam([p for net in nets for p in net.parameters()], lr=RATE, betas=(0.5, 0.99))
    critics = torch.optim.Adam([p for judge in judges for p in judge.parameters()], lr=RATE, betas=(0.5, 0.99))
    rng, recolour = np.random.default_rng((seed, 0x7A5)), [_Recolour(change) for change in changes]
    for _ in range(steps):
        patches = [_patches(images, rng) for images in kinds]
        loss, verdicts = torch.zeros(()), torch.zeros(())
        for own, (raw, plain, place) in enumerate(patches):
            other, (true, _, its_place) = 1 - own, patches[1 - own]
            made = nets[own](plain, place)
            again = nets[other](recolour[other](made), place)
            loss = loss + CYCLE * (again - raw).abs().mean() + KEEP * (made - plain).abs().mean()
            loss = loss + ((judges[own](torch.cat([made, place], 1)) - 1) ** 2).mean()
            verdicts = verdicts + ((judges[own](torch.cat([true, its_place], 1)) - 1) ** 2).mean()
            verdicts = verdicts + (judges[own](torch.cat([made.detach(), place], 1)) ** 2).mean()
        for optimizer, value in ((makers, loss), (critics, verdicts)):
            optimizer.zero_grad(set_to_none=True)
            parts = [p for group in optimizer.param_groups for p in group["params"]]
            gradients = torch.autograd.grad(value, parts)
            for part, gradient in zip(parts, gradients, strict=True):
                part.grad = gradient
            optimizer.step()
    weights = [{name: value.numpy().copy() for name, value in net.state_dict().items()} for net in nets]
    return PixelTranslator(changes[0], weights[0]), PixelTranslator(changes[1], weights[1])


class _Recolour:
    """The plain change of colours of an adapter, with gradients."""

    def __init__(self, adapter: ImageAdapter):
        self._shift, self._mix, self._offset = (
            torch.from_numpy(np.asarray(part, np.float32)) for part in (adapter.shift, adapter.mix, adapter.offset)
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Images [n, 3, height, width]."""
        moved = (x.permute(0, 2, 3, 1) - self._shift) @ self._mix + self._offset
        return moved.permute(0, 3, 1, 2)


def _judge() -> nn.Module:
    """Says of each neighbourhood of 15 x 15 how much it looks like the wanted kind."""
    return nn.Sequential(
        nn.Conv2d(5, 16, 3, stride=2, padding=1), nn.LeakyReLU(0.2), nn.Conv2d(16, 24, 3, stride=2, padding=1),
        nn.LeakyReLU(0.2), nn.Conv2d(24, 1, 3, padding=1),
    )  # fmt: skip


def _patches(images: Array, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Patches at random places of images [n, 2, height, width, 3]: as they are, recoloured, and their places."""
    height, width = images.shape[2:4]
    side = min(PATCH, height, width)
    which = rng.integers(0, len(images), BATCH)
    top, left = (rng.integers(0, size - side + 1, BATCH) for size in (height, width))
    cut = np.stack([images[k, :, y : y + side, x : x + side] for k, y, x in zip(which, top, left, strict=True)])
    whole = _place(height, width)[0]
    place = torch.stack([whole[:, y : y + side, x : x + side] for y, x in zip(top, left, strict=True)])
    return _tensor(cut[:, 0]), _tensor(cut[:, 1]), place


def _tensor(images: Array) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2).float() / 255


def _place(height: int, width: int) -> torch.Tensor:
    """Column and row of each pixel from -0.5 to 0.5 [1, 2, height, width]."""
    y, x = torch.meshgrid(torch.linspace(-0.5, 0.5, height), torch.linspace(-0.5, 0.5, width), indexing="ij")
    return torch.stack([x, y])[None]
