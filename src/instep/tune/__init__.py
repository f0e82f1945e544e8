"""Close the gap: identify parameters, infer posteriors, design excitation, learn a delta action, randomize."""

from __future__ import annotations

from typing import TYPE_CHECKING

from instep.core.imports import lazy_names

if TYPE_CHECKING:
    from .delta_action import DeltaEvaluation, DeltaOptions, evaluate_delta, learn_and_evaluate, learn_delta
    from .excitation import ExcitationDesign, ExciteOptions, chirp, evaluate_motion, excite
    from .excitation_limits import ExcitationLimits, MotionLimits, driven_joint_limits, limit_usage
    from .fit.contact_search import CmaOptions, CmaResult, cma_search, contact_search
    from .fit.identifiability import Identifiability, WeakDirection, assess, assess_fit
    from .fit.least_squares import FitStatus
    from .fit.shooting import Fit, Prior, ShootingOptions, fit
    from .fit.windows import Windows, cut_windows, predictable_windows
    from .gates import GatedFit, GateOptions, GateResult, gated_fit, split
    from .held_out import HeldOutComparison, compare, window_errors
    from .identification import Identification, IdentifyOptions, identify
    from .online.reidentification import Reidentification, Reidentifier, ReidentifyEvent, ReidentifyOptions, reidentify
    from .online.window_prediction import online_params, online_world
    from .param_export import (
        ExportedFile,
        ExportResult,
        export_all,
        promote,
        scene_hash,
        write_joint_limits,
        write_mjcf,
        write_params,
        write_urdf,
        write_usd,
        write_yaml,
    )
    from .param_selection import ParamSelection, auto_params, command_limits, named_params, select_params
    from .posterior.beliefs import (
        AdrOptions,
        AdrResult,
        DropoOptions,
        GaussianBelief,
        IndependentBeliefs,
        MixtureBelief,
        SampleBelief,
        appearance,
        belief_addresses,
        dropo,
        dropo_from_episodes,
        estimates,
        expand_ranges,
        load_belief,
        nominal_values,
        parse_belief,
        parse_ranges,
        save_belief,
        to_box,
        widened,
        with_imperfections,
    )
    from .posterior.inference import eki, infer, laplace, likelihood, npe, svgd
    from .posterior.posterior_checks import (
        PosteriorCheck,
        PredictiveBand,
        RankCalibration,
        Recovery,
        calibration,
        check_posterior,
        misspecification,
        predictive_band,
        recover_parameters,
    )

__all__ = [
    "AdrOptions", "AdrResult", "CmaOptions", "CmaResult", "DeltaEvaluation", "DeltaOptions", "DropoOptions",
    "ExcitationDesign", "ExcitationLimits", "ExciteOptions", "ExportResult", "ExportedFile",
    "Fit", "FitStatus", "GateOptions", "GateResult", "GatedFit", "GaussianBelief", "HeldOutComparison",
    "Identifiability", "Identification", "IdentifyOptions", "IndependentBeliefs", "MixtureBelief", "MotionLimits",
    "ParamSelection", "PosteriorCheck", "PredictiveBand", "Prior", "RankCalibration", "Recovery",
    "Reidentification", "Reidentifier", "ReidentifyEvent", "ReidentifyOptions", "SampleBelief",
    "ShootingOptions", "WeakDirection", "Windows", "appearance", "assess", "assess_fit",
    "auto_params", "belief_addresses", "calibration", "check_posterior", "chirp", "cma_search",
    "command_limits",
    "compare", "contact_search", "cut_windows", "driven_joint_limits", "dropo", "dropo_from_episodes", "eki",
    "estimates", "evaluate_delta", "evaluate_motion", "excite", "expand_ranges", "export_all",
    "fit", "gated_fit", "identify", "infer", "laplace", "learn_and_evaluate", "learn_delta", "likelihood",
    "limit_usage", "load_belief", "misspecification", "named_params", "nominal_values", "npe", "online_params",
    "online_world", "parse_belief", "parse_ranges", "predictable_windows", "predictive_band", "promote",
    "recover_parameters", "reidentify", "save_belief", "scene_hash", "select_params", "split",
    "svgd", "to_box", "widened", "window_errors", "with_imperfections", "write_joint_limits", "write_mjcf",
    "write_params", "write_urdf", "write_usd", "write_yaml",
]  # fmt: skip

__getattr__ = lazy_names(
    __name__,
    {
        "delta_action": "DeltaEvaluation DeltaOptions evaluate_delta learn_and_evaluate learn_delta",
        "excitation": "ExcitationDesign ExciteOptions chirp evaluate_motion excite",
        "excitation_limits": "ExcitationLimits MotionLimits driven_joint_limits limit_usage",
        "fit.contact_search": "CmaOptions CmaResult cma_search contact_search",
        "fit.identifiability": "Identifiability WeakDirection assess assess_fit",
        "fit.least_squares": "FitStatus",
        "fit.shooting": "Fit Prior ShootingOptions fit",
        "fit.windows": "Windows cut_windows predictable_windows",
        "gates": "GateOptions GateResult GatedFit gated_fit split",
        "held_out": "HeldOutComparison compare window_errors",
        "identification": "Identification IdentifyOptions identify",
        "online.reidentification": "Reidentification Reidentifier ReidentifyEvent ReidentifyOptions reidentify",
        "online.window_prediction": "online_params online_world",
        "param_export": (
            "ExportResult ExportedFile export_all promote scene_hash write_joint_limits write_mjcf write_params "
            "write_urdf write_usd write_yaml"
        ),
        "param_selection": "ParamSelection auto_params command_limits named_params select_params",
        "posterior.beliefs": (
            "AdrOptions AdrResult DropoOptions GaussianBelief IndependentBeliefs MixtureBelief SampleBelief "
            "appearance belief_addresses dropo dropo_from_episodes estimates expand_ranges load_belief "
            "nominal_values parse_belief parse_ranges save_belief to_box widened with_imperfections"
        ),
        "posterior.inference": "eki infer laplace likelihood npe svgd",
        "posterior.posterior_checks": (
            "PosteriorCheck PredictiveBand RankCalibration Recovery calibration check_posterior misspecification "
            "predictive_band recover_parameters"
        ),
    },
)
