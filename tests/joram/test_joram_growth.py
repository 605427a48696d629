"""Adding a replica at run time (HA Joram 4.7.3): both forms of state transfer, and the group that grows."""

from __future__ import annotations

import asyncio
import io
import itertools
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from joram_cluster import QUEUE, ROOT, Processes, fails, status
from joram_group import Group, simulate

from harness.reference.mutants import BASE
from harness.sim.campaign import run_seed
from nodes.reference import wire
from nodes.reference.api import Command, Config, ConfigError, Runtime
from nodes.reference.bugs import edits as bug_edits
from nodes.reference.designs.joram.decisions import make_epoch
from nodes.reference.designs.joram.design import JoramDesign
from nodes.reference.designs.joram.leader import Leader
from nodes.reference.designs.joram.log import (
    JoramLog,
    Member,
    encode_command,
    encode_group,
    encode_view,
    encoded_members,
)
from nodes.reference.designs.joram.messages import Message, PrepareReply, PreVoteReply, PreVoteRequest, Propose
from nodes.reference.designs.joram.options import JoramOptions
from nodes.reference.engine.engine import StoreEngine
from nodes.reference.replication.messages import Ack, Append, LogPosition, StateAck, StateEnd
from nodes.reference.replication.positions import LogId, Position
from nodes.reference.replication.replicator import Replicator, SharedFrames
from nodes.reference.replication.transfer import HeldBack, Marks, Transfer, TwoStep, add_chunk, rows_of
from nodes.reference.server.broker import ReferenceBroker
from nodes.reference.server.runtime import RealRuntime
from nodes.stomp import ProtocolError

pytestmark = pytest.mark.requirement("J18")

FORMS = ("two-step", "held-back")


class Source:
    """An engine whose state is transferred while random commands change it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.database = sqlite3.connect(":memory:", isolation_level=None)
        self.engine = StoreEngine(self.database)
        self.index = self.number = 0
        self.unacked: list[str] = []
        self.do("open", reliable=True, login="x")
        self.do("subscribe", id="s", destination=QUEUE, ack="client-individual", prefetch=20)

    def do(self, kind: str, **args: Any) -> None:
        self.index += 1
        for effect in self.engine.apply(Command(kind, "c", 0, args)):
            if hasattr(effect, "ack_id"):
                self.unacked.append(effect.ack_id)

    def work(self, commands: int) -> None:
        for _ in range(commands):
            if self.unacked and self.rng.random() < 0.4:
                self.do("ack", id=self.unacked.pop(self.rng.randrange(len(self.unacked))))
            else:
                self.number += 1
                body = self.rng.randbytes(self.rng.choice([10, 2000]))
                queue = f"/queue/{self.rng.choice(['q', 'r', 's'])}"
                self.do("send", destination=queue, headers={}, body=body)
        if self.rng.random() < 0.5:
            self.persist()

    def persist(self) -> LogId:
        self.database.execute("BEGIN")
        self.engine.flush()
        self.database.execute("COMMIT")
        return LogId(1, self.index)


def received(transfer: Transfer, meanwhile: Callable[[], None]) -> list[Any]:
    """The state that a receiver has at the end; the source goes on between two pieces."""
    tables: dict[str, dict[int, Any]] = {}
    while (chunk := transfer.next_chunk()) is not None:
        add_chunk(tables, chunk)
        if transfer.at is None:
            meanwhile()
    transfer.close()
    database = sqlite3.connect(":memory:", isolation_level=None)
    engine = StoreEngine(database)
    database.execute("BEGIN")
    engine.load(rows_of(tables))
    database.execute("COMMIT")
    return list(engine.dump())


def two_steps(seed: int) -> tuple[list[Any], list[Any]]:
    source = Source(seed)
    source.work(1500)
    transfer = TwoStep(source.database, Marks(source.database), source.persist)
    found = received(transfer, lambda: source.work(source.rng.randrange(200)))
    assert transfer.at == LogId(1, source.index)
    return found, list(source.engine.dump())


@pytest.mark.parametrize("seed", range(6))
def test_two_steps_give_the_state_as_it_is_at_their_end_whatever_changed_meanwhile(seed: int):
    found, wanted = two_steps(seed)
    assert found == wanted


def test_without_the_second_step_they_would_not():
    bug_edits.switch(["transfer-forgets-marked"])
    try:
        with pytest.raises((KeyError, AssertionError)):
            found, wanted = two_steps(0)
            assert found == wanted
    finally:
        bug_edits.switch(())


def test_held_back_gives_the_state_as_it_was_at_the_beginning():
    source = Source(1)
    source.work(500)
    at = source.persist()
    wanted = list(source.engine.dump())
    transfer = HeldBack(source.engine.dump(), at)
    source.work(300)
    assert received(transfer, lambda: None) == wanted


@pytest.mark.parametrize("form", FORMS)
def test_pieces_are_as_small_as_the_option_says(form: str):
    """So small ones make a long transfer of a state that simulation has made soon: of one row each, at least."""
    source = Source(3)
    source.work(100)
    at = source.persist()
    wanted = list(source.engine.dump())
    made: Transfer = (HeldBack(source.engine.dump(), at, chunk=1) if form == "held-back"
                      else TwoStep(source.database, Marks(source.database), source.persist, chunk=1))
    taken = [wire.decode(chunk) for chunk in iter(made.next_chunk, None)]
    assert taken == [[row] for row in wanted] and len(wanted) > 50
    whole = HeldBack(source.engine.dump(), at, chunk=1 << 30)
    assert whole.next_chunk() == wire.encode(wanted) and whole.next_chunk() is None


def test_nothing_is_marked_for_nobody():
    source = Source(2)
    marks = Marks(source.database)
    first, second = marks.watch(), marks.watch()
    source.work(50)
    source.persist()
    marks.gather()
    assert first == second and first
    marks.unwatch(first)
    assert marks.watched == 1
    marks.gather()  # the other goes on, though it had the same
    marks.unwatch(second)
    triggers = source.database.execute("SELECT count(*) FROM temp.sqlite_master").fetchone()
    assert triggers == (0,)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Callable[..., Processes]]:
    groups: list[Processes] = []

    def make(**options: Any) -> Processes:
        groups.append(Processes(tmp_path, **{"newcomers": 1, "detection_timeout": 1.2, "log_keep": 20, **options}))
        groups[-1].start()
        return groups[-1]

    yield make
    for each in groups:
        each.end()


@pytest.mark.parametrize("form", [FORMS[0], pytest.param(FORMS[1], marks=pytest.mark.soak)])
async def test_a_fourth_replica_joins_under_load_and_then_counts(group: Callable[..., Processes], form: str):
    nodes = group(transfer=form)
    master, other, third = await nodes.settled()
    client = await nodes.client(master)
    confirmed = []

    async def publish(count: int) -> None:
        for _ in range(count):
            body = f"{len(confirmed)}-" + "x" * 1000
            await client.publish(body)
            confirmed.append(body)

    await publish(400)
    nodes.start("n4")
    await nodes.wait("n4 runs", lambda states: states["n4"]["role"] == "starting", ["n4"])
    await nodes.add("n4", at=master)
    while "n4" not in (await nodes.status(master))["view"]:
        await publish(5)
    assert f"form={form}" in nodes.log_text(master)
    assert await nodes.settled(*nodes.names) == [master, other, third, "n4"]
    assert (await status(nodes.ports["n4"]))["replicas"] == nodes.names

    # Three of four is a majority, two are not: also for those whose configuration knows of three.
    nodes.signal(master, signal.SIGKILL)
    view = await nodes.settled(other, third, "n4")
    client = await nodes.client(view[0])
    assert len(client.connected.headers["x-replicas"].split(",")) == 4
    await publish(5)
    nodes.signal(view[-1], signal.SIGKILL)
    await nodes.wait("no majority", lambda states: not any(s["serving"] for s in states.values()), view[:2])
    for name in (master, view[-1]):
        nodes.start(name)
    view = await nodes.settled(*nodes.names)
    assert await (await nodes.client(view[0])).drain() == confirmed


async def test_two_join_at_once_and_one_who_was_away_meanwhile_finds_its_way_to_them(group: Callable[..., Processes]):
    nodes = group(newcomers=2)
    first, second, third = await nodes.settled()
    client = await nodes.client(first)
    await client.publish("before")
    nodes.signal(first, signal.SIGKILL)
    await nodes.settled(second, third)
    nodes.start("n4", "n5")
    await nodes.wait("they run", lambda states: all(s["role"] == "starting" for s in states.values()), ["n4", "n5"])
    await asyncio.gather(nodes.add("n4", at=second), nodes.add("n5", at=second))
    _, _, new, newest = await nodes.settled(second, third, "n4", "n5")
    # The master is one of whom the first replica has never heard, and its old acquaintances only tell it of him.
    nodes.signal(second, signal.SIGKILL)
    await nodes.settled(third, new, newest)
    nodes.start(second)
    await nodes.settled(third, new, newest, second)
    nodes.signal(third, signal.SIGKILL)
    assert await nodes.settled(new, newest, second) == [new, newest, second]
    nodes.start(first)
    assert await nodes.settled(new, newest, second, first) == [new, newest, second, first]
    await (await nodes.client(new)).publish("after")
    assert await (await nodes.client(new)).drain() == ["before", "after"]


async def test_the_command_line_adds_a_replica_and_says_what_is_wrong(group: Callable[..., Processes]):
    nodes = group()
    master, slave, _ = await nodes.settled()

    async def admin(*words: str, at: str = master) -> tuple[int, str]:
        command = [sys.executable, "-m", "harness", "admin", "joram", "add-replica", *words]
        command += ["--server", f"127.0.0.1:{nodes.ports[at]}"]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, cwd=ROOT, check=False)
        return done.returncode, done.stdout + done.stderr

    address = f"127.0.0.1:{nodes.link_ports['n4']}", f"127.0.0.1:{nodes.ports['n4']}"
    status, said = await admin("n4", *address, at=slave)
    assert status == 3 and f"not master (that is {master} at 127.0.0.1:{nodes.ports[master]})" in said
    status, said = await admin("n1", *address)
    assert status == 3 and "n1 is a replica already" in said
    status, said = await admin("n4", address[0], "here")
    assert status == 3 and "CLIENTS here: write it as host:port" in said
    status, said = await admin("n4", "127.0.0.1:9", address[1], "--wait", "0.5")
    assert status == 3 and "has not caught up within 0.5 s" in said and "can" in said and "127.0.0.1:9" in said
    nodes.start("n4")
    status, said = await admin("n4", *address)
    assert (status, said) == (0, "n4 is one of the replicas\n")
    await nodes.settled(*nodes.names)
    assert (await admin("n4", *address))[0] == 0, "once more is no harm"


async def test_a_replica_that_nobody_has_added_serves_nobody(group: Callable[..., Processes]):
    nodes = group()
    await nodes.settled()
    nodes.start("n4")
    await nodes.wait("n4 runs", lambda states: states["n4"]["role"] == "starting", ["n4"])
    assert await fails(nodes.client("n4")) == "not master"
    with pytest.raises(ProtocolError, match="not master"):
        await nodes.add("n4", at="n4")


def test_a_newcomer_must_be_the_last_of_its_peers():
    peers = {"n1": ("h", 1), "n2": ("h", 2)}
    with pytest.raises(ConfigError, match="must be the last one"):
        JoramOptions.from_config(Config("n1", "joram", "", peers=peers, options={"join": True}))


def test_the_group_is_read_from_the_log_and_goes_back_with_it():
    database = sqlite3.connect(":memory:", isolation_level=None)
    log, told = JoramLog(database), []
    log.regrouped = lambda: told.append([member.name for member in log.group])
    first = [Member(name, "h", 1, "h:2") for name in ("n1", "n2")]
    grown = [*first, Member("n3", "h", 1, "h:2")]
    log.append(1, encode_view(["n1"]))
    log.append(1, encode_group(first))
    log.append(1, encode_group(grown))
    log.truncate(3)
    assert told == [["n1", "n2"], ["n1", "n2", "n3"], ["n1", "n2"]]
    log.append(2, encode_group(grown))
    log.write()
    assert JoramLog(database).group == grown
    log.applied = 3
    log.compact(0, 0, 3)
    log.write()
    again = JoramLog(database)
    assert (again.base, again.group, again.group_at(3)) == (3, grown, encoded_members(grown))
    again.reset(LogId(7, 90), ["n1"], encoded_members(first))
    assert again.group == first


def unlinked(config: Config, runtime: Runtime | None = None) -> JoramDesign:
    """A replica whose links are never opened."""
    design = ReferenceBroker(config, runtime or RealRuntime(config, io.StringIO())).design
    assert isinstance(design, JoramDesign)
    return design


class Peers:
    """A replica of five as a master sees it: a log, and links that lose everything."""

    def __init__(self, folder: Path, *entries: tuple[int, bytes], **options: Any) -> None:
        peers = {f"n{number}": (f"n{number}", 1) for number in range(1, 6)}
        config = Config("n1", "joram", str(folder), peers=peers,
                        options={"ack": "majority", "secret": "between us", **options})
        self.replica = unlinked(config).replica
        for epoch, entry in entries:
            self.replica.log.append(epoch, entry)
        self.replica.log.write()
        self.epoch = make_epoch(4, 0)
        self.replica.promise(self.epoch)
        self.leader = Leader(self.replica, self.epoch, list(self.replica.order))
        self.leader._flush()

    def has(self, index: int, *names: str) -> None:
        for name in names:
            self.leader.introduced(name, LogPosition(self.epoch, 0, 0, 0, 0))
            self.leader.acked(name, Ack(self.epoch, index, self.replica.now()))
        self.leader._flush()


SEND = encode_command(Command("send", "c", 0, {"destination": QUEUE, "headers": {}, "body": b"x"}))


@pytest.mark.requirement("J9")
async def test_an_entry_of_an_older_epoch_is_committed_only_together_with_one_of_the_own(tmp_path: Path):
    """Raft's figure 8: a majority has the older entry, and yet a log with a newer epoch may replace it."""
    peers = Peers(tmp_path, (make_epoch(2, 0), SEND))
    peers.has(1, "n2", "n3")
    assert peers.replica.committed == 0
    assert not peers.leader.serving
    peers.leader._epoch_start = 0
    peers.leader._flush()
    assert peers.replica.committed == 1, "without the rule it would be committed now"
    peers.leader.stop()


async def test_the_group_changes_one_replica_at_a_time_and_not_before_an_entry_of_the_own_epoch_is_committed(
    tmp_path: Path,
):
    peers = Peers(tmp_path, (make_epoch(2, 0), SEND))
    new = [Member(f"n{number}", "h", number, "") for number in (6, 7)]
    six = ["n1", "n2", "n3", "n4", "n5", "n6"]

    def tick() -> list[str]:
        peers.replica.links._heard |= dict.fromkeys(("n2", "n3", "n6", "n7"), peers.replica.now())
        peers.leader.tick()
        return peers.replica.order

    peers.leader.add_replica(new[0])
    peers.has(2, "n6")
    assert tick() == six[:5] and not peers.leader.serving
    peers.has(2, "n2", "n3")
    assert peers.leader.serving
    # A learner's acknowledgement counts for nothing ...
    peers.leader.add_replica(new[1])
    peers.leader.submit(Command("received", "c", 0, {}))
    peers.leader._flush()
    last = peers.replica.log.last
    peers.has(last, "n2", "n6", "n7")
    assert peers.replica.committed == 2
    # ... until it has caught up and belongs to the group, by an entry that needs the new majority.
    assert tick() == six
    grown = peers.replica.log.group_index
    assert grown > last
    peers.has(grown, "n2", "n3", "n7")
    assert peers.replica.committed < grown
    assert tick() == tick() == six, "the next one must wait"
    peers.has(grown, "n6")
    assert peers.replica.committed == grown
    assert tick() == [*six, "n7"]
    peers.leader.stop()


@pytest.mark.parametrize("form", FORMS)
async def test_what_a_transfer_needs_stays_in_the_log_while_that_is_compacted(tmp_path: Path, form: str):
    """A state of more chunks than are sent at once, and a log that keeps hardly anything."""
    peers = Peers(tmp_path, transfer=form, log_keep=5)
    log, sent = peers.replica.log, []
    peers.replica.send = lambda peer, message: sent.append((peer, message))
    peers.has(1, "n2", "n3")

    def work(commands: int, size: int) -> None:
        for _ in range(commands):
            peers.leader.submit(Command("send", "c", 0, {"destination": QUEUE, "headers": {}, "body": b"x" * size}))
        peers.leader._flush()
        for peer in ("n2", "n3"):
            peers.leader.acked(peer, Ack(peers.epoch, log.last, peers.replica.now()))
        peers.leader._flush()
        peers.leader.submit(Command("received", "c", 0, {}))
        peers.leader._flush()

    peers.leader.submit(Command("open", "c", 0, {"reliable": False, "login": "x"}))
    work(100, 10_000)
    assert log.base > 0
    peers.leader.introduced("n4", LogPosition(peers.epoch, 0, 0, 0, 0))
    begun, chunks = log.applied, 0
    while chunks < 100 and not any(isinstance(message, StateEnd) for _, message in sent):
        work(60, 10)
        chunks += 1
        peers.leader.acked_chunks("n4", StateAck(peers.epoch, chunks))
    (end,) = [message for peer, message in sent if isinstance(message, StateEnd)]
    assert (form == "two-step") or end.upto == begun
    assert chunks > 4 and [name for name, *_ in end.group] == [] and end.view[0] == "n1"
    assert log.epoch_at(end.upto) == end.upto_epoch
    work(100, 10)
    assert log.epoch_at(end.upto) is not None, "what follows the state is held until the peer has the state"
    peers.leader.acked("n4", Ack(peers.epoch, end.upto, peers.replica.now()))
    work(100, 10)
    assert log.epoch_at(end.upto) is None, "and no longer"
    peers.leader.stop()


async def test_a_replica_that_was_announced_with_a_wrong_address_can_be_announced_again(tmp_path: Path):
    peers = Peers(tmp_path)
    peers.has(1, "n2", "n3")
    peers.leader.add_replica(Member("n6", "nowhere", 6, ""))
    peers.leader.add_replica(Member("n6", "here", 7, ""))
    assert [member.host for member in peers.replica.learners] == ["here"]
    assert peers.replica.links._addresses["n6"] == ("here", 7)
    with pytest.raises(ConfigError, match="n2 is a replica already, at other addresses"):
        peers.leader.add_replica(Member("n2", "elsewhere", 2, ""))
    # Nobody dials it any more when its master is deposed.
    peers.leader.stop()
    assert not {"n6"} & {*peers.replica.peers, *peers.replica.links._addresses}


async def test_the_peers_hear_a_replica_that_is_busy_with_a_bulky_state(tmp_path: Path):
    """Else they would take it for failed, and cut the link by which the rest of the log comes."""
    source = Source(3)
    source.work(8_000)
    at, peers = source.persist(), Peers(tmp_path)
    heard: list[float] = []
    steps = itertools.count()
    peers.replica.now = lambda: next(steps) * 0.1
    peers.replica.tell_peers = lambda: heard.append(peers.replica.now())
    peers.replica.load(source.engine.dump(), at, ["n1"], [])
    assert peers.replica.log.applied == at.idx
    gaps = [later - earlier for earlier, later in itertools.pairwise(heard)]
    assert gaps and max(gaps) < peers.replica.options.detection_timeout
    heard.clear()
    peers.replica.options = replace(peers.replica.options, transfer="held-back")
    Replicator(peers.replica, "n2", 1, Position(LogId(0, 0), LogId(0, 0)), SharedFrames())
    assert heard, "the source tells, too"
    peers.leader.stop()


FOUNDERS = ["n1", "n2", "n3"]


def test_one_who_was_away_while_the_group_grew_promises_to_those_whom_its_log_does_not_know():
    """Three of five are there, and hold everything: the third has met the others, but has not caught up."""

    async def scenario(group: Group) -> None:
        group.crash("n3")
        await group.until(lambda: group.view() == ["n1", "n2"], "n3 is missed")
        for name in ("n4", "n5"):
            await group.start(name)
            group.add(name)
        await group.until(lambda: group.view() == ["n1", "n2", "n4", "n5"], "five replicas")
        group.crash("n2")
        await group.until(lambda: group.view() == ["n1", "n4", "n5"], "n2 is missed")
        await group.start("n3")
        design: Any = group.nodes["n3"].design
        design._handlers[Append] = lambda *_: None
        await group.until(lambda: all(design.replica.is_alive(name) for name in ("n4", "n5")), "n3 meets the others")
        group.crash("n1")
        design._handlers[Append] = design._append
        assert design.replica.order == FOUNDERS
        await group.until(lambda: group.view() == ["n4", "n5", "n3"], "they go on")

    simulate(scenario, Group(3, 3, {"n4": [*FOUNDERS, "n4"], "n5": [*FOUNDERS, "n5"]}))


@pytest.mark.parametrize("peers", [
    {"n4": [*FOUNDERS, "n4"], "n5": [*FOUNDERS, "n4", "n5"]},
    {"n4": [*FOUNDERS, "n5", "n4"], "n5": [*FOUNDERS, "n4", "n5"]},
])
def test_newcomers_find_each_other_whatever_order_they_are_configured_with(peers: dict[str, list[str]]):
    async def scenario(group: Group) -> None:
        for name in ("n5", "n4"):
            await group.start(name)
            group.add(name)
            await group.until(lambda name=name: name in group.view(), name)
        for one, other in (("n4", "n5"), ("n5", "n4")):
            design: Any = group.nodes[one].design
            links = design.replica.links
            await group.until(lambda links=links, other=other: links.send(other, b""), f"a link of {one} with {other}")

    simulate(scenario, Group(3, 3, peers))


def test_a_newcomer_that_is_master_finds_one_for_whom_it_would_wait_by_its_configuration():
    async def scenario(group: Group) -> None:
        def whole(size: int) -> bool:
            return all(len(node.design.status()["view"]) == size for node in group.nodes.values())

        await group.start("n5")
        group.add("n5")
        await group.until(lambda: whole(4), "n5")
        while (master := group.view()[0]) != "n5":
            group.crash(master)
            await group.until(lambda: whole(3), "another master")
            await group.start(master)
            await group.until(lambda: whole(4), "all four")
        await group.start("n4")
        group.add("n4")
        await group.until(lambda: whole(5), "n4")

    simulate(scenario, Group(3, 3, {"n4": [*FOUNDERS, "n5", "n4"], "n5": [*FOUNDERS, "n4", "n5"]}))


class Clock(RealRuntime):
    """Reads ``ahead`` seconds later than it is."""

    ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead


class Alone:
    """A newcomer that only its own log, which ends with an uncommitted growth, takes for one of the group."""

    def __init__(self, folder: Path) -> None:
        peers = {name: (name, 1) for name in (*FOUNDERS, "n4")}
        config = Config("n4", "joram", str(folder), peers=peers, options={"join": True})
        self.clock = Clock(config, io.StringIO())
        self.design = unlinked(config, self.clock)
        self.replica, self.election = self.design.replica, self.design.election
        self.replica.log.append(make_epoch(1, 0), encode_view(FOUNDERS))
        self.replica.log.append(make_epoch(1, 0), encode_group([Member(n, n, 1, "") for n in (*FOUNDERS, "n4")]))
        self.replica.persist()
        self.said: list[tuple[str, Message]] = []
        self.replica.send = lambda peer, message: self.said.append((peer, message))  # type: ignore[method-assign]
        self.later(0)

    def later(self, seconds: float) -> None:
        """Time passes, and all founders are heard of."""
        self.clock.ahead += seconds
        self.replica.links._heard |= dict.fromkeys(FOUNDERS, self.replica.now())


@pytest.mark.requirement("J9")
async def test_an_epoch_is_promised_to_one_candidate_only(tmp_path: Path):
    """Two that the log of each takes for the fourth of the group open the same epochs."""
    alone = Alone(tmp_path)
    for peer in ("n1", "n2"):
        alone.later(10)  # it no longer rests after its start, nor supports whom it has answered last
        alone.election.pre_vote_requested(peer, PreVoteRequest(make_epoch(2, 3), False))
        alone.election.proposed(peer, Propose(make_epoch(2, 3), False))
    answers = [(peer, type(message)) for peer, message in alone.said]
    assert answers == [("n1", PreVoteReply), ("n1", PrepareReply), ("n2", PreVoteReply), ("n2", PreVoteReply)]


@pytest.mark.requirement("J9")
async def test_who_adopts_a_log_that_does_not_name_it_does_not_become_master(tmp_path: Path):
    alone = Alone(tmp_path)
    alone.election.epoch = make_epoch(2, 3)
    alone.replica.promise(alone.election.epoch)
    alone.replica.log.truncate(2)
    position = alone.replica.log.position()
    alone.election.promises, alone.election.target = dict.fromkeys(["n4", *FOUNDERS], position), position.last
    assert alone.replica.order == FOUNDERS
    alone.election._finish_if_complete()
    assert not alone.design.leads()


def grow_in_simulation(seed: int, form: str, spares: int, folder: Path) -> None:
    # Long enough for a change of membership to find a majority among partitions and kills.
    case = replace(BASE, nodes=3 + spares, time_limit=30.0, nemesis="partition,pause,kill,membership",
                   settings={**BASE.settings, "spares": f"{spares}", "transfer": form, "log_keep": "20",
                             "fault_gap": "1"})
    result = run_seed(case, seed, folder, folder)
    assert result.verdict == "valid", result.sentence


@pytest.mark.parametrize(("seed", "form", "spares"), [
    pytest.param(4, "two-step", 1, marks=pytest.mark.soak), (9, "held-back", 1), (5, "two-step", 2),
])  # fmt: skip
def test_simulated_growth_under_faults(seed: int, form: str, spares: int, tmp_path: Path):
    grow_in_simulation(seed, form, spares, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(40))
def test_simulated_growth_by_several_replicas(seed: int, tmp_path: Path):
    grow_in_simulation(seed, FORMS[seed % 2], 2 + seed % 2, tmp_path)
