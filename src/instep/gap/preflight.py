"""Look at recordings before any number is taken, and refuse those that would make the numbers lie.

Each finding names the channel and the suspicion. Errors stop the measurement unless the user allows them by name;
warnings are printed with the results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from instep.core.episode import Episode
from instep.core.errors import BadInput, UnknownName

from .findings import Finding, Looked
from .look_command import follows, gains, offsets
from .look_signal import clipped, finite, frozen, quantised, units
from .look_time import rate, stamps

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
