"""Examples in the help of each verb; every one is a command of the docs, where a test runs it."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "demo": ("instep demo --out demo",),
    "start": ("instep start examples/own_arm/arm.urdf examples/own_arm --budget 60s --out start",),
    "scene new": ("instep scene new arm.urdf my_arm",),
    "scene list": ("instep scene list",),
    "scene params": ("instep scene params so101 'joint.*.damping'",),
    "scene set": ("instep scene set so101 tuned_so101 'joint.*.damping=0.4' action.delay=0.03",),
    "scene show": ("instep scene show pusht --out images",),
    "scene camera": (
        "instep scene camera so101",
        "instep scene camera examples/own_arm/arm.urdf arm --add overview --frame",
    ),
    "scene edit": ("instep scene edit built moved --move tee=0.05,0,0,30",),
    "scene export": ("instep scene export pusht pusht.glb",),
    "scene splat": ("instep scene splat recordings/pusht pusht",),
    "data import": ("instep data import as_mcap imported",),
    "data info": ("instep data info data", "instep data info log --map my_arm.toml"),
    "data export": (
        "instep data export data csv exported",
        "instep data export data lerobot-v3.0 for_training --columns observation.state,action "
        "--robot-type so101_follower",
    ),
    "build": (
        "instep build recordings/pusht built --prompt tee=click:220422302296:230,100 tee=click:234222302164:200,105 "
        "tee=click:234222303707:200,75",
    ),
    "build pose": (
        "instep build pose recordings/charuco_handeye/images posed --board 5x7 --square 0.036195 --marker 0.018256 "
        "--dictionary DICT_6X6_250",
    ),
    "build prompt": ("instep build prompt recordings/pusht prompts.json --no-browser --seconds 2",),
    "build weights": ("instep build weights sam2 --check",),
    "build check": ("instep build check pusht --out checked_pusht",),
    "robot": ("instep robot pusht --pace step --port 8765 --token token.txt",),
    "record": (
        "instep record sim:pusht data --policy random --episodes 2 --steps 120",
        "instep record robot:ws://127.0.0.1:8765 my_data --token token.txt --steps 60",
    ),
    "gap": ("instep gap data pusht --plain --out gap", "instep gap log my_arm --map my_arm.toml"),
    "tune": ("instep tune log my_arm --map my_arm.toml --budget 60s",),
    "reidentify": (
        "instep reidentify examples/own_arm tuned/scene --map examples/own_arm/log.toml "
        "--params 'joint.*.damping' --out drift",
    ),
    "excite": ("instep excite arm7 --params 'joint.*.damping' --seconds 3 --generations 3 --out motion",),
    "train": ("instep train shown/demonstrations policy --frame pusher_x pusher_y tee --steps 20",),
    "experiment closing": (
        "instep experiment closing so101 --task reach --robots 2 --techniques untouched posterior --starts 1 "
        "--seconds 1 --recordings 1 --generations 1 --population 4 --samples 1",
    ),
    "augment": ("instep augment expert pusht --demos 2 --out shown",),
    "check": ("instep check mine.py:cloned data --out checked",),
    "run": (
        "instep run expert sim:pusht --steps 240 --out simulated",
        "instep run expert robot:ws://127.0.0.1:8765 --scene pusht --token token.txt --steps 120",
        "instep run expert twin:pusht --real robot:ws://127.0.0.1:8765 --token token.txt --steps 600",
    ),
    "eval": (
        "instep eval expert pusht --seeds 8 --videos 0 --out evaluated",
        "instep eval expert hold pusht --seeds 100 --worlds mujoco rapier perturbed:1",
    ),
    "gate": ("instep gate expert examples/ci/rules.toml",),
    "experiment legs": ("instep experiment legs dog --trials 2 --seconds 4 --out walked",),
    "serve": ("instep serve expert pusht --port 8000 --token token.txt",),
    "runs": ("instep runs",),
    "open": ("instep open",),
    "view": ("instep view so101 --port 8000", "instep view data --port 5555"),
    "bench": ("instep bench --list", "instep bench recordings --quick --out measured"),
    "doctor": ("instep doctor",),
}
"""Verb -> commands as a user types them."""
