from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodes.reference import wire

text = st.text(st.characters(codec="utf-8"), max_size=20)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | text
    | st.binary(max_size=300),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(text, inner, max_size=5),
    max_leaves=20,
)


@given(plain)
def test_what_was_encoded_is_decoded(value: object) -> None:
    decoded = wire.decode(wire.encode(value))
    assert decoded == value
    assert repr(decoded) == repr(value)  # tells True from 1, and 0.0 from -0.0, and checks the order of keys


@given(st.binary(max_size=60))
def test_any_bytes_are_refused_or_are_the_one_encoding_of_a_value(data: bytes) -> None:
    try:
        value = wire.decode(data)
    except wire.WireError:
        return
    assert wire.encode(value) == data


@given(plain, st.data())
def test_a_cut_encoding_is_refused(value: object, data: st.DataObject) -> None:
    encoded = wire.encode(value)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(wire.WireError):
        wire.decode(encoded[:cut])


def nested(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def test_depth_is_bounded_in_both_directions() -> None:
    assert wire.decode(wire.encode(nested(wire.MAX_DEPTH))) == nested(wire.MAX_DEPTH)
    with pytest.raises(wire.WireError, match="deeper"):
        wire.encode(nested(wire.MAX_DEPTH + 1))
    with pytest.raises(wire.WireError, match="deeper"):
        wire.decode(b"\x07\x01" * 5000 + b"\x07\x00")


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, object(), {1: 2}, {"a": {3}}, "\ud800"])
def test_what_has_no_encoding_is_refused(value: object) -> None:
    with pytest.raises(wire.WireError):
        wire.encode(value)


@pytest.mark.parametrize("data", [
    b"", b"\x09", b"\x07\xff\xff\xff\xff\x0f", b"\x06\xff\xff\xff\xff\x0f", b"\x03\x80\x00", b"\x05\x01\xff",
    b"\x00\x00", b"\x08\x02\x01a\x00\x01a\x00", b"\x03" + b"\xff" * 9 + b"\x7f",
])
def test_hostile_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.decode(data)
