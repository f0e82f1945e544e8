"""Studies of the gap and published baselines: legs, closing, training in simulation, image adaptation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from instep.core.imports import lazy_names

if TYPE_CHECKING:
    from .closing_study import ClosingPlan, run_closing
    from .closing_trial import ClosingBudget
    from .gait import Gait, GaitBody, shipped_gait
    from .leg_estimation import BaseFilter, wheel_velocity
    from .legs_study import LegOptions, leg_experiment
    from .policy_search import SearchOptions, search_weights
    from .simulation_training import TrainingSetup

__all__ = [
    "BaseFilter", "ClosingBudget", "ClosingPlan", "Gait", "GaitBody", "LegOptions", "SearchOptions", "TrainingSetup",
    "leg_experiment", "run_closing", "search_weights", "shipped_gait", "wheel_velocity",
]  # fmt: skip

__getattr__ = lazy_names(
    __name__,
    {
        "closing_study": "ClosingPlan run_closing",
        "closing_trial": "ClosingBudget",
        "gait": "Gait GaitBody shipped_gait",
        "leg_estimation": "BaseFilter wheel_velocity",
        "legs_study": "LegOptions leg_experiment",
        "policy_search": "SearchOptions search_weights",
        "simulation_training": "TrainingSetup",
    },
)
