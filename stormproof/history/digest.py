"""The digest of a history's rows, taken piece by piece."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stormproof.history.schema import HISTORY_SCHEMA

_PIECE = 64 << 20
"""Bytes of text that are expanded at a time."""


class RowsDigest:
    """SHA-256 of rows, of all columns but ``run``, however they are chunked or encoded.

    Each column gives a digest (numbers: little-endian bytes; texts: lengths as 32-bit numbers, -1 for null, and the
    UTF-8 bytes); the result is the digest of these digests in the schema's order.
    """

    def __init__(self) -> None:
        self._fields = [field for field in HISTORY_SCHEMA if field.name != "run"]
        self._digests = {field.name: (hashlib.sha256(), hashlib.sha256()) for field in self._fields}

    def update(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Take some more rows; their columns have the schema's types, texts with a dictionary or without."""
        for field in self._fields:
            column = rows.column(field.name)
            for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
                self._take(field, chunk)

    def _take(self, field: pa.Field, chunk: pa.Array) -> None:
        first, texts = self._digests[field.name]
        if pa.types.is_integer(field.type):
            values = chunk.to_numpy(zero_copy_only=False)
            first.update(np.ascontiguousarray(values, values.dtype.newbyteorder("<")).data)
            return
        sizes = text_sizes(chunk)
        first.update(np.ascontiguousarray(sizes, "<i4").data)
        for piece in _pieces(chunk, np.maximum(sizes, 0)):
            texts.update(_joined(piece))

    def hexdigest(self) -> str:
        """The digest of what was taken."""
        whole = hashlib.sha256()
        for field in self._fields:
            first, texts = self._digests[field.name]
            whole.update(first.digest())
            if not pa.types.is_integer(field.type):
                whole.update(texts.digest())
        return whole.hexdigest()


def text_sizes(chunk: pa.Array) -> Any:
    """The lengths in bytes of a column's texts, -1 for null; none is expanded."""
    if pa.types.is_dictionary(chunk.type):
        sizes = pc.binary_length(chunk.dictionary).take(chunk.indices)
    else:
        sizes = pc.binary_length(chunk)
    return pc.fill_null(sizes, -1).to_numpy(zero_copy_only=False)


def _pieces(chunk: pa.Array, sizes: Any) -> list[pa.Array]:
    """The column in parts of a bounded size; a text that is longer alone is a part."""
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
    """The bytes of its texts, one after the other: just how Arrow keeps them once no null is left."""
    if pa.types.is_dictionary(piece.type):
        piece = piece.cast(piece.type.value_type)
    plain = pa.concat_arrays([pc.fill_null(piece, "")])
    _, offsets, data = plain.buffers()
    if data is None or not len(plain):
        return memoryview(b"")
    bounds = np.frombuffer(offsets, np.int32)[plain.offset : plain.offset + len(plain) + 1]
    return memoryview(data)[int(bounds[0]) : int(bounds[-1])]
