"""One picture of a demo: the gap before and after, and what the camera saw."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from instep.core.world import Array
from instep.gap.records import Curve


def poster(path: Path, curves: Mapping[str, Curve], picture: Array | None) -> Path:
    """Draw curves over the horizon with their intervals, and beside them a picture where there is one."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    widths = [1.0, 0.62] if picture is not None else [1.0]
    figure, axes = pyplot.subplots(
        1, len(widths), figsize=(5.2 * sum(widths), 3.5), width_ratios=widths, constrained_layout=True, squeeze=False
    )
    _curves(axes[0, 0], curves)
    if picture is not None:
        axes[0, 1].imshow(picture)
        axes[0, 1].set_axis_off()
        axes[0, 1].set_title("stand-in above, simulator below", fontsize=10, loc="left")
    stream = io.BytesIO()
    figure.savefig(stream, dpi=130, format="png")
    pyplot.close(figure)
    path.write_bytes(stream.getvalue())
    return path


def _curves(axes, curves: Mapping[str, Curve]) -> None:
    for (name, curve), colour in zip(curves.items(), ("#c0392b", "#1f6f8b"), strict=False):
        x = np.arange(len(curve.estimates))
        value, low, high = (
            1e3 * np.array([getattr(e, part) for e in curve.estimates]) for part in ("value", "low", "high")
        )
        axes.plot(x, value, marker="o", color=colour, label=name)
        axes.fill_between(x, np.where(np.isfinite(low), low, value), np.where(np.isfinite(high), high, value),
                          color=colour, alpha=0.15, linewidth=0)  # fmt: skip
        axes.set_xticks(x, curve.names())
    axes.set(xlabel="how far ahead", ylabel="error of the joints [mm]", yscale="log")
    axes.set_title("how wrong the simulator is", fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.25)
    axes.legend(frameon=False)
