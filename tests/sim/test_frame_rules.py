"""Rules about frames: what a replica says is compared with the rows on its disk, and what it does with what it was
told."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nodes.reference import wire
from nodes.reference.designs.icestorm.decisions import Stamp
from nodes.reference.designs.joram.messages import PrepareReply, PreVoteRequest, Reject, pack
from nodes.reference.designs.qpid.manager import messages as managers
from nodes.reference.designs.qpid.positions import agreement
from nodes.reference.replication.handshake import encode_frame
from nodes.reference.replication.messages import Ack, Append, LogPosition, StateBegin, StateEnd
from nodes.systems.reference.icestorm.rules.data import AgreedIsThere, OneDatabaseAStamp, StampsGrow
from nodes.systems.reference.icestorm.rules.frames import AnswersAsItHas
from nodes.systems.reference.joram.rules import frames
from nodes.systems.reference.joram.rules.data import CommittedIsDurable
from nodes.systems.reference.joram.rules.frames import SaysWhatIsOnDisk
from nodes.systems.reference.qpid.rules.wire import VotesInSilence, numbered_alike
from nodes.systems.reference.rules.answers import AnswersOnce
from nodes.systems.reference.wire_reader import Added, LinkReader
from stormproof.contracts.invariant import Watcher

NOTHING = Stamp(0, 0)
Rows = dict[str, list[tuple[Any, ...]]]


def with_rows(watcher: Watcher, rows: Rows) -> Any:
    """The watcher, which sees these rows on each disk."""
    durable = SimpleNamespace(rows=lambda table, database="": rows.get(table, []))
    watcher.outside = SimpleNamespace(durable=lambda node: durable)
    return watcher


def frame_of(message: Any) -> Any:
    (frame,) = LinkReader().feed(pack(message))
    return frame


@pytest.mark.parametrize(("promised", "told", "wrong"), [(64, 64, False), (128, 64, False), (64, 128, True)])
def test_a_promise_of_joram_is_on_disk_when_it_is_sent(promised: int, told: int, wrong: bool) -> None:
    watcher = with_rows(SaysWhatIsOnDisk(), {"joram_meta": [(0, 0), (2, promised)]})
    found = watcher.sent("n1", "n2", frame_of(PrepareReply(told, 0, 0, 0, 0)))
    assert bool(found) is wrong, found


@pytest.mark.parametrize(("last", "acked", "wrong"), [(7, 7, False), (7, 8, True), (0, 5, False), (0, 6, True)])
def test_an_entry_that_joram_acknowledges_is_on_disk(last: int, acked: int, wrong: bool,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """The base counts: all entries up to it are in the state."""
    monkeypatch.setattr(frames, "_ACKS_A_CHECK", 1)
    rows: Rows = {"joram_meta": [(0, 5), (2, 64)], "joram_log": [(last, 64, b"")] if last else []}
    found = with_rows(SaysWhatIsOnDisk(), rows).sent("n1", "n2", frame_of(Ack(64, acked, 0.0)))
    assert bool(found) is wrong, found
    assert not with_rows(SaysWhatIsOnDisk(), rows).sent("n1", "n2", ["ask", 1, "something", []])


class Sender:
    """What the rules about messages ask of a replica of joram."""

    failed = False
    leads_in = 64
    group = ("n1", "n2")
    transfer_form = "two-step"
    step = 7

    def __init__(self) -> None:
        self.log = SimpleNamespace(promised=64)
        self.beats: dict[str, tuple[float, int]] = {}

    def claims(self) -> dict[str, tuple[float, int]]:
        return dict(self.beats)

    def promises_heard(self) -> dict[str, int]:
        return {"n2": 128}

    def status(self) -> dict[str, Any]:
        return {"learners": ["n3"]}


def test_a_state_of_joram_is_sent_in_the_form_that_is_set() -> None:
    sender, entries = Sender(), Append(64, 7, 64, 7, 0.0, [[64, b"Cx"]])
    watcher = cast("Any", frames.StatesAsSet())
    watcher.look("n1", sender, None, None)
    assert not watcher.sent("n1", "n2", frame_of(StateBegin(64)))
    assert not watcher.sent("n1", "n3", frame_of(entries)), "that one gets no state"
    assert not watcher.sent("n1", "n2", frame_of(entries._replace(entries=[])))
    assert "before the end of the state" in watcher.sent("n1", "n2", frame_of(entries))
    assert not watcher.sent("n1", "n2", frame_of(StateEnd(64, 9, 64, [], [], 3)))
    assert not watcher.sent("n1", "n2", frame_of(entries))
    sender.transfer_form = "held-back"
    watcher.sent("n1", "n2", frame_of(StateBegin(64)))
    assert not watcher.sent("n1", "n2", frame_of(entries))
    assert "it began to send that at entry 7" in watcher.sent("n1", "n2", frame_of(StateEnd(64, 9, 64, [], [], 3)))
    watcher.sent("n1", "n2", frame_of(StateBegin(64)))
    assert not watcher.sent("n1", "n2", frame_of(StateEnd(64, 7, 64, [], [], 3)))


def test_a_state_of_joram_that_is_broken_off_does_not_count() -> None:
    watcher, position = cast("Any", frames.StatesAsSet()), frame_of(LogPosition(64, 64, 7, 64, 7))
    watcher.look("n1", Sender(), None, None)
    watcher.sent("n1", "n2", frame_of(StateBegin(64)))
    watcher.sent("n2", "n1", position)
    assert not watcher.sent("n1", "n2", frame_of(Append(64, 7, 64, 7, 0.0, [[64, b"Cx"]])))


def test_who_claims_an_old_epoch_of_joram_is_told() -> None:
    sender, watcher = Sender(), cast("Any", frames.OldClaimsAreRejected())
    sender.beats = {"n2": (0.5, 0), "n3": (0.5, 64)}
    assert not watcher.inspect("n1", sender)
    sender.beats["n2"] = 0.6, 1
    assert "n2 claims to be master in epoch 0" in watcher.inspect("n1", sender)
    assert not watcher.inspect("n1", sender), "it was heard before"
    sender.beats["n2"] = 0.7, 1
    watcher.sent("n1", "n2", frame_of(Reject(64)))
    assert not watcher.inspect("n1", sender)
    sender.log.promised, sender.beats["n2"] = 128, (0.8, 64)
    assert not watcher.inspect("n1", sender), "it may have promised that later"


def test_a_candidate_of_joram_asks_for_an_epoch_that_is_newer_than_it_was_told() -> None:
    watcher = cast("Any", frames.AsksForNewerEpoch())
    watcher.look("n1", Sender(), None, None)
    assert not watcher.sent("n1", "n3", frame_of(PreVoteRequest(129, False)))
    assert "n2 has told it of 2" in watcher.sent("n1", "n3", frame_of(PreVoteRequest(127, False)))


@pytest.mark.parametrize(("name", "wrong"), [("n2", False), ("n3", False), ("n4", True)])
def test_a_replica_of_joram_that_is_added_is_listed(name: str, wrong: bool) -> None:
    watcher = cast("Any", frames.AddedIsListed())
    watcher.look("n1", Sender(), None, None)
    assert bool(watcher.sent("n1", "m1", Added(name))) is wrong


def answering(promised: int, epoch: int = 64, counter: int = 2) -> Any:
    rows: Rows = {"icestorm_meta": [(0, wire.encode([promised, epoch, counter, 0.0]))]}
    return with_rows(AnswersAsItHas(), rows)


def test_a_promise_of_icestorm_is_on_disk_and_new() -> None:
    watcher = answering(64)
    watcher.sent("n1", "n2", ["ask", 7, "promise", ["g", 64]])
    assert not watcher.sent("n2", "n1", ["answer", 7, [0, 0, 0.0]])
    watcher.sent("n1", "n2", ["ask", 8, "promise", ["g", 64]])
    assert "has promised it before" in watcher.sent("n2", "n1", ["answer", 8, [0, 0, 0.0]])
    watcher.sent("n1", "n2", ["ask", 9, "promise", ["g", 128]])
    assert "its disk holds 64" in watcher.sent("n2", "n1", ["answer", 9, [0, 0, 0.0]])
    watcher.sent("n1", "n2", ["ask", 10, "promise", ["g", 192]])
    assert not watcher.sent("n2", "n1", ["answer", 10, None])
    watcher.disk_lost("n2")
    watcher.sent("n1", "n2", ["ask", 11, "promise", ["g", 64]])
    assert not watcher.sent("n2", "n1", ["answer", 11, [0, 0, 0.0]])


def test_an_installed_database_of_icestorm_is_on_disk() -> None:
    watcher = answering(64)
    for number, (counter, wrong) in enumerate([(2, False), (3, True)]):
        watcher.sent("n1", "n2", ["ask", number, "install", ["g", 64, [64, counter, 0.0], None]])
        assert bool(watcher.sent("n2", "n1", ["answer", number, True])) is wrong


@pytest.mark.parametrize("answer", [True, False])
def test_who_refuses_a_change_is_not_counted_for_it(answer: bool) -> None:
    watcher = answering(64)
    watcher.sent("n1", "n2", ["ask", 7, "update", ["g", 64, [64, 2, 0.0], ["create", "t"]]])
    watcher.sent("n2", "n1", ["answer", 7, answer])
    now: Any = SimpleNamespace(agreed=Stamp(64, 2))
    found = watcher.look("n1", SimpleNamespace(members=("n2", "n3")), now, now)
    assert bool(found) is not answer


def icestorm(promised: int, epoch: int, counter: int, agreed: Stamp = NOTHING) -> Any:
    return SimpleNamespace(promised=promised, stamp=Stamp(epoch, counter), agreed=agreed)


def test_a_lost_disk_excuses_its_own_stamps_and_promises_alone() -> None:
    watcher, no_program = StampsGrow(), cast("Any", None)
    for node in ("n1", "n2"):
        assert not watcher.look(node, no_program, icestorm(64, 64, 5), None)
    watcher.disk_lost("n1")
    assert not watcher.look("n1", no_program, icestorm(0, 0, 0), None)
    assert watcher.look("n2", no_program, icestorm(64, 64, 4), None)


def test_a_lost_disk_counts_no_longer_for_what_is_agreed() -> None:
    program: Any = SimpleNamespace(replicas=3)
    for lost in (False, True):
        watcher = AgreedIsThere()
        for node in ("n1", "n2"):
            watcher.look(node, program, icestorm(64, 64, 5), None)
        if lost:
            watcher.disk_lost("n2")
        before, now = icestorm(64, 64, 5), icestorm(64, 64, 5, Stamp(64, 5))
        assert bool(watcher.look("n1", program, now, before)) is lost


def test_only_epochs_that_a_lost_disk_may_open_again_are_excused() -> None:
    def program(ident: int, *topics: str) -> Any:
        held = {name: SimpleNamespace(subscribers={}, links={}) for name in topics}
        return SimpleNamespace(election=SimpleNamespace(ident=ident), database=SimpleNamespace(topics=held))

    for lost, wrong in ((False, True), (True, False)):
        watcher = OneDatabaseAStamp()
        assert not watcher.look("n1", program(1, "a"), icestorm(65, 65, 1), None)
        if lost:
            watcher.disk_lost("n1")
        assert bool(watcher.look("n2", program(2, "b"), icestorm(65, 65, 1), None)) is wrong
        assert not watcher.look("n1", program(1, "a"), icestorm(129, 129, 1), None)
        assert watcher.look("n2", program(2, "b"), icestorm(129, 129, 1), None), "a later epoch is not excused"


def test_acknowledgements_of_before_a_loss_count_for_those_entries_alone() -> None:
    def seen(durable: int, leads: int = 0, committed: int = 0) -> Any:
        return SimpleNamespace(durable=durable, leads=leads, committed=committed)

    program: Any = SimpleNamespace(group=("n1", "n2", "n3"))
    watcher = CommittedIsDurable()
    for node in ("n1", "n2"):
        watcher.look(node, program, seen(5), None)
    watcher.disk_lost("n2")
    watcher.look("n2", program, seen(0), None)
    assert not watcher.look("n1", program, seen(6, 64, 5), seen(6, 64, 4))
    assert watcher.look("n1", program, seen(6, 64, 6), seen(6, 64, 5))


def test_the_layouts_are_those_of_the_frames() -> None:
    assert frame_of(Ack(1, 2, 3.0)) == struct.pack(">Bqqd", 3, 1, 2, 3.0)


def beat(ballot: int, sent: float) -> Any:
    return told_manager(managers.Beat(sent, ballot, 1, "n1", False, False, [], [0, 0, []], {}))


def echo(promised: int, sent: float) -> Any:
    return told_manager(managers.Echo(sent, promised, 1, 1, "n1", 0.0, 0, 0, [0, 0, []]))


def told_manager(message: managers.Message) -> Any:
    (frame,) = LinkReader().feed(managers.pack(message))
    return frame


@pytest.mark.parametrize(("ballot", "candidate", "ago", "asked_before", "granted", "wrong"), [
    (7, "n3", 0.5, False, True, True),
    (7, "n3", 0.5, False, False, False),
    (7, "n1", 0.5, False, True, False),
    (7, "n3", 1.5, False, True, False),
    (7, "n3", 0.5, True, True, False),
    (6, "n3", 0.5, False, True, False),
    (0, "n3", 0.5, False, True, False),
], ids=["wrong", "refused", "its coordinator", "silence", "asked before", "a ballot that is over", "no coordinator"])
def test_a_manager_that_hears_a_coordinator_votes_for_nobody_else(
        ballot: int, candidate: str, ago: float, asked_before: bool, granted: bool, wrong: bool) -> None:
    watcher, now = VotesInSilence(), [10.0]
    program: Any = SimpleNamespace(now=lambda: now[0], options=SimpleNamespace(lease=1.0))
    for node in ("n1", "n2", "n3"):
        watcher.look(node, program, cast("Any", None), None)
    asks = told_manager(managers.VoteRequest(8, False))
    if asked_before:
        watcher.sent(candidate, "n2", asks)
    watcher.sent("n1", "n2", beat(ballot, 9.5))
    watcher.sent("n2", "n1", echo(7, 9.5))
    if not asked_before:
        watcher.sent(candidate, "n2", asks)
    now[0] += ago
    vote = told_manager(managers.Vote(8, False, granted, 7, 7, 1, "n1"))
    assert bool(watcher.sent("n2", candidate, vote)) is wrong


RECEIPT = b"RECEIPT\nreceipt-id:r1\n\n\0"


@pytest.mark.parametrize(("chunks", "wrong"), [
    ([b"CONNECTED\nsession:c\nx-received:0\n\n\0", RECEIPT, b"\n", RECEIPT], True),
    ([b"CONNECTED\nsession:c\n\n\0", RECEIPT + RECEIPT], True),
    ([b"CONNECTED\nsession:c\n\n\0", RECEIPT, RECEIPT.replace(b"r1", b"r12")], False),
    ([b"CONNECTED\nsession:c\nx-received:3\n\n\0", RECEIPT, RECEIPT], False),
], ids=["again", "at once", "another", "resumed"])
def test_a_client_is_answered_once(chunks: list[bytes], wrong: bool) -> None:
    reader, watcher = LinkReader(), AnswersOnce()
    frames_seen = [frame for chunk in chunks for frame in reader.feed(chunk)]
    assert any(watcher.sent("n1", "c1", frame) for frame in frames_seen) is wrong


def test_the_proof_of_a_handshake_is_no_message() -> None:
    """It is a hash, which may begin as any message does."""
    reader, message = LinkReader(), managers.pack(managers.VoteRequest(8, False))
    hello, proof = encode_frame(["stormproof-links", "cluster", "n1", b"number"]), encode_frame(b"\x03" * 32)
    assert len(reader.feed(hello + proof + message)) == 2
    assert len(reader.feed(encode_frame(b"\x03" * 32))) == 1


@pytest.mark.parametrize(("ours", "last", "theirs", "their_last", "alike"), [
    ([(1, 1)], 4, [(1, 1)], 6, 4),
    ([(1, 1), (2, 5)], 8, [(1, 1)], 6, 4),
    ([(1, 1), (2, 5)], 8, [(1, 1), (2, 5)], 6, 6),
    ([(1, 1), (2, 5)], 8, [(1, 1), (3, 4)], 6, 3),
    ([(2, 1)], 3, [(1, 1)], 3, 0),
    ([], 0, [(1, 1)], 3, 0),
])
def test_where_two_copies_of_a_queue_diverge(ours: list[tuple[int, int]], last: int, theirs: list[tuple[int, int]],
                                             their_last: int, alike: int) -> None:
    assert numbered_alike(ours, last, theirs, their_last) == alike == agreement(ours, last, theirs, their_last)
