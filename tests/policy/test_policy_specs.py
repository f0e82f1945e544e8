"""Policies by the words of the command line, in every verb that takes one."""

from __future__ import annotations

import numpy as np
import pytest

from instep import BadInput, open_world
from instep.app.cli import main
from instep.policy.policy_specs import policy_fingerprint, policy_kind
from instep.policy.policy_specs import policy_from_spec as open_external_policy

CODE = """
import numpy as np

def push(seen):
    return 0.9 * np.asarray(seen["observation.state"]) + 0.02

class Needy:
    def __init__(self, world):
        pass
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_policy.py").write_text(CODE)
    (tmp_path / "broken_policy.py").write_text("1 / 0")
    (tmp_path / "act").mkdir()
    (tmp_path / "act" / "model.safetensors").write_bytes(b"")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("policy.pt", "torchscript"),
        ("some/policy.onnx#map.toml", "onnx"),
        ("best_model.zip", "sb3"),
        ("act", "lerobot"),
        ("act#map.toml", "lerobot"),
        ("my_policy.py:push", "python"),
        ("package.module:push", "python"),
        ("python:my_policy.py:push", "python"),
        ("openpi:ws://127.0.0.1:8000", "openpi"),
        ("sb3:model", "sb3"),
        ("expert", "expert"),
        ("no such thing", ""),
    ],
)
def test_a_policy_is_known_by_its_name(folder, words, kind):
    assert policy_kind(words)[0] == kind


def test_a_function_is_found_in_a_file_and_in_a_module_of_the_working_folder(folder):
    world = open_world("pusht")
    seen = world.observe(world.reset())
    for words in ("my_policy.py:push", "python:my_policy.py:push", "my_policy:push"):
        action = open_external_policy(words, world).act(seen)
        assert np.allclose(action, 0.9 * seen["observation.state"] + 0.02)
    assert policy_fingerprint("my_policy.py:push") != "my_policy.py:push", "its code is part of what it is"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("my_policy.py:pull", "holds nothing called 'pull'"),
        ("none.py:push", "There is no Python file 'none.py'"),
        ("broken_policy:push", "raised ZeroDivisionError"),
        ("broken_policy.py:push", "raised ZeroDivisionError"),
        ("my_policy:Needy", "cannot be made without arguments"),
        ("no_such_module:push", "is not a policy; expected"),
        ("nonsense", "is not a policy; expected"),
        ("none.onnx", "There is no file|onnxruntime is not installed"),
        ("none.pt", "There is no file|torch is not installed"),
        ("none.zip", "cannot be read as a zip|torch is not installed"),
    ],
)
def test_words_that_are_no_policy_get_one_sentence(folder, words, sentence):
    with pytest.raises(Exception, match=sentence) as error:
        open_external_policy(words, open_world("pusht"))
    assert "\n" not in str(error.value) and type(error.value).__module__ == BadInput.__module__


def test_every_verb_takes_a_function(folder, capsys):
    words, quick = "my_policy:push", ("--steps", "5")
    assert main(["record", "sim:pusht", "data", "--policy", words, "--episodes", "2", "--steps", "30"]) == 0
    assert main(["run", words, "sim:pusht", *quick, "--out", "run"]) == 0
    assert main(["eval", words, "pusht", "--seeds", "2", "--videos", "0", "--out", "eval"]) == 0
    assert main(["serve", words, "pusht", "--port", "0", "--seconds", "0.2"]) == 0
    assert main(["check", words, "data", "--out", "check"]) == 0
    rules = 'scene = "pusht"\nworlds = ["mujoco"]\nseeds = 2\n[[rule]]\nmeasure = "success"\nat_least = 0.0\n'
    (folder / "rules.toml").write_text(rules)
    assert main(["gate", words, "rules.toml", "--out", "gate"]) in (0, 1)
    assert "Traceback" not in capsys.readouterr().err
