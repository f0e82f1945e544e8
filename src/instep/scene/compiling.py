"""Foreign models are compiled in another process first, so that a crash or hang of the compiler becomes an error.

A model whose description and files were compiled before, by this version of MuJoCo, is not compiled there again.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from instep.core.reader_process import Job, ReaderProcess

from .model import compile_model
from .model_source import ModelSource, read_source

MAX_COMPILE_S = 60.0
"""Most processor time that the compiler may take for a model [s]."""
MAX_MEMORY = 6 << 30
"""Most address space that it may take [bytes]."""
_COMPILER = ReaderProcess("instep.scene.compiling", cpu_s=MAX_COMPILE_S, memory=MAX_MEMORY)
_CHECKED: set[str] = set()
_VERSION = "1"
"""Counts up where a model that was checked before must be checked again."""


def checked_source(path: Path, root: Path | None = None) -> ModelSource:
    """A description from outside, after another process has compiled it; see `read_source`."""
    source = read_source(path, root, attach=False)
    key = _digest(source)
    if key not in _CHECKED and not (_cache() / key).exists():
        _COMPILER.check({"path": str(path.absolute()), "root": str(root.absolute()) if root else ""}, str(path))
        with suppress(OSError):  # without a folder to keep verdicts in, a model is checked again next time
            _cache().mkdir(parents=True, exist_ok=True)
            (_cache() / key).touch()
    _CHECKED.add(key)
    return read_source(path, root) if source.attached else source


def read_job(job: Job) -> None:
    """What the process does with a job: compile a model."""
    compile_model(read_source(Path(job["path"]), Path(job["root"]) if job["root"] else None))


def _digest(source: ModelSource) -> str:
    digest = hashlib.sha256(f"{_VERSION} {version('mujoco')} {source.path.name} {source.xml}".encode())
    for name, content in sorted({**source.files, **source.attached}.items()):
        digest.update(name.encode() + b"\0" + content)
    return digest.hexdigest()


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "instep" / "models"
