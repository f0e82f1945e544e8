"""A proxy between a client and a robot that can break the link in the ways links break."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from typing import Literal

Way = Literal["pass", "blackhole", "trickle", "refuse"]


class Proxy:
    """Forwards bytes to a port of this computer; `way` says how well, `reset` tears every connection down."""

    def __init__(self, port: int):
        self._to, self.way = port, "pass"
        self.way: Way
        self.port = 0
        self._pairs: list[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = []
        self._runner = asyncio.Runner()
        self._over, self._bound = asyncio.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Proxy:
        self._thread.start()
        self._bound.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.get_loop().call_soon_threadsafe(self._over.set)
        self._thread.join()

    def reset(self) -> None:
        """Send RST on every connection."""
        done = threading.Event()

        def tear() -> None:
            for pair in self._pairs:
                for writer in pair:
                    raw = writer.get_extra_info("socket")
                    if raw is not None and raw.fileno() >= 0:
                        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    writer.transport.abort()
            self._pairs.clear()
            done.set()

        self._runner.get_loop().call_soon_threadsafe(tear)
        done.wait()

    def _run(self) -> None:
        with self._runner:
            self._runner.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._join, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._bound.set()
        await self._over.wait()
        server.close()
        for pair in self._pairs:
            for writer in pair:
                writer.transport.abort()

    async def _join(self, near: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
        if self.way == "refuse":
            near_out.transport.abort()
            return
        try:
            far, far_out = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            near_out.transport.abort()
            return
        self._pairs.append((near_out, far_out))
        await asyncio.gather(self._pump(near, far_out), self._pump(far, near_out))

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                if self.way == "trickle":
                    for byte in data:
                        sink.write(bytes([byte]))
                        await asyncio.sleep(0.05)
                        if self.way != "trickle":
                            break
                elif self.way != "blackhole":
                    sink.write(data)
        sink.transport.abort()
