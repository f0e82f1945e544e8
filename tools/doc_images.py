"""Images of the docs: each page of a command shows its report, figure or output, made by that command.

    python tools/doc_images.py [NAME...]       # into docs/images; all of them where none is named

Pages and terminal output are rendered by Chromium without a window. `gap_report` needs the recordings of the rotary
pendulum, `train_progress` needs torch, `reconstruct_prompt` the recording of PushT and the weights of SAM 2.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from PIL import Image

import instep
from instep.app.viewer.live_view import LiveView
from instep.app.viewer.showing import PROGRAMS, PromptContent, view_page
from instep.app.viewer.teleoperation import TeleopContent
from instep.app.viewer.view_server import PROMPTS, ViewServer
from instep.core.errors import BadInput
from instep.evaluate import run_batch
from instep.policy import expert_of
from instep.policy.chunking import Latency
from instep.reconstruct.capture.posed_views import views_of
from instep.reconstruct.masks.prompts import default_weights_folder, open_segmenter
from instep.report.figures import line_trace, plot, series_color
from instep.report.page import Figure, FigureRow, Headline, HtmlReport, Section, write_html
from instep.report.scene_pages import first_seconds
from instep.scene import Tasked, task_of
from instep.scene.folder import Scene
from instep.splat.capture import load_capture

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
RECORDINGS = ROOT.parent / "shared" / "data"
WIDTH = 1100
"""Width of a page or terminal [pixels]."""
MAX_LINES = 26
"""Most lines of the output of one command."""
COLOURS = 128
"""Colours of a PNG; figures and pages need few."""
Make = Callable[[Path], Path]
"""Makes an image in a work folder, which holds the examples and the recordings of the checkout."""
CHUNKS = """
import numpy as np


class Circle:
    def reset(self, seed=0):
        self.phase, self.row = 0.7 * seed, 0

    def act(self, seen):
        self.row += 1
        return self.at(self.row - 1)

    def at(self, row):
        angle = self.phase + row / 25
        return np.array([0.46 + 0.09 * np.cos(angle), 0.33 + 0.06 * np.sin(1.3 * angle)])


class Cloned(Circle):
    def infer(self, seen):
        self.row += 1
        rng = np.random.default_rng((int(10 * self.phase), self.row))
        ahead = np.array([self.at(5 * self.row - 5 + step) for step in range(50)])
        return ahead + rng.normal(0, 0.006, ahead.shape) * np.sqrt(1 + np.arange(50))[:, None]
"""
TUNE = "tune examples/own_arm examples/own_arm/arm.urdf --map examples/own_arm/log.toml"
REPORTS: dict[str, tuple[int, tuple[str, ...]]] = {
    "demo": (1250, ("demo --out out",)),
    "gap_report": (1255, ("gap recordings/quanser_wam furuta --plain --out out",)),
    "tune_report": (1250, (f"{TUNE} --params joint.*.frictionloss action.delay --windows 40 --out out",)),
    "reidentify_report": (1250, (
        f"{TUNE} --out tuned",
        "reidentify examples/own_arm tuned/scene --map examples/own_arm/log.toml --params joint.*.damping --out out",
    )),
    "experiment_legs": (1350, (
        "scene new examples/quadruped/quadruped.xml dog --rate 100 --legs",
        "lab legs dog --trials 2 --seconds 4 --out out",
    )),
    "eval_report": (1250, (
        "eval expert pusht --seeds 32 --worlds mujoco perturbed:1 --latency 24 --videos 1 --out out",
    )),
    "run_report": (1250, ("run expert sim:so101 --steps 200 --out out",)),
    "gate_report": (1250, ("gate expert examples/ci/rules.toml --seeds 16 --out out",)),
    "check_report": (1500, (
        "record sim:pusht data --policy mine.py:Circle --episodes 5 --steps 300",
        "check mine.py:Cloned data --every 5 --out out",
    )),
    "excite_motion": (1500, ("excite arm7 --params joint.*.damping --seconds 3 --generations 3 --out out",)),
}  # fmt: skip
"""Image -> height [pixels] of the top of a report, and the commands that make the report in the folder `out`."""
VIEWS: dict[str, tuple[str, ...]] = {
    "view_recording": (
        "record sim:pusht data --policy expert --episodes 2 --steps 200",
        "view data --image view.png --at 2",
    ),
    "view_gap": (
        "scene set arm7 soft joint.*.damping=18 action.delay=0.06", "record sim:soft data --steps 300",
        "view data --against arm7 --params joint.joint_?.damping --image view.png --at 2.5",
    ),
}  # fmt: skip
"""Image -> the commands that make `view.png`."""
TERMINALS: dict[str, tuple[str, ...]] = {
    "record_terminal": ("record sim:pusht data --policy random --episodes 2 --steps 120", "data info data"),
    "doctor_terminal": ("doctor",),
}
"""Image -> the commands whose output it shows."""


def run_instep(folder: Path, words: str) -> str:
    """Run a command in a folder and return what it printed; 1 is the code of a gate that was not passed."""
    command = [sys.executable, "-m", "instep.app.cli", *words.split()]
    plain = {"COLUMNS": "110", "FORCE_COLOR": "1", "TERM": "xterm-256color", **os.environ}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=plain)
    if done.returncode not in (0, 1):
        raise BadInput(f"instep {words} ended with {done.returncode}: {done.stderr[-800:]}")
    return done.stderr + done.stdout


def made_by(folder: Path, commands: Sequence[str], file: str) -> Path:
    """The file that commands leave in a folder."""
    (folder / "mine.py").write_text(CHUNKS)
    for words in commands:
        run_instep(folder, words)
    return folder / file


def screenshot(page: Path, height: int) -> Path:
    """The top of a page as a PNG beside it."""
    browser = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if browser is None:
        raise BadInput("Chromium was not found; install Debian's chromium to render pages.")
    out = page.with_suffix(".png")
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=20000"]
    size = [f"--window-size={WIDTH},{height}", f"--screenshot={out}"]
    subprocess.run([browser, *flags, *size, f"file://{page}#theme=light"], capture_output=True, timeout=300, check=True)
    return out


def figures(folder: Path, title: str, *shown: Figure) -> Path:
    """A page of figures side by side."""
    sections = [Section("Figures", blocks=[FigureRow(shown) if len(shown) > 1 else shown[0]])]
    height = 300 + max(int(figure["layout"]["height"]) for figure in shown)
    page = write_html(folder / "figures.html", HtmlReport(title, "", Headline("plain", title), (), sections))
    return screenshot(page, height)


def terminal(folder: Path, *lines: tuple[str, str]) -> Path:
    """Commands and what they printed, as a terminal shows them."""
    from rich.console import Console
    from rich.text import Text

    console = Console(record=True, width=110, file=open(os.devnull, "w"))  # noqa: SIM115 - closed with the process
    for command, printed in lines:
        console.print(Text(f"$ {command}", style="bold"))
        console.print(Text.from_ansi("\n".join(_settled(printed))))
    style = "<style>body {margin: 18px; background: #fdfdfb} pre {font-size: 14px; line-height: 1.35}</style>"
    page = folder / "terminal.html"
    page.write_text(style + console.export_html(inline_styles=True), encoding="utf-8")
    shown = screenshot(page, 1400)
    image = np.asarray(Image.open(shown).convert("RGB"))
    rows = np.flatnonzero((image != image[0, 0]).any(axis=(1, 2)))
    Image.fromarray(image[: rows[-1] + 18]).save(shown)
    return shown


def _settled(printed: str) -> list[str]:
    """The lines that are left in a terminal: the last state of each progress bar, and no more than `MAX_LINES`."""
    lines = [line for line in re.split(r"[\r\n]+", printed) if re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line).strip()]
    shown = [a for a, b in zip(lines, [*lines[1:], ""], strict=True) if not ("━" in a and "━" in b and "┃" not in b)]
    return shown if len(shown) <= MAX_LINES else [*shown[:MAX_LINES], "..."]


def keep(name: str, made: Path) -> Path:
    """Store an image of the docs, with few colours so that it stays small; shaded 3D keeps 85 levels of each."""
    if made.suffix == ".jpg":  # photographs
        return Path(shutil.copy(made, IMAGES / f"{name}.jpg"))
    out = IMAGES / f"{name}.png"
    if name.startswith("view_"):
        levels = np.asarray(Image.open(made).convert("RGB"), np.int64)
        Image.fromarray(((levels + 1) // 3 * 3).astype(np.uint8)).save(out, optimize=True)
        return out
    Image.open(made).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(out, optimize=True)
    return out


def start_plot(folder: Path) -> Path:
    """Measured and commanded positions of an arm's logs, as `instep start` reads them."""
    data = made_by(folder, ["start examples/own_arm/arm.urdf examples/own_arm --budget 10s --out out"], "out/data")
    return figures(folder, "As read by instep start", first_seconds(instep.load_episodes(data)[0]))


def scene_show(folder: Path) -> Path:
    """Some of the shipped scenes, through one of their cameras."""
    from instep.physics import MujocoRenderer

    shown: list[Any] = []
    for name in ("pusht_arm", "so101", "mobile_ai"):
        scene = instep.load_scene(name)
        renderer = MujocoRenderer(scene)
        shown.append(renderer.render(scene.start(0)[0], next(iter(scene.cameras.values()))))
        renderer.close()
    return _beside(shown, folder / "scenes.png")


def robot_cameras(folder: Path) -> Path:
    """A camera of the scene, and the same camera of a simulated robot."""
    from instep.app.verbs.robot import Lens
    from instep.evaluate.perturbed_robot import distorted, hidden_appearance
    from instep.physics import MujocoRenderer

    scene = instep.load_scene("pusht")
    camera, renderer = next(iter(scene.cameras.values())), MujocoRenderer(scene)
    plain = renderer.render(scene.start(0)[0], camera)
    renderer.close()
    effects, distortion = hidden_appearance(7)
    return _beside([plain, Lens(distorted(camera, distortion), effects, 0).apply(plain, 0)], folder / "cameras.png")


def _beside(images: Sequence[Any], path: Path) -> Path:
    """Images side by side, each 4 wide to 3 high."""
    height = min(len(image) for image in images)
    resized = [Image.fromarray(image) for image in images]
    widths = [round(image.width * height / image.height) for image in resized]
    shown = Image.new("RGB", (sum(widths) + 8 * (len(widths) - 1), height), "white")
    for k, (image, width) in enumerate(zip(resized, widths, strict=True)):
        shown.paste(image.resize((width, height)), (sum(widths[:k]) + 8 * k, 0))
    shown.save(path)
    return path


def serve_terminal(folder: Path) -> Path:
    """A server, and an evaluation of the policy behind it."""
    command = [sys.executable, "-m", "instep.app.cli", "serve", "expert", "pusht", "--port", "8000"]
    secret = secrets.token_urlsafe(32)
    (folder / "token").write_text(secret)
    with subprocess.Popen([*command, "--token", "token"], cwd=folder, stdout=subprocess.PIPE, text=True) as server:
        if server.stdout is None:
            raise RuntimeError("the server has no output")
        address = server.stdout.readline()
        os.environ["INSTEP_TOKEN"] = secret
        words = "eval openpi:ws://127.0.0.1:8000 pusht --seeds 8 --videos 0 --out evaluated"
        printed = run_instep(folder, words)
        server.terminate()
    first = ("instep serve expert pusht --port 8000 --token token &", address)
    return terminal(folder, first, (f"INSTEP_TOKEN=$(cat token) instep {words}", printed))


def train_progress(folder: Path) -> Path:
    """Loss of a training, and what it learned from: paths of the block."""
    from instep.policy import TrainOptions, train
    from instep.policy.training import TrainProgress

    data = made_by(folder, ["lab augment expert pusht --demos 8 --out shown"], "shown/demonstrations")
    episodes, seen = list(instep.load_episodes(data)), list[TrainProgress]()
    options = TrainOptions(frame=("pusher_x", "pusher_y", "tee"), steps=600, checkpoint_every=50)
    train(episodes, folder / "policy", options, progress=seen.append)
    loss = line_trace("loss", [now.step for now in seen], [now.loss for now in seen], color=series_color(0))
    left = plot([loss], title="Loss", x="step", y={"title": "loss", "rangemode": "tozero"})
    return figures(folder, "Training", left, _paths(episodes, "Demonstrations: paths of the block"))


def augment_paths(folder: Path) -> Path:
    """States in which a policy failed, and demonstrations from there."""
    from instep.evaluate import demonstrate
    from instep.evaluate.failure_mining import find_failure_states

    scene = instep.load_scene("pusht")
    task = task_of(scene)
    world, expert, seeds = Tasked(instep.open_world(scene), task), expert_of(task, scene), range(1000, 1012)
    failures = find_failure_states(world, _Frozen(expert_of(task, scene), 150), seeds)
    if failures is None:
        raise BadInput("The policy did not fail, so there is nothing to show.")
    found = demonstrate(world, expert, failures.seeds, states=failures.states)
    runs = [instep.rollout(world, _Frozen(expert_of(task, scene), 150), steps=300, seed=seed) for seed in seeds]
    failed = _paths(runs, "Policy: paths of the block until it fails", 3)
    return figures(folder, "Augmentation", failed, _paths(found, "Expert: demonstrations from failure states"))


class _Frozen:
    """A policy that stops after some steps, as one that was trained on too little does."""

    def __init__(self, policy: Any, steps: int):
        self._policy, self._steps, self._k = policy, steps, 0

    def reset(self, seed: int = 0) -> None:
        self._policy.reset(seed)
        self._k = 0

    def act(self, observation: Any) -> Any:
        if self._k < self._steps:
            self._last = self._policy.act(observation)
        self._k += 1
        return self._last


def _paths(episodes: Sequence[instep.Episode], title: str, series: int = 0) -> Figure:
    traces: list[dict[str, Any]] = []
    for episode in episodes:
        at = episode.spec.q.labels.index("tee.x")
        traces.append(line_trace("", *episode.q[:, at : at + 2].T, color=series_color(series), width=1.2))
    return plot(traces, title=title, x="x [m]", y={"title": "y [m]", "scaleanchor": "x"}, showlegend=False)


GRAB = """
(() => {
  const { grabbing, stage } = window.instepViewers[0];
  const at = grabbing.handles[0].getWorldPosition(stage.camera.position.clone());
  const hand = (x, y, z) => stage.camera.matrixWorld.clone().makeTranslation(at.x + x, at.y + y, at.z + z);
  grabbing.take(hand(0, 0, 0), 1, false);
  [0.25, 0.5, 0.75, 1].forEach((s, i) => setTimeout(() => grabbing.move(hand(-0.05 * s, 0.22 * s, 0.2 * s)), 700 * i));
})()
"""


def view_teleop(folder: Path) -> Path:
    """An arm that is led by its end effector."""
    content = TeleopContent(Scene.load("arm7"))
    server = ViewServer(content)
    with content.running(server), view_page() as page:
        page.open(f"{server.start()}&theme=light", (1200, 760))
        page.evaluate(GRAB)
        time.sleep(4)
        path = page.screenshot(folder / "view.png")
    server.close()
    return path


def reconstruct_prompt(folder: Path) -> Path:
    """The page on which objects are marked, with masks by SAM 2."""
    capture, file = load_capture(RECORDINGS / "pusht"), folder / "prompts.json"
    tee = ["click:220422302296:230,100", "click:234222302164:200,105", "click:234222303707:200,75"]
    outline = ["click:234222302164:265,124", "not:234222302164:200,105"]
    file.write_text(json.dumps({"objects": {"tee": tee, "outline": outline}}), encoding="utf-8")
    segmenter = open_segmenter(default_weights_folder())
    content = PromptContent(views_of(capture), file, segmenter)
    for name in ("tee", "outline"):
        content.answer({"masks": name})  # kept, so that the page has them at once
    server = ViewServer(content, script=PROMPTS)
    with view_page() as page:
        page.open(server.start(), (1480, 428))
        time.sleep(2)
        shown = page.screenshot(folder / "page.png")
    server.close()
    Image.open(shown).convert("RGB").save(folder / "page.jpg", quality=86)
    return folder / "page.jpg"


def view_eval(folder: Path) -> Path:
    """A grid of worlds in which a policy whose decisions come late pushes a block, at the end of their episodes."""
    scene = Scene.load("pusht")
    task = task_of(scene)
    world = Tasked(instep.open_world(scene), task)
    with LiveView(scene, scene.spec, "instep eval expert pusht", worlds=12) as live, view_page() as page:
        page.open(f"{live.url}&theme=light", (1200, 760))
        run_batch(world, Latency(expert_of(task, scene), 24), range(12), watch=[live])
        time.sleep(4)  # the page shows the last row
        return page.screenshot(folder / "view.png")


def _report(folder: Path, height: int, commands: Sequence[str]) -> Path:
    return screenshot(made_by(folder, commands, "out/report.html"), height)


def _terminal(folder: Path, commands: Sequence[str]) -> Path:
    return terminal(folder, *((f"instep {words}", run_instep(folder, words)) for words in commands))


MAKERS: dict[str, Make] = {
    **{name: partial(_report, height=height, commands=commands) for name, (height, commands) in REPORTS.items()},
    **{name: partial(made_by, commands=commands, file="view.png") for name, commands in VIEWS.items()},
    **{name: partial(_terminal, commands=commands) for name, commands in TERMINALS.items()},
    "start_plot": start_plot, "scene_show": scene_show, "robot_cameras": robot_cameras,
    "serve_terminal": serve_terminal, "train_progress": train_progress, "augment_paths": augment_paths,
    "view_teleop": view_teleop, "view_eval": view_eval, "reconstruct_prompt": reconstruct_prompt,
}  # fmt: skip


def main(names: list[str]) -> int:
    """Make the images that are named, or all."""
    for name in names or MAKERS:
        with TemporaryDirectory() as folder:
            (Path(folder) / "examples").symlink_to(ROOT / "examples")
            (Path(folder) / "recordings").symlink_to(RECORDINGS)
            made = keep(name, MAKERS[name](Path(folder)))
        print(json.dumps({"image": str(made.relative_to(ROOT)), "kB": round(made.stat().st_size / 1000)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
