"""Structure of the source: size, names used twice, repeated passages, long signatures, docstrings, docs that run.

Nothing is timed. The numbers come from the syntax trees of `src`, from the snippets of README and docs, and from the
comparison of README and results page with `benchmarks/results`.
"""

from __future__ import annotations

import ast
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness import Row, row
from instep.core.errors import BadInput
from render_results import stale
from repeated_passages import declarations, imports, repeated_passages
from snippets import checked_pages

ROOT = Path(__file__).resolve().parent.parent
PARAMETERS = 6
"""The most parameters of a function that is not counted as long."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


def run(out: Path, quick: bool = False) -> list[Row]:
    """One row per number; the places behind them are in `structure.json`."""
    source = ROOT / "src" / "instep"
    if not source.is_dir() or not (ROOT / "docs").is_dir():
        raise BadInput("`python -m benchmarks structure` reads the sources, so it needs a checkout of the repository.")
    report = source_report(source)
    passages = repeated_passages(source, imports)
    statements = repeated_passages(source, declarations)
    snippets = checked_pages(ROOT, execute=not quick, slow=True)
    failed = [str(snippet) for snippet in snippets if snippet.problem]
    wrong = stale(ROOT)
    report |= {
        "repeated passages": [str(p) for p in passages],
        "repeated statements": [str(p) for p in statements],
        "snippets that fail": failed,
        "numbers that differ": wrong,
    }
    (out / "structure.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    files = [path.read_text(encoding="utf-8") for path in source.rglob("*.py")]
    return [
        row("modules", len(files)),
        row("lines", sum(text.count("\n") for text in files)),
        row("module names used twice", len(report["module names"]), at_most=0),
        row("public class names used twice", len(report["class names"]), at_most=0),
        row("repeated passages of 6 lines or more", len(passages), "pairs", at_most=60),
        row("of which statements, without fields and docstrings", len(statements), "pairs"),
        row(f"functions with more than {PARAMETERS} parameters", len(report["long signatures"]), at_most=15),
        row("public names without docstring", len(report["no docstring"]), at_most=0),
        row("docs snippets", len(snippets)),
        row("docs snippets that were executed", sum(s.executed for s in snippets)),
        row("docs snippets that fail", len(failed), at_most=0),
        row("numbers in README and results that differ from their JSON", len(wrong), at_most=0),
    ]


def source_report(source: Path) -> dict[str, Any]:
    """Places of names used twice, long signatures and public names without docstring below a folder."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(source.rglob("*.py"))}
    modules = Counter(path.stem for path in trees if not path.stem.startswith("__"))
    classes = Counter(
        node.name
        for tree in trees.values()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return {
        "module names": {name: n for name, n in modules.items() if n > 1},
        "class names": {name: n for name, n in classes.items() if n > 1},
        "long signatures": [p for path, tree in trees.items() for p in _long(path.relative_to(source), tree)],
        "no docstring": [p for path, tree in trees.items() for p in _undocumented(path.relative_to(source), tree)],
    }


def _long(path: Path, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, Function):
            given = node.args
            names = [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
            names += [extra.arg for extra in (given.vararg, given.kwarg) if extra is not None]
            if names[:1] in (["self"], ["cls"]):
                names = names[1:]
            if len(names) > PARAMETERS:
                yield f"{path}:{node.lineno} {node.name} ({len(names)})"


def _undocumented(path: Path, tree: ast.Module) -> Iterator[str]:
    """Public modules, classes, functions and methods that do not say what they are."""
    if ast.get_docstring(tree) is None and tree.body:
        yield f"{path}:1"
    for node, name in _public(tree.body):
        if ast.get_docstring(node) is None:
            yield f"{path}:{node.lineno} {name}"


def _public(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[Function | ast.ClassDef, str]]:
    for node in body:
        if not isinstance(node, Function | ast.ClassDef) or node.name.startswith("_"):
            continue
        marks = {decorator.attr if isinstance(decorator, ast.Attribute) else getattr(decorator, "id", "")
                 for decorator in node.decorator_list}  # fmt: skip
        if marks.isdisjoint({"overload", "setter"}):
            yield node, prefix + node.name
        if isinstance(node, ast.ClassDef):
            yield from _public(node.body, f"{prefix}{node.name}.")
