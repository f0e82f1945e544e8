"""Diagnose a gap: failure modes, candidate causes, attribution."""

from __future__ import annotations

from typing import TYPE_CHECKING

from instep.core.imports import lazy_names

if TYPE_CHECKING:
    from .diagnosis import Attribution, DiagnoseOptions, Diagnosis, attribute, diagnose_gap
    from .failure_modes import FailureMode

__all__ = ["Attribution", "DiagnoseOptions", "Diagnosis", "FailureMode", "attribute", "diagnose_gap"]

__getattr__ = lazy_names(
    __name__,
    {
        "diagnosis": "Attribution DiagnoseOptions Diagnosis attribute diagnose_gap",
        "failure_modes": "FailureMode",
    },
)
