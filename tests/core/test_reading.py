"""Files from outside: only regular ones of bounded size inside their folder are read, and damage is one sentence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from instep.core.errors import BadInput, UnknownName
from instep.core.processes import ReaderProcess
from instep.core.reading import (
    COUNT,
    NAMES,
    NUMBER,
    RANGE,
    checked_table,
    find_inside,
    inside,
    parsing,
    read_entries,
    read_file,
    read_json_table,
    read_toml,
    table_of,
    whole_from,
)

READER = """
import os, time
from instep.core.errors import BadInput

def read_job(job):
    if job["do"] == "refuse":
        raise BadInput("It is refused.")
    if job["do"] == "raise":
        raise KeyError("x")
    if job["do"] == "crash":
        os.abort()
    if job["do"] == "fill":
        bytearray(1 << 40)
    while job["do"] == "hang":
        pass
"""


def put(path: Path, kind: str) -> Path:
    {
        "a pipe": os.mkfifo, "a device": lambda p: p.symlink_to("/dev/zero"), "a folder": lambda p: p.mkdir(),
        "a link to itself": lambda p: p.symlink_to(p.name),
        "a long file": lambda p: (p.touch(), os.truncate(p, 1 << 40)), "nothing": lambda p: None,
    }[kind](path)  # fmt: skip
    return path


@pytest.mark.parametrize("kind", ["a pipe", "a device", "a folder", "a link to itself", "a long file", "nothing"])
def test_only_a_regular_file_of_bounded_size_is_read(tmp_path: Path, kind: str):
    for read in (read_file, read_json_table, read_toml):
        with pytest.raises(BadInput, match=r"file.*\.$"):
            read(put(tmp_path / f"{read.__name__}.x", kind))


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "9" * 5000, "[]", "3", "", "{", '{"a": \x01}'])
def test_json_of_any_kind_is_read_or_refused(tmp_path: Path, text: str):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(BadInput, match=r"a\.json"):
        read_json_table(tmp_path / "a.json")


@pytest.mark.parametrize("text", ["a = " + "[" * 3000, "a = 1\na = 2", "a", "a = " + "9" * 5000, "a = \x01"])
def test_toml_of_any_kind_is_read_or_refused(tmp_path: Path, text: str):
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(BadInput, match=r"a\.toml.* is not valid TOML"):
        read_toml(tmp_path / "a.toml")


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a\0b", "a\\..\\b", "out"])
def test_names_and_links_stay_inside_their_folder(tmp_path: Path, name: str):
    (tmp_path / "in").mkdir()
    (tmp_path / "secret").touch()
    (tmp_path / "in/out").symlink_to(tmp_path / "secret")
    with pytest.raises(BadInput, match="leads out of its folder"):
        inside(tmp_path / "in", name)


@pytest.mark.parametrize("pattern", ["../*", "/etc/*", "*", "", "**/../x"])
def test_patterns_stay_inside_their_folder(tmp_path: Path, pattern: str):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.csv").touch()
    (tmp_path / "secret").touch()
    (tmp_path / "in/out").symlink_to(tmp_path / "secret")
    with pytest.raises(BadInput, match="leads out of its folder"):
        find_inside(tmp_path / "in", pattern)
    assert find_inside(tmp_path / "in", "*.csv") == [tmp_path / "in/a.csv"]


def test_what_a_parser_raises_becomes_one_sentence():
    for error, said in ((KeyError("q"), "KeyError: 'q'"), (RuntimeError("a\nb"), r"\(a\)"), (MemoryError(), "memory")):
        with pytest.raises(BadInput, match=said) as found, parsing("run.h5", "HDF5"):
            raise error
        assert "'run.h5'" in str(found.value) and "\n" not in str(found.value)


def test_a_table_has_only_what_its_schema_says():
    schema = {"joints": NAMES, "rate": NUMBER, "start": table_of(RANGE), "size": whole_from(1, 9)}
    sound = {"joints": ["a", "b"], "rate": 2.5, "start": {"a": [0, 1]}, "size": 3}
    assert checked_table(sound, schema, "scene.toml") == sound
    wrong = {
        "joints": ["a", ["a", "a"], [1], []], "rate": [True, float("nan"), float("inf"), 1e39, "fast", None],
        "start": [[0, 1], {"a": 1}, {"a": [1, 0]}, {"a": [0, float("nan")]}], "size": [0, 10, 2.5, True],
    }  # fmt: skip
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(BadInput, match=f"scene.toml has {name} = "):
                checked_table({name: value}, schema, "scene.toml")
    with pytest.raises(UnknownName, match="Did you mean 'joints'"):
        checked_table({"joint": []}, schema, "scene.toml")
    with pytest.raises(BadInput, match="a table with joints"):
        checked_table([1], schema, "scene.toml")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[]", "must hold a JSON object"),
        ("{}", "has no entry 'step'; expected a whole number"),
        ('{"step": -1}', "step = -1; expected"),
        ('{"step": 1.5, "more": 0}', "step = 1.5; expected"),
    ],
)
def test_a_file_of_ours_must_have_the_entries_that_are_used(tmp_path: Path, text: str, expected: str):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(BadInput, match=expected):
        read_entries(tmp_path / "a.json", {"step": COUNT})
    (tmp_path / "a.json").write_text('{"step": 3, "more": null}')
    assert read_entries(tmp_path / "a.json", {"step": COUNT})["step"] == 3


def test_a_token_is_not_read_from_a_pipe_or_a_device():
    from instep.app.arguments import link_token

    with pytest.raises(BadInput, match="is a pipe or a device"):
        link_token(Path("/dev/zero"))


def test_a_reader_that_crashes_or_hangs_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "planted_reader.py").write_text(READER)
    monkeypatch.syspath_prepend(str(tmp_path))
    reader = ReaderProcess("planted_reader", cpu_s=0.5, memory=4 << 30)
    for do, said in {
        "refuse": "It is refused",
        "raise": "cannot be read",
        "crash": "makes its reader crash",
        "fill": "more memory",
        "hang": "keeps its reader busy",
    }.items():
        with pytest.raises(BadInput, match=said):
            reader.check({"do": do}, "run.h5")
        reader.check({"do": "nothing"}, "run.h5")


def test_an_interrupted_job_does_not_answer_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "interrupted_reader.py").write_text(READER)
    monkeypatch.syspath_prepend(str(tmp_path))
    reader = ReaderProcess("interrupted_reader", cpu_s=5.0, memory=4 << 30)

    def interrupt(answers: object) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as once:
        once.setattr(reader, "_answer", interrupt)
        with pytest.raises(KeyboardInterrupt):
            reader.check({"do": "refuse"}, "run.h5")
    reader.check({"do": "nothing"}, "run.h5")
