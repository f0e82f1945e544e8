"""The codec of the link: golden bytes, and refusal of everything that is not exactly a message."""

from __future__ import annotations

import struct

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from instep.core.errors import BadInput
from instep.core.world import Channel, Spec, vector
from instep.robot import wire
from instep.robot.wire import Command, Hello, Ping, Pong, Refused, Report, Reset, Stop, pack, tensor, unpack

SPEC = Spec(
    0.02,
    vector(["x"], "m"),
    vector(["x"], "m/s"),
    vector(["x"], "m"),
    {"observation.images.top": Channel((), "", (2, 3, 3), "uint8")},
)
MESSAGES = (
    Hello("c1", "b1", "control", "step", SPEC, {"low": np.zeros(2)}, 1, 2),
    Report(
        "c1", 3, 1, 7, "run", "", 0.06, -5, 17 * 10**17, np.array([0.5]), np.array([0.0]), np.array([1.0]),
        {"observation.images.top": np.arange(18, dtype=np.uint8).reshape(2, 3, 3)}, {"observation.images.top": 0.04},
    ),
    Command("c1", 7, 41, np.array([0.5, -1.0])),
    Reset("c1", 8, 123),
    Ping("c1", -5),
    Pong("c1", 5, 6, {"overruns": 2}),
    Refused("c1", 9, "stale", "No."),
    Stop("c1"),
)  # fmt: skip
GOLDEN_COMMAND = (
    b"\x86"
    b"\xa7version\x03"
    b"\xa4kind\xa7command"
    b"\xaaconnection\xa2c1"
    b"\xa3seq\x07"
    b"\xa5after\x29"
    b"\xa6action\x83"
    b"\xa5dtype\xa2f8"
    b"\xa5shape\x91\x02"
    b"\xa4data\xc4\x10" + struct.pack("<dd", 0.5, -1.0)
)


def raw(message: wire.Message) -> dict:
    return msgpack.unpackb(pack(message))


def refusal(value: object) -> str:
    with pytest.raises(BadInput) as caught:
        unpack(value if isinstance(value, bytes) else msgpack.packb(value))
    sentence = str(caught.value)
    assert "\n" not in sentence and sentence.endswith(".")
    return sentence


def test_a_command_has_these_bytes_and_no_others():
    assert pack(Command("c1", 7, 41, np.array([0.5, -1.0]))) == GOLDEN_COMMAND
    back = unpack(GOLDEN_COMMAND)
    assert isinstance(back, Command) and (back.connection, back.seq, back.after) == ("c1", 7, 41)
    assert back.action.dtype == np.float64 and np.array_equal(back.action, [0.5, -1.0])


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_every_message_comes_back_as_it_went(message):
    back = unpack(pack(message))
    assert type(back) is type(message) and pack(back) == pack(message)


def test_a_spec_comes_back_equal():
    back = unpack(pack(MESSAGES[0]))
    assert isinstance(back, Hello) and back.spec == SPEC


@given(
    hnp.arrays(
        st.sampled_from([np.dtype(name) for name in wire.DTYPES] + [np.dtype(">f8"), np.dtype(">i4")]),
        hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=3),
    )
)
@settings(max_examples=80, deadline=None, derandomize=True)
def test_every_allowed_array_survives_the_wire(array):
    back = unpack(pack(Command("c", 1, 1, array)))
    assert isinstance(back, Command) and back.action.shape == array.shape
    assert np.array_equal(back.action, array, equal_nan=array.dtype.kind == "f")


def test_arrays_of_objects_and_other_types_are_not_sent():
    for array in (np.array([None]), np.zeros(2, np.uint64), np.zeros(1, complex), np.zeros((1,) * 6)):
        with pytest.raises(BadInput, match="cannot be sent"):
            pack(Command("c", 1, 1, array))


@pytest.mark.parametrize(
    "value",
    [
        {"dtype": "O", "shape": [1], "data": b"\0" * 8},
        {"dtype": "|O", "shape": [1], "data": b"\0" * 8},
        {"dtype": "V8", "shape": [1], "data": b"\0" * 8},
        {"dtype": ">f8", "shape": [1], "data": b"\0" * 8},
        {"dtype": "f8", "shape": [2], "data": b"\0" * 8},
        {"dtype": "f8", "shape": [1], "data": b"\0" * 9},
        {"dtype": "f8", "shape": [-1], "data": b"\0" * 8},
        {"dtype": "f8", "shape": [True], "data": b"\0" * 8},
        {"dtype": "f8", "shape": [1.0], "data": b"\0" * 8},
        {"dtype": "f8", "shape": [1] * 6, "data": b"\0" * 8},
        {"dtype": "u1", "shape": [2**32, 2**32], "data": b""},
        {"dtype": "u1", "shape": [2**20, 2**20, 2**20, 2**20, 2**20], "data": b""},
        {"dtype": "u1", "shape": "1", "data": b"\0"},
        {"dtype": "u1", "shape": [1], "data": "a"},
        {"dtype": 1, "shape": [1], "data": b"\0"},
        {"dtype": ["u1"], "shape": [1], "data": b"\0"},
        {"dtype": "u1", "shape": [1]},
        {"dtype": "u1", "shape": [1], "data": b"\0", "order": "F"},
        [1.0],
        None,
    ],
)
def test_a_forged_tensor_is_refused(value):
    with pytest.raises(BadInput):
        tensor(value)


def test_booleans_are_zeros_and_ones_whatever_the_bytes():
    assert tensor({"dtype": "b1", "shape": [3], "data": b"\x00\x01\x7f"}).tolist() == [False, True, True]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_every_field_is_required_and_no_other_is_taken(message):
    body = raw(message)
    for name in body:
        refusal({k: v for k, v in body.items() if k != name})
    assert "'extra'" in refusal({**body, "extra": 1})


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_every_field_has_its_type(message):
    body = raw(message)
    wrong = (None, "", -1, 2**64 - 1, True, float("nan"), float("inf"), [], {}, b"", [[]], {"a": 1}, "x" * 1025)
    plain = {"connection", "boot", "reason"}
    for name in body:
        for value in wrong:
            if type(value) is type(body[name]) and (name in plain or value == body[name]):
                continue
            if name in ("sent", "mono", "wall") and value == -1:
                continue  # clocks may be negative
            if name in ("seen", "stamps", "counts", "limits") and value == {}:
                continue
            if name == "counts" and value == {"a": 1}:
                continue
            refusal({**body, name: value})


def test_another_version_is_refused_with_both_numbers():
    assert refusal({**raw(MESSAGES[4]), "version": 1}) == "A message of version 1 came, but this side speaks version 3."


def test_a_robot_takes_no_message_of_a_robot():
    with pytest.raises(BadInput, match="only command, reset, stop, ping are taken here"):
        unpack(pack(MESSAGES[1]), wire.FROM_CLIENT)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x81\xa1a",
        b"\x82\xa1a\x01\xa1a\x02",  # a key that stands twice
        b"\x81\x01\x02",  # a key that is no string
        b"\x81\xc0\x02",
        b"\xdf\xff\xff\xff\xff",  # four thousand million entries
        b"\xdd\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\x91" * 100_000,  # nested a hundred thousand deep
        b"\x81\xa1a" * 100_000,
        b"\xc7\x08\x05" + b"\0" * 8,  # extension types
        b"\xd6\xff\0\0\0\0",  # a timestamp
        b"\xa2\xff\xfe",  # not UTF-8
        pack(Ping("c", 1)) + b"\0",  # more after the end
    ],
)
def test_bytes_that_are_no_message_are_refused(data):
    refusal(data)


def test_a_message_beyond_eight_mebibytes_is_neither_sent_nor_taken():
    with pytest.raises(BadInput, match="is the most"):
        pack(Command("c", 1, 1, np.zeros(wire.MAX_BYTES, np.uint8)))
    assert "is the most" in refusal(b"\0" * (wire.MAX_BYTES + 1))


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_random_bytes_raise_nothing_but_bad_input(data):
    with pytest.raises(BadInput):
        unpack(data)
