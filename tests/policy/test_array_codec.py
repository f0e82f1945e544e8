"""Messages with arrays: the peers' bytes to the byte, and nothing is built from what was not checked."""

from __future__ import annotations

import struct

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hn

from instep import BadInput
from instep.policy.openpi import DTYPES, checked_array, from_npy, pack, to_npy, unpack
from protocols import GOLDEN as PEERS

GOLDEN = PEERS | {
    "openpi number": (
        {"x": np.float32(1.5)},
        "openpi",
        "81a17883c40d5f5f6e7067656e657269635f5fc3c40464617461cb3ff8000000000000c4056474797065a33c6634",
    ),
    "groot ping": ({"endpoint": "ping"}, "as_npy", "81a8656e64706f696e74a470696e67"),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_bytes_are_the_peers_to_the_byte(name):
    message, layout, expected = GOLDEN[name]
    assert pack(message, layout).hex() == expected


@pytest.mark.parametrize("name", GOLDEN)
def test_the_peers_bytes_are_read_back(name):
    message, _, raw = GOLDEN[name]
    back = unpack(bytes.fromhex(raw))
    assert set(back) == set(message)
    for key, value in message.items():
        assert np.array_equal(back[key], value)
        assert getattr(back[key], "dtype", None) == getattr(value, "dtype", None)


ARRAYS = st.sampled_from(sorted(DTYPES)).flatmap(
    lambda kind: hn.arrays(np.dtype(kind), hn.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4))
)


@settings(max_examples=80, deadline=None)
@given(ARRAYS, st.sampled_from(["openpi", "as_npy", "msgpack-numpy"]))
def test_every_array_that_may_be_sent_comes_back(array, layout):
    back = unpack(pack({"x": array}, layout))["x"]
    assert back.dtype == array.dtype and back.shape == array.shape
    assert back.tobytes() == array.tobytes()
    assert back.flags.writeable, "a view of the message would be read-only"


@pytest.mark.parametrize("bad", ["O", "V8", "c16", "U4", "S3", "<M8[s]"])
@pytest.mark.parametrize("layout", ["openpi", "as_npy", "msgpack-numpy"])
def test_other_dtypes_are_not_sent(bad, layout):
    with pytest.raises(BadInput, match="cannot be sent"):
        pack({"x": np.zeros(2, bad)}, layout)


def openpi(data: object, dtype: object, shape: object) -> bytes:
    return msgpack.packb({"x": {b"__ndarray__": True, b"data": data, b"dtype": dtype, b"shape": shape}})


@pytest.mark.fault(42)
@pytest.mark.parametrize(
    ("data", "dtype", "shape", "words"),
    [
        (b"\0" * 16, "|O", [2], "dtype"),
        (b"\0" * 16, "O", [2], "dtype"),
        (b"\0" * 16, "<c8", [2], "dtype"),
        (b"\0" * 16, "|V8", [2], "dtype"),
        (b"\0" * 16, "<f4,<f4", [2], "dtype"),
        (b"\0" * 8, "<f4", [3], "do not fill"),
        (b"\0" * 8, "<f4", [2**62, 2**62], "do not fill"),
        (b"\0" * 8, "<f4", [-2], "shape"),
        (b"\0" * 8, "<f4", [2.0], "shape"),
        (b"\0" * 8, "<f4", [True, 2], "shape"),
        (b"\0" * 8, "<f4", [1] * 6 + [2], "at most 5"),
        ("text", "<f4", [1], "must have bytes"),
        (b"\0" * 8, 7, [2], "must have bytes"),
        (b"\0" * 8, "<f4", "2", "must have bytes"),
        (None, None, None, "must have bytes"),
    ],
)
def test_an_array_that_does_not_fit_is_refused(data, dtype, shape, words):
    with pytest.raises(BadInput, match=words):
        unpack(openpi(data, dtype, shape))


@pytest.mark.fault(42)
def test_a_pickle_hidden_as_an_array_is_refused():
    with pytest.raises(BadInput, match="object dtype"):
        unpack(
            msgpack.packb({"x": {b"nd": True, b"type": "|O", b"kind": b"O", b"shape": [1], b"data": b"cos\nsystem"}})
        )


def npy(header: str, data: bytes = b"") -> bytes:
    raw = header.encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(raw)) + raw + data


@pytest.mark.fault(42)
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x93NUMPY",
        b"\x93NUMPY\x03\x00" + b"\0" * 20,
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }"),
        npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", b"cos\nsystem\n"),
        npy("{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (1,), }", b"\0" * 8),
        npy("{'descr': '<f8'}", b"\0" * 8),
        npy("__import__('os')"),
        npy("(" * 900),
        b"\x93NUMPY\x01\x00\xff\xff{",
        "text",
        None,
    ],
)
def test_an_npy_with_a_forged_header_is_refused(data):
    with pytest.raises(BadInput):
        from_npy(data)


def test_columns_first_arrays_are_read():
    array = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    from io import BytesIO

    stream = BytesIO()
    np.save(stream, array)
    assert np.array_equal(from_npy(stream.getvalue()), array)
    assert np.array_equal(from_npy(to_npy(array)), array)


def test_big_endian_arrays_become_native():
    array = checked_array(struct.pack(">2f", 1, 2), ">f4", [2])
    assert array.tolist() == [1, 2] and array.dtype.isnative


@pytest.mark.fault(42)
@pytest.mark.parametrize("seed", range(8))
def test_changed_bytes_are_refused_or_read_but_nothing_else(seed):
    rng = np.random.default_rng(seed)
    whole = [pack(message, layout) for message, layout, _ in GOLDEN.values()]
    for _ in range(250):
        raw = bytearray(whole[rng.integers(len(whole))])
        for _ in range(rng.integers(1, 6)):
            raw[rng.integers(len(raw))] = rng.integers(256)
        raw = bytes(raw[: rng.integers(1, len(raw) + 1)])
        try:
            unpack(raw)
        except BadInput as error:
            assert "\n" not in str(error)


@pytest.mark.fault(42)
def test_claims_of_size_cost_no_memory():
    import tracemalloc

    tracemalloc.start()
    for raw in (
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x81" * 5000,
        b"\x91" * 5000,
    ):
        with pytest.raises(BadInput):
            unpack(raw)
    with pytest.raises(BadInput, match="at most"):
        unpack(b"\0" * (8 * 2**20 + 1))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32 * 2**20
