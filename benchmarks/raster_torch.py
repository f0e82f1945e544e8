"""A plain tile rasteriser in torch, as one would write it first: a peer that the compiled one is timed against.

It takes what gsplat's `rasterization` takes and follows the same conventions (0.3 px^2 of blur, coverage above 1/255, a
pixel finished at 1e-4), so that images can be compared. Gradients come from autograd.
"""

from __future__ import annotations

from typing import Any

import torch

TILE = 16


def rasterization(
    means: Any, quats: Any, scales: Any, opacities: Any, colors: Any, viewmats: Any, Ks: Any, width: int, height: int,
    **ignored: Any,
) -> tuple[Any, Any, dict[str, Any]]:  # fmt: skip
    """Images [cameras, height, width, 4] (colour and mean depth) and coverages [cameras, height, width, 1]."""
    images, covers = [], []
    for camera in range(len(viewmats)):
        colour = colors[camera] if colors.dim() == 3 else colors
        projected = _project(means, quats, scales, opacities, viewmats[camera], Ks[camera], width, height)
        image, cover = _blend(*projected, colour, width, height)
        images.append(image)
        covers.append(cover)
    return torch.stack(images), torch.stack(covers), {}


def _project(
    means: Any, quats: Any, scales: Any, opacities: Any, view: Any, K: Any, width: int, height: int
) -> tuple[Any, Any, Any, Any, Any]:
    w, x, y, z = torch.nn.functional.normalize(quats, dim=-1).unbind(-1)
    turn = torch.stack(
        [
            1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
            2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
            2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y),
        ], dim=-1,
    ).reshape(-1, 3, 3)  # fmt: skip
    axes = view[:3, :3] @ turn * scales[:, None, :]
    points = means @ view[:3, :3].T + view[:3, 3]
    depth = points[:, 2]
    ahead = torch.where(depth > 0.01, depth, torch.ones_like(depth))
    ideal = points[:, :2] / ahead[:, None]
    fx, fy, cx, cy = K[0, 0], K[1, 1], K[0, 2], K[1, 2]
    low = torch.stack([-cx / fx - 0.15 * width / fx, -cy / fy - 0.15 * height / fy])
    high = torch.stack([(width - cx) / fx + 0.15 * width / fx, (height - cy) / fy + 0.15 * height / fy])
    near = torch.maximum(torch.minimum(ideal, high), low)
    zero = torch.zeros_like(ahead)
    jacobian = torch.stack(
        [fx / ahead, zero, -fx * near[:, 0] / ahead, zero, fy / ahead, -fy * near[:, 1] / ahead], dim=-1
    ).reshape(-1, 2, 3)
    flat = jacobian @ axes
    spread = flat @ flat.transpose(1, 2) + 0.3 * torch.eye(2, dtype=means.dtype)
    centre = torch.stack([fx * ideal[:, 0] + cx, fy * ideal[:, 1] + cy], dim=-1)
    order = torch.argsort(depth)
    order = order[(depth[order] > 0.01) & (opacities[order] >= 1 / 255)]
    return centre[order], spread[order], depth[order], opacities[order], order


def _blend(
    centre: Any, spread: Any, depth: Any, opacity: Any, order: Any, colour: Any, width: int, height: int
) -> tuple[Any, Any]:
    with torch.no_grad():
        reach = torch.sqrt(2 * torch.log(opacity * 255)[:, None] * torch.diagonal(spread, dim1=1, dim2=2))
    inverse, shown = torch.linalg.inv(spread), torch.cat([colour[order], depth[:, None]], dim=1)
    rows: list[Any] = []
    for top in range(0, height, TILE):
        in_row = (centre[:, 1] + reach[:, 1] > top) & (centre[:, 1] - reach[:, 1] < top + TILE)
        row = [
            _tile(left, top, in_row, centre, reach, inverse, opacity, shown, width, height)
            for left in range(0, width, TILE)
        ]
        rows.append(torch.cat(row, dim=1))
    out = torch.cat(rows, dim=0)
    alpha = out[..., 4:]
    return torch.cat([out[..., :3], out[..., 3:4] / alpha.clamp(min=1e-10)], dim=-1), alpha


def _tile(
    left: int, top: int, in_row: Any, centre: Any, reach: Any, inverse: Any, opacity: Any, shown: Any, width: int,
    height: int,
) -> Any:  # fmt: skip
    hit = in_row & (centre[:, 0] + reach[:, 0] > left) & (centre[:, 0] - reach[:, 0] < left + TILE)
    here = torch.nonzero(hit)[:, 0]
    right, bottom = min(left + TILE, width), min(top + TILE, height)
    ys, xs = torch.meshgrid(
        torch.arange(top, bottom, dtype=centre.dtype) + 0.5, torch.arange(left, right, dtype=centre.dtype) + 0.5,
        indexing="ij",
    )  # fmt: skip
    d = torch.stack([xs, ys], dim=-1).reshape(-1, 1, 2) - centre[here]
    a, b, c = inverse[here, 0, 0], inverse[here, 0, 1], inverse[here, 1, 1]
    power = a * d[..., 0] ** 2 + 2 * b * d[..., 0] * d[..., 1] + c * d[..., 1] ** 2
    alpha = torch.clamp(opacity[here] * torch.exp(-0.5 * power), max=0.999)
    alpha = torch.where(alpha >= 1 / 255, alpha, torch.zeros_like(alpha))
    passed = torch.cumprod(1 - alpha, dim=1)
    before = torch.cat([torch.ones_like(passed[:, :1]), passed[:, :-1]], dim=1)
    weight = torch.where(passed > 1e-4, alpha * before, torch.zeros_like(alpha))
    out = torch.cat([weight @ shown[here], weight.sum(dim=1, keepdim=True)], dim=1)
    return out.reshape(bottom - top, right - left, 5)
