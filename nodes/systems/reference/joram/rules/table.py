"""The rules of HA Joram.

The invariants hold at every instant, most of them with ``partitions=primary-partition`` only. The group is the core of
Raft and of Viewstamped Replication, and so are its invariants: the *Raft paper* is Ongaro and Ousterhout, "In Search of
an Understandable Consensus Algorithm", 2014.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nodes.reference.server.reaction import TAKING
from nodes.systems.reference.joram.rules import data, frames, members, roles
from nodes.systems.reference.joram.rules.deadlines import DEADLINES
from nodes.systems.reference.joram.rules.states import STATES
from nodes.systems.reference.joram.rules.waits import WAITS
from nodes.systems.reference.rules import draws, resting_state
from nodes.systems.reference.rules.answers import ANSWERS_ONCE, ENDED_HOLD_NOTHING
from nodes.systems.reference.rules.audits import (
    COUNTS_ADD_UP,
    ENDS_REMEMBERED,
    NO_MISTAKES,
    PASSES_NOTHING_ON,
    STORE_HOLDS,
    same_state,
)
from nodes.systems.reference.rules.exits import STOPS_IN_ORDER
from nodes.systems.reference.rules.flow import WORK_UNDER_WAY
from nodes.systems.reference.rules.greetings import TELLS_CLIENTS
from nodes.systems.reference.rules.guards import ADMITS_WITH_SERVICES, GUARDS, ROWS_JUDGED
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

_PRIMARY = {"partitions": ("primary-partition",)}
_SAFE = {**_PRIMARY, "propagation": ("synchronous",)}

INVARIANTS = (
    Invariant("one-master-an-epoch", "in each epoch at most one replica is master",
              "Raft paper, Figure 3, Election Safety", roles.OneMasterAnEpoch, where=_PRIMARY),
    Invariant("leads-in-its-promise", "a master has promised its own epoch, and no newer one",
              "Raft paper, Figure 2, Rules for Servers: a newer term makes a follower of it", roles.LeadsInItsPromise,
              where=_PRIMARY),
    Invariant("one-serves", "at any instant the lease of at most one master holds",
              "Ongaro's dissertation, 6.4.1", roles.OneServes, where=_PRIMARY),
    Invariant("promises-survive", "what a replica has promised only grows, also beyond a restart",
              "Raft paper, Figure 2, Persistent state", roles.Promises, where=_PRIMARY),
    Invariant("promises-on-disk", "what a replica has promised is on its disk before it says so",
              "Raft paper, Figure 2: updated on stable storage before responding", roles.PromisesOnDisk,
              where=_PRIMARY),
    Invariant("rests-after-start", "a replica that has just started promises no epoch to a candidate",
              "Ongaro's dissertation, 6.4.1: a lease outlasts the restart of who granted it", roles.RestsAfterStart,
              where=_PRIMARY, excuses={"clock": "a clock that is set moves the end of the rest; `one-serves` and "
                                       "`lease-protects` still judge what it is for"}),
    Invariant("log-is-short", "the log holds what is kept for replicas that come back, and little more",
              "docs/designs/joram.md: log_keep", data.LogIsShort, where=_PRIMARY),
    Invariant("log-is-long-enough", "a master's log holds what is kept for replicas that come back, and what "
              "those need that it feeds",
              "docs/designs/joram.md: log_keep, how much of the log is kept for replicas that come back",
              data.LogIsLongEnough, where=_PRIMARY),
    Invariant("lease-protects", "while a master's lease holds, no majority promises a newer epoch",
              "Ongaro's dissertation, 6.4.1", roles.LeaseProtects, where=_PRIMARY),
    Invariant("newest-log-leads", "a master's log is as complete as those of a majority that promised its epoch",
              "Raft paper, 5.4.1", data.NewestLogLeads, where=_PRIMARY),
    Invariant("serves-after-own-entry", "a master serves when an entry of its own epoch is committed",
              "Raft paper, 5.4.2", data.ServesAfterOwnEntry, where=_PRIMARY),
    Invariant("logs-match", "entries of the same index and epoch hold the same, as do all before them",
              "Raft paper, Figure 3, Log Matching", data.LogsMatch, where=_PRIMARY),
    Invariant("committed-stays", "what is committed never changes, and every later master has it",
              "Raft paper, Figure 3, Leader Completeness and State Machine Safety", data.CommittedStays, where=_SAFE),
    Invariant("committed-is-durable", "what a master commits is on the disks of most of the group",
              "Raft paper, 5.3", data.CommittedIsDurable, where=_SAFE),
    Invariant("acknowledged-is-there", "what a replica has acknowledged is in its log",
              "Raft paper, Figure 2: matchIndex, the highest entry known to be replicated on a server",
              data.AcknowledgedIsThere, where=_PRIMARY),
    Invariant("groups-overlap", "the group changes by one replica at a time, and not before the last change is "
              "committed", "Ongaro's dissertation, 4.1", members.GroupsOverlap, where=_PRIMARY),
    Invariant("groups-match", "who belongs to the group at an entry that is committed is the same everywhere",
              "Ongaro's dissertation, 4.1: the configuration is in the log", members.GroupsMatch,
              where=_SAFE),
    Invariant("tells-its-group", "a replica goes by the group of its log, and tells of it",
              "Ongaro's dissertation, 4.1: the newest configuration in the log is used; docs/stomp.md: x-replicas",
              members.TellsItsGroup, where=_PRIMARY),
    Invariant("one-role", "who leads or follows does not stand; a log is taken from the master, or from whom a "
              "candidate adopts it, in the epoch that was promised last",
              "Raft paper, Figure 2, Rules for Servers: a candidate that hears of a leader becomes a follower",
              roles.OneRole, where=_PRIMARY),
    Invariant("elected-by-majority", "a master belongs to its group, and a majority of it has promised its epoch",
              "Raft paper, 5.2: a candidate wins an election if it receives votes from a majority for the same term",
              roles.ElectedByMajority, where=_PRIMARY),
    Invariant("stands-in-turn", "a candidate leaves two detection time-outs to each before it, and to whom it has "
              "promised; who has no log does not stand where others have one",
              "docs/designs/joram.md, Elections: the second tries after two more detection_timeouts, and so on; 4.8: "
              "the order of the group list", roles.StandsInTurn, where=_PRIMARY, seen=(WORD, WIRE)),
    Invariant("empty-promises-nothing", "a replica without a whole log promises nothing to a candidate that has one",
              "docs/designs/joram.md, Start and restart: a replica whose disk is empty doesn't count",
              roles.EmptyCountsForNothing, where=_PRIMARY),
    Invariant("names-its-master", "a replica names the master that it follows, and nobody when it has none",
              "docs/stomp.md: a node that isn't the master names the master if it knows it; 4.9", roles.NamesItsMaster,
              where=_PRIMARY),
    Invariant("views-in-order", "a master comes first in its view, then those of the view before, in their order, "
              "then who has caught up; a view that gets smaller is a majority of the group",
              "4.8: the master is the first in the group list; docs/designs/joram.md, Roles, views, epochs",
              members.ViewsInOrder, where=_PRIMARY),
    Invariant("views-match", "the view at an entry that is committed is the same everywhere",
              "4.5: when a replica fails, a new view of the group is sent to each replica", members.ViewsMatch,
              where=_SAFE),
    Invariant("all-have-it", "with ack=all a master commits what every member of its view has on disk",
              "4.2.1; docs/designs/joram.md: ack, every member of the view", data.AllHaveIt,
              where={**_SAFE, "ack": ("all",)}),
    Invariant("view-has-it", "with partitions=unspecified a master commits what its view has on disk: all of it, or, "
              "with ack=majority, most of it", "4.2.1; docs/designs/joram.md: ack, every member of the view or a "
              "majority", data.ViewHasIt, where={"partitions": ("unspecified",), "propagation": ("synchronous",)}),
    Invariant("counts-for-what-it-has", "a replica counts at its master for no more than its log has",
              "Raft paper, Figure 2: matchIndex; docs/designs/joram.md, Start and restart: a replica whose disk is "
              "empty doesn't count", data.CountsForWhatItHas, where=_PRIMARY),
    Invariant("states-are-needed", "who is sent the whole state lacks more than its master's log has",
              "docs/designs/joram.md, Catching up: if the master has the same entry, it sends what comes after; "
              "otherwise the whole state", data.StatesAreNeeded, where=_SAFE),
    Invariant("commits-its-own", "a master commits entries of its own epoch, and with them those before",
              "Raft paper, 5.4.2", data.CommitsItsOwn, where=_PRIMARY),
    Invariant("releases-in-lease", "a master lets nothing out without a lease",
              "Ongaro's dissertation, 6.4.1; docs/designs/joram.md: the master releases effects only while it holds a "
              "lease", data.ReleasesInLease, where=_PRIMARY),
    Invariant("says-what-is-on-disk", "a promise that is sent, and an entry that is acknowledged, would survive a "
              "power loss at that moment", "Raft paper, Figure 2: updated on stable storage before responding to RPCs",
              frames.SaysWhatIsOnDisk, where=_PRIMARY, seen=(WIRE, DISK)),
    Invariant("states-as-set", "with transfer=two-step entries follow the whole state, and with held-back the state is "
              "that of the moment at which it began", "4.7.3; docs/designs/joram.md, Catching up and state transfer",
              frames.StatesAsSet, seen=(WIRE, WORD)),
    Invariant("old-claims-are-rejected", "who claims to be master of an epoch that is older than the one promised is "
              "told so", "Raft paper, 5.1: a server that receives a request with a stale term rejects it, and tells of "
              "its own", frames.OldClaimsAreRejected, where=_PRIMARY, seen=(WORD, WIRE)),
    Invariant("asks-for-newer-epoch", "a candidate asks for an epoch that is newer than every promise of which its "
              "peers have told it", "Raft paper, Figure 2, Rules for Servers: a term in a message that is newer than "
              "the own one is taken over", frames.AsksForNewerEpoch, seen=(WORD, WIRE)),
    Invariant("starts-with-enough", "after its start a replica stands for election only once as many have joined as "
              "its group waits for", "4.7.1: nbClusterExpected; docs/designs/joram.md, Start and restart",
              frames.StartsWithEnough, seen=(WIRE, WORD)),
    Invariant("added-is-listed", "a replica that is confirmed to be added belongs to the group, or learns its log",
              "docs/designs/joram.md, Adding a replica at run time", frames.AddedIsListed, seen=(WIRE, WORD)),
    Invariant("status-tells", "the status of a replica tells how it is", "docs/designs/joram.md, Roles, views, epochs",
              roles.StatusTells, where=_PRIMARY),
    replace(ANSWERS_ONCE, where={"propagation": ("synchronous",)}),
    ENDED_HOLD_NOTHING,
    STORE_HOLDS,
    COUNTS_ADD_UP,
    PASSES_NOTHING_ON,
    ENDS_REMEMBERED,
    *WORK_UNDER_WAY,
    *GUARDS,
    ADMITS_WITH_SERVICES,
    ROWS_JUDGED,
    NO_MISTAKES,
    STOPS_IN_ORDER,
    TELLS_CLIENTS,
    same_state("that have applied the same entries", _SAFE),
)  # fmt: skip

_ELECTION: Mapping[str, float] = {"detection_timeout": 4}
_WHY = ("4.5, and Raft paper 5.2: one detection_timeout until silence is noticed, one for the master's lease, one for "
        "an election, one more where votes are split; what is fixed is for clients that come back, and disks")

BOUNDS = (
    Bound(HEALTHY, _ELECTION, 1, _WHY, where=_PRIMARY),
    Bound(SERVES, _ELECTION, 1, _WHY, where=_PRIMARY),
    Bound(SERVES_WITH_MAJORITY, _ELECTION, 2, _WHY, where=_PRIMARY),
    Bound(KEEPS_ROLES, _ELECTION, 1, _WHY, where=_PRIMARY),
)

_ENTRIES = ("Raft paper 5.3: what a client asks for goes to each follower, which answers; five heartbeats in each "
            "detection_timeout where nothing else is said; what is fixed is for elections and catching up")
_STATES = (f"{_ENTRIES}; one that is behind what the log keeps gets the whole state (docs/designs/joram.md: log_keep), "
           "all messages that wait")
_LAG_WITHIN_LOG: Mapping[str, tuple[int, ...]] = {"log_keep": (10_000,)}
"""Settings of a test in which no replica lags further than the log reaches."""
_SERVICES: Mapping[str, tuple[str, ...]] = {"taking": TAKING}
"""Settings of a test with services, which send messages and acknowledgements in addition to those of clients."""

_CLOCKS = "a clock that runs fast speaks more often; the checks and all other rules still judge"
_PACKETS = "TCP sends lost packets again, and connections are made anew; the checks and all other rules still judge"
_MORE: Mapping[str, str] = {"clock": _CLOCKS, "packets": _PACKETS}
_BEATS: Mapping[str, float] = {"detection_timeout": 6, "heartbeat_interval": 1.2}
_BEAT_BYTES: Mapping[str, float] = {"detection_timeout": 400, "heartbeat_interval": 80}

WORK = (
    WorkBound(FRAMES, 3.5, _BEATS, 20, _ENTRIES, where=_SERVICES, excuses=_MORE),
    WorkBound(FRAMES, 2.3, _BEATS, 20, _ENTRIES, excuses=_MORE),
    WorkBound(BYTES, 3.5, _BEAT_BYTES, 10_000, _ENTRIES, where={**_SERVICES, **_LAG_WITHIN_LOG}, more=25,
              excuses=_MORE),
    WorkBound(BYTES, 2.3, _BEAT_BYTES, 10_000, _ENTRIES, where=_LAG_WITHIN_LOG, more=25, excuses=_MORE),
    WorkBound(BYTES, 3.5, _BEAT_BYTES, 10_000, _STATES, where=_SERVICES, more=25, again=1, excuses=_MORE),
    WorkBound(BYTES, 2.3, _BEAT_BYTES, 10_000, _STATES, more=25, again=1, excuses=_MORE),
)

KEEPS = (
    *(RestingLimit(name, "the newest entries of the log, which drops some at twice as many", "log_keep", 100, times=2)
      for name in ("JoramLog.entries", "JoramLog.epochs", "JoramLog.sizes", "table joram_log")),
    *(RestingLimit(name, "views and groups of the entries that are kept", more=100)
      for name in ("JoramLog.views", "JoramLog.groups")),
    RestingLimit("task Links._dial", "each peer that this node has to dial, of a group that may grow", more=8),
    *(RestingLimit(name, "who belongs to the group, with addresses, here and as others say", more=30)
      for name in ("JoramLog._encoded", "JoramReplica._told", "JoramReplica._memberships", "JoramReplica.places",
                   "JoramReplica.group")),
    *resting_state.ENGINE,
    *resting_state.REMEMBERED,
)  # fmt: skip

DRAWING = Drawing(
    draws=(
        Draw("ack", ("majority",), 0.5),
        Draw("propagation", ("asynchronous",), 0.15),
        Draw("sync_interval", (0.01, 0.15), 0.6, {"propagation": "asynchronous"}),
        Draw("detection_timeout", (0.3, 0.5, 0.5, 2.0), 0.7),
        Draw("heartbeat_interval", (0.05, 0.15), 0.25),
        Draw("network_timeout", (0.5, 1.0), 0.4),
        Draw("nb_cluster_expected", (1, 2), 0.25),
        Draw("idle_timeout", (1.0, 2.0), 0.4),
        *draws.REMEMBERED,
        *draws.FLOW,
        *draws.MEMORY,
        Draw("log_keep", (5, 5, 20, 100), 0.5),
        Draw("transfer_chunk", (24, 1000), 0.4),
        Draw("transfer", ("held-back",), 0.3),
        Draw("send_window", (200, 2000), 0.5),
        # A slow or paused peer soon lags behind such a short log, while the others commit.
        Draw("log_keep", (2,), 0.7, {"send_window": 200}),
        Draw("ack", ("majority",), 0.6, {"send_window": 200}),
        Draw("detection_timeout", (2.0,), 0.5, {"send_window": 200}),
        Draw("spares", (1, 2), 0.6),
        Draw("partitions", ("unspecified",), 0.5),
        Draw("disk_kind", ("empty", "empty", "lose-unsynced"), 0.4),
        Draw("points_at", ("joram.promised,joram.elected", "joram.regrouped,joram.truncated,joram.loaded",
                           "joram.promised,joram.viewed,joram.lease-ends"), 0.25),
        # Two replicas may be added at once.
        Draw("spares", (2,), 0.6, faults=("membership",)),
        # A replica ends while its log is adopted; a change of the group reaches no other replica, and is undone.
        Draw("points_at", ("joram.promised",), 0.3, faults=("points", "partition")),
        Draw("points_at", ("joram.regrouped",), 0.7, faults=("points", "membership")),
        Draw("points_kind", ("cut", "cut,partial"), 0.6, faults=("points", "membership")),
    ),
    nodes=(2, 3, 3, 3, 4, 4, 5, 5),
    timeouts=("detection_timeout", "detection_timeout", "idle_timeout"),
    never=(
        Never("a group of two has no majority when one has lost its disk", {"nodes": (2,)}, faults=("disk",)),
        Never("a group of two has no majority when one has lost its disk", {"spares": (1, 2)}, faults=("disk",)),
        Never("servers of two replicas each have no majority when one has lost its disk", faults=("disk",),
              workloads=("clustered", "clustered-topic", "store-and-forward")),
        Never("an offline client forgets what has a receipt, which may come undone",
              {"propagation": ("asynchronous",)}, ("offline-send",)),
        Never("a client that finds nobody beside it does not go elsewhere, so what is there is never taken",
              {"connect": ("home",)},
              ("consume-last", "clustered", "queue", "offline-send", "store-and-forward", "processing")),
        draws.ONE_ASKS,
        Never("what waits for offline clients takes seconds in pieces of 24 bytes", {"transfer_chunk": (24,)},
              ("offline-send",)),
        Never("both sides of a group that falls apart go on, by design", {"partitions": ("unspecified",)},
              faults=("partition", "pause", "packets", "clock", "points")),
        Never("whoever is started alone serves beside the others, by design", {
              "partitions": ("unspecified",), "nb_cluster_expected": (1, 2)}),
        Never("the shape takes more nodes", {"partition_kind": ("majority-ring", "bridge", "random"), "nodes": (2,)}),
        Never("a client that does not reconnect loses what was confirmed early",
              {"propagation": ("asynchronous",), "reliable": (False,)}),
    ),
)

ABSTRACTION = Abstraction(
    changes=("leads", "serving", "promised", "durable_promise", "last_epoch", "group_index"),
    kept=("serving",),
    present=("leads", "base"),
    behind=("promised", "last_epoch", "last", "committed", "group_index", "leads"),
    unequal=(("promised", "durable_promise"), ("last", "durable"), ("last", "committed")),
)

RULES = Rules(INVARIANTS, DEADLINES, BOUNDS, WORK, KEEPS, DRAWING, ABSTRACTION, STATES, WAITS)
