"""Content from outside is read by the bounded, schema-checked readers alone; every other parser call is named here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "src/instep"
PARSERS = {
    "json.loads", "json.load", "tomllib.loads", "tomllib.load", "tomlkit.parse", "tomlkit.loads", "tomlkit.load",
    "yaml.load", "yaml.safe_load", "pickle.load", "pickle.loads", "marshal.loads", "shelve.open", "eval", "exec",
    "ast.literal_eval", "csv.reader", "csv.DictReader", "msgpack.unpackb", "msgpack.Unpacker", "sqlite3.connect",
    "np.load", "np.fromfile", "np.loadtxt", "np.genfromtxt", "np.memmap", "np.fromstring", "npy.read_array",
    "zipfile.ZipFile", "tarfile.open", "gzip.open", "bz2.open", "lzma.open", "zlib.decompress",
    "ET.parse", "ET.fromstring", "ET.XML", "ET.iterparse", "expat.ParserCreate", "minidom.parse", "trimesh.load",
    "Image.open", "imread", "imageio.imread", "iio.imread", "cv2.imread", "cv2.imdecode", "av.open",
    "h5py.File", "zarr.open", "zarr.open_group", "safe_open", "load_file", "torch.load", "torch.jit.load",
}  # fmt: skip
"""Calls that parse what they are given, as they are written in this project."""
PARSER_METHODS = {
    "read_text", "read_bytes", "ParquetFile", "read_metadata", "read_row_groups", "InferenceSession", "AnyReader",
    "make_reader", "from_xml_path", "from_xml_string", "from_binary_path", "from_string", "from_file", "plyread",
    "read_spz", "sogread", "decoder_for",
}  # fmt: skip
"""The same, as methods of anything."""
ONLY_WRITES = ("'w'", "'wb'", "'a'", "'r+b'")

OWN = "reads what this process, or its own parent or child, wrote a moment ago"
BOUNDED = "checks the size and the kind of the file before, and turns what is raised into one sentence"
SHIPPED = "reads a file that comes with instep"
GAUSSIANS = "is called by load_gaussians, which has checked the file and has it inside `with parsing(...)`"
CHECKED_MODEL = "gets XML that the reader of models has confined and checked, and that a child process has compiled"
WRITTEN_MODEL = "gets XML that MuJoCo wrote a moment ago"
ALLOWED = {
    ("core/reading.py", "json.loads"): "is the reader",
    ("core/reading.py", "tomllib.loads"): "is the reader",
    ("core/processes.py", "read_text"): "the kernel writes it",
    ("core/processes.py", "json.loads"): OWN,
    ("data/journal.py", "json.loads"): OWN,
    ("policy/training.py", "json.loads"): OWN,
    ("app/verbs/demo.py", "read_bytes"): OWN,
    ("app/verbs/evaluate.py", "read_bytes"): OWN,
    ("app/side_process.py", "read_text"): OWN,
    ("app/recorded_run.py", "read_bytes"): OWN,
    ("app/verbs/reconstruct.py", "read_bytes"): OWN,
    ("app/verbs/twin_run.py", "read_bytes"): OWN,
    ("lab/legs_study.py", "read_bytes"): OWN,
    ("app/viewer/showing.py", "json.loads"): "talks to the browser that it started",
    ("app/viewer/live_view.py", "pickle.loads"): "gets its setup from the process that started it, by a pipe",
    ("app/viewer/view_server.py", "json.loads"): SHIPPED,
    ("app/viewer/view_server.py", "read_text"): SHIPPED,
    ("app/viewer/view_server.py", "read_bytes"): SHIPPED,
    ("data/mapping.py", "read_text"): SHIPPED,
    ("data/files.py", "npy.read_array"): "is called by readers that are inside `with parsing(...)`",
    ("data/files.py", "zipfile.ZipFile"): "is called by readers that are inside `with parsing(...)`",
    ("data/formats/table_formats.py", "zipfile.ZipFile"): "is called by readers that are inside `with parsing(...)`",
    ("physics/mujoco_cameras.py", "from_xml_string"): "gets an empty model",
    ("policy/openpi.py", "msgpack.unpackb"): BOUNDED,
    ("policy/model_files.py", "torch.jit.load"): BOUNDED,
    ("policy/model_files.py", "InferenceSession"): BOUNDED,
    ("policy/model_files.py", "torch.load"): BOUNDED,
    ("robot/wire.py", "msgpack.unpackb"): BOUNDED,
    ("reconstruct/capture/colmap_process.py", "json.loads"): OWN,
    ("reconstruct/capture/colmap_process.py", "read_text"): OWN,
    (
        "reconstruct/capture/structure_from_motion.py",
        "Image.open",
    ): "reads EXIF alone; a photograph whose EXIF is damaged has none",
    ("reconstruct/capture/structure_from_motion.py", "read_text"): OWN,
    ("reconstruct/scene_formats.py", "ET.fromstring"): CHECKED_MODEL,
    ("reconstruct/scene_formats.py", "from_string"): CHECKED_MODEL,
    ("scene/model.py", "from_string"): CHECKED_MODEL,
    ("scene/model_source.py", "from_file"): CHECKED_MODEL,
    ("scene/model_source.py", "expat.ParserCreate"): "is the reader: it refuses entities, and bounds size and depth",
    ("scene/new_scene.py", "from_string"): CHECKED_MODEL,
    ("scene/new_scene.py", "ET.fromstring"): CHECKED_MODEL,
    ("splat/raster/cuda_driver.py", "read_text"): SHIPPED,
    ("splat/raster/cuda_driver.py", "read_bytes"): "loads kernels that it compiled before, and compiles them anew else",
    ("splat/gaussian_files.py", "read_spz"): GAUSSIANS,
    ("splat/gaussian_files.py", "gzip.open"): GAUSSIANS,
    ("splat/gaussian_files.py", "np.memmap"): GAUSSIANS,
    ("tune/param_export.py", "from_xml_string"): WRITTEN_MODEL,
    ("tune/param_export.py", "read_text"): WRITTEN_MODEL,
    ("tune/param_export.py", "read_bytes"): "hashes regular files, and parses nothing",
    ("tune/torque/torque_identification.py", "ET.fromstring"): WRITTEN_MODEL,
}
"""Calls that need no guard, by file and call, and why."""


def calls(path: Path) -> Iterator[tuple[str, int]]:
    """The parser calls of a file that are not inside `with parsing(...)`, and their lines."""
    yield from _calls(ast.parse(path.read_text(encoding="utf-8")), guarded=False)


def _calls(node: ast.AST, guarded: bool) -> Iterator[tuple[str, int]]:
    if isinstance(node, ast.With):
        items = [ast.unparse(item.context_expr) for item in node.items]
        inside = guarded
        for item, words in zip(node.items, items, strict=True):
            yield from _calls(item.context_expr, inside)
            inside = inside or words.startswith("parsing(")
        for child in node.body:
            yield from _calls(child, inside)
        return
    if isinstance(node, ast.Call) and not guarded and (name := _parser(node)):
        yield name, node.lineno
    for child in ast.iter_child_nodes(node):
        yield from _calls(child, guarded)


def _parser(call: ast.Call) -> str:
    """The name of the parser that is called; empty where none is."""
    words = ast.unparse(call.func)
    writes = any(ast.unparse(one) in ONLY_WRITES for one in [*call.args, *(k.value for k in call.keywords)])
    if words in PARSERS:
        return "" if writes else words
    if isinstance(call.func, ast.Attribute) and call.func.attr in PARSER_METHODS:
        return call.func.attr
    return ""


def test_every_reader_of_foreign_content_is_guarded():
    unguarded, used = list[str](), set[tuple[str, str]]()
    for path in sorted(SOURCES.rglob("*.py")):
        name = str(path.relative_to(SOURCES))
        for call, line in calls(path):
            if (name, call) in ALLOWED:
                used.add((name, call))
            else:
                unguarded.append(f"{name}:{line} {call}")
    assert not unguarded, (
        "read these by instep.core.reading, by instep.core.reading.read_entries or inside `with parsing(...)`, or say "
        f"in ALLOWED why they need no guard: {unguarded}"
    )
    assert used == set(ALLOWED), f"no longer called: {set(ALLOWED) - used}"


def test_a_new_reader_without_a_guard_is_found(tmp_path: Path):
    lines = ["with parsing(p, 'JSON'):", "    json.loads(t)", "json.loads(t)", "av.open(p, 'w')", "p.read_text()"]
    (tmp_path / "new.py").write_text("\n".join(lines))
    assert list(calls(tmp_path / "new.py")) == [("json.loads", 3), ("read_text", 5)]
