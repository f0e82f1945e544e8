"""Examples in the help of each verb; every one is a command of the docs, where a test runs it.

The command line: `instep VERB`, each verb a typed function in its own file, loaded when it is asked for.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from instep import __version__
from instep.core.errors import InstepError

from .output import noted_outputs, remove_unfinished

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


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a disk that takes no more."""
VERBS: dict[str, tuple[str, str]] = {
    "demo": ("demo:demo", "the whole loop against a simulated robot, on this machine"),
    "start": ("start:start", "from a robot file and logs to a report: scene, mapping, gap, identification"),
    "scene new": ("scene:new", "make a scene folder from an MJCF or URDF robot"),
    "scene list": ("scene:list_scenes", "the scenes that come with instep"),
    "scene params": ("scene:params", "list the parameters of a scene, with units and ranges"),
    "scene set": ("scene:set_params", "save a scene with other parameter values"),
    "scene show": ("scene:show", "render a scene through its cameras"),
    "scene camera": ("scene_camera:camera", "list, add, move or remove cameras of a scene, with a preview"),
    "scene edit": ("scene_edit:edit", "replace, simplify, merge and move objects of a scene"),
    "scene splat": ("splat:splat", "fit 3D Gaussians to posed images of a scene"),
    "scene export": ("scene_edit:export", "write a scene for other programs: MJCF, URDF, glTF, USD, Gaussians"),
    "data import": ("data:import_data", "other formats in"),
    "data info": ("data:info", "describe a dataset"),
    "data export": ("data:export", "other formats out"),
    "build": ("reconstruct:build", "images to a scene"),
    "build pose": ("reconstruct_pose:pose", "pose images by a board, AprilTags, or what they share"),
    "build prompt": ("reconstruct:prompt", "mark objects in images on a page, and see their masks"),
    "build weights": ("reconstruct:weights", "fetch and check the weights of SAM 2 for clicks and boxes"),
    "build check": ("scene_edit:check", "check a scene before it is simulated in earnest"),
    "robot": ("robot:robot", "run a simulated robot: another process, engine, clock, and hidden parameters"),
    "record": ("record:record", "record a run, safe against crashes"),
    "gap": ("gap:gap", "measure how far a simulator is from recordings, or two sets of recordings from each other"),
    "tune": ("tune:tune", "identify parameters from recordings, with gates and posteriors"),
    "reidentify": ("reidentify:reidentify", "replay recordings through the on-line filter of parameters"),
    "excite": ("excite:excite", "design motions that reveal parameters"),
    "train": ("train:train", "clone behaviour from a dataset, or train in simulation over randomized worlds"),
    "augment": ("augment:augment", "collect demonstrations where a policy fails"),
    "check": ("check:check", "compare a policy's actions on recorded observations with the recorded ones"),
    "run": ("run:run", "run a policy in a world: sim:SCENE, recording:DATA, twin:SCENE, robot:ADDRESS"),
    "eval": ("evaluate:evaluate", "evaluate policies in parallel virtual worlds"),
    "gate": ("gate:gate", "judge a policy by rules, for CI"),
    "experiment legs": (
        "experiment:legs",
        "walk a robot with feedback, with its own actions replayed, and with simulated ones",
    ),
    "experiment closing": ("experiment_closing:closing", "compare the ways to close the gap on perturbed robots"),
    "serve": ("serve:serve", "serve a policy"),
    "runs": ("runs:runs", "list past runs: what they found, when, and where their pages are"),
    "open": ("runs:open_page", "open the page of a past run in the browser"),
    "view": ("view:view", "show a scene, a dataset or a run in the browser"),
    "bench": ("bench:bench", "measure against goals and peers"),
    "doctor": ("doctor:doctor", "what works on this machine"),
}
"""Verb -> (file:function under verbs/, one line of help)."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; the exit code is 0 (fine), 1 (judged bad), 2 (could not run) or 130 (stopped by Ctrl-C)."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with noted_outputs(words) as outputs:
        try:
            return _stoppable(words)
        except InstepError as error:
            kept = remove_unfinished(outputs)
            _complain(f"{error}{f' But {kept}.' if kept else ''}")
            return 2
        except BrokenPipeError:
            # The reader of our output went away (`instep ... | head`): not a fault of ours.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except OSError as error:
            # A full disk, a folder that may not be written: for the user to mend, not a fault of ours.
            kept = remove_unfinished(outputs)
            where = f" at {str(error.filename)!r}" if error.filename else ""
            hint = "free some space or choose another folder" if error.errno in FULL else "check that path"
            _complain(f"{error.strerror or error}{where}: {hint}.{f' But {kept}.' if kept else ''}")
            return 2
        except KeyboardInterrupt:
            kept = remove_unfinished(outputs)
            _complain(f"Stopped; {kept}." if kept else "Stopped; nothing was kept.")
            return 130
        except BaseException:
            remove_unfinished(outputs)
            raise


def _stoppable(words: list[str]) -> int:
    try:
        return _dispatch(words)
    except RuntimeError as error:
        # A Ctrl-C while numba compiles is lost in a callback of LLVM, and numba then misses what was compiled.
        if str(error).startswith("no compiled object yet"):
            raise KeyboardInterrupt from None
        raise


def available() -> dict[str, tuple[str, str]]:
    """The verbs of this release."""
    return {verb: entry for verb, entry in VERBS.items() if find_spec(f"instep.app.verbs.{entry[0].split(':')[0]}")}


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        _overview()
        return 0
    if words[0] in ("-V", "--version"):
        print(f"instep {__version__}")
        return 0
    verbs = available()
    for length in (2, 1):
        verb = " ".join(words[:length])
        if verb in verbs:
            return _run(verb, verb_function(verbs[verb][0]), words[length:])
    group = {v: e for v, e in verbs.items() if v.startswith(words[0] + " ")}
    if group:
        asked_help = len(words) == 1 or words[1] in ("-h", "--help")
        _overview(group, f"instep {words[0]}")
        return 0 if asked_help else 2
    near = get_close_matches(words[0], [*verbs, *(v.split()[0] for v in verbs)], n=1)
    hint = f" Did you mean 'instep {near[0]}'?" if near else ""
    _complain(f"There is no verb {words[0]!r}.{hint} 'instep --help' lists them.")
    return 2


def _run(verb: str, function: Callable[..., Any], words: list[str]) -> int:
    import tyro

    try:
        result = tyro.cli(
            function,
            prog=f"instep {verb}",
            args=words,
            config=(tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff, tyro.conf.HelptextFromCommentsOff),
        )
    except SystemExit as stop:  # tyro has shown the help, or said what is wrong with the words
        if not stop.code:
            # The examples below the help of a verb.
            from rich.console import Console

            console = Console(highlight=False, markup=False)
            console.print("examples:")
            for command in EXAMPLES[verb]:
                console.print(f"  {command}", soft_wrap=True)
        return int(stop.code or 0) if isinstance(stop.code, int) else 2
    return int(result or 0)


def verb_function(place: str) -> Callable[..., Any]:
    """The function of a verb, by `file:function` under verbs/."""
    module, name = place.split(":")
    return getattr(import_module(f"instep.app.verbs.{module}"), name)


def _overview(verbs: dict[str, tuple[str, str]] | None = None, title: str = "instep") -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if verbs is None:
        console.print(
            f"[bold]instep {__version__}[/]: keep a robot and its simulated twin in step, "
            "measure the gap between them, and close it.\n"
        )
    table = Table(box=None, show_header=False, padding=(0, 2))
    for verb, (_, line) in (verbs or available()).items():
        table.add_row(f"[bold]instep {verb}[/]", line)
    console.print(table)
    console.print("\n[dim]instep VERB --help explains a verb. Start with: instep demo[/]")


def _complain(sentence: str) -> None:
    from rich.console import Console
    from rich.text import Text

    # Names come from files of strangers: no markup, no terminal escapes.
    plain = "".join(c if c.isprintable() or c == "\n" else "?" for c in sentence)
    Console(stderr=True, highlight=False).print(Text("instep: ", style="bold red"), Text(plain), sep="", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
