"""What may be pending in a replica of HA IceStorm, and for how long."""

from __future__ import annotations

from nodes.systems.reference.deadlines import DEADLINES
from stormproof.contracts.deadline import Deadline

_GARCIA = "Garcia-Molina's timers: bounds.py"
_ODD = ("disk", "clock")
_WITHOUT_A_WORD = ("power", "reboot", "points", "packets")
"""What loses power tells nobody, and a forged reset one end alone; only the coordinator asks, so that two members may
take their connection for whole until there is an election, whose first question ends that."""
_HALF = {"election_timeout": 2.5, "master_timeout": 1.5, "response_timeout": 3}
"""One round of invitations, where the bound of the whole service has two."""

ICESTORM_DEADLINES = (
    Deadline(
        "link",
        {"response_timeout": 3, "election_timeout": 1, "master_timeout": 1},
        4,
        "Links: of two peers one dials the other, in every quarter of response_timeout, once a question has "
        "shown that the link of before is broken; what is fixed is for a lost attempt that TCP repeats after 1, 2 s",
        (*_ODD, *_WITHOUT_A_WORD),
        what="a replica has no link",
        calm=True,
    ),
    Deadline(
        "election",
        {"election_timeout": 3, "master_timeout": 1, "response_timeout": 3},
        0.3,
        "Garcia-Molina, procedure Recovery: who has been in an election for too long leaves it; its timer is looked at "
        "when the next check is due",
        what="a replica is in one election",
    ),
    Deadline(
        "answered",
        {"response_timeout": 1},
        0.3,
        "Garcia-Molina, procedure Merge: whoever has all answers goes on, and waits for those only that have none",
        what="a coordinator whose invitations have all been accepted does not go on",
    ),
    Deadline(
        "silent-link",
        {},
        0.02,
        "docs/designs/icestorm.md: response_timeout bounds every contact, and the link of who does not answer is cut",
        what="a link is kept on which a question was not answered in time",
    ),
    Deadline(
        "merge",
        {},
        0.2,
        "Garcia-Molina, procedure Check: a coordinator waits the longer the lower its priority is",
        what="a coordinator that has found others, all of lower priority, does not invite them",
    ),
    Deadline(
        "later-merge",
        {"election_timeout": 3, "master_timeout": 1, "response_timeout": 3},
        0.3,
        "Garcia-Molina, procedure Check: a coordinator waits the longer the lower its priority is",
        what="a coordinator that has found others does not invite them",
    ),
    Deadline("group", _HALF, 1, _GARCIA, _ODD, what="a replica is in no normal group", calm=True),
    Deadline(
        "away",
        {"election_timeout": 1.6, "response_timeout": 2.5},
        1,
        _GARCIA,
        _ODD,
        what="a replica is not in the coordinator's group",
        calm=True,
    ),
    Deadline("request", _HALF, 1, _GARCIA, _ODD, what="a client's request is not answered", calm=True),
    Deadline(
        "ended-busy",
        {},
        0.02,
        "docs/designs/icestorm.md: acm_timeout ends connections that nobody uses",
        what="a connection with a request under way is ended as idle",
        momentary=True,
    ),
    *DEADLINES,
)
