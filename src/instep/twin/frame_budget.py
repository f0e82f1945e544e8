"""The time budget of a correction: what does not fit before the deadline of a frame is left out, and counted.

Work is planned by what it took in the frames before. Of each body one image is compared in one step, however late it
is; then come, as time allows, learning from one image, further images (first those that told most, for the time that
has passed since), further steps, and learning from the other images. Bodies share the time, and one that there was
none for is the first of the next frame.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from instep.core.records import array_dataclass
from instep.core.world import Array

from .camera_rig import MaskCrop
from .filter_options import FilterOptions
from .pose_solver import PoseSolution, SilhouetteFit, solve_pose
from .projection import Outline

WORK = ("image", "point", "step", "colours", "learning")
"""What takes time, per body: segmenting an image, following a point of its texture, comparing its silhouette once,
comparing the colours of its pixels once, learning from an image."""
LEFT_OUT = ("bodies", "images", "points", "steps", "learning")
"""What can be left out of a frame: bodies, images of cameras, points of texture, Gauss-Newton steps, learning from
images."""
BUDGET_LOG = ("budget.given", "budget.spent", *(f"budget.{word}_left_out" for word in LEFT_OUT))
"""Numbers of a frame: the time that it was given and that it took [s], NaN without a deadline; what was left out."""
RISE, FALL = 0.4, 0.1
"""Shares by which an expected time follows a longer and a shorter one."""
MAX_RISE = 3.0
"""A time is taken for at most this many expected ones: the machine did something else meanwhile."""
MIN_POINTS = 40
"""Points of the texture that are followed, however late it is."""
MIN_TOLD = 0.05
"""Least that an image is expected to tell, over the one that tells most: who sees nothing is asked again."""


@array_dataclass
class Deadline:
    """A time by which a correction should be done, on its clock [s]."""

    until: float
    clock: Callable[[], float]


class FrameBudget:
    """The time that is left of one frame, what work is expected to take, and what was left out."""

    def __init__(self, deadline: Deadline | None, costs: Array):
        self._deadline, self.costs = deadline, costs
        """Expected times [bodies, work] [s]; changed by what is measured, 0 where nothing was."""
        self._body, self._turns = 0, 0
        self.counts: dict[str, float] = dict.fromkeys(LEFT_OUT, 0.0)
        self._begun = 0.0 if deadline is None else deadline.clock()
        self._until = np.inf if deadline is None else deadline.until

    @property
    def limited(self) -> bool:
        """Whether there is a deadline."""
        return self._deadline is not None

    @property
    def on_first_body(self) -> bool:
        """Whether this is the body that is corrected in any case."""
        return self._turns == 1

    def left(self) -> float:
        """Time until the deadline of this body [s]; infinite without one."""
        return np.inf if self._deadline is None else self._until - self._deadline.clock()

    def begin_body(self, b: int, bodies: int) -> None:
        """Turn to a body; it has its share of what is left, with as many bodies still to come, itself included."""
        self._body, self._turns = b, self._turns + 1
        if self._deadline is not None:
            now = self._deadline.clock()
            self._until = now + (self._deadline.until - now) / bodies

    def cost(self, **work: float) -> float:
        """The expected time of some work on this body [s]."""
        return sum(n * float(self.costs[self._body, WORK.index(word)]) for word, n in work.items())

    def fits(self, **work: float) -> bool:
        """Whether some work is expected to end before the deadline."""
        return self._deadline is None or self.cost(**work) <= self.left()

    def leave(self, word: str, n: float = 1.0) -> None:
        """Note that something was left out."""
        self.counts[word] += n

    @contextmanager
    def timed(self, word: str, n: float = 1.0) -> Generator[None]:
        """Measure how long `n` pieces of work take."""
        if self._deadline is None:
            yield
            return
        begun = self._deadline.clock()
        yield
        self.note(word, self._deadline.clock() - begun, n)

    def note(self, word: str, took: float, n: float = 1.0) -> None:
        """Learn from the time that `n` pieces of work took [s]."""
        if self._deadline is None:
            return
        expected, i, each = self.costs[self._body], WORK.index(word), took / max(n, 1.0)
        if expected[i] <= 0:
            expected[i] = each
        else:
            change = min(each, MAX_RISE * expected[i]) - expected[i]
            expected[i] += (RISE if change > 0 else FALL) * change

    @contextmanager
    def following(self) -> Generator[Callable[[int], int]]:
        """Follow points of a texture: of how many that are known there is time for; the others are left out."""
        begun, taken = self.left(), 0

        def most(known: int) -> int:
            nonlocal taken
            each, room = self.cost(point=1.0), self.left() - self.cost(step=2.0)
            taken = known if not self.limited or each <= 0 else min(known, max(int(room / each), MIN_POINTS))
            self.leave("points", known - taken)
            return taken

        yield most
        if taken:
            self.note("point", begun - self.left(), taken)

    def log(self) -> dict[str, float]:
        """`BUDGET_LOG` of this frame."""
        found = dict.fromkeys(BUDGET_LOG, np.nan)
        if self._deadline is not None:
            found["budget.given"] = self._deadline.until - self._begun
            found["budget.spent"] = self._deadline.clock() - self._begun
        return found | {f"budget.{word}_left_out": n for word, n in self.counts.items()}


def unknown_budget(bodies: int, cameras: int) -> dict[str, Any]:
    """Memory before any work was timed: expected times, frames that bodies wait, what images told and how long ago."""
    return {
        "costs": np.zeros((bodies, len(WORK))),
        "waiting": np.zeros(bodies, int),
        "told": np.full((bodies, cameras), np.inf),
        "untold": np.ones((bodies, cameras)),
    }


def body_order(budget: FrameBudget, memory: Mapping[str, Any]) -> list[int]:
    """Bodies in the order in which they are corrected: those first that have waited longest."""
    waiting = memory["waiting"]
    return sorted(range(len(waiting)), key=lambda b: -int(waiting[b])) if budget.limited else list(range(len(waiting)))


def planned_images(
    budget: FrameBudget, b: int, given: Sequence[bool], usable: Sequence[bool], memory: Mapping[str, Any]
) -> list[int]:
    """The cameras whose images of a body are compared now; the others of those that are given are left out.

    At least one of the body that comes first, none of another one where nothing fits.
    """
    new = [c for c, known in enumerate(given) if known]
    if not budget.limited:
        return new
    told, untold = memory["told"][b], memory["untold"][b]
    most = max((float(told[c]) for c in new if np.isfinite(told[c])), default=1.0)
    tells = np.where(np.isfinite(told), told / max(most, 1e-12) + MIN_TOLD, np.inf) * untold
    order = sorted(new, key=lambda c: (not usable[c], -tells[c]))
    taken = len(order)
    while taken > 0 and not budget.fits(image=taken, step=2 * taken, learning=1):
        taken -= 1
    if taken == 0 and new and (budget.on_first_body or budget.fits(image=1, step=2)):
        taken = 1
    budget.leave("images", len(new) - taken)
    return sorted(order[:taken])


def solve_in_time(
    budget: FrameBudget, outline: Outline, picked: Sequence[MaskCrop], known: tuple[Array, Array],
    options: FilterOptions, start: Array | None = None,
) -> PoseSolution:  # fmt: skip
    """The motion of a body by some images, in as many steps as there is time for; `known` are prior and basis.

    The search begins at the motion `start` [6], or at none.
    """
    begun, rounds = budget.left(), 2

    def more() -> bool:
        nonlocal rounds
        rounds += int(fits := budget.fits(step=len(picked)))
        return fits

    found = solve_pose(outline, picked, *known, options.iterations, options.mask_noise, more=more, start=start)
    budget.note("step", begun - budget.left(), rounds * len(picked))
    budget.leave("steps", found.left_out)
    return found


def note_told(b: int, compared: Sequence[int], fits: Mapping[int, SilhouetteFit], memory: dict[str, Any]) -> None:
    """Remember how much each image that was compared told of the body; those that did not show it told nothing."""
    memory["untold"][b] += 1.0
    for c in compared:
        memory["untold"][b, c] = 1.0
        memory["told"][b, c] = float(np.trace(fits[c].information)) if c in fits else 0.0


def left_out(log: Mapping[str, Array]) -> dict[str, float]:
    """What a run left out for want of time, from its log: the median time given [s], frames, and totals of `LEFT_OUT`.

    Empty where there was no deadline.
    """
    given = np.asarray(log.get("budget.given", np.nan), float)
    if not np.isfinite(given).any():
        return {}
    counts = {word: np.asarray(log[f"budget.{word}_left_out"], float) for word in LEFT_OUT}
    frames = np.sum([np.nan_to_num(rows) for rows in counts.values()], axis=0) > 0
    totals = {word: float(np.nansum(rows)) for word, rows in counts.items()}
    return {"given": float(np.nanmedian(given)), "frames": float(frames.sum()), **totals}
