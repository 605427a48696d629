"""The rules of an active-passive cluster of Qpid brokers with a manager next to each.

The invariants hold at every instant. *The document* is Qpid's "new HA design". It is not a defect that two brokers
believe for a moment that they are primary: one of them no longer has its manager's permission, and can't confirm
anything.
"""

from __future__ import annotations

from nodes.reference.designs.qpid.options import ABORT, BUILTIN, CARRY_ON, SYNC
from nodes.systems.reference.qpid.manager_probes import MANAGER
from nodes.systems.reference.qpid.rules import data, roles, wire
from nodes.systems.reference.qpid.rules.deadlines import DEADLINES, FAILOVER
from nodes.systems.reference.qpid.rules.states import STATES
from nodes.systems.reference.qpid.rules.waits import WAITS
from nodes.systems.reference.rules import draws, resting_state
from nodes.systems.reference.rules.answers import ANSWERS_ONCE, ENDED_HOLD_NOTHING
from nodes.systems.reference.rules.audits import (
    COUNTS_ADD_UP,
    NO_MISTAKES,
    PASSES_NOTHING_ON,
    STORE_HOLDS,
    same_state,
)
from nodes.systems.reference.rules.exits import STOPS_IN_ORDER
from nodes.systems.reference.rules.flow import WORK_UNDER_WAY
from nodes.systems.reference.rules.greetings import TELLS_CLIENTS
from nodes.systems.reference.rules.guards import GUARDS, ROWS_JUDGED
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
from stormproof.contracts.invariant import BROKER, DISK, WIRE, WORD, Invariant
from stormproof.contracts.resting_state import RestingLimit
from stormproof.contracts.state_abstraction import Abstraction

_MANAGED = {"manager": (BUILTIN,)}
_HOT = {**_MANAGED, "standby": ("hot",)}
_BOTH = (BROKER, MANAGER)
_PAXOS = "Lamport, The Part-Time Parliament, 1998"
_LEASES = "Gray and Cheriton 1989; Ongaro's dissertation, 6.4.1; docs/designs/qpid.md: Why there are never two"
_NOTES = ("docs/designs/qpid.md: a primary that goes on without a backup first has that noted by a majority of "
          "managers")  # fmt: skip
_OWN = "docs/designs/qpid.md: the coordinator keeps the primary that there is"

_CLOCKS = {"clock": "a lease is over, and an answer noted, by each node's own clock, whose rate may differ by a fifth; "
                    "what clients observe of two primaries still judges"}

INVARIANTS = (
    Invariant("one-primary-confirms", "at any instant at most one primary may confirm and deliver",
              "the document: Failover and Cluster Resource Managers; Gray and Cheriton 1989", roles.OneConfirms,
              excuses=_CLOCKS, where=_MANAGED),
    Invariant("one-coordinator-a-ballot", "in each ballot one manager coordinates, and each term is of one primary",
              _PAXOS, roles.OneCoordinatorABallot, where=_MANAGED,
              of=(MANAGER,)),
    Invariant("records-grow", "what a manager has promised, accepted and done only grows",
              _PAXOS, roles.RecordsGrow, where=_MANAGED,
              of=(MANAGER,)),
    Invariant("record-on-disk", "what a manager has promised, accepted and done is on its disk before it counts",
              "docs/designs/qpid.md: decision, promise and promoted process are on disk before they are announced",
              roles.RecordOnDisk, where=_MANAGED, of=(MANAGER,), seen=(DISK,)),
    Invariant("decisions-stay", "what most managers have accepted is known to whoever coordinates later",
              _PAXOS, roles.DecisionsStay, where=_MANAGED,
              of=(MANAGER,)),
    Invariant("one-primary-a-term", "in each of the managers' terms at most one broker is primary",
              "Raft paper, Figure 3, Election Safety", roles.OnePrimaryATerm, where=_MANAGED),
    Invariant("states-of-a-broker", "a broker's states follow as the document says; nobody is promoted in catchup",
              "the document: Broker discovery and lifecycle", roles.StatesByDocument, where=_MANAGED),
    Invariant("primary-is-dirty", "the store of a broker that is primary is dirty",
              "the document: Interaction with the store", data.PrimaryIsDirty),
    Invariant("primary-on-disk", "the disk of a broker that becomes primary says so, with its generation",
              "the document: Stored status: clean(UUID)/dirty, primary/backup, generation number", data.PrimaryOnDisk,
              where={"store": (SYNC,)}, seen=(DISK,)),
    Invariant("generations-grow", "the generation in a broker's store only grows, unless that is erased",
              "Kafka's leader epochs (KIP-101)", data.GenerationsGrow,
              where={**_MANAGED, "store": (SYNC,)}),
    Invariant("eligible-has-all", "a broker may be promoted that was ready since it last began to catch up",
              "the document: Broker discovery and lifecycle; requirement Q10", roles.EligibleHasAll,
              where=_HOT),
    Invariant("copies-match", "a backup that is ready has each message of its primary, under the same number",
              "the document: Replicating browsers", data.CopiesMatch,
              where={**_HOT, "as_documented": ("",)}),
    Invariant("resets-what-differs", "a primary has a backup drop what another primary has numbered",
              "positions.py: two brokers' copies of a queue agree up to the point at which the lists of their "
              "generations diverge; Kafka's leader epochs (KIP-101)", wire.ResetsWhatDiffers,
              where={**_HOT, "as_documented": ("",)}, seen=(WIRE, WORD)),
    Invariant("levels-kept", "what says of itself that it is not replicated is at no backup",
              "the document: Replicating configuration, qpid.replicate", data.LevelsKept,
              where={**_HOT, "as_documented": ("",)}),
    Invariant("catch-up-window-used", "what a backup lacks is held back only while its window is full",
              "browsing.py: eight groups may be under way while a backup catches up", data.WindowUsed, where=_MANAGED),
    Invariant("backlog-kept", "no more than catchup_backlog waits for a backup that catches up",
              "docs/designs/qpid.md: beyond that limit, the primary cuts the backup's connection", data.BacklogKept),
    Invariant("store-tells", "the store of who is ready, or primary, is dirty, and of that role and generation",
              "the document: Stored status: clean(UUID)/dirty, primary/backup, generation number", data.StoreTells,
              where={**_HOT, "as_documented": ("",)}),
    Invariant("clean-alike", "stores that are clean with the same identifier hold the same",
              "the document: after clean shutdown all nodes have equivalent stores", data.CleanAlike,
              where={"as_documented": ("",), "standby": ("hot",)}),
    Invariant("tells-how-it-stands", "what a person, and a manager, is told of a broker is how it stands",
              "docs/designs/qpid.md: admin qpid status; manager/report.py: its own word", roles.BrokerStatusTells),
    Invariant("elected-by-most", "who coordinates has the promises of most managers, on disk, which heard nobody else",
              _PAXOS, roles.ElectedByMost, excuses=_CLOCKS, where=_MANAGED, of=_BOTH),
    Invariant("votes-in-silence", "a manager that hears a coordinator votes for nobody else, nor says that it would",
              "docs/designs/qpid.md: a pre-vote prevents disturbance by candidates that can't win; Ongaro's "
              "dissertation, 9.6", wire.VotesInSilence, where=_MANAGED, of=(MANAGER,), seen=(WIRE,)),
    Invariant("answers-noted", "a manager remembers when it last backed a primary, also of an earlier term", _LEASES,
              roles.AnswersNoted, where=_MANAGED, of=_BOTH),
    Invariant("cleared-when-over", "a primary may start when most have accepted it and earlier leases are over",
              _LEASES, roles.ClearedWhenOver, excuses=_CLOCKS, where=_MANAGED, of=_BOTH),
    Invariant("backed-by-most", "a primary goes on for a lease after most managers backed it, and noted so", _LEASES,
              roles.BackedByMost, excuses=_CLOCKS, where=_MANAGED, of=_BOTH),
    Invariant("primary-kept", "a primary that is heard is not replaced", _OWN, roles.PrimaryKept, where=_MANAGED,
              of=_BOTH),
    Invariant("at-once", "what managers decide, and that a primary has ended, is told and acted upon at once",
              "manager.py: nobody has to wait for the next heartbeat to know", roles.AtOnce, where=_MANAGED,
              of=(MANAGER,)),
    Invariant("notes-grow", "a manager's note gives way to a later one only, of its term, and says the same everywhere",
              _NOTES, data.NotesGrow, where=_MANAGED, of=_BOTH),
    Invariant("confirmed-or-noted", "what is completed is at each backup, or most managers have noted that it is not",
              _NOTES, data.ConfirmedOrNoted, excuses=_CLOCKS, where={**_HOT, "as_documented": ("",)},
              of=_BOTH, seen=(WIRE, WORD)),
    Invariant("noted-are-not-promoted", "nobody is promoted whom the latest note of most managers names",
              "docs/designs/qpid.md: nobody whom the latest note names is promoted", data.NotedAreNotPromoted,
              excuses=_CLOCKS, where=_HOT, of=_BOTH),
    Invariant("completed-is-stored", "what a backup says that it has completed is on its disk",
              "the document: Replicating browsers; docs/designs/qpid.md: it answers when the group is stored",
              wire.CompletedIsStored, where={**_HOT, "store": (SYNC,), "store_errors": (ABORT,)}, seen=(WIRE, DISK)),
    Invariant("has-its-time", "nothing is completed without a backup that has its time to catch up still",
              "the document: New backups connecting to primary", data.HasTheirTime,
              where={**_MANAGED, "as_documented": ("",)}),
    Invariant("ends-when-not-let", "a broker ends itself when no grant of its manager's runs any more",
              "docs/designs/qpid.md: a broker that was not let for a lease ends itself", roles.EndsWhenNotLet,
              where=_MANAGED),
    Invariant("newest-leads", "a new primary's generation is behind all in which something was completed",
              "the document: generation number, incremented by new primary", data.NewestLeads, excuses=_CLOCKS,
              where={**_HOT, "store": ("sync",)}),
    Invariant("may-lead", "only a broker that is eligible, or of a first start, is promoted",
              "the document: the primary can only be started on nodes where there is a ready backup", roles.MayLead,
              where=_HOT),
    Invariant("attaches-with-all", "a backup with a clean store, or that was ready, tells the primary all that it has",
              "docs/designs/qpid.md: an attaching backup reports, for each queue, the generations that numbered it and "
              "the messages that it holds; one that was not restarted keeps its messages", wire.AttachesWithAll,
              where={**_HOT, "as_documented": ("",)}, seen=(WIRE, DISK, WORD)),
    Invariant("urls-kept", "a broker keeps the URLs that a person has set, over restarts",
              "the document: Broker discovery; docs/designs/qpid.md: a broker keeps the last URLs set this way over "
              "restarts", data.UrlsKept, where={"store": (SYNC,), "standby": ("hot",)}, seen=(WORD, DISK)),
    Invariant("first-start-of-all", "a broker that was never ready is promoted only if all stores are empty, or of one "
              "shutdown",
              "docs/designs/qpid.md: a first start needs a statement of every configured member that its store is "
              "empty, or clean with one identifier", data.FirstStartOfAll,
              where={**_HOT, "store": (SYNC,), "dr_nodes": (0,)}, seen=(DISK, WORD)),
    Invariant("eligible-has-stored", "a backup that could not store everything may not be promoted",
              "docs/designs/qpid.md: it stores them as soon as its store works again; until then it is not eligible",
              data.EligibleHasStored, where={"store_errors": (CARRY_ON,)}),
    Invariant("own-rows-judged", "a database that holds what no broker and no manager has written is refused",
              "records.py, record.py: it holds a row that no broker wrote", data.OwnRowsJudged),
    ANSWERS_ONCE,
    ENDED_HOLD_NOTHING,
    STORE_HOLDS,
    COUNTS_ADD_UP,
    PASSES_NOTHING_ON,
    *WORK_UNDER_WAY,
    *GUARDS,
    ROWS_JUDGED,
    NO_MISTAKES,
    STOPS_IN_ORDER,
    TELLS_CLIENTS,
    same_state("of the same generation and group", {**_HOT, "as_documented": ("",)}),
)  # fmt: skip

_WHY = ("Failover and Cluster Resource Managers: silence is noticed, the old primary's lease ends, managers elect, "
        "again where votes are split; a broker that a manager has lost is ended within eviction_timeout; completions "
        "wait catchup_timeout for who is not caught up; the rest is for starts, and clients that come back")

_LOST = {"disk": "a store that a disk has lost is copied anew, or a person decides, for which nobody states a time: "
                 "`primary` and `catchup` bound each step, and the guarantee `recovery` the whole"}  # fmt: skip
_HASTE = {"clock": "heartbeats are as frequent as a node's clock is fast: their intervals are judged when they are set"}

BOUNDS = (
    # Ten seconds: an administrator may have to choose the best store, and observes the cluster for a while first.
    Bound(HEALTHY, FAILOVER, 10, _WHY, excuses=_LOST, where=_MANAGED),
    Bound(SERVES, FAILOVER, 10, _WHY, excuses=_LOST, where=_MANAGED),
    Bound(SERVES_WITH_MAJORITY, FAILOVER, 10, _WHY, excuses=_LOST, where=_MANAGED, of_use=True),
    Bound(KEEPS_ROLES, FAILOVER, 10, _WHY, excuses=_LOST, where=_MANAGED),
)

_COPIES = ("Cluster Resource Managers: managers send each other five heartbeats in a manager_lease, and answer; "
           "backups browse what the primary has, several messages a frame; what is fixed is for failovers and the "
           "copying that follows")

WORK = (
    WorkBound(FRAMES, 1.2, {"manager_lease": 35}, 100, _COPIES, (), _MANAGED, excuses=_HASTE),
    WorkBound(BYTES, 4.5, {"manager_lease": 3000}, 14_000, _COPIES, (), _MANAGED, excuses=_HASTE),
)

_CONFIGURATION = "queues, exchanges and bindings with their arguments: as many as clients have made"

_BEGINNINGS = "of each queue, where each generation of it began that backups may have to agree on"

KEEPS = (
    *(RestingLimit(name, _CONFIGURATION, more=150)
      for name in ("Configuration.", "table qpid_objects", "QueueReplicas.")),
    *(RestingLimit(name, _BEGINNINGS, more=150) for name in ("Generations.", "table qpid_generations")),
    *resting_state.ENGINE,
)

_BY_NAME = "*=messages,*=none"
"""Everything is replicated, by its name alone; the first pattern that matches applies."""

DRAWING = Drawing(
    draws=(
        *draws.FLOW,
        *draws.MEMORY,
        draws.PAGES,
        Draw("detection_timeout", (0.5, 0.5, 2.0), 0.6),
        Draw("manager_lease", (0.5, 2.0), 0.5),
        Draw("catchup_timeout", (0.1, 0.3, 1.0, 2.0), 0.6),
        Draw("eviction_timeout", (2.0, 3.0), 0.7),
        Draw("catchup_chunk", (100, 2000), 0.4),
        Draw("sequence_bits", (4, 8), 0.2),
        Draw("broker_network", ("own",), 0.4),
        Draw("crash_kind", ("shutdown",), 0.4),
        Draw("person", ("copies",), 0.5),
        Draw("store_errors", ("carry-on",), 0.3),
        Draw("patterns", (_BY_NAME,), 0.2),
        Draw("replicate", ("none",), 1.0, {"patterns": _BY_NAME}),
        Draw("virtual_address", ("auto",), 0.25),
        Draw("clients_find", ("both",), 1.0, {"virtual_address": "auto"}),
        Draw("membership_kind", ("remove",), 1.0),
        Draw("kill_program", ("broker",), 0.3),
        Draw("pause_program", ("broker",), 0.3),
        Draw("fault_network", ("brokers",), 0.5, {"broker_network": "own"}),
        Draw("catchup_backlog", (3000,), 0.15),
        Draw("store", ("async", "none"), 0.12),
        Draw("standby", ("cold",), 0.12),
        Draw("manager", ("none",), 0.06),
        Draw("dr_nodes", (1,), 0.1),
        Draw("dr_counted", ("no",), 0.5, {"dr_nodes": 1}),
        Draw("dr_latency", (0.05,), 0.5, {"dr_nodes": 1}),
        # A primary ends when some backups have its last messages, and these can't tell the others.
        Draw("points_kind", ("partial",), 0.4, faults=("points",)),
        Draw("broker_network", ("own",), 0.5, faults=("points",)),
    ),
    nodes=(3, 3, 3, 4, 5),
    timeouts=("detection_timeout", "manager_lease", "catchup_timeout"),
    never=(
        Never("hardly a client would be beside the primary", {"connect": ("home",)},
              ("consume-last", "offline-send", "queue")),
        draws.ONE_ASKS,
        Never("a broker that is paused while all others begin anew, with emptied stores, is of a newer generation than "
              "they, and waits for a person", {"store": ("none",)}, faults=("pause",)),
        Never("what a store without syncs loses with the power no rule can say", {"store": ("async",)},
              faults=("power", "crash", "points", "disk")),
        Never("without a store nothing outlasts the end of all brokers, nor is there a disk to fail",
              {"store": ("none",)}, faults=("kill", "power", "crash", "quorum", "points", "disk", "rolling", "reboot")),
        Never("a person promotes while the old primary goes on, so both confirm", {"manager": ("none",)},
              faults=("partition", "pause", "packets", "clock", "points", "channel")),
        Never("a node for disaster recovery leaves two others at least", {"dr_nodes": (1,), "nodes": (2,)}),
    ),
    undrawn={
        "as_documented": "leaves a violation of the document's in place: a run that meets it is invalid, as it must "
                         "be; `--draw --set as_documented=LM1` is a campaign of it",
    },
)

ABSTRACTION = Abstraction(
    changes=("state", "term", "confirms", "store", "generation"),
    kept=("state", "confirms", "store"),
    present=("term",),
    behind=("term", "generation"),
)

RULES = Rules(INVARIANTS, DEADLINES, BOUNDS, WORK, KEEPS, DRAWING, ABSTRACTION, STATES, WAITS)
