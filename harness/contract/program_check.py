"""`stormproof client check`: does a client program keep the protocol of docs/clients.md?

Without a broker, the form is tested: the first line, answers to requests, the end. With a broker, the primitives, too.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import socket
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from harness.contract.clients import ITEMS
from harness.contract.core import (
    CALL_SECONDS,
    SKIPPED,
    START_SECONDS,
    Bench,
    BenchClient,
    Broken,
    ContractItem,
    ItemOutcome,
    NotClaimed,
    tried,
)
from nodes.timeouts import within
from stormproof.clients.exec import connect_values, program_connection, words_of
from stormproof.clients.program import (
    DIES_WITH_US,
    FEATURES,
    LOCKS,
    LOGS,
    PREPARE,
    QUEUES,
    REGISTERS,
    Hello,
    Program,
    ProgramLost,
    announced,
    kill_group,
)
from stormproof.contracts.client import NotDone
from stormproof.contracts.protocol_client import Access, Broker, BrokerSetup
from stormproof.contracts.workload_requirements import Demands

END_SECONDS = 5.0
"""The time within which the program must end when its standard input ends."""
LONG_BYTES = 1 << 20
"""The length of a request that a program must read: messages may be longer than a library's usual line."""
_NEEDS = {"lock": LOCKS, "log": LOGS, "read-write": REGISTERS, "cas": REGISTERS}
_TRIED = ("send-take", "depth", "depth-unacknowledged", "take-empty", "give-back", "redelivery", "read-write", "cas",
          "lock", "log")  # fmt: skip
"""The items of `systems check` that need nothing but connections."""


class ProgramBench(Bench):
    """A client program in the place of a system, and the broker that it is tried on, if there is one."""

    neutral = True

    def __init__(self, command: str, broker: Broker | None, access: Access) -> None:
        nobody = cast(Any, None)
        super().__init__(nobody, nobody, nobody, Path(), self._connection)
        self.argv = words_of(command)
        self.command = command
        self.broker = broker
        self.hello: Hello | None = None
        self.errors: list[str] = []
        mark = secrets.token_hex(3)
        self._names_left = {kind: [f"stormproof-check-{mark}-{kind[0]}{number}" for number in range(len(_TRIED))]
                            for kind in FEATURES}  # fmt: skip
        names = {kind: tuple(found) for kind, found in self._names_left.items()}
        demands = Demands(queues=names[QUEUES], logs=names[LOGS], registers=names[REGISTERS], locks=names[LOCKS])
        self.setup = BrokerSetup([broker] if broker else [], access, demands, {"command": command},
                                 tell=self.errors.append)  # fmt: skip
        self._bodies = itertools.count(1)

    def _connection(self) -> Any:
        assert self.hello is not None
        return program_connection(self.argv, self.setup, self.hello)

    def announced(self, kind: str) -> str:
        """Return a name of a queue, log, register or lock that no other item uses."""
        return self._names_left[kind].pop()

    def body(self) -> bytes:
        """Return a body that no other message has, and that is not ASCII."""
        return f"check-{next(self._bodies)}-ä".encode()

    def overrides(self, hook: str) -> bool:
        """Return False: a program has no hooks."""
        return False

    async def client(self, place: int = 0, *, patience: float = CALL_SECONDS) -> BenchClient:
        """Return a new connection to the broker. Raises Broken if it lets none in."""
        assert self.broker is not None
        client = BenchClient(self.make_connection(), "", self.broker.node)
        self._open.append(client)
        try:
            async with within(START_SECONDS):
                await client.connection.start("")
            await client.call(client.connection.connect(self.broker.host, self.broker.port, ""), patience)
        except Exception as error:
            raise Broken(f"it does not connect to {self.broker.host}:{self.broker.port}: {error or 'no answer'}"
                         ) from error
        return client

    async def program(self) -> Program:
        """Return a new process of the program."""
        async with within(START_SECONDS):
            program, _ = await Program.start(self.argv, self.errors.append)
        return program

    def where(self, hook: str) -> str:
        """Return the program, with the last line of its standard error."""
        said = [line for line in self.errors if line.strip() and not line.strip().startswith("(ended by the harness")]
        return f"{self.command}{f': {said[-1].strip()[:200]}' if said else ''}"


async def _first_line(bench: Bench) -> str:
    bench = cast(ProgramBench, bench)
    try:
        bench.hello = await asyncio.to_thread(announced, bench.argv, START_SECONDS)
    except ProgramLost as error:
        raise Broken(str(error)) from None
    return f"announces {', '.join(sorted(bench.hello.can))}"


async def _refused(bench: Bench) -> str:
    await _demand_fail(cast(ProgramBench, bench), {})
    return "fail"


async def _unknown_fields(bench: Bench) -> str:
    await _demand_fail(cast(ProgramBench, bench), {"later": {"added": ["by a later version"]}})
    return "ignored"


async def _long_line(bench: Bench) -> str:
    await _demand_fail(cast(ProgramBench, bench), {"later": "x" * LONG_BYTES})
    return f"a request of {LONG_BYTES} bytes"


async def _demand_fail(bench: ProgramBench, more: Mapping[str, Any]) -> None:
    """Let the program connect to a port where nothing listens; raise Broken unless it answers ``fail``."""
    program = await bench.program()
    try:
        with socket.socket() as kept:  # bound and silent: the kernel refuses connections
            kept.bind(("127.0.0.1", 0))
            port = kept.getsockname()[1]
            setup = replace(bench.setup, brokers=[Broker("n1", "127.0.0.1", port)])
            async with within(CALL_SECONDS):
                await program.ask("connect", host="127.0.0.1", port=port, local="127.0.0.1", **connect_values(setup),
                                  **more)  # fmt: skip
    except NotDone:
        return
    except ProgramLost as error:
        raise Broken(f"connect to a port where nothing listens: {error}") from None
    except TimeoutError:
        raise Broken(f"connect to a port where nothing listens: no answer within {CALL_SECONDS:g} s") from None
    finally:
        await program.close()
    raise Broken("connect to a port where nothing listens: the answer was ok")


async def _ends(bench: Bench) -> str:
    bench = cast(ProgramBench, bench)
    process = await asyncio.create_subprocess_exec(
        *DIES_WITH_US, *bench.argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        start_new_session=True)  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    try:
        async with within(START_SECONDS):
            await process.stdout.readline()
        process.stdin.close()
        async with within(END_SECONDS):
            await process.wait()
    except TimeoutError:
        raise Broken(f"it still runs {END_SECONDS:g} s after the end of its standard input") from None
    finally:
        kill_group(process.pid)
        await process.communicate()
    return f"with status {process.returncode}"


async def _prepare(bench: Bench) -> str:
    bench = cast(ProgramBench, bench)
    if PREPARE not in _hello(bench).can:
        raise NotClaimed("it does not announce prepare")
    for _ in range(2):
        client = await bench.client()
        await client.call(client.connection.prepare())
    return "twice"


FORM = (
    ContractItem("first-line", "it announces the protocol's version and what it can do", "",
                 'write one line first: {"stormproof": 1, "can": ["queues"]}; flush it', _first_line),
    ContractItem("refused", "a connection that is refused is answered by fail", "",
                 "connect to `host`:`port` before you answer connect; answer fail when the connection is refused",
                 _refused),
    ContractItem("unknown-fields", "fields of requests that it does not know are ignored", "",
                 "read the fields that you need; later versions add others", _unknown_fields),
    ContractItem("long-line", "long requests are read", "",
                 "read lines of any length; many libraries stop at 64 KiB", _long_line),
    ContractItem("end", "it ends when its standard input ends", "",
                 "end at the end of standard input, or a killed harness leaves the program", _ends),
)  # fmt: skip
"""The items without a broker."""
WITH_BROKER = (
    ContractItem("prepare", "it creates the named objects; existing ones are accepted", "",
                 "accept objects that exist already", _prepare),
    *(replace(item, needs=_NEEDS.get(item.name, item.needs)) for item in ITEMS if item.name in _TRIED),
)  # fmt: skip


async def check_program(command: str, broker: tuple[str, int] | None, access: Access,
                        tell: Callable[[ItemOutcome], None]) -> None:  # fmt: skip
    """Test a client program, item by item. Raises UsageError if the program does not exist."""
    bench = ProgramBench(command, Broker("n1", *broker) if broker else None, access)
    for item in (*FORM, *WITH_BROKER):
        bench.errors.clear()
        tell(_left_out(item, bench) or await tried(item, bench))


def _left_out(item: ContractItem, bench: ProgramBench) -> ItemOutcome | None:
    if bench.hello is None:
        return None if item is FORM[0] else ItemOutcome(item.name, SKIPPED, "its first line is wrong")
    if item in WITH_BROKER and bench.broker is None:
        return ItemOutcome(item.name, SKIPPED, "name a broker: --broker HOST:PORT")
    if item.needs and item.needs not in bench.hello.can:
        return ItemOutcome(item.name, SKIPPED, f"it does not announce {item.needs}")
    return None


def _hello(bench: ProgramBench) -> Hello:
    assert bench.hello is not None
    return bench.hello
