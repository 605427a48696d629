"""Options that several workloads share, and the order in which clients try nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from stormproof.contracts.option import Option

T = TypeVar("T")
CLIENT_HEARTBEAT = Option(
    "client_heartbeat", 0.3, "seconds between a client's heart-beats; three silent ones end a connection", least=0.01)
"""An option of every workload that speaks STOMP."""
TIMEOUTS = (
    Option("op_timeout", 3.0, "seconds after which an operation's outcome is unknown"),
    Option("open_timeout", 2.0, "seconds a new client tries to connect before its operation fails"),
)
RELIABLE = Option(
    "reliable", True, "clients number their frames, reconnect and re-emit; false: one TCP connection each")
HOME, ANY_NODE = "home", "any"
CONNECT = Option(
    "connect", ANY_NODE,
    "nodes that clients connect to: any node, the nearest first; or home, the nearest alone, whether it leads or not",
    (ANY_NODE, HOME))
PRIMARY_FIRST, NEAREST_FIRST = "primary-first", "nearest-first"
CLIENT_ORDER = Option(
    "client_order", NEAREST_FIRST,
    "order in which clients try nodes: the nearest, then the next ones; or the first node of the list at each "
    "connection, then the others",
    (NEAREST_FIRST, PRIMARY_FIRST))
SAME_REPLICA = Option("same_replica", 0.5, "seconds that a client tries the node that it has lost before others")
ROUND_PAUSE = Option("round_pause", 0.0, "seconds that a client waits after no node accepted it")
IMPATIENT = Option(
    "impatient", False,
    "every second client leaves a node that is silent for 0.3 seconds, and so reaches the next leader early; "
    "the others stay for as long as `client_heartbeat` and `same_replica` say")
CONNECTING = (CLIENT_ORDER, SAME_REPLICA, ROUND_PAUSE, IMPATIENT)
"""The options that choose the nodes that clients try, and when."""


def in_order(items: Sequence[T], place: int, options: Mapping[str, Any]) -> list[T]:
    """Return the nodes' items in the order in which a client tries them whose nearest node is number ``place``."""
    first = 0 if options.get(CLIENT_ORDER.name) == PRIMARY_FIRST else place % len(items)
    return [*items[first:], *items[:first]]
