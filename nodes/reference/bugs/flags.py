"""Bugs whose places in the code ask for them by name."""

from __future__ import annotations

from collections.abc import Mapping

from nodes.reference.bugs.bug import Bug

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

_PRIMARY_KILLED = {"kill_kind": "master", "kill_program": "broker"}
_BACKLOG = {"producers": "6", "consumers": "1"}
_AHEAD = {
    **_BACKLOG, "kill_program": "broker", "detection_timeout": "1", "catchup_timeout": "1",
    "schedule": "partition:link:5-5.6:1 kill:master:5.4-5.6:1 partition:one:7-11:8 kill:master:9.5-10:1",
}
"""For qpid: the primary is lost while one backup is ahead of the next primary; which is then lost, too."""
_LEFT_BEHIND = {**_BACKLOG, "catchup_timeout": "1", "schedule": "partition:master:4-11:1 crash:kill:9-11.5:1"}
"""For qpid: all brokers are lost while an earlier primary's store is behind another's."""


def _qpid(name: str, summary: str, nemesis: str = Bug.nemesis, workload: str = "queue",
          exercise: Mapping[str, str] | None = None) -> Bug:
    return Bug(name, summary, exercise or {}, "qpid", workload, nemesis)


BUGS = (
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
)
