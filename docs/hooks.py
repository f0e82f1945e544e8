"""MkDocs hooks: API reference of a package from its public names, and a check that pages work offline."""

from __future__ import annotations

import inspect
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))


PACKAGES = (
    "core", "scene", "data", "physics", "robot", "policy", "reconstruct", "splat", "gap", "diagnose", "evaluate", "lab",
    "tune", "twin", "testing",
)  # fmt: skip


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a reference page for `instep` and for each package: its docstring and its public names."""
    for name in ("", *PACKAGES):
        module = f"instep.{name}".rstrip(".")
        about = inspect.getdoc(import_module(module))
        text = f"# {module}\n\n```python\nimport {module}\n```\n\n{about}\n\n{reference(module)}"
        files.append(File.generated(config, f"api/{name or 'index'}.md", content=text))
    return files


def reference(package: str) -> str:
    """One mkdocstrings block per public class, function and exception of a package, sorted by name."""
    module = import_module(package)
    blocks: list[str] = []
    for name in sorted(public_names(package), key=str.lower):
        item = getattr(module, name)
        if (inspect.isclass(item) or inspect.isfunction(item)) and item.__module__.startswith("instep"):
            blocks.append(f"::: {item.__module__}.{item.__qualname__}\n    options:\n      show_root_heading: true\n")
    return "\n".join(blocks)


def public_names(package: str) -> list[str]:
    """`__all__` of a package, or what its `__init__` imports under its own name."""
    module = import_module(package)
    return list(getattr(module, "__all__", [n for n in vars(module) if not n.startswith("_")]))


LOADED = re.compile(
    r"""<(?:script|img|iframe|source|link(?![^>]*rel="?(?:canonical|alternate)))[^>]*(?:src|href)=["']?https?://"""
)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Refuse a page that would load a font, a script or an image from another host: the site works offline."""
    if found := LOADED.search(output):
        raise PluginError(f"{page.file.src_uri} loads something from another host: {output[found.start() :][:200]}")
    return output
