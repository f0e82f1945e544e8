"""Faults are planted into the code that is imported, one at a time, and every one of them changes what is run."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import mutations
from safety_core import CORE, _path

SOURCE = '''
def slower(speed: float, limit: float = 2.0) -> float:
    """The lesser of two."""
    if speed > limit and not speed < 0:
        print("too fast")
        raise ValueError(f"{speed + 1}")
    return min(speed, limit) - 1
'''


def test_everything_that_is_run_can_be_changed_and_nothing_else():
    tree = ast.parse(SOURCE)
    words = sorted(words for _, words in mutations.mutations(tree))
    assert words == sorted(
        ["number one larger"] * 3  # the default, the zero and the one; not the one of the message
        + ["comparison turned round"] * 2
        + ["and for or", "not left out", "call left out", "min for max, any for all", "plus for minus, times for over"]
    )


def test_every_mutation_of_the_safety_core_compiles_to_other_code():
    for name in CORE:
        tree = ast.parse(_path(name).read_text(encoding="utf-8"))
        plain, count = ast.dump(tree), len(mutations.mutations(tree))
        assert count > 20
        for number in range(0, count, 7):
            changed = mutations.mutated(tree, number)
            compile(changed, name, "exec")
            assert ast.dump(changed) != plain
        assert ast.dump(tree) == plain


def test_the_module_that_is_imported_has_the_mutation(tmp_path):
    (tmp_path / "brakes.py").write_text(SOURCE)
    tree = ast.parse(SOURCE)
    number = [words for _, words in mutations.mutations(tree)].index("min for max, any for all")
    paths = os.pathsep.join([str(Path(mutations.__file__).parent), str(tmp_path)])
    for mutant, answer in (({}, "0.0"), ({mutations.VARIABLE: f"brakes:{number}"}, "1.0")):
        said = subprocess.run(
            [sys.executable, "-c", "import mutations, brakes; print(brakes.slower(1.0, 2.0))"],
            env={**os.environ, "PYTHONPATH": paths, **mutant}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert said.stdout.strip() == answer
