"""The digest of a history's rows, computed piece by piece."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stormproof.history.schema import HISTORY_SCHEMA

_PIECE = 64 << 20
"""The maximum bytes of text that are expanded at a time."""


class RowsDigest:
    """SHA-256 of rows, over all columns except ``run``, regardless of their chunks or encoding.

    Each column has a digest (numbers: little-endian bytes; texts: lengths as 32-bit numbers, -1 for null, and the UTF-8
    bytes); the result is the digest of these digests in the schema's order.
    """

    def __init__(self) -> None:
        self._fields = [field for field in HISTORY_SCHEMA if field.name != "run"]
        self._digests = {field.name: (hashlib.sha256(), hashlib.sha256()) for field in self._fields}

    def update(self, rows: pa.Table | pa.RecordBatch, sizes: Mapping[str, Any] | None = None) -> None:
        """Add further rows; their columns have the schema's types, texts with a dictionary or without. ``sizes`` are
        the ``text_sizes`` of a batch's columns, if known."""
        for field in self._fields:
            column = rows.column(field.name)
            for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
                self._take(field, chunk, (sizes or {}).get(field.name))

    def _take(self, field: pa.Field, chunk: pa.Array, sizes: Any) -> None:
        first, texts = self._digests[field.name]
        if pa.types.is_integer(field.type):
            values = chunk.to_numpy(zero_copy_only=False)
            first.update(np.ascontiguousarray(values, values.dtype.newbyteorder("<")).data)
            return
        if sizes is None:
            sizes = text_sizes(chunk)
        first.update(np.ascontiguousarray(sizes, "<i4").data)
        if chunk.null_count == len(chunk):
            return
        for piece in _pieces(chunk, np.maximum(sizes, 0)):
            texts.update(_joined(piece))

    def hexdigest(self) -> str:
        """Return the digest of all added rows."""
        whole = hashlib.sha256()
        for field in self._fields:
            first, texts = self._digests[field.name]
            whole.update(first.digest())
            if not pa.types.is_integer(field.type):
                whole.update(texts.digest())
        return whole.hexdigest()


def text_sizes(chunk: pa.Array) -> Any:
    """Return the lengths in bytes of a column's texts, -1 for null, without expanding any text."""
    if chunk.null_count == len(chunk):
        return np.full(len(chunk), -1, dtype=np.int32)
    if not pa.types.is_dictionary(chunk.type):
        return pc.fill_null(pc.binary_length(chunk), -1).to_numpy(zero_copy_only=False)
    known = pc.fill_null(pc.binary_length(chunk.dictionary), -1).to_numpy(zero_copy_only=False)
    codes = chunk.indices.fill_null(-1) if chunk.indices.null_count else chunk.indices
    return np.append(known, np.int32(-1))[codes.to_numpy(zero_copy_only=False)]


def _pieces(chunk: pa.Array, sizes: Any) -> list[pa.Array]:
    """Return the column in parts of a limited size; a text that exceeds the limit alone is a part."""
    ends = np.cumsum(sizes, dtype=np.int64)
    if not len(ends) or ends[-1] <= _PIECE:
        return [chunk]
    found, start = [], 0
    while start < len(ends):
        before = int(ends[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(ends, before + _PIECE, side="right")))
        found.append(chunk.slice(start, end - start))
        start = end
    return found


def _joined(piece: pa.Array) -> memoryview:
    """Return the concatenated bytes of the column's texts: exactly Arrow's storage once no null is left."""
    if pa.types.is_dictionary(piece.type):
        piece = piece.dictionary.take(piece.indices.drop_null())
    plain = pa.concat_arrays([pc.fill_null(piece, "")])
    _, offsets, data = plain.buffers()
    if data is None or not len(plain):
        return memoryview(b"")
    bounds = np.frombuffer(offsets, np.int32)[plain.offset : plain.offset + len(plain) + 1]
    return memoryview(data)[int(bounds[0]) : int(bounds[-1])]
