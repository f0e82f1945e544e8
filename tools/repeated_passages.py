"""Repeated passages of Python source: pairs of places that share a run of lines of the same shape.

A line's shape is its tokens with names, strings and numbers folded; keywords and punctuation stay. Blank lines,
comments, imports and brackets on a line of their own do not count. A pair of places is a maximal common run of at least
`LINES` lines; runs of two files that overlap are one region. A run that stands in more than `PLACES` places is an idiom
of the language rather than a copy, and so is one of few tokens or of one or two shapes (the fields of a dataclass):
neither is listed.
"""

from __future__ import annotations

import ast
import io
import keyword
import tokenize
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

LINES = 6
"""The fewest lines of a passage."""
PLACES = 8
"""A run of `LINES` lines that stands in more places than this is an idiom."""
DISTINCT = 3
"""The fewest different shapes among the lines of a passage."""
TOKENS = 30
"""The fewest tokens of a passage."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of code: where it stands and its shape."""

    number: int
    shape: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Passage:
    """The same lines in two places; lines are counted from 1."""

    first: Path
    first_lines: tuple[int, int]
    second: Path
    second_lines: tuple[int, int]
    length: int

    def __str__(self) -> str:
        ends = ((self.first, self.first_lines), (self.second, self.second_lines))
        return " ~ ".join(f"{path}:{low}-{high}" for path, (low, high) in ends) + f" ({self.length} lines)"


Skip = Callable[[ast.Module], set[int]]
"""Chooses the lines of a module that do not count."""


def repeated_passages(root: Path, skip: Skip | None = None) -> list[Passage]:
    """All pairs of places below a folder that share a passage, the longest first; `skip` is `imports` by default."""
    files = sorted(root.rglob("*.py"))
    lines = {path.relative_to(root): shapes(path.read_text(encoding="utf-8"), skip or imports) for path in files}
    starts: dict[tuple[tuple[str, ...], ...], list[tuple[Path, int]]] = defaultdict(list)
    for path, given in lines.items():
        for i in range(len(given) - LINES + 1):
            starts[tuple(line.shape for line in given[i : i + LINES])].append((path, i))
    shared: dict[tuple[Path, Path], set[tuple[int, int]]] = defaultdict(set)
    for places in starts.values():
        if 1 < len(places) <= PLACES:
            for (a, i), (b, j) in combinations(places, 2):
                shared[a, b].add((i, j))
    found = [p for (a, b), pairs in shared.items() for p in _passages((a, b), lines, pairs)]
    return sorted(found, key=lambda passage: -passage.length)


def shapes(text: str, skip: Skip) -> list[Line]:
    """The lines of a source file that count, with names, strings and numbers folded."""
    skipped = skip(ast.parse(text))
    by_line: dict[int, list[str]] = defaultdict(list)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.start[0] not in skipped and (folded := _folded(token)):
            by_line[token.start[0]].append(folded)
    return [Line(n, tuple(words)) for n, words in sorted(by_line.items()) if any(w.isalnum() for w in words)]


def imports(tree: ast.Module) -> set[int]:
    """Lines of imports."""
    return _lines(node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))


def declarations(tree: ast.Module) -> set[int]:
    """Lines of imports, docstrings, decorators and fields of classes: what declares and does not compute."""
    nodes = list(ast.walk(tree))
    fields = (item for node in nodes if isinstance(node, ast.ClassDef) for item in node.body)
    texts = (node for node in nodes if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    decorators = (decorator for node in nodes for decorator in getattr(node, "decorator_list", ()))
    return (
        imports(tree) | _lines(f for f in fields if isinstance(f, ast.AnnAssign)) | _lines(texts) | _lines(decorators)
    )


def _lines(nodes: Iterable[ast.stmt | ast.expr]) -> set[int]:
    return {line for node in nodes for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}


def _folded(token: tokenize.TokenInfo) -> str:
    if token.type == tokenize.NAME:
        return token.string if keyword.iskeyword(token.string) else "name"
    if token.type == tokenize.NUMBER:
        return "0"
    if token.type == tokenize.STRING or tokenize.tok_name[token.type].startswith("FSTRING"):
        return "text"
    return token.string if token.type == tokenize.OP else ""


def _passages(
    files: tuple[Path, Path], lines: Mapping[Path, Sequence[Line]], pairs: set[tuple[int, int]]
) -> Iterator[Passage]:
    """Maximal runs of two files, those that overlap in both as one region."""
    a, b = files
    runs: list[tuple[int, int, int]] = []
    for i, j in sorted(pairs):
        if (i - 1, j - 1) in pairs:
            continue
        length = LINES
        while (i + length - LINES + 1, j + length - LINES + 1) in pairs:
            length += 1
        if not (a == b and j < i + length) and _substantial(lines[a][i : i + length]):
            runs.append((i, j, length))
    for i, j, length in _regions(runs):
        first, second = lines[a], lines[b]
        ends = (first[i].number, first[i + length - 1].number), (second[j].number, second[j + length - 1].number)
        yield Passage(a, ends[0], b, ends[1], length)


def _substantial(run: Sequence[Line]) -> bool:
    shaped = [line.shape for line in run]
    return len(set(shaped)) >= DISTINCT and sum(map(len, shaped)) >= TOKENS


def _regions(runs: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """The longest of runs that overlap on either side."""
    kept: list[tuple[int, int, int]] = []
    for i, j, length in sorted(runs, key=lambda run: -run[2]):
        apart = all((i + length <= x or x + n <= i) and (j + length <= y or y + n <= j) for x, y, n in kept)
        if apart:
            kept.append((i, j, length))
    return kept
