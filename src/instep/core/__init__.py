"""Types, rollouts and statistics beyond those that `instep` itself exports. NumPy only."""

from .episode import Log
from .param import Address
from .progress import Progress
from .statistics import (
    bootstrap,
    equivalence,
    jackknife,
    paired_difference,
    pooled,
    prediction_powered,
    sequential_test,
    wilson,
)
from .world import Array, MapFn, Observation, Settings, Watcher, Wrapper, advance

__all__ = [
    "Address", "Array", "Log", "MapFn", "Observation", "Progress", "Settings", "Watcher", "Wrapper", "advance",
    "bootstrap", "equivalence", "jackknife", "paired_difference", "pooled", "prediction_powered", "sequential_test",
    "wilson",
]  # fmt: skip
