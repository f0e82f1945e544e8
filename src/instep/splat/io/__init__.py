"""Gaussian files of every format, by their ending."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from instep.core.errors import BadInput
from instep.core.reading import check_regular, find_inside, parsing
from instep.splat.gaussians import Z_UP_FROM_Y_UP, Gaussians, concatenate

from .gltf import load_gltf, save_gltf
from .ply import load_ply, load_scanned_body, load_splat, load_spz, save_ply, save_splat, save_spz, stated_up_axis
from .usd import load_usd, save_usd

UpAxis: TypeAlias = Literal["y", "z"]
"""The axis of a file's coordinates that points up."""


MAX_FILE = 16 << 30
"""Largest file of Gaussians [bytes]."""


def _load_embodied(path: Path) -> Gaussians:
    return load_scanned_body(path).gaussians


class _Format(NamedTuple):
    load: Callable[[Path], Gaussians]
    save: Callable[[Path, Gaussians], None] | None
    scene: bool
    """Whether a file names its bodies and may hold several."""
    frame: str
    """Up axis that the format defines; empty if it defines none."""


FORMATS = {
    ".ply": _Format(load_ply, save_ply, scene=False, frame=""),
    ".splat": _Format(load_splat, save_splat, scene=False, frame=""),
    ".spz": _Format(load_spz, save_spz, scene=False, frame="y"),
    ".glb": _Format(load_gltf, save_gltf, scene=True, frame="y"),
    ".gltf": _Format(load_gltf, save_gltf, scene=True, frame="y"),
    ".usda": _Format(load_usd, save_usd, scene=True, frame="z"),
    ".usdc": _Format(load_usd, save_usd, scene=True, frame="z"),
    ".usdz": _Format(load_usd, save_usd, scene=True, frame="z"),
    ".json": _Format(_load_embodied, None, scene=True, frame="z"),
}


def load_gaussians(path: str | Path, *, up: UpAxis = "z") -> Gaussians:
    """Read a Gaussian file, or a folder with one file per body: world.ply, tee.ply, and so on.

    The files of a folder, and files of formats without body names, name the body. Gaussians are Z up, as scenes are:
    formats that define another up axis are rotated, and so are .ply files that state one. `up` is the axis of .ply and
    .splat files that state none.
    """
    path = Path(path)
    if path.is_dir():
        found = [file for file in find_inside(path, "*") if file.suffix.lower() in FORMATS]
        if not found:
            raise BadInput(f"There are no Gaussian files ({', '.join(FORMATS)}) in {str(path)!r}.")
        return concatenate([load_gaussians(file, up=up).attached_to(file.stem) for file in found])
    form = _format(path)
    check_regular(path, MAX_FILE)
    with parsing(path, f"Gaussians ({path.suffix})"):
        gaussians = form.load(path)
    if not form.frame:
        axis = (stated_up_axis(path) if form.load is load_ply else "") or up
        if axis not in ("y", "z"):
            raise BadInput(f"{path.name} states the up axis {axis!r}; Gaussians with y or z up are read, so rotate it.")
        gaussians = gaussians.moved(Z_UP_FROM_Y_UP) if axis == "y" else gaussians
    return gaussians if form.scene else gaussians.attached_to(path.stem)


def save_gaussians(path: str | Path, gaussians: Gaussians, *, up: UpAxis = "z") -> None:
    """Write Gaussians. Most formats hold one body; glTF and USD hold all.

    Viewers take .ply and .splat files for Y up, as .spz and glTF files are by definition: with `up="y"` all of them
    open the same way up. A .ply file states its up axis, so that it comes back as it was.
    """
    path = Path(path)
    form = _format(path)
    if form.save is None:
        raise BadInput(f"{path.suffix} files of Gaussians are read, not written; write .ply, .glb or .usdc.")
    if up != "z" and form.frame:
        raise BadInput(f"The up axis of a {path.suffix} file is {form.frame} by definition; leave `up` out.")
    used = [name for i, name in enumerate(gaussians.names) if (gaussians.body == i).any()]
    if len(used) > 1 and not form.scene:
        raise BadInput(
            f"A {path.suffix} file holds one body, these Gaussians are on {', '.join(used)}; "
            f"write each with gaussians.on(name), or write .glb or .usdc."
        )
    part = gaussians.on(used[0]) if len(used) == 1 else gaussians
    part = part.moved(np.linalg.inv(Z_UP_FROM_Y_UP)) if up == "y" else part
    if form.save is save_ply:
        save_ply(path, part, up)
    else:
        form.save(path, part)


def _format(path: Path) -> _Format:
    form = next((form for ending, form in FORMATS.items() if path.name.lower().endswith(ending)), None)
    if form is None:
        raise BadInput(f"{path.name!r} has no ending of a Gaussian file; known are {', '.join(FORMATS)}.")
    return form
