"""What is wrong in a replica of HA Joram so that one of its invariants, or of its deadlines, does not hold."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from harness.run.cases import Case
from nodes.reference.api import Admission, Broker
from nodes.reference.designs.joram import election
from nodes.reference.designs.joram.decisions import (
    Voter,
    committed_index,
    judge_claim,
    make_epoch,
    refusal,
    round_of,
)
from nodes.reference.designs.joram.design import JoramDesign
from nodes.reference.designs.joram.election import Election
from nodes.reference.designs.joram.leader import Leader
from nodes.reference.designs.joram.log import JoramLog
from nodes.reference.designs.joram.outbox import Outbox
from nodes.reference.designs.joram.replica import JoramReplica
from nodes.reference.replication.follower_log import FollowerLog
from nodes.reference.replication.links import Links
from nodes.reference.replication.positions import Feed
from nodes.reference.replication.replicator import Replicator
from tests.breaking import later

Patch = pytest.MonkeyPatch
_SHORT = {"fault_duration": "1.5", "fault_gap": "0.3", "detection_timeout": "0.5", "idle_timeout": "2", "min_ok": "5"}


def _group(nemesis: str, **settings: str) -> Case:
    return Case("joram", "queue", nemesis, 3, 15.0, 30.0, {**_SHORT, **settings})


def unpromised(patch: Patch) -> None:
    """A replica promises nothing to the master that it follows."""
    promise = JoramReplica.promise
    patch.setattr(JoramReplica, "promise",
                  lambda self, epoch: promise(self, epoch) if epoch % 64 == self.rank else None)


def anybody_is_enough(patch: Patch) -> None:
    """A candidate goes on with whoever agrees."""
    patch.setattr(election, "has_quorum", lambda *_: True)


def no_turns(patch: Patch) -> None:
    """Whoever may stand does so at once."""
    patch.setattr(Election, "turn_wait", lambda self: 0.0)


def amnesia(patch: Patch) -> None:
    """Whenever n1 is started its log is gone."""
    init = JoramReplica.__init__

    def emptied(self: JoramReplica, broker: Broker, *more: Any) -> None:
        if broker.config.node == "n1":
            for table in ("joram_log", "joram_meta"):
                broker.database.execute(f"DROP TABLE IF EXISTS {table}")
        init(self, broker, *more)

    patch.setattr(JoramReplica, "__init__", emptied)


def empty_that_votes(patch: Patch) -> None:
    """A replica that has lost its log votes as if it had it."""
    def anything(voter: Voter, epoch: int, first_start: bool, primary: bool) -> str | None:
        return refusal(voter, epoch, first_start, primary) if voter.has_log else None

    amnesia(patch)
    patch.setattr(election, "refusal", anything)


def names_the_first(patch: Patch) -> None:
    """Clients are sent to the first replica of the group, whoever is master."""
    admission = JoramDesign.admission

    def instead(self: JoramDesign) -> Admission:
        told = admission(self)
        return told if told.accepted else Admission(False, told.reason, self.replica.group[0].client)

    patch.setattr(JoramDesign, "admission", instead)


def last_in_its_view(patch: Patch) -> None:
    """A master comes last in the view that it installs."""
    patch.setattr(election, "new_view", lambda me, previous, willing, order: [*willing, me])


def other_view(patch: Patch) -> None:
    """A state that is taken over comes with another view."""
    load = JoramReplica.load
    patch.setattr(JoramReplica, "load",
                  lambda self, rows, at, view, group: load(self, rows, at, list(reversed(view)), group))


def most_are_all(patch: Patch) -> None:
    """With ack=all a majority is enough."""
    def by_majority(acked: Mapping[str, int], view: Sequence[str], replicas: int, ack: str, primary: bool) -> int:
        return committed_index(acked, view, replicas, "majority", primary)

    patch.setattr("nodes.reference.designs.joram.leader.committed_index", by_majority)


def counts_on_when_empty(patch: Patch) -> None:
    """What a replica had acknowledged counts on when its link is lost, though it has lost its log."""
    def lost(self: Leader, peer: str) -> None:
        replicator = self.replicators.pop(peer, None)
        if replicator is not None:
            replicator.close()

    amnesia(patch)
    patch.setattr(Leader, "lost_link", lost)


def always_the_whole(patch: Patch) -> None:
    """Whoever follows is sent the whole state."""
    patch.setattr("nodes.reference.replication.replicator.plan_feed", lambda position, epoch_at: Feed(0, state=True))


def former_epochs_count(patch: Patch) -> None:
    """Entries of former epochs are committed when most have them."""
    committed = Leader._committed

    def counted(self: Leader) -> int:
        start, self._epoch_start = self._epoch_start, 0
        found = committed(self)
        self._epoch_start = start
        return found

    patch.setattr(Leader, "_committed", counted)


def lets_all_out(patch: Patch) -> None:
    """Nobody asks for a lease before effects are let out."""
    def release(self: Leader) -> None:
        effects = self.outbox.release()
        self.unleased += len(effects) * (not self.holds_lease())
        self._replica.broker.release(effects)

    patch.setattr(Leader, "_release", release)


def half_of_the_log(patch: Patch) -> None:
    """Half of what is to be kept of the log is kept."""
    compact = JoramLog.compact
    patch.setattr(JoramLog, "compact", lambda self, keep, keep_bytes, hold: compact(self, keep // 2, keep_bytes, hold))


def status_of_before(patch: Patch) -> None:
    """The status tells of one entry more than there is."""
    status = JoramDesign.status
    patch.setattr(JoramDesign, "status", lambda self: {**(told := status(self)), "log_last": told["log_last"] + 1})


def unwritten(patch: Patch) -> None:
    """Who promises an epoch writes that down later."""
    def promise(self: JoramReplica, epoch: int) -> None:
        self.log.promised = max(self.log.promised, epoch)
        self.note_promised(epoch)

    patch.setattr(JoramReplica, "promise", promise)


def in_one_step(patch: Patch) -> None:
    """A state that is to be sent in two steps is sent held back."""
    patch.setattr("nodes.reference.replication.replicator.TWO_STEP", "held-back")


def old_claims_ignored(patch: Patch) -> None:
    """Whoever claims to be master of an older epoch gets no answer."""
    def judged(*of: Any) -> str:
        verdict = judge_claim(*of)
        return "ignore" if verdict == "reject" else verdict

    patch.setattr("nodes.reference.designs.joram.design.judge_claim", judged)


def deaf_to_promises(patch: Patch) -> None:
    """A candidate knows no newer epoch than the one that it has promised itself."""
    patch.setattr(JoramReplica, "next_epoch", lambda self: make_epoch(round_of(self.log.promised) + 1, self.rank))


def added_in_words(patch: Patch) -> None:
    """A master says that it adds a replica, and does not."""
    patch.setattr(Leader, "add_replica", lambda self, member: None)


def one_is_enough(patch: Patch) -> None:
    """A master commits what it has itself."""
    patch.setattr("nodes.reference.designs.joram.leader.committed_index",
                  lambda acked, *_: max(acked.values(), default=0))


def starts_alone(patch: Patch) -> None:
    """Nobody waits for the others of the group."""
    patch.setattr(election, "may_stand", lambda *of: True)


JORAM_BREAKS: dict[str, tuple[Case, Callable[[Patch], None]]] = {
    "starts-with-enough": (_group("kill"), starts_alone),
    "one-role": (_group("kill"), unpromised),
    "elected-by-majority": (_group("partition"), anybody_is_enough),
    "stands-in-turn": (_group("kill"), no_turns),
    "empty-promises-nothing": (_group("crash"), empty_that_votes),
    "names-its-master": (_group("kill"), names_the_first),
    "views-in-order": (_group("kill"), last_in_its_view),
    "views-match": (_group("partition,pause,kill", log_keep="5"), other_view),
    "all-have-it": (_group("kill"), most_are_all),
    "counts-for-what-it-has": (_group("kill"), counts_on_when_empty),
    "states-are-needed": (_group("kill"), always_the_whole),
    "commits-its-own": (_group("kill", ack="majority"), former_epochs_count),
    "releases-in-lease": (_group("points", points_kind="pause", points_at="joram.shipped"), lets_all_out),
    "log-is-long-enough": (_group("kill", log_keep="20"), half_of_the_log),
    "status-tells": (_group("kill"), status_of_before),
    "says-what-is-on-disk": (_group("kill"), unwritten),
    "states-as-set": (_group("kill", log_keep="5", transfer_chunk="24"), in_one_step),
    "old-claims-are-rejected": (_group("partition,pause,kill"), old_claims_ignored),
    "asks-for-newer-epoch": (_group("partition,pause,kill"), deaf_to_promises),
    "added-is-listed": (replace(_group("membership", spares="1"), nodes=4), added_in_words),
    "view-has-it": (_group("kill", partitions="unspecified", ack="majority"), one_is_enough),
}


def never_enough(patch: Patch) -> None:
    """A candidate makes nothing of the votes that it gets, once its group has started."""
    evaluate = Election._evaluate
    patch.setattr(Election, "_evaluate", lambda self: None if self._node.started else evaluate(self))


def behind_others(patch: Patch) -> None:
    """The first candidate waits as if there were others before it."""
    patch.setattr(Election, "turn_wait", lambda self: 2 * self._replica.options.detection_timeout)


def asks_rarely(patch: Patch) -> None:
    """A candidate that was answered in vain waits for long."""
    back_off = Election._back_off
    patch.setattr(Election, "_back_off", lambda self, share: back_off(self, share + 1.5))


def stays_master(patch: Patch) -> None:
    """A master that hears nobody goes on."""
    tick = Leader.tick

    def on(self: Leader) -> None:
        tick(self)

    patch.setattr(Leader, "tick", on)


def no_suspicion(patch: Patch) -> None:
    """A member that is silent stays in the view."""
    patch.setattr(Leader, "_is_silent", lambda self, peer: False)


def one_window_of_state(patch: Patch) -> None:
    """A state is not sent on when its first pieces have arrived."""
    patch.setattr(Leader, "acked_chunks",
                  lambda self, peer, message: self.replicators[peer].acked_chunks(message.chunks))


def one_window_of_entries(patch: Patch) -> None:
    """Entries are not sent on when the first of them have arrived."""
    pump = Replicator.pump
    patch.setattr(Replicator, "pump", lambda self, stamp: None if self.match > 0 else pump(self, stamp))


def never_synchronised(patch: Patch) -> None:
    """What is confirmed early goes to no other replica."""
    add_ahead = Outbox.add_ahead

    def added(self: Outbox, *of: Any) -> bool:
        add_ahead(self, *of)
        return False

    patch.setattr(Outbox, "add_ahead", added)
    patch.setattr(Leader, "_synchronise", lambda self: asyncio.sleep(1000))


def deaf_to_commits(patch: Patch) -> None:
    """A follower does not hear that anything is committed."""
    patch.setattr(FollowerLog, "commit", lambda self, index: None)


def never_quiet(patch: Patch) -> None:
    """What was applied waits for the next entry until it is written."""
    patch.setattr("nodes.reference.designs.joram.design.QUIET", 1000.0)


def nobody_stands(patch: Patch) -> None:
    """Candidates wait for a minute, whoever is before them."""
    patch.setattr(Election, "turn_wait", lambda self: 60.0)


def no_more_masters(patch: Patch) -> None:
    """Nobody stands once there has been a master."""
    later(patch, Election, "turn_wait", lambda self: 60.0)


def quiet_followers(patch: Patch) -> None:
    """Followers say nothing of themselves, and nobody cuts their links."""
    said = JoramDesign._send_heartbeats
    patch.setattr(JoramDesign, "_send_heartbeats", lambda self, but=(): said(self, but) if self.leader else None)
    patch.setattr(Links, "cut_silent", lambda self: None)


def applied_late(patch: Patch) -> None:
    """What is committed is not carried out."""
    patch.setattr(JoramReplica, "apply", lambda self, upto: iter(()))


def never_joins(patch: Patch) -> None:
    """Whoever has left the view stays outside."""
    patch.setattr(Leader, "_may_join", lambda self, peer: False)


def never_serves(patch: Patch) -> None:
    """A new master looks on."""
    later(patch, Leader, "_committed", lambda self: self._replica.committed)


def no_lease(patch: Patch) -> None:
    """A master that serves takes note of no echo."""
    later(patch, Leader, "holds_lease", lambda self: False)


def not_introduced(patch: Patch) -> None:
    """A new link waits for the next heartbeat."""
    later(patch, JoramDesign, "link_up", lambda self, peer: None)


def never_decided(patch: Patch) -> None:
    """A replica that follows a master keeps the beginning of its turn."""
    patch.setattr(Election, "decided", Election.cancel)


_HALF = {"detection_timeout": "0.5", "fault_duration": "1.5", "fault_gap": "0.3"}
JORAM_LATE: dict[str, tuple[str, str, str, dict[str, str], Callable[[Patch], None]]] = {
    "enough": ("joram", "queue", "kill", {**_HALF, "kill_kind": "master"}, never_enough),
    "first-stands": ("joram", "queue", "kill", {**_HALF, "kill_kind": "master"}, behind_others),
    "asks-again": ("joram", "queue", "kill", {**_HALF, "kill_kind": "master"}, asks_rarely),
    "stale-candidacy": ("joram", "queue", "kill", {**_HALF, "kill_kind": "master"}, never_decided),
    "without-lease": ("joram", "queue", "partition", _HALF, stays_master),
    "silent-member": ("joram", "queue", "pause", _HALF, no_suspicion),
    "unsent": ("joram", "queue", "kill", {**_HALF, "send_window": "200"}, one_window_of_entries),
    "unsent-state": ("joram", "queue", "kill", {**_HALF, "log_keep": "5", "transfer_chunk": "24"}, one_window_of_state),
    "unshipped": ("joram", "queue", "kill", {"propagation": "asynchronous"}, never_synchronised),
    "uninformed": ("joram", "queue", "kill", {}, deaf_to_commits),
    "unwritten": ("joram", "queue", "kill", {}, never_quiet),
    **{f"turn-{place}": ("joram", "queue", "kill", {**_HALF, "kill_kind": "master"}, nobody_stands)
       for place in range(5)},
    "master": ("joram", "queue", "kill", {**_HALF, "kill_kind": "master"}, no_more_masters),
    "serving": ("joram", "queue", "kill", _HALF, never_serves),
    "lease": ("joram", "queue", "kill", _HALF, no_lease),
    "greeting": ("joram", "queue", "kill", {"detection_timeout": "4"}, not_introduced),
    "silent-peer": ("joram", "queue", "kill", _HALF, quiet_followers),
    "unapplied": ("joram", "queue", "kill", {}, applied_late),
    "not-in-view": ("joram", "queue", "kill", _HALF, never_joins),
}
