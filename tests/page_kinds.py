"""Pages of every kind that instep writes, each made by its command from small inputs.

    python tests/page_kinds.py FOLDER [KIND...]     # the pages, and screenshots of them for a desk and a phone

A kind is a function that makes its page in a folder; recordings that several kinds read are made once.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
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


def command(words: str, out: Path, *, passes: tuple[int, ...] = (0,)) -> Path:
    """Run a command with its own output folder and return its page."""
    code = main([*words.split(), "--out", str(out)])
    assert code in passes, f"instep {words} ended with {code}"
    return out / "report.html"


@cache
def pushed(folder: Path) -> Path:
    """Two recordings of a policy that pushes the T, with three cameras."""
    (folder / "mine.py").write_text(POLICY)
    (folder / "images.toml").write_text("image_every = 6\n")
    options = f"--episodes 2 --steps 150 --cameras all --options {folder}/images.toml"
    command(f"record sim:pusht {folder}/pushed --policy {folder}/mine.py:Circle {options}", folder / "pushed_run")
    return folder / "pushed"


@cache
def waved(folder: Path, engine: str) -> Path:
    """Three recordings of an arm in an engine."""
    data = folder / f"waved_{engine}"
    command(f"record sim:so101@{engine} {data} --episodes 3 --steps 120", folder / f"waved_{engine}_run")
    return data


@cache
def torqued(folder: Path) -> tuple[Path, Path]:
    """Recordings of an arm's torques, and its robot file."""
    robot = folder / "planted.xml"
    robot.write_text(ARM)
    model = mujoco.MjModel.from_xml_string(ARM)
    write_dataset([recording(model, seed) for seed in range(3)], folder / "torqued")
    return folder / "torqued", robot


def run(folder: Path) -> Path:
    """A policy in a simulator."""
    return command("run expert sim:pusht --steps 240", folder / "run")


def record(folder: Path) -> Path:
    """A dataset that was just recorded, of a robot without a task."""
    waved(folder, "rapier")
    return folder / "waved_rapier_run" / "report.html"


def record_images(folder: Path) -> Path:
    """A dataset that was just recorded, with the images of cameras."""
    pushed(folder)
    return folder / "pushed_run" / "report.html"


def shadow(folder: Path) -> Path:
    """A policy with a second one in its shadow."""
    pushed(folder)
    policies = f"run {folder}/mine.py:Circle sim:pusht --shadow {folder}/mine.py:Cloned"
    return command(f"{policies} --steps 120", folder / "shadow")


def evaluate(folder: Path) -> Path:
    """Two policies in two worlds."""
    return command("eval hold random pusht --seeds 2 --videos 1 --worlds mujoco rapier", folder / "eval")


def gate(folder: Path) -> Path:
    """A policy by rules."""
    (folder / "rules.toml").write_text(RULES)
    return command(f"gate expert {folder}/rules.toml", folder / "gate", passes=(0, 1))


def check(folder: Path) -> Path:
    """A policy on recorded observations."""
    data = pushed(folder)
    return command(f"check {folder}/mine.py:Cloned {data}", folder / "check", passes=(0, 1))


def gap_plain(folder: Path) -> Path:
    """Recordings against a simulator, without a search for causes."""
    return command(f"gap {waved(folder, 'rapier')} so101 --plain", folder / "gap_plain")


def gap(folder: Path) -> Path:
    """Recordings against a simulator."""
    return command(f"gap {waved(folder, 'rapier')} so101", folder / "gap")


def gap_pairs(folder: Path) -> Path:
    """Recordings against recordings."""
    data = f"{waved(folder, 'rapier')} {waved(folder, 'mujoco')}"
    return command(f"gap {data} --scene so101", folder / "gap_pairs")


def gap_alone(folder: Path) -> Path:
    """Recordings against their commands."""
    return command(f"gap {waved(folder, 'rapier')}", folder / "gap_alone")


def gap_torque(folder: Path) -> Path:
    """Torques against inverse dynamics."""
    data, robot = torqued(folder)
    return command(f"torque {data} {robot} --compare", folder / "gap_torque")


def agreement(folder: Path) -> Path:
    """Success rates of a virtual evaluation against real ones."""
    (folder / "rates.csv").write_text(RATES)
    return command(f"agree {folder}/rates.csv", folder / "agreement")


def tune(folder: Path) -> Path:
    """An identification."""
    arm = ROOT / "examples" / "own_arm"
    params = "--params joint.*.frictionloss action.delay --windows 20 --seeds 2 --budget 20s"
    return command(f"tune {arm} {arm}/arm.urdf --map {arm}/log.toml {params}", folder / "tune", passes=(0, 1))


def reidentify(folder: Path) -> Path:
    """A replay of recordings through the filter that estimates parameters while a robot runs."""
    arm = ROOT / "examples" / "own_arm"
    params = "--params joint.*.damping"
    # The scene is not identified yet, and the page says so.
    return command(f"reidentify {arm} {arm}/arm.urdf --map {arm}/log.toml {params}", folder / "drift", passes=(1,))


def excite(folder: Path) -> Path:
    """A designed motion."""
    return command("excite arm7 --params joint.*.damping --seconds 1 --generations 1", folder / "excite", passes=(0, 1))


def tune_torque(folder: Path) -> Path:
    """An identification by torques."""
    data, robot = torqued(folder)
    return command(f"torque {data} {robot}", folder / "tune_torque", passes=(0, 1))


def start(folder: Path) -> Path:
    """From a robot file and logs to a report."""
    shutil.copytree(ROOT / "examples" / "own_arm", folder / "arm", dirs_exist_ok=True)
    return command(f"start {folder}/arm/arm.urdf {folder}/arm --budget 5s", folder / "start", passes=(0, 1))


def twin_of_recording(folder: Path) -> Path:
    """A twin of a recording."""
    return command(f"twin pusht --real recording:{pushed(folder)}", folder / "tracked")


def twin_live(folder: Path) -> Path:
    """A twin of a simulated robot in another process."""
    from instep.app.simulated_robot import robot_process

    options = ["--hidden", "7", "--pace", "step", "--cameras", "all"]
    with robot_process("pusht", options, timeout=180) as robot:
        (folder / "token").write_text(robot.token)
        words = f"twin pusht --policy expert --real robot:{robot.address} --token {folder}/token --steps 120"
        return command(words, folder / "twin")


def scene_check(folder: Path) -> Path:
    """The checks of a scene."""
    return command("scene check pusht", folder / "scene_check", passes=(0, 1))


def experiment_legs(folder: Path) -> Path:
    """A robot that walks: feedback and replayed actions."""
    robot = ROOT / "examples" / "quadruped" / "quadruped.xml"
    assert main(["scene", "new", str(robot), str(folder / "dog"), "--rate", "100", "--legs"]) == 0
    return command(f"lab legs {folder}/dog --trials 2 --seconds 1.5", folder / "legs", passes=(0, 1))


def closing(folder: Path) -> Path:
    """Two techniques on two robots."""
    budget = "--starts 1 --seconds 0.4 --recordings 1 --generations 1 --population 4 --samples 1"
    words = f"lab closing so101 --task reach --robots 2 {budget} --techniques untouched posterior"
    return command(words, folder / "closing")


KINDS: dict[str, tuple[Callable[[Path], Path], int]] = {
    "run": (run, 1), "record": (record, 1), "record images": (record_images, 1), "shadow": (shadow, 1),
    "eval": (evaluate, 1), "gate": (gate, 0), "check": (check, 0), "gap": (gap, 0),
    "plain gap": (gap_plain, 0), "gap of pairs": (gap_pairs, 0),
    "gap of commands": (gap_alone, 0), "gap of torques": (gap_torque, 0), "agree": (agreement, 0),
    "tune": (tune, 0), "tune by torques": (tune_torque, 0), "start": (start, 0),
    "reidentify": (reidentify, 0), "excite": (excite, 0),
    "twin of a recording": (twin_of_recording, 1), "twin": (twin_live, 1),
    "scene check": (scene_check, 0), "lab legs": (experiment_legs, 1), "lab closing": (closing, 0),
}  # fmt: skip
"""Kind -> what makes its page, and how many videos it shows."""
NIGHTLY = {"gap", "tune", "start", "twin", "twin of a recording", "shadow", "lab legs"}
"""Kinds that take long to make."""
PAGE_FREE = {"scene", "data", "robot", "train", "serve", "runs", "doctor", "demo", "view", "reconstruct"}  # fmt: skip
"""Commands that write no page; that of demo is checked with the demo, that of augment is the page of eval, and that
of reconstruct is checked in tests/reconstruct."""


def screenshots(folder: Path, names: list[str]) -> None:
    """Make pages and screenshots of them at both widths."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = {name: KINDS[name][0](folder) for name in names}
    with browser_page(folder / "profile") as page:
        for name, path in pages.items():
            for width in WIDTHS:
                page.show(path, width)
                print(page.screenshot(folder / f"{name.replace(' ', '_')}_{width}.png"), flush=True)


if __name__ == "__main__":
    screenshots(Path(sys.argv[1]).absolute(), sys.argv[2:] or list(KINDS))
