"""Gaussian files of every kind, by their ending."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from instep.core.errors import BadInput
from instep.splat.gaussians import Gaussians, concatenate

from .compact import load_splat, load_spz, save_splat, save_spz
from .embodied import load_embodied, save_embodied
from .gltf import load_gltf, save_gltf
from .ply import load_ply, save_ply
from .usd import load_usd, save_usd


class _Format(NamedTuple):
    load: Callable[[Path], Gaussians]
    save: Callable[[Path, Gaussians], None]
    names_bodies: bool


FORMATS = {
    ".ply": _Format(load_ply, save_ply, False),
    ".splat": _Format(load_splat, save_splat, False),
    ".spz": _Format(load_spz, save_spz, False),
    ".glb": _Format(load_gltf, save_gltf, True),
    ".gltf": _Format(load_gltf, save_gltf, True),
    ".usda": _Format(load_usd, save_usd, True),
    ".usdc": _Format(load_usd, save_usd, True),
    ".usdz": _Format(load_usd, save_usd, True),
    ".json": _Format(load_embodied, save_embodied, True),
}


def load(path: str | Path) -> Gaussians:
    """Read Gaussians. A file without body names gives the body the name of the file."""
    path = Path(path)
    form = _form(path)
    if not path.is_file():
        raise BadInput(f"There is no file {str(path)!r} to read Gaussians from.")
    gaussians = form.load(path)
    return gaussians if form.names_bodies else gaussians.attached_to(path.stem)


def save(path: str | Path, gaussians: Gaussians) -> None:
    """Write Gaussians. Most formats hold one body; glTF and USD hold all."""
    path = Path(path)
    form = _form(path)
    carried = [name for i, name in enumerate(gaussians.names) if (gaussians.body == i).any()]
    if len(carried) > 1 and (not form.names_bodies or path.suffix.lower() == ".json"):
        raise BadInput(
            f"A {path.suffix} file holds one body, these Gaussians are on {', '.join(carried)}; "
            f"write each with gaussians.on(name), or write .glb or .usdc."
        )
    form.save(path, gaussians.on(carried[0]) if len(carried) == 1 else gaussians)


def load_folder(folder: str | Path) -> Gaussians:
    """Read a folder with one file per body, named as the bodies are: world.ply, tee.ply, and so on."""
    folder = Path(folder)
    found = sorted(path for path in folder.glob("*") if path.suffix.lower() in FORMATS)
    if not found:
        raise BadInput(f"There are no Gaussian files ({', '.join(FORMATS)}) in {str(folder)!r}.")
    return concatenate([load(path).attached_to(path.stem) for path in found])


def _form(path: Path) -> _Format:
    form = FORMATS.get(path.suffix.lower())
    if form is None:
        raise BadInput(f"{path.name!r} has no ending of a Gaussian file; known are {', '.join(FORMATS)}.")
    return form
