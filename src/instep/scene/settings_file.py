"""TOML files of a scene folder: read them, write a new `scene.toml`, replace `[settings]` while comments stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from instep.core.reading import parse_toml, parsing, read_text

if TYPE_CHECKING:
    from .folder import Scene


def read_table(path: Path) -> dict[str, Any]:
    """The content of a TOML file; `BadInput` where it is not valid."""
    return parse_toml(read_text(path), f"{path.name} in {path.parent.name}")


def write_scene_table(path: Path, scene: Scene, about: str = "", *, cameras: Sequence[str] = ()) -> None:
    """Write the `scene.toml` of a scene that was read from a robot file, for a model in `scene.xml` beside it.

    `cameras` are those of the model, where it has others than the robot file.
    """
    import tomlkit

    table = tomlkit.document()
    if about:
        table.add("about", about)
    table.add("model", "scene.xml")
    rate = tomlkit.item(1 / scene.dt)
    rate.comment(f"control rate [Hz]: {round(scene.dt / scene.model.opt.timestep)} physics steps")
    table.add("rate", rate)
    parts: dict[str, dict[str, object]] = {"robot": {"joints": list(scene.robot)}}
    if scene.objects:
        parts["objects"] = {"bodies": list(scene.objects)}
    if "keyframe" in scene.initial:
        parts["start"] = {"keyframe": scene.initial["keyframe"]}
    for name, entries in parts.items():
        table.add(name, tomlkit.item(entries))
    if named := list(cameras) or list(scene.cameras):
        table.add("cameras", tomlkit.item({name: {} for name in named}))
    path.write_text(tomlkit.dumps(table), encoding="utf-8")


def write_settings(path: Path, settings: Mapping[str, float]) -> None:
    """Replace the `[settings]` of a TOML file, which is made where it is missing; all else stays as it is.

    Comments stay too, also those beside a setting that keeps its name.
    """
    import tomlkit

    table: Any = commented_table(path) if path.is_file() else tomlkit.document()
    before, new = table.get("settings"), tomlkit.table()
    body: list[tuple[Any, Any]] = list(before.value.body) if before is not None else []
    # What follows the last setting belongs to the next table.
    end = max((i + 1 for i, (key, _) in enumerate(body) if key is not None), default=0)
    for key, item in body[:end]:
        if key is None:
            new.add(item)
        elif key.key in settings:
            value = tomlkit.item(float(settings[key.key]))
            if item.trivia.comment:
                value.comment(item.trivia.comment.lstrip("# "))
            new.add(key.key, value)
    for name, value in settings.items():
        if name not in new:
            new.add(name, float(value))
    for _, item in body[end:]:
        new.add(item)
    if before is not None:
        table["settings"] = new
    else:
        table.add("settings", new)
    path.write_text(tomlkit.dumps(table), encoding="utf-8")


def commented_table(path: Path) -> Any:
    """The content of a TOML file with its comments, as a document of tomlkit, which does not say what it holds."""
    import tomlkit

    text = read_text(path)
    with parsing(path, "TOML"):
        return tomlkit.parse(text)
