"""Images of the docs: each page of a command shows its report, figure or output, made by that command.

    python tools/doc_images.py [NAME...]       # into docs/images; all of them where none is named

Reports and terminal output are rendered by Chromium without a window. `gap_report` needs the recordings of the rotary
pendulum, `train` needs torch, `reconstruct_prompt` the recording of PushT and the weights of SAM 2.
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
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from PIL import Image

import instep
from instep.app.viewer.live_view import LiveView
from instep.app.viewer.showing import PromptContent, view_page
from instep.app.viewer.teleoperation import TeleopContent
from instep.app.viewer.view_server import PROMPTS, ViewServer
from instep.core.errors import BadInput
from instep.evaluate import run_batch
from instep.policy import expert_of
from instep.policy.chunking import Latency
from instep.reconstruct.capture.posed_views import views_of
from instep.reconstruct.masks.prompts import default_weights_folder, open_segmenter
from instep.scene import Tasked, task_of
from instep.scene.folder import Scene
from instep.splat.capture import load_capture

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
RECORDINGS = ROOT.parent / "shared" / "data"
WIDTH = 1100
"""Width of a page or terminal [pixels]."""
CAMERA = "cam_234222302164"
"""Camera of the scene pusht that shows most of the table."""
MAX_LINES = 26
"""Most lines of the output of one command."""
COLOURS = 128
"""Colours of a PNG; figures and pages need few."""

Make = Callable[[Path], Path]
"""Makes an image in a work folder."""


def run_instep(folder: Path, *words: str, passes: tuple[int, ...] = (0,)) -> str:
    """Run a command in a folder and return what it printed."""
    command = [sys.executable, "-m", "instep.app.cli", *words]
    plain = {"COLUMNS": "110", "FORCE_COLOR": "1", "TERM": "xterm-256color", **os.environ}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=plain)
    if done.returncode not in passes:
        raise BadInput(f"instep {' '.join(words)} ended with {done.returncode}: {done.stderr[-800:]}")
    return done.stdout if not done.stderr else done.stderr + done.stdout


def screenshot(page: Path, height: int) -> Path:
    """The top of a page as a PNG beside it."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        raise BadInput("Chromium was not found; install Debian's chromium to render pages.")
    out = page.with_suffix(".png")
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=20000"]
    size = [f"--window-size={WIDTH},{height}", f"--screenshot={out}"]
    subprocess.run([browser, *flags, *size, f"file://{page}#theme=light"], capture_output=True, timeout=300, check=True)
    return out


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


def gap_report(folder: Path) -> Path:
    """Report of a rotary pendulum against its own scatter."""
    data = folder / "recordings"
    data.mkdir()
    (data / "quanser_wam").symlink_to(RECORDINGS / "quanser_wam")
    run_instep(folder, "gap", "recordings/quanser_wam", "furuta", "--plain", "--out", "gap")
    return screenshot(folder / "gap" / "report.html", 1255)


def tune_report(folder: Path) -> Path:
    """Report of an identification: friction and delay of an arm from its logs."""
    arm = ROOT / "examples" / "own_arm"
    shutil.copytree(arm, folder / "own_arm")
    words = ("own_arm", "own_arm/arm.urdf", "--map", "own_arm/log.toml")
    params = ("--params", "joint.*.frictionloss", "action.delay", "--windows", "40")
    run_instep(folder, "tune", *words, *params, "--out", "tuned", passes=(0, 1))
    return screenshot(folder / "tuned" / "report.html", 1250)


def reidentify_report(folder: Path) -> Path:
    """Report of a replay of an arm's logs: its damping over time."""
    shutil.copytree(ROOT / "examples" / "own_arm", folder / "own_arm")
    log = ("--map", "own_arm/log.toml")
    run_instep(folder, "tune", "own_arm", "own_arm/arm.urdf", *log, "--out", "tuned", passes=(0, 1))
    run_instep(folder, "reidentify", "own_arm", "tuned/scene", *log, "--params", "joint.*.damping", "--out", "drift")
    return screenshot(folder / "drift" / "report.html", 1250)


def experiment_legs(folder: Path) -> Path:
    """Report of a quadruped that walks with feedback, and with actions that are replayed."""
    run_instep(folder, "scene", "new", str(ROOT / "examples/quadruped/quadruped.xml"), "dog", "--rate", "100", "--legs")
    run_instep(folder, "experiment", "legs", "dog", "--trials", "2", "--seconds", "4", "--out", "walked")
    return screenshot(folder / "walked" / "report.html", 1350)


def start_plot(folder: Path) -> Path:
    """Measured and commanded positions of an arm's logs, as `instep start` reads them."""
    shutil.copytree(ROOT / "examples" / "own_arm", folder / "own_arm")
    run_instep(folder, "start", "own_arm/arm.urdf", "own_arm", "--budget", "10s", "--out", "start", passes=(0, 1))
    return folder / "start" / "first_seconds.png"


def eval_report(folder: Path) -> Path:
    """Report of an evaluation in two worlds, with decisions that come late."""
    options = ("--worlds", "mujoco", "perturbed:1", "--latency", "24", "--videos", "1")
    run_instep(folder, "eval", "expert", "pusht", "--seeds", "32", *options, "--out", "evaluated")
    return screenshot(folder / "evaluated" / "report.html", 1250)


def run_report(folder: Path) -> Path:
    """Page of a run: video, outcome of the task, numbers, progress."""
    run_instep(folder, "run", "expert", "sim:so101", "--steps", "200", "--out", "ran")
    return screenshot(folder / "ran" / "report.html", 1250)


def gate_report(folder: Path) -> Path:
    """Report of a gate: parity of the engines, then the rules."""
    rules = str(ROOT / "examples" / "ci" / "rules.toml")
    run_instep(folder, "gate", "expert", rules, "--seeds", "16", "--out", "gated", passes=(0, 1))
    return screenshot(folder / "gated" / "report.html", 1250)


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


def check_report(folder: Path) -> Path:
    """Report of a check of a policy that infers chunks."""
    (folder / "mine.py").write_text(CHUNKS)
    recorded = ("--policy", "mine.py:Circle", "--episodes", "5", "--steps", "300")
    run_instep(folder, "record", "sim:pusht", "data", *recorded)
    run_instep(folder, "check", "mine.py:Cloned", "data", "--every", "5", "--out", "checked")
    return screenshot(folder / "checked" / "report.html", 1500)


def excite_motion(folder: Path) -> Path:
    """Commands and positions of a designed motion."""
    options = ("--params", "joint.*.damping", "--seconds", "3", "--generations", "3", "--out", "motion")
    run_instep(folder, "excite", "arm7", *options)
    return screenshot(folder / "motion" / "report.html", 1500)


def scene_show(folder: Path) -> Path:
    """Some of the shipped scenes, through one of their cameras."""
    from instep.physics import MujocoRenderer

    figure, axes = _panels(1, 3, (10.0, 2.8))
    for axis, name in zip(axes, ("pusht_arm", "so101", "mobile_ai"), strict=True):
        scene = instep.load_scene(name)
        renderer = MujocoRenderer(scene)
        image = renderer.render(scene.start(0)[0], next(iter(scene.cameras.values())))
        width = image.shape[0] * 4 // 3
        left = (image.shape[1] - width) // 2
        axis.imshow(image[:, left : left + width])
        renderer.close()
        axis.set_title(name, fontsize=10)
        axis.set_axis_off()
    return _saved(figure, folder / "scenes.png")


def robot_cameras(folder: Path) -> Path:
    """A camera of the scene, and the same camera of a simulated robot."""
    from instep.app.verbs.robot import Lens
    from instep.evaluate.perturbed_robot import distorted, hidden_appearance
    from instep.physics import MujocoRenderer

    scene = instep.load_scene("pusht")
    camera, q, renderer = next(iter(scene.cameras.values())), scene.start(0)[0], MujocoRenderer(scene)
    plain = renderer.render(q, camera)
    effects, distortion = hidden_appearance(7)
    figure, axes = _panels(1, 2, (10.0, 3.1))
    shown = Lens(distorted(camera, distortion), effects, 0).apply(plain, 0)
    for axis, image, title in zip(axes, (plain, shown), ("scene", "simulated robot"), strict=True):
        axis.imshow(image)
        axis.set_title(title, fontsize=10, loc="left")
        axis.set_axis_off()
    renderer.close()
    return _saved(figure, folder / "cameras.png")


def record_terminal(folder: Path) -> Path:
    """What a recording and its description print."""
    record = "record sim:pusht data --policy random --episodes 2 --steps 120"
    info = "data info data"
    return terminal(folder, *((f"instep {words}", run_instep(folder, *words.split())) for words in (record, info)))


def doctor_terminal(folder: Path) -> Path:
    """What doctor prints."""
    return terminal(folder, ("instep doctor", run_instep(folder, "doctor")))


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
        printed = run_instep(folder, *words.split())
        server.terminate()
    first = ("instep serve expert pusht --port 8000 --token token &", address)
    return terminal(folder, first, (f"INSTEP_TOKEN=$(cat token) instep {words}", printed))


def train_progress(folder: Path) -> Path:
    """Loss of a training, and what it learned from: paths of the block."""
    run_instep(folder, "augment", "expert", "pusht", "--demos", "8", "--out", "shown")
    frame = ("--frame", "pusher_x", "pusher_y", "tee")
    from instep.policy import TrainOptions, train
    from instep.policy.training import TrainProgress

    episodes, seen = instep.load_episodes(folder / "shown" / "demonstrations"), list[TrainProgress]()
    options = TrainOptions(frame=(frame[1], frame[2], frame[3]), steps=600, checkpoint_every=50)
    train(list(episodes), folder / "policy", options, progress=seen.append)
    figure, (left, right) = _panels(1, 2, (10.0, 3.4))
    left.plot([now.step for now in seen], [now.loss for now in seen], marker="o", color="#1f6f8b")
    left.set(xlabel="step", ylabel="loss", title="training", ylim=(0, None))
    _paths(right, episodes, "#1f6f8b")
    right.set_title("demonstrations: paths of the block")
    return _saved(figure, folder / "training.png")


def augment_paths(folder: Path) -> Path:
    """States in which a policy failed, and demonstrations from there."""
    from instep.evaluate import demonstrate
    from instep.evaluate.failure_mining import find_failure_states
    from instep.policy import expert_of
    from instep.scene import Tasked, task_of

    scene = instep.load_scene("pusht")
    task = task_of(scene)
    world, expert = Tasked(instep.open_world(scene), task), expert_of(task, scene)
    seeds = range(1000, 1012)
    late = _Frozen(expert_of(task, scene), 150)
    failures = find_failure_states(world, late, seeds)
    if failures is None:
        raise BadInput("The policy did not fail, so there is nothing to show.")
    found = demonstrate(world, expert, failures.seeds, states=failures.states)
    figure, axes = _panels(1, 2, (10.0, 3.6))
    runs = [instep.rollout(world, _Frozen(expert_of(task, scene), 150), steps=300, seed=seed) for seed in seeds]
    _paths(axes[0], runs, "#c0392b")
    axes[0].set_title("policy: paths of the block until it fails")
    _paths(axes[1], found, "#1f6f8b")
    axes[1].set_title("expert: demonstrations from failure states")
    return _saved(figure, folder / "augment.png")


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


def _paths(axis: Any, episodes: Any, colour: str) -> None:
    for episode in episodes:
        at = episode.spec.q.labels.index("tee.x")
        x, y = episode.q[:, at], episode.q[:, at + 1]
        axis.plot(x, y, color=colour, lw=1.2, alpha=0.8)
        axis.plot(x[0], y[0], "o", color="0.3", ms=4)
        axis.plot(x[-1], y[-1], "s", color=colour, ms=5)
    axis.set(xlabel="x [m]", ylabel="y [m]", aspect="equal")


def _panels(rows: int, columns: int, size: tuple[float, float]) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns)


def _saved(figure: Any, path: Path) -> Path:
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
    return path


def demo(folder: Path) -> Path:
    """The figure of the demo."""
    run_instep(folder, "demo", "--out", "demo")
    return folder / "demo" / "demo.png"


def view_recording(folder: Path) -> Path:
    """A recording of the T block in the viewer."""
    run_instep(folder, "record", "sim:pusht", "data", "--policy", "expert", "--episodes", "2", "--steps", "200")
    run_instep(folder, "view", "data", "--image", "view.png", "--at", "2")
    return folder / "view.png"


def view_gap(folder: Path) -> Path:
    """A recording as a ghost over its replay."""
    run_instep(folder, "scene", "set", "arm7", "soft", "joint.*.damping=18", "action.delay=0.06")
    run_instep(folder, "record", "sim:soft", "data", "--steps", "300")
    against = ("--against", "arm7", "--params", "joint.joint_?.damping")
    run_instep(folder, "view", "data", *against, "--image", "view.png", "--at", "2.5")
    return folder / "view.png"


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


MAKERS: dict[str, Make] = {
    "demo": demo, "gap_report": gap_report, "tune_report": tune_report, "eval_report": eval_report,
    "gate_report": gate_report, "check_report": check_report, "excite_motion": excite_motion, "scene_show": scene_show,
    "robot_cameras": robot_cameras, "record_terminal": record_terminal,
    "doctor_terminal": doctor_terminal, "serve_terminal": serve_terminal, "train_progress": train_progress,
    "run_report": run_report, "augment_paths": augment_paths, "start_plot": start_plot,
    "reidentify_report": reidentify_report, "experiment_legs": experiment_legs,
    "view_recording": view_recording, "view_gap": view_gap, "view_teleop": view_teleop, "view_eval": view_eval,
    "reconstruct_prompt": reconstruct_prompt,
}  # fmt: skip


def main(names: list[str]) -> int:
    """Make the images that are named, or all."""
    for name in names or MAKERS:
        with TemporaryDirectory() as folder:
            made = keep(name, MAKERS[name](Path(folder)))
        print(json.dumps({"image": str(made.relative_to(ROOT)), "kB": round(made.stat().st_size / 1000)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
