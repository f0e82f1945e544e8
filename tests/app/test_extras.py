"""The extras install what the code imports and nothing else, and `doctor` lists them all."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from instep.app.cli import main
from instep.app.verbs.doctor import UNLISTED_EXTRAS, extras

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "instep"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
IMPORTED_AS = {
    "usd-core": "pxr", "pyzmq": "zmq", "mcap-ros2-support": "mcap_ros2", "rerun-sdk": "rerun",
    "opencv-python-headless": "cv2", "warp-lang": "warp", "pillow": "PIL",
}  # fmt: skip
BROUGHT_BY = {"llvmlite": "numba"}
"""Libraries that another one brings, in the version it needs."""
LOADERS = ("import_module", "library", "optional_library")
"""Functions that import a library by its name."""


def module(requirement: str) -> str:
    """The name by which a required package is imported."""
    name = requirement.split(";")[0].split("[")[0].split(">")[0].split("=")[0].split("<")[0].strip()
    return IMPORTED_AS.get(name, name.replace("-", "_"))


def base() -> set[str]:
    return {module(requirement) for requirement in PROJECT["dependencies"]}


def of_extras() -> dict[str, set[str]]:
    """Extra -> the modules it brings; extras made of others have none of their own."""
    groups = {k: v for k, v in PROJECT["optional-dependencies"].items() if k not in UNLISTED_EXTRAS}
    own = {extra: {module(one) for one in wanted if not one.startswith("instep[")} for extra, wanted in groups.items()}
    return {extra: modules for extra, modules in own.items() if modules}


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in LOADERS and node.args:
            first = node.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value


def imported() -> dict[str, str]:
    """Every library that the package imports -> one file that does."""
    found: dict[str, str] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for name in imports(ast.parse(path.read_text())):
            top = name.split(".")[0]
            if top not in sys.stdlib_module_names and top != "instep":
                found.setdefault(BROUGHT_BY.get(top, top), str(path.relative_to(ROOT)))
    return found


def test_every_library_that_is_imported_is_a_dependency_or_in_an_extra():
    known = base().union(*of_extras().values())
    assert {name: where for name, where in imported().items() if name not in known} == {}


def test_no_dependency_and_no_extra_installs_what_nothing_imports():
    used = imported().keys()
    assert base() - used == set()
    assert {extra: both for extra, modules in of_extras().items() if (both := modules & base())} == {}
    assert {extra: modules - used for extra, modules in of_extras().items() if modules - used} == {}


def test_an_extra_that_is_asked_for_by_an_error_exists():
    asked: dict[str, str] = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names_extra = isinstance(node, ast.Call) and len(node.args) > 1 and isinstance(node.func, ast.Name)
            if names_extra and node.func.id in ("MissingExtra", "optional_library") and path.name != "imports.py":
                extra = node.args[1]
                assert isinstance(extra, ast.Constant), f"{path} names its extra by a word"
                asked[extra.value] = str(path.relative_to(ROOT))
    assert {extra: where for extra, where in asked.items() if extra not in of_extras()} == {}
    assert of_extras().keys() - asked.keys() == set(), "an extra that no error names"


def test_all_is_every_extra_that_runs_without_a_gpu():
    [union] = PROJECT["optional-dependencies"]["all"]
    named = set(union.removeprefix("instep[").removesuffix("]").split(","))
    assert named == of_extras().keys() - {"gpu", "lerobot"}, "lerobot brings a torch for CUDA of its own"


def test_the_doctor_lists_exactly_the_extras(capsys):
    assert extras().keys() == of_extras().keys(), "install the package again after a change of pyproject.toml"
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert all(f"extra {extra}" in said for extra in of_extras())
