"""Studies of the gap and published baselines: legs, closing, training in simulation, image adaptation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from instep.core.imports import lazy_names

if TYPE_CHECKING:
    from .base_estimation import BaseFilter, BaseFilterOptions, LeggedEstimate, wheel_velocity
    from .closing_study import ClosingPlan, ClosingStudy, run_closing
    from .closing_trial import ClosingBudget
    from .gait import Gait, GaitBody, GaitFile, ranges_gait, read_gait, shipped_gait
    from .image_baselines import adapt_by_baseline
    from .leg_identification import EnsembleOptions, ensemble_posterior
    from .leg_walks import LegExperiment, LegOptions, WalkNoise, Walks, leg_experiment
    from .legs_study import LegBudget, close_on_legs
    from .policy_search import SearchOptions, SearchResult, best_weights, search_weights
    from .residual_policy import (
        Residual,
        ResidualPolicy,
        Trainable,
        TrainableGait,
        TrainableResidual,
        load_residual,
        zero_residual,
    )
    from .simulation_training import TrainingSetup, grow_and_train

__all__ = [
    "BaseFilter", "BaseFilterOptions", "ClosingBudget", "ClosingPlan", "ClosingStudy", "EnsembleOptions", "Gait",
    "GaitBody", "GaitFile", "LegBudget", "LegExperiment", "LegOptions", "LeggedEstimate", "Residual", "ResidualPolicy",
    "SearchOptions", "SearchResult", "Trainable", "TrainableGait", "TrainableResidual", "TrainingSetup", "WalkNoise",
    "Walks", "adapt_by_baseline", "best_weights", "close_on_legs", "ensemble_posterior", "grow_and_train",
    "leg_experiment", "load_residual", "ranges_gait", "read_gait", "run_closing", "search_weights", "shipped_gait",
    "wheel_velocity", "zero_residual",
]  # fmt: skip

__getattr__ = lazy_names(
    __name__,
    {
        "base_estimation": "BaseFilter BaseFilterOptions LeggedEstimate wheel_velocity",
        "closing_study": "ClosingPlan ClosingStudy run_closing",
        "closing_trial": "ClosingBudget",
        "gait": "Gait GaitBody GaitFile ranges_gait read_gait shipped_gait",
        "image_baselines": "adapt_by_baseline",
        "leg_identification": "EnsembleOptions ensemble_posterior",
        "leg_walks": "LegExperiment LegOptions WalkNoise Walks leg_experiment",
        "legs_study": "LegBudget close_on_legs",
        "policy_search": "SearchOptions SearchResult best_weights search_weights",
        "residual_policy": (
            "Residual ResidualPolicy Trainable TrainableGait TrainableResidual load_residual zero_residual"
        ),
        "simulation_training": "TrainingSetup grow_and_train",
    },
)
