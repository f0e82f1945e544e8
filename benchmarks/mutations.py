"""Small faults planted into the source of a module as it is imported: a plug-in of pytest, and the list of what it can.

`INSTEP_MUTANT=instep.robot.limits:17 pytest -p mutations ...` runs tests against the module with its 17th mutation: a
comparison turned round, `and` for `or`, plus for minus, a number that is one larger, a call that is left out.
"""

from __future__ import annotations

import ast
import copy
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

VARIABLE = "INSTEP_MUTANT"
_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
}  # fmt: skip
_SWAPPED = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "any": "all", "all": "any"}


def mutations(tree: ast.Module) -> list[tuple[ast.AST, str]]:
    """The nodes of a module that can be changed, each with what becomes of it; messages and types stay."""
    return [(node, words) for node in _executed(tree) for words in _changes(node)]


def mutated(tree: ast.Module, number: int) -> ast.Module:
    """A copy of a module with one of its mutations."""
    changed = copy.deepcopy(tree)
    node, words = mutations(changed)[number]
    _apply(node, words)
    return ast.fix_missing_locations(changed)


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that say what a module does: neither annotations, decorators nor the text of what is raised."""
    yield node
    left_out: list[Any] = [getattr(node, name, None) for name in ("annotation", "returns")]
    left_out += list(getattr(node, "decorator_list", ()))
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return
    for child in ast.iter_child_nodes(node):
        if not any(child is one for one in left_out):
            yield from _executed(child)


def _changes(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARED:
        yield "comparison turned round"
    elif isinstance(node, ast.BoolOp):
        yield "and for or"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "not left out"
    elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in _COMPUTED:
        yield "plus for minus, times for over"
    elif isinstance(node, ast.Call) and _called(node) in _SWAPPED:
        yield "min for max, any for all"
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        yield "number one larger"
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "True for False"
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield "call left out"


def _apply(node: Any, words: str) -> None:
    if words == "comparison turned round":
        node.ops = [_COMPARED[type(node.ops[0])]()]
    elif words == "and for or":
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    elif words == "not left out":
        node.op, node.operand = ast.Not(), ast.UnaryOp(ast.Not(), node.operand)
    elif words == "plus for minus, times for over":
        node.op = _COMPUTED[type(node.op)]()
    elif words == "min for max, any for all":
        name = _SWAPPED[_called(node)]
        if isinstance(node.func, ast.Name):
            node.func.id = name
        else:
            node.func.attr = name
    elif words == "number one larger":
        node.value += 1
    elif words == "True for False":
        node.value = not node.value
    else:
        node.value = ast.Constant(None)


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


class _Loader(SourceFileLoader):
    """Loads a module from its source, never from what was compiled before, with one mutation."""

    def __init__(self, name: str, path: str, number: int):
        super().__init__(name, path)
        self._number = number

    def get_code(self, fullname: str) -> CodeType:
        """The code of the changed module."""
        tree = ast.parse(Path(self.path).read_text(encoding="utf-8"))
        return compile(mutated(tree, self._number), self.path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    """Finds one module, to be loaded with a mutation."""

    def __init__(self, name: str, number: int):
        self._name, self._number = name, number

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module where it is the one to be changed."""
        spec = PathFinder.find_spec(fullname, path, target) if fullname == self._name else None
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin, self._number)
        return spec


if VARIABLE in os.environ:
    _name, _, _number = os.environ[VARIABLE].rpartition(":")
    sys.meta_path.insert(0, _Finder(_name, int(_number)))
