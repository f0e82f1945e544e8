"""Small faults planted into the source of a module as it is imported: a plug-in of pytest, and the list of what it can.

`INSTEP_MUTANT=instep.robot.limits:17 pytest -p mutations ...` runs tests against the module with its 17th mutation: a
comparison turned round, `and` for `or`, plus for minus, a number that is one larger, a call that is left out.
"""

from __future__ import annotations

import ast
import copy
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

VARIABLE = "INSTEP_MUTANT"
_OTHER: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Add: ast.Sub, ast.Sub: ast.Add,
    ast.Mult: ast.Div, ast.Div: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
_SWAPPED = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "any": "all", "all": "any"}


def mutations(tree: ast.Module) -> list[tuple[ast.AST, str]]:
    """The nodes of a module that can be changed, each with what becomes of it; messages and types stay."""
    return [(node, change[0]) for node in _executed(tree) if (change := _change(node)) is not None]


def mutated(tree: ast.Module, number: int) -> ast.Module:
    """A copy of a module with one of its mutations."""
    changed = copy.deepcopy(tree)
    change = _change(mutations(changed)[number][0])
    if change is not None:
        change[1]()
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


def _change(node: Any) -> tuple[str, Callable[[], None]] | None:
    """What can become of a node, and what makes it so; None where nothing can."""
    field = "attr" if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else "id"
    called = getattr(node.func, field, "") if isinstance(node, ast.Call) else ""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return "comparison turned round", lambda: setattr(node, "ops", [_OTHER[type(node.ops[0])]()])
    if isinstance(node, ast.BoolOp):
        return "and for or", lambda: setattr(node, "op", _OTHER[type(node.op)]())
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return "not left out", lambda: setattr(node, "operand", ast.UnaryOp(ast.Not(), node.operand))
    if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in _OTHER:
        return "plus for minus, times for over", lambda: setattr(node, "op", _OTHER[type(node.op)]())
    if called in _SWAPPED:
        return "min for max, any for all", lambda: setattr(node.func, field, _SWAPPED[called])
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return "True for False", lambda: setattr(node, "value", not node.value)
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return "number one larger", lambda: setattr(node, "value", node.value + 1)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return "call left out", lambda: setattr(node, "value", ast.Constant(None))
    return None


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

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module where it is the one to be changed."""
        name, _, number = os.environ[VARIABLE].rpartition(":")
        spec = PathFinder.find_spec(fullname, path, target) if fullname == name else None
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin, int(number))
        return spec


if VARIABLE in os.environ:
    sys.meta_path.insert(0, _Finder())
