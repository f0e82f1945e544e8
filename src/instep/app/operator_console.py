"""The operator of a run: a twin that was handed over goes on only after a word at the terminal."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress

import numpy as np
from rich.console import Console

from instep.core.errors import InstepError
from instep.core.world import Array, Observation, State

RESUME = "resume"
"""The word by which an operator resumes a run."""


class HandedOver(InstepError):
    """A run that ended because its twin could not be trusted and nobody resumed it."""


class OperatorConsole:
    """A watcher of a run that asks the operator where the twin was handed over, and ends the run where nobody is."""

    def __init__(self, *, interactive: bool | None = None):
        self._interactive = sys.stdin.isatty() if interactive is None else interactive
        self._resumed = threading.Event()
        self._asking: threading.Thread | None = None

    def resumes(self) -> bool:
        """Whether the operator has resumed since this was last asked."""
        if not self._resumed.is_set():
            return False
        self._resumed.clear()
        return True

    def __call__(self, state: State, observation: Observation, action: Array) -> None:
        """Take one row; a twin that was handed over is named."""
        from instep.twin.trust_stages import CAUSE_WORDS, CHANNEL, LABELS, TrustCause, TrustStage

        if CHANNEL not in observation:
            return
        row = np.asarray(observation[CHANNEL], float)
        if int(row[LABELS.index("stage")]) != TrustStage.HANDED_OVER:
            self._asking = None
            return
        why = CAUSE_WORDS[TrustCause(int(row[LABELS.index("cause")]))]
        if not self._interactive:
            raise HandedOver(
                f"The twin was handed over to the operator, since {why}, and no terminal is there to resume it; the "
                "robot holds. See to the cause, then run again."
            )
        if self._asking is None:
            Console(stderr=True).print(
                f"The twin was handed over to the operator, since {why}; the robot holds. Type {RESUME!r} and press "
                "Enter to go on, or Ctrl-C to end the run.",
                style="red", highlight=False, markup=False,
            )  # fmt: skip
            self._asking = threading.Thread(target=self._ask, name="instep-operator", daemon=True)
            self._asking.start()

    def _ask(self) -> None:
        with suppress(OSError, ValueError):  # the terminal was closed; the robot goes on holding
            for line in sys.stdin:
                if line.strip().lower() == RESUME:
                    self._resumed.set()
                    return
