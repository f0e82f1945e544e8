"""Close the gap: identify parameters, infer posteriors, design excitation, learn a delta action, randomize."""

from __future__ import annotations

from typing import TYPE_CHECKING

from instep.core.lazy import lazy_names

if TYPE_CHECKING:
    from .beliefs import (
        GaussianBelief,
        IndependentBeliefs,
        MixtureBelief,
        SampleBelief,
        belief_addresses,
        estimates,
        load_belief,
        save_belief,
        to_box,
        widened,
    )
    from .cma import CmaOptions, CmaResult, cma_search, contact_search
    from .delta_action import DeltaEvaluation, DeltaOptions, evaluate_delta, learn_and_evaluate, learn_delta
    from .ensemble_sampling import EnsembleOptions, ensemble_posterior
    from .excitation import ExcitationDesign, ExciteOptions, chirp, evaluate_motion, excite
    from .excitation_limits import ExcitationLimits, MotionLimits, driven_joint_limits, limit_usage
    from .gates import GatedFit, GateOptions, GateResult, gated_fit, split
    from .held_out import HeldOutComparison, compare, window_errors
    from .identifiability import Identifiability, WeakDirection, assess, assess_fit
    from .identification import Identification, IdentifyOptions, identify
    from .least_squares import FitStatus
    from .model_export import ExportedFile, write_mjcf, write_urdf, write_usd, write_yaml
    from .online_selection import online_params, online_world
    from .param_export import ExportResult, export_all, promote, scene_hash, write_joint_limits, write_params
    from .param_selection import ParamSelection, auto_params, command_limits, named_params, select_params
    from .parameter_recovery import Recovery, recover_parameters
    from .policy_search import SearchOptions, SearchResult, best_weights, search_weights
    from .posterior import eki, infer, laplace, likelihood, npe, svgd
    from .posterior_checks import (
        PosteriorCheck,
        PredictiveBand,
        RankCalibration,
        calibration,
        check_posterior,
        misspecification,
        predictive_band,
    )
    from .randomize import (
        AdrOptions,
        AdrResult,
        DropoOptions,
        appearance,
        dropo,
        dropo_from_episodes,
        expand_ranges,
        nominal_values,
        parse_belief,
        parse_ranges,
        with_imperfections,
    )
    from .reidentification import Reidentification, Reidentifier, ReidentifyEvent, ReidentifyOptions, reidentify
    from .shooting import Fit, Prior, ShootingOptions, fit
    from .windows import Windows, cut_windows, predictable_windows

__all__ = [
    "AdrOptions", "AdrResult", "CmaOptions", "CmaResult", "DeltaEvaluation", "DeltaOptions", "DropoOptions",
    "EnsembleOptions", "ExcitationDesign", "ExcitationLimits", "ExciteOptions", "ExportResult", "ExportedFile",
    "Fit", "FitStatus", "GateOptions", "GateResult", "GatedFit", "GaussianBelief", "HeldOutComparison",
    "Identifiability", "Identification", "IdentifyOptions", "IndependentBeliefs", "MixtureBelief", "MotionLimits",
    "ParamSelection", "PosteriorCheck", "PredictiveBand", "Prior", "RankCalibration", "Recovery",
    "Reidentification", "Reidentifier", "ReidentifyEvent", "ReidentifyOptions", "SampleBelief", "SearchOptions",
    "SearchResult", "ShootingOptions", "WeakDirection", "Windows", "appearance", "assess", "assess_fit",
    "auto_params", "belief_addresses", "best_weights", "calibration", "check_posterior", "chirp", "cma_search",
    "command_limits",
    "compare", "contact_search", "cut_windows", "driven_joint_limits", "dropo", "dropo_from_episodes", "eki",
    "ensemble_posterior", "estimates", "evaluate_delta", "evaluate_motion", "excite", "expand_ranges", "export_all",
    "fit", "gated_fit", "identify", "infer", "laplace", "learn_and_evaluate", "learn_delta", "likelihood",
    "limit_usage", "load_belief", "misspecification", "named_params", "nominal_values", "npe", "online_params",
    "online_world", "parse_belief", "parse_ranges", "predictable_windows", "predictive_band", "promote",
    "recover_parameters", "reidentify", "save_belief", "scene_hash", "search_weights", "select_params", "split",
    "svgd", "to_box", "widened", "window_errors", "with_imperfections", "write_joint_limits", "write_mjcf",
    "write_params", "write_urdf", "write_usd", "write_yaml",
]  # fmt: skip

__getattr__ = lazy_names(
    __name__,
    {
        "beliefs": "GaussianBelief IndependentBeliefs MixtureBelief SampleBelief belief_addresses estimates "
        "load_belief save_belief to_box widened",
        "cma": "CmaOptions CmaResult cma_search contact_search",
        "delta_action": "DeltaEvaluation DeltaOptions evaluate_delta learn_and_evaluate learn_delta",
        "ensemble_sampling": "EnsembleOptions ensemble_posterior",
        "excitation": "ExcitationDesign ExciteOptions chirp evaluate_motion excite",
        "excitation_limits": "ExcitationLimits MotionLimits driven_joint_limits limit_usage",
        "gates": "GateOptions GateResult GatedFit gated_fit split",
        "held_out": "HeldOutComparison compare window_errors",
        "identifiability": "Identifiability WeakDirection assess assess_fit",
        "identification": "Identification IdentifyOptions identify",
        "least_squares": "FitStatus",
        "model_export": "ExportedFile write_mjcf write_urdf write_usd write_yaml",
        "online_selection": "online_params online_world",
        "param_export": "ExportResult export_all promote scene_hash write_joint_limits write_params",
        "param_selection": "ParamSelection auto_params command_limits named_params select_params",
        "parameter_recovery": "Recovery recover_parameters",
        "policy_search": "SearchOptions SearchResult best_weights search_weights",
        "posterior": "eki infer laplace likelihood npe svgd",
        "posterior_checks": "PosteriorCheck PredictiveBand RankCalibration calibration check_posterior "
        "misspecification predictive_band",
        "randomize": "AdrOptions AdrResult DropoOptions appearance dropo dropo_from_episodes expand_ranges "
        "nominal_values parse_belief parse_ranges with_imperfections",
        "reidentification": "Reidentification Reidentifier ReidentifyEvent ReidentifyOptions reidentify",
        "shooting": "Fit Prior ShootingOptions fit",
        "windows": "Windows cut_windows predictable_windows",
    },
)
