"""The stage of a build that segments: masks of all objects that prompts name, in all views that show them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array
from instep.splat.image import to_bytes
from instep.splat.rendering import save_png

from .box_masks import masks_by_boxes, propagated
from .posed_views import PosedView
from .prompt_segmenter import open_segmenter
from .prompted_masks import prompted_masks
from .prompts import ObjectPrompt
from .silhouettes import ObjectMask
from .stage_store import FOLDER, PartReport, StageOutput
from .table_objects import split_objects


def segment_objects(
    views: Sequence[PosedView], prompts: Sequence[ObjectPrompt], plane: Array, work: Path, weights: Path | None,
    report: PartReport,
) -> StageOutput:  # fmt: skip
    """The masks of all objects as arrays alpha:NAME:CAMERA and known:NAME:CAMERA, with images of them for people.

    `weights` is the folder of a network that takes clicks and boxes; a graph cut is used where it is None.
    """
    arrays, info, found = dict[str, Array](), dict[str, Any](), dict[str, Any]()
    segmenter = None if weights is None else open_segmenter(weights)
    boxed = segmenter is None and propagated(prompts, views)
    together = masks_by_boxes(views, prompts, plane, report) if boxed else None
    objects: dict[str, Sequence[ObjectMask]] = {}
    for i, prompt in enumerate(sorted(prompts, key=lambda one: one.table)):  # what is left on the table comes last
        if together is not None:
            masks, found[prompt.name] = together[prompt.name], {"by": "boxes, carried over to all views"}
        else:
            part: PartReport = lambda s, words, i=i: report((i + s) / len(prompts), words)  # noqa: E731
            chosen = prompted_masks(views, prompt, plane, segmenter, part)
            masks, found[prompt.name] = chosen.masks, dict(chosen.info)
        masks = [_beside_robot(mask, views) for mask in masks]
        if prompt.table:
            split = split_objects(prompt.name, views, masks, plane, objects)
            found[prompt.name] |= {"objects": split.info}
            new = split.masks
        else:
            new = {prompt.name: masks}
        for name in new:
            if name in objects:
                raise BadInput(f"{name!r} is an object of {prompt.name!r} and of another prompt; name one otherwise.")
        objects |= new
    for name, masks in objects.items():
        for mask in masks:
            arrays[f"alpha:{name}:{mask.camera.name}"] = (255 * mask.alpha + 0.5).astype(np.uint8)
            arrays[f"known:{name}:{mask.camera.name}"] = mask.known
        info[name] = {
            m.camera.name: {"pixels": int(m.inside.sum()), "unknown": float((~m.known).mean()), "cut": bool(m.cut)}
            for m in masks
        }
        _save_overlays(work / FOLDER / "masks" / name, views, masks)
    return StageOutput(arrays, {"objects": info, "found": found})


def _beside_robot(mask: ObjectMask, views: Sequence[PosedView]) -> ObjectMask:
    """The mask, unknown where the robot may be in front."""
    hidden = next(view.hidden for view in views if view.name == mask.camera.name)
    return mask if hidden is None else replace(mask, known=mask.known & ~hidden)


def _save_overlays(folder: Path, views: Sequence[PosedView], masks: Sequence[ObjectMask]) -> None:
    """Write the views that show an object, one PNG each: the object green, what is unknown blue."""
    folder.mkdir(parents=True, exist_ok=True)
    images = {view.name: view.image for view in views}
    for mask in masks:
        image = 0.6 * images[mask.camera.name]
        image[..., 1] += 0.4 * mask.alpha
        image[..., 2] += 0.4 * ~mask.known
        save_png(folder / f"{mask.camera.name}.png", to_bytes(image))
