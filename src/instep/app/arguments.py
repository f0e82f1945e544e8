"""Types of the arguments of verbs: what is positional, and options whose flags have no prefix."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias, TypeVar

import tyro

T = TypeVar("T")
Positional = tyro.conf.Positional
Options: TypeAlias = Annotated[T, tyro.conf.arg(name="")]
"""A dataclass of options, whose fields are flags of the verb."""
SceneArg: TypeAlias = Positional[Annotated[str, tyro.conf.arg(metavar="SCENE")]]
"""A shipped scene by name, a scene folder, or a robot file."""
PolicyArg: TypeAlias = Positional[Annotated[str, tyro.conf.arg(metavar="POLICY")]]
"""A policy, as words."""
WorldArg: TypeAlias = Positional[Annotated[str, tyro.conf.arg(metavar="WORLD")]]
"""A world, as words: sim:SCENE, robot:ADDRESS, ..."""
DataArg: TypeAlias = Positional[Annotated[Path, tyro.conf.arg(metavar="DATA")]]
"""A dataset folder."""
