"""Deadlines for pending work in the reference broker, for all designs."""

from __future__ import annotations

from stormproof.contracts.deadline import Deadline

WRONG_CLOCK = {"clock": "a node's time is then not the harness's: its timers are judged by their lengths, when it sets "
                        "them (waits), and what must be at once is judged always"}
"""Why no deadline but a momentary one is claimed where a clock is wrong."""
_LOGIN_SECONDS = 10.0
"""The default of ``connect_timeout``, in seconds."""
_SILENT = "docs/stomp.md: a client of which nothing comes for three heart-beats is ended"
_LINGER_SECONDS = 2.0
"""The default of ``linger``, in seconds."""

DEADLINES = (
    Deadline(
        "denied",
        {},
        0.02,
        "docs/security.md: whose right is withdrawn is closed in that step",
        requirement="nobody consumes without the right to",
        momentary=True,
    ),
    Deadline(
        "bereft",
        {},
        0.02,
        "docs/designs/fiorano.md, Principals, rights and administered objects: its connections are closed in that step",
        requirement="no connection is open whose principal is gone",
        momentary=True,
    ),
    Deadline(
        "delivery",
        {},
        0.3,
        "docs/stomp.md: a message that waits is delivered once a window has room for it",
        requirement="a waiting message is delivered within {} once a subscription to its queue has room",
    ),
    Deadline(
        "failed-store",
        {},
        0.5,
        "docs/stomp.md: a broker whose disk fails ends, because it could not keep what it confirms",
        requirement="a broker whose store has failed ends within {}",
    ),
    Deadline(
        "login",
        {},
        _LOGIN_SECONDS + 0.5,
        "docs/stomp.md: connect_timeout",
        requirement="a connection logs in or is closed within {}",
    ),
    Deadline(
        "heart-beat",
        {},
        0.1,
        "docs/stomp.md; STOMP 1.2, Heart-beating: whoever agreed to send them sends something in each interval",
        requirement="a client that was promised heart-beats is sent something within {} after each interval",
    ),
    Deadline(
        "hasty-beat",
        {},
        0.02,
        "docs/stomp.md: the broker offers the shortest interval of heart-beats, so that the client's value applies",
        requirement="no client gets heart-beats more often than it asked for",
        momentary=True,
    ),
    Deadline(
        "taken-beyond",
        {},
        0.02,
        "docs/stomp.md, Limits: max_outstanding, max_outstanding_bytes, a client's commands in progress; beyond, the "
        "broker stops reading from it",
        requirement="no more of a client's commands are taken while as many as allowed are under way",
        momentary=True,
    ),
    Deadline(
        "silent-client",
        {},
        0.15,
        _SILENT,
        requirement="a client that sends no heart-beats is closed within {} of three of the intervals that it promised",
    ),
    Deadline(
        "lingering",
        {},
        _LINGER_SECONDS + 0.3,
        "docs/stomp.md: linger, time that a client has to read its ERROR before the connection is cut",
        requirement="the connection of a closed client is gone within {}",
    ),
    Deadline(
        "uncut",
        {},
        0.02,
        "docs/stomp.md: linger, time that a client has to read its ERROR before the connection is cut",
        requirement="there is a timer that cuts the connection of a closed client",
        momentary=True,
    ),
    Deadline(
        "sharing",
        {},
        0.02,
        "clustered.py: an element that was asked moves what none of its own consumers has room for; one that has room "
        "and nothing for it asks the others",
        requirement="an element of a clustered queue asks or answers the others at once",
        momentary=True,
    ),
    Deadline(
        "cut-early",
        {},
        0.02,
        "docs/stomp.md: a client of which nothing comes for three heart-beats is ended; idle_timeout",
        requirement="no client is closed as silent, and no connection as idle, before its time",
        momentary=True,
    ),
    Deadline(
        "refused-idle",
        {},
        0.02,
        "guard.py: passcodes that are hashed in a second, at most; docs/designs/fiorano.md",
        requirement="a login is refused for too many passcodes only after that many were checked within a second",
        momentary=True,
    ),
    Deadline(
        "left-over",
        {},
        0.02,
        "docs/stomp.md: a second CONNECT takes the connection over; the older TCP connection gets an ERROR",
        requirement="a client whose connection another client has taken over is closed within {}",
    ),
    Deadline(
        "unread",
        {"output_timeout": 2},
        0.3,
        "docs/stomp.md: output_timeout, time in which a client must take some of the output that waits for it",
        requirement="a client that does not read its output is closed within {}",
    ),
    Deadline(
        "held-up",
        {},
        0.5,
        "docs/stomp.md: a client that has too much under way waits until that is done",
        requirement="a client that may go on is read again within {}",
        calm=True,
    ),
)
"""Deadlines of all designs."""

MISDIRECTS = Deadline(
    "misdirects",
    {},
    0.02,
    "docs/stomp.md: a node that isn't the master names the master if it knows it",
    requirement="no node refuses clients and names itself as the serving node",
    momentary=True,
)
"""A deadline of designs in which one node serves, and others name it."""

GREETING = Deadline(
    "greeting",
    {},
    0.02,
    "Links: whoever has a new link says at once how it is",
    requirement="a peer is greeted on a new link within {}",
)
"""A deadline of designs whose nodes report their state to each other."""


def link_cut_early(source: str) -> Deadline:
    """Return the deadline of designs whose brokers cut a link that is silent."""
    return Deadline("link-cut-early", {}, 0.02, source, momentary=True,
                    requirement="no link is cut as silent before its peer has been silent for that long")


NETWORKS = "networks.py: heartbeats in each fifth of network_timeout, and a silent connection is cut"
CALLS = "networks.py: whoever has messages for a server calls it, and again after 0.15 of network_timeout at most"
CALLED = "a server for which messages wait is called within {}"
"""Texts of designs that communicate with other servers: the sources of their deadlines, and the description of a
violation.
"""
REACTIONS = "HA Joram, 1.2: a collocated client consumes a message, computes, produces, and so on"
"""The same for designs in which clients run inside the broker."""

CONNECTIONS = (
    Deadline(
        "idle-session",
        {"idle_timeout": 1},
        0.3,
        "docs/stomp.md: a connection from which nothing comes for idle_timeout is closed though its socket is open",
        requirement="a client that has sent nothing for idle_timeout is closed within {}",
    ),
    Deadline(
        "idle-connection",
        {"idle_timeout": 1},
        0.3,
        "docs/stomp.md: a connection that nobody resumes within idle_timeout is closed",
        requirement="a connection that no client resumes is closed within {}",
    ),
    Deadline(
        "idle-client",
        {},
        0.02,
        "docs/stomp.md: a connection that nobody resumes within idle_timeout is closed",
        requirement="no connection with a client is scheduled to be closed as idle",
        momentary=True,
    ),
    Deadline(
        "settled-early",
        {},
        0.02,
        "HA Joram, 5.1; docs/stomp.md: with ack:auto what the client has received is settled",
        requirement="a message in mode auto is settled only after its client has reported it as received",
        momentary=True,
    ),
    Deadline(
        "overtaken",
        {},
        0.02,
        "docs/stomp.md: whoever asks for a connection last takes it over",
        requirement="no client loses its connection to a client that asked for it earlier",
        momentary=True,
    ),
    Deadline(
        "superseded",
        {},
        0.02,
        "docs/stomp.md: whoever asks for a connection last takes it over",
        requirement="a client that has lost its connection to another one no longer has it",
        momentary=True,
    ),
    Deadline(
        "orphan",
        {"idle_timeout": 1},
        1.5,
        "docs/stomp.md: a connection that nobody resumes within idle_timeout "
        "is closed, one that is not reliable at once",
        requirement="a connection without a client is closed within {}",
        calm=True,
    ),
)
"""Deadlines of designs whose clients have reliable connections."""
