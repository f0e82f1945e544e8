"""The web viewer: time to the first image, what a live view costs a loop, what a stalled watcher does, sizes, memory.

Images are rendered by Chromium on the processor; where there is no Chromium, those rows are left out.

    python -m benchmarks view
    python -m benchmarks.view images   # the times to the first image alone, kept beside the other rows
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shutil import which

import numpy as np
from websockets.sync.client import ClientConnection, connect

import instep
from harness import Row, mean, median, row
from instep.app.viewer.live_view import LiveView
from instep.app.viewer.showing import PROGRAMS, gaussian_content, open_content, view_page
from instep.app.viewer.view_server import ViewContent, ViewServer
from instep.core.world import State
from instep.policy.policy_specs import SmoothRandom
from instep.scene.folder import Scene
from instep.splat import Gaussians, save_gaussians

BODIES, RATE, WATCHERS = 200, 60.0, 4
SIZE = 1200, 760
ROUND_S = 3.0
"""Length of the rounds in which a loop is timed with and without a view [s]."""


def run(folder: Path, *, quick: bool = False) -> list[Row]:
    """All rows."""
    found = [*live_rows(folder, rounds=4 if quick else 20), *size_rows(folder)]
    if not quick:
        found += memory_rows(folder, seconds=600)
    return [*found, *first_image_rows(folder, 1 if quick else 5)] if any(map(which, PROGRAMS)) else found


def first_image_rows(folder: Path, times: int) -> list[Row]:
    """Seconds from the address to the first whole image, the browser being open; and seconds of processors for it."""
    n = 100_000
    rng = np.random.default_rng(0)
    cloud = Gaussians(
        rng.normal(0, 0.3, (n, 3)), rng.normal(size=(n, 4)), np.full((n, 3), 0.004), np.full(n, 0.8),
        rng.uniform(-1, 1, (n, 1, 3)), np.zeros(n, int),
    )  # fmt: skip
    save_gaussians(folder / "cloud.ply", cloud)
    shown: dict[str, tuple[ViewContent, float]] = {
        "arm7": (open_content("arm7"), 1.5),
        "100,000 Gaussians": (gaussian_content(folder / "cloud.ply", None), 4.0),
    }
    found: list[Row] = []
    with view_page() as page:
        for name, (content, goal) in shown.items():
            server = ViewServer(content)
            url = server.start()
            took: list[float] = []
            used: list[float] = []
            for _ in range(times):
                page.evaluate("location.href = 'about:blank'")
                begin, before = time.perf_counter(), processor_time(os.getpid())
                page.open(url, SIZE)
                took.append(time.perf_counter() - begin)
                used.append(processor_time(os.getpid()) - before)
            server.close()
            found.append(row(f"time to the first image, {name}", median(took, "s"), "s", at_most=goal))
            found.append(row(f"processor time of browser and server for it, {name}", median(used, "s"), "s"))
    return found


def live_rows(folder: Path, rounds: int) -> list[Row]:
    """What a live view of many bodies costs a loop at its rate, with watchers of which one is stalled.

    Rounds with and without rows to watch alternate, since what else the computer does misses deadlines too.
    """
    scene = many_bodies(folder)
    alone, viewed = list[Timed](), list[Timed]()
    with LiveView(scene, scene.spec, "many bodies") as live:
        origin, token = live.url.split("/#token=")
        address = f"{origin.replace('http', 'ws')}/socket?token={token}"
        # It does not ask for signs of life either, which it would report as missing.
        stalled = connect(address, max_size=None, max_queue=1, ping_interval=None)
        # Watchers are another process, as browsers are: their threads must not compete with the loop.
        command = [sys.executable, __file__, address]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as watchers:
            watchers.stdout.readline()  # they are connected
            for k in range(rounds):
                kinds = [(alone, None), (viewed, live)]
                for found, view in kinds if k % 2 else kinds[::-1]:
                    found.append(loop(scene, ROUND_S, view))
            counts, _ = watchers.communicate("over\n", timeout=60)
        stalled.close()
    costs = np.concatenate([one.costs for one in viewed])
    rates = [int(count) / (rounds * ROUND_S) for count in counts.split()]
    more = mean([float(one.missed - other.missed) for one, other in zip(viewed, alone, strict=True)])
    label = f"missed deadlines more than without a view, of {round(ROUND_S * RATE)}"
    return [
        row("cost of a live row to the loop, p99", 1e3 * float(np.quantile(costs, 0.99)), "ms", at_most=0.2),
        row("cost of a live row to the loop, median", 1e3 * float(np.median(costs)), "ms"),
        row(label, more, "", at_most=0, ok=more.low <= 0),
        row("rows per second of the slowest watcher, one being stalled", min(rates), "Hz", at_least=0.5 * RATE),
    ]


def size_rows(folder: Path) -> list[Row]:
    """The size of one file with ten seconds of an arm."""
    world = instep.open_world("arm7")
    policy = SmoothRandom(world.scene.rest_action(), 0.3)
    episode = instep.rollout(world, policy, steps=round(10 / world.spec.dt))
    page = instep.show(episode, scene=world.scene).to_html(folder / "arm7.html")
    return [row("one file with 10 s of arm7", page.stat().st_size / 1e6, "MB", at_most=2.0)]


def memory_rows(folder: Path, seconds: float) -> list[Row]:
    """How much a live view grows while it runs."""
    scene, memory = many_bodies(folder), list[float]()
    with LiveView(scene, scene.spec, "many bodies") as live:
        for length in (20, seconds):
            loop(scene, length, live)
            resident = int(Path(f"/proc/{live.pid}/statm").read_text().split()[1])
            memory.append(resident * resource.getpagesize() / 1e6)
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return [row(f"growth of the viewer's process over {seconds / 60:.0f} min", memory[1] - memory[0], "MB", at_most=5),
            row("memory of the loop's process", own, "MB")]  # fmt: skip


def processor_time(pid: int) -> float:
    """Seconds that processors worked for a process and those that it started."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            fields = path.read_text().rpartition(")")[2].split()
            one = int(path.parent.name)
            parents[one], ticks[one] = int(fields[1]), int(fields[11]) + int(fields[12])
    counted = {pid}
    while more := {one for one, parent in parents.items() if parent in counted} - counted:
        counted |= more
    return sum(ticks.get(one, 0) for one in counted) / os.sysconf("SC_CLK_TCK")


class Timed:
    """What a loop measured."""

    def __init__(self) -> None:
        self.costs: list[float] = []
        self.missed = 0


def loop(scene: Scene, seconds: float, live: LiveView | None) -> Timed:
    """A loop at its rate that moves every body each time."""
    q, v = scene.start(0)
    action, found = np.zeros(scene.model.nu), Timed()
    begin, steps = time.monotonic(), round(seconds * RATE)
    places = np.arange(0, len(q), 7)
    for step in range(steps):
        moved = q.copy()
        moved[places] += 0.01 * np.sin(0.1 * step)
        state = State(step / RATE, moved, v)
        at = time.perf_counter()
        if live is not None:
            live(state, {}, action)
        found.costs.append(time.perf_counter() - at)
        deadline = begin + (step + 1) / RATE
        left = deadline - time.monotonic()
        found.missed += left < 0
        time.sleep(max(0.0, left))
    return found


def many_bodies(folder: Path) -> Scene:
    """A scene of balls that move freely."""
    balls = "".join(
        f'<body name="ball{i}" pos="{0.12 * (i % 20):.2f} {0.12 * (i // 20):.2f} 1"><freejoint/>'
        f'<geom size="0.04" rgba="0.2 {i / BODIES:.2f} 0.8 1"/></body>'
        for i in range(BODIES)
    )
    path = folder / "balls.xml"
    path.write_text(f"<mujoco><worldbody>{balls}</worldbody></mujoco>", encoding="utf-8")
    scene = Scene.load(path)
    # Observations would be copied too; poses are what is measured.
    return replace(scene, reader=replace(scene.reader, spec=replace(scene.spec, observation={})))


def watch(address: str) -> None:
    """Several watchers, which print how many rows each got once a line of input says that it is over."""
    rows = [0] * WATCHERS

    def count(k: int, link: ClientConnection) -> None:
        for _ in link:
            rows[k] += 1

    for k in range(WATCHERS):
        threading.Thread(target=count, args=(k, connect(address, max_size=None)), daemon=True).start()
    print("connected", flush=True)
    sys.stdin.readline()
    print(*rows, flush=True)
    os._exit(0)  # the sockets are in use


if __name__ == "__main__":
    watch(sys.argv[1])
