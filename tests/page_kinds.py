"""Pages of every kind that instep writes, each made by its command from small inputs.

    python tests/page_kinds.py FOLDER [KIND...]     # the pages, and screenshots of them for a desk and a phone

A kind is a command; the inputs in braces are made once in a folder.
"""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import mujoco

from browser import browser_page
from instep.app.cli import main
from instep.data import write_dataset
from planted_torque import ARM, recording

ROOT = Path(__file__).resolve().parent.parent
WIDTHS = (1300, 390)
"""Widths of a desk's and a phone's screen [pixels]."""
POLICY = """
import numpy as np


class Circle:
    def reset(self, seed=0):
        self.phase, self.row = 0.7 * seed, 0

    def act(self, seen):
        self.row += 1
        angle = self.phase + self.row / 25
        return np.array([0.46 + 0.09 * np.cos(angle), 0.33 + 0.06 * np.sin(1.3 * angle)])


class Cloned(Circle):
    def act(self, seen):
        return super().act(seen) + 0.002
"""
RATES = "task,policy,real,sim,n_real_trials\n" + "".join(
    f"push,policy {k},{real},{sim},20\n"
    for k, (real, sim) in enumerate(((0.2, 0.25), (0.4, 0.5), (0.6, 0.55), (0.8, 0.9)))
)
RULES = """
scene = "pusht"
worlds = ["mujoco", "rapier"]
seeds = 4
first = 10000

[variations.nominal]

[variations.late]
latency = 2

[[rule]]
measure = "success"
at_least = 0.7

[[rule]]
measure = "speed"
at_most = 1.5
"""


@dataclass(frozen=True)
class Kind:
    """A page: the command that makes it, and what holds for it."""

    words: str
    videos: int = 0
    passes: tuple[int, ...] = (0,)
    """Exit codes that the command may have."""
    page: str = ""
    """The page of an input, in place of that of a command."""

    def make(self, name: str, folder: Path) -> Path:
        """Make the page in a folder, and its inputs where they are not there yet."""
        inputs = {key: made(key, folder) for key in re.findall(r"{(\w+)}", self.words)}
        if self.page:
            return folder / self.page / "report.html"
        return command(self.words.format(**inputs), folder / name.replace(" ", "_"), passes=self.passes)


def command(words: str, out: Path, *, passes: tuple[int, ...] = (0,)) -> Path:
    """Run a command with its own output folder and return its page."""
    code = main([*words.split(), "--out", str(out)])
    assert code in passes, f"instep {words} ended with {code}"
    return out / "report.html"


@cache
def made(key: str, folder: Path) -> str:
    """An input of pages by its name in their commands."""
    if key in INPUTS:
        (folder / key).with_suffix(INPUTS[key][0]).write_text(INPUTS[key][1])
        return str((folder / key).with_suffix(INPUTS[key][0]))
    if key == "pushed":
        (folder / "images.toml").write_text("image_every = 6\n")
        policy = f"--policy {made('mine', folder)}:Circle --options {folder}/images.toml"
        command(
            f"record sim:pusht {folder}/pushed {policy} --episodes 2 --steps 150 --cameras all", folder / "pushed_run"
        )
    elif key.startswith("waved_"):
        engine = key.removeprefix("waved_")
        command(f"record sim:so101@{engine} {folder}/{key} --episodes 3 --steps 120", folder / f"{key}_run")
    elif key == "torqued":
        model = mujoco.MjModel.from_xml_string(ARM)
        write_dataset([recording(model, seed) for seed in range(3)], folder / "torqued")
    elif key == "arm":
        shutil.copytree(ROOT / "examples" / "own_arm", folder / "arm")
    elif key == "dog":
        robot = ROOT / "examples" / "quadruped" / "quadruped.xml"
        assert main(["scene", "new", str(robot), str(folder / "dog"), "--rate", "100", "--legs"]) == 0
    else:
        raise KeyError(key)
    return str(folder / key)


class LiveTwin(Kind):
    """A twin of a simulated robot in another process."""

    def make(self, name: str, folder: Path) -> Path:
        """Make the page while the robot runs."""
        from instep.app.side_process import robot_process

        options = ["--hidden", "7", "--pace", "step", "--cameras", "all"]
        with robot_process("pusht", options, timeout=180) as robot:
            (folder / "token").write_text(robot.token)
            words = f"{self.words} --real robot:{robot.address} --token {folder}/token"
            return command(words, folder / name)


INPUTS = {"mine": (".py", POLICY), "rules": (".toml", RULES), "rates": (".csv", RATES), "planted": (".xml", ARM)}
"""Input that is a text: the ending of its file, and the text."""
EITHER = (0, 1)
LOGS = "{arm} {arm}/arm.urdf --map {arm}/log.toml"
SMALL_STUDY = "--starts 1 --seconds 0.4 --recordings 1 --generations 1 --population 4 --samples 1"
KINDS = {
    "run": Kind("run expert sim:pusht --steps 240", 1),
    "record": Kind("record {waved_rapier}", 1, page="waved_rapier_run"),
    "record images": Kind("record {pushed}", 1, page="pushed_run"),
    "shadow": Kind("run {mine}:Circle sim:pusht --shadow {mine}:Cloned --steps 120", 1),
    "eval": Kind("eval hold random pusht --seeds 2 --videos 1 --worlds mujoco rapier", 1),
    "gate": Kind("gate expert {rules}", passes=EITHER),
    "check": Kind("check {mine}:Cloned {pushed}", passes=EITHER),
    "gap": Kind("gap {waved_rapier} so101"),
    "plain gap": Kind("gap {waved_rapier} so101 --plain"),
    "gap of pairs": Kind("gap {waved_rapier} {waved_mujoco} --scene so101"),
    "gap of commands": Kind("gap {waved_rapier}"),
    "gap of torques": Kind("torque {torqued} {planted} --compare"),
    "agree": Kind("agree {rates}"),
    "tune": Kind(
        f"tune {LOGS} --params joint.*.frictionloss action.delay --windows 20 --seeds 2 --budget 20s", passes=EITHER
    ),
    "tune by torques": Kind("torque {torqued} {planted}", passes=EITHER),
    "start": Kind("start {arm}/arm.urdf {arm} --budget 5s", passes=EITHER),
    "reidentify": Kind(f"reidentify {LOGS} --params joint.*.damping", passes=(1,)),  # the scene is not identified yet
    "excite": Kind("excite arm7 --params joint.*.damping --seconds 1 --generations 1", passes=EITHER),
    "twin of a recording": Kind("twin pusht --real recording:{pushed}", 1),
    "twin": LiveTwin("twin pusht --policy expert --steps 120", 1),
    "scene check": Kind("scene check pusht", passes=EITHER),
    "lab legs": Kind("lab legs {dog} --trials 2 --seconds 1.5", 1, EITHER),
    "lab closing": Kind(f"lab closing so101 --task reach --robots 2 {SMALL_STUDY} --techniques untouched posterior"),
}
"""Kinds of pages."""
NIGHTLY = {"gap", "tune", "start", "twin", "twin of a recording", "shadow", "lab legs"}
"""Kinds that take long to make."""
PAGE_FREE = {"scene", "data", "robot", "train", "serve", "runs", "doctor", "demo", "view", "reconstruct"}  # fmt: skip
"""Commands that write no page; that of demo is checked with the demo, that of augment is the page of eval, and that
of reconstruct is checked in tests/reconstruct."""


def screenshots(folder: Path, names: list[str]) -> None:
    """Make pages and screenshots of them at both widths."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = {name: KINDS[name].make(name, folder) for name in names}
    with browser_page(folder / "profile") as page:
        for name, path in pages.items():
            for width in WIDTHS:
                page.show(path, width)
                print(page.screenshot(folder / f"{name.replace(' ', '_')}_{width}.png"), flush=True)


if __name__ == "__main__":
    screenshots(Path(sys.argv[1]).absolute(), sys.argv[2:] or list(KINDS))
