"""Bad files of each format: forged headers, bombs, paths that lead out, values that are absurd."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hostile_scenes import LIGHTS, OBJ, ROBOT, URDF, gaussians, png, stl

DEEP = 100_000
"""Depth of nesting that no document has."""


def _robots() -> Iterator[tuple[str, Mapping[str, Any]]]:
    def robot(old: str, new: str) -> Mapping[str, Any]:
        assert old in ROBOT, old
        return {"robot.xml": ROBOT.replace(old, new)}

    damping, mass, size = 'damping="0.1" armature', 'mass="1" material', 'size="0.02" mass'
    absurd = ("-1", "nan", "NaN", "nan(1)", "nan(ind)", "inf", "-inf", "1e39", "1e400", "-1e39", "0x1p1000", "x")
    for value in absurd:
        yield "absurd physics", robot(damping, f'damping="{value}" armature')
        yield "absurd physics", robot(mass, f'mass="{value}" material')
        yield "absurd physics", robot(size, f'size="{value}" mass')
    for value in ("-1", "nan", "nan(7)", "1e39", "1e400"):
        yield "absurd physics", robot('armature="0.01"', f'armature="{value}"')
        yield "absurd physics", robot('frictionloss="0.01"', f'frictionloss="{value}"')
        yield "absurd physics", robot('pos="0 0 1"', f'pos="0 0 {value.replace("-1", "-1e30")}"')
        yield "absurd physics", robot('timestep="0.002"', f'timestep="{value}"')
        yield "absurd physics", robot('gear="2"', f'gear="{value.replace("-1", "1e35")}"')
        yield "absurd physics", robot('kp="20"', f'kp="{value.replace("-1", "1e35")}"')
        yield "absurd physics", robot('diaginertia="0.01', f'diaginertia="{value}')
        yield "absurd physics", robot('friction="1 0.01', f'friction="{value} 0.01')
        yield "absurd physics", robot('stiffness="0.1"', f'stiffness="{value.replace("-1", "1e33")}"')
        yield "absurd physics", robot('qpos="0.1', f'qpos="{value.replace("-1", "1e33")}')
    for value in ("0", "1e-12", "1000", "-0.002"):
        yield "absurd physics", robot('timestep="0.002"', f'timestep="{value}"')
    for option in ('gravity="0 0 1e30"', 'density="-1"', 'viscosity="1e39"', 'impratio="-1"'):
        yield "absurd physics", robot('timestep="0.002"', f'timestep="0.002" {option}')
    bodies = '<replicate count="{0}"><replicate count="{0}"><body><geom size="1"/></body></replicate></replicate>'
    for count in ("100000", "1e9", "-5", "nan", "99999999999999999999"):
        yield "huge counts", robot("<worldbody>", "<worldbody>" + bodies.format(count))
    for text in ('nrow="100000" ncol="100000"', 'nrow="-4" ncol="4"', 'nrow="0" ncol="4"'):
        yield "huge counts", robot('nrow="4" ncol="4"', text)
    for text in ('memory="9E"', 'memory="1T"', 'memory="-5G"', 'njmax="2147483647"', 'nstack="99999999999"'):
        yield "huge counts", robot('memory="1M"', text)
    texture = '<texture name="big" type="2d" builtin="checker" width="{0}" height="{0}"/>'
    for count in ("100000", "2147483647", "-4"):
        yield "huge counts", robot("<asset>", "<asset>" + texture.format(count))
    flex = '<flexcomp name="f" type="grid" count="{}" spacing="0.1 0.1 0.1" radius="0.01"/>'
    for count in ("1000 1000 1000", "100000 1 1", "-3 4 4", "60 60 60"):
        yield "huge counts", robot("<worldbody>", "<worldbody>" + flex.format(count))
    yield "huge counts", robot("<worldbody>", "<worldbody>" + '<geom size="1"/>' * 60_000)
    yield "deep nesting", robot("<worldbody>", "<worldbody>" + "<body>" * 3000 + "</body>" * 3000)
    doctype = '<!DOCTYPE mujoco [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>'
    yield "entities", {"robot.xml": doctype + ROBOT.replace('model="arm"', 'model="&b;"')}
    yield "entities", {"robot.xml": '<!DOCTYPE m [<!ENTITY x SYSTEM "file:///etc/passwd">]>' + ROBOT}
    for path in ("../outside-the-folder/x.xml", "/etc/passwd", "file:///etc/passwd", "http://127.0.0.1/x.xml", ""):
        yield (
            "path out of the folder",
            robot('<include file="lights.xml"/>', f'<include file="{path}"/>'.replace("\0", "&#1;")),
        )
    for path in ("../../outside-the-folder/link.obj", "/etc/passwd", "~/x.obj", "http://127.0.0.1/x.obj", "", "."):
        yield "path out of the folder", robot('file="link.obj"', f'file="{path}"')
    yield "path out of the folder", robot('meshdir="meshes"', 'meshdir="/etc"')
    yield "path out of the folder", robot('meshdir="meshes"', 'meshdir="../.."')
    for joint in ("shoulder", "elbow", "stone"):
        yield (
            "name twice",
            robot('name="shoulder" axis', 'name="stone" axis')
            if joint == "stone"
            else robot('name="elbow" axis', 'name="shoulder" axis'),
        )
    yield "unknown reference", robot('joint="elbow" gear', 'joint="elbw" gear')
    yield "unknown reference", robot('mesh="link" mass', 'mesh="lnk" mass')
    yield "unknown element", {"robot.xml": ROBOT.replace("worldbody", "wordbody")}
    yield "unknown element", {"robot.xml": "<html/>"}
    yield "nothing moves", {"robot.xml": "<mujoco><worldbody><geom size='1'/></worldbody></mujoco>"}
    yield "includes itself", {"lights.xml": LIGHTS.replace("<worldbody>", '<include file="robot.xml"/><worldbody>')}


def _meshes() -> Iterator[tuple[str, Mapping[str, Any]]]:
    for text in ("f 1 2 3\n", OBJ.replace("f 1 3 2", "f 1 3 99999999"), OBJ.replace("f 1 3 2", "f 0 0 0")):
        yield "damaged mesh", {"meshes/link.obj": text}
    whole = stl()
    for count in (0, 1 << 31, 0xFFFFFFFF, 5):
        yield "huge counts", {"meshes/stone.stl": whole[:80] + struct.pack("<I", count) + whole[84:]}
    for value in (float("nan"), float("inf"), 1e39):
        yield "absurd geometry", {"meshes/stone.stl": stl(value)}
    yield "damaged mesh", {"meshes/stone.stl": stl(0.0)}
    for width, height in ((60_000, 60_000), (0, 4), (2**31 - 1, 2**31 - 1), (1, 2**31 - 1)):
        yield "picture bomb", {"meshes/wood.png": png(width, height, b"\0" * 64)}
    yield "picture bomb", {"meshes/wood.png": png(20_000, 20_000, bytes(20_000 * 3 + 1) * 600)}


def _urdfs() -> Iterator[tuple[str, Mapping[str, Any]]]:
    def urdf(old: str, new: str) -> Mapping[str, Any]:
        assert old in URDF, old
        return {"robot.urdf": URDF.replace(old, new)}

    for value in ("-1", "nan", "nan(1)", "1e39", "inf", "x", ""):
        yield "absurd physics", urdf('mass value="0.5"', f'mass value="{value}"')
        yield "absurd physics", urdf('damping="0.1"', f'damping="{value}"')
        yield "absurd physics", urdf('lower="-1" upper="1"', f'lower="{value}" upper="{value}"')
    for value in ("-1", "nan", "1e39", "0"):
        yield "absurd physics", urdf('radius="0.02"', f'radius="{value}"')
        yield "absurd physics", urdf('ixx="0.02"', f'ixx="{value}"')
    for path in ("package://../../etc/passwd", "package://arm/../../outside-the-folder/link.obj", "package://"):
        yield "path out of the folder", urdf("package://arm/meshes/link.obj", path)
    yield "name twice", urdf('link name="lower"', 'link name="upper"')
    yield "unknown reference", urdf('child link="lower"', 'child link="lowr"')
    yield "ring of links", urdf('parent link="base"', 'parent link="lower"')
    yield "unknown element", {"robot.urdf": "<robot/>"}
    yield "entities", {"robot.urdf": '<!DOCTYPE r [<!ENTITY x SYSTEM "file:///etc/passwd">]>' + URDF}


def _npz(arrays: Mapping[str, bytes], compressed: bool = False) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED) as archive:
        for name, data in arrays.items():
            archive.writestr(name, data)
    return out.getvalue()


def _npy(head: str, data: bytes = b"") -> bytes:
    text = head.ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def _npz_files() -> Iterator[tuple[str, bytes]]:
    head = "{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}"
    for kind, shape in (("<f8", "(999999999999,)"), ("<f8", "(-5,)"), ("|O", "(1,)"), ("<f8", "(1 << 60,)")):
        yield "forged header", _npz({"a.npy": _npy(head.format(kind, shape), bytes(64))})
    yield "archive bomb", _npz({"a.npy": _npy(head.format("<f8", "(40000000,)"), bytes(320_000_000))}, compressed=True)
    for name in ("../a.npy", "/etc/a.npy", "a\\..\\..\\b.npy", "a/../../b.npy"):
        yield "path out of the archive", _npz({name: _npy(head.format("<f8", "(1,)"), bytes(8))})
    yield "many members", _npz({f"{k}.npy": b"" for k in range(20_000)})
    yield "not an array", _npz({"a.npy": b"cos\nsystem\n(S'true'\ntR."})
    yield "no members", _npz({})


def _tables() -> Iterator[tuple[str, str]]:
    yield "ragged rows", "a,b,u\n1,2,3\n4,5\n"
    yield "not finite", "a,b,u\n" + "nan,inf,1e400\n" * 5
    yield "not finite", "a,b,u\n1,2,3\n4,nan,6\n7,8,9\n"
    yield "text for numbers", "a,b,u\none,two,three\n"
    yield "many columns", ",".join(f"c{k}" for k in range(50_000)) + "\n" + ",".join("1" * 50_000) + "\n"
    yield "long cell", "a,b,u\n" + "1" * 200_000 + ",2,3\n"
    yield "name twice", "a,a,u\n1,2,3\n4,5,6\n"
    yield "no rows", "a,b,u\n"
    yield "NUL characters", "a,b,u\n1,\0,3\n"
    yield "open quote", 'a,b,u\n"1,2,3\n' + "4,5,6\n" * 50
    yield "huge numbers", "a,b,u\n" + "1e300,-1e300,1e308\n" * 5


def _plys() -> Iterator[tuple[str, Mapping[str, Any]]]:
    from instep.splat.io.ply import save_ply

    path = Path(os.devnull).parent / "shm" / f"hostile-{os.getpid()}.ply"
    save_ply(path, gaussians())
    whole = path.read_bytes()
    path.unlink()
    for count in ("-5", "999999999999", "5.5", "x", "", "6", "18446744073709551616"):
        yield "huge counts", {"world.ply": whole.replace(b"vertex 5", b"vertex " + count.encode())}
    for old, new in ((b"binary_little_endian", b"ascii"), (b"property float x", b"property list uchar int x")):
        yield "forged header", {"world.ply": whole.replace(old, new, 1)}
    yield "long header", {"world.ply": b"ply\n" + b"comment x\n" * 100_000 + whole[4:]}
    start = whole.index(b"end_header") + 11
    row = (len(whole) - start) // 5
    for value in (float("nan"), float("inf"), 1e38):
        yield "not finite", {"world.ply": whole[:start] + struct.pack("<f", value) * ((len(whole) - start) // 4)}
    yield "not finite", {"world.ply": whole[:start] + struct.pack("<f", float("nan")) + whole[start + 4 :]}
    yield "no rotation", {"world.ply": whole[: start + row - 16] + bytes(16) + whole[start + row :]}


def _glbs() -> Iterator[tuple[str, Mapping[str, Any]]]:
    def glb(document: Any, data: bytes = bytes(400)) -> bytes:
        text = json.dumps(document).encode() if not isinstance(document, bytes) else document
        text += b" " * (-len(text) % 4)
        chunks = struct.pack("<II", len(text), 0x4E4F534A) + text + struct.pack("<II", len(data), 0x004E4942) + data
        return struct.pack("<4sII", b"glTF", 2, 12 + len(chunks)) + chunks

    view, accessor = (
        {"buffer": 0, "byteLength": 60},
        {"bufferView": 0, "componentType": 5126, "type": "VEC3", "count": 5},
    )
    names = (
        "POSITION",
        "COLOR_0",
        "KHR_gaussian_splatting:SCALE",
        "KHR_gaussian_splatting:ROTATION",
        "KHR_gaussian_splatting:OPACITY",
    )
    primitive = {"attributes": dict.fromkeys(names, 0), "mode": 0, "extensions": {"KHR_gaussian_splatting": {}}}
    sound = {
        "asset": {"version": "2.0"}, "scene": 0, "scenes": [{"nodes": [0]}], "nodes": [{"mesh": 0}],
        "meshes": [{"primitives": [primitive]}], "accessors": [accessor], "bufferViews": [view],
        "buffers": [{"byteLength": 400}],
    }  # fmt: skip
    for change in ({"count": -1}, {"count": 1 << 40}, {"count": "5"}, {"bufferView": 9}, {"bufferView": -1}):
        yield "forged counts", {"world.glb": glb({**sound, "accessors": [{**accessor, **change}]})}
    for change in ({"byteLength": 1 << 40}, {"byteLength": -1}, {"byteOffset": -5}, {"buffer": 7}, {"byteStride": 0}):
        yield "forged counts", {"world.glb": glb({**sound, "bufferViews": [{**view, **change}]})}
    nodes = [{"children": [1]}, {"children": [0]}]
    yield "ring of nodes", {"world.glb": glb({**sound, "nodes": nodes})}
    yield (
        "ring of nodes",
        {"world.glb": glb({**sound, "nodes": [{"children": [k + 1]} for k in range(5000)] + [{"mesh": 0}]})},
    )
    for matrix in ([0] * 15, [float("1e39")] * 16, "x", [None] * 16):
        yield "forged counts", {"world.glb": glb({**sound, "nodes": [{"mesh": 0, "matrix": matrix}]})}
    for top in (b"[]", b"3", b"null", b"[" * DEEP, b'{"asset": {}}'):
        yield "wrong top level", {"world.glb": glb(top)}
    yield "forged counts", {"world.glb": struct.pack("<4sII", b"glTF", 2, 0xFFFFFFFF) + bytes(40)}
    yield "forged counts", {"world.glb": struct.pack("<4sIIII", b"glTF", 2, 40, 0xFFFFFFFF, 0x4E4F534A) + bytes(40)}


def _gltfs() -> Iterator[tuple[str, Mapping[str, Any]]]:
    for uri in ("../outside-the-folder/x.bin", "/etc/passwd", "file:///etc/passwd", "http://127.0.0.1/x", "data:,x"):

        def change(path: Path, uri: Any = uri) -> None:
            document = json.loads(path.read_text())
            document["buffers"][0]["uri"] = uri
            path.write_text(json.dumps(document))

        yield "path out of the folder", {"body.gltf": change}


def _usds() -> Iterator[tuple[str, Mapping[str, Any]]]:
    top = "#usda 1.0\n(\n    subLayers = [@{}@]\n)\n"
    for path in ("../outside-the-folder/x.usda", "/etc/passwd", "http://127.0.0.1/x.usda", "world.usda"):
        yield "path out of the folder", {"world.usda": top.format(path)}
    prim = '#usda 1.0\ndef ParticleField3DGaussianSplat "g"\n{{\n{}\n}}\n'
    full = (
        "point3f[] positions = [(0,0,0)]\nquatf[] orientations = [(1,0,0,0)]\nfloat3[] scales = [(1,1,1)]\n"
        "float[] opacities = [{}]\nuniform int radiance:sphericalHarmonicsDegree = {}\n"
        "float3[] radiance:sphericalHarmonicsCoefficients = [{}]"
    )
    yield "missing parts", {"world.usda": prim.format("")}
    yield "missing parts", {"world.usda": prim.format("point3f[] positions = [(0,0,0)]")}
    for opacity, degree, sh in (("nan", 0, "(0,0,0)"), ("1, 1", 0, "(0,0,0)"), ("1", -1, "(0,0,0)"), ("1", 0, "")):
        yield "absurd values", {"world.usda": prim.format(full.format(opacity, degree, sh))}
    yield (
        "deep nesting",
        {"world.usda": "#usda 1.0\n" + "".join(f'def Xform "a{k}" {{\n' for k in range(3000)) + "}\n" * 3000},
    )
    yield (
        "reference to itself",
        {"world.usda": '#usda 1.0\n(defaultPrim = "a")\ndef "a" (references = @world.usda@) {}\n'},
    )


def _weights() -> Iterator[tuple[str, Mapping[str, Any]]]:
    def tensors(head: Any, data: bytes = bytes(64)) -> Mapping[str, Any]:
        text = head if isinstance(head, bytes) else json.dumps(head).encode()
        return {"policy/weights.safetensors": struct.pack("<Q", len(text)) + text + data}

    for entry in ({"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 64]}, {}, None, 3):
        yield "forged header", tensors({"a": entry})
    yield (
        "forged header",
        tensors({f"t{k}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for k in range(20_000)}),
    )
    yield "forged header", tensors(b"[" * DEEP)
    yield "forged header", tensors(b"[]")
    yield "forged header", tensors({})
    for size in (0, 1 << 63, (1 << 64) - 1, 7):
        yield "forged header", {"policy/weights.safetensors": struct.pack("<Q", size) + b"{}"}
    yield (
        "not finite",
        tensors({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, struct.pack("<f", float("nan"))),
    )
    yield "pickle", {"policy/weights.safetensors": b"\x80\x04cos\nsystem\n\x8c\x04true\x85R."}


def _stores() -> Iterator[tuple[str, Mapping[str, Any]]]:
    state = {
        "zarr_format": 2, "shape": [12, 2], "chunks": [12, 2], "dtype": "<f8", "compressor": None, "fill_value": 0.0,
        "order": "C", "filters": None,
    }  # fmt: skip
    for change in ({"shape": [1 << 40, 2]}, {"shape": [-1, 2]}, {"shape": []}, {"chunks": [0, 0]}, {"dtype": "|O"}):
        yield "forged header", {"run.zarr/data/state/.zarray": json.dumps({**state, **change})}
    yield "path out of the folder", {"run.zarr/data/state": lambda p: (shutil.rmtree(p), p.symlink_to("/etc"))}


def _hdf5s() -> Iterator[tuple[str, Mapping[str, Any]]]:
    import h5py

    def made(fill: Callable[[Any], object]) -> bytes:
        out = io.BytesIO()
        with h5py.File(out, "w") as file:
            fill(file)
        return out.getvalue()

    def dataset(**options: Any) -> Callable[[Any], object]:
        return lambda file: (
            file.create_dataset("observations/qpos", **options),
            file.create_dataset("action", data=np.zeros((5, 2))),
        )

    yield "huge counts", {"run.hdf5": made(dataset(shape=(1 << 40, 8), dtype="f8", chunks=(4, 8), compression="gzip"))}
    yield (
        "huge counts",
        {"run.hdf5": made(dataset(shape=(100_000_000, 8), dtype="f8", chunks=(1000, 8), compression="gzip"))},
    )
    yield (
        "huge counts",
        {
            "run.hdf5": made(
                lambda f: (
                    f.create_dataset(
                        "observations/images/top", shape=(5, 60_000, 60_000, 3), dtype="u1", chunks=(1, 64, 64, 3)
                    ),
                    dataset(data=np.zeros((5, 2)))(f),
                )
            )
        },
    )
    yield (
        "path out of the file",
        {"run.hdf5": made(lambda f: f.__setitem__("observations/qpos", h5py.ExternalLink("/etc/passwd", "x")))},
    )
    yield (
        "path out of the file",
        {"run.hdf5": made(lambda f: f.__setitem__("observations/qpos", h5py.SoftLink("/nowhere")))},
    )
    yield "ring of groups", {"run.hdf5": made(lambda f: (f.create_group("a"), f["a"].__setitem__("b", f["a"])))}
    yield (
        "not numbers",
        {"run.hdf5": made(lambda f: f.create_dataset("observations/qpos", data=np.array([b"x", b"y"], "S1")))},
    )
    yield "not numbers", {"run.hdf5": made(dataset(data=["x", "y"], dtype=h5py.string_dtype()))}
    yield "not numbers", {"run.hdf5": made(dataset(shape=(5,), dtype=h5py.ref_dtype))}
    yield "not finite", {"run.hdf5": made(dataset(data=np.full((5, 2), np.nan)))}
    yield "odd shapes", {"run.hdf5": made(dataset(data=np.zeros((0, 2))))}
    yield "odd shapes", {"run.hdf5": made(dataset(data=3.0))}
    yield "odd shapes", {"run.hdf5": made(dataset(data=np.zeros((9, 2))))}
    yield "odd shapes", {"run.hdf5": made(dataset(data=np.zeros((5, 2, 2, 2, 2))))}
    yield "nothing inside", {"run.hdf5": made(lambda f: None)}


def _bags() -> Iterator[tuple[str, Mapping[str, Any]]]:
    top = (
        "rosbag2_bagfile_information:\n  version: {}\n  storage_identifier: {}\n  relative_file_paths: [{}]\n"
        "  duration: {{nanoseconds: 1}}\n  starting_time: {{nanoseconds_since_epoch: 0}}\n  message_count: 1\n"
        "  topics_with_message_count: []\n  compression_format: ''\n  compression_mode: ''\n"
    )
    for path in ("../outside-the-folder/x.db3", "/etc/passwd", "nowhere.db3", "''", "metadata.yaml"):
        yield "path out of the folder", {"bag/metadata.yaml": top.format(9, "sqlite3", path)}
    yield "wrong kind", {"bag/metadata.yaml": top.format("'x'", "sqlite3", "run.db3")}
    yield "wrong kind", {"bag/metadata.yaml": top.format(9, "nothing", "run.db3")}
    yield "wrong kind", {"bag/metadata.yaml": top.format(9, "mcap", "run.db3")}
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{chr(98 + k)}: &{chr(98 + k)} [{','.join(['*' + chr(97 + k)] * 9)}]\n" for k in range(9)
    )
    yield "aliases", {"bag/metadata.yaml": bomb}
    yield "deep nesting", {"bag/metadata.yaml": "[" * 20_000}
    yield "deep nesting", {"bag/metadata.yaml": "rosbag2_bagfile_information: " + "{a: " * 3000 + "1" + "}" * 3000}
    yield "code", {"bag/metadata.yaml": "!!python/object/apply:os.system ['true']\n"}


def _parquets() -> Iterator[tuple[str, Mapping[str, Any]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def table(columns: Mapping[str, Any]) -> bytes:
        out = io.BytesIO()
        pq.write_table(pa.table(dict(columns)), out)
        return out.getvalue()

    rows, tasks, episodes = (
        "set/data/chunk-000/file-000.parquet",
        "set/meta/tasks.parquet",
        "set/meta/episodes/chunk-000/file-000.parquet",
    )
    bomb = pa.DictionaryArray.from_arrays(pa.array(np.zeros(300_000, np.int32)), pa.array(["x" * 20_000]))
    yield "table bomb", {tasks: table({"task": bomb, "task_index": np.arange(300_000)})}
    yield (
        "table bomb",
        {rows: table({"observation.state": np.zeros(60_000_000), "index": np.zeros(60_000_000, np.int64)})},
    )
    yield "other columns", {rows: table({"x": [1, 2]})}
    yield "other columns", {rows: table({"index": ["a"] * 24})}
    yield "other columns", {tasks: table({"x": [1]})}
    yield "other columns", {episodes: table({"x": [1, 2]})}
    yield "other columns", {episodes: table({"episode_index": [0, 1], "length": [-5, 1 << 60]})}
    yield "other columns", {episodes: table({"episode_index": ["a", "b"], "length": ["x", "y"]})}
    yield "no rows", {rows: table({"index": np.zeros(0, np.int64)})}


OWN: dict[str, Callable[[], Any]] = {
    "MJCF": _robots,
    "meshes and textures": _meshes,
    "URDF": _urdfs,
    "NPZ": lambda: [(kind, {"run.npz": data}) for kind, data in _npz_files()],
    "CSV": lambda: [(kind, {"run.csv": text}) for kind, text in _tables()],
    "success rates": lambda: [(kind, {"rates.csv": text}) for kind, text in _tables()],
    "gzipped CSV": lambda: [("archive bomb", {"run.csv.gz": gzip.compress(b"1,2,3\n" * 2_000_000, 1) * 60})],
    "PLY": _plys,
    "GLB": _glbs,
    "glTF": _gltfs,
    "USDA": _usds,
    "policy folder": _weights,
    "zarr": _stores,
    "HDF5": _hdf5s,
    "ROS bag": _bags,
    "LeRobot v3.0": _parquets,
    "image": lambda: [("picture bomb", {"image.png": png(side, side, b"\0" * 64)}) for side in (60_000, 2**31 - 1, 0)],
    "posed images": lambda: [("picture bomb", {"images/0.png": png(60_000, 60_000, b"\0" * 64)})],
}  # fmt: skip
"""Bad files of a format: kind, and content by name."""
