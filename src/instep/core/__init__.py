"""Core types: states, worlds, episodes, parameters, errors, poses and statistics. NumPy only."""

# ruff: noqa: I001 - imports are kept on few lines

from .episode import Episode, Log
from .errors import BadInput, Diverged, InstepError, LinkLost, MissingExtra, UnknownName, Unsupported
from .param import Address, Belief, Box, Param
from .progress import Progress
from .rollout import Aligned, Constant, Script, aligned, replay, replay_all, rollout, rollout_windows, rollouts
from .statistics import (
    Equivalence, Estimate, PredictionPowered, SequentialTest, bootstrap, equivalence, jackknife, mcnemar, newcombe,
    paired_difference, pooled, prediction_powered, sequential_test, wilson,
)  # fmt: skip
from .world import (
    Array, Channel, MapFn, Observation, Policy, Settings, Simulator, Spec, State, SwitchedSimulator, Trajectory,
    TrajectorySimulator, Watcher, World, Wrapper, advance, put, stack, take, unroll, vector,
)  # fmt: skip

__all__ = [
    "Address", "Aligned", "Array", "BadInput", "Belief", "Box", "Channel", "Constant", "Diverged", "Episode",
    "Equivalence", "Estimate", "InstepError", "LinkLost", "Log", "MapFn", "MissingExtra", "Observation", "Param",
    "Policy", "PredictionPowered", "Progress", "Script", "SequentialTest", "Settings", "Simulator", "Spec", "State",
    "SwitchedSimulator", "Trajectory", "TrajectorySimulator", "UnknownName", "Unsupported", "Watcher", "World",
    "Wrapper", "advance", "aligned", "bootstrap", "equivalence", "jackknife", "mcnemar", "newcombe",
    "paired_difference", "pooled", "prediction_powered", "put", "replay", "replay_all", "rollout",
    "rollout_windows", "rollouts", "sequential_test", "stack", "take", "unroll", "vector", "wilson",
]  # fmt: skip
