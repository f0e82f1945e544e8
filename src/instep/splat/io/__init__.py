"""Gaussian files of every format, by their ending."""

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
    named: bool
    """Whether a file names its bodies."""
    many: bool
    """Whether a file holds several bodies."""


FORMATS = {
    ".ply": _Format(load_ply, save_ply, named=False, many=False),
    ".splat": _Format(load_splat, save_splat, named=False, many=False),
    ".spz": _Format(load_spz, save_spz, named=False, many=False),
    ".glb": _Format(load_gltf, save_gltf, named=True, many=True),
    ".gltf": _Format(load_gltf, save_gltf, named=True, many=True),
    ".usda": _Format(load_usd, save_usd, named=True, many=True),
    ".usdc": _Format(load_usd, save_usd, named=True, many=True),
    ".usdz": _Format(load_usd, save_usd, named=True, many=True),
    ".json": _Format(load_embodied, save_embodied, named=True, many=False),
}


def load_gaussians(path: str | Path) -> Gaussians:
    """Read a Gaussian file, or a folder with one file per body: world.ply, tee.ply, and so on.

    The files of a folder, and files of formats without body names, name the body.
    """
    path = Path(path)
    if path.is_dir():
        found = sorted(file for file in path.glob("*") if file.suffix.lower() in FORMATS)
        if not found:
            raise BadInput(f"There are no Gaussian files ({', '.join(FORMATS)}) in {str(path)!r}.")
        return concatenate([load_gaussians(file).attached_to(file.stem) for file in found])
    form = _format(path)
    if not path.is_file():
        raise BadInput(f"There is no file {str(path)!r} to read Gaussians from.")
    gaussians = form.load(path)
    return gaussians if form.named else gaussians.attached_to(path.stem)


def save_gaussians(path: str | Path, gaussians: Gaussians) -> None:
    """Write Gaussians. Most formats hold one body; glTF and USD hold all."""
    path = Path(path)
    form = _format(path)
    used = [name for i, name in enumerate(gaussians.names) if (gaussians.body == i).any()]
    if len(used) > 1 and not form.many:
        raise BadInput(
            f"A {path.suffix} file holds one body, these Gaussians are on {', '.join(used)}; "
            f"write each with gaussians.on(name), or write .glb or .usdc."
        )
    form.save(path, gaussians.on(used[0]) if len(used) == 1 else gaussians)


def _format(path: Path) -> _Format:
    form = FORMATS.get(path.suffix.lower())
    if form is None:
        raise BadInput(f"{path.name!r} has no ending of a Gaussian file; known are {', '.join(FORMATS)}.")
    return form
