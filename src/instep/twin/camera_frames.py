"""Faults of camera images, found before an image corrects anything.

Each image is sampled on a coarse grid, with the right neighbour of each sample. The grid shows the view, which a fixed
camera keeps but for what moves in it; neighbours differ by the grain of the image, which noise raises at once.

New frames of a camera rig: those that are newer than the last, and whose images show no fault.

The time budget of a correction: what does not fit before the deadline of a frame is left out, and counted.

Work is planned by what it took in the frames before. Of each body one image is compared in one step, however late it
is; then come, as time allows, learning from one image, further images (first those that told most, for the time that
has passed since), further steps, and learning from the other images. Bodies share the time, and one that there was
none for is the first of the next frame.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from functools import cache
from typing import Any

import numpy as np

from instep.core.world import Array, Observation, State, array_dataclass

from .body_outlines import Outline
from .camera_rig import IMAGES, CameraFrame, CameraRig, MaskCrop
from .filter_state import FilterOptions
from .pose_solver import PoseSolution, SilhouetteFit, solve_pose

GRID = (24, 32)
"""Rows and columns of samples of an image."""
DARK, BRIGHT = 6.0, 249.0
"""Mean grey level below which an image is dark, and above which it is white."""
FLAT = 2.0
"""Standard deviation of grey levels below which an image shows nothing."""
LARGEST_GRAIN, GRAIN_FACTOR = 12.0, 2.5
"""Grain of an image, in grey levels and as a factor of the camera's usual one, above both of which it is noise."""
UNRELATED = 0.4
"""Correlation of neighbouring samples below which an image with so much grain is noise, whatever is usual."""
OTHER_VIEW = 0.35
"""Correlation with the camera's usual view below which an image shows another one."""
CHANGED_LEVELS, CHANGED_SHARE = 25.0, 0.28
"""Change of a sample that counts [grey levels], and share of such samples from which the view may be another one.

A body that moves before a plain wall is all that correlates, and changes less: of real recordings of an arm and a body
at most 0.21 of the samples change, and at least 0.35 where cameras are swapped."""
SWAPPED = 0.05
"""How much more an image may correlate with the view of another camera than with that of its own."""
LEARNING = 0.02
"""Share by which each good image moves what is usual."""


class ImageFault(IntEnum):
    """What is wrong with the newest image of a camera."""

    NONE = 0
    UNREADABLE = 1
    """Wrong size or type, or a stamp that is no number."""
    FUTURE = 2
    """Stamped later than now."""
    LATE = 3
    """No new image for a while."""
    FROZEN = 4
    """The same pixels under new stamps."""
    DARK = 5
    """Black, or white all over."""
    FLAT = 6
    """One colour: the lens is covered."""
    NOISE = 7
    """Neighbouring pixels have little to do with each other."""
    SWAPPED = 8
    """It shows what another camera usually shows."""
    OTHER_VIEW = 9
    """It shows what this camera never showed: it was turned, or is another one."""


FAULT_WORDS: Mapping[ImageFault, str] = {
    ImageFault.UNREADABLE: "images of a wrong size, type or stamp",
    ImageFault.FUTURE: "images stamped in the future",
    ImageFault.LATE: "no new images",
    ImageFault.FROZEN: "the same image again and again",
    ImageFault.DARK: "black or white images",
    ImageFault.FLAT: "images of one colour",
    ImageFault.NOISE: "noise",
    ImageFault.SWAPPED: "the view of another camera",
    ImageFault.OTHER_VIEW: "another view than before",
}
"""What a camera shows, as a person would say it."""


def sample_image(pixels: Array) -> Array:
    """Grey levels on the grid, and of their right neighbours [2, rows, columns]."""
    height, width = pixels.shape[:2]
    shown = pixels.reshape(-1, 3).take(_grid(int(height), int(width)), axis=0)
    return shown.sum(axis=-1, dtype=np.float64) / 3


@cache
def _grid(height: int, width: int) -> Array:
    """Places of the samples of an image among its pixels [2, rows, columns]."""
    rows, columns = np.linspace(0, height - 1, GRID[0]).astype(int), np.linspace(0, width - 2, GRID[1]).astype(int)
    first = rows[:, None] * width + columns[None, :]
    return np.stack([first, first + 1])


def unknown_views(cameras: int) -> dict[str, Any]:
    """What is usual of each camera, before anything is known: a part of a correction's memory."""
    return {"view": np.full((cameras, *GRID), np.nan), "grain": np.full(cameras, np.nan)}


def image_fault(
    sample: Array, camera: int, usual: Mapping[str, Array], readable: Sequence[bool], *, fixed: bool = True
) -> ImageFault:
    """What is wrong with an image, of its sample and what is usual; `readable` says which cameras are of one size.

    A camera that is not `fixed` has no usual view.
    """
    grey = sample[0]
    mean, deviation = float(grey.mean()), float(grey.std())
    if mean < DARK or mean > BRIGHT:
        return ImageFault.DARK
    if deviation < FLAT:
        return ImageFault.FLAT
    if _is_noise(sample, float(usual["grain"][camera])):
        return ImageFault.NOISE
    if not fixed or _changed_share(grey, usual["view"][camera]) < CHANGED_SHARE:
        return ImageFault.NONE
    own = _correlation(grey, usual["view"][camera])
    others = [_correlation(grey, usual["view"][c]) for c in range(len(usual["view"])) if c != camera and readable[c]]
    if np.isfinite(own) and max((c for c in others if np.isfinite(c)), default=-1.0) > own + SWAPPED:
        return ImageFault.SWAPPED
    return ImageFault.OTHER_VIEW if own < OTHER_VIEW else ImageFault.NONE


def learn_view(usual: Mapping[str, Array], camera: int, sample: Array) -> None:
    """Move what is usual of a camera towards a good image; the first one is taken as it is."""
    first = not np.isfinite(usual["grain"][camera])
    share = 1.0 if first else LEARNING
    usual["view"][camera] = sample[0] if first else usual["view"][camera] + share * (sample[0] - usual["view"][camera])
    usual["grain"][camera] = grain(sample) if first else (1 - share) * usual["grain"][camera] + share * grain(sample)


def grain(sample: Array) -> float:
    """Standard deviation of what neighbouring pixels do not share [grey levels]; edges of the scene count little."""
    apart = np.abs(sample[1] - sample[0])
    # The mean of a normal deviation is 0.8 of its standard deviation, and two pixels differ by the root of two of it.
    return float(apart.mean() / (0.8 * np.sqrt(2.0)))


def _is_noise(sample: Array, usual: float) -> bool:
    found = grain(sample)
    if found < LARGEST_GRAIN:
        return False
    related = _correlation(sample[0], sample[1])
    return related < UNRELATED or (np.isfinite(usual) and found > GRAIN_FACTOR * usual)


def _changed_share(grey: Array, usual: Array) -> float:
    """Share of samples that changed by more than the light did; 0 where nothing is usual yet."""
    change = grey - usual
    return np.count_nonzero(np.abs(change - np.median(change)) > CHANGED_LEVELS) / change.size


def _correlation(a: Array, b: Array) -> float:
    """Correlation of two grids; NaN where one is unknown."""
    x, y = (a - a.mean()).ravel(), (b - b.mean()).ravel()
    return float(x @ y / np.sqrt(max(float(x @ x) * float(y @ y), 1e-12)))


MAX_FRAME_GAP_S = 0.25
"""Time after the last image from which a camera is late, and the covariance grows [s]."""
SHARED = "shared"
"""Names of arrays that a frame's memory still shares with that of the frame before; only there during a frame."""
IMAGE_MEMORY = ("stamp", "print", "same", "seen", "fault", "view", "grain")
"""What is remembered of the images themselves."""


def unknown_images(state: State, cameras: int) -> dict[str, Any]:
    """What is remembered of cameras and their images before the first."""
    return {
        "stamp": np.full(cameras, -np.inf),
        "print": np.zeros(cameras),
        "same": np.zeros(cameras, int),
        "seen": np.full(cameras, state.t),
        "fault": np.zeros(cameras, int),
        **unknown_views(cameras),
        "age": np.zeros(()),
        "strength": np.full(cameras, 100.0),
        "disagreement": np.zeros(cameras),
        "disagreeing": np.zeros(cameras, int),
        "excluded": np.zeros(cameras, bool),
    }


def new_frames(
    rig: CameraRig, dt: float, memory: Mapping[str, Any], observation: Observation, t: float,
    shared: frozenset[str] = frozenset(),
) -> tuple[list[CameraFrame | None], dict[str, Any]]:  # fmt: skip
    """Frames that are newer than the last of their camera and show no fault, and the memory with what was found.

    Arrays of the names in `shared` are not copied; who changes one of them does so by `changeable`.
    """
    kept = {k: value if k in shared else np.array(value) for k, value in memory.items()}
    if shared:
        kept[SHARED] = {k for k in kept if k in shared}
    frames: list[CameraFrame | None] = []
    for c, frame in enumerate(rig.frames(observation, t)):
        if frame is None and IMAGES + rig.cameras[c].name in observation:
            kept["fault"][c] = ImageFault.UNREADABLE
        elif frame is not None and frame.stamp > t + dt:
            kept["fault"][c] = ImageFault.FUTURE
        elif frame is None or frame.stamp <= kept["stamp"][c]:
            if t - kept["seen"][c] > MAX_FRAME_GAP_S and not kept["fault"][c]:
                kept["fault"][c] = ImageFault.LATE
        else:
            kept["same"][c] = kept["same"][c] + 1 if frame.fingerprint == kept["print"][c] else 0
            kept["stamp"][c], kept["print"][c] = frame.stamp, frame.fingerprint
            frames.append(healthy_frame(rig, c, frame, kept))
            continue
        frames.append(None)
    kept["age"] = np.asarray(t - kept["seen"].max())
    return frames, kept


def changeable(memory: dict[str, Any], name: str) -> Array:
    """An array of a memory that may be changed: copied first where the frame before still owns it."""
    shared = memory.get(SHARED, set[str]())
    if name in shared:
        memory[name] = np.array(memory[name])
        shared.remove(name)
    return memory[name]


def image_log(rig: CameraRig, memory: Mapping[str, Any], t: float) -> dict[str, float]:
    """Fault and latency of every camera's newest image."""
    found: dict[str, float] = {}
    for c, camera in enumerate(rig.cameras):
        stamp = float(memory["stamp"][c])
        found[f"{camera.name}.fault"] = float(memory["fault"][c])
        found[f"{camera.name}.latency"] = t - stamp if np.isfinite(stamp) else np.nan
    return found


def healthy_frame(rig: CameraRig, c: int, frame: CameraFrame | None, memory: dict[str, Any]) -> CameraFrame | None:
    """The frame where nothing is wrong with its image, which then is usual; None else, with the fault in memory."""
    if frame is None:
        return None
    sample = sample_image(frame.pixels)
    alike = [(camera.height, camera.width) == frame.pixels.shape[:2] for camera in rig.cameras]
    # An image that repeats to the last bit under new stamps comes from a camera that hangs.
    still = memory["same"][c] >= 2
    fault = ImageFault.FROZEN if still else image_fault(sample, c, memory, alike, fixed=rig.cameras[c].in_world)
    memory["fault"][c] = fault
    if fault:
        return None
    memory["seen"][c] = frame.stamp
    learn_view(memory, c, sample)
    return frame


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
