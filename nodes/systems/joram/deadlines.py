"""What may be pending in a replica of HA Joram, and for how long."""

from __future__ import annotations

from nodes.systems.reference.deadlines import (
    CONNECTIONS,
    DEADLINES,
    GREETING,
    MISDIRECTS,
    NETWORKS,
    REACTIONS,
)
from stormproof.contracts.deadline import Deadline

_LINKS = "Links: of two peers one dials the other, in every half of a heartbeat's interval"
_PRIMARY = {"partitions": ("primary-partition",)}
_ODD = ("disk", "clock", "membership")
_STALLS = (*_ODD, "packets")
"""TCP waits ever longer before it sends again what was lost, and goes on with that after the fault."""

JORAM_DEADLINES = (
    Deadline("link", {"detection_timeout": 2}, 0.4, _LINKS, _ODD, what="a peer has no link", calm=True),
    Deadline(
        "master", {"detection_timeout": 4}, 0.5, "4.5: bounds.py", _ODD, _PRIMARY, "a replica has no master", calm=True
    ),
    *(
        Deadline(
            f"turn-{place}",
            {"detection_timeout": 2.2 + 2 * place},
            0.3,
            "election.py: a candidate leaves each before it, in the order of the view, two time-outs",
            _ODD,
            _PRIMARY,
            f"a candidate with {place} before it does not stand",
        )
        for place in range(5)
    ),
    Deadline(
        "silent-master",
        {"detection_timeout": 0.35},
        0.2,
        "a master sends something in every one and a half intervals, which are a fifth of detection_timeout",
        _STALLS,
        {**_PRIMARY, "heartbeat_interval": (0.0,)},
        "nothing is heard of the master",
        calm=True,
    ),
    Deadline(
        "silent-peer",
        {"detection_timeout": 1},
        0.5,
        "others send something in every half of detection_timeout; a link on which nothing comes for all of it, since "
        "TCP has not tried again yet, is given up",
        _ODD,
        {**_PRIMARY, "heartbeat_interval": (0.0,)},
        "nothing is heard of a peer with a link",
        calm=True,
    ),
    Deadline(
        "believed",
        {"detection_timeout": 1.6},
        0.5,
        "docs/designs/joram.md: detection_timeout, seconds after which a peer that is silent is suspected",
        ("clock",),
        what="a peer counts as alive of which nothing is heard",
    ),
    Deadline(
        "leaver",
        {"detection_timeout": 0.3},
        0.2,
        "docs/designs/joram.md: whoever stops in good order says so, and is not waited for",
        _ODD,
        what="a replica that has said that it stops is in the view",
    ),
    Deadline(
        "adoption",
        {},
        0.02,
        "election.py: a candidate that loses the source of the most complete log stands again",
        what="a candidate waits for a log from somebody to whom there is no link",
    ),
    Deadline(
        "serving",
        {"detection_timeout": 4},
        1,
        "Raft paper, 5.4.2",
        _ODD,
        _PRIMARY,
        "a master does not serve",
        calm=True,
    ),
    Deadline(
        "lease",
        {"detection_timeout": 2},
        0.5,
        "Ongaro's dissertation, 6.4.1",
        _ODD,
        _PRIMARY,
        "a master that serves has no lease",
        calm=True,
    ),
    Deadline(
        "untold",
        {"detection_timeout": 0.5},
        0.1,
        "docs/designs/joram.md: when enough have acknowledged, the master applies the command and releases its effects",
        _ODD,
        _PRIMARY,
        "what is committed is not told to clients, while a lease holds,",
    ),
    Deadline(
        "uncommitted",
        {"detection_timeout": 2},
        0.5,
        "Raft paper, 5.3",
        _ODD,
        _PRIMARY,
        "an entry is not committed",
        calm=True,
    ),
    Deadline(
        "adopted",
        {},
        0.05,
        "election.py: whoever has the most complete log leads, or gives up",
        _ODD,
        _PRIMARY,
        "a candidate that has the most complete log by now does not lead",
    ),
    Deadline(
        "unapplied",
        {},
        0.5,
        "Raft paper, Figure 2: if commitIndex > lastApplied, apply",
        _ODD,
        _PRIMARY,
        "an entry that is committed is not applied",
    ),
    Deadline(
        "behind",
        {"detection_timeout": 2},
        1,
        "Raft paper, 5.3: the leader retries indefinitely",
        _ODD,
        _PRIMARY,
        "a peer with a link gets nothing that it lacks",
        calm=True,
    ),
    Deadline(
        "not-in-view",
        {"detection_timeout": 3},
        1,
        "4.7.3: a replica that comes back joins the view",
        _ODD,
        _PRIMARY,
        "a replica of the group is not in the view",
        calm=True,
    ),
    Deadline(
        "forwarding",
        {"network_timeout": 4, "detection_timeout": 4},
        3,
        "4.2.1: a message for another server is kept, and sent, until it is there",
        _ODD,
        _PRIMARY,
        "a message for another server is not known to be there",
        calm=True,
    ),
    Deadline(
        "network-beat",
        {"network_timeout": 0.3},
        0.2,
        NETWORKS,
        what="another server with a connection is sent nothing",
    ),
    Deadline(
        "network-silent",
        {"network_timeout": 1.3},
        0.3,
        NETWORKS,
        what="a connection with another server of which nothing comes is kept",
    ),
    Deadline(
        "collocated",
        {"detection_timeout": 4},
        1,
        REACTIONS,
        _ODD,
        _PRIMARY,
        "a client inside the broker has no connection",
        calm=True,
    ),
    Deadline(
        "reaction",
        {"detection_timeout": 4},
        1,
        REACTIONS,
        _ODD,
        _PRIMARY,
        "a client inside the broker goes on to have the message that it has taken",
        calm=True,
    ),
    GREETING,
    MISDIRECTS,
    *DEADLINES,
    *CONNECTIONS,
)
