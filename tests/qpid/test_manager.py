"""The built-in cluster resource manager in simulated time, beside fake brokers: one section of the document each."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from manager_world import LESSOR_PORT, MANAGER, MANAGER_PORT, SECRET, World, run
from test_manager_chaos import storm

from nodes.reference.api import ConfigError
from nodes.reference.designs.qpid.manager import coordinator
from nodes.reference.designs.qpid.manager.config import parse_manager_config
from nodes.reference.designs.qpid.manager.coordinator import COORDINATING, Coordinator
from nodes.reference.designs.qpid.manager.lease_server import PROTOCOL, manager_name
from nodes.reference.designs.qpid.manager.membership import Answers, leases_are_over
from nodes.reference.designs.qpid.manager.note import Note
from nodes.reference.designs.qpid.manager.options import ManagerOptions
from nodes.reference.designs.qpid.manager.processes import Processes, ProgramCommand
from nodes.reference.designs.qpid.manager.programs import BROKER, ProgramError
from nodes.reference.designs.qpid.manager.record import ManagerRecord, RecordStore
from nodes.reference.designs.qpid.manager.report import Report, candidates, may_bootstrap
from nodes.reference.replication import links
from nodes.reference.replication.handshake import Handshake, encode_frame
from nodes.systems.reference.qpid.manager_probes import ManagerProbe
from nodes.systems.reference.qpid.rules.roles import AtOnce
from stormproof.contracts.backend import DEAD, RUNNING

# Starts.


@pytest.mark.requirement("Q15", part=True)
def test_the_first_start_takes_all_members() -> None:
    """Nobody is ready: one is chosen once every configured member has said that its store is empty."""

    async def scenario(world: World) -> None:
        await asyncio.gather(world.start_manager("n1"), world.start_manager("n2"))
        await asyncio.sleep(8)
        assert not world.promotions and not world.refusals
        assert any("no primary" in world.log(node) for node in ("n1", "n2"))
        await world.start_manager("n3")
        await world.primary(5)
        assert [bootstrap for *_, bootstrap in world.promotions] == [True]

    run(World(1, 3, eligible=False), scenario)


@pytest.mark.requirement("Q15", part=True)
def test_stores_that_are_clean_with_one_uuid_start_by_themselves_and_others_do_not() -> None:
    def world(*uuids: str) -> World:
        made = World(1, 3, eligible=False)
        for node, uuid in zip(made.names, uuids, strict=True):
            made.stores[node].update(state="clean" if uuid else "dirty", uuid=uuid)
        return made

    async def starts(world: World) -> None:
        await world.start()
        await world.primary(8)

    async def waits(world: World) -> None:
        await world.start()
        await asyncio.sleep(8)
        assert not world.promotions

    run(world("a", "a", "a"), starts)
    run(world("a", "a", "b"), waits)
    run(world("a", "a", ""), waits)


# Failover.


@pytest.mark.requirement("Q10", part=True)
def test_another_is_tried_when_a_broker_refuses() -> None:
    async def scenario(world: World) -> None:
        world.declining = {"n1", "n2"}
        await world.start()
        assert await world.primary(10) == "n3"
        assert sorted(world.refusals) in (["n1"], ["n2"], ["n1", "n2"]), "nobody was asked twice"

    run(World(2, 3), scenario)


@pytest.mark.requirement("Q10", part=True)
def test_where_none_is_eligible_a_person_helps() -> None:
    async def scenario(world: World) -> None:
        for store in world.stores.values():
            store["state"] = "dirty"
        await world.start()
        await asyncio.sleep(8)
        assert not world.promotions and not world.refusals
        world.brokers["n2"].forced = True
        assert await world.primary(5) == "n2"

    run(World(3, 3, eligible=False), scenario)


@pytest.mark.requirement("Q10", part=True)
def test_whoever_refused_is_asked_again_also_where_nobody_else_can_be() -> None:
    async def scenario(world: World) -> None:
        for store in world.stores.values():
            store["state"] = "dirty"
        world.declining = {"n2"}
        await world.start()
        await asyncio.sleep(2)
        world.brokers["n2"].forced = True
        await asyncio.sleep(8)
        assert 2 <= world.refusals.count("n2") == len(world.refusals) <= 4
        world.declining.clear()
        assert await world.primary(5) == "n2"

    run(World(4, 3, eligible=False), scenario)


@pytest.mark.requirement("Q4", part=True)
def test_a_broker_that_dies_is_started_again_and_another_is_primary_meanwhile() -> None:
    async def scenario(world: World) -> None:
        await world.start()
        old = await world.primary()
        await world.backend.kill(old, BROKER)
        assert await world.until(lambda: old not in world.primaries() and world.one_primary(), 5) < 1.0
        assert (await world.backend.process(old, BROKER)).state == DEAD, "it comes back after a second"
        await asyncio.sleep(2.0)
        assert (await world.backend.process(old, BROKER)).state == RUNNING
        assert "broker restarted" in world.log(old)

    run(World(4, 3), scenario)


@pytest.mark.requirement("Q4", part=True)
def test_brokers_without_quorum_are_ended_and_come_back_with_it() -> None:
    async def scenario(world: World) -> None:
        await world.start()
        old = await world.primary()
        await world.isolate(old)
        await world.until(lambda: world.one_primary() and world.primaries() != [old], 5)
        await asyncio.sleep(2)
        assert (await world.backend.process(old, BROKER)).state == DEAD
        assert "no quorum" in world.log(old)
        others = [node for node in world.names if node != old]
        await world.cut(*((a, b) for a in world.names for b in world.names if a != b))
        await asyncio.sleep(4)
        assert [(await world.backend.process(node, BROKER)).state for node in others] == [DEAD, DEAD]
        await world.cut()
        await world.primary(8)

    run(World(5, 3), scenario)


@pytest.mark.requirement("Q4", part=True)
def test_a_manager_that_is_started_again_finds_its_broker() -> None:
    async def scenario(world: World) -> None:
        await world.start()
        primary = await world.primary()
        process = await world.backend.process(primary, BROKER)
        await world.backend.kill(primary, MANAGER)
        await world.start_manager(primary)
        await asyncio.sleep(4)
        assert await world.backend.process(primary, BROKER) == process
        assert world.primaries() == [primary] and len(world.promotions) == 1

    run(World(6, 3), scenario)


@pytest.mark.requirement("Q4", part=True)
def test_a_broker_whose_manager_stays_away_ends_itself() -> None:
    async def scenario(world: World) -> None:
        await world.start()
        primary = await world.primary()
        await world.backend.kill(primary, MANAGER)
        await world.until(lambda: world.one_primary() and world.primaries() != [primary], 5)
        assert (await world.backend.process(primary, BROKER)).state == DEAD

    run(World(7, 3), scenario)


@pytest.mark.requirement("Q4", part=True)
def test_a_broker_that_hangs_is_replaced() -> None:
    async def scenario(world: World) -> None:
        await world.start()
        primary = await world.primary()
        await world.backend.pause(primary, BROKER)
        await world.until(lambda: world.one_primary() and world.primaries() != [primary], 6)
        await asyncio.sleep(2)
        assert (await world.backend.process(primary, BROKER)).state == RUNNING, "another process of it"

    run(World(8, 3), scenario)


@pytest.mark.requirement("Q9", part=True)
def test_nobody_is_promoted_whom_the_primary_goes_on_without() -> None:
    """Whatever its broker says: it was ready when it lost the primary, and the primary has confirmed more since."""

    async def scenario(world: World) -> None:
        await world.start()
        primary = await world.primary()
        behind, other = (node for node in world.names if node != primary)
        broker = world.brokers[primary]
        broker.version, broker.excluded = 100, (behind,)
        await world.until(lambda: world.noted >= (broker.term, 100), 3)
        world.rng.random = lambda: 1.0  # type: ignore[method-assign]  # it changes nothing any more
        await world.backend.kill(primary, BROKER)
        assert await world.primary() == other

    for seed in range(9, 13):
        run(World(seed, 3), scenario)


@pytest.mark.requirement("Q16", part=True)
def test_a_broker_that_leaves_in_order_is_not_started_again() -> None:
    async def scenario(world: World) -> None:
        await world.start()
        primary = await world.primary()
        world.managers[primary].services.leave()
        await world.backend.stop(primary, BROKER)
        await asyncio.sleep(4)
        assert (await world.backend.process(primary, BROKER)).state == DEAD
        assert world.primaries() not in ([], [primary])

    run(World(13, 3), scenario)


def test_a_manager_that_is_let_promote_while_it_promotes_looks_again_at_once() -> None:
    async def scenario(world: World) -> None:
        await world.start()
        services = world.managers[await world.primary()].services
        looked: list[float] = []

        async def promote() -> None:
            looked.append(world.loop.now)
            if len(looked) == 1:
                services.clear(99, False, ())

        vars(services)["_promote_if_due"] = promote
        await world.until(lambda: len(looked) > 1, 2.0)
        assert looked[1] - looked[0] < world.options.heartbeat / 2

    run(World(1, 3), scenario)


def test_a_manager_that_is_let_promote_and_waits_is_noticed() -> None:
    async def scenario(world: World) -> None:
        await world.start()
        manager = world.managers[await world.primary()]
        await world.until(lambda: manager.services.rests, 2.0)
        probe = ManagerProbe(manager)
        before = probe.observed()
        manager.services.cleared = 99
        now = probe.observed()
        assert AtOnce().look("n1", probe, before, None) == ""
        assert "in term 99, and nobody looks" in AtOnce().look("n1", probe, now, before)

    run(World(1, 3), scenario)


def test_a_manager_that_is_stopped_ends_its_broker() -> None:
    async def scenario(world: World) -> None:
        await world.start()
        primary = await world.primary()
        await world.backend.stop(primary, MANAGER)
        assert (await world.backend.process(primary, BROKER)).state == DEAD

    run(World(14, 3), scenario)


# Trials of the trial.


def test_a_coordinator_that_does_not_wait_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "leases_are_over", lambda ages, needed, caution: True)
    with pytest.raises(AssertionError, match="two primaries"):
        storm(1)


def test_the_same_seed_gives_the_same_logs() -> None:
    logs = []
    for _ in range(2):
        found: list[str] = []
        world = World(5, 3)

        async def scenario(world: World, found: list[str] = found) -> None:
            await world.start()
            await world.backend.kill(await world.primary(), BROKER)
            await asyncio.sleep(3)
            found += [world.log(node, program) for node in world.names for program in (MANAGER, BROKER)]

        run(world, scenario)
        logs.append(found)
    assert logs[0] == logs[1] and any(logs[0])


# Rules.


def test_leases_are_over_when_a_majority_has_waited() -> None:
    assert leases_are_over({"a": 1.3, "b": 1.26}, 2, 1.25)
    assert not leases_are_over({"a": 1.3, "b": 1.2, "c": 0.0}, 2, 1.25)
    assert not leases_are_over({"a": 1.3}, 2, 1.25)


def test_the_age_counts_from_the_last_answer_to_an_earlier_primary() -> None:
    answers = Answers(earlier=10.0)
    answers.backed(20.0)
    assert answers.age(21.0) == 11.0, "the present primary's own term does not count"
    answers.superseded()
    assert answers.age(21.0) == 1.0
    answers.backed(22.0)
    assert answers.age(23.0) == 3.0


def test_candidates_are_tried_best_first() -> None:
    def report(state: str, generation: int, eligible: bool = True, forced: bool = False) -> Report:
        return Report(True, state, eligible, generation, "dirty", forced=forced)

    order = ["a", "b", "c", "d", "e"]
    reports = {"a": report("connecting", 3), "b": report("ready", 3), "c": report("ready", 2), "d": report("catchup", 4,
               eligible=False), "e": Report()}  # fmt: skip
    assert candidates(reports, order, ()) == ["b", "a", "c"]
    assert candidates(reports, order, ["b"]) == ["a", "c"]
    assert candidates(reports | {"d": report("connecting", 1, forced=True)}, order, ["d"])[0] == "d"
    empty = {name: Report(True, "connecting", store="empty", ballot=5) for name in order}
    assert may_bootstrap(empty, order, 5)
    assert not may_bootstrap(empty, order, 6), "asked before the coordinator's ballot was accepted"
    assert not may_bootstrap(empty | {"e": Report()}, order, 5)


@pytest.mark.requirement("Q15", part=True)
@pytest.mark.parametrize("finished", [True, False])
def test_nobody_starts_anew_beside_one_that_may_still_become_primary(finished: bool) -> None:
    """A member says that its store is empty, and its manager, which has been told that it is to be primary, is slow."""
    empty = Report(True, "connecting", store="empty", ballot=7)
    reports = {"n1": replace(empty, finished=5 if finished else 4), "n2": empty, "n3": empty}
    store: Any = SimpleNamespace(record=ManagerRecord(promised=7, ballot=7, term=5, primary="n1"), saved=[])
    store.save = lambda record: (setattr(store, "record", record), store.saved.append(record))
    runtime: Any = SimpleNamespace(now=lambda: 1000.0, log=lambda *_, **__: None, point=lambda *_: None)
    membership: Any = SimpleNamespace(
        node="n2", members=["n1", "n2", "n3"], needed=2, quorum_since=lambda now: now, echo=lambda name: None,
        accepted=lambda decision, now: {"n1": 0.0, "n3": 0.0})  # fmt: skip
    others: Any = SimpleNamespace(reports=lambda: reports, beat=lambda: None, alive=lambda: membership.members,
                                  silent_for=lambda peer: 0.0, send=lambda *_: None)
    answers: Any = SimpleNamespace(superseded=lambda: None, age=lambda now: 0.0)
    coordinator = Coordinator(runtime, ManagerOptions(), store, membership, answers, others)
    coordinator.phase, coordinator.last_ballot = COORDINATING, 7
    coordinator.tick()
    assert [(record.term, record.primary) for record in store.saved] == ([(7, "n1")] if finished else [])


# Bad input.


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lease": 1}, "lease: unknown setting"),
        ({"node": ""}, "node: is missing"),
        ({"node": "n9"}, "members: 'n9', this node, is missing"),
        ({"members": {"n1": ["h"]}}, "members.n1: is not [host, port]"),
        ({"members": []}, "members: is missing"),
        ({"listen": ["h", 0]}, "listen: is not [host, port]"),
        ({"secret": ""}, "options.secret: is missing"),
        ({"secret": "a\nb"}, "secret: is not a text of printable characters"),
        ({"command": "broker"}, "command: is not a list of words"),
        ({"options": {"manager_lease": 0}}, "options.manager_lease: 0 is not a number of seconds"),
        ({"options": 3}, "options: is not an object"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_told_in_one_line(change: dict[str, Any], words: str) -> None:
    good = {"node": "n1", "data": "d", "members": {"n1": ["10.0.0.1", 1]}, "listen": ["10.0.0.1", 2],
            "broker": ["10.0.0.1", 3], "secret": "s"}  # fmt: skip
    parse_manager_config(good)
    with pytest.raises(ConfigError) as error:
        parse_manager_config(good | change)
    assert words in str(error.value) and "\n" not in str(error.value)


@pytest.mark.requirement("Q4", part=True)
def test_the_last_words_of_an_earlier_process_are_not_the_primarys() -> None:
    """What a broker that has ended had sent may arrive when another process is primary: a cut link had held it up."""

    async def scenario(world: World) -> None:
        await world.start()
        node = await world.primary()
        services = world.managers[node].services
        term = services.promoted
        late = services.grant(term - 1, 9, ["n3"])
        assert late is not None and late[1:] == (term, 0), "it may ask, and is told nothing of a note"
        assert world.managers[node].coordinator.record.note.version < 9
        now = services.grant(term, 9, ["n3"])
        assert now is not None and world.managers[node].coordinator.record.note == Note(term, 9, ("n3",))

    run(World(1, 3), scenario)


def test_strangers_and_noise_cost_a_connection_and_a_line() -> None:
    """At the broker's listener and on the links, from those who have the secret, and from those who don't."""

    async def dialled(world: World, port: int, protocol: str, cluster: str, name: str, peer: str, secret: str,
                      *frames: Any) -> bytes:  # fmt: skip
        reader, writer = await asyncio.open_connection(world.address("n1"), port)
        try:
            await Handshake(protocol, cluster, name, secret, world.rng).dial(reader, writer, peer)
            for frame in frames:
                writer.write(encode_frame(frame))
            return await asyncio.wait_for(reader.read(), 20)
        except (links.LinkError, asyncio.IncompleteReadError, OSError):
            return b""
        finally:
            writer.close()

    async def scenario(world: World) -> None:
        await world.start()
        await world.primary()
        broker = (LESSOR_PORT, PROTOCOL, "qpid", "n1", manager_name("n1"))
        for noise in ("x", ["renew"], ["renew", 1, 0, 0, []], ["renew", 1.0, 0, -1, []],
                      ["renew", 1.0, -1, 1, []], ["renew", 1.0, 0, 1, [1]], ["renew", 1.0, 0, 1, ["n"] * 65],
                      b"\xff" * 5000):  # fmt: skip
            await dialled(world, *broker, SECRET, noise)
        assert not await dialled(world, *broker, "another", ["renew", 1.0, 0, 0, []])
        peer = (MANAGER_PORT, links.PROTOCOL, "qpid managers", "n3", "n1")
        for noise in ("x", [], b"", b"\x09", b"\x00\x01", b"\x01" + b"a" * 100):
            await dialled(world, *peer, SECRET, noise)
        await asyncio.sleep(8)
        assert world.one_primary() and len(world.promotions) == 1
        assert 1 <= world.log("n1").count("connection refused") <= 8
        assert "Traceback" not in world.log("n1") and "failed" not in world.log("n1")

    run(World(15, 3), scenario)


def test_the_record_is_what_was_saved_and_nothing_else_is_taken_for_one(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "manager.sqlite"
    store = RecordStore(sqlite3.connect(path, isolation_level=None))
    assert store.record == ManagerRecord()
    kept = ManagerRecord(7, 6, 5, "n2", 4, "11 22", 3, Note(4, 2, ("a b", "c,d")))
    store.save(kept)
    assert RecordStore(sqlite3.connect(path, isolation_level=None)).record == kept
    sqlite3.connect(path, isolation_level=None).execute("UPDATE record SET note = '[1]'")
    with pytest.raises(ConfigError, match="holds no manager's record"):
        RecordStore(sqlite3.connect(path, isolation_level=None))


# Processes.


async def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_processes_outlive_their_manager_and_are_told_apart(tmp_path: Path) -> None:
    command = ProgramCommand(("sleep", "60"), str(tmp_path / "broker.pid"), str(tmp_path / "broker.log"))
    programs = Processes({BROKER: command})
    assert not (await programs.state(BROKER)).running
    await programs.start(BROKER)
    state = await programs.state(BROKER)
    assert state.running and state.process
    with pytest.raises(ProgramError, match="runs already"):
        await programs.start(BROKER)
    another = Processes({BROKER: command})
    assert await another.state(BROKER) == state, "a later manager finds it"
    began = time.monotonic()
    await programs.stop(BROKER, 5.0)
    assert time.monotonic() - began < 4 and not (await another.state(BROKER)).running
    await another.start(BROKER)
    assert (await another.state(BROKER)).process != state.process
    await another.kill(BROKER)
    assert not (await another.state(BROKER)).running


async def test_a_process_that_does_not_heed_is_killed(tmp_path: Path) -> None:
    stubborn = (sys.executable, "-c", f"import signal, time; signal.signal({int(signal.SIGTERM)}, signal.SIG_IGN); "
                "print('up', flush=True); time.sleep(60)")  # fmt: skip
    log = tmp_path / "log"
    programs = Processes({BROKER: ProgramCommand(stubborn, str(tmp_path / "pid"), str(log))})
    await programs.start(BROKER)
    await until(log.read_text)
    await programs.stop(BROKER, 0.2)
    assert not (await programs.state(BROKER)).running


async def test_a_program_that_is_not_there_ends_at_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    programs = Processes({BROKER: ProgramCommand(("/no/such/program",), str(tmp_path / "pid"), str(log))})
    await programs.start(BROKER)
    await until(lambda: "/no/such/program" in log.read_text())
    await until(lambda: programs._leader(BROKER) is None)
    none = tmp_path / "none"
    nowhere = Processes({BROKER: ProgramCommand(("true",), str(none / "pid"), str(none / "log"))})
    with pytest.raises(ProgramError, match="can't be started"):
        await nowhere.start(BROKER)
