"""Policy maps that cannot be used end in one sentence and exit code 2, before anything moves."""

from __future__ import annotations

import pytest

from instep import BadInput
from instep.app.cli import main
from instep.policy.policy_map import checked_map, read_map
from small_specs import joints_spec

SPEC = joints_spec(top=(4, 6))
ACTION = "[[action]]\nkey = 'actions'\njoints = ['a', 'b']\n"
WRONG = {
    "no file": (None, "There is no file"),
    "not TOML": ("a = ", "is not valid TOML"),
    "empty": ("", "has no [[action]]"),
    "unknown entry": ("actoin = 3", "Did you mean 'action'"),
    "unknown entry of a table": (ACTION + "scales = [1, 1]", "Did you mean 'scale'"),
    "table in place of a list": ("[action]\nkey = 'a'\njoints = ['a']", "a list of tables"),
    "list of numbers": ("action = [3]", "a list of tables"),
    "not complete": ("[[action]]\nkey = 'a'", "it lacks joints"),
    "too many scales": (ACTION + "scale = [1, 2, 3]", "3 numbers as scale for 2 joints"),
    "a scale of zero": (ACTION + "scale = [1, 0]", "numbers other than 0"),
    "words as numbers": (ACTION + "offset = ['x', 'y']", "expected a list of numbers"),
    "joints as one word": ("[[action]]\nkey = 'a'\njoints = 'ab'", "expected a list of different names"),
    "a joint twice in an entry": ("[[action]]\nkey = 'a'\njoints = ['a', 'a']", "a list of different names"),
    "unknown unit": (ACTION + "unit = 'grad'", "one of '', 'deg'"),
    "unknown kind": (ACTION + "kind = 'relative'", "one of 'absolute', 'delta'"),
    "unknown dtype": (ACTION + "dtype = 'int7'", "one of 'float16', 'float32', 'float64'"),
    "unknown layout": (ACTION + "[[image]]\nkey = 'i'\ncamera = 'top'\nlayout = 'WHC'", "one of 'HWC', 'CHW'"),
    "size of one number": (ACTION + "[[image]]\nkey = 'i'\ncamera = 'top'\nsize = [224]", "height and width in pixels"),
    "negative execute": ("execute = -1\n" + ACTION, "a whole number from 0"),
    "number as prompt": ("prompt = 3\n" + ACTION, "a text in quotes"),
    "a value inside a value": (
        "[[state]]\nkey = 's'\njoints = ['a']\n[[state]]\nkey = 's>b'\njoints = ['b']\n" + ACTION,
        "a value or a group, not both",
    ),
    "a key twice": ("[[state]]\nkey = 's'\njoints = ['a']\n" * 2 + ACTION, "gives the key 's' twice"),
    "unknown joint": ("[[state]]\nkey = 's'\njoints = ['c']\n" + ACTION, "no observed value named 'c'"),
    "unknown action": ("[[action]]\nkey = 'a'\njoints = ['a', 'c']", "no action named 'c'"),
    "unknown camera": (ACTION + "[[image]]\nkey = 'i'\ncamera = 'tap'", "Did you mean 'top'"),
    "an action missing": ("[[action]]\nkey = 'a'\njoints = ['a']", "has no action for b"),
    "an action twice": (ACTION + "[[action]]\nkey = 'more'\njoints = ['a']", "gives a more than once"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_map_is_refused_in_one_sentence(case, tmp_path):
    text, words = WRONG[case]
    path = tmp_path / "map.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BadInput) as error:
        checked_map(read_map(path), SPEC)
    assert words in str(error.value) and "\n" not in str(error.value)


def test_a_map_that_fits_is_kept(tmp_path):
    path = tmp_path / "map.toml"
    path.write_text("prompt = 'go'\nensemble = 0.1\n[[state]]\nkey = 's'\njoints = ['b']\nscale = [2]\n" + ACTION)
    mapped = checked_map(read_map(path), SPEC)
    assert mapped.state[0].scale == (2,) and mapped.ensemble == 0.1 and mapped.prompt == "go"


@pytest.mark.parametrize("verb", ["run", "eval", "serve", "check"])
def test_a_wrong_map_ends_a_verb_with_exit_2_and_no_traceback(verb, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "map.toml"
    path.write_text("[[action]]\nkey = 'a'\njoints = 'pusher_x'")
    policy = f"openpi:ws://127.0.0.1:9#{path}"
    data = tmp_path / "data"
    if verb == "check":
        assert main(["record", "sim:pusht", str(data), "--steps", "3"]) == 0
    where = {"run": "sim:pusht", "eval": "pusht", "serve": "pusht", "check": str(data)}[verb]
    assert main([verb, policy, where]) == 2
    said = capsys.readouterr().err
    assert "a list of different names" in " ".join(said.split()) and "Traceback" not in said
