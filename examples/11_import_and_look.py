"""Import a robot's CSV log by a mapping of a few lines, describe it, and hand it on as a LeRobot v2.1 dataset."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from instep.data import dataset_page, describe_dataset, export_episodes, import_recordings, load_episodes
from instep.report.page import write_html

MAP = """
scene = "servo_pendulum"
format = "csv"
files = ["*.csv"]
time = "time"

[q]
from = "angle"
labels = ["servo"]
from_unit = "deg"
unit = "rad"

[v]
derive = "q"
unit = "rad/s"

[action]
from = "goal"
labels = ["servo"]
from_unit = "deg"
unit = "rad"
"""

with TemporaryDirectory() as folder:
    logs = Path(folder) / "logs"
    logs.mkdir()
    for run in range(3):
        t = np.arange(400) / 200
        goal = 30 * np.sin(2 * np.pi * (0.5 + 0.2 * run) * t)
        angle = np.interp(t - 0.03, t, goal)  # the servo is 30 ms late
        table = np.stack([t, goal, angle], axis=1)
        np.savetxt(logs / f"run_{run}.csv", table, delimiter=",", header="time,goal,angle", comments="")
    (logs / "map.toml").write_text(MAP)

    data = import_recordings(logs, Path(folder) / "data", mapping=logs / "map.toml").folder
    info = describe_dataset(load_episodes(data), data)
    for episode in info.episodes:
        print(f"episode {episode.index}: {episode.rows} rows at {episode.rate:.0f} Hz, {episode.gaps} gaps")
    for channel in info.channels:
        print(f"{channel.name:20s} {channel.label:6s} {channel.low:8.3f} to {channel.high:7.3f} {channel.unit}")
    write_html(Path(folder) / "data.html", dataset_page(info, load_episodes(data)))
    print(export_episodes(data, "lerobot-v2.1", Path(folder) / "v21").folder.name, "written")
