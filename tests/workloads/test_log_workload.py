"""The log workload: its clients, and which of their operations count as what."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from stormproof.contracts.client import LogEntry, NotDone, NotFound
from stormproof.operation import FAIL, INFO, INVOKE, OK, Op
from workloads.log import UntilEmpty
from workloads.log_client import EMPTY, NO_COPIES, NO_COPY, GenericLogClient

pytestmark = pytest.mark.requirement("H12", part=True)


class Log:
    """A system of one log; ``trouble`` is what happens to the next call."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.trouble: Exception | None = None

    async def connect(self, host: str, port: int, local: str) -> None:
        """Always."""

    async def connect_copy(self, host: str, port: int, local: str) -> None:
        """Always."""

    async def close(self) -> None:
        """Always."""

    def _trouble(self) -> None:
        trouble, self.trouble = self.trouble, None
        if trouble is not None:
            raise trouble

    async def append(self, name: str, body: bytes) -> int:
        self._trouble()
        self.bodies.append(body)
        return len(self.bodies)

    async def read(self, name: str, after: int, limit: int) -> list[LogEntry]:
        self._trouble()
        return [LogEntry(at, body) for at, body in enumerate(self.bodies, 1) if at > after][:limit]


def client_of(log: Log | Only) -> GenericLogClient:
    options = {"connect": "any", "open_timeout": 1.0, "op_timeout": 1.0, "batch": 1}
    cluster: Any = SimpleNamespace(
        test=SimpleNamespace(options=options), backend=SimpleNamespace(address=lambda host: "127.0.0.1"),
        client_addresses=lambda: [("h", 1)], node_names=["n1"], own_name=str, queue_connection=lambda: log,
    )  # fmt: skip
    return GenericLogClient(cluster, log, "c", 0)


def test_a_reader_goes_on_where_it_was_also_after_trouble() -> None:
    async def work() -> None:
        log = Log()
        client = client_of(log)

        async def ask(f: str, value: int | None = None) -> tuple[str, Any]:
            done = await client.invoke(Op(INVOKE, f, value, 0, 5))
            return done.type, done.error if done.type == FAIL else done.value

        assert await ask("poll") == (FAIL, EMPTY)
        assert [await ask("append", value) for value in (7, 8)] == [(OK, (1, 7)), (OK, (2, 8))]
        assert await ask("poll") == (OK, (1, 7))
        log.trouble = OSError("cut")
        assert (await ask("poll"))[0] == FAIL, "a read that failed has moved nothing"
        assert await ask("poll") == (OK, (2, 8))
        assert await ask("seek", 1) == (OK, 1) and await ask("poll") == (OK, (2, 8))
        assert [await ask("copy", 0) for _ in range(3)] == [(OK, (1, 7)), (OK, (2, 8)), (FAIL, EMPTY)]

    asyncio.run(work())


class Only:
    """A system of one log that shows no copies."""

    async def connect(self, host: str, port: int, local: str) -> None:
        """Always."""

    async def close(self) -> None:
        """Always."""

    async def append(self, name: str, body: bytes) -> int:
        return 1

    async def read(self, name: str, after: int, limit: int) -> list[LogEntry]:
        return []


def test_the_last_reads_go_on_when_there_are_no_copies() -> None:
    wanted = Op(INVOKE, "copy", 0, 0, 5)
    done = asyncio.run(client_of(Only()).invoke(wanted))
    assert (done.type, done.error) == (FAIL, NO_COPIES)
    test: Any = None
    reads = UntilEmpty(Op(INVOKE, "copy", 0, 0))
    assert reads.update(test, test, done).op(test, test) is None
    assert reads.update(test, test, done._replace(error="cut")).update(test, test, done._replace(key=1)) == reads


def test_a_node_that_has_no_copy_is_not_asked_again() -> None:
    log = Log()
    log.trouble = NotFound("n1 has no copy of log0")
    done = asyncio.run(client_of(log).invoke(Op(INVOKE, "copy", 0, 0, 5)))
    assert (done.type, done.error) == (FAIL, NO_COPY)
    test: Any = None
    assert UntilEmpty(Op(INVOKE, "copy", 0, 0)).update(test, test, done).op(test, test) is None


@pytest.mark.parametrize(("trouble", "kind"), [(NotDone("no"), FAIL), (OSError("cut"), INFO)])
def test_only_an_append_that_certainly_did_not_happen_has_failed(trouble: Exception, kind: str) -> None:
    log = Log()
    log.trouble = trouble
    assert asyncio.run(client_of(log).invoke(Op(INVOKE, "append", 3, 0, 5))).type == kind
