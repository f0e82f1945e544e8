"""A small part of bench hostile: readers that are Python alone meet bad and mutated files in this process."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import ModuleType

import pytest

from instep.core.errors import InstepError

ROOT = Path(__file__).parents[2]
LIGHT = ("PLY", "GLB", "NPZ", "CSV", "text log", "policy folder", "policy map", "event rules", "gate rules",
         "calibration", "message of a policy server", "message of a robot", "success rates")  # fmt: skip
SEED = 3


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import hostile

    return hostile


def said(read, folder: Path) -> str:
    """What a reader says; empty where it reads the files."""
    from hostile_pool import is_sentence

    try:
        read(folder)
    except InstepError as error:
        assert is_sentence(str(error)), error
        return str(error)
    return ""


def test_bad_files_are_refused_in_one_sentence(hostile: ModuleType, tmp_path: Path):
    from hostile_corpus import written_cases
    from hostile_targets import targets

    known = targets()
    some = [known[name] for name in LIGHT]
    cases = written_cases(some, hostile.write_samples(some, tmp_path / "samples"), tmp_path / "written", SEED)
    light = [case for case in cases if case.kind not in ("archive bomb", "many members", "deep nesting")]
    assert len(light) > 300
    read = [case for case in light if not said(known[case.target].read, Path(case.folder)) and case.refuse]
    assert not read, [(case.target, case.kind, case.folder) for case in read]


def test_mutated_files_are_read_or_refused_in_one_sentence(hostile: ModuleType, tmp_path: Path):
    from hostile_pool import spoil
    from hostile_targets import targets

    known = targets()
    some = [known[name] for name in LIGHT]
    samples = hostile.write_samples(some, tmp_path / "samples")
    refused = 0
    for case in hostile.mutated_cases(some, 300, SEED):
        target, folder = known[case.target], tmp_path / str(case.seed)
        spoil(samples / target.folder, folder, target.files, case.seed)
        refused += bool(said(target.read, folder))
    assert refused > 100, "most changes of a byte are noticed"


@pytest.mark.nightly
def test_hostile_files_of_tonight(hostile: ModuleType, tmp_path: Path, request: pytest.FixtureRequest):
    seed = int(request.config.getoption("--hostile-seed"))
    missed = [row for row in hostile.run(tmp_path / "hostile", quick=True, seed=seed) if row["ok"] is False]
    assert not missed, f"python benchmarks/hostile.py FOLDER {seed} names the files: {[row['name'] for row in missed]}"


def test_a_full_disk_ends_a_command_with_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    from instep.app import cli

    def full(words: list[str]) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "runs/gap-1/result.json")

    monkeypatch.setattr(cli, "_dispatch", full)
    assert cli.main(["gap"]) == 2
    said = capsys.readouterr().err
    assert "No space left on device at 'runs/gap-1/result.json': free some space" in said and "Traceback" not in said
