"""Griffe extension: marks the classes that `instep.core.world` makes dataclasses of, for the reference."""

from __future__ import annotations

from typing import Any

from griffe import Class, Extension


class RecordsExtension(Extension):
    """Knows the decorators of `instep.core.world`; the built-in extension knows the standard one only."""

    def on_class(self, *, cls: Class, **_: Any) -> None:
        """Give a decorated class the label `dataclass`."""
        paths = (str(getattr(decorator.value, "canonical_path", "")) for decorator in cls.decorators)
        if any(path.startswith("instep.core.world.") for path in paths):
            cls.labels.add("dataclass")
