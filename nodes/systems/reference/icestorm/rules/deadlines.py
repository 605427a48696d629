"""Deadlines for pending work in a replica of HA IceStorm."""

from __future__ import annotations

from nodes.systems.reference.rules import deadlines
from stormproof.contracts.deadline import Deadline

_GARCIA = "Garcia-Molina's timers: BOUNDS"
_ODD = ("disk", "clock")
_WITHOUT_A_WORD = ("power", "reboot", "points", "packets")
"""Faults that leave a connection broken at one end only: a machine that loses power notifies no peer, and a forged
reset reaches one end. Only the coordinator asks questions, so two members may consider their connection intact until an
election, whose first question reveals the fault."""
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
    Deadline("question", {"response_timeout": 1}, 0.2, _NOT_THERE, what="a replica waits for another's answer"),
    Deadline("round", {"response_timeout": 1}, 0.2, _NOT_THERE, what="a replica waits for the answers of several"),
    Deadline(
        "long-question",
        {"election_timeout": 1},
        0.2,
        "election.py: a database is fetched, and sent, within election_timeout",
        what="a replica waits for another's database, or until it has this one's",
    ),
    Deadline(
        "lost-question",
        {},
        0.1,
        "docs/designs/icestorm.md: whoever can't be reached is not waited for; what was asked on a link that broke is "
        "not answered any more",
        what="an answer is awaited that was asked for on a link that is broken",
    ),
    Deadline(
        "cut-alive",
        {},
        0.02,
        "docs/designs/icestorm.md: a change may take long, as a slave is slow: whoever waits for it does not take the "
        "coordinator for dead",
        what="a replica's link was cut as it did not answer, which had answered what was asked later",
        momentary=True,
    ),
    Deadline(
        "astray",
        {},
        0.02,
        "Garcia-Molina, procedures Merge, Ready, Recovery and the answer to Invitation: only who is in a group that is "
        "formed takes part in an election, and goes from there to reorganization, and to the group",
        what="a replica has come to a state to which no procedure leads",
        momentary=True,
    ),
    Deadline(
        "forsaken",
        {},
        0.02,
        "Garcia-Molina, procedures Merge and Ready: whoever is refused, or can't form its group, recovers",
        what="an election goes on that has come to nothing",
    ),
    Deadline(
        "look",
        {"master_timeout": 1, "response_timeout": 2},
        0.2,
        _LOOKS,
        what="a replica of a normal group does not ask after it, or for others",
    ),
    Deadline(
        "look-alone",
        {"election_timeout": 1, "response_timeout": 2},
        0.2,
        _LOOKS,
        what="a replica in no normal group does not ask for others",
    ),
    Deadline(
        "first-look",
        {"master_timeout": 1, "election_timeout": 1, "response_timeout": 2},
        0.2,
        _LOOKS,
        what="a replica whose group has just been formed does not ask after it, or for others",
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
    Deadline("early", {}, 0.02, "docs/designs/icestorm.md: while a replica is not normal, requests and events wait",
             what="an event is taken by a replica that is in no group that replicates", momentary=True),
    Deadline("blocked", {}, 0.1, "the document: All requests to IceStorm block until the replica becomes Active",
             what="requests wait for a group that replicates, and there is one"),
    Deadline("again", {}, 0.1, "design.py: what could not be asked for is tried again after 0.05 s",
             what="a request is not tried again"),
    Deadline("request", _HALF, 1, _GARCIA, _ODD, what="a client's request is not answered", calm=True),
    Deadline(
        "ended-busy",
        {},
        0.02,
        "docs/designs/icestorm.md: acm_timeout ends connections that nobody uses",
        what="a connection is ended as idle that is used",
        momentary=True,
    ),
    Deadline(
        "unused",
        {"acm_timeout": 1.25},
        0.3,
        "docs/designs/icestorm.md: acm_timeout, seconds after which a client connection that is not used is closed",
        what="a connection that nobody uses is not closed",
    ),
    Deadline("connecting", {"delivery_timeout": 1}, 0.2, _DELIVERS, what="a subscriber does not take a connection"),
    Deadline("unacknowledged", {"delivery_timeout": 1}, 0.2, _DELIVERS,
             what="an event that was sent to a subscriber is not acknowledged"),
    Deadline("retry", {"retry_interval": 1}, 0.2, _RETRIES,
             what="events wait for a subscriber, and nobody tries to deliver them"),
    Deadline("removal", _HALF, 1, _GARCIA, _ODD, what="a subscriber whose attempts are used up is not removed",
             calm=True),
    *deadlines.DEADLINES,
)
