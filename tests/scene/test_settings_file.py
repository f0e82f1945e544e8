"""Settings are replaced in place; comments and the rest of a file stay."""

from __future__ import annotations

import tomllib

import pytest

from instep import BadInput
from instep.scene.folder import read_table, write_settings

TEXT = """# A robot.
rate = 100.0  # Hz

[settings]
# Found in the data sheet.
"joint.elbow.damping" = 0.3  # at 20 degrees
"joint.wrist.damping" = 0.1

# Where it begins.
[start]
elbow = [0.0, 1.0]
"""


def test_settings_are_replaced_and_comments_stay(tmp_path):
    path = tmp_path / "scene.toml"
    path.write_text(TEXT)
    write_settings(path, {"joint.elbow.damping": 0.4, "action.delay": 0.02})
    text = path.read_text()
    assert tomllib.loads(text)["settings"] == {"joint.elbow.damping": 0.4, "action.delay": 0.02}
    assert tomllib.loads(text)["start"] == {"elbow": [0.0, 1.0]}
    for comment in ("# A robot.", "# Hz", "# Found in the data sheet.", "# at 20 degrees"):
        assert comment in text
    assert text.index('"action.delay"') < text.index("# Where it begins.") < text.index("[start]")


@pytest.mark.parametrize("text", ["", "rate = 100.0\n", "[start]\nelbow = [0.0, 1.0]\n", "[settings]\n"])
def test_settings_are_added_where_there_were_none(tmp_path, text):
    path = tmp_path / "scene.toml"
    if text:
        path.write_text(text)
    write_settings(path, {"geom.a b.friction": 1e-9})
    assert read_table(path) == {**tomllib.loads(text), "settings": {"geom.a b.friction": 1e-9}}


def test_a_file_that_is_not_toml_is_named(tmp_path):
    path = tmp_path / "scene.toml"
    path.write_text("rate = \n")
    with pytest.raises(BadInput, match=r"scene\.toml in .* is not valid TOML"):
        read_table(path)
