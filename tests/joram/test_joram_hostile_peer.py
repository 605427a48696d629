"""A peer behind the authentication that sends what no replica sends: its link is cut with one line, and that is all."""

from __future__ import annotations

import os
import random
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from hostile_peer import COMMANDS, ENTRIES, HostilePeer, Victim, attacked, some_chunk, some_entry, some_message
from joram_cluster import until
from noise import noise

from nodes.reference import wire
from nodes.reference.api import Command
from nodes.reference.designs.joram.log import encode_command
from nodes.reference.engine.engine import StoreEngine
from nodes.reference.engine.row_schema import ShapeError, check_command, check_row, check_state
from nodes.reference.replication.handshake import encode_frame
from nodes.reference.replication.messages import Ack, StateBegin, StateChunk
from tests.peak import forget, most_mib

FUZZ_SECONDS = float(os.environ.get("STORMPROOF_FUZZ_SECONDS", "120"))


def dump(upto: int = len(COMMANDS)) -> list[Any]:
    """The rows of an engine that has applied these commands."""
    engine = StoreEngine(sqlite3.connect(":memory:", isolation_level=None))
    for command in COMMANDS[:upto]:
        engine.apply(command)
    return list(engine.dump())


def command(kind: str, **args: Any) -> bytes:
    return encode_command(Command(kind, "c1", 0, args))


def changed(table: str, column: int, value: Any) -> list[Any]:
    """A whole state with one wrong value."""
    rows = dump(12)
    row = next(row for row in rows if row[0] == table)
    row[1 + column] = value
    return rows


LED = [
    (lambda peer: peer.append(b""), "entry 1 is malformed"),
    (lambda peer: peer.append(b"C\xff"), "entry 1 is malformed"),
    (lambda peer: peer.append(b"X" + wire.encode([])), "neither command nor view nor group"),
    (lambda peer: peer.append(command("explode")), "no command"),
    (lambda peer: peer.append(command("send", destination="/queue/q", body=b"")), "send: headers is None"),
    (lambda peer: peer.append(command("send", destination="/wanted/queue/q", headers={}, body=b"")), "destination"),
    (lambda peer: peer.append(command("open", reliable=False, login="u", x=1)), "open: x is 1"),
    (lambda peer: peer.append(command("commit")), "it does not say of what"),
    (lambda peer: peer.append(command("external", server=1 << 40, sequence=1, destination="/queue/q", headers={},
                                      body=b"")), "external: server is"),
    (lambda peer: peer.append(b"V" + wire.encode([7])), "a view is malformed"),
    (lambda peer: peer.append(b"G" + wire.encode([["n9", "h", 1 << 40, ""]])), "members are malformed"),
    (lambda peer: peer.say(StateBegin((1 << 63) - 1)), "a number that can't be"),
    (lambda peer: peer.raw(encode_frame(noise(random.Random(1)))), "no message"),
    (lambda peer: peer.raw(b"\xff\xff\xff\xff"), "is longer than"),
    (lambda peer: peer.raw(encode_frame([]) + encode_frame([])), "no message"),
    (lambda peer: peer.state(["messages", 1]), None),  # a row that is gone is nothing wrong
    (lambda peer: peer.state(["nowhere", 1, 2]), "fits no table"),
    (lambda peer: peer.state(7), "fits no table"),
    (lambda peer: peer.state(*dump(12)), None),
    (lambda peer: peer.state(*changed("messages", 1, 77)), "names a row of queues that is not there"),
    (lambda peer: peer.state(*changed("messages", 3, b"\xff")), "holds what can't be there"),
    (lambda peer: peer.state(*changed("counters", 2, 1)), "a number that was not given yet"),
    (lambda peer: peer.state(*changed("subscriptions", 4, "never")), "holds what can't be there"),
    (lambda peer: peer.state(*dump(12), view=[7]), "a view is malformed"),
    (lambda peer: peer.state(*dump(12), group=[["n9", 7]]), "members are malformed"),
]


@pytest.mark.parametrize("case", range(len(LED)))
async def test_a_master_that_is_none_costs_its_link_and_one_line(tmp_path: Path, case: int) -> None:
    act, reason = LED[case]
    async with attacked(tmp_path) as victim:
        peer = await victim.connect()
        await peer.lead()
        act(peer)
        if reason is not None:
            await cut_with(victim, peer, reason)
        else:
            await until(lambda: victim.design.status()["applied"] == 5, "the state is taken")
            assert not peer.cut.done() and victim.lines("link down", peer) == []
        peer.close()
        again = await victim.connect()  # whoever says what replicas say is let in as before
        await again.lead()
        last = victim.design.status()["applied"]
        again.append(*ENTRIES[:6])
        await until(lambda: victim.design.status()["applied"] == last + 6, "honest entries are applied")
        again.close()


async def cut_with(victim: Victim, peer: HostilePeer, reason: str) -> None:
    assert await peer.is_cut(), "the link should be cut"
    await until(lambda: bool(victim.lines("link down", peer)), "a line in the log")
    (line,) = victim.lines("link down", peer)
    assert reason in line and len(line) < 400, line


async def test_a_follower_that_acknowledges_what_there_is_not_is_cut_off(tmp_path: Path) -> None:
    async with attacked(tmp_path) as victim:
        peer = await victim.dialled.get()
        await peer.follow()
        peer.say(Ack(peer.epoch, 1 << 40, 0.0))
        await cut_with(victim, peer, "is acknowledged, which there is not")
        peer.close()


async def test_a_state_without_end_is_not_kept(tmp_path: Path) -> None:
    async with attacked(tmp_path, max_state=1 << 20) as victim:
        peer = await victim.connect()
        await peer.lead()
        peer.say(StateBegin(peer.epoch))
        chunk = wire.encode([["shared", 1, "t", b"\x08\x00", b"x" * (200 << 10)]])
        for place in range(6):
            peer.say(StateChunk(peer.epoch, place, chunk))
        await cut_with(victim, peer, "is larger than 1048576 bytes (option `max_state`)")
        peer.close()


def test_a_frame_of_nothing_but_lists_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 MiB of them would be 2 GiB, and take a minute to make."""
    monkeypatch.setattr(wire, "MAX_VALUES", 100)
    assert len(wire.decode(wire.encode([[[]] * 24 for _ in range(4)]))) == 4
    for _ in range(2):  # each frame has as many
        with pytest.raises(wire.WireError, match="more than 100 values"):
            wire.decode(wire.encode([[[]] * 25 for _ in range(4)]))


def test_every_command_and_every_row_of_a_replica_passes() -> None:
    for each in COMMANDS:
        check_command(*wire.decode(wire.encode([*each[:3], dict(each.args)])))
    for upto in range(len(COMMANDS) + 1):
        rows = dump(upto)
        for row in rows:
            check_row(row)
        tables: dict[str, dict[int, Any]] = {}
        for row in rows:
            tables.setdefault(row[0], {})[row[1]] = row
        check_state(tables)
    assert {row[0] for upto in range(len(COMMANDS) + 1) for row in dump(upto)} >= {
        "counters", "queues", "contexts", "subscriptions", "messages", "shared", "deliveries", "items", "transactions",
        "outcomes", "servers", "deployment", "closed"}


@pytest.mark.parametrize("seed", range(4))
def test_what_passes_can_be_applied_and_loaded(seed: int) -> None:
    """The rules leave nothing that an engine fails at; `fuzz_engine` does the same for longer."""
    fuzz_engine(random.Random(seed), 60)


def fuzz_engine(rng: random.Random, rounds: int) -> int:
    """Load mutated states, where the rules let them pass, and apply mutated commands to them; how many were loaded."""
    loaded = 0
    states = [dump(upto) for upto in range(0, len(COMMANDS) + 1, 4)]
    for _ in range(rounds):
        tables: dict[str, dict[int, Any]] = {}
        try:
            rows = wire.decode(some_chunk(rng, rng.choice(states)))
            for row in rows if isinstance(rows, list) else []:
                check_row(row)
                if len(row) > 2:
                    tables.setdefault(row[0], {})[row[1]] = row
            check_state(tables)
        except (ShapeError, wire.WireError):
            tables = {}
        engine = StoreEngine(sqlite3.connect(":memory:", isolation_level=None))
        engine.load([row for table in tables.values() for row in table.values()])
        loaded += bool(tables)
        for _ in range(20):
            try:
                content = wire.decode(some_entry_content(rng))
                check_command(*content)
            except (ShapeError, wire.WireError, TypeError):
                continue
            engine.apply(Command(*content))
        list(engine.dump())
        engine.flush()
    return loaded


def some_entry_content(rng: random.Random) -> bytes:
    return some_entry(rng)[1:]


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", [int(os.environ.get("STORMPROOF_FUZZ_SEED", "1"))])
async def test_noise_from_a_peer_ends_nothing(tmp_path: Path, seed: int) -> None:
    """For ``STORMPROOF_FUZZ_SECONDS``: masters, followers and strangers who say anything at all."""
    rng, rows, until_when = random.Random(seed), dump(12), time.monotonic() + FUZZ_SECONDS
    frames = links = 0
    before = forget()
    async with attacked(tmp_path, log_keep=20, max_state=8 << 20) as victim:
        while time.monotonic() < until_when:
            role = rng.choice(["lead", "lead", "follow", "none"])
            peer = await victim.dialled.get() if role == "follow" else await victim.connect()
            links += 1
            if role == "lead":
                await peer.lead()
            elif role == "follow" and rng.random() < 0.3:
                await peer.follow()
            for _ in range(rng.randrange(1, 60)):
                if peer.cut.done():
                    break
                log = victim.design.replica.log
                near = [peer.epoch, peer.epoch, log.last, log.applied, log.promised, 0, 1]
                if role == "lead" and rng.random() < 0.5:
                    peer.append(rng.choice(ENTRIES))
                elif role == "lead" and rng.random() < 0.3:
                    peer.state(*rows, upto=max(1, log.last + rng.choice([-1, 0, 3])))
                peer.raw(some_message(rng, near, rows))
                frames += 1
                if rng.random() < 0.3:
                    await peer.is_cut(0.01)
            await peer.is_cut(0.05)
            peer.close()
            assert not victim.failures, (seed, links, victim.failures)
            victim.design.status()
    more = most_mib() - before
    print(f"{frames} frames on {links} links; at most {more} MiB more")
    assert more < 1024
