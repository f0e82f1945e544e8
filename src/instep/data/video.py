"""Video files: encode images, copy packets without loss, index and decode frames. PyAV's objects stay `Any` here."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from instep.core.errors import BadInput, Unsupported
from instep.core.reading import check_regular, first_line, parsing
from instep.core.world import Array, array_dataclass, frozen_dataclass, options_dataclass

from .files import MAX_RECORDING, library

MAX_SIDE = 16_384
"""Most pixels along a side of an image or video that is read."""


@options_dataclass
class VideoOptions:
    """How images become video."""

    codec: str = "auto"
    """An encoder of PyAV; `auto` is libsvtav1 where it is built in, else H.264."""
    crf: int = 30
    """Constant rate factor: lower is better and larger."""
    preset: str = "12"
    """Speed of libsvtav1; H.264 uses `veryfast`."""
    g: int = 2
    """Frames from one key frame to the next; 2 makes random access cheap."""
    pix_fmt: str = "yuv420p"


@frozen_dataclass
class VideoFacts:
    """What a video file says of itself."""

    width: int
    height: int
    codec: str
    pix_fmt: str
    frames: int


def encoder(options: VideoOptions) -> str:
    """The encoder that will be used, checked to be there."""
    av = library("av")

    names = ("libsvtav1", "libx264", "h264") if options.codec == "auto" else (options.codec,)
    for name in names:
        try:
            av.codec.Codec(name, "w")
        except ValueError:
            continue
        return name
    raise Unsupported(f"This build of PyAV cannot encode with {options.codec!r}; try libsvtav1, libx264 or hevc.")


class VideoWriter:
    """A video file being written, image by image at a constant rate."""

    def __init__(self, path: Path, fps: int, options: VideoOptions | None = None):
        self.path, self.frames, self.size = path, 0, 0
        self._fps, self._options = fps, options or VideoOptions()
        self._container: Any = None
        self._stream: Any = None
        self._shape: tuple[int, ...] = ()

    def add(self, image: Array) -> None:
        """Append one image [height, width, 3] uint8."""
        av = library("av")

        image = np.ascontiguousarray(image)
        if self._container is None:
            self._open(image)
        if image.shape != self._shape or image.dtype != np.uint8:
            raise BadInput(
                f"Image {self.frames} of {self.path.name!r} is {image.dtype} {image.shape}, but the video holds "
                f"uint8 {self._shape}; all images of one camera must be alike."
            )
        container: Any = self._container
        frame: Any = av.VideoFrame.from_ndarray(image, format="rgb24")
        frame.pts, frame.time_base = self.frames, Fraction(1, self._fps)
        try:
            with _in_place():
                for packet in self._stream.encode(frame):
                    self.size += packet.size
                    container.mux(packet)
        except av.FFmpegError as error:
            self._container = None
            raise Unsupported(
                f"Images of {image.shape[0]} x {image.shape[1]} pixels cannot be encoded ({first_line(error)}); store "
                "this camera as PNG images."
            ) from None
        self.frames += 1

    def close(self) -> None:
        """Flush the encoder and finish the file."""
        if self._container is None:
            return
        for packet in self._stream.encode(None):
            self._container.mux(packet)
        self._container.close()
        self._container = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def _open(self, image: Array) -> None:
        av = library("av")

        if image.ndim != 3 or image.shape[2] != 3 or image.shape[0] % 2 or image.shape[1] % 2:
            raise Unsupported(
                f"Video takes RGB images of even height and width, not {image.shape}; store this camera as PNG images."
            )
        # SVT-AV1 writes a banner to stderr unless told otherwise; 1 leaves errors.
        os.environ.setdefault("SVT_LOG", "1")
        name, options = encoder(self._options), {"g": str(self._options.g), "crf": str(self._options.crf)}
        options["preset"] = self._options.preset if name == "libsvtav1" else "veryfast"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._container = av.open(str(self.path), "w", format="mp4")
        self._stream = self._container.add_stream(name, rate=self._fps, options=options)
        self._stream.height, self._stream.width = image.shape[0], image.shape[1]
        self._stream.pix_fmt = self._options.pix_fmt
        self._shape = image.shape


@contextmanager
def _in_place() -> Generator[None]:
    """Keep this thread's place in line: SVT-AV1 takes the very first one for it where it may, and keeps it."""
    if sys.platform != "linux":
        yield
        return
    policy, param = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        if os.sched_getscheduler(0) != policy:
            os.sched_setscheduler(0, policy, param)


class PacketWriter:
    """A video file being written from packets of other files, without decoding them."""

    def __init__(self, path: Path, fps: int, like: Path):
        av = library("av")

        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.frames, self.size, self._fps = path, 0, 0, fps
        self._container: Any = av.open(str(path), "w", format="mp4")
        with parsing(like, "video"), av.open(str(like)) as source:
            self._stream: Any = self._container.add_stream_from_template(source.streams.video[0], opaque=True)
            self.kind = stream_kind(like)

    def add(self, path: Path, start: int, count: int) -> None:
        """Append `count` frames of another file from frame `start`, which must be a key frame."""
        av = library("av")

        index = index_of(path)
        low, high = index.pts[start], index.pts[start + count - 1]
        tick = Fraction(1, self._fps)
        with parsing(path, "video"), av.open(str(path)) as source:
            stream: Any = source.streams.video[0]
            source.seek(int(low), stream=stream)
            order = {int(pts): self.frames + k for k, pts in enumerate(index.pts[start : start + count])}
            done = 0
            for packet in source.demux(stream):
                if packet.pts is None or not low <= packet.pts <= high:
                    continue
                # Decoding order stays; both stamps move by the same whole number of frames.
                lead = round(float((packet.pts - packet.dts) * packet.time_base * self._fps))
                packet.stream, packet.time_base = self._stream, tick
                packet.pts = order[int(packet.pts)]
                packet.dts = packet.pts - lead
                packet.duration = 1
                self.size += packet.size
                self._container.mux(packet)
                done += 1
        if done != count:
            raise BadInput(f"{str(path)!r} should hold {count} frames from frame {start}, but {done} were found.")
        self.frames += count

    def close(self) -> None:
        """Finish the file."""
        self._container.close()


def check_pixels(width: int, height: int, name: object) -> None:
    """Refuse an image or a video of a size that no camera has, before anything is decoded."""
    if max(width, height) > MAX_SIDE:
        raise BadInput(f"{str(name)!r} has images of {width} x {height} pixels; up to {MAX_SIDE} each are read.")


@array_dataclass
class Index:
    """Where the frames of a video file are, in order of display."""

    pts: Array
    """Presentation stamp of each frame, in units of `time_base`."""
    key: Array
    """Whether a frame can be decoded by itself."""
    time_base: Fraction


def index_of(path: Path) -> Index:
    """The frames of a video file; files are read once."""
    check_regular(path, MAX_RECORDING)
    stat = path.stat()
    return _index(str(path), stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=512)
def _index(path: str, mtime: int, size: int) -> Index:
    av = library("av")
    with parsing(path, "video"), av.open(path) as container:
        stream: Any = container.streams.video[0]
        found = [(p.pts, p.is_keyframe) for p in container.demux(stream) if p.pts is not None]
        base = Fraction(stream.time_base)
        check_pixels(int(stream.codec_context.width), int(stream.codec_context.height), path)
    if not found:
        raise BadInput(f"{path!r} holds no video frames.")
    found.sort()
    return Index(np.array([f[0] for f in found], np.int64), np.array([f[1] for f in found], bool), base)


def frame_at(path: Path, seconds: float) -> int:
    """The number of the frame shown nearest to a time in a video file."""
    index = index_of(path)
    times = index.pts * float(index.time_base)
    return int(np.argmin(np.abs(times - seconds)))


def facts(path: Path) -> VideoFacts:
    """Size, codec and number of frames of a video file."""
    av = library("av")

    index = index_of(path)
    with parsing(path, "video"), av.open(str(path)) as container:
        context: Any = container.streams.video[0].codec_context
        codec = {"libdav1d": "av1", "libaom-av1": "av1"}.get(str(context.name), str(context.name))
        return VideoFacts(int(context.width), int(context.height), codec, str(context.pix_fmt), len(index.pts))


def stream_kind(path: Path) -> tuple[Any, ...]:
    """What must be equal for the packets of two files to share one."""
    av = library("av")

    with parsing(path, "video"), av.open(str(path)) as container:
        context: Any = container.streams.video[0].codec_context
        return (context.name, context.width, context.height, bytes(context.extradata or b""))


def can_copy(path: Path, start: int, count: int) -> bool:
    """Whether frames can be cut out of a file without decoding: they begin at a key frame and end before one."""
    index = index_of(path)
    stop = start + count
    return bool(index.key[start]) and (stop == len(index.pts) or (stop < len(index.pts) and bool(index.key[stop])))


def decode(path: Path, start: int, stop: int) -> Generator[Array]:
    """The frames `start..stop` of a video file, in order [height, width, 3] uint8."""
    av = library("av")

    index = index_of(path)
    if not 0 <= start <= stop <= len(index.pts):
        raise BadInput(f"{str(path)!r} holds {len(index.pts)} frames, so frames {start} to {stop} are not all there.")
    if start == stop:
        return
    first = int(np.flatnonzero(index.key[: start + 1])[-1]) if index.key[: start + 1].any() else 0
    wanted = {int(p) for p in index.pts[start:stop]}
    with parsing(path, f"video, at its frames {start} to {stop}"), av.open(str(path)) as container:
        stream: Any = container.streams.video[0]
        stream.thread_type = "AUTO" if stop - start > 16 else "SLICE"
        if first:
            container.seek(int(index.pts[first]), stream=stream)
        for frame in container.decode(stream):
            if frame.pts in wanted:
                wanted.discard(frame.pts)
                yield frame.to_ndarray(format="rgb24")
            if not wanted:
                return
    raise BadInput(f"{len(wanted)} of the frames {start} to {stop} of {str(path)!r} are missing from the stream.")
