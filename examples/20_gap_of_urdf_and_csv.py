"""The gap between a URDF and the CSV logs of the arm it describes."""

from pathlib import Path

import instep

FOLDER = Path(__file__).parent / "own_arm"
scene = instep.load_scene(FOLDER / "arm.urdf", rate=100.0)
episodes = instep.load_episodes(FOLDER, mapping=FOLDER / "log.toml")
gap = instep.measure_gap(scene, episodes)
print(gap.curves["all rad"].at(1.0))  # joint error one second ahead, with its interval
gap.to_html("gap.html")
