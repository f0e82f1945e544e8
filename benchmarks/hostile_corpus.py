"""Bad files over all readers: damaged, of the wrong kind, hostile, or sound in form and absurd in what they say."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import shutil
import struct
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hostile_pool import CANARY, Case
from hostile_targets import LIGHTS, OBJ, ROBOT, URDF, Target, gaussians, png, stl

Content = bytes | str
Spoil = Callable[[Path], object]
HUGE = 1 << 36
"""Size of a file that is long and almost empty on the disk [bytes]."""
DEEP = 100_000
"""Depth of nesting that no document has."""


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
    "MJCF", "URDF", "PLY", "SPLAT", "GLB", "USDA", "USDC", "USDZ", "video", "image",
    "calibration", "virtual cameras", "HDF5", "MCAP", "foreign MCAP", "mapping", "unknown log", "policy map",
    "policy folder", "LeRobot checkpoint", "gate rules", "event rules", "success rates",
    "message of a policy server", "message of a robot",
)  # fmt: skip
"""Readers of a file that the user names: whoever names a link means its file."""
MAY_BE_READ = {
    *((name, kind) for name in LINES for kind in ("cut at a quarter", "cut in half", "cut at three quarters", "empty")),
    *(("SPLAT", kind) for kind in ("noise", "zeros", "text", "cut at three quarters", "empty")),
    *(("CSV", kind) for kind in ("not finite", "huge numbers", "long cell")),
    ("unknown log", "text"), ("MJCF", "UTF-16"), ("URDF", "UTF-16"),
    ("message of a policy server", "one byte"), ("zarr", "UTF-16"), ("HDF5", "not finite"), ("HDF5", "odd shapes"),
    ("zarr", "a folder"),
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
        "empty": put(b""), "one byte": put(b"\x80"), "noise": put(noise), "zeros": put(bytes(size)),
        "text": put(page * 4), "cut at a quarter": put(sound[: size // 4]), "cut in half": put(sound[: size // 2]),
        "cut at three quarters": put(sound[: size * 3 // 4]), "gzipped": put(gzip.compress(sound, mtime=0)),
        "UTF-16": put(sound.decode("latin-1").encode("utf-16")), "missing": replaced(lambda path: None),
        "a folder": replaced(lambda path: path.mkdir()), "a pipe": replaced(os.mkfifo),
        "an endless device": replaced(lambda path: path.symlink_to("/dev/zero")),
        "dangling link": replaced(lambda path: path.symlink_to("nowhere")),
        "link to itself": replaced(lambda path: path.symlink_to(path.name)), "link out of the folder": replaced(link),
        "64 GiB of nothing": replaced(lambda path: (path.touch(), os.truncate(path, HUGE))),
    }  # fmt: skip


def _write(place: Path, files: Mapping[str, Content | Callable[[Path], object]]) -> None:
    for name, content in files.items():
        if callable(content):
            content(place / name)
        else:
            (place / name).write_bytes(content.encode() if isinstance(content, str) else content)


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


# ---- files of their own


Files = tuple[str, Mapping[str, Any]]


def _swapped(name: str, text: str, kind: str, changes: Iterator[tuple[str, str]]) -> Iterator[Files]:
    """A text with a part of it replaced."""
    for old, new in changes:
        assert old in text, old
        yield kind, {name: text.replace(old, new)}


def _robots() -> Iterator[Files]:
    places = {
        'damping="0.1" armature': 'damping="{}" armature', 'mass="1" material': 'mass="{}" material',
        'size="0.02" mass': 'size="{}" mass', 'armature="0.01"': 'armature="{}"', 'frictionloss="0.01"':
        'frictionloss="{}"', 'pos="0 0 1"': 'pos="0 0 {}e30"', 'timestep="0.002"': 'timestep="{}"',
        'gear="2"': 'gear="{}e35"', 'kp="20"': 'kp="{}e35"', 'diaginertia="0.01': 'diaginertia="{}',
        'friction="1 0.01': 'friction="{} 0.01', 'stiffness="0.1"': 'stiffness="{}e33"', 'qpos="0.1': 'qpos="{}e33',
    }  # fmt: skip
    absurd = ("-1", "nan", "nan(ind)", "inf", "-inf", "1e39", "1e400", "0x1p1000", "x")
    values = {old: [new.format(v).replace("-1e3", "1e3") for v in absurd] for old, new in places.items()}
    values['timestep="0.002"'] += [f'timestep="{value}"' for value in ("0", "1e-12", "1000", "-0.002")]
    options = ('gravity="0 0 1e30"', 'density="-1"', 'viscosity="1e39"', 'impratio="-1"')
    values['timestep="0.002"'] += [f'timestep="0.002" {option}' for option in options]
    changes = ((old, new) for old, some in values.items() for new in some)
    yield from _swapped("robot.xml", ROBOT, "absurd physics", changes)
    bodies = '<replicate count="{0}"><replicate count="{0}"><body><geom size="1"/></body></replicate></replicate>'
    flex = '<flexcomp name="f" type="grid" count="{}" spacing="0.1 0.1 0.1" radius="0.01"/>'
    inside = [bodies.format(count) for count in ("100000", "1e9", "-5", "nan", "99999999999999999999")]
    inside += [flex.format(count) for count in ("1000 1000 1000", "100000 1 1", "-3 4 4", "60 60 60")]
    inside.append('<geom size="1"/>' * 60_000)
    texture = '<texture name="big" type="2d" builtin="checker" width="{0}" height="{0}"/>'
    sizes = ('memory="9E"', 'memory="1T"', 'memory="-5G"', 'njmax="2147483647"', 'nstack="99999999999"')
    counts = {
        "<worldbody>": ["<worldbody>" + text for text in inside], 'memory="1M"': sizes,
        'nrow="4" ncol="4"': ('nrow="100000" ncol="100000"', 'nrow="-4" ncol="4"', 'nrow="0" ncol="4"'),
        "<asset>": ["<asset>" + texture.format(count) for count in ("100000", "2147483647", "-4")],
    }  # fmt: skip
    yield from _swapped("robot.xml", ROBOT, "huge counts", ((old, new) for old, some in counts.items() for new in some))
    paths = ("../outside-the-folder/x.xml", "/etc/passwd", "file:///etc/passwd", "http://127.0.0.1/x.xml", "")
    meshes = ("../../outside-the-folder/link.obj", "/etc/passwd", "~/x.obj", "http://127.0.0.1/x.obj", "", ".")
    leads = [("lights.xml", path) for path in paths] + [('file="link.obj"', f'file="{path}"') for path in meshes]
    leads += [('meshdir="meshes"', f'meshdir="{folder}"') for folder in ("/etc", "../..")]
    yield from _swapped("robot.xml", ROBOT, "path out of the folder", iter(leads))
    broken = (
        ('name="elbow" axis', 'name="shoulder" axis'), ('joint="elbow" gear', 'joint="elbw" gear'),
        ('mesh="link" mass', 'mesh="lnk" mass'), ("worldbody", "wordbody"),
        ("<worldbody>", "<worldbody>" + "<body>" * 3000 + "</body>" * 3000),
    )  # fmt: skip
    yield from _swapped("robot.xml", ROBOT, "broken structure", iter(broken))
    doctype = '<!DOCTYPE mujoco [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>'
    yield "entities", {"robot.xml": doctype + ROBOT.replace('model="arm"', 'model="&b;"')}
    yield "entities", {"robot.xml": '<!DOCTYPE m [<!ENTITY x SYSTEM "file:///etc/passwd">]>' + ROBOT}
    yield "unknown element", {"robot.xml": "<html/>"}
    yield "nothing moves", {"robot.xml": "<mujoco><worldbody><geom size='1'/></worldbody></mujoco>"}
    yield "includes itself", {"lights.xml": LIGHTS.replace("<worldbody>", '<include file="robot.xml"/><worldbody>')}


def _meshes() -> Iterator[Files]:
    for text in ("f 1 2 3\n", OBJ.replace("f 1 3 2", "f 1 3 99999999"), OBJ.replace("f 1 3 2", "f 0 0 0")):
        yield "damaged mesh", {"meshes/link.obj": text}
    whole = stl()
    for count in (0, 1 << 31, 0xFFFFFFFF, 5):
        yield "huge counts", {"meshes/stone.stl": whole[:80] + struct.pack("<I", count) + whole[84:]}
    for value in (float("nan"), float("inf"), 1e39, 0.0):
        yield "absurd geometry", {"meshes/stone.stl": stl(value)}
    for width, height in ((60_000, 60_000), (0, 4), (2**31 - 1, 2**31 - 1)):
        yield "picture bomb", {"meshes/wood.png": png(width, height, b"\0" * 64)}
    yield "picture bomb", {"meshes/wood.png": png(20_000, 20_000, bytes(20_000 * 3 + 1) * 600)}


def _urdfs() -> Iterator[Files]:
    values = ("-1", "nan", "nan(1)", "1e39", "inf", "x", "")
    absurd = [('mass value="0.5"', f'mass value="{value}"') for value in values]
    absurd += [('damping="0.1"', f'damping="{value}"') for value in values]
    absurd += [('lower="-1" upper="1"', f'lower="{value}" upper="{value}"') for value in values]
    absurd += [('radius="0.02"', f'radius="{value}"') for value in ("-1", "nan", "1e39", "0")]
    absurd += [('ixx="0.12"', f'ixx="{value}"') for value in ("-1", "nan", "1e39", "0")]
    yield from _swapped("robot.urdf", URDF, "absurd physics", iter(absurd))
    paths = ("package://../../etc/passwd", "package://arm/../../outside-the-folder/link.obj", "package://")
    links = iter([("package://arm/meshes/link.obj", path) for path in paths])
    yield from _swapped("robot.urdf", URDF, "path out of the folder", links)
    broken = (
        ('link name="lower"', 'link name="upper"'), ('child link="lower"', 'child link="lowr"'),
        ('parent link="base"', 'parent link="lower"'),
    )  # fmt: skip
    yield from _swapped("robot.urdf", URDF, "broken structure", iter(broken))
    yield "unknown element", {"robot.urdf": "<robot/>"}
    yield "entities", {"robot.urdf": '<!DOCTYPE r [<!ENTITY x SYSTEM "file:///etc/passwd">]>' + URDF}


def _npz(arrays: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED) -> Mapping[str, bytes]:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, data in arrays.items():
            archive.writestr(name, data)
    return {"run.npz": out.getvalue()}


def _npy(kind: str, shape: str, data: bytes = b"") -> bytes:
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def _npz_files() -> Iterator[Files]:
    for kind, shape in (("<f8", "(999999999999,)"), ("<f8", "(-5,)"), ("|O", "(1,)"), ("<f8", "(1 << 60,)")):
        yield "forged header", _npz({"a.npy": _npy(kind, shape, bytes(64))})
    yield "archive bomb", _npz({"a.npy": _npy("<f8", "(40000000,)", bytes(320_000_000))}, zipfile.ZIP_DEFLATED)
    for name in ("../a.npy", "/etc/a.npy", "a\\..\\..\\b.npy", "a/../../b.npy"):
        yield "path out of the archive", _npz({name: _npy("<f8", "(1,)", bytes(8))})
    yield "many members", _npz({f"{k}.npy": b"" for k in range(20_000)})
    yield "not an array", _npz({"a.npy": b"cos\nsystem\n(S'true'\ntR."})
    yield "no members", _npz({})


TABLES = {
    "ragged rows": "a,b,u\n1,2,3\n4,5\n", "not finite": "a,b,u\n" + "nan,inf,1e400\n" * 5,
    "text for numbers": "a,b,u\none,two,three\n", "long cell": "a,b,u\n" + "1" * 200_000 + ",2,3\n",
    "many columns": ",".join(f"c{k}" for k in range(50_000)) + "\n" + ",".join("1" * 50_000) + "\n",
    "name twice": "a,a,u\n1,2,3\n4,5,6\n", "no rows": "a,b,u\n", "NUL characters": "a,b,u\n1,\0,3\n",
    "open quote": 'a,b,u\n"1,2,3\n' + "4,5,6\n" * 50, "huge numbers": "a,b,u\n" + "1e300,-1e300,1e308\n" * 5,
}  # fmt: skip


def _plys() -> Iterator[Files]:
    from instep.splat.gaussian_files import save_ply

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "world.ply"
        save_ply(path, gaussians())
        whole = path.read_bytes()
    changes = [(b"vertex 5", b"vertex " + count) for count in (b"-5", b"999999999999", b"5.5", b"x", b"", b"6")]
    changes += [(b"binary_little_endian", b"ascii"), (b"property float x", b"property list uchar int x")]
    for old, new in changes:
        yield "forged header", {"world.ply": whole.replace(old, new, 1)}
    yield "long header", {"world.ply": b"ply\n" + b"comment x\n" * 100_000 + whole[4:]}
    start = whole.index(b"end_header") + 11
    row = (len(whole) - start) // 5
    for value in (float("nan"), float("inf"), 1e38):
        yield "not finite", {"world.ply": whole[:start] + struct.pack("<f", value) * ((len(whole) - start) // 4)}
    yield "no rotation", {"world.ply": whole[: start + row - 16] + bytes(16) + whole[start + row :]}


def _glbs() -> Iterator[Files]:
    def glb(document: Any, data: bytes = bytes(400)) -> Mapping[str, bytes]:
        text = json.dumps(document).encode() if not isinstance(document, bytes) else document
        text += b" " * (-len(text) % 4)
        chunks = struct.pack("<II", len(text), 0x4E4F534A) + text + struct.pack("<II", len(data), 0x004E4942) + data
        return {"world.glb": struct.pack("<4sII", b"glTF", 2, 12 + len(chunks)) + chunks}

    view = {"buffer": 0, "byteLength": 60}
    accessor = {"bufferView": 0, "componentType": 5126, "type": "VEC3", "count": 5}
    names = ["POSITION", "COLOR_0", *(f"KHR_gaussian_splatting:{part}" for part in ("SCALE", "ROTATION", "OPACITY"))]
    primitive = {"attributes": dict.fromkeys(names, 0), "mode": 0, "extensions": {"KHR_gaussian_splatting": {}}}
    sound = {
        "asset": {"version": "2.0"}, "scene": 0, "scenes": [{"nodes": [0]}], "nodes": [{"mesh": 0}],
        "meshes": [{"primitives": [primitive]}], "accessors": [accessor], "bufferViews": [view],
        "buffers": [{"byteLength": 400}],
    }  # fmt: skip
    for change in ({"count": -1}, {"count": 1 << 40}, {"count": "5"}, {"bufferView": 9}, {"bufferView": -1}):
        yield "forged counts", glb({**sound, "accessors": [{**accessor, **change}]})
    for change in ({"byteLength": 1 << 40}, {"byteLength": -1}, {"byteOffset": -5}, {"buffer": 7}, {"byteStride": 0}):
        yield "forged counts", glb({**sound, "bufferViews": [{**view, **change}]})
    yield "ring of nodes", glb({**sound, "nodes": [{"children": [1]}, {"children": [0]}]})
    yield "ring of nodes", glb({**sound, "nodes": [{"children": [k + 1]} for k in range(5000)] + [{"mesh": 0}]})
    for matrix in ([0] * 15, [float("1e39")] * 16, "x", [None] * 16):
        yield "forged counts", glb({**sound, "nodes": [{"mesh": 0, "matrix": matrix}]})
    for top in (b"[]", b"3", b"null", b"[" * DEEP, b'{"asset": {}}'):
        yield "wrong top level", glb(top)
    for head in ((0xFFFFFFFF, 0, 0), (40, 0xFFFFFFFF, 0x4E4F534A)):
        yield "forged counts", {"world.glb": struct.pack("<4sIIII", b"glTF", 2, *head) + bytes(40)}


def _usds() -> Iterator[Files]:
    for path in ("../outside-the-folder/x.usda", "/etc/passwd", "http://127.0.0.1/x.usda", "world.usda"):
        yield "path out of the folder", {"world.usda": f"#usda 1.0\n(\n    subLayers = [@{path}@]\n)\n"}
    full = (
        "point3f[] positions = [(0,0,0)]\nquatf[] orientations = [(1,0,0,0)]\nfloat3[] scales = [(1,1,1)]\n"
        "float[] opacities = [{}]\nuniform int radiance:sphericalHarmonicsDegree = {}\n"
        "float3[] radiance:sphericalHarmonicsCoefficients = [{}]"
    )
    values = (("nan", 0, "(0,0,0)"), ("1, 1", 0, "(0,0,0)"), ("1", -1, "(0,0,0)"), ("1", 0, ""))
    for inside in ("", "point3f[] positions = [(0,0,0)]", *(full.format(*each) for each in values)):
        yield "absurd values", {"world.usda": f'#usda 1.0\ndef ParticleField3DGaussianSplat "g"\n{{\n{inside}\n}}\n'}
    nested = "".join(f'def Xform "a{k}" {{\n' for k in range(3000)) + "}\n" * 3000
    yield "deep nesting", {"world.usda": "#usda 1.0\n" + nested}
    itself = '(defaultPrim = "a")\ndef "a" (references = @world.usda@) {}\n'
    yield "reference to itself", {"world.usda": "#usda 1.0\n" + itself}


def _weights() -> Iterator[Files]:
    def tensors(head: Any, data: bytes = bytes(64)) -> Mapping[str, Any]:
        text = head if isinstance(head, bytes) else json.dumps(head).encode()
        return {"policy/weights.safetensors": struct.pack("<Q", len(text)) + text + data}

    empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    for entry in ({"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 64]}, {}, None, 3):
        yield "forged header", tensors({"a": entry})
    for head in ({f"t{k}": empty for k in range(20_000)}, b"[" * DEEP, b"[]", {}):
        yield "forged header", tensors(head)
    for size in (0, 1 << 63, (1 << 64) - 1, 7):
        yield "forged header", {"policy/weights.safetensors": struct.pack("<Q", size) + b"{}"}
    yield "pickle", {"policy/weights.safetensors": b"\x80\x04cos\nsystem\n\x8c\x04true\x85R."}


def _stores() -> Iterator[Files]:
    state = {
        "zarr_format": 2, "shape": [12, 2], "chunks": [12, 2], "dtype": "<f8", "compressor": None, "fill_value": 0.0,
        "order": "C", "filters": None,
    }  # fmt: skip
    for change in ({"shape": [1 << 40, 2]}, {"shape": [-1, 2]}, {"shape": []}, {"chunks": [0, 0]}, {"dtype": "|O"}):
        yield "forged header", {"run.zarr/data/state/.zarray": json.dumps({**state, **change})}
    yield "path out of the folder", {"run.zarr/data/state": lambda p: (shutil.rmtree(p), p.symlink_to("/etc"))}


def _hdf5s() -> Iterator[Files]:
    import h5py

    def made(fill: Callable[[Any], object]) -> Mapping[str, bytes]:
        out = io.BytesIO()
        with h5py.File(out, "w") as file:
            fill(file)
        return {"run.hdf5": out.getvalue()}

    place, packed = "observations/qpos", {"dtype": "f8", "chunks": (4, 8), "compression": "gzip"}
    arrays: list[tuple[str, Mapping[str, Any]]] = [
        ("huge counts", {"shape": (1 << 40, 8), **packed}), ("huge counts", {"shape": (100_000_000, 8), **packed}),
        ("not numbers", {"data": ["x", "y"], "dtype": h5py.string_dtype()}),
        ("not numbers", {"data": np.array([b"x", b"y"], "S1")}),
        ("not numbers", {"shape": (5,), "dtype": h5py.ref_dtype}),
        ("not finite", {"data": np.full((5, 2), np.nan)}), ("odd shapes", {"data": 3.0}),
        *(("odd shapes", {"data": np.zeros(shape)}) for shape in ((0, 2), (9, 2), (5, 2, 2, 2, 2))),
    ]  # fmt: skip
    for kind, options in arrays:

        def fill(file: Any, options: Mapping[str, Any] = options) -> None:
            file.create_dataset(place, **options)
            file.create_dataset("action", data=np.zeros((5, 2)))

        yield kind, made(fill)
    for link in (h5py.ExternalLink("/etc/passwd", "x"), h5py.SoftLink("/nowhere")):
        yield "path out of the file", made(lambda file, link=link: file.__setitem__(place, link))
    yield "ring of groups", made(lambda f: (f.create_group("a"), f["a"].__setitem__("b", f["a"])))
    yield "nothing inside", made(lambda f: None)


def _bags() -> Iterator[Files]:
    top = (
        "rosbag2_bagfile_information:\n  version: {}\n  storage_identifier: {}\n  relative_file_paths: [{}]\n"
        "  duration: {{nanoseconds: 1}}\n  starting_time: {{nanoseconds_since_epoch: 0}}\n  message_count: 1\n"
        "  topics_with_message_count: []\n  compression_format: ''\n  compression_mode: ''\n"
    )
    paths = ("../outside-the-folder/x.db3", "/etc/passwd", "nowhere.db3", "''", "metadata.yaml")
    found = {"path out of the folder": [top.format(9, "sqlite3", path) for path in paths]}
    kinds = (("'x'", "sqlite3"), (9, "nothing"), (9, "mcap"))
    found["wrong kind"] = [top.format(*kind, "run.db3") for kind in kinds]
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{chr(98 + k)}: &{chr(98 + k)} [{','.join(['*' + chr(97 + k)] * 9)}]\n" for k in range(9)
    )
    nested = "rosbag2_bagfile_information: " + "{a: " * 3000 + "1" + "}" * 3000
    found["deep nesting"] = ["[" * 20_000, nested, bomb]
    found["code"] = ["!!python/object/apply:os.system ['true']\n"]
    yield from ((kind, {"bag/metadata.yaml": text}) for kind, texts in found.items() for text in texts)


def _parquets() -> Iterator[Files]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = ("data/chunk-000/file-000", "meta/tasks", "meta/episodes/chunk-000/file-000")
    rows, tasks, episodes = (f"set/{name}.parquet" for name in names)
    bomb = pa.DictionaryArray.from_arrays(pa.array(np.zeros(300_000, np.int32)), pa.array(["x" * 20_000]))
    zeros = {"observation.state": np.zeros(60_000_000), "index": np.zeros(60_000_000, np.int64)}
    tables: list[tuple[str, str, Mapping[str, Any]]] = [
        ("table bomb", tasks, {"task": bomb, "task_index": np.arange(300_000)}), ("table bomb", rows, zeros),
        ("other columns", rows, {"x": [1, 2]}), ("other columns", rows, {"index": ["a"] * 24}),
        ("other columns", tasks, {"x": [1]}), ("other columns", episodes, {"x": [1, 2]}),
        ("other columns", episodes, {"episode_index": [0, 1], "length": [-5, 1 << 60]}),
        ("other columns", episodes, {"episode_index": ["a", "b"], "length": ["x", "y"]}),
        ("no rows", rows, {"index": np.zeros(0, np.int64)}),
    ]  # fmt: skip
    for kind, name, columns in tables:
        out = io.BytesIO()
        pq.write_table(pa.table(dict(columns)), out)
        yield kind, {name: out.getvalue()}


OWN: dict[str, Callable[[], Any]] = {
    "MJCF": _robots, "meshes and textures": _meshes, "URDF": _urdfs, "NPZ": _npz_files, "PLY": _plys, "GLB": _glbs,
    "USDA": _usds, "policy folder": _weights, "zarr": _stores, "HDF5": _hdf5s, "ROS bag": _bags,
    "LeRobot v3.0": _parquets, "CSV": lambda: [(kind, {"run.csv": text}) for kind, text in TABLES.items()],
    "success rates": lambda: [(kind, {"rates.csv": text}) for kind, text in TABLES.items()],
    "gzipped CSV": lambda: [("archive bomb", {"run.csv.gz": gzip.compress(b"1,2,3\n" * 2_000_000, 1) * 60})],
    "image": lambda: [("picture bomb", {"image.png": png(side, side, b"\0" * 64)}) for side in (60_000, 2**31 - 1, 0)],
    "posed images": lambda: [("picture bomb", {"images/0.png": png(60_000, 60_000, b"\0" * 64)})],
}  # fmt: skip
"""Bad files of a format: kind, and content by name."""
