"""The command line `instep VERB`: each verb is a typed function in its own file, imported when it is called."""

from __future__ import annotations

import errno
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

from instep import __version__
from instep.core.errors import BadInput, InstepError

from .output import Output, noted_outputs, remove_unfinished, show_table

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a full disk."""
OPTIONS = "--options"
"""Flag of a file with expert options."""
COMPLETION = "--print-completion"
SHELLS = ("bash", "zsh", "tcsh")


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb of the command line."""

    place: str
    """`file:function` below verbs/."""
    line: str
    """One line of help."""
    examples: tuple[str, ...] = ()
    """Commands that its help shows; tests run each of them as part of the docs."""

    def function(self) -> Callable[..., Any]:
        """The function of the verb, imported."""
        module, name = self.place.split(":")
        return getattr(import_module(f"instep.app.verbs.{module}"), name)


VERBS: dict[str, Verb] = {
    "demo": Verb("demo:demo", "the whole loop against a simulated robot, on this machine", ("instep demo --out demo",)),
    "start": Verb("start:start", "from a robot file and logs to a report: scene, mapping, gap, identification", (
        "instep start examples/own_arm/arm.urdf examples/own_arm --budget 60s --out start",
    )),
    "scene new": Verb("scene:new", "make a scene folder from an MJCF or URDF robot", (
        "instep scene new arm.urdf my_arm",
    )),
    "scene params": Verb("scene:params", "list the shipped scenes, or parameters with units and ranges", (
        "instep scene params",
        "instep scene params so101 'joint.*.damping'",
    )),
    "scene set": Verb("scene:set_params", "save a scene with other parameter values", (
        "instep scene set so101 tuned_so101 'joint.*.damping=0.4' action.delay=0.03",
    )),
    "scene camera": Verb("scene:camera", "list, render, add, move or remove cameras of a scene", (
        "instep scene camera pusht --out images",
        "instep scene camera examples/own_arm/arm.urdf arm --add overview --frame",
    )),
    "scene check": Verb("scene_edit:check", "check the shapes, inertia, contacts and rest of a scene", (
        "instep scene check pusht --out checked_pusht",
    )),
    "scene edit": Verb("scene_edit:edit", "replace and move objects of a scene", (
        "instep scene edit built moved --move tee=0.05,0,0,30",
    )),
    "scene splat": Verb("scene_edit:splat", "fit 3D Gaussians to posed images of a scene", (
        "instep scene splat recordings/pusht pusht",
    )),
    "scene export": Verb("scene_edit:export", "write a scene for other programs: MJCF, URDF, glTF, USD, Gaussians", (
        "instep scene export pusht pusht.glb",
    )),
    "data import": Verb("data:import_data", "other formats in", ("instep data import as_mcap imported",)),
    "data info": Verb("data:info", "describe a dataset", (
        "instep data info data",
        "instep data info log --map my_arm.toml",
    )),
    "data export": Verb("data:export", "other formats out", (
        "instep data export data csv exported",
        "instep data export data lerobot-v3.0 for_training --columns observation.state,action --robot-type "
        "so101_follower",
    )),
    "reconstruct": Verb("reconstruct:reconstruct", "images to a scene", (
        "instep reconstruct recordings/pusht built --prompt tee=click:220422302296:230,100 "
        "tee=click:234222302164:200,105 tee=click:234222303707:200,75",
    )),
    "reconstruct pose": Verb("reconstruct:pose", "pose images by a board, AprilTags, or shared features", (
        "instep reconstruct pose recordings/charuco_handeye/images posed --board 5x7 --square 0.036195 --marker "
        "0.018256 --dictionary DICT_6X6_250",
    )),
    "reconstruct prompt": Verb("reconstruct:prompt", "mark objects in images on a page, and see their masks", (
        "instep reconstruct prompt recordings/pusht prompts.json --no-browser --seconds 2",
    )),
    "reconstruct weights": Verb("reconstruct:weights", "fetch and check the weights of SAM 2 for clicks and boxes", (
        "instep reconstruct weights sam2 --check",
    )),
    "robot": Verb("robot:robot", "run a simulated robot: another process, engine, clock, and hidden parameters", (
        "instep robot pusht --pace step --port 8765 --token token.txt",
    )),
    "record": Verb("run:record", "record a run, safe against crashes", (
        "instep record sim:pusht data --policy random --episodes 2 --steps 120",
        "instep record robot:ws://127.0.0.1:8765 my_data --token token.txt --steps 60",
    )),
    "gap": Verb("gap:gap", "measure how far a simulator is from recordings, or recordings from others", (
        "instep gap data pusht --plain --out gap",
        "instep gap log my_arm --map my_arm.toml",
    )),
    "tune": Verb("tune:tune", "identify parameters from recordings, with gates and posteriors", (
        "instep tune log my_arm --map my_arm.toml --budget 60s",
    )),
    "torque": Verb("torque:torque", "identify inertias, friction and payloads from measured joint torques", (
        "instep torque recordings/kuka_lwr4 recordings/kuka_lwr4/kuka_lwr4_mujoco.urdf --hold-out measurements_2",
    )),
    "reidentify": Verb("tune:reidentify", "replay recordings through the on-line filter of parameters", (
        "instep reidentify examples/own_arm tuned/scene --map examples/own_arm/log.toml --params "
        "'joint.*.damping' --out drift",
    )),
    "excite": Verb("torque:excite", "design motions that reveal parameters", (
        "instep excite arm7 --params 'joint.*.damping' --seconds 3 --generations 3 --out motion",
    )),
    "train": Verb("train:train", "clone behaviour from a dataset, or train in simulation over randomized worlds", (
        "instep train shown/demonstrations policy --frame pusher_x pusher_y tee --steps 20",
    )),
    "check": Verb("serve:check", "compare a policy's actions on recorded observations with the recorded ones", (
        "instep check mine.py:cloned data --out checked",
    )),
    "run": Verb("run:run", "run a policy in a world: sim:SCENE, recording:DATA, robot:ADDRESS", (
        "instep run expert sim:pusht --steps 240 --out simulated",
        "instep run expert robot:ws://127.0.0.1:8765 --scene pusht --token token.txt --steps 120",
    )),
    "twin": Verb("twin_run:twin", "keep a simulated twin in step with a robot or a recording", (
        "instep twin pusht --policy expert --real robot:ws://127.0.0.1:8765 --token token.txt --steps 600",
        "instep twin pusht --real recording:seen/data --cameras tracked/cameras.json",
    )),
    "eval": Verb("evaluate:evaluate", "evaluate policies in parallel virtual worlds", (
        "instep eval expert pusht --seeds 8 --videos 0 --out evaluated",
        "instep eval expert hold pusht --seeds 100 --worlds mujoco rapier perturbed:1",
    )),
    "gate": Verb("evaluate:gate", "judge a policy by rules, for CI", ("instep gate expert examples/ci/rules.toml",)),
    "agree": Verb("evaluate:agree", "compare success rates in simulation with those on the robot", (
        "instep agree rates.csv --out agreed",
    )),
    "lab legs": Verb("lab:legs", "walk a robot with feedback, with its own actions replayed, and with simulated ones", (
        "instep lab legs dog --trials 2 --seconds 4 --out walked",
    )),
    "lab closing": Verb("lab:closing", "compare the ways to close the gap on perturbed robots", (
        "instep lab closing so101 --task reach --robots 2 --techniques untouched posterior --starts 1 --seconds 1 "
        "--recordings 1 --generations 1 --population 4 --samples 1",
    )),
    "lab augment": Verb("lab:augment", "collect demonstrations where a policy fails", (
        "instep lab augment expert pusht --demos 2 --out shown",
    )),
    "lab adr": Verb("lab:adr", "widen parameter ranges while a policy succeeds at their ends", (
        "instep lab adr expert pusht 'geom.*.friction=0.1..1.5' --seeds 4",
    )),
    "lab delta": Verb("lab:delta", "learn a delta action for what parameters leave", ("instep lab delta data pusht",)),
    "serve": Verb("serve:serve", "serve a policy", ("instep serve expert pusht --port 8000 --token token.txt",)),
    "runs": Verb("view:runs", "list past runs, or open the page of one", ("instep runs", "instep runs --open 1")),
    "view": Verb("view:view", "show a scene, a dataset or a run in the browser", (
        "instep view so101 --port 8000",
        "instep view data --port 5555",
    )),
    "doctor": Verb("doctor:doctor", "what works on this machine", ("instep doctor",)),
}  # fmt: skip
"""All verbs, in the order of the help."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; the exit code is 0 (fine), 1 (judged bad), 2 (could not run) or 130 (stopped by Ctrl-C)."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with noted_outputs(words) as outputs:
        try:
            return _dispatch(words)
        except InstepError as error:
            return _refused(str(error), outputs)
        except BrokenPipeError:
            # The reader of our output has closed it (`instep ... | head`).
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except OSError as error:
            # A full disk or a folder without write permission: the user can mend it.
            where = f" at {str(error.filename)!r}" if error.filename else ""
            hint = "free some space or choose another folder" if error.errno in FULL else "check that path"
            return _refused(f"{error.strerror or error}{where}: {hint}.", outputs)
        except BaseException as error:
            kept = remove_unfinished(outputs)
            # LLVM loses a Ctrl-C during a numba compilation; numba then reports a missing object.
            lost = isinstance(error, RuntimeError) and str(error).startswith("no compiled object yet")
            if not lost and not isinstance(error, KeyboardInterrupt):
                raise
            _complain(f"Stopped; {kept or 'nothing was kept'}.")
            return 130


def _refused(sentence: str, outputs: Sequence[Output]) -> int:
    kept = remove_unfinished(outputs)
    _complain(f"{sentence}{f' But {kept}.' if kept else ''}")
    return 2


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        _overview(VERBS)
        return 0
    if words[0] in ("-V", "--version"):
        print(f"instep {__version__}")
        return 0
    if words[0] == COMPLETION:
        return _print_completion(words[1:])
    for length in (2, 1):
        name = " ".join(words[:length])
        if name in VERBS:
            return _run(name, words[length:])
    group = {name: verb for name, verb in VERBS.items() if name.startswith(words[0] + " ")}
    if group:
        _overview(group)
        return 0 if len(words) == 1 or words[1] in ("-h", "--help") else 2
    near = get_close_matches(words[0], [*VERBS, *(name.split()[0] for name in VERBS)], n=1)
    hint = f" Did you mean 'instep {near[0]}'?" if near else ""
    _complain(f"There is no verb {words[0]!r}.{hint} 'instep --help' lists them.")
    return 2


def _run(name: str, words: list[str]) -> int:
    import tyro

    from .arguments import MARKERS, expert_help, with_expert_options

    verb, file = VERBS[name], None
    if OPTIONS in words:
        place = words.index(OPTIONS)
        if place + 1 == len(words):
            raise BadInput(f"{OPTIONS} takes a TOML file with expert options; 'instep {name} --help' lists them.")
        file, words = Path(words[place + 1]), words[:place] + words[place + 2 :]
    function, words = with_expert_options(verb.function(), words, file)
    try:
        result = tyro.cli(function, prog=f"instep {name}", args=words, config=MARKERS)
    except SystemExit as stop:  # tyro has printed the help or the problem
        if not stop.code:
            lines = [*expert_help(function), "examples:", *(f"  {command}" for command in verb.examples)]
            from rich.console import Console

            console = Console(highlight=False, markup=False)
            for line in lines:
                console.print(line, soft_wrap=True)
        return int(stop.code or 0) if isinstance(stop.code, int) else 2
    return int(result or 0)


def _print_completion(words: Sequence[str]) -> int:
    """Print the script that completes verbs and their options in a shell."""
    from tyro.extras import SubcommandApp

    from .arguments import MARKERS

    if len(words) != 1 or words[0] not in SHELLS:
        raise BadInput(f"{COMPLETION} takes a shell: {', '.join(SHELLS)}.")
    everything: Any = SubcommandApp()
    groups: dict[str, Any] = {}
    for name, verb in VERBS.items():
        group, _, last = name.partition(" ")
        if not last:
            everything.command(verb.function(), name=group, help=verb.line)
        elif group not in VERBS:  # the completion of a verb that is also a group offers its options
            if group not in groups:
                groups[group] = everything.command(SubcommandApp(), name=group)
            groups[group].command(verb.function(), name=last, help=verb.line)
    with suppress(SystemExit):  # tyro ends the program once it has printed the script
        everything.cli(prog="instep", args=["--tyro-print-completion", words[0]], config=MARKERS)
    return 0


def _overview(verbs: Mapping[str, Verb]) -> None:
    if verbs is VERBS:
        print(
            f"instep {__version__}: keep a robot and its simulated twin in step, measure the gap between them, and "
            "close it.\n"
        )
    show_table(("", ""), [(f"[bold]instep {name}[/]", verb.line) for name, verb in verbs.items()])
    print("\ninstep VERB --help explains a verb. Start with: instep demo")


def _complain(sentence: str) -> None:
    from rich.console import Console
    from rich.text import Text

    # Names may come from untrusted files: no markup, no terminal escapes.
    plain = "".join(c if c.isprintable() or c == "\n" else "?" for c in sentence)
    Console(stderr=True, highlight=False).print(Text("instep: ", style="bold red"), Text(plain), sep="", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
