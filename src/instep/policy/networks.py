"""The networks of a flow policy in torch: the flow, image encoders, a pose estimator, and their optimisation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import nn

from instep.core.errors import BadInput
from instep.core.reading import is_array
from instep.core.world import Array, Observation, array_dataclass
from instep.scene.tasks.manipulation_tasks import heading

from .image_adaptation import TRANSLATOR, ColourAdapter, read_adapter
from .policy_inputs import JOINTS, POSE_SCALES, TIME_FREQUENCIES, PolicyDescription
from .policy_map import CAMERA

if TYPE_CHECKING:
    from .training import TrainingData, TrainOptions

EMBEDDING = 64
"""Features per camera."""
MAX_SHIFT_PX = 4
"""Largest random shift of images in training, so that a network does not fit single pixels [pixels]."""
TRANSLATOR_WIDTH = 12
"""Channels of a pixel translator."""
KEYPOINTS = 32
"""Keypoints per image of a pose estimator."""
POSITION_UNIT_M = 0.1
"""Unit of positions inside the pose estimator [m]."""


class FlowBlock(nn.Module):
    """A residual block: h + B silu(A norm(h))."""

    def __init__(self, width: int):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)
        nn.init.zeros_(self.down.weight)
        nn.init.zeros_(self.down.bias)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        """Apply the block."""
        return h + self.down(nn.functional.silu(self.up(self.norm(h))))


class TorchFlowNet(nn.Module):
    """The network of `flow_policy.FlowNet`, for training."""

    def __init__(self, features: int, size: int, width: int, blocks: int):
        super().__init__()
        self.input = nn.Linear(features + size + 2 * TIME_FREQUENCIES, width)
        for i in range(blocks):
            self.add_module(f"block{i}", FlowBlock(width))
        self._blocks = blocks
        self.norm, self.output = nn.LayerNorm(width), nn.Linear(width, size)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def forward(self, features: torch.Tensor, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        """The velocity of the flow [n, size] at times [n, 1]."""
        angle = t * (math.pi * 2.0 ** torch.arange(TIME_FREQUENCIES, dtype=torch.float32, device=t.device))
        h = self.input(torch.cat([features, x, torch.sin(angle), torch.cos(angle)], dim=-1))
        for i in range(self._blocks):
            h = self.get_submodule(f"block{i}")(h)
        return self.output(self.norm(h))


class EncoderNet(nn.Module):
    """One convolutional encoder per camera: four convolutions, then a spatial softmax."""

    def __init__(self, cameras: int):
        super().__init__()
        self.nets = nn.ModuleList(_ImageNet() for _ in range(cameras))

    @property
    def size(self) -> int:
        """The number of features."""
        return EMBEDDING * len(self.nets)

    def forward(self, images: Sequence[torch.Tensor], generator: torch.Generator | None = None) -> torch.Tensor:
        """Features [n, EMBEDDING x cameras] of images [n, size, size, 3] of bytes, one tensor per camera."""
        features: list[torch.Tensor] = []
        for net, image in zip(self.nets, images, strict=True):
            x = _normalized(image)
            features.append(net(_shifted(x, generator) if generator is not None else x))
        return torch.cat(features, dim=-1)


def _convolutions(*plan: tuple[int, int, int, int]) -> nn.Sequential:
    """Convolutions by channels before and after, stride and dilation."""
    layers: list[nn.Module] = []
    for before, after, stride, dilation in plan:
        conv = nn.Conv2d(before, after, 3, stride=stride, padding=dilation, dilation=dilation)
        layers += [conv, nn.GroupNorm(4, after), nn.SiLU()]
    return nn.Sequential(*layers)


class _ImageNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = _convolutions((3, 16, 2, 1), (16, 32, 2, 1), (32, 48, 2, 1), (48, 64, 2, 1))
        self.points = nn.Conv2d(64, 32, 1)
        self.output = nn.Linear(64, EMBEDDING)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.silu(self.output(_spatial_softmax(self.points(self.conv(x)))))


class PoseNet(nn.Module):
    """The planar pose of a body from keypoints in the image of each camera, and from the joints.

    Joints are among its inputs because a camera may move with the robot.
    """

    def __init__(self, cameras: int, joints: int, width: int = 128):
        super().__init__()
        self.nets = nn.ModuleList(_KeypointNet() for _ in range(cameras))
        size = 2 * KEYPOINTS * cameras + joints
        self.linear = nn.Linear(size, 4)
        self.hidden = nn.Sequential(nn.Linear(size, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.output = nn.Linear(width, 4)

    def forward(self, images: Sequence[torch.Tensor], joints: torch.Tensor) -> torch.Tensor:
        """x and y in units of POSITION_UNIT_M from their mean, and cosine and sine of the heading [n, 4]."""
        points = [net(_normalized(image)) for net, image in zip(self.nets, images, strict=True)]
        inputs = torch.cat([*points, joints], dim=-1)
        return self.linear(inputs) + self.output(self.hidden(inputs))


class _KeypointNet(nn.Module):
    """A quarter of the image's resolution, with a receptive field as wide as half the image."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = _convolutions((3, 16, 2, 1), (16, 32, 2, 1), (32, 32, 1, 2), (32, 32, 1, 4))
        self.points = nn.Conv2d(32, KEYPOINTS, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _spatial_softmax(self.points(self.conv(x)))


class TranslatorNet(nn.Module):
    """x + C(x, place): a correction of each pixel from a neighbourhood of 11 x 11."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, dilation in ((5, 1), (TRANSLATOR_WIDTH, 2), (TRANSLATOR_WIDTH, 2)):
            layers += [nn.Conv2d(before, TRANSLATOR_WIDTH, 3, padding=dilation, dilation=dilation), nn.SiLU()]
        last = nn.Conv2d(TRANSLATOR_WIDTH, 3, 1, bias=False)
        nn.init.zeros_(last.weight)
        self.layers = nn.Sequential(*layers, last)

    def forward(self, x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        """Images [n, 3, height, width] from 0 to 1, with the place of each pixel [n, 2, height, width]."""
        return x + self.layers(torch.cat([2 * x - 1, 2 * place], dim=1))


@array_dataclass
class PixelTranslator:
    """A trained translator of images: the plain change of colours, then a network."""

    colours: ColourAdapter
    weights: Mapping[str, Array]

    method = TRANSLATOR

    def __call__(self, images: Array) -> Array:
        """Images uint8 [..., height, width, 3], translated."""
        flat = self.colours(images).reshape(-1, *np.shape(images)[-3:])
        net = TranslatorNet()
        net.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in self.weights.items()})
        with torch.inference_mode():
            x = torch.from_numpy(np.ascontiguousarray(flat)).permute(0, 3, 1, 2).float() / 255
            out = net(x, pixel_places(*x.shape[-2:]).expand(len(x), -1, -1, -1))
        return (out.clamp(0, 1) * 255 + 0.5).permute(0, 2, 3, 1).to(torch.uint8).numpy().reshape(np.shape(images))

    def tensors(self) -> dict[str, Array]:
        """Its numbers by name, as a file of weights holds them."""
        own = {f"net.{name}": np.asarray(value, np.float32) for name, value in self.weights.items()}
        return {**own, **{f"colours.{name}": value for name, value in self.colours.tensors().items()}}

    @classmethod
    def read(cls, tensors: Mapping[str, Array]) -> PixelTranslator:
        """The translator from its numbers by name."""
        net, colours = (
            {name.removeprefix(part): value for name, value in tensors.items() if name.startswith(part)}
            for part in ("net.", "colours.")
        )
        wanted = {name: tuple(value.shape) for name, value in TranslatorNet().state_dict().items()}
        if {name: value.shape for name, value in net.items()} != wanted:
            raise BadInput("The weights of a pixel translator do not fit; they were cut off or are of another release.")
        return cls(cast(ColourAdapter, read_adapter("colour", colours)), net)


def pixel_places(height: int, width: int) -> torch.Tensor:
    """Column and row of each pixel from -0.5 to 0.5 [1, 2, height, width]."""
    y, x = torch.meshgrid(torch.linspace(-0.5, 0.5, height), torch.linspace(-0.5, 0.5, width), indexing="ij")
    return torch.stack([x, y])[None]


class ImageEncoder:
    """The image encoder of a trained policy."""

    def __init__(self, cameras: Sequence[str], size: int, tensors: Mapping[str, Array]):
        self._cameras, self._size = tuple(cameras), size
        self._net = EncoderNet(len(cameras))
        load_weights(self._net, "encoder", tensors)

    def __call__(self, observation: Observation, n: int) -> Array:
        """Features of the images [n, features]."""
        with torch.inference_mode():
            return self._net(_images(observation, self._cameras, n, self._size)).numpy()


def encoder_features(images: Array, encoder: EncoderNet | None = None) -> Array:
    """Features of images uint8 [n, size, size, 3] for a distance between kinds of images [n, features].

    Mean and spread of the last channels and the embedding of the first camera's encoder: of a policy, or one with the
    random weights of seed 0, the same for everyone who compares.
    """
    if encoder is None:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            encoder = EncoderNet(1)
    net = cast(_ImageNet, encoder.eval().nets[0])
    with torch.inference_mode():
        x = _normalized(torch.from_numpy(np.ascontiguousarray(images)))
        last = net.conv(x)
        return torch.cat([last.mean(dim=(2, 3)), last.std(dim=(2, 3)), net(x)], dim=1).numpy()


class PoseEstimator:
    """The pose estimator of a trained policy that does not observe the pose of a body."""

    def __init__(self, cameras: Sequence[str], size: int, tensors: Mapping[str, Array]):
        self._cameras, self._size = tuple(cameras), size
        self._scale = {name: tensors[f"scale.{name}"] for name in POSE_SCALES}
        self._net = PoseNet(len(cameras), len(self._scale["joint_mean"]))
        load_weights(self._net, "pose", tensors)

    def __call__(self, observation: Observation, batch: tuple[int, ...]) -> Array:
        """Poses xyz + wxyz [..., 7] of a body that lies flat; its height is not estimated and given as 0."""
        n = int(np.prod(batch))
        joints = np.asarray(observation[JOINTS], float).reshape(n, -1)
        joints = ((joints - self._scale["joint_mean"]) / self._scale["joint_size"]).astype(np.float32)
        with torch.inference_mode():
            images = _images(observation, self._cameras, n, self._size)
            found = self._net(images, torch.from_numpy(joints)).numpy().astype(float)
        half = np.arctan2(found[:, 3], found[:, 2]) / 2
        out = np.zeros((n, 7))
        out[:, :2] = found[:, :2] * POSITION_UNIT_M + self._scale["pose_mean"]
        out[:, 3], out[:, 6] = np.cos(half), np.sin(half)
        return out.reshape(*batch, 7)


def pose_targets(poses: Array, centre: Array) -> Array:
    """Targets of a pose net for poses xyz + wxyz [n, 7]: position from a centre, cosine and sine of the heading."""
    angle = heading(poses[:, 3:])
    offset = (poses[:, :2] - centre) / POSITION_UNIT_M
    return np.column_stack([offset, np.cos(angle), np.sin(angle)]).astype(np.float32)


def load_weights(net: nn.Module, part: str, tensors: Mapping[str, Array]) -> None:
    """Load the weights that a policy holds for one part of it, and switch to inference."""
    own = {k.removeprefix(f"{part}."): torch.from_numpy(v) for k, v in tensors.items() if k.startswith(f"{part}.")}
    try:
        net.load_state_dict(own)
    except RuntimeError:
        wanted = {name: tuple(value.shape) for name, value in net.state_dict().items()}
        odd = next(name for name in {**wanted, **own} if name not in own or wanted.get(name) != tuple(own[name].shape))
        raise BadInput(
            f"The weights of the policy's {part} do not fit its description, first at {part + '.' + odd!r}; "
            "they are not of this policy."
        ) from None
    net.eval()


def resized(images: Any, size: int) -> Array:
    """Images [rows, height, width, 3] as squares of a size: the centre, averaged over areas."""
    if is_array(images) and images.shape[1:] == (size, size, 3) and images.dtype == np.uint8:
        return images.copy()
    out: list[Array] = []
    for image in images:
        image = np.asarray(image, np.uint8)
        side = min(image.shape[:2])
        top, left = (image.shape[0] - side) // 2, (image.shape[1] - side) // 2
        square = torch.from_numpy(image[top : top + side, left : left + side].copy()).permute(2, 0, 1)[None].float()
        if side != size:
            square = nn.functional.interpolate(square, (size, size), mode="area")
        out.append(square[0].permute(1, 2, 0).round().clamp(0, 255).to(torch.uint8).numpy())
    return np.stack(out)


def _images(observation: Observation, cameras: Sequence[str], n: int, size: int) -> list[torch.Tensor]:
    images = [np.asarray(observation[CAMERA + camera], np.uint8) for camera in cameras]
    return [torch.from_numpy(resized(image.reshape(n, *image.shape[-3:]), size)) for image in images]


def _normalized(image: torch.Tensor) -> torch.Tensor:
    return image.permute(0, 3, 1, 2).float() / 127.5 - 1


def _spatial_softmax(heat: torch.Tensor) -> torch.Tensor:
    """The mean position of each channel of a heat map [n, 2 x channels]."""
    n, k, h, w = heat.shape
    share = torch.softmax(heat.reshape(n, k, h * w), dim=-1).reshape(n, k, h, w)
    ys, xs = torch.linspace(-1, 1, h, device=heat.device), torch.linspace(-1, 1, w, device=heat.device)
    return torch.cat([(share.sum(3) * ys).sum(2), (share.sum(2) * xs).sum(2)], dim=-1)


def _shifted(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Images shifted by a few pixels at random, the edge repeated."""
    n, _, h, w = x.shape
    wide = nn.functional.pad(x, (MAX_SHIFT_PX,) * 4, mode="replicate")
    dy, dx = (torch.randint(0, 2 * MAX_SHIFT_PX + 1, (n, 1, 1), generator=generator).to(x.device) for _ in range(2))
    rows = torch.arange(h, device=x.device)[None, :, None] + dy
    columns = torch.arange(w, device=x.device)[None, None] + dx
    return wide[torch.arange(n, device=x.device)[:, None, None], :, rows, columns].permute(0, 3, 1, 2)


class Learner:
    """Optimisation of the networks of a policy, from random weights or from those of a policy."""

    def __init__(
        self,
        description: PolicyDescription,
        data: TrainingData,
        options: TrainOptions,
        start: Mapping[str, Array] | None = None,
    ):
        torch.manual_seed(options.seed)
        self._options = options
        self._device = torch.device(options.device)
        self._start = start or {}
        size, spread = data.features.std(axis=0), data.chunks.std(axis=0)
        # What hardly varies is not amplified.
        scales = {
            "feature_mean": data.features.mean(axis=0), "action_mean": data.chunks.mean(axis=0),
            "feature_size": np.where(size > 1e-3, size, 1.0).astype(np.float32),
            "action_size": np.maximum(np.full_like(spread, 1e-4), spread),
        }  # fmt: skip
        self._scale = {name: self._start.get(f"scale.{name}", value) for name, value in scales.items()}
        self._features = self._placed((data.features - self._scale["feature_mean"]) / self._scale["feature_size"])
        self._chunks = self._placed((data.chunks - self._scale["action_mean"]) / self._scale["action_size"])
        self._images = [self._placed(images) for images in data.images]
        encodes = bool(data.images) and not description.inputs.estimated_body
        self._encoder = EncoderNet(len(data.images)) if encodes else None
        self._pose = self._pose_net(data)
        size = data.features.shape[1] + (self._encoder.size if self._encoder is not None else 0)
        self._net = TorchFlowNet(size, data.chunks.shape[1], options.width, options.blocks)
        parts = {"net": self._net, "encoder": self._encoder, "pose": self._pose}
        self._all = nn.ModuleDict({name: part for name, part in parts.items() if part is not None})
        for name in self._all if start is not None else ():
            load_weights(self._all[name], name, self._start)
        self._all.to(self._device)
        self._all.train()
        self._mean = {k: v.detach().clone() for k, v in self._all.state_dict().items()}
        self._optimizer = torch.optim.AdamW(self._all.parameters(), lr=options.learning_rate, weight_decay=1e-4)

    def run(self, begin: int, until: int) -> float:
        """Take the steps from one number to another; the mean loss of the last of them."""
        options = self._options
        losses: list[torch.Tensor] = []
        for step in range(begin, until):
            # Random numbers depend on the step alone, so that an interrupted training continues as if uninterrupted.
            generator = torch.Generator().manual_seed(options.seed * 1_000_003 + step)
            rows = torch.randint(len(self._features), (options.batch,), generator=generator)
            loss = self._flow_loss(rows, generator)
            self._optimizer.zero_grad(set_to_none=True)
            (loss if self._pose is None else loss + self._pose_loss(self._pose, generator)).backward()
            # The pose net and the rest share no weights, so each is clipped by itself.
            for part in (self._all,) if self._pose is None else self._all.values():
                nn.utils.clip_grad_norm_(part.parameters(), 1.0)
            for group in self._optimizer.param_groups:
                rise, fall = min(1.0, (step + 1) / 200), 0.5 * (1 + math.cos(math.pi * step / options.steps))
                group["lr"] = options.learning_rate * rise * fall
            self._optimizer.step()
            keep = min(self._options.ema_decay, (1 + step) / (10 + step))
            with torch.no_grad():
                for name, value in self._all.state_dict().items():
                    self._mean[name].mul_(keep).add_(value, alpha=1 - keep)
            losses.append(loss.detach())
        return float(torch.stack(losses[-200:]).mean())

    def freeze(self, parts: Sequence[str]) -> None:
        """Leave the weights whose names begin so as they are; all others are trained."""
        for name, weight in self._all.named_parameters():
            weight.requires_grad_(not name.startswith(tuple(parts)))

    def tensors(self) -> dict[str, Array]:
        """The running mean of the weights and the scales, as a policy holds them."""
        found = {f"scale.{name}": value for name, value in self._scale.items()}
        return {**found, **{name: value.cpu().numpy().copy() for name, value in self._mean.items()}}

    def state(self) -> dict[str, Array]:
        """Everything needed to continue later."""
        out = {f"now.{k}": v.detach().cpu().numpy() for k, v in self._all.state_dict().items()}
        out |= {f"mean.{k}": v.cpu().numpy() for k, v in self._mean.items()}
        for i, entry in self._optimizer.state_dict()["state"].items():
            out |= {f"optimizer.{i}.{k}": np.asarray(v.cpu().numpy(), np.float32) for k, v in entry.items()}
        return out

    def restore(self, state: Mapping[str, Array]) -> None:
        """Continue from an earlier state."""
        tensors = {k: self._placed(np.array(v)) for k, v in state.items()}
        self._all.load_state_dict({k[4:]: v for k, v in tensors.items() if k.startswith("now.")})
        self._mean = {k[5:]: v for k, v in tensors.items() if k.startswith("mean.")}
        whole: dict[str, Any] = self._optimizer.state_dict()
        whole["state"] = {}
        for name, value in tensors.items():
            if name.startswith("optimizer."):
                _, index, key = name.split(".")
                cast(dict[int, dict[str, Any]], whole["state"]).setdefault(int(index), {})[key] = value
        self._optimizer.load_state_dict(whole)

    def _flow_loss(self, rows: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """The flow-matching loss: the distance from the straight path between noise and actions.

        Random numbers are sampled on the CPU, so that they are the same on every device.
        """
        rows, device = rows.to(self._device), self._device
        features, target = self._features[rows], self._chunks[rows]
        features = features + self._options.input_noise * torch.randn(features.shape, generator=generator).to(device)
        if self._encoder is not None:
            images = [images[rows] for images in self._images]
            features = torch.cat([features, self._encoder(images, generator)], dim=-1)
        noise = torch.randn(target.shape, generator=generator).to(device)
        t = torch.rand((len(rows), 1), generator=generator).to(device)
        along = (1 - t) * noise + t * target
        return ((self._net(features, along, t) - (target - noise)) ** 2).mean()

    def _pose_loss(self, net: PoseNet, generator: torch.Generator) -> torch.Tensor:
        count = (self._options.images_per_step,)
        rows = torch.randint(len(self._features), count, generator=generator).to(self._device)
        found = net([images[rows] for images in self._images], self._joints[rows])
        return nn.functional.smooth_l1_loss(found, self._targets[rows], beta=0.1)

    def _placed(self, values: Array) -> torch.Tensor:
        return torch.from_numpy(values).to(self._device)

    def _pose_net(self, data: TrainingData) -> PoseNet | None:
        if data.joints is None or data.poses is None:
            return None
        size = data.joints.std(axis=0)
        scale = {"joint_mean": data.joints.mean(axis=0), "joint_size": np.where(size > 1e-6, size, 1.0)}
        scale["pose_mean"] = data.poses[:, :2].mean(axis=0)
        self._scale |= {
            name: self._start.get(f"scale.{name}", value.astype(np.float32)) for name, value in scale.items()
        }
        joints = (data.joints - self._scale["joint_mean"]) / self._scale["joint_size"]
        self._joints = self._placed(joints.astype(np.float32))
        self._targets = self._placed(pose_targets(data.poses, self._scale["pose_mean"]))
        return PoseNet(len(data.images), data.joints.shape[1])
