"""New camera images: faults, new frames, and the time budget of a correction.

An image is sampled on a coarse grid, together with the right neighbour of each sample. A fixed camera keeps its view
except for what moves in it; the difference of neighbours measures the noise.

With a deadline, work is planned by the times of earlier frames. Each body gets at least one image and one Gauss-Newton
step. Then follow, while time remains: learning from one image, more images (largest information first, multiplied by
the frames since the last use), more steps, and learning from the other images. Bodies share the time. A body that got
none comes first in the next frame.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import IntEnum
from functools import cache
from typing import Any, TypeVar, cast

import numpy as np

from instep.core.world import Array, Observation, array_dataclass

from .camera_rig import IMAGES, CameraFrame, CameraRig

GRID = (24, 32)
"""Rows and columns of samples of an image."""
DARK, BRIGHT = 6.0, 249.0
"""Mean grey levels below which an image is dark and above which it is white."""
FLAT = 2.0
"""Standard deviation of grey levels below which an image is flat."""
LARGEST_NOISE, NOISE_FACTOR = 12.0, 2.5
"""Noise in grey levels, and as a factor of the camera's usual noise, above both of which an image is faulty."""
UNRELATED = 0.4
"""Correlation of neighbouring samples below which a noisy image is faulty whatever is usual."""
OTHER_VIEW = 0.35
"""Correlation with the camera's usual view below which an image shows another view."""
CHANGED_LEVELS, CHANGED_SHARE = 25.0, 0.28
"""Change that counts as another surface [grey levels], and share of such samples from which the view is checked.

In real recordings of an arm and a body at most 0.21 of the samples change; with swapped cameras at least 0.35."""
SWAPPED = 0.05
"""Margin by which the view of another camera must correlate better than the camera's own."""
LEARNING = 0.02
"""Share by which each good image updates the usual view."""
MAX_FRAME_GAP_S = 0.25
"""Time after the last image from which a camera is late and the covariance grows [s]."""


class ImageFault(IntEnum):
    """The fault of the newest image of a camera."""

    NONE = 0
    UNREADABLE = 1
    """Wrong size or type, or a stamp that is not a number."""
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
    """Neighbouring pixels are unrelated."""
    SWAPPED = 8
    """The view of another camera."""
    OTHER_VIEW = 9
    """A view that this camera never showed: it was turned or exchanged."""


_WORDS = (
    "no fault", "images of a wrong size, type or stamp", "images stamped in the future", "no new images",
    "the same image again and again", "black or white images", "images of one colour", "noise",
    "the view of another camera", "another view than before",
)  # fmt: skip
FAULT_WORDS: Mapping[ImageFault, str] = dict(zip(ImageFault, _WORDS, strict=True))
"""Faults in words."""
S = TypeVar("S")


def copied(state: S) -> S:
    """A copy of a state whose parts may be changed."""
    given, made = cast("Any", state), dict[str, Any]()
    for name in (one.name for one in fields(given)):
        part = getattr(given, name)
        made[name] = part.copy() if hasattr(part, "copy") else copied(part) if is_dataclass(part) else part
    return cast("S", replace(given, **made))


@dataclass(slots=True)
class ImageState:
    """State of the image checks; arrays are per camera."""

    stamp: Array
    """Stamp of the newest image [s]."""
    fingerprint: Array
    repeats: Array
    """Images in a row with the same pixels."""
    seen: Array
    """Stamp of the newest good image [s]."""
    fault: Array
    """`ImageFault` of the newest image."""
    view: Array
    """Usual grey levels on the grid [cameras, *GRID]; NaN before the first good image."""
    noise: Array
    """Usual noise [grey levels]; NaN before the first good image."""

    @classmethod
    def unknown(cls, cameras: int, t: float = 0.0) -> ImageState:
        """The state before the first image."""
        count, none, view = np.zeros(cameras, int), np.full(cameras, np.nan), np.full((cameras, *GRID), np.nan)
        return cls(np.full(cameras, -np.inf), np.zeros(cameras), count, np.full(cameras, t), count.copy(), view, none)

    def log(self, rig: CameraRig, t: float) -> dict[str, float]:
        """Fault and latency of every camera's newest image."""
        late = np.where(np.isfinite(self.stamp), t - self.stamp, np.nan)
        faults = {f"{camera.name}.fault": float(self.fault[c]) for c, camera in enumerate(rig.cameras)}
        return faults | {f"{camera.name}.latency": float(late[c]) for c, camera in enumerate(rig.cameras)}


def new_frames(
    rig: CameraRig, state: ImageState, observation: Observation, t: float, dt: float
) -> list[CameraFrame | None]:
    """Frames that are newer than the last of their camera and show no fault; updates the state."""
    frames: list[CameraFrame | None] = []
    for c, frame in enumerate(rig.frames(observation, t)):
        good = None
        if frame is None and IMAGES + rig.cameras[c].name in observation:
            state.fault[c] = ImageFault.UNREADABLE
        elif frame is not None and frame.stamp > t + dt:
            state.fault[c] = ImageFault.FUTURE
        elif frame is None or frame.stamp <= state.stamp[c]:
            if t - state.seen[c] > MAX_FRAME_GAP_S and not state.fault[c]:
                state.fault[c] = ImageFault.LATE
        else:
            state.repeats[c] = state.repeats[c] + 1 if frame.fingerprint == state.fingerprint[c] else 0
            state.stamp[c], state.fingerprint[c] = frame.stamp, frame.fingerprint
            good = healthy_frame(rig, c, frame, state)
        frames.append(good)
    return frames


def healthy_frame(rig: CameraRig, c: int, frame: CameraFrame | None, state: ImageState) -> CameraFrame | None:
    """The frame if its image has no fault, None otherwise; updates the fault and the usual view."""
    if frame is None:
        return None
    sample, fixed = sample_image(frame.pixels), rig.cameras[c].in_world
    alike = [(camera.height, camera.width) == frame.pixels.shape[:2] for camera in rig.cameras]
    # An image that repeats to the last bit under new stamps comes from a camera that hangs.
    frozen = state.repeats[c] >= 2
    state.fault[c] = ImageFault.FROZEN if frozen else image_fault(sample, c, state, alike, fixed=fixed)
    if state.fault[c]:
        return None
    state.seen[c] = frame.stamp
    learn_view(state, c, sample)
    return frame


def sample_image(pixels: Array) -> Array:
    """Grey levels on the grid, and of their right neighbours [2, rows, columns]."""
    height, width = pixels.shape[:2]
    shown = pixels.reshape(-1, 3).take(_grid(int(height), int(width)), axis=0)
    return shown.sum(axis=-1, dtype=np.float64) / 3


@cache
def _grid(height: int, width: int) -> Array:
    """Indices of the samples among the pixels of an image [2, rows, columns]."""
    rows, columns = np.linspace(0, height - 1, GRID[0]).astype(int), np.linspace(0, width - 2, GRID[1]).astype(int)
    first = rows[:, None] * width + columns[None, :]
    return np.stack([first, first + 1])


def image_fault(
    sample: Array, camera: int, usual: ImageState, comparable: Sequence[bool], *, fixed: bool = True
) -> ImageFault:
    """The fault of an image, from its sample; `comparable` marks the cameras with images of the same size.

    A camera that is not `fixed` has no usual view.
    """
    grey = sample[0]
    mean, deviation = float(grey.mean()), float(grey.std())
    if mean < DARK or mean > BRIGHT:
        return ImageFault.DARK
    if deviation < FLAT:
        return ImageFault.FLAT
    noise = sample_noise(sample)
    usual_noise = float(usual.noise[camera])
    if noise >= LARGEST_NOISE and (
        _correlation(sample[0], sample[1]) < UNRELATED
        or (np.isfinite(usual_noise) and noise > NOISE_FACTOR * usual_noise)
    ):
        return ImageFault.NOISE
    # The median change is that of the light. Nothing has changed while no view is known (NaN).
    change = grey - usual.view[camera]
    changed = np.count_nonzero(np.abs(change - np.median(change)) > CHANGED_LEVELS) / change.size
    if not fixed or changed < CHANGED_SHARE:
        return ImageFault.NONE
    own = _correlation(grey, usual.view[camera])
    others = [_correlation(grey, usual.view[c]) for c in range(len(usual.view)) if c != camera and comparable[c]]
    if np.isfinite(own) and max((c for c in others if np.isfinite(c)), default=-1.0) > own + SWAPPED:
        return ImageFault.SWAPPED
    return ImageFault.OTHER_VIEW if own < OTHER_VIEW else ImageFault.NONE


def learn_view(usual: ImageState, camera: int, sample: Array) -> None:
    """Update the usual view and noise of a camera by a good image; the first one is taken as it is."""
    view, noise, last = usual.view[camera], sample_noise(sample), float(usual.noise[camera])
    first = not np.isfinite(last)
    usual.view[camera] = sample[0] if first else view + LEARNING * (sample[0] - view)
    usual.noise[camera] = noise if first else (1 - LEARNING) * last + LEARNING * noise


def sample_noise(sample: Array) -> float:
    """Noise by the mean difference of neighbouring samples [grey levels]; edges of the scene count little."""
    # The mean of |normal| is 0.8 of its standard deviation, and two pixels differ by the root of two of it.
    return float(np.abs(sample[1] - sample[0]).mean() / (0.8 * np.sqrt(2.0)))


def _correlation(a: Array, b: Array) -> float:
    """Correlation of two grids; NaN if one is unknown."""
    x, y = (a - a.mean()).ravel(), (b - b.mean()).ravel()
    return float(x @ y / np.sqrt(max(float(x @ x) * float(y @ y), 1e-12)))


WORK = ("image", "point", "step", "learning")
"""Kinds of work per body: segment an image, follow a texture point, compare a silhouette, learn from an image."""
LEFT_OUT = ("bodies", "images", "points", "steps", "learning")
"""Work that a deadline can leave out of a frame."""
BUDGET_LOG = ("budget.given", "budget.spent", *(f"budget.{word}_left_out" for word in LEFT_OUT))
"""Log of a frame: time given and spent [s], NaN without a deadline; work left out."""
RISE, FALL = 0.4, 0.1
"""Shares by which an expected time follows a longer and a shorter measurement."""
MAX_RISE = 3.0
"""Largest measurement that counts, as a factor of the expected time: the rest is an interruption."""
MIN_POINTS = 40
"""Texture points that are followed whatever the time."""
MIN_INFORMATION = 0.05
"""Least expected information of an image relative to the best, so that every camera is used again."""


@array_dataclass
class Deadline:
    """The time by which a correction should end, on its clock [s]."""

    until: float
    clock: Callable[[], float]


@dataclass(slots=True)
class WorkState:
    """State of the time budget."""

    costs: Array
    """Expected times [bodies, WORK] [s]; 0 before the first measurement."""
    waiting: Array
    """Frames in a row in which a body was left out [bodies]."""
    information: Array
    """Information of the last image that was compared [bodies, cameras]; infinite before the first."""
    unused: Array
    """Frames since that image [bodies, cameras]."""

    @classmethod
    def unknown(cls, bodies: int, cameras: int) -> WorkState:
        """The state before any measurement."""
        information = np.full((bodies, cameras), np.inf)
        return cls(np.zeros((bodies, len(WORK))), np.zeros(bodies, int), information, np.ones((bodies, cameras)))

    def compared(self, b: int, information: Mapping[int, float]) -> None:
        """Remember the information that each compared camera gave about a body; 0 if it did not show the body."""
        self.unused[b] += 1.0
        for c, value in information.items():
            self.unused[b, c], self.information[b, c] = 1.0, value


class FrameBudget:
    """The remaining time of one frame, the expected time of work, and the work left out."""

    def __init__(self, deadline: Deadline | None, state: WorkState):
        self._deadline, self.state = deadline, state
        self._body, self._turns = 0, 0
        self.counts: dict[str, float] = dict.fromkeys(LEFT_OUT, 0.0)
        self._begun = 0.0 if deadline is None else deadline.clock()
        self._until = np.inf if deadline is None else deadline.until

    def body_order(self) -> list[int]:
        """Bodies in the order of correction: those first that waited longest."""
        waiting = self.state.waiting
        order = list(range(len(waiting)))
        return order if self._deadline is None else sorted(order, key=lambda b: -int(waiting[b]))

    def left(self) -> float:
        """Time until the deadline of this body [s]; infinite without one."""
        return np.inf if self._deadline is None else self._until - self._deadline.clock()

    def begin_body(self, b: int, bodies: int) -> None:
        """Turn to a body, with its share of the remaining time; `bodies` includes it and those still to come."""
        self._body, self._turns = b, self._turns + 1
        if self._deadline is not None:
            now = self._deadline.clock()
            self._until = now + (self._deadline.until - now) / bodies

    def cost(self, **work: float) -> float:
        """The expected time of some work on this body [s]."""
        return sum(n * float(self.state.costs[self._body, WORK.index(word)]) for word, n in work.items())

    def fits(self, **work: float) -> bool:
        """Whether some work is expected to end before the deadline."""
        return self._deadline is None or self.cost(**work) <= self.left()

    def leave(self, word: str, n: float = 1.0) -> None:
        """Count work that was left out."""
        self.counts[word] += n

    @contextmanager
    def timed(self, word: str, n: float = 1.0) -> Generator[None]:
        """Measure the time of `n` pieces of work."""
        begun = self.left()
        yield
        self.note(word, begun - self.left(), n)

    def note(self, word: str, took: float, n: float = 1.0) -> None:
        """Update the expected time by the measured time of `n` pieces of work [s]."""
        if self._deadline is None:
            return
        expected, i, each = self.state.costs[self._body], WORK.index(word), took / max(n, 1.0)
        if expected[i] <= 0:
            expected[i] = each
        else:
            change = min(each, MAX_RISE * expected[i]) - expected[i]
            expected[i] += (RISE if change > 0 else FALL) * change

    @contextmanager
    def following(self) -> Generator[Callable[[int], int]]:
        """Follow texture points; yields a function from the known points to the number that fits."""
        begun, taken = self.left(), 0

        def most(known: int) -> int:
            nonlocal taken
            each, room = self.cost(point=1.0), self.left() - self.cost(step=2.0)
            taken = known if self._deadline is None or each <= 0 else min(known, max(int(room / each), MIN_POINTS))
            self.leave("points", known - taken)
            return taken

        yield most
        if taken:
            self.note("point", begun - self.left(), taken)

    def planned_images(self, given: Sequence[bool], usable: Sequence[bool]) -> list[int]:
        """The cameras whose images of this body are compared now.

        At least one for the body that comes first; none for another body if nothing fits.
        """
        new = [c for c, known in enumerate(given) if known]
        if self._deadline is None:
            return new
        information, unused = self.state.information[self._body], self.state.unused[self._body]
        most = max((float(information[c]) for c in new if np.isfinite(information[c])), default=1.0)
        expected = (information / max(most, 1e-12) + MIN_INFORMATION) * unused
        order = sorted(new, key=lambda c: (not usable[c], -expected[c]))
        fitting = (n for n in range(len(order), 0, -1) if self.fits(image=n, step=2 * n, learning=1))
        taken = next(fitting, int(bool(new) and (self._turns == 1 or self.fits(image=1, step=2))))
        self.leave("images", len(new) - taken)
        return sorted(order[:taken])

    def log(self) -> dict[str, float]:
        """`BUDGET_LOG` of this frame."""
        found = dict.fromkeys(BUDGET_LOG, np.nan)
        if self._deadline is not None:
            found["budget.given"] = self._deadline.until - self._begun
            found["budget.spent"] = self._deadline.clock() - self._begun
        return found | {f"budget.{word}_left_out": n for word, n in self.counts.items()}


def left_out(log: Mapping[str, Array]) -> dict[str, float]:
    """The work that a run left out for lack of time: median time given [s], frames, and totals of `LEFT_OUT`.

    Empty without a deadline.
    """
    given = np.asarray(log.get("budget.given", np.nan), float)
    if not np.isfinite(given).any():
        return {}
    counts = {word: np.asarray(log[f"budget.{word}_left_out"], float) for word in LEFT_OUT}
    frames = np.sum([np.nan_to_num(rows) for rows in counts.values()], axis=0) > 0
    totals = {word: float(np.nansum(rows)) for word, rows in counts.items()}
    return {"given": float(np.nanmedian(given)), "frames": float(frames.sum()), **totals}
