"""The verbs about data: other formats in and out, a summary; and how every verb reads recordings."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import mujoco
import tyro

from instep.app.arguments import DataArg, Expert, Options, Positional
from instep.app.output import new_output, say, show_table
from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.world import options_dataclass
from instep.data import (
    Selection,
    WriteOptions,
    dataset_page,
    describe_dataset,
    export_episodes,
    guess_mapping,
    import_recordings,
    load_episodes,
    write_draft,
)
from instep.data.datasets import DatasetInfo
from instep.data.guess import MappingGuess
from instep.data.guess.joint_columns import CommandKind, RobotActuator, RobotJoint, RobotLayout
from instep.data.loading import is_foreign_dataset, is_readable
from instep.data.resample import resampled
from instep.gap.preparation import recorded_at_rate
from instep.physics.engines import open_world, scene_and_engine
from instep.scene.folder import Scene, SceneSimulator, scene_for, shipped
from instep.scene.robot_structure import driven_joints

MOST_DOUBTS = 4
"""Doubts of a draft that are printed; the draft has them all."""
MOST_ROWS = 30
"""Episodes shown in the table; result.json has them all."""


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


def import_data(
    source: Positional[Annotated[Path, tyro.conf.arg(metavar="SOURCE")]],
    folder: DataArg,
    /,
    *,
    args: Options[DataArgs] = DataArgs(),
    robot_type: Expert[str] = "",
) -> int:
    """Read recordings of another format and write them as a new LeRobot dataset, whole or not at all.

    Args:
        source: CSV, NPZ, HDF5 (ALOHA), zarr (diffusion policy), MCAP, ROS bags, LeRobot v2.1: a file or a folder.
        folder: dataset to make.
        robot_type: what LeRobot metadata call the robot (so101_follower); the scene of the mapping where not given.

    """
    options = WriteOptions(robot_type=robot_type or None)
    source, mapping = mapping_of(source, args)
    done = import_recordings(source, folder, mapping=mapping, rate=args.rate, options=options)
    say(f"{done.episodes} episodes, {done.rows} rows.")
    print(done.folder)
    return 0


def export(
    source: DataArg,
    form: Positional[Annotated[str, tyro.conf.arg(metavar="FORMAT")]],
    folder: Positional[Annotated[Path, tyro.conf.arg(metavar="OUT")]],
    /,
    *,
    args: Options[DataArgs] = DataArgs(),
    episodes: str = "",
    cameras: Expert[str] = "",
    columns: str = "",
    robot_type: str = "",
) -> int:
    """Write the episodes of a dataset in another format.

    Args:
        source: dataset, or recordings that a mapping reads.
        form: lerobot-v3.0, lerobot-v2.1, mcap, csv, npz, hdf5 (ALOHA's layout), rosbag (ROS 2) or rerun (.rrd).
        episodes: numbers and ranges, 0,3,5:8; all where not given.
        cameras: names of cameras, separated by commas; none for no images; all where not given.
        columns: names of columns that are not images, separated by commas; all where not given.
        robot_type: what LeRobot metadata call the robot (so101_follower); as in DATA, or its scene, where not given.

    """
    source, mapping = mapping_of(source, args)
    chosen = Selection(episodes, _names(cameras), _names(columns), args.rate)
    done = export_episodes(source, form, folder, mapping=mapping, selection=chosen, robot_type=robot_type)
    say(f"{done.episodes} episodes, {done.rows} rows.")
    if done.left_out:
        say(f"{form} cannot hold {', '.join(done.left_out)}; left out.")
    print(done.folder)
    return 0


def info(source: DataArg, /, *, args: Options[DataArgs] = DataArgs(), out: Path | None = None) -> int:
    """Describe a dataset: episodes, rates, jitter, gaps, channels with units and ranges; and a page.

    Args:
        source: dataset, or recordings that a mapping reads.
        out: folder to write; a new one under runs/ where not given.

    """
    source, mapping = mapping_of(source, args)
    episodes = Selection(rate=args.rate).of(load_episodes(source, mapping))
    found = describe_dataset(episodes, source)
    output = new_output("data-info", out)
    _show_info(found)
    output.write({}, **found.as_dict())
    print(output.page(dataset_page(found, episodes)))
    return 0


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _show_info(found: DatasetInfo) -> None:
    """Print the episodes and the channels of a dataset."""
    title = f"{found.source}: {len(found.episodes)} episodes, {found.rows} rows, {found.seconds:.1f} s"
    title += f", scene {found.scene}" if found.scene else ""
    rows: list[tuple[str, ...]] = []
    for e in found.episodes[:MOST_ROWS]:
        jitter = "nominal" if math.isnan(e.jitter_ms) else f"{e.jitter_ms:.2f}"
        note = e.note or (e.task if e.complete else "not complete")
        times = (f"{e.seconds:.2f}", f"{e.rate:.4g}", jitter, f"{e.longest_ms:.1f}")
        rows.append((str(e.index), str(e.rows), *times, str(e.gaps), note))
    if len(found.episodes) > MOST_ROWS:
        rows.append(("", *[""] * 6, f"and {len(found.episodes) - MOST_ROWS} more, in result.json"))
    show_table(("#", "rows", "s", "Hz", "jitter ms", "longest ms", "gaps", ""), rows, right=range(7), title=title)
    rows = []
    for i, c in enumerate(found.channels):
        first = c.name if i == 0 or c.name != found.channels[i - 1].name else ""
        ends = ("", "") if math.isnan(c.low) else (f"{c.low:.4g}", f"{c.high:.4g}")
        share = "" if math.isnan(c.finite) else f"{100 * c.finite:.0f} %"
        rows.append((first, c.label, c.unit, c.kind, *ends, share))
    show_table(("channel", "label", "unit", "kind", "low", "high", "finite"), rows, right=(4, 5, 6))


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
        raise BadInput(f"--runs of instep gap and instep check takes a number of runs, not {runs}.")
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


def read_at_scene(runs: Sequence[Episode], scene: str, rate: float | None) -> tuple[Scene, list[Episode]]:
    """The scene of recordings, and the recordings at its rate; what was resampled is said."""
    loaded = scene_for(scene, runs, rate=rate)
    episodes, notes = recorded_at_rate(runs, loaded.dt)
    say(*notes)
    return loaded, list(episodes)


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
    # A corrected draft is never overwritten.
    names = (Path(f"{path.resolve().stem}_map{'' if n == 1 else f'_{n}'}.toml") for n in itertools.count(1))
    draft = write_draft(guess, next(name for name in names if not name.exists()), Path(scene).stem)
    _say_draft(guess, draft, path)
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


def _say_draft(guess: MappingGuess, draft: Path, path: Path) -> None:
    count = len(guess.doubts)
    state = f"{count} of its {len(guess.rows)} parts are guesses" if count else "all of its parts are sure"
    say(
        f"No mapping of {str(path)!r} is known, so it is read by a draft, {draft}; {state}. Correct it and give "
        f"it with --map {draft}.",
        style="yellow" if count else "",
    )
    say(*(f"  {row.what} from {row.source}: {row.doubt}" for row in guess.doubts[:MOST_DOUBTS]))


def robot_layout(scene: Scene) -> RobotLayout:
    """The robot's joints with their ranges, and its actuators with what they move and take."""
    model, joints, actuators = scene.model, list[RobotJoint](), list[RobotActuator]()
    for name in scene.robot:
        joint = model.joint(name)
        low, high = joint.range if model.jnt_limited[joint.id] else (-math.inf, math.inf)
        slides = model.jnt_type[joint.id] == int(mujoco.mjtJoint.mjJNT_SLIDE)
        joints.append(RobotJoint(name, float(low), float(high), "m" if slides else "rad"))
    for a in range(model.nu):
        low, high = model.actuator_ctrlrange[a] if model.actuator_ctrllimited[a] else (-math.inf, math.inf)
        servo, damped = model.actuator_biasprm[a, 1] != 0, model.actuator_biasprm[a, 2] != 0
        takes: CommandKind = "position" if servo else "velocity" if damped else "effort"
        moved = driven_joints(model, a)
        if set(moved) & set(scene.robot):
            actuators.append(RobotActuator(model.actuator(a).name, moved, float(low), float(high), takes))
    return RobotLayout(tuple(joints), tuple(actuators))
