"""What may be pending in a server of a FioranoMQ pair, and for how long."""

from __future__ import annotations

from nodes.systems.fiorano.bounds import TAKEOVER
from nodes.systems.reference.deadlines import CONNECTIONS, DEADLINES, GREETING, MISDIRECTS
from stormproof.contracts.deadline import Deadline

_ODD = ("disk", "clock")
_STALL = ("packets", "partition", "points")
"""What may have TCP wait before it tries again, for some time after the fault is over."""
_LOCKED = {"lock": (True,), "fencing": (True,), "as_documented": ("",), "start_alone": (False,)}
_REPLICATED = {**_LOCKED, "mode": ("replicated",)}
_TABLE = "Determining which HA to use: bounds.py"

FIORANO_DEADLINES = (
    Deadline(
        "undecided",
        {"heartbeat": 1},
        0.1,
        "States and state transition: what a line of the table asks for is seen with the next sign of life, or before",
        _ODD,
        what="a server is in a state that the table has it leave",
    ),
    Deadline(
        "link",
        {"heartbeat": 4},
        0.4,
        "Links: of two peers one dials the other, in every half of a heartbeat",
        _ODD,
        what="the HA channel is broken",
        calm=True,
    ),
    Deadline(
        "hello",
        {"heartbeat": 4},
        0.6,
        "States and state transition: servers broadcast their state when the channel is there; one on which nothing "
        "comes for four heartbeats, since TCP has not tried again yet, is given up",
        _ODD,
        what="the other server has not said how it is",
        calm=True,
    ),
    Deadline(
        "silent-peer",
        {"heartbeat": 4},
        0.6,
        "servers speak in every heartbeat; a channel on which nothing comes for four is given up",
        _ODD,
        what="nothing is heard on the HA channel",
        calm=True,
    ),
    Deadline(
        "gateway",
        {"lease": 2.4},
        0.5,
        "a gateway that was away is asked again in every fifth of a lease",
        _ODD,
        _LOCKED,
        "a server has no connection with the gateway",
        calm=True,
    ),
    Deadline(
        "renewal",
        {"lease": 0.4},
        0.2,
        "a lease is renewed in every fifth of it",
        (*_ODD, "gateway", *_STALL),
        _LOCKED,
        "a lease is not renewed",
        calm=True,
    ),
    Deadline(
        "answer",
        {"lease": 1},
        0.2,
        "lock.py: a lease is asked for again while it lasts, so whoever is not answered within one connects again",
        _ODD,
        _LOCKED,
        "the gateway's answer is awaited",
    ),
    Deadline(
        "taking",
        {"lease": 0.4},
        0.2,
        "the lock is asked for in every fifth of a lease",
        _ODD,
        _LOCKED,
        "the lock that is wanted is not asked for",
        calm=True,
    ),
    Deadline("state", TAKEOVER, 1, _TABLE, _ODD, _LOCKED, "a server does not come to a state that lasts", calm=True),
    Deadline(
        "page",
        {"heartbeat": 4},
        0.5,
        "Working of Fiorano Replicated High Availability",
        _ODD,
        _REPLICATED,
        "a page is not answered",
        calm=True,
    ),
    Deadline(
        "database",
        {"database_timeout": 1},
        0.2,
        "docs/storage.md: StorageClient gives each request a deadline, to connect included",
        _ODD,
        {"mode": ("shared",)},
        "the database's answer is awaited",
    ),
    Deadline("completion", TAKEOVER, 1, _TABLE, _ODD, _REPLICATED, "a command is not confirmed", calm=True),
    GREETING,
    MISDIRECTS,
    *DEADLINES,
    *CONNECTIONS,
)
