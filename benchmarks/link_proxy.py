"""A proxy between a client and a server of this machine that can break the link in the ways links break."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from typing import Literal, Self

Way = Literal["pass", "silent", "refuse"]


class LinkProxy:
    """Forwards bytes to a port; `way` says how well, `reset` tears every connection down."""

    def __init__(self, port: int):
        self._to, self.way, self.port = port, "pass", 0
        self.way: Way
        self._writers: set[asyncio.StreamWriter] = set()
        self._runner = asyncio.Runner()
        self._over, self._bound = asyncio.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="link-proxy", daemon=True)
        self._thread.start()
        self._bound.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections and end the thread."""
        self._runner.get_loop().call_soon_threadsafe(self._over.set)
        self._thread.join()

    def reset(self) -> None:
        """Send RST on every connection, as a cut cable with an answering router does."""
        done = threading.Event()

        def tear() -> None:
            self._tear()
            done.set()

        self._runner.get_loop().call_soon_threadsafe(tear)
        done.wait()

    def _tear(self) -> None:
        for writer in tuple(self._writers):
            raw = writer.get_extra_info("socket")
            if raw is not None and raw.fileno() >= 0:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    def _run(self) -> None:
        with self._runner:
            self._runner.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._join, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._bound.set()
        await self._over.wait()
        server.close()
        self._tear()

    async def _join(self, near: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
        if self.way == "refuse":
            near_out.transport.abort()
            return
        try:
            far, far_out = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            near_out.transport.abort()
            return
        pair = {near_out, far_out}
        self._writers |= pair
        try:
            await asyncio.gather(self._pump(near, far_out), self._pump(far, near_out))
        finally:
            self._writers -= pair

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                if self.way != "silent":
                    sink.write(data)
        sink.transport.abort()
