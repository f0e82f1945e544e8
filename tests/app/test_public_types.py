"""What a user's type checker sees of the package: in strict mode, nothing unknown."""

import importlib
import json
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import instep

ROOT = Path(__file__).resolve().parents[2]


def test_the_short_programs_are_clean_in_strict_mode(tmp_path):
    programs = sorted((ROOT / "examples").glob("2?_*.py"))
    assert len(programs) == 5
    for program in programs:
        (tmp_path / program.name).write_text(program.read_text())
    config = {"include": ["."], "strict": ["."], "pythonVersion": "3.11", "extraPaths": [str(ROOT / "src")]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    found = json.loads(done.stdout)
    assert found["summary"]["filesAnalyzed"] == 5
    assert not found["generalDiagnostics"], [d["message"] for d in found["generalDiagnostics"]]


def test_each_short_program_has_under_fifteen_lines_of_code():
    for program in sorted((ROOT / "examples").glob("2?_*.py")):
        lines = [line for line in program.read_text().splitlines() if line.strip() and not line.startswith('"""')]
        assert len(lines) < 15, (program.name, len(lines))


def test_no_public_name_is_hidden_by_the_module_that_it_comes_from():
    packages = [
        instep,
        *(importlib.import_module(f"instep.{one.name}") for one in pkgutil.iter_modules(instep.__path__)),
    ]
    for package in packages:
        for name in getattr(package, "__all__", ()):
            getattr(package, name)  # imports its module, which then is an attribute of the package
            assert not isinstance(getattr(package, name), ModuleType), f"{package.__name__}.{name}"
