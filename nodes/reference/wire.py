"""A compact binary encoding of plain data, for commands, logs on disk and the links between brokers.

Each value is a tag byte and the content that belongs to the tag: integers are zigzag varints of at most 64 bits, floats
are IEEE 754 doubles, strings and byte strings are preceded by their length, lists and dicts by their count. Dicts have
string keys and keep their order. The encoding of a value is unique, so equal states have equal encodings. Decoding
checks every bound before it reads and never builds anything but plain data.
"""

from __future__ import annotations

import struct
from typing import Any

MAX_DEPTH = 32
MAX_VALUES = 1 << 20
"""Limit of values in the lists and dicts of one decoding: the smallest take two bytes of input, and a hundred of
memory."""

_NONE, _FALSE, _TRUE, _INT, _FLOAT, _STR, _BYTES, _LIST, _DICT = range(9)
_DOUBLE = struct.Struct(">d")
_INT_LIMIT = 1 << 63
_SMALL_NUMBERS = 64  # numbers below take one byte
_SHORT_LENGTHS = 0x80  # lengths below take one byte
_VARINT_BYTES = 10


class WireError(ValueError):
    """The value can't be encoded, or the bytes do not encode a value."""


def encode(value: Any) -> bytes:
    """Encode None, bool, int (64 bits), float, str, bytes, list or tuple, and dict with string keys.

    Raises:
        WireError: the value holds anything else, or is nested deeper than MAX_DEPTH.
    """
    if type(value) is bytes and len(value) < _SHORT_LENGTHS:  # most frames are of this kind
        return bytes((_BYTES, len(value))) + value
    out = bytearray()
    _write(out, value, 0)
    return bytes(out)


def decode(data: bytes | bytearray | memoryview) -> Any:
    """Decode the value in ``data``; all of ``data`` must be used.

    Raises:
        WireError: ``data`` is cut short, too long, too deep, of too many values, or not the encoding of a value.
    """
    raw = bytes(data)
    if len(raw) > 1 and raw[0] == _BYTES and raw[1] == len(raw) - 2 < _SHORT_LENGTHS:
        return raw[2:]
    _room[0] = MAX_VALUES
    value, position = _read(raw, 0, 0)
    if position != len(raw):
        raise WireError(f"{len(raw) - position} bytes follow the value")
    return value


def _write_varint(out: bytearray, number: int) -> None:
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _write(out: bytearray, value: Any, depth: int) -> None:
    kind = type(value)
    if kind is str:
        out.append(_STR)
        _write_text(out, value)
    elif kind is int:
        if not -_INT_LIMIT <= value < _INT_LIMIT:
            raise WireError("an integer has more than 64 bits")
        out.append(_INT)
        _write_varint(out, value << 1 if value >= 0 else (-value << 1) - 1)
    elif kind is bytes:
        out.append(_BYTES)
        _write_varint(out, len(value))
        out += value
    elif value is None:
        out.append(_NONE)
    elif kind is bool:
        out.append(_TRUE if value else _FALSE)
    elif kind is float:
        out.append(_FLOAT)
        out += _DOUBLE.pack(value)
    else:
        _write_container(out, value, depth + 1)


def _write_container(out: bytearray, value: Any, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise WireError(f"nested deeper than {MAX_DEPTH}")
    if isinstance(value, (list, tuple)):
        out.append(_LIST)
        _write_varint(out, len(value))
        for item in value:
            # Most items are small numbers: half of the time is spent on them.
            if type(item) is int and 0 <= item < _SMALL_NUMBERS:
                out.append(_INT)
                out.append(item << 1)
            else:
                _write(out, item, depth)
    elif isinstance(value, dict):
        out.append(_DICT)
        _write_varint(out, len(value))
        for key, item in value.items():
            if type(key) is not str:
                raise WireError(f"a dict has the key {key!r}, which is no string")
            _write_text(out, key)
            if type(item) is str:
                out.append(_STR)
                _write_text(out, item)
            else:
                _write(out, item, depth)
    else:
        raise WireError(f"a value of type {type(value).__name__} can't be encoded")


def _write_text(out: bytearray, text: str) -> None:
    try:
        raw = text.encode()
    except UnicodeEncodeError as error:
        raise WireError("a string holds a lone surrogate") from error
    if (size := len(raw)) < _SHORT_LENGTHS:
        out.append(size)
    else:
        _write_varint(out, size)
    out += raw


def _read_varint(raw: bytes, position: int) -> tuple[int, int]:
    """Read a number of more than one byte; return it and its end. The caller has excluded a shorter one."""
    end = len(raw)
    number = shift = 0
    for index in range(position, min(end, position + _VARINT_BYTES)):
        byte = raw[index]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0:
                raise WireError("a number is longer than it has to be")
            return number, index + 1
        shift += 7
    raise WireError("a number is cut short or too long")


def _read_slice(raw: bytes, position: int) -> tuple[bytes, int]:
    if position < len(raw) and raw[position] < _SHORT_LENGTHS:
        size = raw[position]
        position += 1
    else:
        size, position = _read_varint(raw, position)
    if size > len(raw) - position:
        raise WireError("a string is cut short")
    return raw[position : position + size], position + size


def _read_text(raw: bytes, position: int) -> tuple[str, int]:
    # Like _read_slice, without a call for each of very many short texts.
    if position < len(raw) and raw[position] < _SHORT_LENGTHS and (end := position + 1 + raw[position]) <= len(raw):
        piece, position = raw[position + 1 : end], end
    else:
        piece, position = _read_slice(raw, position)
    try:
        return piece.decode(), position
    except UnicodeDecodeError as error:
        raise WireError("a string is not UTF-8") from error


def _read(raw: bytes, position: int, depth: int) -> tuple[Any, int]:
    if position >= len(raw):
        raise WireError("a value is cut short")
    tag = raw[position]
    position += 1
    if tag == _STR:
        return _read_text(raw, position)
    if tag == _INT:
        if position < len(raw) and (number := raw[position]) < 0x80:
            return (number >> 1 if not number & 1 else -(number + 1 >> 1)), position + 1
        number, position = _read_varint(raw, position)
        if number >= 1 << 64:
            raise WireError("an integer has more than 64 bits")
        return (number >> 1 if not number & 1 else -(number + 1 >> 1)), position
    if tag == _BYTES:
        return _read_slice(raw, position)
    if tag == _NONE:
        return None, position
    if tag in (_TRUE, _FALSE):
        return tag == _TRUE, position
    if tag == _FLOAT:
        if len(raw) - position < _DOUBLE.size:
            raise WireError("a float is cut short")
        return _DOUBLE.unpack_from(raw, position)[0], position + _DOUBLE.size
    return _read_container(raw, position, tag, depth + 1)


_room = [0]
"""The number of further values allowed in the current decoding."""


def _read_container(raw: bytes, position: int, tag: int, depth: int) -> tuple[Any, int]:
    if tag not in (_LIST, _DICT):
        raise WireError(f"there is no tag {tag}")
    if depth > MAX_DEPTH:
        raise WireError(f"nested deeper than {MAX_DEPTH}")
    size = len(raw)
    if position < size and (count := raw[position]) < 0x80:
        position += 1
    else:
        count, position = _read_varint(raw, position)
    # Every item takes at least one byte, so a false count can't cause a large allocation.
    if count > size - position:
        raise WireError("a list or dict is cut short")
    _room[0] -= count
    if _room[0] < 0:
        raise WireError(f"there are more than {MAX_VALUES} values")
    if tag == _LIST:
        items: list[Any] = []
        for _ in range(count):
            if position + 1 < size and raw[position] == _INT and (number := raw[position + 1]) < 0x80:
                items.append(number >> 1 if not number & 1 else -(number + 1 >> 1))
                position += 2
            else:
                item, position = _read(raw, position, depth)
                items.append(item)
        return items, position
    mapping: dict[str, Any] = {}
    for _ in range(count):
        key, position = _read_text(raw, position)
        if key in mapping:
            raise WireError(f"a dict has the key {key!r} twice")
        if position < size and raw[position] == _STR:
            mapping[key], position = _read_text(raw, position + 1)
        else:
            mapping[key], position = _read(raw, position, depth)
    return mapping, position
