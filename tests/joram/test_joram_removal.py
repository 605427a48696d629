"""A replica is removed from the group and taken in again; growth where each side of a partition has a master."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from joram_group import Group, simulate

from nodes.reference.api import ConfigError
from nodes.reference.designs.joram.log import Member, check_members, encode_group, encoded_members, members_of
from nodes.reference.engine.row_schema import ShapeError

pytestmark = [pytest.mark.requirement("J18"), pytest.mark.requirement("H5")]


async def removed(group: Group, name: str) -> None:
    master: Any
    (master,) = group.serving()
    await master.design.administer({"op": "remove-replica", "name": name})
    replica = master.design.replica
    await group.until(lambda: name not in replica.order and replica.committed >= replica.log.group_index, "it is gone")


async def refused(group: Group, name: str) -> str:
    master: Any
    (master,) = group.serving()
    with pytest.raises(ConfigError) as told:
        await master.design.administer({"op": "remove-replica", "name": name})
    return str(told.value)


def role(group: Group, name: str) -> str:
    return str(group.nodes[name].design.status()["role"])


def test_majorities_are_those_of_the_others_and_who_was_removed_gets_its_place_again() -> None:
    async def scenario(group: Group) -> None:
        master, second, third, fourth = group.view()
        await removed(group, fourth)
        await group.until(lambda: role(group, fourth) == "apart", "it knows")
        group.crash(third)
        await group.until(lambda: group.view() == [master, second], "two of three are a majority, two of four are none")
        group.nodes[master].send("confirmed by two")
        await group.until(lambda: "confirmed by two" in group.stored, "they serve")
        rank = group.nodes[second].design.replica.ranks[fourth]
        group.add(fourth)
        await group.until(lambda: fourth in group.view(), "it is back")
        assert group.nodes[second].design.replica.ranks[fourth] == rank
        await group.start(third)
        await group.until(group.settled, "all are")

    simulate(scenario, Group(5, 4))


def test_who_was_removed_counts_for_nothing_and_leads_nobody() -> None:
    async def scenario(group: Group) -> None:
        first, second, third, fourth = group.view()
        await removed(group, fourth)
        await group.until(lambda: role(group, fourth) == "apart", "it knows")
        group.crash(first)
        group.crash(second)
        await asyncio.sleep(20)
        assert group.serving() == []
        await group.start(second)
        await group.until(lambda: sorted(group.view()) == sorted([second, third]), "two of three serve")

    simulate(scenario, Group(6, 4))


def test_one_that_was_away_while_it_was_removed_does_no_harm_when_it_comes_back() -> None:
    async def scenario(group: Group) -> None:
        fourth = group.view()[-1]
        group.crash(fourth)
        await group.until(lambda: fourth not in group.view(), "it is missed")
        await removed(group, fourth)
        view = group.view()
        await group.start(fourth)
        await group.until(lambda: role(group, fourth) == "apart", "it is told")
        assert group.view() == view

    simulate(scenario, Group(7, 4))


def test_a_removal_that_can_not_be_is_refused_with_the_reason() -> None:
    async def scenario(group: Group) -> None:
        first, second, third, fourth = group.view()
        assert await refused(group, "n9") == "n9 is not a replica of this group (n1, n2, n3, n4)"
        assert f"{first} is the master: stop it, and ask its successor" == await refused(group, first)
        with pytest.raises(ConfigError, match=r"not master .*; ask the master to remove"):
            await group.nodes[second].design.administer({"op": "remove-replica", "name": third})
        with pytest.raises(ConfigError, match="a request is"):
            await group.nodes[first].design.administer({"op": "remove-replica"})
        group.crash(fourth)
        await group.until(lambda: fourth not in group.view(), "it is missed")
        await removed(group, third)
        assert "without" in await refused(group, second)
        await group.start(fourth)
        await group.until(lambda: fourth in group.view(), "it is back")
        await removed(group, fourth)
        assert await refused(group, second) == "a group has at least 2 replicas"

    simulate(scenario, Group(8, 4))


def test_nobody_is_removed_where_a_side_may_go_on_alone() -> None:
    async def scenario(group: Group) -> None:
        assert "only a group with partitions=primary-partition gives up a replica" in await refused(group, "n3")

    simulate(scenario, Group(9, 3, partitions="unspecified"))


def test_where_a_side_may_go_on_alone_growth_waits_until_all_know_the_place() -> None:
    async def scenario(group: Group) -> None:
        (master,) = group.serving()
        await group.start("n4")
        group.crash("n3")
        await group.until(lambda: "n3" not in group.view(), "one is away")
        group.add("n4")
        await asyncio.sleep(10)
        assert master.design.replica.places == master.design.replica.group
        assert "n4" not in master.design.status()["replicas"]
        await group.start("n3")
        await group.until(group.settled, "it is taken in when all are there")
        changes = [line for line in group.log("n1").splitlines() if "group changed" in line]
        assert len(changes) == 2, "its place first, then its part in the group"

    simulate(scenario, Group(10, 3, {"n4": ["n1", "n2", "n3", "n4"]}, partitions="unspecified"))


def test_a_list_of_places_is_written_and_read() -> None:
    places = [Member("n1", "h", 1, "c:1"), Member("n2", "h", 2, "c:2", apart=True)]
    assert encoded_members(places) == [["n1", "h", 1, "c:1"], ["n2", "h", 2, "c:2", True]]
    assert members_of(encoded_members(places)) == places
    assert encode_group(places)
    check_members(encoded_members(places))


@pytest.mark.parametrize("fifth", [[False], [1], ["x"], [True, True]])
def test_a_malformed_place_is_told(fifth: list[Any]) -> None:
    with pytest.raises(ShapeError):
        check_members([["n1", "h", 1, "c:1", *fifth]])
