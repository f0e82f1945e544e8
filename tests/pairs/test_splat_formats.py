"""Every format of Gaussians against every other, and what each says of a broken file."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from instep.core.errors import BadInput, Unsupported
from instep.core.poses import matrix_from_quat, normalized
from instep.splat.gaussian_files import load_gaussians, load_scanned_body, save_gaussians
from instep.splat.gaussians import Gaussians, gaussians_from_colours

QUARTER = 0.5**0.5
LOSSLESS = [".ply", ".glb", ".usda", ".usdc", ".usdz"]


def some(degree: int = 3, n: int = 7) -> Gaussians:
    """Gaussians without any symmetry that could hide a swapped axis, channel or sign; three are turned 90 degrees."""
    rng = np.random.default_rng(5)
    quats = rng.normal(size=(n, 4))
    quats[0], quats[1], quats[2] = [QUARTER, QUARTER, 0, 0], [QUARTER, 0, QUARTER, 0], [QUARTER, 0, 0, QUARTER]
    return Gaussians(
        means=rng.normal(size=(n, 3)).astype(np.float32),
        quats=quats.astype(np.float32),
        scales=np.exp(rng.normal(-4, 1, (n, 3))).astype(np.float32).astype(float),
        opacities=rng.uniform(0.05, 0.95, n),
        sh=(0.3 * rng.normal(size=(n, (degree + 1) ** 2, 3))).astype(np.float32),
        body=np.zeros(n, np.int32),
        names=("tee",),
    )


def assert_same(a: Gaussians, b: Gaussians, tolerance: float) -> None:
    np.testing.assert_allclose(a.means, b.means, atol=tolerance)
    np.testing.assert_allclose(a.scales, b.scales, rtol=max(tolerance, 1e-6))
    np.testing.assert_allclose(a.opacities, b.opacities, atol=tolerance)
    np.testing.assert_allclose(a.sh, b.sh, atol=tolerance)
    turns = [matrix_from_quat(normalized(np.asarray(g.quats, float))) for g in (a, b)]
    np.testing.assert_allclose(turns[0], turns[1], atol=tolerance)


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_a_ply_file_comes_back_bit_for_bit(tmp_path: Path, degree: int) -> None:
    save_gaussians(tmp_path / "a.ply", some(degree))
    save_gaussians(tmp_path / "b.ply", load_gaussians(tmp_path / "a.ply"))
    assert (tmp_path / "a.ply").read_bytes() == (tmp_path / "b.ply").read_bytes()


def test_the_rest_of_the_colour_in_a_ply_file_is_channel_major(tmp_path: Path) -> None:
    gaussians = some(1)
    save_gaussians(tmp_path / "a.ply", gaussians)
    data = (tmp_path / "a.ply").read_bytes()
    row = np.frombuffer(data[data.index(b"end_header\n") + 11 :], "<f4").reshape(len(gaussians), -1)
    np.testing.assert_array_equal(row[:, 9:12], gaussians.sh[:, 1:, 0])
    np.testing.assert_array_equal(row[:, 12:15], gaussians.sh[:, 1:, 1])
    np.testing.assert_allclose(1 / (1 + np.exp(-row[:, 18])), gaussians.opacities, rtol=1e-6)
    np.testing.assert_allclose(np.exp(row[:, 19:22]), gaussians.scales, rtol=1e-6)


def test_y_up_ply_and_glb_of_one_scene_hold_the_same_coordinates_and_come_back_z_up(tmp_path: Path) -> None:
    given = some(2)
    save_gaussians(tmp_path / "tee.glb", given)
    save_gaussians(tmp_path / "tee.ply", given, up="y")
    save_gaussians(tmp_path / "z.ply", given)
    assert b"comment Vertical Axis: y\n" in (tmp_path / "tee.ply").read_bytes()
    assert b"comment Vertical Axis: z\n" in (tmp_path / "z.ply").read_bytes()
    for name in ("tee.glb", "tee.ply", "z.ply"):
        assert_same(load_gaussians(tmp_path / name), given, 2e-6)
    # Without the comment it is what a viewer sees: up is y, as in the glTF file.
    unsaid = (tmp_path / "tee.ply").read_bytes().replace(b"comment Vertical Axis: y\n", b"")
    (tmp_path / "unsaid.ply").write_bytes(unsaid)
    np.testing.assert_allclose(load_gaussians(tmp_path / "unsaid.ply").means[:, 1], given.means[:, 2], atol=1e-6)
    assert_same(load_gaussians(tmp_path / "unsaid.ply", up="y"), given, 2e-6)
    with pytest.raises(BadInput, match="is y by definition"):
        save_gaussians(tmp_path / "other.glb", given, up="y")


@pytest.mark.parametrize("first", LOSSLESS)
@pytest.mark.parametrize("second", LOSSLESS)
def test_gaussians_survive_every_pair_of_formats(tmp_path: Path, first: str, second: str) -> None:
    save_gaussians(tmp_path / f"tee{first}", some())
    save_gaussians(tmp_path / f"again{second}", load_gaussians(tmp_path / f"tee{first}"))
    assert_same(load_gaussians(tmp_path / f"again{second}"), some(), 2e-6)


def test_a_splat_file_keeps_what_it_can_hold(tmp_path: Path) -> None:
    save_gaussians(tmp_path / "tee.splat", some(0))
    assert_same(load_gaussians(tmp_path / "tee.splat"), some(0), 0.02)
    with pytest.raises(Unsupported, match="degree 0"):
        save_gaussians(tmp_path / "tee.splat", some(2))


def test_the_json_of_embodied_gaussians_is_read_only(tmp_path: Path) -> None:
    given, path = some(0), tmp_path / "tee.json"
    rows = {"means": given.means, "quats": given.quats, "scales": given.scales, "opacities": given.opacities}
    table = {name: np.asarray(values).tolist() for name, values in rows.items()}
    path.write_text(json.dumps({"name": "tee", "gaussians": {**table, "colors": given.colours[:, ::-1].tolist()}}))
    assert_same(load_gaussians(path), given, 1e-7)
    with pytest.raises(BadInput, match="read, not written"):
        save_gaussians(path, given)


@pytest.mark.parametrize("degree", [0, 3])
def test_an_spz_file_keeps_place_size_and_colour(tmp_path: Path, degree: int, gsply: ModuleType) -> None:
    save_gaussians(tmp_path / "tee.spz", some(degree))
    again = load_gaussians(tmp_path / "tee.spz")
    np.testing.assert_allclose(again.means, some(degree).means, atol=2e-5)
    np.testing.assert_allclose(again.scales, some(degree).scales, rtol=0.04)
    np.testing.assert_allclose(again.opacities, some(degree).opacities, atol=0.003)
    np.testing.assert_allclose(again.sh[:, 0], some(degree).sh[:, 0], atol=0.02)
    np.testing.assert_allclose(again.sh[:, 1:], some(degree).sh[:, 1:], atol=0.08)
    turns = [matrix_from_quat(normalized(np.asarray(g.quats, float))) for g in (again, some(degree))]
    np.testing.assert_allclose(turns[0], turns[1], atol=0.01)


@pytest.mark.parametrize("suffix", [".glb", ".usdc"])
def test_scene_formats_keep_every_body_by_name(tmp_path: Path, suffix: str) -> None:
    two = some(1)
    two = Gaussians(
        two.means, two.quats, two.scales, two.opacities, two.sh, np.arange(7, dtype=np.int32) % 2, ("left arm", "tee")
    )
    save_gaussians(tmp_path / f"both{suffix}", two)
    again = load_gaussians(tmp_path / f"both{suffix}")
    assert again.names == ("left arm", "tee")
    assert_same(again.on("tee"), two.on("tee"), 1e-6)


def test_one_body_formats_refuse_two(tmp_path: Path) -> None:
    two = Gaussians(*(getattr(some(), f) for f in ("means", "quats", "scales", "opacities", "sh")),
                    body=np.arange(7, dtype=np.int32) % 2, names=("arm", "tee"))  # fmt: skip
    with pytest.raises(BadInput, match="arm, tee"):
        save_gaussians(tmp_path / "a.ply", two)


@pytest.mark.parametrize("suffix", [".usda", ".usdc", ".usdz"])
def test_the_usd_file_satisfies_the_validators_of_usd_itself(tmp_path: Path, suffix: str) -> None:
    from pxr import Usd, UsdValidation, UsdVol

    path = tmp_path / f"tee{suffix}"
    save_gaussians(path, some())
    stage = Usd.Stage.Open(str(path))
    validators = UsdValidation.ValidationRegistry().GetOrLoadAllValidators()
    assert len(validators) > 20
    errors = UsdValidation.ValidationContext(validators).Validate(stage)
    assert [e.GetErrorAsString() for e in errors] == []
    prim = UsdVol.ParticleField3DGaussianSplat(stage.GetPrimAtPath("/gaussians/tee"))
    assert prim.GetRadianceSphericalHarmonicsDegreeAttr().Get() == 3
    assert len(prim.GetPositionsAttr().Get()) == 7


def test_a_gltf_file_is_y_up_for_those_who_read_it(tmp_path: Path) -> None:
    save_gaussians(
        tmp_path / "a.glb",
        gaussians_from_colours(np.array([[0.0, 0.0, 2.0]]), np.array(0.1), np.array([[1.0, 0.5, 0.0]])),
    )
    data = (tmp_path / "a.glb").read_bytes()
    document = json.loads(data[20 : 20 + struct.unpack_from("<I", data, 12)[0]])
    x, y, z, w = document["nodes"][0]["rotation"]
    up = matrix_from_quat(np.array([w, x, y, z])) @ [0.0, 0.0, 2.0]
    np.testing.assert_allclose(up, [0.0, 2.0, 0.0], atol=1e-12)


def test_a_folder_of_files_is_one_body_each(tmp_path: Path) -> None:
    save_gaussians(tmp_path / "world.ply", some(0))
    save_gaussians(tmp_path / "tee.splat", some(0))
    both = load_gaussians(tmp_path)
    assert both.names == ("tee", "world")
    assert len(both.on("world")) == 7


def test_the_scanned_block_is_red_and_as_large_as_a_t(recordings: Path) -> None:
    body = load_scanned_body(recordings / "pusht" / "tblock.json")
    assert len(body.gaussians) == 498
    red, green, blue = body.gaussians.colours.mean(axis=0)
    assert red > 1.5 * green > 1.5 * blue, "colours are stored blue, green, red"


def _ply(count: int, rows: int, *, drop: str = "", **values: float) -> bytes:
    names = ["x", "y", "z", "f_dc_0", "f_dc_1", "f_dc_2", "opacity", "scale_0", "scale_1", "scale_2"]
    names = [n for n in [*names, "rot_0", "rot_1", "rot_2", "rot_3"] if n != drop]
    table = np.zeros((rows, len(names)), "<f4")
    table[:, names.index("rot_0")] = 1.0
    for name, value in values.items():
        table[:, names.index(name)] = value
    header = ["ply", "format binary_little_endian 1.0", f"element vertex {count}"]
    header += [*(f"property float {name}" for name in names), "end_header", ""]
    return "\n".join(header).encode() + table.tobytes()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not a PLY file"),
        (b"ply\nformat binary_little_endian 1.0\nelement vertex 9\n", "'end_header' was expected"),
        (_ply(2, 2)[:-5], "cut off"),
        (_ply(2_000_000_000_000, 2), "announces 2000000000000 Gaussians"),
        (_ply(2, 2, scale_1=float("nan")), "'scales' of Gaussian 0 is not finite"),
        (_ply(2, 2, scale_1=1e9), "'scales' of Gaussian 0 is not finite"),
        (_ply(2, 2, rot_0=0.0), "quaternion of Gaussian 0 is zero"),
        (_ply(2, 2, drop="opacity"), "no vertex property 'opacity'"),
        (_ply(2, 2).replace(b"binary_little_endian", b"ascii"), "format 'ascii'"),
        (_ply(2, 2).replace(b"element vertex", b"element face"), "splat-transform"),
        (_ply(2, 2).replace(b"property float x", b"property list uchar int x"), "a number with a name"),
        (_ply(2, 2).replace(b"float y", b"float x"), "twice"),
        (_ply(-3, 2), "element vertex COUNT"),
    ],
)
def test_a_broken_ply_file_is_refused_in_one_sentence(tmp_path: Path, data: bytes, says: str) -> None:
    (tmp_path / "bad.ply").write_bytes(data)
    with pytest.raises((BadInput, Unsupported), match=says):
        load_gaussians(tmp_path / "bad.ply")


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("a.splat", b"\0" * 33, "32 bytes per Gaussian"),
        ("a.splat", b"\0" * 24 + b"\0\0\0\xff" + bytes([128] * 4), "quaternion of Gaussian 0 is zero"),
        ("a.glb", b"glTF" + struct.pack("<II", 2, 10**9) + b"\0" * 40, "cut off"),
        ("a.json", b"{", "not valid JSON"),
        ("a.json", b'{"gaussians": {"means": [[0, 0]]}}', "must be a list"),
        ("a.usda", b"nothing", "could not be opened"),
        ("a.obj", b"", "no ending of a Gaussian file"),
    ],
)  # fmt: skip
def test_broken_files_of_other_formats_are_refused_too(tmp_path: Path, name: str, data: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises((BadInput, Unsupported), match=says):
        load_gaussians(tmp_path / name)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"no", "not an SPZ file"),
        (gzip.compress(struct.pack("<IIIBBBB", 0x5053474E, 3, 10**9, 0, 12, 0, 0), mtime=0), "at most"),
        (gzip.compress(struct.pack("<IIIBBBB", 0x5053474E, 3, 1000, 0, 12, 0, 0), mtime=0), "cut off"),
    ],
)
def test_a_broken_spz_file_is_refused_too(tmp_path: Path, data: bytes, says: str, gsply: ModuleType) -> None:
    (tmp_path / "a.spz").write_bytes(data)
    with pytest.raises((BadInput, Unsupported), match=says):
        load_gaussians(tmp_path / "a.spz")


def test_a_gltf_accessor_cannot_reach_beyond_its_data(tmp_path: Path) -> None:
    save_gaussians(tmp_path / "a.glb", some(0))
    data = (tmp_path / "a.glb").read_bytes()
    (tmp_path / "a.glb").write_bytes(data.replace(b'"count":7', b'"count":9'))
    with pytest.raises(BadInput, match="announces 9 elements"):
        load_gaussians(tmp_path / "a.glb")
