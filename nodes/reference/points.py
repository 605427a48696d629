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
    WRITTEN: "a transaction is on disk; nobody has been told of what is in it",
    RELEASING: "what is safe is about to be handed to clients: they have got nothing of it",
}

HEARD = "link.heard"
LINKED = "link.up"
LINK_POINTS: Mapping[str, str] = {
    HEARD: "bytes of a peer have come, and nothing has been done about them",
    LINKED: "a link with a peer is there, and nothing has been said on it",
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
    APPENDED: "a follower has taken entries into its log in memory: nothing is on its disk, nothing acknowledged",
    STORED: "a follower has its log on disk and has not acknowledged it: the master does not know of this copy",
    COMMITTED: "a master has applied what is committed and has answered no client: its successor must have it all",
    SHIPPED: "a master has sent entries to its followers which are not on its own disk",
    PROMISED: "a replica has an epoch on disk that it has promised, and has told nobody",
    ELECTED: "a replica has won an election and has done nothing as master",
    VIEWED: "a new view is in the master's log in memory, and nowhere else",
    REGROUPED: "a change of the group is in the master's log in memory, and nowhere else",
    TRUNCATED: "a follower has removed entries that its master does not have, in memory; they are still on its disk",
    CHUNK_SENT: "a master has sent a piece of the whole state, and more are to come",
    LOADED: "a replica's whole state is another's now, on disk, and nobody knows of it",
    LEASE_ENDS: "a master's lease has nearly ended: most followers were last heard a while ago",
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
    INVITING: "a coordinator has left its group to form another, and has invited nobody",
    INVITED: "a replica has left its group for another coordinator's, and has not told that one",
    ACCEPTING: "a replica has passed an invitation on, and has not accepted it",
    ACCEPTED: "a coordinator has one more member in the group that it forms",
    ICE_PROMISED: "a replica has an epoch on disk that it has promised, and has not answered",
    COMPARED: "a coordinator knows the stamps of all databases, and has fetched none",
    REPLACED: "a coordinator has the most recent database, stamped anew, and no member has it",
    INSTALLED: "a member has the group's database, and its coordinator does not know",
    FORMED: "a coordinator replicates, and no member knows that the group is formed",
    READY: "a member has learnt that its group replicates, and has not answered",
    CHANGED: "a coordinator has made a change in its own database, and in no other",
    UPDATED: "a slave has a change on disk, and its coordinator does not know",
    AGREED: "a majority has a change on disk, and the client does not know",
    DROPPED: "a coordinator has given up members that did not answer, and goes on with the others",
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
    QPID_STORED: "a primary has a group on disk and has sent it to its backups; nobody has signalled completion",
    COMPLETED: "a backup has signalled completion, and the primary has let no client know",
    COPIED: "a backup has a group on disk, and has not signalled completion",
    ATTACHING: "a backup has told a primary what it has, and has heard nothing of what it lacks",
    ATTACHED: "a primary has found out what a backup lacks, and has sent it the differences alone",
    CAUGHT_UP: "a backup has become ready, and nobody knows",
    CATCH_UP_SENT: "a primary has sent a group of what a backup lacks, and more are to come",
    PROMOTED: "a broker is primary by its store, and does not serve",
    STEPPED_DOWN: "a primary has found a newer one; its clients are gone, its store is there",
    PRIMARY_LOST: "a backup has lost its primary, and nobody has another",
    PERMITTED: "a manager has let a broker go on, which has done nothing with that",
    PERMISSION_ENDS: "a primary's permission has nearly ended",
}

BALLOT_PROMISED = "manager.promised"
BALLOT_ACCEPTED = "manager.accepted"
COORDINATES = "manager.coordinates"
CLEARED = "manager.cleared"
NOTE_TAKEN = "manager.noted"
PROMOTING = "manager.promoting"

MANAGER_POINTS: Mapping[str, str] = {
    BALLOT_PROMISED: "a manager has a ballot on disk that it has promised, and has not answered",
    BALLOT_ACCEPTED: "a manager has a decision on disk, and has told nobody",
    COORDINATES: "a manager has become coordinator, and has told nobody",
    CLEARED: "a coordinator has found that its primary may be started, and has told nobody",
    NOTE_TAKEN: "a manager has a note on disk of whom a primary goes on without, and has told nobody",
    PROMOTING: "a manager has it on disk that its broker becomes primary, and the broker does not know",
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
    SET_STORED: "an active server has a change-set on disk, and has not sent it to its standby",
    SET_SENT: "an active server has sent a change-set to its standby, and has released nothing",
    SET_COPIED: "a standby has what it was sent on disk, and the active server does not know",
    STANDBY_STORED: "an active server has heard that its standby has something, and has released nothing",
    PAGE_SENT: "a page of a synchronisation was sent, and more are to come",
    ALL_SENT: "the end of a synchronisation was sent; from now on nothing is confirmed without the standby",
    EPOCH_ADOPTED: "the lock's epoch is in the repository, on disk, and nobody has been told",
    EPOCH_ASKED: "an epoch is noted on disk, and the gateway has not been asked for it",
    GRANTED: "the gateway has granted the lock, or renewed it, and nothing has been done with that",
    ENTERED: "a server has changed its state, and nobody has been told",
    LOCK_ENDS: "the lease of the lock has nearly ended",
    CHANNEL_LOST: "the channel between the servers is broken, and neither has decided what to do",
    DATABASE_HAS: "the shared database has a commit, and no client knows",
}

POINTS_OF: Mapping[str, Mapping[str, str]] = {
    "standalone": SERVER_POINTS,
    "joram": {**SERVER_POINTS, **LINK_POINTS, **JORAM_POINTS},
    "icestorm": {**SERVER_POINTS, **LINK_POINTS, **ICESTORM_POINTS},
    "qpid": {**SERVER_POINTS, **LINK_POINTS, **QPID_POINTS, **MANAGER_POINTS},
    "fiorano": {**SERVER_POINTS, **LINK_POINTS, **FIORANO_POINTS},
}
"""The points that the programs of each design pass."""
