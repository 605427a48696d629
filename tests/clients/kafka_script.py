"""A broker's side of Kafka's protocol, from bytes to bytes: one broker that leads a topic of one partition."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from io import BytesIO
from typing import Any

from aiokafka.protocol.admin import ApiVersionRequest_v0
from aiokafka.protocol.fetch import FetchRequest_v4
from aiokafka.protocol.metadata import MetadataRequest_v5
from aiokafka.protocol.offset import OffsetRequest_v1
from aiokafka.protocol.produce import ProduceRequest_v7
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

PRODUCE, FETCH, LIST_OFFSETS, METADATA, VERSIONS = 0, 1, 2, 3, 18
REQUESTS = {PRODUCE: ProduceRequest_v7, FETCH: FetchRequest_v4, LIST_OFFSETS: OffsetRequest_v1,
            METADATA: MetadataRequest_v5, VERSIONS: ApiVersionRequest_v0}  # fmt: skip
BROKER, FIRST_OFFSET = 1, 6
UNSUPPORTED = 35
"""The answer to a client that begins with a newer request for versions; the client then sends the oldest."""


class KafkaScript:
    """``code`` answers a Produce request; ``holds`` are the log's records; requests with a number in ``unanswered`` get
    no answer; without a ``leader`` the partition has none (-1)."""

    port = 0
    """The port that the broker tells clients to reach it at."""

    def __init__(self, code: int = 0, holds: tuple[bytes, ...] = (), unanswered: tuple[int, ...] = (),
                 leader: int = BROKER) -> None:  # fmt: skip
        self._code, self._holds, self._unanswered, self._leader = code, holds, unanswered, leader
        self._buffer = b""
        self._sent = 0
        self.appended: list[bytes] = []
        self.asked: list[int] = []
        self.confirmed_at = 0
        """The number of bytes sent with the last answer to a Produce request."""

    def feed(self, data: bytes) -> bytes:
        self._buffer += data
        answer = b""
        while len(self._buffer) >= 4 and len(self._buffer) >= 4 + (size := struct.unpack(">i", self._buffer[:4])[0]):
            frame, self._buffer = self._buffer[4 : 4 + size], self._buffer[4 + size :]
            key, version, correlation, name = struct.unpack(">hhih", frame[:10])
            if key == VERSIONS and version:
                told = ApiVersionRequest_v0.RESPONSE_TYPE(UNSUPPORTED, []).encode()
            else:
                request = REQUESTS[key].decode(BytesIO(frame[10 + name :]))
                assert version == request.API_VERSION
                self.asked.append(key)
                told = REQUESTS[key].RESPONSE_TYPE(*self._answer(key, request)).encode()
            if key not in self._unanswered:
                answer += struct.pack(">ii", len(told) + 4, correlation) + told
            if key == PRODUCE:
                self.confirmed_at = self._sent + len(answer)
        self._sent += len(answer)
        return answer

    def _answer(self, key: int, request: Any) -> tuple[Any, ...]:
        if key == VERSIONS:
            return 0, [(each, kind.API_VERSION, kind.API_VERSION) for each, kind in REQUESTS.items()]
        if key == METADATA:
            partition = (0, 0, self._leader, [BROKER], [BROKER], [])
            topics = [(0, topic, False, [partition]) for topic in request.topics or ()]
            return 0, [(BROKER, "127.0.0.1", self.port, None)], "cluster", BROKER, topics
        ((topic, (partition, *_)),) = request.topics
        if key == PRODUCE:
            self.appended += _bodies(partition[1])
            return [(topic, [(0, self._code, -1 if self._code else FIRST_OFFSET, -1, 0)])], 0
        if key == LIST_OFFSETS:
            return ([(topic, [(0, 0, -1, len(self._holds))])],)
        after = partition[1]
        return 0, [(topic, [(0, 0, len(self._holds), len(self._holds), [], self._batch(after))])]

    def _batch(self, after: int) -> bytes:
        builder = DefaultRecordBatchBuilder(magic=2, compression_type=0, is_transactional=0, producer_id=-1,
                                            producer_epoch=-1, base_sequence=-1, batch_size=1 << 16)  # fmt: skip
        for number, body in enumerate(self._holds):
            builder.append(number, timestamp=None, key=None, value=body, headers=[])
        return bytes(builder.build()) if after < len(self._holds) else b""


def _bodies(records: bytes) -> Iterator[bytes]:
    found = MemoryRecords(records)
    while (batch := found.next_batch()) is not None:
        assert batch.validate_crc()
        yield from (record.value for record in batch)
