"""Options of an identification; its gates with all thresholds.

| gate | question |
|---|---|
| telemetry | are the recordings usable at all? (`recording_checks`) |
| identifiability | do the recordings determine the parameters? |
| solve | did the search converge, and do independent searches agree? |
| recovery | are planted parameters found again inside their intervals? |
| whiteness | are the residuals uncorrelated? (advice) |
| held-out | does the error fall on recordings that were not fitted? |
| robot match | does the scene explain the motion of its servos at all? |
| written scene | does the scene on disk do what was computed in memory? |
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from instep.core.errors import BadInput
from instep.core.reading import COUNT, FLAG, NAMES, Entry, checked_table
from instep.core.statistics import Estimate
from instep.core.world import frozen_dataclass, options_dataclass
from instep.scene.folder import SCENE_FILE, Scene, read_table

ADVICE = ("whiteness",)
"""Gates that promotion does not require."""

# Identifiability
MAX_INTERVAL_SHARE = 0.75
"""Largest share of its range that the interval of an identifiable parameter spans."""
MIN_RELATIVE_INFORMATION = 1e-7
"""Information below this share of the strongest direction is an artefact of finite differences."""

# Solve
MIN_AGREEING = 3
"""Number of searches that must agree if derivatives do not show that one converged."""
SAME_COST, SAME_PLACE = 1.01, 0.01
"""Searches agree within this factor of the best cost, or within this share of each range,"""
SAME_PREDICTION = 1.0
"""or if their predictions differ from the best by at most this share of its residuals."""
MAX_OVER_NOISE, MAX_CORRELATED_ROWS = 1.25, 2.0
"""Residuals over the noise of the measurements, and their correlation time in rows, up to which no other search is
needed."""
MAX_CHATTER = 1e-3
"""Largest share of physics steps in which a motor may jump from one limit to the other."""

# Recovery
MIN_RECOVERED = 0.85
"""Minimum share of planted values inside their 90 % intervals."""
PLANTED_VALUES = 40
"""Number of planted values, over sets and parameters, if the number of sets is not given."""
MAX_REPEATS = 5
"""Factor on the number of planted sets while few of them leave the gate undecided."""

# Held-out recordings
MIN_IMPROVEMENT = 0.05
"""Minimum relative reduction of the error on held-out recordings."""
MAX_PREDICTABLE_ERROR = 0.7
"""Error over whole runs, as a share of a channel's motion, above which the channel is not compared open loop."""

# Robot match
MAX_UNEXPLAINED = 0.15
"""Largest error over windows, as a share of their motion; above it the scene is of another robot."""
SUSPECT_SHARE = 0.02
"""Share above which joints are tried in another order."""
MAX_EXCHANGED = 0.6
"""Ratio of errors with two joints exchanged and as recorded below which their order is wrong."""
MIN_NOISE_RATIO = 5.0
"""Error over measurement noise below which the motion is too small to judge."""

# Written scene
MAX_DIFFERENCE = 0.01
"""Largest relative difference between errors in memory and from disk."""

# Torques
TORQUE_SEARCHES, MAX_TORQUE_SPREAD = 3, 0.02
"""Fits from other starts, and the largest difference of their torques, as a share of the residual."""
MAX_TORQUE_WIDENING = 3.0
"""Largest factor by which intervals are widened to hold planted values."""
MAX_TORQUE_DIFFERENCE = 0.02
"""Largest difference of the torques from disk and in memory, over the measured ones: digits, and loads of friction."""

# Posteriors
MIN_MISSPECIFICATION_P = 0.05
"""p-value of the residuals' autocorrelation below which the model lacks something."""
MIN_BAND_SHARE = 0.9
"""Upper end of the share of held-out rows inside the 90 % band below which the posterior is too narrow."""

GateState = Literal["passed", "failed", "not run"]
WINDOW_S = 1.0
"""Default length of windows [s]."""
_SCHEMA: Mapping[str, Entry] = {
    "guesses": COUNT, "ignore_coordinates": NAMES, "fixed_start": FLAG, "drop_unpredictable": FLAG,
}  # fmt: skip


@frozen_dataclass
class GateResult:
    """The verdict of one gate."""

    name: str
    state: GateState
    message: str
    scores: Mapping[str, Estimate] = field(default_factory=dict[str, Estimate])
    remedy: str = ""
    """What to do if it did not pass, with the option that does it."""

    @property
    def passed(self) -> bool:
        """Whether it was run and passed."""
        return self.state == "passed"

    @property
    def required(self) -> bool:
        """Whether promotion requires it."""
        return self.name not in ADVICE

    def as_dict(self) -> dict[str, str | bool]:
        """Its entry in `result.json` and `tuned.json`, without scores."""
        entry = {"name": self.name, "state": self.state, "passed": self.passed, "message": self.message}
        return {**entry, **({"remedy": self.remedy} if self.remedy else {})}


@options_dataclass
class TuneOptions:
    """Options of one identification; `instep tune` takes them as flags."""

    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    """search ranges by address or pattern: 'joint.*.damping' 0.01 2. Those of the scene where not given."""
    initial: Mapping[str, float] = field(default_factory=dict[str, float])
    """initial guesses by address, tried beside the scene's values."""
    own: tuple[str, ...] = ()
    """parameters that each group of recordings has of its own ('joint.*.frictionloss'); the others are shared."""
    group: tuple[str, ...] = ()
    """groups of --own: a metadata field of the recordings, 'folder', or patterns as 'monday*=a' 'tuesday*=b'."""
    window: float | None = None
    """length of the simulated windows [s]; shorter for chaotic motion. Default: 1 s; for arms with torque motors as
    long as the motion is predictable."""
    windows: int = 200
    """maximum number of windows, spread over all recordings."""
    held_out: float = 1 / 3
    """share of the recordings that is held out."""
    seeds: int = 4
    """independent searches whose results must agree; fewer than three promote nothing."""
    draws: int | None = None
    """planted parameter sets of the recovery gate; about forty values by default. 0 promotes nothing."""
    seed: int = 0
    """seed of all random numbers."""

    def __post_init__(self) -> None:
        window = WINDOW_S if self.window is None else self.window
        if self.windows < 2 or self.seeds < 1 or (self.draws or 0) < 0 or not 0 < window < math.inf:
            raise BadInput(
                "--window must be above 0 s, --windows at least 2, --seeds at least 1 and --draws at least 0, not "
                f"{window:g}, {self.windows}, {self.seeds} and {self.draws or 0}."
            )
        for name, (low, high) in self.bounds.items():
            if not (math.isfinite(low) and math.isfinite(high)):
                raise BadInput(f"The bounds of {name!r} must be finite numbers, not {low:g} and {high:g}.")
            if not low < high:
                raise BadInput(f"The bounds of {name!r} are reversed: {low:g} is not below {high:g}.")


@options_dataclass
class FitDetails:
    """Details of the fits that belong to a scene: the table `[tune]` of scene.toml."""

    guesses: int = 1
    """Initial guesses per search; the first of all has the scene's values."""
    ignore_coordinates: tuple[str, ...] = ()
    """Measured coordinates without weight, by label or pattern: 'tee.vz' of a block that only slides."""
    fixed_start: bool = False
    """Whether start states of windows are taken as measured; otherwise they are estimated within their noise."""
    drop_unpredictable: bool = False
    """Whether rows are dropped whose prediction is dominated by noise of the start state, as near an upright pendulum.
    With automatic parameters they are dropped wherever nothing drives a joint."""

    def __post_init__(self) -> None:
        if self.guesses < 1:
            raise BadInput(f"[tune] of a scene needs at least 1 guess, not {self.guesses}.")


def scene_details(scene: Scene) -> FitDetails:
    """The table `[tune]` of a scene; the defaults if it has none."""
    path = scene.root / SCENE_FILE
    # A bare robot file may lie beside the scene.toml of another robot.
    own = path.is_file() and scene.name == scene.root.resolve().name
    table = checked_table(read_table(path).get("tune", {}) if own else {}, _SCHEMA, f"[tune] of {SCENE_FILE}")
    ignored: list[str] = table.pop("ignore_coordinates", [])
    return FitDetails(ignore_coordinates=tuple(ignored), **table)
