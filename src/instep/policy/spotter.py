"""Eyes that tell where a body on a plane is: pictures and joints in, a place and a heading out. They need torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import nn

from instep.core.world import Array, Observation

from .mapping import CAMERA
from .vision import fill, shrunk

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
    from .inputs import heading

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
