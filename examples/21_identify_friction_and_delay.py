"""Identify the friction and the delay of an arm from its logs, and save the tuned scene."""

from pathlib import Path

import instep
from instep.tune import TuneOptions

FOLDER = Path(__file__).parent / "own_arm"
scene = instep.load_scene(FOLDER / "arm.urdf", rate=100.0)
episodes = instep.load_episodes(FOLDER, mapping=FOLDER / "log.toml")
options = TuneOptions(window=0.5, windows=16, draws=5)  # few windows and planted sets, to be quick
result = instep.identify(scene, episodes, ["joint.*.frictionloss", "action.delay"], options)
for address, estimate in result.intervals.items():
    print(address, estimate)
result.save("tuned_arm")
