"""The table of transitions, which repository is newer, the gateway's grants; and the pair explored exhaustively."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pair_model import Model, Pair, Rules, Same, Violation, without_faults

from nodes.reference.designs.fiorano.gateway.grants import ALONE, ANY, MARGIN, Grants, LockRecord, Take
from nodes.reference.designs.fiorano.repository import COUNTER, WALL_CLOCK, RepositoryStamp, is_newer
from nodes.reference.designs.fiorano.states import (
    ACTIVATING,
    ACTIVE,
    ACTIVE_TRANSITION,
    DEAD,
    PASSIVE,
    PASSIVE_TRANSITION,
    REPLICATED_STATES,
    SERVING,
    SHARED_STATES,
    STANDALONE,
    WAITING,
)
from nodes.reference.designs.fiorano.transitions import (
    MET,
    NEWER,
    REACHABLE,
    REPLICATED,
    SHARED,
    START_ALONE,
    SYNCED,
    WHOLE,
    View,
    next_step,
    wants_lock,
)
from nodes.systems.reference.fiorano.diagram import with_transitions


def to(view: View) -> str:
    line = next_step(REPLICATED, view)
    return line.to if line is not None else view.state


def of(*facts: str) -> frozenset[str]:
    return frozenset(facts)


@pytest.mark.requirement("F4", part=True)
def test_each_line_is_of_the_documents_states_and_can_hold() -> None:
    """No line is hidden by those before it, and the document's sentences are told apart from ours."""
    for table, states in ((REPLICATED, REPLICATED_STATES), (SHARED, SHARED_STATES)):
        for number, line in enumerate(table):
            assert {line.state, line.to, *line.peer, *line.peer_before} <= set(states)
            facts = frozenset(line.facts) | (frozenset() if line.unless else {REACHABLE})
            peer, before = (line.peer or (DEAD,))[0], (line.peer_before or (DEAD,))[0]
            view = View(line.state, line.channel is not False, peer, before, line.lock is not False, facts)
            assert next_step(table, view) is line, f"line {number} never holds"
        assert {line.to for line in table} | {DEAD} == set(states)


@pytest.mark.requirement("F3", part=True)
def test_who_may_become_active_and_who_may_stay() -> None:
    """The lock decides who becomes active or standalone; ACTIVE stays without it while the channel is whole."""
    for facts in (of(), of(WHOLE), of(WHOLE, NEWER), of(WHOLE, MET, START_ALONE)):
        for state in (WAITING, PASSIVE, PASSIVE_TRANSITION):
            for channel, peer in ((False, DEAD), (True, WAITING), (True, STANDALONE), (True, ACTIVE)):
                assert to(View(state, channel, peer, WAITING, False, facts)) not in SERVING
    assert to(View(ACTIVE, True, PASSIVE, PASSIVE_TRANSITION, False)) == ACTIVE
    assert to(View(ACTIVE, False)) == WAITING
    assert to(View(ACTIVE, False, lock=True)) == STANDALONE
    assert to(View(STANDALONE, False)) == WAITING
    assert to(View(STANDALONE, True, PASSIVE, ACTIVE)) == WAITING
    assert to(View(PASSIVE, False, lock=True)) == STANDALONE


@pytest.mark.requirement("F3", part=True)
def test_who_seeks_the_lock() -> None:
    assert wants_lock(REPLICATED, View(PASSIVE, False))
    assert not wants_lock(REPLICATED, View(PASSIVE, True, ACTIVE, ACTIVE_TRANSITION)), "before the channel is refused"
    assert wants_lock(REPLICATED, View(ACTIVE, True, PASSIVE, PASSIVE_TRANSITION))
    assert wants_lock(REPLICATED, View(STANDALONE, False))
    assert wants_lock(REPLICATED, View(WAITING, True, WAITING, DEAD, facts=of(WHOLE, NEWER)))
    assert not wants_lock(REPLICATED, View(WAITING, True, WAITING, DEAD, facts=of(WHOLE)))
    assert not wants_lock(REPLICATED, View(WAITING, True, STANDALONE, ACTIVE, facts=of(WHOLE, NEWER)))
    assert not wants_lock(REPLICATED, View(PASSIVE_TRANSITION, False, facts=of(MET)))
    assert not wants_lock(REPLICATED, View(WAITING, False, facts=of(MET))), "its repository is incomplete"


@pytest.mark.requirement("F14", part=True)
def test_a_server_that_starts_alone_waits() -> None:
    assert not wants_lock(REPLICATED, View(WAITING, False, facts=of(WHOLE)))
    assert to(View(WAITING, False, lock=True, facts=of(WHOLE))) == WAITING
    assert to(View(WAITING, False, lock=True, facts=of(WHOLE, START_ALONE))) == STANDALONE
    shared = View(PASSIVE, False, lock=True, facts=of(REACHABLE))
    line = next_step(SHARED, shared)
    assert line is not None and line.to == ACTIVATING, "a shared one takes the lock and serves"


@pytest.mark.requirement("F4", part=True)
def test_transitions_that_are_broken_off() -> None:
    assert to(View(PASSIVE_TRANSITION, False, lock=True)) == WAITING
    assert to(View(PASSIVE_TRANSITION, True, WAITING, ACTIVE_TRANSITION)) == WAITING
    assert to(View(ACTIVE_TRANSITION, True, PASSIVE_TRANSITION, WAITING)) == WAITING
    assert to(View(ACTIVE_TRANSITION, False, lock=True)) == STANDALONE
    assert to(View(ACTIVE_TRANSITION, True, PASSIVE, PASSIVE_TRANSITION, True, of(SYNCED))) == ACTIVE
    assert to(View(ACTIVE_TRANSITION, True, PASSIVE, PASSIVE_TRANSITION, False, of(SYNCED))) == WAITING


@pytest.mark.requirement("F4", part=True)
def test_the_page_has_the_table_and_the_diagram() -> None:
    """`make docs` makes them again."""
    page = (Path(__file__).parents[2] / "docs" / "designs" / "fiorano.md").read_text(encoding="utf-8")
    assert with_transitions(page) == page
    assert page.count("*ours*:") == sum(line.ours for table in (REPLICATED, SHARED) for line in table)
    with pytest.raises(ValueError, match="no place"):
        with_transitions("a page")


# Repositories.

STAMPS = st.builds(RepositoryStamp, st.booleans(), st.integers(0, 3), st.integers(0, 3),
                   st.sampled_from([0.0, 1.0, 2.0]))  # fmt: skip


@pytest.mark.requirement("F5", part=True)
@given(STAMPS, STAMPS, st.booleans(), st.sampled_from([COUNTER, WALL_CLOCK]))
def test_at_most_one_of_two_repositories_is_the_newer(mine: RepositoryStamp, other: RepositoryStamp, primary: bool,
                                                      stamps: str) -> None:  # fmt: skip
    """And exactly one where both are whole, so that somebody serves."""
    newer = [is_newer(mine, other, primary, stamps), is_newer(other, mine, not primary, stamps)]
    assert sum(newer) <= 1
    assert sum(newer) == 1 or not (mine.whole and other.whole)
    assert not newer[0] or mine.whole


@pytest.mark.requirement("F12", part=True)
def test_an_empty_repository_never_wins() -> None:
    empty, old = RepositoryStamp(), RepositoryStamp(epoch=3, counter=1)
    assert not is_newer(empty, old, primary=True)
    assert is_newer(old, empty, primary=False)
    half = RepositoryStamp(whole=False, epoch=3)
    assert not is_newer(empty, half, primary=True), "nobody knows what that would have become"
    assert is_newer(old, half, primary=False)


@pytest.mark.requirement("F5", part=True)
def test_the_wall_clock_tells_otherwise() -> None:
    """A server whose clock is ahead has the newer repository, whatever was confirmed since."""
    ahead = RepositoryStamp(epoch=1, counter=5, changed=200.0)
    behind = RepositoryStamp(epoch=2, counter=9, changed=100.0)
    assert is_newer(behind, ahead, primary=False)
    assert is_newer(ahead, behind, primary=False, stamps=WALL_CLOCK)


# The gateway's grants.


@pytest.mark.requirement("F3", part=True)
def test_a_lease_ends_later_at_the_gateway_than_at_its_holder() -> None:
    grants = Grants(LockRecord(4, "n1"), 2.0, 0.0)
    assert grants.is_taken("n2", 2.0 * MARGIN - 0.01), "whoever held it when the gateway went away may still do"
    assert not grants.is_taken("n1", 0.0) and not grants.is_taken("n2", 2.0 * MARGIN)
    assert grants.renew("n1", 4, 1.0) and not grants.renew("n1", 3, 1.0) and not grants.renew("n2", 4, 1.0)
    assert grants.is_taken("n2", 3.4) and not grants.is_taken("n2", 3.5)
    grants.release("n2", 4, 3.0)
    assert grants.is_taken("n2", 3.0), "only its holder lets it go"
    grants.release("n1", 4, 3.0)
    assert not grants.is_taken("n2", 3.0)


@pytest.mark.requirement("F3", part=True)
def test_the_lock_is_for_whoever_was_up_to_date_when_it_was_last_granted() -> None:
    grants = Grants(LockRecord(4, "n1"), 1.0, 0.0)
    assert grants.fits("n2", Take(4, 4, ALONE, 5))
    assert not grants.fits("n2", Take(3, 3, ALONE, 5)), "n1 may have served alone in epoch 4"
    assert not grants.fits("n2", Take(3, 9, ALONE, 10)), "what n2 asked for does not matter: n1 has it"
    assert grants.fits("n1", Take(3, 4, ALONE, 5)), "a grant whose answer was lost"
    assert grants.fits("n2", Take(3, 3, 4, 5)), "n1 has said that it knows nothing of epoch 4"
    assert not grants.fits("n2", Take(4, 4, ALONE, 4)), "no epoch twice"
    assert grants.fits("n1", Take(3, 3, ALONE, 4)), "but for the one whose answer was lost"
    assert grants.fits("n2", Take(ANY, 0, ALONE, 5)), "as with a plain lock"


@pytest.mark.requirement("F3", part=True)
def test_a_lock_file_that_was_lost_is_begun_anew_by_both_together() -> None:
    grants = Grants(LockRecord(), 1.0, 0.0)
    assert not grants.fits("n1", Take(4, 4, ALONE, 5)), "the other server may have served since epoch 4"
    assert grants.fits("n1", Take(4, 4, 0, 5))
    held = Grants(LockRecord(4, "n1"), 1.0, 0.0)
    held.lose(5.0)
    assert held.record == (4, "") and held.is_taken("n1", 6.0) and not held.is_taken("n1", 6.3)
    assert not held.renew("n1", 4, 7.0)


# The pair, explored.


def explored(rules: Rules, *left: int) -> dict[Pair, tuple[str, Pair] | None]:
    """Every state of the pair that can be reached with so many faults (``pair_model.Pair.left``), and from where.

    Raises:
        Violation: a guarantee is broken; the text tells the way there.
    """
    model, same = Model(rules), Same()
    start = same.pair(Pair(left=left))
    found: dict[Pair, tuple[str, Pair] | None] = {start: None}
    waiting = deque([start])
    while waiting:
        pair = waiting.popleft()
        try:
            model.check(pair)
            for label, following in model.steps(pair):
                following = same.pair(following)
                if following not in found:
                    found[following] = (sys.intern(label), pair)
                    waiting.append(following)
        except Violation as violation:
            raise Violation(f"{violation}: {'; '.join(way(found, pair))}") from None
    return found


def way(found: dict[Pair, tuple[str, Pair] | None], pair: Pair) -> list[str]:
    labels = []
    while (step := found[pair]) is not None:
        label, pair = step
        labels.append(label)
    return labels[::-1]


def demand_recovery(rules: Rules, pairs: Iterable[Pair]) -> None:
    """From each of these, what happens without faults ends with one ACTIVE and one PASSIVE server."""
    model, same = Model(rules), Same()
    good: dict[Pair, list[Pair]] = {}
    waiting = list({same.pair(without_faults(pair)) for pair in pairs})
    while waiting:
        pair = waiting.pop()
        if pair not in good:
            good[pair] = [same.pair(following) for _, following in model.good_steps(pair)]
            waiting += good[pair]
    healthy = {pair for pair in good if sorted(side.state for side in pair.sides) == [ACTIVE, PASSIVE]}
    before: dict[Pair, list[Pair]] = {}
    for pair, others in good.items():
        for other in others:
            before.setdefault(other, []).append(pair)
    waiting = list(healthy)
    reaches = set(healthy)
    while waiting:
        for pair in before.get(waiting.pop(), ()):
            if pair not in reaches:
                reaches.add(pair)
                waiting.append(pair)
    stuck = [pair for pair in good if pair not in reaches]
    assert healthy and not stuck, f"{len(stuck)} of {len(good)} never recover, such as {stuck[:1]}"


@pytest.mark.requirement("F3", part=True)
@pytest.mark.requirement("F4", part=True)
@pytest.mark.parametrize("left", [(1, 0, 0, 0, 0), (0, 1, 0, 0, 0), (0, 0, 1, 0, 0)])
def test_one_fault_leaves_one_server_with_everything(left: tuple[int, ...]) -> None:
    """A break of the channel, a death, a lease that ends; and the pair recovers from wherever that leaves it."""
    found = explored(Rules(), *left)
    assert {ACTIVE, PASSIVE, WAITING} < {side.state for pair in found for side in pair.sides}
    demand_recovery(Rules(), found)


@pytest.mark.requirement("F3", part=True)
def test_without_the_lock_both_become_standalone() -> None:
    with pytest.raises(Violation, match=r"two serve at once.*breaks"):
        explored(Rules(lock=False), 1, 0, 0, 0, 0)


@pytest.mark.requirement("F3", part=True)
def test_without_fencing_a_server_takes_the_lock_without_what_was_confirmed() -> None:
    with pytest.raises(Violation, match=r"breaks.*confirms alone"):
        explored(Rules(fencing=False), 1, 1, 0, 0, 0)


@pytest.mark.soak
@pytest.mark.requirement("F3", part=True)
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("left", [(1, 0, 1, 0, 0), (1, 1, 1, 0, 0), (2, 1, 0, 0, 1), (1, 0, 2, 1, 0), (0, 2, 1, 1, 0)])
def test_more_faults_at_once(left: tuple[int, ...]) -> None:
    found = explored(Rules(), *left)
    demand_recovery(Rules(), found)


@pytest.mark.requirement("F14", part=True)
def test_a_server_that_is_told_to_start_alone_lacks_nothing() -> None:
    """The lock's epoch tells whether its peer has served meanwhile."""
    found = explored(Rules(start_alone=True), 1, 0, 0, 0, 0)
    assert any(side.state == STANDALONE and side.before == WAITING for pair in found for side in pair.sides)
