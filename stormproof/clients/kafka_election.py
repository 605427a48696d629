"""The two requests of a planned move of a partition's leader, for the library aiokafka.

The first one orders the replicas: the first replica is the preferred leader. The second one, which aiokafka lacks, has
the preferred leader elected.
"""

from __future__ import annotations

from typing import Any

from aiokafka.protocol.admin import AlterPartitionReassignmentsRequest
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Array, Int8, Int16, Int32, Schema, String

TIMEOUT_MILLISECONDS = 3000
ELECTION_NOT_NEEDED = 84
_PREFERRED = 0


class _ElectLeadersResponse(Response):  # type: ignore[misc]
    API_KEY, API_VERSION = 43, 1
    SCHEMA = Schema(
        ("throttle_time_ms", Int32), ("error_code", Int16),
        ("results", Array(("topic", String("utf-8")), ("partitions", Array(
            ("partition", Int32), ("error_code", Int16), ("error_message", String("utf-8")))))),
    )  # fmt: skip


class _ElectLeadersStruct(RequestStruct):  # type: ignore[misc]
    API_KEY, API_VERSION, RESPONSE_TYPE = 43, 1, _ElectLeadersResponse
    SCHEMA = Schema(
        ("election_type", Int8), ("topics", Array(("topic", String("utf-8")), ("partitions", Array(Int32)))),
        ("timeout_ms", Int32),
    )  # fmt: skip


class _ElectLeaders(Request[_ElectLeadersStruct]):  # type: ignore[misc]
    API_KEY = 43

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def build(self, request_struct_class: Any) -> Any:
        """Return the request in that version."""
        return request_struct_class(_PREFERRED, [(self._topic, [0])], TIMEOUT_MILLISECONDS)


def order(topic: str, replicas: list[int]) -> Any:
    """Return the request to order the replicas of a topic's first partition; all of them stay replicas."""
    return AlterPartitionReassignmentsRequest(TIMEOUT_MILLISECONDS, [(topic, [(0, replicas, {})], {})], {})


def election(topic: str) -> Any:
    """Return the request to let the first replica of a topic's first partition lead."""
    return _ElectLeaders(topic)
