"""Bugs whose places in the code ask for them by name."""

from __future__ import annotations

from collections.abc import Mapping

from nodes.reference.bugs.bug import Bug

CLOSE_DROPS_UNACKED = "close-drops-unacked"
NO_DUPLICATE_FILTER = "no-duplicate-filter"
FILTER_LOST_AT_FAILOVER = "filter-lost-at-failover"
REQUEUED_TWICE = "requeued-twice"
DURABLE_LOST_AT_FAILOVER = "durable-lost-at-failover"
COLLOCATED_CONTEXTS_KEPT = "collocated-contexts-kept"
PREPARED_FORGOTTEN = "prepared-forgotten"
BRANCHES_FORGOTTEN = "branches-forgotten"
STATE_BEHIND_LOG = "state-behind-log"
RECEIPT_ON_ARRIVAL = "receipt-on-arrival"
ORPHANS_NEVER_EXPIRE = "orphans-never-expire"
RECEIPT_BEFORE_REPLICATION = "receipt-before-replication"
RECEIPT_BEFORE_SYNC = "receipt-before-sync"
ACK_ON_MASTER_ONLY = "ack-on-master-only"
VIEW_WITHOUT_AGREEMENT = "view-without-agreement"
OWN_LOG_WINS = "own-log-wins"
TRANSFER_MISSES_CHANGES = "transfer-misses-changes"
TRANSFER_FORGETS_MARKED = "transfer-forgets-marked"
CONFLICTING_TAIL_KEPT = "conflicting-tail-kept"
MAJORITY_TOO_SMALL = "majority-too-small"
COMMIT_UNMATCHED = "commit-unmatched"
COMMIT_UNSYNCED = "commit-unsynced"
COMPLETED_BEFORE_SIGNAL = "completed-before-signal"
DEQUEUE_NOT_SENT = "dequeue-not-sent"
INQUORATE_BROKER_LIVES = "inquorate-broker-lives"
PROMOTED_IN_CATCHUP = "promoted-in-catchup"
GENERATION_NOT_STORED = "generation-not-stored"
DIRTY_STORE_STARTS = "dirty-store-starts"
DEAD_BACKUP_HOLDS = "dead-backup-holds"
RESET_NOT_SENT = "reset-not-sent"
DEQUEUES_NOT_RESENT = "dequeues-not-resent"
CATCH_UP_MISSES_CHANGES = "catch-up-misses-changes"
EXCLUSION_NOT_NOTED = "exclusion-not-noted"
FORGOTTEN_WHEN_SENT = "forgotten-when-sent"
REEMISSION_TAKEN = "reemission-taken"
MOVED_AND_KEPT = "moved-and-kept"
REMOTE_ACK_ON_ARRIVAL = "remote-ack-on-arrival"
REMOTE_END_UNTOLD = "remote-end-untold"
TRANSACTION_HALF_APPLIED = "transaction-half-applied"
MINORITY_CONFIRMS = "minority-confirms"
STAMP_LOST_AT_START = "stamp-lost-at-start"
OLDEST_DATABASE_WINS = "oldest-database-wins"
COORDINATOR_STAMP_IGNORED = "coordinator-stamp-ignored"
STALE_COORDINATOR_STAYS = "stale-coordinator-stays"
CHANGE_BEFORE_SLAVES = "change-before-slaves"
TRANSFER_SKIPPED = "transfer-skipped"
LINKS_LEFT_BEHIND = "links-left-behind"
FAILED_EVENT_LAST = "failed-event-last"
OFFLINE_EVENTS_DISCARDED = "offline-events-discarded"
RETRIES_IGNORED = "retries-ignored"
INVITATION_TWICE = "invitation-twice"
MAX_KEPT = "max-kept"
FULL_START_SKIPPED = "full-start-skipped"
CAS_UNCHECKED = "cas-unchecked"
REPLACED_VALUE_KEPT = "replaced-value-kept"
VERSIONS_RESTART = "versions-restart"
READ_ON_ARRIVAL = "read-on-arrival"
REDELIVERY_UNCOUNTED = "redelivery-uncounted"
WINDOW_TOO_LARGE = "window-too-large"
BODY_ENDS_AT_NUL = "body-ends-at-nul"
CLIENT_ACK_OF_ONE = "client-ack-of-one"
LINK_COST_IGNORED = "link-cost-ignored"
ABORTED_BRANCH_CONSUMES = "aborted-branch-consumes"
DELETED_DURABLE_KEPT = "deleted-durable-kept"
ACKED_TWICE_COMMITS = "acked-twice-commits"
NACK_CONSUMES = "nack-consumes"

_CORE = ("standalone",)
"""The designs that run the broker's common code alone, for bugs in code of any design that leaves its messages to the
engine."""
_ALL = ("standalone", "icestorm")
_ALL_DOWN = {"max_down": "3", "kill_kind": "random"}
_SURFACE = {"surface": "true"}
_MAJORITY = {"ack": "majority"}
_PRIMARY_KILLED = {"kill_kind": "master", "kill_program": "broker"}
_BACKLOG = {"producers": "6", "consumers": "1"}
_AHEAD = {
    **_BACKLOG, "kill_program": "broker", "detection_timeout": "1", "catchup_timeout": "1",
    "schedule": "partition:link:5-5.6:1 kill:master:5.4-5.6:1 partition:one:7-11:8 kill:master:9.5-10:1",
}
"""For qpid: the primary is lost while one backup is ahead of the next primary; which is then lost, too."""
_LEFT_BEHIND = {**_BACKLOG, "catchup_timeout": "1", "schedule": "partition:master:4-11:1 crash:kill:9-11.5:1"}
"""For qpid: all brokers are lost while an earlier primary's store is behind another's."""


def _icestorm(name: str, summary: str, workload: str = "subscriptions",
              exercise: Mapping[str, str] | None = None, nodes: int | None = None, nemesis: str = Bug.nemesis) -> Bug:
    return Bug(name, summary, exercise or {}, "icestorm", workload, nemesis, nodes)


def _qpid(name: str, summary: str, nemesis: str = Bug.nemesis, workload: str = "queue",
          exercise: Mapping[str, str] | None = None) -> Bug:
    return Bug(name, summary, exercise or {}, "qpid", workload, nemesis)


BUGS = (
    Bug(CLOSE_DROPS_UNACKED, "messages that a closed connection had not acknowledged are gone", also=_CORE),
    Bug(NO_DUPLICATE_FILTER, "a frame that a client sends again after a reconnection is applied again", also=_CORE),
    Bug(FILTER_LOST_AT_FAILOVER, "a frame that is sent again to another node than before is applied again",
        also=_CORE),
    Bug(REQUEUED_TWICE, "a message that comes back from a closed connection is put into its queue twice",
        also=_CORE),
    Bug(DURABLE_LOST_AT_FAILOVER, "a durable subscription that nobody is attached to is emptied at a failover",
        workload="topic", also=_CORE),
    Bug(COLLOCATED_CONTEXTS_KEPT, "contexts that a collocated client left on a former master are never cleaned",
        workload="processing", also=_CORE),
    Bug(PREPARED_FORGOTTEN, "a new master forgets what prepared transactions send",
        workload="processing", exercise={"quality": "exactly-once", "queues": "3"}, nemesis="kill", also=_CORE),
    Bug(BRANCHES_FORGOTTEN, "a new master rolls back prepared transactions on its own", workload="transaction",
        exercise={"transactions": "xa", "crash_share": "0.2"}, also=_CORE),
    Bug(STATE_BEHIND_LOG, "what has been applied is noted on disk, its result is not",
        exercise=_ALL_DOWN, also=_CORE),
    Bug(RECEIPT_ON_ARRIVAL, "a message is confirmed when it arrives, before it is ordered", also=_CORE),
    Bug(ORPHANS_NEVER_EXPIRE, "connections inherited from the last master are never closed", also=_CORE),
    Bug(RECEIPT_BEFORE_REPLICATION, "a command is confirmed before any other replica has it"),
    Bug(RECEIPT_BEFORE_SYNC, "a command is confirmed and acknowledged before it is on disk",
        exercise={**_ALL_DOWN, "fault_duration": "0.8", "fault_gap": "0.1"}),
    Bug(ACK_ON_MASTER_ONLY, "an ACK is applied by the master and not replicated"),
    Bug(VIEW_WITHOUT_AGREEMENT, "whoever can reach nobody else makes a view of its own"),
    Bug(OWN_LOG_WINS, "a new master does not adopt the most complete log", exercise=_MAJORITY),
    Bug(TRANSFER_MISSES_CHANGES, "a state transfer claims changes that came while it was made",
        exercise={"log_keep": "5", **_MAJORITY}),
    Bug(TRANSFER_FORGETS_MARKED, "a state transfer leaves out what changed while it was made",
        exercise={"log_keep": "5", **_MAJORITY}),
    Bug(CONFLICTING_TAIL_KEPT, "a replica keeps entries that its new master's log contradicts", exercise=_MAJORITY),
    Bug(MAJORITY_TOO_SMALL, "one replica fewer than a majority is enough to confirm", exercise=_MAJORITY),
    Bug(FORGOTTEN_WHEN_SENT, "a message for another server is forgotten when it is sent",
        workload="store-and-forward", also=_CORE),
    Bug(MOVED_AND_KEPT, "a message that is moved to another element of its queue stays here as well",
        workload="clustered", also=_CORE),
    Bug(REMOTE_ACK_ON_ARRIVAL, "what another server delivers is acknowledged there before a client has it",
        workload="store-and-forward", exercise={"consume_at": "own-server"}, also=_CORE),
    Bug(REMOTE_END_UNTOLD, "the server of a destination is not told that a consumer elsewhere is gone",
        workload="store-and-forward", exercise={"consume_at": "own-server"}, also=_CORE),
    Bug(TRANSACTION_HALF_APPLIED, "a failover empties open transactions, which are committed with what comes after",
        workload="transaction", exercise={"writers": "6", "parts": "8"}, also=_CORE),
    Bug(REEMISSION_TAKEN, "a message that another server sends again is taken again",
        workload="store-and-forward", also=_CORE),
    Bug(CAS_UNCHECKED, "a value is replaced whatever version was expected", workload="register", also=_CORE),
    Bug(REPLACED_VALUE_KEPT, "a value that was replaced stays in its queue, and is back after a restart",
        workload="register", exercise=_ALL_DOWN, nemesis="kill", also=_CORE),
    Bug(VERSIONS_RESTART, "versions of values are counted anew by a broker that is started", workload="register",
        exercise=_ALL_DOWN, nemesis="kill", also=_CORE),
    Bug(READ_ON_ARRIVAL, "a value is read when the request arrives, before it is ordered", workload="register",
        exercise={"connect": "home", "threads": "12", "client_heartbeat": "2", "pause_kind": "master",
                  "fault_duration": "3"}, nemesis="pause", also=_CORE),
    Bug(REDELIVERY_UNCOUNTED, "a message that is given back is delivered again as if for the first time",
        exercise=_SURFACE, also=_CORE),
    Bug(WINDOW_TOO_LARGE, "a subscription gets one message more than its window", exercise=_SURFACE, also=_CORE),
    Bug(BODY_ENDS_AT_NUL, "a body that is read back from the store ends at its first NUL",
        exercise=_SURFACE, also=_CORE),
    Bug(CLIENT_ACK_OF_ONE, "with ack:client an ACK is of one message, and not of those before it",
        exercise=_SURFACE, also=_CORE),
    Bug(ACKED_TWICE_COMMITS, "a transaction with an ACK that can't be is committed without it",
        exercise=_SURFACE, also=_CORE),
    Bug(ABORTED_BRANCH_CONSUMES, "what a prepared branch acknowledged is gone when the branch is aborted",
        workload="transaction", exercise={**_SURFACE, "transactions": "xa"}, also=_CORE),
    Bug(DELETED_DURABLE_KEPT, "a durable subscription that is deleted is there for the next one of its name",
        workload="topic", exercise=_SURFACE, also=_CORE),
    _icestorm(LINK_COST_IGNORED, "events go over links whose cost is below theirs", "events", exercise=_SURFACE),
    Bug(NACK_CONSUMES, "a NACK is taken for an ACK", exercise=_SURFACE, also=_CORE),
    _icestorm(MINORITY_CONFIRMS, "a group of one replica fewer than a majority replicates", nodes=5),
    _icestorm(STAMP_LOST_AT_START, "a replica forgets the stamp of its database when it is started",
              exercise=_ALL_DOWN, nemesis="partition,kill"),
    _icestorm(OLDEST_DATABASE_WINS, "the stamps of the databases are compared the wrong way round"),
    _icestorm(COORDINATOR_STAMP_IGNORED, "the coordinator takes a slave's database even if its own is more recent"),
    _icestorm(STALE_COORDINATOR_STAYS, "a coordinator never asks whether it still has its group",
              exercise={"fault_duration": "4", "changers": "1"}, nemesis="partition"),
    _icestorm(CHANGE_BEFORE_SLAVES, "a change is confirmed before any slave has it",
              exercise={"partition_kind": "master", "fault_duration": "3"}, nemesis="partition"),
    _icestorm(FAILED_EVENT_LAST, "a failed delivery is tried again behind the events that came after it", "events"),
    _icestorm(OFFLINE_EVENTS_DISCARDED, "events that come while a subscriber can't be reached are gone", "events"),
    _icestorm(RETRIES_IGNORED, "a subscriber is removed at the first failed delivery, whatever its QoS", "events"),
    _icestorm(INVITATION_TWICE, "a replica accepts a second invitation and stays in the first group, too",
              nodes=5, nemesis="partition,packets", exercise={"election_timeout": "0.3"}),
    _icestorm(MAX_KEPT, "`max` is kept across a restart, so a start of all does not need all", exercise=_ALL_DOWN),
    _icestorm(FULL_START_SKIPPED, "a majority is enough, even when all replicas have been stopped",
              exercise=_ALL_DOWN),
    _icestorm(LINKS_LEFT_BEHIND, "a database is transferred without its links"),
    _icestorm(TRANSFER_SKIPPED, "the members of a new group keep their databases, whatever is the most recent"),
    _qpid(COMPLETED_BEFORE_SIGNAL, "a message is completed before the backups have signalled"),
    _qpid(DEQUEUE_NOT_SENT, "backups are not told of dequeues"),
    _qpid(INQUORATE_BROKER_LIVES, "a broker goes on when its manager's lease has run out",
          nemesis="partition,pause"),
    _qpid(PROMOTED_IN_CATCHUP, "a backup that catches up counts as ready, and may be promoted", "packets,kill",
          exercise={**_BACKLOG, "catchup_chunk": "1", "detection_timeout": "2", "kill_program": "broker",
                    "max_down": "2", "schedule": "packets:delay:5-14:3 kill:one:6-6.2:6 kill:random:9.6-10.6:7"}),
    _qpid(GENERATION_NOT_STORED, "a backup does not store its primary's generation", "partition,crash",
          exercise=_LEFT_BEHIND),
    _qpid(DIRTY_STORE_STARTS, "a dirty store is taken for a clean one, of whatever shutdown", "partition,crash",
          exercise=_LEFT_BEHIND),
    _qpid(DEAD_BACKUP_HOLDS, "a backup that is gone holds completions for ever", "kill",
          exercise={"kill_program": "broker"}),
    _qpid(RESET_NOT_SENT, "a backup that is ahead of a new primary is not told to reset", "partition,kill",
          exercise=_AHEAD),
    _qpid(DEQUEUES_NOT_RESENT, "a backup that was away is not told what was dequeued meanwhile", "partition,kill",
          exercise={**_PRIMARY_KILLED, "partition_kind": "link"}),
    _qpid(CATCH_UP_MISSES_CHANGES, "a backup is not told what happens while it catches up", "kill",
          exercise={**_PRIMARY_KILLED, **_BACKLOG, "catchup_chunk": "1"}),
    _qpid(EXCLUSION_NOT_NOTED, "a primary goes on without a backup, and the managers do not know", "partition,kill",
          exercise={**_PRIMARY_KILLED, "partition_kind": "link"}),
    Bug(COMMIT_UNMATCHED, "a replica takes entries for committed without comparing them", exercise=_MAJORITY),
    Bug(COMMIT_UNSYNCED, "the database does not wait for the disk when it commits", nemesis="power",
        exercise={"power_kind": "all", "settle_timeout": "5", "drain_limit": "10"}, also=_ALL),
)
