"""Groups of three replicas in one process, over real sockets that the tests can cut."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from joram_cluster import Client, Closed, Cluster, fails, is_deposed, running, status, until

from nodes.reference.api import ConfigError

PRIMARY, UNSPECIFIED = "primary-partition", "unspecified"


def state(cluster: Cluster, name: str) -> list[Any]:
    return list(cluster.brokers[name].engine.dump())


def assert_equal_states(cluster: Cluster) -> None:
    states = [state(cluster, name) for name in cluster.brokers]
    assert all(other == states[0] for other in states)


async def publish_all(client: Client, prefix: str, count: int) -> list[str]:
    bodies = [f"{prefix}{number}" for number in range(count)]
    for body in bodies:
        await client.publish(body)
    return bodies


async def several_timeouts(cluster: Cluster) -> None:
    await asyncio.sleep(3 * float(cluster.options["detection_timeout"]))


@pytest.mark.requirement("J14")
@pytest.mark.parametrize("partitions", [PRIMARY, UNSPECIFIED])
async def test_nothing_serves_before_the_expected_number_has_joined(tmp_path: Path, partitions: str):
    async with running(tmp_path, "n1", "n2", partitions=partitions) as cluster:
        await several_timeouts(cluster)
        for name in ("n1", "n2"):
            assert cluster.status(name)["role"] == "starting"
            assert await fails(cluster.client(name)) == "not master"
        await cluster.start("n3")
        await cluster.settled()


@pytest.mark.requirement("J14")
async def test_a_smaller_expected_number_starts_a_smaller_view_and_the_others_join_later(tmp_path: Path):
    async with running(tmp_path, "n2", "n3", nb_cluster_expected=2) as cluster:
        view = await cluster.settled("n2", "n3")
        await cluster.start("n1")
        assert await cluster.settled() == [*view, "n1"]


@pytest.mark.requirement("J11")
@pytest.mark.requirement("J17")
@pytest.mark.requirement("J1")
async def test_slaves_refuse_clients_and_name_the_master_but_admit_administrators(tmp_path: Path):
    async with running(tmp_path) as cluster:
        master, slave, _ = view = await cluster.settled()
        client = await cluster.client(master)
        replicas = client.connected.headers["x-replicas"]
        assert replicas == ",".join(f"127.0.0.1:{cluster.ports[name]}" for name in cluster.names)
        with pytest.raises(Closed) as refused:
            await cluster.client(slave)
        assert refused.value.args[0] == "not master"
        assert refused.value.args[1]["x-master"] == f"127.0.0.1:{cluster.ports[master]}"
        answer = await status(cluster.ports[slave])
        assert (answer["role"], answer["serving"], answer["view"]) == ("slave", False, view)
        assert (await status(cluster.ports[master]))["role"] == "master"


@pytest.mark.requirement("J6")
async def test_all_replicas_hold_the_same_state(tmp_path: Path):
    async with running(tmp_path) as cluster:
        master, *_ = await cluster.settled()
        client = await cluster.client(master)
        await publish_all(client, "m", 30)
        await client.subscribe()
        for _ in range(10):
            await client.ack(await client.message())
        await cluster.settled()
        assert_equal_states(cluster)
        assert cluster.depth("n3") == 20


@pytest.mark.requirement("J9")
@pytest.mark.requirement("J20")
async def test_cut_off_master_confirms_nothing_steps_down_and_returns_at_the_end_of_the_view(tmp_path: Path):
    async with running(tmp_path) as cluster:
        master, *others = await cluster.settled()
        client = await cluster.client(master)
        confirmed = await publish_all(client, "before", 20)
        cluster.cut([master], others)
        assert await is_deposed(client.publish("never confirmed"))
        assert cluster.status(master)["serving"] is False
        view = await cluster.settled(*others)
        assert await fails(cluster.client(master)) == "not master"
        await until(lambda: cluster.status(master)["role"] == "minority", "the old master is a minority")
        client = await cluster.client(view[0])
        confirmed += await publish_all(client, "after", 20)
        cluster.heal()
        assert await cluster.settled() == [*view, master]
        assert_equal_states(cluster)
        delivered = await client.drain()
        assert [body for body in delivered if body != "never confirmed"] == confirmed


@pytest.mark.requirement("J9")
async def test_a_reader_of_the_logs_sees_what_happened(tmp_path: Path):
    async with running(tmp_path) as cluster:
        master, *others = await cluster.settled()
        cluster.cut([master], others)
        second, third = await cluster.settled(*others)
        await until(lambda: not cluster.status(master)["serving"], "the old master stepped down")
        cluster.heal()
        await cluster.settled()
        logs = {name: cluster.log_text(name) for name in cluster.names}
        epoch = cluster.status(second)["epoch"]
        assert "view installed epoch=" in logs[master]
        assert "promoted: serving as master" in logs[master] and "promoted: serving as master" in logs[second]
        assert "stepped down" in logs[master] and "no majority" in logs[master]
        assert f"suspected members={master}" in logs[second]
        for name in (master, third):
            assert f"following master={second} epoch={epoch}" in logs[name]


@pytest.mark.requirement("J9")
async def test_a_member_that_is_cut_off_does_not_depose_the_master(tmp_path: Path):
    async with running(tmp_path) as cluster:
        master, second, third = await cluster.settled()
        epoch = cluster.status(master)["epoch"]
        cluster.cut([master, second], [third])
        await cluster.settled(master, second)
        await several_timeouts(cluster)
        await until(lambda: cluster.status(third)["role"] == "minority", "who is cut off is a minority")
        cluster.heal()
        assert await cluster.settled() == [master, second, third]
        assert [cluster.status(name)["epoch"] for name in cluster.names] == [epoch] * 3


@pytest.mark.requirement("J20")
@pytest.mark.requirement("J9")
async def test_unspecified_both_sides_confirm_and_the_merge_loses_what_one_side_confirmed(tmp_path: Path):
    async with running(tmp_path, partitions=UNSPECIFIED) as cluster:
        master, *others = await cluster.settled()
        clients = {master: await cluster.client(master)}
        await clients[master].publish("common")
        cluster.cut([master], others)
        view = await cluster.settled(*others)
        await cluster.settled(master)
        clients[view[0]] = await cluster.client(view[0])
        confirmed = {name: await publish_all(client, name, 10) for name, client in clients.items()}
        assert sorted(cluster.masters()) == sorted(clients)
        cluster.heal()
        winner, loser = sorted(clients)
        assert (await cluster.settled())[0] == winner
        assert cluster.masters() == [winner]
        assert await is_deposed(clients[loser].publish("late"))
        assert_equal_states(cluster)
        delivered = await clients[winner].drain()
        assert delivered == ["common", *confirmed[winner]]
        assert not set(delivered) & set(confirmed[loser])
        assert "state transfer end" in cluster.log_text(loser)


@pytest.mark.requirement("J20")
async def test_unspecified_a_message_acknowledged_on_the_losing_side_comes_back(tmp_path: Path):
    async with running(tmp_path, partitions=UNSPECIFIED) as cluster:
        master, *others = await cluster.settled()
        client = await cluster.client(master)
        await client.publish("twice")
        cluster.cut([master], others)
        other, _ = await cluster.settled(*others)
        await cluster.settled(master)
        winner, loser = sorted([master, other])
        assert await (await cluster.client(loser)).drain() == ["twice"]
        cluster.heal()
        await cluster.settled()
        assert await (await cluster.client(winner)).drain() == ["twice"]


@pytest.mark.requirement("J20")
async def test_unspecified_three_lonely_masters_merge_into_one_group(tmp_path: Path):
    async with running(tmp_path, partitions=UNSPECIFIED) as cluster:
        await cluster.settled()
        cluster.cut(["n1"], ["n2"], ["n3"])
        for name in cluster.names:
            await cluster.settled(name)
            await (await cluster.client(name)).publish(f"of {name}")
        cluster.heal()
        assert (await cluster.settled())[0] == "n1"
        assert_equal_states(cluster)
        assert await (await cluster.client("n1")).drain() == ["of n1"]


@pytest.mark.requirement("J9")
@pytest.mark.parametrize(("partitions", "stalest"), [(PRIMARY, 0), (UNSPECIFIED, 2)])
async def test_after_a_full_restart_the_most_complete_log_wins(tmp_path: Path, stalest: int, partitions: str):
    async with running(tmp_path, partitions=partitions) as cluster:
        view = await cluster.settled()
        confirmed = await publish_all(await cluster.client(view[0]), "early", 10)
        late = view.pop(stalest)
        await cluster.stop(late)
        view = await cluster.settled(*view)
        confirmed += await publish_all(await cluster.client(view[0]), "late", 10)
        for name in view:
            await cluster.stop(name)
        await cluster.start(late)
        await several_timeouts(cluster)
        assert not cluster.masters()
        await cluster.start(*view)
        master, *_ = await cluster.settled()
        assert await (await cluster.client(master)).drain() == confirmed


@pytest.mark.requirement("J9")
async def test_a_majority_of_a_primary_partition_serves_again_without_the_third(tmp_path: Path):
    async with running(tmp_path) as cluster:
        master, *_ = await cluster.settled()
        confirmed = await publish_all(await cluster.client(master), "m", 10)
        for name in cluster.names:
            await cluster.stop(name)
        await cluster.start("n2", "n3")
        master, _ = await cluster.settled("n2", "n3")
        assert await (await cluster.client(master)).drain() == confirmed


@pytest.mark.requirement("J14")
async def test_a_number_that_is_given_is_waited_for_at_a_full_restart_and_not_when_the_group_runs(tmp_path: Path):
    async with running(tmp_path, nb_cluster_expected=3) as cluster:
        await cluster.settled()
        for name in cluster.names:
            await cluster.stop(name)
        await cluster.start("n2", "n3")
        await several_timeouts(cluster)
        assert not cluster.masters()
        assert [cluster.status(name)["role"] for name in ("n2", "n3")] == ["starting", "starting"]
        await cluster.start("n1")
        master, *others = await cluster.settled()
        await cluster.stop(others[0])
        await cluster.settled(master, others[1])
        await cluster.start(others[0])
        await cluster.settled()
        await cluster.stop(master)
        await cluster.settled(*others)


@pytest.mark.requirement("J14")
async def test_unspecified_waits_for_all_expected_after_a_total_stop(tmp_path: Path):
    async with running(tmp_path, partitions=UNSPECIFIED) as cluster:
        await cluster.settled()
        for name in cluster.names:
            await cluster.stop(name)
        await cluster.start("n2", "n3")
        await several_timeouts(cluster)
        assert not cluster.masters()
        await cluster.start("n1")
        await cluster.settled()


@pytest.mark.requirement("J9")
async def test_a_replica_that_lost_its_disk_counts_for_nothing_until_it_has_been_fed(tmp_path: Path):
    async with running(tmp_path, nb_cluster_expected=2) as cluster:
        master, *_ = await cluster.settled()
        confirmed = await publish_all(await cluster.client(master), "m", 10)
        for name in cluster.names:
            await cluster.stop(name)
        for file in (tmp_path / "n1").iterdir():
            file.unlink()
        await cluster.start("n1", "n3")
        await several_timeouts(cluster)
        assert not cluster.masters()
        await cluster.start("n2")
        master, *_ = await cluster.settled()
        assert await (await cluster.client(master)).drain() == confirmed


@pytest.mark.requirement("J9")
async def test_a_short_absence_is_made_good_by_the_log_alone(tmp_path: Path):
    async with running(tmp_path) as cluster:
        master, other, absent = await cluster.settled()
        await cluster.stop(absent)
        await cluster.settled(master, other)
        await publish_all(await cluster.client(master), "m", 50)
        await cluster.start(absent)
        await cluster.settled()
        assert_equal_states(cluster)
        assert "state transfer" not in cluster.log_text(absent)


@pytest.mark.requirement("J9")
async def test_a_long_absence_needs_the_state_while_commands_keep_coming(tmp_path: Path):
    async with running(tmp_path, log_keep=20) as cluster:
        master, other, absent = await cluster.settled()
        await cluster.stop(absent)
        await cluster.settled(master, other)
        client = await cluster.client(master)
        confirmed = [f"{number}-" + "x" * 2000 for number in range(300)]
        for body in confirmed:
            await client.publish(body)
        await cluster.start(absent)
        while absent not in cluster.status(master)["view"]:
            confirmed.append(f"meanwhile{len(confirmed)}")
            await client.publish(confirmed[-1])
        await cluster.settled()
        assert "state transfer end" in cluster.log_text(absent)
        assert_equal_states(cluster)
        for name in (master, other):
            await cluster.stop(name)
        await cluster.start(master)
        first, _ = await cluster.settled(master, absent)
        assert await (await cluster.client(first)).drain() == confirmed


@pytest.mark.requirement("J9")
async def test_an_uncommitted_tail_of_an_old_master_is_removed(tmp_path: Path):
    async with running(tmp_path) as cluster:
        master, *others = await cluster.settled()
        client = await cluster.client(master)
        await client.publish("kept")
        await cluster.settled()
        cluster.cut([master], others)
        for number in range(5):
            client.write("SEND", {"destination": "/queue/q", "receipt": f"r{number}"}, b"lost")
        view = await cluster.settled(*others)
        await until(lambda: not cluster.status(master)["serving"], "the old master stepped down")
        assert cluster.status(master)["log_last"] > cluster.status(master)["committed"]
        await publish_all(await cluster.client(view[0]), "new", 10)
        cluster.heal()
        await cluster.settled()
        assert "uncommitted tail removed" in cluster.log_text(master)
        assert_equal_states(cluster)
        assert cluster.depth(master) == 11


@pytest.mark.requirement("J7")
async def test_majority_confirms_without_waiting_for_a_slow_member(tmp_path: Path):
    async with running(tmp_path, ack="majority", detection_timeout=4.0) as cluster:
        master, other, slow = view = await cluster.settled()
        client = await cluster.client(master)
        cluster.cut([master, other], [slow])
        await client.publish("confirmed by two")
        assert cluster.status(master)["view"] == view
        assert cluster.depth(slow) == 0


@pytest.mark.requirement("J7")
@pytest.mark.requirement("J6")
async def test_all_waits_until_the_missing_member_has_left_the_view(tmp_path: Path):
    async with running(tmp_path) as cluster:
        master, other, missing = await cluster.settled()
        client = await cluster.client(master)
        cluster.cut([master, other], [missing])
        await client.publish("confirmed by the new view")
        assert cluster.status(master)["view"] == [master, other]


@pytest.mark.requirement("J9")
async def test_an_orderly_stop_hands_over_without_waiting_for_suspicion(tmp_path: Path):
    async with running(tmp_path, detection_timeout=20.0, heartbeat_interval=0.1) as cluster:
        master, *others = await cluster.settled()
        await publish_all(await cluster.client(master), "m", 5)
        await cluster.stop(master)
        await cluster.settled(*others)
        assert cluster.depth(others[0]) == 5


@pytest.mark.requirement("J6")
async def test_inherited_connections_are_closed_and_their_messages_given_to_others(tmp_path: Path):
    async with running(tmp_path) as cluster:
        master, *others = await cluster.settled()
        client = await cluster.client(master)
        await publish_all(client, "m", 3)
        await client.subscribe()
        for _ in range(3):
            await client.message()
        cluster.cut([master], others)
        view = await cluster.settled(*others)
        other = await cluster.client(view[0])
        await other.subscribe()
        again = [await other.message() for _ in range(3)]
        assert [message.body for message in again] == [b"m0", b"m1", b"m2"]
        assert all(message.headers["redelivered"] == "true" for message in again)


@pytest.mark.parametrize(("options", "name"), [
    ({"ack": "some"}, "ack"), ({"partitions": "maybe"}, "partitions"), ({"nb_cluster_expected": 4}, "nb_cluster"),
    ({"nb_cluster_expected": 0}, "nb_cluster_expected"), ({"detection_timeout": "1"}, "detection_timeout"),
    ({"detection_timeout": 0}, "detection_timeout"), ({"heartbeat_interval": 0.5}, "heartbeat_interval"),
    ({"log_keep": True}, "log_keep"), ({"transfer_chunk": 0}, "transfer_chunk"),
])
async def test_options_that_make_no_sense_are_refused(tmp_path: Path, options: dict[str, Any], name: str):
    cluster = Cluster(tmp_path, **options)
    with pytest.raises(ConfigError, match=name):
        await cluster.start("n1")
