"""The verb doctor: what works on this machine, and what to do about the rest."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import numpy as np
from rich.markup import escape

from instep.app.output import show_table
from instep.core.errors import Unsupported
from instep.core.processes import usable_cores

UNLISTED_EXTRAS = ("all", "dev", "docs")
"""Extras that are made of others, or for developers."""
GOOD, FAIR, BAD = "[green]good[/]", "[yellow]fair[/]", "[red]bad[/]"


def doctor() -> int:
    """Say what works on this machine: engines, graphics, threads, timer, disk, GPU, viewer, extras."""
    rows = [
        ("Python", GOOD, f"{platform.python_version()} on {platform.machine()}, {platform.system()}"),
        _engine("mujoco"), _engine("rapier3d"), _graphics(), _threads(), _timer(), _disk(), _gpu(), _web_viewer(),
        *(_extra(extra, packages) for extra, packages in extras().items()),
    ]  # fmt: skip
    show_table(("what", "verdict", "detail"), rows)
    return 0


def extras() -> dict[str, tuple[str, ...]]:
    """The extras of the installed package -> the packages each brings, without `UNLISTED_EXTRAS`."""
    found: dict[str, tuple[str, ...]] = {}
    for line in requires("instep") or ():
        name, marker = re.match(r"[\w.-]+", line), re.search(r"""extra == ["']([\w-]+)""", line)
        if name and marker and name[0] != "instep" and marker[1] not in UNLISTED_EXTRAS:
            found[marker[1]] = (*found.get(marker[1], ()), name[0])
    return found


def _extra(extra: str, packages: tuple[str, ...]) -> tuple[str, str, str]:
    absent = [package for package in packages if not _version(package)]
    if absent:
        verdict = "[dim]not installed[/]" if absent == list(packages) else FAIR
        return f"extra {extra}", verdict, escape(f"{', '.join(absent)}: pip install 'instep[{extra}]'")
    return f"extra {extra}", GOOD, ", ".join(f"{package} {_version(package)}" for package in packages)


def _engine(package: str) -> tuple[str, str, str]:
    from instep import Constant, rollout
    from instep.physics.engines import Engine, open_world

    engines: dict[str, Engine] = {"mujoco": "mujoco", "rapier3d": "rapier"}
    world = open_world("pusht", engines[package])
    begin = time.perf_counter()
    rollout(world, Constant(world.scene.rest_action()), steps=60)
    return package, GOOD, f"{_version(package)}; one second of pusht in {time.perf_counter() - begin:.2f} s"


def _graphics() -> tuple[str, str, str]:
    from instep.physics.mujoco_cameras import MujocoRenderer, graphics_library
    from instep.scene.folder import Scene

    try:
        library = graphics_library()
    except Unsupported as error:
        return "camera images", BAD, str(error)
    scene = Scene.load("pusht")
    renderer, camera, (q, _) = MujocoRenderer(scene), next(iter(scene.cameras.values())), scene.start(0)
    renderer.render(q, camera)
    begin = time.perf_counter()
    renderer.render(q, camera)
    took = 1e3 * (time.perf_counter() - begin)
    renderer.close()
    verdict = GOOD if took < 16 else FAIR
    return "camera images", verdict, f"{library}, {camera.width} x {camera.height} in {took:.0f} ms"


def _threads() -> tuple[str, str, str]:
    from instep.core.world import stack
    from instep.physics.engines import open_world

    cores = usable_cores()
    speeds: list[int] = []
    for threads in (1, cores):
        world = open_world("arm7", threads=threads)
        state = stack([world.reset(seed) for seed in range(4 * cores)])
        action = np.broadcast_to(world.scene.rest_action(), (4 * cores, world.model.nu)).copy()
        begin, steps = time.perf_counter(), 0
        while time.perf_counter() - begin < 0.3:
            state, steps = world.step(state, action), steps + 1
        speeds.append(steps)
    gain = speeds[1] / speeds[0]
    detail = f"{cores} cores; {cores} threads step {gain:.2f} times as fast"
    return "threads", GOOD if gain > 0.7 * cores else FAIR, detail


def _timer() -> tuple[str, str, str]:
    """Lateness of waking up against absolute deadlines at 60 Hz."""
    late: list[float] = []
    begin, period = time.perf_counter(), 1 / 60
    for tick in range(1, 61):
        deadline = begin + tick * period
        time.sleep(max(0.0, deadline - time.perf_counter()))
        late.append(time.perf_counter() - deadline)
    worst, median = 1e3 * max(late), 1e3 * float(np.median(late))
    verdict = GOOD if worst < 1 else FAIR if worst < 8 else BAD
    advice = "" if worst < 1 else "; other programs compete for the cores"
    return "timer at 60 Hz", verdict, f"wakes {median:.2f} ms late in the median, {worst:.2f} ms at worst{advice}"


def _disk() -> tuple[str, str, str]:
    with tempfile.NamedTemporaryFile(dir=Path.cwd() if os.access(Path.cwd(), os.W_OK) else None) as file:
        took: list[float] = []
        for _ in range(20):
            begin = time.perf_counter()
            file.write(b"\0" * 4096)
            file.flush()
            os.fsync(file.fileno())
            took.append(1e3 * (time.perf_counter() - begin))
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    verdict = GOOD if max(took) < 8 and free > 2 else FAIR
    detail = f"a synced write takes {np.median(took):.2f} ms ({max(took):.1f} at worst); {free:.0f} GiB free"
    return "disk", verdict, detail


def _gpu() -> tuple[str, str, str]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "GPU", "[dim]none[/]", "not needed; everything runs on the CPU"
    asked = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    answer = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=False)  # noqa: S603
    name = answer.stdout.strip().splitlines()
    return "GPU", GOOD if name else FAIR, name[0] if name else "nvidia-smi does not answer"


def _web_viewer() -> tuple[str, str, str]:
    from instep.app.viewer.view_server import absence, bundle

    if why := absence():
        return "web viewer", FAIR, f"{why} Pages show videos in its place; 'make web' in a checkout builds it."
    return "web viewer", GOOD, f"script of {len(bundle()) / 1e3:.0f} kB"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
