"""Errors a user can act on; each message is one sentence: what happened, what was expected, what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


class InstepError(Exception):
    """A failure a user can act on; the command line prints it as one sentence and exits with 2."""


class BadInput(InstepError):
    """A file, an option or a value that cannot be used as it is."""


class UnknownName(BadInput):
    """A name that is not known, with the nearest one that is."""

    def __init__(self, kind: str, name: str, known: Iterable[str]):
        names = sorted(known)
        near = get_close_matches(name, names, n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        listed = ", ".join(names[:12]) + (f", and {len(names) - 12} more" if len(names) > 12 else "")
        super().__init__(f"There is no {kind} named {name!r}.{hint} Known: {listed or 'none'}.")
        self.name, self.known = name, tuple(names)

    def __reduce__(self) -> tuple[Any, ...]:
        return _revive, (type(self), self.args, self.__dict__)


class MissingExtra(InstepError):
    """A library that is not installed, with the line that installs it."""

    def __init__(self, what: str, extra: str):
        super().__init__(f"{what} is not installed, and this needs it. Install it with: pip install 'instep[{extra}]'")
        self.extra = extra

    def __reduce__(self) -> tuple[Any, ...]:
        return _revive, (type(self), self.args, self.__dict__)


class Unsupported(InstepError):
    """Something an engine, a format or a machine cannot do."""


class Diverged(InstepError):
    """A simulation left the range of finite numbers.

    `worlds` are the rows of the batch that failed, `state` is the state in which their rows are NaN and
    all others are finite, and `record` is an Episode of the last states before (set by rollout and replay).
    """

    def __init__(self, message: str, worlds: tuple[int, ...] = (0,), state: Any = None, record: Any = None):
        super().__init__(message)
        self.worlds, self.state, self.record = worlds, state, record

    def __reduce__(self) -> tuple[Any, ...]:
        return _revive, (type(self), self.args, self.__dict__)


class LinkLost(InstepError):
    """The other side of a link stopped answering."""


def _revive(kind: type[InstepError], args: tuple[Any, ...], attributes: dict[str, Any]) -> InstepError:
    """Rebuild an error on the other side of a process boundary, whatever its constructor takes."""
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(attributes)
    return error
