from __future__ import annotations

import random
import sqlite3

import pytest

from nodes.reference.api import Command
from nodes.reference.designs.joram.log import JoramLog, decode_command, decode_view, encode_command, encode_view
from nodes.reference.replication.positions import LogId


def entry(number: int) -> bytes:
    return encode_command(Command("send", "c", number, {"body": b"x" * 50}))


def write(database: sqlite3.Connection, log: JoramLog) -> None:
    database.execute("BEGIN")
    log.write()
    database.execute("COMMIT")


@pytest.fixture
def database():
    connection = sqlite3.connect(":memory:", isolation_level=None)
    yield connection
    connection.close()


def contents(log: JoramLog) -> list[tuple[int, int, bytes]]:
    numbered = zip(range(log.base + 1, log.last + 1), log.read(log.base + 1, 1 << 30), strict=True)
    return [(index, epoch, raw) for index, (epoch, raw) in numbered]


def test_entries_keep_what_they_hold():
    command = Command("send", "n1-7", 3, {"destination": "/queue/q", "headers": {"a": "b"}, "body": b"\0"})
    assert decode_command(encode_command(command)) == command
    assert decode_view(encode_command(command)) is None
    assert decode_view(encode_view(["n2", "n1"])) == ["n2", "n1"]


def test_only_what_was_written_survives(database):
    log = JoramLog(database)
    log.append(64, entry(1))
    write(database, log)
    log.append(64, entry(2))
    assert JoramLog(database).last == 1


def test_a_removed_tail_and_what_replaced_it_survive(database):
    log = JoramLog(database)
    for number in range(1, 6):
        log.append(64, entry(number))
    write(database, log)
    log.truncate(3)
    log.append(129, entry(33))
    write(database, log)
    again = JoramLog(database)
    assert contents(again) == [(1, 64, entry(1)), (2, 64, entry(2)), (3, 129, entry(33))]
    assert again.position().last == LogId(129, 3)


def test_applied_entries_are_never_removed(database):
    log = JoramLog(database)
    log.append(64, entry(1))
    log.applied = 1
    with pytest.raises(ValueError, match="has been applied"):
        log.truncate(1)


def test_the_view_is_that_of_the_last_view_entry(database):
    log = JoramLog(database)
    log.append(64, encode_view(["n1", "n2", "n3"]))
    log.append(64, entry(1))
    log.append(64, encode_view(["n1", "n2"]))
    assert log.view == ["n1", "n2"]
    log.truncate(3)
    assert log.view == ["n1", "n2", "n3"]
    log.applied = 2
    log.compact(keep=0, keep_bytes=0, hold=2)
    assert log.base == 2
    write(database, log)
    assert JoramLog(database).view == ["n1", "n2", "n3"]


def test_compaction_keeps_what_was_not_applied_and_what_a_transfer_needs(database):
    log = JoramLog(database)
    for number in range(1, 101):
        log.append(64, entry(number))
    log.applied = 60
    log.compact(keep=60, keep_bytes=1 << 20, hold=100)
    assert log.base == 0
    log.compact(keep=10, keep_bytes=1 << 20, hold=50)
    assert (log.base, log.last) == (50, 100)
    log.compact(keep=10, keep_bytes=1 << 20, hold=100)
    assert log.base == 60
    assert log.epoch_at(59) is None and log.epoch_at(60) == 64
    write(database, log)
    assert contents(JoramLog(database)) == [(number, 64, entry(number)) for number in range(61, 101)]


@pytest.mark.requirement("J9")
def test_a_new_state_keeps_the_tail_that_fits_and_drops_one_that_does_not(database):
    log = JoramLog(database)
    for number in range(1, 11):
        log.append(64, entry(number))
    write(database, log)
    log.reset(LogId(64, 8), ["n1"], [])
    assert (log.base, log.last, log.applied) == (8, 10, 8)
    log.reset(LogId(129, 9), ["n2"], [])
    assert (log.base, log.last, log.applied, log.view) == (9, 9, 9, ["n2"])
    log.append(129, entry(10))
    write(database, log)
    again = JoramLog(database)
    assert contents(again) == [(10, 129, entry(10))]
    assert again.position().applied == LogId(129, 9)


@pytest.mark.parametrize("seed", range(20))
def test_random_changes_give_on_disk_what_they_give_in_memory(database, seed):
    rng = random.Random(seed)
    log = JoramLog(database)
    model: dict[int, tuple[int, bytes]] = {}
    for step in range(300):
        action = rng.choice(["append"] * 6 + ["truncate", "apply", "compact", "write", "promise", "read"])
        if action == "append":
            raw = entry(step) if rng.random() < 0.9 else encode_view([f"n{step}"])
            model[log.append(step, raw)] = (step, raw)
        elif action == "truncate" and log.last > log.applied:
            index = rng.randint(log.applied + 1, log.last)
            log.truncate(index)
            model = {key: value for key, value in model.items() if key < index}
        elif action == "apply":
            log.applied = rng.randint(log.applied, log.last)
        elif action == "compact":
            log.compact(rng.randint(0, 20), rng.randint(100, 2000), rng.randint(0, log.last))
            model = {key: value for key, value in model.items() if key > log.base}
        elif action == "promise":
            log.promised += 1
        elif action == "read" and log.last > log.base:
            start = rng.randint(log.base + 1, log.last)
            found = log.read(start, rng.randint(1, 500))
            assert found == [model[start + place] for place in range(len(found))] and found
        elif action == "write":
            write(database, log)
            assert not log.dirty
            again = JoramLog(database)
            assert contents(again) == [(index, *model[index]) for index in sorted(model)]
            assert (again.position(), again.promised, again.view) == (log.position(), log.promised, log.view)
