"""Virtual worlds and beliefs by the words of the command line, opened in whichever process needs them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from instep.app.standin import Disguise, Engine, engine, stand_in
from instep.app.worlds import open_policy, with_cameras
from instep.core.errors import BadInput, UnknownName
from instep.core.knob import Belief
from instep.core.world import Policy, World
from instep.gap.eval_rules import ranges
from instep.scene.folder import Scene


def open_words(words: str, world: World) -> Policy:
    """The policy that words stand for, in a world."""
    return open_policy(words, world)


def open_place(words: str, scene: str, cameras: Sequence[str] = (), every: int = 1) -> World:
    """A scene in an engine (mujoco, rapier, dart), or disguised as a robot (standin:SEED), seen by some cameras.

    ENGINE@SCENE is another scene than the one that is asked about, such as another model of the same robot.
    """
    words, _, other = words.partition("@")
    scene = other or scene
    kind, _, rest = words.partition(":")
    if kind == "standin":
        if rest and not rest.isdigit():
            raise BadInput(f"standin: takes the seed of its hidden knobs, a whole number, not {rest!r}.")
        disguise = Disguise(hidden=int(rest or 1), cameras=tuple(cameras), film_every=every)
        return stand_in(Scene.load(scene), disguise).world
    if words not in get_args(Engine):
        raise UnknownName("world", words, [*get_args(Engine), "standin:SEED"])
    chosen: Any = words
    return with_cameras(engine(chosen, Scene.load(scene)), cameras, every)


def belief_of(words: Sequence[str], scene: Scene) -> Belief | None:
    """The belief that `--vary` asks for: knobs with ranges, or a file that holds one."""
    if len(words) == 1 and Path(words[0]).exists():
        return _from_file(Path(words[0]))
    return ranges(words, scene)


def _from_file(path: Path) -> Belief:
    try:
        from instep.tune.vary import load_belief
    except ImportError:
        raise BadInput(f"{str(path)!r} cannot be read as a belief: this build has no instep.tune.vary.") from None
    return load_belief(path)
