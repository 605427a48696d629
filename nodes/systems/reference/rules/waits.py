"""The waits of the reference broker's common code, for all designs, and builders of those of links and networks."""

from __future__ import annotations

from collections.abc import Mapping

from stormproof.contracts.invariant import BROKER
from stormproof.contracts.wait import Wait

_START = "SessionTimers.start"
_PAGE = "docs/stomp.md: "

WAITS = (
    Wait("login-timer", "Session.run", {}, 10.0, _PAGE + "connect_timeout, time until CONNECT",
         "a new connection has {} for its CONNECT", through=_START),
    Wait("output-timer", "OutputBuffer._drained", {"output_timeout": 1}, 0.0,
         _PAGE + "output_timeout, time within which a client must take some of its waiting output",
         "a client has {} to take some of its waiting output"),
    Wait("linger-timer", "OutputBuffer.finish", {}, 2.0,
         _PAGE + "linger, time that a client has to read its ERROR before the connection is cut",
         "the connection of an ended client is cut after {}"),
    Wait("client-beat-timer", "SessionTimers.beat", {}, 0.75,
         _PAGE + "a client gets the heart-beats that it asked for; STOMP 1.2: something in each interval",
         "a heart-beat is sent after {} of a client's interval without output", 0.0, _START, "interval"),
    Wait("client-silence-timer", "SessionTimers.listen.<locals>.count", {}, 1.0,
         _PAGE + "a connection is ended after three missed heart-beats",
         "whether a client was heard is looked at after {} of its interval", 0.0, _START, "interval"),
)  # fmt: skip
"""Waits of all designs."""
CONNECTIONS = (
    Wait("idle-part-timer", "Connections._start_idle_timer", {"idle_timeout": 0.25}, 0.0,
         _PAGE + "a connection that is not resumed within idle_timeout is closed; four parts of that are counted",
         "a part of the time in which a connection may be resumed lasts {}"),
)  # fmt: skip
"""Waits of designs whose clients have reliable connections."""
_NETWORK = "docs/designs/joram.md: network_timeout; "
NETWORKS = (
    Wait("network-dial-timer", "Networks._send_to", {"network_timeout": 0.5}, 0.0, _NETWORK + "half of it for a call",
         "a call to another server is given up after {}"),
    Wait("network-redial-timer", "Networks._send_to", {"network_timeout": 0.15}, 0.0, _NETWORK + "networks.py",
         "a server for which messages wait is called again after {}", 1 / 3),
    Wait("network-refusal-timer", "Networks._send_to", {"network_timeout": 1}, 0.0, _NETWORK + "networks.py",
         "a server that refuses is called again after {}"),
    Wait("network-greeting-timer", "Networks._accept", {"network_timeout": 1}, 0.0, _NETWORK + "networks.py",
         "a caller has {} to prove that it is another server"),
    Wait("network-beat-timer", "Networks._tick", {"network_timeout": 0.2}, 0.0,
         _NETWORK + "networks.py: heartbeats in each fifth of it", "servers are sent heartbeats every {}"),
)  # fmt: skip
"""Waits of designs that communicate with other servers."""


def of_links(silence: Mapping[str, float], retry: Mapping[str, float], source: str, of: str = BROKER,
             ) -> tuple[Wait, ...]:  # fmt: skip
    """Return the waits of a program's links with its peers: a link is cut after ``silence``, and dialled again after
    half of ``retry`` to all of it, as multiples of settings."""
    name = "link" if of == BROKER else f"{of}-link"
    half = {setting: factor / 2 for setting, factor in silence.items()}
    return (
        Wait(f"{name}-dial-timer", "Links._dial", half, 0.0, source, "a call to a peer is given up after {}", of=of),
        Wait(f"{name}-redial-timer", "Links._dial", retry, 0.0, source,
             "a peer without a link is called again after {}", 0.5, of=of),
        Wait(f"{name}-greeting-timer", "Links._accept", silence, 0.0, source,
             "a caller has {} to prove that it is a peer", of=of),
    )  # fmt: skip
