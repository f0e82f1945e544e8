"""Eyes of an image policy: a small convolutional net over pictures. It needs torch.

Eyes that tell where a body on a plane is: pictures and joints in, a place and a heading out. They need torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from instep.core.errors import BadInput
from instep.core.world import Array, Observation

from .policy_map import CAMERA

CHANNELS = (16, 32, 48, 64)
SIGHT = 64
"""Numbers by which one camera's picture is told."""
SHIFT = 4
"""Pixels by which pictures are shifted at random in training, so that a net does not cling to single pixels."""


class TorchEyes(nn.Module):
    """Each camera has a net of its own: four convolutions, then where in the picture each of them looks."""

    def __init__(self, cameras: int, size: int):
        super().__init__()
        self.nets = nn.ModuleList(_Eye() for _ in range(cameras))
        self._side = size

    @property
    def size(self) -> int:
        """How many numbers come out."""
        return SIGHT * len(self.nets)

    def forward(self, pictures: Sequence[torch.Tensor], draw: torch.Generator | None = None) -> torch.Tensor:
        """Pictures [n, size, size, 3] of bytes, one per camera, as numbers [n, SIGHT x cameras]."""
        seen = []
        for net, picture in zip(self.nets, pictures, strict=True):
            x = picture.permute(0, 3, 1, 2).float() / 127.5 - 1
            seen.append(net(_shifted(x, draw) if draw is not None else x))
        return torch.cat(seen, dim=-1)


class _Eye(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        before, layers = 3, []
        for channels in CHANNELS:
            layers += [nn.Conv2d(before, channels, 3, stride=2, padding=1), nn.GroupNorm(4, channels), nn.SiLU()]
            before = channels
        self.conv = nn.Sequential(*layers)
        self.points = nn.Conv2d(before, 32, 1)
        self.leave = nn.Linear(64, SIGHT)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Where in the picture the features are: the mean place of each, by softmax."""
        heat = self.points(self.conv(x))
        n, k, h, w = heat.shape
        share = torch.softmax(heat.reshape(n, k, h * w), dim=-1).reshape(n, k, h, w)
        ys, xs = torch.linspace(-1, 1, h, device=x.device), torch.linspace(-1, 1, w, device=x.device)
        place = torch.cat([(share.sum(3) * ys).sum(2), (share.sum(2) * xs).sum(2)], dim=-1)
        return nn.functional.silu(self.leave(place))


class Eyes:
    """The eyes of a trained policy."""

    def __init__(self, cameras: Sequence[str], size: int, tensors: Mapping[str, Array]):
        self._cameras, self._size = tuple(cameras), size
        self._net = TorchEyes(len(cameras), size)
        fill(self._net, "eyes", tensors)

    def __call__(self, observation: Observation, n: int) -> Array:
        """What the pictures tell [n, numbers]."""
        pictures = []
        for camera in self._cameras:
            seen = np.asarray(observation[CAMERA + camera], np.uint8)
            pictures.append(torch.from_numpy(shrunk(seen.reshape(n, *seen.shape[-3:]), self._size)))
        with torch.inference_mode():
            return self._net(pictures).numpy()


def fill(net: nn.Module, part: str, tensors: Mapping[str, Array]) -> None:
    """Give a net the weights that a policy holds for one part of it, and make it ready to be used."""
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


def shrunk(pictures: Any, size: int) -> Array:
    """Pictures [rows, height, width, 3] as squares of a size, by the mean over areas, the sides cut to fit."""
    if isinstance(pictures, np.ndarray) and pictures.shape[1:] == (size, size, 3) and pictures.dtype == np.uint8:
        return pictures.copy()
    out = []
    for picture in pictures:
        picture = np.asarray(picture, np.uint8)
        side = min(picture.shape[:2])
        top, left = (picture.shape[0] - side) // 2, (picture.shape[1] - side) // 2
        square = torch.from_numpy(picture[top : top + side, left : left + side].copy()).permute(2, 0, 1)[None].float()
        if side != size:
            square = nn.functional.interpolate(square, (size, size), mode="area")
        out.append(square[0].permute(1, 2, 0).round().clamp(0, 255).to(torch.uint8).numpy())
    return np.stack(out)


def _shifted(x: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    """Pictures moved by a few pixels, the edge repeated."""
    n, _, h, w = x.shape
    wide = nn.functional.pad(x, (SHIFT,) * 4, mode="replicate")
    dy, dx = (torch.randint(0, 2 * SHIFT + 1, (n, 1, 1), generator=draw).to(x.device) for _ in range(2))
    rows = torch.arange(h, device=x.device)[None, :, None] + dy
    columns = torch.arange(w, device=x.device)[None, None] + dx
    return wide[torch.arange(n, device=x.device)[:, None, None], :, rows, columns].permute(0, 3, 1, 2)


POINTS = 32
"""Points that are looked for in each picture."""
SCALES = ("joint_mean", "joint_size", "spot_mean")
"""Numbers that a policy holds for its eyes."""
REACH = 0.1
"""The unit of places inside the net [m]."""


class TorchSpotter(nn.Module):
    """Finds points in the picture of each camera, and from them and the joints where the body is.

    Joints are among what it is told because a camera may ride on the robot.
    """

    def __init__(self, cameras: int, joints: int, width: int = 128):
        super().__init__()
        self.nets = nn.ModuleList(_Finder() for _ in range(cameras))
        size = 2 * POINTS * cameras + joints
        self.straight = nn.Linear(size, 4)
        self.bent = nn.Sequential(nn.Linear(size, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.leave = nn.Linear(width, 4)

    def forward(self, pictures: Sequence[torch.Tensor], joints: torch.Tensor) -> torch.Tensor:
        """x and y in units of REACH from their mean, and cosine and sine of the heading [n, 4]."""
        found = [
            net(picture.permute(0, 3, 1, 2).float() / 127.5 - 1)
            for net, picture in zip(self.nets, pictures, strict=True)
        ]
        told = torch.cat([*found, joints], dim=-1)
        return self.straight(told) + self.leave(self.bent(told))


class _Finder(nn.Module):
    """A quarter of the picture's resolution, and at each place a view as wide as half the picture."""

    def __init__(self) -> None:
        super().__init__()
        plan = ((3, 16, 2, 1), (16, 32, 2, 1), (32, 32, 1, 2), (32, 32, 1, 4))
        layers: list[nn.Module] = []
        for before, after, stride, apart in plan:
            conv = nn.Conv2d(before, after, 3, stride=stride, padding=apart, dilation=apart)
            layers += [conv, nn.GroupNorm(4, after), nn.SiLU()]
        self.conv, self.points = nn.Sequential(*layers), nn.Conv2d(32, POINTS, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The mean place of each point, by softmax [n, 2 x POINTS]."""
        heat = self.points(self.conv(x))
        n, k, h, w = heat.shape
        share = torch.softmax(heat.reshape(n, k, h * w), dim=-1).reshape(n, k, h, w)
        ys, xs = torch.linspace(-1, 1, h, device=x.device), torch.linspace(-1, 1, w, device=x.device)
        return torch.cat([(share.sum(3) * ys).sum(2), (share.sum(2) * xs).sum(2)], dim=-1)


def targets(poses: Array, centre: Array) -> Array:
    """What the net is to say of poses xyz + wxyz [n, 7]: place from a centre, cosine and sine of the heading."""
    from .observation_encoding import heading

    angle = heading(poses[:, 3:])
    return np.column_stack([(poses[:, :2] - centre) / REACH, np.cos(angle), np.sin(angle)]).astype(np.float32)


class Spotter:
    """The eyes of a policy that is not told where a body is."""

    def __init__(self, cameras: Sequence[str], size: int, tensors: Mapping[str, Array]):
        self._cameras, self._size = tuple(cameras), size
        self._scale = {name: tensors[f"scale.{name}"] for name in SCALES}
        self._net = TorchSpotter(len(cameras), len(self._scale["joint_mean"]))
        fill(self._net, "spot", tensors)

    def __call__(self, observation: Observation, batch: tuple[int, ...]) -> Array:
        """Poses xyz + wxyz [..., 7] of a body that lies flat; its height is not told and given as 0."""
        n = int(np.prod(batch))
        joints = np.asarray(observation["observation.state"], float).reshape(n, -1)
        joints = ((joints - self._scale["joint_mean"]) / self._scale["joint_size"]).astype(np.float32)
        pictures = []
        for camera in self._cameras:
            seen = np.asarray(observation[CAMERA + camera], np.uint8)
            pictures.append(torch.from_numpy(shrunk(seen.reshape(n, *seen.shape[-3:]), self._size)))
        with torch.inference_mode():
            said = self._net(pictures, torch.from_numpy(joints)).numpy().astype(float)
        half = np.arctan2(said[:, 3], said[:, 2]) / 2
        out = np.zeros((n, 7))
        out[:, :2] = said[:, :2] * REACH + self._scale["spot_mean"]
        out[:, 3], out[:, 6] = np.cos(half), np.sin(half)
        return out.reshape(*batch, 7)
