"""Photographs as structure from motion reads them: reduced copies, focal lengths from EXIF, and what is unfit."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from instep.core.errors import BadInput
from instep.core.reading import find_inside, read_file
from instep.core.records import array_dataclass
from instep.core.world import Array
from instep.data.frames import MAX_IMAGE, Frames, declared_size, decode_image, open_video
from instep.splat.rendering import save_png

from .capture_checks import MAX_EDGE_PX, edge_width
from .posed_views import MAX_PIXELS, MAX_SIDE_PX
from .stage_store import PartReport

MAX_PHOTOS = 150
"""Most photographs that are posed at once: all pairs of them are matched."""
STILLS = (".png", ".jpg", ".jpeg")
VIDEOS = (".mp4", ".mkv", ".mov", ".avi", ".webm")
_EXIF, _FOCAL_35MM, _ORIENTATION = 0x8769, 0xA405, 0x0112
_FILM_DIAGONAL_MM = 43.27


@array_dataclass
class Photo:
    """A photograph, of which a reduced copy lies in `images/NAME.png` of a working folder."""

    name: str
    path: Path
    width: int
    height: int
    factor: int
    """How much smaller the copy is."""
    focal: float | None
    """Focal length [pixels] by EXIF, of the photograph as it is."""


def read_images(source: Path, most: int) -> Iterator[tuple[str, Path | None, Array]]:
    """Names, files and images of a folder, or names and images of evenly spread frames of a video."""
    if source.is_dir():
        for path in image_files(source):
            yield path.stem, path, read_photo(path)
    elif source.suffix.lower() in VIDEOS and source.is_file():
        frames: Frames = open_video(source)
        wanted = set(np.linspace(0, len(frames) - 1, min(max(most, 2), len(frames))).round().astype(int).tolist())
        for number, image in enumerate(frames):
            if number in wanted:
                yield f"f{number:05d}", None, image
    else:
        raise BadInput(f"{str(source)!r} is neither a folder of images nor a video ({', '.join(VIDEOS)}).")


def image_files(folder: Path) -> list[Path]:
    """The images of a folder, by name."""
    files = sorted(path for path in find_inside(folder, "*") if path.suffix.lower() in STILLS)
    if not files:
        raise BadInput(f"{str(folder)!r} holds no images ({', '.join(STILLS)}).")
    return files


def read_photo(path: Path) -> Array:
    """An image [height, width, 3] uint8; BadInput where it is larger than what is read, before it is decoded."""
    data = read_file(path, MAX_IMAGE)
    width, height = declared_size(data)
    if width * height > MAX_PIXELS:
        raise BadInput(
            f"{path.name!r} has {width * height / 1e6:.0f} megapixels, and at most {MAX_PIXELS / 1e6:.0f} are read; "
            "reduce all photographs by the same factor."
        )
    return decode_image(data)


def prepare_photos(
    source: Path, work: Path, most: int, masks: Path | None, report: PartReport
) -> tuple[list[Photo], list[str]]:
    """Photographs that are fit, with reduced copies of them (and of their masks), and why others are left out."""
    kept, left_out = list[Photo](), list[str]()
    for folder in ("images", "frames", "masks"):
        (work / folder).mkdir()
    count = _count(source, most)
    for name, path, image in read_images(source, most):
        done = len(kept) + len(left_out)
        report(done / count, f"reading photographs: {done + 1} of {count}")
        if any(photo.name == name for photo in kept):
            raise BadInput(f"Two photographs are named {name!r}; every one needs a name of its own.")
        focal, orientation = (None, 1) if path is None else _exif(path)
        image = _upright(image, orientation)
        factor = int(np.ceil(max(image.shape[:2]) / MAX_SIDE_PX))
        small = _reduced(image, factor)
        if edge_width(small / 255) > MAX_EDGE_PX:
            left_out.append(f"{name}: blurred or blank.")
            continue
        save_png(work / "images" / f"{name}.png", small)
        if masks is not None:
            _copy_mask(masks, name, image.shape[:2], factor, work)
        if path is None or orientation != 1:  # a copy of the file would be shown otherwise than it is read
            path = work / "frames" / f"{name}.png"
            save_png(path, image)
        if focal is not None:
            focal *= math.hypot(*image.shape[:2]) / _FILM_DIAGONAL_MM
        kept.append(Photo(name, path, image.shape[1], image.shape[0], factor, focal))
    return kept, left_out


def _count(source: Path, most: int) -> int:
    count = len(image_files(source)) if source.is_dir() else most
    if count > MAX_PHOTOS:
        raise BadInput(
            f"{count} photographs are more than the {MAX_PHOTOS} that are posed at once; 20 to 60, spread evenly, do."
        )
    return count


def _reduced(image: Array, factor: int) -> Array:
    """An image reduced by a whole factor."""
    height, width = image.shape[0] // factor, image.shape[1] // factor
    part = image[: height * factor, : width * factor]
    if factor == 1:
        return part
    return part.reshape(height, factor, width, factor, -1).mean(axis=(1, 3)).astype(np.uint8)


def _copy_mask(masks: Path, name: str, size: Sequence[int], factor: int, work: Path) -> None:
    path = masks / f"{name}.png"
    if not path.is_file():
        raise BadInput(f"--masks {str(masks)!r} holds no {path.name}; one for each photograph was expected.")
    mask = read_photo(path)
    if mask.shape[:2] != tuple(size):
        raise BadInput(f"The mask {path.name} measures {mask.shape[:2]} pixels, and its photograph {tuple(size)}.")
    save_png(work / "masks" / f"{name}.png.png", np.where(_reduced(mask, factor) > 127, 255, 0).astype(np.uint8))


def _exif(path: Path) -> tuple[float | None, int]:
    """The focal length for film of 36 x 24 mm [mm] and the orientation that EXIF states."""
    from PIL import Image, UnidentifiedImageError  # comes with Matplotlib

    if path.suffix.lower() == ".png":
        return None, 1
    try:
        with Image.open(io.BytesIO(read_file(path, MAX_IMAGE))) as opened:
            table = opened.getexif()
            millimetres = float(table.get_ifd(_EXIF).get(_FOCAL_35MM, 0.0))
            orientation = int(table.get(_ORIENTATION, 1))
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, ValueError, TypeError, SyntaxError):
        return None, 1  # an image whose EXIF is damaged is as good as one that has none
    return millimetres if 5.0 < millimetres < 500.0 else None, orientation


def _upright(image: Array, orientation: int) -> Array:
    """An image as viewers show it, by the orientation of EXIF."""
    if orientation in (5, 6, 7, 8):
        image = image.transpose(1, 0, 2)
    down, across = orientation in (3, 4, 7, 8), orientation in (2, 3, 6, 7)
    return np.ascontiguousarray(image[:: -1 if down else 1, :: -1 if across else 1])
