"""Deadlines for pending work in the reference broker, for all designs."""

from __future__ import annotations

from stormproof.contracts.deadline import Deadline

_LOGIN_SECONDS = 10.0
"""The default of ``connect_timeout``, in seconds."""
_MISSED, _LONGEST_BEAT, _SHORT_BEAT = 3, 3.0, 0.3
"""Heart-beats that may be missed, and seconds between them: the longest interval of tests' clients, and the usual one.
One more interval may have begun when something was read."""
_SILENT = "docs/stomp.md: a client of which nothing comes for three heart-beats is ended"
_LINGER_SECONDS = 2.0
"""The default of ``linger``, in seconds."""

DEADLINES = (
    Deadline(
        "delivery",
        {},
        0.3,
        "docs/stomp.md: a message that waits is delivered once a window has room for it",
        what="a message waits though a subscription to its queue has room for it",
    ),
    Deadline(
        "login",
        {},
        _LOGIN_SECONDS + 0.5,
        "docs/stomp.md: connect_timeout",
        what="a connection is there that has not logged in",
    ),
    Deadline(
        "heart-beat",
        {},
        0.1,
        "docs/stomp.md; STOMP 1.2, Heart-beating: whoever agreed to send them sends something in each interval",
        what="a client that was promised heart-beats is sent nothing",
    ),
    Deadline(
        "silent-client",
        {},
        (_MISSED + 1) * _LONGEST_BEAT + 0.3,
        _SILENT,
        what="a client from which no heart-beats come is not ended",
    ),
    Deadline(
        "mute-client",
        {},
        (_MISSED + 1) * _SHORT_BEAT + 0.3,
        _SILENT,
        what="a client from which no heart-beats come, of 0.3 s or less, is not ended",
    ),
    Deadline(
        "lingering",
        {},
        _LINGER_SECONDS + 0.3,
        "docs/stomp.md: linger, time that a client has to read its ERROR before the connection is cut",
        what="a client that was ended is still there",
    ),
    Deadline(
        "sharing",
        {},
        0.02,
        "clustered.py: an element that was asked moves what none of its own consumers has room for; one that has room "
        "and nothing for it asks the others",
        what="an element of a clustered queue owes another one something, or has not asked it,",
        momentary=True,
    ),
    Deadline(
        "cut-early",
        {},
        0.02,
        "docs/stomp.md: a client of which nothing comes for three heart-beats is ended",
        what="a client is ended as silent that was heard lately",
        momentary=True,
    ),
    Deadline(
        "refused-idle",
        {},
        0.02,
        "guard.py: passcodes that are hashed in a second, at most; docs/designs/fiorano.md",
        what="a login is refused for too many passcodes, and fewer were looked at in the second before,",
        momentary=True,
    ),
    Deadline(
        "left-over",
        {},
        0.02,
        "docs/stomp.md: a second CONNECT takes the connection over; the older TCP connection gets an ERROR",
        what="a client whose connection another one has is not ended",
    ),
    Deadline(
        "unread",
        {"output_timeout": 2},
        1,
        "docs/stomp.md: output_timeout, time in which a client must take some of the output that waits for it",
        what="a client that takes nothing of what waits for it is not ended",
    ),
    Deadline(
        "held-up",
        {},
        0.5,
        "docs/stomp.md: a client that has too much under way waits until that is done",
        what="a client may go on and is not listened to",
        calm=True,
    ),
)
"""Deadlines of all designs."""

MISDIRECTS = Deadline(
    "misdirects",
    {},
    0.02,
    "docs/stomp.md: a node that isn't the master names the master if it knows it",
    what="clients are refused by a node that names itself as the one that serves",
    momentary=True,
)
"""A deadline of designs in which one node serves, and others name it."""

GREETING = Deadline(
    "greeting",
    {},
    0.02,
    "Links: whoever has a new link says at once how it is",
    what="nothing was said to a peer since there is a link",
)
"""A deadline of designs whose nodes report their state to each other."""

NETWORKS = "networks.py: heartbeats in each fifth of network_timeout, and a silent connection is cut"
CALLS = "networks.py: whoever has messages for a server calls it, and again after 0.15 of network_timeout at most"
CALLED = "a message waits for another server, and that is not called,"
"""Texts of designs that communicate with other servers: the sources of their deadlines, and the description of a
violation.
"""
REACTIONS = "HA Joram, 1.2: a collocated client consumes a message, computes, produces, and so on"
"""The same for designs in which clients run inside the broker."""

CONNECTIONS = (
    Deadline(
        "idle-session",
        {"idle_timeout": 1.25},
        0.3,
        "docs/stomp.md: a connection from which nothing comes for idle_timeout is closed though its socket is open; "
        "four parts of that are counted",
        what="a client from which nothing has come for idle_timeout is not ended",
    ),
    Deadline(
        "idle-connection",
        {"idle_timeout": 1},
        0.3,
        "docs/stomp.md: a connection that nobody resumes within idle_timeout is closed",
        what="a connection that nobody has resumed is not closed",
    ),
    Deadline(
        "idle-client",
        {},
        0.02,
        "docs/stomp.md: a connection that nobody resumes within idle_timeout is closed",
        what="a connection that a client has is going to be closed for being idle",
        momentary=True,
    ),
    Deadline(
        "settled-early",
        {},
        0.02,
        "HA Joram, 5.1; docs/stomp.md: with ack:auto what the client has received is settled",
        what="a message is settled by itself, and its client has not said that it has received it",
        momentary=True,
    ),
    Deadline(
        "overtaken",
        {},
        0.02,
        "docs/stomp.md: whoever asks for a connection last takes it over",
        what="a client has lost its connection to one that had asked for it before",
        momentary=True,
    ),
    Deadline(
        "orphan",
        {"idle_timeout": 1},
        1.5,
        "docs/stomp.md: a connection that nobody resumes within idle_timeout "
        "is closed, one that is not reliable at once",
        what="a connection without a client is not closed",
        calm=True,
    ),
)
"""Deadlines of designs whose clients have reliable connections."""
