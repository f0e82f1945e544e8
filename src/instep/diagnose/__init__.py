"""Diagnose a gap: data checks, failure modes, candidate causes, attribution."""

from __future__ import annotations

from typing import TYPE_CHECKING

from instep.core.imports import lazy_names

if TYPE_CHECKING:
    from .candidates import Candidate, candidate_causes
    from .cause_selection import CandidateOptions, CandidateResult, CauseSelection, identify_causes
    from .diagnosis import (
        Attribution,
        AttributionOptions,
        DiagnoseOptions,
        Diagnosis,
        attribute,
        components_of,
        diagnose_gap,
    )
    from .failure_modes import MODES, FailureMode

__all__ = [
    "MODES", "Attribution", "AttributionOptions", "Candidate", "CandidateOptions", "CandidateResult", "CauseSelection",
    "DiagnoseOptions", "Diagnosis", "FailureMode", "attribute", "candidate_causes",
    "components_of", "diagnose_gap", "identify_causes",
]  # fmt: skip

__getattr__ = lazy_names(
    __name__,
    {
        "candidates": "Candidate candidate_causes",
        "cause_selection": "CandidateOptions CandidateResult CauseSelection identify_causes",
        "diagnosis": "Attribution AttributionOptions DiagnoseOptions Diagnosis attribute components_of diagnose_gap",
        "failure_modes": "FailureMode MODES",
    },
)
