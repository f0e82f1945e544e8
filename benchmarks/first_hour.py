"""The first hour with one's own robot: `instep start` on logs of planted arms in five styles, without a mapping.

Arms are robot files and shipped scenes with planted parameters (see robots.py), recorded in four runs of 10 s. Styles:
a CSV of a UR controller (numbered columns), ROS 2 bags (joint states by name, in alphabetical order; commands without
names), a LeRobot dataset of others (degrees, `elbow.pos` or `motor_3`, no metadata of ours), and NPZ in degrees whose
commands stand in another order than the states, once with two states swapped as well. A mapping is right where every
position and command comes out under the right label, in the right unit and at the right rate. Single cases:
`python -m benchmarks first_hour --only ur5e npz`.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from harness import KeptCases, Row, median, percent, row, run_instep
from instep import Episode, Scene
from instep.core.errors import BadInput, Unsupported
from instep.core.statistics import wilson
from instep.core.world import Array, vector
from instep.data import load_episodes, write_dataset
from instep.data.resample import resampled
from instep.scene.folder import LIBRARY
from instep.scene.robot_structure import with_actuator_labels
from robots import two_cores
from tuning.planted_arms import MODELS, Arm, planted_arm, robot_files, shipped_arms

SEED = 3000
LIMIT = 300.0
"""Longest time of a case [s]."""
LEROBOT_RATE = 50.0
MAX_ERROR = 0.05
"""Largest error of a channel that was read right [share of its standard deviation]."""


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """Logs of an arm in one style."""

    arm: Arm
    style: str

    @property
    def name(self) -> str:
        return f"{self.arm.name}, {self.style}"


def run(out: Path, quick: bool = False, only: Sequence[str] = ()) -> list[Row]:
    """Start from the logs of every arm in every style; `only` gives words that the name of a case must have."""
    cases = [case for case in chosen_cases(quick) if all(word.lower() in case.name.lower() for word in only)]
    tasks = {case.name: partial(_measured_apart, case, "30s" if quick else "") for case in cases}
    with two_cores():
        return summary(KeptCases(out).measured_in_turn(tasks, _line))


def chosen_cases(quick: bool) -> list[Case]:
    """All arms in all styles."""
    arms = robot_files() if MODELS.is_dir() else []
    arms += [Arm(arm.name, str(LIBRARY / arm.scene / "scene.xml")) for arm in shipped_arms()]
    if quick:
        arms = [arm for arm in arms if arm.name in ("ur5e", "so101 (shipped)")]
    return [Case(arm, style) for arm in arms if Path(arm.scene).is_file() for style in STYLES]


def _measured_apart(case: Case, budget: str) -> dict[str, Any]:
    runs = _recorded(case.arm)
    if isinstance(runs, str):
        return {"name": case.name, "style": case.style, "skipped": runs}
    with tempfile.TemporaryDirectory() as folder:
        return measured_case(case, runs, Path(folder), budget)


@lru_cache(maxsize=1)
def _recorded(arm: Arm) -> Sequence[Episode] | str:
    """Recorded runs of the planted arm, with actions by actuator; if there are none, the reason."""
    try:
        planted = planted_arm(arm, SEED)
    except (BadInput, Unsupported) as error:
        return str(error)
    return with_actuator_labels(planted.scene.model, planted.runs)


def measured_case(case: Case, runs: Sequence[Episode], folder: Path, budget: str) -> dict[str, Any]:
    """Write logs, start from them by the command line, and compare what was read with what was recorded."""
    (folder / "logs").mkdir()
    rng = np.random.default_rng(len(case.name))
    truth = STYLES[case.style](Scene.load(case.arm.scene), runs, folder / "logs", rng)
    began = time.perf_counter()
    words = ["start", case.arm.scene, str(folder / "logs"), "--out", str(folder / "out")]
    code, printed = run_instep([*words, *(["--budget", budget] if budget else [])], folder, 2 * LIMIT)
    seconds = time.perf_counter() - began
    facts: dict[str, Any] = {"name": case.name, "style": case.style, "seconds": seconds, "exit": code}
    facts["page"] = (folder / "out" / "report.html").is_file()
    if not facts["page"]:
        return {**facts, "right": False, "flagged": False, "message": printed[-800:]}
    told = json.loads((folder / "out" / "result.json").read_text(encoding="utf-8"))
    doubted = {r["what"] for r in told["mapping"] if r["confidence"] != "sure"}
    wrong = wrong_channels(load_episodes(folder / "out" / "data")[0], truth)
    silent = sorted(wrong - doubted)
    facts |= {"wrong": sorted(wrong), "silent": silent, "right": not wrong, "flagged": not silent}
    return facts | {"passed": told["passed"], "failures": told["failures"]}


def wrong_channels(read: Episode, truth: Episode) -> set[str]:
    """What was read wrong, by the names of the rows of the guess."""
    wrong = set[str]()
    if abs(read.spec.dt / truth.spec.dt - 1) > 0.01:
        wrong.add("time")
    for what, column in (("position", "q"), ("command", "action")):
        known, found = (_channels(episode, column) for episode in (truth, read))
        for label, values in known.items():
            if label not in found:
                wrong.add(f"{what} of {label}")
                continue
            rows = min(len(values), len(found[label]))
            size = max(float(values.std()), 1e-3 * float(np.abs(values).max()), 1e-6)
            if not float(np.sqrt(np.mean((values[5:rows] - found[label][5:rows]) ** 2))) <= MAX_ERROR * size:
                wrong.add(f"{what} of {label}")
    return wrong


def _channels(episode: Episode, column: str) -> Mapping[str, Array]:
    labels = episode.spec.q.labels if column == "q" else episode.spec.action.labels
    return dict(zip(labels, np.asarray(episode[column], float).T, strict=True))


def write_rtde(scene: Scene, runs: Sequence[Episode], folder: Path, rng: np.random.Generator) -> Episode:
    """CSV files as a UR controller's recorder writes them; the first run as it is to be read."""
    for k, episode in enumerate(runs):
        speed = np.gradient(episode.q, episode.t, axis=0)
        columns = {"timestamp": 52_000 + episode.t}
        for stem, values in (("target_q", episode.action), ("actual_q", episode.q), ("actual_qd", speed)):
            columns |= {f"{stem}_{j}": values[:, j] for j in range(values.shape[1])}
        table = np.stack(list(columns.values()), axis=1)
        np.savetxt(folder / f"run_{k}.csv", table, delimiter=",", header=",".join(columns), comments="")
    return runs[0]


def write_bags(scene: Scene, runs: Sequence[Episode], folder: Path, rng: np.random.Generator) -> Episode:
    """ROS 2 bags of joint states by name and commands without names, sent just after each state."""
    from rosbags.rosbag2 import Writer
    from rosbags.typesys import Stores, get_typestore

    store = get_typestore(Stores.LATEST)
    types = store.types
    names = runs[0].spec.q.labels
    order = sorted(range(len(names)), key=lambda j: names[j])
    for k, episode in enumerate(runs):
        with Writer(folder / f"run_{k}", version=8) as writer:
            joints = writer.add_connection("/joint_states", "sensor_msgs/msg/JointState", typestore=store)
            command = writer.add_connection(
                "/position_controller/commands", "std_msgs/msg/Float64MultiArray", typestore=store
            )
            for t, q, u in zip(episode.t, episode.q, episode.action, strict=True):
                at = round((1_700_000_000 + float(t)) * 1e9)
                stamp = types["builtin_interfaces/msg/Time"](sec=at // 10**9, nanosec=at % 10**9)
                header = types["std_msgs/msg/Header"](stamp=stamp, frame_id="")
                state = types["sensor_msgs/msg/JointState"](
                    header=header, name=[names[j] for j in order], position=q[order], velocity=np.zeros(0),
                    effort=np.zeros(0),
                )  # fmt: skip
                writer.write(joints, at, store.serialize_cdr(state, "sensor_msgs/msg/JointState"))
                layout = types["std_msgs/msg/MultiArrayLayout"](dim=[], data_offset=0)
                sent = types["std_msgs/msg/Float64MultiArray"](layout=layout, data=np.asarray(u, float))
                writer.write(command, at + 200_000, store.serialize_cdr(sent, "std_msgs/msg/Float64MultiArray"))
    return runs[0]


def write_lerobot(scene: Scene, runs: Sequence[Episode], folder: Path, rng: np.random.Generator) -> Episode:
    """A LeRobot dataset as other software writes it: degrees, single precision, no metadata of ours."""
    even = [resampled(episode, LEROBOT_RATE) for episode in runs]
    spec, degrees = even[0].spec, _in_degrees(scene, even[0])
    named = bool(rng.integers(2))
    states = [f"{label}.pos" if named else f"motor_{k}" for k, label in enumerate(spec.q.labels)]
    actions = [f"{label}.pos" if named else f"motor_{k}" for k, label in enumerate(spec.action.labels)]
    theirs = replace(
        spec, q=vector([]), v=vector([]), action=vector(actions), observation={"observation.state": vector(states)}
    )
    episodes: list[Episode] = []
    for episode in even:
        columns: dict[str, Any] = {"timestamp": episode.t, "action": (episode.action * degrees[1]).astype(np.float32)}
        columns["observation.state"] = (episode.q * degrees[0]).astype(np.float32)
        episodes.append(Episode(theirs, columns, {"task": "move", "clock": "nominal"}))
    folder.rmdir()
    write_dataset(episodes, folder, version="v2.1" if named else "v3.0")
    (folder / "meta" / "instep.json").unlink(missing_ok=True)
    return even[0]


def write_npz(
    scene: Scene, runs: Sequence[Episode], folder: Path, rng: np.random.Generator, *, swapped: bool = False
) -> Episode:
    """NPZ files in degrees whose commands stand in another order than the states, two of which may be swapped."""
    order = list(range(runs[0].q.shape[1]))
    if swapped:
        one, other = (int(k) for k in rng.choice(len(order), 2, replace=False))
        order[one], order[other] = order[other], order[one]
    commanded = rng.permutation(runs[0].action.shape[1])
    for k, episode in enumerate(runs):
        states, commands = _in_degrees(scene, episode)
        q, u = (episode.q * states)[:, order], (episode.action * commands)[:, commanded]
        np.savez(folder / f"run_{k}.npz", t=episode.t, q=q, cmd=u)
    return runs[0]


def _in_degrees(scene: Scene, episode: Episode) -> tuple[Array, Array]:
    """Factors from radians to degrees of the positions and of the commands; 1 for slides and grippers."""
    model, turning = scene.model, dict(zip(episode.spec.q.labels, episode.spec.q.units, strict=True))
    commands: list[bool] = []
    for label in episode.spec.action.labels:
        actuator = model.actuator(label)
        on_joint = int(actuator.trntype[0]) == 0
        commands.append(on_joint and turning.get(model.joint(int(actuator.trnid[0])).name) == "rad")
    return tuple(np.where(mask, 180 / math.pi, 1.0) for mask in ([u == "rad" for u in turning.values()], commands))


STYLES: Mapping[str, Callable[[Scene, Sequence[Episode], Path, np.random.Generator], Episode]] = {
    "UR RTDE CSV": write_rtde, "ROS 2 bag": write_bags, "LeRobot of others": write_lerobot, "NPZ": write_npz,
    "NPZ, states swapped": partial(write_npz, swapped=True),
}  # fmt: skip


def summary(found: Sequence[dict[str, Any]]) -> list[Row]:
    """The rows of the table."""
    done = [case for case in found if "skipped" not in case]
    wrong = [case for case in done if not case["right"]]
    arms = {case["name"].removesuffix(f", {case['style']}") for case in done}

    def share(cases: Sequence[dict[str, Any]], key: str) -> Any:
        return percent(wilson(sum(bool(case.get(key)) for case in cases), len(cases)))

    flagged = 100.0 * sum(bool(case["flagged"]) for case in wrong) / len(wrong) if wrong else 100.0
    seconds = [case["seconds"] for case in done]
    rows = [
        row("robots", len(arms), "arms", at_least=8),
        row(f"ends with a page, of {len(done)}", share(done, "page"), at_least=100),
        row(f"mapping right, of {len(done)}", share(done, "right"), at_least=90),
        row("cases with a wrong guess that is not flagged", sum(not c["flagged"] for c in wrong), "cases", at_most=0),
        row(f"wrong guesses flagged, of {len(wrong)} cases", flagged, "%", at_least=100),
        row("cases in which a stage ended in an error", sum(bool(c.get("failures")) for c in done), "cases", at_most=0),
        row(f"new scene promoted, of {len(done)}", share(done, "passed")),
        row("time of a case on two cores, median", median(seconds, "s")),
        row("time of a case on two cores, longest", max(seconds), "s", at_most=LIMIT),
    ]
    by_style = {style: [case for case in done if case["style"] == style] for style in STYLES}
    rows += [row(f"mapping right: {style}", share(some, "right")) for style, some in by_style.items() if some]
    return [*rows, row("cases left out, with the reason in cases.json", len(found) - len(done), "cases")]


def _line(case: dict[str, Any]) -> str:
    if "skipped" in case:
        return f"{case['name']}: left out: {case['skipped']}"
    words = "right" if case["right"] else f"wrong: {', '.join(case.get('wrong', []))}"
    silent = f", not flagged: {', '.join(case['silent'])}" if case.get("silent") else ""
    page = "page" if case["page"] else f"no page ({case.get('message', '')[-200:]})"
    return f"{case['name']}: {page} in {case['seconds']:.0f} s, mapping {words}{silent}"
