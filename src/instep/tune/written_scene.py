"""The last gate: open the written scene from disk, replay held-out recordings, compare with the scene as given."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from instep.core.episode import Episode
from instep.core.errors import InstepError
from instep.physics.engines import open_world
from instep.scene.folder import Scene

from .gates import GateResult, comparison_words
from .group_params import open_written
from .held_out import HeldOutComparison, compare

NAME = "written scene"
MAX_DIFFERENCE = 0.01
"""Relative difference between errors computed in memory and from disk, of the larger one of before and after."""
REMEDY = "Keep the scene that was given, and report the two folders: what was written is not what was identified."


def check_written_scene(
    given: Scene,
    folder: Path,
    held_out: Sequence[Episode],
    expected: HeldOutComparison,
    *,
    window: float,
    seed: int = 0,
) -> GateResult:
    """Whether the scene in a folder, opened from disk, beats the one that was given as the fit said it would.

    A delta-action model in the folder may lower the errors further; without one they are what was computed in memory.
    """
    try:
        before, after = open_world(given), open_written(folder)
        found = compare(before, after, held_out, window=window, seed=seed)
    except InstepError as error:
        return GateResult(NAME, "failed", f"The written scene cannot be opened from disk: {error}", remedy=REMEDY)
    # The largest amount by which an error from disk exceeds the one in memory, relative to the error before.
    pairs = [(found.channels[name], expected.channels[name]) for name in expected.channels]
    worst = max(
        ((now[1] - then[1]) / max(then[0], then[1], 1e-300) for now, then in pairs),
        default=0.0,
    )
    scores = {"improvement": found.improvement, "after": found.after}
    if worst > MAX_DIFFERENCE:
        message = f"Opened from disk, the error differs by {worst:.1%} from what was computed before it was written."
        return GateResult(NAME, "failed", message, scores, REMEDY)
    state = "passed" if found.better else "failed"
    return GateResult(
        NAME, state, f"Opened from disk: {comparison_words(found)}", scores, "" if found.better else REMEDY
    )


def written_scene_not_run() -> GateResult:
    """The gate where others were not passed, so that nothing is promoted anyway."""
    return GateResult(NAME, "not run", "Not checked, since other gates are not passed.")
