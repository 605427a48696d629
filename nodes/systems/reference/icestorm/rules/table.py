"""The rules of HA IceStorm.

The invariants hold at every instant. *The document* is ZeroC's "Highly Available IceStorm"; *Garcia-Molina* is
"Elections in a Distributed Computing System", 1982, whose invitation algorithm it uses. It is not a defect that two
coordinators may be *normal* at the same time: the older one can't confirm anything any longer.
"""

from __future__ import annotations

from collections.abc import Mapping

from nodes.systems.reference.icestorm.rules import data, frames, guards, members, order, roles
from nodes.systems.reference.icestorm.rules.deadlines import DEADLINES
from nodes.systems.reference.icestorm.rules.states import STATES
from nodes.systems.reference.icestorm.rules.waits import WAITS
from nodes.systems.reference.rules import draws, resting_state
from nodes.systems.reference.rules.answers import ANSWERS_ONCE, ENDED_HOLD_NOTHING
from nodes.systems.reference.rules.audits import (
    COUNTS_ADD_UP,
    NO_MISTAKES,
    PASSES_NOTHING_ON,
    STORE_HOLDS,
)
from nodes.systems.reference.rules.exits import STOPS_IN_ORDER
from nodes.systems.reference.rules.flow import WORK_UNDER_WAY
from nodes.systems.reference.rules.greetings import TELLS_CLIENTS
from nodes.systems.reference.rules.guards import GUARDS
from nodes.systems.reference.rules.table import Rules
from stormproof.contracts.bounds import (
    BYTES,
    FRAMES,
    HEALTHY,
    KEEPS_ROLES,
    SERVES,
    SERVES_WITH_MAJORITY,
    Bound,
    WorkBound,
)
from stormproof.contracts.draw import Draw, Drawing, Never
from stormproof.contracts.invariant import DISK, WIRE, WORD, Invariant
from stormproof.contracts.resting_state import RestingLimit
from stormproof.contracts.state_abstraction import Abstraction

_COUNTER = {"stamp": ("counter",)}

_CLOCK: Mapping[str, str] = {"clock": "a replica's time-outs differ from the others'; the rules about groups and "
                             "databases still judge what comes of it"}

INVARIANTS = (
    Invariant("one-coordinator-an-epoch", "all members of a normal group have the same coordinator",
              "Garcia-Molina, Assertion 3", roles.OneCoordinatorAnEpoch),
    Invariant("one-coordinator-a-group", "whoever is in a group that is reorganized or normal has the same coordinator",
              "Garcia-Molina, Assertion 3", roles.OneCoordinatorAGroup),
    Invariant("all-know-how-many", "whoever is in a normal group has seen as many replicas as that had",
              "the document: max, the maximum number of replicas seen by this replica", members.AllKnowHowMany),
    Invariant("members-come-along", "a coordinator that accepts an invitation passes it on to its members",
              "Garcia-Molina, the answer to Invitation", members.MembersComeAlong),
    Invariant("majority-replicates", "a coordinator replicates with a majority of all replicas only",
              "the document: Replication commences once a group contains a majority of replicas",
              members.MajorityReplicates),
    Invariant("full-start", "until all replicas have been seen, only a group of all of them replicates",
              "the document: during full system startup ... the participation of every replica", members.FullStart),
    Invariant("stamps-grow", "the stamp of a database, and what its replica promised, only grow",
              "the document: a time stamp recorded upon each database change", data.StampsGrow),
    Invariant("one-database-a-stamp", "databases of the same stamp hold the same",
              "the document: the most recent database state is transferred to all replicas", data.OneDatabaseAStamp,
              where=_COUNTER),
    Invariant("agreed-is-there", "what is agreed upon is on the disks of a majority",
              "the document: a replica that loses the majority during request processing leaves it indeterminate",
              data.AgreedIsThere),
    Invariant("confirmed-stays", "what a majority had on disk is in the database of every later group",
              "the document: The most recent database state ... is transferred to all replicas", data.ConfirmedStays,
              where=_COUNTER),
    Invariant("groups-shrink", "whoever begins a group is alone in it, and nobody comes into it after its election",
              "Garcia-Molina, procedures Recovery and Merge: a group has a name of its own, and whom it has is settled "
              "when it is reorganized", members.GroupsShrink),
    Invariant("invites-in-turn", "a coordinator invites its members, too, and not before those of higher priority",
              "Garcia-Molina, procedures Check and Merge", roles.InvitesInTurn, excuses=_CLOCK),
    Invariant("awaits-who-comes", "a coordinator waits for those that have taken its invitation, and for nobody else",
              "Garcia-Molina, procedure Merge", members.AwaitsWhoComes, excuses=_CLOCK),
    Invariant("keeps-who-follows", "nobody leaves, drops or gives up who answers and follows",
              "Garcia-Molina, procedures Check, Timeout and Recovery: that is for failures; the document: If a failure "
              "occurs, the replica considers itself in error", members.KeepsWhoFollows, excuses=_CLOCK),
    Invariant("commences", "a group that is large enough replicates, and its members have its epoch and database",
              "the document: Replication commences once a group contains a majority of replicas; "
              "docs/designs/icestorm.md: each member promises on disk to take no more changes of older epochs",
              roles.Commences),
    Invariant("changes-in-their-epoch", "a change is of the epoch that its replica has promised, and its coordinator's",
              "docs/designs/icestorm.md: stamps are (epoch, counter), counted by the coordinator",
              data.ChangesInTheirEpoch),
    Invariant("changes-as-asked", "a change of the database does what was asked for, and nothing else",
              "docs/designs/icestorm.md: the table of requests", data.ChangesAsAsked, where=_COUNTER),
    Invariant("most-recent-wins", "a group begins with the most recent of its members' databases; others are given it",
              "the document: The most recent database state ... is transferred to all replicas", data.MostRecentWins,
              where=_COUNTER),
    Invariant("answers-while-it-leads", "nobody answers requests in an epoch that a majority had left before",
              "docs/designs/icestorm.md: reads are confirmed by a majority, so they never are stale",
              data.AnswersWhileItLeads),
    Invariant("answers-in-its-group", "whoever answers a request coordinates the group in which it has begun it",
              "docs/designs/icestorm.md: reads are confirmed by a majority, so they never are stale",
              data.AnswersInItsGroup),
    Invariant("answers-as-it-has", "a promise that is sent is new; it, an installed database and a confirmed "
              "change would survive a power loss at that moment; who refuses a change is not counted for it",
              "docs/designs/icestorm.md: each member promises on disk; a change is acknowledged when a majority has it "
              "on disk", frames.AnswersAsItHas, seen=(WIRE, DISK)),
    Invariant("asks-in-its-role", "coordinators look for others, invite, reorganize and change; members ask only their "
              "coordinator; each only about the group in which it is",
              "Garcia-Molina, procedures Check, Merge, Ready and Timeout; docs/designs/icestorm.md, Election: "
              "coordinators search for other coordinators", frames.AsksInItsRole, seen=(WIRE, WORD)),
    Invariant("agrees-in-order", "a database is installed only in the epoch that was promised to its group, and each "
              "change is sent to, and acknowledged by, only those who have acknowledged the one before",
              "docs/designs/icestorm.md: stamps are (epoch, counter), counted by the coordinator; who does not answer "
              "leaves the group", order.AgreesInOrder, seen=(WIRE,)),
    Invariant("refuses-when-full", "a database takes 20,000 topics, subscribers and links, and refuses further ones",
              "docs/designs/icestorm.md, Clients: a database holds 20,000; further ones are refused (full)",
              guards.RefusesWhenFull),
    Invariant("keeps-what-may-wait", "at most max_waiting events or 64 MiB wait for a subscriber; beyond, the oldest "
              "are dropped", "docs/designs/icestorm.md, Events; max_waiting", guards.KeepsWhatMayWait),
    Invariant("delivers-to-subscribers", "events wait for subscribers only",
              "the document: The subscriber will stop receiving events", data.DeliversToSubscribers),
    Invariant("answers-as-it-stands", "whoever asks a replica whether it coordinates, counts or follows is told so",
              "Garcia-Molina, the answers to AreYouCoordinator and AreYouThere", roles.AnswersAsItStands),
    Invariant("tells-its-state", "what a replica shows is how it stands",
              "the document: the state of the replicas, using the replica command", roles.TellsItsState),
    ANSWERS_ONCE,
    ENDED_HOLD_NOTHING,
    STORE_HOLDS,
    COUNTS_ADD_UP,
    PASSES_NOTHING_ON,
    *WORK_UNDER_WAY,
    *GUARDS,
    NO_MISTAKES,
    STOPS_IN_ORDER,
    TELLS_CLIENTS,
)  # fmt: skip

_ELECTION: Mapping[str, float] = {"election_timeout": 4, "master_timeout": 2, "response_timeout": 4}
_WHY = ("Garcia-Molina's timers: a slave asks after its coordinator, a coordinator looks around, invitations and "
        "answers take a time each, twice where two groups meet; what is fixed is for clients that come back, and disks")

BOUNDS = (
    Bound(HEALTHY, _ELECTION, 1, _WHY),
    Bound(SERVES, _ELECTION, 1, _WHY),
    Bound(SERVES_WITH_MAJORITY, _ELECTION, 2, _WHY, of_use=True),
    Bound(KEEPS_ROLES, _ELECTION, 1, _WHY),
)

_CHANGES = ("a change goes to each replica, which answers; Garcia-Molina's timers: replicas ask for their coordinator "
            "in each master_timeout, coordinators look around in each election_timeout; what is fixed is for elections "
            "and what a replica is given then")

_FASTER: Mapping[str, str] = {"clock": "a clock that runs fast asks more often; all other rules still judge"}

WORK = (
    WorkBound(FRAMES, 2.5, {"master_timeout": 3, "election_timeout": 2.5}, 40, _CHANGES, excuses=_FASTER),
    WorkBound(BYTES, 1, {"master_timeout": 170, "election_timeout": 80}, 2000, _CHANGES, excuses=_FASTER),
)

_MADE = "topics, subscribers and links: as many as clients have made"

KEEPS = (
    *(RestingLimit(name, _MADE, more=80) for name in (
        "TopicDatabase.", "ReplicatedTopic.", "EventDelivery.outboxes", "ObjectTrace._known",
        "table icestorm_topics")),
    RestingLimit("SubscriberOutbox._taken", "the last events that each subscriber has acknowledged, a few of each",
                 more=2500),
    RestingLimit("task Peers.ask_all.", "one for each other replica, while a round of questions is under way", more=8),
    RestingLimit("task SubscriberOutbox._run", "each subscriber and link has one", like="EventDelivery.outboxes"),
    *resting_state.ENGINE,
)

DRAWING = Drawing(
    draws=(
        *draws.FLOW,
        draws.PAGES,
        Draw("election_timeout", (0.3, 0.5, 2.0), 0.5),
        Draw("master_timeout", (0.3, 0.5, 2.0), 0.5),
        Draw("response_timeout", (0.2, 1.0), 0.4),
        # A dialogue waits for three retries, and must not be closed because of that.
        Draw("retry_interval", (0.05, 0.1), 0.2),
        Draw("delivery_timeout", (2.0,), 0.2),
        Draw("publisher_endpoints", ("one",), 0.2),
        Draw("stamp", ("wall-clock",), 0.15),
        Draw("reads", ("local",), 0.15),
        Draw("step_down", ("on-write",), 0.15),
        Draw("offline_events", ("discarded",), 0.2),
        Draw("acm_timeout", (1.0, 5.0), 0.2),
    ),
    nodes=(3, 3, 3, 4, 5, 5),
    timeouts=("election_timeout", "master_timeout", "response_timeout"),
    never=(
        Never("an old database may win, by design", {"stamp": ("wall-clock",)}, ("subscriptions", "topic-dialogue")),
        Never("a coordinator that is cut off stays normal, by design", {"step_down": ("on-write",)},
              faults=("partition", "packets", "points")),
        Never("events for a subscriber that can't be reached are lost, by design",
              {"offline_events": ("discarded",)}, ("events",)),
    ),
)

ABSTRACTION = Abstraction(
    changes=("state", "coordinator", "epoch", "members", "max_seen", "promised"),
    kept=("state", "members", "max_seen"),
    behind=("epoch", "promised", "stamp"),
    unequal=(("epoch", "promised"),),
)

RULES = Rules(INVARIANTS, DEADLINES, BOUNDS, WORK, KEEPS, DRAWING, ABSTRACTION, STATES, WAITS)
