"""The lines of a trace beside those of queues: what was read and told, copies passed over, logs and states."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest
from engine_bench import Bench

from nodes.reference.api import Command
from nodes.reference.designs.joram.log import JoramLog, encode_command, encode_view
from nodes.reference.designs.joram.log_trace import LogTrace
from nodes.reference.engine.audit import fingerprints
from nodes.reference.engine.trace import MessageTrace
from nodes.reference.replication.positions import LogId
from nodes.systems.reference.log_events import EventLine
from nodes.systems.reference.message_trace import log_mark, message_mark, state_mark
from stormproof.contracts.system import COUNTED, LOGGED, PASSED, READ, TOLD, LogMark, MessageMark, StateMark

pytestmark = pytest.mark.requirement("H25", part=True)


class Lines(list[EventLine]):
    """What a trace wrote."""

    def log(self, event: str, **fields: Any) -> None:
        self.append(EventLine("", "n1", event, {name: str(value) for name, value in fields.items()}, 0))

    def marks(self, what: str) -> list[MessageMark]:
        return [mark for line in self if (mark := message_mark(line)) is not None and mark.what == what]


def test_what_a_command_read_and_what_a_client_was_told() -> None:
    bench, lines = Bench(), Lines()
    bench.engine.trace(trace := MessageTrace(lines.log))
    bench.open(reliable=True)
    bench.do("put", "c", 1, destination="/last-value/v", key="a", headers={}, body=b"16", receipt="r")
    bench.do("read", "c", 2, destination="/last-value/v", key="a", receipt="r")
    bench.do("read", "c", 3, destination="/last-value/v", key="other", receipt="r")
    assert lines.marks(READ) == [MessageMark(READ, "last-value:v", ("16",), "read", "c 2")]
    trace.told("c", 2, {"x-version": "1", "x-value": "MTY="})
    trace.told("c", 3, {"x-version": "0"})
    assert lines.marks(TOLD) == [MessageMark(TOLD, "receipt", ("16",), "read", "c 2")]


def test_a_copy_that_is_passed_over() -> None:
    bench, lines = Bench(), Lines()
    bench.engine.trace(MessageTrace(lines.log))
    copy = bench.engine.replicas()
    bench.database.execute("BEGIN")
    assert copy.enqueue("q0", 5, {}, b"1/5")
    assert not copy.enqueue("q0", 5, {}, b"1/5"), "the same again: nothing is told"
    assert not copy.enqueue("q0", 5, {}, b"2/5")
    assert copy.dequeue("q0", 5)
    assert not copy.enqueue("q0", 4, {}, b"2/4")
    bench.engine.flush()
    bench.database.execute("COMMIT")
    assert lines.marks(PASSED) == [MessageMark(PASSED, "q0", ("2/5",), COUNTED, "5 5 1/5"),
                                   MessageMark(PASSED, "q0", ("2/4",), COUNTED, "4 5")]  # fmt: skip


def test_of_which_epochs_the_entries_of_a_log_are() -> None:
    lines, log = Lines(), JoramLog(sqlite3.connect(":memory:", isolation_level=None))
    trace = MessageTrace(lines.log)
    log.watch = LogTrace(log, trace)
    send = encode_command(Command("send", "c", 1, {"headers": {}, "body": b"1/7"}))
    log.append(64, encode_view(["n1"]))
    log.append(64, send)
    log.append(129, send)
    log.truncate(3)
    log.append(64, send)
    log.reset(LogId(129, 9), ["n1"], [])
    log.append(129, send)
    trace.tell()
    told = [mark for line in lines if (mark := log_mark(line)) is not None]
    assert told == [LogMark(1, "1/0"), LogMark(3, "2/1"), LogMark(3, ""), LogMark(3, "1/0"), LogMark(10, "", True),
                    LogMark(10, "2/1")]  # fmt: skip
    assert [mark.token for mark in lines.marks("put") if mark.cause == LOGGED] == ["2 1/0", "3 2/1", "3 1/0", "10 2/1"]
    first = next(at for at, line in enumerate(lines) if line.fields.get("by") == "truncated")
    assert [line.fields["by"] for line in lines[:first] if "put" in line.fields] == ["logged 2 1/0", "logged 3 2/1"], (
        "what was noted before is told before")  # fmt: skip


def test_states_that_are_given_and_taken() -> None:
    one, other, lines = Bench(), Bench(), Lines()
    for bench in (one, other):
        bench.open()
        bench.do("send", destination="/queue/q0", headers={}, body=b"1/7", receipt="r")
    assert fingerprints(one.database) == fingerprints(other.database)
    other.do("send", destination="/queue/q0", headers={}, body=b"1/8", receipt="r")
    mine, theirs = fingerprints(one.database), fingerprints(other.database)
    assert {name for name in mine if mine[name] != theirs[name]} == {"counters", "queues", "messages"}
    assert (mine["messages"].partition(":")[0], theirs["messages"].partition(":")[0]) == ("1", "2")
    MessageTrace(lines.log).state("n2", True, 7, mine)
    MessageTrace(lines.log).state("n2", False, 7, theirs)
    assert [state_mark(line) for line in lines] == [StateMark("n2", True, 7, mine), StateMark("n2", False, 7, theirs)]


@pytest.mark.parametrize("fields", [{}, {"log": "x", "epoch": "1/0"}, {"state": "-", "by": "given n2"}])
def test_lines_that_tell_none_of_it(fields: dict[str, str]) -> None:
    line = EventLine("", "n1", "trace", fields, 0)
    assert (log_mark(line), state_mark(line)) == (None, None)
    assert log_mark(EventLine("", "n1", "joined", {"log": "7", "state": "7"}, 0)) is None
    assert state_mark(EventLine("", "n1", "joined", {"log": "7", "state": "7"}, 0)) is None
