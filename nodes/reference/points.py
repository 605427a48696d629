"""Named points in the brokers where a fault hurts: ``runtime.point(NAME)`` is one line there, without effect outside
the simulator.

A new point needs a constant here, with a description, and its line in the code; the line must not be inside a
transaction.

The points of ``SERVER_POINTS`` are in code that all designs share; those of ``LINK_POINTS`` are in designs whose
brokers have links with each other.
"""

from __future__ import annotations

from collections.abc import Mapping

WRITTEN = "server.written"
RELEASING = "server.releasing"
SERVER_POINTS: Mapping[str, str] = {
    WRITTEN: "a transaction is on disk; no other program has been informed of it",
    RELEASING: "safe effects are about to be released; clients have received none of them",
}

HEARD = "link.heard"
LINKED = "link.up"
LINK_POINTS: Mapping[str, str] = {
    HEARD: "bytes of a peer have arrived, but are not processed yet",
    LINKED: "a link to a peer is open, but unused yet",
}

APPENDED = "joram.appended"
STORED = "joram.stored"
COMMITTED = "joram.committed"
SHIPPED = "joram.shipped"
PROMISED = "joram.promised"
ELECTED = "joram.elected"
VIEWED = "joram.viewed"
REGROUPED = "joram.regrouped"
TRUNCATED = "joram.truncated"
CHUNK_SENT = "joram.chunk-sent"
LOADED = "joram.loaded"
LEASE_ENDS = "joram.lease-ends"

JORAM_POINTS: Mapping[str, str] = {
    APPENDED: "a follower has entries in its log in memory; they are neither on disk nor acknowledged",
    STORED: "a follower has its log on disk, but has not acknowledged it to the master",
    COMMITTED: "a master has applied committed entries, but has answered no client; its successor must have them",
    SHIPPED: "a master has sent entries to its followers that are not on its disk yet",
    PROMISED: "a replica has a promised epoch on disk, but has not answered",
    ELECTED: "a replica has won an election, but has not acted as master yet",
    VIEWED: "a new view is only in the master's log in memory",
    REGROUPED: "a change of the group is only in the master's log in memory",
    TRUNCATED: "a follower has removed conflicting entries in memory; they are still on its disk",
    CHUNK_SENT: "a master has sent a chunk of a state transfer; more follow",
    LOADED: "a replica has a transferred state on disk, but has not acknowledged it",
    LEASE_ENDS: "a master's lease has nearly expired",
}

INVITING = "icestorm.inviting"
INVITED = "icestorm.invited"
ACCEPTING = "icestorm.accepting"
ACCEPTED = "icestorm.accepted"
ICE_PROMISED = "icestorm.promised"
COMPARED = "icestorm.compared"
REPLACED = "icestorm.replaced"
INSTALLED = "icestorm.installed"
FORMED = "icestorm.formed"
READY = "icestorm.ready"
CHANGED = "icestorm.changed"
UPDATED = "icestorm.updated"
AGREED = "icestorm.agreed"
DROPPED = "icestorm.dropped"

ICESTORM_POINTS: Mapping[str, str] = {
    INVITING: "a coordinator has left its group to form a new one, but has not sent invitations",
    INVITED: "a replica has left its group for another coordinator's, but has not accepted the invitation",
    ACCEPTING: "a replica has forwarded an invitation, but has not accepted it",
    ACCEPTED: "a coordinator has one more member in its new group",
    ICE_PROMISED: "a replica has a promised epoch on disk, but has not answered",
    COMPARED: "a coordinator knows the stamps of all databases, but has not fetched one",
    REPLACED: "a coordinator has the most recent database with a new stamp; no member has it",
    INSTALLED: "a member has the group's database, but has not answered its coordinator",
    FORMED: "a coordinator replicates, but has not informed the members",
    READY: "a member knows that its group replicates, but has not answered",
    CHANGED: "a coordinator has made a change only in its own database",
    UPDATED: "a slave has a change on disk, but has not acknowledged it",
    AGREED: "a majority has a change on disk, but the client has no confirmation",
    DROPPED: "a coordinator has excluded silent members and continues with the others",
}

QPID_STORED = "qpid.stored"
COMPLETED = "qpid.completed"
COPIED = "qpid.copied"
ATTACHING = "qpid.attaching"
ATTACHED = "qpid.attached"
CAUGHT_UP = "qpid.caught-up"
CATCH_UP_SENT = "qpid.catch-up-sent"
PROMOTED = "qpid.promoted"
STEPPED_DOWN = "qpid.stepped-down"
PRIMARY_LOST = "qpid.primary-lost"
PERMITTED = "qpid.permitted"
PERMISSION_ENDS = "qpid.permission-ends"

QPID_POINTS: Mapping[str, str] = {
    QPID_STORED: "a primary has a group on disk and has sent it to its backups; no completion has been signalled",
    COMPLETED: "a backup has signalled completion, but the primary has confirmed nothing to clients",
    COPIED: "a backup has a group on disk, but has not signalled completion",
    ATTACHING: "a backup has reported its state to a primary, but has received no differences",
    ATTACHED: "a primary has sent a backup the differences, but not the contents",
    CAUGHT_UP: "a backup has become ready, but has not reported it",
    CATCH_UP_SENT: "a primary has sent a group of missing messages to a backup; more follow",
    PROMOTED: "a broker's store says that it is the primary, but it does not serve yet",
    STEPPED_DOWN: "a primary has found a newer one; its clients are disconnected, its store remains",
    PRIMARY_LOST: "a backup has lost its primary, and no broker has found a new one",
    PERMITTED: "a manager has renewed a broker's lease, but the broker has not used it",
    PERMISSION_ENDS: "a primary's lease has nearly expired",
}

BALLOT_PROMISED = "manager.promised"
BALLOT_ACCEPTED = "manager.accepted"
COORDINATES = "manager.coordinates"
CLEARED = "manager.cleared"
NOTE_TAKEN = "manager.noted"
PROMOTING = "manager.promoting"

MANAGER_POINTS: Mapping[str, str] = {
    BALLOT_PROMISED: "a manager has a promised ballot on disk, but has not answered",
    BALLOT_ACCEPTED: "a manager has a decision on disk, but has not sent it",
    COORDINATES: "a manager has become coordinator, but has not announced it",
    CLEARED: "a coordinator has cleared its primary for a start, but has not announced it",
    NOTE_TAKEN: "a manager has on disk which backups a primary excluded, but has not sent it",
    PROMOTING: "a manager has the promotion of its broker on disk, but has not informed the broker",
}

SET_STORED = "fiorano.stored"
SET_SENT = "fiorano.sent"
SET_COPIED = "fiorano.copied"
STANDBY_STORED = "fiorano.standby-stored"
PAGE_SENT = "fiorano.page-sent"
ALL_SENT = "fiorano.all-sent"
EPOCH_ADOPTED = "fiorano.epoch-adopted"
EPOCH_ASKED = "fiorano.epoch-asked"
GRANTED = "fiorano.granted"
ENTERED = "fiorano.entered"
LOCK_ENDS = "fiorano.lock-ends"
CHANNEL_LOST = "fiorano.channel-lost"
DATABASE_HAS = "fiorano.database-has"

FIORANO_POINTS: Mapping[str, str] = {
    SET_STORED: "an active server has a change-set on disk, but has not sent it to its standby",
    SET_SENT: "an active server has sent a change-set to its standby, but has released nothing",
    SET_COPIED: "a standby has a change-set on disk, but has not acknowledged it",
    STANDBY_STORED: "an active server has its standby's acknowledgement, but has released nothing",
    PAGE_SENT: "a page of a synchronisation was sent; more follow",
    ALL_SENT: "the end of a synchronisation was sent; from now on the standby must have each confirmed change",
    EPOCH_ADOPTED: "the lock's epoch is in the repository on disk, but is not announced",
    EPOCH_ASKED: "an epoch is noted on disk, but not requested from the gateway yet",
    GRANTED: "the gateway has granted or renewed the lock, but the server has not used it",
    ENTERED: "a server has changed its state, but has not announced it",
    LOCK_ENDS: "the lock's lease has nearly expired",
    CHANNEL_LOST: "the channel between the servers is broken, but neither server has reacted",
    DATABASE_HAS: "the shared database has a commit, but no client has the confirmation",
}

POINTS_OF: Mapping[str, Mapping[str, str]] = {
    "standalone": SERVER_POINTS,
    "joram": {**SERVER_POINTS, **LINK_POINTS, **JORAM_POINTS},
    "icestorm": {**SERVER_POINTS, **LINK_POINTS, **ICESTORM_POINTS},
    "qpid": {**SERVER_POINTS, **LINK_POINTS, **QPID_POINTS, **MANAGER_POINTS},
    "fiorano": {**SERVER_POINTS, **LINK_POINTS, **FIORANO_POINTS},
}
"""The points that the programs of each design pass."""
