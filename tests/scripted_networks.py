"""Networks for TorchScript, which reads their source: torch must be a name of this module."""

import torch


class Turned(torch.nn.Module):
    """Twice the state, in reversed order."""

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        return state.flip(1) * 2


class Seeing(torch.nn.Module):
    """Two actions ahead, from the state and the brightness of an image."""

    def forward(self, state: torch.Tensor, top: torch.Tensor) -> torch.Tensor:
        bright = top.mean(dim=(1, 2, 3))
        return torch.stack([state + bright[:, None], state - bright[:, None]], dim=1)


class ImageFirst(torch.nn.Module):
    """The same with its arguments in another order than that of a map."""

    def forward(self, top: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        return state + top.mean(dim=(1, 2, 3))[:, None]
