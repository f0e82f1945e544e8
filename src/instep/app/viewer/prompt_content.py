"""Marking objects in images: clicks and boxes from a page, the masks that they give, and a file of prompts."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.errors import BadInput, InstepError, UnknownName
from instep.core.reading import is_mapping, is_sequence
from instep.core.world import Array
from instep.reconstruct.capture.posed_views import PosedView
from instep.reconstruct.masks.prompted_masks import mask_by_prompt
from instep.reconstruct.masks.prompts import (
    Box,
    ImageMarks,
    ObjectPrompt,
    Point,
    PromptNetwork,
    load_prompts,
    parse_prompts,
    prompt_words,
)
from instep.splat.image import to_bytes

from .messages import encode, image_message

MAX_MARKS = 200
"""Most clicks in one image."""


class PromptContent:
    """Views in which objects are marked; each change is written to a file, as `instep reconstruct --prompts` reads
    it."""

    gaussians = False

    def __init__(self, views: Sequence[PosedView], path: Path, segmenter: PromptNetwork | None = None):
        self._views = {view.name: view for view in views}
        self._path, self._segmenter = path, segmenter
        found = load_prompts(path) if path.exists() else ()
        self._prompts = {prompt.name: prompt for prompt in found}
        self._kept: dict[tuple[str, ImageMarks], Array] = {}
        self._lock = threading.Lock()

    def opening(self) -> Sequence[bytes]:
        """The views, and what was marked in them before; the page asks for the masks of that."""
        cameras = [{"name": v.name, "width": v.camera.width, "height": v.camera.height} for v in self._views.values()]
        how = "a graph cut" if self._segmenter is None else str(self._segmenter.provenance["segmenter"])
        header = {
            "title": "Mark objects in the images", "file": self._path.name, "segmenter": how, "views": cameras,
            "objects": {name: self._marked(prompt) for name, prompt in self._prompts.items()},
        }  # fmt: skip
        messages = [encode("views", header)]
        messages += [image_message(view.name, "", 0.0, to_bytes(view.image)) for view in self._views.values()]
        return messages

    def prepare(self) -> None:
        """Encode the images before the first click, where the segmenter does."""
        for view in self._views.values():
            if self._segmenter is not None:
                self._segmenter.encoding(view.image)

    def answer(self, request: Mapping[str, Any]) -> Sequence[bytes]:
        """New marks of an object in a view, or the end of an object: the file is written, then masks are found."""
        given, removed, shown = request.get("marks"), request.get("remove"), request.get("masks")
        with self._lock:
            if isinstance(shown, str) and shown in self._prompts:
                return [*self._masks(shown), self._status(shown)]
            if isinstance(removed, str):
                self._prompts.pop(removed, None)
                self._write()
                return [encode("status", {"text": f"{removed} is removed from {self._path.name}", "level": "info"})]
            if not is_mapping(given):
                return ()
            name = self._take(given)
            self._write()
            return [*self._masks(name), self._status(name)]

    def _status(self, name: str) -> bytes:
        marked = sum(bool(self._prompts[name].marks(camera)) for camera in self._views)
        words = f"{name} is marked in {marked} of {len(self._views)} views, in {self._path.name}"
        return encode("status", {"text": words, "level": "info"})

    def _take(self, given: Mapping[str, Any]) -> str:
        """Keep the marks that a page sent; the name of their object."""
        name, camera = str(given.get("object", "")), str(given.get("camera", ""))
        if camera not in self._views:
            raise UnknownName("camera", camera, self._views)
        lens = self._views[camera].camera
        marks = ImageMarks(
            _points(given.get("clicks"), lens.width, lens.height),
            _points(given.get("others"), lens.width, lens.height),
            _box(given.get("box")),
        )
        [named] = parse_prompts([f"{name}=table"])  # refuses what is no name
        prompt = self._prompts.get(named.name, ObjectPrompt(named.name))
        clicks, others, boxes = dict(prompt.clicks), dict(prompt.others), dict(prompt.boxes)
        for table, value in ((clicks, marks.clicks), (others, marks.others), (boxes, marks.box)):
            table.pop(camera, None)
            if value:
                table[camera] = value  # pyright: ignore[reportArgumentType]
        self._prompts[name] = replace(prompt, clicks=clicks, others=others, boxes=boxes)
        return name

    def _masks(self, name: str) -> list[bytes]:
        """The masks of an object in all views, as the build would find them; none where it is not marked."""
        prompt, found = self._prompts[name], dict[str, Array]()
        marked = {camera: marks for camera in self._views if (marks := prompt.marks(camera))}
        try:
            found = {camera: self._mask(prompt, camera, marks) for camera, marks in marked.items()}
        except InstepError as error:
            return [encode("status", {"text": str(error), "level": "bad"})]
        out: list[bytes] = []
        for camera, view in self._views.items():
            bits = np.packbits(found[camera]) if camera in found else np.zeros(0, np.uint8)
            header = {"object": name, "camera": camera, "width": view.camera.width, "height": view.camera.height}
            out.append(encode("mask", header, {"inside": bits}))
        return out

    def _mask(self, prompt: ObjectPrompt, camera: str, marks: ImageMarks) -> Array:
        if (camera, marks) not in self._kept:
            view = self._views[camera]
            mask = mask_by_prompt(view, replace(prompt, colour=None), self._segmenter)
            self._kept[camera, marks] = np.zeros(view.image.shape[:2], bool) if mask is None else mask.alpha > 0.5
        return self._kept[camera, marks]

    def _marked(self, prompt: ObjectPrompt) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for camera in self._views:
            marks = prompt.marks(camera)
            if marks or marks.others:
                out[camera] = {"clicks": marks.clicks, "others": marks.others, "box": marks.box}
        return out

    def _write(self) -> None:
        """Write the file whole or not at all: a build may read it meanwhile."""
        part = self._path.with_name(f"{self._path.name}.part")
        part.write_text(json.dumps(prompt_words(tuple(self._prompts.values())), indent=1) + "\n", encoding="utf-8")
        part.replace(self._path)


def _numbers(given: object, count: int) -> list[float]:
    if not is_sequence(given) or len(given) != count or not all(isinstance(x, int | float) for x in given):
        raise BadInput(f"A mark is {count} numbers [pixels], not {given!r}.")
    found = [float(x) for x in given]
    if not np.isfinite(found).all():
        raise BadInput("A mark has finite numbers.")
    return found


def _points(given: object, width: int, height: int) -> tuple[Point, ...]:
    if not is_sequence(given) or len(given) > MAX_MARKS:
        raise BadInput(f"Marks are a list of at most {MAX_MARKS} clicks.")
    found: list[Point] = []
    for one in given:
        x, y = _numbers(one, 2)
        if not (0 <= x < width and 0 <= y < height):
            raise BadInput(f"The click ({x:g}, {y:g}) is outside the image, which has {width} x {height} pixels.")
        found.append((x, y))
    return tuple(found)


def _box(given: object) -> Box | None:
    if given is None:
        return None
    left, top, right, bottom = _numbers(given, 4)
    if left >= right or top >= bottom:
        raise BadInput("A box is left, top, right, bottom, with some size.")
    return left, top, right, bottom
