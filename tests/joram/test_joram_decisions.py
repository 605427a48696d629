from __future__ import annotations

import itertools
import random

import pytest

from nodes.reference.designs.joram.decisions import (
    MAX_MEMBERS,
    Candidate,
    LeaderClaim,
    LocalState,
    Voter,
    best_log,
    candidates,
    committed_index,
    has_quorum,
    judge_claim,
    make_epoch,
    may_stand,
    new_view,
    refusal,
    round_of,
)
from nodes.reference.replication.lease import Lease, kth_newest
from nodes.reference.replication.positions import Feed, LogId, Position, plan_feed
from nodes.reference.replication.quorum import majority

ORDER = ["n1", "n2", "n3", "n4", "n5"]


def at(last: tuple[int, int], applied: tuple[int, int] = (0, 0)) -> Position:
    return Position(LogId(*last), LogId(*applied))


def test_epochs_of_different_nodes_are_never_equal_and_later_rounds_are_newer():
    epochs = [make_epoch(round_, rank) for round_ in range(1, 4) for rank in range(MAX_MEMBERS)]
    assert epochs == sorted(set(epochs))
    assert [round_of(epoch) for epoch in epochs[:: MAX_MEMBERS]] == [1, 2, 3]


@pytest.mark.requirement("J7")
@pytest.mark.requirement("J6")
@pytest.mark.parametrize(("acked", "view", "ack", "primary", "index"), [
    ({"n1": 9, "n2": 7, "n3": 5}, ["n1", "n2", "n3"], "all", True, 5),
    ({"n1": 9, "n2": 7, "n3": 5}, ["n1", "n2", "n3"], "majority", True, 7),
    ({"n1": 9, "n2": 7}, ["n1", "n2", "n3"], "all", True, 0),
    ({"n1": 9, "n2": 7}, ["n1", "n2", "n3"], "majority", True, 7),
    ({"n1": 9, "n2": 7}, ["n1", "n2"], "all", True, 7),
    # A view without a majority behind it commits nothing in a primary partition.
    ({"n1": 9}, ["n1"], "all", True, 0),
    ({"n1": 9}, ["n1"], "majority", True, 0),
    # Who has only just been fed, and is no member yet, counts for the majority but holds up nobody.
    ({"n1": 9, "n2": 2, "n3": 8}, ["n1", "n3"], "all", True, 8),
    ({"n1": 9, "n2": 2, "n3": 8}, ["n1"], "all", True, 8),
    # Without a primary partition only the view counts.
    ({"n1": 9}, ["n1"], "all", False, 9),
    ({"n1": 9, "n2": 4}, ["n1", "n2"], "all", False, 4),
    ({"n1": 9, "n2": 4}, ["n1", "n2"], "majority", False, 4),
    ({"n1": 9, "n2": 4, "n3": 6}, ["n1", "n2", "n3"], "majority", False, 6),
    ({"n1": 9, "n3": 6}, ["n1", "n2", "n3"], "all", False, 0),
])
def test_what_is_committed(acked, view, ack, primary, index):
    assert committed_index(acked, view, 3, ack, primary) == index


def test_what_is_committed_is_held_by_a_majority_whatever_the_view():
    for held in itertools.product(range(3), repeat=5):
        acked = dict(zip(ORDER, held, strict=True))
        for size in range(1, 6):
            for ack in ("all", "majority"):
                index = committed_index(acked, ORDER[:size], 5, ack, True)
                assert index == 0 or sum(have >= index for have in held) >= 3


@pytest.mark.requirement("J9")
@pytest.mark.parametrize(("positions", "best"), [
    ({"n1": at((1, 5))}, "n1"),
    ({"n1": at((1, 5)), "n2": at((1, 6))}, "n2"),
    ({"n1": at((1, 9)), "n2": at((2, 6))}, "n2"),
    ({"n1": at((2, 6)), "n2": at((2, 6)), "n3": at((1, 9))}, "n1"),
    ({"n1": at((1, 1)), "n2": at((2, 6)), "n3": at((2, 6))}, "n2"),
    # What has been applied doesn't matter: only what is on disk.
    ({"n1": at((1, 5), (1, 5)), "n2": at((1, 6))}, "n2"),
])
def test_the_log_with_the_newest_last_entry_wins(positions, best):
    assert best_log(positions, "n1") == best


@pytest.mark.requirement("J9")
@pytest.mark.parametrize(("position", "feed"), [
    (at((2, 8), (2, 7)), Feed(9, False)),
    (at((2, 5), (1, 4)), Feed(6, False)),
    (at((2, 10), (2, 10)), Feed(11, False)),
    # An uncommitted tail of an old master is replaced, from what was applied on.
    (at((1, 9), (1, 4)), Feed(5, False)),
    (at((3, 12), (2, 6)), Feed(7, False)),
    # What was applied is not in the source's log: the whole state.
    (at((3, 12), (3, 9)), Feed(0, True)),
    (at((1, 2), (1, 2)), Feed(0, True)),
    (at((0, 0), (0, 0)), Feed(0, True)),
])
def test_how_a_replica_is_brought_up_to_date(position, feed):
    """The source's log: dropped up to 3, entry 4 of epoch 1, entries 5..10 of epoch 2."""
    epochs = {3: 1, 4: 1, **dict.fromkeys(range(5, 11), 2)}
    assert plan_feed(position, epochs.get) == feed


@pytest.mark.requirement("J9")
@pytest.mark.parametrize(("me", "previous", "willing", "view"), [
    ("n1", [], ["n3", "n2"], ["n1", "n2", "n3"]),
    ("n2", ["n1", "n2", "n3"], ["n3"], ["n2", "n3"]),
    # The old master's return: it joins at the end.
    ("n2", ["n2", "n3"], ["n1", "n3"], ["n2", "n3", "n1"]),
    ("n3", ["n2", "n3", "n1"], ["n1", "n2"], ["n3", "n2", "n1"]),
    ("n3", ["n3"], [], ["n3"]),
])
def test_order_of_a_new_view(me, previous, willing, view):
    assert new_view(me, previous, willing, ORDER) == view


@pytest.mark.requirement("J9")
@pytest.mark.parametrize(("alive", "view", "ranked"), [
    ({"n1": True, "n2": True, "n3": True}, ["n1", "n2", "n3"], ["n1", "n2", "n3"]),
    ({"n2": True, "n3": True}, ["n1", "n2", "n3"], ["n2", "n3"]),
    ({"n1": True, "n2": True, "n3": True}, ["n3", "n2", "n1"], ["n3", "n2", "n1"]),
    ({"n1": True, "n2": True, "n3": True}, ["n3"], ["n3", "n1", "n2"]),
    ({"n1": False, "n2": False}, [], ["n1", "n2"]),
    # A replica whose disk is empty must not become master of a group that has data.
    ({"n1": False, "n2": True, "n3": True}, ["n1", "n2", "n3"], ["n2", "n3"]),
])
def test_who_may_become_master(alive, view, ranked):
    assert candidates([Candidate(name, has_log) for name, has_log in alive.items()], view, ORDER) == ranked


@pytest.mark.requirement("J14")
@pytest.mark.parametrize(("alive", "expected", "again", "primary", "has_log", "started", "may"), [
    (2, 3, 3, True, False, False, False),
    (3, 3, 0, True, False, False, True),
    (2, 2, 2, True, False, False, True),
    (1, 1, 0, True, False, False, False),
    (2, 3, 0, True, True, False, True),
    (1, 3, 3, True, True, True, False),
    (2, 3, 0, False, False, False, False),
    (2, 3, 3, False, True, False, False),
    (3, 3, 0, False, True, False, True),
    (1, 3, 3, False, True, True, True),
    (1, 1, 0, False, False, False, True),
    (2, 3, 3, True, True, False, False),
    (3, 3, 3, True, True, False, True),
    (2, 3, 3, True, True, True, True),
    (1, 1, 1, True, True, False, False),
])
def test_when_an_election_may_begin(alive, expected, again, primary, has_log, started, may):
    assert may_stand(alive, 3, expected, again, primary, has_log, started) is may


@pytest.mark.requirement("J20")
@pytest.mark.parametrize(("granted", "asked", "primary", "enough"), [
    (2, 3, True, True), (1, 1, True, False), (1, 3, True, False),
    (1, 1, False, True), (2, 2, False, True), (2, 3, False, False),
])
def test_quorum_of_an_election(granted, asked, primary, enough):
    assert has_quorum(granted, asked, 3, primary) is enough


def stance(rank: int, promised: int, leading: int = 0, master: int | None = None) -> LocalState:
    return LocalState(rank, promised, leading, master)


@pytest.mark.requirement("J9")
@pytest.mark.parametrize(("held", "claim", "verdict"), [
    (stance(1, 64), LeaderClaim(0, 64), "follow"),
    (stance(1, 64), LeaderClaim(0, 128), "follow"),
    (stance(1, 128), LeaderClaim(0, 64), "reject"),
    (stance(0, 64, leading=64), LeaderClaim(1, 129), "follow"),
    (stance(1, 129, leading=129), LeaderClaim(0, 64), "reject"),
    (stance(2, 64, master=0), LeaderClaim(1, 129), "follow"),
    (stance(2, 129, master=1), LeaderClaim(0, 64), "reject"),
])
def test_in_a_primary_partition_only_the_epoch_decides(held, claim, verdict):
    assert judge_claim(held, claim, primary=True) == verdict


@pytest.mark.requirement("J20")
@pytest.mark.requirement("J9")
@pytest.mark.parametrize(("held", "claim", "verdict"), [
    # Nobody is master here: take any that is not outdated.
    (stance(1, 64), LeaderClaim(0, 64), "follow"),
    (stance(1, 129), LeaderClaim(0, 64), "reject"),
    # Two masters meet: the first in the order opens a newer epoch, the other then follows.
    (stance(0, 64, leading=64), LeaderClaim(1, 129), "raise"),
    (stance(0, 192, leading=192), LeaderClaim(1, 129), "ignore"),
    (stance(1, 129, leading=129), LeaderClaim(0, 64), "ignore"),
    (stance(1, 129, leading=129), LeaderClaim(0, 192), "follow"),
    # Slaves stay with the master that will win.
    (stance(2, 64, master=0), LeaderClaim(1, 129), "ignore"),
    (stance(2, 129, master=1), LeaderClaim(0, 192), "follow"),
    (stance(2, 129, master=1), LeaderClaim(0, 64), "reject"),
    (stance(2, 64, master=0), LeaderClaim(0, 192), "follow"),
])
def test_meeting_sides_follow_the_master_that_comes_first(held, claim, verdict):
    assert judge_claim(held, claim, primary=False) == verdict


def voter(**changes: object) -> Voter:
    return Voter(**{"promised": 100, "has_log": True, "whole": True, "leading": False, "master_alive": False,
                    "resting": False, **changes})  # type: ignore[arg-type]


@pytest.mark.requirement("J9")
@pytest.mark.parametrize(("held", "epoch", "first_start", "primary", "supported"), [
    (voter(), 128, False, True, True),
    (voter(), 101, False, True, True),
    # It may have been promised to another one that takes itself for the node of that rank.
    (voter(), 100, False, True, False),
    (voter(), 99, False, True, False),
    (voter(leading=True), 128, False, True, False),
    (voter(master_alive=True), 128, False, True, False),
    (voter(resting=True), 128, False, True, False),
    (voter(resting=True), 128, False, False, True),
    (voter(has_log=False, promised=0), 128, False, True, False),
    (voter(has_log=False, promised=0, resting=True), 128, True, True, True),
    (voter(has_log=False, promised=0), 128, False, False, True),
    (voter(whole=False), 128, False, True, False),
    (voter(whole=False), 128, True, True, False),
    (voter(whole=False), 128, False, False, True),
    (voter(master_alive=True), 128, False, False, False),
])
def test_whom_a_voter_supports(held, epoch, first_start, primary, supported):
    assert (refusal(held, epoch, first_start, primary) is None) is supported


@pytest.mark.parametrize(("stamps", "replicas", "newest"), [
    ({}, 1, 50.0), ({}, 3, float("-inf")), ({"n2": 40.0}, 3, 40.0), ({"n2": 40.0, "n3": 45.0}, 3, 45.0),
    ({"n2": 40.0, "n3": 45.0, "n4": 10.0}, 5, 40.0),
])
def test_when_a_majority_last_heard_the_master(stamps, replicas, newest):
    assert kth_newest(stamps, 50.0, replicas) == newest


@pytest.mark.parametrize("seed", range(20))
def test_a_lease_holds_as_long_as_a_majority_of_the_group_of_today_has_heard_the_master(seed):
    rng, lease, now = random.Random(seed), Lease(), 0.0
    group, echoes = ORDER[:3], {}
    for _ in range(300):
        now += rng.random()
        if rng.random() < 0.5:
            peer, echo = rng.choice(ORDER[1:]), now - rng.random() * 3
            assert lease.heard(peer, echo) is (echo > echoes.get(peer, float("-inf")))
            echoes[peer] = max(echo, echoes.get(peer, echo))
        if rng.random() < 0.1:
            group = ORDER[: rng.randint(1, 5)]
        floor = rng.choice([float("-inf"), now - 1.5])
        heard = kth_newest({name: sent for name, sent in echoes.items() if name in group}, now, len(group))
        assert lease.holds(1.0, now, group, floor) is (max(floor, heard) + 1.0 >= now)


def test_majorities_always_meet():
    for total in range(1, MAX_MEMBERS + 1):
        assert 2 * majority(total) > total
        assert 2 * (majority(total) - 1) <= total
