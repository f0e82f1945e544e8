"""Readers of recordings, with a sound sample for each."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from hostile_scenes import CAMERA, JOINTS, ROWS, Target, episode, png
from instep.core.episode import Episode

DATA_MAP = """format = "{form}"
files = ["run.*"]
rate = 50.0
[q]
from = ["a", "b"]
labels = ["shoulder", "elbow"]
unit = "rad"
[action]
from = ["u"]
"""


def numbers() -> dict[str, np.ndarray]:
    run = episode(cameras=False)
    return {"a": run.q[:, 0], "b": run.q[:, 1], "u": run.action[:, 0]}


def csv_text() -> str:
    columns = numbers()
    rows = zip(*columns.values(), strict=True)
    return "\n".join([",".join(columns), *(",".join(f"{x:.6f}" for x in row) for row in rows)]) + "\n"


def write_table(form: str) -> Callable[[Path], None]:
    """A recording and its mapping."""

    def write(folder: Path) -> None:
        (folder / "map.toml").write_text(DATA_MAP.format(form={"csv.gz": "csv"}.get(form, form)))
        if form == "npz":
            np.savez(folder / "run.npz", **numbers())
        elif form == "csv":
            (folder / "run.csv").write_text(csv_text())
        elif form == "csv.gz":
            (folder / "run.csv.gz").write_bytes(gzip.compress(csv_text().encode(), mtime=0))
        elif form == "json":
            rows = [dict(zip(numbers(), map(float, row), strict=True)) for row in zip(*numbers().values(), strict=True)]
            (folder / "run.json").write_text(json.dumps({"robot": "arm", "entries": rows}))
        else:
            lines = [f"{name} {value:.6f}" for name, column in numbers().items() for value in column]
            (folder / "run.txt").write_text("\n".join(lines) + "\n")

    return write


def read_mapped(folder: Path) -> None:
    load(folder, folder / "map.toml")


def load(source: Path, mapping: Path | str | None = None) -> None:
    """All of all episodes."""
    from instep.data.loading import load_episodes

    touch(load_episodes(source, mapping))


def touch(episodes: Iterable[Episode]) -> None:
    for one in episodes:
        for column in one.columns.values():
            np.asarray(column)


def write_hdf5_run(folder: Path) -> None:
    from instep.data.formats.array_stores import write_hdf5

    write_hdf5(folder / "run.hdf5", episode())


def write_zarr(folder: Path) -> None:
    import zarr

    group: Any = zarr.open_group(str(folder / "run.zarr"), mode="w", zarr_format=2)
    run = episode(cameras=False)
    group.create_array("data/state", data=run.q)
    group.create_array("data/action", data=run.action)
    group.create_array("data/img", data=np.full((ROWS, 8, 8, 3), 7.0, np.float32), chunks=(4, 8, 8, 3))
    group.create_array("meta/episode_ends", data=np.array([5, ROWS]))


def write_mcap_run(folder: Path) -> None:
    from instep.data.formats.ros_logs import write_mcap

    write_mcap(folder / "run.mcap", episode())


def write_foreign_mcap(folder: Path) -> None:
    """A log that other software wrote, with JSON messages."""
    import mcap.writer as writing

    with (folder / "run.mcap").open("wb") as file:
        log = writing.Writer(file)
        log.start()
        schema = log.register_schema("sensor_msgs/msg/JointState", "jsonschema", b'{"type": "object"}')
        channel = log.register_channel("/joint_states", "json", schema)
        for row, q in enumerate(episode(cameras=False).q):
            stamp = {"sec": 0, "nanosec": row * 20_000_000}
            message = {"header": {"stamp": stamp}, "name": JOINTS, "position": list(q), "velocity": [], "effort": []}
            log.add_message(channel, row * 20_000_000, json.dumps(message).encode(), row * 20_000_000)
        log.finish()


def write_bag(folder: Path) -> None:
    from instep.data.formats.ros_logs import write_rosbag

    write_rosbag(folder / "bag", episode())
    database = next((folder / "bag").glob("*.db3"))
    text = (folder / "bag/metadata.yaml").read_text().replace(database.name, "run.db3")
    database.rename(folder / "bag/run.db3")
    (folder / "bag/metadata.yaml").write_text(text)


def write_lerobot(version: str, own: bool) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        from instep.data import write_dataset
        from instep.data.lerobot.writer import write_dataset_v21

        make = write_dataset if version == "3" else write_dataset_v21
        make([episode(), episode(seed=1)], folder / "set")
        if not own:
            (folder / "set/meta/instep.json").unlink()

    return write


def write_journal(folder: Path) -> None:
    from instep.core.world import State
    from instep.data.recorder import Recorder

    run = episode()
    with Recorder(folder / "set", run.spec) as recorder:
        for k in range(ROWS):
            state = State(float(run.t[k]), run.q[k], run.v[k], {})
            recorder(state, {"observation.state": run["observation.state"][k], CAMERA: run[CAMERA][k]}, run.action[k])


def write_mapping(folder: Path) -> None:
    write_table("csv")(folder)


def write_pose_images(folder: Path) -> None:
    (folder / "charuco_handeye/images").mkdir(parents=True)
    (folder / "charuco_handeye/poses").mkdir()
    pose = {"x": 0.1, "y": 0.2, "z": 0.3, "qw": 1.0, "qx": 0.0, "qy": 0.0, "qz": 0.0}
    for k in range(2):
        (folder / f"charuco_handeye/images/{k}.jpg").write_bytes(png(8, 8))
        (folder / f"charuco_handeye/poses/{k}.yaml").write_text("".join(f"{n}: {v}\n" for n, v in pose.items()))


def guess_log(folder: Path) -> None:
    """What `instep start` does with a log of which it knows nothing."""
    from instep.data.guess.log_columns import column_groups
    from instep.data.loading import find_logs

    column_groups(find_logs([folder / "run.csv"]).first_runs(), JOINTS)


def data_targets() -> list[Target]:
    info, rows, table = (
        "set/meta/info.json",
        "set/data/chunk-000/file-000.parquet",
        "set/meta/episodes/chunk-000/file-000.parquet",
    )
    video = f"set/videos/{CAMERA}/chunk-000/file-000.mp4"
    shards = (
        "set/meta/info.json",
        "set/data/chunk-000/episode_000000.parquet",
        "set/meta/episodes.jsonl",
        "set/meta/tasks.jsonl",
    )
    described = ("data", "info", "{folder}/set")
    journal = "set/journal/000000.rows"
    tables = {
        "CSV": ("csv", "run.csv"), "gzipped CSV": ("csv.gz", "run.csv.gz"), "NPZ": ("npz", "run.npz"),
        "JSON log": ("json", "run.json"), "text log": ("lines", "run.txt"),
    }  # fmt: skip
    made = [
        Target(
            name, write_table(form), read_mapped, (file,), ("data", "info", "{folder}", "--map", "{folder}/map.toml")
        )
        for name, (form, file) in tables.items()
    ]
    return [
        *made,
        Target(
            "mapping",
            write_mapping,
            read_mapped,
            ("map.toml",),
            ("data", "info", "{folder}", "--map", "{folder}/map.toml"),
        ),
        Target("unknown log", write_mapping, guess_log, ("run.csv",)),
        Target(
            "LeRobot v3.0",
            write_lerobot("3", own=False),
            lambda f: load(f / "set"),
            (info, rows, table, "set/meta/tasks.parquet", video),
            described,
        ),
        Target("LeRobot v2.1", write_lerobot("2.1", own=False), lambda f: load(f / "set"), shards, described),
        Target(
            "own dataset",
            write_lerobot("3", own=True),
            lambda f: load(f / "set"),
            ("set/meta/instep.json", info, rows),
            described,
        ),
        Target(
            "journal", write_journal, lambda f: load(f / "set"), (journal, journal.replace("rows", "images")), described
        ),
        Target(
            "HDF5",
            write_hdf5_run,
            lambda f: load(f / "run.hdf5"),
            ("run.hdf5",),
            ("data", "info", "{folder}/run.hdf5"),
            "h5py",
        ),
        Target(
            "zarr",
            write_zarr,
            lambda f: load(f / "run.zarr"),
            (
                "run.zarr/data/state/.zarray",
                "run.zarr/data/state/0.0",
                "run.zarr/meta/episode_ends/.zarray",
                "run.zarr/.zgroup",
            ),
            ("data", "info", "{folder}/run.zarr"),
            "zarr",
        ),
        Target(
            "MCAP",
            write_mcap_run,
            lambda f: load(f / "run.mcap"),
            ("run.mcap",),
            ("data", "info", "{folder}/run.mcap"),
            "mcap",
        ),
        Target(
            "foreign MCAP",
            write_foreign_mcap,
            lambda f: load(f / "run.mcap"),
            ("run.mcap",),
            ("data", "info", "{folder}/run.mcap"),
            "mcap",
        ),
        Target(
            "ROS bag",
            write_bag,
            lambda f: load(f / "bag"),
            ("bag/run.db3", "bag/metadata.yaml"),
            ("data", "info", "{folder}/bag"),
            "rosbags",
        ),
        Target(
            "stills",
            write_pose_images,
            lambda f: load(f / "charuco_handeye"),
            ("charuco_handeye/poses/0.yaml", "charuco_handeye/images/0.jpg"),
        ),
    ]
