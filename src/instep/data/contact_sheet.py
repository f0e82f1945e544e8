"""A picture of a dataset on one page: what the cameras saw, and what the joints did."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.data.lerobot.features import is_image
from instep.data.recorder.atomic import new_file

from .file_limits import library

SHOWN = 4
"""How many episodes are shown, evenly chosen."""
PICTURES = 6
"""How many images of each camera."""


def contact_sheet(episodes: Sequence[Episode], path: Path, title: str = "") -> Path:
    """Write a PNG with images over time, positions and actions of a few episodes."""
    backend, figures = library("matplotlib.backends.backend_agg"), library("matplotlib.figure")
    chosen = _spread(episodes)
    filmed = [episode for episode in episodes if any(is_image(c) for c in episode.columns.values())]
    strips = [(e, n) for e in _spread(filmed) for n, c in e.columns.items() if is_image(c)][: 2 * SHOWN]
    curves = [name for name in ("q", "action") if any(name in e and e[name].shape[1] for e in chosen)]
    figure: Any = figures.Figure(figsize=(12, 0.7 + 1.35 * len(strips) + 2.6 * len(curves)), layout="constrained")
    backend.FigureCanvasAgg(figure)
    grid = figure.add_gridspec(len(strips) + len(curves), 1, height_ratios=[1.0] * len(strips) + [2.0] * len(curves))
    for k, (episode, name) in enumerate(strips):
        _strip(figure.add_subplot(grid[k]), episode, name)
    for k, name in enumerate(curves):
        _curves(figure, grid[len(strips) + k], chosen, name)
    figure.suptitle(title or f"{len(episodes)} episodes")
    with new_file(path) as partial:
        figure.savefig(partial, dpi=100, format="png")
    return path


def _spread(episodes: Sequence[Episode]) -> list[Episode]:
    if not episodes:
        return []
    return [episodes[int(k)] for k in np.unique(np.linspace(0, len(episodes) - 1, SHOWN).round())]


def _strip(axes: Any, episode: Episode, name: str) -> None:
    column = episode.columns[name]
    numbers = np.linspace(0, len(column) - 1, PICTURES).round().astype(int)
    images = [np.asarray(column[int(k)]) for k in numbers]
    step = max(1, images[0].shape[1] // 320)
    axes.imshow(np.concatenate([image[::step, ::step] for image in images], axis=1))
    axes.set_axis_off()
    which = f"episode {episode.meta['index']} " if "index" in episode.meta else ""
    axes.set_title(which + name.removeprefix("observation.images."), fontsize=8)


def _curves(figure: Any, cell: Any, episodes: Sequence[Episode], name: str) -> None:
    part = cell.subgridspec(1, len(episodes))
    for k, episode in enumerate(episodes):
        axes = figure.add_subplot(part[k])
        values = np.asarray(episode.columns[name]) if name in episode else np.zeros((len(episode), 0))
        every = max(1, len(values) // 2000)
        channel = episode.spec.q if name == "q" else episode.spec.action
        for j in range(min(values.shape[1], 12)):
            axes.plot(episode.t[::every], values[::every, j], linewidth=0.8, label=channel.labels[j])
        if k == 0 and values.shape[1] <= 7:
            axes.legend(fontsize=6)
        axes.tick_params(labelsize=7)
        axes.set_xlabel("time [s]", fontsize=7)
        unit = channel.unit.split(" ")[0]
        axes.set_ylabel(f"{name} [{unit}]" if unit else name, fontsize=7)
