"""`--view` of commands that run something: a live view beside the run, opened in the browser where there is one."""

from __future__ import annotations

import sys
import time
import webbrowser
from collections.abc import Generator
from contextlib import contextmanager

from rich.console import Console

from instep.app.verbs.runs import has_display
from instep.core.errors import BadInput
from instep.core.records import array_dataclass
from instep.core.world import Array, Observation, Spec, State, W, Watcher, Wrapper
from instep.scene.folder import Scene

from .live_view import LiveView


@contextmanager
def live_view(
    wanted: bool, scene: Scene | None, spec: Spec, title: str, *, paced: bool = False, worlds: int | None = None
) -> Generator[list[Watcher]]:
    """The watchers that show a run: one where it is wanted, else none. A `paced` run is held to real time.

    Of a batch, `worlds` are shown as a grid.
    """
    if not wanted:
        yield []
        return
    if scene is None:
        raise BadInput("--view shows a scene, and this world names none; give it with --scene.")
    with LiveView(scene, spec, title, worlds=worlds) as live:
        open_in_browser(live.url)
        yield [live, Pace()] if paced else [live]


def open_in_browser(url: str) -> None:
    """Print an address, and open it where there is a display."""
    Console(stderr=True, highlight=False).print(f"In the browser: {url}", soft_wrap=True, markup=False)
    if sys.stderr.isatty() and has_display():
        webbrowser.open(url)


class Pace:
    """A watcher that holds a simulation to real time, so that it can be seen."""

    def __init__(self) -> None:
        self._begin: float | None = None

    def __call__(self, state: State, observation: Observation, action: Array) -> None:
        """Sleep until the wall clock has come as far as the simulation."""
        now = time.monotonic()
        if self._begin is None or state.t == 0:
            self._begin = now - float(state.t)
        time.sleep(max(0.0, self._begin + float(state.t) - now))


@array_dataclass
class Viewed(Wrapper[W]):
    """A world whose every step is shown to watchers."""

    watchers: list[Watcher]

    def step(self, state: State, action: Array) -> State:
        """The state one control period later, shown."""
        after = self.world.step(state, action)
        observation = self.world.observe(after)
        for watcher in self.watchers:
            watcher(after, observation, action)
        return after
