"""Close the gap: identify parameters, infer posteriors, design excitation, randomize, estimate again online."""

from __future__ import annotations

from typing import TYPE_CHECKING

from instep.core.imports import lazy_names

if TYPE_CHECKING:
    from .excitation import ExciteOptions, excite
    from .excitation_limits import MotionLimits, driven_joint_limits
    from .fit.least_squares import FitStatus
    from .fit.shooting import Fit, Prior, ShootingOptions
    from .gated_fit import GatedFit
    from .gates import FitDetails, GateResult, TuneOptions
    from .identification import Identification, identify
    from .online.reidentification import Reidentification, Reidentifier, ReidentifyOptions, reidentify
    from .online.window_prediction import online_params, online_world
    from .param_export import export_all, promote
    from .param_selection import ParamSelection, auto_params, named_params, select_params
    from .posterior.beliefs import (
        GaussianBelief,
        SampleBelief,
        eki,
        infer,
        laplace,
        load_belief,
        nominal_values,
        parse_belief,
        parse_ranges,
        save_belief,
        with_imperfections,
    )
    from .posterior.posterior_checks import check_posterior

__all__ = [
    "ExciteOptions", "Fit", "FitDetails", "FitStatus", "GateResult", "GatedFit", "GaussianBelief", "Identification",
    "MotionLimits", "ParamSelection", "Prior", "Reidentification", "Reidentifier", "ReidentifyOptions", "SampleBelief",
    "ShootingOptions", "TuneOptions", "auto_params", "check_posterior", "driven_joint_limits", "eki", "excite",
    "export_all", "identify", "infer", "laplace", "load_belief", "named_params", "nominal_values",
    "online_params", "online_world", "parse_belief", "parse_ranges", "promote", "reidentify", "save_belief",
    "select_params", "with_imperfections",
]  # fmt: skip

__getattr__ = lazy_names(
    __name__,
    {
        "excitation": "ExciteOptions excite",
        "excitation_limits": "MotionLimits driven_joint_limits",
        "fit.least_squares": "FitStatus",
        "fit.shooting": "Fit Prior ShootingOptions",
        "gated_fit": "GatedFit",
        "gates": "FitDetails GateResult TuneOptions",
        "identification": "Identification identify",
        "online.reidentification": "Reidentification Reidentifier ReidentifyOptions reidentify",
        "online.window_prediction": "online_params online_world",
        "param_export": "export_all promote",
        "param_selection": "ParamSelection auto_params named_params select_params",
        "posterior.beliefs": (
            "GaussianBelief SampleBelief eki infer laplace load_belief nominal_values parse_belief parse_ranges "
            "save_belief with_imperfections"
        ),
        "posterior.posterior_checks": "check_posterior",
    },
)
