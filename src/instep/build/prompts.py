"""Prompts: what a user says of where an object is in the images, as words or as a JSON file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from instep.core.errors import BadInput, UnknownName
from instep.core.reading import read_json_table
from instep.core.records import frozen_dataclass
from instep.core.type_guards import is_list, is_table

KINDS = ("click", "not", "box", "colour", "masks", "table")
"""What a prompt may be."""
USAGE = (
    "NAME=click:CAMERA:X,Y, NAME=not:CAMERA:X,Y, NAME=box:CAMERA:LEFT,TOP,RIGHT,BOTTOM, NAME=colour:#RRGGBB, "
    "NAME=masks:FOLDER or NAME=table"
)
Point = tuple[float, float]
Box = tuple[float, float, float, float]


@frozen_dataclass
class ObjectPrompt:
    """What is known of where one object is."""

    name: str
    clicks: Mapping[str, tuple[Point, ...]] = field(default_factory=dict[str, tuple[Point, ...]])
    """Pixels (x, y) on the object, by camera."""
    others: Mapping[str, tuple[Point, ...]] = field(default_factory=dict[str, tuple[Point, ...]])
    """Pixels that are not on it, by camera."""
    boxes: Mapping[str, Box] = field(default_factory=dict[str, Box])
    """Boxes around it, by camera."""
    colour: tuple[float, float, float] | None = None
    """Its colour, 0 to 1."""
    masks: Path | None = None
    """A folder with a mask per camera, CAMERA.png, white on the object and grey where it is unknown."""
    table: bool = False
    """Whether it is everything on the table."""

    @property
    def cameras(self) -> set[str]:
        """The cameras in whose images something was marked."""
        return {*self.clicks, *self.others, *self.boxes}


def parse_prompts(words: Sequence[str]) -> tuple[ObjectPrompt, ...]:
    """The prompts in words such as `tee=click:left:320,200`; several words about one name are one prompt."""
    found: dict[str, ObjectPrompt] = {}
    for word in words:
        name, separator, rest = word.partition("=")
        kind, _, value = rest.partition(":")
        if not separator or not re.fullmatch(r"[A-Za-z_][\w-]*", name) or name == "world" or kind not in KINDS:
            raise BadInput(f"The prompt {word!r} is not understood; one of {USAGE} was expected.")
        found[name] = _with(found.get(name, ObjectPrompt(name)), kind, value, word)
    return tuple(found.values())


def load_prompts(path: Path) -> tuple[ObjectPrompt, ...]:
    """The prompts of a JSON file: {"objects": {NAME: ["click:CAMERA:X,Y", ...]}}."""
    table = read_json_table(path)
    objects = table.get("objects")
    if not is_table(objects) or not objects:
        raise BadInput(f"{path.name} names no objects; a table 'objects' of lists of prompts by name was expected.")
    words: list[str] = []
    for name, prompts in objects.items():
        if not is_list(prompts) or not all(isinstance(one, str) for one in prompts):
            raise BadInput(
                f"The prompts of {name!r} in {path.name} must be a list of texts such as 'click:left:320,200'."
            )
        words += [f"{name}={one}" for one in prompts]
    return parse_prompts(words)


def prompt_words(prompts: Sequence[ObjectPrompt]) -> dict[str, Any]:
    """The prompts as `load_prompts` reads them."""
    return {"objects": {prompt.name: _words(prompt) for prompt in prompts}}


def check_cameras(prompts: Sequence[ObjectPrompt], cameras: Sequence[str]) -> None:
    """Refuse prompts about cameras that there are not."""
    for prompt in prompts:
        for name in sorted(prompt.cameras):
            if name not in cameras:
                raise UnknownName(f"camera (in a prompt of {prompt.name!r})", name, cameras)


def _with(prompt: ObjectPrompt, kind: str, value: str, word: str) -> ObjectPrompt:
    if kind == "table" and not value:
        return replace(prompt, table=True)
    if kind == "masks" and value:
        return replace(prompt, masks=Path(value))
    if kind == "colour" and (digits := re.fullmatch(r"#?([0-9a-fA-F]{6})", value)):
        r, g, b = (int(digits[1][i : i + 2], 16) / 255 for i in (0, 2, 4))
        return replace(prompt, colour=(r, g, b))
    camera, _, text = value.rpartition(":")
    numbers = _numbers(text)
    if camera and kind in ("click", "not") and len(numbers) == 2:
        point = (numbers[0], numbers[1])
        if kind == "click":
            return replace(prompt, clicks={**prompt.clicks, camera: (*prompt.clicks.get(camera, ()), point)})
        return replace(prompt, others={**prompt.others, camera: (*prompt.others.get(camera, ()), point)})
    if camera and kind == "box" and len(numbers) == 4 and numbers[0] < numbers[2] and numbers[1] < numbers[3]:
        left, top, right, bottom = numbers
        return replace(prompt, boxes={**prompt.boxes, camera: (left, top, right, bottom)})
    raise BadInput(f"The prompt {word!r} is not understood; one of {USAGE} was expected.")


def _numbers(text: str) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        return []
    return found if all(abs(number) < 1e6 for number in found) else []


def _words(prompt: ObjectPrompt) -> list[str]:
    words = [f"click:{camera}:{x:g},{y:g}" for camera, points in prompt.clicks.items() for x, y in points]
    words += [f"not:{camera}:{x:g},{y:g}" for camera, points in prompt.others.items() for x, y in points]
    words += [f"box:{camera}:{','.join(f'{n:g}' for n in box)}" for camera, box in prompt.boxes.items()]
    if prompt.colour is not None:
        words.append("colour:#" + "".join(f"{round(255 * c):02x}" for c in prompt.colour))
    if prompt.masks is not None:
        words.append(f"masks:{prompt.masks}")
    return words + ["table"] * prompt.table
