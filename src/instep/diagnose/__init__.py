"""Diagnose a gap: data checks, failure modes, candidate causes, attribution."""

from __future__ import annotations

from typing import TYPE_CHECKING

from instep.core.lazy import lazy_names

if TYPE_CHECKING:
    from .attribution import Attribution, AttributionOptions, attribute, components_of
    from .candidates import Candidate, candidate_causes
    from .cause_selection import CandidateResult, CauseSelection, identify_causes
    from .data_checks import DataChecks, DataProblem, check_data
    from .diagnosis import DiagnoseOptions, Diagnosis, diagnose_gap
    from .failure_modes import MODES, FailureMode
    from .window_fits import CandidateOptions

__all__ = [
    "MODES", "Attribution", "AttributionOptions", "Candidate", "CandidateOptions", "CandidateResult", "CauseSelection",
    "DataChecks", "DataProblem", "DiagnoseOptions", "Diagnosis", "FailureMode", "attribute", "candidate_causes",
    "check_data", "components_of", "diagnose_gap", "identify_causes",
]  # fmt: skip

__getattr__ = lazy_names(
    __name__,
    {
        "attribution": "Attribution AttributionOptions attribute components_of",
        "candidates": "Candidate candidate_causes",
        "cause_selection": "CandidateResult CauseSelection identify_causes",
        "data_checks": "DataChecks DataProblem check_data",
        "diagnosis": "DiagnoseOptions Diagnosis diagnose_gap",
        "failure_modes": "MODES FailureMode",
        "window_fits": "CandidateOptions",
    },
)
