"""Parallel maps over threads, processes or a Ray cluster, with the signature of the built-in map; workers may die."""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

from rich.progress import Progress, TaskID

from instep.core.errors import BadInput, InstepError, LinkLost
from instep.core.imports import optional_library
from instep.core.world import MapFn
from instep.evaluate.evaluation import EvalBatch, LostBatch

_HINT = "One that asks for a token needs RAY_AUTH_MODE=token and its RAY_AUTH_TOKEN in the environment here as well."
TRIES = 3
"""How often a batch is given to a worker before it counts as lost."""
GPU_SHARE = 0.5
"""Share of a GPU that a piece of work on a cluster takes: while one simulates on the CPU, another renders."""
STARTS, START_PAUSE = 20, 0.05
"""How often a worker is started where the server it is forked from has died, and the time between [s]."""


@contextmanager
def open_map(on: str, *, deadline: float = 600.0, gpu: bool = False) -> Generator[MapFn]:
    """The map of a specification: nothing (this process), threads:N, processes:N, ray, or ray://HOST:PORT.

    Threads share this process and its GPU: while one simulates, another renders. In processes and on a cluster, a piece
    of work whose worker dies is given to another; one that takes longer than `deadline` [s] (in processes) or kills
    every worker it meets yields `LostBatch`. With `gpu`, work on a cluster goes where there is a share of a GPU.
    """
    kind, _, count = on.partition(":")
    if not on:
        yield map
    elif kind in ("threads", "processes"):
        if not count.isdigit() or int(count) < 1:
            raise BadInput(f"{kind}: takes how many, a whole number above 0, not {count!r}.")
        pool = _Pool(int(count), deadline) if kind == "processes" else None
        threads = ThreadPoolExecutor(int(count), "instep-worker")
        try:
            yield threads.map if pool is None else lambda work, items: threads.map(partial(pool.done, work), items)
        finally:
            if pool is not None:
                pool.close()
            threads.shutdown(wait=False, cancel_futures=True)
    elif on == "ray" or on.removeprefix("ray://") not in ("", on):
        with _ray(on, gpu) as spreading:
            yield spreading
    else:
        raise BadInput(f"--on takes ray, ray://HOST:PORT, processes:N or threads:N, not {on!r}.")


def watch_batches(mapped: MapFn, progress: Progress, bar: TaskID, expected: int) -> MapFn:
    """A map that shows the episodes of each batch as done; of `expected` episodes those not given were done before."""

    def run(function: Callable[[EvalBatch], Any], batches: Sequence[EvalBatch]) -> Iterator[Any]:
        progress.advance(bar, expected - sum(len(batch.seeds) for batch in batches))
        for batch, result in zip(batches, mapped(function, batches), strict=True):
            text = f"{batch.policy.name} in {batch.world.name}"
            progress.update(bar, advance=len(batch.seeds), description=text)
            yield result

    return run


class _Worker:
    """A process that does one piece of work at a time."""

    def __init__(self) -> None:
        # A server that has loaded what all need, and forks from there: a new worker is there at once.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(
            ["instep.app.world_specs", "instep.physics.mujoco_world", "instep.evaluate.evaluation"]
        )
        self.pipe, other = context.Pipe()
        for left in reversed(range(STARTS)):
            self.process = context.Process(target=_serve, args=(other,), daemon=True)
            try:
                self.process.start()
                break
            except (OSError, EOFError):
                # A server that was killed a moment ago looks alive until the system has cleared it.
                if not left:
                    raise
                time.sleep(START_PAUSE)
        other.close()

    def kill(self) -> None:
        """End it."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


class _Pool:
    """Workers that are replaced when they die or hang; each thread that gives work uses one."""

    def __init__(self, count: int, deadline: float):
        self._deadline, self._closed, self._starting = deadline, False, threading.Lock()
        self._workers = [_Worker() for _ in range(count)]
        self._free: SimpleQueue[_Worker] = SimpleQueue()
        for worker in self._workers:
            self._free.put(worker)

    def done(self, function: Callable[[Any], Any], item: Any) -> Any:
        """The result of a piece of work, or `LostBatch`."""
        for _ in range(TRIES):
            worker = self._free.get()
            try:
                worker.pipe.send((function, item))
                if worker.pipe.poll(self._deadline):
                    good, result = worker.pipe.recv()
                else:
                    good, result = True, LostBatch(f"a worker did not answer within {self._deadline:g} s")
                    worker = self._replaced(worker)
            except (EOFError, OSError):
                worker = self._replaced(worker)
                continue
            finally:
                self._free.put(worker)
            if good:
                return result
            raise result if isinstance(result, InstepError) else BadInput(f"A worker failed with {result}")
        return LostBatch(f"{TRIES} workers died over this batch")

    def close(self) -> None:
        """End the workers."""
        with self._starting:
            self._closed = True
            for worker in self._workers:
                worker.process.kill()
            for worker in self._workers:
                worker.process.join()

    def _replaced(self, worker: _Worker) -> _Worker:
        with self._starting:
            worker.kill()
            if self._closed:
                raise InterruptedError
            self._workers.remove(worker)
            self._workers.append(_Worker())
            return self._workers[-1]


def _serve(pipe: Connection) -> None:
    """What a worker does until it is ended."""
    end_with_parent()
    while True:
        try:
            function, item = pipe.recv()
        except (EOFError, OSError, KeyboardInterrupt):
            return
        except (ImportError, AttributeError) as error:
            pipe.send((False, f"{type(error).__name__}: {error}; what a worker gets must be importable there"))
            continue
        try:
            pipe.send((True, function(item)))
        except InstepError as error:
            pipe.send((False, error))
        except KeyboardInterrupt:
            return
        except Exception as error:  # noqa: BLE001, the parent raises it again
            pipe.send((False, f"{type(error).__name__}: {error}"))


def end_with_parent() -> None:
    """End this worker when the process that gives it work is gone: one that was killed cannot end its workers."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="instep-parent", daemon=True).start()


@contextmanager
def _ray(address: str, gpu: bool) -> Generator[MapFn]:
    """A map over a Ray cluster, on this machine or at an address; where `gpu`, over its GPUs."""
    ray = optional_library("ray", "cluster", "Ray")
    started = not ray.is_initialized()
    if started:
        try:
            if address == "ray":
                ray.init(log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
            else:
                ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, TimeoutError, RuntimeError) as error:
            raise LinkLost(f"No Ray cluster answers at {address!r}: {_line(error)}. {_HINT}") from None
    try:
        if gpu and not ray.cluster_resources().get("GPU"):
            raise BadInput(
                f"No node of the Ray cluster {address!r} has a GPU, and --device cuda asks for one; add a node with "
                "a GPU to it, or leave out --device."
            )
        yield partial(ray_map, gpu=gpu)
    finally:
        if started:
            ray.shutdown()


def ray_map(function: Callable[[Any], Any], items: Sequence[Any], *, gpu: bool = False) -> Iterator[Any]:
    """The built-in map, in order, over the Ray cluster that is connected; where `gpu`, each piece has a share of one.

    Ray hides GPUs from work that does not ask for any.
    """
    import ray

    share = GPU_SHARE if gpu else 0
    remote = ray.remote(max_retries=TRIES, retry_exceptions=False, num_gpus=share)(function)
    # A few pieces more than can run are on their way at any time, so that none waits.
    resources = ray.cluster_resources()
    places = resources.get("CPU", 1) if not gpu else min(resources.get("CPU", 1), resources.get("GPU", 1) / share)
    room = 2 + 2 * int(places)
    running, following = deque[Any](), iter(items)
    for item in following:
        running.append(remote.remote(item))
        if len(running) >= room:
            break
    while running:
        reference = running.popleft()
        try:
            yield ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            raise _cause(error) from None
        except ray.exceptions.RayError as error:  # a worker or a node died, and so did those that tried again
            yield LostBatch(_line(error))
        for item in following:
            running.append(remote.remote(item))
            break


def _cause(error: Any) -> Exception:
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, InstepError) else BadInput(f"A worker failed with {_line(cause or error)}")


def _line(error: BaseException) -> str:
    words = str(error).strip().splitlines()
    return f"{type(error).__name__}: {words[-1] if words else ''}"
