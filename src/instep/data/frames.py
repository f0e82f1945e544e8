"""Image columns decoded on access: frames of a video file with a cache, or compressed still images."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Protocol, overload

import numpy as np

from instep.core.errors import BadInput
from instep.core.reading import parsing
from instep.core.world import Array, array_dataclass, frozen_dataclass
from instep.data import video
from instep.report.page import encode_png as encode_png

from .files import library
from .video import decode, index_of

MAX_IMAGE = 256 << 20
"""Largest file of one image [bytes]."""
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of JPEG headers that state the size."""


class ImageSource(Protocol):
    """Where images come from, by number."""

    @property
    def size(self) -> tuple[int, int]:
        """Height and width [pixels]."""
        ...

    @property
    def path(self) -> Path | None:
        """The video file, where the images are in one."""
        ...

    def images(self, numbers: Array) -> Iterator[Array]:
        """The images with these numbers [height, width, 3] uint8."""
        ...


@array_dataclass
class Frames:
    """Images like an array [frames, height, width, 3] uint8.

    A number gives one image, a slice or a list of numbers fewer frames still in their file, and `np.asarray`
    decodes them all.
    """

    source: ImageSource
    numbers: Array
    """Which images of the source these are."""

    @property
    def shape(self) -> tuple[int, ...]:
        """As an array's."""
        return (len(self.numbers), *self.source.size, 3)

    @property
    def dtype(self) -> np.dtype[Any]:
        """As an array's."""
        return np.dtype(np.uint8)

    @property
    def ndim(self) -> int:
        """As an array's."""
        return 4

    @property
    def nbytes(self) -> int:
        """Bytes once decoded."""
        return int(np.prod(self.shape))

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, which: int) -> Array: ...
    @overload
    def __getitem__(self, which: slice | Array | Sequence[int]) -> Frames: ...
    def __getitem__(self, which: Any) -> Any:
        if np.ndim(which) == 0 and not isinstance(which, slice):
            return next(self.source.images(np.atleast_1d(self.numbers[which])))
        return Frames(self.source, self.numbers[which])

    def __iter__(self) -> Iterator[Array]:
        return self.source.images(self.numbers)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        out = np.empty(self.shape, np.uint8)
        for k, image in enumerate(self):
            out[k] = image
        return out if dtype is None else out.astype(dtype)


@frozen_dataclass
class VideoFile:
    """The frames of a video file."""

    path: Path
    size: tuple[int, int]

    @property
    def name(self) -> str:
        """The path, by which `Format.images` opens it again."""
        return str(self.path)

    def images(self, numbers: Array) -> Iterator[Array]:
        """Frames in one pass where they stand in a row, else each from the cache."""
        row = len(numbers) > 1 and consecutive(numbers)
        decoded = video.decode(self.path, int(numbers[0]), int(numbers[-1]) + 1) if row else None
        return _of_size(
            self.size, numbers, decoded or (CACHE.frame(self.path, int(n)) for n in numbers), f" of {str(self.path)!r}"
        )


@array_dataclass
class IndexedImages:
    """Images that a function reads one by one, all of one size."""

    read: Callable[[int], Array]
    """Image k [height, width, 3] uint8."""
    size: tuple[int, int]
    path: Path | None = None

    def images(self, numbers: Array) -> Iterator[Array]:
        """The images with these numbers."""
        return _of_size(self.size, numbers, (self.read(int(number)) for number in numbers))


@array_dataclass
class CompressedImages:
    """PNG or JPEG images that a function reads one by one, all of one size."""

    read: Callable[[int], bytes]
    size: tuple[int, int]
    title: str = ""
    """Name in errors."""
    path: Path | None = None

    def images(self, numbers: Array) -> Iterator[Array]:
        """The images with these numbers."""
        decoded = (decode_image(self.read(int(number)), self.title) for number in numbers)
        return _of_size(self.size, numbers, decoded)


def _of_size(size: tuple[int, int], numbers: Array, images: Iterable[Array], where: str = "") -> Iterator[Array]:
    """The images as they come, each checked to be as large as its column says; a damaged video changes its size."""
    for number, image in zip(numbers, images, strict=True):
        if image.shape[:2] != size:
            raise BadInput(
                f"Image {number}{where} measures {image.shape[:2]} pixels, but its camera's are {size}; "
                "all images of one camera must be alike."
            )
        yield image


def open_video(path: Path, start: int = 0, count: int | None = None) -> Frames:
    """The frames of a video file from `start`, checked to be there but not decoded."""
    what = video.facts(path)
    count = what.frames - start if count is None else count
    if start < 0 or start + count > what.frames:
        raise BadInput(
            f"{str(path)!r} holds {what.frames} frames, but frames {start} to {start + count} are requested: "
            "the video and its table disagree."
        )
    return Frames(VideoFile(path, (what.height, what.width)), np.arange(start, start + count))


def open_stills(read: Callable[[int], bytes], count: int, name: str = "") -> Frames:
    """Compressed images by number; the first is decoded to learn their size. `name` says in errors which they are."""
    if count < 1:
        raise BadInput("A camera needs at least one image, and none was found.")
    height, width, _ = decode_image(read(0), name).shape
    return Frames(CompressedImages(read, (int(height), int(width)), name), np.arange(count))


def consecutive(numbers: Array) -> bool:
    """Whether numbers stand in a row, each one more than the last."""
    return bool(len(numbers)) and bool((np.diff(numbers) == 1).all())


def decode_image(data: bytes, name: str = "") -> Array:
    """A PNG or JPEG image [height, width, 3] uint8; `name` says in errors which."""
    av = library("av")

    codec = "png" if data[:8] == b"\x89PNG\r\n\x1a\n" else "mjpeg" if data[:2] == b"\xff\xd8" else ""
    if not codec:
        what = f"The image {name!r}" if name else f"An image of {len(data)} bytes"
        raise BadInput(f"{what} is neither PNG nor JPEG; only these two are read.")
    name = name or f"an image of {len(data)} bytes"
    video.check_pixels(*declared_size(data), name)
    with parsing(name, f"{codec}, so it is damaged"):
        context: Any = av.codec.CodecContext.create(codec, "r")
        frames = context.decode(av.Packet(data)) or context.decode(None)
        return frames[0].to_ndarray(format="rgb24")


def declared_size(data: bytes) -> tuple[int, int]:
    """Width and height [pixels] in the header of a PNG or JPEG image; 0 where it has none."""
    if data[:4] == b"\x89PNG":
        return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    place = 2
    while place + 9 <= len(data) and data[place] == 0xFF:
        if data[place + 1] in _JPEG_FRAMES:
            return int.from_bytes(data[place + 7 : place + 9], "big"), int.from_bytes(
                data[place + 5 : place + 7], "big"
            )
        place += 2 + int.from_bytes(data[place + 2 : place + 4], "big")
    return 0, 0


MAX_CACHED = 1 << 29
"""Bytes of decoded frames that one process keeps."""
DECODERS = 8
"""Most files that are held open to go on decoding."""
FileKey = tuple[str, int, int, int]
"""Path, time of change and size of a file, and the process that decodes it."""


class FrameCache:
    """Decoded frames of one process, the least recently used forgotten first.

    Videos may have one key frame in hundreds; so a decoder goes on where it was rather than beginning at the last key
    frame for each frame, as long as frames are requested in order.
    """

    def __init__(self, limit: int = MAX_CACHED):
        self._limit, self._used = limit, 0
        self._frames: OrderedDict[tuple[FileKey, int], Array] = OrderedDict()
        self._decoders: OrderedDict[FileKey, tuple[int, Generator[Array]]] = OrderedDict()
        """The next frame of each decoder, and its images."""
        self._lock = Lock()

    def frame(self, path: Path, number: int) -> Array:
        """One frame [height, width, 3] uint8, decoded with those before it when it is not at hand."""
        stat = path.stat()
        file = (str(path), stat.st_mtime_ns, stat.st_size, os.getpid())  # a forked process shares no file
        with self._lock:
            if (file, number) in self._frames:
                self._frames.move_to_end((file, number))
                return self._frames[file, number]
            # While one thread decodes, another that reads the same file begins a decoder of its own.
            decoder = self._decoders.pop(file, None)
        index = index_of(path)
        keys = np.flatnonzero(index.key[: number + 1])
        first = int(keys[-1]) if len(keys) else 0
        at, images = decoder if decoder and first <= decoder[0] <= number else (first, None)
        images = images or decode(path, first, len(index.pts))
        while True:
            image = next(images)
            image.setflags(write=False)
            with self._lock:
                if (file, at) not in self._frames:
                    self._frames[file, at] = image
                    self._used += image.nbytes
                while self._used > self._limit:
                    self._used -= self._frames.popitem(last=False)[1].nbytes
            at += 1
            if at > number:
                break
        with self._lock:
            self._decoders[file] = (at, images)
            if len(self._decoders) > DECODERS:
                self._decoders.popitem(last=False)
        return image


CACHE = FrameCache()
