"""The waits of a replica of HA IceStorm."""

from __future__ import annotations

from nodes.systems.reference.rules import waits
from stormproof.contracts.wait import Instant, Wait

_PAGE = "docs/designs/icestorm.md: "
_LOOKS = _PAGE + "slaves ask their coordinator every master_timeout; coordinators search every election_timeout"
_CONTACT = _PAGE + "response_timeout bounds every contact"

WAITS = (
    # The time that the last check has taken is deducted, so these have no shortest length.
    Wait("look-timer", "InvitationElection._run", {"master_timeout": 1}, 0.0, _LOOKS,
         "a replica of a normal group looks after that again after {}", 0.0),
    Wait("search-timer", "InvitationElection._run", {"election_timeout": 1}, 0.0, _LOOKS,
         "a replica without a normal group looks for others again after {}", 0.0),
    Wait("invitation-timer", "InvitationElection._merge", {"election_timeout": 1}, 0.0,
         _PAGE + "election_timeout, seconds within which invitations must be accepted",
         "a coordinator waits {} for those who have taken its invitation"),
    Wait("question-timer", "Peers.ask", {"response_timeout": 1}, 0.0, _CONTACT, "a replica has {} to answer another"),
    Wait("database-timer", "Peers.ask", {"election_timeout": 1}, 0.0,
         "election.py: a database is fetched, and sent, within election_timeout",
         "the transfer of a database may take {}"),
    Instant("election-until", "_design.election._deadline", {"election_timeout": 2, "response_timeout": 1}, 0.0,
            "election.py: a group that is not formed by then is given up", "a group has {} to be formed"),
    Instant("merge-at", "_design.election.merge_due", {"election_timeout": 2}, 0.0,
            _PAGE + "a coordinator leaves those of higher priority time to invite it",
            "a coordinator that has found others invites them after {}", 0.0),
    *waits.of_links({"response_timeout": 2}, {"response_timeout": 0.25}, _CONTACT),
    Wait("again-timer", "IceStormDesign._again", {}, 0.05, "design.py: what could not be asked for is tried again",
         "a failed request is tried again after {}"),
    Wait("unused-timer", "IceStormDesign._close_idle", {"acm_timeout": 0.25}, 0.0,
         _PAGE + "acm_timeout, seconds after which an unused connection is closed; looked at four times in it",
         "unused connections are looked for every {}"),
    Wait("retry-timer", "SubscriberOutbox._run", {"retry_interval": 1}, 0.0,
         _PAGE + "retry_interval, seconds between attempts to deliver to a subscriber that failed",
         "a delivery that failed is tried again after {}"),
    Wait("connect-timer", "SubscriberOutbox._connection", {"delivery_timeout": 1}, 0.0,
         _PAGE + "delivery_timeout, seconds that a subscriber has to acknowledge an event",
         "a call to a subscriber is given up after {}"),
    Wait("acknowledgement-timer", "SubscriberOutbox._something", {"delivery_timeout": 1}, 0.0,
         _PAGE + "delivery_timeout, seconds that a subscriber has to acknowledge an event",
         "a subscriber has {} to acknowledge an event", 0.0),
    *waits.WAITS,
)  # fmt: skip
