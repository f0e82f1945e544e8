"""Untrusted files: each is refused in one sentence, in bounded memory, and nothing is written half."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from instep.core.errors import BadInput, InstepError
from instep.data import files, import_recordings, load_episodes, write_dataset
from instep.data.formats.table_formats import read_hdf5
from instep.data.lerobot.reader import read_lerobot

from .conftest import CAMERA, small_episode


def one_sentence(error: BaseException) -> None:
    text = str(error)
    assert "\n" not in text and text.endswith(".") and len(text) < 600, text


def read_all(folder: Path) -> None:
    for episode in read_lerobot(folder):
        for column in episode.columns.values():
            np.asarray(column)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset([small_episode(8, 0), small_episode(6, 1)], tmp_path_factory.mktemp("h") / "set")


def copied(dataset: Path, tmp_path: Path) -> Path:
    import shutil

    return Path(shutil.copytree(dataset, tmp_path / "copy"))


TABLES = ["data/chunk-000/file-000.parquet", "meta/episodes/chunk-000/file-000.parquet", "meta/tasks.parquet"]


@pytest.mark.parametrize("name", TABLES)
def test_a_flipped_bit_in_a_dataset_of_ours_is_found_by_its_checksum(dataset: Path, tmp_path: Path, name: str):
    here = copied(dataset, tmp_path)
    whole = (here / name).read_bytes()
    rng = np.random.default_rng(0)
    for place in rng.integers(0, len(whole), 20):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << int(rng.integers(8))
        (here / name).write_bytes(flipped)
        with pytest.raises(BadInput, match="SHA-256 differs") as error:
            load_episodes(here)
        one_sentence(error.value)


@pytest.mark.parametrize("name", TABLES[:2])
def test_flipped_bits_in_a_stranger_s_parquet_never_take_us_down(dataset: Path, tmp_path: Path, name: str):
    """Some flips make the parquet library crash; that happens to another process, and is said."""
    here = copied(dataset, tmp_path)
    (here / "meta/instep.json").unlink()
    whole = (here / name).read_bytes()
    rng = np.random.default_rng(2)
    said = []
    for place in len(whole) - rng.integers(0, len(whole) // 2, 6):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << int(rng.integers(8))
        (here / name).write_bytes(flipped)
        try:
            list(load_episodes(here))
        except InstepError as error:
            one_sentence(error)
            said.append(str(error))
    assert said, "damage to the structure of a file is found"


def test_cut_off_files_are_said(dataset: Path, tmp_path: Path):
    for name in ("data/chunk-000/file-000.parquet", f"videos/{CAMERA}/chunk-000/file-000.mp4", "meta/info.json"):
        here = copied(dataset, tmp_path / name.replace("/", "_"))
        data = (here / name).read_bytes()
        (here / name).write_bytes(data[: len(data) // 2])
        with pytest.raises(BadInput) as error:
            read_all(here)
        one_sentence(error.value)
        (here / name).unlink()
        with pytest.raises(BadInput) as error:
            read_all(here)
        one_sentence(error.value)


def test_a_dictionary_bomb_is_refused_before_it_is_decoded(tmp_path: Path):
    path = tmp_path / "bomb.parquet"
    rows = 300_000
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array(["x" * 20_000]))
    pq.write_table(pa.table({"task": column, "task_index": np.arange(rows)}), path)
    assert path.stat().st_size < 2_000_000, "small on disk, six gigabytes decoded"
    code = (
        "import sys; from pathlib import Path; from instep.data import files\n"
        "from instep.core.errors import BadInput\n"
        "path = Path(sys.argv[1])\n"
        "try: files.plain_text(files.read_table(path))\n"
        "except BadInput as error: print(error)\n"
        "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60)
    lines = done.stdout.splitlines()  # getrusage would begin with the peak of the process that started this one
    assert "GiB of text" in lines[0] and int(lines[1]) < 700_000, done


def test_numbers_that_decode_to_too_much_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pq.write_table(pa.table({"x": np.zeros(500_000)}), tmp_path / "zeros.parquet")
    assert (tmp_path / "zeros.parquet").stat().st_size < 20_000
    monkeypatch.setattr(files, "MAX_DECODED", 1 << 20)
    with pytest.raises(BadInput, match="would decode to") as error:
        files.open_parquet(tmp_path / "zeros.parquet")
    one_sentence(error.value)


def test_an_archive_bomb_is_refused(tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "run.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", bytes(300 << 20))
    with pytest.raises(BadInput, match="would unpack from") as error:
        files.read_npz(tmp_path / "run.npz")
    one_sentence(error.value)


def test_paths_in_info_cannot_leave_the_folder(dataset: Path, tmp_path: Path):
    here = copied(dataset, tmp_path)
    info = json.loads((here / "meta/info.json").read_text())
    for path in ("../../secret.parquet", "/etc/passwd", "{chunk_index.__class__}"):
        (here / "meta/info.json").write_text(json.dumps({**info, "data_path": path}))
        with pytest.raises(BadInput) as error:
            read_all(here)
        one_sentence(error.value)
    (here / "meta/info.json").write_text(json.dumps(info))
    (here / "data/chunk-000/file-000.parquet").unlink()
    (here / "data/chunk-000/file-000.parquet").symlink_to("/etc/hostname")
    with pytest.raises(BadInput, match="leads out of its folder"):
        read_all(here)


@pytest.mark.parametrize(
    "change",
    [
        {"features": {}},
        {"features": {"x": {"dtype": "float32", "shape": [-1]}}},
        {"features": {"x": {"dtype": "float32", "shape": [1 << 40]}}},
        {"features": "all"},
        {"fps": 0},
        {"fps": "fast"},
        {"total_episodes": 1 << 60},
        {"total_frames": -4},
        {"codebase_version": "v9"},
    ],
)
def test_nonsense_in_info_is_said(dataset: Path, tmp_path: Path, change: dict):
    here = copied(dataset, tmp_path)
    info = json.loads((here / "meta/info.json").read_text())
    (here / "meta/info.json").write_text(json.dumps({**info, **change}))
    with pytest.raises(BadInput) as error:
        read_all(here)
    one_sentence(error.value)
    (here / "meta/info.json").write_text("[" * 100_000)
    with pytest.raises(BadInput) as error:
        load_episodes(here)
    one_sentence(error.value)


def test_hdf5_with_missing_keys_or_links_out(tmp_path: Path):
    import h5py

    with h5py.File(tmp_path / "keys.hdf5", "w") as file:
        file["observations/qvel"] = np.zeros((5, 2))
    with h5py.File(tmp_path / "link.hdf5", "w") as file:
        file["observations/qpos"] = h5py.ExternalLink("/etc/passwd", "x")
    with h5py.File(tmp_path / "lengths.hdf5", "w") as file:
        file["observations/qpos"], file["action"] = np.zeros((5, 2)), np.zeros((9, 2))
    (tmp_path / "noise.hdf5").write_bytes(np.random.default_rng(0).bytes(5000))
    for name, message in (
        ("keys", "observations/qpos"),
        ("link", "a link to elsewhere"),
        ("lengths", "has 9 rows"),
        ("noise", "cannot be read as HDF5"),
    ):
        with pytest.raises(BadInput, match=message) as error:
            import_recordings(tmp_path / f"{name}.hdf5", tmp_path / "out")
        one_sentence(error.value)
        assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".*partial"))


def test_an_hdf5_file_whose_heap_of_texts_never_ends_is_refused(tmp_path: Path):
    import h5py

    path = tmp_path / "run.hdf5"
    with h5py.File(path, "w") as file:
        file["q"] = np.zeros((4, 2))
        file.attrs["task"] = "pick"  # a text of any length lies in a heap
    raw = bytearray(path.read_bytes())
    heap = raw.index(b"GCOL")
    first = heap + 16
    free = first + 16 + 8  # behind the one text, padded to eight bytes
    assert raw[first] == 1 and raw[free : free + 2] == b"\0\0" and any(raw[free + 8 : free + 16])
    assert next(read_hdf5(path, {})).header["task"] == "pick"
    raw[free + 8 : free + 16] = bytes(8)
    path.write_bytes(raw)
    with pytest.raises(BadInput, match="heap of texts is damaged") as caught:
        next(read_hdf5(path, {}))
    one_sentence(caught.value)


GOOD = {"episode": 0, "columns": [["q", "<f8", [2]]], "images": [], "spec": {}, "meta": {}}


@pytest.mark.parametrize(
    "described", [b"[" * 100_000, b"7", b"{}", {**GOOD, "columns": [["q", "O", [2]]]}, {**GOOD, "columns": 3}, GOOD]
)
def test_a_forged_journal_is_refused_and_stays(tmp_path: Path, described: bytes | dict):
    from instep.data import journal
    from instep.data.recovery import finish_recording

    place = tmp_path / "journal/000000.rows"
    place.parent.mkdir()
    with place.open("wb") as file:
        payload = described if isinstance(described, bytes) else json.dumps(described).encode()
        journal.Journal(file.fileno()).append(journal.BEGIN, 0, (0, 0), payload)
    with pytest.raises(BadInput) as error:
        finish_recording(tmp_path)
    one_sentence(error.value)
    assert place.is_file()


def test_bags_and_logs_of_unknown_types(tmp_path: Path):
    import mcap.writer as writing

    with (tmp_path / "odd.mcap").open("wb") as file:
        writer = writing.Writer(file)
        writer.start()
        kind = writer.register_schema("acme/Thing", "protobuf", b"\x00\x01")
        channel = writer.register_channel("/thing", "protobuf", kind)
        writer.add_message(channel, 1, b"\xff" * 50, 1)
        writer.finish()
    with pytest.raises(BadInput, match=r"no joint states .*acme/Thing") as error:
        load_episodes(tmp_path / "odd.mcap")
    one_sentence(error.value)
    (tmp_path / "noise.mcap").write_bytes(np.random.default_rng(0).bytes(3000))
    with pytest.raises(BadInput, match="cannot be read as MCAP") as error:
        load_episodes(tmp_path / "noise.mcap")
    one_sentence(error.value)
    (tmp_path / "bag").mkdir()
    (tmp_path / "bag/metadata.yaml").write_text("rosbag2_bagfile_information: {version: 99}")
    with pytest.raises(BadInput, match="cannot be read as a ROS bag") as error:
        load_episodes(tmp_path / "bag")
    one_sentence(error.value)


def test_zarr_that_promises_more_than_it_has(tmp_path: Path):
    import zarr

    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w", zarr_format=2)
    group.create_array("data/state", data=np.zeros((5, 2)))
    group.create_array("data/action", data=np.zeros((5, 2)))
    group.create_array("meta/episode_ends", data=np.array([3, 900]))
    with pytest.raises(BadInput, match="as long as") as error:
        load_episodes(tmp_path / "a.zarr")
    one_sentence(error.value)
    huge = json.loads((tmp_path / "a.zarr/data/state/.zarray").read_text())
    (tmp_path / "a.zarr/data/state/.zarray").write_text(json.dumps({**huge, "shape": [1 << 40, 2]}))
    with pytest.raises(BadInput, match="which is refused") as error:
        load_episodes(tmp_path / "a.zarr")
    one_sentence(error.value)


def test_no_reader_unpickles():
    source = Path(files.__file__).parent
    for path in source.rglob("*.py"):
        text = path.read_text()
        assert "pickle" not in text.replace("allow_pickle=False", "") and "eval(" not in text, path.name


def test_reading_stays_within_memory(dataset: Path):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    read_all(dataset)
    read_lerobot(dataset)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000
