"""Bad files over all readers: damaged, of the wrong kind, hostile, or sound in form and absurd in what they say."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hostile_formats import DEEP, OWN
from hostile_pool import CANARY, Case
from hostile_scenes import Target

Content = bytes | str
HUGE = 1 << 36
"""Size of a file that is long and almost empty on the disk [bytes]."""


def written_cases(found: Sequence[Target], samples: Path, folder: Path, seed: int = 0) -> list[Case]:
    """Write every bad file below a folder; one case each. `samples` holds the sound sample of each target."""
    outside = folder / CANARY
    outside.mkdir(parents=True)
    cases: list[Case] = []
    for target in found:
        for kind, refuse, spoil in _spoilings(target, samples / target.folder, outside, seed):
            place = folder / f"{len(cases):04d}"
            shutil.copytree(samples / target.folder, place, symlinks=True)
            spoil(place)
            cases.append(Case(target.name, kind, str(place), refuse=refuse))
    return cases


Spoil = Callable[[Path], object]


def _spoilings(target: Target, sample: Path, outside: Path, seed: int) -> Iterator[tuple[str, bool, Spoil]]:
    """What is done to a copy of a sample: kind, whether it must be refused then, and how."""
    for name in target.files:
        sound = (sample / name).read_bytes()
        optional = (target.name, name) in OPTIONAL
        for kind, spoil in _damage(name, sound, outside / f"{target.folder}-{Path(name).name}").items():
            if kind == "link out of the folder" and target.name in NAMED:
                continue
            lenient = target.name == "journal" or (optional and kind in ("missing", "dangling link"))
            yield kind, not lenient and (target.name, kind) not in MAY_BE_READ, spoil
        documents = {".json": _json_documents, ".toml": _toml_documents}
        if Path(name).suffix in documents:
            for kind, refuse, text in documents[Path(name).suffix](sound.decode(), seed):
                yield kind, refuse, lambda place, name=name, text=text: (place / name).write_text(text)
    for kind, files in OWN.get(target.name, list)():
        yield kind, (target.name, kind) not in MAY_BE_READ, lambda place, files=files: _write(place, files)


OPTIONAL = {
    ("LeRobot v3.0", "set/meta/tasks.parquet"),
    ("torque_sensors.toml", "torque_sensors.toml"), ("posed images", "points.npy"),
    ("posed images", "ground_plane.json"), ("own dataset", "set/meta/instep.json"), ("zarr", "run.zarr/.zgroup"),
    ("zarr", "run.zarr/data/state/0.0"), ("ROS bag", "bag/metadata.yaml"),
}  # fmt: skip
"""Files without which a sample is still sound."""
LINES = (
    "CSV", "unknown log", "success rates", "text log", "meshes and textures", "mapping", "virtual cameras",
    "event rules", "gate rules", "policy map", "scene.toml", "torque_sensors.toml",
)  # fmt: skip
"""Formats of lines, of which the first ones are often a sound file."""
NAMED = (
    "MJCF", "URDF", "PLY", "SPLAT", "GLB", "glTF", "USDA", "USDC", "USDZ", "video", "image",
    "calibration", "virtual cameras", "HDF5", "MCAP", "foreign MCAP", "mapping", "unknown log", "policy map",
    "policy folder", "LeRobot checkpoint", "gate rules", "event rules", "success rates",
    "message of a policy server", "message of a robot",
)  # fmt: skip
"""Readers of a file that the user names: whoever names a link means its file."""
MAY_BE_READ = {
    *((name, kind) for name in LINES for kind in ("cut at a quarter", "cut in half", "cut at three quarters", "empty")),
    *(("SPLAT", kind) for kind in ("noise", "zeros", "text", "cut at three quarters", "empty")),
    *(("CSV", kind) for kind in ("not finite", "huge numbers", "long cell")),
    ("unknown log", "text"), ("glTF", "UTF-16"), ("MJCF", "UTF-16"), ("URDF", "UTF-16"),
    ("message of a policy server", "one byte"), ("zarr", "UTF-16"), ("HDF5", "not finite"), ("HDF5", "odd shapes"),
    ("stills", "missing"), ("stills", "a folder"), ("zarr", "a folder"),
    ("ROS bag", "link to itself"),
}  # fmt: skip
"""Damage that leaves a sound file, or one whose meaning only a mapping can judge."""


def _damage(name: str, sound: bytes, outside: Path) -> dict[str, Spoil]:
    """What may happen to any file."""
    size = len(sound)

    def put(content: bytes) -> Spoil:
        return lambda place: (place / name).write_bytes(content)

    def replaced(make: Callable[[Path], object]) -> Spoil:
        def spoil(place: Path) -> None:
            (place / name).unlink()
            make(place / name)

        return spoil

    def link(path: Path) -> None:
        outside.write_bytes(sound)
        path.symlink_to(outside)

    page = b"<!DOCTYPE html><html><head><title>404</title></head><body>Not found</body></html>\n"
    noise = random.Random(size).randbytes(max(64, size))
    return {
        "empty": put(b""),
        "one byte": put(b"\x80"),
        "noise": put(noise),
        "zeros": put(bytes(size)),
        "text": put(page * 4),
        "cut at a quarter": put(sound[: size // 4]),
        "cut in half": put(sound[: size // 2]),
        "cut at three quarters": put(sound[: size * 3 // 4]),
        "gzipped": put(gzip.compress(sound, mtime=0)),
        "UTF-16": put(sound.decode("latin-1").encode("utf-16")),
        "missing": replaced(lambda path: None),
        "a folder": replaced(lambda path: path.mkdir()),
        "a pipe": replaced(os.mkfifo),
        "an endless device": replaced(lambda path: path.symlink_to("/dev/zero")),
        "dangling link": replaced(lambda path: path.symlink_to("nowhere")),
        "link to itself": replaced(lambda path: path.symlink_to(path.name)),
        "link out of the folder": replaced(link),
        "64 GiB of nothing": replaced(lambda path: (path.touch(), os.truncate(path, HUGE))),
    }


def _write(place: Path, files: Mapping[str, Content | Callable[[Path], object]]) -> None:
    for name, content in files.items():
        if callable(content):
            content(place / name)
        else:
            (place / name).write_bytes(content.encode() if isinstance(content, str) else content)


# ---- documents: JSON and TOML

ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1e39, -1e300, 2**70, "", "x\0y", "../../x", [], [[[]]], {}, {"a": {}}, [None],
)  # fmt: skip


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    if isinstance(value, dict):
        for key in value:
            yield from _leaves(value[key], (*path, key))
    elif isinstance(value, list):
        for k in range(min(len(value), 2)):
            yield from _leaves(value[k], (*path, k))


def _changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    copied = json.loads(json.dumps(document))
    at = copied
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return copied


def _swaps(document: Any, seed: int, count: int) -> Iterator[tuple[Any, ...]]:
    """Some places of a document, each with another value."""
    rng = random.Random(seed)
    places = list(_leaves(document))
    for _ in range(count):
        yield rng.choice(places), rng.choice(ODD)


def _json_documents(text: str, seed: int) -> Iterator[tuple[str, bool, str]]:
    document = json.loads(text)
    yield "deep nesting", True, "[" * DEEP
    yield "deep nesting", True, '{"a":' * DEEP
    yield "deep nesting", True, text.rstrip()[:-1] + ', "zz": ' + "[" * 5000 + "]" * 5000 + "}"
    for top in ("[]", "3", '"x"', "null", "NaN"):
        yield "wrong top level", True, top
    yield "two documents", True, text + text
    yield "control characters", True, text.replace('"', '"\x01', 1)
    yield "number of many digits", True, text.rstrip()[:-1] + ', "zz": ' + "9" * 5000 + "}"
    for path, value in _swaps(document, seed, 14):
        yield "other value", False, json.dumps(_changed(document, path, value))


def _toml_documents(text: str, seed: int) -> Iterator[tuple[str, bool, str]]:
    import tomllib

    import tomlkit

    document = tomllib.loads(text)
    yield "deep nesting", True, "zz = " + "[" * 3000 + "]" * 3000 + "\n" + text
    yield "deep nesting", True, "zz = " + "{a=" * 3000 + "1" + "}" * 3000 + "\n" + text
    yield "unknown entry", "event" not in document, "zz = 3\n" + text
    yield "name twice", True, "zz = 3\nzz = 4\n" + text
    yield "control characters", True, "zz = '\x01'\n" + text
    yield "number of many digits", True, "zz = " + "9" * 5000 + "\n" + text
    for path, value in _swaps(document, seed, 22):
        if value is not None and value != [None]:
            yield "other value", False, tomlkit.dumps(_changed(document, path, value))
