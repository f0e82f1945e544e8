"""Sharded files: parquet tables and videos that hold many episodes each, up to a size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from instep.core.records import frozen_dataclass
from instep.data import video
from instep.data.files import library
from instep.data.frames import consecutive

from .features import WriteOptions
from .reader import CHUNK


@frozen_dataclass
class Shard:
    """A file by chunk and number, and which of its frames are meant."""

    chunk: int
    file: int
    start: int = 0
    stop: int = 0

    def following(self) -> Shard:
        """The next file."""
        full = self.file + 1 >= CHUNK
        return Shard(self.chunk + 1, 0) if full else Shard(self.chunk, self.file + 1)


class TableFiles:
    """Parquet files of many episodes, one row group each."""

    def __init__(self, root: Path, template: str, first: Shard, limit_mb: int):
        self._root, self._template, self._place = root, template, first
        self._limit, self._used = limit_mb << 20, 0
        self._writer: Any = None

    def add(self, table: Any, rows: int) -> Shard:
        """Append the rows of one episode and say where they went."""
        pq = library("pyarrow.parquet")

        if self._writer is not None and self._used + table.nbytes > self._limit:
            self.close()
            self._place, self._used = self._place.following(), 0
        if self._writer is None:
            name = self._template.format(chunk_index=self._place.chunk, file_index=self._place.file)
            path = self._root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(path, table.schema, compression="snappy", use_dictionary=True)
        if rows:
            self._writer.write_table(table, row_group_size=rows)
        self._used += table.nbytes
        return self._place

    def close(self) -> None:
        """Finish the open file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class VideoFiles:
    """Video files of many episodes of one camera; frames that are in a video file already are copied, not encoded."""

    def __init__(self, root: Path, template: str, key: str, first: Shard, how: tuple[int, WriteOptions]):
        self._root, self._template, self._key, self._place = root, template, key, first
        self._fps, self._options = how
        self._writer: video.VideoWriter | None = None
        self._copier: video.PacketWriter | None = None
        self._fresh = True
        self.last: Path | None = None
        """The last file that was finished or begun."""

    def add(self, images: Any) -> Shard:
        """Append the images of one episode and say where they went."""
        source = getattr(getattr(images, "source", None), "path", None)
        if source is not None and consecutive(images.numbers):
            start, count = int(images.numbers[0]), len(images.numbers)
            if video.can_copy(source, start, count):
                return self._copy(source, start, count)
        return self._encode(images)

    def close(self) -> None:
        """Finish the open file."""
        for writer in (self._writer, self._copier):
            if writer is not None:
                writer.close()
        self._writer = self._copier = None

    def _copy(self, source: Path, start: int, count: int) -> Shard:
        if self._copier is None or self._copier.kind != video.stream_kind(source) or self._full(self._copier.size):
            self._next_file()
            self._copier = video.PacketWriter(self._path(), self._fps, source)
        begin = self._copier.frames
        self._copier.add(source, start, count)
        return Shard(self._place.chunk, self._place.file, begin, begin + count)

    def _encode(self, images: Any) -> Shard:
        if self._writer is None or self._full(self._writer.size):
            self._next_file()
            self._writer = video.VideoWriter(self._path(), self._fps, self._options.video)
        begin = self._writer.frames
        for image in images:
            self._writer.add(image)
        return Shard(self._place.chunk, self._place.file, begin, self._writer.frames)

    def _next_file(self) -> None:
        self.close()
        self._place = self._place if self._fresh else self._place.following()
        self._fresh = False

    def _path(self) -> Path:
        name = self._template.format(video_key=self._key, chunk_index=self._place.chunk, file_index=self._place.file)
        self.last = self._root / name
        return self.last

    def _full(self, size: int) -> bool:
        return size > self._options.video_mb << 20
