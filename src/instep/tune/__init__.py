"""Close the gap: identify parameters, infer posteriors, design excitation, learn a delta action, randomize."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .beliefs import GaussianBelief as GaussianBelief
    from .beliefs import IndependentBeliefs as IndependentBeliefs
    from .beliefs import MixtureBelief as MixtureBelief
    from .beliefs import SampleBelief as SampleBelief
    from .beliefs import belief_addresses as belief_addresses
    from .beliefs import estimates as estimates
    from .beliefs import load_belief as load_belief
    from .beliefs import save_belief as save_belief
    from .beliefs import to_box as to_box
    from .beliefs import widened as widened
    from .cma import CmaOptions as CmaOptions
    from .cma import CmaResult as CmaResult
    from .cma import cma_search as cma_search
    from .cma import contact_search as contact_search
    from .delta_action import DeltaEvaluation as DeltaEvaluation
    from .delta_action import DeltaOptions as DeltaOptions
    from .delta_action import evaluate_delta as evaluate_delta
    from .delta_action import learn_and_evaluate as learn_and_evaluate
    from .delta_action import learn_delta as learn_delta
    from .excitation import ExcitationDesign as ExcitationDesign
    from .excitation import ExciteOptions as ExciteOptions
    from .excitation import chirp as chirp
    from .excitation import evaluate_motion as evaluate_motion
    from .excitation import excite as excite
    from .excitation_limits import ExcitationLimits as ExcitationLimits
    from .excitation_limits import MotionLimits as MotionLimits
    from .excitation_limits import driven_joint_limits as driven_joint_limits
    from .excitation_limits import limit_usage as limit_usage
    from .gates import GatedFit as GatedFit
    from .gates import GateOptions as GateOptions
    from .gates import GateResult as GateResult
    from .gates import gated_fit as gated_fit
    from .gates import split as split
    from .held_out import HeldOutComparison as HeldOutComparison
    from .held_out import compare as compare
    from .held_out import window_errors as window_errors
    from .identifiability import Identifiability as Identifiability
    from .identifiability import WeakDirection as WeakDirection
    from .identifiability import assess as assess
    from .identifiability import assess_fit as assess_fit
    from .identification import Identification as Identification
    from .identification import IdentifyOptions as IdentifyOptions
    from .identification import identify as identify
    from .param_export import export_all as export_all
    from .param_export import promote as promote
    from .param_export import scene_hash as scene_hash
    from .param_export import write_joint_limits as write_joint_limits
    from .param_export import write_mjcf as write_mjcf
    from .param_export import write_params as write_params
    from .param_export import write_urdf as write_urdf
    from .param_export import write_usd as write_usd
    from .param_export import write_yaml as write_yaml
    from .param_selection import ParamSelection as ParamSelection
    from .param_selection import auto_params as auto_params
    from .param_selection import command_limits as command_limits
    from .param_selection import named_params as named_params
    from .param_selection import select_params as select_params
    from .parameter_recovery import Recovery as Recovery
    from .parameter_recovery import recover_parameters as recover_parameters
    from .posterior import eki as eki
    from .posterior import infer as infer
    from .posterior import laplace as laplace
    from .posterior import likelihood as likelihood
    from .posterior import npe as npe
    from .posterior import svgd as svgd
    from .posterior_checks import Calibration as Calibration
    from .posterior_checks import PosteriorCheck as PosteriorCheck
    from .posterior_checks import PredictiveBand as PredictiveBand
    from .posterior_checks import calibration as calibration
    from .posterior_checks import check_posterior as check_posterior
    from .posterior_checks import misspecification as misspecification
    from .posterior_checks import predictive_band as predictive_band
    from .randomize import AdrOptions as AdrOptions
    from .randomize import AdrResult as AdrResult
    from .randomize import DropoOptions as DropoOptions
    from .randomize import appearance as appearance
    from .randomize import dropo as dropo
    from .randomize import dropo_from_episodes as dropo_from_episodes
    from .randomize import expand_ranges as expand_ranges
    from .randomize import image_effects as image_effects
    from .randomize import parse_belief as parse_belief
    from .randomize import with_imperfections as with_imperfections
    from .shooting import Fit as Fit
    from .shooting import Prior as Prior
    from .shooting import ShootingOptions as ShootingOptions
    from .shooting import fit as fit
    from .windows import Windows as Windows
    from .windows import cut_windows as cut_windows
    from .windows import predictable_windows as predictable_windows

# Modules are imported when a name of theirs is first used.
_NAMES = {
    "beliefs": (
        "GaussianBelief",
        "IndependentBeliefs",
        "MixtureBelief",
        "SampleBelief",
        "belief_addresses",
        "estimates",
        "load_belief",
        "save_belief",
        "to_box",
        "widened",
    ),
    "cma": (
        "CmaOptions",
        "CmaResult",
        "cma_search",
        "contact_search",
    ),
    "delta_action": (
        "DeltaEvaluation",
        "DeltaOptions",
        "evaluate_delta",
        "learn_and_evaluate",
        "learn_delta",
    ),
    "excitation": (
        "ExcitationDesign",
        "ExciteOptions",
        "chirp",
        "evaluate_motion",
        "excite",
    ),
    "excitation_limits": (
        "ExcitationLimits",
        "MotionLimits",
        "driven_joint_limits",
        "limit_usage",
    ),
    "gates": (
        "GateOptions",
        "GateResult",
        "GatedFit",
        "gated_fit",
        "split",
    ),
    "held_out": (
        "HeldOutComparison",
        "compare",
        "window_errors",
    ),
    "identifiability": (
        "Identifiability",
        "WeakDirection",
        "assess",
        "assess_fit",
    ),
    "identification": (
        "Identification",
        "IdentifyOptions",
        "identify",
    ),
    "param_export": (
        "export_all",
        "promote",
        "scene_hash",
        "write_joint_limits",
        "write_mjcf",
        "write_params",
        "write_urdf",
        "write_usd",
        "write_yaml",
    ),
    "param_selection": (
        "ParamSelection",
        "auto_params",
        "command_limits",
        "named_params",
        "select_params",
    ),
    "parameter_recovery": (
        "Recovery",
        "recover_parameters",
    ),
    "posterior": (
        "eki",
        "infer",
        "laplace",
        "likelihood",
        "npe",
        "svgd",
    ),
    "posterior_checks": (
        "Calibration",
        "PosteriorCheck",
        "PredictiveBand",
        "calibration",
        "check_posterior",
        "misspecification",
        "predictive_band",
    ),
    "randomize": (
        "AdrOptions",
        "AdrResult",
        "DropoOptions",
        "appearance",
        "dropo",
        "dropo_from_episodes",
        "expand_ranges",
        "image_effects",
        "parse_belief",
        "with_imperfections",
    ),
    "shooting": (
        "Fit",
        "Prior",
        "ShootingOptions",
        "fit",
    ),
    "windows": (
        "Windows",
        "cut_windows",
        "predictable_windows",
    ),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = sorted(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
