"""Options of every command that reads recordings, and how they are read: by a mapping, or by a draft of one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import mujoco
import tyro
from rich.console import Console

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.world import options_dataclass
from instep.data import guess_mapping, load_episodes, write_draft
from instep.data.guess import MappingGuess
from instep.data.guess.joint_columns import CommandKind, RobotActuator, RobotJoint, RobotLayout
from instep.data.loading import is_foreign_dataset, is_readable
from instep.data.resample import resampled
from instep.physics.engines import open_world, scene_and_engine
from instep.physics.inverse_dynamics import DynamicsOrder
from instep.scene.folder import Scene, SceneSimulator, scene_for, shipped
from instep.scene.robot_structure import driven_joints

MOST_DOUBTS = 4
"""Doubts of a draft that are printed; the draft has them all."""


@options_dataclass
class DataArgs:
    """How recordings are read."""

    map: Path | None = None
    """mapping file of the recordings (.toml): how their columns become joints and commands."""
    as_name: Annotated[str, tyro.conf.arg(name="as")] = ""
    """name of a shipped mapping to read the recordings as, where the folder's name does not say it."""
    rate: float | None = None
    """rows per second [Hz]: that of logs without times, and of what recordings are resampled to; with a robot file
    (.xml, .urdf) its control rate. That of the recordings where not given."""

    @property
    def mapping(self) -> str | Path | None:
        """The mapping that was named; None where none was."""
        if self.map is not None and self.as_name:
            raise BadInput("--map and --as both name a mapping; give one of them.")
        if self.map is not None and not self.map.is_file():
            raise BadInput(f"There is no mapping file {str(self.map)!r}; --map takes a file, --as a shipped name.")
        return self.map or self.as_name or None


def read_data(path: str | Path, args: DataArgs, scene: str = "") -> Sequence[Episode]:
    """The episodes of recordings as they are stored; where no mapping is known, by a draft that is written and named.

    With a scene, a dataset of others whose labels are not those of the scene, or whose angles are degrees, is read by
    a draft too.
    """
    mapping = args.mapping
    if mapping is None and (drafted := _draft(Path(path), args, scene)) is not None:
        return load_episodes(*drafted)
    return load_episodes(path, mapping, scene=scene)


def read_at_rate(path: str | Path, args: DataArgs) -> Sequence[Episode]:
    """The same, resampled where a rate is given."""
    episodes = read_data(path, args)
    return episodes if args.rate is None else [resampled(episode, args.rate) for episode in episodes]


def read_runs(path: str, source: DataArgs | None = None, scene: str = "") -> list[Episode]:
    """The episodes of a dataset or of recordings, each with a name."""
    return [named_run(e, i) for i, e in enumerate(read_data(path, source or DataArgs(), scene))]


def named_run(episode: Episode, place: int) -> Episode:
    """The episode with a name: its own, that of its group and repeat, or its place."""
    if "name" in episode.meta:
        return episode
    group, count = episode.meta.get("group", ""), episode.meta.get("repeat", "")
    name = f"{group} {count}".strip() if group and (count or group != episode.meta.get("task")) else f"episode {place}"
    return episode.with_columns({}, name=name)


def spread_runs(episodes: Sequence[Episode], runs: int) -> list[Episode]:
    """A number of runs, spread over all of them; all if `runs` is 0."""
    if runs < 0:
        raise BadInput(f"--runs takes a number of runs, not {runs}.")
    if runs == 0 or runs >= len(episodes):
        return list(episodes)
    return [episodes[i * len(episodes) // runs] for i in range(runs)]


def located(words: str) -> Path:
    """The folder of a dataset whose last word may name a part of it."""
    path = Path(words)
    return path if path.exists() else path.parent


def is_scene(words: str) -> bool:
    """Whether an argument names a scene rather than a dataset."""
    name = words.partition("@")[0]
    path = Path(name)
    return name in shipped() or path.suffix in (".xml", ".urdf", ".mjcf") or (path / "scene.toml").is_file()


def open_scene(words: str, episodes: Sequence[Episode] = (), rate: float | None = None) -> SceneSimulator:
    """The simulator of a scene to replay recordings in; SCENE@rapier runs it in another engine."""
    scene, engine = scene_and_engine(words)
    return open_world(scene_for(scene, episodes, rate=rate), engine)


def mapping_of(path: Path, args: DataArgs) -> tuple[Path, str | Path | None]:
    """The folder of recordings and the mapping to read them by: the one named, or a draft that is written and named."""
    mapping = args.mapping
    drafted = _draft(path, args, "") if mapping is None else None
    return drafted or (path, mapping)


def _draft(path: Path, args: DataArgs, scene: str) -> tuple[Path, Path] | None:
    """The folder and the draft of recordings that nothing else describes; None where something does."""
    layout = robot_layout(Scene.load(scene)) if scene else RobotLayout()
    if is_readable(path):
        if not layout.joints or not is_foreign_dataset(path) or _fits(path, layout):
            return None
    elif not path.exists():
        return None
    guess = guess_mapping([path], layout, rate=args.rate)
    draft = write_draft(guess, _free(Path(f"{path.resolve().stem}_map.toml")), Path(scene).stem)
    _say(guess, draft, path)
    return guess.folder, draft


def _fits(path: Path, layout: RobotLayout) -> bool:
    """Whether a dataset of others has the labels of the robot and lies within its ranges as it is."""
    joints = {joint.name: joint for joint in layout.joints}
    episode = load_episodes(path)[0]
    if not set(episode.spec.q.labels) & set(joints):
        return False
    for k, label in enumerate(episode.spec.q.labels):
        if label in joints:
            low, high, values = joints[label].low, joints[label].high, episode.q[:, k]
            margin = 0.1 * (high - low)
            if ((values < low - margin) | (values > high + margin)).mean() > 0.02:
                return False
    return True


def _free(path: Path) -> Path:
    """A path that is not taken, so that a corrected draft is never overwritten."""
    found, number = path, 1
    while found.exists():
        number += 1
        found = path.with_name(f"{path.stem}_{number}{path.suffix}")
    return found


def _say(guess: MappingGuess, draft: Path, path: Path) -> None:
    console = Console(stderr=True)
    count = len(guess.doubts)
    state = f"{count} of its {len(guess.rows)} parts are guesses" if count else "all of its parts are sure"
    console.print(
        f"No mapping of {str(path)!r} is known, so it is read by a draft, {draft}; {state}. Correct it and give "
        f"it with --map {draft}.",
        highlight=False,
        markup=False,
        style="yellow" if count else "",
    )
    for row in guess.doubts[:MOST_DOUBTS]:
        console.print(f"  {row.what} from {row.source}: {row.doubt}", highlight=False, markup=False)


def robot_layout(scene: Scene) -> RobotLayout:
    """The robot's joints with their ranges, and its actuators with what they move and take."""
    model = scene.model
    joints = tuple(_joint(model, name) for name in scene.robot)
    known = {joint.name for joint in joints}
    actuators = tuple(_actuator(model, a) for a in range(model.nu))
    return RobotLayout(joints, tuple(a for a in actuators if set(a.joints) & known), DynamicsOrder(scene))


def _joint(model: mujoco.MjModel, name: str) -> RobotJoint:
    joint = model.joint(name)
    low, high = joint.range if model.jnt_limited[joint.id] else (-math.inf, math.inf)
    slides = model.jnt_type[joint.id] == int(mujoco.mjtJoint.mjJNT_SLIDE)
    return RobotJoint(name, float(low), float(high), "m" if slides else "rad")


def _actuator(model: mujoco.MjModel, a: int) -> RobotActuator:
    low, high = model.actuator_ctrlrange[a] if model.actuator_ctrllimited[a] else (-math.inf, math.inf)
    takes: CommandKind = "position" if model.actuator_biasprm[a, 1] != 0 else "effort"
    if takes == "effort" and model.actuator_biasprm[a, 2] != 0:
        takes = "velocity"
    return RobotActuator(model.actuator(a).name, driven_joints(model, a), float(low), float(high), takes)
