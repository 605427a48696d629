"""Deadlines for pending work in a replica of HA IceStorm."""

from __future__ import annotations

from nodes.systems.reference.rules import deadlines
from stormproof.contracts.deadline import Deadline

_GARCIA = "Garcia-Molina's timers: BOUNDS"
_ONE_END = ("a connection may be broken at one end only, and only the coordinator asks questions: two members find "
            "out at the next election; `silent-link`, `away` and `group` still judge")
_WITHOUT_A_WORD = dict.fromkeys(("power", "reboot", "points", "packets"), _ONE_END)
_NOT_THERE = "docs/designs/icestorm.md: response_timeout, seconds that a replica has to answer another"
_LOOKS = ("docs/designs/icestorm.md: slaves ask their coordinator every master_timeout, coordinators ask theirs; they "
          "look for other groups as often; a check takes as long as those whom it asks")
_DELIVERS = "docs/designs/icestorm.md: delivery_timeout, seconds that a subscriber has to acknowledge an event"
_RETRIES = "docs/designs/icestorm.md: retry_interval, seconds between attempts to deliver to a subscriber that failed"
_HALF = {"election_timeout": 2.5, "master_timeout": 1.5, "response_timeout": 3}
"""One round of invitations; the bound of the whole service allows two."""

DEADLINES = (
    Deadline(
        "link",
        {"response_timeout": 3, "election_timeout": 1, "master_timeout": 1},
        4,
        "Links: of two peers one dials the other, in every quarter of response_timeout, once a question has "
        "shown that the link of before is broken; what is fixed is for a lost attempt that TCP repeats after 1, 2 s",
        excuses=_WITHOUT_A_WORD,
        requirement="each replica has a link within {}",
        calm=True,
    ),
    Deadline(
        "election",
        {"election_timeout": 3, "master_timeout": 1, "response_timeout": 3},
        0.3,
        "Garcia-Molina, procedure Recovery: who has been in an election for too long leaves it; its timer is looked at "
        "when the next check is due",
        requirement="an election ends within {}",
    ),
    Deadline(
        "answered",
        {"response_timeout": 1},
        0.3,
        "Garcia-Molina, procedure Merge: whoever has all answers goes on, and waits for those only that have none",
        requirement="a coordinator whose invitations have all been accepted proceeds within {}",
    ),
    Deadline(
        "silent-link",
        {},
        0.02,
        "docs/designs/icestorm.md: response_timeout bounds every contact, and the link of who does not answer is cut",
        requirement="a link on which a question was not answered in time is closed within {}",
    ),
    Deadline("question", {"response_timeout": 1}, 0.2, _NOT_THERE,
             requirement="a replica has another's answer, or gives up, within {}"),
    Deadline("round", {"response_timeout": 1}, 0.2, _NOT_THERE,
             requirement="a replica has the answers of several others, or gives up, within {}"),
    Deadline(
        "long-question",
        {"election_timeout": 1},
        0.2,
        "election.py: a database is fetched, and sent, within election_timeout",
        requirement="the transfer of a database ends within {}",
    ),
    Deadline(
        "lost-question",
        {},
        0.1,
        "docs/designs/icestorm.md: whoever can't be reached is not waited for; what was asked on a link that broke is "
        "not answered any more",
        requirement="a question on a broken link is given up within {}",
    ),
    Deadline(
        "cut-alive",
        {},
        0.02,
        "docs/designs/icestorm.md: a change may take long, as a slave is slow: whoever waits for it does not take the "
        "coordinator for dead",
        requirement="no link is closed for a missing answer if a later question on it was answered",
        momentary=True,
    ),
    Deadline(
        "astray",
        {},
        0.02,
        "Garcia-Molina, procedures Merge, Ready, Recovery and the answer to Invitation: only who is in a group that is "
        "formed takes part in an election, and goes from there to reorganization, and to the group",
        requirement="each state of a replica is one that a procedure leads to",
        momentary=True,
    ),
    Deadline(
        "forsaken",
        {},
        0.02,
        "Garcia-Molina, procedures Merge and Ready: whoever is refused, or can't form its group, recovers",
        requirement="a failed election ends within {}",
    ),
    Deadline(
        "look",
        {"master_timeout": 1, "response_timeout": 2},
        0.2,
        _LOOKS,
        requirement="a replica of a normal group asks for its coordinator, or for other groups, within {}",
    ),
    Deadline(
        "look-alone",
        {"election_timeout": 1, "response_timeout": 2},
        0.2,
        _LOOKS,
        requirement="a replica without a normal group asks for others within {}",
    ),
    Deadline(
        "first-look",
        {"master_timeout": 1, "election_timeout": 1, "response_timeout": 2},
        0.2,
        _LOOKS,
        requirement="a replica of a new group first asks for its coordinator, or for other groups, within {}",
    ),
    Deadline(
        "merge",
        {},
        0.2,
        "Garcia-Molina, procedure Check: a coordinator waits the longer the lower its priority is",
        requirement="a coordinator that has found others, all of lower priority, invites them within {}",
    ),
    Deadline(
        "later-merge",
        {"election_timeout": 3, "master_timeout": 1, "response_timeout": 3},
        0.3,
        "Garcia-Molina, procedure Check: a coordinator waits the longer the lower its priority is",
        requirement="a coordinator that has found others invites them within {}",
    ),
    Deadline("group", _HALF, 1, _GARCIA, requirement="each replica is in a normal group within {}", calm=True),
    Deadline(
        "away",
        {"election_timeout": 1.6, "response_timeout": 2.5},
        1,
        _GARCIA,
        requirement="each replica is in the coordinator's group within {}",
        calm=True,
    ),
    Deadline("early", {}, 0.02, "docs/designs/icestorm.md: while a replica is not normal, requests and events wait",
             requirement="a replica accepts events only in a group that replicates", momentary=True),
    Deadline("blocked", {}, 0.1, "the document: All requests to IceStorm block until the replica becomes Active",
             requirement="requests that wait for a replicating group proceed within {} once there is one"),
    Deadline("again", {}, 0.1, "design.py: what could not be asked for is tried again after 0.05 s",
             requirement="a failed request is tried again within {}"),
    Deadline("request", _HALF, 1, _GARCIA, requirement="a client's request is answered within {}", calm=True),
    Deadline(
        "ended-busy",
        {},
        0.02,
        "docs/designs/icestorm.md: acm_timeout ends connections that nobody uses",
        requirement="no connection in use is closed as idle",
        momentary=True,
    ),
    Deadline(
        "unused",
        {"acm_timeout": 1.25},
        0.3,
        "docs/designs/icestorm.md: acm_timeout, seconds after which a client connection that is not used is closed",
        requirement="an unused connection is closed within {}",
    ),
    Deadline("connecting", {"delivery_timeout": 1}, 0.2, _DELIVERS,
             requirement="a connection to a subscriber is made, or given up, within {}"),
    Deadline("unacknowledged", {"delivery_timeout": 1}, 0.2, _DELIVERS,
             requirement="an event that was sent to a subscriber is acknowledged, or given up, within {}"),
    Deadline("retry", {"retry_interval": 1}, 0.2, _RETRIES,
             requirement="the delivery of waiting events is tried again within {}"),
    Deadline("removal", _HALF, 1, _GARCIA, requirement="a subscriber is removed within {} after its last attempt",
             calm=True),
    *deadlines.DEADLINES,
)
