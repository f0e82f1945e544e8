"""Look at the clock of recordings: order, rate, jitter, gaps.

Look at recordings before any number is taken, and refuse those that would make the numbers lie.

Each finding names the channel and the suspicion. Errors stop the measurement unless the user allows them by name;
warnings are printed with the results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput, UnknownName
from instep.gap.findings import Finding, Looked, name_of

from .command_checks import follows, gains, offsets
from .signal_checks import clipped, finite, frozen, quantised, units

JITTER = 0.2
"""Steps that scatter by this share of the period are worth a warning."""
GAP = 2.5
"""A step this many periods long is a gap."""
MANY_GAPS = 0.02
"""From this share of gaps on, rows can no longer be counted as time."""


def stamps(looked: Looked) -> Iterator[Finding]:
    """Stamps that go back or stand still, scatter, or skip."""
    jitter = 0.0
    gaps: list[tuple[str, float, float]] = []
    steps_seen = 0
    for i, episode in enumerate(looked.episodes):
        t = np.asarray(episode.t, float)
        step = np.diff(t)
        if (step <= 0).any():
            row = int(np.argmax(step <= 0)) + 1
            how = "goes back" if step[row - 1] < 0 else "stands still"
            sentence = f"Time {how} at row {row} of run {name_of(episode, i)!r} ({t[row - 1]:.4f} then {t[row]:.4f} s)."
            yield Finding("error", "stamps", "timestamp", sentence)
            return
        period = float(np.median(step))
        jitter = max(jitter, float(np.quantile(np.abs(step - period), 0.95)) / period)
        wide = np.flatnonzero(step > GAP * period)
        gaps += [(name_of(episode, i), float(t[k]), float(step[k])) for k in wide]
        steps_seen += len(step)
    if gaps:
        run, at, long = max(gaps, key=lambda gap: gap[2])
        severity = "error" if len(gaps) > MANY_GAPS * steps_seen else "warning"
        sentence = f"{len(gaps)} gaps in the stamps, the longest {1e3 * long:.0f} ms at {at:.2f} s of run {run!r}."
        yield Finding(severity, "stamps", "timestamp", sentence)
    if jitter > JITTER:
        sentence = f"The stamps scatter by {100 * jitter:.0f} % of the period; rows are not evenly spaced."
        yield Finding("warning", "stamps", "timestamp", sentence)


def rate(looked: Looked) -> Iterator[Finding]:
    """Stamps that contradict the rate the dataset states."""
    for i, episode in enumerate(looked.episodes):
        period = float(np.median(np.diff(np.asarray(episode.t, float))))
        if abs(period / episode.spec.dt - 1) > 0.02 and period > 0:
            factor = period / episode.spec.dt
            hint = " (milliseconds instead of seconds?)" if 900 < factor < 1100 else ""
            sentence = (
                f"Run {name_of(episode, i)!r} is stamped every {1e3 * period:.4g} ms, but its rate says "
                f"{1e3 * episode.spec.dt:.4g} ms{hint}."
            )
            yield Finding("error", "rate", "timestamp", sentence)
            return


Look = Callable[[Looked], Iterator[Finding]]

CHECKS: dict[str, Look] = {
    "finite": finite,
    "stamps": stamps,
    "rate": rate,
    "units": units,
    "frozen": frozen,
    "gain": gains,
    "order": follows,
    "offset": offsets,
    "quantisation": quantised,
    "clipping": clipped,
}
"""What is looked at, by the name under which a user may allow it."""


@dataclass(frozen=True, slots=True)
class Preflight:
    """What was found."""

    findings: tuple[Finding, ...]
    allowed: tuple[str, ...] = field(default=())

    @property
    def errors(self) -> tuple[Finding, ...]:
        """What forbids a measurement."""
        return tuple(f for f in self.findings if f.severity == "error" and f.check not in self.allowed)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """What a reader of the results should know."""
        return tuple(f for f in self.findings if f not in self.errors)

    def require(self) -> None:
        """Raise the first error in one sentence, with how many more there are."""
        if not self.errors:
            return
        first, more = self.errors[0], len(self.errors) - 1
        rest = f" {more} more such finding{'s' if more > 1 else ''}." if more else ""
        raise BadInput(f"{first.sentence} Repair the recording, or allow it with --allow {first.check}.{rest}")


def preflight(
    episodes: Sequence[Episode], *, limits: Mapping[str, tuple[float, float]] | None = None, allow: Sequence[str] = ()
) -> Preflight:
    """Look at recordings: finite numbers, clocks, units, order, sign, offsets, quantisation, clipping, frozen channels.

    `limits` are the ranges of joints by label, where a model knows them.
    """
    for name in allow:
        if name not in CHECKS:
            raise UnknownName("check", name, CHECKS)
    if not episodes:
        raise BadInput("The dataset holds no episode; a gap needs at least one recorded run.")
    for i, episode in enumerate(episodes):
        if "q" not in episode:
            raise BadInput("The recording holds no positions ('q'), so there is nothing to compare; import it anew.")
        if len(episode) < 2:
            name = episode.meta.get("name", str(i))
            raise BadInput(f"Run {name!r} has {len(episode)} row; a gap needs at least two. Leave it out.")
    looked = Looked(tuple(episodes), dict(limits or {}))
    findings: list[Finding] = []
    for name, look in CHECKS.items():
        found = list(look(looked))
        findings += found
        # Every further look would only repeat that numbers are missing.
        if name == "finite" and found and "finite" not in allow:
            break
    return Preflight(tuple(findings), tuple(allow))
