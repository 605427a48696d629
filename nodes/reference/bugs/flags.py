"""Bugs whose places in the code ask for them by name."""

from __future__ import annotations

from collections.abc import Mapping

from nodes.reference.bugs.bug import Bug

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
LINK_COST_IGNORED = "link-cost-ignored"

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
    _icestorm(LINK_COST_IGNORED, "events go over links whose cost is below theirs", "events", exercise=_SURFACE),
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
)
