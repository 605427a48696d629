"""Positions: where two copies of a queue part, and what a narrow sequence tells."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from nodes.reference.designs.qpid.positions import agreement, from_wire, ranges, to_wire, until

lives = st.lists(st.integers(1, 4), min_size=0, max_size=6)
"""How many messages each of several primaries numbered."""


def numbered(lengths: list[int], first_generation: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Generations, and for each position (generation, position) of who numbered it."""
    generations, owners, position = [], [], 0
    for place, length in enumerate(lengths):
        generations.append((first_generation + place, position + 1))
        owners += [(first_generation + place, position + each + 1) for each in range(length)]
        position += length
    return generations, owners


@given(lives, lives, lives)
def test_agreement_is_where_the_owners_part(common: list[int], ours: list[int], theirs: list[int]) -> None:
    """Both have a history in common, then different primaries: the same as comparing who numbered each position."""
    shared, owners = numbered(common, 1)

    def continued(lengths: list[int], generation: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        more, more_owners = numbered(lengths, generation)
        return ([*shared, *((number, first + len(owners)) for number, first in more)],
                [*owners, *((number, place + len(owners)) for number, place in more_owners)])

    mine, my_owners = continued(ours, 100)
    other, other_owners = continued(theirs, 200)
    same = 0
    while same < min(len(my_owners), len(other_owners)) and my_owners[same] == other_owners[same]:
        same += 1
    assert agreement(mine, len(my_owners), other, len(other_owners)) == same
    assert agreement(other, len(other_owners), mine, len(my_owners)) == same
    assert until(mine, same) == until(other, same)


@given(st.integers(0, 5_000), st.integers(3, 12), st.integers(-4_000, 4_000))
def test_an_epoch_makes_a_position_certain(position: int, bits: int, distance: int) -> None:
    """With the epoch every position comes back; without, those that are less than half the width away."""
    assert from_wire(to_wire(position, bits, True), bits, True, max(0, position + distance)) == position
    found = from_wire(to_wire(position, bits, False), bits, False, position + distance)
    assert (found == position) == (-(1 << bits) // 2 <= -distance < (1 << bits) // 2)


@given(st.sets(st.integers(1, 60)))
def test_ranges_hold_what_they_were_made_of(positions: set[int]) -> None:
    pieces = ranges(sorted(positions))
    assert {each for first, count in pieces for each in range(first, first + count)} == positions
    assert all(before[0] + before[1] < after[0] for before, after in pairwise(pieces))
