"""The rules of a FioranoMQ pair.

The invariants hold at every instant. *The document* is Fiorano's "FioranoMQ High Availability"; *the page* is
docs/designs/fiorano.md. It is not a defect that two servers believe for a moment that they serve: without the lock and
without its peer's acknowledgement, a server can't confirm anything.
"""

from __future__ import annotations

from nodes.reference.designs.fiorano.configuration import REPLICATED_MODE
from nodes.reference.designs.fiorano.repository import COUNTER
from nodes.systems.reference.fiorano.probes import GATEWAY
from nodes.systems.reference.fiorano.rules import data, roles, stored
from nodes.systems.reference.fiorano.rules.deadlines import DEADLINES, TAKEOVER
from nodes.systems.reference.fiorano.rules.states import STATES
from nodes.systems.reference.fiorano.rules.waits import WAITS
from nodes.systems.reference.probes.storage import STORAGE
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
from nodes.systems.reference.rules.guards import GUARDS, ROWS_JUDGED
from nodes.systems.reference.rules.table import Rules
from nodes.systems.reference.rules.wakes import WAKES_FOR_WORK
from stormproof.contracts.bounds import (
    BYTES,
    FRAMES,
    HEALTHY,
    KEEPS_ROLES,
    SERVES,
    SERVES_WITH_ONE,
    Bound,
    WorkBound,
)
from stormproof.contracts.draw import Draw, Drawing, Never
from stormproof.contracts.invariant import BROKER, DISK, LOG, WIRE, WORD, Invariant
from stormproof.contracts.resting_state import LEFT, RestingLimit
from stormproof.contracts.state_abstraction import Abstraction

CLIENT_ORDER, PRIMARY_FIRST, NEAREST_FIRST = "client_order", "primary-first", "nearest-first"
"""The order in which clients try servers, which workloads declare. The document has clients connect to the primary
first when they initialise.
"""

_LOCKED = {"lock": (True,), "fencing": (True,)}
_REPLICATED = {**_LOCKED, "mode": (REPLICATED_MODE,), "stamps": (COUNTER,)}
_AS_DESIGNED = {**_LOCKED, "as_documented": ("",)}

_CLOCKS = {"clock": "a lease is over by each node's own clock, whose rate may differ by a fifth; "
                    "`serves-with-all-confirmed` and what clients observe still judge"}
_LOCKFILES = {"lockfile": "a lock file that somebody deletes or changes leaves the gateway with its memory alone; "
                          "`gateway-remembers`, `one-holds-the-lock` and `kept-a-quarter-longer` still judge"}
_DATABASES = {"shared-db": "a damaged database is refused, or replaced by a person; the storage service's own check "
                           "and what clients observe still judge"}

INVARIANTS = (
    Invariant("one-holds-the-lock", "at any instant the lease of at most one server runs",
              "the document: the lock can be held by only one server at a time", roles.OneHolds, excuses=_CLOCKS,
              where=_LOCKED),
    Invariant("lock-epochs-grow", "the lock is granted in ever later epochs, each to one server",
              "Gray and Cheriton 1989; Kleppmann, How to do distributed locking, 2016", roles.EpochsGrow,
              excuses=_LOCKFILES, where=_LOCKED),
    Invariant("granted-by-gateway", "who holds the lock is whom the gateway keeps it for",
              "Gray and Cheriton 1989: the holder's lease ends before the server's", roles.GrantedByGateway,
              excuses={**_CLOCKS, **_LOCKFILES}, where=_LOCKED, of=(BROKER, GATEWAY)),
    Invariant("asked-on-disk", "an epoch that is asked for is on disk before",
              "docs/designs/fiorano.md: it is written down before it is asked for", roles.AskedOnDisk,
              where=_REPLICATED, seen=(WORD, DISK)),
    Invariant("disowned-stays", "who has said that it will not use an epoch never holds the lock in it",
              "grants.py: the other server has said that it knows nothing of it", roles.DisownedStays,
              where=_REPLICATED),
    Invariant("confirms-in-its-epoch", "what only one server has is confirmed in the epoch of its repository",
              "the document: Repository Timestamps", data.ConfirmsInItsEpoch, where=_REPLICATED),
    Invariant("states-by-the-table", "a server changes its state only as the table of transitions says",
              "the document: States and state transition", roles.StatesByTable),
    Invariant("serves-where-it-may", "clients are let in by a server that is ACTIVE, ACTIVE_TRANSITION or STANDALONE",
              "the document: The server does not accept client connections in this state", roles.ServesWhereItMay),
    Invariant("repository-stamps-grow", "the stamp of a whole repository, and the epochs asked for, only grow",
              "the document: Repository Timestamps", data.RepositoryStampsGrow, where=_REPLICATED),
    Invariant("serves-with-all-confirmed", "who begins to serve has all that clients were told of",
              "the document, HA Locking Mechanism: no message loss; the page: a server that served alone must not be "
              "followed by one that was its standby before", data.ServesWithAllConfirmed,
              where=_REPLICATED),
    Invariant("alone-in-its-own-epoch", "what only one server has is confirmed in an epoch that no standby has",
              "the page, HA locking mechanism: STANDALONE serves in an epoch that no standby has",
              data.AloneInItsOwnEpoch, where=_REPLICATED),
    Invariant("acknowledged-is-stored", "what a standby is taken to have stored is on its disk",
              "the page: effects go to clients when the standby has it on disk", data.AcknowledgedIsStored,
              where=_REPLICATED),
    Invariant("stored-before-told", "what a standby says that it has stored is on its disk",
              "the page: receipts and deliveries go to clients when the standby has the change-set on disk",
              stored.StandbyHasStored, where=_REPLICATED, seen=(WIRE, DISK)),
    Invariant("stored-before-confirmed", "what a server confirms alone is on its own disk",
              "the page: for a server that is alone, when its own disk has it", stored.ConfirmedIsStored,
              where=_REPLICATED, seen=(WORD, DISK)),
    Invariant("better-repository-leads", "a server that begins to serve, or that a person accepts, has a whole "
              "repository, and of two that wait the newer one, or the primary's", "the page: the one with the newer "
              "repository takes the lock; with equal stamps, the primary does; accept is refused if the other "
              "repository is whole and newer", data.BetterRepositoryLeads, where=_REPLICATED),
    Invariant("standby-is-told", "a standby that has everything is told of each change and each epoch at once",
              "the document: the Active Server replicates its data store and state to the Passive Server",
              data.StandbyIsTold, where=_REPLICATED),
    Invariant("standby-is-whole", "a standby, and that of an active server, has a whole repository",
              "the document: completion of the Runtime Synchronization Protocol causes ACTIVE and PASSIVE",
              data.StandbyIsWhole, where=_REPLICATED),
    Invariant("disowned-as-said", "a server has heard of the other one's epochs what that one may say",
              "the page: told to the peer once it can't be used any more", roles.DisownedAsSaid,
              where=_REPLICATED),
    Invariant("seeks-the-lock", "whoever may go on alone asks for the lock, and whoever serves keeps it",
              "the page: a server seeks the lock where it would then begin to serve, and keeps it while it serves",
              roles.SeeksTheLock, where=_REPLICATED),
    Invariant("changes-for-a-reason", "a server changes its state for the reasons that the document has",
              "the document: a server can switch to Active only if it holds a lock; States and state transition",
              roles.ChangesForAReason, where=_AS_DESIGNED),
    Invariant("status-tells", "what a person is shown of a server is how it stands",
              "the page: admin fiorano status prints both servers' states, locks and repositories",
              roles.ServerStatusTells),
    Invariant("fence-grows", "the shared database is held in ever later epochs, each by one server",
              "docs/stomp.md: claim lets this epoch write, and fences all older ones; the fence is written with the "
              "rows", data.FenceGrows, excuses=_DATABASES, where={**_LOCKED, "mode": ("shared",)},
              of=(STORAGE,)),
    Invariant("seeks-the-shared-lock", "a standby asks for the lock if nobody serves and the database answers, and an "
              "active server keeps it", "the page: the active server then stops serving, releases the lock, and "
              "seeks it again when the database answers", roles.SeeksTheSharedLock,
              where={**_AS_DESIGNED, "mode": ("shared",)}),
    Invariant("database-has-stored", "what the shared database says that it has stored is on its disk",
              "the page: a change-set is confirmed when the service has it on disk", stored.DatabaseHasStored,
              where={"mode": ("shared",)}, of=(BROKER, STORAGE), seen=(WIRE, DISK)),
    Invariant("database-blamed-rightly", "the shared database counts as unreachable where it does not answer, and as "
              "unusable where it is damaged", "the page: a request that is not answered within database_timeout; an "
              "inconsistent shared database; database refused an older epoch", data.DatabaseBlamedRightly,
              where={"mode": ("shared",), "as_documented": ("",), "fencing": (True,)}, of=(BROKER, STORAGE),
              seen=(LOG,)),
    Invariant("database-has-all", "the shared database has what the active server has",
              "the document, Working of Fiorano Shared High Availability: only the active server makes changes to the "
              "common database", data.DatabaseHolds, excuses=_DATABASES,
              where={**_LOCKED, "mode": ("shared",), "as_documented": ("",)}, of=(BROKER, STORAGE)),
    Invariant("gateway-remembers", "as long as the gateway runs it knows who had the newest epoch",
              "the page: epochs only grow; what the gateway remembers though the lock file is gone", roles.RemembersWho,
              where=_LOCKED, of=(GATEWAY,)),
    Invariant("kept-a-quarter-longer", "the gateway keeps the lock for a quarter of a lease beyond the holder's",
              "the page: the holder counts its lease from when it sent the request, the gateway a quarter longer from "
              "when it answered", roles.KeepsLonger, excuses={**_CLOCKS, **_LOCKFILES}, where=_LOCKED,
              of=(BROKER, GATEWAY)),
    Invariant("lock-kept-no-longer", "the gateway keeps the lock as long as it says, and from others only",
              "the page: a lease; gateway/protocol.py: nobody has to wait for the end of a lease that was let go",
              roles.AnswersAsItIs, where=_LOCKED, of=(GATEWAY,)),
    ANSWERS_ONCE,
    ENDED_HOLD_NOTHING,
    STORE_HOLDS,
    WAKES_FOR_WORK,
    COUNTS_ADD_UP,
    PASSES_NOTHING_ON,
    ENDS_REMEMBERED,
    *WORK_UNDER_WAY,
    *GUARDS,
    ROWS_JUDGED,
    NO_MISTAKES,
    STOPS_IN_ORDER,
    TELLS_CLIENTS,
    same_state("with repositories of the same stamp", _REPLICATED),
)  # fmt: skip

_WHY = ("Determining which HA to use: the peer's heartbeats are missed, its lock's lease ends and is granted anew, the "
        "database answers or is given up, and a pair that synchronises does so once more; what is fixed is for clients "
        "that come back, and disks")

_LOST = {"disk": "a person decides where a disk has lost the newest repository: `state-or-person` bounds that"}
_NO_GRANT = ("without the gateway nobody is granted the lock, and who is alone must not serve: `gateway` and `taking` "
             "judge what a server does then")
_UNLOCKED = {**_LOST, **dict.fromkeys(("gateway", "lockfile"), _NO_GRANT)}
_HASTE = {"clock": "heartbeats are as frequent as a node's clock is fast: their intervals are judged when they are set",
          "packets": "connections break again and again, and each new one begins with what the standby lacks: "
                     "`copying` and `page` judge how it is sent"}  # fmt: skip

BOUNDS = (
    Bound(HEALTHY, TAKEOVER, 1, _WHY, excuses=_LOST, where=_AS_DESIGNED),
    Bound(SERVES, TAKEOVER, 1, _WHY, excuses=_LOST, where=_AS_DESIGNED),
    Bound(SERVES_WITH_ONE, TAKEOVER, 2, _WHY, excuses=_UNLOCKED, where=_AS_DESIGNED,
          of_use=True),
    Bound(KEEPS_ROLES, TAKEOVER, 1, _WHY, excuses=_LOST, where=_AS_DESIGNED),
)

_PAIR = ("the active server tells its standby each change, or asks the shared database, and is answered; a sign of "
         "life in each heartbeat, the lock in each lease; what is fixed is for takeovers and synchronisation")

WORK = (
    # Without the lock, two servers that can't hear each other claim a shared database from each other all the time.
    WorkBound(FRAMES, 2.2, {"heartbeat": 1, "lease": 0.5}, 30, _PAIR, excuses=_HASTE, where={"lock": (True,)}),
    WorkBound(BYTES, 5.5, {"heartbeat": 50}, 10_000, _PAIR, excuses=_HASTE, where={"lock": (True,)}),
)

_BEFORE = "who serves no longer has in memory what it had then, until it serves again and loads its repository"

KEEPS = (
    RestingLimit("table stored", "rows of all tables of the broker, which have their limits there", more=LEFT),
    RestingLimit("View.facts", "what was true when the state changed, the latest three times", more=20),
    *(RestingLimit(name, "what the other server said last", more=16) for name in ("SharedPair.peer", "Pair.peer")),
    *(RestingLimit(name, _BEFORE, more=150) for name in (
        "EngineState.contexts", "ConnectionContext.", "Subscription.", "Destinations.", "table contexts",
        "table subscriptions")),
    *resting_state.ENGINE,
    *resting_state.REMEMBERED,
)

DRAWING = Drawing(
    draws=(
        Draw(CLIENT_ORDER, (NEAREST_FIRST,), 0.6),
        Draw("mode", ("shared",), 0.4),
        Draw("lease", (0.5, 2.0), 0.5),
        Draw("heartbeat", (0.1, 0.5, 1.0), 0.4),
        Draw("idle_timeout", (1.0, 2.0), 0.4),
        Draw("page", (24, 400), 0.5),
        Draw("page_window", (4,), 0.5, {"page": 24}),
        *draws.REMEMBERED,
        *draws.FLOW,
        *draws.MEMORY,
        Draw("database_page", (20, 100), 0.5, {"mode": "shared"}),
        Draw("database_timeout", (0.5, 2.0), 0.4, {"mode": "shared"}),
        Draw("start_alone", (True,), 0.1),
        Draw("lock", (False,), 0.2, {"mode": "shared"}),
        Draw("stamps", ("wall-clock",), 0.06),
    ),
    nodes=(2,),
    timeouts=("lease", "heartbeat", "database_timeout"),
    never=(
        Never("a client that is not beside the active server does not go elsewhere, so what is there is never taken",
              {"connect": ("home",)}, ("consume-last", "offline-send", "queue")),
        draws.ONE_ASKS,
        Never("the shape takes more nodes", {"partition_kind": ("majority-ring", "bridge", "random"), "nodes": (2,)}),
        Never("servers that share a database store nothing on their own disks",
              {"mode": ("shared",), "disk_target": ("one", "master", "backup")}, faults=("disk",)),
        Never("a clock that was wrong makes an old repository the newer one", {"stamps": ("wall-clock",)},
              faults=("clock",)),
    ),
    undrawn={
        "fencing": "is what keeps two servers from confirming: without it nearly every fault may lose messages, so a "
                   "run that meets that is invalid, as it must be",
        "as_documented": "leaves a violation of the document's in place: a run that meets it is invalid, as it must be",
        "store": "has one value in simulation; the other one is a database server of its own",
    },
)

ABSTRACTION = Abstraction(
    changes=("state", "serves", "lock", "holds", "stamp.whole", "stamp.epoch", "stamp.asked"),
    kept=("state", "before", "serves", "holds", "stamp.whole"),
    behind=("lock", "stamp.epoch", "stamp.counter", "stamp.asked"),
    unequal=(("lock", "stamp.epoch"), ("lock", "stamp.asked")),
)

RULES = Rules(INVARIANTS, DEADLINES, BOUNDS, WORK, KEEPS, DRAWING, ABSTRACTION, STATES, WAITS)
