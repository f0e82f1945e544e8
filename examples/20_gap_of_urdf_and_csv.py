"""The gap between a URDF and the CSV logs of the arm it describes."""

from pathlib import Path

import instep
from instep.report.gap_page import gap_page
from instep.report.page import write_html

FOLDER = Path(__file__).parent / "own_arm"
scene = instep.load_scene(FOLDER / "arm.urdf", rate=100.0)
episodes = instep.load_episodes(FOLDER, mapping=FOLDER / "log.toml")
gap = instep.measure_gap(scene, episodes)
print(gap.curves["all rad"].at(1.0))  # joint error one second ahead, with its interval
write_html("gap.html", gap_page(gap))
